"""`weft info`: getinfo's offers for hints given as options, and why nothing matches."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import typer.main
from tests import patience

import weft
from weft import fi, settings
from weft.tools import _quick, cli

from .conftest import Command


def infos(command: Command, *arguments: str) -> list[dict[str, Any]]:
    ended = command("info", "--json", *arguments)
    assert ended.code == 0, ended.err
    found: list[dict[str, Any]] = json.loads(ended.out)["infos"]
    return found


def test_info_shows_provider_capabilities_limits_and_settings(command: Command) -> None:
    ended = command("info")
    assert ended.code == 0
    one = fi.getinfo()[0]
    assert f"{one.fabric_attr.prov_name} 0.1: {one.domain_attr.name}, EP_RDM" in ended.out
    for word in ("RMA", "ATOMIC", "REMOTE_WRITE", "THREAD_SAFE", "ADDR_STR", "max_msg_size", "2**63 - 1"):
        assert word in ended.out
    assert "inject_size" in ended.out
    assert str(one.tx_attr.inject_size) in ended.out
    for name in ("WEFT_ENGINE", "WEFT_ISOLATION", "WEFT_CMA", "WEFT_MR_MODE"):
        assert name in ended.out


def test_info_json_has_every_field_of_getinfo(command: Command) -> None:
    ended = command("info", "--json")
    said = json.loads(ended.out)
    assert said["weft"] == weft.__version__
    assert said["libfabric"] == "2.1"
    (first, *_), one = said["infos"], fi.getinfo()[0]
    assert set(first) == set(one.__dataclass_fields__)
    assert first["ep_attr"]["type"] == "EP_RDM"
    assert set(first["caps"]) == set(str(fi.Flag(one.caps)).split("|"))
    assert first["domain_attr"]["mr_cnt"] == one.domain_attr.mr_cnt
    assert first["domain_attr"]["mr_mode"] == []
    assert first["fabric_attr"]["api_version"] == "2.1"
    assert said["settings"]["WEFT_ENGINE"]["from"] in ("default", "environment")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--caps", "rma|atomic", "--ep-type", "rdm"),
        ("-c", "FI_RMA,FI_REMOTE_READ", "-t", "FI_EP_RDM"),
        ("--provider", "weft", "--domain", "weft0", "--fabric", "weft"),
        ("--mr-mode", "FI_MR_VIRT_ADDR,prov-key", "--threading", "domain", "--progress", "manual"),
        ("--addr-format", "addr_str", "--msg-order", "rma_waw", "--max-msg-size", "1G", "--inject-size", "0x100"),
        ("--mode", "context", "--node", "weft0", "--service", "17"),
    ],
)
def test_info_options_become_hints(command: Command, arguments: tuple[str, ...]) -> None:
    assert infos(command, *arguments)


def test_options_that_are_read_quickly_are_those_of_the_command() -> None:
    params = {p.name: p for p in typer.main.get_command(cli.app).commands["info"].params}  # type: ignore[attr-defined]
    assert {name: tuple(p.opts) for name, p in params.items()} == {**_quick.OPTIONS, **_quick.SWITCHES}
    assert {name for name, p in params.items() if p.is_flag} == set(_quick.SWITCHES)


@pytest.mark.parametrize("words", [["--ep-type"], ["--ep-type", "--list"], ["-le"], ["-h"], ["--cap", "rma"], ["rma"]])
def test_options_that_are_not_plain_are_left_to_the_command(words: list[str]) -> None:
    assert _quick.parse(words) is None


def test_options_are_read_quickly() -> None:
    words = ["-p", "cxi", "--caps=rma|atomic", "--why", "-n", "cxi0", "--node", "cxi1"]
    assert _quick.parse(words) == {"provider": "cxi", "caps": "rma|atomic", "why": True, "node": "cxi1"}


def test_info_loads_no_library_for_options_or_tables() -> None:
    program = (
        "import sys\nfrom weft.tools.cli import main\nsys.argv = ['weft', 'info', '-p', 'cxi']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*(m for m in ('typer', 'rich', 'pydantic', 'numpy', 'logging', 'weft.fi.domain') if m in sys.modules))"
    )
    result = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    assert result.stdout.splitlines()[-1] == ""


def test_reader_that_has_seen_enough_is_no_error() -> None:
    line = f"{sys.executable} -m weft.tools.cli info -v | head -n 1"
    result = patience.run(["sh", "-c", line], check=True, timeout=100)
    assert (len(result.stdout.splitlines()), result.stderr) == (1, "")


def test_info_caps_limit_what_is_shown(command: Command) -> None:
    for one in infos(command, "--caps", "rma,remote_read"):
        assert "REMOTE_READ" in one["caps"]
        assert "ATOMIC" not in one["caps"]
        assert "WRITE" not in one["caps"]


def test_info_node_and_service_become_the_address(command: Command) -> None:
    found = infos(command, "-n", "weft0", "-P", "17")
    assert {one["dest_addr"] for one in found} == {"weft://0/1/17"}


def test_info_without_match_points_to_why(command: Command) -> None:
    ended = command("info", "--ep-type", "dgram", "--inject-size", "1M")
    assert (ended.code, ended.out) == (1, "")
    assert "nothing matches" in ended.err
    assert "ep_attr.type, tx_attr.inject_size" in ended.err
    assert "try: the same with --why" in ended.err


def test_info_why_names_hint_asked_offered_and_reason(command: Command) -> None:
    ended = command("info", "--ep-type", "dgram", "--inject-size", "1M", "--provider", "verbs", "--why")
    assert ended.code == 1
    for text in ("ep_attr.type", "EP_DGRAM", "tx_attr.inject_size", "at most 256"):
        assert text in ended.out
    assert "providers here: weft, cxi; 'verbs' is not among them" in ended.out.replace("\n", " ")
    said = json.loads(command("info", "--ep-type", "dgram", "--why", "--json").out)
    found = [(candidate["provider"], candidate["type"]) for candidate in said["candidates"]]
    assert list(dict.fromkeys(found)) == [("weft", "EP_RDM"), ("weft", "EP_MSG"), ("cxi", "EP_RDM")]
    for candidate in said["candidates"]:
        assert candidate["accepted"] is False
        assert candidate["rejections"][0]["hint"] == "ep_attr.type"
        assert "datagrams" in candidate["rejections"][0]["reason"]


def test_info_why_with_a_match_says_so(command: Command) -> None:
    ended = command("info", "--caps", "rma", "--why")
    assert ended.code == 0
    assert "matches" in ended.out


def test_info_list_is_one_line_an_offer(command: Command) -> None:
    assert command("info", "--list", "--provider", "weft").out == "weft 0.1: weft0, EP_RDM\nweft 0.1: weft0, EP_MSG\n"


def test_info_verbose_has_every_field(command: Command) -> None:
    out = command("info", "-v").out
    for name in ("max_order_raw_size", "rma_iov_limit", "api_version", "max_err_data"):
        assert name in out


def test_info_wrong_address_is_answered_with_the_rule(command: Command) -> None:
    ended = command("info", "--node", "weft://somewhere")
    assert ended.code == 1
    assert "rule: FI_ADDR_STR" in ended.err


def test_info_env_shows_what_is_set_and_what_is_misspelt(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MR_MODE", "prov_key")
    monkeypatch.setenv("WEFT_ISOLATON", "strict")
    out = command("info", "--env").out
    assert "EP_RDM" not in out
    row = next(line for line in out.splitlines() if "WEFT_MR_MODE" in line)
    assert "MR_PROV_KEY" in row
    assert "environment" in row
    assert "did you mean WEFT_ISOLATION?" in out
    assert json.loads(command("info", "--env", "--json").out)["settings"]["WEFT_MR_MODE"]["value"] == "MR_PROV_KEY"


def test_info_env_lists_every_variable_that_is_read(command: Command) -> None:
    said = json.loads(command("info", "--env", "--json").out)
    assert list(said["settings"]) == [v.name for v in settings.variables()]


def test_info_required_mode_is_shown_and_explained(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MR_MODE", "prov_key")
    assert infos(command)[0]["domain_attr"]["mr_mode"] == ["MR_PROV_KEY"]
    ended = command("info", "--mr-mode", "virt_addr", "--why")
    assert ended.code == 1
    assert "domain_attr.mr_mode" in ended.out


def test_info_shows_the_registration_cache(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_MR_CACHE_MAX_COUNT", "77")
    out = command("info", "--env").out
    assert "registration cache" in out
    row = next(line for line in out.splitlines() if "FI_MR_CACHE_MAX_COUNT" in line)
    assert "77" in row
    assert "environment" in row
    found = json.loads(command("info", "--env", "--json").out)
    assert found["settings"]["FI_MR_CACHE_MAX_SIZE"] == {"value": "unlimited", "from": "default"}
    assert "MR_PROV_KEY" in found["registration"]["modes on request"]
    assert set(found["registration"]["cache"]) >= {"monitor", "works", "count_max"}
