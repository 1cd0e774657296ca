"""Fixtures of the tests of weft.fi."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fi import strange
from tests.fi.support import PROVIDER, Node, opened, pair

from weft import fi


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On the strange provider, skip tests of the general provider's own numbers."""
    if config.getoption("--provider") != "strange":
        return
    apart = [item for item in items if item.get_closest_marker("general")]
    config.hook.pytest_deselected(items=apart)
    items[:] = [item for item in items if item not in set(apart)]


@pytest.fixture(autouse=True)
def _provider(pytestconfig: pytest.Config) -> Iterator[None]:
    """The provider that the run is for."""
    if pytestconfig.getoption("--provider") == "general":
        yield
        return
    registered = strange.register()
    PROVIDER.name, PROVIDER.required, PROVIDER.application = strange.NAME, fi.MR_ENDPOINT, strange.application
    yield
    PROVIDER.name, PROVIDER.required, PROVIDER.application = "weft", 0, None
    strange.unregister(registered)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the caller's WEFT_MR_MODE, which these tests set themselves."""
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
