// cpp/bind/cm.cpp: the queue of connection messages as a Python type.
#include "bind/objects.hpp"
#include "bind/tables.hpp"

namespace weft::bind {

void register_cm(Module& m) {
  register_choices<nic::CmKind>(m, nb::is_arithmetic());
  register_choices<nic::CmNews>(m, nb::is_arithmetic());
  register_choices<nic::CmState>(m, nb::is_arithmetic());
  Class<CmQueueCore>(m, "CmQueue", "The queue of received connection messages.")
      .about("fd  an eventfd to which the NIC writes when a message arrives.")
      .def<"__init__(nic, fd)">([](CmQueueCore* self, PyNic& nic, int fd) {
        auto& box = box_of(nic);
        auto notifier = std::make_shared<host::FdNotifier>(fd);
        new (self) CmQueueCore{box, std::make_shared<nic::CmQueue>(notifier), notifier};
      })
      .about(
          "Takes the oldest message: (token, kind, what, source, connection, status, data). None if the queue is "
          "empty.")
      .def<"pop(self) -> tuple[int, int, int, tuple[int, int, int], int, Status, bytes] | None">(
          [](CmQueueCore& q) -> nb::object {
            const auto e = q.queue->pop();
            if (!e) return nb::none();
            return nb::make_tuple(e->token, static_cast<uint32_t>(e->kind), static_cast<uint32_t>(e->what),
                                  nb::make_tuple(e->source.nic, e->source.pid, e->source.vni), e->connection, e->status,
                                  nb::bytes(reinterpret_cast<const char*>(e->data.data()), e->data.size()));
          })
      .def<"unread">([](const CmQueueCore& q) { return q.queue->unread(); })
      .about("Stops writing to the descriptor, which may then be closed.")
      .def<"close">([](CmQueueCore& q) { q.notifier->forget(); });
}

}  // namespace weft::bind
