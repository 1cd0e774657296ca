// cpp/provider/front_weft.cpp: the whole of libweft-fi.so, the file from which libfabric gets the provider "weft".
#include "provider/front.inl"

extern "C" __attribute__((visibility("default"))) weft::provider::FiProvider* fi_prov_ini() {
  return weft::provider::make_front("weft", __builtin_return_address(0));
}
