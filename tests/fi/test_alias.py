"""Aliases of endpoints, and operation flags that are set after an endpoint was opened: fi_endpoint(3)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.fi.support import KEY, Node, opened

from weft import fi

QUIET = fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION
TO = {"addr": 0, "key": KEY}
U64 = {"datatype": fi.UINT64, "op": fi.SUM}


@contextlib.contextmanager
def quiet() -> Iterator[tuple[Node, np.ndarray]]:  # type: ignore[type-arg]
    """An endpoint that reports only operations flagged COMPLETION, and its region."""
    with opened(cq_flags=int(QUIET)) as node:
        memory = np.zeros(8, "u8")
        node.reg(memory, requested_key=KEY)
        yield node, memory


def key_of(node: Node) -> int:
    return int(node.domain.regions()[0].key)


WORD = np.full(1, 3, "u8")

CALLS: dict[str, Callable[[fi.Endpoint | fi.EndpointAlias, Node], None]] = {
    "write": lambda ep, n: ep.write(WORD, None, n.me, 0, key_of(n), "c", len=8),
    "writev": lambda ep, n: ep.writev([WORD], None, n.me, 0, key_of(n), "c", count=1),
    "writemsg": lambda ep, n: ep.writemsg(
        fi.MsgRma([WORD], [fi.RmaIov(0, 8, key_of(n))], n.me, context="c"), fi.COMPLETION
    ),
    "read": lambda ep, n: ep.read(np.zeros(1, "u8"), None, n.me, 0, key_of(n), "c"),
    "readv": lambda ep, n: ep.readv([np.zeros(1, "u8")], None, n.me, 0, key_of(n), "c"),
    "readmsg": lambda ep, n: ep.readmsg(
        fi.MsgRma([np.zeros(1, "u8")], [fi.RmaIov(0, 8, key_of(n))], n.me, context="c"), fi.COMPLETION
    ),
    "atomic": lambda ep, n: ep.atomic(WORD, None, n.me, 0, key_of(n), fi.UINT64, fi.SUM, "c"),
    "atomicv": lambda ep, n: ep.atomicv([WORD], None, n.me, 0, key_of(n), fi.UINT64, fi.SUM, "c"),
    "fetch_atomic": lambda ep, n: ep.fetch_atomic(
        WORD, None, np.zeros(1, "u8"), None, n.me, 0, key_of(n), fi.UINT64, fi.SUM, "c"
    ),
    "fetch_atomic of nothing": lambda ep, n: ep.fetch_atomic(
        None, None, np.zeros(1, "u8"), None, n.me, 0, key_of(n), fi.UINT64, fi.ATOMIC_READ, "c"
    ),
    "compare_atomic": lambda ep, n: ep.compare_atomic(
        WORD, None, np.zeros(1, "u8"), None, np.zeros(1, "u8"), None, n.me, 0, key_of(n), fi.UINT64, fi.CSWAP, "c"
    ),
    "write_batch": lambda ep, n: ep.write_batch(WORD, batch(n), "c"),
    "read_batch": lambda ep, n: ep.read_batch(np.zeros(1, "u8"), batch(n), "c"),
}


def batch(node: Node) -> np.ndarray:  # type: ignore[type-arg]
    found = np.zeros(1, fi.RMA_DESC)
    found[0]["length"], found[0]["dest_addr"], found[0]["key"] = 8, node.me, key_of(node)
    return found


@pytest.mark.parametrize("call", CALLS)
def test_transfer_of_an_alias_has_the_flags_of_the_alias(call: str) -> None:
    with quiet() as (node, _), node.ep.alias(fi.TRANSMIT | fi.COMPLETION) as loud:
        CALLS[call](loud, node)
        assert [entry.op_context for entry in node.wait()] == ["c"]
        if "msg" not in call:
            CALLS[call](node.ep, node)  # the endpoint reports nothing, as before
            node.ep.writemsg(
                fi.MsgRma([WORD], [fi.RmaIov(0, 8, key_of(node))], node.me, context="last"),
                int(fi.COMPLETION | fi.FENCE),
            )
            assert [entry.op_context for entry in node.wait()] == ["last"]


@pytest.mark.parametrize("call", CALLS)
def test_transfer_has_the_flags_that_the_endpoint_was_set_to(call: str) -> None:
    with quiet() as (node, _):
        node.ep.control(fi.SETOPSFLAG, fi.TRANSMIT | fi.COMPLETION)
        assert node.ep.control(fi.GETOPSFLAG, fi.TRANSMIT) == fi.COMPLETION
        CALLS[call](node.ep, node)
        assert [entry.op_context for entry in node.wait()] == ["c"]
        assert isinstance(node.ep, fi.Endpoint)


def test_alias_transfers_bytes_and_its_inject_is_silent() -> None:
    with quiet() as (node, memory), node.ep.alias(fi.TRANSMIT | fi.COMPLETION) as loud:
        loud.inject_write(np.full(1, 9, "u8"), node.me, 0, key_of(node))
        loud.write(np.full(4, 7, "u8"), None, node.me, 8, key_of(node), len=16)
        node.wait()
        loud.atomic(np.full(2, 1, "u8"), None, node.me, 24, key_of(node), fi.UINT64, fi.SUM, count=1)
        node.wait()
        assert memory.tolist() == [9, 7, 7, 1, 0, 0, 0, 0]
        assert node.cq.read() == []


def test_alias_inherits_the_flags_of_the_other_side() -> None:
    with quiet() as (node, _):
        node.ep.control(fi.SETOPSFLAG, fi.TRANSMIT | fi.COMPLETION)
        with node.ep.alias(fi.RECV) as alias, alias.alias(fi.TRANSMIT) as second:
            assert alias.control(fi.GETOPSFLAG, fi.TRANSMIT) == fi.COMPLETION
            assert second.control(fi.GETOPSFLAG, fi.TRANSMIT) == 0
            assert node.ep.control(fi.GETOPSFLAG, fi.TRANSMIT) == fi.COMPLETION


def test_endpoint_is_busy_while_an_alias_is_open() -> None:
    with quiet() as (node, _):
        alias = node.ep.control(fi.ALIAS, int(fi.TRANSMIT))
        for mr in node.domain.regions():
            mr.close()
        with pytest.raises(fi.Busy, match="EndpointAlias"):
            node.ep.close()
        alias.close()
        with pytest.raises(fi.BadState, match="closed"):
            alias.write(WORD, None, node.me, 0, KEY)
        node.ep.close()


@pytest.mark.parametrize("flags", [0, int(fi.TRANSMIT | fi.RECV), int(fi.COMPLETION)])
def test_alias_and_op_flags_name_one_side(flags: int) -> None:
    with quiet() as (node, _):
        for call in (
            lambda: node.ep.alias(flags),
            lambda: node.ep.control(fi.GETOPSFLAG, flags),
            lambda: node.ep.control(fi.SETOPSFLAG, flags),
        ):
            with pytest.raises(fi.InvalidArgument, match="exactly one of TRANSMIT and RECV"):
                call()


def test_alias_with_unknown_flags_is_refused() -> None:
    with quiet() as (node, _):
        with pytest.raises(fi.BadFlags, match="op_flags"):
            node.ep.alias(fi.TRANSMIT | fi.PEEK)
        with pytest.raises(fi.BadFlags, match="op_flags"):
            node.ep.control(fi.SETOPSFLAG, fi.TRANSMIT | fi.PEEK)


def test_call_of_an_alias_without_key_or_address_is_refused() -> None:
    with quiet() as (node, _), node.ep.alias(fi.TRANSMIT) as alias:
        for call in (
            lambda: alias.write(WORD, None, node.me, 0),
            lambda: alias.read(np.zeros(1, "u8"), None, node.me, key=KEY),
            lambda: alias.inject_write(WORD, node.me, 0),
            lambda: alias.writedata(WORD, dest_addr=node.me, addr=0, key=KEY),
            lambda: alias.atomic(WORD, None, node.me, 0, KEY),
        ):
            with pytest.raises(TypeError, match="needs the argument"):
                call()
        with pytest.raises(ValueError, match="9"):
            alias.write(WORD, None, node.me, 0, KEY, len=9)
