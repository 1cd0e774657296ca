"""A thread that reads a completion queue, for providers that answer peers only in calls of the program
(`fi.PROGRESS_MANUAL`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .. import errors

_SLICE_S = 0.1
_ENTRIES = 16


class ProgressThread:
    """Reads `cq`, whose completions nobody needs, until `close` or until the queue is closed. Starts at once.

    Args:
        between: Called between two waits, ten times a second or more often; must not raise.
    """

    def __init__(self, cq: Any, name: str, between: Callable[[], None] | None = None) -> None:
        self._cq = cq
        self._between = between
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._between is not None:
                self._between()
            try:
                self._cq.sread(_ENTRIES, None, _SLICE_S)
            except errors.Again:
                pass
            except errors.Available:  # an operation of a peer has failed: the peer reports the error
                try:
                    self._cq.readerr()
                except errors.FabricError:
                    pass
            except errors.FabricError:  # closed
                return

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread, before its queue is closed. Also called by the thread itself, which then does not wait."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
