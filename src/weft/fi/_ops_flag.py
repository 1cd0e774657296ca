"""What is of one handle of an endpoint, the endpoint itself or an alias: its operation flags, and the calls that the
provider refuses or that FI_TRIGGER defers.

The extension keeps them beside its handle, so that an operation of an alias runs no Python code of Weft either.

Source: fi_endpoint(3) fi_control, fi_ep_alias; fi_trigger(3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from ..flags import Control, Flag
from . import _args, _handle, _triggered
from ._calls import CALLS
from .rules import Rule

if TYPE_CHECKING:
    from .attrs import Info
    from .ep_alias import EndpointAlias
    from .policy import EndpointPolicy

_SIDES = int(Flag.TRANSMIT | Flag.RECV)
_DATA_WRITES = [call.name for call in CALLS if call.table == "rma" and "data!" in call.params]
_MESSAGES = [call.name for call in CALLS if call.table in ("msg", "tagged")]


class OpFlags:
    """The default operation flags of each side, and the calls that are asked about, of endpoints and aliases."""

    if TYPE_CHECKING:
        info: Info
        policy: EndpointPolicy
        _called: ClassVar[str]
        _op_flags: dict[int, int]
        _refuse: Any

        def enable(self) -> None: ...
        def alias(self, flags: int = 0, context: Any = None) -> EndpointAlias: ...
        def _ask(self, calls: list[str]) -> None: ...  # these are the extension's
        def _set_lane(self, msg_order: int, tclass: int, call_flags: int) -> None: ...
        def _set_op_flags(self, receives: bool, flags: int) -> None: ...

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
        self._take_flags(side, int(arg) & ~_SIDES)

    def _take_flags(self, side: int, flags: int) -> None:
        found = self.policy.op_flags(side, flags)
        self._op_flags[side] = found
        self._set_op_flags(side == Flag.RECV, found)

    def set_val(self, name: int, value: Any) -> None:
        """Set a value of the provider (fi_set_val). Raises NoSys for a value that the provider does not have."""
        super().set_val(name, value)  # type: ignore[misc]  # Controlled's
        self._take_lane()

    def _take_lane(self) -> None:
        self._set_lane(*self.policy.lane, self.policy.call_flags)

    def _of_alias(self, flags: int) -> tuple[int, int]:
        """(side, operation flags) of a new alias."""
        _handle.check(self, "ep.alias")  # type: ignore[arg-type]  # each class has its own _made_in
        side = self._side("ep.alias", Rule.EP_ALIAS_FLAGS, flags)
        return side, int(flags) & ~_SIDES

    # ---- calls that are asked about ----------------------------------------------------------------------------------

    def _ask_about(self) -> None:
        """Name the calls that `_asked` is to see first."""
        if not self.policy.data_writes:
            self._ask(_DATA_WRITES)
        if self.policy.messages is None:
            self._ask(_MESSAGES)
        if self.info.caps & Flag.TRIGGER and self.policy.triggers:
            self._ask(_triggered.NAMES)

    def _asked(self, call: str, /, *args: Any, **more: Any) -> Any:
        """Called by the extension before a call: refuses it, does it, or returns NotImplemented: the call goes on."""
        op = f"{self._called}.{call}"
        if call in _DATA_WRITES and not self.policy.data_writes:
            _handle.check(self, op)  # type: ignore[arg-type]
            raise self._refuse(
                Rule.EP_WRITEDATA,
                f"{op}: this provider delivers no data with a write\n  try: write, then another write of a flag",
            )
        if call in _MESSAGES and self.policy.messages is None:
            _handle.check(self, op)  # type: ignore[arg-type]
            raise self._refuse(Rule.EP_NO_MESSAGES, f"{op}: {self.policy.no_messages}")
        return _triggered.triggered(self, call, args, more)


COMMANDS: dict[int, Callable[[Any, Any], Any]] = {
    int(Control.ENABLE): lambda ep, _: ep.enable(),
    int(Control.ALIAS): lambda ep, arg: ep.alias(arg),
    int(Control.GETOPSFLAG): lambda ep, arg: ep._get_ops_flag(arg),
    int(Control.SETOPSFLAG): lambda ep, arg: ep._set_ops_flag(arg),
}
