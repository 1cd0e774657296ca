"""Local descriptors: enable_hybrid_mr_desc. fi_cxi(7) "CXI Domain Extensions"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cxi.support import register
from tests.fi.support import Node

from weft import cxi, fi


def another(node: Node) -> Any:
    """A second endpoint of the domain, enabled."""
    ep = node.domain.endpoint(node.info)
    ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
    ep.bind(node.av)
    ep.enable()
    return ep


@pytest.mark.clause("cxi.ext.dom.hybrid-desc", "cxi.ext.dom.hybrid-desc-rma-amo", "cxi.ext.dom.hybrid-desc-optional")
def test_hybrid_mr_desc_applies_to_endpoints_opened_while_on(node: Node) -> None:
    ops = node.domain.open_ops(cxi.DOM_OPS_3)
    memory, source = np.zeros(2, "u8"), np.ones(1, "u8")
    key = register(node, memory, 200).key
    local = node.domain.mr_reg(source, fi.WRITE)
    node.keep(local)
    ops.enable_hybrid_mr_desc(node.domain, True)
    hybrid = another(node)
    try:
        for ep in (node.ep, hybrid):
            for desc in (None, local.desc):
                ep.write(source, desc, node.me, 0, key)
                ep.atomic(source, desc, node.me, 8, key, fi.UINT64, fi.SUM)
                node.wait(2)
        assert memory.tolist() == [1, 4]
        node.ep.write(source, "no descriptor", node.me, 0, key)  # opened before: it is not looked at
        node.wait(1)
        for wrong in ("no descriptor", 7):
            with pytest.raises(fi.InvalidArgument, match="desc"):
                hybrid.write(source, wrong, node.me, 0, key)
            with pytest.raises(fi.InvalidArgument, match="desc"):
                hybrid.atomic(source, wrong, node.me, 8, key, fi.UINT64, fi.SUM)
        with pytest.raises(fi.InvalidArgument):
            hybrid.write(np.ones(1, "u8"), local.desc, node.me, 0, key)  # of other memory
        ops.enable_hybrid_mr_desc(node.domain, False)
        hybrid.write(source, local.desc, node.me, 0, key)  # it keeps the setting with which it was opened
        node.wait(1)
        late = another(node)
        late.write(source, "no descriptor", node.me, 0, key)
        node.wait(1)
        late.close()
    finally:
        hybrid.close()
