"""attach_all between two hosts: network namespaces joined by a wire. The ranks meet in a folder that both see."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import ranks
from tests.procs.hosts import PATIENT, Wire

pytestmark = pytest.mark.procs


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def run(wire: Wire, program: str, folder: Path) -> list[ranks.Ended]:
    """Ranks 0 and 1 on host a, rank 2 on host b."""
    code = ranks.PRELUDE + textwrap.dedent(program)
    return ranks.finish(
        [
            subprocess.Popen(
                [*wire.inside(host), sys.executable, "-c", code, str(rank), "3", str(folder / "store")],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **PATIENT, "WEFT_SECRET": "sixteen bytes and more", "HOST": wire.ip[host]},
            )
            for rank, host in enumerate("aab")
        ]
    )


def test_ranks_of_two_hosts_read_and_write_each_other(wire: Wire, tmp_path: Path) -> None:
    """By load and store on a host, by tcp between hosts."""
    program = """
    mine = weft.full(4, rank)
    with attach_all(mine, listen=f"tcp://{os.environ['HOST']}:0") as peers:
        say([int(t[1]) for t in peers], list(peers.mapped), [t.path for t in peers][2 if rank < 2 else 0])
        peers[(rank + 1) % 3][0] = 10 + rank
        meet("written")
        say(int(mine[0]))
    """
    for rank, one in enumerate(run(wire, program, tmp_path)):
        assert one.status == 0, one.err
        mapped = [True, True, False] if rank < 2 else [False, False, True]
        assert one.said == [[[0, 1, 2], mapped, "tcp"], [10 + (rank - 1) % 3]]


def test_rank_of_another_host_that_does_not_listen_is_named(wire: Wire, tmp_path: Path) -> None:
    program = """
    listen = None if rank == 1 else f"tcp://{os.environ['HOST']}:0"
    refused(lambda: attach_all(weft.zeros(4), listen=listen))
    """
    ended = run(wire, program, tmp_path)
    assert len({str(one.said) for one in ended}) == 1, ended
    kind, text = ended[0].said[0]
    assert kind == "Unreachable"
    assert "rank 1 on host" in text
    assert "does not listen, and the ranks are on 2 hosts" in text
    assert "listen='tcp://0.0.0.0:0'" in text


def test_secrets_that_differ_are_an_error_of_every_rank(wire: Wire, tmp_path: Path) -> None:
    program = """
    os.environ["WEFT_SECRET"] += str(rank == 2)
    refused(lambda: attach_all(weft.zeros(4), listen=f"tcp://{os.environ['HOST']}:0"))
    """
    for one in run(wire, program, tmp_path):
        assert one.status == 0, one.err
        assert one.said[0][0] == "AccessDenied", one.said
        assert "cannot attach the array of rank" in one.said[0][1]
