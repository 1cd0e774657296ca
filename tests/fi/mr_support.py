"""Shared by the tests of memory regions: memory of a node, and a peer's transfers to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fi.support import Node

Duo = tuple[Node, Node, int]


def memory(node: Node, count: int = 64) -> np.ndarray[Any, Any]:
    found = node.domain.alloc(count, np.uint8)
    found.fill(0)
    return found


def put(initiator: Node, peer: int, data: bytes, addr: int, key: int) -> None:
    initiator.ep.write(data, dest_addr=peer, addr=addr, key=key)
    initiator.wait()


def get(initiator: Node, peer: int, count: int, addr: int, key: int) -> bytes:
    back = bytearray(count)
    initiator.ep.read(back, src_addr=peer, addr=addr, key=key)
    initiator.wait()
    return bytes(back)


def refused(initiator: Node, peer: int, addr: int, key: int) -> int:
    """Error number of a one-byte write to the address."""
    initiator.ep.write(b"\xee", dest_addr=peer, addr=addr, key=key)
    return initiator.wait_error().err
