"""FI_LOG_LEVEL and FI_LOG_PROV for the logger "weft.cxi", as libfabric reads them.

FI_LOG_LEVEL is warn, trace, info or debug, in any case; another text counts as warn. Without the variable the logger
stays as Python's logging has it. FI_LOG_PROV has names of providers, joined by ','; with '^' in front it selects all
providers but these. Without the variable all are selected.

Source: fi_provider(3), fabric(7) "Logging interface"; fi_cxi(7) "Selecting Proper Receive Match Mode".
"""

from __future__ import annotations

import logging
import os
import sys

LOG = logging.getLogger("weft.cxi")
TRACE = 25
_LEVELS = {"warn": logging.WARNING, "trace": TRACE, "info": logging.INFO, "debug": logging.DEBUG}


class _Stderr(logging.Handler):
    """Lines as libfabric's, to the standard error of the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        level = next((word for word, number in _LEVELS.items() if record.levelno >= number), "debug")
        try:
            print(f"weft:{os.getpid()}:cxi<{level}> {record.getMessage()}", file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


_handler: logging.Handler | None = None
_followed: tuple[str | None, str | None] = (None, None)


def admits(providers: str | None, name: str = "cxi") -> bool:
    """True if FI_LOG_PROV admits the provider."""
    if not providers:
        return True
    negated = providers.startswith("^")
    names = [one.strip().lower() for one in providers.removeprefix("^").split(",")]
    return (name in names) != negated


def follow_environment() -> None:
    """Set the logger up for the variables' present texts."""
    global _handler, _followed
    level, providers = os.environ.get("FI_LOG_LEVEL"), os.environ.get("FI_LOG_PROV")
    if (level, providers) == _followed:
        return
    _followed = level, providers
    if _handler is not None:
        LOG.removeHandler(_handler)
        LOG.setLevel(logging.NOTSET)
        _handler = None
    if not level:
        return
    if admits(providers):
        _handler = _Stderr()
        LOG.setLevel(_LEVELS.get(level.lower(), logging.WARNING))
    else:
        _handler = logging.NullHandler()  # and not Python's handler of last resort
    LOG.addHandler(_handler)
