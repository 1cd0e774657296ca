"""Descriptors and queries of fi_atomic(3).

The calls are methods of `Endpoint`: `atomic atomicv atomicmsg inject_atomic`, `fetch_atomic*`, `compare_atomic*`, and
the queries `atomicvalid fetch_atomicvalid compare_atomicvalid`; `Domain.query_atomic` asks without an endpoint.

Source: fi_atomic(3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _nic, errors
from ..flags import ADDR_UNSPEC, AtomicFlag, Datatype, Flag, Op
from .rules import Refusals, Rule

if TYPE_CHECKING:
    import numpy as np


@dataclass(slots=True)
class Ioc:
    """Local elements of an atomic (struct fi_ioc).

    Attributes:
        addr: C-contiguous buffer, or (address, length), of the elements.
        count: Elements; None for as many as the buffer holds.

    Source: fi_atomic(3) "Base Atomic Functions".
    """

    addr: Any = None
    count: int | None = None


@dataclass(slots=True)
class RmaIoc:
    """Remote elements of an atomic (struct fi_rma_ioc).

    Attributes:
        addr: As RmaIov.addr; a multiple of the datatype's size.
        count: Elements.
        key: The region's remote key.

    Source: fi_atomic(3) "Base Atomic Functions".
    """

    addr: int = 0
    count: int = 0
    key: int = 0


@dataclass(slots=True)
class MsgAtomic:
    """An atomic in full (struct fi_msg_atomic), for `Endpoint.atomicmsg` and its fetch and compare forms.

    Attributes:
        msg_iov: Local operands: `Ioc`s or buffers.
        rma_iov: Remote elements; the counts of both sides add up to the same.
        addr: The peer.
        datatype: `fi.UINT64` ...
        op: `fi.SUM` ...

    The other fields are as in `MsgRma`. Source: fi_atomic(3) "Base Atomic Functions".
    """

    msg_iov: Sequence[Any] = ()
    rma_iov: Sequence[RmaIoc] = ()
    addr: int = ADDR_UNSPEC
    datatype: int = Datatype.UINT64
    op: int = Op.SUM
    desc: Sequence[Any] | None = None
    context: Any = None
    data: int = 0
    iov_count: int | None = None
    rma_iov_count: int | None = None


@dataclass(frozen=True, slots=True)
class AtomicAttr:
    """What a query returns (struct fi_atomic_attr).

    Attributes:
        count: Maximum elements of a call.
        size: Bytes of one element.
    """

    count: int
    size: int


_NUMBERS = frozenset(int(one) for one in Datatype)
_OPS = frozenset(int(one) for one in Op)
_FAMILY_NAME = ("atomic", "fetch_atomic", "compare_atomic")


def query(
    datatype: int,
    op: int,
    family: int,
    refusals: Refusals,
    limit: Callable[[int, int, int], tuple[int, int]] = _nic.atomic_valid,
) -> AtomicAttr:
    """Check that the NIC supports an operation on a datatype, and return its limits.

    Args:
        family: 0 base, 1 fetch, 2 compare.
        limit: (datatype, op, family) -> (elements that one call may hold, bytes of an element); an endpoint has its
            own.

    Raises:
        NotSupported: The NIC has no such operation on the datatype; the message names both.

    Source: fi_atomic(3) "Atomic Valid Functions", "fi_query_atomic".
    """
    if datatype not in _NUMBERS or op not in _OPS:
        raise refusals.refuse(
            Rule.ATOMIC_NUMBER,
            f"{_FAMILY_NAME[family]}: {_named(Op, op)} on {_named(Datatype, datatype)}: no such operation or datatype",
            op=_FAMILY_NAME[family],
        )
    count, size = limit(int(datatype), int(op), family)
    if not count:
        raise refusals.refuse(
            Rule.ATOMIC_PAIR,
            f"{_FAMILY_NAME[family]}: {_named(Op, op)} on {_named(Datatype, datatype)} is not supported",
            op=_FAMILY_NAME[family],
        )
    return AtomicAttr(count, size)


def family_of(flags: int, refusals: Refusals) -> int:
    """The family that the flags of fi_query_atomic select."""
    if flags & ~int(AtomicFlag.FETCH_ATOMIC | AtomicFlag.COMPARE_ATOMIC) & ~int(Flag.TAGGED):
        raise refusals.refuse(
            Rule.ATOMIC_FLAGS, f"query_atomic: flags {AtomicFlag(flags)!s}; known: FETCH_ATOMIC, COMPARE_ATOMIC, 0"
        )
    if flags & Flag.TAGGED:
        raise refusals.refuse(Rule.ATOMIC_TAGGED, "query_atomic: tagged atomics are not supported")
    if flags & AtomicFlag.FETCH_ATOMIC and flags & AtomicFlag.COMPARE_ATOMIC:
        raise refusals.refuse(Rule.ATOMIC_FLAGS, "query_atomic: FETCH_ATOMIC and COMPARE_ATOMIC exclude each other")
    return 1 if flags & AtomicFlag.FETCH_ATOMIC else 2 if flags & AtomicFlag.COMPARE_ATOMIC else 0


def datatype_size(datatype: int) -> int:
    """Bytes of one element of a datatype. Raises InvalidArgument for a number that is not a datatype."""
    try:
        return _SIZES[Datatype(datatype)]
    except (KeyError, ValueError):
        raise errors.InvalidArgument(f"{datatype} is not a datatype with a size") from None


def dtype_of(datatype: int) -> np.dtype[Any]:
    """NumPy's dtype of a datatype. Raises InvalidArgument if NumPy (with ml_dtypes) has none: 128-bit integers."""
    import numpy

    datatype = Datatype(datatype)
    name = _DTYPES.get(datatype)
    if name is None:
        raise errors.InvalidArgument(f"NumPy has no {datatype}; use two uint64")
    if name.startswith("ml:"):
        import ml_dtypes

        name = getattr(ml_dtypes, name[3:])
    found: np.dtype[Any] = numpy.dtype(name)
    return found


def datatype_of(dtype: Any) -> Datatype:
    """The datatype of a NumPy dtype. Raises InvalidArgument if libfabric has none."""
    import numpy

    wanted = numpy.dtype(dtype)
    for datatype, known in _DTYPES.items():
        # ml_dtypes' types are compared by name, because ml_dtypes need not be installed.
        if known[3:] == wanted.name if known.startswith("ml:") else numpy.dtype(known) == wanted:
            return datatype
    raise errors.InvalidArgument(f"no datatype of fi_atomic(3) matches {wanted}")


def _named(cls: type[Any], value: int) -> str:
    try:
        return str(cls(value))
    except ValueError:
        return str(int(value))


_SIZES: dict[Datatype, int] = {
    Datatype.INT8: 1,
    Datatype.UINT8: 1,
    Datatype.INT16: 2,
    Datatype.UINT16: 2,
    Datatype.INT32: 4,
    Datatype.UINT32: 4,
    Datatype.INT64: 8,
    Datatype.UINT64: 8,
    Datatype.FLOAT: 4,
    Datatype.DOUBLE: 8,
    Datatype.FLOAT_COMPLEX: 8,
    Datatype.DOUBLE_COMPLEX: 16,
    Datatype.LONG_DOUBLE: 16,
    Datatype.LONG_DOUBLE_COMPLEX: 32,
    Datatype.INT128: 16,
    Datatype.UINT128: 16,
    Datatype.FLOAT16: 2,
    Datatype.BFLOAT16: 2,
    Datatype.FLOAT8_E4M3: 1,
    Datatype.FLOAT8_E5M2: 1,
}

_DTYPES: dict[Datatype, str] = {
    Datatype.INT8: "int8",
    Datatype.UINT8: "uint8",
    Datatype.INT16: "int16",
    Datatype.UINT16: "uint16",
    Datatype.INT32: "int32",
    Datatype.UINT32: "uint32",
    Datatype.INT64: "int64",
    Datatype.UINT64: "uint64",
    Datatype.FLOAT: "float32",
    Datatype.DOUBLE: "float64",
    Datatype.FLOAT_COMPLEX: "complex64",
    Datatype.DOUBLE_COMPLEX: "complex128",
    Datatype.LONG_DOUBLE: "longdouble",
    Datatype.LONG_DOUBLE_COMPLEX: "clongdouble",
    Datatype.FLOAT16: "float16",
    Datatype.BFLOAT16: "ml:bfloat16",
    Datatype.FLOAT8_E4M3: "ml:float8_e4m3fn",
    Datatype.FLOAT8_E5M2: "ml:float8_e5m2",
}
