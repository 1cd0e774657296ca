// cpp/bind/objects.hpp: what the files of the objects (nic, domain, av, cq, cntr, mr, ep) share.
#pragma once

#include "bind/common.hpp"

namespace weft::bind {

constexpr int kWaitFd = 3;  // FI_WAIT_FD

std::shared_ptr<DomainBox>& box_of(DomainCore& d);  // raises where it is closed or the parent's

template <typename T>
void check_usable(const T& core, const char* what) {
  if (!core.box || core.closed) raise(fi_err::kEOPBADSTATE, std::string(what) + " is closed");
  if (core.box->forked()) {
    raise(fi_err::kEOPBADSTATE,
          std::string("this ") + what + " belongs to the parent process: a forked child opens its own fabric");
  }
}

inline PyObject* number(uint64_t n) {
  return PyLong_FromUnsignedLongLong(n);
}

// A number from Python, or the error that names the argument.
inline uint64_t number_of(nb::handle value, const char* method, const char* name) {
  uint64_t n = 0;
  if (!to_u64(value.ptr(), &n, method, name)) throw nb::python_error();
  return n;
}

void register_nic(nb::module_& m);
void register_hmem(nb::class_<PyNic>& nic);
void register_domain(nb::module_& m);
void register_cm(nb::module_& m);
void register_av(nb::module_& m);
void register_cq(nb::module_& m);
void register_cntr(nb::module_& m);
void register_mr(nb::module_& m);
void register_atomic(nb::module_& m);
void register_rules(nb::module_& m);

}  // namespace weft::bind
