"""weft.testing: `mr_mode` runs a test under every registration mode, and the same exchange works under all."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.support import ALL_CAPS, RW

from weft import fi
from weft.testing import MR_MODES, mr_mode, requiring

__all__ = ["mr_mode"]


def modes_that_are_alone() -> set[fi.MrMode]:
    return {mode for mode in MR_MODES if int(mode).bit_count() == 1}


def test_every_mode_that_the_provider_can_require_is_among_them() -> None:
    known = {
        fi.MR_LOCAL,
        fi.MR_RAW,
        fi.MR_VIRT_ADDR,
        fi.MR_ALLOCATED,
        fi.MR_PROV_KEY,
        fi.MR_MMU_NOTIFY,
        fi.MR_RMA_EVENT,
        fi.MR_ENDPOINT,
    }
    assert modes_that_are_alone() == known


@pytest.mark.clause("mr.mode.kept-when-required")
def test_exchange_under_every_mode(mr_mode: fi.MrMode) -> None:
    """A program that honours all modes works under each mode, as registration.md says."""
    hints = fi.Info(
        caps=ALL_CAPS,
        domain_attr=fi.DomainAttr(mr_mode=mr_mode),
        fabric_attr=fi.FabricAttr(prov_name="weft"),
    )
    info = fi.getinfo(hints=hints)[0]
    assert info.domain_attr.mr_mode == mr_mode
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open(format=fi.CQ_FORMAT_CONTEXT) as cq,
        domain.av_open() as av,
    ):
        ep = domain.endpoint(info)
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.enable()
        memory, source = domain.alloc(64, np.uint8), np.arange(64, dtype=np.uint8)
        memory[:] = 0
        mr = domain.mr_reg(memory, RW, requested_key=9, flags=fi.RMA_EVENT)
        if mr_mode & fi.MR_MMU_NOTIFY:
            mr.refresh()
        mr.bind(ep)
        mr.enable()
        local = domain.mr_reg(source, fi.WRITE, requested_key=10)
        if mr_mode & fi.MR_MMU_NOTIFY:
            local.refresh()
        local.bind(ep)
        local.enable()
        base, raw = mr.raw_attr()
        key = domain.map_raw(base, raw)
        peer = av.insert(ep.getname())
        ep.write(source, local.desc, peer, base, key, "w")
        assert [entry.op_context for entry in cq.sread(1, timeout=30)] == ["w"]
        assert memory.tolist() == source.tolist()
        domain.unmap_key(key)
        ep.close()
        local.close()
        mr.close()


def test_without_the_hint_the_mode_is_refused(mr_mode: fi.MrMode) -> None:
    hints = fi.Info(caps=ALL_CAPS, fabric_attr=fi.FabricAttr(prov_name="weft"))
    if not mr_mode:
        assert fi.getinfo(hints=hints)
        return
    with pytest.raises(fi.NoData):
        fi.getinfo(hints=hints)


def test_requirement_ends_with_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as inner:
        requiring(inner, fi.MR_VIRT_ADDR)
        with pytest.raises(fi.NoData):
            fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))
    assert fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))


def test_no_mode_is_required_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MR_MODE", "virt_addr")
    requiring(monkeypatch, fi.MrMode.MR_UNSPEC)
    assert fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))
