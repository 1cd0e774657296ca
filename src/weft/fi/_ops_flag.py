"""The operation flags of an endpoint and of its aliases: FI_GETOPSFLAG, FI_SETOPSFLAG, FI_ALIAS.

`WithoutData` and `WithoutMessages` refuse the calls that a provider or an endpoint does not have.

Source: fi_endpoint(3) fi_control, fi_ep_alias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..flags import Control, Flag
from . import _args, _handle
from .rules import Rule

if TYPE_CHECKING:
    from .. import _nic
    from .ep_alias import EndpointAlias
    from .policy import EndpointPolicy

__all__ = ["COMMANDS", "OpFlags", "WithoutData", "WithoutMessages"]

_SIDES = int(Flag.TRANSMIT | Flag.RECV)


class OpFlags:
    """The default operation flags of each side, for endpoints and aliases."""

    if TYPE_CHECKING:
        policy: EndpointPolicy
        _op_flags: dict[int, int]
        _refuse: Any

        @property
        def _core(self) -> _nic.EndpointCore: ...
        def enable(self) -> None: ...
        def alias(self, flags: int = 0, context: Any = None) -> EndpointAlias: ...

    def _side(self, op: str, rule: Rule, flags: Any) -> int:
        """The side that the flags name: exactly one of TRANSMIT and RECV."""
        if flags is not None:
            _args.whole(op, flags=flags)
        side = 0 if flags is None else int(flags) & _SIDES
        if side not in (int(Flag.TRANSMIT), int(Flag.RECV)):
            raise self._refuse(
                rule,
                f"{op}: flags {flags if flags is None else Flag(flags)!s}; exactly one of TRANSMIT and RECV is needed",
            )
        return side

    def _get_ops_flag(self, arg: Any) -> int:
        return self._op_flags[self._side("ep.control(GETOPSFLAG)", Rule.EP_OPS_FLAG, arg)]

    def _set_ops_flag(self, arg: Any) -> None:
        side = self._side("ep.control(SETOPSFLAG)", Rule.EP_OPS_FLAG, arg)
        self._op_flags[side] = self.policy.op_flags(side, int(arg) & ~_SIDES)

    def set_val(self, name: int, value: Any) -> None:
        """Set a value of the provider (fi_set_val). Raises NoSys for a value that the provider does not have."""
        super().set_val(name, value)  # type: ignore[misc]  # Controlled's
        self._core._set_lane(*self.policy.lane)  # type: ignore[attr-defined]  # the stub has no private names

    def _of_alias(self, flags: int) -> tuple[int, int]:
        """(side, operation flags) of a new alias."""
        _handle.check(self, "ep.alias")  # type: ignore[arg-type]  # each class has its own _made_in
        side = self._side("ep.alias", Rule.EP_ALIAS_FLAGS, flags)
        return side, int(flags) & ~_SIDES


COMMANDS: dict[int, Callable[[Any, Any], Any]] = {
    int(Control.ENABLE): lambda ep, _: ep.enable(),
    int(Control.ALIAS): lambda ep, arg: ep.alias(arg),
    int(Control.GETOPSFLAG): lambda ep, arg: ep._get_ops_flag(arg),
    int(Control.SETOPSFLAG): lambda ep, arg: ep._set_ops_flag(arg),
}


class WithoutData:
    """Refuses writes with data, for providers without remote CQ data in writes."""

    if TYPE_CHECKING:
        _refuse: Any

    def writedata(self, *args: object, **more: object) -> None:
        """Raises NoSys."""
        raise self._no_data("writedata")

    def inject_writedata(self, *args: object, **more: object) -> None:
        """Raises NoSys."""
        raise self._no_data("inject_writedata")

    def _no_data(self, call: str) -> Exception:
        op = f"ep.{call}"
        _handle.check(self, op)  # type: ignore[arg-type]
        refused: Exception = self._refuse(
            Rule.EP_WRITEDATA,
            f"{op}: this provider delivers no data with a write\n  try: write, then another write of a flag",
        )
        return refused


def _no_message(name: str, source: str) -> Any:
    def call(self: Any, *args: object, **more: object) -> None:
        op = f"{self._called}.{name}"
        _handle.check(self, op)
        raise self._refuse(Rule.EP_NO_MESSAGES, f"{op}: {self.policy.no_messages}", op=op)

    call.__name__ = name
    call.__doc__ = f"Refused: the endpoint has no messages (fi_{name}). Source: {source}."
    return call


class WithoutMessages:
    """Refuses messages, for endpoints whose policy has none."""

    send = _no_message("send", "fi_msg(3)")
    sendv = _no_message("sendv", "fi_msg(3)")
    sendmsg = _no_message("sendmsg", "fi_msg(3)")
    inject = _no_message("inject", "fi_msg(3)")
    senddata = _no_message("senddata", "fi_msg(3)")
    injectdata = _no_message("injectdata", "fi_msg(3)")
    recv = _no_message("recv", "fi_msg(3)")
    recvv = _no_message("recvv", "fi_msg(3)")
    recvmsg = _no_message("recvmsg", "fi_msg(3)")
    tsend = _no_message("tsend", "fi_tagged(3)")
    tsendv = _no_message("tsendv", "fi_tagged(3)")
    tsendmsg = _no_message("tsendmsg", "fi_tagged(3)")
    tinject = _no_message("tinject", "fi_tagged(3)")
    tsenddata = _no_message("tsenddata", "fi_tagged(3)")
    tinjectdata = _no_message("tinjectdata", "fi_tagged(3)")
    trecv = _no_message("trecv", "fi_tagged(3)")
    trecvv = _no_message("trecvv", "fi_tagged(3)")
    trecvmsg = _no_message("trecvmsg", "fi_tagged(3)")
