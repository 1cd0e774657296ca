"""FI_MR_MMU_NOTIFY: the application says when pages are behind a region (fi_mr_refresh)."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.fi.support import KEY, RW, Addresses, Node, libc, opened, outcome, pair
from tests.patience import Patience

from weft import fi

PAGE = mmap.PAGESIZE


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    found = Addresses(4)
    yield found
    found.close()


@pytest.fixture
def duo() -> Iterator[tuple[Node, Node, int]]:
    with pair(mr_mode=int(fi.MR_MMU_NOTIFY)) as found:
        yield found


@pytest.mark.clause("mr.mmu-notify.before-access", "mr.mmu-notify.via-refresh", "mr.refresh.mandatory")
def test_region_is_out_of_reach_until_it_is_refreshed(duo: tuple[Node, Node, int]) -> None:
    initiator, target, peer = duo
    memory = np.zeros(64, np.uint8)
    mr = target.reg(memory, requested_key=KEY)
    assert mr.state == "disabled"
    assert outcome(initiator, peer) == fi.EACCES
    assert not memory.any()
    mr.refresh()
    assert mr.state == "enabled"
    assert outcome(initiator, peer) == 0
    assert memory[:8].tolist() == [0x11] * 8


@pytest.mark.clause("mr.mmu-notify.meaning", "mr.refresh.failure", "mr.refresh.updates", "mr.refresh.notifies")
def test_refresh_opens_the_region_only_if_all_pages_are_present(
    duo: tuple[Node, Node, int], addresses: Addresses
) -> None:
    """The notification says that all pages are there: where one is not, the region stays closed to peers."""
    initiator, target, peer = duo
    mr = target.reg((addresses.at, addresses.nbytes), requested_key=KEY)
    with pytest.raises(fi.FabricError) as caught:
        mr.refresh()
    assert caught.value.errno == fi.EFAULT
    assert f"{addresses.at:#x}" in str(caught.value)
    assert outcome(initiator, peer) == fi.EACCES
    addresses.back()
    addresses.unback(3, 1)
    with pytest.raises(fi.FabricError, match=f"{addresses.at + 3 * PAGE:#x}"):
        mr.refresh()
    addresses.back()
    mr.refresh()
    assert outcome(initiator, peer, addr=3 * PAGE) == 0
    assert addresses.array()[3 * PAGE : 3 * PAGE + 9].tolist() == [0x11] * 8 + [0]


@pytest.mark.clause("mr.refresh.updates")
def test_replaced_pages_are_reached_after_a_refresh(duo: tuple[Node, Node, int], addresses: Addresses) -> None:
    initiator, target, peer = duo
    addresses.back()
    addresses.array()[:] = 7
    mr = target.reg((addresses.at, addresses.nbytes), requested_key=KEY)
    mr.refresh()
    assert outcome(initiator, peer) == 0
    # MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS: new pages at the old addresses.
    assert libc.mmap(addresses.at, addresses.nbytes, 3, 0x32, -1, 0) == addresses.at
    assert not addresses.array().any()
    mr.refresh()
    into = np.full(16, 9, np.uint8)
    initiator.ep.read(into, src_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert not into.any()
    assert outcome(initiator, peer) == 0
    assert addresses.array()[:9].tolist() == [0x11] * 8 + [0]


@pytest.mark.clause("mr.refresh.iov-portions", "mr.refresh.iov-optional", "mr.refresh.only-given")
def test_iov_names_the_portions_and_only_they_are_looked_at(duo: tuple[Node, Node, int], addresses: Addresses) -> None:
    initiator, target, peer = duo
    mr = target.reg((addresses.at, addresses.nbytes), requested_key=KEY)
    addresses.back(1, 1)
    mr.refresh([(addresses.at + PAGE, PAGE)])  # the other pages are missing: nobody asked for them
    assert outcome(initiator, peer, addr=PAGE) == 0
    assert outcome(initiator, peer, addr=0) == fi.EFAULT  # not guaranteed, and made safe
    mr.refresh([(addresses.at + PAGE, 8), (addresses.at, 8)], 1)
    with pytest.raises(fi.FabricError):
        mr.refresh()  # without iov: all of it
    with pytest.raises(fi.InvalidArgument, match="do not lie within"):
        mr.refresh([(addresses.at - PAGE, PAGE)])
    for start, length in ((0, addresses.nbytes + 1), (addresses.nbytes - 8, 9), (addresses.nbytes, 1), (-1, 2)):
        with pytest.raises(fi.InvalidArgument, match="do not lie within"):
            mr.refresh([(addresses.at + start, length)])
    with pytest.raises(fi.InvalidArgument, match="count 2"):
        mr.refresh([(addresses.at + PAGE, 8)], 2)
    with pytest.raises(fi.BadFlags):
        mr.refresh(flags=1)
    assert outcome(initiator, peer, addr=PAGE) == 0  # the refused calls changed nothing


@pytest.mark.clause("mr.refresh.notify-reenables", "mr.refresh.notify-peers-fail", "mr.refresh.precedence")
def test_peers_are_refused_while_a_refresh_is_under_way(duo: tuple[Node, Node, int]) -> None:
    """ALLOCATED is unset here as well, and the rules of MMU_NOTIFY hold: access is taken away, then given back."""
    initiator, target, peer = duo
    memory = np.ones(64 << 20, np.uint8)  # a refresh looks at each of its pages: it takes a while
    mr = target.reg(memory, requested_key=KEY)
    mr.refresh()
    over = threading.Event()

    def refresh() -> None:
        while not over.wait(0.001):  # a gap, in which the region can be reached
            mr.refresh()

    thread = threading.Thread(target=refresh)
    thread.start()
    try:
        found: set[int] = set()
        patience = Patience(30)
        while found != {0, int(fi.EACCES)} and not patience.over:
            found.add(outcome(initiator, peer))
    finally:
        over.set()
        thread.join()
    assert found == {0, int(fi.EACCES)}
    assert outcome(initiator, peer) == 0


@pytest.mark.general("regions are busy while bound, endpoints are not")
def test_refresh_under_mr_endpoint_waits_for_enable() -> None:
    with pair(mr_mode=int(fi.MR_MMU_NOTIFY | fi.MR_ENDPOINT)) as (initiator, target, peer):
        memory = np.zeros(64, np.uint8)
        mr = target.reg(memory, requested_key=KEY)
        mr.refresh()
        assert mr.state == "disabled"
        mr.bind(target.ep)
        mr.enable()
        assert outcome(initiator, peer) == 0
        other = target.domain.mr_reg(memory, RW, requested_key=KEY + 1)
        other.bind(target.ep)
        other.enable()
        assert other.state == "disabled"
        other.refresh()
        assert other.state == "enabled"
        target.ep.close()  # a region that is bound to it can be closed only then
        other.close()


def test_mmu_notify_is_required_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MR_MODE", "mmu_notify")
    hints = fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft"))
    with pytest.raises(fi.NoData):
        fi.getinfo(hints=hints)
    hints.domain_attr.mr_mode = fi.MR_MMU_NOTIFY
    assert fi.getinfo(hints=hints)[0].domain_attr.mr_mode == fi.MR_MMU_NOTIFY


def test_closed_region_is_not_refreshed() -> None:
    with opened(mr_mode=int(fi.MR_MMU_NOTIFY)) as node:
        mr = node.domain.mr_reg(np.zeros(8, np.uint8), RW, requested_key=KEY)
        mr.close()
        with pytest.raises(fi.BadState):
            mr.refresh()


def test_refresh_brings_no_used_up_region_back(duo: tuple[Node, Node, int]) -> None:
    """FI_MR_SINGLE_USE: after its operation the key stays invalid, also after further calls."""
    initiator, target, peer = duo
    mr = target.reg(np.zeros(64, np.uint8), requested_key=KEY, flags=fi.MR_SINGLE_USE)
    mr.refresh()
    assert outcome(initiator, peer) == 0
    mr.refresh()
    mr.enable()
    assert mr.state == "used up"
    assert outcome(initiator, peer) == fi.EKEYREJECTED


def test_region_closed_during_a_refresh_stays_closed() -> None:
    """Another thread closes it: the refresh ends, or says that it is closed; no peer reaches the memory again."""
    with pair(mr_mode=int(fi.MR_MMU_NOTIFY)) as (initiator, target, peer):
        memory = np.zeros(8 << 20, np.uint8)
        for _ in range(30):
            mr = target.domain.mr_reg(memory, RW, requested_key=KEY)
            mr.refresh()

            def refresh(mr: fi.MemoryRegion = mr) -> None:
                try:
                    for _ in range(50):
                        mr.refresh()
                except fi.BadState:
                    pass

            thread = threading.Thread(target=refresh)
            thread.start()
            outcome(initiator, peer)
            mr.close()
            thread.join()
            assert outcome(initiator, peer) == fi.EKEYREJECTED
