"""Programs of others over MPI libraries on the NIC: mpi4py's own tests, and Intel's benchmarks with data check."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.provider import clients

pytestmark = pytest.mark.procs

MPI4PY = clients.FOLDER / "mpi4py" / "test" / "main.py"
PARTS = ["p2p_buf$", "msgspec", "rma$", "win", "spawn"]


@pytest.mark.parametrize("part", PARTS)
def test_mpi4py_s_own_tests_pass_on_mpich(part: str) -> None:
    pytest.importorskip("mpi4py")
    clients.MPICH.need()
    if not MPI4PY.exists():
        pytest.skip(f"no source of mpi4py in {MPI4PY.parents[1]} (make clients)")
    done = clients.MPICH.run(2, sys.executable, MPI4PY, "-q", "-i", f"test_{part}", provider="weft")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "\nOK" in done.stderr + done.stdout


def imb(program: str, provider: str, tmp_path: Path, *names: str) -> str:
    clients.INTEL_MPI.need()
    lengths = tmp_path / "lengths"
    lengths.write_text("0\n8\n65536\n1048576\n")
    common = ["-iter", "10", "-npmin", "2", "-msglen", str(lengths), "-data_check", "1"]
    done = clients.INTEL_MPI.run(2, clients.INTEL_MPI.prefix / "bin" / program, *names, *common, provider=provider)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_imb_messages_and_collectives_pass_their_data_check(tmp_path: Path, provider: str) -> None:
    names = ["PingPong", "Sendrecv", "Exchange", "Allreduce", "Alltoall", "Bcast"]
    out = imb("IMB-MPI1", provider, tmp_path, *names)
    assert [f"# Benchmarking {name} " in out for name in names] == [True] * len(names)


def test_imb_windows_pass_over_weft(tmp_path: Path) -> None:
    names = ["Unidir_put", "Unidir_get", "Accumulate", "Fetch_and_op", "Compare_and_swap"]
    out = imb("IMB-RMA", "weft", tmp_path, *names)
    assert [f"# Benchmarking {name} " in out for name in names] == [True] * len(names)
