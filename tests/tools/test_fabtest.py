"""`weft fabtest`: server and client started as fi_cxi(7) "FABTESTS" says, in processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import communicate

S = 60.0
TABLE = r"^bytes +iters +total +time +MB/sec +usec/xfer +Mxfers/sec$"


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    yield
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)


def weft(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weft.tools.cli", *arguments],
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(*arguments: str) -> str:
    out, err = communicate(weft(*arguments), S)
    assert not err, err
    return out.strip()


def refused(*arguments: str) -> str:
    process = weft(*arguments)
    _, err = communicate(process, S)
    assert process.returncode != 0
    return err


def measured(test: str, server: list[str], client: list[str]) -> str:
    """The client's table; both sides end well."""
    there = weft("fabtest", test, *server)
    assert there.stdout is not None
    try:
        assert there.stdout.readline().startswith("serving at ")
        here = weft("fabtest", test, "-S", "64,4K", "-I", "50", "-v", *client)
        out, err = communicate(here, S)
        assert (here.returncode, err) == (0, "")
        rest, err = communicate(there, S)
        assert (there.returncode, rest, err) == (0, "the client is done\n", "")
        return out
    finally:
        there.kill()
        there.wait()


@pytest.mark.clause("cxi.fabtests.nic-addr")
def test_address_of_a_device_is_one_of_its_properties() -> None:
    assert said("device", "get", "cxi0", "nic_addr") == "0x840"
    assert "nic_addr" in refused("device", "get", "cxi0", "colour")
    assert "cxi0" in refused("device", "get", "cxi5", "nic_addr")


@pytest.mark.clause("cxi.fabtests.server", "cxi.fabtests.client")
@pytest.mark.parametrize("test", ["rma_bw", "rma_pingpong"])
def test_client_reaches_the_server_by_pid_and_nic_address(test: str) -> None:
    nic = said("device", "get", "cxi0", "nic_addr")
    out = measured(test, ["-B", "10", "-s", "cxi0", "-S", "4K"], ["-P", "10", nic])
    lines = out.splitlines()
    assert re.match(TABLE, lines[0])
    assert [line.split()[:3] for line in lines[1:]] == [
        ["64", "50", str(3200 * (2 if test == "rma_pingpong" else 1))],
        ["4k", "50", "400k" if test == "rma_pingpong" else "200k"],
    ]


def test_client_that_asks_for_more_than_the_server_has_is_told() -> None:
    there = weft("fabtest", "rma_bw", "-B", "10", "-S", "1K")
    assert there.stdout is not None
    there.stdout.readline()
    assert "room for 1024 B" in refused("fabtest", "rma_bw", "-P", "10", "-S", "4K", "0x840")
    _, err = communicate(there, S)
    assert "asks for 4096 B" in err


@pytest.mark.clause("cxi.fabtests.client-bound")
def test_client_may_have_an_interface_and_a_pid_of_its_own() -> None:
    said("device", "add", "cxi1")
    nic = said("device", "get", "cxi1", "nic_addr")
    server, client = ["-B", "10", "-s", "cxi1", "-S", "4K"], ["-B", "11", "-s", "cxi0", "-P", "10", nic]
    assert len(measured("rma_bw", server, [*client, "-o", "read"]).splitlines()) == 3


@pytest.mark.clause("cxi.fabtests.no-ip")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_ip_addresses_are_refused(address: str) -> None:
    assert "IP addressing are not supported" in refused("fabtest", "rma_bw", "-P", "10", address)


@pytest.mark.clause("cxi.fabtests.functional-ip")
@pytest.mark.parametrize("option", ["-b", "-E"])
def test_tests_over_ip_sockets_are_refused(option: str) -> None:
    assert "IP sockets are not supported" in refused("fabtest", "rma_bw", option, "-P", "10", "0x840")


@pytest.mark.clause("cxi.fabtests.multinode")
def test_multinode_tests_are_refused() -> None:
    assert "multinode tests are not supported" in refused("fabtest", "multinode_coll")


def test_tests_that_are_not_there_are_refused() -> None:
    assert "rma_bw, rma_pingpong" in refused("fabtest", "rdm_tagged_pingpong")
