"""Memory for frames that arrive: buffers that are used again, because the first touch of fresh pages costs as much as
the copy into them.

A buffer comes back when the last array, or other object, over it is collected. `BufferPool` keeps free buffers up to a
limit, and gives those back to the system that nobody took for a while.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import Any

import numpy as np

__all__ = ["BufferPool"]

POOLED_BYTES_MIN = 1 << 20  # smaller buffers come from the allocator, which keeps their pages
IDLE_S_MAX = 5.0
_STEP_BITS = 4  # eight sizes between two powers of two: a buffer is at most an eighth longer than asked for


class _Whole(np.ndarray[Any, Any]):
    """A buffer of the pool, which owns its memory. A class of its own: NumPy lets an array over an array over a buffer
    refer to the buffer at once, except where the buffer is of another class. The array in the middle, whose end returns
    the buffer to the pool, would end too early.
    """


class BufferPool:
    """Buffers of this process. keep: most bytes of free buffers. Thread safety: any thread, finalizers included."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._lock = threading.Lock()
        # Finalizers run anywhere, also in a thread that holds the lock: they only append here, which needs no lock.
        self._returned: deque[Any] = deque()
        self._free: dict[int, list[tuple[float, Any]]] = {}
        self._kept = 0
        self._trimmed = 0.0

    def take(self, nbytes: int) -> memoryview:
        """Writable memory of nbytes, uninitialised. Raises MemoryError."""
        if nbytes < POOLED_BYTES_MIN or not self.keep:
            fresh: Any = np.empty(nbytes, np.uint8)
            return memoryview(fresh)
        step = 1 << max(nbytes.bit_length() - _STEP_BITS, 0)
        size = -(-nbytes // step) * step
        whole = None
        with self._lock:
            self._sort_in()
            free = self._free.get(size)
            if free:
                whole = free.pop()[1]
                self._kept -= size
        if whole is None:
            whole = _Whole(size, np.uint8)
        part: Any = np.ndarray(nbytes, np.uint8, whole)
        weakref.finalize(part, self._give, whole).atexit = False
        return memoryview(part)

    def trim(self) -> None:
        """Free the buffers that were not used for IDLE_S_MAX. Cheap: looks at most once a second."""
        now = time.monotonic()
        if now - self._trimmed < 1.0:
            return
        self._trimmed = now
        with self._lock:
            self._sort_in()
            for size, free in list(self._free.items()):
                young = [entry for entry in free if now - entry[0] < IDLE_S_MAX]
                self._kept -= size * (len(free) - len(young))
                if young:
                    self._free[size] = young
                else:
                    del self._free[size]

    @property
    def kept(self) -> int:
        """Bytes of free buffers."""
        with self._lock:
            self._sort_in()
            return self._kept

    def _give(self, whole: Any) -> None:
        self._returned.append(whole)
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def _sort_in(self) -> None:
        """Enter the returned buffers, the lock held; those above the limit go back to the system."""
        while self._returned:
            whole = self._returned.popleft()
            size = len(whole)
            if self._kept + size <= self.keep:
                self._kept += size
                self._free.setdefault(size, []).append((time.monotonic(), whole))
