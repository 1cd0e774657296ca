// cpp/bind/module.cpp: the extension module weft._nic.
#include "bind/held.hpp"
#include "bind/objects.hpp"
#include "bind/ofi.hpp"
#include "bind/reduction.hpp"
#include "bind/seam.hpp"
#include "bind/signatures.hpp"

NB_MODULE(_nic, module) {
  using namespace weft::bind;
  make_seam();
  Module m(module);
  m.doc() = "The software NIC of Weft. weft.fi and weft.ucp call this module; applications do not.";
  nb::set_leak_warnings(false);  // objects that live until the interpreter ends are not an error
#define WEFT_PART(name) register_##name(m);
  WEFT_PARTS(WEFT_PART)
#undef WEFT_PART
  explain_functions(m);
}
