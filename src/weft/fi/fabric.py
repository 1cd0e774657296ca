"""Fabrics (fi_fabric): a provider opened for use. Source: fi_fabric(3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _process, errors
from ..flags import Flag, WaitObj
from . import _args, _handle, _offered
from .attrs import FabricAttr, Info
from .cm import PassiveEndpoint
from .cntr import Counter
from .cq import CompletionQueue
from .domain import Domain
from .eq import EventQueue
from .policy import Provider
from .registry import find, providers
from .rules import Refusals, Rule


class Fabric(_handle.Life):
    """A provider opened for use (struct fid_fabric).

    Args:
        attr: `info.fabric_attr` of an Info from getinfo; prov_name decides which provider.

    Raises:
        NoDevice: There is no such provider, or the provider has no such fabric.

    Thread safety: any thread. Source: fi_fabric(3) fi_fabric.
    """

    _domain_class: type[Any] = Domain
    _eq_class: type[Any] = EventQueue
    _pep_class: type[Any] = PassiveEndpoint

    def __new__(cls, attr: FabricAttr, context: Any = None) -> Fabric:
        """Choose the provider's own class, if the provider has one."""
        provider = find(getattr(attr, "prov_name", None))
        made = cls if provider is None or cls is not Fabric else provider.fabric_class or cls
        return object.__new__(made)

    def __init__(self, attr: FabricAttr, context: Any = None) -> None:
        _handle.expect(attr, FabricAttr, "fabric", "attr")
        provider = find(attr.prov_name)
        if provider is None:
            known = ", ".join(p.name for p in providers())
            raise Refusals().refuse(
                Rule.FABRIC_UNKNOWN,
                f"fabric: no provider {attr.prov_name!r}; here: {known}\n  try: info.fabric_attr of getinfo",
            )
        _offered.fabric(provider, attr)
        self.provider: Provider = provider
        self.attr = attr
        self.context = context
        self._made_in = _process.generation
        self._opened(2)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.attr.name or self.provider.name)

    def domain(self, info: Info, flags: int = 0, context: Any = None) -> Domain:
        """Open a domain (fi_domain).

        Args:
            info: An Info from getinfo, copied. All bits of its domain_attr.mr_mode are in force, also bits that the
                provider does not require.
            flags: 0.

        Raises:
            NoDevice: There is no such domain.
            InvalidArgument: The provider requires an mr_mode bit that is not set, or no offer of the provider matches
                the Info.
            BadFlags: Unknown flags.

        Source: fi_domain(3) fi_domain.
        """
        _handle.check(self, "domain")
        _handle.expect(info, Info, "domain", "info")
        _args.whole("domain", flags=flags)
        if flags:
            raise self.provider.refusals.refuse(
                Rule.DOMAIN_FLAGS, f"domain: flags {Flag(int(flags))!s}; none are supported"
            )
        opened: Domain = self._domain_class(self, info, context)
        return opened

    def eq_open(
        self, *, size: int = 0, flags: int = 0, wait_obj: int = WaitObj.WAIT_UNSPEC, context: Any = None
    ) -> EventQueue:
        """Open an event queue (fi_eq_open).

        Args:
            size: A hint: the queue grows as it needs.
            flags: `fi.WRITE`: the application will write events of its own.
            wait_obj: `fi.WAIT_UNSPEC` for sread, `fi.WAIT_FD` for sread and a descriptor, `fi.WAIT_NONE` for neither.

        Raises:
            BadFlags: Unknown flags.
            InvalidArgument: `size` is negative.
            NoSys: There is no such wait object.

        Source: fi_eq(3) fi_eq_open.
        """
        _handle.check(self, "eq_open")
        _args.least("eq_open", _args.U64_MAX, size=size)
        _args.whole("eq_open", flags=flags)
        opened: EventQueue = self._eq_class(self, size=size, flags=int(flags), wait_obj=wait_obj, context=context)
        return opened

    def passive_ep(self, info: Info, context: Any = None) -> PassiveEndpoint:
        """Open an endpoint that listens for connection requests (fi_passive_ep).

        Args:
            info: An Info from getinfo, of type `fi.EP_MSG`; copied.
            context: Any object, kept as `pep.context`.

        Raises:
            InvalidArgument: The Info is of another type.

        Source: fi_endpoint(3) fi_passive_ep.
        """
        _handle.check(self, "passive_ep")
        _handle.expect(info, Info, "passive_ep", "info")
        opened: PassiveEndpoint = self._pep_class(self, info, context)
        return opened

    def trywait(self, fids: Iterable[CompletionQueue | Counter | EventQueue]) -> None:
        """Check that it is safe to sleep on the descriptors of these objects (fi_trywait).

        Returns if none of the objects has an entry to read. Raises Again if an object has an entry (read it first),
        InvalidArgument for an object opened with WAIT_NONE. Source: fi_poll(3) fi_trywait.
        """
        _handle.check(self, "trywait")
        refuse = self.provider.refusals.refuse
        for fid in _args.each("trywait", "fids", fids, "queues and counters"):
            if not isinstance(fid, (CompletionQueue, Counter, EventQueue)):
                raise TypeError(f"trywait: fids are queues and counters, not {fid!r}")
            _handle.check(fid, "trywait")
            if fid._called not in self.provider.trywaits:
                raise refuse(
                    Rule.TRYWAIT_KIND,
                    f"trywait: {self.provider.name} does not support {fid!r}\n"
                    "  try: completion queues alone; read() of the others",
                )
            if fid.wait_obj == WaitObj.WAIT_NONE:
                raise refuse(Rule.TRYWAIT_NONE, f"trywait: {fid!r} has no wait object\n  try: wait_obj=fi.WAIT_FD")
            ready = not fid.trywait() if not isinstance(fid, Counter) else False
            if ready:
                raise errors.Again(f"trywait: {fid!r} has something to read")

    def __repr__(self) -> str:
        return f"<Fabric {self.name} {'closed' if self._closed else 'open'}>"


def trywait(fabric: Fabric, fids: Iterable[CompletionQueue | Counter | EventQueue], count: int | None = None) -> None:
    """`Fabric.trywait` under C's name (fi_trywait).

    Args:
        count: Number of the objects to check; None for all.

    Source: fi_poll(3) fi_trywait.
    """
    _handle.expect(fabric, Fabric, "trywait", "fabric")
    _args.maybe("trywait", count=count)
    fabric.trywait(_args.each("trywait", "fids", fids, "queues and counters")[:count])
