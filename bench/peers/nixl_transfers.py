"""Two NIXL agents: what a transfer of one buffer costs over the backend LIBFABRIC, in nanoseconds.

Run by bench_clients.py: nixl_transfers.py target|initiator FOLDER SIZE,... The two find each other by files in the
folder. The initiator prints lines "write_SIZE_ns MEDIAN" and "read_SIZE_ns MEDIAN".
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

TRANSFERS = 200
LIMIT_S = 60.0


def main() -> None:
    role, folder, sizes = sys.argv[1], Path(sys.argv[2]), [int(one) for one in sys.argv[3].split(",")]
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

    agent: Any = nixl_agent(role, nixl_agent_config(backends=["LIBFABRIC"]))
    buffer = np.ones(max(sizes), np.uint8)
    registered = agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
    put("metadata", agent.get_agent_metadata())
    put("address", str(buffer.ctypes.data).encode())
    name = agent.add_remote_agent(get("metadata"))
    peer = name.decode() if isinstance(name, bytes) else name
    place = int(get("address"))

    def transfer(kind: str, size: int) -> float:
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
        return float(took)

    if role == "initiator":
        for size in sizes:
            for kind in ("WRITE", "READ"):
                times = [transfer(kind, size) for _ in range(TRANSFERS)]
                print(f"{kind.lower()}_{size}_ns {statistics.median(times):.0f}", flush=True)
    put("end")
    get("end")
    agent.deregister_memory(registered)
    agent.remove_remote_agent(peer)


if __name__ == "__main__":
    main()
