"""Arrays larger than memory should hold twice: cut into tiles, which are read one after another.

While a caller works on one tile, a second thread reads the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .checks import Array
from .ordering import memory_order

if TYPE_CHECKING:
    from .remote import RemoteArray

# Bytes of one tile; two exist at a time. Large enough that a read's cost is its copy, small enough for a core's cache.
TILE_BYTES = 1 << 21

Key = tuple[slice, ...]


def tile_keys(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, limit: int = TILE_BYTES
) -> Iterator[Key]:
    """Basic indices that cut an array into tiles of at most `limit` bytes (or one element), in the order of memory."""
    steps = list(shape)
    nbytes = math.prod(shape) * itemsize
    for axis in memory_order(shape, strides):
        if nbytes <= limit or not shape[axis]:
            break
        one = nbytes // shape[axis]
        steps[axis] = max(limit // one, 1) if one else shape[axis]
        nbytes = one * steps[axis]
    cuts = [
        [slice(start, min(start + step, n)) for start in range(0, n, step)] if n else [slice(0, 0)]
        for n, step in zip(shape, steps, strict=True)
    ]
    return itertools.product(*cuts)


def read_tiles(array: RemoteArray) -> Iterator[tuple[Key, Array]]:
    """Each tile's index and its elements, as an array that belongs to the caller."""
    keys = tile_keys(array._shape, array._strides, array._itemsize)
    first = next(keys)
    second = next(keys, None)
    if second is None:
        yield first, array._tile(first)
        return
    from concurrent.futures import ThreadPoolExecutor  # costs a first use of weft.open() milliseconds

    with ThreadPoolExecutor(1, "weft-tiles") as pool:
        ahead = pool.submit(array._tile, first)
        before = first
        for key in itertools.chain([second], keys):
            tile = ahead.result()
            ahead = pool.submit(array._tile, key)
            yield before, tile
            before = key
        yield before, ahead.result()
