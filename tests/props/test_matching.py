"""Random messages, receives, cancels, peeks and claims against the rules of matching.py, through both providers.

WEFT_SEED repeats a run with its seed, WEFT_MATCH_MESSAGES says how many messages there are.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest
from tests.cxi import support as cxi_support
from tests.fi import support as fi_support
from tests.fi.support import Node
from tests.procs.children import Child
from tests.procs.peer import World
from tests.props.matching import Program

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


def run(world: World, cxi: bool, seed: str, messages: int) -> list[str]:
    """The steps that a program with this seed takes."""
    with contextlib.ExitStack() as stack:
        receiver, *senders = [stack.enter_context(open_one(cxi)) for _ in range(4)]
        program = Program(receiver, senders, random.Random(seed), CXI if cxi else GENERAL, cxi)
        program.run(messages)
    return sorted(program.counts)


@pytest.mark.parametrize("engine", ["thread", "manual"])
@pytest.mark.parametrize("provider", ["general", "cxi"])
def test_matching_follows_the_rules(
    provider: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """fi_msg(3), fi_tagged(3): each completion is the one that the rules foretell."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    with Child(WEFT_ENGINE=engine) as child:
        taken = child.call(run, provider == "cxi", f"{seed}:{provider}:{engine}", MESSAGES)
    assert taken == ["cancel", "claim", "discard", "peek", "post", "send", "take_claimed"]
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most
