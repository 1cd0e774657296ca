"""Random calls, legal and not, over a real libfabric: no process ends by a signal, and each answer is Weft's.

The calls of a seed are those of random_calls.py, by three threads, in a process of its own for each batch of seeds.
Four seeds run here; `WEFT_OFI_SEEDS=1000` runs as many. A failure prints the seed, and the command that repeats it.

Over tcp, and over 1.17 without large messages (--small): legal calls that the providers do not survive are in
docs/reference/ofi.md, and random_calls.py without the option, or over shm, finds them.
"""

from __future__ import annotations

import os
import re
import sys

import pytest
from tests import patience
from tests.ofi.support import library_version

SEEDS = int(os.environ.get("WEFT_OFI_SEEDS", "4"))
BATCH = 50
SECONDS = 400


def test_random_calls_end_no_process() -> None:
    options = [] if library_version() >= (2, 0) else ["--small"]
    for first in range(0, SEEDS, BATCH):
        count = str(min(BATCH, SEEDS - first))
        command = ["-m", "tests.ofi.random_calls", "ofi:tcp", str(first), count, *options]
        ended = patience.run(
            [sys.executable, "-X", "faulthandler", *command],
            SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        if ended.returncode != 0:
            (last,) = re.findall(r"^seed (\d+)$", ended.stdout, re.MULTILINE)[-1:] or [str(first)]
            pytest.fail(
                f"seed {last}: {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-3000:]}\n"
                f"again: python -m tests.ofi.random_calls ofi:tcp {last} 1 {' '.join(options)} -v"
            )
