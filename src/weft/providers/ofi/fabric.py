"""Fabrics of a real libfabric (fi_fabric). Source: fi_fabric(3)."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

from ... import _nic, _process, errors
from ...fi import _args, _handle
from ...fi.attrs import FabricAttr, Info
from ...fi.cq import CompletionQueue
from ...fi.fabric import Fabric
from ...fi.registry import find
from . import info as _info
from ._common import trywait
from .domain import RealDomain
from .eq import RealEventQueue
from .library import PREFIX, load
from .pep import RealPassiveEndpoint


class RealFabric(Fabric):
    """A fabric of the library (struct fid_fabric): `fi.Fabric(info.fabric_attr)` with prov_name `ofi:...`.

    The arguments and the errors are `fi.Fabric`'s; a refusal of the library has its number and its text.
    Thread safety: any thread. Source: fi_fabric(3).
    """

    _domain_class = RealDomain
    _eq_class = RealEventQueue
    _pep_class = RealPassiveEndpoint

    def __init__(self, attr: FabricAttr, context: Any = None) -> None:
        _handle.expect(attr, FabricAttr, "fabric", "attr")
        provider = find(str(attr.prov_name))
        assert provider is not None, "fi.Fabric chose this class by the name"
        load()
        self.provider: Any = provider
        self.attr = attr
        self.context = context
        self._made_in = _process.generation
        self._fids: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # of events
        # Groups that join and insertions with events, until the event is read: (object, context) by the number that the
        # library has for a context.
        self._expected: dict[int, tuple[Any, Any]] = {}
        self._numbers = itertools.count(1)
        fields = {"name": attr.name, "prov_name": str(attr.prov_name).removeprefix(PREFIX)}
        numbers = {"prov_version": int(attr.prov_version), "api_version": int(attr.api_version)}
        self._core = _nic.OfiFabricCore(_nic.ofi_info({"fabric_attr": {**fields, **numbers}}))
        self._opened(2)

    def _expect(self, what: Any, context: Any) -> int:
        """A number for an event of `what`."""
        number = next(self._numbers)
        self._expected[number] = (what, context)
        return number

    def _expect_nothing(self, what: Any) -> None:
        """`what` is closed: discard its events."""
        for number in [number for number, (one, _) in self._expected.items() if one is what]:
            del self._expected[number]

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
        if not ready or any(fid.pending() for fid in each if isinstance(fid, CompletionQueue)):
            raise errors.Again("trywait: an object has something to read, or needs progress: read it first")

    @property
    def in_use(self) -> bool:
        """True while an object that uses this one exists."""
        return self._core.in_use

    def _release(self) -> None:
        self._core.close()

    def native(self, info: Info) -> _nic.OfiInfo:
        """The library's struct of an Info, which has to be of this provider."""
        name = info.fabric_attr.prov_name
        if name is not None and name != self.provider.name:
            raise errors.InvalidArgument(
                f"the Info is of the provider {name!r}, the fabric of {self.provider.name!r}\n"
                "  try: an Info that getinfo returned for this provider"
            )
        return _info.to_native(info)
