"""Programs of others over MPI libraries on the NIC: mpi4py's own tests, and Intel's benchmarks with data check."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.provider import clients

pytestmark = pytest.mark.procs

MPI4PY = clients.FOLDER / "mpi4py" / "test" / "main.py"
PARTS = ["p2p_buf$", "msgspec", "rma$", "win", "spawn"]


def mpi4py(mpi: clients.Mpi, part: str, provider: str, **more: str) -> None:
    pytest.importorskip("mpi4py")
    mpi.need()
    if not MPI4PY.exists():
        pytest.skip(f"no source of mpi4py in {MPI4PY.parents[1]} (make clients)")
    done = mpi.run(2, sys.executable, MPI4PY, "-q", "-i", f"test_{part}", provider=provider, **more)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "\nOK" in done.stderr + done.stdout


@pytest.mark.parametrize("part", PARTS)
def test_mpi4py_s_own_tests_pass_on_mpich(part: str) -> None:
    mpi4py(clients.MPICH, part, "weft")


@pytest.mark.parametrize("part", PARTS)
def test_mpi4py_s_own_tests_pass_on_open_mpi(part: str, provider: str) -> None:
    library = str(clients.OPEN_MPI.prefix / "lib" / clients.OPEN_MPI.library)
    mpi4py(clients.OPEN_MPI, part, provider, MPI4PY_MPIABI="openmpi", MPI4PY_LIBMPI=library)


def imb(program: str, provider: str, ranks: int, *arguments: str, **more: str) -> str:
    clients.INTEL_MPI.need()
    done = clients.INTEL_MPI.run(
        ranks, clients.INTEL_MPI.prefix / "bin" / program, *arguments, provider=provider, **more
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def checked(tmp_path: Path) -> list[str]:
    """Arguments of the programs that check their data."""
    return ["-iter", "10", "-npmin", "2", "-msglen", lengths(tmp_path), "-data_check", "1"]


def lengths(tmp_path: Path) -> str:
    file = tmp_path / "lengths"
    file.write_text("0\n8\n65536\n1048576\n")
    return str(file)


def rows(out: str) -> dict[str, int]:
    """Benchmark -> its rows of figures."""
    parts = out.split("# Benchmarking ")[1:]
    return {part.split()[0]: len([line for line in part.splitlines() if re.match(r" +\d+ ", line)]) for part in parts}


def test_imb_messages_and_collectives_pass_their_data_check(tmp_path: Path, provider: str) -> None:
    names = ["PingPong", "Sendrecv", "Exchange", "Allreduce", "Alltoall", "Bcast"]
    out = imb("IMB-MPI1", provider, 2, *names, *checked(tmp_path))
    assert [f"# Benchmarking {name} " in out for name in names] == [True] * len(names)


def test_imb_windows_pass_over_weft(tmp_path: Path) -> None:
    names = ["Unidir_put", "Unidir_get", "Accumulate", "Fetch_and_op", "Compare_and_swap"]
    out = imb("IMB-RMA", "weft", 2, *names, *checked(tmp_path))
    assert [f"# Benchmarking {name} " in out for name in names] == [True] * len(names)


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        (2, ["PingPong", "PingPing", "Unirandom", "Birandom", "Corandom", "SendRecv_Replace"]),
        (4, ["Stencil2D"]),
        (8, ["Stencil3D"]),
    ],
)
def test_imb_p2p_measures_every_length(tmp_path: Path, provider: str, ranks: int, names: list[str]) -> None:
    """Without -iter and -pause the program takes minutes, and its output stays in a pipe until the end."""
    out = imb("IMB-P2P", provider, ranks, *names, "-iter", "5", "-pause", "1000", "-msglen", lengths(tmp_path))
    assert rows(out) == dict.fromkeys(names, 4)


def test_imb_mt_messages_and_collectives_of_threads_pass_their_data_check(provider: str) -> None:
    openmp = clients.openmp()
    names = ["PingPongMT", "SendRecvMT", "ExchangeMT", "UniBandMT", "BiBandMT", "BcastMT", "ReduceMT", "AllReduceMT"]
    few = ["-thread_level", "multiple", "-repeat", "4", "-warmup", "1", "-window_size", "8", "-count", "1,4096"]
    path = f"{clients.INTEL_MPI.prefix / 'lib'}:{openmp.parent}"
    out = imb("IMB-MT", provider, 2, *names, *few, "-check", "on", LD_LIBRARY_PATH=path, OMP_NUM_THREADS="2")
    assert rows(out) == dict.fromkeys(names, 2)
    assert "CHECK FAILURES" not in out
