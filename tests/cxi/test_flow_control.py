"""Flow control: its effects without list entries, and the log's texts (fi_cxi(7) "Messaging", the guide)."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.cxi.match_support import (
    OFLOW,
    WAIT_S,
    flood,
    in_use,
    of_service,
    payload,
    receive_all,
    service_with,
    state,
    talkers,
)
from tests.cxi.support import BOTH, found
from tests.fi.support import Node
from tests.patience import Patience
from tests.procs.children import Child
from tests.procs.peer import World
from typer.testing import CliRunner

from weft import cxi, fi
from weft.providers.cxi import logs, messages, trouble, watch
from weft.tools import cli

Match = Callable[..., None]


def said(caplog: pytest.LogCaptureFixture, nodes: tuple[Node, ...], words: str) -> str:
    """The first log line with these words; reads the queues until it is there."""
    limit = Patience(WAIT_S)
    while not limit.over:
        for line in caplog.messages:
            if words in line:
                return line
        for node in nodes:
            assert not node.cq.read()
    raise AssertionError(f"no line with {words!r} in {caplog.messages}")


# ---- hardware mode -----------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.msg.flow-control", "cxi.msg.flow-control-recovery", "cxi.guide.flow-control-reclaim")
@pytest.mark.clause("cxi.env.rx-match-hardware-exhausted", "cxi.env.rx-match-hardware-onload")
def test_messages_without_entries_begin_flow_control_and_all_arrive_in_order() -> None:
    """The messages that are there already give their entries back."""
    with talkers(OFLOW + 10) as (sender, receiver, peer):
        assert flood(sender, receiver, peer, 10) == 10
        assert receiver.ep.message_statistics().flow_controls == 0
        assert flood(sender, receiver, peer, 190, first=10) == 190
        now = receiver.ep.message_statistics()
        assert now.flow_controls >= 10
        assert now.refused >= now.flow_controls
        assert now.onloaded + now.entries_of_messages == 200
        assert (now.state, now.changes) == ("hardware", 0)
        receive_all(sender, receiver, 200)
        assert receiver.ep.message_statistics().entries == OFLOW


@pytest.mark.clause("cxi.guide.flow-control-sideband")
def test_recovery_takes_messages_beside_the_traffic(match: Match) -> None:
    """A sender that would wait 1000 seconds by itself is told to go on, each time that flow control ends."""
    match(fc_retry_usec_delay=10**9)
    frames = []
    for les in (OFLOW + 60, OFLOW + 10):
        with talkers(les) as (sender, receiver, peer):
            nic = receiver.domain.policy.nic
            before = nic.statistics()["frames_served"]
            assert flood(sender, receiver, peer, 60) == 60
            frames.append(nic.statistics()["frames_served"] - before)
            controls, refused = (getattr(receiver.ep.message_statistics(), n) for n in ("flow_controls", "refused"))
            receive_all(sender, receiver, 60)
    assert controls > 0
    # A refused message is two frames more, and the word that the sender may go on is another frame.
    assert frames[1] >= frames[0] + 2 * refused + controls


@pytest.mark.clause("cxi.guide.flow-control-cycle", "cxi.guide.pool-shared")
def test_flow_control_begins_again_and_again_while_nothing_can_be_reclaimed() -> None:
    """Another endpoint of the service has the entries."""
    key = service_with(2 * OFLOW + 10)
    with of_service(service_with(1000)) as sender, of_service(key) as holder, of_service(key) as receiver:
        for tag in range(10):
            holder.ep.trecv(bytearray(8), tag=tag, context=tag)
        peer = sender.av.insert(receiver.name)
        sender.ep.tsend(payload(0), None, peer, 0, "s")
        limit = Patience(WAIT_S)
        while receiver.ep.message_statistics().flow_controls < 3:
            assert not sender.cq.read()
            assert not receiver.cq.read()
            assert not limit.over
        assert sender.ep.message_statistics().stopped == 1
        holder.ep.cancel(5)
        assert sender.wait()[0].op_context == "s"
        receive_all(sender, receiver, 1)


@pytest.mark.clause("cxi.env.msg-lossless", "cxi.env.msg-lossless-pause")
@pytest.mark.parametrize("on", [0, 1])
def test_lossless_endpoint_pauses_its_senders_instead(match: Match, on: int) -> None:
    match(msg_lossless=on)
    with talkers(OFLOW + 10) as (sender, receiver, peer):
        assert flood(sender, receiver, peer, 10) == 10
        sender.ep.tsend(payload(10), None, peer, 10, "s")
        limit = Patience(WAIT_S)
        while not receiver.ep.message_statistics().refused:
            assert not limit.over
        now = receiver.ep.message_statistics()
        if on:
            assert (now.pauses > 0, now.flow_controls, now.onloaded, now.unexpected) == (True, 0, 0, 10)
            assert not sender.cq.read()
            receive_all(sender, receiver, 1)
        assert sender.wait()[0].op_context == "s"
        now = receiver.ep.message_statistics()
        assert (now.pauses > 0, now.flow_controls > 0) == (bool(on), not on)
        receive_all(sender, receiver, 10 if on else 11, first=on)


@pytest.mark.clause("cxi.env.msg-lossless-resume-hw", "cxi.env.msg-lossless-resume-sw")
@pytest.mark.parametrize("mode", ["hardware", "hybrid", "software"])
def test_paused_senders_go_on_when_a_buffer_is_posted(match: Match, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """An overflow buffer, or a request buffer: one is posted when the last of its messages has been received."""
    monkeypatch.setattr(messages, "UNEXPECTED_BYTES", 4 * 8192)
    sizes = {"oflow_buf_size": 8192, "oflow_buf_min_posted": 4, "req_buf_size": 8192, "req_buf_min_posted": 4}
    match(mode, msg_lossless=1, fc_retry_usec_delay=10**9, **sizes)
    les, length = (4 if mode == "hybrid" else 1000), 4000  # two messages a buffer; hybrid is in software at once
    with talkers(les) as (sender, receiver, peer):
        for number in range(9):
            sender.ep.tsend(payload(number, length), None, peer, number, number)
            if number < 8:
                assert sender.wait()[0].op_context == number
        limit = Patience(WAIT_S)
        while not sender.ep.message_statistics().stopped:
            assert not sender.cq.read()
            assert not limit.over
        assert state(receiver) == ("hardware" if mode == "hardware" else "software")
        assert receiver.ep.message_statistics().buffers == 4
        receive_all(sender, receiver, 1, length=length)
        for _ in range(100):
            assert not sender.cq.read()
        assert receiver.ep.message_statistics().unexpected == 7
        room = bytearray(length)
        receiver.ep.trecv(room, tag=1)
        receiver.wait()
        assert sender.wait()[0].op_context == 8
        receive_all(sender, receiver, 7, length=length, first=2)


@pytest.mark.clause("cxi.guide.any-mode-flow-control", "cxi.guide.fc-eq-full-drop")
@pytest.mark.parametrize("mode", ["hardware", "hybrid", "software"])
def test_unread_completions_stop_senders_in_every_mode(match: Match, mode: str) -> None:
    """A receiver that does not read its queue takes no more messages; nothing is lost when it reads again."""
    match(mode, default_cq_size=16)
    count = 3000
    with talkers(4000) as (sender, receiver, peer):
        for number in range(count):
            receiver.ep.trecv(bytearray(1000), tag=number, context=number)
        limit, sent = Patience(WAIT_S), 0
        while not sender.ep.message_statistics().stops:
            with contextlib.suppress(fi.Again):
                sender.ep.tsend(payload(sent), None, peer, sent)
                sent += 1
            sender.cq.read()
            assert sent < count
            assert not limit.over
        assert receiver.ep.message_statistics().refused > 0
        entries = receiver.wait(sent)
        assert [entry.op_context for entry in entries] == list(range(sent))


# ---- processes ---------------------------------------------------------------------------------------------------


def hold(world: World, key: bytes, count: int) -> Any:
    """An endpoint of the service, with receives that nothing matches."""
    info = found(int(fi.TAGGED), auth_key=cxi.AuthKey.from_bytes(key))
    fabric = fi.Fabric(info.fabric_attr)
    domain = fabric.domain(info)
    cq, av, ep = domain.cq_open(format=fi.CQ_FORMAT_TAGGED), domain.av_open(), domain.endpoint(info)
    ep.bind(cq, BOTH)
    ep.bind(av)
    ep.enable()
    for tag in range(count):
        ep.trecv(bytearray(8), tag=tag)
    HELD[:] = [ep, cq, av, domain, fabric]
    return ep.message_statistics().entries


HELD: list[Any] = []


def let_go(world: World) -> None:
    for one in HELD:
        one.close()


@pytest.fixture
def child(registry: Path) -> Iterator[Child]:
    with Child(WEFT_CXI_REGISTRY=str(registry)) as made:
        yield made


@pytest.mark.procs
@pytest.mark.clause("cxi.guide.pool-shared")
def test_entries_of_another_process_of_the_service_are_missing_here(child: Child) -> None:
    key = service_with(2 * OFLOW + 20)
    with of_service(key) as receiver, of_service(service_with(1000)) as sender:
        assert child.call(hold, bytes(key), 20) == OFLOW + 20
        assert in_use(key) == 2 * OFLOW + 20
        with pytest.raises(fi.NoSpace):
            receiver.ep.trecv(bytearray(8), tag=1)
        peer = sender.av.insert(receiver.name)
        sender.ep.tsend(payload(0), None, peer, 0, "s")
        limit = Patience(WAIT_S)
        while not receiver.ep.message_statistics().flow_controls:
            assert not limit.over
        child.call(let_go)
        assert sender.wait()[0].op_context == "s"
        assert in_use(key) == OFLOW + 1
        receiver.ep.trecv(bytearray(8), tag=1)
        receive_all(sender, receiver, 1)


@pytest.mark.procs
@pytest.mark.kill
@pytest.mark.parametrize("what", ["receive", "message", "enable"])
def test_entries_of_a_killed_process_are_free_at_once(registry: Path, what: str) -> None:
    key = service_with(2 * OFLOW + 20)
    holder = Child(WEFT_CXI_REGISTRY=str(registry))
    assert holder.call(hold, bytes(key), 20) == OFLOW + 20
    with of_service(service_with(1000)) as sender, contextlib.ExitStack() as undo:
        if what != "enable":
            receiver = undo.enter_context(of_service(key))
        else:
            undo.enter_context(of_service(key))
        holder.kill(signal.SIGKILL)
        holder.wait()
        if what == "enable":
            receiver = undo.enter_context(of_service(key))
        if what == "receive":
            for tag in range(OFLOW + 20):
                receiver.ep.trecv(bytearray(8), tag=tag)
            with pytest.raises(fi.NoSpace):
                receiver.ep.trecv(bytearray(8), tag=99)
        if what == "message":
            assert flood(sender, receiver, sender.av.insert(receiver.name), 100) == 100
            receive_all(sender, receiver, 100)
    holder.destroy()
    assert in_use(key) == 0


@pytest.mark.procs
def test_forked_child_returns_no_entries_of_its_parent() -> None:
    """It ends without closing anything, and with all objects collected."""
    key = service_with(OFLOW + 20)
    code = f"""
import gc, os
from weft import cxi
from tests.cxi.match_support import in_use, of_service
key = cxi.AuthKey({key.svc_id}, {key.vni})
with of_service(key) as node:
    for tag in range(10):
        node.ep.trecv(bytearray(8), tag=tag)
    child = os.fork()
    if child == 0:
        node.__dict__.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    print(in_use(key))
"""
    done = patience.run([sys.executable, "-c", code], 60)
    assert (done.stdout.strip(), done.stderr) == (str(OFLOW + 10), "")


# ---- lines -------------------------------------------------------------------------------------------------------


def test_transitions_are_logged_with_the_smallest_sufficient_setting(
    caplog: pytest.LogCaptureFixture, match: Match
) -> None:
    with talkers(OFLOW + 10) as (sender, receiver, peer):
        flood(sender, receiver, peer, 100)
        line = said(caplog, (receiver,), "flow control")
        assert "no entry for a message" in line
        assert f"the service has {OFLOW + 10} list entries" in line
        assert "FI_CXI_RX_MATCH_MODE=hybrid" in line
        wanted = receiver.ep.message_statistics().entries_wanted
        assert wanted == OFLOW + 100
    with talkers(wanted) as (sender, receiver, peer):  # the same with the advised setting
        assert flood(sender, receiver, peer, 100) == 100
        assert receiver.ep.message_statistics().flow_controls == 0
    caplog.clear()
    match("hybrid")
    with talkers(OFLOW + 10) as (sender, receiver, peer):
        assert flood(sender, receiver, peer, 100) == 100
        line = said(caplog, (receiver,), "moves to software")
        assert "no entry for a message" in line
        assert "--limit les=" in line


def test_endpoint_that_closes_while_its_news_come_is_not_logged_without_counts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with talkers(OFLOW + 10) as (sender, receiver, peer):
        flood(sender, receiver, peer, 100)
        line = said(caplog, (receiver,), "flow control")
        mine = receiver.domain.policy.watch
        (pid, counts), *_ = [one for one in mine.endpoints() if f"endpoint {one[0]}:" in line]
        gone = {name: 0 if isinstance(value, int) else value for name, value in counts.items()}
        caplog.clear()
        monkeypatch.setattr(watch.Watch, "endpoints", lambda _: [(pid, gone)])
        mine.news(pid, "match_mode")
        assert not caplog.messages


def test_refused_receive_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with talkers(OFLOW + 10) as (_, receiver, _peer):
        for tag in range(10):
            receiver.ep.trecv(bytearray(8), tag=tag)
        with pytest.raises(fi.NoSpace):
            receiver.ep.trecv(bytearray(8), tag=10)
        line = said(caplog, (receiver,), "a receive was refused")
        assert f"{OFLOW + 11} would have sufficed" in line
        assert f"--limit les={OFLOW + 11}" in line


FLOW = """
from tests.cxi.match_support import flood, talkers
with talkers(8) as (sender, receiver, peer):
    flood(sender, receiver, peer, 50)
    receiver.cq.read()
    for _ in range(2000):
        receiver.cq.read()
"""


@pytest.mark.procs
@pytest.mark.clause("cxi.guide.flow-control-log")
@pytest.mark.parametrize(
    ("level", "providers", "printed"),
    [("warn", "cxi", True), ("Debug", None, True), ("warn", "^verbs,tcp", True), ("warn", "^cxi", False),
     ("warn", "verbs", False)],
)  # fmt: skip
def test_libfabrics_variables_print_flow_control(
    monkeypatch: pytest.MonkeyPatch, level: str, providers: str | None, printed: bool
) -> None:
    monkeypatch.setenv("FI_LOG_LEVEL", level)
    if providers is not None:
        monkeypatch.setenv("FI_LOG_PROV", providers)
    done = patience.run([sys.executable, "-c", FLOW], 60)
    assert done.returncode == 0
    assert (":cxi<warn> device cxi0, service " in done.stderr and "flow control" in done.stderr) == printed
    assert printed or not done.stderr


@pytest.mark.parametrize(
    ("text", "admitted"),
    [(None, True), ("", True), ("cxi", True), ("CXI", True), ("tcp,cxi", True), ("tcp", False), ("^tcp", True),
     ("^cxi,tcp", False)],
)  # fmt: skip
def test_list_of_providers_is_read_as_libfabric_reads_it(text: str | None, admitted: bool) -> None:
    assert logs.admits(text) is admitted


def test_level_is_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {"warn": logging.WARNING, "trace": logs.TRACE, "info": logging.INFO, "debug": logging.DEBUG}
    for text, level in {**levels, "nonsense": logging.WARNING}.items():
        monkeypatch.setenv("FI_LOG_LEVEL", text)
        logs.follow_environment()
        assert logs.LOG.level == level
    monkeypatch.delenv("FI_LOG_LEVEL")
    logs.follow_environment()
    assert (logs.LOG.level, logs.LOG.handlers) == (logging.NOTSET, [])


# ---- the watchdog ------------------------------------------------------------------------------------------------


def watch_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "weft-watch"]


def doctor() -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli.app, ["doctor", "--watch", "--once", "--json"])
    return result.exit_code, json.loads(result.output)


def ends() -> bool:
    limit = Patience(WAIT_S)
    while watch_threads() and not limit.over:
        threading.Event().wait(0.05)
    return not watch_threads()


def exchange(first: Node, second: Node, count: int, length: int) -> bool:
    """Both send `count` untagged messages before they receive any; False: they are stuck in a deadlock."""
    pairs = ((first, first.av.insert(second.name)), (second, second.av.insert(first.name)))
    for node, peer in pairs:
        for number in range(count):
            try:
                node.ep.send(payload(number, length), None, peer)
            except fi.Again:
                return False
            node.cq.read()
    return True


@pytest.mark.clause("cxi.msg.rdzv-ids-msg")
def test_program_without_rendezvous_ids_is_told_and_runs_with_the_advice(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fi_cxi(7) "Rendezvous Messages": the deadlock of a program that sends before it receives."""
    assert ends()  # the thread of an earlier test
    with (
        of_service(service_with(2000), caps=int(fi.MSG)) as one,
        of_service(service_with(2000), caps=int(fi.MSG)) as two,
    ):
        assert not exchange(one, two, 300, 10_000)
        line = said(caplog, (one,), "untagged rendezvous IDs")
        assert "256 IDs" in line
        assert "largest wanted: 10000" in line
        advice = line.rpartition("try: ")[2]
        assert advice == f"FI_CXI_RDZV_THRESHOLD={10_000 - 2049}"
        limit = Patience(WAIT_S)
        while not doctor()[0]:
            assert not limit.over
        (row,) = doctor()[1]["stuck"]
        assert (row["resource"], row["advice"], row["wanted"]) == ("untagged rendezvous IDs", advice, 10_000)
        shown = CliRunner().invoke(cli.app, ["doctor", "--watch", "--once"]).output
        assert "untagged" in shown
        assert advice in shown
    assert ends()
    assert doctor() == (0, {**doctor()[1], "ok": True, "stuck": []})
    name, _, value = advice.partition("=")
    monkeypatch.setenv(name, value)
    with (
        of_service(service_with(2000), caps=int(fi.MSG)) as one,
        of_service(service_with(2000), caps=int(fi.MSG)) as two,
    ):
        assert exchange(one, two, 300, 10_000)
        assert not watch_threads()


def test_program_with_an_exhausted_pool_is_told_and_runs_with_the_advice(caplog: pytest.LogCaptureFixture) -> None:
    """Another endpoint has the entries, and flow control begins again and again."""

    def run(les: int) -> Iterator[None]:
        key = service_with(les)
        with of_service(service_with(1000)) as sender, of_service(key) as holder, of_service(key) as receiver:
            for tag in range(10):
                holder.ep.trecv(bytearray(8), tag=tag)
            sender.ep.tsend(payload(0), None, sender.av.insert(receiver.name), 0, "s")
            while not sender.cq.read():
                receiver.cq.read()
                yield

    stuck, limit = run(2 * OFLOW + 10), Patience(WAIT_S)
    while not (lines := [line for line in caplog.messages if "stuck for" in line and "list entries" in line]):
        next(stuck)
        assert not limit.over
    stuck.close()
    les = int(lines[0].rpartition("les=")[2].rstrip("`"))
    assert les == 2 * OFLOW + 11
    caplog.clear()
    assert sum(1 for _ in run(les)) < 10**7
    assert not [line for line in caplog.messages if "stuck for" in line or "flow control" in line]
    assert ends()


def test_receiver_that_does_not_receive_is_reported_at_its_sender(
    caplog: pytest.LogCaptureFixture, match: Match
) -> None:
    match(msg_lossless=1)
    with talkers(OFLOW + 10) as (sender, receiver, peer):
        flood(sender, receiver, peer, 30, room=10)
        assert receiver.ep.message_statistics().pauses
        assert "at the peer: post receives" in said(caplog, (sender,), "stuck for")
        assert state(receiver) == "hardware"


def test_report_of_a_dead_process_is_removed(registry: Path) -> None:
    one = trouble.Stuck("receives", "nothing moves", "3 buffers", 7, "post receives", "cxi0", 1, 5)
    trouble.write([(1000.0, one)])
    (path,) = (registry / "stuck").glob("*.json")
    assert trouble.read() == [trouble.Report(trouble.read()[0].process, 1000.0, one)]
    said_before = json.loads(path.read_text())
    trouble.write([])
    assert not path.exists()
    said_before["process"]["start"] += 1
    path.write_text(json.dumps(said_before))
    assert trouble.read() == []
    assert not path.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_watchdog_starts_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends()  # the thread of an earlier test
    looks: list[int] = []

    def stuck(self: watch.Watch, before: object) -> Iterator[object]:
        looks.append(1)
        if len(looks) == 1:
            raise OSError("the registry is gone")
        return iter(())

    with of_service(service_with(2000)) as node:
        monkeypatch.setattr(watch.Watch, "stuck", stuck)
        limit = Patience(WAIT_S)
        while len(looks) < 2 and not limit.over:
            node.domain.policy.watch.news(0, "stopped")
            threading.Event().wait(0.01)
        assert len(looks) >= 2
    assert ends()
