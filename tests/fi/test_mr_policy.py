"""Decisions that fi_mr(3) leaves to providers, on providers that decide otherwise; and rules of some modes."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import ALL_CAPS, KEY, RW, Addresses, Node, hints, opened, outcome, pair

from weft import fi
from weft.fi import registry
from weft.fi.policy import Asked
from weft.fi.policy_rules import KeyRules, RegionRules
from weft.providers.general import General

PAGE = mmap.PAGESIZE
HUGE = 2 << 20


@contextlib.contextmanager
def provider(**policy: Any) -> Iterator[str]:
    """A general provider with another policy; its name."""
    other = type("Other", (General,), {"name": "other", **policy})()
    registry.register(other)
    try:
        yield "other"
    finally:
        registry._providers.pop("other")


@contextlib.contextmanager
def duo(name: str, caps: int = ALL_CAPS, mr_mode: int = 0) -> Iterator[tuple[Node, Node, int]]:
    """(initiator, target, fi_addr) on that provider."""

    def edit(info: fi.Info) -> None:
        info.fabric_attr.prov_name = name

    with opened(caps, mr_mode=mr_mode, edit=edit) as target, opened(caps, mr_mode=mr_mode, edit=edit) as initiator:
        assert target.domain.provider.name == name
        yield initiator, target, initiator.av.insert(target.name)


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    found = Addresses(8)
    yield found
    found.close()


# ---- policies --------------------------------------------------------------------------------------------------------


@pytest.mark.general("providers derived from it")
@pytest.mark.clause("mr.reg.key-unsupported")
def test_provider_without_client_keys_rejects_them() -> None:
    with provider(keys=KeyRules(client_bits=0)) as name, duo(name) as (_, target, _):
        for call in (
            lambda: target.domain.mr_reg(bytearray(8), RW, requested_key=5),
            lambda: target.domain.mr_regv([bytearray(8)], RW, requested_key=5),
            lambda: target.domain.mr_regattr(fi.MrAttr([bytearray(8)], access=int(RW), requested_key=5)),
        ):
            with pytest.raises(fi.KeyRejected, match="makes the keys itself") as caught:
                call()
            assert caught.value.errno == fi.EKEYREJECTED
        target.reg(bytearray(8))


@pytest.mark.general("providers derived from it")
@pytest.mark.clause("mr.bind.enosys")
def test_provider_without_region_events_binds_no_counter() -> None:
    with provider(regions=RegionRules(events=False)) as name, duo(name) as (_, target, _):
        mr = target.reg(bytearray(8), requested_key=KEY)
        counter = target.keep(target.domain.cntr_open())
        with pytest.raises(fi.NoSys, match="cannot report accesses") as caught:
            mr.bind(counter, fi.REMOTE_WRITE)
        assert caught.value.errno == fi.ENOSYS


@pytest.mark.clause("mr.collective.capability")
def test_collective_mode_goes_with_the_collective_capability() -> None:
    class Collecting(General):
        name = "other"

        def offers(self, asked: Asked) -> list[Any]:
            found = super().offers(asked)
            for offer in found:
                offer.required |= fi.MR_COLLECTIVE
            return found

    registry.register(Collecting())
    try:
        asked = hints(ALL_CAPS, int(fi.MR_COLLECTIVE))
        asked.fabric_attr.prov_name = "other"
        assert not fi.getinfo(hints=asked)[0].domain_attr.mr_mode & fi.MR_COLLECTIVE
        asked.caps |= fi.COLLECTIVE
        assert fi.getinfo(hints=asked)[0].domain_attr.mr_mode & fi.MR_COLLECTIVE
        asked.domain_attr.mr_mode = 0
        with pytest.raises(fi.NoData, match="MR_COLLECTIVE"):
            fi.getinfo(hints=asked)
    finally:
        registry._providers.pop("other")


@pytest.mark.general("providers derived from it")
@pytest.mark.clause("mr.refresh.stays-enabled", "mr.refresh.atomic", "mr.refresh.optional")
def test_refresh_without_mmu_notify_leaves_the_region_open(addresses: Addresses) -> None:
    """A peer writes all the while: none of its writes is refused, and the existing pages get them."""
    addresses.back()
    with provider(regions=RegionRules(refreshes=True)) as name, duo(name) as (initiator, target, peer):
        mr = target.reg((addresses.at, addresses.nbytes), requested_key=KEY)
        stop = threading.Event()

        def refresh() -> None:
            while not stop.is_set():
                mr.refresh()
                mr.refresh([(addresses.at + PAGE, PAGE)])

        thread = threading.Thread(target=refresh)
        thread.start()
        try:
            assert {outcome(initiator, peer, addr=i % 8 * PAGE) for i in range(400)} == {0}
        finally:
            stop.set()
            thread.join()
        assert mr.state == "enabled"
        addresses.unback(7, 1)
        with pytest.raises(fi.FabricError, match=f"{addresses.at + 7 * PAGE:#x}"):
            mr.refresh()
        assert mr.state == "enabled"
        assert outcome(initiator, peer, addr=7 * PAGE) == fi.EFAULT
        addresses.back()
        mr.refresh()
        assert outcome(initiator, peer, addr=7 * PAGE) == 0


# ---- descriptors -----------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.local.desc-ignored-old")
def test_before_interface_1_22_the_descriptor_is_disregarded() -> None:
    def at(version: int) -> Any:
        def edit(info: fi.Info) -> None:
            info.fabric_attr.api_version = version

        return edit

    with opened(edit=at(fi.VERSION(1, 21))) as old, opened(edit=at(fi.VERSION(1, 22))) as new:
        for node in (old, new):
            node.reg(np.zeros(8, np.uint8), requested_key=KEY)
        garbage: Any = "garbage"
        old.ep.write(b"12345678", garbage, old.me, 0, KEY)
        old.wait()
        with pytest.raises(fi.InvalidArgument, match="desc"):
            new.ep.write(b"12345678", garbage, new.me, 0, KEY)
    # Where local buffers must be registered, the descriptor is checked all the same.
    with opened(mr_mode=int(fi.MR_LOCAL), edit=at(fi.VERSION(1, 21))) as local:
        local.reg(np.zeros(8, np.uint8), requested_key=KEY)
        with pytest.raises(fi.InvalidArgument, match="desc"):
            local.ep.write(b"12345678", garbage, local.me, 0, KEY)


# ---- FI_MR_ALLOCATED, FI_MR_BASIC ------------------------------------------------------------------------------------


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("mr.allocated.backed", "mr.basic.allocated")
@pytest.mark.parametrize("mr_mode", [fi.MR_ALLOCATED, fi.MR_BASIC])
def test_under_allocated_the_whole_region_has_pages(addresses: Addresses, mr_mode: int) -> None:
    with opened(mr_mode=int(mr_mode)) as node:
        addresses.back()
        addresses.unback(5, 1)
        for call in (
            lambda: node.domain.mr_reg((addresses.at, addresses.nbytes), RW),
            lambda: node.domain.mr_regv([bytearray(8), (addresses.at, addresses.nbytes)], RW),
            lambda: node.domain.mr_regattr(fi.MrAttr([(addresses.at, addresses.nbytes)], access=int(RW))),
        ):
            with pytest.raises(fi.FabricError, match=f"{addresses.at + 5 * PAGE:#x}") as caught:
                call()
            assert caught.value.errno == fi.EFAULT
        addresses.back()
        node.reg((addresses.at, addresses.nbytes))
    with opened() as free:  # without the mode the pages may come later
        addresses.unback(5, 1)
        free.reg((addresses.at, addresses.nbytes))


@pytest.mark.clause("mr.allocated.no-remap")
def test_pages_removed_from_a_live_region_cause_an_error(addresses: Addresses) -> None:
    """The application broke its promise: the access of its peer fails, and other accesses still work."""
    addresses.back()
    with pair(mr_mode=int(fi.MR_ALLOCATED)) as (initiator, target, peer):
        target.reg((addresses.at, addresses.nbytes), requested_key=KEY)
        assert outcome(initiator, peer) == 0
        addresses.unback(0, 1)
        assert outcome(initiator, peer) == fi.EFAULT
        assert outcome(initiator, peer, addr=PAGE) == 0


# ---- page_size -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.page-size.later-pages", "mr.page-size.mismatch")
def test_pages_of_another_size_than_the_regions_are_not_attached(addresses: Addresses) -> None:
    """The region stays out of reach, so transfers fail, until pages of its size are there."""
    from weft.memory.pages import page_sizes

    if HUGE not in page_sizes():
        pytest.skip("this system has no huge pages of 2 MiB")
    addresses.back()
    with pair(mr_mode=int(fi.MR_MMU_NOTIFY)) as (initiator, target, peer):

        def attr(page_size: int) -> fi.MrAttr:
            return fi.MrAttr([(addresses.at, addresses.nbytes)], access=int(RW), requested_key=KEY, page_size=page_size)

        with target.domain.mr_regattr(attr(HUGE)) as mr:
            with pytest.raises(fi.InvalidArgument, match=f"the pages at .* have {PAGE} B"):
                mr.refresh()
            assert mr.state == "disabled"
            assert outcome(initiator, peer) == fi.EACCES
        with target.domain.mr_regattr(attr(PAGE)) as mr:
            mr.refresh()
            assert outcome(initiator, peer) == 0


# ---- raw keys --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.raw.large-keys", "mr.raw.peer-setup")
def test_raw_keys_are_wide_and_work_after_they_were_mapped() -> None:
    with pair(mr_mode=int(fi.MR_RAW)) as (initiator, target, peer):
        memory = np.zeros(8, np.uint8)
        _, raw = target.reg(memory, requested_key=KEY).raw_attr()
        assert len(raw) == target.domain.attr.mr_key_size == 16
        # The number alone is no key here: the peer has nothing mapped.
        assert outcome(initiator, peer) == fi.EKEYREJECTED
        for damaged in (raw[:8], raw[:15], raw + b"\0", bytes([raw[0] ^ 1]) + raw[1:], raw[:-1] + bytes([raw[-1] ^ 1])):
            with pytest.raises(fi.InvalidArgument):
                initiator.domain.map_raw(0, damaged)
        first, second = initiator.domain.map_raw(0, raw), initiator.domain.map_raw(0, raw)
        assert first != second
        for key in (first, second):
            memory[:] = 0
            initiator.ep.write(b"\x11" * 8, dest_addr=peer, addr=0, key=key)
            initiator.wait()
            assert memory.all()
        initiator.domain.unmap_key(first)
        initiator.ep.write(b"\x11" * 8, dest_addr=peer, addr=0, key=first)
        assert initiator.wait_error().err == fi.EKEYREJECTED
        descs = np.zeros(2, fi.RMA_DESC)
        descs["length"], descs["dest_addr"], descs["key"] = 4, peer, second
        descs["remote_addr"] = [0, 4]
        initiator.ep.write_batch(np.full(8, 3, np.uint8), descs)
        initiator.wait()
        assert memory.tolist() == [3] * 8
        one, before = np.ones(1, np.uint8), np.zeros(1, np.uint8)
        initiator.ep.fetch_atomic(one, None, before, None, peer, 0, second, datatype=fi.UINT8, op=fi.SUM)
        initiator.wait()
        assert (before[0], memory[0]) == (3, 4)
        initiator.domain.unmap_key(second)


def test_raw_handles_are_far_from_client_keys() -> None:
    """A key that was not mapped is refused: none of the first handles is a number that an application would choose."""
    with pair(mr_mode=int(fi.MR_RAW)) as (initiator, target, peer):
        memory = np.zeros(8, np.uint8)
        _, raw = target.reg(memory, requested_key=1).raw_attr()
        handles = [initiator.domain.map_raw(0, raw) for _ in range(3)]
        assert min(handles) > 1 << 60
        for key in range(8):
            assert outcome(initiator, peer, key) == fi.EKEYREJECTED
        assert not memory.any()
        assert outcome(initiator, peer, handles[1]) == 0
        for handle in handles:
            initiator.domain.unmap_key(handle)


# ---- permissions -----------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.access.relaxed-secure")
def test_remote_access_needs_a_remote_permission() -> None:
    """However loosely a provider checks local permissions, a peer has only the rights that were granted to peers."""
    local = fi.SEND | fi.RECV | fi.READ | fi.WRITE | fi.COLLECTIVE
    with pair() as (initiator, target, peer):
        memory = np.zeros(8, np.uint8)
        for remote, may_write, may_read in (
            (0, False, False),
            (fi.REMOTE_READ, False, True),
            (fi.REMOTE_WRITE, True, False),
            (RW, True, True),
        ):
            with target.domain.mr_reg(memory, local | remote, requested_key=KEY):
                memory[:] = 0
                assert (outcome(initiator, peer) == 0) is may_write
                assert bool(memory.any()) is may_write
                memory[:] = 5
                back = np.zeros(8, np.uint8)
                initiator.ep.read(back, src_addr=peer, addr=0, key=KEY)
                try:
                    initiator.wait()
                    read = True
                except fi.Available:
                    initiator.cq.readerr()
                    read = False
                assert (read, bool(back.any())) == (may_read, may_read)
