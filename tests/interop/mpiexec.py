"""Programs under MPICH's mpiexec, a requirement of the tests. Skips where mpi4py or MPICH is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.interop.ranks import SECONDS

PRELUDE = """\
import json, os, signal, sys, time
import numpy as np
import weft
from mpi4py import MPI
from weft import errors
from weft.interop import mpi
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

def say(*words):
    # Not by the launcher: it loses what a rank printed while another one died.
    with open(os.path.join(sys.argv[1], str(rank)), "a") as file:
        print(json.dumps(words), file=file)

def refused(call):
    try:
        call()
    except (OSError, TypeError, ValueError) as reason:
        say(type(reason).__name__, str(reason))
    else:
        say("no error", "")
"""


def launcher() -> str:
    """The path of MPICH's mpiexec."""
    if os.environ.get("WEFT_SANITIZED"):
        pytest.skip("a sanitizer would be loaded into the launcher as well")
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    where = shutil.which("mpiexec.hydra", path=sysconfig.get_path("scripts"))
    if where is None:
        pytest.skip("no mpiexec.hydra beside this Python (the package mpich)")
    return where


# MPICH's launcher kills all ranks when it sees one end without MPI_Finalize, even if it is asked not to. So it sees
# shells, which end together, when the last rank has ended.
TOGETHER = """\
"$@"
touch "$FOLDER/ended.$PMI_RANK"
until [ "$(ls "$FOLDER" | grep -c ended)" = "$PMI_SIZE" ]; do sleep 0.1; done
"""


def run(program: str, size: int, *, together: bool = False) -> tuple[list[list[list[Any]]], int, str]:
    """What each rank said, the launcher's exit status, and its output.

    together   some ranks end without MPI_Finalize: the launcher is kept from ending the others.
    """
    with tempfile.TemporaryDirectory() as folder:
        rank = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), folder]
        shell = ["sh", "-c", TOGETHER, "sh"] if together else []
        ended: subprocess.CompletedProcess[str] = patience.run(
            [launcher(), "-n", str(size), *shell, *rank],
            SECONDS,
            env={**os.environ, "FOLDER": folder},
            stdin=subprocess.DEVNULL,
        )
        found: list[list[list[Any]]] = [[] for _ in range(size)]
        for n in range(size):
            file = Path(folder) / str(n)
            if file.exists():
                found[n] = [json.loads(line) for line in file.read_text().splitlines()]
    return found, ended.returncode, ended.stdout + ended.stderr


def said(program: str, size: int) -> list[list[list[Any]]]:
    """As `run`, of a program that must end well."""
    found, status, output = run(program, size)
    assert status == 0, output[-3000:]
    return found
