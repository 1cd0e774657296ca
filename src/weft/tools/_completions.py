"""Completions of messages, waited for by their contexts: shared by `weft pingpong` and `weft fabtest`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from .. import fi

RECEIVED, SENT = "received", "sent"
"""Contexts of receives and sends."""

_POLLS = 2000  # of an empty queue, before the process sleeps: about 0.1 ms
_SLICE_S = 0.2  # of sleep, before the peer is looked at
_NAP_S = 0.00005  # of sleep between polls of a queue without a wait object
_READ_MAX = 64


class Completions:
    """The completions of a queue. A completion that arrives while another is waited for is kept.

    Args:
        alive: Called from time to time with the seconds of a wait so far; raises if no completion can come any more.

    A queue without a wait object is polled, with short sleeps once nothing has come for a while.
    """

    def __init__(self, cq: fi.CompletionQueue, alive: Callable[[float], None]) -> None:
        self._cq, self._alive = cq, alive
        self._sread = self._poll if cq.wait_obj == fi.WAIT_NONE else cq.sread
        self._kept = {RECEIVED: 0, SENT: 0}
        # With one core for both sides every poll delays the other side.
        self._polls = range(_POLLS if len(os.sched_getaffinity(0)) > 1 else 1)

    def wait(self, context: str, count: int = 1) -> None:
        """Take completions with this context: poll for a while, then sleep. Raises the error of a failed operation."""
        read, kept, polls = self._cq.read, self._kept, self._polls
        idle_s = 0.0
        while kept[context] < count:
            found: list[Any] = []
            try:
                for _ in polls:
                    found = read(_READ_MAX)
                    if found:
                        break
                else:
                    found = self._sread(_READ_MAX, timeout=_SLICE_S)
            except fi.Again:
                idle_s += _SLICE_S
                self._alive(idle_s)
                continue
            except fi.Available:
                raise self._cq.readerr().exception() from None
            if not found:  # a real provider woke for something else
                self._alive(idle_s)
            for entry in found:
                kept[entry.op_context] += 1
        kept[context] -= count

    def _poll(self, count: int, timeout: float) -> list[Any]:
        """As sread, by read."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self._cq.read(count)
            if found:
                return found
            time.sleep(_NAP_S)
        raise fi.Again("nothing has come")

    def progress(self) -> None:
        """Read the queue once, and keep what came. Raises the error of a failed operation."""
        try:
            for entry in self._cq.read(_READ_MAX):
                self._kept[entry.op_context] += 1
        except fi.Available:
            raise self._cq.readerr().exception() from None

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call; poll while the endpoint has no room."""
        begun = looked = 0.0
        while True:
            try:
                call(*arguments)
                return
            except fi.Again:
                self.progress()
                now = time.monotonic()
                begun = begun or now
                if now - max(begun, looked) > _SLICE_S:  # a connection to a dead peer never completes
                    looked = now
                    self._alive(now - begun)
