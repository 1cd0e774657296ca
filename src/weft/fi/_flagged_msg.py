"""Messages with their own default flags, as `_flagged` has it for transfers.

Source: fi_endpoint(3) fi_ep_alias, fi_control; fi_msg(3), fi_tagged(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _nic
from ..flags import ADDR_UNSPEC, Flag
from . import _args
from .msg import Msg
from .tagged import MsgTagged

if TYPE_CHECKING:
    from .policy import EndpointPolicy

__all__ = ["FlaggedMessages", "cut"]

_Core = _nic.EndpointCore
_CQ_DATA = int(Flag.REMOTE_CQ_DATA)
_DEFAULT = _nic.OpRules()


class FlaggedMessages:
    """The calls of messages with the flags of `_op_flags`: the same calls and arguments as `EndpointCore`."""

    if TYPE_CHECKING:
        policy: EndpointPolicy
        _op_flags: dict[int, int]

        @property
        def _target(self) -> _nic.EndpointCore:
            """The NIC's endpoint."""
            ...

    def _flags_of(self, kind: str) -> int:
        """The flags of a call without a flags argument: the default flags that calls of this kind accept."""
        side = int(Flag.RECV if kind in ("recv", "trecv") else Flag.TRANSMIT)
        return self._op_flags[side] & (self.policy.op_rules or _DEFAULT).flags(kind)

    # ---- fi_msg(3) ---------------------------------------------------------------------------------------------------

    def send(
        self, buf: Any, desc: Any = None, dest_addr: int = ADDR_UNSPEC, context: Any = None, *, len: int | None = None
    ) -> None:
        """As `Endpoint.send`."""
        msg = Msg(_one("send", buf, len), _descs(desc), dest_addr, context)
        _Core.sendmsg(self._target, msg, self._flags_of("send") & ~_CQ_DATA)

    def sendv(
        self, iov: Sequence[Any] | None, desc: Any = None, dest_addr: int = ADDR_UNSPEC, context: Any = None, *,
        count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.sendv`."""
        _args.maybe("sendv", count=count)
        msg = Msg(iov, desc, dest_addr, context, iov_count=count)
        _Core.sendmsg(self._target, msg, self._flags_of("send") & ~_CQ_DATA)

    def sendmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.sendmsg`."""
        _Core.sendmsg(self._target, msg, flags)

    def inject(self, buf: Any, dest_addr: int = ADDR_UNSPEC, *, len: int | None = None) -> None:
        """As `Endpoint.inject`; FI_INJECT is its only flag."""
        _Core.inject(self._target, buf, dest_addr, len=len)

    def senddata(
        self, buf: Any, desc: Any = None, data: Any = None, dest_addr: int = ADDR_UNSPEC, context: Any = None, *,
        len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.senddata`."""
        _given("senddata", data=data)
        msg = Msg(_one("senddata", buf, len), _descs(desc), dest_addr, context, data)
        _Core._senddatamsg(self._target, msg, self._flags_of("send") & ~_CQ_DATA)  # type: ignore[attr-defined]

    def injectdata(self, buf: Any, data: Any = None, dest_addr: int = ADDR_UNSPEC, *, len: int | None = None) -> None:
        """As `Endpoint.injectdata`; FI_INJECT is its only flag."""
        _given("injectdata", data=data)
        _Core.injectdata(self._target, buf, data, dest_addr, len=len)

    def recv(
        self, buf: Any, desc: Any = None, src_addr: int = ADDR_UNSPEC, context: Any = None, *, len: int | None = None
    ) -> None:
        """As `Endpoint.recv`."""
        _Core.recvmsg(
            self._target, Msg(_one("recv", buf, len), _descs(desc), src_addr, context), self._flags_of("recv")
        )

    def recvv(
        self, iov: Sequence[Any] | None, desc: Any = None, src_addr: int = ADDR_UNSPEC, context: Any = None, *,
        count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.recvv`."""
        _args.maybe("recvv", count=count)
        _Core.recvmsg(self._target, Msg(iov, desc, src_addr, context, iov_count=count), self._flags_of("recv"))

    def recvmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.recvmsg`."""
        _Core.recvmsg(self._target, msg, flags)

    # ---- fi_tagged(3) ------------------------------------------------------------------------------------------------

    def tsend(
        self, buf: Any, desc: Any = None, dest_addr: int = ADDR_UNSPEC, tag: Any = None, context: Any = None, *,
        len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.tsend`."""
        _given("tsend", tag=tag)
        msg = MsgTagged(_one("tsend", buf, len), _descs(desc), dest_addr, tag, 0, context)
        _Core.tsendmsg(self._target, msg, self._flags_of("tsend") & ~_CQ_DATA)

    def tsendv(
        self, iov: Sequence[Any] | None, desc: Any = None, dest_addr: int = ADDR_UNSPEC, tag: Any = None,
        context: Any = None, *, count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.tsendv`."""
        _given("tsendv", tag=tag)
        _args.maybe("tsendv", count=count)
        msg = MsgTagged(iov, desc, dest_addr, tag, 0, context, iov_count=count)
        _Core.tsendmsg(self._target, msg, self._flags_of("tsend") & ~_CQ_DATA)

    def tsendmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.tsendmsg`."""
        _Core.tsendmsg(self._target, msg, flags)

    def tinject(self, buf: Any, dest_addr: int = ADDR_UNSPEC, tag: Any = None, *, len: int | None = None) -> None:
        """As `Endpoint.tinject`; FI_INJECT is its only flag."""
        _given("tinject", tag=tag)
        _Core.tinject(self._target, buf, dest_addr, tag, len=len)

    def tsenddata(
        self, buf: Any, desc: Any = None, data: Any = None, dest_addr: int = ADDR_UNSPEC, tag: Any = None,
        context: Any = None, *, len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.tsenddata`."""
        _given("tsenddata", data=data, tag=tag)
        msg = MsgTagged(_one("tsenddata", buf, len), _descs(desc), dest_addr, tag, 0, context, data)
        _Core._tsenddatamsg(self._target, msg, self._flags_of("tsend") & ~_CQ_DATA)  # type: ignore[attr-defined]

    def tinjectdata(
        self, buf: Any, data: Any = None, dest_addr: int = ADDR_UNSPEC, tag: Any = None, *, len: int | None = None
    ) -> None:
        """As `Endpoint.tinjectdata`; FI_INJECT is its only flag."""
        _given("tinjectdata", data=data, tag=tag)
        _Core.tinjectdata(self._target, buf, data, dest_addr, tag, len=len)

    def trecv(
        self, buf: Any, desc: Any = None, src_addr: int = ADDR_UNSPEC, tag: Any = None, ignore: int = 0,
        context: Any = None, *, len: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.trecv`."""
        _given("trecv", tag=tag)
        msg = MsgTagged(_one("trecv", buf, len), _descs(desc), src_addr, tag, ignore, context)
        _Core.trecvmsg(self._target, msg, self._flags_of("trecv"))

    def trecvv(
        self, iov: Sequence[Any] | None, desc: Any = None, src_addr: int = ADDR_UNSPEC, tag: Any = None,
        ignore: int = 0, context: Any = None, *, count: int | None = None,
    ) -> None:  # fmt: skip
        """As `Endpoint.trecvv`."""
        _given("trecvv", tag=tag)
        _args.maybe("trecvv", count=count)
        msg = MsgTagged(iov, desc, src_addr, tag, ignore, context, iov_count=count)
        _Core.trecvmsg(self._target, msg, self._flags_of("trecv"))

    def trecvmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.trecvmsg`."""
        _Core.trecvmsg(self._target, msg, flags)


def cut(buf: Any, length: int | None) -> Any:
    """The first `length` bytes of a buffer."""
    if length is None:
        return buf
    address, nbytes, _, _, _ = _nic.describe_buffer(buf)
    if not 0 <= length <= nbytes:
        raise ValueError(f"len {length!r} is not within the {nbytes} B of the buffer")
    if isinstance(buf, tuple):
        return address, length
    return buf[:length] if isinstance(buf, _nic.MrSlice) else memoryview(buf).cast("B")[:length]


def _one(method: str, buf: Any, length: int | None) -> list[Any]:
    if buf is not None:
        return [cut(buf, length)]
    if length:
        raise ValueError(f"{method}: buf is None and len {length!r}: without a buffer a message has no bytes")
    return []


def _descs(desc: Any) -> list[Any] | None:
    return None if desc is None else [desc]


def _given(method: str, **required: Any) -> None:
    for name, value in required.items():
        if value is None:
            raise TypeError(f"{method}() needs the argument '{name}'")
