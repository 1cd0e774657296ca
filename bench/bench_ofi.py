"""A real libfabric from Python: what a call costs above the library's own, over its shm provider in one process.

Batches of calls from Python and of the library's own calls, from C++ (peers/ofi_calls.cpp, compiled here), alternate on
one endpoint, with the same buffer, target and queue; between batches both queues are emptied, untimed. The budget is
60 ns above the library's own call. A third batch calls, from Python, the least method that Python's C API allows: it
reads no arguments, and makes the library's call. Its cost above the library is the interpreter's.

Two processes measure: in one of them the provider makes no system call (FI_SHM_DISABLE_CMA), in the other writes of 8 B
are process_vm_writev. After a system call the processor has forgotten where the interpreter's jumps go.
Without a libfabric, its shm provider or a C++ compiler there are no rows.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from common import HERE, Row, clock, loop_ns, publish, spread
from weft import fi

BATCH = 64  # fits the provider's queue
ROUNDS = 300
BUDGET_NS = 60.0
NO_SYSTEM_CALL = "FI_SHM_DISABLE_CMA"


def compiled(folder: str) -> Any:
    """The module of the library's own calls. Raises RuntimeError without a compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("no C++ compiler here")
    made = f"{folder}/ofi_calls.so"
    includes = [f"-I{HERE.parent / 'cpp'}", f"-I{sysconfig.get_paths()['include']}"]
    source = str(HERE / "peers" / "ofi_calls.cpp")
    subprocess.run([compiler, "-std=c++20", "-O3", "-shared", "-fPIC", *includes, "-o", made, source], check=True)
    spec = importlib.util.spec_from_file_location("ofi_calls", made)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pair:
    """Two endpoints of one process, the first of which calls."""

    def __init__(self) -> None:
        hints = fi.Info(
            caps=fi.RMA | fi.TAGGED,
            ep_attr=fi.EpAttr(type=fi.EP_RDM),
            domain_attr=fi.DomainAttr(mr_mode=fi.MR_VIRT_ADDR | fi.MR_PROV_KEY | fi.MR_ALLOCATED),
            fabric_attr=fi.FabricAttr(prov_name="ofi:shm"),
        )
        info = fi.getinfo(hints=hints)[0]
        self.fabric = fi.Fabric(info.fabric_attr)
        self.domain = self.fabric.domain(info)
        self.cntr = self.domain.cntr_open()
        self.sides = []
        for _ in range(2):
            cq, av, ep = self.domain.cq_open(size=1024), self.domain.av_open(), self.domain.endpoint(info)
            ep.bind(cq, fi.TRANSMIT | fi.RECV)
            ep.bind(av)
            ep.enable()
            self.sides.append((ep, av, cq))
        (self.ep, av, self.cq), (self.other, _, self.other_cq) = self.sides
        self.peer = av.insert(self.other.getname())
        self.memory = np.zeros(4096, np.uint8)
        self.data = np.zeros(8, np.uint8)
        self.mr = self.domain.mr_reg(self.memory, fi.REMOTE_WRITE | fi.REMOTE_READ, requested_key=1)
        self.place = self.mr.address if self.domain.virt_addr else 0
        for _ in range(1000):  # the first calls connect
            try:
                self.ep.inject_write(self.data, self.peer, self.place, self.mr.key)
                break
            except fi.Again:
                self.settle()
        self.settle()

    def settle(self) -> None:
        """Read both queues until nothing comes."""
        idle = 0
        while idle < 8:
            idle = 0 if self.cq.read(1024) or self.other_cq.read(1024) or self.cq.outstanding() else idle + 1

    def receives(self) -> None:
        for _ in range(BATCH):
            self.other.trecv(self.memory[64:72], None, fi.ADDR_UNSPEC, 7)

    def close(self) -> None:
        for ep, av, cq in self.sides:
            ep.close()
            av.close()
            cq.close()
        for one in (self.mr, self.cntr, self.domain, self.fabric):
            one.close()


def measured(pair: Pair, own: Any, silent: bool) -> list[Row]:
    """The rows of this process. silent: the provider makes no system call."""
    ep, peer, place, key, data = pair.ep, pair.peer, pair.place, pair.mr.key, pair.data
    own.use(ep.fid, pair.cq.fid, pair.cntr.fid, data.ctypes.data, data.nbytes, peer, place, key)
    turn = loop_ns()

    def from_python(before: Callable[[], None] | None, call: Callable[..., Any], *arguments: Any) -> Any:
        def run() -> float:
            if before is not None:
                before()
            begun = clock()
            for _ in range(BATCH):
                call(*arguments)
            spent = (clock() - begun) / BATCH - turn
            pair.settle()
            return spent

        return run

    def from_c(before: Callable[[], None] | None, call: Callable[[int], int]) -> Callable[[], float]:
        def run() -> float:
            if before is not None:
                before()
            spent = call(BATCH) / BATCH
            pair.settle()
            return spent

        return run

    small = data.tobytes()
    calls: dict[str, tuple[str, Callable[[], None] | None, Any, tuple[Any, ...]]] = {
        "write of 8 B, an array": ("write", None, ep.write, (data, None, peer, place, key)),
        "inject_write of 8 B": ("inject_write", None, ep.inject_write, (small, peer, place, key)),
    }
    if silent:
        calls |= {
            "tsend of 8 B, an array": ("tsend", pair.receives, ep.tsend, (data, None, peer, 7)),
            "tinject of 8 B": ("tinject", pair.receives, ep.tinject, (small, peer, 7)),
            "cq.read, nothing there": ("cq_read", None, pair.cq.read, (64,)),
            "cntr.read": ("cntr_read", None, pair.cntr.read, ()),
        }
    rows = []
    for name, (own_name, before, call, arguments) in calls.items():
        (ours, middle), (bare, bare_middle), (least, least_middle) = spread(
            ROUNDS,
            from_python(before, call, *arguments),
            from_c(before, getattr(own, f"loop_{own_name}")),
            from_python(before, getattr(own, f"least_{own_name}")),
        )
        over = ours - bare
        rows.append(
            Row(
                f"ofi:shm, {name}" + ("" if silent else ", a system call of the provider"),
                "library + 60 ns",
                ours,
                "ns",
                over <= BUDGET_NS,
                bare,
                f"libfabric's own, from C++ (median {bare_middle:,.0f}; {ours - least:.0f} ns of ours above the least "
                f"method of Python's C API, median {middle - least_middle:.0f})",
                "" if over <= BUDGET_NS else f"{over:.0f} ns above the library, of the least method {least - bare:.0f}",
                median=middle,
            )
        )
    return rows + ([entries(pair, own)] if silent else [])


def entries(pair: Pair, own: Any) -> Row:
    """An entry of a completion, of 64 that are read together."""

    def fill() -> None:
        for _ in range(BATCH):
            pair.ep.tsend(pair.data, None, pair.peer, 7)
        while len(pair.other_cq.read(BATCH)) == BATCH:
            pass

    def read() -> float:
        pair.receives()
        fill()
        begun = clock()
        got = 0
        while got < BATCH:
            got += len(pair.cq.read(64))
        spent = (clock() - begun) / BATCH
        pair.settle()
        return spent

    def bare() -> float:
        pair.receives()
        for _ in range(BATCH):
            own.least_tsend()
        while len(pair.other_cq.read(BATCH)) == BATCH:
            pass
        spent = float(own.loop_entries(BATCH)) / BATCH
        pair.settle()
        return spent

    (ours, middle), (limit, _) = spread(ROUNDS, read, bare)
    return Row(
        "ofi:shm, an entry of cq.read(64)", "", ours, "ns", None, limit, "libfabric's own, from C++", median=middle
    )


def here() -> list[Row]:
    """The rows of this process; none, with the reason, where something is missing."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            own, pair = compiled(folder), Pair()
        except (fi.FabricError, RuntimeError) as reason:
            print(f"no rows of a real libfabric: {reason}", file=sys.stderr)
            return []
        try:
            return measured(pair, own, NO_SYSTEM_CALL in os.environ)
        finally:
            pair.close()


def main() -> list[Row]:
    rows = []
    for more in ({NO_SYSTEM_CALL: "1"}, {}):
        env = {name: value for name, value in os.environ.items() if name != NO_SYSTEM_CALL} | more
        done = subprocess.run(
            [sys.executable, __file__, "--here"], env=env, stdout=subprocess.PIPE, text=True, check=True
        )
        rows += [Row(**one) for one in json.loads(done.stdout)]
    return rows


if __name__ == "__main__":
    if "--here" in sys.argv:
        print(json.dumps([asdict(row) for row in here()]))
    else:
        publish("ofi", main())
