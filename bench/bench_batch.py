"""Vectored puts and gets from Python: one call, N descriptors of 8 B to 4 KiB, beside memcpy of the same pieces."""

from __future__ import annotations

import numpy as np

import weft._nic as nic
from common import Row, in_turn, least, publish, two_processes
from weft import fi
from weft.tools._pair import address_of

COUNT = 1024
STRIDE = 4096
SIZES = (8, 64, 512, 4096)


def main() -> None:
    rows = []
    with two_processes(COUNT * STRIDE) as (side, target, peer):
        there = target.regions["direct"]
        mapped = address_of(there.place, there.nbytes)
        local, read, wait = side.mr["direct"][:], side.cq.read, side.wait
        for size in SIZES:
            # Pieces are close together, so that the copies are in cache and the cost of the descriptors is visible.
            stride = max(size, 64)
            descs = np.zeros(COUNT, fi.RMA_DESC)
            descs["local_offset"] = np.arange(COUNT) * stride
            descs["length"] = size
            descs["dest_addr"] = peer
            descs["remote_addr"] = there.base + descs["local_offset"]
            descs["key"] = there.key
            nbytes = (COUNT - 1) * stride + size
            for op, post in (("put", side.ep.write_batch), ("get", side.ep.read_batch)):
                here, away = (side.mr["direct"].address, nbytes), (mapped, nbytes)
                to, source = (away, here) if op == "put" else (here, away)

                def run(n, post=post, descs=descs):
                    for _ in range(n):
                        post(local, descs)
                        if not read(1):
                            wait(1, target.alive)

                def bare(to=to, source=source, size=size, stride=stride):
                    return nic.probe_memcpy(to, source, 20, size, stride) / COUNT

                run(2)
                assert not descs["status"].any()
                limit, ns = in_turn(25, bare, lambda run=run: least(run, 10, 1) / COUNT)
                met = ns - limit <= 12
                rows.append(
                    Row(
                        f"vectored {op}, {COUNT} x {size} B: a descriptor",
                        "<= 12 ns + copy",
                        ns,
                        "ns",
                        met,
                        limit,
                        "memcpy of the pieces",
                        "" if met else f"{ns - limit:.1f} ns beside the copy: key and bounds are checked for each",
                    )
                )
    publish("batch", rows)


if __name__ == "__main__":
    main()
