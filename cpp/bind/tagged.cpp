// cpp/bind/tagged.cpp: the data-path methods of fi_tagged(3). HOT: tsend, trecv, tinject; see msg.cpp.
#include "bind/msg.hpp"

namespace weft::bind {

WEFT_METHOD(ep_tsend, MessageArgs, "tsend", "buf! desc dest_addr tag context|len",
            send_one(self, M::kName, true, a, false))
WEFT_METHOD(ep_tsenddata, MessageArgs, "tsenddata", "buf! desc data! dest_addr tag context|len",
            send_one(self, M::kName, true, a, false))
WEFT_METHOD(ep_tinject, MessageArgs, "tinject", "buf! dest_addr tag|len", send_one(self, M::kName, true, a, true))
WEFT_METHOD(ep_tinjectdata, MessageArgs, "tinjectdata", "buf! data! dest_addr tag|len",
            send_one(self, M::kName, true, a, true))
WEFT_METHOD(ep_trecv, MessageArgs, "trecv", "buf! desc src_addr tag ignore context|len",
            recv_one(self, M::kName, true, a))
WEFT_METHOD(ep_tsendv, MessageArgs, "tsendv", "iov! desc dest_addr tag context|count",
            send_list(self, M::kName, true, a))
WEFT_METHOD(ep_trecvv, MessageArgs, "trecvv", "iov! desc src_addr tag ignore context|count",
            recv_list(self, M::kName, true, a))
WEFT_METHOD(ep_tsendmsg, StructArgs, "tsendmsg", "msg! flags", send_msg(self_of(self), M::kName, true, a.msg, a.flags))
WEFT_METHOD(ep_trecvmsg, StructArgs, "trecvmsg", "msg! flags", recv_msg(self_of(self), M::kName, true, a.msg, a.flags))

}  // namespace weft::bind
