"""The hints of real clients, as they were captured, get an offer of the policy helper."""

from __future__ import annotations

import pytest

from weft import fi
from weft.policyhost import infos
from weft.policyhost.answers import Client
from weft.policyhost.captured import CLIENTS, Call, calls
from weft.policyhost.records import Record, Value, pack, unpack

V2_1 = fi.VERSION(2, 1)
HINTED = [(file, call) for client in CLIENTS.values() for file in client.files for call in calls(file) if call.hints]


def getinfo(call: Call) -> Record:
    client = Client()
    try:
        asked: dict[str, Value] = {"ask": "getinfo", "provider": call.provider, "version": call.version}
        return unpack(client.answer(pack(asked | ({"hints": infos.record_of(call.hints)} if call.hints else {}))))
    finally:
        client.close()


@pytest.mark.parametrize(("file", "call"), HINTED, ids=[f"{file} {call.provider}" for file, call in HINTED])
def test_hints_of_a_client_get_an_offer(file: str, call: Call) -> None:
    hints = call.hints
    assert hints is not None
    if hints.addr_format:
        hints.addr_format = fi.ADDR_CXI if call.provider == "cxi" else fi.ADDR_STR
    answer = getinfo(call)
    if call.provider == "weft" and hints.domain_attr.name == "cxi0":
        assert answer.number("errno") == int(fi.ENODATA)
        assert "domain_attr.name: asked 'cxi0', offers 'weft0'" in (answer.text("text") or "")
        return
    assert answer.text("text") is None
    first = answer["offer"][0]
    assert isinstance(first, bytes)
    found = unpack(first)
    assert hints.caps & ~found.number("caps") == 0
    if hints.domain_attr.threading:
        assert found.number("domain.threading") == hints.domain_attr.threading


def test_offers_have_the_types_and_the_collectives_of_their_provider() -> None:
    offered = {"cxi": {int(fi.EP_RDM)}, "weft": {int(fi.EP_RDM), int(fi.EP_MSG)}}
    for provider, types in offered.items():
        for offer in getinfo(Call(provider, V2_1, None))["offer"]:
            assert isinstance(offer, bytes)
            found = unpack(offer)
            assert found.number("ep.type") in types
            assert bool(found.number("caps") & fi.COLLECTIVE) == (found.number("ep.type") == fi.EP_RDM)
