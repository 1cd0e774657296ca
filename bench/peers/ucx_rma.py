"""Put, get and atomics of libucp between two processes, by ctypes, without the cost of ctypes: JSON on stdout.

    python bench/peers/ucx_rma.py [sysv|posix] [puts]

sysv, posix          the shared memory that ucp_mem_map allocates; sysv is what UCX prefers
puts                 without the kernel's copies (cma), which UCX prefers above 4 KiB, and needs for a get that its
                     target does not have to answer: no gets then

put_8_call           ucp_put_nbx of 8 B, alone
put_8                with a flush, which waits until the data has arrived
put_N, get_N         of more bytes, or the other way: until the request is done, where it is one
fetch_add, post_add  ucp_atomic_op_nbx with and without a reply buffer; done when it returns, of this memory
half_round_trip      8 B put to a peer that polls its memory; the loops are in Python, as in bench_ucp.py

Each figure is the least over short batches, in nanoseconds, less the same Python with a C function that does nothing,
and less such a call for each further call that it took. Figures within the noise of ctypes (a call of which costs some
300 ns) are left out.

Needs the wheel libucx-cu12 (or another libucx). Source: ucp.h of UCX.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from timing import SIZES, count_of, least, own_core, ping_pong
from ucx_registration import API, FIELD_FEATURES, MapParams, load

LARGE = 32 << 20
NBYTES = 2 * LARGE
FEATURES = 1 << 1 | 1 << 3  # RMA, AMO64
FIELD_LENGTH, FIELD_FLAGS, ALLOCATE = 1 << 1, 1 << 2, 1 << 1
ATTR_DATATYPE, ATTR_REPLY = 1 << 3, 1 << 5
ADD = 0
INBOX, WORD = 64, 128  # where a process is written to, and its atomics' word
OUTBOX = NBYTES - 64  # the source of its writes
ROUNDS, BATCHES = 200, 10
CONNECT_S = 10.0
HIDDEN_SHARE = 0.05  # of a call through ctypes: figures below it say nothing

u64, pointer = ctypes.c_uint64, ctypes.c_void_p
PUT = (pointer, pointer, u64, u64, pointer, pointer)
ATOMIC = (pointer, ctypes.c_int, pointer, u64, u64, pointer, pointer)


class RequestParam(ctypes.Structure):
    """ucp_request_param_t."""

    _fields_ = [
        ("op_attr_mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("request", pointer),
        ("cb", pointer),
        ("datatype", u64),
        ("user_data", pointer),
        ("reply_buffer", pointer),
        ("memory_type", ctypes.c_int),
        ("recv_info", pointer),
        ("memh", pointer),
        ("more", u64 * 8),
    ]


class Side:
    """The objects of one process: a context, a worker, memory that UCP allocated."""

    def __init__(self) -> None:
        ucp = self.ucp = load()
        config, self.context, self.worker = pointer(), pointer(), pointer()
        check(ucp.ucp_config_read(None, None, ctypes.byref(config)))
        check(
            ucp.ucp_init_version(*API, ctypes.byref((u64 * 32)(FIELD_FEATURES, FEATURES)), config, byref(self.context))
        )
        check(ucp.ucp_worker_create(self.context, ctypes.byref((u64 * 32)(1, 0)), byref(self.worker)))
        self.memh = pointer()
        asked = MapParams(FIELD_LENGTH | FIELD_FLAGS, None, NBYTES, ALLOCATE)
        check(ucp.ucp_mem_map(self.context, ctypes.byref(asked), byref(self.memh)))
        found = (u64 * 8)(1)  # ucp_mem_attr_t: the address
        check(ucp.ucp_mem_query(self.memh, ctypes.byref(found)))
        self.base = int(found[1])
        self.bytes: Any = np.ctypeslib.as_array((ctypes.c_uint8 * NBYTES).from_address(self.base))
        self.bytes[:] = 0
        self.put = typed(ucp.ucp_put_nbx, PUT)
        self.get = typed(ucp.ucp_get_nbx, PUT)
        self.atomic = typed(ucp.ucp_atomic_op_nbx, ATOMIC)
        self.flush = typed(ucp.ucp_ep_flush_nbx, (pointer, pointer))
        self.progress = ucp.ucp_worker_progress
        self.progress.argtypes = (pointer,)
        self.status = ucp.ucp_request_check_status
        self.status.argtypes, self.status.restype = (pointer,), ctypes.c_byte
        self.free = ucp.ucp_request_free
        self.free.argtypes, self.free.restype = (pointer,), None
        self.param = RequestParam()
        self.none = ctypes.addressof(self.param)
        self.calls = 0  # through ctypes, counted where their number varies

    def card(self) -> tuple[bytes, bytes, int]:
        """The values that a peer needs: address, packed key, address of the memory."""
        address, key, size = pointer(), pointer(), ctypes.c_size_t()
        check(self.ucp.ucp_worker_get_address(self.worker, byref(address), byref(size)))
        packed = ctypes.string_at(address, size.value)
        check(self.ucp.ucp_rkey_pack(self.context, self.memh, byref(key), byref(size)))
        return packed, ctypes.string_at(key, size.value), self.base

    def connect(self, card: tuple[bytes, bytes, int]) -> None:
        """An endpoint to the peer, and its key."""
        address, key, self.there = card
        self.ep, self.rkey = pointer(), pointer()
        held = ctypes.create_string_buffer(address, len(address))
        params = (u64 * 64)(1, ctypes.addressof(held))  # ucp_ep_params_t: the address
        check(self.ucp.ucp_ep_create(self.worker, ctypes.byref(params), byref(self.ep)))
        check(self.ucp.ucp_ep_rkey_unpack(self.ep, key, byref(self.rkey)))

    def done(self, request: int | None) -> None:
        """Progress until an operation is over."""
        if request is None:
            return
        if request > (1 << 64) - 100:
            raise SystemExit(f"UCX: status {request - (1 << 64)}")
        while True:
            self.progress(self.worker)
            status = self.status(request)
            self.calls += 2
            if status != 1:
                break
        self.free(request)
        self.calls += 1
        check(status)

    def flushed(self) -> None:
        """Flush the endpoint."""
        self.done(self.flush(self.ep, self.none))


def byref(what: Any) -> Any:
    return ctypes.byref(what)


def check(status: int) -> None:
    if status != 0:
        raise SystemExit(f"UCX: status {ctypes.c_byte(status).value}")


def typed(function: Any, arguments: tuple[Any, ...]) -> Any:
    function.argtypes, function.restype = arguments, pointer
    return function


def nothing(arguments: tuple[Any, ...]) -> Any:
    """A C function that does almost nothing with any arguments: labs, which uses only its first argument."""
    function = ctypes.CDLL(None).labs
    function.argtypes, function.restype = arguments, pointer
    return function


def trip(side: Side, first: bool) -> float:
    """Nanoseconds of half a round trip, with a call through ctypes in it."""
    word = memoryview(side.bytes[OUTBOX : OUTBOX + 8]).cast("Q")
    inbox = memoryview(side.bytes[INBOX : INBOX + 8]).cast("Q")
    put, ep, rkey, none = side.put, side.ep, side.rkey, side.none
    source, there = side.base + OUTBOX, side.there + INBOX

    def send(at):
        word[0] = at
        put(ep, source, 8, there, rkey, none)

    def receive(at):
        while inbox[0] != at:
            pass

    if first:
        return ping_pong(send, receive, ROUNDS, BATCHES)
    return ping_pong(receive, send, ROUNDS, BATCHES)


def answer(pipe: Connection) -> None:
    """The other process: it progresses until it is connected, answers the round trips, and ends."""
    own_core(1)
    side = Side()
    pipe.send(side.card())
    side.connect(pipe.recv())
    deadline = time.monotonic() + CONNECT_S
    while not pipe.poll(0.001):
        while side.progress(side.worker):
            pass
        if time.monotonic() > deadline + 60:
            return
    pipe.recv()
    side.put(side.ep, side.base + OUTBOX, 8, side.there + WORD, side.rkey, side.none)
    side.flushed()
    pipe.send("ready")
    trip(side, False)
    pipe.recv()


def measure(side: Side, gets: bool) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    ep, rkey, none, base, there, done = side.ep, side.rkey, side.none, side.base, side.there, side.done
    empty_put, empty_atomic, empty_flush = nothing(PUT), nothing(ATOMIC), nothing((pointer, pointer))

    def repeat(call):
        def run(count):
            for _ in range(count):
                call()

        return run

    bare_ns = least(repeat(lambda: None), 500)

    def less(call, empty, count, rounds=40):
        """Nanoseconds of a call without those of `empty`, which is the same Python with a C function that does nothing,
        and without the further calls that it took; all in turn."""
        run, run_empty, run_other = repeat(call), repeat(empty), repeat(lambda: empty_flush(None, none))
        best = empty_ns = other_ns = float("inf")
        calls = 0
        for _ in range(rounds):
            other_ns = min(other_ns, least(run_other, 200, 1))
            empty_ns = min(empty_ns, least(run_empty, 200, 1))
            before = side.calls
            took = least(run, count, 1)
            if took < best:
                best, calls = took, side.calls - before
        return best - empty_ns - calls / count * (other_ns - bare_ns)

    def post(function, ep, size):
        return lambda: function(ep, base, size, there, rkey, none)

    def whole(function, ep, size):
        return lambda: done(function(ep, base, size, there, rkey, none))

    def flushed(function, flush, ep):
        def call():
            function(ep, base, 8, there, rkey, none)
            done(flush(ep, none))

        return call

    def add(function, ep, param):
        where = ctypes.addressof(param)
        return lambda: done(function(ep, ADD, base + OUTBOX, 1, there + WORD, rkey, where))

    found["put_8_call"] = less(post(side.put, ep, 8), post(empty_put, None, 8), 500)
    side.flushed()
    found["put_8"] = less(flushed(side.put, side.flush, ep), flushed(empty_put, empty_flush, None), 200)
    for size in (8, *SIZES, LARGE):
        count, rounds = (count_of(size), 40) if size < LARGE else (1, 6)
        empty = whole(empty_put, None, size)
        if size > 8:
            found[f"put_{size}"] = less(whole(side.put, ep, size), empty, count, rounds)
            side.flushed()
        if gets:
            found[f"get_{size}"] = less(whole(side.get, ep, size), empty, count, rounds)
    side.bytes[OUTBOX] = 1
    fetching = RequestParam(ATTR_DATATYPE | ATTR_REPLY, datatype=8 << 3, reply_buffer=base + WORD)
    posting = RequestParam(ATTR_DATATYPE, datatype=8 << 3)
    for name, param in (("fetch_add", fetching), ("post_add", posting)):
        found[name] = less(add(side.atomic, ep, param), add(empty_atomic, None, param), 500)
        side.flushed()
    found["ctypes"] = least(repeat(post(empty_put, None, 8)), 500) - bare_ns
    return found


def main() -> None:
    kind = "posix" if "posix" in sys.argv else "sysv"
    gets = "puts" not in sys.argv
    os.environ["UCX_TLS"] = f"self,{kind},cma" if gets else f"self,{kind}"
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    here, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer, args=(other,), daemon=True)
    process.start()
    own_core(0)
    side = Side()
    card = here.recv()
    here.send(side.card())
    side.connect(card)
    side.put(side.ep, side.base, 8, side.there, side.rkey, side.none)
    deadline = time.monotonic() + CONNECT_S
    side.flushed()
    side.bytes[:LARGE] = 1  # written, because unwritten pages are all one page of zeros, which is always in cache
    found = measure(side, gets)
    here.send("go")
    while not here.poll(0.001):
        side.progress(side.worker)
        if time.monotonic() > deadline + 60:
            raise SystemExit("the other process does not answer")
    here.recv()
    call = found.pop("ctypes")
    assert isinstance(call, float)
    found["half_round_trip"] = trip(side, True) - call / 2  # the return through ctypes comes after the peer's answer
    hidden = HIDDEN_SHARE * call
    found = {name: value for name, value in found.items() if isinstance(value, str) or value > hidden}
    here.send("end")
    process.join(10)
    version = [ctypes.c_uint() for _ in range(3)]
    side.ucp.ucp_get_version(*map(byref, version))
    found["library"] = f"UCX {'.'.join(str(v.value) for v in version)} ({kind})"
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # skips UCX's cleanup, which would wait for the other process


if __name__ == "__main__":
    main()
