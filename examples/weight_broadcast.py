"""A trainer gives its weights to readers, as torch tensors, whenever there is a new version.

The trainer's weights lie in memory that the readers map: `peers.tensor(0, name)` is the trainer's own memory. A reader
copies it into its own tensors and reads a version counter before and after: odd means that the trainer is writing, a
change means that it has written (a seqlock).

    python examples/weight_broadcast.py                                  # starts a reader of its own
    torchrun --nproc-per-node 3 examples/weight_broadcast.py             # or under torchrun, with two readers
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import weft

VERSIONS = 5
SHAPES = {"embedding": (256, 128), "bias": (128,), "head": (128, 10)}


def trainer(store: Any, size: int) -> None:
    """Rank 0: new weights, and then the version's number."""
    from weft.interop import torch as tensors

    weights = {name: tensors.zeros(shape) for name, shape in SHAPES.items()}
    version = weft.zeros(1, "int64")
    with tensors.attach_all(store, {**weights, "version": version}, rank=0, size=size) as peers:
        for step in range(1, VERSIONS + 1):
            version[0] += 1  # odd: do not read now
            for tensor in weights.values():
                tensor.fill_(step)
            version[0] += 1
        for rank in range(1, size):
            peers[rank].wait_until(0, VERSIONS, timeout=60)
    total = sum(tensor.numel() for tensor in weights.values())
    print(f"all readers have version {VERSIONS} of {total} weights")


def reader(store: Any, rank: int, size: int) -> None:
    """The other ranks: a whole version, never a mixture of two."""
    import torch

    from weft.interop import torch as tensors

    seen = weft.zeros(1, "int64")
    with tensors.attach_all(store, seen, rank=rank, size=size) as peers:
        theirs = {name: peers.tensor(0, name) for name in SHAPES}  # the trainer's memory itself
        mine = {name: torch.empty(shape) for name, shape in SHAPES.items()}
        version, have = peers[0, "version"], 0
        while have < VERSIONS:
            start = int(version.wait_until(0, lambda v, have=have: v % 2 == 0 and v // 2 > have, timeout=60))
            for name, tensor in mine.items():
                tensor.copy_(theirs[name])
            if version[0] != start:
                continue  # the trainer wrote meanwhile: read again
            have = start // 2
            assert all(bool((tensor == have).all()) for tensor in mine.values())
            seen[0] = have


def run(store: Any, rank: int, size: int) -> None:
    if rank == 0:
        trainer(store, size)
    else:
        reader(store, rank, size)


def beside(port: int) -> None:
    """The reader's process."""
    from torch.distributed import TCPStore

    run(TCPStore("127.0.0.1", port), 1, 2)


def main() -> None:
    try:
        from torch.distributed import TCPStore, rendezvous
    except ImportError:
        print("skipped: torch is not installed (pip install torch)")
        sys.exit(0)
    if weft.launch.environment().name.startswith("torch"):
        run(*next(iter(rendezvous("env://"))))
        return
    store = TCPStore("127.0.0.1", 0, is_master=True)
    process = multiprocessing.get_context("spawn").Process(target=beside, args=(store.port,))
    process.start()
    run(store, 0, 2)
    process.join()
    assert process.exitcode == 0


if __name__ == "__main__":
    main()
