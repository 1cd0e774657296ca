"""Transfers with their own default flags: transfers of an alias, and of an endpoint after FI_SETOPSFLAG.

The NIC's endpoint has one set of default flags. A call with other flags uses its ...msg form, which takes flags; this
costs one Python frame a call. Source: fi_endpoint(3) fi_ep_alias, fi_control.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _nic
from ..flags import ADDR_UNSPEC, Flag, Op
from . import _args
from ._flagged_msg import FlaggedMessages, cut
from .atomic import Ioc, MsgAtomic, RmaIoc, datatype_size
from .rma import MsgRma, RmaIov

__all__ = ["Flagged"]

_Core = _nic.EndpointCore
_CQ_DATA = int(Flag.REMOTE_CQ_DATA)


class Flagged(FlaggedMessages):
    """The data path with the flags of `_op_flags`: the same calls and arguments as `EndpointCore`."""

    def _flags(self, kind: str) -> int:
        """The flags of a call without a flags argument: the default flags that calls of this kind accept."""
        rules = self.policy.op_rules or _DEFAULT
        return self._op_flags[int(Flag.TRANSMIT)] & rules.flags(kind) | self.policy.call_flags

    def _named(self, flags: Any) -> int:
        """The flags of a call with a flags argument."""
        if flags.__class__ is not int:
            _args.whole("ep", flags=flags)
            flags = int(flags)
        return int(flags) | self.policy.call_flags

    # ---- fi_rma(3) ---------------------------------------------------------------------------------------------------

    def read(
        self, buf: Any, desc: Any = None, src_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None,
        context: Any = None, *, len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.read`."""
        self.readv([cut(buf, len)], None if desc is None else [desc], src_addr, addr, key, context)

    def readv(
        self, iov: Sequence[Any], desc: Any = None, src_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None,
        context: Any = None, *, count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.readv`."""
        msg = _transfer("read", iov, desc, src_addr, addr, key, context, count)
        _Core.readmsg(self._target, msg, self._flags("read"))

    def readmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.readmsg`."""
        _Core.readmsg(self._target, msg, self._named(flags))

    def write(
        self, buf: Any, desc: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None,
        context: Any = None, *, len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.write`."""
        self.writev([cut(buf, len)], None if desc is None else [desc], dest_addr, addr, key, context)

    def writev(
        self, iov: Sequence[Any], desc: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None,
        context: Any = None, *, count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.writev`."""
        msg = _transfer("write", iov, desc, dest_addr, addr, key, context, count)
        _Core.writemsg(self._target, msg, self._flags("write") & ~_CQ_DATA)

    def writemsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.writemsg`."""
        _Core.writemsg(self._target, msg, self._named(flags))

    def inject_write(
        self, buf: Any, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None, *, len: int | None = None
    ) -> None:
        """As `Endpoint.inject_write`; FI_INJECT is its only flag."""
        _given("inject_write", addr, key)
        _Core.inject_write(self._target, buf, dest_addr, addr, key, len=len)

    def writedata(
        self, buf: Any, desc: Any = None, data: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None,
        key: Any = None, context: Any = None, *, len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.writedata`."""
        if data is None:
            raise TypeError("writedata() needs the argument 'data'")
        descs = None if desc is None else [desc]
        msg = _transfer("writedata", [cut(buf, len)], descs, dest_addr, addr, key, context, None)
        msg.data = data
        flags = self._flags("write") & ~_CQ_DATA  # the call implies it, also where writemsg may not have it
        _Core._writedatamsg(self._target, msg, flags)  # type: ignore[attr-defined]  # private: not in the stub

    def inject_writedata(
        self, buf: Any, data: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None, *,
        len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.inject_writedata`; FI_INJECT is its only flag."""
        if data is None:
            raise TypeError("inject_writedata() needs the argument 'data'")
        _given("inject_writedata", addr, key)
        _Core.inject_writedata(self._target, buf, data, dest_addr, addr, key, len=len)

    def read_batch(self, local: Any, descs: Any, context: Any = None, flags: int | None = None) -> None:
        """As `Endpoint.read_batch`."""
        _Core.read_batch(self._target, local, descs, context, self._flags("batch") if flags is None else flags)

    def write_batch(self, local: Any, descs: Any, context: Any = None, flags: int | None = None) -> None:
        """As `Endpoint.write_batch`."""
        _Core.write_batch(self._target, local, descs, context, self._flags("batch") if flags is None else flags)

    # ---- fi_atomic(3) ------------------------------------------------------------------------------------------------

    def atomic(
        self, buf: Any, desc: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None,
        datatype: Any = None, op: Any = None, context: Any = None, *, count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.atomic`."""
        descs = None if desc is None else [desc]
        self.atomicv([Ioc(buf, count)], descs, dest_addr, addr, key, datatype, op, context)

    def atomicv(
        self, iov: Sequence[Any], desc: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None,
        datatype: Any = None, op: Any = None, context: Any = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.atomicv`."""
        msg = _operation("atomic", iov, desc, dest_addr, addr, key, datatype, op, context)
        _Core.atomicmsg(self._target, msg, self._flags("atomic"))

    def atomicmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.atomicmsg`."""
        _Core.atomicmsg(self._target, msg, self._named(flags))

    def inject_atomic(
        self, buf: Any, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None, datatype: Any = None,
        op: Any = None, *, count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.inject_atomic`; FI_INJECT is its only flag."""
        _given("inject_atomic", addr, key)
        _operators("inject_atomic", datatype, op)
        _Core.inject_atomic(self._target, buf, dest_addr, addr, key, datatype, op, count=count)

    def fetch_atomic(
        self, buf: Any, desc: Any = None, result: Any = None, result_desc: Any = None, dest_addr: int = ADDR_UNSPEC,
        addr: Any = None, key: Any = None, datatype: Any = None, op: Any = None, context: Any = None, *,
        count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.fetch_atomic`."""
        iov = None if buf is None else [Ioc(buf, count)]
        self.fetch_atomicv(
            iov, None if desc is None else [desc], [Ioc(result, count)], None if result_desc is None else [result_desc],
            dest_addr, addr, key, datatype, op, context,
        )  # fmt: skip

    def fetch_atomicv(
        self, iov: Sequence[Any] | None, desc: Any = None, resultv: Sequence[Any] = (), result_desc: Any = None,
        dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None, datatype: Any = None, op: Any = None,
        context: Any = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.fetch_atomicv`."""
        if op == Op.ATOMIC_READ:  # no operands: as many elements as there is room for
            iov = None
        sizes = resultv if iov is None else iov
        msg = _operation("fetch_atomic", sizes, desc, dest_addr, addr, key, datatype, op, context)
        if iov is None:
            msg.msg_iov, msg.desc = (), None
        _Core.fetch_atomicmsg(self._target, msg, resultv, result_desc, self._flags("fetch"))

    def fetch_atomicmsg(self, msg: Any, resultv: Sequence[Any], result_desc: Any = None, flags: int = 0) -> None:
        """As `Endpoint.fetch_atomicmsg`."""
        _Core.fetch_atomicmsg(self._target, msg, resultv, result_desc, self._named(flags))

    def compare_atomic(
        self, buf: Any, desc: Any = None, compare: Any = None, compare_desc: Any = None, result: Any = None,
        result_desc: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None, key: Any = None, datatype: Any = None,
        op: Any = None, context: Any = None, *, count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.compare_atomic`."""
        self.compare_atomicv(
            [Ioc(buf, count)], None if desc is None else [desc],
            [Ioc(compare, count)], None if compare_desc is None else [compare_desc],
            [Ioc(result, count)], None if result_desc is None else [result_desc],
            dest_addr, addr, key, datatype, op, context,
        )  # fmt: skip

    def compare_atomicv(
        self, iov: Sequence[Any], desc: Any = None, comparev: Sequence[Any] = (), compare_desc: Any = None,
        resultv: Sequence[Any] = (), result_desc: Any = None, dest_addr: int = ADDR_UNSPEC, addr: Any = None,
        key: Any = None, datatype: Any = None, op: Any = None, context: Any = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.compare_atomicv`."""
        msg = _operation("compare_atomic", iov, desc, dest_addr, addr, key, datatype, op, context)
        _Core.compare_atomicmsg(self._target, msg, comparev, compare_desc, resultv, result_desc, self._flags("compare"))

    def compare_atomicmsg(
        self, msg: Any, comparev: Sequence[Any], compare_desc: Any = None, resultv: Sequence[Any] = (),
        result_desc: Any = None, flags: int = 0,
    ) -> None:  # fmt: skip
        """As `Endpoint.compare_atomicmsg`."""
        _Core.compare_atomicmsg(self._target, msg, comparev, compare_desc, resultv, result_desc, self._named(flags))


_DEFAULT = _nic.OpRules()


def _given(method: str, addr: Any, key: Any) -> None:
    for name, value in (("addr", addr), ("key", key)):
        if value is None:
            raise TypeError(
                f"{method}() needs the argument '{name}': the place in the peer's region and the region's key"
            )


def _operators(method: str, datatype: Any, op: Any) -> None:
    for name, value in (("datatype", datatype), ("op", op)):
        if value is None:
            raise TypeError(f"{method}() needs the argument '{name}'")


def _transfer(
    method: str, iov: Sequence[Any], desc: Any, peer: int, addr: Any, key: Any, context: Any, count: int | None
) -> MsgRma:
    _given(method, addr, key)
    _args.maybe(method, count=count)
    pieces = _args.each(method, "iov", iov, "buffers")[:count]
    total = sum(_nic.describe_buffer(piece)[1] for piece in pieces)
    return MsgRma(pieces, [RmaIov(addr, total, key)], peer, desc, context)


def _operation(
    method: str, iov: Sequence[Any], desc: Any, peer: int, addr: Any, key: Any, datatype: Any, op: Any, context: Any
) -> MsgAtomic:
    _given(method, addr, key)
    _operators(method, datatype, op)
    _args.whole(method, datatype=datatype, op=op)
    pieces = _args.each(method, "iov", iov, "buffers")
    elements = sum(_elements(one, datatype) for one in pieces)
    return MsgAtomic(pieces, [RmaIoc(addr, elements, key)], peer, datatype, op, desc, context)


def _elements(one: Any, datatype: Any) -> int:
    if isinstance(one, Ioc):
        if one.count is not None:
            return one.count
        one = one.addr
    return int(_nic.describe_buffer(one)[1]) // datatype_size(datatype)
