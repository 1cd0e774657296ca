"""Calls of libfabric that this version of Weft does not have: each raises NoSys.

Source: fi_endpoint(3).
"""

from __future__ import annotations

from typing import Any, ClassVar

from .. import errors
from . import _handle


def _refuse(fid: Any, call: str, what: str) -> errors.FabricError:
    op = f"{fid._called}.{call}"
    _handle.check(fid, op)
    return errors.NoSys(f"{op}: {what}")


_CONTEXTS = "scalable endpoints and shared contexts are not supported"


def _later(name: str, what: str, source: str) -> Any:
    def call(self: Any, *args: object, **more: object) -> Any:
        raise _refuse(self, name, what)

    call.__name__ = name
    call.__doc__ = f"Not in this version: raises NoSys (fi_{name}). Source: {source}."
    return call


class EndpointLater:
    """Contexts of an endpoint."""

    __slots__ = ()
    _called: ClassVar[str]

    tx_context = _later("tx_context", _CONTEXTS, "fi_endpoint(3)")
    rx_context = _later("rx_context", _CONTEXTS, "fi_endpoint(3)")
    tx_size_left = _later("tx_size_left", "this deprecated call is not supported", "fi_endpoint(3)")
    rx_size_left = _later("rx_size_left", "this deprecated call is not supported", "fi_endpoint(3)")


class DomainLater:
    """Scalable endpoints and shared contexts of a domain."""

    __slots__ = ()
    _called: ClassVar[str]

    scalable_ep = _later("scalable_ep", _CONTEXTS, "fi_endpoint(3)")
    stx_context = _later("stx_context", _CONTEXTS, "fi_endpoint(3)")
    srx_context = _later("srx_context", _CONTEXTS, "fi_endpoint(3)")
