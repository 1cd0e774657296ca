// cpp/bind/tagged.cpp: the data-path methods of fi_tagged(3). HOT: tsend, trecv, tinject; see msg.cpp.
#include "bind/msg.hpp"

namespace weft::bind {

namespace {

Signature g_tsend{"tsend", {"buf", "desc", "dest_addr", "tag", "context", "len"}, 5, 1, {}};
Signature g_tsendv{"tsendv", {"iov", "desc", "dest_addr", "tag", "context", "count"}, 5, 1, {}};
Signature g_tsendmsg{"tsendmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_tinject{"tinject", {"buf", "dest_addr", "tag", "len"}, 3, 1, {}};
Signature g_tsenddata{"tsenddata", {"buf", "desc", "data", "dest_addr", "tag", "context", "len"}, 6, 1, {}};
Signature g_tinjectdata{"tinjectdata", {"buf", "data", "dest_addr", "tag", "len"}, 4, 1, {}};
Signature g_trecv{"trecv", {"buf", "desc", "src_addr", "tag", "ignore", "context", "len"}, 6, 1, {}};
Signature g_trecvv{"trecvv", {"iov", "desc", "src_addr", "tag", "ignore", "context", "count"}, 6, 1, {}};
Signature g_trecvmsg{"trecvmsg", {"msg", "flags"}, 2, 1, {}};
Signature g_tsenddatamsg{"tsenddata", {"msg", "flags"}, 2, 1, {}};

}  // namespace

PyObject* ep_tsend(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[6];
  if (!parse(g_tsend, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, desc, dest_addr, tag, context, len] = a;
  return send_one(self, "tsend", true,
                  {.buf = buf, .len = len, .desc = desc, .peer = dest_addr, .tag = tag, .context = context}, false);
}
PyObject* ep_tsendv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[6];
  if (!parse(g_tsendv, args, nargs, kwnames, a)) return nullptr;
  const auto& [iov, desc, dest_addr, tag, context, count] = a;
  return send_list(self, "tsendv", true,
                   {.iov = iov, .count = count, .desc = desc, .peer = dest_addr, .tag = tag, .context = context});
}
PyObject* ep_tsendmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse(g_tsendmsg, args, nargs, kwnames, a)) return nullptr;
  return send_msg(self_of(self), "tsendmsg", true, a[0], a[1], false);
}
PyObject* ep_tsenddatamsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse(g_tsenddatamsg, args, nargs, kwnames, a)) return nullptr;
  return send_msg(self_of(self), "tsenddata", true, a[0], a[1], true);
}
PyObject* ep_tinject(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  if (!parse(g_tinject, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, dest_addr, tag, len] = a;
  return send_one(self, "tinject", true, {.buf = buf, .len = len, .peer = dest_addr, .tag = tag}, true);
}
PyObject* ep_tsenddata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(g_tsenddata, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, desc, data, dest_addr, tag, context, len] = a;
  if (!present("tsenddata", {{data, "data"}})) return nullptr;
  return send_one(
      self, "tsenddata", true,
      {.buf = buf, .len = len, .desc = desc, .peer = dest_addr, .tag = tag, .context = context, .data = data}, false);
}
PyObject* ep_tinjectdata(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[5];
  if (!parse(g_tinjectdata, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, data, dest_addr, tag, len] = a;
  if (!present("tinjectdata", {{data, "data"}})) return nullptr;
  return send_one(self, "tinjectdata", true, {.buf = buf, .len = len, .peer = dest_addr, .tag = tag, .data = data},
                  true);
}
PyObject* ep_trecv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(g_trecv, args, nargs, kwnames, a)) return nullptr;
  const auto& [buf, desc, src_addr, tag, ignore, context, len] = a;
  return recv_one(
      self, "trecv", true,
      {.buf = buf, .len = len, .desc = desc, .peer = src_addr, .tag = tag, .ignore = ignore, .context = context});
}
PyObject* ep_trecvv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[7];
  if (!parse(g_trecvv, args, nargs, kwnames, a)) return nullptr;
  const auto& [iov, desc, src_addr, tag, ignore, context, count] = a;
  return recv_list(
      self, "trecvv", true,
      {.iov = iov, .count = count, .desc = desc, .peer = src_addr, .tag = tag, .ignore = ignore, .context = context});
}
PyObject* ep_trecvmsg(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[2];
  if (!parse(g_trecvmsg, args, nargs, kwnames, a)) return nullptr;
  return recv_msg(self_of(self), "trecvmsg", true, a[0], a[1]);
}

}  // namespace weft::bind
