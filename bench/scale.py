"""Cost against number: regions, posted receives, unexpected messages, and names of shared arrays.

    python bench/scale.py [--most N] [--output STEM]

Each cost is the least of several batches, at numbers that grow by ten. Prints a table; with --output writes STEM.json,
and STEM.svg where matplotlib is installed. A cost that does not depend on the number is a flat line.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import random
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, metavar="STEM")
    chosen = parser.parse_args()
    gc.disable()
    found = regions(chosen.most) | messages(chosen.most) | names(chosen.most)
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
