"""`with` on handles: an exception of the block is raised even if close() fails."""

from __future__ import annotations

import sys

import pytest

from weft import errors, fi


def test_with_fabric_keeps_the_blocks_error() -> None:
    """A domain that the block had no time to close is no reason to hide why it had none."""
    info = fi.getinfo(hints=fi.Info(caps=fi.RMA))[0]
    opened: list[fi.Domain] = []

    def block() -> None:
        with fi.Fabric(info.fabric_attr) as fabric:
            opened.append(fabric.domain(info))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        block()
    domain = opened[0]
    fabric = domain.fabric
    assert not fabric.closed
    if sys.version_info >= (3, 11):
        assert "still used by" in caught.value.__notes__[0]
        assert repr(fabric) in caught.value.__notes__[0]
    domain.close()
    fabric.close()


def test_with_fabric_that_is_in_use_is_busy() -> None:
    info = fi.getinfo(hints=fi.Info(caps=fi.RMA))[0]
    with pytest.raises(errors.Busy, match="still used by"), fi.Fabric(info.fabric_attr) as fabric:
        domain = fabric.domain(info)
    domain.close()
    fabric.close()


def test_with_handles_closes_them_when_the_block_fails() -> None:
    info = fi.getinfo(hints=fi.Info(caps=fi.RMA))[0]
    with pytest.raises(KeyError), fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        raise KeyError
    assert domain.closed
    assert fabric.closed
