"""Address vector sets of a real libfabric (fi_av_set). Source: fi_av_set(3)."""

from __future__ import annotations

from typing import Any

from ... import _nic, errors
from ...fi import _args, _handle
from ...fi.av_set import AvSet, AvSetAttr, Named, Range, named
from ...flags import AvSetFlag

_COUNT_MAX = 1 << 16  # the library makes room for this number; each join opens a set with room for its members


class RealAvSet(AvSet):
    """An ordered list of addresses of a vector of the library, without duplicates. Made by `AddressVector.av_set`.

    The list is kept here, and each join gives the library a set of its own, because the library reads the set of a
    group as long as the group is open: a later change of the set would change the group.
    Thread safety: any thread. Source: fi_av_set(3).
    """

    av: Any

    def __init__(self, av: Any, attr: AvSetAttr, context: Any) -> None:
        super().__init__(av, attr, context)
        self._flags = int(attr.flags) & ~int(AvSetFlag.UNIVERSE)
        self._site = _handle.here(3)
        try:
            _nic.ofi_av_set_valid(av, min(int(attr.count), _COUNT_MAX), self.comm_key, self._flags)
        except errors.FabricError:
            self.close()
            raise

    def _in_use(self, of: Range) -> list[int]:
        found = [at for at in sorted(self.av._inserted) if of.first <= at <= of.last]
        return [at for at in found if (at - of.first) % of.stride == 0][: of.most]

    def _named(self, attr: AvSetAttr) -> Named:
        return named(self.av, attr, self._key)

    def _key(self, attr: AvSetAttr) -> bytes | None:
        """The provider's own bytes, which the library checks."""
        size = int(attr.comm_key_size)
        if attr.comm_key is None:
            if size:
                raise errors.InvalidArgument(f"av_set: comm_key is None, but comm_key_size is {size}")
            return None
        key = _args.octets("av_set", "comm_key", attr.comm_key)
        if size > len(key):
            raise errors.InvalidArgument(f"av_set: comm_key of {len(key)} bytes, comm_key_size {size}")
        return bytes(key[: size or len(key)])
