"""Messages without a receive: their buffers, and ep_get_unexp_msgs (fi_cxi(7) "Messaging", "CXI Domain Extensions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cxi.match_support import (
    CAPS,
    flood,
    payload,
    receive_all,
    talkers,
)
from tests.cxi.support import opened
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import env

Match = Callable[..., None]
LENGTH = 4000
BUFFER = 8192  # bytes: two messages of 4000 bytes
both = pytest.mark.parametrize("mode", ["hardware", "software"])


def sized(match: Match, mode: str, **sizes: Any) -> None:
    """Sets the variables of the mode's buffers: overflow buffers or request buffers."""
    kind = "req" if mode == "software" else "oflow"
    match(mode, **{f"{kind}_buf_{name}": value for name, value in sizes.items()})


def buffers_for(count: int, length: int = LENGTH) -> fi.MessageStatistics:
    """The receiver's counts after `count` messages without a receive; the messages are received afterwards."""
    with talkers(1000) as (sender, receiver, peer):
        assert flood(sender, receiver, peer, count, length=length) == count
        found = receiver.ep.message_statistics()
        receive_all(sender, receiver, count, length=length)
        return found


# ---- sizes and numbers of buffers --------------------------------------------------------------------------------


@pytest.mark.clause(
    "cxi.env.oflow-buf-size-default",
    "cxi.env.oflow-buf-min-posted-default",
    "cxi.env.oflow-buf-max-cached-default",
    "cxi.env.req-buf-size-default",
    "cxi.env.req-buf-min-posted-default",
    "cxi.env.req-buf-max-cached-default",
)
def test_defaults_are_the_documented_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    e = env.load()
    assert (e.FI_CXI_OFLOW_BUF_SIZE, e.FI_CXI_OFLOW_BUF_MIN_POSTED, e.FI_CXI_OFLOW_BUF_MAX_CACHED) == (2 << 20, 3, 9)
    assert (e.FI_CXI_REQ_BUF_SIZE, e.FI_CXI_REQ_BUF_MIN_POSTED, e.FI_CXI_REQ_BUF_MAX_CACHED) == (2 << 20, 4, 0)
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_MIN_POSTED", "5")
    assert env.load().FI_CXI_OFLOW_BUF_MAX_CACHED == 15


@pytest.mark.clause("cxi.env.oflow-buf-size", "cxi.env.oflow-buf-size-effect", "cxi.msg.oflow-env")
@pytest.mark.clause("cxi.env.req-buf-size", "cxi.env.req-buf-size-effect", "cxi.msg.req-env")
@both
def test_larger_buffer_holds_more_messages(match: Match, mode: str) -> None:
    made = {}
    for size in (BUFFER, 4 * BUFFER):
        sized(match, mode, size=size)
        made[size] = buffers_for(40)
    # The current buffer and the full buffers; the least number is posted besides.
    assert made[BUFFER].buffers - made[BUFFER].buffers_posted >= 40 // 2 - 1
    assert made[4 * BUFFER].buffers - made[4 * BUFFER].buffers_posted == 40 // 8 - 1


@pytest.mark.clause("cxi.msg.unexpected-buffers", "cxi.msg.eager-unexpected")
@pytest.mark.clause("cxi.env.oflow-buf-grow", "cxi.env.req-buf-grow")
@both
def test_buffers_grow_in_number_as_messages_need_them(match: Match, mode: str) -> None:
    """Each message lies whole in a buffer of the provider."""
    sized(match, mode, size=BUFFER)
    few, many = buffers_for(10), buffers_for(400)
    assert few.buffers >= 5
    assert many.buffers >= 200


@pytest.mark.clause("cxi.env.oflow-buf-min-posted", "cxi.env.oflow-buf-count", "cxi.env.req-buf-min-posted")
@pytest.mark.parametrize(
    ("mode", "variable"),
    [
        ("hardware", "FI_CXI_OFLOW_BUF_MIN_POSTED"),
        ("hardware", "FI_CXI_OFLOW_BUF_COUNT"),
        ("software", "FI_CXI_REQ_BUF_MIN_POSTED"),
    ],
)
@pytest.mark.parametrize("least", [4, 11])
def test_least_number_of_buffers_is_posted(
    match: Match,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    variable: str,
    least: int,
) -> None:
    match(mode)
    monkeypatch.setenv(variable, str(least))
    found = buffers_for(1)
    assert (found.entries_of_buffers, found.buffers_posted) == (least, least)


@pytest.mark.clause("cxi.env.oflow-buf-max-cached", "cxi.env.oflow-buf-max-cached-shrink")
@pytest.mark.clause("cxi.env.req-buf-max-cached", "cxi.env.req-buf-max-cached-shrink")
@both
@pytest.mark.parametrize("cached", [6, 12])
def test_buffers_shrink_to_the_cached_number_after_a_burst(match: Match, mode: str, cached: int) -> None:
    sized(match, mode, size=BUFFER, max_cached=cached)
    assert buffers_after_a_burst() == (True, cached)


@pytest.mark.clause("cxi.env.oflow-buf-max-cached-zero", "cxi.env.req-buf-max-cached-zero")
@both
def test_all_buffers_stay_with_a_cached_number_of_0(match: Match, mode: str) -> None:
    sized(match, mode, size=BUFFER, max_cached=0)
    grew, after = buffers_after_a_burst()
    assert grew
    assert after >= 50


def buffers_after_a_burst() -> tuple[bool, int]:
    """Whether 100 messages needed more than 40 buffers, and the buffers after they have been received."""
    with talkers(1000) as (sender, receiver, peer):
        flood(sender, receiver, peer, 100, length=LENGTH)
        most = receiver.ep.message_statistics().buffers_most
        receive_all(sender, receiver, 100, length=LENGTH)
        return most > 40, receiver.ep.message_statistics().buffers


@pytest.mark.clause("cxi.env.req-buf-max-count")
def test_cached_number_has_another_name(match: Match) -> None:
    match("software", req_buf_size=BUFFER, req_buf_max_count=7)
    assert buffers_after_a_burst() == (True, 7)


@both
def test_message_of_the_eager_size_fits_a_buffer_that_is_as_small_as_allowed(match: Match, mode: str) -> None:
    eager_max = 2048 + 2048
    sized(match, mode, size=eager_max)
    match(rdzv_get_min=2048)
    assert buffers_for(3, eager_max).unexpected == 3


# ---- ep_get_unexp_msgs -------------------------------------------------------------------------------------------


def call(node: Node, *args: Any) -> Any:
    return node.domain.open_ops(cxi.DOM_OPS_5).ep_get_unexp_msgs(node.ep, *args)


def arrived(sender: Node, peer: int) -> None:
    """An untagged message, a tagged one with data, and a message that is pulled."""
    sender.ep.send(payload(1), None, peer)
    sender.ep.tsenddata(payload(2, 300), None, 77, peer, 5)
    sender.wait(2)
    sender.ep.tsend(bytes(100_000), None, peer, 6)
    for _ in range(200):
        sender.cq.read()


@pytest.mark.clause(
    "cxi.ext.dom.unexp",
    "cxi.ext.dom.unexp-op-context",
    "cxi.ext.dom.unexp-flags",
    "cxi.ext.dom.unexp-len",
    "cxi.ext.dom.unexp-buf",
    "cxi.ext.dom.unexp-data",
    "cxi.ext.dom.unexp-tag",
    "cxi.ext.dom.unexp-return",
)
def test_messages_without_a_receive_are_listed_as_tagged_entries() -> None:
    with talkers(100, caps=CAPS | int(fi.SOURCE)) as (sender, receiver, peer):
        me = receiver.av.insert(sender.name)
        arrived(sender, peer)
        entries: list[Any] = []
        sources: list[int] = []
        assert call(receiver, entries, 10, sources) == (3, 3)
        assert entries == [
            fi.CqTaggedEntry(None, int(fi.MSG), 1000, 0, 0, 0),
            fi.CqTaggedEntry(None, int(fi.TAGGED | fi.REMOTE_CQ_DATA), 300, 0, 77, 5),
            fi.CqTaggedEntry(None, int(fi.TAGGED), 100_000, 0, 0, 6),
        ]
        assert sources == [me, me, me]
        room = bytearray(100_000)
        receiver.ep.trecv(room, tag=6)
        receiver.wait()
        assert call(receiver, entries, 10, sources) == (2, 2)


@pytest.mark.clause("cxi.ext.dom.unexp-count", "cxi.ext.dom.unexp-total", "cxi.ext.dom.unexp-return")
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_more_than_count_entries_are_written(count: int) -> None:
    with talkers(100) as (sender, receiver, peer):
        arrived(sender, peer)
        entries, sources = [None] * 4, [-1] * 4
        written = min(count, 3)
        assert call(receiver, entries, count, sources) == (written, 3)
        assert [one is not None for one in entries] == [True] * written + [False] * (4 - written)


@pytest.mark.clause("cxi.ext.dom.unexp-null-arrays", "cxi.ext.dom.unexp-count-zero")
def test_messages_are_only_counted_without_a_list_or_with_count_0() -> None:
    with talkers(100) as (sender, receiver, peer):
        arrived(sender, peer)
        entries: list[Any] = []
        sources: list[int] = []
        assert call(receiver) == (0, 3)
        assert call(receiver, entries, 10, None) == (0, 3)
        assert call(receiver, None, 10, sources) == (0, 3)
        assert call(receiver, entries, 0, sources) == (0, 3)
        assert (entries, sources) == ([], [])


def test_later_releases_need_no_list_of_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    with talkers(100) as (sender, receiver, peer):
        arrived(sender, peer)
        entries: list[Any] = []
        assert call(receiver, entries, 10) == (3, 3)
        assert len(entries) == 3


def test_senders_are_listed_only_with_the_capability() -> None:
    with talkers(100) as (sender, receiver, peer):
        arrived(sender, peer)
        entries: list[Any] = []
        sources: list[int] = []
        assert call(receiver, entries, 10, sources) == (3, 3)
        assert sources == []


@pytest.mark.clause("cxi.ext.dom.unexp-error")
def test_endpoint_that_cannot_receive_is_refused() -> None:
    with opened(CAPS, enable=False) as node, pytest.raises(fi.BadState):
        call(node)
