"""`weft info -p cxi`: the provider's infos, its devices, and why hints do not match."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from weft import fi
from weft.providers.cxi import device, service
from weft.tools.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def info(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`weft info` with these arguments: exit status, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["weft", "info", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_info_shows_the_provider_its_nic_and_its_default_key(info: Run) -> None:
    code, out, _ = info("-p", "cxi")
    assert code == 0
    words = out.split()
    for word in ("cxi0", "PROTO_CXI", "ADDR_CXI", "MR_PROV_KEY", "PROGRESS_MANUAL", "TAGGED", "192"):
        assert word in words
    assert "authorization key by default: service 1, VNI 10" in " ".join(words)
    service.enable("cxi0", 1, False)
    assert "authorization key by default: none" in " ".join(info("-p", "cxi")[1].split())


def test_info_without_options_lists_every_info(info: Run) -> None:
    _, out, _ = info("-l")
    assert out.splitlines() == [
        "weft 0.1: weft0, EP_RDM",
        "weft 0.1: weft0, EP_MSG",
        "cxi 0.2: cxi0, EP_RDM (8 offers)",
    ]


def test_info_shows_of_one_more_info_what_differs(info: Run) -> None:
    _, out, _ = info()
    assert out.count("cxi 0.2: cxi0, EP_RDM, as above except") == 7
    second = out.split("as above except")[1]
    assert "mr_key_size" in second
    assert "inject_size" not in second


def test_info_takes_devices_and_modes_as_hints(info: Run) -> None:
    device.add("cxi1")
    _, out, _ = info("-p", "cxi", "--json", "--domain", "cxi1", "--mr-mode", "endpoint,allocated")
    (one,) = json.loads(out)["infos"]
    assert one["domain_attr"]["name"] == "cxi1"
    assert one["domain_attr"]["mr_mode"] == ["MR_ALLOCATED", "MR_ENDPOINT"]
    assert one["nic"]["prov_attr"]["default_vni"] == 10
    assert one["src_addr"].startswith("nic 0x")


def test_info_why_names_hint_and_reason(info: Run) -> None:
    code, out, _ = info("-p", "cxi", "--why", "--progress", "auto", "--ep-type", "msg")
    assert code == 1
    text = " ".join(out.split())
    for part in ("domain_attr.data_progress", "PROGRESS_AUTO", "ep_attr.type", "EP_MSG"):
        assert part in text


def test_info_of_a_bad_node_says_the_rule(info: Run) -> None:
    code, _, err = info("-p", "cxi", "--node", "nobody")
    assert code != 0
    assert "is no NIC" in err
    assert "cxi0" in err


def test_info_names_a_broken_registry(info: Run, tmp_path: Path) -> None:
    assert fi.getinfo()
    (tmp_path / "cxi" / "registry.json").write_text("no registry")
    code, out, _ = info("--why", "-l")
    assert code == 0
    assert "weft 0.1: weft0, EP_RDM" in out
    assert "cxi offers nothing" in " ".join(out.split())


def test_info_folds_equal_offers(info: Run) -> None:
    """Eight infos of a device: one line of the list, and one row of reasons for the four that hints reject."""
    code, out, _ = info("-l", "-p", "cxi", "-c", "rma")
    assert (code, out) == (0, "cxi 0.2: cxi0, EP_RDM\n")
    _, out, _ = info("-l")
    assert "cxi 0.2: cxi0, EP_RDM (8 offers)\n" in out
    lines = out.splitlines()
    assert len(lines) == len({line.partition(" (")[0] for line in lines})
    code, out, _ = info("-p", "cxi", "--why", "--ep-type", "msg")
    assert code == 1
    assert out.count("ep_attr.type") == 1
    assert "(4 equal" in out
    assert "weft0" not in out, "of a provider that was not asked for"
