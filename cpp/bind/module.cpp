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
  register_errors(m);
  register_buffers(m);
  register_limits(m);
  register_tables(m);
  register_nic(m);
  register_takes(m);
  register_domain(m);
  register_cm(m);
  register_av(m);
  register_cq(m);
  register_cntr(m);
  register_mr(m);
  register_atomic(m);
  register_reduction(m);
  register_rules(m);
  register_message_config(m);
  register_endpoint(m);
  register_calls(m);
  register_elements(m);
  register_collective(m);
  register_probes(m);
  register_numpy_memory(m);
  register_cache(m);
  register_ucp(m);
  register_window(m);
  register_sync(m);
  register_ofi(m);
  register_held(m);
  register_triggers(m);
  explain_functions(m);
}
