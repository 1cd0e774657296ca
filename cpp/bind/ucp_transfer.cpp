// cpp/bind/ucp_transfer.cpp: ucp_put_nbx and ucp_get_nbx.
#include "bind/ep.hpp"
#include "bind/params.hpp"
#include "bind/ucp_post.hpp"

namespace weft::bind {

namespace {

// Arranges that the bytes of a get into imported memory are sent to the memory's owner; returns the call's result.
PyObject* delivering(PyObject* result, nb::object delivers) {
  if (result == nullptr || !delivers.is_valid()) return result;
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(result);
  if (!request.ended()) {
    request.delivers = std::move(delivers);
    return result;
  }
  if (request.status == kOk && !deliver(delivers)) {  // the get has already ended
    Py_DECREF(result);
    return nullptr;
  }
  return result;
}

// Adds a local buffer of imported memory that is not mapped in this process.
void note_delivery(const UcpOptions& o, bool writes, nb::handle buffer, nb::object& delivers) {
  if (!writes || !given(o.memh) || !PyObject_HasAttrString(buffer.ptr(), "deliver")) return;
  if (!delivers.is_valid()) delivers = nb::list();
  nb::borrow<nb::list>(delivers).append(buffer);
}

PyObject* transfer_list(UcpEp& ep, const char* method, OpKind kind, PyObject* list, uint64_t remote,
                        PyObject* rkey_object, const UcpOptions& o);

PyObject* transfer(PyObject* self, const char* method, OpKind kind, PyObject* (&a)[10]) {
  UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  if (!usable(ep, method, ucp::kFeatureRma)) [[unlikely]]
    return nullptr;
  UcpOptions o;
  bool plain = true;
  for (size_t i = 3; i < 10; ++i) plain = plain && !given(a[i]);
  if (!plain && !read_options(method, a[3], a[4], a[5], a[6], a[7], a[8], a[9], o)) return translated();
  uint64_t remote = 0;
  if (!ucp_u64(method, "remote_addr", a[1], &remote)) return nullptr;
  if (o.is_list()) return transfer_list(ep, method, kind, a[0], remote, a[2], o);
  const bool writes = kind == OpKind::read;
  PyObject* buffer = a[0];
  nb::object held;
  if (!by_memh(ep, o, &buffer, writes, held)) return nullptr;
  nb::object delivers;
  note_delivery(o, writes, buffer, delivers);
  if (!slice_ok(buffer, writes, method)) return nullptr;
  Buf b;
  if (!b.acquire(buffer, writes, nullptr)) return translated();
  uint64_t length = b.length;
  if (const ucp::Refused why = ucp::length_of(o, b.length, &length)) return refuse(method, why);
  if (length == 0) return Py_NewRef(g_ucp_done);  // as in UCX, key and address are not checked
  UcpRkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, a[2], &rkey, &dest)) [[unlikely]]
    return nullptr;
  if (rkey->length == 0) [[unlikely]]
    return refuse(method, ucp::without_bytes());
  EndpointCore* core = worker_of(ep).nic_ep;
  bool device = false;
  if (!check_buffer(core, b, method, writes, &device)) return translated();
  if (length >= kReleaseGilBytes) keep_mapped(ep, b);
  const Buf* bufs[] = {&b};
  const KeptMemory kept(b);
  const iovec piece{b.data, length};
  ucp::Transfer t{.kind = kind, .dest = dest, .remote = remote, .key = rkey, .pieces = {&piece, 1}, .device = device};
  const auto post = [&](size_t part, uint64_t context, uint64_t flags) {
    if (device) return t.post(*ep.port->nic, part, context, flags);
    return ep.port->nic->post_one(kind, b.data, length, dest, remote + rkey->bias, rkey->key, flags, context, 0, false);
  };
  PyObject* result =
      launch(ep, method, rkey, a[2], o, 1, writes, false, bufs, 1, [&](size_t part, uint64_t context, uint64_t flags) {
        if (length < kReleaseGilBytes && !device) return post(part, context, flags);
        const ReleasedGil released;
        return post(part, context, flags);
      });
  return delivering(result, std::move(delivers));
}

// A request that has ended with the error of the owner's memory table for a range outside of the region.
PyObject* refused_whole(UcpEp& ep, const char* method, const ucp::Transfer& t, UcpRkey* rkey, PyObject* rkey_object,
                        const UcpOptions& o) {
  const std::string text = t.why_passes_end();
  if ((o.flags & ucp::kForceImmCmpl) != 0) return refuse(method, {kIoError, ": " + text});
  PyObject* object = new_request();
  UcpRequest& request = *nb::inst_ptr<UcpRequest>(object);
  request.first_failure = kIoError;
  request.text = text;
  return begun(ep, object, rkey, rkey_object, &o, false, nullptr, 0);
}

// UCP_DATATYPE_IOV: pieces of local memory, one after the other at the remote address.
PyObject* transfer_list(UcpEp& ep, const char* method, OpKind kind, PyObject* list, uint64_t remote,
                        PyObject* rkey_object, const UcpOptions& o) {
  const bool writes = kind == OpKind::read;
  const nb::object fast = nb::steal(PySequence_Fast(list, "DATATYPE_IOV: buffer must be a list of buffers"));
  if (!fast.is_valid()) return nullptr;
  auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  if (o.count) {
    if (*o.count > n) {
      return refuse(method, {kInvalidParam, ": count is " + std::to_string(*o.count) + " and the list has " +
                                                std::to_string(n) + " buffers"});
    }
    n = *o.count;
  }
  std::vector<std::unique_ptr<Buf>> bufs;
  std::vector<const Buf*> pointers;
  std::vector<nb::object> held(n);
  nb::object delivers;
  std::vector<KeptMemory> kept;
  std::vector<iovec> pieces;
  EndpointCore* core = worker_of(ep).nic_ep;
  bool device = false;
  for (size_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i));
    if (!by_memh(ep, o, &item, writes, held[i]) || !slice_ok(item, writes, method)) return nullptr;
    note_delivery(o, writes, item, delivers);
    auto b = std::make_unique<Buf>();
    if (!b->acquire(item, writes, nullptr) || !check_buffer(core, *b, method, writes, &device)) return translated();
    if (b->length == 0) continue;
    keep_mapped(ep, *b);
    kept.emplace_back(*b);
    pieces.push_back({b->data, b->length});
    pointers.push_back(b.get());
    bufs.push_back(std::move(b));
  }
  if (pieces.empty()) return Py_NewRef(g_ucp_done);
  UcpRkey* rkey;
  uint64_t dest;
  if (!address_of(ep, method, rkey_object, &rkey, &dest)) return nullptr;
  ucp::Transfer t{.kind = kind, .dest = dest, .remote = remote, .key = rkey, .pieces = pieces, .device = device};
  if (t.passes_end()) return refused_whole(ep, method, t, rkey, rkey_object, o);
  PyObject* result = launch(ep, method, rkey, rkey_object, o, t.parts(), writes, false, pointers.data(),
                            pointers.size(), [&](size_t part, uint64_t context, uint64_t flags) {
                              const ReleasedGil released;
                              return t.post(*ep.port->nic, part, context, flags);
                            });
  return delivering(result, std::move(delivers));
}

// HOT. put_nbx(buffer, remote_addr, rkey) and get_nbx of a short buffer in host memory to a connected peer; null
// without an error in all other cases.
[[gnu::always_inline]] inline PyObject* transfer_plain(PyObject* self, const char* method, OpKind kind,
                                                       PyObject* const* args) {
  UcpEp& ep = *nb::inst_ptr<UcpEp>(self);
  if (!usable(ep, method, ucp::kFeatureRma)) [[unlikely]]
    return nullptr;
  const bool writes = kind == OpKind::read;
  if (!PyLong_CheckExact(args[1])) return nullptr;
  if (!slice_ok(args[0], writes, method)) return nullptr;
  Buf b;
  if (!b.acquire(args[0], writes, nullptr)) return translated();
  if (b.length == 0 || b.length >= kReleaseGilBytes || b.iface != mem::kHmemSystem || b.bare) return nullptr;
  UcpRkey* rkey;
  uint64_t dest, remote = 0;
  if (!ucp_u64(method, "remote_addr", args[1], &remote) || !address_of(ep, method, args[2], &rkey, &dest))
    return nullptr;
  if (rkey->length == 0) [[unlikely]]
    return nullptr;
  const Buf* bufs[] = {&b};
  return attempt(ep, rkey, args[2], nullptr, false, bufs, 1, [&](uint64_t context, uint64_t flags) {
    return ep.port->nic->post_one(kind, b.data, b.length, dest, remote + rkey->bias, rkey->key, flags, context, 0,
                                  false);
  });
}

template <OpKind kind>
constexpr Text kName = kind == OpKind::write ? Text("put_nbx") : Text("get_nbx");

template <OpKind kind>
PyObject* transfer_given(PyObject* self, PyObject* (&a)[10]) {
  return transfer(self, kName<kind>.text, kind, a);
}

template <OpKind kind>
PyObject* transfer_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (nargs == 3 && kwnames == nullptr) [[likely]] {
    PyObject* r = transfer_plain(self, kName<kind>.text, kind, args);
    if (r != nullptr || PyErr_Occurred()) return r;
  }
  return parsed<transfer_given<kind>, kName<kind>,
                "buffer! remote_addr! rkey! param|count cb user_data memh flags datatype">(self, args, nargs, kwnames);
}

}  // namespace

PyObject* ep_put_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return transfer_nbx<OpKind::write>(self, args, nargs, kwnames);
}
PyObject* ep_get_nbx(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return transfer_nbx<OpKind::read>(self, args, nargs, kwnames);
}

}  // namespace weft::bind
