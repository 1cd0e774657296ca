"""The processes of test_peer_kinds.py: workers, which spawn imports by name, and the two sides of a container's wall.

python -m tests.procs.peer_kinds owner              shares arrays; prints names and tickets as JSON; ends with its input
python -m tests.procs.peer_kinds peer WHAT...       attaches each; prints the results as JSON
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def scale(given: Any, by: float) -> tuple[int, float]:
    """Scale an array in its owner's memory, and count at its first element; (process, what the last element was)."""
    was = float(given[-1])
    given[1:] = given[1:] * by
    given.fetch_add(0, 1.0)
    return os.getpid(), was


def into(answers: Any, given: Any, by: float) -> None:
    """`scale`, for a Process: its result, or what it raised, goes into a queue."""
    try:
        answers.put(scale(given, by))
    except BaseException as reason:
        answers.put(repr(reason))


def owner(name: str) -> None:
    import numpy as np

    import weft

    node = weft.open()
    mapped, own = weft.zeros(8), np.zeros(8)
    shares = node.share(mapped, name=name), node.share(own)
    print(json.dumps([str(share.ticket) for share in shares]), flush=True)
    sys.stdin.read()
    print(json.dumps([mapped.tolist(), own.tolist()]), flush=True)
    node.close()


def peer(*what: str) -> None:
    import weft

    found: list[list[Any]] = []
    with weft.open() as node:
        for one in what:
            try:
                there = node.attach(one)
                there[1] = 7.0
                found.append(["ok", float(there.fetch_add(0, 1.0)), there.path])
            except weft.errors.FabricError as reason:
                found.append([type(reason).__name__, str(reason)])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    {"owner": owner, "peer": peer}[sys.argv[1]](*sys.argv[2:])
