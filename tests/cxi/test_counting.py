"""Counts at the target, and the atomics that PCIe can do. fi_cxi(7) "Optimized RMA", "PCIe Atomics"."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cxi.support import CAPS, RW, opened, register
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import device

PCIE_FETCH = int(fi.FETCH_ATOMIC | cxi.PCIE_AMO)


def hits(node: Node) -> int:
    """Operations that ended at the target without a counting event (C_CNTR_LPE_PLEC_HITS)."""
    return int(node.domain.open_ops(cxi.DOM_OPS_1).cntr_read(node.domain, cxi.C_CNTR_LPE_PLEC_HITS).value)


@pytest.mark.clause("cxi.opt.no-target-counting")
def test_only_regions_with_a_counter_count_at_the_target() -> None:
    with opened(CAPS | fi.RMA_EVENT) as target, opened() as initiator:
        cntr = target.keep(target.domain.cntr_open())
        counted = target.domain.mr_reg(bytearray(8), RW, requested_key=1)
        target.keep(counted)
        counted.bind(target.ep)
        counted.bind(cntr, fi.REMOTE_WRITE)
        counted.enable()
        register(target, bytearray(8), 2)
        to = initiator.av.insert(target.name)
        before = hits(target)
        for key, n, there in ((1, 3, 0), (2, 4, 4)):
            for _ in range(n):
                initiator.ep.write(b"12345678", None, to, 0, key)
            initiator.wait(n)
            assert hits(target) - before == there
        cntr.wait(3, timeout=30)
        assert cntr.read() == 3


@pytest.mark.clause("cxi.pcie.query", "cxi.pcie.query-fetch")
@pytest.mark.parametrize("remap", [10, 0, -1])
def test_query_says_which_atomics_pcie_can_do(remap: int) -> None:
    device.set_values("cxi0", amo_remap_to_pcie_fadd=remap)
    with opened() as node:
        memory = np.zeros(2, "u8")
        register(node, memory, 300)
        for datatype in (fi.INT32, fi.UINT32, fi.INT64, fi.UINT64, fi.DOUBLE, fi.INT16):
            size = fi.datatype_size(datatype)
            for op in (fi.SUM, fi.MIN, fi.BOR):
                with pytest.raises(fi.NotSupported):  # none without fetching
                    node.domain.query_atomic(datatype, op, int(cxi.PCIE_AMO))
                one = np.ones(1, fi.dtype_of(datatype))
                msg = fi.MsgAtomic([one], [fi.RmaIoc(0, 1, 300)], node.me, datatype=datatype, op=op)
                if remap >= 0 and op == fi.SUM and datatype in (fi.INT32, fi.UINT32, fi.INT64, fi.UINT64):
                    assert node.domain.query_atomic(datatype, op, PCIE_FETCH) == fi.AtomicAttr(1, size)
                    node.ep.fetch_atomicmsg(msg, [one.copy()], None, cxi.PCIE_AMO | fi.COMPLETION)
                    node.wait()
                    continue
                with pytest.raises(fi.NotSupported):
                    node.domain.query_atomic(datatype, op, PCIE_FETCH)
                with pytest.raises(fi.NotSupported):
                    node.ep.fetch_atomicmsg(msg, [one.copy()], None, cxi.PCIE_AMO | fi.COMPLETION)
        assert memory[0] == (4 if remap >= 0 else 0)
