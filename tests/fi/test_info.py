"""getinfo: hints are matched with offers, and every rejection has a reason."""

from __future__ import annotations

from typing import Any

import pytest

from weft import fi
from weft.fi.match import negotiate_mr_mode


def rejected_by(hints: fi.Info, **more: Any) -> set[str]:
    """The hints that rejected the general provider's candidate."""
    explanation = fi.getinfo(hints=hints, explain=True, **more)
    assert explanation.candidates[0].provider not in {c.provider for c in explanation.accepted}
    return {r.hint for r in explanation.candidates[0].rejections}


def weft_info(hints: fi.Info | None = None, **more: Any) -> fi.Info:
    return next(i for i in fi.getinfo(hints=hints, **more) if i.fabric_attr.prov_name == "weft")


def test_getinfo_without_hints_returns_everything() -> None:
    info = weft_info()
    assert info.ep_attr.type == fi.EP_RDM
    assert info.caps & (fi.RMA | fi.ATOMIC | fi.RMA_EVENT | fi.SOURCE | fi.FENCE | fi.LOCAL_COMM)
    assert info.addr_format == fi.ADDR_STR
    assert info.domain_attr.name == "weft0"
    assert info.fabric_attr.api_version == fi.version()


def test_getinfo_capability_modifiers_are_implied_by_primaries() -> None:
    """fi_getinfo(3): without modifiers, all that are relevant are assumed."""
    caps = weft_info(fi.Info(caps=fi.RMA)).caps
    assert caps & fi.RMA
    assert not caps & fi.ATOMIC  # primary: only when asked for
    for bit in (fi.READ, fi.WRITE, fi.REMOTE_READ, fi.REMOTE_WRITE):
        assert caps & bit


def test_getinfo_rma_event_is_offered_only_on_request() -> None:
    assert not weft_info(fi.Info(caps=fi.RMA)).caps & fi.RMA_EVENT
    assert weft_info(fi.Info(caps=fi.RMA | fi.RMA_EVENT)).caps & fi.RMA_EVENT
    assert weft_info(fi.Info(caps=fi.RMA)).caps & fi.LOCAL_COMM  # costs nothing


def test_getinfo_modifier_without_primary_is_rejected() -> None:
    assert rejected_by(fi.Info(caps=fi.READ)) == {"caps"}


def test_getinfo_rma_event_without_target_side_is_rejected() -> None:
    assert rejected_by(fi.Info(caps=fi.RMA | fi.READ | fi.RMA_EVENT)) == {"caps"}


@pytest.mark.general("its remarks")
@pytest.mark.parametrize("caps", [fi.MULTICAST | fi.RMA])
def test_getinfo_missing_capability_is_explained(caps: int) -> None:
    explanation = fi.getinfo(hints=fi.Info(caps=caps, fabric_attr=fi.FabricAttr(prov_name="weft")), explain=True)
    assert not explanation.infos
    assert [c.type for c in explanation.candidates if c.provider == "weft"] == [fi.EP_RDM, fi.EP_MSG]
    for candidate in explanation.candidates:
        (rejection,) = candidate.rejections
        assert rejection.hint == "caps"
        assert "no datagrams" in rejection.reason


def test_getinfo_no_match_raises_nodata_naming_each_hint() -> None:
    hints = fi.Info(
        caps=fi.RMA | fi.MULTICAST, ep_attr=fi.EpAttr(type=fi.EP_DGRAM), tx_attr=fi.TxAttr(inject_size=1 << 20)
    )
    with pytest.raises(fi.NoData) as caught:
        fi.getinfo(hints=hints)
    assert caught.value.errno == fi.ENODATA
    for part in ("caps: asked MULTICAST", "ep_attr.type: asked EP_DGRAM", "tx_attr.inject_size: asked 2**20", "weft0"):
        assert part in str(caught.value)
    assert caught.value.explanation.rejected


@pytest.mark.parametrize(
    ("hint", "hints"),
    [
        ("fabric_attr.prov_name", fi.Info(fabric_attr=fi.FabricAttr(prov_name="verbs"))),
        ("fabric_attr.name", fi.Info(fabric_attr=fi.FabricAttr(name="ether"))),
        ("domain_attr.name", fi.Info(domain_attr=fi.DomainAttr(name="mlx5_0"))),
        ("addr_format", fi.Info(addr_format=fi.SOCKADDR_IN)),
        ("ep_attr.type", fi.Info(ep_attr=fi.EpAttr(type=fi.EP_DGRAM))),
        ("ep_attr.protocol", fi.Info(ep_attr=fi.EpAttr(protocol=fi.PROTO_CXI))),
        ("ep_attr.max_msg_size", fi.Info(ep_attr=fi.EpAttr(max_msg_size=1 << 63))),
        ("ep_attr.msg_prefix_size", fi.Info(ep_attr=fi.EpAttr(msg_prefix_size=8))),
        ("ep_attr.tx_ctx_cnt", fi.Info(ep_attr=fi.EpAttr(tx_ctx_cnt=2))),
        ("ep_attr.rx_ctx_cnt", fi.Info(ep_attr=fi.EpAttr(rx_ctx_cnt=fi.SHARED_CONTEXT))),
        ("ep_attr.auth_key", fi.Info(ep_attr=fi.EpAttr(auth_key=b"12345678"))),
        ("tx_attr.size", fi.Info(tx_attr=fi.TxAttr(size=1 << 20))),
        ("tx_attr.inject_size", fi.Info(tx_attr=fi.TxAttr(inject_size=257))),
        ("tx_attr.iov_limit", fi.Info(tx_attr=fi.TxAttr(iov_limit=9))),
        ("tx_attr.rma_iov_limit", fi.Info(tx_attr=fi.TxAttr(rma_iov_limit=9))),
        ("tx_attr.msg_order", fi.Info(tx_attr=fi.TxAttr(msg_order=fi.ORDER_SAR))),
        ("tx_attr.op_flags", fi.Info(tx_attr=fi.TxAttr(op_flags=fi.MULTICAST))),
        ("tx_attr.comp_order", fi.Info(tx_attr=fi.TxAttr(comp_order=fi.ORDER_STRICT))),
        ("tx_attr.caps", fi.Info(caps=fi.RMA, tx_attr=fi.TxAttr(caps=fi.MSG))),
        ("tx_attr.tclass", fi.Info(tx_attr=fi.TxAttr(tclass=0x300))),
        ("rx_attr.caps", fi.Info(caps=fi.RMA | fi.WRITE, rx_attr=fi.RxAttr(caps=fi.REMOTE_READ))),
        ("rx_attr.comp_order", fi.Info(rx_attr=fi.RxAttr(comp_order=1))),
        ("domain_attr.mr_key_size", fi.Info(domain_attr=fi.DomainAttr(mr_key_size=16))),
        ("domain_attr.cq_data_size", fi.Info(domain_attr=fi.DomainAttr(cq_data_size=16))),
        ("domain_attr.mr_iov_limit", fi.Info(domain_attr=fi.DomainAttr(mr_iov_limit=64))),
        ("domain_attr.caps", fi.Info(domain_attr=fi.DomainAttr(caps=fi.SHARED_AV))),
        ("domain_attr.av_type", fi.Info(domain_attr=fi.DomainAttr(av_type=7))),
        ("domain_attr.threading", fi.Info(domain_attr=fi.DomainAttr(threading=77))),
        ("domain_attr.resource_mgmt", fi.Info(domain_attr=fi.DomainAttr(resource_mgmt=3))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_getinfo_hint_that_cannot_be_met_rejects(hint: str, hints: fi.Info) -> None:
    """fi_getinfo(3): a non-zero hint is met, or the offer is not returned."""
    assert hint in rejected_by(hints)


def test_getinfo_every_hint_of_an_info_is_met_by_its_provider() -> None:
    """A result of getinfo can be used as hints."""
    info = weft_info()
    info.src_addr = None
    again = weft_info(info)
    assert again.caps == info.caps
    assert again.domain_attr == info.domain_attr


def test_getinfo_limit_can_be_raised_to_the_ceiling() -> None:
    assert weft_info(fi.Info(tx_attr=fi.TxAttr(size=65536))).tx_attr.size == 65536
    assert weft_info(fi.Info(tx_attr=fi.TxAttr(size=16))).tx_attr.size >= 16


def test_getinfo_returns_chosen_values() -> None:
    info = weft_info(
        fi.Info(
            tx_attr=fi.TxAttr(op_flags=fi.DELIVERY_COMPLETE),
            domain_attr=fi.DomainAttr(av_type=fi.AV_MAP, resource_mgmt=fi.RM_DISABLED, threading=fi.THREAD_DOMAIN),
        )
    )
    assert info.tx_attr.op_flags == fi.DELIVERY_COMPLETE
    assert info.domain_attr.av_type == fi.AV_MAP
    assert info.domain_attr.resource_mgmt == fi.RM_DISABLED
    assert info.domain_attr.threading == fi.THREAD_DOMAIN


@pytest.mark.parametrize("level", [*fi.Threading][1:])
def test_getinfo_returns_the_threading_that_was_asked_for(level: fi.Threading) -> None:
    """A caller that keeps to a model compares the answer with it, as MPICH does."""
    asked = fi.Info(domain_attr=fi.DomainAttr(threading=level))
    assert weft_info(asked).domain_attr.threading == level
    assert weft_info().domain_attr.threading == fi.THREAD_SAFE


@pytest.mark.parametrize("part", ["control_progress", "data_progress"])
@pytest.mark.parametrize("model", [*fi.Progress][1:])
def test_getinfo_returns_the_progress_that_was_asked_for(part: str, model: fi.Progress) -> None:
    info = weft_info(fi.Info(domain_attr=fi.DomainAttr(**{part: model})))
    assert getattr(info.domain_attr, part) == model
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        assert domain.policy.progress == fi.PROGRESS_AUTO  # the NIC's own thread works for either


@pytest.mark.parametrize("tclass", [fi.TC_LOW_LATENCY, fi.TC_NETWORK_CTRL, fi.tc_dscp_set(46)])
def test_getinfo_returns_the_traffic_class_that_was_asked_for(tclass: int) -> None:
    asked = fi.Info(tx_attr=fi.TxAttr(tclass=tclass), domain_attr=fi.DomainAttr(tclass=tclass))
    info = weft_info(asked)
    assert (info.tx_attr.tclass, info.domain_attr.tclass) == (tclass, tclass)
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        domain.endpoint(info).close()


@pytest.mark.parametrize("tag", [fi.TAG_MPI, 0x5555, 0xC000007FFFFFFF, 1 << 63])
def test_getinfo_tag_format_is_compared_by_its_highest_bit(tag: int) -> None:
    """A format is no mask: the longest tag counts, as in libfabric. 0xC000007FFFFFFF is MPICH's."""
    assert weft_info(fi.Info(caps=fi.TAGGED, ep_attr=fi.EpAttr(mem_tag_format=tag)))


def test_getinfo_manual_engine_offers_manual_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_ENGINE", "manual")
    assert weft_info().domain_attr.data_progress == fi.PROGRESS_MANUAL
    hints = fi.Info(domain_attr=fi.DomainAttr(data_progress=fi.PROGRESS_AUTO))
    assert rejected_by(hints) == {"domain_attr.data_progress"}
    monkeypatch.setenv("WEFT_ENGINE", "thread")
    manual = fi.Info(domain_attr=fi.DomainAttr(data_progress=fi.PROGRESS_MANUAL))
    assert weft_info(manual).domain_attr.data_progress == fi.PROGRESS_MANUAL


# ---- mr_mode -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.mode.field")
def test_getinfo_general_provider_requires_no_mr_mode() -> None:
    """fi_mr(3): restrictions are the bits of domain_attr.mr_mode; with none of them the default rules hold."""
    assert weft_info().domain_attr.mr_mode == 0


@pytest.mark.clause("mr.mode.getinfo-input", "mr.mode.cleared-when-not-needed")
def test_getinfo_clears_mr_mode_bits_that_are_not_needed() -> None:
    """fi_mr(3): a provider clears an offered bit that it does not need."""
    offered = fi.MR_PROV_KEY | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_LOCAL | fi.MR_ENDPOINT | fi.MR_RAW
    assert weft_info(fi.Info(domain_attr=fi.DomainAttr(mr_mode=offered))).domain_attr.mr_mode == 0


@pytest.mark.clause("mr.raw-attr.domain-size")
def test_getinfo_under_mr_raw_announces_the_size_of_raw_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_mr(3) fi_mr_raw_attr: the needed key_size can be had from the domain attribute mr_key_size."""
    asked = fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_RAW))
    assert weft_info(asked).domain_attr.mr_key_size == 8  # the bit was cleared
    monkeypatch.setenv("WEFT_MR_MODE", "raw")
    for hint in (asked, fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_RAW, mr_key_size=16)), None):
        info = weft_info(hint)
        assert info.domain_attr.mr_key_size == 16
        with (
            fi.Fabric(info.fabric_attr) as fabric,
            fabric.domain(info) as domain,
            domain.mr_reg(bytearray(8), fi.REMOTE_READ) as mr,
        ):
            assert len(mr.raw_attr(info.domain_attr.mr_key_size)[1]) == 16
    asked.domain_attr.mr_key_size = 17
    assert rejected_by(asked) == {"domain_attr.mr_key_size"}


@pytest.mark.clause("mr.mode.kept-when-required")
def test_getinfo_keeps_mr_mode_bits_that_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_mr(3): a required bit is still set on output; without it offered there is no match."""
    monkeypatch.setenv("WEFT_MR_MODE", "prov_key|virt_addr")
    offered = fi.MR_PROV_KEY | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED
    mode = weft_info(fi.Info(domain_attr=fi.DomainAttr(mr_mode=offered))).domain_attr.mr_mode
    assert mode == fi.MR_PROV_KEY | fi.MR_VIRT_ADDR
    assert rejected_by(fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_PROV_KEY))) == {"domain_attr.mr_mode"}
    assert weft_info().domain_attr.mr_mode == mode  # no hints: what the provider needs


@pytest.mark.clause("mr.compat.scalable-accepted", "mr.compat.scalable")
@pytest.mark.parametrize("version", [fi.VERSION(1, 4), fi.VERSION(1, 5), None])
def test_getinfo_mr_scalable_is_accepted(version: int | None) -> None:
    """fi_mr(3): FI_MR_SCALABLE, with FI_LOCAL_MR clear, asks for the default rules."""
    info = weft_info(fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_SCALABLE)), version=version)
    assert info.domain_attr.mr_mode == fi.MR_SCALABLE
    assert not info.mode & fi.LOCAL_MR


@pytest.mark.clause("mr.compat.local-mr-accepted")
def test_getinfo_local_mr_mode_is_cleared_when_not_needed() -> None:
    assert weft_info(fi.Info(mode=fi.LOCAL_MR)).mode == 0


@pytest.mark.clause("mr.local.local-mr-ignored")
@pytest.mark.parametrize("mode", [0, fi.LOCAL_MR])
def test_getinfo_local_mr_has_no_effect_beside_mr_local(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_mr(3): when FI_MR_LOCAL is set, FI_LOCAL_MR is ignored."""
    monkeypatch.setenv("WEFT_MR_MODE", "local")
    info = weft_info(fi.Info(mode=mode, domain_attr=fi.DomainAttr(mr_mode=fi.MR_LOCAL)))
    assert info.domain_attr.mr_mode == fi.MR_LOCAL
    assert info.mode == 0


def test_getinfo_old_mode_local_mr_counts_as_mr_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MR_MODE", "local")
    basic = fi.DomainAttr(mr_mode=fi.MR_BASIC)
    assert weft_info(fi.Info(mode=fi.LOCAL_MR, domain_attr=basic)).mode == fi.LOCAL_MR
    assert rejected_by(fi.Info(domain_attr=basic)) == {"domain_attr.mr_mode"}


@pytest.mark.clause("mr.basic.accepted", "mr.basic.not-cleared", "mr.basic.forced")
def test_getinfo_mr_basic_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_mr(3): FI_MR_BASIC on input is not cleared: it forces basic registration."""
    basic = fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_BASIC))
    assert weft_info(basic).domain_attr.mr_mode == fi.MR_BASIC
    monkeypatch.setenv("WEFT_MR_MODE", "basic")
    assert weft_info(basic).domain_attr.mr_mode == fi.MR_BASIC


@pytest.mark.clause("mr.basic.alone")
@pytest.mark.parametrize("other", [fi.MR_LOCAL, fi.MR_PROV_KEY, fi.MR_SCALABLE])
def test_getinfo_mr_basic_with_another_bit_is_rejected(other: int) -> None:
    assert rejected_by(fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_BASIC | other))) == {"domain_attr.mr_mode"}


@pytest.mark.parametrize(
    ("required", "asked", "mode", "version", "expected"),
    [
        (0, 0, 0, (2, 1), 0),
        (0, 0, 0, (1, 4), fi.MR_SCALABLE),
        (fi.MR_BASIC_MAP, 0, 0, (1, 4), fi.MR_BASIC),
        (fi.MR_ENDPOINT, 0, 0, (1, 4), None),
        (fi.MR_ENDPOINT, fi.MR_BASIC, 0, (2, 1), None),
        (fi.MR_PROV_KEY, fi.MR_SCALABLE, 0, (2, 1), None),
        (fi.MR_PROV_KEY, fi.MR_BASIC, 0, (2, 1), fi.MR_BASIC),
        (fi.MR_LOCAL, fi.MR_SCALABLE, fi.LOCAL_MR, (2, 1), fi.MR_SCALABLE),
        (fi.MR_LOCAL, 0, fi.LOCAL_MR, (2, 1), None),
        (fi.MR_RAW, fi.MR_RAW | fi.MR_LOCAL, 0, (2, 1), fi.MR_RAW),
    ],
)
def test_mr_mode_negotiation(
    required: int, asked: int, mode: int, version: tuple[int, int], expected: int | None
) -> None:
    found = negotiate_mr_mode(fi.MrMode(required), fi.MrMode(asked), mode, fi.VERSION(*version))
    if expected is None:
        assert isinstance(found, str)
    else:
        assert found == expected


# ---- node, service, flags, version ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "service", "dest"),
    [
        ("weft://0/5/77", None, "weft://0/5/77"),
        ("weft0", "77", "weft://0/1/77"),
        ("0", None, "weft://0/1"),
        (None, "9", "weft://0/1/9"),
    ],
)
def test_getinfo_node_and_service_name_the_destination(node: str | None, service: str | None, dest: str) -> None:
    info = weft_info(node=node, service=service)
    assert info.dest_addr == dest
    assert info.src_addr == "weft://0/1"


def test_getinfo_source_flag_makes_them_the_local_address() -> None:
    info = weft_info(node="weft0", service="42", flags=fi.SOURCE)
    assert info.src_addr == "weft://0/1/42"
    assert info.dest_addr is None


def test_getinfo_source_flag_without_address_is_invalid() -> None:
    with pytest.raises(fi.InvalidArgument):
        fi.getinfo(flags=fi.SOURCE)


def test_getinfo_address_string_with_service_is_invalid() -> None:
    """fi_getinfo(3): with an FI_ADDR_STR address as node, service must be NULL."""
    with pytest.raises(fi.InvalidArgument, match="service must be None"):
        fi.getinfo(node="weft://0/1/2", service="3")


def test_getinfo_unknown_node_is_nodata() -> None:
    with pytest.raises(fi.NoData, match="no NIC 'elsewhere'"):
        fi.getinfo(node="elsewhere")


def test_getinfo_hint_addresses_are_taken_over() -> None:
    info = weft_info(fi.Info(src_addr="weft://0/1/5", dest_addr="weft://0/1/6"))
    assert (info.src_addr, info.dest_addr) == ("weft://0/1/5", "weft://0/1/6")
    assert info.src_addrlen == len("weft://0/1/5")


def test_getinfo_unknown_flag_is_badflags() -> None:
    with pytest.raises(fi.BadFlags, match="FENCE"):
        fi.getinfo(flags=fi.FENCE)


def test_getinfo_prov_attr_only_returns_one_info_a_provider() -> None:
    infos = fi.getinfo(flags=fi.PROV_ATTR_ONLY)
    assert [i.fabric_attr.prov_name for i in infos].count("weft") == 1
    assert infos[0].caps == 0


def test_getinfo_newer_interface_is_answered_with_the_library_s() -> None:
    for version in (fi.VERSION(2, 5), fi.VERSION(99, 0)):
        assert {one.fabric_attr.api_version for one in fi.getinfo(version)} == {fi.version()}


# ---- printing ------------------------------------------------------------------------------------------------------


def test_info_repr_is_a_table_with_names() -> None:
    text = repr(weft_info(fi.Info(caps=fi.RMA)))
    for line in ("type                 EP_RDM", "name                 weft0", "inject_size          256"):
        assert line in text
    assert "RMA|READ|WRITE" in text


def test_info_dup_is_deep_and_shares_opened_objects() -> None:
    info = weft_info()
    copy = fi.dupinfo(info)
    copy.tx_attr.size = 7
    assert info.tx_attr.size == 1024
    assert fi.dupinfo(None) == fi.allocinfo() == fi.Info()


def test_explanation_prints_accepted_and_rejected() -> None:
    explanation = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="nope")), explain=True)
    assert "'nope' is not among them" in str(explanation)
    assert "weft: weft0, EP_RDM: accepted" in str(fi.getinfo(explain=True))
    assert len(fi.getinfo(explain=True).infos) == len(fi.getinfo())


@pytest.mark.parametrize("part", ["tx_attr", "rx_attr"])
def test_unknown_hint_bits_match_no_offer(part: str) -> None:
    asked = fi.Info()
    getattr(asked, part).msg_order = 1 << 40
    with pytest.raises(fi.NoData, match="msg_order"):
        fi.getinfo(hints=asked)
    with pytest.raises(fi.NoData, match="caps"):
        fi.getinfo(hints=fi.Info(caps=fi.RMA | 1 << 62))
    with pytest.raises(fi.BadFlags):
        fi.getinfo(flags=1 << 62)
