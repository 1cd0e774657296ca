"""The data of a remote array: an owner's ticket, a dtype, and the offset, shape and strides of a selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..._nic import Elements
from ..names.ticket import USER_DEFINED, Ticket
from .lane import CELL_BYTES_MAX

if TYPE_CHECKING:
    from ..node import Node


class View(Elements):
    """The selection: the attributes that all other modules of remote arrays use. `Elements` has a copy of them (_lay).

    These attributes are for the fast paths (element_fallback.py).

    Attributes:
        _code: The name of the dtype in a lane's cells; "" if the elements are not scalars that fit a cell.
        _vector: The view has one dimension.
        _n: Elements along the first dimension.
        _row: Bytes of a row, if rows are contiguous and adjoin each other; otherwise 0.
        _step: Bytes between rows, if a row is contiguous or one element; 0: take the slow path.
        _peer: fi_addr of the owner in every lane; -1 before the first use.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_code",
        "_dtype",
        "_itemsize",
        "_key",
        "_n",
        "_peer",
        "_row",
        "_shape",
        "_step",
        "_strides",
        "_vector",
        "ticket",
    )

    ticket: Ticket
    _base: int
    _code: str
    _dtype: np.dtype[Any]
    _itemsize: int
    _key: int
    _n: int
    _peer: int
    _row: int
    _shape: tuple[int, ...]
    _step: int
    _strides: tuple[int, ...]
    _vector: bool

    def _select(
        self, ticket: Ticket, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.ticket = ticket
        self._dtype = dtype
        self._itemsize = dtype.itemsize
        self._base = ticket.base + offset
        self._key = -1 if ticket.key is None else ticket.key
        self._shape = shape
        self._strides = strides
        scalar = 0 < dtype.itemsize <= CELL_BYTES_MAX and (dtype.kind != "V" or dtype.num >= USER_DEFINED)
        self._code = dtype.str + dtype.name if scalar else ""
        self._vector = len(shape) == 1
        self._n = shape[0] if shape else 0
        stride = strides[0] if strides else 0
        row = dtype.itemsize
        for n, inner in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
            row = row * n if inner == row or n == 1 else 0
        self._row = row if stride == row else 0
        self._step = stride if row and dtype.itemsize else 0
        self._peer = -1
        self._lay(self._base, ticket.key, dtype, shape, strides)

    if TYPE_CHECKING:  # of Attached

        def _real_node(self) -> Node: ...

    # ---- as in NumPy ------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements in each dimension."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' dtype."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Elements."""
        n = 1
        for k in self._shape:
            n *= k
        return n

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self._itemsize

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a remote array without dimensions")
        return self._shape[0]
