"""`weft info --for CLIENT`: what each client asks of getinfo, and what answers or rejects each set of hints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weft import fi
from weft.policyhost import captured

from .conftest import Command

CLIENTS = sorted(captured.CLIENTS)


def said(command: Command, *arguments: str, code: int = 0) -> dict[str, Any]:
    ended = command("info", "--json", *arguments)
    assert ended.code == code, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_every_set_of_a_client_is_answered(command: Command, client: str) -> None:
    found = said(command, "--for", client)
    assert found["client"] == captured.CLIENTS[client].name
    assert {one["use"] for one in found["sets"]} == set(captured.CLIENTS[client].files.values())
    assert [one["answered"] for one in found["sets"]] == [True] * len(found["sets"])


def test_hints_are_shown_by_name_with_the_answers_below(command: Command) -> None:
    ended = command("info", "--for", "openmpi")
    assert ended.code == 0
    title = "Open MPI 5.0.11, set 1 of 2: messages (mtl ofi); interface 1.18\n"
    assert title in ended.out
    lines = ended.out.partition(title)[2].splitlines()
    assert "MSG TAGGED HMEM LOCAL_COMM REMOTE_COMM DIRECTED_RECV" in lines[0]
    answers = next(at for at, line in enumerate(lines) if line.startswith(" answers cxi "))
    assert "1 offer; the first: cxi0, EP_RDM" in lines[answers]
    assert "weft " in lines[answers + 1]


def test_capabilities_are_those_that_the_client_is_offered_here(command: Command) -> None:
    everything, mine = said(command, "--for", "mpich")["sets"][2:]
    assert everything["hints"] is None
    (asked,) = [call.hints for call in captured.calls("mpich-weft") if call.hints is not None]
    assert set(mine["hints"]["caps"]) <= set(str(fi.Flag(asked.caps)).split("|"))
    assert "RMA" in mine["hints"]["caps"]


def test_provider_without_an_offer_says_which_hint_rejected_it(command: Command) -> None:
    third = said(command, "--for", "nixl")["sets"][2]
    cxi, weft = third["answers"]
    assert cxi["offers"] == ["cxi0, EP_RDM"]
    assert weft["offers"] == []
    assert [one["hint"] for one in weft["rejections"]] == ["domain_attr.name"]


def test_setting_that_rejects_a_client_is_found(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MR_MODE", "virt_addr")
    last = said(command, "--for", "mpich", code=1)["sets"][3]
    assert not last["answered"]
    assert [one["hint"] for one in last["answers"][0]["rejections"]] == ["domain_attr.mr_mode"]
    ended = command("info", "--for", "mpich")
    assert "domain_attr.mr_mode: asked MR_ENDPOINT" in " ".join(ended.out.split())
    assert "note: no provider of Weft has an offer for set 4" in ended.out


def test_provider_without_a_device_says_so(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DEVICE_NAME", "cxi7")
    first, second, *_ = said(command, "--for", "mpich", code=1)["sets"]
    assert "FI_CXI_DEVICE_NAME names none that is" in first["answers"][0]["why"]
    assert not second["answered"]


def test_table_in_a_pipe_is_as_wide_as_columns_says(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    ended = command("info", "--for", "mpich")
    assert max(len(line) for line in ended.out.splitlines()) <= 72


@pytest.mark.parametrize("more", [["--why"], ["--caps", "rma"], ["-l"]])
def test_for_stands_alone(command: Command, more: list[str]) -> None:
    ended = command("info", "--for", "mpich", *more)
    assert ended.code == 2
    assert "--for goes with --json alone, not with --" in ended.err


def test_unknown_client_is_refused_with_the_known_ones(command: Command) -> None:
    ended = command("info", "--for", "charm")
    assert ended.code == 2
    assert f"known: {', '.join(captured.CLIENTS)}" in ended.err
    assert f"{', '.join(captured.CLIENTS)}." in " ".join(command("info", "--help").out.split())
