"""Match modes: the users of a service's list entries, and when matching moves to software (fi_cxi(7) "Messaging")."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable

import pytest
from tests import patience
from tests.cxi.match_support import (
    OFLOW,
    REQUESTS,
    flood,
    in_use,
    of_service,
    payload,
    receive_all,
    service_with,
    state,
    talkers,
    until,
)
from tests.cxi.support import opened
from tests.fi.support import Node
from typer.testing import CliRunner

from weft import cxi, fi
from weft.providers.cxi import env
from weft.tools import cli

Match = Callable[..., None]
modes = pytest.mark.parametrize("mode", ["hardware", "hybrid", "software"])


def send(sender: Node, receiver: Node, peer: int, count: int, first: int = 0) -> None:
    """Messages without a receive, which all arrive."""
    assert flood(sender, receiver, peer, count, first=first) == count


def post(node: Node, count: int, first: int = 0) -> None:
    """Receives with tags that no message has."""
    for number in range(first, first + count):
        node.ep.trecv(bytearray(8), tag=1_000_000 + number)


# ---- the mode ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.msg.match-mode-initial", "cxi.env.rx-match-mode", "cxi.env.rx-match-mode-values")
@pytest.mark.parametrize(
    ("text", "mode", "first"),
    [
        (None, "hardware", "hardware"),
        ("hardware", "hardware", "hardware"),
        ("hybrid", "hybrid", "hardware"),
        ("software", "software", "software"),
        ("firmware", "hardware", "hardware"),
    ],
)
def test_environment_sets_the_mode_in_which_an_endpoint_starts(
    monkeypatch: pytest.MonkeyPatch, text: str | None, mode: str, first: str
) -> None:
    if text is not None:
        monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", text)
    with opened(int(fi.MSG)) as node:
        found = node.ep.message_statistics()
        assert (found.mode, found.state, found.changes) == (mode, first, 0)
        assert f"mode {mode}, matched in {first}" in repr(found)


@modes
def test_domain_option_sets_the_mode_of_endpoints_that_are_enabled_later(mode: str) -> None:
    """fi_cxi(7) FI_OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE: of an endpoint that is open already, too."""
    with opened(int(fi.MSG)) as other, opened(int(fi.MSG), enable=False) as node:
        node.domain.control(cxi.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE, mode)
        node.ep.enable()
        assert node.ep.message_statistics().mode == mode
        assert other.ep.message_statistics().mode == "hardware"


def test_endpoint_without_receives_has_no_mode() -> None:
    with opened() as node:
        assert node.ep.message_statistics().state == ""
        assert node.ep.message_statistics().entries == 0


@pytest.mark.clause("cxi.msg.hw-matching", "cxi.env.rx-match-hardware")
def test_hardware_mode_takes_an_entry_for_each_receive_and_each_message_without_one() -> None:
    with talkers(100) as (sender, receiver, peer):
        assert receiver.ep.message_statistics().entries == OFLOW
        post(receiver, 5)
        send(sender, receiver, peer, 7)
        found = receiver.ep.message_statistics()
        assert (found.entries_of_receives, found.entries_of_messages, found.entries_of_buffers) == (5, 7, OFLOW)
        receive_all(sender, receiver, 7)
        receiver.ep.trecv(bytearray(8), tag=9)
        sender.ep.tinject(b"12345678", peer, 9)
        receiver.wait()
        found = receiver.ep.message_statistics()
        assert (found.entries, found.entries_wanted, found.matched) == (OFLOW + 5, OFLOW + 5 + 7, 1)
        assert (found.state, found.changes, found.flow_controls) == ("hardware", 0, 0)


@pytest.mark.clause(
    "cxi.env.rx-match-software",
    "cxi.guide.match-sw-lists",
    "cxi.guide.match-sw-no-hw",
    "cxi.env.rx-match-software-buffers",
)
def test_software_mode_takes_no_entry_but_for_its_request_buffers(match: Match) -> None:
    match("software", req_buf_min_posted=5)
    with talkers(5) as (sender, receiver, peer):
        post(receiver, 200)
        send(sender, receiver, peer, 200)
        found = receiver.ep.message_statistics()
        assert (found.posted, found.unexpected, found.entries) == (200, 200, 5)
        assert (found.refused, found.flow_controls, found.state) == (0, 0, "software")
        receive_all(sender, receiver, 200)


@pytest.mark.clause("cxi.env.rx-match-hybrid", "cxi.env.rx-match-hybrid-exhausted", "cxi.msg.hybrid")
@pytest.mark.clause("cxi.msg.sw-matching", "cxi.msg.match-mode-transition", "cxi.msg.unexpected-resources")
def test_hybrid_mode_moves_to_software_when_a_message_finds_no_entry(match: Match) -> None:
    """Order and bytes stay, messages from before and after the move."""
    match("hybrid")
    with talkers(OFLOW + 20) as (sender, receiver, peer):
        send(sender, receiver, peer, 20)
        found = receiver.ep.message_statistics()
        assert (found.state, found.entries_of_messages) == ("hardware", 20)
        send(sender, receiver, peer, 40, first=20)
        found = receiver.ep.message_statistics()
        assert (found.state, found.cause, found.changes) == ("software", "no entry for a message", 1)
        assert (found.entries_of_messages, found.entries_of_buffers, found.onloaded) == (0, REQUESTS, 20)
        assert found.flow_controls == 0
        receive_all(sender, receiver, 60)


@pytest.mark.clause("cxi.msg.match-mode-transition", "cxi.env.rx-match-hybrid-exhausted")
def test_hybrid_mode_moves_to_software_when_a_receive_finds_no_entry(match: Match) -> None:
    match("hybrid")
    with talkers(OFLOW + 20) as (sender, receiver, peer):
        for number in range(60):
            with contextlib.suppress(fi.Again):  # while the mode changes
                receiver.ep.trecv(bytearray(1000), tag=number, context=number)
            until(lambda: state(receiver) != "changing", receiver)
        found = receiver.ep.message_statistics()
        assert (found.state, found.cause, found.entries_of_receives) == ("software", "no entry for a receive", 0)
        for number in range(10):
            sender.ep.tsend(payload(number), None, peer, number)
            assert receiver.wait()[0].op_context == number


@pytest.mark.clause("cxi.msg.match-mode-transition")
def test_hardware_mode_stays_and_refuses_a_receive_that_finds_no_entry() -> None:
    """Facts, section 12: fatal on hardware, with a message that names the variable."""
    with talkers(OFLOW + 20) as (_, receiver, _peer):
        post(receiver, 20)
        with pytest.raises(fi.NoSpace, match="FI_CXI_RX_MATCH_MODE=hybrid or software"):
            post(receiver, 1, first=20)
        found = receiver.ep.message_statistics()
        assert (found.state, found.posted, found.no_entries) == ("hardware", 20, 1)
        assert found.entries_wanted == OFLOW + 21
        receiver.ep.cancel(None)
        post(receiver, 1, first=20)


@modes
def test_endpoint_needs_the_entries_of_its_buffers(mode: str, match: Match) -> None:
    match(mode)
    least = REQUESTS if mode == "software" else OFLOW
    with pytest.raises(fi.NoSpace, match=f"{least} les of cxi0") as caught, of_service(service_with(least - 1)):
        pass
    assert "in use by: nobody has any" in str(caught.value)
    key = service_with(least)
    with of_service(key):
        assert in_use(key) == least
        with pytest.raises(fi.NoSpace, match="in use by: process"), of_service(key):
            pass
        assert in_use(key) == least
    assert in_use(key) == 0
    with of_service(key):
        pass


def test_regions_and_messages_share_the_entries_of_a_service() -> None:
    key = service_with(OFLOW + 3)
    with of_service(key, caps=int(fi.MSG | fi.TAGGED | fi.RMA)) as node:
        regions = [node.domain.mr_reg(bytearray(8), fi.REMOTE_WRITE, requested_key=200 + i) for i in range(2)]
        for mr in regions:
            mr.bind(node.ep)
            mr.enable()
        post(node, 1)
        assert in_use(key) == OFLOW + 3
        with pytest.raises(fi.NoSpace):
            post(node, 1)
        regions[0].close()
        post(node, 1)
        regions[1].close()
    assert in_use(key) == 0


# ---- pre-emptive options -----------------------------------------------------------------------------------------


@pytest.mark.clause(
    "cxi.env.hybrid-preemptive-default",
    "cxi.env.hybrid-recv-preemptive-default",
    "cxi.env.hybrid-posted-recv-default",
    "cxi.env.hybrid-unexp-msg-default",
    "cxi.env.msg-lossless-default",
)
def test_options_are_off_by_default(match: Match) -> None:
    match("hybrid")
    e = env.load()
    assert not any((e.FI_CXI_HYBRID_PREEMPTIVE, e.FI_CXI_HYBRID_RECV_PREEMPTIVE, e.FI_CXI_MSG_LOSSLESS))
    assert not any((e.FI_CXI_HYBRID_POSTED_RECV_PREEMPTIVE, e.FI_CXI_HYBRID_UNEXPECTED_MSG_PREEMPTIVE))
    with talkers(OFLOW + 40, rx_size=16) as (sender, receiver, peer):
        send(sender, receiver, peer, 20)
        post(receiver, 20)
        assert state(receiver) == "hardware"


@pytest.mark.clause("cxi.env.hybrid-preemptive", "cxi.guide.preempt-low-pool")
@pytest.mark.parametrize("on", [0, 1])
def test_message_moves_matching_early_while_entries_for_request_buffers_are_left(match: Match, on: int) -> None:
    match("hybrid", hybrid_preemptive=on)
    with talkers(OFLOW + REQUESTS + 10) as (sender, receiver, peer):
        send(sender, receiver, peer, 10)
        assert state(receiver) == "hardware"
        send(sender, receiver, peer, REQUESTS, first=10)
        found = receiver.ep.message_statistics()
        assert (found.state, found.cause) == (("software", "few entries") if on else ("hardware", ""))
        receive_all(sender, receiver, 10 + REQUESTS)


@pytest.mark.clause("cxi.env.hybrid-recv-preemptive", "cxi.guide.preempt-low-pool")
@pytest.mark.parametrize("on", [0, 1])
def test_receive_moves_matching_early_while_entries_for_request_buffers_are_left(match: Match, on: int) -> None:
    match("hybrid", hybrid_recv_preemptive=on)
    with talkers(OFLOW + REQUESTS + 10) as (_, receiver, _peer):
        post(receiver, 10)
        assert state(receiver) == "hardware"
        post(receiver, 1, first=10)
        until(lambda: state(receiver) != "changing", receiver)
        found = receiver.ep.message_statistics()
        assert (found.state, found.cause) == (("software", "few entries") if on else ("hardware", ""))


@pytest.mark.clause(
    "cxi.env.hybrid-posted-recv",
    "cxi.env.hybrid-posted-recv-overflow",
    "cxi.guide.preempt-rx-size",
    "cxi.guide.preempt-user-control",
)
@pytest.mark.parametrize("size", [16, 30])
def test_more_receives_than_the_rx_size_move_matching_to_software(match: Match, size: int) -> None:
    """The receive that is one too many has to be posted again, as under the real provider; the receives go on: nothing
    ends the application."""
    match("hybrid", hybrid_posted_recv_preemptive=1)
    with talkers(2000, rx_size=size) as (sender, receiver, peer):
        post(receiver, size)
        assert state(receiver) == "hardware"
        with pytest.raises(fi.Again):
            post(receiver, 1, first=size)
        until(lambda: state(receiver) != "changing", receiver)
        post(receiver, 1, first=size)
        found = receiver.ep.message_statistics()
        assert (found.state, found.cause) == ("software", "many receives")
        post(receiver, 1000, first=size + 1)
        receiver.ep.trecv(bytearray(8), tag=5, context="r")
        sender.ep.tinject(b"12345678", peer, 5)
        assert receiver.wait()[0].op_context == "r"


@pytest.mark.clause(
    "cxi.env.hybrid-unexp-msg",
    "cxi.env.hybrid-unexp-msg-overflow",
    "cxi.guide.preempt-rx-size",
    "cxi.guide.preempt-user-control",
)
@pytest.mark.parametrize("size", [16, 30])
def test_more_messages_than_the_rx_size_move_matching_to_software(match: Match, size: int) -> None:
    match("hybrid", hybrid_unexpected_msg_preemptive=1)
    with talkers(2000, rx_size=size) as (sender, receiver, peer):
        send(sender, receiver, peer, size)
        assert state(receiver) == "hardware"
        send(sender, receiver, peer, 500, first=size)
        found = receiver.ep.message_statistics()
        assert (found.state, found.cause) == ("software", "many messages")
        receive_all(sender, receiver, size + 500)


@pytest.mark.parametrize("mode", ["hardware", "software"])
def test_options_have_no_effect_in_other_modes(match: Match, mode: str) -> None:
    match(
        mode,
        hybrid_preemptive=1,
        hybrid_recv_preemptive=1,
        hybrid_posted_recv_preemptive=1,
        hybrid_unexpected_msg_preemptive=1,
    )
    with talkers(OFLOW + 60, rx_size=16) as (sender, receiver, peer):
        send(sender, receiver, peer, 30)
        post(receiver, 30)
        assert (state(receiver), receiver.ep.message_statistics().changes) == (mode, 0)


@pytest.mark.clause("cxi.guide.preempt-all-to-one")
def test_without_options_an_exhausted_pool_moves_every_endpoint_of_it(match: Match) -> None:
    match("hybrid")
    key = service_with(2 * OFLOW + 20)
    with of_service(service_with(1000)) as sender, of_service(key) as loaded, of_service(key) as other:
        to_loaded, to_other = sender.av.insert(loaded.name), sender.av.insert(other.name)
        send(sender, loaded, to_loaded, 20)  # all entries are taken now
        send(sender, other, to_other, 1)
        until(lambda: state(other) == "software", other)
        post(other, 3)
        assert state(loaded) == "hardware"
        for key_of_more in range(100):  # the other endpoint's entries are used up, too
            send(sender, loaded, to_loaded, 1, first=20 + key_of_more)
            if state(loaded) == "software":
                break
        assert (state(loaded), state(other)) == ("software", "software")


@pytest.mark.clause("cxi.guide.preempt-only-offender", "cxi.guide.preempt-fewer")
@pytest.mark.parametrize("option", ["hybrid_preemptive", "hybrid_unexpected_msg_preemptive"])
def test_with_options_only_the_endpoint_that_needs_much_moves(match: Match, option: str) -> None:
    match("hybrid", **{option: 1})
    key = service_with(2 * OFLOW + 30)
    with (
        of_service(service_with(1000)) as sender,
        of_service(key, rx_size=16) as loaded,
        of_service(key, rx_size=16) as other,
    ):
        to_loaded, to_other = sender.av.insert(loaded.name), sender.av.insert(other.name)
        send(sender, loaded, to_loaded, 60)
        assert state(loaded) == "software"
        send(sender, other, to_other, 10)
        assert state(other) == "hardware"


STEPS = """
from tests.cxi.match_support import OFLOW, of_service, service_with
from weft import cxi, fi
with of_service(service_with(OFLOW + 1)) as node:
    node.ep.trecv(bytearray(8), tag=1)
    seen = [node.ep.message_statistics().state]
    node.ep.trecv(bytearray(8), tag=2)
    seen.append(node.ep.message_statistics().state)
    ops = node.domain.open_ops(cxi.DOM_OPS_6)
    for call in (lambda: node.ep.trecv(bytearray(8), tag=3), lambda: ops.ep_get_unexp_msgs(node.ep)):
        try:
            call()
        except fi.Again:
            seen.append("again")
    node.cq.read()
    seen.append(node.ep.message_statistics().state)
    node.ep.trecv(bytearray(8), tag=3)
    assert ops.ep_get_unexp_msgs(node.ep) == (0, 0)
    print(*seen)
"""


@pytest.mark.procs
@pytest.mark.clause("cxi.guide.preempt-multi-step", "cxi.ext.dom.unexp-error")
def test_move_to_software_has_several_steps(match: Match, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receives, and the list of messages, have to wait between the first step and the last, which needs progress."""
    match("hybrid")
    monkeypatch.setenv("WEFT_ENGINE", "manual")
    done = patience.run([sys.executable, "-c", STEPS], 60)
    assert done.stdout.split() == ["hardware", "changing", "again", "again", "software"]
    assert "matching moves to software: no entry for a receive" in done.stderr


def test_service_show_counts_entries_of_messages() -> None:
    key = service_with(100)
    with of_service(key) as node:
        post(node, 7)
        result = CliRunner().invoke(cli.app, ["service", "show", str(key.svc_id), "--json"])
        assert json.loads(result.output)["in_use"]["les"] == OFLOW + 7
