"""The rules of fi_getinfo(3) for every provider: hints are met, results are hints again, parts and copies.

Weft's own offers, explanations and addresses are in test_info.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.fi.support import PROVIDER

from weft import fi


def offers(hints: fi.Info | None = None, **more: Any) -> list[fi.Info]:
    """The run's provider's offers for hints of datagram endpoints."""
    asked = fi.dupinfo(hints) if hints is not None else fi.Info()
    asked.ep_attr.type = asked.ep_attr.type or fi.EP_RDM
    asked.fabric_attr.prov_name = PROVIDER.name
    asked.domain_attr.mr_mode |= PROVIDER.required
    return fi.getinfo(hints=asked, **more)


def offer(hints: fi.Info | None = None, **more: Any) -> fi.Info:
    return offers(hints, **more)[0]


MESSAGES = pytest.mark.general("messages")
MODES = fi.MR_LOCAL | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_ENDPOINT


@pytest.mark.parametrize(
    ("primary", "modifiers"),
    [
        (fi.RMA, (fi.READ, fi.WRITE, fi.REMOTE_READ, fi.REMOTE_WRITE)),
        pytest.param(fi.MSG, (fi.SEND, fi.RECV), marks=MESSAGES),
        pytest.param(fi.TAGGED, (fi.SEND, fi.RECV), marks=MESSAGES),
        (fi.ATOMIC, (fi.READ, fi.WRITE, fi.REMOTE_READ, fi.REMOTE_WRITE)),
    ],
)
def test_modifiers_are_implied_by_their_primary(primary: int, modifiers: tuple[int, ...]) -> None:
    """fi_getinfo(3) capabilities: without modifiers, all that are relevant are assumed."""
    caps = offer(fi.Info(caps=primary, domain_attr=fi.DomainAttr(mr_mode=MODES))).caps
    assert caps & primary
    for bit in modifiers:
        assert caps & bit


def test_modifiers_limit_their_primary() -> None:
    caps = offer(fi.Info(caps=fi.RMA | fi.WRITE, domain_attr=fi.DomainAttr(mr_mode=MODES))).caps
    assert caps & fi.WRITE
    assert not caps & (fi.READ | fi.REMOTE_READ | fi.REMOTE_WRITE)


@MESSAGES
def test_primary_capability_is_offered_to_those_that_ask() -> None:
    assert not offer(fi.Info(caps=fi.MSG)).caps & (fi.RMA | fi.ATOMIC | fi.TAGGED)


@MESSAGES
def test_result_is_a_hint_that_its_provider_meets() -> None:
    info = offer(fi.Info(caps=fi.MSG | fi.TAGGED))
    again = offer(info)
    assert (again.caps, again.mode, again.ep_attr.type) == (info.caps, info.mode, info.ep_attr.type)
    for part in ("tx_attr", "rx_attr"):
        assert getattr(again, part) == getattr(info, part)
    assert again.domain_attr.name == info.domain_attr.name
    assert again.fabric_attr == info.fabric_attr


@pytest.mark.general("no mr_mode is needed")
@pytest.mark.parametrize("part", ["tx_attr", "rx_attr", "domain_attr", "ep_attr"])
def test_part_that_is_none_counts_as_zeros(part: str) -> None:
    hints: Any = fi.Info(caps=fi.MSG, fabric_attr=fi.FabricAttr(prov_name=PROVIDER.name))
    setattr(hints, part, None)
    found = fi.getinfo(hints=hints)
    assert found
    assert all(one.caps & fi.MSG for one in found)


def test_results_share_nothing() -> None:
    first, second = offer(), offer()
    size = second.tx_attr.size
    first.tx_attr.size = 1
    first.domain_attr.name = "changed"
    assert (second.tx_attr.size, second.domain_attr.name == "changed") == (size, False)


def test_copy_of_a_result_is_deep() -> None:
    info = offer()
    copy = fi.dupinfo(info)
    assert copy == info
    size = info.tx_attr.size
    copy.tx_attr.size = size + 1
    assert info.tx_attr.size == size


@pytest.mark.parametrize(
    "hints",
    [
        fi.Info(caps=fi.RMA | 1 << 62),
        fi.Info(domain_attr=fi.DomainAttr(name="no such domain")),
        fi.Info(tx_attr=fi.TxAttr(inject_size=1 << 40)),
        fi.Info(tx_attr=fi.TxAttr(iov_limit=1 << 20)),
        fi.Info(tx_attr=fi.TxAttr(size=1 << 40)),
        fi.Info(rx_attr=fi.RxAttr(size=1 << 40)),
        fi.Info(domain_attr=fi.DomainAttr(cq_data_size=64)),
    ],
    ids=["caps", "domain", "inject_size", "iov_limit", "tx_size", "rx_size", "cq_data_size"],
)
def test_hint_that_cannot_be_met_has_no_offer(hints: fi.Info) -> None:
    with pytest.raises(fi.NoData):
        offer(hints)


def test_limit_is_met_or_exceeded() -> None:
    assert offer(fi.Info(tx_attr=fi.TxAttr(size=16))).tx_attr.size >= 16
    assert offer(fi.Info(tx_attr=fi.TxAttr(inject_size=8))).tx_attr.inject_size >= 8


@pytest.mark.parametrize("flags", [fi.TRANSMIT_COMPLETE, fi.DELIVERY_COMPLETE, fi.INJECT_COMPLETE])
def test_default_flags_that_were_asked_for_are_in_force(flags: int) -> None:
    assert offer(fi.Info(tx_attr=fi.TxAttr(op_flags=flags))).tx_attr.op_flags & flags


@pytest.mark.parametrize("level", [fi.THREAD_DOMAIN, fi.THREAD_COMPLETION, fi.THREAD_ENDPOINT, fi.THREAD_FID])
def test_threading_is_the_one_asked_for_or_freer(level: int) -> None:
    """fi_domain(3): a provider may offer a less restrictive model."""
    freer = {fi.THREAD_SAFE, level}
    order = [fi.THREAD_SAFE, fi.THREAD_FID, fi.THREAD_ENDPOINT, fi.THREAD_COMPLETION, fi.THREAD_DOMAIN]
    freer.update(order[: order.index(fi.Threading(level))])
    assert offer(fi.Info(domain_attr=fi.DomainAttr(threading=level))).domain_attr.threading in freer


@pytest.mark.parametrize("kind", [pytest.param(fi.AV_MAP, marks=pytest.mark.general("FI_AV_MAP")), fi.AV_TABLE])
def test_type_of_vector_that_was_asked_for_is_given(kind: int) -> None:
    assert offer(fi.Info(domain_attr=fi.DomainAttr(av_type=kind))).domain_attr.av_type == kind


@pytest.mark.clause("mr.mode.getinfo-input", "mr.mode.cleared-when-not-needed")
def test_mr_mode_of_an_offer_is_a_part_of_what_was_offered() -> None:
    """fi_mr(3): the provider clears the bits that it does not need, and adds none."""
    for modes in (0, int(MODES)):
        try:
            found = offers(fi.Info(caps=fi.RMA, domain_attr=fi.DomainAttr(mr_mode=modes)))
        except fi.NoData:
            assert not modes  # a provider that needs a bit
            continue
        assert all(not one.domain_attr.mr_mode & ~(modes | PROVIDER.required) for one in found)


@MESSAGES
def test_context_of_the_hints_is_needed_where_the_mode_says_so() -> None:
    """fi_getinfo(3) mode: a provider sets no bit that the hints have not."""
    assert offer(fi.Info(caps=fi.MSG, mode=0)).mode == 0


def test_newer_interface_is_answered_with_the_library_s() -> None:
    assert offer(version=fi.VERSION(99, 0)).fabric_attr.api_version <= fi.version()


def test_one_offer_of_each_provider_has_its_attributes_alone() -> None:
    """fi_getinfo(3) FI_PROV_ATTR_ONLY: one offer of each provider, whatever the hints are."""
    found = [one for one in offers(flags=fi.PROV_ATTR_ONLY) if one.fabric_attr.prov_name == PROVIDER.name]
    assert [one.caps for one in found] == [0]
