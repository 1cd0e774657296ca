"""A part of a remote array as a RemoteArray, and its elements as an array of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .attached import Attached
from .checks import Array

if TYPE_CHECKING:
    from .remote import RemoteArray


class Parts(Attached):
    """The attributes of RemoteArray that its mix-ins use: shapes.py, totals.py, fields.py."""

    __slots__ = ()

    @property
    def _whole(self) -> RemoteArray:
        """The array itself, with the type that it has."""
        return cast("RemoteArray", self)

    def _part(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any] | None = None
    ) -> RemoteArray:
        """Elements of this array as a RemoteArray. `offset` is in bytes from this array's first element."""
        found = self._whole._view(
            self.ticket, dtype or self._dtype, self._node, self._base - self.ticket.base + offset, shape, strides
        )
        found._peer, found._pop, found._push = self._peer, self._pop, self._push
        found._join(self)
        return found

    def _copy(self) -> Array:
        """All elements, read now. Not read(), which returns a scalar for one element."""
        return self._whole.__array__()

    def _tile(self, key: tuple[slice, ...]) -> Array:
        """The elements of a basic index of slices, read now."""
        return self._whole.at[key]._copy()
