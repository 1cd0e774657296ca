"""Keys that a provider's policy makes: of 64 bits, when a region is enabled, and for memory that outlives a region."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi import strange
from tests.fi.support import RW, WATCHDOG_S, Addresses

from weft import _nic, fi
from weft.fi.policy_rules import KeyRules, RegionFacts, RegionRules
from weft.providers.mappings import Mappings

pytestmark = pytest.mark.general("providers of its own, made from the strange one")

NO_REGION = _nic.Status.no_key


class Decided:
    """A region of this provider: logs the calls on it."""

    key = 0

    def __init__(self, domain: Keyed) -> None:
        self.domain = domain
        self.region: RegionFacts | None = None

    def enable(self, region: RegionFacts) -> int | _nic.Mapping | None:
        self.domain.log.append(("enable", region.requested_key))
        if self.domain.room == 0:
            raise fi.NoSpace("no room for another region")
        if not self.domain.keys.provider:
            return None
        if self.domain.cached and not region.counters:
            self.region = region
            return self.domain.mappings.use(region, self.domain.next_key)
        return self.domain.next_key()

    def close(self) -> None:
        self.domain.log.append(("close",))
        if self.region is not None:
            self.domain.mappings.release(self.region)


class Keyed(strange.StrangeDomain):
    """Keys above 2**63, which never come again."""

    cached = False

    def __init__(self, provider: Any, info: fi.Info, offer: Any) -> None:
        super().__init__(provider, info, offer)
        self.log: list[Any] = []
        self.room = -1
        self.mappings = Mappings(count_max=2)
        self.numbers = itertools.count(0xABCDEF)

    def next_key(self) -> int:
        return 1 << 63 | next(self.numbers) << 16 | 0xFFFF

    def region(self, region: RegionFacts) -> Decided:
        return Decided(self)

    def close(self) -> None:
        self.mappings.close()
        super().close()


class Cached(Keyed):
    cached = True


class Provider(strange.Strange):
    keys = KeyRules(client_bits=32, known_at="enable", maker="policy")
    regions = RegionRules(
        bytes_min=0, busy="ep", asked=True, local_free=True, offset="ignored", endpoints_max=1, bind_flags="any"
    )
    domain_class = Keyed


class Stack:
    """A domain under MR_PROV_KEY, or with keys of the application, and an endpoint that reaches itself."""

    def __init__(self, provider: strange.Strange, mr_mode: int) -> None:
        self.stack = contextlib.ExitStack()
        asked = fi.Info(
            caps=fi.RMA | fi.ATOMIC,
            domain_attr=fi.DomainAttr(mr_mode=int(fi.MR_ENDPOINT)),
            fabric_attr=fi.FabricAttr(prov_name=strange.NAME),
        )
        (info,) = fi.getinfo(hints=asked)
        info.domain_attr.mr_mode |= mr_mode
        self.info = info
        self.fabric = self.stack.enter_context(fi.Fabric(info.fabric_attr))
        self.domain = self.stack.enter_context(self.fabric.domain(info))
        self.policy: Any = self.domain.policy
        self.cq = self.stack.enter_context(self.domain.cq_open(size=64))
        self.av = self.stack.enter_context(self.domain.av_open())
        self.ep = self.endpoint()
        self.me = self.av.insert(self.ep.getname())

    def endpoint(self) -> fi.Endpoint:
        ep = self.stack.enter_context(self.domain.endpoint(self.info))
        ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(self.av)
        ep.enable()
        return ep

    def reg(self, buf: Any, access: int = RW, key: int = 0, **more: Any) -> fi.MemoryRegion:
        return self.stack.enter_context(self.domain.mr_reg(buf, access, requested_key=key, **more))

    def opened(self, buf: Any, access: int = RW, key: int = 0, ep: fi.Endpoint | None = None) -> fi.MemoryRegion:
        mr = self.reg(buf, access, key)
        mr.bind(ep or self.ep)
        mr.enable()
        return mr

    def put(self, key: int, data: bytes = b"8 bytes!", addr: int = 0) -> Any:
        """How a write ends: the status."""
        self.ep.write(data, dest_addr=self.me, addr=addr, key=key)
        try:
            self.cq.sread(1, timeout=WATCHDOG_S)
        except fi.Available:
            return self.cq.readerr().status
        return _nic.Status.ok


def stack(cls: type[Keyed], mr_mode: int) -> Iterator[Stack]:
    provider = type("One", (Provider,), {"domain_class": cls})()
    fi.registry.register(provider)
    try:
        one = Stack(provider, mr_mode)
        with one.stack:
            yield one
    finally:
        strange.unregister(provider)


@pytest.fixture
def keyed() -> Iterator[Stack]:
    yield from stack(Keyed, int(fi.MR_PROV_KEY))


@pytest.fixture
def chosen() -> Iterator[Stack]:
    yield from stack(Keyed, 0)


@pytest.fixture
def cached() -> Iterator[Stack]:
    yield from stack(Cached, int(fi.MR_PROV_KEY))


# ---- keys made at enable ---------------------------------------------------------------------------------------------


def test_key_of_the_policy_is_known_from_enable_on(keyed: Stack) -> None:
    memory = bytearray(16)
    mr = keyed.reg(memory)
    assert mr.key == fi.KEY_NOTAVAIL
    with pytest.raises(fi.BadState, match="has no key yet"):
        mr.raw_attr()
    mr.bind(keyed.ep)
    assert mr.key == fi.KEY_NOTAVAIL
    mr.enable()
    assert mr.key == 1 << 63 | 0xABCDEF << 16 | 0xFFFF
    assert int.from_bytes(mr.raw_attr()[1], "little") == mr.key
    assert keyed.put(mr.key) == _nic.Status.ok
    assert memory[:8] == b"8 bytes!"


def test_keys_that_differ_in_high_bits_alone_are_different_keys(keyed: Stack) -> None:
    keyed.policy.next_key = iter([1 << 63, 1 << 63 | 1 << 60, 1 << 63 | 1 << 40]).__next__
    memory = [bytearray(8) for _ in range(3)]
    regions = [keyed.opened(one) for one in memory]
    for n, mr in enumerate(regions):
        assert keyed.put(mr.key, b"region %d" % n) == _nic.Status.ok
    assert [bytes(one) for one in memory] == [b"region 0", b"region 1", b"region 2"]
    assert keyed.put(1 << 63 | 1 << 59) == NO_REGION


def test_stale_key_reaches_no_newer_region(keyed: Stack) -> None:
    old = bytearray(8)
    first = keyed.opened(old)
    stale = first.key
    assert keyed.put(stale) == _nic.Status.ok
    first.close()
    new = [bytearray(8) for _ in range(8)]
    for one in new:
        keyed.opened(one)
    assert keyed.put(stale) == NO_REGION
    assert not any(any(one) for one in new)


def test_mr_enable_with_a_used_key_fails_and_succeeds_later(keyed: Stack) -> None:
    first = keyed.opened(bytearray(8))
    keyed.policy.next_key = iter([first.key, 1 << 63]).__next__
    second = keyed.reg(bytearray(8))
    second.bind(keyed.ep)
    with pytest.raises(fi.FabricError, match="already in use") as caught:
        second.enable()
    assert caught.value.errno == keyed.policy.refusals.errno(fi.rules.Rule.MR_KEY_TAKEN)
    assert second.key == fi.KEY_NOTAVAIL
    second.enable()
    assert keyed.put(second.key) == _nic.Status.ok


def test_policy_refuses_enable_and_gets_close(keyed: Stack) -> None:
    keyed.policy.room = 0
    mr = keyed.reg(bytearray(8), key=77)
    mr.bind(keyed.ep)
    with pytest.raises(fi.NoSpace):
        mr.enable()
    keyed.policy.room = 1
    mr.enable()
    mr.enable()
    mr.close()
    mr.close()
    assert keyed.policy.log == [("enable", 77), ("enable", 77), ("close",)]


def test_policy_is_asked_about_regions_with_client_keys(chosen: Stack) -> None:
    mr = chosen.reg(bytearray(8), key=77)
    assert mr.key == 77
    mr.bind(chosen.ep)
    mr.enable()
    assert chosen.put(77) == _nic.Status.ok
    with pytest.raises(fi.FabricError, match="already in use"):
        chosen.reg(bytearray(8), key=77)
    assert chosen.policy.log == [("enable", 77), ("close",)]


def test_counter_of_a_region_counts_from_enable_on(keyed: Stack) -> None:
    asked = fi.Info(
        caps=fi.RMA | fi.RMA_EVENT,
        domain_attr=fi.DomainAttr(mr_mode=int(fi.MR_ENDPOINT)),
        fabric_attr=fi.FabricAttr(prov_name=strange.NAME),
    )
    (info,) = fi.getinfo(hints=asked)
    with keyed.domain.endpoint(info) as ep, keyed.domain.cntr_open() as cntr:
        ep.bind(keyed.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(keyed.av)
        ep.enable()
        mr = keyed.reg(bytearray(8))
        mr.bind(cntr, fi.REMOTE_WRITE | fi.REMOTE_READ)  # bind_flags "any"
        mr.bind(ep)
        mr.enable()
        there = keyed.av.insert(ep.getname())
        keyed.ep.write(b"12345678", dest_addr=there, addr=0, key=mr.key)
        keyed.cq.sread(1, timeout=WATCHDOG_S)
        cntr.wait(1, timeout=WATCHDOG_S)
        mr.close()


# ---- regions for this process alone ----------------------------------------------------------------------------------


def test_region_without_remote_access_takes_no_key(chosen: Stack) -> None:
    """`RegionRules.local_free`: its requested key is not looked at, and collides with nobody."""
    remote = chosen.opened(bytearray(8), key=7)
    for key in (7, 7, 1 << 40):
        mr = chosen.reg(bytearray(8), int(fi.READ | fi.WRITE), key=key)
        assert mr.key == fi.KEY_NOTAVAIL
        assert mr.state == "enabled"
    with pytest.raises(fi.FabricError, match="bound to no endpoint"):
        mr.enable()
    mr.bind(chosen.ep)
    mr.enable()
    assert mr.key == fi.KEY_NOTAVAIL
    assert chosen.put(remote.key) == _nic.Status.ok
    assert ("enable", 1 << 40) not in chosen.policy.log


def test_attribute_offset_is_ignored_where_the_policy_says_so(chosen: Stack) -> None:
    assert chosen.reg(bytearray(8), key=3, offset=5).length == 8


def test_mr_bind_beyond_the_policy_s_endpoint_limit_is_refused(chosen: Stack) -> None:
    mr = chosen.reg(bytearray(8), key=3)
    mr.bind(chosen.ep, fi.REMOTE_WRITE)  # bind_flags "any"
    with pytest.raises(fi.InvalidArgument, match="at most 1 Endpoint"):
        mr.bind(chosen.endpoint())


# ---- keys of memory that outlives the region -------------------------------------------------------------------------


def test_cached_key_reaches_the_memory_after_close(cached: Stack) -> None:
    memory = np.zeros(8, np.uint8)
    mr = cached.opened(memory)
    key = mr.key
    assert cached.put(key, b"1st time") == _nic.Status.ok
    mr.close()
    assert cached.put(key, b"2nd time") == _nic.Status.ok
    assert memory.tobytes() == b"2nd time"


def test_cached_key_grants_access_to_whole_pages(cached: Stack) -> None:
    """Offset 0 is the region's start; the mapping has whole pages, and both rights."""
    pages = Addresses(3)
    pages.back(1, 1)
    inside = pages.at + mmap.PAGESIZE + 100
    mr = cached.opened((inside, 8), int(fi.REMOTE_READ))
    assert cached.put(mr.key, b"at start") == _nic.Status.ok
    assert ctypes.string_at(inside, 8) == b"at start"
    assert cached.put(mr.key, b"page end", mmap.PAGESIZE - 108) == _nic.Status.ok
    assert cached.put(mr.key, b"at first", (1 << 64) - 100) == _nic.Status.ok
    assert ctypes.string_at(pages.at + mmap.PAGESIZE, 8) == b"at first"
    assert cached.put(mr.key, b"too far!", mmap.PAGESIZE - 107) == _nic.Status.bounds
    assert cached.put(mr.key, b"too far!", (1 << 64) - 101) == _nic.Status.bounds
    mr.close()
    pages.close()


def test_cached_key_of_read_only_memory_grants_reads_only(cached: Stack) -> None:
    mr = cached.opened(b"constant" * 1000, int(fi.REMOTE_READ))
    assert cached.put(mr.key) == _nic.Status.access


def test_access_by_a_cached_key_to_pages_that_are_gone_fails(cached: Stack) -> None:
    pages = Addresses(1)
    pages.back()
    mr = cached.opened((pages.at, 64))
    mr.close()
    assert cached.put(mr.key) == _nic.Status.ok
    pages.unback(0, 1)
    assert cached.put(mr.key) == _nic.Status.fault
    pages.close()


def test_cached_key_never_reaches_a_newer_allocation(cached: Stack) -> None:
    """Memory that Weft allocated: freeing it ends the mapping before the place is used again."""
    old = cached.domain.alloc(4096)
    place = old.ctypes.data
    mr = cached.opened(old)
    mr.close()
    assert cached.put(mr.key, b"old data") == _nic.Status.ok
    del old
    gc.collect()
    again = [cached.domain.alloc(4096) for _ in range(4)]
    assert place in [one.ctypes.data for one in again]
    assert cached.put(mr.key, b"new data") == NO_REGION
    assert all(one[:8].tobytes() != b"new data" for one in again)


def test_cached_key_ends_with_its_endpoint(cached: Stack) -> None:
    other = cached.endpoint()
    there = cached.av.insert(other.getname())
    memory = np.zeros(8, np.uint8)
    mr = cached.opened(memory, ep=other)
    mr.close()
    assert len(cached.policy.mappings) == 1
    cached.ep.write(b"12345678", dest_addr=there, addr=0, key=mr.key)
    cached.cq.sread(1, timeout=WATCHDOG_S)
    other.close()
    assert len(cached.policy.mappings) == 0
    assert cached.put(mr.key) == NO_REGION


def test_cached_key_ends_when_its_array_is_collected(cached: Stack) -> None:
    memory = np.zeros(64, np.uint8)
    mr = cached.opened(memory[8:16])
    mr.close()
    gc.collect()
    assert cached.put(mr.key) == _nic.Status.ok
    del memory
    gc.collect()
    assert cached.put(mr.key) == NO_REGION


def test_oldest_unused_cached_keys_are_evicted(cached: Stack) -> None:
    memory = [np.zeros(8, np.uint8) for _ in range(4)]
    regions = [cached.opened(one) for one in memory]
    for mr in regions[1:]:
        mr.close()
    found = [cached.put(mr.key) for mr in regions]
    assert found == [_nic.Status.ok, NO_REGION, _nic.Status.ok, _nic.Status.ok]


def test_two_regions_of_one_place_share_a_cached_key(cached: Stack) -> None:
    memory = np.zeros(8, np.uint8)
    first, second = cached.opened(memory), cached.opened(memory, int(fi.REMOTE_READ))
    assert first.key == second.key
    first.close()
    second.close()
    third = cached.opened(memory)
    assert third.key == first.key
