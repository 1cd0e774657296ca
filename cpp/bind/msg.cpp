// cpp/bind/msg.cpp: the data-path methods of fi_msg(3) and of fi_tagged(3), which differ in the tag alone.
//
// HOT: send, recv, inject and their tagged twins. They parse arguments in place, read the buffer without an export if
// its type allows, keep the GIL for short copies, and allocate nothing.
#include "bind/arglist.hpp"
#include "bind/deferred.hpp"
#include "bind/params.hpp"

namespace weft::bind {

namespace {

constexpr const char* kMsg = "fi.Msg";
constexpr const char* kMsgTagged = "fi.MsgTagged";

using MessageArgs = BufferArgs;

bool tag_ok(const char* method, const PyObject* tag) {
  if (tag != nullptr) [[likely]]
    return true;
  return type_error("%s() needs the argument 'tag'", method);
}

// Takes one buffer; None is no buffer.
bool take_one(EndpointCore* core, const char* method, const MessageArgs& m, bool writable, Buf* b, call::Local* local,
              size_t* count) {
  if (m.buf == Py_None) {
    uint64_t n = 0;
    if (m.len != nullptr && m.len != Py_None && !to_u64(m.len, &n, method, "len")) return false;
    if (n == 0) return true;
    return set_error(fi_err::kEINVAL, method, ": buf is None and len ", n, ": without a buffer a message has no bytes");
  }
  if (!b->acquire(m.buf, writable, m.len)) [[unlikely]]
    return false;
  *local = local_of(*b);
  *count = 1;
  return convert_desc(core, m.desc, method, local);
}

// Checks and posts a receive. The NIC owns the references to its buffers and to its context until it has ended.
PyObject* check_and_receive(EndpointCore* core, const char* method, call::Receive& r, PyObject* context,
                            std::span<const Buf* const> bufs) {
  if (context == nullptr) context = Py_None;
  r.has_context = context != Py_None;
  call::Why why;
  if (call::check(*core->ep, r, &why) != Refusal::none) [[unlikely]]
    return refuse(core, method, why);
  r.flags |= core->lane;
  std::array<uint64_t, nic::kIovMax> cookies;
  size_t held = 0;
  const auto drop = [&] {
    for (size_t i = 0; i < held; ++i) Py_DECREF(reinterpret_cast<PyObject*>(cookies[i]));
  };
  for (const Buf* b : bufs) {
    PyObject* o = b->hold();
    if (o == nullptr) [[unlikely]] {
      drop();
      return nullptr;
    }
    cookies[held++] = reinterpret_cast<uint64_t>(o);
  }
  r.cookies = std::span(cookies).first(held);
  Py_INCREF(context);
  r.context = reinterpret_cast<uint64_t>(context);
  nic::PostResult posted = post_released(core, r, bufs);
  // The provider may find entries of dead processes.
  if (posted.refusal == Refusal::rx_no_entry && core->box->tell(core->ep->address().pid, "no_entry")) [[unlikely]]
    posted = post_released(core, r, bufs);
  if (!posted.context_used) Py_DECREF(context);
  if (posted.refusal != Refusal::none) [[unlikely]] {
    drop();
    return refuse(core, method, posted.refusal, r.source, r.total);
  }
  Py_RETURN_NONE;
}

// ---- one buffer ----------------------------------------------------------------------------------------------------

// HOT.
PyObject* send_one(PyObject* self, const char* method, bool tagged, const MessageArgs& m, bool inject = false) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) [[unlikely]]
    return nullptr;
  Buf b;
  call::Local local;
  size_t count = 0;
  call::Send s;
  if (!take_one(core, method, m, false, &b, &local, &count) || !to_u64(m.peer, &s.dest, method, "dest_addr"))
      [[unlikely]] {
    return nullptr;
  }
  if (tagged && (!tag_ok(method, m.tag) || !to_u64(m.tag, &s.tag, method, "tag"))) return nullptr;
  if (m.data != nullptr && !to_u64(m.data, &s.imm, method, "data")) return nullptr;
  s.tagged = tagged;
  s.inject = inject;
  s.data = m.data != nullptr;
  s.local = {&local, count};
  s.flags = inject ? nic::flag::kInject : core->flags_of(tagged ? call::FlagCall::tsend : call::FlagCall::send);
  const Buf* bufs[] = {&b};
  const nb::object own = inject ? inject_context(self) : nb::object();
  return check_and_post(core, method, s, inject ? own.ptr() : m.context, inject, std::span(bufs).first(count), s.dest,
                        s.total);
}

// HOT.
PyObject* recv_one(PyObject* self, const char* method, bool tagged, const MessageArgs& m) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) [[unlikely]]
    return nullptr;
  Buf b;
  call::Local local;
  size_t count = 0;
  call::Receive r;
  if (!take_one(core, method, m, true, &b, &local, &count) || !to_u64(m.peer, &r.source, method, "src_addr"))
      [[unlikely]] {
    return nullptr;
  }
  if (tagged && (!tag_ok(method, m.tag) || !to_u64(m.tag, &r.tag, method, "tag") ||
                 !to_u64(m.ignore, &r.ignore, method, "ignore"))) {
    return nullptr;
  }
  r.tagged = tagged;
  r.local = {&local, count};
  r.flags = core->flags_of(tagged ? call::FlagCall::trecv : call::FlagCall::recv);
  const Buf* bufs[] = {&b};
  return check_and_receive(core, method, r, m.context, std::span(bufs).first(count));
}

// ---- lists of buffers ----------------------------------------------------------------------------------------------

PyObject* send_list(PyObject* self, const char* method, bool tagged, const MessageArgs& m) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) return nullptr;
  BufList list;
  call::Send s;
  if (!list.acquire(core, m.buf, false, m.len, method) || !to_u64(m.peer, &s.dest, method, "dest_addr") ||
      !list.convert_descs(core, m.desc, method)) {
    return nullptr;
  }
  if (tagged && (!tag_ok(method, m.tag) || !to_u64(m.tag, &s.tag, method, "tag"))) return nullptr;
  s.tagged = tagged;
  s.local = list.span();
  s.flags = core->flags_of(tagged ? call::FlagCall::tsend : call::FlagCall::send);
  return check_and_post(core, method, s, m.context, false, {list.pointers.data(), list.count}, s.dest, s.total);
}

PyObject* recv_list(PyObject* self, const char* method, bool tagged, const MessageArgs& m) {
  EndpointCore* core = self_of(self);
  if (!usable(core, method)) return nullptr;
  BufList list;
  list.receives = true;
  call::Receive r;
  if (!list.acquire(core, m.buf, true, m.len, method) || !to_u64(m.peer, &r.source, method, "src_addr") ||
      !list.convert_descs(core, m.desc, method)) {
    return nullptr;
  }
  if (tagged && (!tag_ok(method, m.tag) || !to_u64(m.tag, &r.tag, method, "tag") ||
                 !to_u64(m.ignore, &r.ignore, method, "ignore"))) {
    return nullptr;
  }
  r.tagged = tagged;
  r.local = list.span();
  r.flags = core->flags_of(tagged ? call::FlagCall::trecv : call::FlagCall::recv);
  return check_and_receive(core, method, r, m.context, {list.pointers.data(), list.count});
}

// ---- message structs -----------------------------------------------------------------------------------------------

bool read_tag(PyObject* msg, const char* method, const char* name, uint64_t* out) {
  const Attr attr(msg, name, kMsgTagged);
  return attr.value != nullptr && to_u64(attr.value, out, method, name);
}

}  // namespace

PyObject* send_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags,
                   Deferral* later) {
  if (!usable(core, method)) return nullptr;
  call::Send s;
  if (!to_u64(flags, &s.flags, method, "flags")) return nullptr;
  const MsgFields f(msg, tagged ? kMsgTagged : kMsg);
  if (!f.all()) return nullptr;
  BufList list;
  if (!list.acquire(core, f.iov.value, false, f.count.value, method) ||
      !to_u64(f.addr.value, &s.dest, method, "addr") || !to_u64(f.data.value, &s.imm, method, "data") ||
      !list.convert_descs(core, f.desc.value, method) || (tagged && !read_tag(msg, method, "tag", &s.tag))) {
    return nullptr;
  }
  s.tagged = tagged;
  s.message = true;
  s.local = list.span();
  if (later != nullptr) return queue(core, method, s, f.context.value, {list.pointers.data(), list.count}, *later);
  return check_and_post(core, method, s, f.context.value, false, {list.pointers.data(), list.count}, s.dest, s.total);
}

PyObject* recv_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags,
                   Deferral* later) {
  if (!usable(core, method)) return nullptr;
  call::Receive r;
  if (!to_u64(flags, &r.flags, method, "flags")) return nullptr;
  const MsgFields f(msg, tagged ? kMsgTagged : kMsg);
  if (!f.all()) return nullptr;
  BufList list;
  list.receives = true;
  const bool buffers = (r.flags & nic::flag::kPeek) == 0;  // a peek has none
  if (buffers && (!list.acquire(core, f.iov.value, true, f.count.value, method) ||
                  !list.convert_descs(core, f.desc.value, method))) {
    return nullptr;
  }
  if (!to_u64(f.addr.value, &r.source, method, "addr") ||
      (tagged && (!read_tag(msg, method, "tag", &r.tag) || !read_tag(msg, method, "ignore", &r.ignore)))) {
    return nullptr;
  }
  r.tagged = tagged;
  r.message = true;
  r.local = list.span();
  if (later != nullptr && later->threshold != 0)
    return queue(core, method, r, f.context.value, {list.pointers.data(), list.count}, *later);
  if (later != nullptr) {  // posted now, as deferred work
    r.deferred = true;
    r.counter = later->counter;
  }
  return check_and_receive(core, method, r, f.context.value, {list.pointers.data(), list.count});
}

// ---- methods -------------------------------------------------------------------------------------------------------

namespace {

template <Form form>
using ArgsFor = ArgsOf<form, MessageArgs>;

PyObject* send_inject(PyObject* self, const char* method, bool tagged, const MessageArgs& m) {
  return send_one(self, method, tagged, m, true);
}
PyObject* send_message(PyObject* self, const char* method, bool tagged, const StructArgs& a) {
  return send_msg(self_of(self), method, tagged, a.msg, a.flags);
}
PyObject* recv_message(PyObject* self, const char* method, bool tagged, const StructArgs& a) {
  return recv_msg(self_of(self), method, tagged, a.msg, a.flags);
}

constexpr bool kIs_msg = false, kIs_tagged = true;

}  // namespace

#define WEFT_MESSAGE(name, table, entry, form, side, params, doc) \
  WEFT_METHOD(ep_##name, ArgsFor<Form::form>, #name, params, side##_##form(self, M::kName, kIs_##table, a))
#include "bind/calls.inl"

}  // namespace weft::bind
