// cpp/bind/ofi_group.hpp: collective groups of a real libfabric.
#pragma once

#include "bind/ofi.hpp"

namespace weft::bind {

struct OfiAvSet {
  std::shared_ptr<OfiAv> av;
  OfiHandle h;  // closed before the vector
  [[nodiscard]] ofi::FidAvSet* get() const noexcept { return reinterpret_cast<ofi::FidAvSet*>(h.fid); }
};
struct OfiMc {
  std::shared_ptr<OfiAvSet> set;
  OfiHandle h;  // closed before the set
};

// An endpoint's membership.
struct OfiGroup {
  ~OfiGroup();
  int shut() noexcept;
  // The join, or calls of the group: the library uses what close() would free.
  [[nodiscard]] bool under_way() const noexcept { return !joined || Py_REFCNT(token.ptr()) > 1; }

  std::shared_ptr<OfiEp> ep;
  std::shared_ptr<OfiMc> mc;  // null: closed
  nb::object token;           // each call that is under way holds a reference
  std::vector<ofi::Addr> members;
  size_t mine = 0;  // this endpoint's place among them
  ofi::Addr addr = 0;
  bool joined = false;
};

}  // namespace weft::bind
