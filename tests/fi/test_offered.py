"""Only offers can be opened: fabric, domain and endpoint refuse an Info that getinfo would not have returned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fi.support import ALL_CAPS, hints, opened

from weft import fi


def test_fabric_of_another_name_is_no_device() -> None:
    for attr in (fi.FabricAttr(prov_name="weft", name="nope"), fi.FabricAttr(prov_name="nope")):
        with pytest.raises(fi.NoDevice, match="nope"):
            fi.Fabric(attr)
    for attr in (fi.FabricAttr(prov_name="weft"), fi.FabricAttr(prov_name="weft", name="weft")):
        fi.Fabric(attr).close()


@pytest.mark.general("WEFT_MR_MODE")
@pytest.mark.clause("mr.mode.kept-when-required")
@pytest.mark.parametrize("missing", [fi.MR_PROV_KEY, fi.MR_VIRT_ADDR, fi.MR_PROV_KEY | fi.MR_VIRT_ADDR])
def test_domain_below_the_required_mr_mode_is_refused(monkeypatch: pytest.MonkeyPatch, missing: fi.MrMode) -> None:
    """fi_mr(3): a bit that getinfo left set is required; a domain without it is not the program's choice."""
    monkeypatch.setenv("WEFT_MR_MODE", "prov_key|virt_addr")
    info = fi.getinfo(hints=hints(mr_mode=int(fi.MR_PROV_KEY | fi.MR_VIRT_ADDR)))[0]
    with fi.Fabric(info.fabric_attr) as fabric:
        with fabric.domain(info) as domain:
            assert domain.mr_mode == fi.MR_PROV_KEY | fi.MR_VIRT_ADDR
        info.domain_attr.mr_mode |= fi.MR_ENDPOINT
        with fabric.domain(info) as domain:
            assert domain.mr_mode & fi.MR_ENDPOINT
        info.domain_attr.mr_mode &= ~int(missing)
        with pytest.raises(fi.InvalidArgument, match=r"the provider needs .*MR_(PROV_KEY|VIRT_ADDR)"):
            fabric.domain(info)


def test_domain_with_more_than_is_offered_is_refused() -> None:
    info = fi.getinfo(hints=hints())[0]
    with fi.Fabric(info.fabric_attr) as fabric:
        info.domain_attr.mr_iov_limit = 10**6
        with pytest.raises(fi.InvalidArgument, match=r"domain_attr\.mr_iov_limit: asked 1000000"):
            fabric.domain(info)


EDITS: dict[str, Callable[[fi.Info], object]] = {
    "caps": lambda i: setattr(i, "caps", i.caps | fi.MULTICAST),
    "tx_attr.op_flags": lambda i: setattr(i.tx_attr, "op_flags", fi.INJECT),
    "tx_attr.size": lambda i: setattr(i.tx_attr, "size", 1 << 40),
    "tx_attr.inject_size": lambda i: setattr(i.tx_attr, "inject_size", 1 << 20),
    "tx_attr.iov_limit": lambda i: setattr(i.tx_attr, "iov_limit", 9),
    "tx_attr.msg_order": lambda i: setattr(i.tx_attr, "msg_order", int(fi.ORDER_SAR)),
    "ep_attr.max_msg_size": lambda i: setattr(i.ep_attr, "max_msg_size", 1 << 63),
}


@pytest.mark.parametrize("part", EDITS)
def test_endpoint_with_more_than_is_offered_is_refused(part: str) -> None:
    with opened() as node:
        info = fi.dupinfo(node.info)
        EDITS[part](info)
        with pytest.raises(fi.InvalidArgument, match=part.replace(".", r"\.")):
            node.domain.endpoint(info)
        node.domain.endpoint(node.info).close()


@pytest.mark.general("its limits")
def test_endpoint_has_the_attributes_that_it_was_opened_with() -> None:
    with opened() as node:
        info = fi.dupinfo(node.info)
        info.caps &= ~int(fi.ATOMIC)
        info.tx_attr.size, info.tx_attr.inject_size, info.tx_attr.iov_limit = 5, 32, 2
        info.tx_attr.rma_iov_limit, info.ep_attr.max_msg_size = 1, 1000
        with node.domain.endpoint(info) as ep:
            assert ep.caps == ALL_CAPS & ~fi.ATOMIC | ep.caps
            assert not ep.caps & fi.ATOMIC
            assert (ep.tx_size, ep.inject_size, ep.iov_limit, ep.rma_iov_limit) == (5, 32, 2, 1)
            assert ep.max_msg_size == 1000
            assert ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MAX_ATOMIC_SIZE) == 0
            assert ep.getopt(fi.OPT_ENDPOINT, fi.OPT_INJECT_ATOMIC_SIZE) == 0
            assert ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MAX_RMA_SIZE) == 1000
            ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
            ep.bind(node.av)
            ep.enable()
            with pytest.raises(fi.InvalidArgument, match="3 buffers are more than iov_limit, 2"):
                ep.writev([b"1", b"2", b"3"], dest_addr=node.me, addr=0, key=1)
            with pytest.raises(fi.InvalidArgument, match=r"1 to 1 \(rma_iov_limit\)"):
                ep.writemsg(fi.MsgRma([b"12"], [fi.RmaIov(0, 1, 1), fi.RmaIov(1, 1, 1)], node.me))
