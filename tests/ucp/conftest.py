"""Fixtures of the tests of weft.ucp."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.ucp.support import Rig, SilentPeer, opened


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A context with one worker and an endpoint to itself."""
    with opened() as found:
        yield found


@pytest.fixture
def other() -> Iterator[Rig]:
    """A second context of the process, with a worker of its own."""
    with opened() as found:
        yield found


@pytest.fixture
def silent() -> Iterator[SilentPeer]:
    """A peer in another process that does not answer."""
    found = SilentPeer()
    try:
        yield found
    finally:
        found.kill()
