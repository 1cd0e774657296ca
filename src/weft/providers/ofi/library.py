"""The library: where a real libfabric is looked for, and what is said if there is none.

`WEFT_LIBFABRIC` names it: a path, a name that the loader knows, or `off`. Without the variable: the loader's
`libfabric.so.1`, then the one that an MPI or NIXL wheel brought into this environment. The library is opened once, by
the first call that needs it, and stays open.
"""

from __future__ import annotations

import importlib.metadata
import os
import threading
from collections.abc import Iterator

from ... import _nic, errors, settings

PREFIX = "ofi:"
SONAME = "libfabric.so.1"
_WHEELS = ("impi-rt", "nixl", "nixl-cu12", "nixl-cu13", "libfabric", "mpich")  # distributions that bring a libfabric

_lock = threading.Lock()
_failed: str | None = None  # why the last attempt failed, for the same value of the variable
_failed_for: str | None = None


def off() -> bool:
    """True if the environment says that no libfabric is to be used."""
    return settings.Settings.WEFT_LIBFABRIC.read(os.environ) == "off"


def known() -> tuple[str, int] | None:
    """(path, version) of the library, if it is loaded."""
    return _nic.ofi_library()


def load() -> None:
    """Load the library. Raises NoDevice, with what was tried and what to do."""
    global _failed, _failed_for
    if known() is not None:
        return
    asked = settings.Settings.WEFT_LIBFABRIC.read(os.environ)
    if asked == "off":
        raise errors.NoDevice("ofi: WEFT_LIBFABRIC=off: no libfabric is to be used\n  try: unset WEFT_LIBFABRIC")
    with _lock:
        if _failed is None or _failed_for != asked:
            tried = []
            for path in [asked] if asked else _candidates():
                _find_providers(path)
                why = _nic.ofi_load(path)
                if why is None:
                    _failed = None
                    return
                tried.append(f"  {path}: {why}")
            _failed, _failed_for = "\n".join(tried), asked
        raise errors.NoDevice(
            f"ofi: no libfabric can be used here\n{_failed}\n"
            "  try: install libfabric 1.14 or later (apt install libfabric1, or pip install mpich), or\n"
            "  WEFT_LIBFABRIC=/path/to/libfabric.so.1"
        )


def _candidates() -> Iterator[str]:
    yield SONAME
    for name in _WHEELS:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == SONAME:
                yield os.path.normpath(str(file.locate()))


def _find_providers(path: str) -> None:
    """Point a wheel's libfabric at its providers: files in a folder beside it, where it does not look by itself."""
    folder = os.path.join(os.path.dirname(path), "prov")
    if os.path.dirname(path) and os.path.isdir(folder):
        os.environ.setdefault("FI_PROVIDER_PATH", folder)


def version_text() -> str:
    """`libfabric 1.17 (libfabric.so.1)`, or "" while none is loaded."""
    found = known()
    return "" if found is None else f"libfabric {found[1] >> 16}.{found[1] & 0xFFFF} ({found[0]})"
