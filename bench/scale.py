"""Cost against number: regions, posted receives, unexpected messages, names, kept arrays, attachers and processes.

    python bench/scale.py [--most N] [--only COST ...] [--output STEM]

Each cost is the least of several batches, at numbers that grow by ten. Prints a table; with --output writes STEM.json,
and STEM.svg where matplotlib is installed. A cost that does not depend on the number is a flat line.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import weft
from common import clock, loop_ns, two_processes
from weft import fi
from weft.tools._messages import Matching

Points = dict[int, float]
BATCH, ROUNDS = 500, 12
FIRST = 10


def numbers(most: int) -> Iterator[int]:
    n = FIRST
    while n <= most:
        yield n
        n *= 10


def least(run: Callable[[], float]) -> float:
    return min(run() for _ in range(ROUNDS))


def regions(most: int) -> dict[str, Points]:
    """Registering one more of n regions, closing it, and a put of 8 B to one of n at random."""
    access = fi.REMOTE_READ | fi.REMOTE_WRITE
    register_ns: Points = {}
    close_ns: Points = {}
    put_ns: Points = {}
    with two_processes(1 << 16) as (side, _target, _peer):
        me = side.av.insert(side.ep.getname())
        words = side.domain.alloc(most + BATCH, "u8")
        words.fill(0)
        local, reg, write, read = side.mr["direct"][:8], side.domain.mr_reg, side.ep.write, side.cq.read
        held = []
        rng = random.Random(1)
        loop = loop_ns()
        for n in numbers(most):
            for i in range(len(held), n):
                held.append(reg(words[i : i + 1], access, requested_key=1000 + i))

            closing: list[float] = []

            def one_more(n: int = n, closing: list[float] = closing) -> float:
                more = []
                start = clock()
                for i in range(n, n + BATCH):
                    more.append(reg(words[i : i + 1], access, requested_key=1000 + i))
                spent = (clock() - start) / BATCH
                start = clock()
                for mr in more:
                    mr.close()
                closing.append((clock() - start) / BATCH - loop)
                return spent - loop

            def put(n: int = n) -> float:
                keys = [1000 + rng.randrange(n) for _ in range(BATCH)]
                start = clock()
                for key in keys:
                    write(local, None, me, 0, key)
                spent = (clock() - start) / BATCH - loop
                while read(1024):
                    pass
                return spent

            register_ns[n] = least(one_more)
            close_ns[n] = min(closing)
            put_ns[n] = least(put)
        for mr in held:
            mr.close()
    return {"mr_reg, with n regions": register_ns, "mr.close()": close_ns, "8 B put to one of n regions": put_ns}


def messages(most: int) -> dict[str, Points]:
    """A message that matches one of n receives; a receive that matches one of n messages. Tags in random order."""
    found: dict[str, Points] = {}
    for name, unexpected in (("match of one of n receives", False), ("match of one of n messages", True)):
        points = found[name] = {}
        for n in numbers(min(most, 100_000)):
            if n < 100:
                continue
            with Matching(n, unexpected) as matching:
                points[n] = least(matching.burst_ns)
    return found


def names(most: int) -> dict[str, Points]:
    """Sharing one more array, and attaching one of n names, in one process."""
    share_us: Points = {}
    attach_us: Points = {}
    each = 50
    with weft.open() as node, contextlib.ExitStack() as kept:
        array = np.zeros(16)
        rng = random.Random(2)
        count = 0
        for n in numbers(min(most, 1_000)):
            for i in range(count, n):
                kept.enter_context(node.share(array, f"scale-{i}"))
            count = n

            def share(n: int = n) -> float:
                start = clock()
                more = [node.share(array, f"more-{n}-{i}") for i in range(each)]
                spent = (clock() - start) / each
                for one in more:
                    one.close()
                return spent

            def attach(n: int = n) -> float:
                chosen = [f"scale-{rng.randrange(n)}" for _ in range(each)]
                start = clock()
                for name in chosen:
                    node.attach(name)
                return (clock() - start) / each

            share_us[n], attach_us[n] = least(share), least(attach)
    return {"node.share, with n names": share_us, "node.attach of one of n names": attach_us}


def kept(most: int) -> dict[str, Points]:
    """Keeping one more array, attaching one of n kept arrays, and forgetting one. Each has 128 bytes."""
    keep_ns: Points = {}
    attach_ns: Points = {}
    forget_ns: Points = {}
    each, name = 20, f"scale-kept-{os.getpid()}"
    array, rng, count = np.zeros(16), random.Random(3), 0
    with weft.open() as node:
        try:
            for n in numbers(min(most, 1_000)):
                for i in range(count, n):
                    node.share(array, f"{name}-{i}", keep=True).close()
                count = n

                forgetting: list[float] = []

                def keep(n: int = n, forgetting: list[float] = forgetting) -> float:
                    start = clock()
                    for i in range(each):
                        node.share(array, f"{name}-more-{i}", keep=True).close()
                    spent = (clock() - start) / each
                    start = clock()
                    for i in range(each):
                        weft.forget(f"{name}-more-{i}")
                    forgetting.append((clock() - start) / each)
                    return spent

                def attach(n: int = n) -> float:
                    chosen = [f"{name}-{rng.randrange(n)}" for _ in range(each)]
                    start = clock()
                    for one in chosen:
                        node.attach(one)
                    return (clock() - start) / each

                keep_ns[n], attach_ns[n] = least(keep), least(attach)
                forget_ns[n] = min(forgetting)
        finally:
            for i in range(count):
                weft.forget(f"{name}-{i}")
    return {"share(keep=True), with n kept": keep_ns, "attach of one of n kept": attach_ns, "forget": forget_ns}


def attacher(ticket: str, hold: int) -> int:
    """A child process that attaches an array, reads an element, and stays until the pipe `hold` ends."""
    ready, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        with weft.open() as node:
            t = node.attach(ticket)
            os.write(said, bytes(f"{t[0]}", "ascii"))
            os.close(said)
            os.read(hold, 1)
        os._exit(0)
    os.close(said)
    if not os.read(ready, 64):
        raise RuntimeError(f"attacher {child} did not attach")
    os.close(ready)
    return child


def attachers(most: int) -> dict[str, Points]:
    """One array, attached by n processes: one more process's NIC attaches, and reads an element."""
    attach_ns: Points = {}
    read_ns: Points = {}
    name = f"scale-attached-{os.getpid()}"
    code = f"import time, numpy, weft; s = weft.share(weft.zeros(16), {name!r}); print(s.ticket, flush=True); input()"
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    hold, released = os.pipe()
    children: list[int] = []
    try:
        ticket = owner.stdout.readline().strip()  # type: ignore[union-attr]
        for n in numbers(min(most, 1_000)):
            while len(children) < n:
                children.append(attacher(ticket, hold))
            reading: list[float] = []

            def attach(reading: list[float] = reading) -> float:
                with weft.open() as node:
                    start = clock()
                    t = node.attach(ticket)
                    spent = clock() - start
                    start = clock()
                    for _ in range(BATCH):
                        t[1]
                    reading.append((clock() - start) / BATCH)
                return spent

            attach_ns[n] = least(attach)
            read_ns[n] = min(reading)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(hold)
        os.close(released)
        owner.communicate("\n")
    return {"attach, with n attachers": attach_ns, "t[i], with n attachers": read_ns}


def member(name: str, count: int, meetings: int) -> None:
    """A process of a group: meets the others `meetings` times, and then prints the time of one meeting."""
    with weft.Group(name, count, wait=300.0) as group:
        group.barrier()
        batches = []
        for _ in range(ROUNDS):
            start = clock()
            for _ in range(meetings):
                group.barrier()
            batches.append((clock() - start) / meetings)
        if group.rank == 0:
            print(min(batches), flush=True)


def processes(most: int) -> dict[str, Points]:
    """A meeting of n processes on the processors of this machine, for each process."""
    found: Points = {}
    for n in (2, 4, 8, 16, 32, 64):
        if n > most:
            break
        command = [sys.executable, __file__, "--member", f"scale-{os.getpid()}-{n}", str(n), str(max(400 // n, 5))]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(n)]
        said = [one.communicate(timeout=600)[0] for one in running]
        found[n] = float("".join(said)) / n
    return {"Group.barrier of n processes, a process": found}


def draw(found: dict[str, Points], file: Path) -> None:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for name, points in found.items():
        axes.loglog(list(points), list(points.values()), marker="o", markersize=3, label=name)
    axes.set_xlabel("n")
    axes.set_ylabel("ns, least of batches")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "weft"}):
        figure.savefig(file, metadata={"Date": None})


COSTS = {one.__name__: one for one in (regions, messages, names, kept, attachers, processes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, metavar="STEM")
    parser.add_argument("--only", nargs="*", choices=sorted(COSTS), default=list(COSTS), help="costs to measure")
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    gc.disable()
    if chosen.member is not None:
        member(chosen.member[0], int(chosen.member[1]), int(chosen.member[2]))
        return
    found: dict[str, Points] = {}
    for name in chosen.only:
        found |= COSTS[name](chosen.most)
    columns = sorted({n for points in found.values() for n in points})
    print(" " * 34 + "".join(f"{n:>11,}" for n in columns) + "  ns")
    for name, points in found.items():
        print(f"{name:<34}" + "".join(f"{points[n]:>11,.0f}" if n in points else " " * 11 for n in columns))
    if chosen.output is not None:
        chosen.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        if importlib.util.find_spec("matplotlib") is not None:
            draw(found, chosen.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
