"""Fabrics of a real libfabric (fi_fabric). Source: fi_fabric(3)."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

from ... import _nic, _process, errors
from ...fi import _args, _handle
from ...fi.attrs import FabricAttr, Info
from ...fi.fabric import Fabric
from ...fi.registry import find
from ...flags import Flag, WaitObj
from . import info as _info
from ._common import trywait, unless_used
from .domain import RealDomain
from .eq import RealEventQueue
from .library import PREFIX, load
from .pep import RealPassiveEndpoint

__all__ = ["RealFabric"]


class RealFabric(Fabric):
    """A fabric of the library (struct fid_fabric): `fi.Fabric(info.fabric_attr)` with prov_name `ofi:...`.

    The arguments and the errors are `fi.Fabric`'s; a refusal of the library has its number and its text.
    Thread safety: any thread. Source: fi_fabric(3).
    """

    def __init__(self, attr: FabricAttr, context: Any = None) -> None:
        _handle.expect(attr, FabricAttr, "fabric", "attr")
        provider = find(str(attr.prov_name))
        assert provider is not None, "fi.Fabric chose this class by the name"
        load()
        self.provider: Any = provider
        self.attr = attr
        self.context = context
        self._made_in = _process.generation
        self._children: _handle.Children = {}
        self._fids: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # of events
        # Groups that join and insertions with events, until the event is read: (object, context) by the number that the
        # library has for a context.
        self._expected: dict[int, tuple[Any, Any]] = {}
        self._numbers = itertools.count(1)
        fields = {"name": attr.name, "prov_name": str(attr.prov_name).removeprefix(PREFIX)}
        numbers = {"prov_version": int(attr.prov_version), "api_version": int(attr.api_version)}
        self._core = _nic.OfiFabricCore(_nic.ofi_info({"fabric_attr": {**fields, **numbers}}))
        self._site = _handle.here(2)

    def _expect(self, what: Any, context: Any) -> int:
        """A number for an event of `what`."""
        number = next(self._numbers)
        self._expected[number] = (what, context)
        return number

    def _expect_nothing(self, what: Any) -> None:
        """`what` is closed: discard its events."""
        for number in [number for number, (one, _) in self._expected.items() if one is what]:
            del self._expected[number]

    def domain(self, info: Info, flags: int = 0, context: Any = None) -> Any:
        """Open a domain (fi_domain). info: from getinfo, copied. Raises the library's refusal."""
        _handle.check(self, "domain")
        _handle.expect(info, Info, "domain", "info")
        _args.whole("domain", flags=flags)
        if flags:
            raise errors.BadFlags(f"domain: flags {Flag(flags)!s}; none are supported")
        return RealDomain(self, info, context)

    def eq_open(
        self, *, size: int = 0, flags: int = 0, wait_obj: int = WaitObj.WAIT_UNSPEC, context: Any = None
    ) -> Any:
        """Open an event queue (fi_eq_open). Raises the library's refusal."""
        _handle.check(self, "eq_open")
        _args.least("eq_open", _args.U64_MAX, size=size)
        _args.whole("eq_open", flags=flags, wait_obj=wait_obj)
        return RealEventQueue(self, size=size, flags=int(flags), wait_obj=wait_obj, context=context)

    def passive_ep(self, info: Info, context: Any = None) -> Any:
        """Open an endpoint that listens for connection requests (fi_passive_ep). Raises the library's refusal."""
        _handle.check(self, "passive_ep")
        _handle.expect(info, Info, "passive_ep", "info")
        return RealPassiveEndpoint(self, info, context)

    def trywait(self, fids: Iterable[Any]) -> None:
        """Check that it is safe to sleep on the descriptors of these objects (fi_trywait). Raises Again if not, and
        InvalidArgument for an object without a wait object."""
        _handle.check(self, "trywait")
        each = _args.each("trywait", "fids", fids, "queues and counters")
        for fid in each:
            if not hasattr(fid, "fid") or not hasattr(fid, "_has_wait"):
                raise TypeError(f"trywait: fids are queues and counters of this fabric, not {fid!r}")
            _handle.check(fid, "trywait")
        ready = trywait("trywait", self._core, each)
        if not ready or any(getattr(fid, "waiting", int)() for fid in each):
            raise errors.Again(
                "trywait: an object has something to read, or needs progress: read it first", op="trywait"
            )

    def close(self) -> None:
        """Close the fabric (fi_close). Raises Busy, naming them, while domains or event queues on it are open."""
        _handle.close(self, self._core.close, self._children, ())

    def __del__(self, finalize: Any = _handle.finalize) -> None:
        finalize(self, unless_used(self._core, self._core.close) if self._site else None, ())

    def native(self, info: Info) -> _nic.OfiInfo:
        """The library's struct of an Info, which has to be of this provider."""
        name = info.fabric_attr.prov_name
        if name is not None and name != self.provider.name:
            raise errors.InvalidArgument(
                f"the Info is of the provider {name!r}, the fabric of {self.provider.name!r}\n"
                "  try: an Info that getinfo returned for this provider"
            )
        return _info.to_native(info)
