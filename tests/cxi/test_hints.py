"""How hints choose among the infos of the CXI provider, and the errors that refuse them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft import cxi, fi
from weft.fi import registry as known
from weft.fi.offer import Offer
from weft.fi.policy import Asked
from weft.providers.base import BaseProvider
from weft.providers.cxi import device
from weft.providers.cxi.address import CxiAddresses

CLIENT = fi.MR_ENDPOINT | fi.MR_ALLOCATED
PROVIDER = CLIENT | fi.MR_PROV_KEY
DATA = fi.RMA | fi.ATOMIC
MESSAGES = fi.MSG | fi.TAGGED


def hints(caps: int = 0, mr_mode: int = 0, **parts: Any) -> fi.Info:
    """Hints for the CXI provider; parts: names of attributes with an underscore for the dot ("tx_size")."""
    made = fi.Info(caps=caps, fabric_attr=fi.FabricAttr(prov_name="cxi"))
    made.domain_attr.mr_mode = mr_mode
    for name, value in parts.items():
        part, _, field = name.partition("_")
        setattr(made if part == "info" else getattr(made, f"{part}_attr"), field, value)
    return made


def found(*args: Any, **parts: Any) -> list[fi.Info]:
    return fi.getinfo(hints=hints(*args, **parts))


def refused(*args: Any, **parts: Any) -> str:
    """The text of the refusal with FI_ENODATA."""
    with pytest.raises(fi.NoData) as caught:
        found(*args, **parts)
    return str(caught.value)


# ---- which info ------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.proto.default", "cxi.proto.rnr-optional")
def test_hints_get_one_info_of_the_default_protocol() -> None:
    (info,) = found(DATA)
    assert info.ep_attr.protocol == fi.PROTO_CXI


@pytest.mark.clause("cxi.proto.rnr-optional")
def test_hints_get_the_rnr_protocol_where_they_name_it() -> None:
    (info,) = found(DATA, ep_protocol=fi.PROTO_CXI_RNR)
    assert info.ep_attr.protocol == fi.PROTO_CXI_RNR


@pytest.mark.clause("cxi.proto.rnr-order")
def test_rnr_protocol_orders_no_sends() -> None:
    assert found(DATA, tx_msg_order=fi.ORDER_SAS)
    assert "msg_order" in refused(DATA, tx_msg_order=fi.ORDER_SAS, ep_protocol=fi.PROTO_CXI_RNR)


def test_hints_get_one_info_of_each_device() -> None:
    device.add("cxi1")
    assert [info.domain_attr.name for info in found(DATA)] == ["cxi0", "cxi1"]
    assert [info.domain_attr.name for info in found(DATA, domain_name="cxi1")] == ["cxi1"]


def test_device_that_is_not_there_is_refused() -> None:
    assert "'cxi0'" in refused(domain_name="cxi5")


@pytest.mark.clause("cxi.ep.rdm")
def test_reliable_datagrams_are_offered_and_opened() -> None:
    (info,) = found(DATA, ep_type=fi.EP_RDM)
    assert info.ep_attr.type == fi.EP_RDM
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open() as cq,
        domain.av_open() as av,
        domain.endpoint(info) as ep,
    ):
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.enable()
        assert ep.enabled


@pytest.mark.clause("cxi.ep.rdm-only")
@pytest.mark.parametrize("kind", [fi.EP_MSG, fi.EP_DGRAM])
def test_other_endpoint_types_are_refused(kind: int) -> None:
    assert "ep_attr.type" in refused(ep_type=kind)


# ---- mr_mode ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.mr.prov-key-64bit")
@pytest.mark.parametrize("mr_mode", [0, PROVIDER, PROVIDER | fi.MR_LOCAL | fi.MR_HMEM])
def test_mr_mode_with_provider_keys_or_unset_gets_them(mr_mode: int) -> None:
    (info,) = found(DATA, mr_mode)
    assert (info.domain_attr.mr_mode, info.domain_attr.mr_key_size) == (PROVIDER, 8)


@pytest.mark.clause("cxi.mr.client-key-32bit")
def test_mr_mode_without_provider_keys_gets_client_keys() -> None:
    (info,) = found(DATA, CLIENT)
    assert (info.domain_attr.mr_mode, info.domain_attr.mr_key_size) == (CLIENT, 4)
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        with pytest.raises(fi.FabricError) as caught:
            domain.mr_reg(bytearray(8), fi.REMOTE_WRITE, requested_key=1 << 32)
        assert caught.value.errno == fi.EKEYREJECTED


def test_mr_mode_of_endpoint_alone_means_allocated_as_well() -> None:
    (info,) = found(DATA, fi.MR_ENDPOINT)
    assert info.domain_attr.mr_mode == CLIENT


@pytest.mark.clause("cxi.mr.allocated-with-odp")
def test_mr_mode_endpoint_alone_gets_on_demand_paging_if_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_ODP", "1")
    assert found(DATA, fi.MR_ENDPOINT)[0].domain_attr.mr_mode == fi.MR_ENDPOINT
    assert found(DATA, fi.MR_ENDPOINT | fi.MR_PROV_KEY)[0].domain_attr.mr_mode == fi.MR_ENDPOINT | fi.MR_PROV_KEY
    assert found(DATA, PROVIDER)[0].domain_attr.mr_mode == PROVIDER


@pytest.mark.clause("cxi.mr.endpoint-required", "cxi.mr.allocated-without-odp")
@pytest.mark.parametrize(
    "mr_mode",
    [fi.MR_ALLOCATED, fi.MR_ALLOCATED | fi.MR_PROV_KEY, fi.MR_ENDPOINT | fi.MR_PROV_KEY, fi.MR_LOCAL, fi.MR_BASIC],
)
def test_mr_mode_that_lacks_a_required_bit_is_refused(mr_mode: int) -> None:
    assert "domain_attr.mr_mode" in refused(DATA, mr_mode)


def test_mr_mode_of_messages_alone_is_none() -> None:
    """Nobody reaches memory of an endpoint that has neither RMA nor ATOMIC: no duty is left."""
    assert found(MESSAGES, PROVIDER)[0].domain_attr.mr_mode == 0
    assert found(MESSAGES)[0].domain_attr.mr_mode == 0


def test_mr_mode_of_an_initiator_alone_has_to_be_given() -> None:
    """An info with RMA or ATOMIC and without any mr_mode is dropped."""
    caps = fi.RMA | fi.READ | fi.WRITE
    assert "domain_attr.mr_mode" in refused(caps)
    assert found(caps, CLIENT)[0].domain_attr.mr_mode == CLIENT


# ---- modes, threading, progress, resources ---------------------------------------------------------------------------


@pytest.mark.clause("cxi.mode.none")
def test_no_mode_is_needed() -> None:
    (info,) = found(DATA, info_mode=0)
    assert (info.mode, info.tx_attr.mode, info.rx_attr.mode, info.domain_attr.mode) == (0, 0, 0, 0)


@pytest.mark.clause("cxi.thread.domain")
@pytest.mark.parametrize("level", [fi.THREAD_UNSPEC, fi.THREAD_SAFE, fi.THREAD_DOMAIN, fi.THREAD_COMPLETION])
def test_threading_levels_that_are_accepted(level: fi.Threading) -> None:
    (info,) = found(DATA, domain_threading=level)
    assert info.domain_attr.threading == (level or fi.THREAD_SAFE)


@pytest.mark.parametrize("level", [fi.THREAD_FID, fi.THREAD_ENDPOINT, 77])
def test_threading_levels_that_are_refused(level: int) -> None:
    assert "domain_attr.threading" in refused(DATA, domain_threading=level)


@pytest.mark.clause("cxi.progress.data-manual", "cxi.progress.control-manual")
@pytest.mark.parametrize("which", ["domain_data_progress", "domain_control_progress"])
def test_progress_is_manual(which: str) -> None:
    for asked in (fi.PROGRESS_UNSPEC, fi.PROGRESS_MANUAL):
        (info,) = found(DATA, **{which: asked})
        assert info.domain_attr.data_progress == info.domain_attr.control_progress == fi.PROGRESS_MANUAL
    assert which.removeprefix("domain_") in refused(DATA, **{which: fi.PROGRESS_AUTO})


@pytest.mark.clause("cxi.extra.rm-enabled")
@pytest.mark.parametrize("asked", [fi.RM_UNSPEC, fi.RM_ENABLED])
def test_resource_management_is_enabled(asked: int) -> None:
    assert found(DATA, domain_resource_mgmt=asked)[0].domain_attr.resource_mgmt == fi.RM_ENABLED


def test_resource_management_can_be_disabled() -> None:
    assert found(DATA, domain_resource_mgmt=fi.RM_DISABLED)


@pytest.mark.parametrize("kind", [fi.AV_UNSPEC, fi.AV_TABLE, fi.AV_MAP])
def test_address_vectors_of_both_types_are_accepted(kind: int) -> None:
    assert found(DATA, domain_av_type=kind)[0].domain_attr.av_type == kind


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("tx_size", 16384),
        ("rx_size", 15360),
        ("tx_inject_size", 192),
        ("tx_iov_limit", 1),
        ("tx_rma_iov_limit", 1),
        ("rx_iov_limit", 1),
        ("ep_max_msg_size", 4294967295),
        ("domain_cntr_cnt", 16),
        ("domain_mr_iov_limit", 1),
        ("domain_mr_cnt", 100),
        ("domain_cq_data_size", 8),
        ("domain_max_ep_auth_key", 4),
        ("ep_protocol_version", 1),
    ],
)
def test_limit_may_be_asked_for_and_nothing_more(field: str, most: int) -> None:
    part, _, name = field.partition("_")
    (info,) = found(DATA, **{field: most})
    assert getattr(getattr(info, f"{part}_attr"), name) >= most
    assert name in refused(DATA, **{field: most + 1})


@pytest.mark.parametrize(
    "parts", [{"tx_comp_order": fi.ORDER_STRICT}, {"rx_comp_order": fi.ORDER_DATA}, {"rx_total_buffered_recv": 1}]
)
def test_deprecated_hint_is_refused(parts: dict[str, int]) -> None:
    assert next(iter(parts)).partition("_")[2] in refused(DATA, **parts)


def test_counts_of_endpoints_and_queues_are_advice() -> None:
    (info,) = found(DATA, domain_cq_cnt=10**6, domain_ep_cnt=10**6)
    assert (info.domain_attr.cq_cnt, info.domain_attr.ep_cnt) == (32, 128)


@pytest.mark.parametrize("size", [2, 512, 16384])
def test_queue_sizes_are_those_of_the_hints(size: int) -> None:
    (info,) = found(DATA, tx_size=size, rx_size=min(size, 15360))
    assert (info.tx_attr.size, info.rx_attr.size) == (size, min(size, 15360))


@pytest.mark.parametrize("tclass", [fi.TC_BEST_EFFORT, fi.TC_LOW_LATENCY, fi.TC_BULK_DATA])
def test_traffic_classes_are_those_of_the_hints(tclass: fi.Tc) -> None:
    (info,) = found(DATA, tx_tclass=tclass, domain_tclass=fi.TC_DEDICATED_ACCESS)
    assert (info.tx_attr.tclass, info.domain_attr.tclass) == (tclass, fi.TC_DEDICATED_ACCESS)
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        domain.endpoint(info).close()


@pytest.mark.parametrize("tclass", [fi.tc_dscp_set(7), fi.TC_NETWORK_CTRL, 0x7777])
def test_unknown_traffic_class_is_refused_at_open(tclass: int) -> None:
    (info,) = found(DATA, domain_tclass=tclass)
    with fi.Fabric(info.fabric_attr) as fabric, pytest.raises(fi.InvalidArgument, match="rule: a label"):
        fabric.domain(info)


def test_injected_bytes_are_none_under_the_rnr_protocol() -> None:
    assert "inject_size" in refused(DATA, ep_protocol=fi.PROTO_CXI_RNR, tx_inject_size=1)


@pytest.mark.parametrize("flags", [fi.COMMIT_COMPLETE, fi.MULTICAST])
def test_unknown_op_flags_are_refused(flags: int) -> None:
    assert "tx_attr.op_flags" in refused(DATA, tx_op_flags=flags)


def test_op_flags_are_those_of_the_hints() -> None:
    assert found(DATA)[0].tx_attr.op_flags == 0
    assert found(DATA, tx_op_flags=fi.DELIVERY_COMPLETE)[0].tx_attr.op_flags == fi.DELIVERY_COMPLETE


def test_transmit_order_is_exactly_that_of_the_hints() -> None:
    """Operations without any order may travel in packets of less overhead: 0 stays 0."""
    assert found(DATA)[0].tx_attr.msg_order == 0
    assert found(DATA, tx_msg_order=fi.ORDER_RMA_WAW)[0].tx_attr.msg_order == fi.ORDER_RMA_WAW
    assert "msg_order" in refused(DATA, tx_msg_order=fi.ORDER_RAR)


# ---- capabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.extra.named-rx-ctx", "cxi.extra.fence")
@pytest.mark.parametrize(
    "cap", [fi.NAMED_RX_CTX, fi.FENCE, fi.RMA_EVENT, fi.HMEM, fi.SOURCE, fi.MULTI_RECV, fi.TRIGGER, fi.DIRECTED_RECV]
)
def test_capability_is_granted_where_it_is_asked_for(cap: int) -> None:
    assert found(DATA | MESSAGES | cap)[0].caps & cap


@pytest.mark.parametrize("cap", [fi.SHARED_AV, fi.RMA_PMEM, fi.MULTICAST, fi.XPU, fi.TAGGED_MULTI_RECV])
def test_capability_that_is_not_offered_is_refused(cap: int) -> None:
    assert "caps" in refused(DATA | cap)


@pytest.mark.parametrize("cap", [fi.SOURCE, fi.SOURCE_ERR])
def test_source_comes_only_where_it_is_asked_for(cap: int) -> None:
    assert not found()[0].caps & cap
    assert not found(DATA)[0].caps & cap
    info = found(DATA | fi.SOURCE | cap)[0]
    assert info.caps & cap
    assert info.rx_attr.caps & cap


@pytest.mark.parametrize("cap", [fi.RMA_EVENT, fi.FENCE, fi.HMEM])
def test_costly_capability_comes_without_hints_of_capabilities(cap: int) -> None:
    assert found()[0].caps & cap
    assert not found(DATA)[0].caps & cap


def test_source_err_without_source_is_refused() -> None:
    assert "SOURCE_ERR" in refused(DATA | fi.SOURCE_ERR)


def test_collective_alone_brings_messages() -> None:
    info = found(fi.COLLECTIVE)[0]
    assert info.caps & (fi.COLLECTIVE | fi.MSG | fi.SEND | fi.RECV) == fi.COLLECTIVE | fi.MSG | fi.SEND | fi.RECV
    assert info.tx_attr.caps & fi.SEND
    assert info.rx_attr.caps & fi.RECV
    assert not found(fi.COLLECTIVE | fi.TAGGED)[0].caps & fi.MSG


@pytest.mark.parametrize("caps", [fi.SEND, fi.RECV, fi.READ, fi.REMOTE_WRITE, DATA | fi.RECV])
def test_direction_without_anything_that_it_directs_is_refused(caps: int) -> None:
    assert "ask for one of these as well" in refused(caps)


def test_capabilities_of_domains_are_granted_on_request() -> None:
    assert found(DATA)[0].domain_attr.caps == fi.LOCAL_COMM | fi.REMOTE_COMM
    info = found(DATA, domain_caps=fi.AV_USER_ID)[0]
    assert info.domain_attr.caps == fi.LOCAL_COMM | fi.REMOTE_COMM | fi.AV_USER_ID


# ---- old constants ---------------------------------------------------------------------------------------------------

OLD = {"info_addr_format": 14, "ep_protocol": 23}


@pytest.mark.clause("cxi.env.compat", "cxi.env.compat-1")
@pytest.mark.parametrize("asked", [{"info_addr_format": 14}, {"ep_protocol": 23}, OLD])
def test_old_constants_are_understood_by_default(asked: dict[str, int]) -> None:
    (info,) = found(DATA, **asked)
    assert (info.addr_format, info.ep_attr.protocol) == (14, 23)
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info):
        pass


@pytest.mark.clause("cxi.env.compat-0")
def test_old_constants_are_refused_with_compat_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_COMPAT", "0")
    assert refused(DATA, **OLD)
    assert found(DATA)


@pytest.mark.clause("cxi.env.compat-0-conflicts")
def test_providers_of_the_old_numbers_are_reached_with_compat_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """14 and 23 are another provider's now: FI_ADDR_OPX and FI_PROTO_OPX."""

    class Other(BaseProvider):
        name = "opx"
        addresses = CxiAddresses()

        def offers(self, asked: Asked) -> list[Offer]:
            attr = fi.DomainAttr(name="opx0", threading=fi.THREAD_SAFE, data_progress=fi.PROGRESS_AUTO)
            ep = fi.EpAttr(type=fi.EP_RDM, protocol=fi.PROTO_OPX, max_msg_size=1 << 20)
            fabric = fi.FabricAttr(name="opx", prov_name="opx")
            return [Offer(fi.Info(fi.RMA, addr_format=fi.ADDR_OPX, ep_attr=ep, domain_attr=attr, fabric_attr=fabric))]

        def resolve(self, asked: Asked, offer: Offer | None) -> tuple[Any, Any]:
            return None, None

    monkeypatch.setitem(known._providers, "opx", Other())
    hints = fi.Info(addr_format=fi.ADDR_OPX)
    hints.ep_attr.protocol = fi.PROTO_OPX
    assert {info.fabric_attr.prov_name for info in fi.getinfo(hints=hints)} == {"opx", "cxi"}
    monkeypatch.setenv("FI_CXI_COMPAT", "0")
    assert {info.fabric_attr.prov_name for info in fi.getinfo(hints=hints)} == {"opx"}


@pytest.mark.clause("cxi.env.compat-2", "cxi.env.compat-2-incompatible")
def test_old_constants_are_all_with_compat_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_COMPAT", "2")
    infos = [info for info in fi.getinfo() if info.fabric_attr.prov_name == "cxi"]
    assert {(int(info.addr_format), int(info.ep_attr.protocol)) for info in infos} == {(14, 23)}
    assert refused(DATA, info_addr_format=fi.ADDR_CXI)
    assert refused(DATA, ep_protocol=fi.PROTO_CXI)


def test_tag_format_is_compared_by_its_highest_bit_and_with_tagged_alone() -> None:
    assert found(fi.TAGGED, ep_mem_tag_format=0x1800000FFFFF)  # MPICH's format, of fields that are not the offer's
    assert found(fi.TAGGED, ep_mem_tag_format=fi.TAG_MPI)
    assert found(fi.TAGGED, ep_mem_tag_format=1 << 47)
    assert "highest bit" in refused(fi.TAGGED, ep_mem_tag_format=1 << 48)
    assert found(fi.MSG, ep_mem_tag_format=1 << 63)


# ---- any hints -------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(0, 64), st.integers(0, (1 << 64) - 1), st.sampled_from([1 << n for n in range(64)]))
FIELDS = [
    "info_caps",
    "info_mode",
    "info_addr_format",
    *(f"tx_{name}" for name in ("caps", "op_flags", "msg_order", "inject_size", "size", "tclass", "iov_limit")),
    *(f"rx_{name}" for name in ("caps", "op_flags", "msg_order", "size", "total_buffered_recv")),
    *(f"ep_{name}" for name in ("type", "protocol", "max_msg_size", "mem_tag_format", "auth_key_size", "tx_ctx_cnt")),
    *(f"domain_{name}" for name in ("threading", "data_progress", "mr_mode", "resource_mgmt", "av_type", "caps")),
    *(f"domain_{name}" for name in ("auth_key_size", "max_ep_auth_key", "cq_data_size", "tclass", "mr_cnt")),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FIELDS), NUMBERS, max_size=4))
def test_any_hints_get_infos_that_meet_them_or_a_refusal(parts: dict[str, int]) -> None:
    try:
        infos = found(**parts)
    except fi.NoData:
        return
    for info in infos:
        caps = parts.get("info_caps", 0)
        assert info.caps & caps == caps
        assert info.tx_attr.msg_order == parts.get("tx_msg_order", 0)
        assert info.domain_attr.max_ep_auth_key >= parts.get("domain_max_ep_auth_key", 0)
        assert not info.caps & DATA or info.domain_attr.mr_mode & fi.MR_ENDPOINT
        assert isinstance(info.src_addr, cxi.Address)
    classes = parts.get("tx_tclass", 0) | parts.get("domain_tclass", 0)
    if infos and not classes and infos[0].ep_attr.protocol == fi.PROTO_CXI:
        with fi.Fabric(infos[0].fabric_attr) as fabric, fabric.domain(infos[0]) as domain:
            domain.endpoint(infos[0]).close()
