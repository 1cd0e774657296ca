"""What getinfo offers for the CXI provider: which infos, in which order, with which attributes."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import cxi, fi
from weft.providers.cxi import device, service

U64_MAX = (1 << 64) - 1
ALLOCATED = fi.MR_ENDPOINT | fi.MR_ALLOCATED
E, EP = fi.MR_ENDPOINT, fi.MR_ENDPOINT | fi.MR_PROV_KEY
A, AP = ALLOCATED, ALLOCATED | fi.MR_PROV_KEY


def offered() -> list[fi.Info]:
    return [info for info in fi.getinfo() if info.fabric_attr.prov_name == "cxi"]


def rows() -> list[tuple[int, int, int, int]]:
    """Protocol, mr_mode, bytes of a key and authorization keys of each info."""
    return [
        (
            info.ep_attr.protocol,
            info.domain_attr.mr_mode,
            info.domain_attr.mr_key_size,
            info.domain_attr.max_ep_auth_key,
        )
        for info in offered()
    ]


@pytest.mark.clause("cxi.proto.several", "cxi.mr.allocated-without-odp", "cxi.mr.scalable")
def test_infos_of_a_nic_are_eight_in_this_order() -> None:
    """Provider keys before client keys, one authorization key before four, FI_PROTO_CXI before FI_PROTO_CXI_RNR."""
    half = [(AP, 8, 1), (A, 4, 1), (AP, 8, 4), (A, 4, 4)]
    assert rows() == [(protocol, *row) for protocol in (fi.PROTO_CXI, fi.PROTO_CXI_RNR) for row in half]


@pytest.mark.clause("cxi.mr.allocated-with-odp")
def test_infos_of_a_nic_are_sixteen_with_on_demand_paging(monkeypatch: pytest.MonkeyPatch) -> None:
    """FI_CXI_ODP adds infos without FI_MR_ALLOCATED, after the infos with it."""
    monkeypatch.setenv("FI_CXI_ODP", "1")
    half = [(AP, 8, 1), (A, 4, 1), (EP, 8, 1), (E, 4, 1), (AP, 8, 4), (A, 4, 4), (EP, 8, 4), (E, 4, 4)]
    assert rows() == [(protocol, *row) for protocol in (fi.PROTO_CXI, fi.PROTO_CXI_RNR) for row in half]


def test_infos_of_forced_on_demand_paging_are_those_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_FORCE_ODP", "1")
    half = [(EP, 8, 1), (E, 4, 1), (EP, 8, 4), (E, 4, 4)]
    assert rows() == [(protocol, *row) for protocol in (fi.PROTO_CXI, fi.PROTO_CXI_RNR) for row in half]


def test_infos_of_the_general_provider_come_first() -> None:
    names = [info.fabric_attr.prov_name for info in fi.getinfo()]
    assert names == ["weft"] * 2 + ["cxi"] * 8


def test_other_providers_and_address_formats_make_no_registry(tmp_path: Path) -> None:
    fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))
    fi.getinfo(hints=fi.Info(addr_format=fi.ADDR_STR))
    assert not (tmp_path / "cxi").exists()


def test_attributes_of_the_first_info_are_the_documented_ones() -> None:
    info = offered()[0]
    assert (info.fabric_attr.name, info.fabric_attr.prov_name, info.fabric_attr.prov_version) == ("cxi", "cxi", 2)
    assert (info.addr_format, info.mode, info.tx_attr.mode, info.rx_attr.mode) == (fi.ADDR_CXI, 0, 0, 0)
    domain = info.domain_attr
    assert domain.name == "cxi0"
    assert (domain.threading, domain.resource_mgmt, domain.av_type) == (fi.THREAD_SAFE, fi.RM_ENABLED, fi.AV_UNSPEC)
    assert (domain.cq_data_size, domain.cq_cnt, domain.ep_cnt, domain.cntr_cnt, domain.mr_cnt) == (8, 32, 128, 16, 100)
    assert (domain.tx_ctx_cnt, domain.rx_ctx_cnt, domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) == (1, 1, 1, 1)
    assert (domain.max_ep_stx_ctx, domain.max_ep_srx_ctx, domain.mr_iov_limit) == (0, 0, 1)
    assert domain.caps == fi.LOCAL_COMM | fi.REMOTE_COMM | fi.AV_USER_ID | fi.PEER
    assert (domain.auth_key, domain.auth_key_size, info.ep_attr.auth_key_size) == (None, 0, 0)
    ep = info.ep_attr
    assert (ep.type, ep.protocol, ep.protocol_version) == (fi.EP_RDM, fi.PROTO_CXI, 1)
    assert (ep.max_msg_size, ep.msg_prefix_size) == (4294967295, 0)
    assert ep.mem_tag_format == 0x0000AAAAAAAAAAAA
    tx, rx = info.tx_attr, info.rx_attr
    assert (tx.inject_size, tx.size, tx.iov_limit, tx.rma_iov_limit) == (192, 1024, 1, 1)
    assert (rx.size, rx.iov_limit, rx.total_buffered_recv) == (1024, 1, 0)
    assert rx.op_flags == fi.COMPLETION | fi.MULTI_RECV | fi.MORE


@pytest.mark.clause("cxi.order.waw-size", "cxi.order.raw-size", "cxi.order.war-size")
def test_ordered_sizes_are_unlimited() -> None:
    """fi_cxi(7) "Message Ordering": max_order_waw_size, _raw_size and _war_size are -1."""
    ep = offered()[0].ep_attr
    assert (ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size) == (U64_MAX, U64_MAX, U64_MAX)


def test_capabilities_without_hints_are_all_but_the_sources() -> None:
    caps = fi.RMA | fi.ATOMIC | fi.TAGGED | fi.MSG | fi.RECV | fi.SEND | fi.READ | fi.WRITE | fi.REMOTE_READ
    caps |= fi.REMOTE_WRITE | fi.DIRECTED_RECV | fi.NAMED_RX_CTX | fi.HMEM | fi.COLLECTIVE
    caps |= fi.LOCAL_COMM | fi.REMOTE_COMM | fi.RMA_EVENT | fi.MULTI_RECV | fi.FENCE | fi.TRIGGER
    caps |= fi.AV_USER_ID | fi.PEER
    assert offered()[0].caps == caps


def test_directed_receives_are_missing_where_there_are_four_keys() -> None:
    has = [bool(info.caps & fi.DIRECTED_RECV) for info in offered()]
    assert has == [True, True, False, False, True, True, True, True]
    assert [bool(info.tx_attr.caps & fi.DIRECTED_RECV) for info in offered()] == [False] * 4 + [True] * 4
    assert [bool(info.rx_attr.caps & fi.DIRECTED_RECV) for info in offered()] == has


def test_rnr_infos_inject_nothing_and_order_no_sends() -> None:
    cxi_info, rnr = offered()[0], offered()[4]
    assert rnr.ep_attr.protocol == fi.PROTO_CXI_RNR
    assert rnr.tx_attr.inject_size == 0
    assert rnr.ep_attr.mem_tag_format == 0x000000AAAAAAAAAA
    for part in ("tx_attr", "rx_attr"):
        assert getattr(rnr, part).msg_order == getattr(cxi_info, part).msg_order & ~fi.ORDER_SAS
        assert getattr(cxi_info, part).msg_order & fi.ORDER_SAS


def test_numbers_of_the_current_release_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    info = offered()[0]
    assert (info.tx_attr.size, info.rx_attr.size) == (1024, 1024)
    assert (info.ep_attr.max_order_raw_size, info.ep_attr.max_order_waw_size) == (0, U64_MAX)


def test_unknown_release_is_refused_and_hides_no_other_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "tomorrow")
    with pytest.raises(fi.InvalidArgument, match="doc or current"):
        fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi")))
    assert {info.fabric_attr.prov_name for info in fi.getinfo()} == {"weft"}
    assert "tomorrow" in str(fi.getinfo(explain=True))


@pytest.mark.clause("cxi.env.default-tx-size", "cxi.env.default-rx-size")
def test_queue_sizes_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DEFAULT_TX_SIZE", "100")
    monkeypatch.setenv("FI_CXI_DEFAULT_RX_SIZE", "200")
    assert (offered()[0].tx_attr.size, offered()[0].rx_attr.size) == (100, 200)
    hints = fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi"))
    (info,) = fi.getinfo(hints=hints)
    assert (info.tx_attr.size, info.rx_attr.size) == (100, 200)
    hints.tx_attr.size, hints.rx_attr.size = 7000, 2
    (info,) = fi.getinfo(hints=hints)
    assert (info.tx_attr.size, info.rx_attr.size) == (7000, 2), "the hints' own, if they have any"


@pytest.mark.clause("cxi.env.device-name")
def test_devices_offered_are_up_and_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    device.add("cxi1")
    device.add("cxi2")
    assert [info.domain_attr.name for info in offered()] == ["cxi0"] * 8 + ["cxi1"] * 8 + ["cxi2"] * 8
    device.set_up("cxi0", False)
    assert {info.domain_attr.name for info in offered()} == {"cxi1", "cxi2"}
    monkeypatch.setenv("FI_CXI_DEVICE_NAME", "cxi2,cxi0")
    assert {info.domain_attr.name for info in offered()} == {"cxi2"}


def test_refusal_without_a_usable_device_says_so() -> None:
    device.set_up("cxi0", False)
    with pytest.raises(fi.NoData, match="no device is up"):
        fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi")))
    assert "no device is up" not in str(fi.getinfo(explain=True))


@pytest.mark.clause("cxi.addr.proprietary")
def test_nic_tells_address_link_and_default_key() -> None:
    info = offered()[0]
    assert info.nic is not None
    there = device.devices()[0]
    assert (info.nic.name, info.nic.bus_type, info.nic.network_type) == ("cxi0", fi.BUS_PCI, "HPC Ethernet")
    assert info.nic.address == f"0x{there.nic:x}"
    assert (info.nic.speed, info.nic.mtu, info.nic.state) == (there.speed, there.mtu, fi.LINK_UP)
    assert info.nic.prov_attr == cxi.NicAttr(cxi.NIC_ATTR_VER, there.nic, 1, 10)
    assert (info.src_addr, info.src_addrlen) == (cxi.Address(there.nic, 511), 8)


def test_nic_refresh_finds_the_key_of_now() -> None:
    """fi_control(info->nic, FI_OPT_CXI_NIC_REFRESH_ATTR): service and VNI are looked for again."""
    info = offered()[0]
    copy = fi.dupinfo(info)
    assert info.nic is not None
    assert copy.nic is not None
    service.enable("cxi0", 1, False)
    assert info.nic.prov_attr.default_rgroup_id == 1
    info.nic.control(cxi.OPT_CXI_NIC_REFRESH_ATTR)
    assert (info.nic.prov_attr.default_rgroup_id, info.nic.prov_attr.default_vni) == (0, 0)
    assert copy.nic.prov_attr.default_rgroup_id == 1
    with pytest.raises(fi.InvalidArgument, match="no command 4 here"):
        info.nic.control(4)


def test_nic_of_the_general_provider_has_no_commands() -> None:
    nic = fi.getinfo()[0].nic
    assert nic is not None
    with pytest.raises(fi.NoSys, match="no commands for NICs"):
        nic.control(cxi.OPT_CXI_NIC_REFRESH_ATTR)
