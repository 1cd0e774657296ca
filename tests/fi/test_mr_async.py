"""Asynchronous registration (FI_REG_MR, deprecated): a region is complete when its event was read."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from tests.fi.support import KEY, RW, WATCHDOG_S, Node, opened, outcome

from weft import fi


@contextlib.contextmanager
def asynchronous(mr_mode: int = 0) -> Iterator[tuple[Node, Node, fi.EventQueue, int]]:
    """(initiator, target whose domain reports to the queue, the queue, fi_addr of the target)."""
    with opened(mr_mode=mr_mode) as target, opened(mr_mode=mr_mode) as initiator:
        eq = target.fabric.eq_open()
        target.domain.bind(eq, fi.REG_MR)
        try:
            yield initiator, target, eq, initiator.av.insert(target.name)
        finally:
            target.ep.close()
            for obj in (*reversed(target.extra), target.cq, target.av, target.domain, eq):
                obj.close()  # the queue after the domain that reports to it


@pytest.mark.general("keys of eight bytes")
@pytest.mark.clause("mr.key.notavail-incomplete", "mr.desc.after-completion", "mr.raw-attr.after-completion")
def test_region_has_key_and_descriptor_once_its_event_was_read() -> None:
    with asynchronous() as (_, target, eq, _):
        mr = target.reg(np.zeros(8, np.uint8), requested_key=KEY)
        assert mr.key == fi.KEY_NOTAVAIL
        with pytest.raises(fi.BadState, match="MR_COMPLETE"):
            mr.desc  # noqa: B018
        with pytest.raises(fi.BadState, match="MR_COMPLETE"):
            mr.raw_attr()
        event, entry = eq.sread(WATCHDOG_S)
        assert (event, entry.fid) == (fi.MR_COMPLETE, mr)
        assert mr.key == KEY
        assert mr.desc is not None
        assert mr.raw_attr()[1] == KEY.to_bytes(8, "little")


@pytest.mark.general("regions are busy while bound, endpoints are not")
def test_peers_are_refused_until_the_registration_is_complete() -> None:
    with asynchronous() as (initiator, target, eq, peer):
        memory = np.zeros(8, np.uint8)
        mr = target.reg(memory, requested_key=KEY)
        assert mr.state == "disabled"
        assert outcome(initiator, peer) == fi.EACCES
        assert not memory.any()
        eq.sread(WATCHDOG_S, flags=fi.PEEK)  # seen is seen
        assert mr.state == "enabled"
        assert outcome(initiator, peer) == 0
        assert memory.all()
        assert eq.read() is not None
        assert eq.read() is None


@pytest.mark.clause("mr.reg.async-mr-lifetime")
def test_unreferenced_region_lives_until_its_event() -> None:
    with asynchronous() as (initiator, target, eq, peer):
        memory = np.zeros(8, np.uint8)
        seen = weakref.ref(target.domain.mr_reg(memory, RW, requested_key=KEY, context="mine"))
        gc.collect()
        assert seen() is not None
        _, entry = eq.sread(WATCHDOG_S)
        assert (entry.fid, entry.context) == (seen(), "mine")
        assert outcome(initiator, peer) == 0
        entry.fid.close()


def test_region_closed_before_its_event_stays_closed() -> None:
    with asynchronous() as (initiator, target, eq, peer):
        mr = target.domain.mr_reg(np.zeros(8, np.uint8), RW, requested_key=KEY)
        mr.close()
        _, entry = eq.sread(WATCHDOG_S)
        assert entry.fid is mr
        assert mr.state == "closed"
        assert outcome(initiator, peer) == fi.EKEYREJECTED


@pytest.mark.general("regions are busy while bound, endpoints are not")
def test_completion_does_not_stand_in_for_enable() -> None:
    """Under FI_MR_ENDPOINT a region waits for bind and enable, before or after its event."""
    for event_first in (True, False):
        with asynchronous(int(fi.MR_ENDPOINT)) as (initiator, target, eq, peer):
            mr = target.domain.mr_reg(np.zeros(8, np.uint8), RW, requested_key=KEY)
            if event_first:
                eq.sread(WATCHDOG_S)
                assert mr.state == "disabled"
            mr.bind(target.ep)
            mr.enable()
            if not event_first:
                assert mr.state == "disabled"
                eq.sread(WATCHDOG_S)
            assert mr.state == "enabled"
            assert outcome(initiator, peer) == 0
            target.ep.close()
            mr.close()


@pytest.mark.general("regions are busy while bound, endpoints are not")
def test_refresh_waits_for_completion() -> None:
    with asynchronous(int(fi.MR_MMU_NOTIFY)) as (initiator, target, eq, peer):
        mr = target.reg(np.zeros(8, np.uint8), requested_key=KEY)
        with pytest.raises(fi.BadState, match="MR_COMPLETE"):
            mr.refresh()
        eq.sread(WATCHDOG_S)
        assert mr.state == "disabled"
        mr.refresh()
        assert outcome(initiator, peer) == 0
