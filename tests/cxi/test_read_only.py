"""Regions of memory that is mapped for reading alone: refused for writing accesses, as the device's map would."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import pytest
from tests.cxi.support import opened
from tests.fi.support import Addresses, Node, libc

from weft import fi

PAGE = mmap.PAGESIZE
READS, WRITES = [fi.WRITE, fi.SEND, fi.REMOTE_READ], [fi.READ, fi.RECV, fi.REMOTE_WRITE]


@pytest.fixture
def pages() -> Iterator[Addresses]:
    """Four pages, the third of which is mapped for reading alone."""
    found = Addresses(4)
    found.back()
    found.array()[:] = 7
    assert libc.mprotect(found.at + 2 * PAGE, PAGE, mmap.PROT_READ) == 0
    yield found
    found.close()


@pytest.mark.parametrize("access", WRITES)
@pytest.mark.parametrize(("first", "length"), [(2, 1), (0, 4), (1, 2), (2, 2)])
def test_access_that_writes_to_read_only_pages_is_refused(
    node: Node, pages: Addresses, access: fi.Flag, first: int, length: int
) -> None:
    buf = (pages.at + first * PAGE, length * PAGE)
    for call in (
        lambda: node.domain.mr_reg(buf, access | fi.REMOTE_READ, requested_key=200),
        lambda: node.domain.mr_regv([buf], access, requested_key=200),
        lambda: node.domain.mr_regattr(fi.MrAttr([buf], access=access, requested_key=200)),
    ):
        with pytest.raises(fi.AccessDenied, match=f"{pages.at + 2 * PAGE:#x} .*reading alone"):
            call()
    assert not node.domain.regions()


@pytest.mark.parametrize("access", READS)
def test_access_that_reads_is_granted_on_read_only_pages(node: Node, pages: Addresses, access: fi.Flag) -> None:
    with node.domain.mr_reg((pages.at, 4 * PAGE), access, requested_key=200) as mr:
        assert mr.access == access


@pytest.mark.parametrize(("first", "bytes"), [(0, 2 * PAGE), (3, PAGE), (2, 0)])
def test_pages_beside_the_read_only_one_are_registered_for_writes(
    node: Node, pages: Addresses, first: int, bytes: int
) -> None:
    with node.domain.mr_reg((pages.at + first * PAGE, bytes), fi.REMOTE_WRITE, requested_key=200):
        pass


@pytest.mark.parametrize("access", WRITES)
def test_read_only_object_is_refused(node: Node, access: fi.Flag) -> None:
    for buf in (b"12345678", mmap.mmap(-1, PAGE, prot=mmap.PROT_READ)):
        with pytest.raises(fi.AccessDenied):
            node.domain.mr_reg(buf, access, requested_key=200)


def test_part_of_an_object_over_read_only_pages_is_refused(node: Node, pages: Addresses) -> None:
    """The object says that it is writable."""
    array = (ctypes.c_uint8 * (4 * PAGE)).from_address(pages.at)
    with pytest.raises(fi.AccessDenied, match="reading alone"):
        node.domain.mr_reg(array, fi.REMOTE_WRITE, requested_key=200, len=4 * PAGE - 1)
    with node.domain.mr_reg(array, fi.REMOTE_WRITE, requested_key=200, len=2 * PAGE):
        pass


def test_pages_are_not_looked_at_where_they_may_come_later(monkeypatch: pytest.MonkeyPatch, pages: Addresses) -> None:
    """Without MR_ALLOCATED, under on-demand paging, the pages of a region are the pages at each access."""
    monkeypatch.setenv("FI_CXI_ODP", "1")

    def on_demand(info: fi.Info) -> None:
        info.domain_attr.mr_mode = fi.MR_ENDPOINT

    with (
        opened(edit=on_demand) as node,
        node.domain.mr_reg((pages.at, 4 * PAGE), fi.REMOTE_WRITE, requested_key=200),
    ):
        pass
