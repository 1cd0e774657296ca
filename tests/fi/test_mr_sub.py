"""fi_mr(3): regions within a base region (base_mr)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.mr_support import Duo, get, memory, put, refused
from tests.fi.support import RW

from weft import fi

# ---- sub-MRs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def base(duo: Duo) -> Iterator[tuple[Duo, np.ndarray[Any, Any], fi.MemoryRegion]]:
    """A base region of 64 bytes under key 1."""
    data = memory(duo[1])
    mr = duo[1].domain.mr_reg(data, RW, requested_key=1)
    yield duo, data, mr
    mr.close()


@pytest.mark.general("several buffers a call")
def test_mr_sub_mr_crosses_the_border_of_adjoining_buffers(duo: Duo) -> None:
    """fi_mr(3) base_mr: it is contained in the base, whose buffers adjoin; a gap between them is not in it."""
    initiator, target, peer = duo
    data = target.domain.alloc(64, "u1")
    data.fill(0)
    pieces = [data[16:32], data[:16], data[40:]]
    with target.domain.mr_regv(pieces, RW, requested_key=1) as base_mr:
        attr = fi.MrAttr(mr_iov=[data[8:24]], access=RW, requested_key=2, base_mr=base_mr)
        with target.domain.mr_regattr(attr):
            put(initiator, peer, b"0123456789abcdef", 0, 2)
            assert bytes(data[8:24]) == b"0123456789abcdef"
        for beyond in (data[8:33], data[30:42]):
            attr = fi.MrAttr(mr_iov=[beyond], access=RW, requested_key=2, base_mr=base_mr)
            with pytest.raises(fi.InvalidArgument, match="do not lie within base_mr"):
                target.domain.mr_regattr(attr)


@pytest.mark.general("several buffers a call")
def test_mr_sub_mr_lies_in_a_buffer_that_holds_another_buffer(duo: Duo) -> None:
    _, target, _ = duo
    data = target.domain.alloc(64, "u1")
    with target.domain.mr_regv([data[:48], data[8:16]], RW, requested_key=1) as base_mr:
        attr = fi.MrAttr(mr_iov=[data[20:48]], access=RW, requested_key=2, base_mr=base_mr)
        target.domain.mr_regattr(attr).close()


@pytest.mark.clause("mr.submr.create", "mr.base-mr.non-null", "mr.base-mr.own-access")
def test_mr_sub_mr_has_its_own_key_and_rights(base: Any) -> None:
    """fi_mr(3) base_mr: a sub-MR lies in its base and has access rights of its own."""
    (initiator, target, peer), data, mr = base
    attr = fi.MrAttr(mr_iov=[data[16:32]], access=fi.REMOTE_READ, requested_key=2, base_mr=mr)
    with target.domain.mr_regattr(attr) as sub:
        assert sub.base_mr is mr
        assert (sub.key, sub.length) == (2, 16)
        put(initiator, peer, b"via base", 16, 1)
        assert get(initiator, peer, 8, 0, 2) == b"via base"
        assert refused(initiator, peer, 0, 2) == fi.EACCES


@pytest.mark.clause("mr.base-mr.contained")
def test_mr_sub_mr_beyond_its_base_is_invalid(base: Any) -> None:
    (_, target, _), data, mr = base
    inner = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data[8:16]], access=RW, requested_key=2, base_mr=mr))
    for buf, of in ((memory(target), mr), (data[8:17], inner), (data[7:16], inner)):
        with pytest.raises(fi.InvalidArgument, match="base"):
            target.domain.mr_regattr(fi.MrAttr(mr_iov=[buf], access=RW, requested_key=3, base_mr=of))
    inner.close()


@pytest.mark.clause("mr.submr.hierarchy", "mr.base-mr.close-fails")
def test_mr_sub_mrs_nest_and_hold_their_base(base: Any) -> None:
    """fi_mr(3) base_mr: a sub-MR may be a base; closing a base with outstanding sub-MRs fails."""
    (initiator, target, peer), data, mr = base
    sub = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data[8:40]], access=RW, requested_key=2, base_mr=mr))
    leaf = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data[10:12]], access=RW, requested_key=3, base_mr=sub))
    put(initiator, peer, b"lf", 0, 3)
    assert bytes(data[10:12]) == b"lf"
    for holder in (mr, sub):
        with pytest.raises(fi.Busy, match="MemoryRegion"):
            holder.close()
        assert holder.state == "enabled"
    leaf.close()
    sub.close()


@pytest.mark.clause(
    "mr.base-mr.inherit-iface",
    "mr.base-mr.inherit-device",
    "mr.base-mr.inherit-page-size",
    "mr.sub-mr-cnt.expected",
    "mr.sub-mr-cnt.not-limit",
    "mr.sub-mr-cnt.may-ignore",
)
def test_mr_sub_mr_ignores_inherited_attributes_and_the_count(duo: Duo) -> None:
    _, target, _ = duo
    data = memory(target)
    mr = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data], access=RW, requested_key=1, sub_mr_cnt=1))
    subs = [
        target.domain.mr_regattr(
            fi.MrAttr(
                mr_iov=[data[i : i + 1]], access=RW, requested_key=10 + i, base_mr=mr, iface=99, device=7, page_size=3
            )
        )
        for i in range(3)
    ]
    assert all(s.state == "enabled" for s in subs)
    for s in (*subs, mr):
        s.close()
