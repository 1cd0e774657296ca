"""Arguments that make no sense, through every call of every object: our errors, never a crash, a hang or a stray one.

A wrong type is a TypeError that names the call or the argument; everything else is a FabricError with its number.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cxi.support import opened, register

from weft import cxi, errors, fi

# What ends an object, past `weft.fi` as well (..._core), or waits as long as it is told.
_LEFT_OUT = {"close", "close_core", "disable_core", "sread", "sreadfrom", "wait", "alloc"}
# How our TypeErrors begin or go on; Python's own about how many arguments there are say as much.
_OURS = (
    "must be", "cannot use", "needs the argument", "is needed, not", "are queues and counters",
    "positional argument", "takes no arguments", "do not fit", "unexpected keyword",
)  # fmt: skip


class Odd:
    """No number, no text, no buffer."""


ODD: list[Any] = [
    None, -1, 0, 1 << 64, 1 << 200, -(1 << 63), True, 1.5, float("nan"), 3 + 4j, "text", "", "\0", "x" * 5000,
    b"bytes", b"", bytearray(8), memoryview(b"12345678"), [], {}, (), [1, 2], {1: 2}, range(3), Odd(), object, len,
    np.int64(3), np.uint64(2**64 - 1), np.bool_(True), np.float64(2.5), np.zeros(3),
]  # fmt: skip


class Doors:
    """Objects of an open domain, and values to call them with: odd ones, closed ones, others' objects."""

    def __init__(self, node: Any, other: Any, general: list[Any]) -> None:
        memory = np.zeros(64, np.uint8)
        mr, cntr = register(node, memory, 7), node.keep(node.domain.cntr_open())
        closed_cq, closed_av = node.domain.cq_open(), node.domain.av_open()
        closed_cq.close()
        closed_av.close()
        self.alias = node.ep.alias(fi.TRANSMIT)
        self.objects = {
            "domain": node.domain,
            "ep": node.ep,
            "alias": self.alias,
            "cq": node.cq,
            "av": node.av,
            "mr": mr,
            "cntr": cntr,
            "fabric": node.fabric,
            "domain ops": node.domain.open_ops(cxi.DOM_OPS_6),
            "cntr ops": cntr.open_ops(cxi.COUNTER_OPS),
            "nic": node.info.nic.prov_attr,
            "closed cq": closed_cq,
            "closed av": closed_av,
        }
        theirs = [other.domain, other.ep, other.cq, other.av, *general]
        self.values = [*ODD, *theirs, node.domain, node.ep, node.cq, node.av, mr, cntr, closed_cq, closed_av, node.info]

    def calls(self, name: str) -> list[str]:
        one = self.objects[name]
        public = (call for call in dir(one) if not call.startswith("_") and call not in _LEFT_OUT)
        return sorted(call for call in public if callable(getattr(type(one), call, None)))


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CXI_REGISTRY", str(tmp_path_factory.mktemp("odd") / "cxi"))
        info = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))[0]
        with (
            opened() as node,
            opened() as other,
            fi.Fabric(info.fabric_attr) as fabric,
            fabric.domain(info) as domain,
            domain.cq_open() as cq,
            domain.av_open() as av,
            domain.endpoint(info) as ep,
        ):
            found = Doors(node, other, [domain, cq, av, ep])
            yield found
            for one in list(node.domain.regions()):
                one.close()
            found.alias.close()


def _too_long(*_: object) -> None:
    raise AssertionError("the call hangs")


def is_ours(error: BaseException) -> bool:
    if isinstance(error, errors.FabricError):
        return error.errno > 0 and bool(str(error))
    return isinstance(error, TypeError) and any(word in str(error) for word in _OURS)


def attempt(what: str, call: Any, arguments: tuple[Any, ...]) -> None:
    """The call works, or raises one of our errors."""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, 20)
    try:
        result = call(*arguments)
        if isinstance(result, (fi.CompletionQueue, fi.AddressVector, fi.Counter, fi.Endpoint, fi.MemoryRegion)):
            result.close()
    except BaseException as error:
        if not is_ours(error):
            raise AssertionError(f"{what}{arguments!r:.200}: {error!r}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


NAMES = (
    "domain", "ep", "alias", "cq", "av", "mr", "cntr", "fabric", "domain ops", "cntr ops", "nic",
    "closed cq", "closed av",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_call_takes_one_odd_value(doors: Doors, name: str) -> None:
    for call in doors.calls(name):
        for value in doors.values:
            attempt(f"{name}.{call}", getattr(doors.objects[name], call), (value,))


@pytest.mark.parametrize("name", NAMES)
def test_each_call_takes_several_odd_values(doors: Doors, name: str, rng: random.Random) -> None:
    for call in doors.calls(name):
        for count in (0, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 5):
            arguments = tuple(rng.choice(doors.values) for _ in range(count))
            attempt(f"{name}.{call}", getattr(doors.objects[name], call), arguments)


NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([np.int8(5), np.uint64(7), np.int64(-3), True, None, 2.0, "7", float("inf")]),
)


def made(kind: Any, *numbers: Any) -> Any:
    """An address or a key; None: refused, by the name of a part."""
    try:
        return kind(*numbers)
    except (errors.InvalidArgument, TypeError) as error:
        if not any(word in str(error).lower() for word in ("nic", "pid", "vni", "svc_id")):
            raise AssertionError(f"{numbers}: {error!r}") from error
        return None


@settings(max_examples=200, deadline=None)
@given(svc_id=NUMBERS, vni=NUMBERS)
def test_authorization_key_is_made_of_numbers_that_fit(svc_id: Any, vni: Any) -> None:
    key = made(cxi.AuthKey, svc_id, vni)
    if key is None:
        return
    assert (key.svc_id, key.vni) == (int(svc_id), int(vni))
    assert len(bytes(key)) == 8


@settings(max_examples=200, deadline=None)
@given(nic=NUMBERS, pid=NUMBERS, vni=NUMBERS)
def test_address_is_made_of_numbers_that_fit(nic: Any, pid: Any, vni: Any) -> None:
    address = made(cxi.Address, nic, pid, vni)
    if address is None:
        return
    assert cxi.Address.from_bytes(bytes(address)) == address


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=40))
def test_any_bytes_are_an_address_or_refused(data: bytes) -> None:
    try:
        address = cxi.Address.from_bytes(data)
    except errors.InvalidArgument:
        assert len(data) != 8
        return
    assert 0 <= address.pid <= 511
    assert 0 <= address.nic < 1 << 20


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    node=st.one_of(st.none(), st.text(max_size=12), st.integers()),
    service=st.one_of(st.none(), st.text(max_size=8), st.integers()),
    flags=st.sampled_from([0, int(fi.SOURCE), 1 << 63, -1]),
)
def test_getinfo_finds_nothing_or_answers_whatever_it_is_asked(
    doors: Doors, node: Any, service: Any, flags: int
) -> None:
    hints = fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi"))
    attempt("getinfo", lambda: fi.getinfo(node=node, service=service, flags=flags, hints=hints), ())
