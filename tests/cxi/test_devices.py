"""fi_cxi(7) "Addressing Format", "PCIe Atomics": devices, their addresses and what can be changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.procs import children
from typer.testing import CliRunner

from weft import errors, fi
from weft.providers.cxi import device, resources, service
from weft.tools import cli


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


@pytest.fixture
def weft() -> Callable[..., Any]:
    return lambda *args: CliRunner().invoke(cli.app, [str(arg) for arg in args])


def test_address_of_a_dragonfly() -> None:
    found = device.add(nic=511 << 11 | 31 << 6 | 63)
    assert (found.group, found.switch, found.port) == (511, 31, 63)
    assert device.compose("dragonfly", group=511, switch=31, port=63) == found.nic == device.NIC_MAX


def test_address_of_a_fat_tree() -> None:
    found = device.add(nic=16383 << 6 | 5, topology="fat-tree")
    assert (found.group, found.switch, found.port) == (0, 16383, 5)
    assert device.compose("fat-tree", switch=16383, port=5) == found.nic


@pytest.mark.parametrize("place", [{"group": 512}, {"switch": 32}, {"port": 64}, {"port": -1}])
def test_place_that_does_not_fit_is_refused(place: dict[str, int]) -> None:
    with pytest.raises(errors.InvalidArgument, match="does not fit"):
        device.compose("dragonfly", **place)


def test_mac_ends_with_the_address() -> None:
    assert device.add(nic=0x12345).mac == "02:00:00:01:23:45"


@pytest.mark.clause("cxi.addr.domain-name")
def test_names_are_cxi_and_one_digit() -> None:
    assert [device.add().name for _ in range(9)] == [f"cxi{n}" for n in range(1, 10)]
    with pytest.raises(errors.NoSpace):
        device.add()
    for name in ("cxi", "cxi10", "cxi00", "eth0", ""):
        with pytest.raises(errors.InvalidArgument, match="cxi and one digit"):
            device.add(name)


def test_addresses_differ() -> None:
    found = [device.add() for _ in range(5)]
    assert len({one.nic for one in device.devices()}) == 6
    with pytest.raises(errors.Busy, match=f"is {found[0].name}'s"):
        device.add(nic=found[0].nic)
    with pytest.raises(errors.Busy):
        device.set_values("cxi0", nic=found[0].nic)
    assert device.by_nic(found[0].nic) == found[0]


def test_name_in_use_is_refused() -> None:
    with pytest.raises(errors.Busy, match="cxi0 is there already"):
        device.add("cxi0")


def test_unknown_device_is_refused_with_those_there_are() -> None:
    for call in (device.remove, lambda name: device.set_up(name, True), service.create):
        with pytest.raises(errors.NoDevice, match="devices: cxi0"):
            call("cxi7")


def test_removed_device_takes_its_services_with_it() -> None:
    device.add("cxi1")
    service.create("cxi1")
    device.remove("cxi1")
    assert device.by_name("cxi1") is None
    assert service.services("cxi1") == ()
    device.add("cxi1")
    assert [one.id for one in service.services("cxi1")] == [1]


def test_device_in_use_cannot_be_removed() -> None:
    used = device.add("cxi1")
    pool = resources.open_pool(used, service.services("cxi1")[0])
    with pytest.raises(errors.Busy, match="in use by process"):
        device.remove("cxi1")
    pool.close()
    device.remove("cxi1")


@pytest.mark.clause("cxi.pcie.param")
@pytest.mark.parametrize("value", [-1, 0, 1, 2, 4, 5, 6, 7, 8, 9, 10])
def test_pcie_parameter_is_set(value: int) -> None:
    assert device.set_values("cxi0", amo_remap_to_pcie_fadd=value).pcie_remap == value


@pytest.mark.clause("cxi.pcie.advice")
def test_pcie_parameter_is_10_at_first() -> None:
    assert device.devices()[0].pcie_remap == 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amo_remap_to_pcie_fadd", 3),
        ("amo_remap_to_pcie_fadd", 11),
        ("amo_remap_to_pcie_fadd", "10"),
        ("nic", 1 << 20),
        ("nic", -1),
        ("mtu", 0),
        ("speed", 1.5),
        ("up", 1),
        ("topology", "ring"),
        ("name", "cxi5"),
        ("colour", "red"),
    ],
)
def test_bad_value_is_refused_and_changes_nothing(field: str, value: object) -> None:
    before = device.devices()
    with pytest.raises(errors.InvalidArgument):
        device.set_values("cxi0", **{field: value})
    assert device.devices() == before


def test_device_taken_down_is_seen_by_a_running_process() -> None:
    hints = fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi"))
    assert {info.domain_attr.name for info in fi.getinfo(hints=hints)} == {"cxi0"}
    program = "from weft.providers.cxi import device; device.add('cxi1'); device.set_up('cxi0', False)"
    assert children.run(program).returncode == 0
    assert {info.domain_attr.name for info in fi.getinfo(hints=hints)} == {"cxi1"}


# ---- weft device -----------------------------------------------------------------------------------------------------


def test_command_list(weft: Callable[..., Any], folder: Path) -> None:
    found = weft("device", "list")
    assert found.exit_code == 0
    assert "0x00840" in found.output
    assert "cxi0" in found.output
    said = json.loads(weft("device", "list", "--json").output)
    assert said["registry"] == str(folder)
    assert (said["devices"][0]["group"], said["devices"][0]["switch"]) == (1, 1)


def test_command_add_set_down_up_remove(weft: Callable[..., Any]) -> None:
    assert weft("device", "add", "--group", 2, "--switch", 3, "--port", 4).output == "cxi1\n"
    found = device.by_name("cxi1")
    assert found is not None
    assert (found.group, found.switch, found.port) == (2, 3, 4)
    assert weft("device", "set", "cxi1", "amo_remap_to_pcie_fadd=-1", "mtu=9000").exit_code == 0
    weft("device", "down", "cxi1")
    found = device.by_name("cxi1")
    assert found is not None
    assert (found.pcie_remap, found.mtu, found.up) == (-1, 9000, False)
    weft("device", "up", "cxi1")
    found = device.by_name("cxi1")
    assert found is not None
    assert found.up
    weft("device", "remove", "cxi1")
    assert device.by_name("cxi1") is None


def test_command_add_takes_an_address_or_a_place(weft: Callable[..., Any]) -> None:
    assert weft("device", "add", "--nic", "0x00900").output == "cxi1\n"
    assert "give one of them" in str(weft("device", "add", "--nic", "1", "--port", "2").exception)


def test_command_says_what_is_wrong(weft: Callable[..., Any]) -> None:
    assert "not NAME=VALUE" in str(weft("device", "set", "cxi0", "mtu").exception)
    assert "not a whole number" in str(weft("device", "add", "--nic", "here").exception)
    assert isinstance(weft("device", "down", "cxi5").exception, errors.NoDevice)
