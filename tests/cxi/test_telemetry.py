"""fi_cxi(7) FI_CXI_TELEMETRY: counters of a device as files, and their growth while a domain was open."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import struct
from pathlib import Path

import pytest
from tests.cxi.support import opened, register
from tests.procs.children import Child
from typer.testing import CliRunner

from weft import errors
from weft.providers.cxi import device, env, telemetry
from weft.tools import cli

NAME = "LPE_SUCCESS_CNTR"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


def count(value: int, name: str = NAME, of: str = "cxi0") -> None:
    """Act like a NIC that has attached the device's page: set one word of the page."""
    with open(telemetry.page(of), "r+b") as file:
        file.seek(telemetry.OFFSETS[name])
        file.write(struct.pack("=Q", value))


def cxi0() -> device.Device:
    return device.devices()[0]


def test_file_has_value_and_time(folder: Path) -> None:
    count(12345)
    telemetry.publish(cxi0())
    text = (folder / "telemetry" / "cxi0" / NAME).read_text()
    assert re.fullmatch(r"12345@[0-9]+\.[0-9]{9}\n", text)
    found = telemetry.read("cxi0", NAME)
    assert text == f"{found.value}@{found.time_ns // 10**9}.{found.time_ns % 10**9:09d}\n"


def test_documented_counters_are_always_there() -> None:
    telemetry.publish(cxi0())
    assert set(telemetry.NAMES) <= set(telemetry.read_all("cxi0"))


class Nic:
    """Notes the pages in which it is told to count."""

    def __init__(self) -> None:
        self.pages: dict[int, tuple[int, int]] = {}

    def attach_telemetry(self, nic: int, fd: int) -> None:
        found = os.fstat(fd)
        assert found.st_size >= telemetry.PAGE_BYTES
        self.pages[nic] = (found.st_dev, found.st_ino)


def attach_in_child(world: object, folder: str) -> dict[int, tuple[int, int]]:
    os.environ["WEFT_CXI_REGISTRY"] = folder
    nic = Nic()
    telemetry.attach(nic, device.devices())
    return nic.pages


def test_nics_of_all_processes_count_in_one_page_a_device(folder: Path) -> None:
    device.add("cxi1")
    mine = attach_in_child(None, str(folder))
    assert set(mine) == {one.engine_nic() for one in device.devices()}
    assert len(set(mine.values())) == 2
    with Child() as child:
        assert child.call(attach_in_child, str(folder)) == mine


def test_devices_count_apart() -> None:
    other = device.add("cxi1")
    count(1, of="cxi1")
    telemetry.publish(cxi0())
    telemetry.publish(other)
    assert (telemetry.read("cxi0", NAME).value, telemetry.read("cxi1", NAME).value) == (0, 1)


def test_page_of_a_killed_maker_is_made_whole(folder: Path) -> None:
    telemetry.page("cxi0").write_bytes(b"")
    telemetry.publish(cxi0())
    assert telemetry.read("cxi0", NAME).value == 0
    attach_in_child(None, str(folder))
    assert telemetry.page("cxi0").stat().st_size == telemetry.PAGE_BYTES


def test_growth_is_logged_at_close(caplog: pytest.LogCaptureFixture) -> None:
    count(7)
    delta = telemetry.Delta(cxi0(), 1, [NAME])
    count(10)
    with caplog.at_level(logging.INFO, "weft.cxi"):
        assert delta.close() == {NAME: 3}
    assert f"telemetry {NAME} +3 in" in caplog.text
    assert delta.close() == {}


def test_smaller_value_is_a_reset(caplog: pytest.LogCaptureFixture) -> None:
    count(7)
    delta = telemetry.Delta(cxi0(), 1, [NAME])
    count(1)
    with caplog.at_level(logging.WARNING, "weft.cxi"):
        delta.close()
    assert f"{NAME} was reset" in caplog.text


@pytest.mark.clause("cxi.env.telemetry-format")
def test_variable_is_a_list_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_TELEMETRY", f"{NAME},HNI_HRP_ACK")
    delta = telemetry.Delta(cxi0(), 1, env.load().FI_CXI_TELEMETRY)
    count(2)
    count(3, "HNI_HRP_ACK")
    assert delta.close() == {NAME: 2, "HNI_HRP_ACK": 3}


@pytest.mark.clause("cxi.env.telemetry-all-binary")
@pytest.mark.parametrize(
    "name",
    ["ALL-in-binary", "NO_SUCH_COUNTER", "X" * 64, "../registry.json", "inner/GOOD", ".shares.json", "BAD"],
)
def test_name_that_is_no_counter_is_skipped(folder: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    telemetry.publish(cxi0())
    (folder / "telemetry" / "cxi0" / "ALL-in-binary").write_bytes(b"\x01\x02")
    (folder / "telemetry" / "cxi0" / "BAD").write_text("12 at noon")
    (folder / "telemetry" / "cxi0" / "inner").mkdir()
    (folder / "telemetry" / "cxi0" / "inner" / "GOOD").write_text("12@1.000000000\n")  # a name is no path
    with caplog.at_level(logging.WARNING, "weft.cxi"):
        delta = telemetry.Delta(cxi0(), 1, [name, NAME])
    assert f"{name} is skipped" in caplog.text
    count(4)
    assert delta.close() == {NAME: 4}


@pytest.mark.clause("cxi.env.telemetry-rgid-negative")
@pytest.mark.parametrize(("rgid", "service", "expected"), [(-1, 5, True), (-7, 5, True), (5, 5, True), (0, 5, False)])
def test_resource_group_restricts(rgid: int, service: int, expected: bool) -> None:
    delta = telemetry.Delta(cxi0(), service, [NAME], rgid)
    assert (NAME in delta.close()) == expected


def test_command_shows_counters() -> None:
    count(77)
    weft = CliRunner()
    found = weft.invoke(cli.app, ["telemetry", "cxi0"])
    assert found.exit_code == 0
    assert "77" in found.output
    said = json.loads(weft.invoke(cli.app, ["telemetry", "cxi0", NAME, "--json"]).output)
    assert {name: one["value"] for name, one in said["counters"].items()} == {NAME: 77}
    lines = weft.invoke(cli.app, ["telemetry", "--watch", "--times", "2", "--seconds", "0.01", "--json"]).output
    assert [json.loads(line)["counters"][NAME]["grew"] for line in lines.splitlines()] == [0, 0]


def test_command_says_what_is_wrong() -> None:
    weft = CliRunner()
    assert "devices: cxi0" in str(weft.invoke(cli.app, ["telemetry", "cxi9"]).exception)
    assert isinstance(weft.invoke(cli.app, ["telemetry", "cxi0", "NO_SUCH"]).exception, errors.NotFound)


# ---- a domain --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.env.telemetry")
def test_domain_logs_at_close_what_grew(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("FI_CXI_TELEMETRY", f"{NAME},ALL-in-binary,HNI_HRP_ACK")
    with caplog.at_level(logging.INFO, "weft.cxi"):
        with opened():
            assert "ALL-in-binary is skipped" in caplog.text
            assert "+" not in caplog.text
            telemetry.publish(cxi0())
            count(telemetry.read("cxi0", NAME).value + 40)
        assert f"telemetry {NAME} +40 in" in caplog.text
        assert "telemetry HNI_HRP_ACK +0 in" in caplog.text


@pytest.mark.clause("cxi.env.telemetry-rgid")
@pytest.mark.parametrize(("rgid", "logged"), [("1", True), ("2", False), ("-1", True)])
def test_domain_of_another_resource_group_logs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rgid: str, logged: bool
) -> None:
    """A domain that is opened without a key has service 1 here."""
    monkeypatch.setenv("FI_CXI_TELEMETRY", NAME)
    monkeypatch.setenv("FI_CXI_TELEMETRY_RGID", rgid)
    with caplog.at_level(logging.INFO, "weft.cxi"), opened():
        pass
    assert (f"telemetry {NAME}" in caplog.text) == logged


_open = contextlib.ExitStack()


def write_to_itself(world: object, folder: str, count: int) -> None:
    """Writes of one packet each, at an endpoint of this process."""
    os.environ["WEFT_CXI_REGISTRY"] = folder
    node = _open.enter_context(opened())
    register(node, bytearray(64), key=7)
    for _ in range(count):
        node.ep.write(b"12345678", dest_addr=node.me, addr=0, key=7)
        node.wait()


@pytest.mark.clause("cxi.env.telemetry-scope")
def test_nics_of_all_processes_count_together(folder: Path) -> None:
    """A killed process's counts stay."""
    telemetry.publish(cxi0())
    with _open, Child() as child:
        write_to_itself(None, str(folder), 3)
        child.call(write_to_itself, str(folder), 4)
        telemetry.publish(cxi0())
        assert telemetry.read("cxi0", NAME).value == 7
        child.kill()
        child.wait()
        child.destroy()
    telemetry.publish(cxi0())
    assert telemetry.read("cxi0", NAME).value == 7


def test_domain_logs_what_its_own_writes_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FI_CXI_TELEMETRY", NAME)
    with caplog.at_level(logging.INFO, "weft.cxi"), _open:
        write_to_itself(None, str(folder), 5)
    assert f"telemetry {NAME} +5 in" in caplog.text


def test_telemetry_that_cannot_be_kept_refuses_no_domain(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FI_CXI_TELEMETRY", NAME)
    device.devices()
    (folder / "telemetry").write_text("in the way")
    with caplog.at_level(logging.WARNING, "weft.cxi"), opened():
        assert "telemetry leaves this process out" in caplog.text
