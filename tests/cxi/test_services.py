"""fi_cxi(7) "Authorization Keys": services of a device, and `weft service`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft import errors, fi
from weft.providers.cxi import device, resources, service
from weft.providers.cxi.record import TOTALS
from weft.providers.cxi.service import Member
from weft.tools import cli


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


@pytest.fixture
def weft() -> Callable[..., Any]:
    return lambda *args: CliRunner().invoke(cli.app, [str(arg) for arg in args])


def test_service_has_what_it_was_given() -> None:
    made = service.create(
        members=[("uid", 5), Member("gid", 6), ("netns", 4026531840)],
        vnis=[7, range(100, 200)],
        tclasses=["LOW_LATENCY", fi.TC_BULK_DATA],
        limits={"les": 100, "tles": (64, 64)},
        enabled=False,
        system=True,
    )
    assert service.service("cxi0", made.id) == made
    assert made.members == (Member("uid", 5), Member("gid", 6), Member("netns", 4026531840))
    assert made.vnis == (range(7, 8), range(100, 200))
    assert made.tclasses == {fi.TC_LOW_LATENCY, fi.TC_BULK_DATA}
    assert (made.limits["les"], made.limits["tles"], made.limits["cts"]) == ((100, 0), (64, 64), (2047, 0))
    assert (made.enabled, made.system) == (False, True)


def test_number_of_a_service_is_given_once() -> None:
    first, second = service.create(), service.create()
    service.destroy("cxi0", first.id)
    assert service.create().id == second.id + 1
    service.destroy("cxi0", second.id)
    assert service.create().id == second.id + 2


def test_member_has_32_bits() -> None:
    assert service.create(members=[("uid", 2**32 - 1)]).members == (Member("uid", 2**32 - 1),)
    with pytest.raises(fi.InvalidArgument, match="32 bits"):
        service.create(members=[("uid", 2**32)])


def test_service_admits_its_vnis_and_classes() -> None:
    made = service.create(vnis=[7, range(100, 200)], tclasses=["LOW_LATENCY"])
    assert [vni for vni in (6, 7, 8, 99, 100, 199, 200) if made.admits(vni)] == [7, 100, 199]
    assert made.serves(fi.TC_LOW_LATENCY)
    assert not made.serves(fi.TC_BEST_EFFORT)
    (default, _) = service.services("cxi0")
    assert default.admits(1)
    assert default.admits(65535)
    assert default.serves(fi.TC_SCAVENGER)


def test_unrestricted_member_is_everybody() -> None:
    assert service.create(members=[("uid", 5), ("unrestricted", 0)]).members == ()


def test_services_keep_creation_order_and_ids_are_not_reused() -> None:
    ids = [service.create().id for _ in range(3)]
    assert ids == [2, 3, 4]
    service.destroy("cxi0", 4)
    assert service.create().id == 5
    assert [one.id for one in service.services("cxi0")] == [1, 2, 3, 5]


def test_service_is_disabled_and_enabled() -> None:
    service.enable("cxi0", 1, False)
    assert not service.services("cxi0")[0].enabled
    service.enable("cxi0", 1)
    assert service.services("cxi0")[0].enabled


def test_service_in_use_is_not_destroyed() -> None:
    made = service.create()
    pool = resources.open_pool(device.devices()[0], made)
    with pytest.raises(errors.Busy, match=f"in use by process {os.getpid()}"):
        service.destroy("cxi0", made.id)
    pool.close()
    service.destroy("cxi0", made.id)
    with pytest.raises(errors.NotFound):
        resources.open_pool(device.devices()[0], made)


def test_default_service_is_not_destroyed() -> None:
    with pytest.raises(errors.InvalidArgument, match="default service"):
        service.destroy("cxi0", 1)


def test_unknown_service_is_refused_with_those_there_are() -> None:
    for call in (service.enable, service.destroy):
        with pytest.raises(errors.NotFound, match="services: 1"):
            call("cxi0", 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": [("user", 5)]},
        {"members": [("uid", "root")]},
        {"members": [("uid", -1)]},
        {"members": [5]},
        {"vnis": [0]},
        {"vnis": [65536]},
        {"vnis": [range(5, 5)]},
        {"vnis": [range(1, 9, 2)]},
        {"vnis": ["5"]},
        {"tclasses": ["FAST"]},
        {"tclasses": [fi.TC_NETWORK_CTRL]},
        {"limits": {"ducks": 5}},
        {"limits": {"les": -1}},
        {"limits": {"les": (5, 6)}},
        {"limits": {"les": 13956}},
        {"limits": {"les": "many"}},
    ],
)
def test_bad_argument_is_refused_and_makes_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        service.create(**wrong)
    assert len(service.services("cxi0")) == 1


def test_more_cannot_be_reserved_than_there_is() -> None:
    service.create(limits={"tles": (1000, 1000)})
    with pytest.raises(errors.NoSpace, match="other services have reserved 1512"):
        service.create(limits={"tles": (1000, 1000)})


def test_all_that_is_left_can_be_reserved() -> None:
    left = TOTALS["tles"] - 512  # of the default service
    with pytest.raises(errors.NoSpace, match="cannot be reserved"):
        service.create(limits={"tles": (left + 1, left + 1)})
    assert service.create(limits={"tles": (left, left)}).limits["tles"] == (left, left)
    with pytest.raises(errors.NoSpace, match=f"reserved {left + 512}"):
        service.create(limits={"tles": (1, 1)})


# ---- weft service ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.service-api", "cxi.auth.launch-svc-id")
def test_command_create_prints_the_id(weft: Callable[..., Any]) -> None:
    """A service is made by a call of its own, not by libfabric's, and an id stands for it."""
    found = weft(
        "service", "create", "--device", "cxi0", "--uid", "root", "--gid", 7, "--vni", "100,200-300", "--tclass",
        "low_latency", "--limit", "les=100", "--limit", "tles=64:64",
    )  # fmt: skip
    assert found.output == "2\n"
    made = service.service("cxi0", 2)
    assert made is not None
    assert made.members == (Member("uid", 0), Member("gid", 7))
    assert made.vnis == (range(100, 101), range(200, 301))
    assert made.tclasses == {fi.TC_LOW_LATENCY}
    assert (made.limits["les"], made.limits["tles"]) == ((100, 0), (64, 64))


def test_command_list_and_show(weft: Callable[..., Any]) -> None:
    weft("service", "create", "--uid", 12345, "--vni", "200-300")
    listed = weft("service", "list").output
    assert "everybody" in listed
    assert "uid:12345" in listed
    assert "200-300" in listed
    rows = [json.loads(line) for line in weft("service", "list", "--json").output.splitlines()]
    assert [row["id"] for row in rows] == [1, 2]
    said = json.loads(weft("service", "show", 2, "--json").output)
    assert said["vnis"] == ["200-300"]
    assert said["limits"]["les"] == [13955, 0]
    assert "les" in weft("service", "show", 2).output


def test_command_enable_disable_destroy(weft: Callable[..., Any]) -> None:
    weft("service", "create", "--disabled")
    made = service.service("cxi0", 2)
    assert made is not None
    assert not made.enabled
    weft("service", "enable", 2)
    weft("service", "disable", 1)
    assert [one.enabled for one in service.services("cxi0")] == [False, True]
    weft("service", "destroy", 2)
    assert service.service("cxi0", 2) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "--uid", "nobody-of-that-name"], "not a number or a known name"),
        (["create", "--vni", "x"], "not a whole number"),
        (["create", "--limit", "les"], "not KIND=MOST"),
        (["show", "9"], "services: 1"),
        (["list", "--device", "cxi9"], "devices: cxi0"),
        (["destroy", "9"], "services: 1"),
    ],
)
def test_command_says_what_is_wrong(weft: Callable[..., Any], arguments: list[str], message: str) -> None:
    assert message in str(weft("service", *arguments).exception)
