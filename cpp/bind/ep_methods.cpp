// cpp/bind/ep_methods.cpp: the data-path methods of an endpoint, with their documentation.
#include <vector>

#include "bind/ep.hpp"
#include "bind/signatures.hpp"

namespace weft::bind {

namespace {

PyObject* ask(PyObject* self, size_t number, EpMethod* call, PyObject* const* args, Py_ssize_t nargs,
              PyObject* kwnames);

// HOT. A call of a handle.
template <EpMethod* call, size_t number>
PyObject* called(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static_assert(number < 64, "EndpointCore::goes has a bit for each call");
  if ((self_of(self)->goes >> number & 1) != 0) [[likely]]
    return call(self, args, nargs, kwnames);
  return ask(self, number, call, args, nargs, kwnames);
}

// A call's number is its place in the table.
constexpr size_t kFirst = __COUNTER__ + 1;
#define WEFT_METHOD(name, doc) \
  {#name, method<called<ep_##name, __COUNTER__ - kFirst>>(), METH_FASTCALL | METH_KEYWORDS, doc}

PyMethodDef g_methods[] = {
    WEFT_METHOD(
        read,
        "Copies bytes of a peer's region into buf (fi_read).\n\n"
        "buf       writable C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region\n"
        "          is fastest. Held until completion; do not use its bytes before.\n"
        "desc      mr.desc of a region that covers buf (required under MR_LOCAL), or None.\n"
        "src_addr  the peer: what av.insert() returned.\n"
        "addr      byte offset from the region's start; its virtual address under MR_VIRT_ADDR.\n"
        "key       the region's remote key.\n"
        "context   any object; the completion returns it as op_context.\n"
        "len       number of bytes, if fewer than buf has.\n\n"
        "Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, AccessDenied (buf is\n"
        "read-only), InvalidArgument, BadState. A refusal by the peer (key, bounds, access) is a failed completion.\n"
        "Source: fi_rma(3) fi_read."),
    WEFT_METHOD(
        readv,
        "As read, into a list of up to iov_limit buffers, in order (fi_readv).\n\n"
        "iov    writable C-contiguous buffers, filled one after the other.\n"
        "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.\n"
        "count  number of buffers to use; None: all.\n\n"
        "Source: fi_rma(3) fi_readv."),
    WEFT_METHOD(
        readmsg,
        "A read with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_readmsg).\n\n"
        "flags  for this read alone, in place of the endpoint's: COMPLETION, MORE, FENCE, completion levels.\n\n"
        "Raises BadFlags, and as read. Source: fi_rma(3) fi_readmsg."),
    WEFT_METHOD(
        write,
        "Copies buf into a peer's region (fi_write).\n\n"
        "buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is\n"
        "           fastest. Held until completion; do not change its bytes before.\n"
        "dest_addr  the peer: what av.insert() returned.\n"
        "desc, addr, key, context, len   as for read.\n\n"
        "Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument,\n"
        "BadState. A refusal by the peer (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_write."),
    WEFT_METHOD(
        writev,
        "As write, from a list of up to iov_limit buffers, in order (fi_writev).\n\n"
        "iov    C-contiguous buffers, written one after the other.\n"
        "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.\n"
        "count  number of buffers to use; None: all.\n\n"
        "Source: fi_rma(3) fi_writev."),
    WEFT_METHOD(
        writemsg,
        "A write with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_writemsg).\n\n"
        "flags  for this write alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT, FENCE,\n"
        "       INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE.\n\n"
        "If there are several remote ranges, all of them are checked before the first is written.\n"
        "Raises BadFlags, and as write. Source: fi_rma(3) fi_writemsg."),
    WEFT_METHOD(inject_write,
                "As write, of at most inject_size bytes (fi_inject_write). buf may be reused when the call returns.\n"
                "A success has no completion; a failure has one.\n\n"
                "Raises MessageTooLong, and as write. Source: fi_rma(3) fi_inject_write."),
    WEFT_METHOD(writedata,
                "As write, and delivers data (64 bits) to the peer's completion queue (fi_writedata).\n\n"
                "Raises as write. Source: fi_rma(3) fi_writedata."),
    WEFT_METHOD(inject_writedata,
                "As inject_write, and delivers data (64 bits) to the peer's completion queue (fi_inject_writedata).\n\n"
                "Raises as inject_write. Source: fi_rma(3) fi_inject_writedata."),
    WEFT_METHOD(
        read_batch,
        "Many reads in one call, with one completion for all of them. Weft's own: libfabric has no such call.\n\n"
        "local  writable C-contiguous buffer; local_offset of a descriptor counts from its start.\n"
        "descs  writable C-contiguous array of dtype fi.RMA_DESC: local_offset, length, dest_addr, remote_addr,\n"
        "       key. The NIC writes status: 0, or the error number of this transfer; valid at the completion.\n"
        "flags  in place of the endpoint's; None: the endpoint's.\n\n"
        "Both buffers are held until completion. The completion's len is the sum of the bytes moved; the completion\n"
        "is a failed one if any transfer failed. Raises as read."),
    WEFT_METHOD(
        write_batch,
        "Many writes in one call, with one completion for all of them. Weft's own: libfabric has no such call.\n\n"
        "Arguments as read_batch; local may be read-only. Raises as write."),
    WEFT_METHOD(atomic,
                "Updates elements of a peer's region with those of buf, each atomically (fi_atomic).\n\n"
                "buf       C-contiguous buffer with the operands. The call copies them: buf may be reused when the\n"
                "          call returns.\n"
                "addr      as for write; a multiple of the datatype's alignment.\n"
                "datatype  fi.INT64, fi.DOUBLE ...   op  fi.SUM, fi.MIN ...; atomicvalid() returns which pairs exist.\n"
                "count     number of elements; None: all of buf.\n\n"
                "Raises NotSupported (no such pair), Again (a queue is full: read the completion queue, retry),\n"
                "MessageTooLong (more elements than atomicvalid() returns), InvalidArgument.\n"
                "Source: fi_atomic(3) fi_atomic."),
    WEFT_METHOD(atomicv,
                "As atomic, from a list of up to iov_limit buffers (fi_atomicv). Source: fi_atomic(3) fi_atomicv."),
    WEFT_METHOD(atomicmsg,
                "An atomic with all options: msg is an fi.MsgAtomic; flags are for this call alone (fi_atomicmsg).\n\n"
                "Raises BadFlags, and as atomic. Source: fi_atomic(3) fi_atomicmsg."),
    WEFT_METHOD(inject_atomic,
                "As atomic, of at most inject_size bytes (fi_inject_atomic). A success has no completion; a failure\n"
                "has one.\n\n"
                "Raises as atomic. Source: fi_atomic(3) fi_inject_atomic."),
    WEFT_METHOD(fetch_atomic,
                "As atomic; result also receives the old values of the elements (fi_fetch_atomic).\n\n"
                "buf     operands; not used by ATOMIC_READ, which takes None.\n"
                "result  writable C-contiguous buffer of as many elements. Held until completion.\n\n"
                "Raises as atomic. Source: fi_atomic(3) fi_fetch_atomic."),
    WEFT_METHOD(fetch_atomicv,
                "As fetch_atomic, with lists of buffers (fi_fetch_atomicv). Source: fi_atomic(3) fi_fetch_atomicv."),
    WEFT_METHOD(fetch_atomicmsg,
                "A fetching atomic with all options (fi_fetch_atomicmsg). Source: fi_atomic(3) fi_fetch_atomicmsg."),
    WEFT_METHOD(
        compare_atomic,
        "Compares elements of a peer's region with compare and, where they satisfy op (CSWAP ... MSWAP), puts buf\n"
        "there, each atomically; result receives the old values of the elements (fi_compare_atomic).\n\n"
        "buf, compare  C-contiguous buffers of as many elements. The call copies them.\n"
        "result        writable C-contiguous buffer of as many elements. Held until completion.\n\n"
        "Raises as atomic. Source: fi_atomic(3) fi_compare_atomic."),
    WEFT_METHOD(
        compare_atomicv,
        "As compare_atomic, with lists of buffers (fi_compare_atomicv). Source: fi_atomic(3) fi_compare_atomicv."),
    WEFT_METHOD(
        compare_atomicmsg,
        "A comparing atomic with all options (fi_compare_atomicmsg). Source: fi_atomic(3) fi_compare_atomicmsg."),
    WEFT_METHOD(
        send,
        "Sends a message to a peer, which receives it with recv (fi_send).\n\n"
        "buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size, or None for a message of no bytes. Held\n"
        "           until completion; do not change its bytes before.\n"
        "desc       mr.desc of a region that covers buf (required under MR_LOCAL), or None.\n"
        "dest_addr  the peer: what av.insert() returned; a connected endpoint ignores it.\n"
        "context    any object; the completion returns it as op_context.\n"
        "len        number of bytes, if fewer than buf has.\n\n"
        "Raises Again (a queue is full, or the receiver has no room: read the completion queue, retry),\n"
        "MessageTooLong, InvalidArgument, BadState, NotSupported (no MSG or SEND). Source: fi_msg(3) fi_send."),
    WEFT_METHOD(sendv,
                "As send, from a list of up to iov_limit buffers, in order (fi_sendv).\n\n"
                "iov    C-contiguous buffers.\n"
                "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or\n"
                "       None.\n"
                "count  number of buffers to use; None: all.\n\n"
                "Source: fi_msg(3) fi_sendv."),
    WEFT_METHOD(sendmsg,
                "A send with all options: msg is an fi.Msg (fi_sendmsg).\n\n"
                "flags  for this send alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT,\n"
                "       FENCE, INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE.\n\n"
                "Raises BadFlags, and as send. Source: fi_msg(3) fi_sendmsg."),
    WEFT_METHOD(
        inject,
        "As send, of at most inject_size bytes (fi_inject). buf may be reused when the call returns. A success\n"
        "has no completion; a failure has one.\n\n"
        "Raises as send. Source: fi_msg(3) fi_inject."),
    WEFT_METHOD(senddata,
                "As send, and delivers data (64 bits) with the completion of the receive (fi_senddata).\n\n"
                "Raises as send. Source: fi_msg(3) fi_senddata."),
    WEFT_METHOD(injectdata,
                "As inject, and delivers data (64 bits) with the completion of the receive (fi_injectdata).\n\n"
                "Raises as send. Source: fi_msg(3) fi_injectdata."),
    WEFT_METHOD(
        recv,
        "Posts a buffer for one message of a peer (fi_recv).\n\n"
        "buf       writable C-contiguous buffer, or None for a message of no bytes. Held until completion. A message\n"
        "          that is longer is cut: the completion is a failed one (ETRUNC) with len and olen.\n"
        "desc      mr.desc of a region that covers buf (required under MR_LOCAL), or None.\n"
        "src_addr  with DIRECTED_RECV the sender: what av.insert() returned; ADDR_UNSPEC: any. Ignored without\n"
        "          DIRECTED_RECV, and by a connected endpoint.\n"
        "context   any object; the completion returns it as op_context, and cancel() finds the receive by it.\n"
        "len       number of bytes, if fewer than buf has.\n\n"
        "Messages of one sender match receives in the order in which they were sent.\n"
        "Raises Again (the receive queue is full), AccessDenied (buf is read-only), InvalidArgument, BadState,\n"
        "NotSupported (no MSG or RECV). Source: fi_msg(3) fi_recv."),
    WEFT_METHOD(recvv,
                "As recv, into a list of up to rx_attr.iov_limit buffers, filled in order (fi_recvv).\n\n"
                "iov    writable C-contiguous buffers.\n"
                "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or\n"
                "       None.\n"
                "count  number of buffers to use; None: all.\n\n"
                "Source: fi_msg(3) fi_recvv."),
    WEFT_METHOD(
        recvmsg,
        "A receive with all options: msg is an fi.Msg (fi_recvmsg).\n\n"
        "flags  for this receive alone, in place of the endpoint's: COMPLETION, MORE;\n"
        "       MULTI_RECV: the one buffer takes messages until less than OPT_MIN_MULTI_RECV is left. The last\n"
        "       completion of the buffer has MULTI_RECV; buf of each tells where the message lies.\n"
        "       Where the provider allows them: PEEK, CLAIM, DISCARD, as for trecvmsg.\n\n"
        "Raises BadFlags, and as recv. Source: fi_msg(3) fi_recvmsg."),
    WEFT_METHOD(tsend,
                "As send, with a tag that receives are matched by (fi_tsend).\n\n"
                "tag  a number with the bits of ep_attr.mem_tag_format.\n\n"
                "Raises as send. Source: fi_tagged(3) fi_tsend."),
    WEFT_METHOD(tsendv, "As sendv, with a tag (fi_tsendv). Source: fi_tagged(3) fi_tsendv."),
    WEFT_METHOD(tsendmsg, "As sendmsg: msg is an fi.MsgTagged (fi_tsendmsg). Source: fi_tagged(3) fi_tsendmsg."),
    WEFT_METHOD(tinject, "As inject, with a tag (fi_tinject). Source: fi_tagged(3) fi_tinject."),
    WEFT_METHOD(tsenddata, "As senddata, with a tag (fi_tsenddata). Source: fi_tagged(3) fi_tsenddata."),
    WEFT_METHOD(tinjectdata, "As injectdata, with a tag (fi_tinjectdata). Source: fi_tagged(3) fi_tinjectdata."),
    WEFT_METHOD(trecv,
                "As recv, of a message whose tag equals tag in the bits that ignore does not have (fi_trecv).\n\n"
                "Raises as recv. Source: fi_tagged(3) fi_trecv."),
    WEFT_METHOD(trecvv, "As recvv, with tag and ignore (fi_trecvv). Source: fi_tagged(3) fi_trecvv."),
    WEFT_METHOD(
        trecvmsg,
        "A tagged receive with all options: msg is an fi.MsgTagged (fi_trecvmsg).\n\n"
        "flags  COMPLETION, MORE, MULTI_RECV as for recvmsg, and\n"
        "       PEEK: looks for an unexpected message that matches, and takes nothing. The completion has its length,\n"
        "       tag and data; without a message it is a failed one (ENOMSG). msg_iov is not used.\n"
        "       PEEK | CLAIM: the message that is found is reserved for the context.\n"
        "       CLAIM: receives the message that the same context object has claimed.\n"
        "       PEEK | DISCARD, CLAIM | DISCARD: drops the message that is found, or claimed.\n\n"
        "Raises BadFlags, InvalidArgument (CLAIM with a context that has claimed nothing), and as recv.\n"
        "Source: fi_tagged(3) fi_trecvmsg."),
    WEFT_METHOD(
        barrier,
        "Completes when all members of a group have called it (fi_barrier).\n\n"
        "coll_addr  a group of this endpoint: its addr, or the group itself (join_collective).\n"
        "context    any object; the completion returns it as op_context.\n"
        "flags      COMPLETION, where the queue is bound with SELECTIVE_COMPLETION.\n\n"
        "All members make the same calls on a group in the same order. Completions come in that order, to the\n"
        "queue bound with TRANSMIT. Raises Again (8 calls of the group are under way, or the queue is full: read the\n"
        "queue, retry), BadState (the group is not joined yet, or closed), InvalidArgument (no group of this\n"
        "endpoint). A member that is lost is a failed completion. Source: fi_collective(3) fi_barrier."),
    WEFT_METHOD(barrier2,
                "As barrier, with flags in front of the context (fi_barrier2).\n\n"
                "Source: fi_collective(3) fi_barrier2."),
    WEFT_METHOD(
        broadcast,
        "Copies the root's buf into that of every other member (fi_broadcast).\n\n"
        "buf        C-contiguous buffer of up to 32 bytes, writable but for the root. Held until completion.\n"
        "count      number of elements; None: all of buf.\n"
        "desc       mr.desc of a region that covers buf (required under MR_LOCAL, MR_COLLECTIVE), or None.\n"
        "coll_addr  as for barrier.\n"
        "root_addr  the root's fi_addr.\n"
        "datatype   fi.INT64, fi.DOUBLE ...; None: that of the array buf.\n"
        "flags, context   as for barrier.\n\n"
        "Raises as barrier, and InvalidArgument (more than 32 bytes, no such member). Source: fi_collective(3)\n"
        "fi_broadcast."),
    WEFT_METHOD(reduce,
                "As allreduce, with the result at one member only, the root (fi_reduce).\n\n"
                "root_addr  the root's fi_addr; other members may leave result None.\n\n"
                "Source: fi_collective(3) fi_reduce."),
    WEFT_METHOD(
        allreduce,
        "Combines all members' elements by an operation; every member receives the result (fi_allreduce).\n\n"
        "buf        C-contiguous buffer of up to 32 bytes, copied by the call.\n"
        "count      number of elements; None: all of buf.\n"
        "desc, result_desc   mr.desc of regions that cover buf and result (required under MR_LOCAL,\n"
        "           MR_COLLECTIVE), or None.\n"
        "result     writable C-contiguous buffer of as many elements; may be buf. Held until completion.\n"
        "coll_addr  as for barrier.\n"
        "datatype   fi.INT64, fi.DOUBLE ...; None: that of the array buf.\n"
        "op         fi.SUM, fi.MIN ...; Domain.query_collective() knows which pairs exist.\n"
        "flags, context   as for barrier. Provider cxi: MORE folds buf into the accumulator result and returns at\n"
        "           once, without a group; with cxi.PRE_REDUCED buf is such an accumulator.\n\n"
        "Raises as barrier, and InvalidArgument (no such pair, more than 32 bytes). Overflow, members that disagree,\n"
        "and a lost member are failed completions. Source: fi_collective(3) fi_allreduce."),
    {nullptr, nullptr, 0, nullptr}};

// A call that the handle's method _asked may refuse, or do; it answers NotImplemented if the call is to go on.
PyObject* ask(PyObject* self, size_t number, EpMethod* call, PyObject* const* args, Py_ssize_t nargs,
              PyObject* kwnames) {
  const char* const name = g_methods[number].ml_name;
  if (self_of(self)->box == nullptr) {  // an object whose __init__() has not run
    set_error(fi_err::kEOPBADSTATE, std::string(name) + ": no endpoint was opened\n  try: fi.Domain.endpoint()");
    return nullptr;
  }
  static PyObject* asked = PyUnicode_InternFromString("_asked");
  const nb::object text = nb::steal(PyUnicode_FromString(name));
  std::vector<PyObject*> all{self, text.ptr()};
  all.insert(all.end(), args, args + nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0));
  PyObject* done = PyObject_VectorcallMethod(asked, all.data(), static_cast<size_t>(nargs) + 2, kwnames);
  if (done != Py_NotImplemented) return done;
  Py_DECREF(done);
  return call(self, args, nargs, kwnames);
}

}  // namespace

uint64_t bit_of(std::string_view call) {
  for (size_t number = 0; g_methods[number].ml_name != nullptr; ++number) {
    if (call == g_methods[number].ml_name) return uint64_t{1} << number;
  }
  raise(fi_err::kEINVAL, "an endpoint has no call " + std::string(call));
}

PyType_Slot g_endpoint_slots[] = {{Py_tp_methods, with_signatures("EndpointCore", g_methods)}, {0, nullptr}};

}  // namespace weft::bind
