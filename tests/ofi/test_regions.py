"""Regions of a real libfabric: their state, and which buffers they are made of."""

from __future__ import annotations

import contextlib

import pytest
from tests.ofi.support import offer, open_node

from weft import fi

RW = fi.REMOTE_READ | fi.REMOTE_WRITE


def test_region_says_its_state(provider: str) -> None:
    with contextlib.closing(open_node(offer(provider))) as node:
        region = node.domain.mr_reg(bytearray(8), RW, requested_key=1)
        assert region.state == "enabled"
        region.close()
        assert region.state == "closed"


def test_more_buffers_than_the_limit_are_refused(provider: str) -> None:
    """The library takes the first of them, and says nothing of the others."""
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
