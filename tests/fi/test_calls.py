"""The table of the data-path calls: endpoints of both kinds, signatures and AsyncEndpoint come from its rows."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest

from weft import _nic, fi
from weft.fi._calls import CALLS, Call

NAMES = {call.name for call in CALLS}
OWN = {call.name for call in CALLS if call.table == "batch"}


def methods(cls: type) -> set[str]:
    return {name for name, of in vars(cls).items() if type(of) is types.MethodDescriptorType}


def test_calls_are_the_methods_of_both_kinds_of_endpoints() -> None:
    assert methods(_nic.EndpointCore) == NAMES
    assert methods(_nic.OfiEndpointCore) == NAMES - OWN


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
@pytest.mark.parametrize("cls", [fi.Endpoint, _nic.OfiEndpointCore], ids=["weft", "ofi"])
def test_call_shows_the_parameters_of_its_row(call: Call, cls: Any) -> None:
    if cls is _nic.OfiEndpointCore and call.name in OWN:
        return
    _, *shown = inspect.signature(getattr(cls, call.name)).parameters.values()
    assert [one.name for one in shown] == [param.rstrip("!").partition("=")[0] for param in call.params]
    for one, param in zip(shown, call.params, strict=True):
        assert param.endswith("!") <= (one.default in (inspect.Parameter.empty, ..., int(fi.ADDR_UNSPEC)))


def test_calls_can_be_awaited() -> None:
    own = {name for name, of in vars(fi.AsyncEndpoint).items() if inspect.iscoroutinefunction(of) and name[0] != "_"}
    assert own == NAMES
    assert inspect.getdoc(fi.AsyncEndpoint.trecv) == "`Endpoint.trecv`; returns its completion. context: by keyword."
