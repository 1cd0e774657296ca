// cpp/bind/calls.inl: the data-path calls of endpoints: one row a call. Parsers, signatures, the stub, documentation,
// the calls of a real libfabric and Python's lists of calls (src/weft/fi/_calls.py) come from the rows.
//
// An includer defines the macros of the groups that concern it, or WEFT_CALL(name, params, doc) for all others.
//
// entry: the call's name in libfabric's table. params: names in order; "!" marks a necessary argument, and names behind
// "|" are given by name only. "=": a default that is not the name's (signatures.cpp). The arguments of a call of
// libfabric have the same order. form: of one buffer (`inject`: which the call copies), of a list of buffers, or of a
// message struct.

#ifndef WEFT_CALL
#define WEFT_CALL(name, params, doc)
#endif
#ifndef WEFT_TRANSFER  // fi_rma(3). kind: read, write
#define WEFT_TRANSFER(name, entry, form, kind, params, doc) WEFT_CALL(name, params, doc)
#endif
#ifndef WEFT_BATCH  // Weft's own, of fi_rma(3)'s kind
#define WEFT_BATCH(name, kind, params, doc) WEFT_CALL(name, params, doc)
#endif
#ifndef WEFT_ATOMIC  // fi_atomic(3). family: base, fetch, compare
#define WEFT_ATOMIC(name, form, family, params, doc) WEFT_CALL(name, params, doc)
#endif
#ifndef WEFT_MESSAGE  // fi_msg(3), fi_tagged(3). table: msg, tagged. side: send, recv
#define WEFT_MESSAGE(name, table, entry, form, side, params, doc) WEFT_CALL(name, params, doc)
#endif
#ifndef WEFT_COLLECTIVE  // fi_collective(3). kind: barrier, broadcast, reduce, allreduce
#define WEFT_COLLECTIVE(name, kind, params, doc) WEFT_CALL(name, params, doc)
#endif

// ---- fi_rma(3) ------------------------------------------------------------------------------------------------------

WEFT_TRANSFER(
    read, read, one, read, "buf! desc src_addr addr key context|len",
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
    "Source: fi_rma(3) fi_read.")
WEFT_TRANSFER(
    readv, readv, list, read, "iov! desc src_addr addr key context|count",
    "As read, into a list of up to iov_limit buffers, in order (fi_readv).\n\n"
    "iov    writable C-contiguous buffers, filled one after the other.\n"
    "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.\n"
    "count  number of buffers to use; None: all.\n\n"
    "Source: fi_rma(3) fi_readv.")
WEFT_TRANSFER(readmsg, readmsg, message, read, "msg! flags",
              "A read with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_readmsg).\n\n"
              "flags  for this read alone, in place of the endpoint's: COMPLETION, MORE, FENCE, completion levels.\n\n"
              "Raises BadFlags, and as read. Source: fi_rma(3) fi_readmsg.")
WEFT_TRANSFER(
    write, write, one, write, "buf! desc dest_addr addr key context|len",
    "Copies buf into a peer's region (fi_write).\n\n"
    "buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is\n"
    "           fastest. Held until completion; do not change its bytes before.\n"
    "dest_addr  the peer: what av.insert() returned.\n"
    "desc, addr, key, context, len   as for read.\n\n"
    "Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument,\n"
    "BadState. A refusal by the peer (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_write.")
WEFT_TRANSFER(
    writev, writev, list, write, "iov! desc dest_addr addr key context|count",
    "As write, from a list of up to iov_limit buffers, in order (fi_writev).\n\n"
    "iov    C-contiguous buffers, written one after the other.\n"
    "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.\n"
    "count  number of buffers to use; None: all.\n\n"
    "Source: fi_rma(3) fi_writev.")
WEFT_TRANSFER(
    writemsg, writemsg, message, write, "msg! flags",
    "A write with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_writemsg).\n\n"
    "flags  for this write alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT, FENCE,\n"
    "       INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE.\n\n"
    "If there are several remote ranges, all of them are checked before the first is written.\n"
    "Raises BadFlags, and as write. Source: fi_rma(3) fi_writemsg.")
WEFT_TRANSFER(inject_write, inject, inject, write, "buf! dest_addr addr key|len",
              "As write, of at most inject_size bytes (fi_inject_write). buf may be reused when the call returns.\n"
              "A success has no completion; a failure has one.\n\n"
              "Raises MessageTooLong, and as write. Source: fi_rma(3) fi_inject_write.")
WEFT_TRANSFER(writedata, writedata, one, write, "buf! desc data! dest_addr addr key context|len",
              "As write, and delivers data (64 bits) to the peer's completion queue (fi_writedata).\n\n"
              "Raises as write. Source: fi_rma(3) fi_writedata.")
WEFT_TRANSFER(inject_writedata, injectdata, inject, write, "buf! data! dest_addr addr key|len",
              "As inject_write, and delivers data (64 bits) to the peer's completion queue (fi_inject_writedata).\n\n"
              "Raises as inject_write. Source: fi_rma(3) fi_inject_writedata.")

// ---- Weft's own -----------------------------------------------------------------------------------------------------

WEFT_BATCH(
    read_batch, read, "local! descs! context flags=None",
    "Many reads in one call, with one completion for all of them. Weft's own: libfabric has no such call.\n\n"
    "local  writable C-contiguous buffer; local_offset of a descriptor counts from its start.\n"
    "descs  writable C-contiguous array of dtype fi.RMA_DESC: local_offset, length, dest_addr, remote_addr,\n"
    "       key. The NIC writes status: 0, or the error number of this transfer; valid at the completion.\n"
    "flags  in place of the endpoint's; None: the endpoint's.\n\n"
    "Both buffers are held until completion. The completion's len is the sum of the bytes moved; the completion\n"
    "is a failed one if any transfer failed. Raises as read.")
WEFT_BATCH(write_batch, write, "local! descs! context flags=None",
           "Many writes in one call, with one completion for all of them. Weft's own: libfabric has no such call.\n\n"
           "Arguments as read_batch; local may be read-only. Raises as write.")

// ---- fi_atomic(3) ---------------------------------------------------------------------------------------------------

WEFT_ATOMIC(atomic, one, base, "buf! desc dest_addr! addr key datatype! op! context|count",
            "Updates elements of a peer's region with those of buf, each atomically (fi_atomic).\n\n"
            "buf       C-contiguous buffer with the operands. The call copies them: buf may be reused when the\n"
            "          call returns.\n"
            "addr      as for write; a multiple of the datatype's alignment.\n"
            "datatype  fi.INT64, fi.DOUBLE ...   op  fi.SUM, fi.MIN ...; atomicvalid() returns which pairs exist.\n"
            "count     number of elements; None: all of buf.\n\n"
            "Raises NotSupported (no such pair), Again (a queue is full: read the completion queue, retry),\n"
            "MessageTooLong (more elements than atomicvalid() returns), InvalidArgument.\n"
            "Source: fi_atomic(3) fi_atomic.")
WEFT_ATOMIC(atomicv, list, base, "iov! desc dest_addr! addr key datatype! op! context",
            "As atomic, from a list of up to iov_limit buffers (fi_atomicv). Source: fi_atomic(3) fi_atomicv.")
WEFT_ATOMIC(atomicmsg, message, base, "msg! flags",
            "An atomic with all options: msg is an fi.MsgAtomic; flags are for this call alone (fi_atomicmsg).\n\n"
            "Raises BadFlags, and as atomic. Source: fi_atomic(3) fi_atomicmsg.")
WEFT_ATOMIC(inject_atomic, inject, base, "buf! dest_addr! addr key datatype! op!|count",
            "As atomic, of at most inject_size bytes (fi_inject_atomic). A success has no completion; a failure\n"
            "has one.\n\n"
            "Raises as atomic. Source: fi_atomic(3) fi_inject_atomic.")
WEFT_ATOMIC(fetch_atomic, one, fetch, "buf! desc result! result_desc dest_addr! addr key datatype! op! context|count",
            "As atomic; result also receives the old values of the elements (fi_fetch_atomic).\n\n"
            "buf     operands; not used by ATOMIC_READ, which takes None.\n"
            "result  writable C-contiguous buffer of as many elements. Held until completion.\n\n"
            "Raises as atomic. Source: fi_atomic(3) fi_fetch_atomic.")
WEFT_ATOMIC(fetch_atomicv, list, fetch, "iov! desc resultv! result_desc dest_addr! addr key datatype! op! context",
            "As fetch_atomic, with lists of buffers (fi_fetch_atomicv). Source: fi_atomic(3) fi_fetch_atomicv.")
WEFT_ATOMIC(fetch_atomicmsg, message, fetch, "msg! resultv! result_desc flags",
            "A fetching atomic with all options (fi_fetch_atomicmsg). Source: fi_atomic(3) fi_fetch_atomicmsg.")
WEFT_ATOMIC(compare_atomic, one, compare,
            "buf! desc compare! compare_desc result! result_desc dest_addr! addr key datatype! op! context|count",
            "Compares elements of a peer's region with compare and, where they satisfy op (CSWAP ... MSWAP), puts buf\n"
            "there, each atomically; result receives the old values of the elements (fi_compare_atomic).\n\n"
            "buf, compare  C-contiguous buffers of as many elements. The call copies them.\n"
            "result        writable C-contiguous buffer of as many elements. Held until completion.\n\n"
            "Raises as atomic. Source: fi_atomic(3) fi_compare_atomic.")
WEFT_ATOMIC(compare_atomicv, list, compare,
            "iov! desc comparev! compare_desc resultv! result_desc dest_addr! addr key datatype! op! context",
            "As compare_atomic, with lists of buffers (fi_compare_atomicv). Source: fi_atomic(3) fi_compare_atomicv.")
WEFT_ATOMIC(compare_atomicmsg, message, compare, "msg! comparev! compare_desc resultv! result_desc flags",
            "A comparing atomic with all options (fi_compare_atomicmsg). Source: fi_atomic(3) fi_compare_atomicmsg.")

// ---- fi_msg(3) ------------------------------------------------------------------------------------------------------

WEFT_MESSAGE(
    send, msg, send, one, send, "buf! desc dest_addr context|len",
    "Sends a message to a peer, which receives it with recv (fi_send).\n\n"
    "buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size, or None for a message of no bytes. Held\n"
    "           until completion; do not change its bytes before.\n"
    "desc       mr.desc of a region that covers buf (required under MR_LOCAL), or None.\n"
    "dest_addr  the peer: what av.insert() returned; a connected endpoint ignores it.\n"
    "context    any object; the completion returns it as op_context.\n"
    "len        number of bytes, if fewer than buf has.\n\n"
    "Raises Again (a queue is full, or the receiver has no room: read the completion queue, retry),\n"
    "MessageTooLong, InvalidArgument, BadState, NotSupported (no MSG or SEND). Source: fi_msg(3) fi_send.")
WEFT_MESSAGE(sendv, msg, sendv, list, send, "iov! desc dest_addr context|count",
             "As send, from a list of up to iov_limit buffers, in order (fi_sendv).\n\n"
             "iov    C-contiguous buffers.\n"
             "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or\n"
             "       None.\n"
             "count  number of buffers to use; None: all.\n\n"
             "Source: fi_msg(3) fi_sendv.")
WEFT_MESSAGE(sendmsg, msg, sendmsg, message, send, "msg! flags",
             "A send with all options: msg is an fi.Msg (fi_sendmsg).\n\n"
             "flags  for this send alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT,\n"
             "       FENCE, INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE.\n\n"
             "Raises BadFlags, and as send. Source: fi_msg(3) fi_sendmsg.")
WEFT_MESSAGE(inject, msg, inject, inject, send, "buf! dest_addr|len",
             "As send, of at most inject_size bytes (fi_inject). buf may be reused when the call returns. A success\n"
             "has no completion; a failure has one.\n\n"
             "Raises as send. Source: fi_msg(3) fi_inject.")
WEFT_MESSAGE(senddata, msg, senddata, one, send, "buf! desc data! dest_addr context|len",
             "As send, and delivers data (64 bits) with the completion of the receive (fi_senddata).\n\n"
             "Raises as send. Source: fi_msg(3) fi_senddata.")
WEFT_MESSAGE(injectdata, msg, injectdata, inject, send, "buf! data! dest_addr|len",
             "As inject, and delivers data (64 bits) with the completion of the receive (fi_injectdata).\n\n"
             "Raises as send. Source: fi_msg(3) fi_injectdata.")
WEFT_MESSAGE(
    recv, msg, recv, one, recv, "buf! desc src_addr context|len",
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
    "NotSupported (no MSG or RECV). Source: fi_msg(3) fi_recv.")
WEFT_MESSAGE(recvv, msg, recvv, list, recv, "iov! desc src_addr context|count",
             "As recv, into a list of up to rx_attr.iov_limit buffers, filled in order (fi_recvv).\n\n"
             "iov    writable C-contiguous buffers.\n"
             "desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or\n"
             "       None.\n"
             "count  number of buffers to use; None: all.\n\n"
             "Source: fi_msg(3) fi_recvv.")
WEFT_MESSAGE(recvmsg, msg, recvmsg, message, recv, "msg! flags",
             "A receive with all options: msg is an fi.Msg (fi_recvmsg).\n\n"
             "flags  for this receive alone, in place of the endpoint's: COMPLETION, MORE;\n"
             "       MULTI_RECV: the one buffer takes messages until less than OPT_MIN_MULTI_RECV is left. The last\n"
             "       completion of the buffer has MULTI_RECV; buf of each tells where the message lies.\n"
             "       Where the provider allows them: PEEK, CLAIM, DISCARD, as for trecvmsg.\n\n"
             "Raises BadFlags, and as recv. Source: fi_msg(3) fi_recvmsg.")

// ---- fi_tagged(3) ---------------------------------------------------------------------------------------------------

WEFT_MESSAGE(tsend, tagged, send, one, send, "buf! desc dest_addr tag context|len",
             "As send, with a tag that receives are matched by (fi_tsend).\n\n"
             "tag  a number with the bits of ep_attr.mem_tag_format.\n\n"
             "Raises as send. Source: fi_tagged(3) fi_tsend.")
WEFT_MESSAGE(tsendv, tagged, sendv, list, send, "iov! desc dest_addr tag context|count",
             "As sendv, with a tag (fi_tsendv). Source: fi_tagged(3) fi_tsendv.")
WEFT_MESSAGE(tsendmsg, tagged, sendmsg, message, send, "msg! flags",
             "As sendmsg: msg is an fi.MsgTagged (fi_tsendmsg). Source: fi_tagged(3) fi_tsendmsg.")
WEFT_MESSAGE(tinject, tagged, inject, inject, send, "buf! dest_addr tag|len",
             "As inject, with a tag (fi_tinject). Source: fi_tagged(3) fi_tinject.")
WEFT_MESSAGE(tsenddata, tagged, senddata, one, send, "buf! desc data! dest_addr tag context|len",
             "As senddata, with a tag (fi_tsenddata). Source: fi_tagged(3) fi_tsenddata.")
WEFT_MESSAGE(tinjectdata, tagged, injectdata, inject, send, "buf! data! dest_addr tag|len",
             "As injectdata, with a tag (fi_tinjectdata). Source: fi_tagged(3) fi_tinjectdata.")
WEFT_MESSAGE(trecv, tagged, recv, one, recv, "buf! desc src_addr tag ignore context|len",
             "As recv, of a message whose tag equals tag in the bits that ignore does not have (fi_trecv).\n\n"
             "Raises as recv. Source: fi_tagged(3) fi_trecv.")
WEFT_MESSAGE(trecvv, tagged, recvv, list, recv, "iov! desc src_addr tag ignore context|count",
             "As recvv, with tag and ignore (fi_trecvv). Source: fi_tagged(3) fi_trecvv.")
WEFT_MESSAGE(
    trecvmsg, tagged, recvmsg, message, recv, "msg! flags",
    "A tagged receive with all options: msg is an fi.MsgTagged (fi_trecvmsg).\n\n"
    "flags  COMPLETION, MORE, MULTI_RECV as for recvmsg, and\n"
    "       PEEK: looks for an unexpected message that matches, and takes nothing. The completion has its length,\n"
    "       tag and data; without a message it is a failed one (ENOMSG). msg_iov is not used.\n"
    "       PEEK | CLAIM: the message that is found is reserved for the context.\n"
    "       CLAIM: receives the message that the same context object has claimed.\n"
    "       PEEK | DISCARD, CLAIM | DISCARD: drops the message that is found, or claimed.\n\n"
    "Raises BadFlags, InvalidArgument (CLAIM with a context that has claimed nothing), and as recv.\n"
    "Source: fi_tagged(3) fi_trecvmsg.")

// ---- fi_collective(3) -----------------------------------------------------------------------------------------------

WEFT_COLLECTIVE(
    barrier, barrier, "coll_addr context|flags",
    "Completes when all members of a group have called it (fi_barrier).\n\n"
    "coll_addr  a group of this endpoint: its addr, or the group itself (join_collective).\n"
    "context    any object; the completion returns it as op_context.\n"
    "flags      COMPLETION, where the queue is bound with SELECTIVE_COMPLETION.\n\n"
    "All members make the same calls on a group in the same order. Completions come in that order, to the\n"
    "queue bound with TRANSMIT. Raises Again (8 calls of the group are under way, or the queue is full: read the\n"
    "queue, retry), BadState (the group is not joined yet, or closed), InvalidArgument (no group of this\n"
    "endpoint). A member that is lost is a failed completion. Source: fi_collective(3) fi_barrier.")
WEFT_COLLECTIVE(barrier2, barrier, "coll_addr flags context",
                "As barrier, with flags in front of the context (fi_barrier2).\n\n"
                "Source: fi_collective(3) fi_barrier2.")
WEFT_COLLECTIVE(
    broadcast, broadcast, "buf! count desc coll_addr root_addr datatype flags context",
    "Copies the root's buf into that of every other member (fi_broadcast).\n\n"
    "buf        C-contiguous buffer of up to 32 bytes, writable but for the root. Held until completion.\n"
    "count      number of elements; None: all of buf.\n"
    "desc       mr.desc of a region that covers buf (required under MR_LOCAL, MR_COLLECTIVE), or None.\n"
    "coll_addr  as for barrier.\n"
    "root_addr  the root's fi_addr.\n"
    "datatype   fi.INT64, fi.DOUBLE ...; None: that of the array buf.\n"
    "flags, context   as for barrier.\n\n"
    "Raises as barrier, and InvalidArgument (more than 32 bytes, no such member). Source: fi_collective(3)\n"
    "fi_broadcast.")
WEFT_COLLECTIVE(reduce, reduce, "buf! count desc result result_desc coll_addr root_addr datatype op flags context",
                "As allreduce, with the result at one member only, the root (fi_reduce).\n\n"
                "root_addr  the root's fi_addr; other members may leave result None.\n\n"
                "Source: fi_collective(3) fi_reduce.")
WEFT_COLLECTIVE(
    allreduce, allreduce, "buf! count desc result result_desc coll_addr datatype op flags context",
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
    "and a lost member are failed completions. Source: fi_collective(3) fi_allreduce.")

#undef WEFT_CALL
#undef WEFT_TRANSFER
#undef WEFT_BATCH
#undef WEFT_ATOMIC
#undef WEFT_MESSAGE
#undef WEFT_COLLECTIVE
