"""Regions as Python objects: references that the collector sees, attributes of their own, and weak references."""

from __future__ import annotations

import gc
import sysconfig
import weakref

import numpy as np
import pytest
from tests.fi.support import Node, opened

from weft import _nic, fi

RW = fi.REMOTE_READ | fi.REMOTE_WRITE
BUF = np.zeros(8, "u1")
# Without a GIL nanobind makes every region's object (cpp/bind/mr_object.cpp).
light_objects = pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="this Python has no GIL")


@light_objects
@pytest.mark.general  # its regions are bound to nothing
def test_the_collector_does_not_walk_over_an_ordinary_region(node: Node) -> None:
    with node.domain.mr_reg(BUF, RW, requested_key=5) as mr:
        assert not gc.is_tracked(mr)
        mr.note = "mine"  # type: ignore[attr-defined]
        assert gc.is_tracked(mr)
        assert mr.__dict__ == {"note": "mine"}


def test_a_region_in_a_cycle_is_collected(node: Node) -> None:
    mr = node.domain.mr_reg(BUF, RW, requested_key=5)
    gone = weakref.ref(mr)
    mr.close()
    mr.itself = mr  # type: ignore[attr-defined]
    del mr
    assert gone() is not None
    gc.collect()
    assert gone() is None


@pytest.mark.general
def test_a_bound_region_in_a_cycle_with_its_endpoint_is_collected() -> None:
    with opened() as node:
        mr = node.domain.mr_reg(BUF, RW, requested_key=5)
        ep = node.domain.endpoint(node.info)
        ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(node.av)
        ep.enable()
        mr.bind(ep)
        ep.mine = mr  # type: ignore[attr-defined]
        gone = weakref.ref(mr)
        ep.close()
        mr.close()
        del mr, ep
        gc.collect()
        assert gone() is None


def test_a_weak_reference_to_a_region_ends_with_it(node: Node) -> None:
    ended = []
    mr = node.domain.mr_reg(BUF, RW, requested_key=5)
    gone = weakref.ref(mr, ended.append)
    mr.close()
    del mr
    assert gone() is None
    assert ended == [gone]


def test_a_region_that_was_never_closed_warns_and_its_key_is_free(node: Node) -> None:
    mr = node.domain.mr_reg(BUF, RW, requested_key=5)
    with pytest.warns(ResourceWarning, match="never closed"):
        del mr
    with node.domain.mr_reg(BUF, RW, requested_key=5) as again:
        assert again.key == 5 or node.domain.policy.keys.provider


def test_numbers_are_given_out_from_the_lowest_free_one() -> None:
    numbers = _nic.Numbers(130)
    assert [numbers.take() for _ in range(130)] == list(range(130))
    assert numbers.take() is None
    assert numbers.give(129)
    assert numbers.give(64)
    assert numbers.give(3)
    assert not numbers.give(3)
    assert not numbers.give(130)
    assert [numbers.take() for _ in range(4)] == [3, 64, 129, None]
    assert len(numbers) == 130


def test_a_stock_gives_all_that_is_asked_for_or_nothing() -> None:
    stock = _nic.Stock(["les", "ptes"])
    stock.add("les", 3)
    assert not stock.take("les", 4)
    assert stock.take("les", 2)
    assert (stock["les"], stock["ptes"]) == (1, 0)
    assert stock.clear("les") == 1
    assert stock["les"] == 0
    with pytest.raises(KeyError):
        stock.add("tles", 1)


@light_objects
@pytest.mark.general
@pytest.mark.parametrize("light", [True, False], ids=["light", "by-nanobind"])
def test_a_region_is_the_same_whoever_makes_its_object(light: bool) -> None:
    """The extension copies the head of nanobind's objects. Where it does not know the head, nanobind makes all."""
    assert _nic.light_regions(), "the installed nanobind has another layout: registration is slower, and works"
    _nic.allow_light_regions(light)
    try:
        assert _nic.light_regions() == light
        with opened() as node:
            mr = node.domain.mr_reg(BUF, RW, requested_key=5)
            gone = weakref.ref(mr)
            assert (mr.length, mr.closed, mr in node.domain.regions()) == (8, False, True)
            assert not hasattr(mr, "note")
            mr.note = [mr]  # type: ignore[attr-defined]
            with pytest.raises(fi.NoKey):
                node.domain.mr_reg(BUF, RW, requested_key=5)
            node.ep.write(b"12345678", None, node.me, 0, mr.key)
            node.wait()
            assert bytes(BUF) == b"12345678"
            _nic.allow_light_regions(not light)  # the other kind, while this region is open
            with node.domain.mr_reg(BUF, RW, requested_key=6) as other:
                assert other[2:4].address == BUF.ctypes.data + 2
            mr.close()
            del mr, other
            gc.collect()
            assert gone() is None
            with pytest.warns(ResourceWarning, match="never closed"):
                node.domain.mr_reg(BUF, RW, requested_key=5)
    finally:
        _nic.allow_light_regions(True)
