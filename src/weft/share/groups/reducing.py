"""The operations of a group's reductions on NumPy arrays, and the reproducible sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import errors
from ..arrays.checks import Array

OPS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_KINDS = {"sum": "iufc", "prod": "iufc", "min": "biuf", "max": "biuf", "and": "biu", "or": "biu", "xor": "biu"}

# A bin of a reproducible sum has 40 bits in a word of 64, so 2**22 values can be added before a word overflows. Four
# bins keep at least 120 bits below the largest value: more than a sum of doubles shows.
_BITS, _BINS = 40, 4


def operation(op: Any, dtype: np.dtype[Any], call: str) -> np.ufunc:
    """The function of an operation's name. Raises InvalidArgument (name), TypeError (a dtype without the operation)."""
    found = OPS.get(op) if isinstance(op, str) else None
    if found is None:
        raise errors.InvalidArgument(f"{call}: op is one of {', '.join(OPS)}, not {op!r}")
    if dtype.kind not in _KINDS[op]:
        raise TypeError(f"{call}: {op!r} is not defined for elements of dtype {dtype}")
    return found


def combine(
    mine: Array, others: Sequence[Array], rank: int, function: np.ufunc, out: Array, *, reproducible: bool = False
) -> None:
    """Combine this member's values with the rows of the other members into `out`, in the order of the ranks.

    Args:
        mine: Shape (n,).
        others: The other members' values, each of shape (n,); by rank.
        rank: This member's rank.
        out: Shape (n,); may be `mine`.

    The order is the same everywhere, because in some calls every member combines the same values for itself.
    """
    if reproducible:
        out[...] = sum_reproducibly(np.stack([*others[:rank], mine, *others[rank:]]))
        return
    if rank > 1 and np.may_share_memory(out, mine):
        mine = mine.copy()
    rows = [*others[:rank], mine, *others[rank:]]
    if len(rows) == 1:
        out[...] = mine
        return
    function(rows[0], rows[1], out=out)
    for row in rows[2:]:
        function(out, row, out=out)


def sum_reproducibly(rows: Array) -> Array:
    """The sum of each column: the same bits in whatever order the rows come.

    Args:
        rows: Floating-point numbers, shape (members, n); at most 2**22 rows.

    Each value is cut into whole multiples of 2**40, 2**0 ... of a grid that depends on the largest exponent of its
    column only; multiples are integers, whose sums are exact. Values that lie more than 160 bits below the largest one
    are dropped. Returns n numbers of the rows' dtype.
    """
    values = rows.astype(np.float64)
    finite = np.isfinite(values).all(axis=0)
    values[:, ~finite] = 0
    exponent = np.frexp(np.abs(values).max(axis=0))[1]
    top = -(-exponent // _BITS) * _BITS  # |value| < 2**top
    total = np.zeros(values.shape[1])
    sums = []
    for k in range(1, _BINS + 1):
        unit = top - k * _BITS
        multiples = np.trunc(_scaled(values, -unit))
        values -= _scaled(multiples, unit)
        sums.append((multiples.astype(np.int64).sum(axis=0), unit))
    for whole, unit in reversed(sums):  # from the smallest bin to the largest: the same steps for every order of rows
        total += _scaled(whole.astype(np.float64), unit)
    if not finite.all():
        odd = rows[:, ~finite].astype(np.float64)
        up, down = (odd == np.inf).any(axis=0), (odd == -np.inf).any(axis=0)
        bad = np.isnan(odd).any(axis=0) | (up & down)
        total[~finite] = np.where(bad, np.nan, np.where(up, np.inf, -np.inf))
    with np.errstate(over="ignore"):
        return total.astype(rows.dtype)


def _scaled(values: Array, exponent: Array) -> Array:
    """values * 2**exponent, exact unless the result is out of range; ldexp alone overflows at half of the range."""
    half = exponent // 2
    with np.errstate(over="ignore", under="ignore"):
        found: Array = np.ldexp(np.ldexp(values, half), exponent - half)
    return found
