"""Two processes, one array: the second process registers it and sleeps, the first one writes, reads and adds to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import weft
from weft import fi


@contextmanager
def endpoint() -> Iterator[tuple[Any, ...]]:
    """The objects of each process: an endpoint, with a completion queue and an address vector."""
    info = fi.getinfo(hints=fi.Info(caps=fi.RMA | fi.ATOMIC))[0]
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open() as cq,
        domain.av_open() as av,
        domain.endpoint(info) as ep,
    ):
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.enable()
        yield domain, cq, av, ep


def owner(pipe: Connection) -> None:
    with endpoint() as (domain, _cq, _av, ep):
        array = weft.zeros(8, "u8")
        with domain.mr_reg(array, fi.REMOTE_READ | fi.REMOTE_WRITE) as mr:
            pipe.send((ep.getname(), mr.key))
            pipe.recv()  # sleeps here: this process runs no code during the transfers
        print("owner:    ", array)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=owner, args=(there,), daemon=True)
    process.start()
    there.close()
    with endpoint() as (_domain, cq, av, ep):
        name, key = here.recv()
        peer = av.insert(name)

        ep.write(np.arange(8, dtype="u8"), dest_addr=peer, addr=0, key=key)  # owner's array[:] = 0 1 2 3 4 5 6 7
        cq.sread(timeout=10)

        one, before = np.ones(1, "u8"), np.zeros(1, "u8")  # owner's array[7] += 1, atomically
        ep.fetch_atomic(one, result=before, dest_addr=peer, addr=7 * 8, key=key, datatype=fi.UINT64, op=fi.SUM)
        cq.sread(timeout=10)

        mine = np.empty(8, "u8")
        ep.read(mine, src_addr=peer, addr=0, key=key)  # mine[:] = owner's array
        cq.sread(timeout=10)
        print("initiator:", mine, "where element 7 was", before[0])
    here.send("done")
    process.join(timeout=30)


if __name__ == "__main__":
    main()
