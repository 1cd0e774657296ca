"""Run ninja, and say how far it is: on a terminal in one line, elsewhere at each quarter. Warnings and errors pass.

    python cpp/compile.py "the NIC, once" NINJA -C build/release [TARGET ...]

Standard library only: it runs before anything is installed but ninja.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

STEP = re.compile(r"\[(\d+)/(\d+)\] ")
FEW = 20  # fewer steps are a change, not the first build


def main(what: str, command: list[str]) -> int:
    live = sys.stdout.isatty()
    began, told, drawn = time.monotonic(), 0, False
    ninja = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert ninja.stdout is not None
    for line in ninja.stdout:
        step = STEP.match(line)
        if step is None or "globbed directories" in line:
            if step is None and not line.startswith(("ninja: no work to do", "ninja: Entering directory")):
                print("\n" + line if drawn else line, end="", flush=True)
                drawn = False
            continue
        done, all_steps = int(step[1]), int(step[2])
        name = what if all_steps >= FEW else "what changed"
        text = f"weft: compiling {name}: [{done}/{all_steps}]"
        if live:
            print(f"\r{text}", end="", flush=True)
            drawn = True
        elif told == 0 or (all_steps >= FEW and done * 4 // all_steps > told - 1):
            print(text, flush=True)
            told = done * 4 // all_steps + 1
    status = ninja.wait()
    if drawn:
        print(f", {time.monotonic() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
