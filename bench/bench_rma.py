"""Put and get from Python: the speed budget's rows for 8 B, 4 KiB and 64 KiB upwards, on memory of both kinds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import weft._nic as nic
from common import Row, in_turn, least, loop_ns, peers, peers_of, publish, python_calls, two_processes
from weft.tools._pair import Side, Target, address_of, half_round_trip

SIZES = (64 << 10, 1 << 20, 32 << 20)  # fits the second-level cache; fits only a later cache; fits no cache
NBYTES = 2 * SIZES[-1]


def small(side: Side, target: Target, peer: int) -> list[Row]:
    import numpy as np

    there = target.regions["direct"]
    write, inject, read, base, key = side.ep.write, side.ep.inject_write, side.cq.read, there.base, there.key
    registered, array, page = side.mr["direct"][:8], np.zeros(1, "u8"), side.mr["direct"][:4096]

    def drain() -> None:
        while read(1024):
            pass

    def put(buf):
        def run(count):
            for _ in range(count):
                write(buf, None, peer, base, key)

        return run

    def put_by_name(count):
        ep = side.ep
        for _ in range(count):
            ep.write(array, dest_addr=peer, addr=base, key=key)

    def put_complete(buf):
        def run(count):
            for _ in range(count):
                write(buf, None, peer, base, key)
                read(1)

        return run

    def get_complete(count):
        get = side.ep.read
        for _ in range(count):
            get(registered, None, peer, base, key)
            read(1)

    def injected(count):
        for _ in range(count):
            inject(registered, peer, base, key)

    def read_empty(count):
        for _ in range(count):
            read()

    nothing = [].clear  # a METH_NOARGS call

    def bare_call(count):
        for _ in range(count):
            nothing()

    loop = loop_ns()
    put(registered)(1)
    side.wait(1)
    a, b, c, d, e, f, g, h = in_turn(
        15,
        *(
            (lambda run=run, n=n: least(run, n, 4, drain))
            for run, n in (
                (put(registered), 500),
                (put(array), 500),
                (put_by_name, 500),
                (injected, 1000),
                (put_complete(registered), 500),
                (read_empty, 1000),
                (bare_call, 2000),
                (get_complete, 500),
            )
        ),
    )
    call = g - loop
    rows = [
        Row("8 B put, registered slice: a call", "<= 80 ns", a - loop, "ns", a - loop <= 80, call, "an empty C method"),
        Row("8 B put, NumPy array: a call", "<= 120 ns", b - loop, "ns", b - loop <= 120, call, "an empty C method",
            peers=peers_of("put_8_call")),
        Row("8 B put, NumPy array, ep.write(...) with keywords", "<= 120 ns", c - loop, "ns", c - loop <= 120, call,
            "an empty C method"),
        Row("8 B inject_write, registered slice", "", d - loop, "ns", None, call, "an empty C method"),
        Row("8 B put and its completion, cq.read(1)", "", e - loop, "ns", None, 2 * call, "two empty C methods",
            peers=peers_of("put_8")),
        Row("8 B get and its completion, cq.read(1)", "", h - loop, "ns", None, 2 * call, "two empty C methods",
            peers=peers_of("get_8")),
        Row("cq.read() of an empty queue", "", f - loop, "ns", None, call, "an empty C method"),
    ]  # fmt: skip

    def half() -> float:
        return half_round_trip(side, target, peer, "direct", 8, 2000, ring=False)

    floor, trip = in_turn(12, lambda: target.line_ns(4000), half)
    why = "" if trip <= floor + 120 else "Python on both sides: a call out, and a loop that looks at a memoryview"
    rows.append(
        Row("8 B put, half a round trip to a polling peer", "<= floor + 120 ns", trip, "ns", trip <= floor + 120, floor,
            "floor: a bare cache line", why, peers_of("half_round_trip"))
    )  # fmt: skip

    mapped = address_of(there.place, 4096)
    here = (side.mr["direct"].address, 4096)
    bare, full = in_turn(
        15, lambda: nic.probe_memcpy((mapped, 4096), here, 2000), lambda: least(put(page), 500, 2, drain) - loop
    )
    gbps = 4096 / full
    rows.append(
        Row("4 KiB put, same buffer", ">= 30 GB/s", gbps, "GB/s", gbps >= 30, 4096 / bare, "memcpy",
            "" if gbps >= 30 else "memcpy and a call", peers_of("put_4096", lambda ns: 4096 / ns))
    )  # fmt: skip
    return rows


def numpy_copy(to: tuple[int, int], source: tuple[int, int]) -> Callable[[int], None]:
    """The same copy by a Python program that has both buffers mapped, without completion."""
    import numpy as np

    there, here = (np.frombuffer((ctypes.c_char * n).from_address(at), "u1") for at, n in (to, source))

    def run(count: int) -> None:
        copyto = np.copyto
        for _ in range(count):
            copyto(there, here)

    return run


def bare_put(bare: Any, to: tuple[int, int], source: tuple[int, int]) -> Callable[[int], None]:
    """The same copy by a method of CPython's own with the arguments of a put, and an empty one for its completion."""
    buffer = (ctypes.c_char * source[1]).from_address(source[0])

    def run(count: int) -> None:
        put, nothing = bare.put, bare.nothing
        bare.use(to[0])
        for _ in range(count):
            put(buffer, None, 0, 4096, 77)
            nothing(1)

    return run


def large(side: Side, target: Target, peer: int) -> list[Row]:
    rows = []
    bare_calls = python_calls()
    for kind, least_share in (("direct", 0.97), ("foreign", 0.95)):
        there = target.regions[kind]
        address = address_of(there.place, there.nbytes)
        for size in SIZES:
            local = side.mr[kind][:size]
            here = (side.mr[kind].address, size)
            count = max(1, (4 << 20) // size)
            for op in ("put", "get"):
                post, read, wait = (side.ep.write if op == "put" else side.ep.read), side.cq.read, side.wait
                base, key = there.base, there.key

                def run(n, post=post, read=read, wait=wait, local=local, base=base, key=key):
                    for _ in range(n):
                        post(local, None, peer, base, key)
                        if not read(1):
                            wait(1, target.alive)

                if kind == "direct":
                    to, source = ((address, size), here) if op == "put" else (here, (address, size))

                    def bare(to=to, source=source, count=count):
                        return nic.probe_memcpy(to, source, count)
                else:
                    probe = nic.probe_cma_write if op == "put" else nic.probe_cma_read

                    def bare(probe=probe, there=there, here=here, count=count):
                        return probe(target.pid, there.address, here, count)

                run(1)
                rounds, others = 25 if size < 8 << 20 else 6, {}
                calls = [run]
                if kind == "direct":  # the limit is measured in C, without a call from Python, which NumPy's copy has
                    calls.append(numpy_copy(to, source))
                    if bare_calls is not None:
                        calls.append(bare_put(bare_calls, to, source))
                limit, ns, *copied = in_turn(
                    rounds, bare, *(lambda call=call, n=count: least(call, n, 1) for call in calls)
                )
                if limit < 0:
                    print("process_vm_writev is refused here: memory that Weft did not allocate goes through the ring")
                    continue
                share = reached = limit / ns
                if copied:
                    others = {"np.copyto, same buffers": size / copied[0]}
                    if bare_calls is not None:  # the interpreter's own time is no part of the budget
                        others["CPython alone: memcpy in a method, and an empty method"] = size / copied[1]
                        reached = max(limit, copied[1]) / ns
                    others |= peers_of(f"{op}_{size}", lambda t, size=size: size / t)
                rows.append(
                    Row(
                        f"{size >> 10:,} KiB {op}, {'Weft' if kind == 'direct' else 'NumPy'}'s memory",
                        f">= {least_share} x limit" + (", or CPython alone" if len(copied) > 1 else ""),
                        size / ns,
                        "GB/s",
                        reached >= least_share,
                        size / limit,
                        ("memcpy" if kind == "direct" else f"process_vm_{'writev' if op == 'put' else 'readv'}")
                        + f": {share:.2f} of it",
                        ""
                        if reached >= least_share
                        else f"{ns - limit:,.0f} ns a call, with its completion, beside the copy",
                        others,
                    )
                )
    return rows


def main() -> None:
    peers()  # before this process is bound to one core, which its children would inherit
    with two_processes(NBYTES) as (side, target, peer):
        rows = small(side, target, peer) + large(side, target, peer)
    publish("rma", rows)


if __name__ == "__main__":
    main()
