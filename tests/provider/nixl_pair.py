"""Two NIXL agents in two processes: reads and writes of 1 B to 64 MiB over the backend LIBFABRIC, checked.

Run by test_nixl.py: nixl_pair.py target|initiator FOLDER SECONDS. The two find each other by files in the folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (1, 8, 4095, 65536, 1 << 20, 64 << 20)


class Agent:
    """One agent, and its messages to the other agent."""

    def __init__(self, role: str, folder: Path, seconds: float) -> None:
        from nixl_cu12._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

        self.role, self.folder, self.seconds = role, folder, seconds
        self.other = "target" if role == "initiator" else "initiator"
        self.seen: list[bytes] = []
        self.agent: Any = nixl_agent(role, nixl_agent_config(backends=["LIBFABRIC"]))
        self.buffer = np.zeros(max(SIZES), np.uint8)
        self.registered = self.agent.register_memory([(self.buffer.ctypes.data, self.buffer.nbytes, 0, "")], "DRAM")
        self.put("metadata", self.agent.get_agent_metadata())
        self.put("address", str(self.buffer.ctypes.data).encode())
        name = self.agent.add_remote_agent(self.get("metadata"))
        self.peer = name.decode() if isinstance(name, bytes) else name
        self.place = int(self.get("address"))

    def until(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.seconds
        while not ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.role}: {what} does not come")
            time.sleep(0.0005)

    def put(self, name: str, data: bytes = b"") -> None:
        part = self.folder / f"{self.role}.{name}.part"
        part.write_bytes(data)
        part.rename(part.with_suffix(""))

    def get(self, name: str) -> bytes:
        path = self.folder / f"{self.other}.{name}"
        self.until(path.exists, path.name)
        return path.read_bytes()

    def notified(self, message: bytes) -> None:
        def ready() -> bool:
            for texts in self.agent.get_new_notifs().values():
                self.seen.extend(texts)
            return message in self.seen

        self.until(ready, f"the notification {message!r}")

    def transfer(self, kind: str, size: int, message: bytes) -> None:
        mine = self.agent.get_xfer_descs([(self.buffer.ctypes.data, size, 0)], "DRAM")
        theirs = self.agent.get_xfer_descs([(self.place, size, 0)], "DRAM")
        handle = self.agent.initialize_xfer(kind, mine, theirs, self.peer, message)
        states = [self.agent.transfer(handle)]
        self.until(lambda: states.append(self.agent.check_xfer_state(handle)) or states[-1] != "PROC", f"end of {kind}")
        if states[-1] != "DONE":
            raise RuntimeError(f"{kind} of {size} B: {states[-1]}")
        self.agent.release_xfer_handle(handle)


def pattern(size: int, of: int) -> Any:
    return np.resize(np.roll(np.arange(251, dtype=np.uint8), of), size)


def initiate(a: Agent) -> None:
    for n, size in enumerate(SIZES):
        a.buffer[:size] = pattern(size, n)
        a.transfer("WRITE", size, b"written %d" % size)
        a.get(f"checked{size}")
        a.buffer[:size] = 0
        a.transfer("READ", size, b"read %d" % size)
        if not np.array_equal(a.buffer[:size], pattern(size, n + 100)):
            raise RuntimeError(f"read of {size} B: other bytes")
        print(f"{size} B written and read", flush=True)


def serve(a: Agent) -> None:
    for n, size in enumerate(SIZES):
        a.notified(b"written %d" % size)
        if not np.array_equal(a.buffer[:size], pattern(size, n)):
            raise RuntimeError(f"write of {size} B: other bytes beside its notification")
        a.buffer[:size] = pattern(size, n + 100)
        a.put(f"checked{size}")
        a.notified(b"read %d" % size)


def main() -> None:
    a = Agent(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
    (initiate if a.role == "initiator" else serve)(a)
    a.put("end")
    a.get("end")
    a.agent.deregister_memory(a.registered)
    a.agent.remove_remote_agent(a.peer)
    print("ended", flush=True)


if __name__ == "__main__":
    main()
