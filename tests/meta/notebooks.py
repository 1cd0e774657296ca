"""Runs a notebook of the documentation without Jupyter: its code cells, in order, in a process and folder of its own.

Of the magics only `%%writefile NAME` is known. The pages themselves are made by myst-nb, which runs the notebooks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import patience

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
_DRIVER = """\
import json, sys
sys.path.insert(0, "")
names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open("cells.json"))):
    exec(compile(cell, f"<cell {number}>", "exec"), names)
import matplotlib.pyplot as plt
figures = [plt.figure(number) for number in plt.get_fignums()]
kinds = lambda axis: (axis.lines, axis.images, axis.patches, axis.collections)
print(json.dumps([[sum(map(len, kinds(axis))) for axis in one.axes] for one in figures]))
"""


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


def run(notebook: Path) -> list[list[int]]:
    """For each figure, what each of its axes shows: the number of lines, images and bars."""
    with tempfile.TemporaryDirectory() as folder:
        code = []
        for cell in cells(notebook):
            text = "".join(cell["source"])
            first, _, rest = text.partition("\n")
            if first.startswith("%%writefile "):
                (Path(folder) / first.split()[1]).write_text(rest + "\n", encoding="utf-8")
            elif cell["cell_type"] == "code":
                code.append(text)
        (Path(folder) / "cells.json").write_text(json.dumps(code), encoding="utf-8")
        # The checkout's package is in the environment; `spawn` hands this process's path to the workers.
        done: subprocess.CompletedProcess[str] = patience.run(
            [sys.executable, "-c", _DRIVER],
            100,
            cwd=folder,
            env={**os.environ, "MPLBACKEND": "Agg"},
        )
    assert done.returncode == 0, f"{notebook.name}:\n{done.stderr}"
    figures: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return figures
