"""Shared by the tests of fi_rma(3): regions, messages, and every call that writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fi.support import PROVIDER, RW, Node

from weft import fi

Duo = tuple[Node, Node, int]
KEY = 0x2A


def pattern(count: int, start: int = 1) -> np.ndarray[Any, Any]:
    return (np.arange(start, start + count) % 251).astype(np.uint8)


def region(target: Node, count: int = 256, key: int = KEY, access: int = RW) -> np.ndarray[Any, Any]:
    """Registered, zeroed memory that Weft allocated."""
    memory = target.domain.alloc(count, np.uint8)
    memory.fill(0)
    target.reg(memory, access, requested_key=key)
    return memory


def message(local: Any, peer: int, addr: int, key: int, context: Any = None, **more: Any) -> fi.MsgRma:
    return fi.MsgRma(
        msg_iov=[local], rma_iov=[fi.RmaIov(addr, memoryview(local).nbytes, key)], addr=peer, context=context, **more
    )


def _writemsg(ep: fi.Endpoint, data: Any, peer: int, addr: int, key: int, context: Any) -> None:
    ep.writemsg(message(data, peer, addr, key, context))


def _writev(ep: fi.Endpoint, data: Any, peer: int, addr: int, key: int, context: Any) -> None:
    ep.writev([data[:3], data[3:]], None, peer, addr, key, context)


def _batch(ep: fi.Endpoint, data: Any, peer: int, addr: int, key: int, context: Any) -> None:
    descs = np.zeros(2, fi.RMA_DESC)
    descs["local_offset"] = [0, 5]
    descs["length"] = [5, len(data) - 5]
    descs["dest_addr"] = peer
    descs["remote_addr"] = [addr, addr + 5]
    descs["key"] = key
    ep.write_batch(data, descs, context)


# (name, call, whether it completes on the queue)
WRITES: list[tuple[str, Callable[..., None], bool]] = [
    ("write", lambda ep, d, p, a, k, c: ep.write(d, None, p, a, k, c), True),
    ("writev", _writev, True),
    ("writemsg", _writemsg, True),
    ("inject_write", lambda ep, d, p, a, k, c: ep.inject_write(d, p, a, k), False),
    ("writedata", lambda ep, d, p, a, k, c: ep.writedata(d, None, 7, p, a, k, c), True),
    ("inject_writedata", lambda ep, d, p, a, k, c: ep.inject_writedata(d, 7, p, a, k), False),
    ("write_batch", _batch, True),
]
write_calls = pytest.mark.parametrize(("name", "call", "completes"), WRITES, ids=[w[0] for w in WRITES])


def flush(initiator: Node, peer: int, key: int = KEY) -> None:
    """Wait for all earlier operations of the endpoint, by a fenced read."""
    fence = fi.FENCE if PROVIDER.choose is None else 0  # a real library offers it on request in the hints
    initiator.ep.readmsg(message(np.zeros(1, np.uint8), peer, 0, key, "flush"), fence | fi.COMPLETION)
    while initiator.wait()[0].op_context != "flush":
        pass
