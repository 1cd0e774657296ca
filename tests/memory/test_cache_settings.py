"""The registration cache's environment (fi_mr(3)): the effect of each variable, read in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest
from tests import patience

PRELUDE = """
import json, sys
import numpy as np
from weft import fi, memory

pages = np.zeros(1 << 20, np.uint8)
base = pages.ctypes.data
def at(page, count=1):
    return (base // 4096 * 4096 + (1 + page) * 4096, count * 4096)
class Anyone(fi.MemMonitor):
    def __init__(self, iface):
        self.iface = iface
def say(**found):
    print(json.dumps(found))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python program that has, of these variables, only the given ones."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FI_MR_", "WEFT_MR_"))}
    return patience.run([sys.executable, "-c", PRELUDE + code], env={**env, **environment}, timeout=60)


def told(code: str, **environment: str) -> dict[str, Any]:
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


USE = """
c = fi.open("mr_cache")
for page in range(20):
    c.search(at(page)).release()
s = c.statistics()
say(entries=s.entries, bytes=s.bytes, evictions=s.evictions, uncached=s.uncached, on=c.state.on, state=str(c.state),
    monitor=c.state.monitor, count_max=c.state.count_max, bytes_max=c.state.bytes_max)
"""


@pytest.mark.clause("mr.cache.max-count")
def test_max_count_limits_entries_of_any_size() -> None:
    found = told(USE, FI_MR_CACHE_MAX_COUNT="7")
    assert (found["entries"], found["evictions"]) == (7, 13)


@pytest.mark.clause("mr.cache.max-count-default")
def test_max_count_unset_is_a_default_limit() -> None:
    found = told(
        "c = fi.open('mr_cache')\n"
        "room = np.zeros(1200 * 8192, np.uint8)\n"
        "for i in range(1200): c.search((room.ctypes.data + i * 8192, 1)).release()\n"
        "say(entries=c.statistics().entries, evictions=c.statistics().evictions, count_max=c.state.count_max)"
    )
    assert found == {"entries": 1024, "evictions": 176, "count_max": 1024}


@pytest.mark.clause("mr.cache.max-count-zero")
def test_max_count_zero_caches_nothing() -> None:
    found = told(USE, FI_MR_CACHE_MAX_COUNT="0")
    assert (found["entries"], found["uncached"], found["on"]) == (0, 20, False)
    assert found["monitor"] == "disabled"  # nothing is watched for a cache that keeps nothing
    assert "FI_MR_CACHE_MAX_COUNT is 0" in found["state"]


@pytest.mark.clause("mr.cache.max-size")
def test_max_size_limits_the_bytes_of_all_entries() -> None:
    found = told(USE, FI_MR_CACHE_MAX_SIZE=str(5 * 4096 + 100))
    assert (found["entries"], found["bytes"]) == (5, 5 * 4096)
    assert told(USE, FI_MR_CACHE_MAX_SIZE="4095")["entries"] == 0


@pytest.mark.clause("mr.cache.max-size-default")
def test_max_size_unset_is_no_limit() -> None:
    found = told(
        "c = fi.open('mr_cache')\n"
        "import mmap\n"
        "huge = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n"  # MAP_NORESERVE
        "view = np.frombuffer(huge, np.uint8)\n"
        "e = c.search(view)\n"
        "say(bytes=c.statistics().bytes, cached=e.cached, bytes_max=c.state.bytes_max)"
    )
    assert found == {"bytes": 64 << 30, "cached": True, "bytes_max": None}


MONITORED = """
import ctypes
c = fi.open("mr_cache")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
p = libc.mmap(None, 8192, 3, 0x22, -1, 0)
e = c.search((p, 8192))
watching = c.state.active
libc.munmap(p, 4096)
again = c.search((p + 4096, 4096))
say(monitor=c.state.monitor, stale=e.stale, cached=e.cached, misses=c.statistics().misses, watching=watching,
    invalidations=c.statistics().invalidations)
"""


@pytest.mark.parametrize(
    ("value", "name"),
    [
        pytest.param("memhooks", "memhooks", marks=pytest.mark.clause("mr.monitor.memhooks")),
        pytest.param("userfaultfd", "userfaultfd", marks=pytest.mark.clause("mr.monitor.userfaultfd")),
        ("uffd", "userfaultfd"),
    ],
)
@pytest.mark.clause("mr.monitor.purpose", "mr.monitor.values")
def test_monitor_detects_changes_of_system_memory(value: str, name: str) -> None:
    from weft import _nic

    works, why = _nic.probe_monitor(value)[1:]
    if not works:
        pytest.skip(why)
    found = told(MONITORED, FI_MR_CACHE_MONITOR=value)
    assert found == {
        "monitor": name, "stale": True, "cached": True, "misses": 2, "watching": True, "invalidations": 1
    }  # fmt: skip


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc", reason="memhooks is for x86-64 with glibc"
)
@pytest.mark.clause("mr.monitor.memhooks")
def test_memhooks_works_on_x86_64_with_glibc() -> None:
    """The other tests of the cache leave out a monitor that does not work: this one says that it has to."""
    from weft import _nic

    name, works, why = _nic.probe_monitor("memhooks")
    assert (name, works) == ("memhooks", True), why


@pytest.mark.clause("mr.monitor.disabled", "mr.monitor.values")
def test_monitor_disabled_turns_the_cache_off() -> None:
    found = told(USE, FI_MR_CACHE_MONITOR="disabled")
    assert (found["entries"], found["uncached"], found["on"]) == (0, 20, False)
    assert found["state"] == "off: FI_MR_CACHE_MONITOR is disabled"


@pytest.mark.clause("mr.monitor.kdreg2", "mr.monitor.values")
def test_monitor_kdreg2_needs_its_kernel_module() -> None:
    """It is accepted; where /dev/kdreg2 is not there, opening the cache says that the module is not loaded."""
    if os.path.exists("/dev/kdreg2"):
        pytest.skip("this machine has /dev/kdreg2")
    found = told(
        "try:\n    fi.open('mr_cache')\nexcept fi.NoSys as e:\n    said = str(e)\nsay(said=said)",
        FI_MR_CACHE_MONITOR="kdreg2",
    )
    assert "/dev/kdreg2" in found["said"]
    assert "module" in found["said"]
    assert "not loaded" in found["said"]
    # Nothing else needs the cache: registration works.
    assert told("import weft\nweft.empty(8)\nsay(on=memory.cache_state().on)", FI_MR_CACHE_MONITOR="kdreg2") == {
        "on": False
    }


@pytest.mark.clause("mr.monitor.values")
def test_monitor_of_another_name_is_refused_with_the_names() -> None:
    done = run("fi.open('mr_cache')", FI_MR_CACHE_MONITOR="ptmalloc")
    assert done.returncode != 0
    assert "FI_MR_CACHE_MONITOR='ptmalloc'" in done.stderr
    for name in ("userfaultfd", "uffd", "memhooks", "kdreg2", "disabled"):
        assert name in done.stderr


@pytest.mark.parametrize(("variable", "value"), [("MAX_SIZE", "-1"), ("MAX_SIZE", "2G"), ("MAX_COUNT", "many")])
def test_limit_that_is_no_number_is_refused(variable: str, value: str) -> None:
    done = run("fi.open('mr_cache')", **{f"FI_MR_CACHE_{variable}": value})
    assert f"FI_MR_CACHE_{variable}='{value}'" in done.stderr
    assert "whole number" in done.stderr


SWITCH = """
c = fi.open("mr_cache")
kept = {}
for iface in (fi.HMEM_CUDA, fi.HMEM_ROCR, fi.HMEM_ZE, fi.HMEM_SYSTEM):
    c.import_fid(Anyone(iface))
    kept[str(iface)] = c.search(at(0), iface).cached
say(**kept)
"""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("CUDA", marks=pytest.mark.clause("mr.monitor.cuda-values")),
        pytest.param("ROCR", marks=pytest.mark.clause("mr.monitor.rocr", "mr.monitor.rocr-values")),
        pytest.param("ZE", marks=pytest.mark.clause("mr.monitor.ze-values")),
    ],
)
def test_device_switch_governs_whether_its_memory_is_cached(kind: str) -> None:
    """FI_MR_*_CACHE_MONITOR_ENABLED: 1 (as unset) its memory is cached where a monitor is there, 0 it is not."""
    name = f"FI_MR_{kind}_CACHE_MONITOR_ENABLED"
    everything = {"HMEM_CUDA": True, "HMEM_ROCR": True, "HMEM_ZE": True, "HMEM_SYSTEM": True}
    assert told(SWITCH) == everything
    assert told(SWITCH, **{name: "1"}) == everything
    assert told(SWITCH, **{name: "0"}) == {**everything, f"HMEM_{kind}": False}
    refused = run(SWITCH, **{name: "2"})
    assert f"{name}='2'" in refused.stderr
    assert "0, 1" in refused.stderr


def test_nothing_is_hooked_before_something_is_cached() -> None:
    """Importing, opening and looking change no code; the first entry does, and the last one's end puts it back."""
    found = told(
        "import ctypes\n"
        "munmap = ctypes.cast(ctypes.CDLL(None).munmap, ctypes.c_void_p).value\n"
        "def code(): return ctypes.string_at(munmap, 16).hex()\n"
        "seen = [code()]\n"
        "c = fi.open('mr_cache'); repr(c); c.statistics(); seen.append(code())\n"
        "c.search(at(0)).release(); seen.append(code())\n"
        "c.flush(); seen.append(code())\n"
        "say(seen=seen, active=c.state.active)",
        FI_MR_CACHE_MONITOR="memhooks",
    )
    first, opened, hooked, flushed = found["seen"]
    if not found["active"] and hooked == first:
        pytest.skip("memhooks does not work on this machine")
    assert first == opened == flushed
    assert hooked != first
