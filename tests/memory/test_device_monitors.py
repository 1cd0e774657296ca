"""The monitors of device memory (FI_MR_*_CACHE_MONITOR_ENABLED), on runtimes without a GPU (tests/fakes), in processes
of their own."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

import pytest
from tests import patience
from tests.fakes import gpu as fake
from tests.fi.support import ALL_CAPS, pair

from weft import fi
from weft.memory import hmem

ROOT = Path(__file__).parents[2]
N = 1 << 14


class Cuda:
    """Device memory of the fake driver; `replace` frees it and allocates until other memory has its address."""

    iface = fi.HMEM_CUDA

    def __init__(self) -> None:
        self.gpu = fake.start()
        self.array = self.gpu.array(N)
        self.address = self.array.address

    def replace(self) -> bool:
        self.array.free()
        self.array = self.gpu.array(N)
        return self.array.address == self.address


class Ze:
    """Device memory of the fake loader."""

    iface = fi.HMEM_ZE

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(os.environ["WEFT_ZE_LIBRARY"])
        self.lib.fake_ze_allocate.restype = ctypes.c_uint64
        self.lib.fake_ze_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
        self.lib.fake_ze_replace.argtypes = [ctypes.c_uint64]
        self.address = self.lib.fake_ze_allocate(N, 2, 0)

    def replace(self) -> bool:
        self.lib.fake_ze_replace(self.address)
        return True


def watch(kind: str) -> str:
    """Writes from device memory ten times, then from another allocation at its address: hits, entries, misses then."""
    memory: Cuda | Ze = Cuda() if kind == "CUDA" else Ze()
    assert hmem.interfaces()[memory.iface].ready
    with pair(ALL_CAPS | fi.HMEM) as (initiator, target, peer), fi.open("mr_cache") as cache:
        target.reg(bytearray(64), requested_key=5)

        def put() -> None:
            initiator.ep.write((memory.address, 64), dest_addr=peer, addr=0, key=5)
            initiator.wait()

        before = cache.statistics()
        for _ in range(11):
            put()
        used = cache.statistics()
        seen = memory.replace()
        put()
        after = cache.statistics()
        found = [used.hits - before.hits, used.entries - before.entries, after.misses - used.misses if seen else 1]
    return json.dumps(found)


@pytest.mark.parametrize(
    ("kind", "library"),
    [
        pytest.param("CUDA", "cuda", marks=pytest.mark.clause("mr.monitor.cuda")),
        pytest.param("ZE", "ze", marks=pytest.mark.clause("mr.monitor.ze")),
    ],
)
def test_monitor_of_device_memory_notices_another_allocation_unless_switched_off(kind: str, library: str) -> None:
    def seen(value: str | None) -> list[int]:
        env = {name: text for name, text in os.environ.items() if not name.startswith("FI_MR_")}
        env |= {f"WEFT_{kind}_LIBRARY": str(fake.library(library))}
        env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])}
        if value is not None:
            env[f"FI_MR_{kind}_CACHE_MONITOR_ENABLED"] = value
        code = f"from tests.memory.test_device_monitors import watch; print(watch({kind!r}))"
        done = patience.run([sys.executable, "-c", code], env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        found: list[int] = json.loads(done.stdout)
        return found

    for on in (None, "1"):
        assert seen(on) == [10, 1, 1]
    assert seen("0")[:2] == [0, 0]
