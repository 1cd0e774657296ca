"""Endpoints open and close at random while messages of all protocols are under way, in one process.

Every send of an endpoint that stays open completes once, successfully or not; no message is received twice; contexts
and buffers are free at the end. WEFT_SEED repeats a run, WEFT_LIVES_STEPS says how long it is.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened as opened_cxi
from tests.fi.support import WATCHDOG_S, Node, opened
from tests.patience import Patience

from weft import fi

STEPS = int(os.environ.get("WEFT_LIVES_STEPS", "3000"))
CAPS = int(fi.MSG | fi.TAGGED | fi.MULTI_RECV)
LENGTHS = [0, 8, 100, 1000, 5000, 30_000]
TAGS = 4
# Results of a message to a closing endpoint: no endpoint is there, or it receives no more.
CLOSED = {fi.EIO, fi.ECONNREFUSED, fi.EACCES}


class Context:
    """number: of a send, else None.   room: of a receive, else None.   multi: it takes several messages."""

    def __init__(self, number: int | None = None, room: Any = None, multi: bool = False) -> None:
        self.number, self.room, self.multi = number, room, multi


class Buffer(np.ndarray):  # type: ignore[type-arg]  # an array that weak references may point to
    """Bytes."""


def buffer(length: int) -> Any:
    return np.zeros(length, np.uint8).view(Buffer)


class Lives:
    """nodes: the open ones, by a number that none has again.   waiting: sends of each that have not completed."""

    def __init__(self, rng: random.Random, cxi: bool) -> None:
        self.random, self.open = rng, opened_cxi if cxi else opened
        self.nodes: dict[int, Node] = {}
        self.stacks: dict[int, contextlib.AbstractContextManager[Node]] = {}
        self.waiting: dict[int, set[int]] = {}
        self.received: set[int] = set()
        self.refs: list[weakref.ReferenceType[Any]] = []
        self.made = self.sent = self.succeeded = 0
        for _ in range(4):
            self.open_one()

    def open_one(self) -> None:
        manager = self.open(CAPS)
        self.nodes[self.made], self.stacks[self.made] = manager.__enter__(), manager
        self.waiting[self.made] = set()
        self.made += 1

    def close_one(self, i: int) -> None:
        """Sends under way and posted receives end without completions."""
        del self.nodes[i], self.waiting[i]
        self.stacks.pop(i).__exit__(None, None, None)

    def send(self, i: int) -> None:
        node, other = self.nodes[i], self.random.choice(list(self.nodes.values()))
        peer = node.av.insert(other.name)
        self.sent += 1
        context, data = Context(self.sent), buffer(self.random.choice(LENGTHS))
        if len(data):
            data[:8].view(np.uint64)[0] = self.sent
        self._watch(context, data)
        flags = int(fi.COMPLETION) | self.random.choice([0, 0, 0, int(fi.MATCH_COMPLETE)])
        self.waiting[i].add(self.sent)
        try:
            if self.random.random() < 0.7:
                node.ep.tsendmsg(fi.MsgTagged([data], None, peer, self.random.randrange(TAGS), 0, context), flags)
            else:
                node.ep.sendmsg(fi.Msg([data], None, peer, context), flags)
        except fi.Again:
            self.waiting[i].remove(self.sent)

    def receive(self, i: int) -> None:
        ep, room = self.nodes[i].ep, buffer(self.random.choice([8, 1000, 40_000]))
        kind = self.random.choices(["tagged", "untagged", "multi"], [6, 3, 1])[0]
        context = Context(room=room, multi=kind == "multi")
        self._watch(context, room)
        with contextlib.suppress(fi.Again):
            if kind == "tagged":
                tag, ignore = self.random.randrange(TAGS), self.random.choice([0, 0, TAGS - 1])
                ep.trecv(room, tag=tag, ignore=ignore, context=context)
            elif kind == "untagged":
                ep.recv(room, context=context)
            else:
                ep.recvmsg(fi.Msg([room], context=context), int(fi.MULTI_RECV | fi.COMPLETION))

    def _watch(self, *objects: Any) -> None:
        self.refs += map(weakref.ref, objects)

    def read(self, i: int) -> None:
        cq = self.nodes[i].cq
        try:
            entries = cq.read(64)
        except fi.Available:
            entries = [cq.readerr()]
        for entry in entries:
            context, error = entry.op_context, getattr(entry, "err", 0)
            if context is None:
                continue
            if context.number is not None:
                self.waiting[i].remove(context.number)  # each completes once
                self.succeeded += not error
                assert not error or error in CLOSED, entry
            elif entry.len >= 8:
                start = entry.buf - context.room.ctypes.data if context.multi else 0
                number = int(context.room[start : start + 8].view(np.uint64)[0])
                assert number not in self.received, f"message {number} came twice"
                self.received.add(number)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            i, chance = self.random.choice(list(self.nodes)), self.random.random()
            if chance < 0.45:
                self.send(i)
            elif chance < 0.85:
                self.receive(i)
            elif chance < 0.95:
                self.read(i)
            elif chance < 0.975 and len(self.nodes) > 2:
                self.close_one(i)
            elif len(self.nodes) < 6:
                self.open_one()

    def finish(self) -> None:
        """Whatever still waits finds a receive."""
        deadline = Patience(WATCHDOG_S)
        while any(self.waiting.values()):
            assert not deadline.over, self.waiting
            for i, node in self.nodes.items():
                self.read(i)
                with contextlib.suppress(fi.Again):
                    node.ep.trecv(buffer(40_000), tag=0, ignore=TAGS - 1)
                    node.ep.recv(buffer(40_000))

    def close(self) -> None:
        for i in list(self.nodes):
            self.close_one(i)


@pytest.mark.parametrize("provider", ["general", "cxi"])
def test_endpoints_open_and_close_under_messages(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    with contextlib.closing(Lives(rng, provider == "cxi")) as lives:
        lives.run(STEPS)
        lives.finish()
    assert lives.succeeded > lives.sent // 4
    assert lives.received
    gc.collect()
    assert not any(ref() is not None for ref in lives.refs), "a context or a buffer is still held"
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most
