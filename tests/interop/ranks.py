"""Ranks of a job: a process for each, which runs a program with `rank`, `size`, `store` and `attach_all(array, ...)`.

`run` starts them and returns what each printed as JSON by `say(...)`, and how it ended. Ranks meet in a FileStore.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import patience

SECONDS = 60

PRELUDE = """\
import json, os, signal, sys, time
import numpy as np
import weft
from weft import errors
from weft.interop import store as stores
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = stores.FileStore(folder)

def say(*words):
    print("say", json.dumps(words), flush=True)

def attach_all(array, **more):
    more = {"timeout": 60.0, **more}
    return stores.attach_all(store, array, rank=rank, size=size, **more)

def refused(call):
    '''Say the error of a call: its class and its text.'''
    begun = time.monotonic()
    try:
        call()
    except (OSError, TypeError, ValueError) as reason:
        say(type(reason).__name__, str(reason))
    else:
        say("no error", "")

def meet(mine):
    '''Set a key of this rank, and wait for the keys of all.'''
    store.set(f"{mine}.{rank}", "1")
    store.wait([f"{mine}.{other}" for other in range(size)], 60.0)
"""


@dataclass(frozen=True)
class Ended:
    """A rank: the values it said, its exit status, its other output."""

    said: list[list[Any]]
    status: int
    err: str


def start(program: str, rank: int, size: int, folder: Path, **env: str) -> subprocess.Popen[str]:
    """A rank's process."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program), str(rank), str(size), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """Wait for all ranks, within a limit; the remaining ranks are killed."""
    found = []
    try:
        for process in processes:
            out, err = patience.communicate(process, SECONDS)
            said = [json.loads(line[4:]) for line in out.splitlines() if line.startswith("say ")]
            found.append(Ended(said, process.returncode, err))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


def run(program: str, size: int, folder: Path, **env: str) -> list[Ended]:
    """All ranks of a program, to their end."""
    return finish([start(program, rank, size, folder / "store", **env) for rank in range(size)])


def said(program: str, size: int, folder: Path, **env: str) -> list[list[list[Any]]]:
    """As `run`: the values that the ranks said. All must have ended well."""
    ended = run(program, size, folder, **env)
    assert [one.status for one in ended] == [0] * size, [one.err[-2000:] for one in ended]
    return [one.said for one in ended]
