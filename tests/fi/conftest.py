"""Fixtures of the tests of weft.fi."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
from tests.fi import real, real_table, strange
from tests.fi.support import PROVIDER, Node, opened, pair
from tests.ofi import support as ofi_support

from weft import fi
from weft.providers.ofi import library


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On the strange provider, skip tests of the general provider's own numbers; mark known differences."""
    out: list[pytest.Item] = []
    for item in items:
        name = _real(item)
        if name is None:
            continue
        plain = item.name.replace(f"{name}-", "").replace(f"-{name}]", "]").replace(f"[{name}]", "")
        what = real_table.difference(name, plain)
        if what is not None:
            item.add_marker(pytest.mark.real_difference(what))
        what = real_table.difference_of_2(name, plain)
        if what is not None:
            item.add_marker(pytest.mark.real_difference_of_2(what))
        if real_table.left_out(plain):
            out.append(item)
    _leave_out(config, items, out)
    asked = config.getoption("--provider")
    if asked == "strange":
        apart = [item for item in items if item.get_closest_marker("general")]
    elif asked.startswith("ofi"):
        apart = [item for item in items if _real(item) is None]
    else:
        return
    _leave_out(config, items, apart)


def _leave_out(config: pytest.Config, items: list[pytest.Item], apart: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=apart)
    gone = set(apart)
    items[:] = [item for item in items if item not in gone]


def _real(item: pytest.Item) -> str | None:
    """The real libfabric's provider that a test is for."""
    call = getattr(item, "callspec", None)
    return None if call is None else call.params.get("_provider")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of libfabric's semantics on the general provider, and on a real libfabric's providers."""
    asked = metafunc.config.getoption("--provider")
    if asked in ("general", "strange"):
        return
    runs: list[Any] = [] if asked.startswith("ofi") else [pytest.param(None, id=pytest.HIDDEN_PARAM)]
    if not real_table.apart(metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__):
        runs += [name for name in real.NAMES if asked in ("all", "ofi", name)]
    if runs:
        metafunc.parametrize("_provider", runs, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Skip a test, on a real libfabric, that meets a call which is Weft's own, or which Weft does not pass through."""
    try:
        return (yield)
    except fi.NotSupported as reason:
        if _real(pyfuncitem) and any(words in str(reason) for words in real.NOT_PASSED):
            pytest.skip(str(reason))
        raise


@pytest.fixture(autouse=True)
def _provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The provider that the test is for."""
    name = getattr(request, "param", None)
    if name is not None:
        yield from _real_provider(name, request, monkeypatch)
        return
    if request.config.getoption("--provider") != "strange":
        yield
        return
    registered = strange.register()
    PROVIDER.name, PROVIDER.required, PROVIDER.application = strange.NAME, fi.MR_ENDPOINT, strange.application
    yield
    PROVIDER.name, PROVIDER.required, PROVIDER.application = "weft", 0, None
    strange.unregister(registered)


def _real_provider(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a provider of a real libfabric; skip the test, with the reason, where no library can be loaded."""
    monkeypatch.setenv("WEFT_LIBFABRIC", ofi_support.library())
    try:
        library.load()
    except fi.NoDevice as reason:
        pytest.skip(str(reason))
    number = (library.known() or ("", 0))[1]
    version = (number >> 16, number & 0xFFFF)
    marker, same = request.node.get_closest_marker("real_difference"), version == real_table.VERSION
    if version >= (2, 0) and request.node.get_closest_marker("real_difference_of_2") is not None:
        marker, same = request.node.get_closest_marker("real_difference_of_2"), version == real_table.VERSION_2
    if marker is not None:
        request.node.add_marker(
            pytest.mark.xfail(reason=marker.args[0], strict=same, run=real_table.starts(marker.args[0]))
        )
    real.begin(name, failing=marker is not None)
    yield
    real.end()


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
