"""fi_getinfo of C programs: Weft's providers as libfabric's own tools and a program of ours see them."""

from __future__ import annotations

import resource
import shlex
import sys
from pathlib import Path

import pytest
from tests.provider import support


def test_fi_info_of_a_provider_shows_its_endpoints(provider: str) -> None:
    out = support.run(support.need_tool("fi_info"), "-p", provider, env=support.environment(None)).stdout
    assert f"provider: {provider}" in out
    assert f"domain: {provider}0" in out
    assert "type: FI_EP_RDM" in out
    assert ("FI_EP_MSG" in out) == (provider == "weft")


def test_fi_info_in_full_shows_every_attribute(provider: str) -> None:
    out = support.run(support.need_tool("fi_info"), "-p", provider, "-v", env=support.environment(None)).stdout
    for attribute in ("fi_tx_attr", "fi_rx_attr", "fi_ep_attr", "fi_domain_attr", "fi_fabric_attr", "mr_key_size"):
        assert attribute in out


def test_fi_info_lists_both_providers() -> None:
    out = support.run(support.need_tool("fi_info"), "-l", env=support.environment(None)).stdout
    assert {"cxi:", "weft:"} <= set(out.split("\n"))


def test_hints_that_no_offer_meets_are_explained_in_the_log(provider: str) -> None:
    env = support.environment(provider, FI_LOG_LEVEL="warn")
    done = support.run(support.need_tool("fi_info"), "-p", provider, "-c", "FI_MULTICAST", env=env, status=None)
    assert done.returncode != 0
    assert "MULTICAST" in done.stderr


def test_connected_endpoints_are_weft_s_alone() -> None:
    tool = support.need_tool("fi_info")
    out = support.run(tool, "-p", "weft", "-t", "FI_EP_MSG", env=support.environment("weft")).stdout
    assert out.count("FI_EP_MSG") == 1
    refused = support.run(tool, "-p", "cxi", "-t", "FI_EP_MSG", env=support.environment("cxi"), status=None)
    assert refused.returncode != 0


@pytest.mark.parametrize("version", ["own", "9", "15"])
def test_infos_of_each_libfabric_are_copied_and_freed(
    programs: Path, library: str, provider: str, version: str
) -> None:
    program = support.compiled("info", programs)
    out = support.run(program, provider, version, env=support.environment(provider, library)).stdout
    lines = out.splitlines()
    assert lines
    kinds = {"rdm", "msg"} if provider == "weft" else {"rdm"}
    assert set(lines) == {f"{provider} {provider}0 {kind} {provider}0 1" for kind in kinds}


def test_process_without_an_interpreter_of_weft_gets_no_data_and_the_reason(programs: Path) -> None:
    program = support.compiled("info", programs)
    env = support.environment("weft", FI_LOG_LEVEL="warn", WEFT_PYTHON="/nonexistent/python", WEFT_TOP="0")
    done = support.run(program, "weft", "own", env=env, status=1)
    assert "the policy helper does not start" in done.stderr
    assert "/nonexistent/python" in done.stderr


def test_interpreter_that_dies_without_a_word_is_given_up(programs: Path, tmp_path: Path) -> None:
    """After three tries, not after as many as fit into the minute that a busy machine is given."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\necho started >> {shlex.quote(str(tmp_path / 'starts'))}\nexit 3\n")
    interpreter.chmod(0o755)
    env = support.environment("weft", FI_LOG_LEVEL="warn", WEFT_PYTHON=str(interpreter), XDG_RUNTIME_DIR=str(tmp_path))
    done = support.run(support.compiled("info", programs), "weft", "own", env=env, status=1)
    assert f"the policy helper does not start: {interpreter}" in done.stderr
    assert (tmp_path / "starts").read_text() == "started\n" * 3


def test_interpreter_that_is_slow_and_writes_a_warning_is_waited_for(programs: Path, tmp_path: Path) -> None:
    """And its limits are not those of the program that started it: the helper serves other programs too."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\necho "a warning" >&2\nsleep 2\nexec {shlex.quote(sys.executable)} "$@"\n')
    interpreter.chmod(0o755)
    env = support.environment("weft", WEFT_PYTHON=str(interpreter), XDG_RUNTIME_DIR=str(tmp_path))
    program = support.compiled("info", programs)
    done = support.run("sh", "-c", 'ulimit -S -n 64; exec "$0" weft own', str(program), env=env)
    assert done.stdout.startswith("weft weft0 ")
    (helper,) = support.helpers(tmp_path)
    soft, hard = resource.prlimit(helper, resource.RLIMIT_NOFILE)
    assert soft == hard
