"""Two NIXL agents: what a transfer of one buffer costs over the backend LIBFABRIC, in nanoseconds.

Run by bench_clients.py: nixl_transfers.py target|initiator FOLDER caller|thread SIZE,... The two find each other by
files in the folder. caller: the initiator's calls make its progress; thread: NIXL's progress thread does, as is NIXL's
default. The target has the thread in both: a tcp target that makes no progress answers nothing. The initiator prints
lines "write_SIZE_ns MEDIAN MEAN" and "read_SIZE_ns MEDIAN MEAN", then the limit: lines "kernel_write_SIZE_ns MEDIAN
MEAN" and "kernel_read_SIZE_ns MEDIAN MEAN" of bare process_vm_writev and readv between the same two buffers, where the
kernel permits them.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

TRANSFERS = 200
LIMIT_S = 60.0
ANYBODY = 2**64 - 1
PR_SET_PTRACER = 0x59616D61


class Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


C_LIBRARY = ctypes.CDLL(None, use_errno=True)
for call in (C_LIBRARY.process_vm_writev, C_LIBRARY.process_vm_readv):
    call.argtypes = [ctypes.c_int, *[ctypes.POINTER(Piece), ctypes.c_ulong] * 2, ctypes.c_ulong]
    call.restype = ctypes.c_ssize_t


def bare(kind: str, size: int, here: int, pid: int, there: int) -> list[int]:
    """Nanoseconds of bare calls of the kernel; none where they are not permitted."""
    call = C_LIBRARY.process_vm_writev if kind == "WRITE" else C_LIBRARY.process_vm_readv
    mine, theirs = ctypes.pointer(Piece(here, size)), ctypes.pointer(Piece(there, size))
    times = []
    for _ in range(TRANSFERS):
        start = time.perf_counter_ns()
        n = call(pid, mine, 1, theirs, 1, 0)
        times.append(time.perf_counter_ns() - start)
        if n != size:
            return []
    return times


def tell(name: str, times: list[int]) -> None:
    if times:
        print(f"{name}_ns {statistics.median(times):.0f} {statistics.fmean(times):.0f}", flush=True)


def main() -> None:
    role, folder, progress = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    sizes = [int(one) for one in sys.argv[4].split(",")]
    other = "target" if role == "initiator" else "initiator"
    deadline = time.monotonic() + LIMIT_S

    def put(name: str, data: bytes = b"") -> None:
        part = folder / f"{role}.{name}.part"
        part.write_bytes(data)
        part.rename(part.with_suffix(""))

    def get(name: str) -> bytes:
        while not (path := folder / f"{other}.{name}").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{role}: no {name} within {LIMIT_S} s")
            time.sleep(0.001)
        return path.read_bytes()

    thread = role == "target" or progress == "thread"
    agent: Any = nixl_agent(role, nixl_agent_config(enable_prog_thread=thread, backends=["LIBFABRIC"]))
    buffer = np.ones(max(sizes), np.uint8)
    registered = agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
    put("metadata", agent.get_agent_metadata())
    C_LIBRARY.prctl(PR_SET_PTRACER, ctypes.c_ulong(ANYBODY), 0, 0, 0)  # for the bare calls, where Yama restricts them
    put("address", f"{buffer.ctypes.data} {os.getpid()}".encode())
    name = agent.add_remote_agent(get("metadata"))
    peer = name.decode() if isinstance(name, bytes) else name
    place, pid = map(int, get("address").split())

    def transfer(kind: str, size: int) -> int:
        mine = agent.get_xfer_descs([(buffer.ctypes.data, size, 0)], "DRAM")
        theirs = agent.get_xfer_descs([(place, size, 0)], "DRAM")
        handle = agent.initialize_xfer(kind, mine, theirs, peer)
        start = time.perf_counter_ns()
        state = agent.transfer(handle)
        while state == "PROC":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{kind} of {size} B is not done within {LIMIT_S} s")
            state = agent.check_xfer_state(handle)
        took = time.perf_counter_ns() - start
        if state != "DONE":
            raise RuntimeError(f"{kind} of {size} B: {state}")
        agent.release_xfer_handle(handle)
        return took

    if role == "initiator":
        for size in sizes:
            for kind in ("WRITE", "READ"):
                transfer(kind, size)  # the first connects
                tell(f"{kind.lower()}_{size}", [transfer(kind, size) for _ in range(TRANSFERS)])
        for size in sizes:
            for kind in ("WRITE", "READ"):
                tell(f"kernel_{kind.lower()}_{size}", bare(kind, size, buffer.ctypes.data, pid, place))
    put("end")
    get("end")
    agent.deregister_memory(registered)
    agent.remove_remote_agent(peer)


if __name__ == "__main__":
    main()
