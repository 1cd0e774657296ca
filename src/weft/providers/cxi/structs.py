"""The structures of collectives in fi_cxi_ext.h: ctypes, so that they are buffers, and dtypes through numpy.dtype().

For applications: `weft.cxi`. Source: fi_cxi(7) "Collectives (accelerated)"; <rdma/fi_cxi_ext.h>.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

from ... import _nic, errors
from ...fi._args import whole as _whole
from ...flags import Flag
from . import profile
from .names import CollectiveFlag, CommKeyType


class _Struct(ctypes.Structure):
    def __repr__(self) -> str:
        fields = ", ".join(f"{one[0]}={getattr(self, one[0])!r}" for one in self._fields_)
        return f"cxi.{type(self).__name__}({fields})"


class CollIntMinmax(_Struct):
    """MINMAXLOC of int64: smallest and largest value, each with an index (struct cxip_coll_intminmax), 32 bytes.

    A member gives its own values with its rank as both indices; the result has the group's. Of equal values the
    smallest index is given. `numpy.dtype(cxi.CollIntMinmax)` is its dtype. Source: fi_cxi(7) "fi_reduction operations".
    """

    _fields_: ClassVar[list[Any]] = [
        ("minval", ctypes.c_int64),
        ("minidx", ctypes.c_uint64),
        ("maxval", ctypes.c_int64),
        ("maxidx", ctypes.c_uint64),
    ]


class CollFltMinmax(_Struct):
    """MINMAXLOC and MINMAXNUMLOC of doubles (struct cxip_coll_fltminmax), with the fields of `CollIntMinmax`."""

    _fields_: ClassVar[list[Any]] = [
        ("minval", ctypes.c_double),
        ("minidx", ctypes.c_uint64),
        ("maxval", ctypes.c_double),
        ("maxidx", ctypes.c_uint64),
    ]


class CollAccumulator(ctypes.Structure):
    """Local accumulator of reductions (struct cxip_coll_accumulator): 64 opaque bytes, zeros when it is made.

    A reduction with `fi.MORE` folds its data into the accumulator that is its result; with `cxi.PRE_REDUCED` an
    accumulator is the source. `fold` does what `fi.MORE` does, without an endpoint. All data of an accumulator have one
    operator, datatype and count. Threads that share an accumulator exclude each other. `bytes(accumulator)` copies it,
    `from_buffer_copy` makes one.

    Source: fi_cxi(7) "reduction flags".
    """

    _fields_: ClassVar[list[Any]] = [("accum", ctypes.c_uint8 * 64)]

    def fold(self, buf: Any, count: int, datatype: int, op: int, flags: int = 0) -> None:
        """Reduce data into the accumulator, as a reduction with fi.MORE does: no network, no progress, no other state.

        Args:
            buf: C-contiguous buffer of `count` elements; with `cxi.PRE_REDUCED` another accumulator.
            count: As for `Endpoint.allreduce`; not read with PRE_REDUCED.
            datatype: Likewise. Sums of doubles take the calling thread's rounding and flush-to-zero modes.
            op: Likewise.
            flags: 0, or `cxi.PRE_REDUCED`; `fi.MORE` is implied.

        An operator that differs from earlier ones is noted in the accumulator, and the group's reduction fails by it.

        Raises:
            InvalidArgument: There is no such reduction, it does not take `count`, a buffer is short, or `buf` is no
                accumulator.
            BadFlags: Unknown flags.

        Source: fi_cxi(7) "reduction flags".
        """
        _whole("fold", count=count, datatype=datatype, op=op, flags=flags)
        if int(flags) & ~int(Flag.MORE | CollectiveFlag.PRE_REDUCED):
            raise errors.BadFlags(f"fold: flags {int(flags):#x}; known: PRE_REDUCED, MORE")
        pre_reduced = bool(int(flags) & CollectiveFlag.PRE_REDUCED)
        prefer_numbers = profile.load().num_extremes
        _nic.fold(buf, self, int(count), int(datatype), int(op), pre_reduced, prefer_numbers=prefer_numbers)

    def result(self, out: Any, count: int, datatype: int) -> int:
        """Write what the accumulator holds, as a reduction of this member alone would give it.

        Args:
            out: Writable buffer of `count` elements.

        Returns:
            The status: 0, or 1 to 5 for roundings and infinities, or the fault that the group's reduction would fail
            by: 6 integer overflow, 8 operators that differ.

        Not part of libfabric's interface.

        Raises:
            InvalidArgument: Nothing was folded, or `count` does not fit.
        """
        _whole("result", count=count, datatype=datatype)
        status = _nic.unfold(self, out, int(count), int(datatype))
        if status is None:
            raise errors.InvalidArgument("result: the accumulator is empty: nothing was folded into it")
        return status

    def __repr__(self) -> str:
        return f"cxi.CollAccumulator({bytes(self).hex() if any(self.accum) else ''})"


class CollMcastKey(_Struct):
    """A group on a multicast address that a manager has made (struct cxip_coll_mcast_key).

    Attributes:
        hwroot_idx: Index of the hardware root in the set.
        mcast_addr: The address, 13 bits.
    """

    _fields_: ClassVar[list[Any]] = [("hwroot_idx", ctypes.c_uint32), ("mcast_addr", ctypes.c_uint32)]


class CollUnicastKey(_Struct):
    """A group whose tree is emulated by unicast (struct cxip_coll_unicast_key), as `CollMcastKey`."""

    _fields_: ClassVar[list[Any]] = [("hwroot_idx", ctypes.c_uint32), ("mcast_addr", ctypes.c_uint32)]


class CollRankKey(_Struct):
    """One of several members in one process (struct cxip_coll_rank_key).

    Attributes:
        hwroot_idx: Rank of the hardware root.
        rank: This member's rank.
        rx_discard: False: arriving packets make completions, for tests.
    """

    _fields_: ClassVar[list[Any]] = [
        ("hwroot_idx", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("rx_discard", ctypes.c_bool),
    ]


class _KeyUnion(ctypes.Union):
    _fields_: ClassVar[list[Any]] = [("mcast", CollMcastKey), ("ucast", CollUnicastKey), ("rank", CollRankKey)]


class CollCommKey(ctypes.Structure):
    """AvSetAttr.comm_key: who makes a group's tree (struct cxip_comm_key), 16 bytes.

    Attributes:
        keytype: `cxi.COMM_KEY_NONE` (the fabric manager), `COMM_KEY_MULTICAST`, `COMM_KEY_UNICAST`, `COMM_KEY_RANK`.
        mcast: The part of COMM_KEY_MULTICAST.
        ucast: The part of COMM_KEY_UNICAST.
        rank: The part of COMM_KEY_RANK.

        cxi.CollCommKey(keytype=cxi.COMM_KEY_RANK, rank=cxi.CollRankKey(hwroot_idx=0, rank=3))

    Source: fi_cxi_ext.h.
    """

    _anonymous_ = ("of",)
    _fields_: ClassVar[list[Any]] = [("keytype", ctypes.c_uint32), ("of", _KeyUnion)]

    def __repr__(self) -> str:
        part = {1: "mcast", 2: "ucast", 3: "rank"}.get(self.keytype)
        kind = f"cxi.{CommKeyType(self.keytype)}" if self.keytype in set(CommKeyType) else self.keytype
        return f"cxi.CollCommKey(keytype={kind}{f', {part}={getattr(self, part)!r}' if part else ''})"
