"""Clusters over weft://: processes and threads compute, exchange arrays, and survive the death of a worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask's distributed is not installed: pip install 'weft-fabric[dask]'")

from distributed import Client, LocalCluster, wait

pytestmark = [
    pytest.mark.procs,
    # Dask's own: threads and sockets of a cluster that has just ended.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECONDS_MAX = 100


def cluster(**more: Any) -> Any:
    return LocalCluster(
        protocol="weft://", dashboard_address=None, worker_dashboard_address=None, threads_per_worker=1, **more
    )


def paths(dask_worker: Any) -> list[dict[str, Any]]:
    """Of the comms that a worker has opened to others."""
    return [comm.paths for comms in dask_worker.rpc.available.values() for comm in comms]


def made(n: int) -> Any:
    return np.arange(float(n))


@pytest.mark.parametrize("processes", [True, False], ids=["processes", "threads"])
def test_workers_exchange_arrays(processes: bool) -> None:
    with cluster(n_workers=2, processes=processes) as local, Client(local) as client:
        first, second = sorted(client.scheduler_info()["workers"])
        assert first.startswith("weft://127.0.0.1:")
        here = [client.submit(made, 3_000_000 + i, workers=[first]) for i in range(4)]
        sums = [client.submit(np.sum, array, workers=[second]) for array in here]
        assert client.gather(sums, asynchronous=False) == [made(3_000_000 + i).sum() for i in range(4)]
        found = client.gather(here[0])
        np.testing.assert_array_equal(found, made(3_000_000))
        scattered = client.scatter(found, workers=[second])
        assert client.submit(np.sum, scattered, workers=[first]).result() == found.sum()
        told = [entry for entries in client.run(paths).values() for entry in entries]
        assert told
        assert all(entry["reads_peer"] and entry["read_by_peer"] for entry in told)


def test_received_array_can_be_changed() -> None:
    def change(array: Any) -> float:
        array += 1
        return float(array[0])

    with cluster(n_workers=2, processes=True) as local, Client(local) as client:
        first, second = sorted(client.scheduler_info()["workers"])
        array = client.submit(made, 1_000_000, workers=[first])
        assert client.submit(change, array, workers=[second]).result() == 1.0
        assert client.submit(np.sum, array, workers=[first]).result() == made(1_000_000).sum()


def test_transposed_matrix_adds_up() -> None:
    da = pytest.importorskip("dask.array")
    with cluster(n_workers=2, processes=True) as local, Client(local):
        x = da.random.default_rng(1).random((2000, 2000), chunks=(500, 1000)).persist()
        whole = x.compute()
        np.testing.assert_array_equal((x + x.T).compute(), whole + whole.T)


def test_killed_worker_is_replaced_and_the_work_ends() -> None:
    def slow(n: int) -> Any:
        time.sleep(0.05)
        return made(n)

    with cluster(n_workers=2, processes=True) as local, Client(local) as client:
        pids = client.run(os.getpid)
        arrays = [client.submit(slow, 500_000 + i, pure=False) for i in range(12)]
        total = client.submit(lambda parts: float(sum(part.sum() for part in parts)), arrays)
        wait(arrays[:3])
        os.kill(next(iter(pids.values())), signal.SIGKILL)
        assert total.result(timeout=SECONDS_MAX) == sum(made(500_000 + i).sum() for i in range(12))


def test_closed_cluster_leaves_no_thread_that_runs() -> None:
    before = {thread.name for thread in threading.enumerate()}
    with cluster(n_workers=1, processes=False) as local, Client(local) as client:
        assert client.submit(made, 300_000).result()[-1] == 299_999
    left = {thread.name for thread in threading.enumerate()} - before
    assert not any(name.startswith("IO loop") for name in left)
