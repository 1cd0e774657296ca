"""Properties of one handle of an endpoint, and not of the endpoint: its operation flags and its calls."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import KEY, Node, opened
from tests.frames import frames_of_weft

from weft import _nic, fi
from weft.fi import registry
from weft.providers.base import BaseEndpoint
from weft.providers.general import General

QUIET = int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)
CAPS = int(fi.MSG | fi.TAGGED | fi.RMA | fi.ATOMIC)
WORD = np.full(1, 3, "u8")
CALLS = [name for name, of in vars(_nic.EndpointCore).items() if type(of) is types.MethodDescriptorType]
MESSAGES = [
    f"{tagged}{call}"
    for tagged in ("", "t")
    for call in ["send", "sendv", "sendmsg", "inject", "senddata", "injectdata", "recv", "recvv", "recvmsg"]
]
DATA_WRITES = ["writedata", "inject_writedata"]
TRIGGERED = [
    *("sendmsg", "recvmsg", "tsendmsg", "trecvmsg", "readmsg", "writemsg"),
    *("atomicmsg", "fetch_atomicmsg", "compare_atomicmsg"),
]


def write(ep: Any, node: Node, context: str) -> None:
    ep.write(WORD, None, node.me, 0, KEY, context)


def told(node: Node, *handles: Any) -> list[Any]:
    """The handles, by number, whose writes are reported under selective completion."""
    for number, ep in enumerate(handles):
        write(ep, node, str(number))
    last = fi.MsgRma([WORD], [fi.RmaIov(0, 8, KEY)], node.me, context="last")
    node.ep.writemsg(last, int(fi.COMPLETION | fi.FENCE))
    found: list[Any] = []
    while "last" not in found:
        found += [entry.op_context for entry in node.wait()]
    return sorted(int(one) for one in found if one != "last")


@contextlib.contextmanager
def of_policy(caps: int = CAPS, **policy: Any) -> Iterator[Node]:
    """An endpoint of a general provider with this policy of endpoints."""
    base = General.domain_class.endpoint_class  # type: ignore[attr-defined]

    class Endpoint(base):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.__dict__.update(policy)

    assert issubclass(Endpoint, BaseEndpoint)
    domain = type("Domain", (General.domain_class,), {"endpoint_class": Endpoint})
    registry.register(type("Own", (General,), {"name": "own", "domain_class": domain})())

    def edit(info: fi.Info) -> None:
        info.fabric_attr.prov_name = "own"

    try:
        with opened(caps, edit=edit) as node:
            yield node
    finally:
        registry._providers.pop("own")


@contextlib.contextmanager
def handles(node: Node) -> Iterator[dict[str, Any]]:
    """The handles of one endpoint; the flags of the last were set."""
    with node.ep.alias(fi.TRANSMIT) as alias, alias.alias(fi.RECV) as second, node.ep.alias(fi.TRANSMIT) as changed:
        changed.control(fi.SETOPSFLAG, int(fi.TRANSMIT | fi.DELIVERY_COMPLETE))
        yield {"endpoint": node.ep, "alias": alias, "alias of an alias": second, "alias with set flags": changed}


def refusal(call: Callable[..., Any], *args: Any, **more: Any) -> tuple[type[BaseException], Any, str]:
    with pytest.raises(Exception) as caught:
        call(*args, **more)
    return type(caught.value), getattr(caught.value, "errno", None), str(caught.value)


# ---- flags -----------------------------------------------------------------------------------------------------------


def test_flags_of_a_handle_are_of_no_other() -> None:
    with opened(cq_flags=QUIET) as node:
        node.reg(np.zeros(8, "u8"), requested_key=KEY)
        with node.ep.alias(fi.TRANSMIT) as first, node.ep.alias(fi.TRANSMIT | fi.COMPLETION) as second:
            assert told(node, node.ep, first, second) == [2]
            first.control(fi.SETOPSFLAG, int(fi.TRANSMIT | fi.COMPLETION))
            assert told(node, node.ep, first, second) == [1, 2]
            second.control(fi.SETOPSFLAG, int(fi.TRANSMIT))
            assert told(node, node.ep, first, second) == [1]
            node.ep.control(fi.SETOPSFLAG, int(fi.TRANSMIT | fi.COMPLETION))
            assert told(node, node.ep, first, second) == [0, 1]
            with node.ep.alias(fi.RECV) as third, second.alias(fi.RECV) as fourth:
                assert told(node, third, fourth) == [0]
                flags = [ep.control(fi.GETOPSFLAG, fi.TRANSMIT) for ep in (node.ep, first, second, third, fourth)]
                assert flags == [fi.COMPLETION, fi.COMPLETION, 0, fi.COMPLETION, 0]


@pytest.mark.general("operation flags of receives")
def test_flags_of_one_side_leave_the_other() -> None:
    with opened(cq_flags=QUIET) as node:
        node.reg(np.zeros(8, "u8"), requested_key=KEY)
        node.ep.control(fi.SETOPSFLAG, int(fi.RECV | fi.COMPLETION))
        assert told(node, node.ep) == []
        node.ep.control(fi.SETOPSFLAG, int(fi.TRANSMIT | fi.COMPLETION))
        node.ep.control(fi.SETOPSFLAG, int(fi.RECV))
        assert told(node, node.ep) == [0]
        assert type(node.ep) is fi.Endpoint


@pytest.mark.general("messages")
def test_call_has_the_default_flags_that_its_kind_takes() -> None:
    """MATCH_COMPLETE is of messages, and a batch with it would be refused."""
    with opened(CAPS, op_flags=int(fi.MATCH_COMPLETE | fi.DELIVERY_COMPLETE)) as node:
        memory = np.zeros(8, "u8")
        node.reg(memory, requested_key=KEY)
        descs = np.zeros(1, fi.RMA_DESC)
        descs[0]["length"], descs[0]["dest_addr"], descs[0]["key"] = 8, node.me, KEY
        node.ep.recv(bytearray(8))
        node.ep.send(b"12345678", None, node.me)
        node.ep.write_batch(WORD, descs)
        node.ep.fetch_atomic(WORD, None, np.zeros(1, "u8"), None, node.me, 0, KEY, fi.UINT64, fi.SUM)
        node.wait(4)
        assert memory[0] == 6


@pytest.mark.general("messages")
@pytest.mark.parametrize("name", ["endpoint", "alias", "alias of an alias", "alias with set flags"])
def test_transfer_runs_no_python_of_weft(name: str) -> None:
    with opened(CAPS) as node, handles(node) as found:
        node.reg(np.zeros(8, "u8"), requested_key=KEY)
        ep, peer, room, result = found[name], node.me, bytearray(8), np.zeros(1, "u8")

        def transfers() -> None:
            ep.write(WORD, None, peer, 0, KEY)
            ep.fetch_atomic(WORD, None, result, None, peer, 0, KEY, fi.UINT64, fi.SUM)
            ep.trecv(room, None, peer, 1)
            ep.tsend(b"12345678", None, peer, 1)

        ran = frames_of_weft(transfers)
        node.wait(4)
        assert ran == []


# ---- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.general("a provider of its own, made from the general one")
@pytest.mark.parametrize("caps", [CAPS, int(CAPS | fi.TRIGGER)], ids=["plain", "trigger"])
def test_every_handle_refuses_the_calls_that_its_policy_does_not_have(caps: int) -> None:
    said = "messages are for others\n  try: writing"
    with of_policy(caps, data_writes=False, messages=None, no_messages=said) as node, handles(node) as found:
        node.reg(np.zeros(8, "u8"), requested_key=KEY)
        for ep in found.values():
            for call in MESSAGES:
                assert refusal(getattr(ep, call)) == refusal(getattr(node.ep, call), 1, other=2)
                assert refusal(getattr(ep, call)) == (fi.NoSys, fi.ENOSYS, f"ENOSYS: ep.{call}: {said}")
            for call in DATA_WRITES:
                text = "this provider delivers no data with a write\n  try: write, then another write of a flag"
                assert refusal(getattr(ep, call), WORD)[2].endswith(f"ep.{call}: {text}")
                assert refusal(getattr(ep, call)) == refusal(getattr(node.ep, call))
            write(ep, node, "goes")
            assert node.wait()[0].op_context == "goes"
        found["alias"].close()
        assert "ep.send: <EndpointAlias closed> is closed" in refusal(found["alias"].send)[2]


@pytest.mark.general("FI_TRIGGER")
def test_every_handle_refuses_the_calls_that_its_capabilities_do_not_cover() -> None:
    with opened(int(fi.RMA | fi.READ | fi.TRIGGER)) as node, handles(node) as found:
        node.reg(np.zeros(8, "u8"), requested_key=KEY)
        cntr = node.keep(node.domain.cntr_open())
        at = fi.TriggeredContext(fi.TRIGGER_THRESHOLD, fi.TriggerThreshold(cntr, 1))
        atomic = fi.MsgAtomic([WORD], [fi.RmaIoc(0, 1, KEY)], node.me, fi.UINT64, fi.SUM, context=at)
        calls: dict[str, tuple[Any, ...]] = {
            "write": (WORD, None, node.me, 0, KEY),
            "inject_write": (WORD, node.me, 0, KEY),
            "writemsg": (fi.MsgRma([WORD], [fi.RmaIov(0, 8, KEY)], node.me, context=at),),
            "send": (WORD, None, node.me),
            "sendmsg": (fi.Msg([WORD], addr=node.me, context=at),),
            "trecvmsg": (fi.MsgTagged([bytearray(8)], context=at),),
            "atomicmsg": (atomic,),
        }
        for call, args in calls.items():
            plain = refusal(getattr(node.ep, call), *args)
            assert plain[0] is fi.NotSupported
            for ep in found.values():
                assert refusal(getattr(ep, call), *args) == plain
                if call in TRIGGERED:
                    queued = refusal(getattr(ep, call), *args, fi.TRIGGER)
                    assert queued[:2] == plain[:2]
                    assert queued[2].partition("queue_work: ")[2] == plain[2].partition(f"{call}: ")[2]


@pytest.mark.general("messages")
def test_closed_alias_refuses_every_call() -> None:
    with opened(int(CAPS | fi.TRIGGER)) as node:
        alias = node.ep.alias(fi.TRANSMIT)
        alias.close()
        node.reg(np.zeros(8, "u8"), requested_key=KEY)
        assert len(CALLS) == 44
        for call in CALLS:
            kind, number, text = refusal(getattr(alias, call))
            assert (kind, number) == (fi.BadState, fi.EOPBADSTATE)
            assert "transfer: <EndpointAlias closed> is closed" in text
        write(node.ep, node, "goes")
        assert node.wait()[0].op_context == "goes"


# ---- FI_TRIGGER ------------------------------------------------------------------------------------------------------


@pytest.mark.general("FI_TRIGGER")
@pytest.mark.parametrize("flags", [fi.TRIGGER, 0], ids=["trigger", "plain"])
def test_arguments_of_a_call_that_may_be_triggered_are_the_calls_own(flags: int) -> None:
    with opened(int(CAPS | fi.TRIGGER)) as node, node.ep.alias(fi.TRANSMIT) as alias:
        msg = fi.MsgRma([WORD], [fi.RmaIov(0, 8, KEY)], node.me)
        for ep in (node.ep, alias):
            for args, more, text in (
                ((), {"flags": flags}, "needs the argument 'msg'"),
                ((msg, flags, 1), {}, "takes at most 2 positional arguments (3 given)"),
                ((msg, flags), {"msg": msg}, "got multiple values for argument 'msg'"),
                ((msg,), {"flags": flags, "odd": 1}, "got an unexpected keyword argument 'odd'"),
                ((msg, "odd"), {}, "flags must be an int, not 'odd'"),
            ):
                kind, _, found = refusal(ep.writemsg, *args, **more)
                assert kind is TypeError
                assert text in found
            assert refusal(ep.compare_atomicmsg, msg, flags=flags)[2].endswith("needs the argument 'comparev'")
            assert refusal(ep.writemsg, msg, -1)[0] is fi.InvalidArgument


@pytest.mark.general("FI_TRIGGER")
def test_triggered_call_takes_its_arguments_by_name() -> None:
    with opened(int(CAPS | fi.TRIGGER)) as node, node.ep.alias(fi.TRANSMIT) as alias:
        memory, cntr = np.full(1, 7, "u8"), node.keep(node.domain.cntr_open())
        node.reg(memory, requested_key=KEY)
        at = fi.TriggeredContext(fi.TRIGGER_THRESHOLD, fi.TriggerThreshold(cntr, 1))
        found = np.zeros(1, "u8")
        swap = fi.MsgAtomic([WORD], [fi.RmaIoc(0, 1, KEY)], node.me, fi.UINT64, fi.CSWAP, context=at)
        alias.compare_atomicmsg(flags=fi.TRIGGER, msg=swap, resultv=[found], comparev=[np.full(1, 7, "u8")])
        assert node.cq.read() == []
        cntr.add(1)
        assert node.wait()[0].op_context is at
        assert (memory[0], found[0]) == (3, 7)
