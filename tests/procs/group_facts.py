"""Calls of a group's members, in processes of their own: `world` is the child's `peer.World`."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft import errors

groups: dict[str, weft.Group] = {}


def join(_: Any, name: str, size: int, rank: int | None = None, wait: float = 60.0) -> int:
    groups[name] = weft.Group(name, size, rank, wait=wait, timeout=60.0)
    return groups[name].rank


def leave(_: Any, name: str) -> None:
    groups.pop(name).close()


def values(rank: int, n: int, dtype: str) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(rank).integers(0, 100, n)).astype(dtype)


def add_up(_: Any, name: str, n: int, dtype: str, op: str) -> bytes:
    group = groups[name]
    found: np.ndarray[Any, Any] = group.allreduce(values(group.rank, n, dtype), op)
    return found.tobytes()


def exact_sum(_: Any, name: str, row: np.ndarray[Any, Any]) -> bytes:
    found: np.ndarray[Any, Any] = groups[name].allreduce(row, reproducible=True)
    return found.tobytes()


def hand_out(_: Any, name: str, root: int, n: int) -> bytes:
    group = groups[name]
    mine = values(root, n, "f4") if group.rank == root else None
    return bytes(group.broadcast(mine, root).tobytes())


def count_in_turn(_: Any, name: str, rounds: int) -> int:
    """The sum of all ranks, many times, with a barrier in between: the last value."""
    group = groups[name]
    found = 0
    for k in range(rounds):
        found = int(group.allreduce(np.int64(group.rank + k)))
        group.barrier()
    return found


def barrier(_: Any, name: str) -> str:
    """The kind of error, or "" if the barrier ended."""
    try:
        groups[name].barrier()
    except errors.FabricError as error:
        return type(error).__name__
    return ""


def late(_: Any, name: str, n: int) -> str:
    """The kind of error of an allreduce that may wait half a second."""
    groups[name].timeout = 0.5
    try:
        groups[name].allreduce(np.ones(n))
    except errors.FabricError as error:
        return type(error).__name__
    return ""


def state(_: Any, name: str) -> str:
    return repr(groups[name])
