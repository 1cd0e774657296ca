"""UCX's calls, two processes: the second one maps memory and sleeps, the first one writes, adds to it and reads it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

from weft import ucp


def owner(pipe: Connection) -> None:
    with ucp.Context() as context, context.worker_create() as worker:
        memh = context.mem_map(length=4096, allocate=True)  # memory that peers map: ucp_mem_map, UCP_MEM_MAP_ALLOCATE
        pipe.send((worker.address, memh.pack(), memh.address))  # the application sends all three
        pipe.recv()  # sleeps here: this process runs no code during the transfers
        print("owner:    ", memh.array("u8")[:8])


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=owner, args=(there,), daemon=True)
    process.start()
    there.close()
    address, rkey_buffer, remote = here.recv()
    with (
        ucp.Context() as context,
        context.worker_create() as worker,
        worker.ep_create(address) as ep,
        ep.rkey_unpack(rkey_buffer) as rkey,
    ):
        ep.put_nbx(np.arange(8, dtype="u8"), remote, rkey).wait()  # owner's array[:8] = 0 1 2 3 4 5 6 7

        before = np.zeros(1, "u8")  # owner's array[7] += 1, atomically; returns the old value
        ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, remote + 7 * 8, rkey, reply_buffer=before).wait()
        ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 10, remote, rkey)  # owner's array[0] += 10; returns no value,
        ep.flush_nbx().wait()  # so a flush waits until all operations have ended at the owner

        mine = np.empty(8, "u8")
        ep.get_nbx(mine, remote, rkey).wait()  # mine[:] = owner's array[:8]
        print("initiator:", mine, "where element 7 was", before[0])
    here.send("done")
    process.join(timeout=30)


if __name__ == "__main__":
    main()
