"""Fixtures of the tests of weft.fi."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fi.support import Node, opened, pair


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's WEFT_MR_MODE decides what getinfo requires: these tests set it themselves."""
    monkeypatch.delenv("WEFT_MR_MODE", raising=False)


@pytest.fixture
def node() -> Iterator[Node]:
    """One endpoint that can reach itself."""
    with opened() as found:
        yield found


@pytest.fixture
def duo() -> Iterator[tuple[Node, Node, int]]:
    """(initiator, target, fi_addr of the target)."""
    with pair() as found:
        yield found
