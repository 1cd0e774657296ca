"""Time of a fresh interpreter that imports weft or weft.fi, or opens a node, beside a bare one and `import numpy`.

Each statement runs 10 times in turn; the figures are medians of wall time and of processor time (user and system), from
the start of the process to its end. Compiled bytecode is there, as pip leaves it: a first round that does not count
writes it, into a folder of its own where the environment forbids bytecode beside the sources.

The budget: a program that opens a node, shares an array, attaches it and reads an element ends at most 150 ms later
than one that imports NumPy. That row is the least of the rounds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from common import Row, publish

STATEMENTS = {
    "interpreter": "pass",
    "import numpy": "import numpy",
    "import weft": "import weft",
    "import weft.fi": "import weft.fi",
    "weft.open()": "import weft; weft.open()",
    "the first t[i]": (
        "import numpy, weft; node = weft.open(); node.share(numpy.arange(8), 'bench_import'); "
        "assert node.attach('bench_import')[5] == 5"
    ),
}
ROUNDS = 10
BEYOND_NUMPY_MS = 150


def start_ms(statement: str, environment: dict[str, str]) -> tuple[float, float]:
    """(wall time, processor time) of an interpreter that runs a statement."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    wall, after = time.perf_counter() - start, os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return wall * 1e3, used * 1e3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in STATEMENTS}
        # In turn, so that a slow minute of the machine affects all statements alike.
        for turn in range(1 + ROUNDS):
            for name, statement in STATEMENTS.items():
                found = start_ms(statement, environment)
                if turn:
                    samples[name].append(found)
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in samples.items()
    }
    bare = medians.pop("interpreter")
    rows = [
        Row(f"{name}{what}", "", figures[kind], "ms", None, bare[kind], "a bare interpreter")
        for kind, what in enumerate(("", ", processor time"))
        for name, figures in medians.items()
    ]
    first, numpy = (min(wall for wall, _ in samples[name]) for name in ("the first t[i]", "import numpy"))
    met = first <= numpy + BEYOND_NUMPY_MS
    rows.append(
        Row("open, share, attach and the first t[i]: a program", f"<= import numpy + {BEYOND_NUMPY_MS} ms", first, "ms",
            met, numpy, "import numpy", "" if met else "105 modules of Python, and the node's sockets and memory",
            median=medians["the first t[i]"][0])
    )  # fmt: skip
    publish("import", rows)


if __name__ == "__main__":
    main()
