"""Domains of the CXI provider: settings, calls of its own, resources. fi_cxi(7) "CXI EXTENSIONS"."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from tests.cxi.support import MODE, found, opened, register
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import resources, service

FLAGS = {
    "optimized": (cxi.OPT_CXI_SET_OPTIMIZED_MRS, cxi.OPT_CXI_GET_OPTIMIZED_MRS, "FI_CXI_OPTIMIZED_MRS"),
    "key cache": (cxi.OPT_CXI_SET_PROV_KEY_CACHE, cxi.OPT_CXI_GET_PROV_KEY_CACHE, "FI_CXI_PROV_KEY_CACHE"),
    "match events": (cxi.OPT_CXI_SET_MR_MATCH_EVENTS, cxi.OPT_CXI_GET_MR_MATCH_EVENTS, "FI_CXI_MR_MATCH_EVENTS"),
}


@pytest.mark.clause(
    "cxi.ext.ctl.get-optimized-default",
    "cxi.ext.ctl.get-key-cache-default",
    "cxi.ext.ctl.get-match-events-default",
    "cxi.ext.ctl.key-cache-default",
)
@pytest.mark.parametrize("which", FLAGS)
def test_setting_is_at_first_the_environments(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, get, variable = FLAGS[which]
    with opened(prov_key=True) as node:
        assert node.domain.control(get) is (which != "match events")
    for text, value in (("0", False), ("1", True)):
        monkeypatch.setenv(variable, text)
        with opened(prov_key=True) as node:
            assert node.domain.control(get) is value


@pytest.mark.clause(
    "cxi.ext.ctl.domain-fid",
    "cxi.ext.ctl.scope",
    "cxi.ext.ctl.get-optimized",
    "cxi.ext.ctl.set-optimized",
    "cxi.ext.ctl.get-key-cache",
    "cxi.ext.ctl.set-key-cache",
    "cxi.ext.ctl.get-match-events",
    "cxi.ext.ctl.set-match-events",
)
@pytest.mark.parametrize("which", FLAGS)
def test_setting_is_of_one_domain(which: str) -> None:
    set_, get, _ = FLAGS[which]
    with opened(prov_key=True) as one, opened(prov_key=True) as other:
        before = other.domain.control(get)
        one.domain.control(set_, not before)
        assert one.domain.control(get) is (not before)
        assert other.domain.control(get) is before
        one.domain.control(set_, before)
        assert one.domain.control(get) is before


@pytest.mark.clause("cxi.ext.ctl.set-optimized-einval", "cxi.ext.ctl.set-key-cache-einval")
@pytest.mark.parametrize("command", [cxi.OPT_CXI_SET_OPTIMIZED_MRS, cxi.OPT_CXI_SET_PROV_KEY_CACHE])
@pytest.mark.parametrize("value", [True, False])
def test_setting_that_needs_provider_keys_is_refused_without(node: Node, command: int, value: bool) -> None:
    with pytest.raises(fi.InvalidArgument, match="MR_PROV_KEY"):
        node.domain.control(command, value)
    node.domain.control(cxi.OPT_CXI_SET_MR_MATCH_EVENTS, value)


@pytest.mark.parametrize(
    ("command", "value"),
    [
        (cxi.OPT_CXI_SET_OPTIMIZED_MRS, None),
        (cxi.OPT_CXI_SET_MR_MATCH_EVENTS, None),
        (cxi.OPT_CXI_SET_MR_MATCH_EVENTS, "yes"),
        (cxi.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE, None),
        (cxi.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE, "Software"),
        (cxi.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE, "fast"),
        (cxi.OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE, 0),
        (cxi.OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE, None),
        (cxi.OPT_CXI_SET_TCLASS, int(fi.TC_BULK_DATA)),
        (fi.CANCEL_WORK, None),
        (fi.MAP_RAW_MR, (0, b"12345678")),
        (fi.UNMAP_KEY, 1),
        (fi.QUEUE_WORK, None),
        (12345, None),
    ],
)
def test_control_refuses_with_einval(maker: Node, command: int, value: Any) -> None:
    with pytest.raises(fi.InvalidArgument):
        maker.domain.control(command, value)


def test_values_are_not_a_domains(node: Node) -> None:
    """fi_set_val and fi_get_val: the provider's values belong to endpoints."""
    for call in (
        lambda: node.domain.set_val(cxi.OPT_CXI_SET_TCLASS, int(fi.TC_BULK_DATA)),
        lambda: node.domain.get_val(cxi.OPT_CXI_GET_OPTIMIZED_MRS),
        lambda: node.domain.control(fi.SET_VAL, (cxi.OPT_CXI_SET_TCLASS, 0)),
    ):
        with pytest.raises(fi.InvalidArgument):
            call()


def test_command_may_be_given_as_unsigned(maker: Node) -> None:
    assert maker.domain.control(int(cxi.OPT_CXI_GET_OPTIMIZED_MRS) & 0xFFFFFFFF) is True


def test_match_mode_and_request_buffers_are_set(node: Node) -> None:
    domain = node.domain
    assert domain.control(cxi.OPT_CXI_GET_RX_MATCH_MODE_OVERRIDE) == "hardware"
    for given, taken in (("software", "software"), ("HardWare", "hardware"), (b"hybrid\0", "hybrid")):
        domain.control(cxi.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE, given)
        assert domain.control(cxi.OPT_CXI_GET_RX_MATCH_MODE_OVERRIDE) == taken
    assert domain.control(cxi.OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE) == 2 << 20
    domain.control(cxi.OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE, 1 << 20)
    assert domain.control(cxi.OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE) == 1 << 20
    domain.control(cxi.OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE, 1)
    assert domain.control(cxi.OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE) > 2048 + 2049, "room for a message at the threshold"


# ---- calls of its own ------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.ext.dom.name", "cxi.ext.dom.name-4", "cxi.ext.dom.flags", "cxi.ext.open-ops")
def test_each_name_gives_the_same_calls_whatever_the_flags(node: Node) -> None:
    names = [cxi.DOM_OPS_1, cxi.DOM_OPS_2, cxi.DOM_OPS_3, cxi.DOM_OPS_4, cxi.DOM_OPS_5, cxi.DOM_OPS_6]
    assert len({id(node.domain.open_ops(name, flags)) for name in names for flags in (0, 7)}) == 1
    with pytest.raises(fi.InvalidArgument, match="dom_ops_v7"):
        node.domain.open_ops("dom_ops_v7")


def test_copies_of_the_application_are_taken_both_or_not_at_all(node: Node) -> None:
    def copy(*_: object) -> int:
        return 0

    node.domain.set_ops(cxi.SET_OPS_HMEM_OVERRIDE, cxi.HmemOverride(copy, copy), 7)
    for wrong in (None, cxi.HmemOverride(copy), cxi.HmemOverride(None, copy), (copy, copy)):
        with pytest.raises(fi.InvalidArgument, match="both copies"):
            node.domain.set_ops(cxi.SET_OPS_HMEM_OVERRIDE, wrong)
    for name in ("hmem_override", cxi.DOM_OPS_1):
        with pytest.raises(fi.NoSys, match="to replace"):
            node.domain.set_ops(name, cxi.HmemOverride(copy, copy))


@pytest.mark.clause("cxi.ext.dom.topology", "cxi.ext.dom.topology-dragonfly")
def test_topology_is_of_the_nic_address(node: Node) -> None:
    nic = cxi.Address.from_bytes(node.name).nic
    found = node.domain.open_ops(cxi.DOM_OPS_2).topology(node.domain)
    assert (found.group_id, found.switch_id, found.port_id) == (nic >> 11, nic >> 6 & 31, nic & 63)


@pytest.mark.clause("cxi.ext.dom.cntr-read", "cxi.ext.dom.cntr-read-ids")
def test_counter_of_the_nic_is_read_by_its_number_with_its_time(node: Node) -> None:
    ops = node.domain.open_ops(cxi.DOM_OPS_1)
    flushes, packets = cxi.C_CNTR_IXE_DMAWR_FLUSH_REQS, cxi.C_CNTR_IXE_RX_PTL_RESTRICTED_PKT
    assert (flushes, packets) == (1305, 1178)
    before = {number: ops.cntr_read(node.domain, number) for number in (flushes, packets)}
    register(node, memory := bytearray(8), 7)
    node.ep.writemsg(
        fi.MsgRma([b"12345678"], [fi.RmaIov(0, 8, 7)], node.av.insert(node.name)),
        fi.COMPLETION | fi.DELIVERY_COMPLETE,
    )
    node.wait()
    assert memory == b"12345678"
    for number in (flushes, packets):
        after = ops.cntr_read(node.domain, number)
        assert after.value == before[number].value + 1
        assert after.time_ns >= before[number].time_ns > 10**18


@pytest.mark.clause("cxi.ext.dom.cntr-read-rate")
def test_counters_may_be_read_anew_only_once_in_an_interval(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, number = node.domain.open_ops(cxi.DOM_OPS_1), cxi.C_CNTR_LPE_SUCCESS_CNTR
    register(node, bytearray(8), 7)

    def write() -> None:
        node.ep.write(b"12345678", None, node.me, 0, 7)
        node.wait()

    monkeypatch.setenv("WEFT_CXI_COUNTER_INTERVAL", "3600000")
    first = ops.cntr_read(node.domain, number)
    write()
    assert ops.cntr_read(node.domain, number) == first, "a reading of the same hour, with its time"
    monkeypatch.delenv("WEFT_CXI_COUNTER_INTERVAL")
    now = ops.cntr_read(node.domain, number)
    assert now.value == first.value + 1
    assert now.time_ns > first.time_ns


def test_cntr_read_unmodelled_counter_is_0_unknown_is_refused(node: Node) -> None:
    ops = node.domain.open_ops(cxi.DOM_OPS_1)
    assert [ops.cntr_read(node.domain, number).value for number in (0, 112, 2527)] == [0, 0, 0]
    for number in (-1, 2528, 10**6):
        with pytest.raises(fi.InvalidArgument, match=r"no counter(?s:.*)992 LPE_SUCCESS_CNTR"):
            ops.cntr_read(node.domain, number)


@pytest.mark.clause("cxi.ext.dom.dwq-depth", "cxi.trig.depth", "cxi.trig.depth-reserved", "cxi.trig.depth-usable")
def test_depth_of_deferred_work_is_the_services_less_eight(node: Node) -> None:
    assert service.service("cxi0", 1).limits["tles"] == (512, 512)  # type: ignore[union-attr]
    assert node.domain.open_ops(cxi.DOM_OPS_5).get_dwq_depth(node.domain) == 504


@pytest.mark.parametrize(("limit", "depth"), [((1000, 64), 56), ((64, 64), 56), (64, 56), ((64, 4), 0)])
def test_depth_of_deferred_work_is_of_what_the_service_has_reserved(limit: Any, depth: int) -> None:
    made = service.create(limits={"tles": limit})
    with opened(auth_key=cxi.AuthKey(made.id, 10)) as node:
        assert node.domain.open_ops(cxi.DOM_OPS_5).get_dwq_depth(node.domain) == depth


@pytest.mark.clause("cxi.ext.dom.dwq-depth-service")
def test_dwq_depth_is_equal_for_all_domains_of_a_service(node: Node) -> None:
    with opened() as other:
        ops = node.domain.open_ops(cxi.DOM_OPS_5)
        assert ops.get_dwq_depth(node.domain) == ops.get_dwq_depth(other.domain)


def test_calls_refuse_what_is_no_domain(node: Node) -> None:
    ops = node.domain.open_ops(cxi.DOM_OPS_6)
    for call in (
        lambda fid: ops.cntr_read(fid, 0),
        ops.topology,
        lambda fid: ops.enable_hybrid_mr_desc(fid, True),
        ops.get_dwq_depth,
        lambda fid: ops.enable_mr_match_events(fid, True),
        lambda fid: ops.enable_optimized_mrs(fid, True),
    ):
        for fid in (node.ep, node.cq, None):
            with pytest.raises(fi.InvalidArgument, match="no domain"):
                call(fid)


@pytest.mark.clause("cxi.ext.dom.deprecated-match", "cxi.ext.dom.deprecated-optimized")
def test_deprecated_calls_set_what_control_sets(maker: Node) -> None:
    ops = maker.domain.open_ops(cxi.DOM_OPS_6)
    ops.enable_mr_match_events(maker.domain, True)
    ops.enable_optimized_mrs(maker.domain, False)
    assert maker.domain.control(cxi.OPT_CXI_GET_MR_MATCH_EVENTS) is True
    assert maker.domain.control(cxi.OPT_CXI_GET_OPTIMIZED_MRS) is False


@pytest.mark.clause("cxi.ext.dom.unexp-error")
def test_ep_get_unexp_msgs_needs_an_enabled_receiving_endpoint() -> None:
    with opened() as one, opened(int(fi.RMA | fi.MSG), enable=False) as silent:
        ops = one.domain.open_ops(cxi.DOM_OPS_4)
        with pytest.raises(fi.InvalidArgument, match="RECV"):
            ops.ep_get_unexp_msgs(one.ep)
        with pytest.raises(fi.BadState, match="not enabled"):
            ops.ep_get_unexp_msgs(silent.ep)
        silent.ep.enable()
        assert ops.ep_get_unexp_msgs(silent.ep, [], 4, []) == (0, 0)
        with pytest.raises(fi.InvalidArgument, match="no endpoint"):
            ops.ep_get_unexp_msgs(one.domain)


# ---- opening and closing ---------------------------------------------------------------------------------------------


def test_flags_of_a_domain_are_not_there() -> None:
    info = found()
    with fi.Fabric(info.fabric_attr) as fabric, pytest.raises(fi.NoSys):
        fabric.domain(info, 1)


@pytest.mark.parametrize("tclass", [int(fi.TC_NETWORK_CTRL), 0x100, 77])
def test_traffic_class_that_is_no_label_is_refused(tclass: int) -> None:
    info = found()
    info.domain_attr.tclass = tclass
    with fi.Fabric(info.fabric_attr) as fabric:
        with pytest.raises(fi.InvalidArgument, match=f"traffic class {tclass:d}"):
            fabric.domain(info)
        info = found()
        with fabric.domain(info) as domain:
            info.tx_attr.tclass = tclass
            with pytest.raises(fi.InvalidArgument, match="has TC_BEST_EFFORT, TC_LOW_LATENCY"):
                domain.endpoint(info)


@pytest.mark.parametrize("prov_key", [False, True])
def test_refusal_is_that_of_the_offer_which_fits_best(prov_key: bool) -> None:
    """There are eight: the other seven differ in what the application did not change, too."""
    info = found(prov_key=prov_key)
    info.tx_attr.size = 99_999
    with fi.Fabric(info.fabric_attr) as fabric:
        with pytest.raises(fi.InvalidArgument, match=r"tx_attr.size: asked 99999, offers at most 16384") as refused:
            fabric.domain(info)
        assert "mr_mode" not in str(refused.value)
        info = found(prov_key=prov_key)
        info.domain_attr.mr_mode &= ~fi.MR_ENDPOINT
        with pytest.raises(fi.InvalidArgument, match="mr_mode") as refused:
            fabric.domain(info)
    assert ("MR_PROV_KEY" in str(refused.value)) is prov_key


def test_traffic_class_that_the_service_does_not_allow_is_refused() -> None:
    one = service.create("cxi0", tclasses=[fi.TC_BULK_DATA], vnis=[range(50, 51)])
    info = found(auth_key=cxi.AuthKey(one.id, 50))
    info.domain_attr.tclass = fi.TC_LOW_LATENCY
    with fi.Fabric(info.fabric_attr) as fabric:
        with pytest.raises(fi.InvalidArgument, match="traffic class"):
            fabric.domain(info)
        info.domain_attr.tclass = fi.TC_BULK_DATA
        fabric.domain(info).close()


def test_domain_is_busy_while_anything_is_open(node: Node) -> None:
    with pytest.raises(fi.Busy):
        node.domain.close()


def test_domain_takes_resources_and_gives_them_back() -> None:
    before = resources.usage("cxi0")
    with opened() as node:
        taken = node.domain.policy.pool.taken  # type: ignore[attr-defined]
        assert taken["ptes"] == 4, "of its enabled endpoint"
        assert taken["eqs"] == 1, "of its queue"
    assert resources.usage("cxi0") == before


def test_exhausted_service_refuses_endpoint_and_domain() -> None:
    limits = {"ptes": (7, 0), "txqs": (1, 0)}
    one = service.create("cxi0", vnis=[range(60, 61)], limits=limits)
    key = cxi.AuthKey(one.id, 60)
    with opened(auth_key=key) as node, contextlib.ExitStack() as stack:
        second = stack.enter_context(node.domain.endpoint(node.info))
        second.bind(node.cq, fi.TRANSMIT | fi.RECV)
        second.bind(node.av)
        with pytest.raises(fi.NoSpace, match="ptes"):
            second.enable()
        node.ep.close()
        second.enable()
        info = found(auth_key=key)
        with fi.Fabric(info.fabric_attr) as fabric, pytest.raises(fi.InvalidArgument, match="txqs"):
            fabric.domain(info)


def test_mode_in_force_needs_endpoint_binding(node: Node) -> None:
    assert node.domain.mr_mode == MODE


@pytest.mark.parametrize("threading", [fi.THREAD_FID, fi.THREAD_ENDPOINT])
def test_threading_that_getinfo_refuses_opens_no_domain(threading: int) -> None:
    info = found()
    info.domain_attr.threading = threading
    with pytest.raises(fi.InvalidArgument, match=r"domain_attr\.threading: asked THREAD_"):
        fi.Fabric(info.fabric_attr).domain(info)
