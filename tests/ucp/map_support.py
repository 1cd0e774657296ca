"""Shared by the tests of ucp_mem_map."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from tests.ucp.support import (
    IO_ERROR,
    OK,
    Addresses,
    Rig,
)

from weft import ucp


@contextlib.contextmanager
def addresses(pages: int, *, backed: bool = False) -> Iterator[Addresses]:
    """Reserved addresses; with pages behind them where `backed`."""
    found = Addresses(pages)
    if backed:
        found.back()
    try:
        yield found
    finally:
        found.close()


def works(rig: Rig, memh: ucp.MemHandle) -> None:
    """A remote key reaches both ends of the memory, and not one byte further; atomics update the memory."""
    with rig.key(memh) as rkey:
        word = -memh.address % 8  # the first aligned one
        if word + 8 <= memh.length:
            before = ctypes.c_uint64.from_address(memh.address + word)
            expected = (before.value + 5) % (1 << 64)
            assert rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 5, memh.address + word, rkey) is ucp.DONE
            rig.flush()
            assert before.value == expected
            rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, -5, memh.address + word, rkey)
            rig.flush()
        last = memh.address + memh.length - 1
        assert rig.put(b"F", memh.address, rkey) is OK
        assert rig.put(b"L", last, rkey) is OK
        assert ctypes.string_at(memh.address, memh.length)[:1] == (b"L" if memh.length == 1 else b"F")
        assert ctypes.string_at(last, 1) == b"L"
        assert rig.get(1, last, rkey) == b"L"
        assert rig.put(b"x", last + 1, rkey) is IO_ERROR
