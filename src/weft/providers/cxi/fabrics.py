"""Numbers of fabrics: each registry of a user has its own, 1 to 1023, which is part of the engine's number of a NIC.

Each user has one list of assigned numbers, `fabrics.json`, in a folder that depends only on the user. A number is free
again when the registry's folder is gone. If the list cannot be written, the number is a hash of the path: two fabrics
then have the same number with a probability of 1 to 1023.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

from ... import errors, settings
from ..._files import locked, private_folder, read_regular, replace

MOST = 1023
NETWORK = MOST + 1  # the fabric that hosts share (hosts.py): no registry has its number


def in_force(registry: int) -> int:
    """The fabric of the devices: NETWORK if there is a list of hosts, otherwise the registry's own."""
    return NETWORK if settings.load().WEFT_CXI_HOSTS.strip() else registry


def _index_folder() -> Path:
    """The folder of the list: equal for all processes of a user, independent of the environment."""
    uid = os.geteuid()
    run = Path(f"/run/user/{uid}")
    with contextlib.suppress(OSError):
        if os.stat(run).st_uid == uid:
            return run / "weft"
    return Path(f"/tmp/weft-{uid}")


def _identity(path: Path) -> list[Any]:
    found = os.stat(path)
    return [str(path), found.st_dev, found.st_ino]


def _is_there(home: Any) -> bool:
    """True if the folder to which a number was assigned still exists at its place."""
    try:
        return bool(_identity(Path(home[0])) == home)
    except (OSError, LookupError, TypeError):
        return False


def at_home(home: list[Any], path: Path) -> bool:
    """True if a registry in `path` with this `home` has been neither copied nor moved.

    The same folder under another path, as in a container, counts as not moved while the first path leads to it.
    """
    mine = _identity(path)
    return home == mine or (home[1:] == mine[1:] and _is_there(home))


def settle(path: Path, wanted: int) -> tuple[int, list[Any]]:
    """A number for the registry in `path`, and its home: `wanted` if no other registry has it. Raises NoSpace."""
    mine = _identity(path)
    start = wanted or zlib.crc32(repr(mine).encode()) % MOST + 1
    try:
        index = _index_folder()
        private_folder(index)
    except OSError:
        return start, mine
    with locked(index / "fabrics.lock", "fabrics"):
        given = _read(index / "fabrics.json")
        for step in range(MOST):
            number = (start - 1 + step) % MOST + 1
            holder = given.get(str(number))
            if holder == mine or not _is_there(holder):
                gone = [key for key, home in given.items() if home == mine or not _is_there(home)]
                given = {key: home for key, home in given.items() if key not in gone} | {str(number): mine}
                replace(index / "fabrics.json", json.dumps(given, indent=1) + "\n")
                return number, mine
    raise errors.NoSpace(
        f"registry: {MOST} registries of user {os.geteuid()} have all the numbers of fabrics there are\n"
        f"  try: remove registries that nobody uses; {index / 'fabrics.json'} names them"
    )


def _read(file: Path) -> dict[str, Any]:
    """The list; empty if missing or invalid. Little is lost then, because every registry stores its own number."""
    try:
        found = json.loads(read_regular(file))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
