"""The packages of the extras, and the error that names the extra where one of its packages is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

# Package -> the extra that brings it (pyproject.toml).
EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "dask": "dask",
    "distributed": "dask",
    "fastapi": "fm",
    "pydantic": "fm",
    "starlette": "fm",
    "uvicorn": "fm",
    "mpi4py": "mpi",
    "matplotlib": "plot",
    "nacl": "tcp",
    "pytest": "testing",
}


def missing(error: ImportError, user: str) -> str | None:
    """What to install for `user`, whose import raised `error`; None if no package of an extra is missing."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS or not isinstance(error, ModuleNotFoundError):
        return None
    return f"{user} needs {package}, which is not installed\n  try: pip install 'weft-fabric[{EXTRAS[package]}]'"


@contextlib.contextmanager
def needed(user: str) -> Iterator[None]:
    """Context manager around the imports of an extra's packages: a missing package is a ModuleNotFoundError that names
    the extra.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        text = missing(e, user)
        if text is None:
            raise
        raise ModuleNotFoundError(text, name=e.name, path=e.path) from None
