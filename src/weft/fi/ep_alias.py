"""Aliases of endpoints (fi_ep_alias): the same endpoint of the NIC, with operation flags of their own.

Source: fi_endpoint(3) fi_ep_alias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _nic
from ..flags import Flag
from . import _handle
from ._control import Controlled
from ._counted import Counted
from ._later import EndpointLater
from ._ops_flag import COMMANDS, OpFlags
from .policy import Extensions

if TYPE_CHECKING:
    from .domain import Domain
    from .endpoint import Endpoint


class OfOriginal:
    """Calls of an alias that are its original's."""

    original: Any

    def _parents(self) -> tuple[Any, ...]:
        return (self.original,)

    @property
    def caps(self) -> Flag:
        """The capabilities of the original."""
        return Flag(self.original.caps)

    @property
    def enabled(self) -> bool:
        """Whether the original is enabled."""
        return bool(self.original.enabled)

    def enable(self) -> None:
        """Enable the original (fi_enable)."""
        _handle.check(self, "ep.enable")  # type: ignore[arg-type]  # each class has its own _made_in
        self.original.enable()

    def bind(self, fid: Any, flags: int = 0) -> None:
        """Bind to the original (fi_ep_bind)."""
        _handle.check(self, "ep.bind")  # type: ignore[arg-type]
        self.original.bind(fid, flags)

    def getname(self) -> Any:
        """The address of the original (fi_getname)."""
        _handle.check(self, "ep.getname")  # type: ignore[arg-type]
        return self.original.getname()

    def getopt(self, level: int, optname: int) -> Any:
        """An option of the original (fi_getopt)."""
        _handle.check(self, "ep.getopt")  # type: ignore[arg-type]
        return self.original.getopt(level, optname)

    def setopt(self, level: int, optname: int, optval: Any) -> None:
        """Set an option of the original (fi_setopt)."""
        _handle.check(self, "ep.setopt")  # type: ignore[arg-type]
        self.original.setopt(level, optname, optval)

    def cancel(self, context: object) -> None:
        """Cancel an operation of the endpoint or of any alias (fi_cancel)."""
        _handle.check(self, "ep.cancel")  # type: ignore[arg-type]
        self.original.cancel(context)


class EndpointAlias(OfOriginal, OpFlags, Controlled, Counted, EndpointLater, _handle.LifeInDomain, _nic.EndpointCore):
    """Another view of an endpoint (struct fid_ep). Made by `Endpoint.alias`.

    Its transfers use the original's address, queues, counters and address vector. It has its own flags, and its own
    values of the settings that the provider allows. Close the aliases before the original.

    Thread safety: any thread. Source: fi_endpoint(3) fi_ep_alias.
    """

    _called = "ep"
    _commands = COMMANDS

    def __init__(
        self, original: Endpoint, parent: Endpoint | EndpointAlias, side: int, flags: int, context: Any
    ) -> None:
        self.original: Endpoint = original
        self.domain: Domain = original.domain
        self.info = original.info
        self.context = context
        self.policy = parent.policy.alias()
        super().__init__(parent)
        self._refuse = original._refuse
        self._op_flags = {**parent._op_flags}
        self._take_flags(side, flags)
        self._take_lane()
        self._opened(3, original)

    @property
    def _extensions(self) -> Extensions:
        return self.policy

    def _asked(self, call: str, /, *args: Any, **more: Any) -> Any:
        found = super()._asked(call, *args, **more)
        _handle.check(self, "transfer")  # a closed alias is asked about every call
        return found

    def alias(self, flags: int = 0, context: Any = None) -> EndpointAlias:
        """Another alias of the original, with these flags instead of this one's (fi_ep_alias)."""
        side, op_flags = self._of_alias(flags)
        return EndpointAlias(self.original, self, side, op_flags, context)

    def _release(self) -> None:
        _nic.EndpointCore.close(self)

    def __repr__(self) -> str:
        flags = Flag(self._op_flags[int(Flag.TRANSMIT)])
        return f"<EndpointAlias {'closed' if self._closed else f'of {self.original!r}, {flags!s}'}>"
