"""`weft doctor --cxi`: the search for an authorization key, step by step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft.providers.cxi import device, service
from weft.tools import cli


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("SLINGSHOT_VNIS", "SLINGSHOT_DEVICES", "SLINGSHOT_SVC_IDS", "FI_CXI_DEVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


def doctor() -> tuple[int, dict[str, Any]]:
    found = CliRunner().invoke(cli.app, ["doctor", "--cxi", "--json"])
    return found.exit_code, json.loads(found.output)


def test_steps_are_shown_in_order() -> None:
    code, said = doctor()
    (one,) = said["devices"]
    assert code == 0
    assert [step.split(":")[0] for step in one["steps"]] == [
        "SLINGSHOT_VNIS, SLINGSHOT_DEVICES, SLINGSHOT_SVC_IDS",
        f"uid {os.getuid()}",
        f"gid {os.getgid()}",
        "unrestricted",
    ]
    assert one["key"] == [1, 10]
    assert one["wrong"] == ""


def test_disabled_service_is_to_be_enabled() -> None:
    service.enable("cxi0", 1, False)
    code, said = doctor()
    (one,) = said["devices"]
    assert code == 1
    assert "service 1 is disabled" in one["steps"]
    assert one["key"] is None
    assert one["todo"] == "weft service enable --device cxi0 1"


def test_user_without_a_service_is_to_make_one() -> None:
    service.enable("cxi0", 1, False)
    service.create(members=[("uid", os.getuid() + 1)])
    service.enable("cxi0", 1)
    service.create(members=[("uid", os.getuid() + 1)])
    assert doctor()[0] == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "services", lambda name: [one for one in real(name) if one.id != 1])
        _, said = doctor()
    assert said["devices"][0]["todo"] == f"weft service create --device cxi0 --uid {os.getuid()}"


real = service.services


def test_missing_key_of_the_environment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLINGSHOT_VNIS", "7")
    monkeypatch.setenv("SLINGSHOT_DEVICES", "cxi0")
    monkeypatch.setenv("SLINGSHOT_SVC_IDS", "9")
    code, said = doctor()
    assert code == 1
    assert said["devices"][0]["key"] == [9, 7]
    assert "no service 9" in said["devices"][0]["wrong"]


def test_device_that_is_down_or_excluded_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    device.add("cxi1")
    device.set_up("cxi0", False)
    code, said = doctor()
    assert (code, said["devices"][0]["todo"]) == (0, "weft device up cxi0")
    monkeypatch.setenv("FI_CXI_DEVICE_NAME", "cxi0")
    code, said = doctor()
    assert code == 1
    assert "leaves cxi1 out" in said["devices"][1]["wrong"]


def test_text_says_the_outcome() -> None:
    found = CliRunner().invoke(cli.app, ["doctor", "--cxi"])
    assert "result: AuthKey(svc_id=1, vni=10)" in found.output
    service.enable("cxi0", 1, False)
    found = CliRunner().invoke(cli.app, ["doctor", "--cxi"])
    assert "try: weft service enable --device cxi0 1" in found.output


@pytest.mark.clause("cxi.env.fi-info-tool")
def test_info_lists_the_provider_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_info -p cxi -e"""
    monkeypatch.setenv("FI_CXI_DEFAULT_TX_SIZE", "64")
    found = CliRunner().invoke(cli.app, ["info", "-p", "cxi", "-e", "--json"])
    rows = {row["variable"]: row for row in json.loads(found.output)["environment"]}
    assert (rows["FI_CXI_DEFAULT_TX_SIZE"]["value"], rows["FI_CXI_DEFAULT_TX_SIZE"]["from"]) == ("64", "environment")
    assert "FI_CXI_OPTIMIZED_MRS" in rows
    text = CliRunner().invoke(cli.app, ["info", "-p", "cxi", "-e"]).output
    assert "FI_CXI_DEFAULT_TX_SIZE=64 (environment)" in text
    assert "FI_CXI_DEFAULT_RX_SIZE=1024 (default)" in text
    assert "environment" not in json.loads(CliRunner().invoke(cli.app, ["info", "-p", "weft", "-e", "--json"]).output)
