"""Ctrl-C ends every wait, with KeyboardInterrupt and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from tests import patience
from tests.procs.children import ROOT, environment

pytestmark = pytest.mark.procs

WAITS = {
    "sread": "side.cq.sread(timeout=None)",
    "sreadfrom": "side.cq.sreadfrom(timeout=3600)",
    "wait": "side.counters[fi.WRITE].wait(1)",
    "eq": "side.fabric.eq_open().sread(timeout=None)",
}

PROGRAM = """
import signal, time, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.procs.peer import Side
from weft import fi
side = Side(counters=(fi.WRITE,))
print("waiting", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
# All is as it was: the same wait with a timeout, an operation, the end.
try:
    side.cq.sread(timeout=0.01)
except fi.Again:
    print("again", flush=True)
"""


@pytest.mark.parametrize("engine", ["thread", "manual"])
@pytest.mark.parametrize("wait", WAITS)
def test_interrupt_ends_a_wait(wait: str, engine: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", PROGRAM.format(wait=WAITS[wait])],
        cwd=ROOT,
        env=environment(WEFT_ENGINE=engine),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.15)  # long enough that it sleeps; a signal before that is noticed as well
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        took = time.monotonic() - sent
        out, err = patience.communicate(process, 30)
    finally:
        process.kill()
        process.wait()
    print(f"{wait} {engine}: interrupted after {took * 1000:.0f} ms")
    assert (out, err, process.returncode) == ("again\n", "", 0)
