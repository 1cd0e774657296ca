"""C programs seen from outside: `weft top`, `weft trace`, the devices' counters, and texts that name the holders."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.provider import support

from weft.providers.cxi import resources, service, telemetry

WEFT = [sys.executable, "-m", "weft.tools.cli"]


@contextlib.contextmanager
def watched(programs: Path, provider: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The program tests/provider/c/watched.c, when its traffic is done; it ends when stdin does."""
    program = support.compiled("watched", programs)
    env = support.environment(provider, **more)
    with subprocess.Popen(
        [program, provider], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            if process.poll() is None:
                patience.communicate(process, support.PROGRAM_S)


def top(*arguments: str) -> dict[str, Any]:
    done = patience.run([*WEFT, "top", "--once", "--json", *arguments], support.PROGRAM_S)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_c_program_is_shown_with_its_traffic_regions_and_queues(programs: Path, provider: str) -> None:
    with watched(programs, provider) as process:
        (shown,) = top("--pid", str(process.pid))["processes"]
        assert shown["command"].endswith(f"watched {provider}")
        assert shown["state"] == "live"
        view = shown["view"]
        assert (view["regions"], view["registered_bytes"]) == (2, (1 << 20) + 4096)
        (domain,) = view["domains"]
        assert domain["direct"] + domain["cma"] + domain["framed"] == 15
        assert domain["bytes"] == 10 * 8 + 5 * 4096
        assert sum(ep["receive"]["matched"] + ep["receive"]["kept"] for ep in view["endpoints"]) == 10
        assert [one["unread"] for one in view["queues"]] == [0] * 4
        table = patience.run([*WEFT, "top", "--once", "--pid", str(process.pid)], support.PROGRAM_S)
        assert f"watched {provider}" in table.stdout
        assert " 1 MiB " in table.stdout


def test_killed_c_program_vanishes_from_the_view(programs: Path) -> None:
    with watched(programs, "weft") as process:
        assert top("--pid", str(process.pid))["processes"]
        process.kill()
        process.wait()
        assert top("--pid", str(process.pid))["processes"] == []


def test_policy_helper_is_not_among_the_processes_of_a_view(programs: Path) -> None:
    with watched(programs, "weft"):
        commands = [one["command"] for one in top()["processes"]]
    mine = str(os.environ["XDG_RUNTIME_DIR"])
    assert [one for one in commands if "weft.policyhost" in one and mine in one] == []


@pytest.mark.parametrize("end", ["close", "kill"])
def test_c_program_is_on_the_timeline_of_a_trace(programs: Path, tmp_path: Path, end: str) -> None:
    program = support.compiled("watched", programs)
    out = tmp_path / "run.json"
    # The shell's kill comes after the program's line, so all of its traffic is recorded.
    script = '"$0" weft </dev/null' if end == "close" else 'sleep 1000 | "$0" weft | { read ready; kill -9 0; }'
    command = ["setsid", "-w", "sh", "-c", script, str(program)]
    done = patience.run([*WEFT, "trace", str(out), "--", *command], support.PROGRAM_S, env=support.environment("weft"))
    assert done.returncode == (0 if end == "close" else 137), done.stderr
    events = json.loads(out.read_text())["traceEvents"]
    named = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert len(named) == 1
    assert "watched weft" in named[0]
    names = [one["name"].rpartition(": ")[2] for one in events if one["ph"] in "Xi"]
    assert names.count("message received") == 10
    assert names.count("write") == 5


def test_traffic_of_a_c_program_is_in_the_devices_counters(programs: Path) -> None:
    telemetry.page("cxi0")
    before = telemetry.counts("cxi0")
    with watched(programs, "cxi"):
        pass
    grown = {name: count - before[name] for name, count in telemetry.counts("cxi0").items()}
    sent = sum(count for name, count in grown.items() if name.startswith("HNI_PKTS_SENT_BY_TC_"))
    assert sent == 10 + 5 * 2  # a packet has at most 2 KiB
    assert grown["LPE_SUCCESS_CNTR"] == 5
    assert grown["IXE_RX_PTL_RESTRICTED_PKT"] + grown["IXE_RX_PTL_UNRESTRICTED_PKT"] == 5 * 2


@pytest.fixture
def small() -> Iterator[dict[str, str]]:
    """The environment of a service with room for the queues of one program."""
    made = service.create("cxi0", vnis=[9], limits={"eqs": (4, 0)})
    yield {"SLINGSHOT_VNIS": "9", "SLINGSHOT_SVC_IDS": str(made.id), "SLINGSHOT_DEVICES": "cxi0"}
    service.destroy("cxi0", made.id)


def users_become(service: dict[str, str], names: list[str]) -> None:
    """Wait until these processes use the service: the policy helper gives back what a program had after its end."""
    limit, pause = patience.Patience(support.PROGRAM_S), threading.Event()
    while (users := resources.users("cxi0", int(service["SLINGSHOT_SVC_IDS"]))) != names:
        assert not limit.over, users
        pause.wait(0.01)


def test_refusal_of_a_limit_names_the_c_program_that_has_the_resources(programs: Path, small: dict[str, str]) -> None:
    program = support.compiled("watched", programs)
    env = support.environment("cxi", FI_LOG_LEVEL="warn", **small)
    with watched(programs, "cxi", **small) as first:
        refused = support.run(program, "cxi", env=env, status=1)
        assert f"in use by: process {first.pid} (watched) has 4\n" in refused.stderr
        users_become(small, [f"process {first.pid} (watched)"])
        first.kill()
        first.wait()
        users_become(small, [])
    done = subprocess.run([program, "cxi"], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout == "ready\nclosed\n", done.stderr
