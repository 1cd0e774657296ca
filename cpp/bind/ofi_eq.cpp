// cpp/bind/ofi_eq.cpp: event queues of a real libfabric.
#include "bind/ofi_queue.hpp"

namespace weft::bind {

namespace {

void make_eq(OfiCore<OfiEq>* self, const OfiCore<OfiFabric>& fabric, size_t size, uint64_t flags, int wait_obj) {
  OfiFabric& f = ofi_open(fabric, "eq_open");
  auto box = std::make_shared<OfiEq>();
  box->fabric = fabric.box;
  open_waiting(*box, "eq_open", f.get(), ofi::op(f.get()->ops, &ofi::FabricOps::eq_open),
               ofi::EqAttr{size, flags, wait_obj, 0, nullptr}, kWaitUnspec);
  new (self) OfiCore<OfiEq>{box};
}

constexpr uint32_t kConnReq = 1, kConnected = 2, kShutdown = 3;  // FI_CONNREQ ...

// An event as (event, fid, context or info, data): of a connection, `data` is bytes; of others a number. The events of
// write() may have any number, also that of a connection: their fid is the queue's own.
nb::object event_of(const OfiEq& eq, uint32_t event, const void* room, ssize_t n) {
  const auto* cm = static_cast<const ofi::EqCmEntry*>(room);
  if (event >= kConnReq && event <= kShutdown && cm->fid != eq.h.fid) {
    const auto size = static_cast<size_t>(n) - std::min(static_cast<size_t>(n), offsetof(ofi::EqCmEntry, data));
    nb::object info = nb::none();
    if (event == kConnReq && cm->info != nullptr) {
      auto one = std::make_unique<OfiInfo>();
      one->info = cm->info;
      info = nb::cast(one.release(), nb::rv_policy::take_ownership);
    }
    return nb::make_tuple(event, reinterpret_cast<uint64_t>(cm->fid), info,
                          nb::bytes(reinterpret_cast<const char*>(cm->data), size));
  }
  const auto* e = static_cast<const ofi::EqEntry*>(room);
  return nb::make_tuple(event, reinterpret_cast<uint64_t>(e->fid), reinterpret_cast<uint64_t>(e->context), e->data);
}

// One look at the queue; wait_ms 0 reads only. None if there is no event.
nb::object read_eq(OfiCore<OfiEq>& self, uint64_t flags, int wait_ms) {
  OfiEq& eq = ofi_open(self, "eq.read");
  const std::shared_ptr<OfiEq> kept = self.box;
  ofi::EqCmEntry room{};
  uint32_t event = 0;
  ssize_t n = 0;
  if (wait_ms > 0) {
    const auto call = ofi::op(eq.get()->ops, &ofi::EqOps::sread);
    if (call == nullptr) ofi_raise_missing("eq.sread");
    const OfiReleased released(&eq.h, true);
    n = call(eq.get(), &event, &room, sizeof room, std::min(wait_ms, kSliceMs), flags);
  } else {
    const auto call = ofi::op(eq.get()->ops, &ofi::EqOps::read);
    if (call == nullptr) ofi_raise_missing("eq.read");
    n = call(eq.get(), &event, &room, sizeof room, flags);
  }
  if (n == -fi_err::kEAGAIN || n == -4 || n == -110 || n == 0) return nb::none();
  if (n == -fi_err::kEAVAIL) raise(fi_err::kEAVAIL, "eq.read: an error entry waits; read it with readerr()");
  ofi_check("eq.read", n);
  return event_of(eq, event, &room, n);
}

nb::object read_eq_error(OfiCore<OfiEq>& self, uint64_t flags) {
  OfiEq& eq = ofi_open(self, "eq.readerr");
  const auto call = ofi::op(eq.get()->ops, &ofi::EqOps::readerr);
  if (call == nullptr) ofi_raise_missing("eq.readerr");
  std::array<char, 1024> data{};
  ofi::EqErrEntry e{};
  e.err_data = data.data();
  e.err_data_size = data.size();
  const ssize_t n = call(eq.get(), &e, flags);
  if (n == -fi_err::kEAGAIN || n == 0) return nb::none();
  ofi_check("eq.readerr", n);
  const size_t told = e.err_data == nullptr || e.err_data_size == data.size() ? 0 : e.err_data_size;
  return nb::make_tuple(reinterpret_cast<uint64_t>(e.fid), reinterpret_cast<uint64_t>(e.context), e.data, e.err,
                        e.prov_errno, nb::bytes(static_cast<const char*>(e.err_data), told));
}

}  // namespace

void register_ofi_event_queues(Module& m) {
  Class<OfiCore<OfiEq>> eq_type(m, "OfiEventQueueCore", "An event queue of a real libfabric.");
  def_waits(eq_type, &OfiCore<OfiEq>::box, "A descriptor that is readable while events wait (wait_obj FD), or -1.");
  eq_type.def<"__init__(fabric, size, flags, wait_obj)">(&make_eq)
      .def<"close_core">(&ofi_close<"eq.close", OfiEq>)
      .def<"read_core(self, flags: int, wait_ms: int) -> Any">(&read_eq)
      .def<"readerr_core(self, flags: int) -> Any">(&read_eq_error)
      .def<"write_core(event, number, flags)">(
          [](OfiCore<OfiEq>& self, uint32_t event, uint64_t number, uint64_t flags) {
            OfiEq& eq = ofi_open(self, "eq.write");
            const ofi::EqEntry e{eq.h.fid, nullptr, number};
            ofi_run("eq.write", eq, &ofi::EqOps::write, event, &e, sizeof e, flags);
          })
      .def<"strerror_core(prov_errno, err_data)">([](OfiCore<OfiEq>& self, int prov_errno, const nb::bytes& err_data) {
        return words_of(self, prov_errno, err_data, "eq.strerror");
      });
}

}  // namespace weft::bind
