"""Connection requests of a real libfabric, and the private data of connection calls. Source: fi_cm(3)."""

from __future__ import annotations

from typing import Any

from ... import errors
from ...fi import _args


class RealRequest:
    """A connection request, as `Info.handle` of a CONNREQ event.

    Attributes:
        answered: The request was accepted or rejected.
        taken: An endpoint was opened for the request: the library's handle belongs to that endpoint, and is freed.
    """

    __slots__ = ("answered", "number", "pep", "taken")

    def __init__(self, pep: Any, number: int) -> None:
        self.pep = pep
        self.number = number
        self.answered = False
        self.taken = False

    def __repr__(self) -> str:
        return f"<ConnectionRequest to {self.pep!r}{', answered' if self.answered else ''}>"


def private_bytes(op: str, param: Any, paramlen: int | None) -> bytes:
    """The private data of a connection call."""
    _args.maybe(op, paramlen=paramlen)
    data = b"" if param is None else _args.octets(op, "param", param)
    if paramlen is not None and paramlen > len(data):
        raise errors.InvalidArgument(f"{op}: paramlen is {paramlen}, param has {len(data)} bytes")
    return bytes(data[:paramlen])
