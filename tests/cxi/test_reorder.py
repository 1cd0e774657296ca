"""WEFT_CXI_REORDER: operations overtake each other wherever nothing orders them. fi_cxi(7) "Message Ordering".

Each pair of operations is posted many times under several seeds: with the order bit that ties them the second never
takes effect first; without it, it does at some time.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import CAPS, RW, opened, register
from tests.fi.support import Node
from tests.patience import Patience

from weft import cxi, fi

SEEDS, ROUNDS = range(8), 16
STANDARD, OPTIMIZED = 200, 7
WORDS = 8191  # of the 64 KiB that an endpoint reaches; the last word is of fences


class Ends:
    """An endpoint that reaches 64 KiB of its own, and what pairs of operations do there."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.memory = np.zeros(8192, np.uint64)
        register(node, self.memory, STANDARD)
        self.how: dict[str, Any] = {"dest_addr": node.me, "addr": 0, "key": STANDARD}
        self._held: list[Any] = []

    def number(self, n: int) -> Any:
        """A buffer that lives as long as its operation."""
        self._held.append(np.array([n], np.uint64))
        return self._held[-1]

    def post(self, kind: str, n: int, ep: Any = None) -> Any:
        """Begin operation `n`: a write writes n; returns the place where a read puts the bytes that it found."""
        ep, buf = ep or self.node.ep, self.number(n)
        atomic = {**self.how, "datatype": fi.UINT64, "context": n}
        if kind == "write":
            ep.write(buf, context=n, **self.how)
        elif kind == "read":
            ep.read(buf, None, self.node.me, 0, STANDARD, n)
        elif kind == "update":
            ep.atomic(buf, op=fi.ATOMIC_WRITE, **atomic)
        else:
            ep.fetch_atomic(None, result=buf, op=fi.ATOMIC_READ, **atomic)
        return buf

    def settle(self) -> list[Any]:
        """Everything is done and in memory. Returns the contexts in the order of completion."""
        fence = fi.MsgRma([self.number(0)], [fi.RmaIov(65528, 8, STANDARD)], self.node.me, None, "fence")
        self.node.ep.writemsg(fence, int(fi.COMPLETION | cxi.WEAK_FENCE))
        seen: list[Any] = []
        while "fence" not in seen:
            seen += [entry.op_context for entry in self.node.cq.sread(timeout=10.0)]
        self._held.clear()
        seen.remove("fence")
        return seen

    def overtakes(self, first: str, second: str, second_ep: Any = None) -> bool:
        """Post both; whether the second took effect first."""
        self.memory[0] = 0
        one, two = self.post(first, 1), self.post(second, 2, second_ep)
        completed = self.settle()
        if first in ("read", "fetch") and second in ("read", "fetch"):
            return completed == [2, 1]
        if second in ("read", "fetch"):
            return int(two[0]) == 0
        if first in ("read", "fetch"):
            return int(one[0]) == 2
        return int(self.memory[0]) == 1


@contextlib.contextmanager
def ends(monkeypatch: pytest.MonkeyPatch, seed: int | None, order: int = 0, **more: Any) -> Iterator[Ends]:
    def ordered(info: fi.Info) -> None:
        info.tx_attr.msg_order = fi.Order(order)
        for name, value in more.items():
            setattr(info.ep_attr, name, value)

    if seed is None:
        monkeypatch.delenv("WEFT_CXI_REORDER", raising=False)
    else:
        monkeypatch.setenv("WEFT_CXI_REORDER", str(seed))
    with opened(edit=ordered) as node:
        yield Ends(node)


def ever(monkeypatch: pytest.MonkeyPatch, first: str, second: str, order: int, **more: Any) -> bool:
    """Whether the second of the two ever took effect first."""
    for seed in SEEDS:
        with ends(monkeypatch, seed, order, **more) as at:
            if any(at.overtakes(first, second) for _ in range(ROUNDS)):
                return True
    return False


EVERY = int(
    fi.ORDER_WAW | fi.ORDER_RMA_WAW | fi.ORDER_RMA_RAR | fi.ORDER_ATOMIC_WAW | fi.ORDER_ATOMIC_WAR
    | fi.ORDER_ATOMIC_RAW | fi.ORDER_ATOMIC_RAR
)  # fmt: skip
PAIRS = {
    ("write", "write"): fi.ORDER_RMA_WAW | fi.ORDER_WAW,
    ("read", "read"): fi.ORDER_RMA_RAR,
    ("update", "update"): fi.ORDER_ATOMIC_WAW | fi.ORDER_WAW,
    ("update", "fetch"): fi.ORDER_ATOMIC_RAW | fi.ORDER_WAW,
    ("fetch", "update"): fi.ORDER_ATOMIC_WAR | fi.ORDER_WAW,
    ("fetch", "fetch"): fi.ORDER_ATOMIC_RAR,
    ("write", "update"): fi.ORDER_WAW,
    ("update", "write"): fi.ORDER_WAW,
    ("write", "fetch"): fi.ORDER_WAW,
    ("fetch", "write"): fi.ORDER_WAW,
    ("write", "read"): fi.Order(0),
    ("read", "write"): fi.Order(0),
}
"""Two operations -> the bits, each of which orders them."""


@pytest.mark.clause(
    "cxi.order.rma-waw", "cxi.order.amo-waw", "cxi.order.amo-war", "cxi.order.amo-raw", "cxi.order.amo-rar",
    "cxi.order.waw", "cxi.order.fetch-as-read",
)  # fmt: skip
@pytest.mark.parametrize(
    ("pair", "bit"), [(pair, bit) for pair, bits in PAIRS.items() for bit in fi.Order(bits)], ids=str
)
def test_order_bit_keeps_the_second_behind_the_first(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str], bit: int
) -> None:
    assert not ever(monkeypatch, *pair, int(bit))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_without_its_order_bits_the_second_overtakes_the_first(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]
) -> None:
    assert ever(monkeypatch, *pair, EVERY & ~int(PAIRS[pair]))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_without_a_seed_nothing_overtakes(monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]) -> None:
    with ends(monkeypatch, None) as at:
        assert not any(at.overtakes(*pair) for _ in range(ROUNDS))


@pytest.mark.clause("cxi.order.waw-any-size")
@pytest.mark.parametrize(("limit", "overtaken"), [(8, False), (7, True)])
def test_order_holds_up_to_its_size(monkeypatch: pytest.MonkeyPatch, limit: int, overtaken: bool) -> None:
    assert ever(monkeypatch, "write", "write", int(fi.ORDER_WAW), max_order_waw_size=limit) is overtaken
    assert ever(monkeypatch, "update", "fetch", int(fi.ORDER_ATOMIC_RAW), max_order_raw_size=limit) is overtaken
    assert ever(monkeypatch, "fetch", "update", int(fi.ORDER_ATOMIC_WAR), max_order_war_size=limit) is overtaken


@pytest.mark.clause("cxi.order.raw-any-size", "cxi.order.war-any-size")
@pytest.mark.parametrize(("order", "overtaken"), [(fi.ORDER_WAW, False), (fi.Order(0), True)], ids=["WAW", "none"])
@pytest.mark.parametrize("fetch_first", [False, True], ids=["write-fetch", "fetch-write"])
def test_fetching_atomic_keeps_its_place_beside_a_write_of_64_kib(
    monkeypatch: pytest.MonkeyPatch, fetch_first: bool, order: int, overtaken: bool
) -> None:
    last = WORDS - 1
    found = set()
    for seed in SEEDS:
        with ends(monkeypatch, seed, int(order)) as at:
            for _ in range(ROUNDS):
                at.memory[:WORDS] = 0
                big, got = np.ones(WORDS, np.uint64), np.full(1, 7, np.uint64)
                steps = [
                    lambda at=at, big=big: at.node.ep.write(big, context="write", **at.how),
                    lambda at=at, got=got: at.node.ep.fetch_atomic(
                        None, result=got, op=fi.ATOMIC_READ, context="fetch", datatype=fi.UINT64,
                        **{**at.how, "addr": 8 * last},
                    ),
                ]  # fmt: skip
                for step in reversed(steps) if fetch_first else steps:
                    step()
                at.settle()
                found.add(int(got[0]) == fetch_first)
                assert int(at.memory[last]) == 1
    assert (True in found) is overtaken


def test_only_unordered_writes_complete_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(seed: int, order: int) -> list[Any]:
        with ends(monkeypatch, seed, order) as at:
            for n in range(10):
                at.post("write", n + 1)
            return at.settle()

    in_order = list(range(1, 11))
    assert all(completed(seed, int(fi.ORDER_WAW)) == in_order for seed in SEEDS)
    found = [completed(seed, 0) for seed in SEEDS]
    assert all(sorted(one) == in_order for one in found)
    assert any(one != in_order for one in found)


def test_one_seed_gives_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(seed: int) -> tuple[Any, ...]:
        while True:
            with ends(monkeypatch, seed) as at:
                began = time.monotonic()
                for n in range(8):
                    at.post("write", n + 1)
                if time.monotonic() - began < 0.015:  # else time may have ended what the seed kept
                    return tuple(at.settle())

    runs = {seed: {completed(seed) for _ in range(2)} for seed in SEEDS}
    assert all(len(orders) == 1 for orders in runs.values())
    assert len(set(itertools.chain.from_iterable(runs.values()))) > 1


@pytest.mark.clause("cxi.alias.weak-fence")
def test_fence_lets_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        with ends(monkeypatch, seed) as at, at.node.ep.alias(fi.TRANSMIT) as alias:
            for _ in range(ROUNDS):
                at.memory[0] = 0
                at.post("write", 1)
                fenced = fi.MsgRma([at.number(2)], [fi.RmaIov(0, 8, STANDARD)], at.node.me, None, 2)
                alias.writemsg(fenced, int(fi.COMPLETION | cxi.WEAK_FENCE))
                assert at.settle() == [1, 2]
                assert at.memory[0] == 2


@pytest.mark.clause("cxi.alias.no-order-tclass")
def test_alias_of_another_class_overtakes_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in SEEDS:
        with ends(monkeypatch, seed, EVERY) as at, at.node.ep.alias(fi.TRANSMIT) as alias:
            alias.set_val(cxi.OPT_CXI_SET_TCLASS, fi.TC_LOW_LATENCY)
            found |= {at.overtakes("write", "update", alias) for _ in range(ROUNDS)}
            at.post("write", 1, alias)
            at.post("update", 2, alias)
            assert at.settle() == [1, 2], "operations of one alias keep their order"
    assert found == {True, False}


@pytest.mark.clause("cxi.alias.no-order-modified", "cxi.alias.msg-order")
def test_order_of_an_alias_ties_its_operations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = set(), set()
    for seed in SEEDS:
        with ends(monkeypatch, seed, EVERY) as at, at.node.ep.alias(fi.TRANSMIT) as alias:
            alias.set_val(cxi.OPT_CXI_SET_MSG_ORDER, int(fi.ORDER_ATOMIC_WAW))
            other |= {at.overtakes("write", "update", alias) for _ in range(ROUNDS)}
            for _ in range(ROUNDS):
                at.memory[0] = 0
                at.post("write", 1, alias)
                at.post("update", 2, alias)
                at.settle()
                own.add(int(at.memory[0]))
                at.post("update", 1, alias)
                at.post("update", 2, alias)
                at.settle()
                assert at.memory[0] == 2, "the order that was set"
    assert own == {1, 2}, "the endpoint's order of writes and atomics is overridden"
    assert other == {True, False}


@pytest.mark.clause("cxi.pcie.order")
def test_pcie_atomics_are_not_ordered_with_other_atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in SEEDS:
        with ends(monkeypatch, seed, EVERY) as at:
            for _ in range(ROUNDS):
                at.memory[0] = 0
                at.post("update", 5)
                result = at.number(0)
                add = fi.MsgAtomic(
                    [at.number(1)], [fi.RmaIoc(0, 1, STANDARD)], at.node.me, fi.UINT64, fi.SUM, None, "pcie"
                )
                at.node.ep.fetch_atomicmsg(add, [result], None, int(fi.COMPLETION | cxi.PCIE_AMO))
                at.settle()
                found.add(int(result[0]))
    assert found == {0, 5}


# ---- nothing is lost -------------------------------------------------------------------------------------------------


def test_everything_arrives_although_nobody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        with ends(monkeypatch, seed) as at:
            for n in range(20):
                at.node.ep.inject_write(np.array([n + 1], np.uint64), at.node.me, 8 * n, STANDARD)
            deadline = Patience(30)
            while not at.memory[:20].all():
                assert not deadline.over, at.memory[:20]
                time.sleep(0.001)
            assert at.memory[:20].tolist() == list(range(1, 21))


def test_closing_the_endpoint_or_the_region_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late = 0
    for seed in SEEDS:
        with opened() as target:
            memory = np.zeros(32, np.uint64)
            mr = target.domain.mr_reg(memory, RW, requested_key=STANDARD)
            mr.bind(target.ep)
            mr.enable()
            with ends(monkeypatch, seed) as at:
                peer = at.node.av.insert(target.ep.getname())
                for n in range(16):
                    at.node.ep.inject_write(np.array([n + 1], np.uint64), peer, 8 * n, STANDARD)
            assert memory[:16].tolist() == list(range(1, 17)), "the endpoint is closed"
            with ends(monkeypatch, seed) as at:
                peer = at.node.av.insert(target.ep.getname())
                for n in range(16, 32):
                    at.node.ep.write(at.number(n + 1), None, peer, 8 * n, STANDARD, n)
                at.node.wait(16)
                late += int(not memory.all())
                mr.close()
                assert memory.tolist() == list(range(1, 33)), "the region is closed"
    assert late, "some writes landed when the region was closed"


def test_counter_waits_for_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REORDER", "3")
    with opened(enable=False) as node:
        cntr = node.domain.cntr_open()
        node.keep(cntr)
        node.ep.bind(cntr, fi.WRITE)
        node.ep.enable()
        memory = np.zeros(32, np.uint64)
        register(node, memory, STANDARD)
        for n in range(32):
            node.ep.inject_write(np.array([n + 1], np.uint64), node.me, 8 * n, STANDARD)
        cntr.wait(32, timeout=10.0)
        assert memory.tolist() == list(range(1, 33))


def test_seed_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REORDER", "chaos")
    with pytest.raises(fi.InvalidArgument, match="WEFT_CXI_REORDER"), opened(CAPS):
        pass


# ---- the target's memory ---------------------------------------------------------------------------------------------

PACKETS = 4


def landings(monkeypatch: pytest.MonkeyPatch, target: str, order: int) -> set[tuple[bool, ...]]:
    """Which packets of acknowledged writes were in the target's memory while other packets were not."""
    monkeypatch.setenv("FI_CXI_MR_TARGET_ORDERING", target)
    seen = set()
    for seed in SEEDS:
        with ends(monkeypatch, seed, order) as at:
            for n in range(1, ROUNDS + 1):
                data = np.full(PACKETS * 2048, n, np.uint8)
                at.node.ep.write(data, context=n, **at.how)
                seen.add(tuple(bool(at.memory.view(np.uint8)[2048 * i] == n) for i in range(PACKETS)))
                at.settle()
    return seen


def in_order(landed: tuple[bool, ...]) -> bool:
    return sorted(landed, reverse=True) == list(landed)


@pytest.mark.parametrize("order", [0, int(fi.ORDER_RMA_WAW)])
def test_strict_target_ordering_lands_packets_in_order(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    assert all(in_order(one) for one in landings(monkeypatch, "strict", order))


@pytest.mark.parametrize("order", [0, int(fi.ORDER_RMA_WAW)])
def test_relaxed_target_ordering_lands_the_last_packet_before_others(
    monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    assert any(one[-1] and not all(one) for one in landings(monkeypatch, "relaxed", order))


def test_default_target_ordering_of_ordered_writes_lands_the_last_packet_last(monkeypatch: pytest.MonkeyPatch) -> None:
    found = landings(monkeypatch, "default", int(fi.ORDER_RMA_WAW))
    assert not any(one[-1] and not all(one) for one in found)
    assert not all(in_order(one) for one in found)
