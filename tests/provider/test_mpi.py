"""MPI libraries' wheels on Weft's NIC, unmodified: messages of all sizes, collectives, windows, each checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.provider import clients

pytestmark = pytest.mark.procs

ALL = ["messages", "floods", "collectives", "windows, allocated", "windows, created", "ended"]
WITHOUT_WINDOWS = ["messages", "floods", "collectives", "ended"]


def said(mpi: clients.Mpi, program: Path, ranks: int, provider: str, *arguments: str, **more: str) -> list[str]:
    done = mpi.run(ranks, program, *arguments, provider=provider, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line in ALL or "wrong" in line]


@pytest.mark.parametrize("ranks", [2, 4])
def test_mpich_moves_messages_and_windows(programs: Path, provider: str, ranks: int) -> None:
    program = clients.compiled(clients.MPICH, programs)
    assert said(clients.MPICH, program, ranks, provider) == ALL


@pytest.mark.parametrize("ranks", [2, 4])
def test_open_mpi_moves_messages_and_windows(programs: Path, provider: str, ranks: int) -> None:
    """mtl ofi has the messages, and osc rdma over btl ofi the windows."""
    program = clients.compiled(clients.OPEN_MPI, programs)
    assert said(clients.OPEN_MPI, program, ranks, provider) == ALL


@pytest.mark.parametrize("ranks", [2, 4])
def test_intel_mpi_moves_messages_and_windows(programs: Path, ranks: int) -> None:
    program = clients.compiled(clients.INTEL_MPI, programs)
    assert said(clients.INTEL_MPI, program, ranks, "weft") == ALL


def test_intel_mpi_moves_messages_over_cxi(programs: Path) -> None:
    program = clients.compiled(clients.INTEL_MPI, programs)
    assert said(clients.INTEL_MPI, program, 2, "cxi", "messages") == WITHOUT_WINDOWS


def test_intel_mpi_windows_over_cxi_name_the_missing_call(programs: Path) -> None:
    """It neither binds nor enables a window's memory, as FI_MR_ENDPOINT demands; hardware refuses too."""
    program = clients.compiled(clients.INTEL_MPI, programs)
    done = clients.INTEL_MPI.run(2, program, provider="cxi", FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi")
    assert done.returncode != 0
    assert "the region is not enabled: bind it and call enable()" in done.stdout + done.stderr


def test_mpi_traffic_goes_over_the_nic(programs: Path, provider: str) -> None:
    """Ranks of one host could also use shared memory of the library's own: then nothing here would be shown."""
    program = clients.compiled(clients.MPICH, programs)
    trace = clients.MPICH.run(
        2, program, "messages", provider=provider, FI_HOOK="trace", FI_LOG_LEVEL="trace", FI_LOG_SUBSYS="ep_data"
    )
    assert trace.stderr.count("trace_tinject") + trace.stdout.count("trace_tinject") > 100
