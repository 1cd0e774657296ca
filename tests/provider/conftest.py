"""C programs on Weft's NIC: skipped where libfabric, its headers or the provider files are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.provider import support


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled programs."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(autouse=True)
def _runtime_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy helpers of a test's programs are that test session's own."""
    folder = tmp_path_factory.getbasetemp() / "run"
    folder.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


@pytest.fixture(params=[support.SYSTEM, support.MPICH])
def library(request: pytest.FixtureRequest) -> str:
    """Each libfabric of this machine: an old one and a new one."""
    name: str = request.param
    support.need_library(name)
    return name


@pytest.fixture(params=["cxi", "weft"])
def provider(request: pytest.FixtureRequest) -> str:
    """Each of Weft's providers."""
    name: str = request.param
    return name
