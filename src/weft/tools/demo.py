"""`weft demo`: two processes and one array, in some twenty lines; four figures, each beside its limit.

The second process runs this file. It owns the array, sleeps while this process uses the array, and then tells what it
found and how much of a processor it used meanwhile.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ._text import format_bandwidth, format_time

FRAMES = (100, 270, 480)
COUNTS = 1000
BATCHES, BATCH_NS = 15, 4_000_000
OWNER_SECONDS_MAX = 30.0


def demo() -> int:
    """Run the two processes, and print what each did. Returns the exit status."""
    import numpy as np

    from ..share import open as open_node

    name = f"demo-{os.getpid()}"
    owner = subprocess.Popen(
        [sys.executable, "-m", __name__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        ask(owner, "")  # the arrays are shared
        with open_node() as node:
            frames, counts = node.attach(f"{name}-frames"), node.attach(f"{name}-counts")
            frames[99, 0, 0], counts[0] = 1, 1  # the first use of each connects to the owner
            used = processor_ns(owner.pid)
            frames[17] = 200
            frames[18, :100] = frames[17, :100]
            before = counts.fetch_add(17, 5)
            used = processor_ns(owner.pid) - used
            done = node.statistics()
            found = ask(owner, "look\n")
            figures = measure(frames, counts, np) if frames.path == "load/store" else []
        ask(owner, "end\n", answers=False)
    finally:
        owner.stdin and owner.stdin.close()
        try:
            owner.wait(OWNER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            owner.kill()
    told = STORY + (ASLEEP if figures else ASKED)
    print(told.format(
        shape=" x ".join(map(str, FRAMES)), counts=COUNTS, owner=owner.pid, reader=os.getpid(), before=int(before),
        engine=done.engine, used=format_time(used), **found,
    ))  # fmt: skip
    if figures:
        print(figures_say(figures) + "\n")
    print(NEXT)
    return 0


STORY = """\
Two processes, one array: {shape} bytes, and a table of {counts} counters.

  owner   process {owner} made both, shared them by name, and sleeps.
  reader  process {reader} attached them by name, and ran
              frames[17] = 200
              frames[18, :100] = frames[17, :100]
              counts.fetch_add(17, 5)            # atomic; it was {before}
  owner   woke up, and found frames[17].mean() == {mean}, frames[18, 99, 0] == {pixel}, counts[17] == {count}.
"""
ASLEEP = """
The owner ran no code for it: it used {used} of processor time while the reader loaded and stored in its memory.
"""
ASKED = """
The reader does not map the owner's memory here: the owner's engine answered {engine} requests, and used {used}
of processor time. So there are no figures. `weft doctor` says why, and what to do.
"""
NEXT = """\
Next:   README.md              the same in your program; then arrays, locks, queues; Slingshot, libfabric, UCX, MPI
        weft perf --quick      every operation on every path beside its limit (make perf, in a checkout)
        weft doctor            what this machine allows, and how to allow more"""


def figures_say(figures: list[tuple[float, float]]) -> str:
    """The sentence of the four figures. figures: what it took and its limit, in ns."""
    (element, local), (add, atomic), (frame, memcpy), (mean, local_mean) = figures
    nbytes = FRAMES[1] * FRAMES[2]
    return (
        f"An element is read in {format_time(element)} (of a local NumPy array: {format_time(local)}), an atomic\n"
        f"fetch_add takes {format_time(add)} (the bare instruction: {format_time(atomic)}), a frame is copied at\n"
        f"{format_bandwidth(nbytes / frame)} (memcpy: {format_bandwidth(nbytes / memcpy)}), and the mean of all "
        f"frames, without a copy,\ntakes {format_time(mean)} (of a local array: {format_time(local_mean)})."
    )


def measure(frames: Any, counts: Any, np: Any) -> list[tuple[float, float]]:
    """(figure, limit) in ns: an element, a fetch_add, a frame, the mean through a view."""
    from .._nic import probe_fetch_add

    local = np.zeros(FRAMES, "uint8")
    local[:] = 1
    word = np.zeros(1, "int64")
    view = frames.view()
    return [
        beside(lambda n: repeat(lambda: frames[17, 5, 5], n), lambda n: repeat(lambda: local[17, 5, 5], n)),
        beside(lambda n: repeat(lambda: counts.fetch_add(17, 1), n), lambda n: probe_fetch_add(word, n) * n),
        beside(lambda n: repeat(lambda: frames[17], n), lambda n: repeat(view[17].copy, n)),
        beside(lambda n: repeat(view.mean, n), lambda n: repeat(local.mean, n)),
    ]


def repeat(call: Callable[[], Any], n: int) -> float:
    """Nanoseconds of n calls."""
    begin = time.perf_counter_ns()
    for _ in range(n):
        call()
    return time.perf_counter_ns() - begin


def beside(what: Callable[[int], float], limit: Callable[[int], float]) -> tuple[float, float]:
    """Nanoseconds of one call of each: medians over batches, measured by turns."""
    each: list[list[float]] = [[], []]
    counts = [max(1, int(BATCH_NS / max(run(3) / 3, 1))) for run in (what, limit)]
    for _ in range(BATCHES):
        for i, run in enumerate((what, limit)):
            each[i].append(run(counts[i]) / counts[i])
    return statistics.median(each[0]), statistics.median(each[1])


def processor_ns(pid: int) -> int:
    """Processor time of another process (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def ask(owner: subprocess.Popen[str], line: str, answers: bool = True) -> dict[str, Any]:
    """Send a line to the owner; its answer."""
    assert owner.stdin is not None
    assert owner.stdout is not None
    owner.stdin.write(line)
    owner.stdin.flush()
    if not answers:
        return {}
    answer = owner.stdout.readline()
    if not answer:
        raise SystemExit("weft demo: the second process has ended; its error is above")
    found: dict[str, Any] = json.loads(answer)
    return found


def own(name: str) -> None:
    """The owner: shares two arrays, and sleeps until it is asked what is in them."""
    from ..memory import zeros
    from ..share import open as open_node

    with open_node() as node:
        frames, counts = zeros(FRAMES, "uint8"), zeros(COUNTS, "int64")
        node.share(frames, name=f"{name}-frames")
        node.share(counts, name=f"{name}-counts")
        print("{}", flush=True)
        if sys.stdin.readline() == "look\n":
            found = {"mean": float(frames[17].mean()), "pixel": int(frames[18, 99, 0]), "count": int(counts[17])}
            print(json.dumps(found), flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    own(sys.argv[1])
