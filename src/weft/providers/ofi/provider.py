"""The library's providers, as `weft.fi` asks for them by name.

`find` is called by the registry for names that begin with `ofi:`; `offers` by getinfo. Each name gets an object with
what `fi.Fabric` needs: the class of the library's fabrics.

Source: fi_getinfo(3).
"""

from __future__ import annotations

from typing import Any

from ... import errors
from ...fi.offer import Explanation
from ...fi.policy import Asked
from ...flags import VERSION
from ..base import BaseProvider
from . import info as _info
from . import library
from .policy import PassedThrough


class RealProvider(PassedThrough, BaseProvider):
    """A provider of the library, by its name here (`ofi:tcp`). The library decides everything, when it is asked."""

    nothing = "the library has none that meets the hints"

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def version(self) -> int:  # type: ignore[override]
        """Version of the library, or 0.0 while none is loaded."""
        found = library.known()
        return VERSION(0, 0) if found is None else found[1]

    @property
    def fabric_class(self) -> type:  # type: ignore[override]
        """The class of the library's fabrics."""
        from .fabric import RealFabric

        return RealFabric

    def fabrics(self) -> list[str]:
        """The fabrics of the library's offers."""
        asked = Asked(0xFFFFFFFF)
        found = _info.candidates(asked, named=self.name, bare=False)
        return sorted({str(one.info.fabric_attr.name) for one in found if one.info is not None})


_known: dict[str, RealProvider] = {}


def find(name: str) -> RealProvider | None:
    """The provider of a name that begins with `ofi:`."""
    if not name.startswith(library.PREFIX) or len(name) == len(library.PREFIX):
        return None
    return _known.setdefault(name, RealProvider(name))


def offers(asked: Asked, name: str | None, found: Explanation, *, bare: bool) -> None:
    """Add the library's offers to what getinfo found, or a note that says why there are none.

    Args:
        name: The provider that the hints name: `ofi` for all of the library's. None: the request names none.
        bare: The request is for everything.

    Raises:
        NoDevice: The request names the library and none can be loaded.
        InvalidArgument: A bad address.
    """
    if name is None and library.off():
        return
    try:
        found.candidates += _info.candidates(asked, named=None if name in (None, "ofi") else name, bare=bare)
    except errors.NoData as reason:
        found.notes.append(f"{name or 'ofi'}: {library.version_text()} offers nothing: {reason.message}")
    except errors.FabricError as reason:
        if name is not None:
            raise
        found.notes.append(f"ofi offers nothing: {_first_line(reason)}")


def _first_line(reason: errors.FabricError) -> Any:
    return reason.message.replace("\n", " ")
