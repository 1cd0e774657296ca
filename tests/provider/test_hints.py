"""The hints of real clients, as they were captured, get an offer of the policy helper."""

from __future__ import annotations

import pytest

from weft import fi
from weft.policyhost.answers import NOT_YET, Client
from weft.policyhost.records import Record, Value, pack, unpack

V2_1 = fi.VERSION(2, 1)


def hinted(
    caps: int,
    mode: int,
    mr_mode: int,
    *,
    op_flags: tuple[int, int] = (0, 0),
    order: tuple[int, int] = (0, 0),
    domain: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    **more: Value,
) -> dict[str, Value]:
    """A set of hints. domain: threading, control and data progress, resource management, av_type, cq_data_size."""
    names = ("threading", "control_progress", "data_progress", "resource_mgmt", "av_type", "cq_data_size")
    return {
        "caps": caps & ~int(NOT_YET),  # clients ask for the values that getinfo without hints has shown
        "mode": mode,
        "ep.type": 3,
        "tx.op_flags": op_flags[0],
        "rx.op_flags": op_flags[1],
        "tx.msg_order": order[0],
        "rx.msg_order": order[1],
        "domain.mr_mode": mr_mode,
        **{f"domain.{name}": value for name, value in zip(names, domain, strict=True)},
        **{name.replace("__", "."): value for name, value in more.items()},
    }


MPI = {"op_flags": (0x11000000, 0x1000000), "order": (0xF000000100, 0x100)}
# Client, provider, version, hints.
CAPTURED = {
    "MPICH, capability set cxi": (
        "cxi",
        fi.VERSION(1, 5),
        hinted(
            0xB18000000313F1E,
            0xB10000000000000,
            0x220,
            domain=(3, 2, 2, 2, 2, 4),
            **MPI,
            ep__mem_tag_format=0x1800000FFFFF,
        ),
    ),
    "MPICH, default set": (
        "weft",
        V2_1,
        hinted(
            0xB18000000313F1E,
            0xB10000000000000,
            0x200,
            domain=(3, 2, 2, 2, 2, 4),
            **MPI,
            ep__mem_tag_format=0xC000007FFFFFFF,
        ),
    ),
    "Intel MPI, cxi": (
        "cxi",
        fi.VERSION(1, 5),
        hinted(0xB18000000313F1E, 0xB10000000000000, 0x220, domain=(3, 2, 2, 2, 2, 4), **MPI),
    ),
    "Intel MPI, weft": (
        "weft",
        fi.VERSION(1, 5),
        hinted(0xB18000000313F1E, 0xB10000000000000, 0x70, domain=(3, 2, 2, 2, 1, 0), **MPI),
    ),
    "Open MPI, MTL": (
        "cxi",
        fi.VERSION(1, 18),
        hinted(
            0x81880000000000A,
            0x810000000000000,
            0x420 | 0x200,
            op_flags=(0x1000000, 0x1000000),
            order=(0x100, 0x100),
            domain=(3, 0, 0, 2, 1, 4),
        ),
    ),
    "Open MPI, BTL": (
        "cxi",
        fi.VERSION(1, 18),
        hinted(
            0x800000000014,
            0x810000000000000,
            0x670,
            op_flags=(0x11000000, 0x1000000),
            domain=(3, 0, 0, 0, 0, 0),
            tx__iov_limit=1,
            rx__iov_limit=1,
        ),
    ),
    "NIXL, scan": ("cxi", fi.VERSION(1, 18), hinted(0x18000000000006, 0x800000000000000, 0xFFFFFFFC)),
    "NIXL, rail": (
        "cxi",
        fi.VERSION(1, 18),
        hinted(0x118800000000006, 0x800000000000000, 0x674, domain=(4, 0, 0, 0, 0, 0), domain__name="cxi0"),
    ),
    "fi_pingpong": ("cxi", fi.VERSION(1, 17), hinted(0x2, 0xC10000000000000, 0x274)),
}


def getinfo(provider: str, version: int, hints: dict[str, Value]) -> Record:
    client = Client()
    try:
        asked: dict[str, Value] = {"ask": "getinfo", "provider": provider, "version": version, "hints": hints}
        return unpack(client.answer(pack(asked)))
    finally:
        client.close()


@pytest.mark.parametrize("client", CAPTURED)
def test_hints_of_a_client_get_an_offer(client: str) -> None:
    provider, version, hints = CAPTURED[client]
    answer = getinfo(provider, version, hints)
    assert answer.text("text") is None
    offers = answer["offer"]
    assert offers
    first = offers[0]
    assert isinstance(first, bytes)
    found = unpack(first)
    caps = hints["caps"]
    assert isinstance(caps, int)
    assert caps & ~found.number("caps") == 0
    if hints["domain.threading"]:
        assert found.number("domain.threading") == hints["domain.threading"]


def test_offers_of_a_provider_have_nothing_that_the_c_library_lacks() -> None:
    offered = {"cxi": {int(fi.EP_RDM)}, "weft": {int(fi.EP_RDM), int(fi.EP_MSG)}}
    for provider, types in offered.items():
        asked: dict[str, Value] = {"ask": "getinfo", "provider": provider, "version": V2_1}
        answer = unpack(Client().answer(pack(asked)))
        for offer in answer["offer"]:
            assert isinstance(offer, bytes)
            found = unpack(offer)
            assert found.number("caps") & int(NOT_YET) == 0
            assert found.number("ep.type") in types
