"""A work queue without a server: workers claim tasks with compare_swap.

Each task has a word: 0 while it is free, then the number of the worker that took it. compare_swap returns the
previous value, so exactly one of the workers that try sees 0. Results go directly into the owner's array.

    python examples/work_queue.py
"""

from __future__ import annotations

import multiprocessing

import numpy as np

import weft

WORKERS, TASKS = 3, 200


def worker(me: int, claims: weft.RemoteArray, inputs: weft.RemoteArray, results: weft.RemoteArray) -> None:
    for task in range(TASKS):
        if claims[task] == 0 and claims.compare_swap(task, 0, me) == 0:  # read first, because a read is cheaper
            results[task] = inputs[task].sum()


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with weft.open() as node:
        claims = weft.zeros(TASKS, "int64")
        inputs = weft.empty((TASKS, 100))
        inputs[:] = np.arange(TASKS)[:, None]
        results = weft.zeros(TASKS)
        shares = node.share(claims), node.share(inputs, access="r"), node.share(results, access="w")
        workers = [context.Process(target=worker, args=(1 + i, *shares)) for i in range(WORKERS)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
            assert process.exitcode == 0
        assert (results == np.arange(TASKS) * 100).all()
        done = [int((claims == 1 + i).sum()) for i in range(WORKERS)]
        assert sum(done) == TASKS
        print(f"{TASKS} tasks, each done once; by worker: {done}")


if __name__ == "__main__":
    main()
