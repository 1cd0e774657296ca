// cpp/bind/window.cpp: pointers to a peer's memory mapped in this process, for ucp_rkey_ptr and imported handles.
#include "nic/window.hpp"

#include "bind/common.hpp"
#include "mem/lease.hpp"

namespace weft::bind {

namespace {

constexpr size_t kQuickUnmapBytes = size_t{16} << 20;

struct PeerMemory {
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory() {
    if (lease.mapped_bytes() <= kQuickUnmapBytes) return;
    const ReleasedGil released;  // the kernel walks all pages
    lease.reset();
  }
  std::shared_ptr<NicBox> box;  // outlives `keep`
  std::shared_ptr<nic::Hold> keep;
  mem::Lease lease;  // ends before the hold: an owner that is told of the hold's end finds no lease
  std::byte* data = nullptr;
  size_t length = 0;
  bool readonly = false;
};

int peer_memory_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* m = nb::inst_ptr<PeerMemory>(self);
  return PyBuffer_FillInfo(view, self, m->data, static_cast<Py_ssize_t>(m->length), m->readonly ? 1 : 0, flags);
}
PyType_Slot g_peer_memory_slots[] = {{Py_bf_getbuffer, slot<peer_memory_getbuffer>()}, {0, nullptr}};

}  // namespace

void register_window(Module& m) {
  Class<PeerMemory>(m, "PeerMemory", nb::type_slots(g_peer_memory_slots), nb::is_weak_referenceable(),
                    "Memory of a peer's process, mapped in this process: a buffer. While this object exists,\n"
                    "the memory stays mapped, and the peer does not reuse its place for another region.")
      .def_prop<"address">([](const PeerMemory& p) { return reinterpret_cast<uint64_t>(p.data); })
      .def_prop<"nbytes">([](const PeerMemory& p) { return p.length; })
      .about("False once the peer has closed the region, or is gone.")
      .def_prop<"current">([](const PeerMemory& p) { return p.keep->current(); })
      .about(
          "True if the kernel keeps the peer from reusing the place for as long as any process maps this memory: also\n"
          "after a fork, and without the connection.")
      .def_prop<"locked">([](const PeerMemory& p) { return p.lease.locked(); });
  m.about(
       "Returns a peer's memory as this process has it mapped; None if loads and stores do not reach the memory; the\n"
       "number of a Status if the access is refused (16, again: the connection or the mapping is still being made).\n"
       "own   a mapping of its own, which ends with the object: read-only pages unless `writable`, and a lock of the\n"
       "      kernel that keeps the place from being reused (mem/lease.hpp). length > 0; memory of segments only.")
      .def<
          "peer_memory(ep: EndpointCore, dest: int, key: int, addr: int, length: int, writable: bool, own: bool = "
          "False) -> PeerMemory | int | None">([](EndpointCore& ep, uint64_t dest, uint64_t key, uint64_t addr,
                                                  uint64_t length, bool writable, bool own) -> nb::object {
        const uint32_t want = mem::kRemoteRead | (writable ? mem::kRemoteWrite : 0);
        const auto w = ep.ep->window(dest, key, addr, length, want);
        if (w.status != Status::ok) return nb::int_(static_cast<int>(w.status));
        if (w.pointer == nullptr || (own && w.fd < 0)) return nb::none();
        auto p = std::make_unique<PeerMemory>();
        p->box = ep.box->nic;
        p->keep = w.keep;
        p->data = w.pointer;
        if (own) {
          p->lease = mem::Lease::take(w.fd, w.where, length, writable);
          p->data = p->lease.data();
          // The owner may have lost the connection, and with it the hold, before the lease began.
          if (!p->keep->current()) return nb::int_(static_cast<int>(Status::again));
        }
        p->length = length;
        p->readonly = !writable;
        return nb::cast(std::move(p));
      });
}

}  // namespace weft::bind
