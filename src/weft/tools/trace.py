"""`weft trace`: runs a program, records what the NICs of its processes do, and writes a timeline.

Each process records into a file of a private folder (WEFT_TRACE), which stays when the process is killed. Afterwards
the files are read and deleted (weft.observe).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..observe import records, timeline
from ._program import run_to_end
from ._text import UsageError

RECORDS_MIN, RECORDS_MAX = 64, 1 << 26
FREE_SHARE = 4  # a folder in memory is used if the trace of one process takes at most a fourth of it


def trace(out: Path, command: Sequence[str], record_count: int) -> int:
    """The command; its exit status: that of the program. Raises UsageError."""
    if not RECORDS_MIN <= record_count <= RECORDS_MAX:
        raise UsageError(f"--records: {record_count} is not from {RECORDS_MIN} to {RECORDS_MAX}")
    try:
        out.open("a").close()
    except OSError as reason:
        raise UsageError(f"{out}: {reason.strerror}") from None
    folder = Path(tempfile.mkdtemp(prefix="weft-trace-", dir=_place(record_count)))
    try:
        more = {"WEFT_TRACE": str(folder), "WEFT_TRACE_RECORDS": str(record_count)}
        status = run_to_end(command, {**os.environ, **more})
        _write(out, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _place(record_count: int) -> str | None:
    """A folder in memory, if the trace fits there; None: the folder of temporary files."""
    bytes_needed = record_count * 64 + records.HEAD_BYTES
    for folder in (os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"):
        with contextlib.suppress(OSError):
            if folder and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= FREE_SHARE * bytes_needed:
                return folder
    return None


def _write(out: Path, folder: Path) -> None:
    found, faults = [], []
    for path in sorted(folder.glob("*.weft-trace")):
        try:
            found.append(records.read(path))
        except (OSError, ValueError) as reason:  # of a process that was killed while it made the file
            faults.append(f"{path.name}: {reason}")
    new = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with open(new, "w", encoding="utf-8") as file:
            timeline.write(file, found)
        os.replace(new, out)
    finally:
        new.unlink(missing_ok=True)
    lost = sum(one.lost for one in found)
    print(
        f"weft: {out}: {sum(len(one.records) for one in found)} records of {len(found)} processes"
        + (f"; {lost} older ones were replaced: try a larger --records" if lost else "")
        + ("; no process used Weft" if not found else "")
        + "".join(f"\n  left out: {fault}" for fault in faults),
        file=sys.stderr,
    )
