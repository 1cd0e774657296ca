"""Random messages, receives, cancels, peeks and claims against the rules of matching.py, through both providers.

WEFT_SEED repeats a run with its seed, WEFT_MATCH_MESSAGES says how many messages there are.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from tests.cxi import support as cxi_support
from tests.cxi.match_support import service_with
from tests.fi import support as fi_support
from tests.fi.support import Node
from tests.procs.children import Child
from tests.procs.peer import World, progress
from tests.procs.test_two_processes import PATHS
from tests.props.matching import Message, Program, Sender

from weft import fi

pytestmark = pytest.mark.procs
MESSAGES = int(os.environ.get("WEFT_MATCH_MESSAGES", "10000"))
CAPS = int(fi.MSG | fi.TAGGED | fi.SOURCE | fi.DIRECTED_RECV | fi.MULTI_RECV)
# Ranges of lengths: credited twice as often, eager, rendezvous.
GENERAL = [(0, 152), (0, 152), (153, 16384), (16385, 40_000)]
CXI = [(0, 152), (0, 152), (153, 4097), (4098, 20_000)]


def open_one(cxi: bool) -> contextlib.AbstractContextManager[Node]:
    if cxi:
        return cxi_support.opened(CAPS)
    return fi_support.opened(CAPS | int(fi.TAGGED_MULTI_RECV))


class There:
    """A sender of another process."""

    def __init__(self, child: Child, cxi: bool, receiver: Any) -> None:
        self.child = child
        self.name = child.call(open_sender, cxi, receiver)

    def send(self, messages: list[Message]) -> None:
        self.child.call(send, self.name, messages)

    def progress(self) -> None:
        """The other process makes it."""

    def count(self) -> int:
        return int(self.child.call(count, self.name))


def open_sender(world: World, cxi: bool, receiver: Any) -> Any:
    node = world.more.setdefault("stack", contextlib.ExitStack()).enter_context(open_one(cxi))
    world.more[str(node.name)] = Sender(node, receiver)
    return node.name


def send(world: World, name: Any, messages: list[Message]) -> None:
    world.more[str(name)].send(messages)


def count(world: World, name: Any) -> int:
    return int(world.more[str(name)].count())


def close_senders(world: World) -> None:
    world.more.pop("stack").close()


def run(world: World, cxi: bool, seed: str, messages: int, path: str, entries: int) -> tuple[list[str], str]:
    """The steps that a program with this seed takes, and where its last messages were matched.

    entries   list entries of the receiver's service; 0: as many as usual.
    """
    with contextlib.ExitStack() as stack:
        few = cxi_support.opened(CAPS, auth_key=service_with(entries)) if entries else None
        receiver = stack.enter_context(few or open_one(cxi))
        senders: list[Any]
        if path == "self":
            senders = [Sender(stack.enter_context(open_one(cxi)), receiver.name) for _ in range(3)]
        else:
            settings = {name: text for name, text in os.environ.items() if name.startswith("WEFT_")}
            child = stack.enter_context(Child(**settings))
            child.progress = progress
            senders = [There(child, cxi, receiver.name) for _ in range(3)]
            stack.callback(lambda: child.call(close_senders))
        program = Program(receiver, senders, random.Random(seed), CXI if cxi else GENERAL, cxi)
        program.run(messages)
        return sorted(program.counts), receiver.ep.message_statistics().state


# Small buffers, which are used again all the time; rendezvous of all but short messages, some without an eager part.
SMALL = {"OFLOW_BUF_SIZE": "5000", "OFLOW_BUF_MIN_POSTED": "1", "OFLOW_BUF_MAX_CACHED": "1"}
EARLY = {"RDZV_THRESHOLD": "192", "RDZV_GET_MIN": "0", "RDZV_EAGER_SIZE": "0"}
# Matching that moves to software in the middle, and matching that begins there.
HYBRID = {"RX_MATCH_MODE": "hybrid"}
AT_SIZE = {
    **HYBRID,
    "HYBRID_UNEXPECTED_MSG_PREEMPTIVE": "1",
    "HYBRID_POSTED_RECV_PREEMPTIVE": "1",
    "DEFAULT_RX_SIZE": "16",
}
SOFTWARE = {"RX_MATCH_MODE": "software", "REQ_BUF_SIZE": "5000", "REQ_BUF_MIN_POSTED": "2", "REQ_BUF_MAX_CACHED": "2"}


class Case(NamedTuple):
    """variables: FI_CXI_...   entries: of the receiver's service.   state: where messages are matched at the end."""

    provider: str
    path: str
    engine: str = "thread"
    variables: Mapping[str, str] = MappingProxyType({})
    entries: int = 0
    state: str = "hardware"


CASES = [
    *[Case("weft", path) for path in ("self", "foreign", "ring", "strict", "tcp")],
    *[Case("weft", path, "manual") for path in ("self", "foreign", "ring")],
    Case("cxi", "self"),
    Case("cxi", "self", "manual"),
    Case("cxi", "foreign"),
    Case("cxi", "self", variables=SMALL),
    Case("cxi", "self", variables=EARLY),
    Case("cxi", "strict", "manual", EARLY),
    Case("cxi", "self", variables=HYBRID, entries=60, state="software"),
    Case("cxi", "foreign", variables=HYBRID, entries=60, state="software"),
    Case("cxi", "self", variables=AT_SIZE, state="software"),
    Case("cxi", "self", "manual", AT_SIZE, state="software"),
    Case("cxi", "self", variables=SOFTWARE, state="software"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, (case.provider, case.path, case.engine))))
def test_matching_follows_the_rules(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """fi_msg(3), fi_tagged(3): each completion is the one that the rules foretell."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    for name, text in case.variables.items():
        monkeypatch.setenv(f"FI_CXI_{name}", text)
    messages = MESSAGES if case.path == "self" and not case.variables else MESSAGES // 5
    cxi, text = case.provider == "cxi", f"{seed}:{case.provider}:{case.path}:{case.engine}:{len(case.variables)}"
    with Child(WEFT_ENGINE=case.engine, **PATHS[case.path]) as child:
        taken, state = child.call(run, cxi, text, messages, case.path, case.entries)
    assert taken == ["cancel", "claim", "discard", "peek", "post", "send", "take_claimed"]
    if cxi:
        assert state == case.state
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most
