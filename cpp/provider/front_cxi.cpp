// cpp/provider/front_cxi.cpp: the whole of libcxi-fi.so, the file from which libfabric gets the provider "cxi".
#include "provider/front.inl"

extern "C" __attribute__((visibility("default"))) weft::provider::FiProvider* fi_prov_ini() {
  return weft::provider::make_front("cxi", __builtin_return_address(0));
}
