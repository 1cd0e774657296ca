"""The mappings of one domain: memory that peers access by keys that outlive regions, in a bounded number.

For policies whose keys refer to mapped memory, not to a region (`RegionPolicy.enable` returns a mapping). A mapping
that no open region uses is kept, so that peers still reach its memory. It ends when there are too many mappings and it
is the least recently used, when its memory is freed, or when its endpoint is closed, which ends the mapping in the NIC.
A mapping should not outlive its memory: memory that Weft allocated ends its mappings when it is freed; an object with
weak references ends them when it is collected; any other object is kept alive until the mapping ends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import _nic
from ..fi.policy_rules import RegionFacts
from ..flags import Flag

_HELD_BYTES_MAX = 1 << 20
"""An object without weak references is kept alive for its mapping if it has at most this many bytes."""

_READ, _WRITE = int(Flag.REMOTE_READ), int(Flag.REMOTE_WRITE)
_Place = tuple[int, int, int, int]


class Mappings:
    """The mappings of a domain, by endpoint, address, length and access.

    Args:
        count_max: Most unused mappings to keep.
        bytes_max: Most bytes of unused mappings together; None: unlimited.

    Thread safety: any thread.
    """

    def __init__(self, count_max: int, bytes_max: int | None = None) -> None:
        self.count_max, self.bytes_max = count_max, bytes_max
        self._lock = threading.RLock()  # reentrant: collecting an owner may end a mapping inside these methods
        self._users: dict[_Place, int] = {}
        self._found: dict[_Place, _nic.Mapping] = {}
        self._unused: dict[_Place, None] = {}  # least recently used first
        self._unused_bytes = 0
        self._owners: dict[_Place, Any] = {}

    def use(self, region: RegionFacts, make_key: Callable[[], int]) -> _nic.Mapping:
        """The mapping for a region that is bound to one endpoint; `release` undoes the call.

        Args:
            make_key: Called for the key of a new mapping, of at most 64 bits.

        Peers may read and write whole pages, independent of the region's access; read-only memory can only be read.

        Raises:
            NoKey: The key is in use.
            NoSpace: No entry of the NIC is free.
        """
        place = self._place(region)
        with self._lock:
            found = self._found.get(place)
            if found is None or found.closed:
                self._forget(place)
                access = _READ if region.readonly else _READ | _WRITE
                found = _nic.Mapping(
                    region.domain,
                    region.endpoints[0],
                    address=region.address,
                    length=max(region.length, 1),
                    access=access,
                    key=make_key(),
                )
                self._found[place] = found
            self._busy(place)
            self._owners.pop(place, None)  # the region holds its memory
            self._users[place] = self._users.get(place, 0) + 1
            return found

    def release(self, region: RegionFacts) -> bool:
        """A region of `use` is closed. True if peers still reach its memory."""
        place = self._place(region)
        with self._lock:
            self._users[place] -= 1
            if self._users[place]:
                return True
            del self._users[place]
            self._unused[place] = None
            self._unused_bytes += place[2]
            self._keep(place, region)
            most = self._unused_bytes if self.bytes_max is None else self.bytes_max
            while len(self._unused) > self.count_max or self._unused_bytes > most:
                self._forget(next(iter(self._unused)))
            kept = self._found.get(place)
            return kept is not None and not kept.closed

    def evict(self, place: _Place) -> None:
        """End a mapping, unless a region uses it."""
        with self._lock:
            if place not in self._users:
                self._forget(place)

    def close(self) -> None:
        """End all mappings."""
        with self._lock:
            for place in list(self._found):
                self._forget(place)

    def __len__(self) -> int:
        with self._lock:
            return sum(not one.closed for one in list(self._found.values()))

    @staticmethod
    def _place(region: RegionFacts) -> _Place:
        return id(region.endpoints[0]), region.address, region.length, int(region.readonly)

    def _keep(self, place: _Place, region: RegionFacts) -> None:
        owner = _root(region.owner)
        if owner is None or self._found[place].direct:
            return
        try:
            self._owners[place] = weakref.ref(owner, self._ends(place))
        except TypeError:
            if region.length > _HELD_BYTES_MAX:
                self._forget(place)
            else:
                self._owners[place] = owner

    def _ends(self, place: _Place) -> Callable[[object], None]:
        """The callback for the collection of a mapping's owner; it runs before the memory is freed."""
        here = weakref.ref(self)

        def end(_: object) -> None:
            mine = here()
            if mine is not None:
                mine.evict(place)

        return end

    def _busy(self, place: _Place) -> None:
        if place in self._unused:
            del self._unused[place]
            self._unused_bytes -= place[2]

    def _forget(self, place: _Place) -> None:
        self._busy(place)
        self._owners.pop(place, None)
        found = self._found.pop(place, None)
        if found is not None and not found.closed:
            found.close()


def _root(owner: Any) -> Any:
    """The object that owns the memory; views and slices refer to it."""
    seen = 0
    while seen < 64:
        below = getattr(owner, "obj", None) if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if below is None or isinstance(below, int):
            return owner
        owner, seen = below, seen + 1
    return owner
