"""fi_open("mr_cache"): the registration cache, used by an application and by the library."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import RW, Addresses, Node, libc, opened, pair
from tests.procs.children import Child
from tests.procs.peer import World

import weft
from weft import fi

PAGE = mmap.PAGESIZE


@pytest.fixture
def cache() -> Iterator[fi.MrCache]:
    with fi.open("mr_cache") as found:
        if not found.state.on:
            pytest.skip(f"no cache here: {found.state}")
        found.flush(lru_only=False)
        yield found


@pytest.fixture
def memory() -> Iterator[Addresses]:
    room = Addresses(8)
    room.back()
    yield room
    room.close()


class Watching(fi.MemMonitor):
    """Records the calls that it receives."""

    name = "watching"

    def __init__(self, iface: int = fi.HMEM_SYSTEM) -> None:
        self.iface = iface
        self.calls: list[Any] = []
        self.good = True
        self.notify: Callable[[int, int], int] = lambda addr, length: 0

    def start(self, notify: Callable[[int, int], int]) -> None:
        self.notify = notify
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def subscribe(self, addr: int, length: int) -> None:
        self.calls.append(("subscribe", addr, length))

    def unsubscribe(self, addr: int, length: int) -> None:
        self.calls.append(("unsubscribe", addr, length))

    def valid(self, addr: int, length: int, mapping: fi.CachedMapping) -> bool:
        self.calls.append(("valid", addr, length, mapping.buffer_id))
        return self.good


# ---- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.cache.open")
def test_open_mr_cache_is_the_library_s_own(cache: fi.MrCache, memory: Addresses) -> None:
    """fi_mr(3): fi_open with the name mr_cache gives access to the internal cache: all openers share it."""
    assert cache.fclass == fi.CLASS_MR_CACHE
    with fi.open("mr_cache", context="mine") as other:
        assert other.context == "mine"
        cache.search((memory.at, PAGE)).release()
        hits = other.statistics().hits
        assert other.search((memory.at, PAGE)).cached
        assert other.statistics().hits == hits + 1
    assert "entries" in repr(cache)
    assert repr(other) == "<MrCache closed>"
    with pytest.raises(fi.BadState, match="closed"):
        other.search((memory.at, PAGE))


@pytest.mark.clause("mr.cache.open")
def test_open_of_another_service_names_those_there_are() -> None:
    with pytest.raises(fi.NoSys, match=r"'cache'; here: mr_cache"):
        fi.open("cache")
    with pytest.raises(fi.BadFlags):
        fi.open("mr_cache", flags=1)
    with pytest.raises(fi.InvalidArgument):
        fi.open("mr_cache", attr={})


def test_open_cache_without_close_warns(cache: fi.MrCache) -> None:
    with pytest.warns(ResourceWarning, match="never closed"):
        fi.open("mr_cache")


# ---- searching -------------------------------------------------------------------------------------------------------


def test_search_hit_is_an_entry_that_contains_the_buffer(cache: fi.MrCache, memory: Addresses) -> None:
    before = cache.statistics()
    with cache.search(memory.array()) as entry:
        assert (entry.address, entry.length) == (memory.at, memory.nbytes)
        assert not entry.persistent
        assert cache.statistics().held == before.held + 1
        for at, size in ((0, 1), (100, 5000), (7 * PAGE, PAGE)):
            with cache.search((memory.at + at, size)) as part:
                assert (part.address, part.length) == (memory.at, memory.nbytes)
    after = cache.statistics()
    assert (after.hits - before.hits, after.misses - before.misses) == (3, 1)
    assert entry.released
    with pytest.raises(fi.BadState, match="released"):
        _ = entry.address


def test_search_of_nothing_is_refused(cache: fi.MrCache) -> None:
    gap = Addresses(4)
    libc.munmap(gap.at + PAGE, PAGE)
    with pytest.raises(fi.Fault, match="nothing is mapped"):
        cache.search((gap.at, 2 * PAGE))
    with pytest.raises(fi.InvalidArgument, match="no bytes"):
        cache.search(b"")
    with pytest.raises(fi.InvalidArgument, match="fi_hmem_iface"):
        cache.search((gap.at, 1), iface=99)
    gap.close()


def test_search_entry_goes_when_its_memory_goes(cache: fi.MrCache, memory: Addresses) -> None:
    """Each change is made by C code that this process reaches through dlsym, not through anything of ours."""
    for change in (
        lambda: libc.munmap(memory.at + PAGE, PAGE),
        lambda: libc.mmap(memory.at + PAGE, PAGE, 3, 0x32, -1, 0),
        lambda: libc.madvise(ctypes.c_void_p(memory.at + PAGE), ctypes.c_size_t(PAGE), 4),
    ):
        libc.mmap(memory.at, memory.nbytes, 3, 0x32, -1, 0)
        entry = cache.search((memory.at, 3 * PAGE))
        assert entry.cached
        other = cache.search((memory.at + 4 * PAGE, PAGE))
        change()
        cache.statistics()
        assert entry.stale
        assert not other.stale
        other.release()
        cache.flush()


@pytest.mark.skipif("WEFT_SANITIZED" in os.environ, reason="a sanitizer's malloc makes its own system calls")
def test_search_entry_of_a_freed_array_goes(cache: fi.MrCache) -> None:
    # Above malloc's largest M_MMAP_THRESHOLD (32 MiB): free() unmaps the array, if the heap had no room for it.
    array = np.ones(1 << 26, np.uint8)
    end_of_heap = ctypes.CDLL(None).sbrk
    end_of_heap.restype = ctypes.c_size_t
    fill = []
    while array.ctypes.data < end_of_heap(0):
        fill.append(array)
        array = np.ones(1 << 26, np.uint8)
    address = array.ctypes.data
    entry = cache.search(array)
    del array
    cache.statistics()
    assert entry.stale
    assert address >= entry.address


def test_search_with_a_resolver_asks_it_once(cache: fi.MrCache, memory: Addresses) -> None:
    asked: list[tuple[int, int]] = []

    def resolve(address: int, length: int) -> dict[str, int]:
        asked.append((address, length))
        return {"address": address, "length": length, "user": 7, "buffer_id": 9}

    for _ in range(3):
        with cache.search((memory.at + 5, 10), resolve=resolve) as entry:
            assert (entry.user, entry.buffer_id) == (7, 9)
    assert asked == [(memory.at + 5, 10)]
    with pytest.raises(fi.InvalidArgument, match="does not contain"):
        cache.search((memory.at + PAGE, 10), resolve=lambda a, n: {"address": a, "length": n - 1})
    with pytest.raises(ZeroDivisionError):
        cache.search((memory.at + PAGE, 10), resolve=lambda a, n: 1 // 0)  # type: ignore[return-value,arg-type]


def test_flush_keeps_held_entries_by_default(cache: fi.MrCache, memory: Addresses) -> None:
    held = cache.search((memory.at, PAGE))
    cache.search((memory.at + 2 * PAGE, PAGE)).release()
    assert cache.flush() == 1
    assert not held.stale
    assert cache.flush(lru_only=False) == 1
    assert held.stale
    assert "stale" in repr(held)
    held.release()


def test_notify_reports_a_change_that_no_monitor_sees(cache: fi.MrCache, memory: Addresses) -> None:
    entry = cache.search((memory.at, 2 * PAGE))
    assert cache.notify(memory.at + 2 * PAGE, PAGE) == 0
    assert cache.notify(memory.at + PAGE, 1) == 1
    assert entry.stale
    with pytest.raises(fi.InvalidArgument, match="not a range"):
        cache.notify(memory.at, 0)


# ---- monitors of one's own -------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.cache.custom-monitor")
def test_custom_monitor_gets_its_calls(cache: fi.MrCache) -> None:
    """fi_mr(3): once the cache is open, custom memory monitors may be installed."""
    mine = Watching(fi.HMEM_NEURON)
    with fi.open("mr_cache") as own:
        assert not own.search((4096, 64), fi.HMEM_NEURON).cached  # nobody watches that memory yet
        own.import_fid(mine)
        assert mine.fclass == fi.CLASS_MEM_MONITOR
        entry = own.search((4096, 64), fi.HMEM_NEURON)
        assert entry.cached
        assert mine.calls == ["start", ("subscribe", 4096, 64)]
        own.search((4100, 8), fi.HMEM_NEURON).release()
        assert mine.calls[-1] == ("valid", 4100, 8, 0)
        assert mine.notify(4096, 1) == 1
        assert entry.stale
        assert mine.calls[-2:] == [("unsubscribe", 4096, 64), "stop"]
        own.search((4096, 64), fi.HMEM_NEURON).release()
        mine.good = False  # the allocation at that address is another one: found out at the hit
        misses = own.statistics().misses
        own.search((4096, 64), fi.HMEM_NEURON).release()
        assert own.statistics().misses == misses + 1
    assert mine.calls[-1] == "stop"
    assert not cache.search((4096, 64), fi.HMEM_NEURON).cached


@pytest.mark.clause("mr.cache.custom-monitor")
def test_custom_monitor_takes_the_place_of_the_process_s_own(cache: fi.MrCache, memory: Addresses) -> None:
    mine = Watching()
    with fi.open("mr_cache") as own:
        own.import_fid(mine)
        assert own.state.monitor == "watching"
        entry = own.search((memory.at + 1, 10))
        assert ("subscribe", memory.at, PAGE) in mine.calls
        libc.mmap(memory.at, PAGE, 3, 0x32, -1, 0)
        own.statistics()
        assert not entry.stale  # the change was for us to report
        with pytest.raises(fi.Busy, match="Watching"):
            cache.import_fid(Watching())
        with pytest.raises(TypeError, match="MemMonitor"):
            own.import_fid(object())  # type: ignore[arg-type]
    assert cache.state.monitor != "watching"
    assert entry.stale


def test_custom_monitor_that_refuses_a_range_leaves_it_uncached(cache: fi.MrCache) -> None:
    class Refusing(Watching):
        def subscribe(self, addr: int, length: int) -> None:
            raise OSError("not this one")

    mine = Refusing(fi.HMEM_NEURON)
    with fi.open("mr_cache") as own:
        own.import_fid(mine)
        assert not own.search((4096, 64), fi.HMEM_NEURON).cached
    assert mine.calls == ["start", "stop"]


def test_custom_monitor_notifies_from_any_thread_and_own_methods(cache: fi.MrCache) -> None:
    class Nervous(Watching):
        def valid(self, addr: int, length: int, mapping: fi.CachedMapping) -> bool:
            self.notify(addr, length)
            return True

    mine = Nervous(fi.HMEM_NEURON)
    with fi.open("mr_cache") as own:
        own.import_fid(mine)
        entry = own.search((4096, 64), fi.HMEM_NEURON)
        own.search((4096, 64), fi.HMEM_NEURON).release()
        assert entry.stale
        own.search((4096, 64), fi.HMEM_NEURON).release()
        told: list[int] = []
        thread = threading.Thread(target=lambda: told.append(mine.notify(0, 1 << 40)))
        thread.start()
        thread.join(30)
        assert told == [1]


# ---- host and device memory ------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.cache.uva")
def test_cache_serves_host_and_device_memory(cache: fi.MrCache, memory: Addresses) -> None:
    """With unified virtual addressing an address is the host's or the device's: the cache has both at once."""
    with fi.open("mr_cache") as own:
        own.import_fid(Watching(fi.HMEM_CUDA))
        host = own.search((memory.at, PAGE))
        device = own.search((0x7F0000000000, PAGE), fi.HMEM_CUDA, 0)
        assert host.cached
        assert device.cached
        assert (host.iface, device.iface) == (fi.HMEM_SYSTEM, fi.HMEM_CUDA)
        assert own.statistics().entries == 2
        libc.mmap(memory.at, PAGE, 3, 0x32, -1, 0)  # a change of host memory is none of the device's
        own.statistics()
        assert host.stale
        assert not device.stale


@pytest.mark.clause("mr.cache.no-uva")
def test_cache_tracks_devices_with_equal_addresses_apart(cache: fi.MrCache, memory: Addresses) -> None:
    """Without unified virtual addressing the same number means other memory on each device: never mixed up."""
    with fi.open("mr_cache") as own:
        own.import_fid(Watching(fi.HMEM_NEURON))

        def resolve(user: int) -> Callable[[int, int], dict[str, int]]:
            return lambda address, length: {"address": address, "length": length, "user": user}

        places = [(fi.HMEM_SYSTEM, 0), (fi.HMEM_NEURON, 0), (fi.HMEM_NEURON, 1)]
        for user, place in enumerate(places):
            own.search((memory.at, PAGE), *place, resolve=resolve(user)).release()
        for user, place in enumerate(places):
            with own.search((memory.at, PAGE), *place, resolve=resolve(99)) as entry:
                assert entry.user == user
        assert own.notify(memory.at, PAGE, fi.HMEM_NEURON) == 2
        with own.search((memory.at, PAGE), resolve=resolve(99)) as entry:
            assert entry.user == 0


# ---- where the library uses it ---------------------------------------------------------------------------------------


@pytest.mark.general("the process's NIC")
@pytest.mark.clause("mr.cache.purpose")
def test_registering_the_same_file_again_asks_the_system_once(cache: fi.MrCache, node: Node, tmp_path: Any) -> None:
    """Registering persistent memory looks the buffer's file up once, not for each transfer."""
    np.zeros(1 << 16, np.uint8).tofile(tmp_path / "f")
    mapped = np.memmap(tmp_path / "f", np.uint8, "r+")
    before = cache.statistics()
    for key in range(50):
        node.domain.mr_reg(mapped, RW, requested_key=key, flags=fi.RMA_PMEM).close()
    after = cache.statistics()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 49)


def test_persistent_verdict_ends_with_the_mapping(cache: fi.MrCache, node: Node, tmp_path: Any) -> None:
    """The file is unmapped and memory put in its place: it is not persistent any more; and the reverse."""
    np.zeros(1 << 16, np.uint8).tofile(tmp_path / "f")
    with open(tmp_path / "f", "r+b") as file:
        at = libc.mmap(None, 1 << 16, 3, 0x01, file.fileno(), 0)
        node.reg((at, 1 << 16), requested_key=1, flags=fi.RMA_PMEM)
        libc.mmap(at, PAGE, 3, 0x32, -1, 0)
        with pytest.raises(fi.InvalidArgument, match="not mapped from a file"):
            node.domain.mr_reg((at, 1 << 16), RW, requested_key=2, flags=fi.RMA_PMEM)
        node.reg((at + PAGE, PAGE), requested_key=3, flags=fi.RMA_PMEM)
        libc.mmap(at, PAGE, 3, 0x11, file.fileno(), 0)
        node.reg((at, 1 << 16), requested_key=4, flags=fi.RMA_PMEM)
    libc.munmap(at, 1 << 16)


# Weft's own memory is watched where FI_MR_CACHE_MONITOR names a monitor: in processes of their own.


def put_lands_in_what_was_mapped_over(world: World) -> None:
    with pair() as (initiator, target, peer):
        array = weft.empty(16 * PAGE, np.uint8)
        array[:] = 1
        at = array.ctypes.data
        first = target.reg((at, 16 * PAGE), requested_key=1)
        assert first.direct
        libc.mmap(at + 4 * PAGE, PAGE, 3, 0x32, -1, 0)  # anonymous pages over one of them
        over = target.reg((at + 4 * PAGE, PAGE), requested_key=2)
        assert not over.direct
        assert target.reg((at, 4 * PAGE), requested_key=3).direct
        data = np.arange(64, dtype=np.uint8)
        initiator.ep.write(data, dest_addr=peer, addr=8, key=2)
        initiator.wait()
        assert bytes(array[4 * PAGE + 8 : 4 * PAGE + 72]) == bytes(data)
        initiator.ep.write(data, dest_addr=peer, addr=0, key=3)
        initiator.wait()
        assert bytes(array[:64]) == bytes(data)


def unmapped_memory_is_not_allocated_again(world: World) -> None:
    with opened() as node:
        array = weft.empty(4 * PAGE, np.uint8)
        at = array.ctypes.data
        node.reg(array, requested_key=1).close()
        libc.munmap(at + PAGE, PAGE)
    del array
    gc.collect()
    for _ in range(20):
        again = weft.zeros(2 * PAGE, np.uint8)  # would fault in the hole
        assert not (again.ctypes.data < at + 2 * PAGE and at + PAGE < again.ctypes.data + again.nbytes)
    libc.mmap(at + PAGE, PAGE, 3, 0x32, -1, 0)


@pytest.mark.procs
@pytest.mark.parametrize("monitor", ["memhooks", "userfaultfd"])
@pytest.mark.parametrize("fact", [put_lands_in_what_was_mapped_over, unmapped_memory_is_not_allocated_again])
def test_weft_s_own_memory_under_a_monitor(fact: Callable[[World], None], monitor: str) -> None:
    """A page of a Weft segment is replaced or unmapped: it is reached by its address from then on, and not reused."""
    with Child(FI_MR_CACHE_MONITOR=monitor) as child:
        state = child.call(monitor_state)
        if state is not None:
            pytest.skip(f"no {monitor} here: {state}")
        child.call(fact)


def monitor_state(world: World) -> str | None:
    with fi.open("mr_cache") as cache:
        return None if cache.state.on else str(cache.state)


def test_cache_of_the_parent_is_refused_in_a_forked_child(cache: fi.MrCache, memory: Addresses) -> None:
    entry = cache.search((memory.at, PAGE))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b""
        try:
            cache.search((memory.at, PAGE))
        except fi.BadState as error:
            said += str(error).encode()
        try:
            with fi.open("mr_cache") as own, own.search((memory.at, PAGE)) as found:
                said += b"|own" if found.cached else b"|uncached"
                libc.munmap(memory.at, PAGE)
                own.statistics()
                said += b"|stale" if found.stale else b"|kept"
            entry.release()
        finally:
            os.write(write, said)
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    assert b"forked" in said
    assert said.endswith(b"|own|stale")
    cache.statistics()
    assert not entry.stale
    entry.release()


def test_statistics_count_every_search_once(cache: fi.MrCache, memory: Addresses) -> None:
    before = cache.statistics()
    with opened():
        for page in (0, 1, 0, 2, 0):
            cache.search((memory.at + page * PAGE, PAGE)).release()
    after = cache.statistics()
    assert after.hits + after.misses - before.hits - before.misses == 5
    assert after.entries == 3
    assert after.bytes == 3 * PAGE
