"""Parts and other shapes of a remote array: fields, `.T`, `reshape`, which move nothing; and copies, `astype`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .checks import Array
from .indexing import no_index
from .ordering import empty_like_view, stand_in
from .parts import Parts
from .show import no_attribute
from .tiles import read_tiles

if TYPE_CHECKING:
    from .remote import RemoteArray

_HAS_COPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # of reshape()


class Shapes(Parts):
    """`.T`, `.reshape`, fields: RemoteArrays of the same elements. `.astype`, `.copy`, `.tolist`: copies."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers would then accept every attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(no_attribute(type(self).__name__, name), name=name, obj=self)

    # ---- the same elements ------------------------------------------------------------------------------------------

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours in the owner's memory, along each dimension."""
        return self._strides

    @property
    def T(self) -> RemoteArray:
        """The array with its axes reversed, as a RemoteArray. Nothing is moved."""
        return self.transpose()

    def transpose(self, *axes: Any) -> RemoteArray:
        """The array with its axes in another order, as a RemoteArray. Nothing is moved. Arguments as NumPy's."""
        return self._like(stand_in(self._shape, self._strides, self._dtype).transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> RemoteArray:
        """The array with two axes exchanged, as a RemoteArray. Nothing is moved."""
        return self._like(stand_in(self._shape, self._strides, self._dtype).swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> RemoteArray:
        """The array without axes of length one, as a RemoteArray. Nothing is moved. Arguments as NumPy's."""
        return self._like(stand_in(self._shape, self._strides, self._dtype).squeeze(axis))

    def reshape(self, *shape: Any, order: str = "C") -> RemoteArray:
        """The elements in another shape, as a RemoteArray. Nothing is moved.

        Args:
            *shape: Integers, or one tuple; -1 for the length that is left over.
            order: "C" or "F", the order in which elements are counted.

        Raises:
            ValueError: The number of elements differs, or no strides reach the part's elements in that shape. NumPy
                would copy there, as `t.read().reshape(...)` does.
        """
        wanted = shape[0] if len(shape) == 1 else shape
        fake = stand_in(self._shape, self._strides, self._dtype)
        return self._like(_reshaped(fake, wanted, order))

    def ravel(self, order: str = "C") -> RemoteArray:
        """The elements in one dimension, as a RemoteArray: `reshape(-1)`. Raises ValueError where NumPy would copy."""
        return self.reshape(-1, order=order)

    def field(self, name: str) -> RemoteArray:
        """A field of a structured array, as a RemoteArray: also `t[name]`. Nothing is moved.

        Raises ValueError (no such field), IndexError (the array has no fields).
        """
        fields = self._dtype.fields
        if fields is None:
            raise IndexError(f"the array has no fields, its dtype is {self._dtype}: {no_index(name)}")
        if name not in fields:
            raise ValueError(f"no field of name {name!r}; there are {', '.join(map(repr, fields))}")
        dtype, offset = fields[name][:2]
        shape, strides = self._shape, self._strides
        if dtype.subdtype is not None:
            dtype, inner = dtype.subdtype
            sample = np.empty(inner, dtype)
            shape, strides = shape + sample.shape, strides + sample.strides
        return self._part(offset, shape, strides, dtype)

    def _like(self, fake: Array) -> RemoteArray:
        return self._part(0, fake.shape, fake.strides)

    # ---- copies -----------------------------------------------------------------------------------------------------

    def copy(self, order: Any = "C") -> Array:
        """All elements as a NumPy array: `read()`, in C order."""
        return np.asarray(self._copy(), order=order)

    def flatten(self, order: Any = "C") -> Array:
        """All elements as a NumPy array of one dimension."""
        return self._copy().reshape(-1, order=order)

    def astype(
        self, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
    ) -> Array:
        """All elements, converted, as a NumPy array. Read in tiles: no second array of the old dtype is made.

        Arguments as NumPy's; it is always a copy.
        """
        wanted = np.dtype(dtype)
        if not wanted.itemsize or wanted.subdtype is not None:  # "U": as long as the longest element
            return np.asarray(self._copy().astype(dtype, order, casting))
        if order == "K":
            out = empty_like_view(self._shape, self._strides, wanted)
        else:
            out = np.empty(self._shape, wanted, "C" if order == "A" else order)
        np.empty(0, self._dtype).astype(wanted, casting=casting)  # NumPy's error, before anything is read
        for key, tile in read_tiles(self._whole):
            out[key] = tile.astype(wanted, casting=casting)
        return out

    def tolist(self) -> Any:
        """All elements as nested lists of Python's own types."""
        return self._copy().tolist()

    def item(self, *args: Any) -> Any:
        """One element as a value of Python's own type. Arguments as NumPy's: none, a flat index, or one a dimension."""
        index = args[0] if len(args) == 1 else args
        if not isinstance(index, tuple):
            if self.size and not -self.size <= index < self.size:
                raise IndexError(f"index {index} is out of bounds for size {self.size}")
            index = np.unravel_index(index % max(self.size, 1), self._shape)
        elif not index:
            if self.size != 1:
                raise ValueError("can only convert an array of size 1 to a Python scalar")
            index = (0,) * self.ndim
        if len(index) != self.ndim:
            raise ValueError(f"item: {len(index)} indices for an array of {self.ndim} dimensions")
        return self._whole.at[tuple(int(i) for i in index)]._copy().item()


def _reshaped(fake: Array, shape: Any, order: Any) -> Array:
    """`fake.reshape(...)`, which must be a view: a copy would touch the elements."""
    view: Array
    try:
        if _HAS_COPY:
            view = fake.reshape(shape, order=order, copy=False)
        elif order == "F":
            view = _reshaped(fake.T, shape[::-1] if isinstance(shape, tuple) else shape, "C").T
        else:
            view = fake.view()
            view.shape = shape
        return view
    except (ValueError, AttributeError) as reason:
        if "copy" not in str(reason) if _HAS_COPY else isinstance(reason, ValueError):
            raise
    raise ValueError(
        f"reshape: no view of shape {shape} exists of a part of shape {fake.shape} and strides {fake.strides}\n"
        "  try: t.read().reshape(...), a copy"
    )
