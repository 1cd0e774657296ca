"""Memory for frames that arrive: buffers that are used again, because the first touch of fresh pages costs as much as
the copy into them.

A buffer comes back when the last array, or other object, over it is collected. `BufferPool` keeps the newest free
buffers up to a limit, and gives buffers back to the system that nobody took for a while.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import Any

import numpy as np

POOLED_BYTES_MIN = 1 << 20  # smaller buffers come from the allocator, which keeps their pages
IDLE_S_MAX = 5.0
_STEP_BITS = 4  # eight sizes between two powers of two: a buffer is at most an eighth longer than asked for


class _Whole(np.ndarray[Any, Any]):
    """A buffer of the pool, which owns its memory. It has a class of its own because NumPy lets an array over an array
    over a buffer refer to the buffer directly, except if the buffer is of another class. The array in the middle, whose
    end returns the buffer to the pool, would end too early.
    """


class BufferPool:
    """Buffers of this process. keep: most bytes of free buffers. Thread safety: any thread, finalizers included."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._lock = threading.Lock()
        # Finalizers run anywhere, also in a thread that holds the lock: they only append here, which needs no lock.
        self._returned: deque[Any] = deque()
        self._free: deque[tuple[float, Any]] = deque()  # the oldest first; at most as many as MiB are kept
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
            for at in range(len(self._free) - 1, -1, -1):
                if len(self._free[at][1]) == size:
                    whole = self._free[at][1]
                    del self._free[at]
                    self._kept -= size
                    break
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
            while self._free and now - self._free[0][0] > IDLE_S_MAX:
                self._drop_oldest()

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
        """Enter the returned buffers, the lock held; the oldest ones make room for them."""
        while self._returned:
            whole = self._returned.popleft()
            if len(whole) > self.keep:
                continue
            self._free.append((time.monotonic(), whole))
            self._kept += len(whole)
            while self._kept > self.keep:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._kept -= len(self._free.popleft()[1])
