"""Fixtures of the tests of the CXI provider: each has a registry of its own, with the device cxi0."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cxi.support import opened
from tests.fi.support import Node


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the registry; nothing of the caller's environment.

    The folder is removed: pytest keeps the folders of three runs, and a user has 1023 registries at most.
    """
    for name in list(os.environ):
        if name.startswith(("FI_", "CXI", "SLINGSHOT_", "WEFT_CXI_", "WEFT_MR_MODE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    yield tmp_path / "cxi"
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)


@pytest.fixture
def node() -> Iterator[Node]:
    """One enabled endpoint, whose domain has client keys."""
    with opened() as found:
        yield found


@pytest.fixture
def maker() -> Iterator[Node]:
    """The same with provider keys."""
    with opened(prov_key=True) as found:
        yield found


@pytest.fixture
def match(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets FI_CXI_ variables: match("hybrid", hybrid_preemptive=1)."""

    def set_them(mode: str = "", **others: Any) -> None:
        if mode:
            monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", mode)
        for name, value in others.items():
            monkeypatch.setenv(f"FI_CXI_{name.upper()}", str(value))

    return set_them
