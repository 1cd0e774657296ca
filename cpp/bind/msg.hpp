// cpp/bind/msg.hpp: shared by the methods of fi_msg(3) and of fi_tagged(3), which differ in the tag alone.
#pragma once

#include "bind/arglist.hpp"
#include "bind/params.hpp"

namespace weft::bind {

// The arguments of a call with one buffer, or with a list of them; null where absent. buf None: a message of no bytes.
struct MessageArgs {
  PyObject *buf = nullptr, *len = nullptr, *desc = nullptr, *peer = nullptr, *tag = nullptr, *ignore = nullptr,
           *context = nullptr, *data = nullptr;
  static constexpr auto kParams = std::to_array<Param<MessageArgs>>({{"buf", &MessageArgs::buf},
                                                                     {"iov", &MessageArgs::buf},
                                                                     {"len", &MessageArgs::len},
                                                                     {"count", &MessageArgs::len},
                                                                     {"desc", &MessageArgs::desc},
                                                                     {"dest_addr", &MessageArgs::peer},
                                                                     {"src_addr", &MessageArgs::peer},
                                                                     {"tag", &MessageArgs::tag},
                                                                     {"ignore", &MessageArgs::ignore},
                                                                     {"context", &MessageArgs::context},
                                                                     {"data", &MessageArgs::data}});
};

PyObject* send_one(PyObject* self, const char* method, bool tagged, const MessageArgs& m, bool inject);
PyObject* recv_one(PyObject* self, const char* method, bool tagged, const MessageArgs& m);
PyObject* send_list(PyObject* self, const char* method, bool tagged, const MessageArgs& m);
PyObject* recv_list(PyObject* self, const char* method, bool tagged, const MessageArgs& m);
// msg: an fi.Msg or fi.MsgTagged.
// later: the call is queued as deferred work, and nothing is posted.
PyObject* send_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags,
                   Deferral* later = nullptr);
PyObject* recv_msg(EndpointCore* core, const char* method, bool tagged, PyObject* msg, PyObject* flags,
                   Deferral* later = nullptr);

}  // namespace weft::bind
