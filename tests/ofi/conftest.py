"""The tests of the pass-through provider: skipped, with the reason, where no libfabric can be loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.ofi.support import PROVIDERS, library

from weft import fi
from weft.providers.ofi import library as ofi_library


@pytest.fixture(autouse=True)
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEFT_LIBFABRIC", library()) if library() else monkeypatch.delenv(
        "WEFT_LIBFABRIC", raising=False
    )
    if "no_library" not in request.keywords:
        try:
            ofi_library.load()
        except fi.NoDevice as reason:
            pytest.skip(str(reason))
    return


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    """Each of the library's providers that every Linux host has; skipped where this build of the library lacks it."""
    name: str = request.param
    try:
        fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name=name)))
    except fi.NoData:
        pytest.skip(f"{ofi_library.version_text()} has no provider {name}")
    return name


@pytest.fixture
def child_env() -> dict[str, str]:
    """The environment of a child process, with the library of the tests."""
    return dict(os.environ)
