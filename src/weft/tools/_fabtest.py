"""The two sides of `weft fabtest`: `serve`, and `run` for the client.

Both sides register one region under the same key: a header, then data. The client writes its plan and its own
address into the server's header, and the server answers by a write into the client's header. From then on the two
exchange only writes, reads and polls of memory, or messages.

Over a real libfabric the two introduce themselves by messages instead, because the provider may choose addresses and
keys of a region.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from .. import fi
from ..providers.cxi.provider import Cxi
from . import _real
from ._completions import RECEIVED, SENT, Completions
from ._text import UsageError

DEFAULT_PROVIDER = Cxi.name
KEY = 0xC0DE  # FT_MR_KEY
PORT = "9228"  # of a server over IP; fabtests' default
HEADER = 4096  # bytes before the data: a flag, a length, the plan
WINDOW = 64
_ANSWER_S = 60.0
_OVER = 2  # the last value of the server's flag
_RW = fi.REMOTE_READ | fi.REMOTE_WRITE


def _patience(idle_s: float) -> None:
    if idle_s > _ANSWER_S:
        raise UsageError(f"fabtest: no message within {_ANSWER_S:g} s")


class _Side:
    """An endpoint with the region of one side. Closes what it opened."""

    def __init__(self, info: fi.Info, nbytes: int) -> None:
        self._undo = ExitStack()
        try:
            self._open(info, nbytes)
        except BaseException:
            self._undo.close()
            raise

    def _open(self, info: fi.Info, nbytes: int) -> None:
        keep = self._undo.enter_context
        domain = keep(keep(fi.Fabric(info.fabric_attr)).domain(info))
        self.real = _real.is_real(info.fabric_attr.prov_name)
        # A real provider makes progress only in calls, and shm of libfabric 1.17 exceeds the limit of a sleep.
        waits = fi.WAIT_NONE if self.real else fi.WAIT_UNSPEC
        self.cq, self.av = keep(domain.cq_open(format=fi.CQ_FORMAT_CONTEXT, wait_obj=waits)), keep(domain.av_open())
        self.ep = keep(domain.endpoint(info))
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)
        self.ep.enable()
        self.memory = np.zeros(HEADER + nbytes, np.uint8)
        self.flag = self.memory[:8].view(np.uint64)
        mr = keep(domain.mr_reg(self.memory, _RW, requested_key=KEY))
        if domain.mr_mode & fi.MR_ENDPOINT:
            mr.bind(self.ep)
            mr.enable()
        self.place = (mr.address if domain.virt_addr else 0, mr.key)
        self.peer, self.far = -1, (0, KEY)
        self.patient = False
        self._early = 0  # completions that were read before they were waited for
        self.completions = Completions(self.cq, lambda idle_s: None if self.patient else _patience(idle_s))

    def close(self) -> None:
        self._undo.close()

    def write(self, data: Any, at: int) -> None:
        self._post(self.ep.write, data, at)

    def read(self, into: Any, at: int) -> None:
        self._post(self.ep.read, into, at)

    def _post(self, call: Callable[..., None], buffer: Any, at: int) -> None:
        self._call(call, buffer, at)
        self._done(1)

    def _call(self, call: Callable[..., None], buffer: Any, at: int) -> None:
        base, key = self.far
        while True:
            try:
                call(buffer, None, self.peer, base + at, key)
                return
            except fi.Again:
                self._early += len(self.cq.read(WINDOW))

    def many(self, call: Callable[..., None], buffer: Any, count: int) -> None:
        """Post an operation `count` times, at most WINDOW under way."""
        under_way = 0
        for _ in range(count):
            self._call(call, buffer, HEADER)
            under_way += 1
            if under_way == WINDOW:
                under_way -= self._done(1)
        self._done(under_way)

    def _done(self, count: int) -> int:
        ended, self._early = self._early, 0
        deadline = time.monotonic() + _ANSWER_S
        while ended < count:
            found = self.cq.read(WINDOW) if self.real else self.cq.sread(WINDOW, timeout=_ANSWER_S)
            ended += len(found)
            if not found and time.monotonic() > deadline:
                raise UsageError(f"fabtest: no completion within {_ANSWER_S:g} s")
        return ended

    def tell(self, data: bytes) -> None:
        """Send a message."""
        self.completions.post(self.ep.send, data, None, self.peer, SENT)
        self.completions.wait(SENT)

    def hear(self, patient: bool = False) -> bytes:
        """The next message; patient: without a limit of time."""
        room = np.zeros(HEADER, np.uint8)
        self.completions.post(self.ep.recv, room, None, fi.ADDR_UNSPEC, RECEIVED)
        self.patient = patient
        self.completions.wait(RECEIVED)
        self.patient = False
        return room.tobytes().rstrip(b"\0")

    def wait(self, come: Callable[[], bool], what: str, forever: bool = False) -> None:
        """Poll the memory. Raises UsageError after a minute without `forever`."""
        deadline = time.monotonic() + _ANSWER_S
        spins = 0
        while not come():
            self.cq.read(1)
            spins += 1
            if spins > 1000:
                time.sleep(0.0001)
            if not forever and time.monotonic() > deadline:
                raise UsageError(f"fabtest: no {what} within {_ANSWER_S:g} s")


def _hints(provider: str) -> fi.Info:
    return fi.Info(
        caps=fi.RMA | fi.MSG | fi.TAGGED,
        domain_attr=fi.DomainAttr(mr_mode=fi.MR_ENDPOINT | fi.MR_ALLOCATED),
        tx_attr=fi.TxAttr(msg_order=fi.ORDER_WAW | fi.ORDER_RMA_WAW),
        fabric_attr=fi.FabricAttr(prov_name=provider),
    )


def info_of(provider: str, own: str | None, own_pid: str | None, peer: str | None, peer_pid: str | None) -> fi.Info:
    """The Info of a server, or of a client where there is a peer: its dest_addr is the server."""
    if _real.is_real(provider):
        return _real_info(provider, own, own_pid, peer, peer_pid)
    hints = _hints(provider)
    if own is not None or own_pid is not None:
        mine = fi.getinfo(node=own, service=own_pid, flags=fi.SOURCE, hints=hints)[0]
        hints.src_addr, hints.domain_attr.name = mine.src_addr, mine.domain_attr.name
        if peer is None:
            return mine
    return fi.getinfo(node=peer, service=peer_pid, hints=hints)[0]


def _real_info(provider: str, own: str | None, own_port: str | None, peer: str | None, port: str | None) -> fi.Info:
    """As info_of, of a real libfabric: own and peer are hosts if addresses are of IP, else names of getname()."""
    hints = fi.Info(
        caps=fi.RMA | fi.MSG | fi.TAGGED,
        ep_attr=fi.EpAttr(type=fi.EP_RDM),
        domain_attr=fi.DomainAttr(mr_mode=_real.MODES & ~fi.MR_LOCAL),
        fabric_attr=fi.FabricAttr(prov_name=provider),
    )
    found = fi.getinfo(hints=hints)[0]
    if found.addr_format == fi.ADDR_STR:
        found.dest_addr = peer
        return found
    if peer is None:
        return fi.getinfo(node=own, service=own_port or PORT, flags=fi.SOURCE, hints=hints)[0]
    return fi.getinfo(node=peer, service=port or PORT, hints=hints)[0]


# ---- the two sides ---------------------------------------------------------------------------------------------------


def serve(info: fi.Info, nbytes: int, say: Callable[[str], None]) -> None:
    """Wait for one client, and do its plan."""
    side = _Side(info, nbytes)
    try:
        say(f"serving at {side.ep.getname()!r}; Ctrl-C ends it")
        if side.real:
            plan = json.loads(side.hear(patient=True))
        else:
            side.wait(lambda: bool(side.flag[0]), "client", forever=True)
            length = int(side.memory[8:16].view(np.uint64)[0])
            plan = json.loads(side.memory[16 : 16 + length].tobytes())
        side.peer = side.av.insert(bytes.fromhex(plan["address"]) if plan["binary"] else plan["address"])
        # The answer: how large the data may be.
        if side.real:
            side.far = (plan["base"], plan["key"])
            side.tell(json.dumps({"room": nbytes, "base": side.place[0], "key": side.place[1]}).encode())
        else:
            side.write(np.full(1, nbytes, np.uint64), 0)
        if max(plan["sizes"]) > nbytes:
            raise UsageError(f"fabtest: the client asks for {max(plan['sizes'])} B, and there is room for {nbytes}")
        if plan["test"] == "rma_pingpong":
            for size in plan["sizes"]:
                _pong(side, size, plan["count"])
        elif plan["test"] in MESSAGES:
            for size in plan["sizes"]:
                _messages(side, plan["test"], size, plan["count"], plan["check"], client=False)
        side.wait(lambda: int(side.flag[0]) == _OVER, "end of the client")
        say("the client is done")
    finally:
        side.close()


def _pong(side: _Side, size: int, count: int) -> None:
    last = side.memory[HEADER + size - 1 : HEADER + size]
    data = side.memory[HEADER : HEADER + size]
    for n in range(count):
        side.wait(lambda: last[0] == n % 250 + 1, "write of the client")  # noqa: B023
        side.write(data, HEADER)


def _ping(side: _Side, size: int, count: int) -> float:
    last = side.memory[HEADER + size - 1 : HEADER + size]
    data = np.zeros(size, np.uint8)
    begun = time.perf_counter()
    for n in range(count):
        data[-1] = n % 250 + 1
        side.write(data, HEADER)
        side.wait(lambda: last[0] == n % 250 + 1, "answer of the server")  # noqa: B023
    return time.perf_counter() - begun


MESSAGES = ("rdm_pingpong", "rdm_tagged_pingpong", "rdm_bw", "rdm_tagged_bw", "bw")
"""Tests of messages: back and forth, or one way with an answer to the last."""

_TAG = 0x7E57


def _messages(side: _Side, test: str, size: int, count: int, check: bool, client: bool) -> float:
    """Seconds of a test of messages. Raises UsageError: bytes came different."""
    ep, done, tagged = side.ep, side.completions, "tagged" in test
    data = side.memory[HEADER : HEADER + size]
    pattern = np.arange(size, dtype=np.uint64).astype(np.uint8)
    data[:] = pattern if client else 0
    receive: Callable[..., None] = ep.trecv if tagged else ep.recv
    send: Callable[..., None] = ep.tsend if tagged else ep.send
    receiving = (None, fi.ADDR_UNSPEC, *((_TAG, 0) if tagged else ()), RECEIVED)
    sending = (None, side.peer, *((_TAG,) if tagged else ()), SENT)
    answer = side.memory[HEADER - 8 : HEADER]
    begun = time.perf_counter()
    if test.endswith("pingpong"):
        for _ in range(count):
            if client:
                done.post(send, data, *sending)
                done.wait(SENT)
            done.post(receive, data, *receiving)
            done.wait(RECEIVED)
            if not client:
                done.post(send, data, *sending)
                done.wait(SENT)
    elif client:
        for n in range(count):
            done.post(send, data, *sending)
            if n >= WINDOW:
                done.wait(SENT)
        done.wait(SENT, min(count, WINDOW))
        done.post(receive, answer, *receiving)
        done.wait(RECEIVED)
    else:
        for n in range(count + WINDOW):
            if n < count:
                done.post(receive, data, *receiving)
            if n >= WINDOW and n - WINDOW < count:
                done.wait(RECEIVED)
        done.post(send, answer, *sending)
        done.wait(SENT)
    spent = time.perf_counter() - begun
    if check and not np.array_equal(data, pattern):
        raise UsageError(f"fabtest: {size} B came different")
    return spent


def run(info: fi.Info, test: str, op: str, sizes: list[int], count: int, check: bool) -> Iterator[tuple[int, float]]:
    """(size, seconds of all) for each size. Raises UsageError: bytes came back different."""
    side = _Side(info, max(sizes))
    try:
        side.peer = side.av.insert(info.dest_addr)
        name = side.ep.getname()
        binary = not isinstance(name, str)
        address = bytes(name).hex() if binary else name
        wanted = {"test": test, "sizes": sizes, "count": count, "check": check, "address": address, "binary": binary}
        if side.real:
            base, key = side.place
            side.tell(json.dumps({**wanted, "base": base, "key": key}).encode())
            answer = json.loads(side.hear())
            side.far, room = (answer["base"], answer["key"]), answer["room"]
        else:
            plan = json.dumps(wanted).encode()
            side.write(np.frombuffer(len(plan).to_bytes(8, sys.byteorder) + plan, np.uint8), 8)
            side.write(np.ones(1, np.uint64), 0)
            side.wait(lambda: bool(side.flag[0]), "answer of the server")
            room = int(side.flag[0])
        if room < max(sizes):
            raise UsageError(f"fabtest: the server has room for {room} B\n  try: start it with -S {max(sizes)}")
        for size in sizes:
            if test == "rma_pingpong":
                yield size, _ping(side, size, count)
                continue
            if test in MESSAGES:
                yield size, _messages(side, test, size, count, check, client=True)
                continue
            data = np.arange(size, dtype=np.uint64).astype(np.uint8)
            begun = time.perf_counter()
            side.many(side.ep.write if op == "write" else side.ep.read, data, count)
            spent = time.perf_counter() - begun
            if check and op == "write":
                back = np.zeros(size, np.uint8)
                side.read(back, HEADER)
                if not np.array_equal(back, data):
                    raise UsageError(f"fabtest: {size} B came back different")
            yield size, spent
        side.write(np.full(1, _OVER, np.uint64), 0)
    finally:
        side.close()
