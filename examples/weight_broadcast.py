"""A trainer gives its weights to a reader, as torch tensors, whenever there is a new version.

The trainer shares its tensors in place. The reader copies them directly into its own tensors and reads a version
counter before and after: odd means that the trainer is writing, a change means that it has written (a seqlock).

    python examples/weight_broadcast.py
"""

from __future__ import annotations

import multiprocessing
import sys

import weft

VERSIONS = 5


def reader(version: weft.RemoteArray, weights: list[weft.RemoteArray], seen: weft.RemoteArray) -> None:
    import torch

    mine = [torch.empty(w.shape, dtype=torch.float32) for w in weights]
    have = 0
    while have < VERSIONS:
        start = int(version.wait_until(0, lambda v, have=have: v % 2 == 0 and v // 2 > have, timeout=60))
        for remote, tensor in zip(weights, mine, strict=True):
            remote.read(out=tensor)  # one copy, from the trainer's tensor into the reader's
        if version[0] != start:
            continue  # the trainer wrote meanwhile: read again
        have = start // 2
        assert all(bool((tensor == have).all()) for tensor in mine)
        seen[0] = have


def main() -> None:
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed (pip install torch)")
        sys.exit(0)
    context = multiprocessing.get_context("spawn")
    with weft.open() as node:
        weights = [torch.zeros(256, 128), torch.zeros(128), torch.zeros(128, 10)]
        version, seen = weft.zeros(1, "int64"), weft.zeros(1, "int64")
        shares = [node.share(w, access="r") for w in weights]
        process = context.Process(
            target=reader, args=(node.share(version, access="r"), shares, node.share(seen, access="rw"))
        )
        process.start()
        for step in range(1, VERSIONS + 1):
            version[0] += 1  # odd: do not read now
            for tensor in weights:
                tensor.fill_(step)
            version[0] += 1
        process.join()
        assert process.exitcode == 0
        assert seen[0] == VERSIONS
        print(f"the reader has version {seen[0]} of {sum(w.numel() for w in weights)} weights")


if __name__ == "__main__":
    main()
