"""Training with a parameter server, as an MPI program: rank 0 has the parameters, the other ranks train.

Each worker reads the parameters, computes a gradient on its own data, and adds its step to rank 0's memory, atomically.
Rank 0 runs no code for it. MPI starts the processes and carries one message of each; Weft moves the data.

    python examples/parameter_server_mpi.py                  # starts itself under mpiexec, with 3 ranks
    mpiexec -n 8 python examples/parameter_server_mpi.py     # or srun, or prterun
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig

import numpy as np

import weft
from weft.interop import mpi

FEATURES, STEPS = 20, 400
WANTED = np.arange(FEATURES) / FEATURES


def work(rank: int, parameters: weft.RemoteArray, steps: weft.RemoteArray) -> int:
    """Linear regression by stochastic gradient descent; returns the steps that this worker made."""
    random = np.random.default_rng(rank)
    mine, made = np.empty(FEATURES), 0
    while steps.fetch_add(0, 1) < STEPS:
        x = random.normal(size=(32, FEATURES))
        parameters.read(out=mine)  # the present parameters, into the same array each time
        gradient = x.T @ (x @ (mine - WANTED)) / len(x)
        parameters.add(..., -0.05 * gradient)
        made += 1
    return made


def main() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    mine = {"parameters": weft.zeros(FEATURES), "steps": weft.zeros(1, "int64")} if comm.rank == 0 else None
    with mpi.attach_all(comm, mine) as peers:
        made = work(comm.rank, peers[0, "parameters"], peers[0, "steps"]) if comm.rank else 0
        # The end of the with block waits for all ranks.
    made = comm.gather(made)
    if mine is not None:
        error = "small" if abs(mine["parameters"] - WANTED).max() < 0.01 else "large"
        print(f"{sum(made)} steps by {comm.size - 1} workers; the largest error is {error}")


def launched() -> bool:
    """Whether a launcher started this process."""
    return weft.launch.environment().size is not None


def start() -> None:
    """Start this program under mpiexec: with mpi4py there, and an mpiexec beside Python or on the path."""
    beside = sysconfig.get_path("scripts")
    names = ("mpiexec.hydra", "mpiexec")
    mpiexec = next(filter(None, (shutil.which(name, path=path) for path in (beside, None) for name in names)), None)
    if importlib.util.find_spec("mpi4py") is None or mpiexec is None:
        print("skipped: mpi4py and an MPI are needed (pip install mpi4py mpich)")
        return
    sys.stdout.flush()
    os.execv(mpiexec, [mpiexec, "-n", "3", sys.executable, *sys.argv])


if __name__ == "__main__":
    main() if launched() else start()
