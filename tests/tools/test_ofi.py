"""`weft perf`, `pingpong` and `fabtest` through providers of a real libfabric, between processes and hosts.

Skipped, with the reason, where no libfabric can be loaded.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests import patience
from tests.ofi.support import PROVIDERS, library
from tests.patience import communicate
from tests.ports import free_port
from tests.procs.hosts import Wire

from weft import fi
from weft.providers.ofi import library as ofi_library

from .test_perf import KEYS, LIMITS
from .test_perf_ends import children_of
from .test_pingpong import Server, client, table

pytestmark = pytest.mark.procs

WEFT = [sys.executable, "-m", "weft.tools.cli"]
PERF = [*WEFT, "perf", "--quick", "--seconds", "0.3"]
OPS = ("write", "read", "inject_write", "fetch_add", "send", "tsend")
S = 60.0


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    if library():
        monkeypatch.setenv("WEFT_LIBFABRIC", library())
    else:
        monkeypatch.delenv("WEFT_LIBFABRIC", raising=False)
    try:
        ofi_library.load()
    except fi.NoDevice as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name=name)))
    except fi.NoData:
        pytest.skip(f"{ofi_library.version_text()} has no provider {name}")
    return name


def run(*command: str, **env: str) -> tuple[int, str, str]:
    done = patience.run(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, timeout=120)
    return done.returncode, done.stdout, done.stderr


def has_atomics(provider: str) -> bool:
    hints = fi.Info(caps=fi.ATOMIC | fi.RMA, fabric_attr=fi.FabricAttr(prov_name=provider))
    hints.domain_attr.mr_mode = fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY
    try:
        return bool(fi.getinfo(hints=hints))
    except fi.NoData:
        return False


# ---- weft perf -------------------------------------------------------------------------------------------------------


def test_perf_has_a_row_of_each_operation_beside_weft_s_own(provider: str) -> None:
    code, out, err = run(*PERF, "-p", provider, "--sizes", "8,32K", "--json")
    assert code == 0, err
    rows: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    twin = "tcp" if provider == "ofi:tcp" else "direct"
    ops = [op for op in OPS if op != "fetch_add" or has_atomics(provider)]
    assert {(row["op"], row["path"]) for row in rows} == {
        *((op, provider) for op in ops),
        *((op, twin) for op in (*OPS, "batch")),
    }
    for row in rows:
        assert list(row) == KEYS
        assert row["latency_ns_median"] > 0
        assert row["rate_per_s"] > 0
        assert row["limit_name"] in LIMITS
        assert row["limit_value"] > 0
    limits = {row["limit_name"] for row in rows if row["path"] == provider}
    wanted = {"bare socket", "bare socket x 2"} if provider == "ofi:tcp" else {"cache line", "cache line x 2", "memcpy"}
    assert limits == wanted
    assert {row["size"] for row in rows if row["op"] == "tsend"} == {8, 32768}
    assert "batch" in err  # no row of it, and a note that says so


def test_perf_table_names_the_library() -> None:
    code, out, err = run(*PERF, "-p", "ofi:shm", "--path", "ofi", "--ops", "write", "--sizes", "8")
    assert code == 0, err
    assert re.search(r"ofi:shm: through libfabric \d+\.\d+", out)
    assert "direct:" not in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-p ofi:nosuch", "no such provider"),
        ("-p ofi:shm --connect perf", "two processes that it starts itself"),
        ("-p ofi:shm --path wire", "known: direct, foreign, ring, tcp, ofi"),
    ],
)
def test_perf_refuses(options: str, said: str) -> None:
    code, out, err = run(*PERF, *options.split())
    assert code == 2
    assert out == ""
    assert said in err


def test_perf_without_the_library_says_how_to_get_it() -> None:
    code, _, err = run(*PERF, "-p", "ofi:shm", WEFT_LIBFABRIC="/nowhere/libfabric.so.1")
    assert code == 2
    assert "/nowhere/libfabric.so.1" in err
    assert "WEFT_LIBFABRIC" in err


def test_perf_reports_a_second_process_that_was_killed(provider: str) -> None:
    process = subprocess.Popen(
        [*WEFT, "perf", "--json", "-p", provider, "--path", "ofi", "--seconds", "20"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        (child,) = children_of(process.pid)
        os.kill(child, signal.SIGKILL)
        _, err = communicate(process, S)
        assert process.returncode == 1
        assert "died: signal SIGKILL" in err
        patience.wait_for_end(child)
    finally:
        process.kill()
        process.communicate()


# ---- weft pingpong ---------------------------------------------------------------------------------------------------

SIZES = ["64", "256", "1k", "4k", "64k", "1m"]


@pytest.mark.parametrize("mode", ["msg", "tagged"])
def test_pingpong_checks_every_byte(provider: str, mode: str) -> None:
    options = ["-p", provider, "-m", mode, "-c", "-I", "5"]
    with Server(*options) as server:
        code, out, err = client("-P", server.port, *options)
        assert (code, err) == (0, "")
        assert server.end()[0] == 0
    assert [row[0] for row in table(out)] == SIZES


def test_pingpong_over_connected_endpoints() -> None:
    options = ["-p", "ofi:tcp", "-e", "msg", "-c", "-I", "5"]
    with Server(*options) as server:
        code, out, err = client("-P", server.port, *options)
        assert (code, err) == (0, "")
        assert server.end()[0] == 0
    assert [row[0] for row in table(out)] == SIZES


def test_pingpong_ends_when_the_other_side_is_killed(provider: str) -> None:
    options = ["-p", provider, "-I", "1000000", "-S", "64"]
    with Server(*options) as server:
        process = subprocess.Popen(
            [*WEFT, "pingpong", "-v", *options, "-P", server.port, "localhost"], stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            while "1000000 times" not in line:
                assert line
                line = process.stderr.readline()
            server.process.kill()
            communicate(process, S)
            assert process.returncode == 1
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def test_pingpong_between_two_hosts(wire: Wire) -> None:
    """The endpoints are opened on the network over which the two sides talk; Weft's secret is not needed."""
    options = ["-p", "ofi:tcp", "-c", "-I", "3"]
    with Server(*options, before=wire.inside("a")) as server:
        code, out, err = client("-P", server.port, *options, host=wire.ip["a"], before=wire.inside("b"))
        assert (code, err) == (0, "")
        assert server.end()[0] == 0
    assert [row[0] for row in table(out)] == SIZES


# ---- weft fabtest ----------------------------------------------------------------------------------------------------


class Serving:
    """A server of `weft fabtest` that has told its address."""

    def __init__(self, *arguments: str, before: list[str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*(before or []), *WEFT, "fabtest", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        assert "serving at" in self.line

    @property
    def name(self) -> str:
        """The address as text, of a provider whose addresses are."""
        return self.line.split("'")[1]

    def end(self) -> tuple[int, str]:
        out, err = communicate(self.process, S)
        return self.process.returncode, out + err

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize(
    "test", ["rma_bw", "rma_bw -o read", "rma_pingpong", "rdm_pingpong", "rdm_tagged_pingpong", "rdm_tagged_bw"]
)
def test_fabtest_benchmarks(provider: str, test: str, port: str) -> None:
    name, *more = test.split()
    options = ["-p", provider, "-S", "64,4K,100000"]
    own = ["-s", "127.0.0.1", "-B", port] if provider == "ofi:tcp" else []
    with Serving(name, *options, *own) as server:
        there = ["-P", port, "127.0.0.1"] if provider == "ofi:tcp" else [server.name]
        code, out, err = run(*WEFT, "fabtest", name, *options, *more, "-I", "70", "-v", *there)
        assert (code, err) == (0, "")
        assert server.end() == (0, "the client is done\n")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["64", "70"], ["4k", "70"], ["100000", "70"]]


def test_fabtest_between_two_hosts(wire: Wire) -> None:
    options = ["-p", "ofi:tcp", "-S", "4K"]
    with Serving("rma_bw", *options, "-s", wire.ip["a"], before=wire.inside("a")) as server:
        code, out, err = run(*wire.inside("b"), *WEFT, "fabtest", "rma_bw", *options, "-I", "20", "-v", wire.ip["a"])
        assert (code, err) == (0, "")
        assert server.end()[0] == 0
    assert len(out.splitlines()) == 2


@pytest.fixture
def port() -> str:
    return str(free_port())
