// cpp/bind/cm.cpp: the queue of connection messages as a Python type.
#include "bind/objects.hpp"

namespace weft::bind {

void register_cm(nb::module_& m) {
  nb::enum_<nic::CmKind>(m, "CmKind", nb::is_arithmetic(), "What a message between endpoints says.")
      .value("request", nic::CmKind::request)
      .value("accept", nic::CmKind::accept)
      .value("reject", nic::CmKind::reject)
      .value("shutdown", nic::CmKind::shutdown)
      .value("delivered", nic::CmKind::delivered, "The peer's NIC has one's own message.")
      .value("failed", nic::CmKind::failed, "One's own message could not be delivered.")
      .value("lost", nic::CmKind::lost, "The peer's process or host is gone.");
  nb::class_<CmQueueCore>(m, "CmQueue", "Where endpoints find what others tell them to connect.")
      .def(
          "__init__",
          [](CmQueueCore* self, PyNic& nic, int fd) {
            auto& box = box_of(nic);
            auto notifier = std::make_shared<host::FdNotifier>(fd);
            new (self) CmQueueCore{box, std::make_shared<nic::CmQueue>(notifier), notifier};
          },
          nb::arg("nic"), nb::arg("fd"), "fd  an eventfd that is written to when something came.")
      .def(
          "pop",
          [](CmQueueCore& q) -> nb::object {
            const auto e = q.queue->pop();
            if (!e) return nb::none();
            return nb::make_tuple(e->token, static_cast<uint32_t>(e->kind), static_cast<uint32_t>(e->what),
                                  nb::make_tuple(e->source.nic, e->source.pid, e->source.vni), e->connection, e->status,
                                  nb::bytes(reinterpret_cast<const char*>(e->data.data()), e->data.size()));
          },
          nb::sig("def pop(self) -> tuple[int, int, int, tuple[int, int, int], int, Status, bytes] | None"),
          "(token, kind, what, source, connection, status, data), oldest first; None when there is nothing.")
      .def("unread", [](const CmQueueCore& q) { return q.queue->unread(); })
      .def("close", [](CmQueueCore& q) { q.notifier->forget(); }, "Rings no more: the descriptor may be closed.");
}

}  // namespace weft::bind
