"""Time to `import weft` and `import weft.fi` in a fresh interpreter, beside the bare interpreter and `import numpy`.

Each statement is run 15 times in turn; the median is printed. One JSON object a line with --json.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

STATEMENTS = {"interpreter": "pass", "numpy": "import numpy", "weft": "import weft", "weft.fi": "import weft.fi"}
ROUNDS = 15


def start_ms(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    # In turn, so that a slow minute of the machine falls on all of them alike.
    samples: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(ROUNDS):
        for name, statement in STATEMENTS.items():
            samples[name].append(start_ms(statement))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    bare = medians["interpreter"]
    for name, median in medians.items():
        if "--json" in sys.argv:
            print(json.dumps({"op": "import", "path": name, "latency_ms_median": median, "interpreter_ms": bare}))
        else:
            print(f"{name:12} {median:8.1f} ms  (interpreter + {median - bare:.1f} ms)")


if __name__ == "__main__":
    main()
