"""Messages from and to device memory (FI_HMEM), of both providers, on a driver without a GPU (tests/fakes/cuda.cpp)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cxi.support import opened as opened_cxi
from tests.fakes import gpu as fake
from tests.fi.msg_support import data_of, kinds, recv, recvmsg, refused, send, sendmsg
from tests.fi.support import Node, opened

from weft import fi

CAPS = int(fi.MSG | fi.TAGGED | fi.HMEM)
LENGTHS = [1, 152, 153, 192, 1000, 5000, 20_000, 300_000]  # credited, eager, rendezvous
Duo = tuple[Node, Node, int]


@pytest.fixture(scope="module")
def gpu() -> fake.Gpu:
    return fake.start()


@pytest.fixture(params=["general", "cxi"])
def duo(
    request: pytest.FixtureRequest, gpu: fake.Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Duo]:
    """(sender, receiver, fi_addr of the receiver)."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    make: Callable[[int], contextlib.AbstractContextManager[Node]] = opened_cxi if request.param == "cxi" else opened
    with make(CAPS) as receiver, make(CAPS) as sender:
        yield sender, receiver, sender.av.insert(receiver.name)
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most


_MADE: list[fake.Array] = []


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    """Device memory of a test is freed after it: each allocation of the fake driver has a descriptor."""
    yield
    while _MADE:
        _MADE.pop().free()


class Memory:
    """`count` bytes, of the device or of the host."""

    def __init__(self, gpu: fake.Gpu, device: bool, count: int, data: bytes = b"") -> None:
        self.device = device
        self.buffer: Any = gpu.array(count) if device else bytearray(count)
        if device:
            _MADE.append(self.buffer)
            self.buffer.put(data or bytes(count))
        elif data:
            self.buffer[:] = data

    def get(self) -> bytes:
        return self.buffer.get() if self.device else bytes(self.buffer)


sides = pytest.mark.parametrize(("from_device", "to_device"), [(True, False), (False, True), (True, True)])


@kinds
@sides
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("first", ["receive", "message"])
def test_message_between_kinds_of_memory_arrives(
    duo: Duo, gpu: fake.Gpu, first: str, length: int, from_device: bool, to_device: bool, tagged: bool
) -> None:
    sender, receiver, peer = duo
    data = bytes(data_of(length))
    source, room = Memory(gpu, from_device, length, data), Memory(gpu, to_device, length + 8)
    if first == "receive":
        recv(receiver, tagged, room.buffer, "r")
    send(sender, tagged, source.buffer, peer, "s")
    if first == "message":
        recv(receiver, tagged, room.buffer, "r")
    (entry,) = receiver.wait()
    assert (entry.op_context, entry.len) == ("r", length)
    assert room.get() == data + bytes(8)
    assert sender.wait()[0].op_context == "s"


@kinds
def test_injected_message_is_copied_from_the_device_at_the_call(duo: Duo, gpu: fake.Gpu, tagged: bool) -> None:
    sender, receiver, peer = duo
    data = bytes(data_of(100))
    source, room = Memory(gpu, True, 100, data), bytearray(100)
    sendmsg(sender, tagged, source.buffer, peer, int(fi.INJECT))
    source.buffer.put(bytes(100))
    recv(receiver, tagged, room)
    receiver.wait()
    assert room == data


@kinds
@pytest.mark.parametrize("length", [100, 1000, 20_000])
@pytest.mark.parametrize("first", ["receive", "message"])
def test_message_longer_than_device_memory_is_cut(
    duo: Duo, gpu: fake.Gpu, first: str, length: int, tagged: bool
) -> None:
    sender, receiver, peer = duo
    data, room = data_of(length), Memory(gpu, True, 64)
    if first == "receive":
        recv(receiver, tagged, room.buffer[0:60], "r")
    send(sender, tagged, data, peer)
    if first == "message":
        recv(receiver, tagged, room.buffer[0:60], "r")
    entry = refused(receiver)
    assert (entry.err, entry.len, entry.olen) == (fi.ETRUNC, 60, length - 60)
    assert room.get() == bytes(data[:60]) + bytes(4)
    sender.wait()


@pytest.mark.parametrize("first", ["receive", "message"])
def test_device_buffer_takes_several_messages(duo: Duo, gpu: fake.Gpu, first: str) -> None:
    sender, receiver, peer = duo
    lengths = [100, 1000, 5000, 20_000, 8]
    room, payloads = Memory(gpu, True, sum(lengths) + 63), [bytes(data_of(n, seed=n)) for n in lengths]

    def post() -> None:
        recvmsg(receiver, False, room.buffer, int(fi.MULTI_RECV | fi.COMPLETION), "m")

    if first == "receive":
        post()
    for payload in payloads:
        send(sender, False, payload, peer)
    if first == "message":
        post()
    entries = receiver.wait(len(lengths))
    start = min(entry.buf for entry in entries)
    assert {(entry.buf - start, entry.len) for entry in entries} == {
        (sum(lengths[:i]), n) for i, n in enumerate(lengths)
    }
    assert [bool(entry.flags & fi.MULTI_RECV) for entry in entries] == [False] * 4 + [True]
    assert room.get() == b"".join(payloads) + bytes(63)
    sender.wait(len(lengths))


@kinds
def test_lists_join_memory_of_host_and_device(gpu: fake.Gpu, tagged: bool) -> None:
    with opened(CAPS) as receiver, opened(CAPS) as sender:
        peer = sender.av.insert(receiver.name)
        for length in (300, 3000, 90_000):
            data, third = bytes(data_of(length)), length // 3
            parts = [Memory(gpu, i != 1, third, data[i * third : (i + 1) * third]) for i in range(3)]
            rooms = [Memory(gpu, i == 1, third) for i in range(3)]
            if tagged:
                receiver.ep.trecvv([room.buffer for room in rooms], tag=1)
                sender.ep.tsendv([part.buffer for part in parts], None, peer, 1)
            else:
                receiver.ep.recvv([room.buffer for room in rooms])
                sender.ep.sendv([part.buffer for part in parts], None, peer)
            assert receiver.wait()[0].len == length
            assert b"".join(room.get() for room in rooms) == data
            sender.wait()


@kinds
def test_under_mr_hmem_device_buffers_need_their_desc(gpu: fake.Gpu, tagged: bool) -> None:
    """fi_mr(3) FI_MR_HMEM: device memory is registered before use in messages too; host memory need not be."""
    with opened(CAPS, mr_mode=int(fi.MR_HMEM)) as receiver, opened(CAPS, mr_mode=int(fi.MR_HMEM)) as sender:
        peer = sender.av.insert(receiver.name)
        data = bytes(data_of(5000))
        source, room = Memory(gpu, True, 5000, data), Memory(gpu, True, 5000)

        def post_send(desc: Any) -> None:
            if tagged:
                sender.ep.tsend(source.buffer, desc, peer, 1)
            else:
                sender.ep.send(source.buffer, desc, peer)

        def post_receive(desc: Any) -> None:
            if tagged:
                receiver.ep.trecv(room.buffer, desc, tag=1)
            else:
                receiver.ep.recv(room.buffer, desc)

        for post, node, memory, access in (
            (post_receive, receiver, room, fi.RECV),
            (post_send, sender, source, fi.SEND),
        ):
            with pytest.raises(fi.InvalidArgument, match="MR_HMEM"):
                post(None)
            attr = fi.MrAttr([memory.buffer], access=int(access), iface=fi.HMEM_CUDA)
            post(node.keep(node.domain.mr_regattr(attr)).desc)
        receiver.wait(), sender.wait()
        assert room.get() == data
        send(sender, tagged, b"of the host", peer)
        recv(receiver, tagged, host := bytearray(11))
        receiver.wait(), sender.wait()
        assert host == b"of the host"
