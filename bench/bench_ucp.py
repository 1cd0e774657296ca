"""weft.ucp from Python: put, get, atomics and mem_map, each with the machine's limit and with libucp in C.

libucp's figures (peers/ucx_rma.py, peers/ucx_registration.py) are the cost in
a C program, without Python and ctypes. Weft's figures contain Python's call.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import weft._nic as nic
from common import Row, least, loop_ns, peers, peers_of, publish, spread
from weft import ucp

SIZES = (4096, 64 << 10, 1 << 20, 32 << 20)
MAPPED = (4096, 1 << 20, 1 << 28)
NBYTES = 2 * SIZES[-1]
LINE, INBOX, WORD = 0, 64, 128  # offsets: the word of the floor, the word that a peer writes, the word of atomics
OUTBOX = NBYTES - 64  # the source of writes
TRIP_ROUNDS = 2000
ANSWER_S = 20.0


class Side:
    """The objects of one process: memory that Weft allocated, and a peer's memory, by key and as a mapping."""

    def __init__(self) -> None:
        self.context = ucp.Context()
        self.worker = self.context.worker_create()
        self.memh = self.context.mem_map(length=NBYTES, allocate=True)
        self.memory = self.memh.memory

    def card(self) -> tuple[bytes, bytes]:
        return self.worker.address, self.memh.pack()

    def connect(self, card: tuple[bytes, bytes]) -> None:
        self.ep = self.worker.ep_create(card[0])
        self.rkey = self.ep.rkey_unpack(card[1])
        self.there = self.rkey.address
        self.mapped = self.rkey.ptr(self.there)
        self.window = self.rkey.view(self.there, NBYTES)

    def trip(self, first: bool) -> float:
        """Nanoseconds of half a round trip: 8 B put to a peer that polls its memory."""
        inbox, outbox = self.memory[INBOX : INBOX + 8].cast("Q"), self.memory[OUTBOX : OUTBOX + 8].cast("Q")
        local, put, rkey, there = self.memh[OUTBOX : OUTBOX + 8], self.ep.put_nbx, self.rkey, self.there + INBOX
        looks = range(2000)

        def wait(value: int) -> None:
            while True:
                for _ in looks:
                    if inbox[0] == value:
                        return
                if nic.poll_u64(self.memory, INBOX, value, ANSWER_S):  # yields the core to other processes
                    return
                raise TimeoutError("the other process does not answer")

        def run(rounds: int) -> None:
            for value in range(1, rounds + 1):
                if first:
                    outbox[0] = value
                    put(local, there, rkey)
                wait(value)
                if not first:
                    outbox[0] = value
                    put(local, there, rkey)

        inbox[0] = 0
        return least(run, TRIP_ROUNDS, 1) / 2


def keep_core(rank: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def answer(pipe: Connection) -> None:
    """The other process: sleeps, except for its part in the floor and the round trips."""
    keep_core(1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        side = Side()
        side.memory[:] = bytes(NBYTES)
        pipe.send(side.card())
        side.connect(pipe.recv())
        while True:
            match pipe.recv():
                case "line", rounds:
                    nic.probe_pingpong(side.memory[LINE : LINE + 8], rounds, False, 2.0)
                case "trip":
                    side.memory[INBOX : INBOX + 8] = bytes(8)
                    pipe.send("ready")
                    side.trip(False)
                case _:
                    return


@contextlib.contextmanager
def pair() -> Iterator[tuple[Side, Connection]]:
    cores = os.sched_getaffinity(0)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer, args=(there,), daemon=True)
    process.start()
    there.close()
    keep_core(0)
    try:
        side = Side()
        side.memory[:] = b"\1" * NBYTES
        card = here.recv()
        here.send(side.card())
        side.connect(card)
        yield side, here
        here.send("end")
        process.join(10)
        del side.window
        side.context.close()
    finally:
        process.kill()
        os.sched_setaffinity(0, cores)


def repeated(call: Any, *arguments: Any) -> Any:
    """run(count) of a bare call."""

    def run(count: int) -> None:
        for _ in range(count):
            call(*arguments)

    return run


def small(side: Side, pipe: Connection) -> list[Row]:
    put, get, add, rkey, there = side.ep.put_nbx, side.ep.get_nbx, side.ep.atomic_op_nbx, side.rkey, side.there
    registered, array, old = side.memh[256:264], np.zeros(1, "u8"), side.memh[512:520]
    word, flush, done, total = there + WORD, side.ep.flush_nbx, ucp.DONE, int(ucp.ATOMIC_OP_ADD)
    nothing = [].clear

    # Each call has its own loop, because a call through *arguments takes twice as long.
    def put_registered(count):
        for _ in range(count):
            put(registered, there, rkey)

    def put_array(count):
        for _ in range(count):
            put(array, there, rkey)

    def put_flush(count):
        for _ in range(count):
            put(registered, there, rkey)
            if flush() is not done:
                raise AssertionError("not done in place")

    def get_registered(count):
        for _ in range(count):
            get(registered, there, rkey)

    def post_add(count):
        for _ in range(count):
            add(total, registered, word, rkey)

    def fetch_add(count):
        for _ in range(count):
            add(total, registered, word, rkey, reply_buffer=old)

    def fetch_add_int(count):
        for _ in range(count):
            add(total, 1, word, rkey, reply_buffer=old)

    def bare_call(count):
        for _ in range(count):
            nothing()

    loop = loop_ns()
    runs = (put_registered, put_array, put_flush, get_registered, post_add, fetch_add, fetch_add_int, bare_call)
    found = spread(15, *((lambda run=run: least(run, 500, 4) - loop) for run in runs))
    (call, _), (atomic, _) = found.pop(), spread(5, lambda: nic.probe_fetch_add((side.mapped + WORD, 8), 20000))[0]
    empty, bare = "an empty C method", "a bare atomic add"
    rows = [
        Row(path, f"<= {budget} ns" if budget else "", ns, "ns", ns <= budget if budget else None, limit, limit_is,
            peers=peers_of(peer) if peer else {}, median=median)
        for (ns, median), (path, budget, limit, limit_is, peer) in zip(
            found,
            (
                ("8 B put_nbx, registered slice: a call", 80, call, empty, "put_8_call"),
                ("8 B put_nbx, NumPy array: a call", 120, call, empty, "put_8_call"),
                ("8 B put_nbx and flush_nbx", 0, 2 * call, "two empty C methods", "put_8"),
                ("8 B get_nbx, registered slice", 0, call, empty, "get_8"),
                ("post-add", 0, atomic, bare, "post_add"),
                ("fetch-add", 110, atomic, bare, "fetch_add"),
                ("fetch-add of an int", 0, atomic, bare, ""),
            ),
            strict=True,
        )
    ]  # fmt: skip

    def line() -> float:
        side.window[LINE : LINE + 8] = bytes(8)
        pipe.send(("line", 4000))
        return nic.probe_pingpong(side.window[LINE : LINE + 8], 4000, True, 2.0)

    def half() -> float:
        side.memory[INBOX : INBOX + 8] = bytes(8)
        pipe.send("trip")
        pipe.recv()
        return side.trip(True)

    (floor, _), (trip, median) = spread(12, line, half)
    why = "" if trip <= floor + 120 else "Python on both sides: a call out, and a loop that looks at a memoryview"
    rows.append(
        Row("8 B put_nbx, half a round trip to a polling peer", "<= floor + 120 ns", trip, "ns", trip <= floor + 120,
            floor, "floor: a bare cache line", why, peers_of("half_round_trip"), median)
    )  # fmt: skip
    return rows


def large(side: Side) -> list[Row]:
    rows = []
    for size in SIZES:
        local = side.memh[:size]
        here, peer = (side.memh.address, size), (side.mapped, size)
        count = max(1, (4 << 20) // size)
        for op, call, to, source in (("put", side.ep.put_nbx, peer, here), ("get", side.ep.get_nbx, here, peer)):

            def run(n, call=call, local=local, there=side.there, rkey=side.rkey, done=ucp.DONE):
                for _ in range(n):
                    request = call(local, there, rkey)
                    if request is not done:
                        request.wait()

            rounds = 25 if size < 8 << 20 else 6
            (limit, _), (ns, median) = spread(
                rounds,
                lambda to=to, source=source, count=count: nic.probe_memcpy(to, source, count),
                lambda run=run, count=count: least(run, count, 1),
            )
            share = limit / ns
            wanted = "" if size < 64 << 10 and op == "get" else ">= 30 GB/s" if size < 64 << 10 else ">= 0.97 x limit"
            met = None if not wanted else size / ns >= 30 if size < 64 << 10 else share >= 0.97
            rows.append(
                Row(f"{size >> 10:,} KiB {op}_nbx", wanted, size / ns, "GB/s", met, size / limit,
                    f"memcpy: {share:.2f} of it", "" if met is not False else f"{ns - limit:,.0f} ns a call",
                    peers_of(f"{op}_{size}", lambda t, size=size: size / t), size / median)
            )  # fmt: skip
    return rows


def mapping(side: Side) -> list[Row]:
    rows = []
    loop, nothing, held = loop_ns(), [].clear, []
    mem_map = side.context.mem_map

    def unmap() -> None:
        for memh in held:
            memh.unmap()
        held.clear()

    for size in MAPPED:
        memory = np.empty(size, "u1")  # its pages are never touched, and mapping must not touch them

        def run(n, memory=memory):
            keep = held.append
            for _ in range(n):
                keep(mem_map(memory))

        (call, _), (ns, median) = spread(
            7, lambda: least(repeated(nothing), 500, 4) - loop, lambda run=run: least(run, 500, 2, unmap) - loop
        )
        rows.append(
            Row(f"mem_map of {size >> 10:,} KiB", "<= 500 ns", ns, "ns", ns <= 500, call, "an empty C method",
                peers=peers_of(f"register_{size}"), median=median)
        )  # fmt: skip
    return rows


def main() -> None:
    peers()  # before this process is bound to one core, which its children would inherit
    with pair() as (side, pipe):
        rows = small(side, pipe) + large(side) + mapping(side)
    publish("ucp", rows)


if __name__ == "__main__":
    main()
