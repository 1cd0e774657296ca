"""A node of this process, names that no other test run has, and processes that own arrays."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from tests.share import keepers
from tests.share.owner import Owner

import weft

_counter = itertools.count()


@pytest.fixture
def name() -> Callable[[str], str]:
    """Makes a name unique to this process and test."""
    n = next(_counter)
    return lambda base: f"test-{os.getpid()}-{n}-{base}"


@pytest.fixture
def node() -> Iterator[weft.Node]:
    with weft.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def home() -> Iterator[weft.Node]:
    """One node for a test module."""
    with weft.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    """One process for a test module; tests that kill or close start their own."""
    with Owner(f"test-{os.getpid()}-{next(_counter)}-") as started:
        yield started


@pytest.fixture
def own_owner() -> Iterator[Owner]:
    with Owner(f"test-{os.getpid()}-{next(_counter)}-") as started:
        yield started


@pytest.fixture
def keeping() -> Iterator[None]:
    """The test may keep arrays: arrays that it leaves are forgotten, and the keeper ends."""
    try:
        yield
    finally:
        keepers.end()
