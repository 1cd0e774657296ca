// cpp/bind/msg.hpp: shared by the methods of fi_msg(3) and of fi_tagged(3), which differ in the tag alone.
#pragma once

#include "bind/arglist.hpp"

namespace weft::bind {

// The arguments of a call with one buffer; null where absent. buf None: a message of no bytes.
struct OneMessage {
  PyObject* buf = nullptr;
  PyObject* len = nullptr;
  PyObject* desc = nullptr;
  PyObject* peer = nullptr;
  PyObject* tag = nullptr;
  PyObject* ignore = nullptr;
  PyObject* context = nullptr;
  PyObject* data = nullptr;
};
// The arguments of a call with a list of buffers.
struct MessageList {
  PyObject* iov = nullptr;
  PyObject* count = nullptr;
  PyObject* desc = nullptr;
  PyObject* peer = nullptr;
  PyObject* tag = nullptr;
  PyObject* ignore = nullptr;
  PyObject* context = nullptr;
};

PyObject* send_one(PyObject* self, const char* method, bool tagged, const OneMessage& m, bool inject);
PyObject* recv_one(PyObject* self, const char* method, bool tagged, const OneMessage& m);
PyObject* send_list(PyObject* self, const char* method, bool tagged, const MessageList& m);
PyObject* recv_list(PyObject* self, const char* method, bool tagged, const MessageList& m);
// msg: an fi.Msg or fi.MsgTagged. data: the call implies remote data.
// later: the call is queued as deferred work, and nothing is posted.
PyObject* send_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags, bool data,
                   Deferral* later = nullptr);
PyObject* recv_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags,
                   Deferral* later = nullptr);

}  // namespace weft::bind
