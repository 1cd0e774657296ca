"""A broadcast and an allreduce by torch's gloo between two processes, as JSON: run by bench_interop.py.

broadcast   of 64 MiB from rank 0, seen by rank 1; allreduce: of 1 MiB of doubles

The least and the median of rounds, in microseconds. Needs torch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import time

from timing import own_core

WEIGHTS, PARAMETERS = 64 << 20, 1 << 20


def rank(number: int, port: int, results) -> None:
    import torch
    import torch.distributed as dist

    own_core(number)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=number == 0)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    weights, gradient = torch.ones(WEIGHTS, dtype=torch.uint8), torch.ones(PARAMETERS // 8, dtype=torch.float64)
    found = {}
    for name, rounds, call in (
        ("broadcast", 15, lambda: dist.broadcast(weights, 0)),
        ("allreduce", 50, lambda: dist.all_reduce(gradient)),
    ):
        found[name] = []
        for _ in range(rounds):
            dist.barrier()
            start = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - start) * 1e6)
    dist.barrier()
    dist.destroy_process_group()
    if number == 1:
        results.put({name: [min(values), statistics.median(values)] for name, values in found.items()})


def main() -> None:
    try:
        import torch.distributed
    except ImportError:
        raise SystemExit("no torch (pip install torch)") from None
    probe = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    port = probe.port
    del probe
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=rank, args=(number, port, results), daemon=True) for number in range(2)]
    for process in processes:
        process.start()
    print(json.dumps(results.get(timeout=50)))
    sys.stdout.flush()
    for process in processes:
        process.join(10)


if __name__ == "__main__":
    main()
