"""A region that is closed while its memory is in use: the memory stays until the last use has ended."""

from __future__ import annotations

import gc

from tests.fi.support import RW, opened

import weft


def test_region_of_a_slice_keeps_the_memory_of_a_closed_region() -> None:
    with opened() as node:
        array = weft.zeros(4096, "u1")
        address = array.ctypes.data
        whole = node.domain.mr_reg(array, RW, requested_key=1)
        part = node.domain.mr_reg(whole[0:64], RW, requested_key=2)
        whole.close()
        del array, whole
        gc.collect()
        others = [weft.zeros(4096, "u1") for _ in range(4)]
        assert address not in {other.ctypes.data for other in others}
        part.close()
        del part
        gc.collect()
        others += [weft.zeros(4096, "u1") for _ in range(4)]
        assert address in {other.ctypes.data for other in others}
