"""A real libfabric from Python: what a call costs above the library's own, over its shm provider in one process.

The limit is a loop of C++ that calls the library, in the same batches; the budget is 60 ns above it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common import Row, clock, loop_ns, publish, spread
from weft import fi

BATCH = 256  # fits the provider's queue
ROUNDS = 60
BUDGET_NS = 60.0


def main() -> list[Row]:
    hints = fi.Info(
        caps=fi.RMA | fi.MSG,
        ep_attr=fi.EpAttr(type=fi.EP_RDM),
        domain_attr=fi.DomainAttr(mr_mode=fi.MR_VIRT_ADDR | fi.MR_PROV_KEY | fi.MR_ALLOCATED),
        fabric_attr=fi.FabricAttr(prov_name="ofi:shm"),
    )
    try:
        info = fi.getinfo(hints=hints)[0]
    except fi.FabricError as reason:
        print(f"no rows of a real libfabric: {reason}")
        return []
    fabric = fi.Fabric(info.fabric_attr)
    domain = fabric.domain(info)
    sides = []
    for _ in range(2):
        cq, av, ep = domain.cq_open(size=1024), domain.av_open(), domain.endpoint(info)
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.enable()
        sides.append((ep, av, cq))
    (ep, av, cq), (_, _, other) = sides
    peer = av.insert(sides[1][0].getname())
    memory = np.zeros(4096, np.uint8)
    mr = domain.mr_reg(memory, fi.REMOTE_WRITE | fi.REMOTE_READ, requested_key=1)
    place, key = (mr.address if domain.virt_addr else 0), mr.key
    data, array = bytes(8), np.zeros(8, np.uint8)

    def settle() -> None:
        while True:
            try:
                if not cq.read(1024) and not other.read(1024) and not cq.outstanding() and not other.outstanding():
                    return
            except fi.Available:
                cq.readerr()

    def timed(calls: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            begun = clock()
            calls()
            spent = (clock() - begun) / BATCH
            settle()
            return spent

        return run

    def bare(call: Callable[..., tuple[int, int]]) -> Callable[[], float]:
        def run() -> float:
            count, spent = call(data, peer, place, key, BATCH)
            settle()
            return spent / max(count, 1)

        return run

    for _ in range(1000):  # the first calls connect
        try:
            ep.inject_write(data, peer, place, key)
            break
        except fi.Again:
            settle()
    settle()
    inject, write = ep.inject_write, ep.write

    def injects() -> None:
        for _ in range(BATCH):
            inject(data, peer, place, key)

    def writes() -> None:
        for _ in range(BATCH):
            write(array, None, peer, place, key)

    rows = []
    turn = loop_ns()
    for name, measured, limit in (
        ("inject_write of 8 B", injects, ep.bare_inject_writes),
        ("write of 8 B, an array", writes, ep.bare_writes),
    ):
        (ours, middle), (own, _) = spread(ROUNDS, timed(measured), bare(limit))
        ours -= turn
        over = ours - own
        rows.append(
            Row(
                f"ofi:shm, {name}",
                "library + 60 ns",
                ours,
                "ns",
                over <= BUDGET_NS,
                own,
                "libfabric's own call, from C++",
                "" if over <= BUDGET_NS else f"{over:.0f} ns above the library",
                median=middle,
            )
        )
    # A message makes no system call in the library, so the whole call is short: it is within the budget above nothing.
    send, receive = ep.inject, sides[1][0].recv
    rooms = [bytearray(8) for _ in range(64)]

    def sends() -> None:
        for _ in range(64):
            send(data, peer)

    best = float("inf")
    for _ in range(ROUNDS):
        for room in rooms:
            receive(room)
        begun = clock()
        sends()
        best = min(best, (clock() - begun) / 64 - turn)
        settle()
    rows.append(Row("ofi:shm, inject of 8 B, the whole call", "60 ns", best, "ns", best <= BUDGET_NS))
    for ep_, av_, cq_ in sides:
        ep_.close()
        av_.close()
        cq_.close()
    mr.close()
    domain.close()
    fabric.close()
    return rows


if __name__ == "__main__":
    publish("ofi", main())
