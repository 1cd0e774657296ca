"""Regions of a real libfabric: their state, and which buffers they are made of."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
from tests.ofi.support import RW, finish, library_version, offer, open_node, pair, post, until

from weft import fi


def test_region_says_its_state(provider: str) -> None:
    with contextlib.closing(open_node(offer(provider))) as node:
        region = node.domain.mr_reg(bytearray(8), RW, requested_key=1)
        assert region.state == "enabled"
        region.close()
        assert region.state == "closed"


def test_more_buffers_than_the_limit_are_refused(provider: str) -> None:
    """The library takes the first buffer, and ignores the others silently."""
    with contextlib.closing(open_node(offer(provider))) as node:
        limit = node.info.domain_attr.mr_iov_limit
        many = [bytearray(8) for _ in range(limit + 1)]
        with pytest.raises(fi.InvalidArgument, match=f"{limit + 1} buffers\n  rule: 1 to mr_iov_limit, {limit}"):
            node.domain.mr_regv(many, RW, requested_key=1)
        with pytest.raises(fi.InvalidArgument, match="0 buffers"):
            node.domain.mr_regv([], RW, requested_key=1)
        with node.domain.mr_regv(many[:limit], RW, requested_key=1) as region:
            assert region.length == 8 * limit


def test_iov_count_says_how_many_buffers_are_registered(provider: str) -> None:
    with contextlib.closing(open_node(offer(provider))) as node:
        attr = fi.MrAttr(mr_iov=[bytearray(8), b"not used, and read-only"], iov_count=1, access=RW, requested_key=1)
        with node.domain.mr_regattr(attr) as region:
            assert region.length == 8


WITH_DMABUFS = (1, 20)


@pytest.fixture
def piece() -> Iterator[fi.MrDmabuf]:
    """In the place of a DMA-buf, a mapped file: the second page. These providers look at the mapping alone."""
    fd = os.memfd_create("dmabuf")
    os.ftruncate(fd, 2 * mmap.PAGESIZE)
    with mmap.mmap(fd, 2 * mmap.PAGESIZE) as mapped:
        memory = np.frombuffer(mapped, "u1")
        yield fi.MrDmabuf(fd, mmap.PAGESIZE, mmap.PAGESIZE, memory.ctypes.data)
        del memory
    os.close(fd)


def test_dmabuf_is_registered_where_it_is_mapped(provider: str, piece: fi.MrDmabuf) -> None:
    with pair(provider) as (a, b):
        attr = fi.MrAttr(access=RW, requested_key=7, dmabuf=piece)
        if library_version() < WITH_DMABUFS or provider == "ofi:tcp":
            with pytest.raises(fi.NotSupported, match=r"newer libfabric|no DMA-bufs"):
                b.domain.mr_regattr(attr, fi.MR_DMABUF)
            return
        mr = b.domain.mr_regattr(attr, fi.MR_DMABUF)
        assert piece.base_addr is not None
        assert (mr.address, mr.length) == (piece.base_addr + piece.offset, piece.len)
        to = a.to(b)
        post(lambda: a.ep.write(np.full(16, 7, "u1"), None, to, b.place(mr, 32), mr.key, "written"), a, b)
        assert finish(a, 1, b)[0].op_context == "written"
        until(lambda: os.pread(piece.fd, 16, piece.offset + 32) == bytes([7] * 16), a, b)
        assert os.pread(piece.fd, 32, piece.offset) == bytes(32)
        mr.close()


def test_dmabuf_that_is_not_mapped_is_refused(provider: str, piece: fi.MrDmabuf) -> None:
    """The library would copy to the address 0 when a peer writes, and end the process."""
    node = open_node(offer(provider))
    piece.base_addr = None
    with pytest.raises(fi.FabricError, match=r"base_addr|no DMA-bufs"):
        node.domain.mr_regattr(fi.MrAttr(access=RW, requested_key=7, dmabuf=piece), fi.MR_DMABUF)
    piece.base_addr = 1 << 40
    with pytest.raises(fi.FabricError):
        node.domain.mr_regattr(fi.MrAttr(access=RW, requested_key=7, dmabuf=piece), fi.MR_DMABUF)
    with pytest.raises(TypeError, match="MrDmabuf"):
        node.domain.mr_regattr(fi.MrAttr(access=RW, requested_key=7), fi.MR_DMABUF)
    node.close()


def test_sub_mr_keeps_its_base_open(provider: str) -> None:
    node = open_node(offer(provider))
    memory = np.zeros(64, "u1")
    base = node.domain.mr_reg(memory, RW, requested_key=1)
    attr = fi.MrAttr(mr_iov=[memory[:16]], access=RW, requested_key=2, base_mr=base)
    if library_version() < WITH_DMABUFS:
        with pytest.raises(fi.NotSupported, match="newer libfabric"):
            node.domain.mr_regattr(attr)
    else:
        part = node.domain.mr_regattr(attr)
        assert part.base_mr is base
        with pytest.raises(fi.Busy, match="MemoryRegion"):
            base.close()
        part.close()
    base.close()
    with pytest.raises(fi.BadState, match="closed"):
        node.domain.mr_regattr(attr)
    node.close()


def test_base_mr_of_another_domain_is_refused(provider: str) -> None:
    with pair(provider) as (a, b):
        memory = np.zeros(64, "u1")
        other = a.register(memory)
        with pytest.raises(fi.InvalidArgument, match="base_mr"):
            b.domain.mr_regattr(fi.MrAttr(mr_iov=[memory], access=RW, requested_key=2, base_mr=other))
