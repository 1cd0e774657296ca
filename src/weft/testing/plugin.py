"""The fixtures. The module imports Weft only when a fixture is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from .mode_names import MODE_NAMES

if TYPE_CHECKING:
    from .. import fi
    from ..flags import MrMode
    from ..providers.cxi.service import Service
    from .slingshot import CxiHost
    from .stacks import Pair


@pytest.fixture(params=MODE_NAMES)
def mr_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MrMode:
    """The registration mode that getinfo requires while the test runs; the test runs once for each of MR_MODES.

    A test that calls getinfo offers at least these bits in its hints: `fi.DomainAttr(mr_mode=mr_mode)`. `weft_pair` and
    `weft_domain` do so themselves. Processes that the test starts inherit the mode.
    """
    from .modes import mode_of, requiring

    mode = mode_of(request.param)
    requiring(monkeypatch, mode)
    return mode


@pytest.fixture
def weft_hints() -> fi.Info:
    """The hints of `weft_domain` and `weft_pair`: RMA, atomics and counters of the general provider.

    Override the fixture in a test module or conftest.py to request something else.
    """
    from .stacks import hints

    return hints()


@pytest.fixture
def weft_domain(request: pytest.FixtureRequest, weft_hints: fi.Info) -> Iterator[fi.Domain]:
    """An open domain of the first offer for `weft_hints`; closed after the test."""
    from .stacks import opened_domain

    _mode_first(request)
    with opened_domain(weft_hints) as domain:
        yield domain


@pytest.fixture
def weft_pair(request: pytest.FixtureRequest, weft_hints: fi.Info) -> Iterator[Pair]:
    """Two endpoints of this process, each with its own fabric, domain and queues; the first has inserted the second.

    Closed after the test, with the regions that `Stack.reg` made.
    """
    from .stacks import pair

    _mode_first(request)
    with pair(weft_hints) as found:
        yield found


@pytest.fixture
def cxi_host() -> Iterator[CxiHost]:
    """A host with one CXI device, which only this test sees: `weft.testing.cxi()`."""
    from .slingshot import cxi

    with cxi() as host:
        yield host


@pytest.fixture
def cxi_hints(cxi_host: CxiHost) -> fi.Info:
    """The hints of `cxi_domain` and `cxi_pair`; a test module or conftest.py may override them."""
    return cxi_host.hints()


@pytest.fixture
def cxi_domain(cxi_host: CxiHost, cxi_hints: fi.Info) -> Iterator[fi.Domain]:
    """An open domain of the CXI provider, on the device of `cxi_host`; closed after the test."""
    from .stacks import opened_domain

    with opened_domain(cxi_hints) as domain:
        yield domain


@pytest.fixture
def cxi_pair(cxi_host: CxiHost, cxi_hints: fi.Info) -> Iterator[Pair]:
    """Like `weft_pair`, with the CXI provider on the device of `cxi_host`; closed after the test."""
    with cxi_host.pair(cxi_hints) as found:
        yield found


@pytest.fixture
def cxi_service(cxi_host: CxiHost) -> Callable[..., Service]:
    """Makes a service of `cxi_host`: `cxi_service(vnis=[7], limits={"les": 2})`; the arguments of `CxiHost.service`."""
    return cxi_host.service


def _mode_first(request: pytest.FixtureRequest) -> None:
    """If the test uses `mr_mode`, set the mode before the first call of getinfo."""
    if "mr_mode" in request.fixturenames:
        request.getfixturevalue("mr_mode")
