"""Time to `import weft` and `import weft.fi` in a fresh interpreter, beside the bare interpreter and `import numpy`.

Each statement runs 10 times in turn; the figure is the median.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from common import Row, publish

STATEMENTS = {"interpreter": "pass", "numpy": "import numpy", "weft": "import weft", "weft.fi": "import weft.fi"}
ROUNDS = 10


def start_ms(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    # In turn, so that a slow minute of the machine affects all statements alike.
    samples: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(ROUNDS):
        for name, statement in STATEMENTS.items():
            samples[name].append(start_ms(statement))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    bare = medians["interpreter"]
    publish(
        "import",
        [
            Row(f"import {name}", "", median, "ms", None, bare, "a bare interpreter")
            for name, median in medians.items()
            if name != "interpreter"
        ],
    )


if __name__ == "__main__":
    main()
