"""Objects that nobody closed, and that the garbage collector finds in a cycle: they end in any order, without an error.

Beside the ResourceWarning that each object gives."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.cxi.support import hints
from tests.patience import Patience

from weft import fi
from weft.providers.cxi import resources

CAPS = int(fi.RMA | fi.MSG | fi.TAGGED)
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def queue(domain: fi.Domain) -> list[Any]:
    return [domain.cq_open()]


def counter(domain: fi.Domain) -> list[Any]:
    return [domain.cntr_open()]


def endpoint(domain: fi.Domain) -> list[Any]:
    cq, av, cntr, eq = domain.cq_open(), domain.av_open(), domain.cntr_open(), domain.fabric.eq_open()
    ep = domain.endpoint(domain.info)
    ep.bind(cq, fi.TRANSMIT | fi.RECV)
    ep.bind(av)
    ep.bind(cntr, fi.SEND)
    ep.bind(eq)
    ep.enable()
    return [cq, av, cntr, eq, ep]


def with_alias(domain: fi.Domain) -> list[Any]:
    found = endpoint(domain)
    return [*found, found[-1].alias(fi.TRANSMIT)]


Make = Callable[[fi.Domain], list[Any]]
kinds = pytest.mark.parametrize("make", [queue, counter, endpoint, with_alias])


def cycle(make: Make) -> None:
    """A domain and its children, each of which refers to all of them; the domain is the oldest, so it ends first."""
    info = fi.getinfo(hints=hints(CAPS))[0]
    fabric = fi.Fabric(info.fabric_attr)
    domain = fabric.domain(info)
    all_of_them = [fabric, domain, *make(domain)]
    for one in all_of_them:
        one._all_of_them = all_of_them


@kinds
def test_cycle_of_a_domain_and_its_children_is_collected_without_an_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: raised.append(found.exc_value))
    cycle(make)
    assert resources.usage("cxi0")
    gc.collect()
    assert raised == []
    assert resources.usage("cxi0") == {}


@kinds
def test_cycle_may_be_collected_while_resources_are_taken(make: Make) -> None:
    """The collector may run at any allocation, so on a thread that holds the locks of the resources."""

    def collect() -> None:
        info = fi.getinfo(hints=hints(CAPS))[0]
        with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
            cycle(make)
            with domain.policy.pool._share.lock:
                gc.collect()
            cycle(make)
            with resources._shares_lock:
                gc.collect()
        done.append(resources.usage("cxi0"))

    done: list[Any] = []
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    patience = Patience(60)
    while thread.is_alive() and not patience.over:
        thread.join(0.1)
    assert done == [{}]


def test_pool_opened_while_the_last_one_is_collected_has_the_resources_of_its_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector closes the only pool of a service between the look-up of the process's share and its use."""
    gc.collect()
    info = fi.getinfo(hints=hints(CAPS))[0]
    with fi.Fabric(info.fabric_attr) as fabric:
        first = fabric.domain(info)

        class Collects(dict[Any, Any]):
            def get(self, key: Any, default: Any = None) -> Any:
                found = super().get(key, default)
                if not first.closed:
                    first.close()
                return found

        monkeypatch.setattr(resources, "_shares", Collects(resources._shares))
        with fabric.domain(info) as second, second.cq_open():
            assert resources.usage("cxi0")[second.policy.service.id]["eqs"] == 1
    assert resources.usage("cxi0") == {}
