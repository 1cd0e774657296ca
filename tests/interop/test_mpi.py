"""weft.interop.mpi under mpiexec: every rank has every rank's array; errors are everyone's; nothing hangs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.interop import mpiexec

from weft import errors
from weft.interop import mpi

pytestmark = pytest.mark.procs


def test_mpi_each_rank_reads_and_writes_the_others() -> None:
    """Four ranks, more than many machines have cores. MPI goes on being used beside Weft."""
    program = """
    mine = weft.zeros(8, "int64")
    mine[:] = rank
    with mpi.attach_all(comm, mine) as peers:
        before = [int(t[0]) for t in peers]
        peers[(rank + 1) % size][1] = 100 + rank
        peers[0].add(2, 1)
        comm.Barrier()
        total = comm.allreduce(int(mine[1]))
        say(before, int(mine[1]), int(peers[0][2]), total, list(peers.mapped), peers.rank, len(peers))
    """
    found = mpiexec.said(program, 4)
    for rank in range(4):
        assert found[rank] == [[[0, 1, 2, 3], 100 + (rank - 1) % 4, 4, 406, [True] * 4, rank, 4]]


def test_mpi_parts_of_a_communicator_and_names() -> None:
    """Communicators of even and of odd ranks, at the same time; two arrays by name; a rank that shares none."""
    program = """
    half = comm.Split(rank % 2, rank)
    with mpi.attach_all(half, {"a": np.full(3, rank), "b": np.full(2, 10 + rank)} if rank != 3 else None) as peers:
        say([int(t[0]) for t in peers], [list(peers.names(r)) for r in range(len(peers))])
    """
    found = mpiexec.said(program, 4)
    assert found[0] == found[2] == [[[0, 10, 2, 12], [["a", "b"], ["a", "b"]]]]
    assert found[1] == found[3] == [[[1, 11], [["a", "b"], []]]]


def test_mpi_rank_that_cannot_share_is_named_by_every_rank() -> None:
    program = """
    refused(lambda: mpi.attach_all(comm, [1, 2] if rank == 1 else np.zeros(2)))
    with mpi.attach_all(comm, np.full(1, rank)) as peers:
        say([int(t[0]) for t in peers])
    """
    found = mpiexec.said(program, 3)
    assert found[0] == found[1] == found[2]
    assert found[0][0][0] == "TypeError"
    assert "rank 1 cannot share its array" in found[0][0][1]
    assert found[0][1] == [[0, 1, 2]]


def test_mpi_rank_that_does_not_come_is_an_error_of_the_others() -> None:
    """MPI cannot cancel a collective call, so the ranks end without MPI_Finalize."""
    program = """
    if rank != 1:
        refused(lambda: mpi.attach_all(comm, np.zeros(2), timeout=1))
    os._exit(0)
    """
    found, _, output = mpiexec.run(program, 3, together=True)
    assert found[1] == []
    for rank in (0, 2):
        assert found[rank][0][0] == "TimedOut", output
        assert "not all 3 ranks have called in time" in found[rank][0][1]


def test_mpi_rank_that_dies_during_the_exchange_is_named() -> None:
    """kill -9 after the tickets are told, while the launcher leaves the other ranks alone: they must not hang."""
    program = """
    import weft.interop.peers as module
    attach = module._attach
    def dies(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        module._attach = dies
    refused(lambda: mpi.attach_all(comm, np.zeros(2), timeout=1000))
    os._exit(0)
    """
    found, _, output = mpiexec.run(program, 3, together=True)
    for rank in (0, 2):
        assert found[rank], output
        assert found[rank][0][0] == "ConnectionReset"
        assert "rank 1" in found[rank][0][1]


def test_mpi_communicators_that_are_refused() -> None:
    program = """
    between = comm.Split(rank, 0).Create_intercomm(0, comm, 1 - rank)
    refused(lambda: mpi.attach_all(between, np.zeros(2)))
    refused(lambda: mpi.attach_all(rank, np.zeros(2)))
    between.Free()
    """
    for said in mpiexec.said(program, 2):
        assert [kind for kind, _ in said] == ["TypeError", "TypeError"]
        assert "intercommunicator" in said[0][1]
        assert "comm is int, not a communicator of mpi4py" in said[1][1]


# ---- without MPI -----------------------------------------------------------------------------------------------------


class Comm:
    """A communicator of one rank, whose calls fail, or never end."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def Is_inter(self) -> bool:
        return False

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Iallgather(self, mine: Any, found: Any) -> Comm:
        found[:] = mine
        return self

    def Iallgatherv(self, mine: Any, found: Any) -> Comm:
        found[0][:] = mine
        return self

    def Test(self) -> bool:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return bool(self.outcome)


def test_mpi_that_fails_is_an_error() -> None:
    """MPI.Exception is a RuntimeError."""
    with pytest.raises(errors.ConnectionReset, match="MPI failed: MPI_ERR_PROC_FAILED"):
        mpi.attach_all(Comm(RuntimeError("MPI_ERR_PROC_FAILED")), np.zeros(1))


def test_mpi_that_never_ends_is_an_error_at_the_deadline() -> None:
    """The buffers stay, because MPI may still write there."""
    before = len(mpi._unfinished)
    with pytest.raises(errors.TimedOut, match="not all 1 ranks have called in time"):
        mpi.attach_all(Comm(False), np.zeros(1), timeout=0.01)
    assert len(mpi._unfinished) == before + 1


def test_mpi_communicator_of_one_rank() -> None:
    with mpi.attach_all(Comm(True), np.full(3, 7)) as peers:
        assert peers[0][1] == 7
