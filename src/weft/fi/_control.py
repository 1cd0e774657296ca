"""fi_control, fi_open_ops, fi_set_ops, fi_get_val and fi_set_val: the same calls on every object.

This module executes the man pages' commands that the provider supports (`CommandRules`); all other commands go to the
provider's policy. Source: fi_control(3), fi_open_ops(3), and the man page of each object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .. import errors
from ..flags import Control, WaitObj
from . import _args, _handle
from .policy import Extensions
from .rules import Rule


class Controlled:
    """An object that accepts commands, and has calls and values of its provider."""

    __slots__ = ()
    _called: ClassVar[str] = ""  # the object's name in messages and CommandRules
    _commands: ClassVar[Mapping[int, Callable[[Any, Any], Any]]] = {}  # of the man pages

    @property
    def _extensions(self) -> Extensions:
        """The policy that handles everything beyond the man pages."""
        found: Extensions = self.domain.policy  # type: ignore[attr-defined]
        return found

    def control(self, command: int, arg: Any = None) -> Any:
        """Run a command on the object (fi_control).

        Args:
            command: `fi.ENABLE`, `fi.GETWAIT` ...: a command of the object's man page, or of the provider.
            arg: The argument of the command; a value that C writes through a pointer is returned.

        Raises:
            NoSys: The provider does not have the command.
            FabricError: The command fails.

        Source: fi_control(3).
        """
        op = f"{self._called}.control"
        _handle.check(self, op)  # type: ignore[arg-type]  # each class has its own _made_in
        number = _args.command(op, command=command)
        policy = self._extensions
        known = number in self._commands and number in policy.commands.of(self._called)
        if known:
            return self._commands[number](self, arg)
        if number in (Control.GET_VAL, Control.SET_VAL):
            name, value = _variable(op, arg)
            return self.get_val(name) if number == Control.GET_VAL else self.set_val(name, value)
        return policy.control(self, number, arg)

    def _has(self, command: int, arg: Any = None) -> None:
        """Refuse a method whose C command the provider does not support."""
        if command not in self._extensions.commands.of(self._called):
            self._extensions.control(self, command, arg)

    def open_ops(self, name: str, flags: int = 0) -> Any:
        """The provider's own calls, beyond libfabric's interface (fi_open_ops).

        Args:
            name: Name of the set of calls.
            flags: 0, unless the provider knows some.

        Raises:
            NoSys: The provider has no calls of that name.
            BadFlags: Unknown flags.

        Source: fi_open_ops(3).
        """
        op = f"{self._called}.open_ops"
        _handle.check(self, op)  # type: ignore[arg-type]
        if not isinstance(name, str):
            raise TypeError(f"{op}: name must be a str, not {name!r}")
        _args.whole(op, flags=flags)
        return self._extensions.open_ops(self, name, flags)

    def set_ops(self, name: str, ops: Any, flags: int = 0) -> None:
        """Replace the provider's own calls by calls of the application (fi_set_ops).

        Args:
            name: Name of the set of calls.
            ops: The calls.
            flags: 0, unless the provider knows some.

        Raises:
            NoSys: The provider has no calls of that name.

        Source: fi_set_ops(3).
        """
        op = f"{self._called}.set_ops"
        _handle.check(self, op)  # type: ignore[arg-type]
        if not isinstance(name, str):
            raise TypeError(f"{op}: name must be a str, not {name!r}")
        _args.whole(op, flags=flags)
        self._extensions.set_ops(self, name, flags, ops)

    def get_val(self, name: int) -> Any:
        """A value of the provider (fi_get_val). Raises NoSys for a value that the provider does not have."""
        op = f"{self._called}.get_val"
        _handle.check(self, op)  # type: ignore[arg-type]
        return self._extensions.get_val(self, _args.command(op, name=name))

    def set_val(self, name: int, value: Any) -> None:
        """Set a value of the provider (fi_set_val). Raises NoSys for a value that the provider does not have."""
        op = f"{self._called}.set_val"
        _handle.check(self, op)  # type: ignore[arg-type]
        self._extensions.set_val(self, _args.command(op, name=name), value)


def _variable(op: str, arg: Any) -> tuple[int, Any]:
    """The argument of FI_GET_VAL and FI_SET_VAL: struct fi_fid_var as a pair."""
    if not isinstance(arg, tuple) or len(arg) != 2:
        raise errors.InvalidArgument(f"{op}: GET_VAL and SET_VAL take a pair (name, value), not {arg!r}")
    return arg


def _wait(fid: Any, arg: Any) -> Any:
    """FI_GETWAIT: the descriptor, or under FI_WAIT_POLLFD a list of them."""
    if fid.fd < 0:
        op = f"{fid._called}.control(GETWAIT)"
        owner = fid.fabric.provider if fid._called == "eq" else fid.domain.policy
        raise owner.refusals.refuse(
            Rule.GETWAIT_NONE, f"{op}: opened with {fid.wait_obj!s}, no descriptor\n  try: wait_obj=fi.WAIT_FD"
        )
    return [fid.fd] if fid.wait_obj == WaitObj.WAIT_POLLFD else fid.fd


WAITING: dict[int, Callable[[Any, Any], Any]] = {
    int(Control.GETWAIT): _wait,
    int(Control.GETWAITOBJ): lambda fid, _: fid.wait_obj,
}
"""The commands of queues and counters."""
