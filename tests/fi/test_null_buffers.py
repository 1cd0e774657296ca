"""None stands for NULL, for both providers: no bytes where none are needed, FI_EINVAL where memory is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened as opened_cxi
from tests.cxi.support import register
from tests.fi.support import KEY, Node, opened

from weft import fi

pytestmark = pytest.mark.general("messages")

CAPS = int(fi.RMA | fi.ATOMIC | fi.MSG | fi.TAGGED)


@pytest.fixture(params=["general", "cxi"])
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """An endpoint that sends to itself, with a region of 64 bytes."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    memory = np.zeros(8, np.uint64)
    with opened_cxi(CAPS) if request.param == "cxi" else opened(CAPS) as found:
        if request.param == "cxi":
            register(found, memory, KEY)
        else:
            found.reg(memory, requested_key=KEY)
        yield found
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most


def to(node: Node, op: int | None = None) -> dict[str, Any]:
    target = {"dest_addr": node.me, "addr": 0, "key": KEY}
    return target if op is None else {**target, "datatype": fi.UINT64, "op": op}


def one() -> np.ndarray[Any, Any]:
    return np.ones(1, np.uint64)


def amo(node: Node, iov: Any, op: int = fi.SUM) -> fi.MsgAtomic:
    return fi.MsgAtomic(iov, [fi.RmaIoc(0, 1, KEY)], node.me, datatype=fi.UINT64, op=op)


Call = Callable[[Node], None]
# fi_rma(3), fi_atomic(3), fi_msg(3): calls that would have to read or store bytes at NULL.
NEEDS_MEMORY: dict[str, Call] = {
    "write": lambda n: n.ep.write(None, **to(n)),
    "writev": lambda n: n.ep.writev([None], **to(n)),
    "inject_write": lambda n: n.ep.inject_write(None, **to(n)),
    "writemsg": lambda n: n.ep.writemsg(fi.MsgRma([None], [fi.RmaIov(0, 8, KEY)], n.me)),
    "readmsg": lambda n: n.ep.readmsg(fi.MsgRma([None], [fi.RmaIov(0, 8, KEY)], n.me)),
    "atomic": lambda n: n.ep.atomic(None, **to(n, fi.SUM)),
    "atomicv": lambda n: n.ep.atomicv([None], **to(n, fi.SUM)),
    "inject_atomic": lambda n: n.ep.inject_atomic(None, **to(n, fi.SUM)),
    "atomicmsg": lambda n: n.ep.atomicmsg(amo(n, [None])),
    "atomicmsg, no list": lambda n: n.ep.atomicmsg(amo(n, None)),
    "fetch_atomic": lambda n: n.ep.fetch_atomic(None, result=one(), **to(n, fi.SUM)),
    "fetch_atomic, result": lambda n: n.ep.fetch_atomic(one(), result=None, **to(n, fi.SUM)),
    "fetch_atomicmsg, result": lambda n: n.ep.fetch_atomicmsg(amo(n, [one()]), [None]),
    "fetch_atomicmsg, no results": lambda n: n.ep.fetch_atomicmsg(amo(n, [one()]), None),
    "compare_atomic": lambda n: n.ep.compare_atomic(None, compare=one(), result=one(), **to(n, fi.CSWAP)),
    "compare_atomic, compare": lambda n: n.ep.compare_atomic(one(), compare=None, result=one(), **to(n, fi.CSWAP)),
    "compare_atomic, result": lambda n: n.ep.compare_atomic(one(), compare=one(), result=None, **to(n, fi.CSWAP)),
    "compare_atomicmsg": lambda n: n.ep.compare_atomicmsg(amo(n, [one()], fi.CSWAP), [None], None, [one()]),
    "sendv": lambda n: n.ep.sendv([None], None, n.me),
    "sendmsg": lambda n: n.ep.sendmsg(fi.Msg([None], None, n.me)),
    "tsendmsg": lambda n: n.ep.tsendmsg(fi.MsgTagged([None], None, n.me, 1)),
    "recvmsg": lambda n: n.ep.recvmsg(fi.Msg([None])),
    "trecvmsg": lambda n: n.ep.trecvmsg(fi.MsgTagged([None], tag=1)),
    "mr_reg": lambda n: n.domain.mr_reg(None, fi.REMOTE_READ, requested_key=KEY + 1),
}
# The same with nothing to read or store.
NEEDS_NONE: dict[str, Call] = {
    "write": lambda n: n.ep.write(None, len=0, **to(n)),
    "writev": lambda n: n.ep.writev(None, **to(n)),
    "writemsg": lambda n: n.ep.writemsg(fi.MsgRma(None, [fi.RmaIov(0, 0, KEY)], n.me)),
    "ATOMIC_READ": lambda n: n.ep.fetch_atomic(None, result=one(), **to(n, fi.ATOMIC_READ)),
    "ATOMIC_READ, message": lambda n: n.ep.fetch_atomicmsg(amo(n, None, fi.ATOMIC_READ), [one()]),
}


@pytest.mark.parametrize("name", NEEDS_MEMORY)
def test_null_where_memory_is_needed_is_invalid(node: Node, name: str) -> None:
    with pytest.raises(fi.InvalidArgument):
        NEEDS_MEMORY[name](node)
    assert not node.cq.read()


@pytest.mark.parametrize("name", NEEDS_NONE)
def test_null_for_no_bytes_completes(node: Node, name: str) -> None:
    NEEDS_NONE[name](node)
    node.wait()


@pytest.mark.parametrize("tagged", [False, True])
def test_null_is_a_message_of_no_bytes(node: Node, tagged: bool) -> None:
    if tagged:
        node.ep.trecv(None, tag=1)
        node.ep.tsend(None, None, node.me, 1)
    else:
        node.ep.recvmsg(fi.Msg(None))
        node.ep.sendmsg(fi.Msg(None, None, node.me))
    assert [entry.len for entry in node.wait(2)] == [0, 0]
