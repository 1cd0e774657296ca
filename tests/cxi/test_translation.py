"""How the NIC finds memory: pinned pages and pages on demand, ATS and NTA, mappings that are kept.

fi_cxi(7) "Translation", "Translation Cache", "RUNTIME PARAMETERS".
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import patience
from tests.cxi.support import CAPS, RW, hints, opened, register
from tests.cxi.test_mr import outcome
from tests.fi.support import Node

from weft import _nic, cxi, fi
from weft.providers import mappings
from weft.providers.cxi import mr as regions
from weft.providers.cxi import pages, translation

PAGE = mmap.PAGESIZE


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "_said", set())
    monkeypatch.setattr(regions, "_warned", False)


def untouched(count: int) -> Any:
    """Pages that nobody has touched: there is no memory behind them yet."""
    return np.frombuffer(mmap.mmap(-1, count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), "u1")


def there(array: Any) -> list[bool]:
    """Behind which of the pages there is memory."""
    found = (ctypes.c_ubyte * (len(array) // PAGE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(array)), found) == 0
    return [bool(byte & 1) for byte in found]


def locked_kib() -> int:
    """What this process has locked in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1])
    raise AssertionError("no VmLck")


@pytest.fixture
def host_with_ats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_ATS", "1")
    monkeypatch.setattr(translation, "no_ats", lambda: "")


# ---- on demand and pinned --------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.env.odp", "cxi.env.odp-on-needs-hints", "cxi.xlate.odp-env", "cxi.env.force-odp")
@pytest.mark.parametrize(
    ("odp", "forced", "allocated", "expected"),
    [("0", "0", False, False), ("1", "0", True, False), ("1", "0", False, True), ("0", "1", True, True)],
)
def test_odp_is_used_if_on_and_without_mr_allocated(
    monkeypatch: pytest.MonkeyPatch, odp: str, forced: str, allocated: bool, expected: bool
) -> None:
    monkeypatch.setenv("FI_CXI_ODP", odp)
    monkeypatch.setenv("FI_CXI_FORCE_ODP", forced)
    asked = hints()
    asked.domain_attr.mr_mode = fi.MR_ENDPOINT | (fi.MR_ALLOCATED if allocated else fi.MrMode(0))
    info = fi.getinfo(hints=asked)[0]
    assert bool(info.domain_attr.mr_mode & fi.MR_ALLOCATED) is not expected
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        assert domain.policy.translation.odp is expected
        assert ("pages on demand" in repr(domain)) is expected
        hole = mmap.mmap(-1, PAGE)
        where = np.frombuffer(hole, "u1").ctypes.data
        hole.close()
        if expected:
            domain.mr_reg((where, PAGE), RW, requested_key=300).close()
        else:
            with pytest.raises(fi.Fault):
                domain.mr_reg((where, PAGE), RW, requested_key=300)


@pytest.mark.clause(
    "cxi.xlate.odp-unbacked", "cxi.xlate.odp-fault", "cxi.xlate.odp-nta", "cxi.xlate.odp-ats", "cxi.fork.odp-request",
    "cxi.fork.odp-optional-program",
)  # fmt: skip
@pytest.mark.parametrize("ats", [False, True])
def test_page_comes_into_being_when_a_peer_accesses_it(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, ats: bool
) -> None:
    monkeypatch.setenv("FI_CXI_FORCE_ODP", "1")
    monkeypatch.setenv("FI_CXI_ATS_MLOCK_MODE", "off")
    if ats:
        request.getfixturevalue("host_with_ats")
    with opened() as node:
        assert node.domain.policy.translation.ats is ats
        memory = untouched(3)
        register(node, memory, 300)
        assert there(memory) == [False] * 3, "registering leaves them as they are"
        assert outcome(node, 300, addr=PAGE) == 0
        assert there(memory) == [False, True, False]
        assert not memory[PAGE : PAGE + 8].any()


@pytest.mark.clause("cxi.xlate.pinned-backed")
def test_memory_that_is_not_there_cannot_be_registered_pinned() -> None:
    with opened() as node:
        area = mmap.mmap(-1, 2 * PAGE)
        where = np.frombuffer(area, "u1").ctypes.data
        register(node, (where, 2 * PAGE), 300).close()
        area.close()
        with pytest.raises(fi.Fault, match="no page is behind"):
            node.domain.mr_reg((where, 2 * PAGE), RW, requested_key=300)


@pytest.mark.clause("cxi.xlate.pinned", "cxi.xlate.pinned-no-fault", "cxi.env.odp-off-pins")
def test_pinned_pages_are_there_from_registration_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """WEFT_CXI_PIN=1: registered memory is locked in RAM, as often as it is registered."""
    monkeypatch.setenv("WEFT_CXI_PIN", "1")
    with opened() as node:
        memory = untouched(3)
        before = locked_kib()
        first = register(node, memory[: 2 * PAGE], 300)
        second = register(node, memory[PAGE : 2 * PAGE], 301)
        assert there(memory) == [True, True, False]
        assert locked_kib() == before + 2 * PAGE // 1024
        first.close()
        assert locked_kib() == before + PAGE // 1024
        second.close()
        assert locked_kib() == before
        assert pages.locked() == []


def test_memory_that_cannot_be_locked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_PIN", "1")

    def refuses(*args: object) -> None:
        raise OSError(fi.ENOMEM, "Cannot allocate memory")

    with opened() as node:
        monkeypatch.setattr(pages, "_system", refuses)
        with pytest.raises(fi.NoMemory, match=r"(?s)WEFT_CXI_PIN: mlock.*ulimit -l"):
            node.domain.mr_reg(untouched(1), RW, requested_key=300)
        assert pages.locked() == []


def test_nothing_is_locked_where_pages_come_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_PIN", "1")
    monkeypatch.setenv("FI_CXI_FORCE_ODP", "1")
    with opened() as node:
        memory = untouched(1)
        register(node, memory, 300)
        assert there(memory) == [False]


# ---- ATS -------------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.xlate.ats-amd")
@pytest.mark.parametrize(
    ("processor", "module", "expected"),
    [("GenuineIntel", True, "AMD processor"), ("AuthenticAMD", False, "iommu_v2"), ("AuthenticAMD", True, "")],
)
def test_ats_needs_an_amd_host_with_iommu_v2(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    processor: str,
    module: bool,
    expected: str,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {processor}\n")
    if module:
        (tmp_path / "iommu").mkdir()
    monkeypatch.setattr(translation, "_PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(translation, "_IOMMU", tmp_path / "iommu")
    monkeypatch.setenv("FI_CXI_ATS", "1")
    with opened() as node:
        assert node.domain.policy.translation.ats is not bool(expected)
    said = [one.message for one in caplog.records if "FI_CXI_ATS=1" in one.message]
    assert len(said) == bool(expected)
    assert all(expected in text and "NTA is used" in text for text in said)


@pytest.mark.clause(
    "cxi.xlate.two", "cxi.xlate.ats-env", "cxi.env.ats", "cxi.xlate.ats-whole-space", "cxi.xcache.ats-none",
    "cxi.xcache.ats-unused",
)  # fmt: skip
def test_under_ats_no_mapping_is_made_or_kept(monkeypatch: pytest.MonkeyPatch, host_with_ats: None) -> None:
    made = count_mappings(monkeypatch)
    with opened(prov_key=True) as node:
        assert str(node.domain.policy.translation) == "ATS, pinned pages"
        memory = np.zeros(1, "u8")
        mr = register(node, memory)
        assert outcome(node, mr.key) == 0
        key = mr.key
        mr.close()
        assert outcome(node, key) == fi.EIO
        assert not made


@pytest.mark.clause("cxi.env.ats-off-nta", "cxi.xlate.two", "cxi.xcache.reuse", "cxi.opt.prov-key-cache-benefit")
def test_under_nta_memory_that_is_used_again_is_not_mapped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_mappings(monkeypatch)
    with opened(prov_key=True) as node:
        assert str(node.domain.policy.translation) == "NTA, pinned pages"
        memory = np.zeros(1, "u8")
        keys = set()
        for _ in range(20):
            mr = register(node, memory)
            keys.add(mr.key)
            mr.close()
        assert len(made) == len(keys) == 1


def count_mappings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    real = _nic.Mapping

    class Nic:
        @staticmethod
        def Mapping(*args: Any, **more: Any) -> Any:
            made.append(more["address"])
            return real(*args, **more)

    monkeypatch.setattr(mappings, "_nic", Nic)
    return made


ASKS = """
import sys
from weft import fi
info = fi.getinfo(hints=fi.Info(caps=fi.RMA, fabric_attr=fi.FabricAttr(prov_name="cxi")))[0]
with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info):
    for line in open("/proc/self/status"):
        if line.startswith(("VmLck", "VmRSS")):
            print(line.split()[1])
"""


@pytest.mark.clause(
    "cxi.env.ats-mlock-mode", "cxi.env.ats-mlock-all", "cxi.env.ats-mlock-all-locked", "cxi.env.ats-mlock-off",
    "cxi.env.ats-mlock-odp-off", "cxi.env.ats-mlock-all-faults",
)  # fmt: skip
@pytest.mark.parametrize(
    ("mode", "odp", "ats", "expected"),
    [("all", "1", "1", True), ("off", "1", "1", False), ("all", "0", "1", False), ("all", "1", "0", False)],
)
def test_process_is_locked_in_memory_under_ats(mode: str, odp: str, ats: str, expected: bool) -> None:
    if os.geteuid() and expected:
        pytest.skip("locking a whole process takes CAP_IPC_LOCK, or a high `ulimit -l`")
    env = {**os.environ, "FI_CXI_ATS": ats, "FI_CXI_ODP": odp, "FI_CXI_ATS_MLOCK_MODE": mode}
    done = patience.run([sys.executable, "-c", ASKS], env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    locked, resident = sorted(int(text) for text in done.stdout.split()) if expected else (0, 0)
    if expected:
        assert locked > 0.9 * resident > 10_000, "what is mapped is in RAM, and stays"
    else:
        assert done.stdout.split()[0] == "0"


def test_process_that_cannot_be_locked_is_told_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("FI_CXI_ATS", "FI_CXI_ODP"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(pages, "lock_all", lambda: "EPERM: `ulimit -l` is 0 B")
    for _ in range(2):
        with opened():
            pass
    (said,) = [one.message for one in caplog.records if "mlockall" in one.message]
    assert "FI_CXI_ATS_MLOCK_MODE=off" in said


# ---- mappings that are kept ------------------------------------------------------------------------------------------


def closed_key(node: Node, memory: Any) -> int:
    mr = register(node, memory)
    key = mr.key
    mr.close()
    return key


def test_closed_region_of_cached_memory_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    memory = np.zeros(2, "u8")
    with opened(prov_key=True) as node:
        for n in (0, 1):
            assert outcome(node, closed_key(node, memory[n : n + 1])) == 0
    (said,) = [one.message for one in caplog.records if "still reach" in one.message]
    assert "FI_CXI_MR_MATCH_EVENTS=1" in said
    assert "FI_CXI_PROV_KEY_CACHE=0" in said


@pytest.mark.parametrize("name", ["FI_CXI_PROV_KEY_CACHE", "FI_MR_CACHE_MAX_COUNT", "FI_MR_CACHE_MAX_SIZE"])
def test_nothing_is_kept_without_a_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv(name, "0")
    with opened(prov_key=True) as node:
        assert outcome(node, closed_key(node, np.zeros(1, "u8"))) == fi.EIO
    assert not [one for one in caplog.records if "still reach" in one.message]


@pytest.mark.parametrize("fork_safe", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("FI_MR_CACHE_MAX_COUNT", "2", [fi.EIO, 0, 0]), ("FI_MR_CACHE_MAX_SIZE", "15", [fi.EIO, fi.EIO, 0])],
)
def test_mappings_beyond_the_limits_of_the_cache_end(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: list[int], fork_safe: bool
) -> None:
    """The mapping unused for longest ends first. The NIC lets go of mappings; with CXI_FORK_SAFE the provider."""
    if fork_safe:
        monkeypatch.setenv("CXI_FORK_SAFE", "1")
    monkeypatch.setenv(name, value)
    memory = np.zeros(3, "u8")
    with opened(prov_key=True) as node:
        keys = [closed_key(node, memory[n : n + 1]) for n in range(3)]
        assert [outcome(node, key) for key in keys] == expected


def test_closed_domain_holds_no_cached_memory() -> None:
    """A bytearray has no weak references, so that the domain holds the mapped memory."""
    memory = bytearray(8)
    alone = sys.getrefcount(memory)
    with opened(prov_key=True) as node:
        assert outcome(node, closed_key(node, memory)) == 0
        gc.collect()
        assert sys.getrefcount(memory) == alone + 1
    assert node.domain.closed
    assert sys.getrefcount(memory) == alone


def test_without_a_monitor_no_key_is_one_of_cached_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_MR_CACHE_MONITOR", "disabled")
    with opened(prov_key=True) as node:
        assert not register(node, np.zeros(1, "u8")).key & regions.CACHED


def test_monitor_that_does_not_work_refuses_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_MR_CACHE_MONITOR", "kdreg2")
    monkeypatch.setattr(translation._nic, "probe_monitor", lambda name: (name, False, "no /dev/kdreg2"))
    info = fi.getinfo(hints=hints(CAPS))[0]
    with fi.Fabric(info.fabric_attr) as fabric, pytest.raises(fi.InvalidArgument, match="no /dev/kdreg2"):
        fabric.domain(info)
    monkeypatch.setenv("FI_MR_CACHE_MAX_COUNT", "0")
    with opened():
        pass


@pytest.mark.clause("cxi.env.mr-match-events", "cxi.env.mr-match-events-cache")
def test_match_events_end_access_to_closed_cached_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = np.zeros(1, "u8")
    with opened(prov_key=True) as node:
        cached = register(node, memory)
        node.domain.control(cxi.OPT_CXI_SET_MR_MATCH_EVENTS, True)
        key = closed_key(node, memory)
        assert outcome(node, key) == fi.EIO
        assert outcome(node, cached.key) == 0, "the mapping is there"
    monkeypatch.setenv("FI_CXI_MR_MATCH_EVENTS", "1")
    with opened(prov_key=True) as node:
        assert outcome(node, closed_key(node, memory)) == fi.EIO


@pytest.mark.clause("cxi.fork.register-first")
@pytest.mark.parametrize("key", [7, 300, 1 << 63], ids=["optimized", "standard", "provider's"])
def test_memory_that_is_not_registered_cannot_be_reached(node: Node, key: int) -> None:
    assert outcome(node, key) == fi.EIO
    assert outcome(node, key, read=True) == fi.EIO
