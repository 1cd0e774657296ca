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

from weft import fi
from weft.tools import _fabtest
from weft.tools._text import UsageError

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


def rows_of(test: str, *server: str) -> list[list[str]]:
    """bytes, iters and total of a test with the CXI provider, whose data both sides have verified."""
    nic = said("device", "get", "cxi0", "nic_addr")
    lines = measured(test, ["-B", "10", "-s", "cxi0", "-S", "64K", *server], ["-P", "10", "-S", "64,4K,64K", nic])
    head, *rows = lines.splitlines()
    assert re.match(TABLE, head)
    return [row.split()[:3] for row in rows]


@pytest.mark.clause("cxi.fabtests.rdm")
@pytest.mark.parametrize("test", ["rdm_pingpong", "rdm_tagged_pingpong", "rdm_bw", "rdm_tagged_bw"])
def test_benchmarks_of_messages_run(test: str) -> None:
    """fi_cxi(7) "FABTESTS": the RDM benchmarks, fi_rdm_tagged_pingpong for one. Messages of eager size and longer."""
    both = test.endswith("pingpong")
    totals = ["6400", "400k", "6400k"] if both else ["3200", "200k", "3200k"]
    rows = rows_of(test)
    assert [row[:2] for row in rows] == [["64", "50"], ["4k", "50"], ["64k", "50"]]
    assert [row[2] for row in rows] == totals


@pytest.mark.clause("cxi.fabtests.functional")
def test_functional_test_of_bandwidth_runs() -> None:
    """fi_cxi(7) "FABTESTS": fi_bw."""
    assert [row[:2] for row in rows_of("bw")] == [["64", "50"], ["4k", "50"], ["64k", "50"]]


def test_messages_that_came_different_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """-v: the client compares the returned bytes."""

    class Spoiled(_fabtest._Side):
        def _open(self, info: fi.Info, nbytes: int) -> None:
            super()._open(info, nbytes)
            wait = self.completions.wait

            def spoil(context: str, count: int = 1) -> None:
                wait(context, count)
                if context == _fabtest.RECEIVED:
                    self.memory[_fabtest.HEADER] ^= 1

            monkeypatch.setattr(self.completions, "wait", spoil)

    there = weft("fabtest", "rdm_pingpong", "-p", "weft", "-S", "64")
    try:
        assert there.stdout is not None
        address = there.stdout.readline().partition("'")[2].partition("'")[0]
        info = _fabtest.info_of("weft", None, None, address, None)
        monkeypatch.setattr(_fabtest, "_Side", Spoiled)
        with pytest.raises(UsageError, match="64 B came different"):
            list(_fabtest.run(info, "rdm_pingpong", "write", [64], 1, True))
    finally:
        there.kill()
        there.communicate()


def test_tests_that_are_not_there_are_refused() -> None:
    known = "rma_bw, rma_pingpong, rdm_bw, rdm_pingpong, rdm_tagged_bw, rdm_tagged_pingpong, bw"
    assert known in refused("fabtest", "rdm_atomic")
