"""Refused calls of fi_msg(3) and fi_tagged(3): each has its error and its words, and moves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.msg_support import (
    CAPS,
    RECEIVES,
    SENDS,
    TAG,
    alone,
    data_of,
    kinds,
    nothing,
    receive_calls,
    recv,
    recvmsg,
    send,
    sendmsg,
    talkers,
)
from tests.fi.support import PROVIDER, Node

from weft import fi

pytestmark = pytest.mark.general("messages")

every_send = pytest.mark.parametrize(("name", "call"), [(s[0], s[1]) for s in SENDS], ids=[s[0] for s in SENDS])


def caps_of(tagged: bool, direction: int) -> int:
    return int((fi.TAGGED if tagged else fi.MSG) | direction)


@every_send
def test_send_without_its_capability_is_refused(name: str, call: Callable[..., None]) -> None:
    tagged = name.startswith("t")
    other = "MSG" if not tagged else "TAGGED"
    for caps in (caps_of(not tagged, int(fi.SEND | fi.RECV)), caps_of(tagged, int(fi.RECV))):
        with alone(caps) as node, pytest.raises(fi.NotSupported, match=rf"opened without {other} and SEND"):
            call(node, data_of(8), node.me)


@receive_calls
def test_receive_without_its_capability_is_refused(name: str) -> None:
    tagged = name.startswith("t")
    other = "MSG" if not tagged else "TAGGED"
    for caps in (caps_of(not tagged, int(fi.SEND | fi.RECV)), caps_of(tagged, int(fi.SEND))):
        with alone(caps) as node, pytest.raises(fi.NotSupported, match=rf"opened without {other} and RECV"):
            RECEIVES[name](node, np.zeros(8, np.uint8))


@every_send
def test_send_to_an_unknown_peer_is_refused(name: str, call: Callable[..., None]) -> None:
    with alone() as node, pytest.raises(fi.InvalidArgument, match="fi_addr 99 is not in the address vector"):
        call(node, data_of(8), 99)


@kinds
def test_send_without_a_peer_is_refused(tagged: bool) -> None:
    with alone() as node, pytest.raises(fi.InvalidArgument, match="no peer was given"):
        send(node, tagged, b"1", fi.ADDR_UNSPEC)


@kinds
def test_directed_receive_of_an_unknown_source_is_refused(tagged: bool) -> None:
    with alone(CAPS | fi.DIRECTED_RECV) as node:
        for call in (
            lambda: node.ep.trecv(bytearray(8), None, 99, TAG),
            lambda: node.ep.recv(bytearray(8), None, 99),
        ):
            with pytest.raises(fi.InvalidArgument, match="fi_addr 99 is not in the address vector"):
                call()


@receive_calls
def test_receive_into_read_only_memory_is_refused(name: str) -> None:
    with alone() as node:
        room = np.zeros(8, np.uint8)
        room.flags.writeable = False
        with pytest.raises(fi.AccessDenied, match="read-only"):
            RECEIVES[name](node, room)


@kinds
def test_flags_that_are_not_for_the_call_are_refused(tagged: bool) -> None:
    with alone() as node:
        with pytest.raises(fi.BadFlags, match=r"sendmsg: flags 0x80000 \(PEEK\) are not for this call"):
            sendmsg(node, tagged, b"1", node.me, int(fi.PEEK))
        for flags in (fi.FENCE, fi.DELIVERY_COMPLETE, fi.REMOTE_READ):
            with pytest.raises(fi.BadFlags):
                recvmsg(node, tagged, bytearray(8), int(flags))
        assert nothing(node)


@kinds
def test_injected_message_of_more_than_inject_size_is_refused(tagged: bool) -> None:
    with alone() as node:
        data = data_of(node.ep.inject_size + 1)
        for call in (
            lambda: node.ep.tinject(data, node.me, TAG) if tagged else node.ep.inject(data, node.me),
            lambda: sendmsg(node, tagged, data, node.me, int(fi.INJECT)),
        ):
            with pytest.raises(fi.MessageTooLong, match=rf"inject_size,? {node.ep.inject_size}"):
                call()


@kinds
def test_message_of_more_than_max_msg_size_is_refused(tagged: bool) -> None:
    def small(info: fi.Info) -> None:
        info.ep_attr.max_msg_size = 4096

    with alone(edit=small) as node:
        with pytest.raises(fi.MessageTooLong, match="max_msg_size 4096"):
            send(node, tagged, data_of(4097), node.me)
        with pytest.raises(fi.MessageTooLong):
            recv(node, tagged, bytearray(4097))


@kinds
def test_lists_of_more_than_iov_limit_buffers_are_refused(tagged: bool) -> None:
    with alone() as node:
        limit = node.info.tx_attr.iov_limit
        many = [bytearray(1) for _ in range(limit + 1)]
        sends = node.ep.tsendv if tagged else node.ep.sendv
        receives = node.ep.trecvv if tagged else node.ep.recvv
        more = {"tag": TAG} if tagged else {}
        with pytest.raises(fi.InvalidArgument, match=f"{limit + 1} buffers.*iov_limit"):
            sends(many, None, node.me, **more)
        with pytest.raises(fi.InvalidArgument, match=f"{limit + 1} buffers.*iov_limit"):
            receives(many, None, **more)
        receives(many, None, count=limit, **more)
        sends(many, None, node.me, count=limit, **more)
        node.wait(2)


def test_missing_and_strange_arguments_are_named() -> None:
    with alone() as node:
        ep = node.ep
        for call, text in (
            (lambda: ep.tsend(b"1", None, node.me), r"tsend\(\) needs the argument 'tag'"),
            (lambda: ep.trecv(bytearray(1)), r"trecv\(\) needs the argument 'tag'"),
            (lambda: ep.senddata(b"1", None, dest_addr=node.me), r"senddata\(\) needs the argument 'data'"),
            (lambda: ep.sendmsg(object(), 0), r"msg must be an fi\.Msg: .* has no attribute"),
            (lambda: ep.tsendmsg(fi.Msg([b"1"], addr=node.me), 0), r"msg must be an fi\.MsgTagged"),
        ):
            with pytest.raises((TypeError, fi.InvalidArgument), match=text):
                call()
        with pytest.raises(fi.InvalidArgument, match="buf is None and len 4"):
            ep.send(None, None, node.me, len=4)
        with pytest.raises(fi.InvalidArgument, match="2\\*\\*64"):
            ep.tsend(b"1", None, node.me, 1 << 64)


@kinds
def test_call_before_enable_is_refused(tagged: bool) -> None:
    with alone(enable=False) as node:
        with pytest.raises(fi.BadState, match="not enabled"):
            send(node, tagged, b"1", 0)
        with pytest.raises(fi.BadState, match="not enabled"):
            recv(node, tagged, bytearray(8))


# ---- descriptors -----------------------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[Node]:
    """An endpoint whose domain needs registered local buffers (FI_MR_LOCAL)."""
    with alone(mr_mode=int(fi.MR_LOCAL)) as node:
        yield node


def _send(node: Node, tagged: bool, buf: Any, desc: Any) -> None:
    if tagged:
        node.ep.tsend(buf, desc, node.me, TAG)
    else:
        node.ep.send(buf, desc, node.me)


def _recv(node: Node, tagged: bool, buf: Any, desc: Any) -> None:
    if tagged:
        node.ep.trecv(buf, desc, tag=TAG)
    else:
        node.ep.recv(buf, desc)


CASES = [
    pytest.param(_send, fi.SEND, fi.RECV, "FI_SEND for the source of a message", id="send"),
    pytest.param(_recv, fi.RECV, fi.SEND, "FI_RECV for the buffer of a receive", id="recv"),
]


@pytest.mark.clause("mr.access.send-msg", "mr.access.send-tagged", "mr.access.recv-msg", "mr.access.recv-tagged")
@kinds
@pytest.mark.parametrize(("call", "right", "other", "text"), CASES)
def test_desc_needs_the_right_of_the_call(
    registered: Node, call: Callable[..., None], right: int, other: int, text: str, tagged: bool
) -> None:
    """fi_mr(3) access: FI_SEND lets a buffer be sent from, FI_RECV be received into; one is not the other."""
    node, memory = registered, data_of(64)
    with node.domain.mr_reg(memory, other) as wrong, pytest.raises(fi.InvalidArgument, match=text):
        call(node, tagged, memory, wrong.desc)
    assert nothing(node)
    with node.domain.mr_reg(memory, right) as mr, node.domain.mr_reg(np.zeros(64, np.uint8), fi.RECV | fi.SEND) as rest:
        call(node, tagged, memory, mr.desc)
        (_recv if call is _send else _send)(node, tagged, rest[0:64], None)
        node.wait(2)


@kinds
@pytest.mark.parametrize("call", [_send, _recv], ids=["send", "recv"])
def test_desc_is_needed_under_mr_local(registered: Node, call: Callable[..., None], tagged: bool) -> None:
    over_weft = PROVIDER.weft
    refusal = fi.InvalidArgument if over_weft else fi.NoMr  # docs/reference/ofi.md: the check is the binding's
    with pytest.raises(refusal, match="MR_LOCAL and no desc" if over_weft else "MR_LOCAL, and desc is None"):
        call(registered, tagged, bytearray(8), None)
    call(registered, tagged, bytearray(0), None)  # no memory is accessed


@kinds
def test_inject_needs_no_desc_under_mr_local(registered: Node, tagged: bool) -> None:
    node = registered
    if tagged:
        node.ep.tinject(b"12345678", node.me, TAG)
    else:
        node.ep.inject(b"12345678", node.me)
    memory = np.zeros(8, np.uint8)
    with node.domain.mr_reg(memory, fi.RECV) as mr:
        _recv(node, tagged, memory, mr.desc)
        node.wait()
        assert bytes(memory) == b"12345678"


@kinds
def test_refused_receive_holds_neither_buffer_nor_context(tagged: bool) -> None:
    import gc
    import weakref

    class Context:
        pass

    with talkers() as (_, receiver, _):
        room, context = bytearray(8), Context()
        gone = weakref.ref(context)
        with pytest.raises(fi.BadFlags):
            recvmsg(receiver, tagged, room, int(fi.FENCE), context)
        room.extend(b"1")
        del context
        gc.collect()
        assert gone() is None
