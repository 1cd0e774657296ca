"""Processes of this user, seen from outside: their answers, their silence, their lies, their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.observe import program
from tests.patience import Patience
from tests.procs.children import Child

from weft import _process, observe
from weft.observe import Process, View
from weft.observe.views import parse

WAIT_S = 60.0


@pytest.fixture
def viewer() -> Iterator[observe.Viewer]:
    with observe.Viewer() as viewer:
        yield viewer


def find(viewer: observe.Viewer, who: int | str) -> Process | None:
    """The process with this pid, or the one whose socket has this name."""
    found = [one for one in viewer.look() if who in (one.pid, one.name)]
    assert len(found) <= 1
    return found[0] if found else None


def until(viewer: observe.Viewer, who: int | str, accept: Callable[[Process | None], Any]) -> Process | None:
    """Look until the process is as it should be."""
    patience = Patience(WAIT_S)
    while not accept(found := find(viewer, who)):
        assert not patience.over, found
    return found


def live(viewer: observe.Viewer, who: int | str) -> View:
    """The process's answer of this moment."""
    found = until(viewer, who, lambda one: one is not None and one.state == "live")
    assert found is not None
    assert found.view is not None
    return found.view


# ---- what a process says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["weft", "cxi"])
def test_endpoint_queue_and_counter_are_shown(viewer: observe.Viewer, provider: str) -> None:
    with Child() as child:
        child.call(program.talk, provider)
        child.call(program.receive, 3)
        view = live(viewer, child.pid)
        (ep,) = view.endpoints
        (domain,) = view.domains
        (queue,) = view.queues
        assert ep.domain == domain.domain
        assert ep.nic == domain.nic
        assert ep.tx_cq == ep.rx_cq == queue.queue
        assert queue.unread == 0
        assert ep.receive is not None
        assert (ep.receive.posted, ep.receive.unexpected) == (3, 0)
        assert ep.counters == {"send": observe.CounterView(0, 0)}
        child.call(program.send, 5)
        view = live(viewer, child.pid)
        (ep,) = view.endpoints
        assert ep.counters == {"send": observe.CounterView(5, 0)}
        assert view.domains[0].operations == 5
        assert view.domains[0].bytes == 5 * program.BYTES
        assert ep.receive is not None
        assert ep.receive.messages == 5
        assert ep.receive.unexpected == 2


def test_own_snapshot_is_what_a_viewer_gets(viewer: observe.Viewer) -> None:
    talker = program.Talker()
    own = parse(_process.nic().snapshot().encode())
    patience = Patience(WAIT_S)
    while not any(one.view and one.view.endpoints == own.endpoints for one in viewer.look() if one.pid == os.getpid()):
        assert not patience.over
    # A process that listens, because of another test, has a host in its own names.
    mine = str(talker.ep.getname()).rpartition("/")[2]
    assert mine in {one.address.rpartition("/")[2] for one in own.endpoints}
    talker.close()


def test_rates_are_differences(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk)
        before = live(viewer, child.pid)
        child.call(program.send, 40)
        now = live(viewer, child.pid)
        found = observe.rates(before, now)
        seconds = (now.time_ns - before.time_ns) / 1e9
        (ep,) = now.endpoints
        assert found.seconds == pytest.approx(seconds)
        assert found.operations == pytest.approx({ep.domain: 40 / seconds})
        assert found.bytes == pytest.approx({ep.domain: 40 * program.BYTES / seconds})
        assert found.received == pytest.approx({ep.index: 40 / seconds})
        assert found.counters == pytest.approx({(ep.index, "send"): 40 / seconds})


def test_rates_of_one_answer_are_unknown(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk)
        now = live(viewer, child.pid)
        assert observe.rates(None, now).seconds == 0
        assert observe.rates(now, now).operations == {}


def test_refused_calls_and_a_full_queue_are_shown(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk, "weft", 0, 4)
        child.call(program.refused, 3)
        view = live(viewer, child.pid)
        assert view.endpoints[0].again == 3
        assert view.queues[0].capacity == 4
        assert view.queues[0].unread + view.queues[0].reserved == 4


def test_flow_control_is_shown(viewer: observe.Viewer) -> None:
    """The service has entries for a few messages, so that flow control begins again and again."""
    with Child(FI_CXI_RX_MATCH_MODE="hardware") as child:
        child.call(program.talk, "cxi", 20)
        child.call(program.flood, 2)
        (ep,) = live(viewer, child.pid).endpoints
        assert ep.receive is not None
        assert ep.receive.mode == "hardware"
        assert ep.receive.flow_controls >= 2
        assert ep.receive.refused >= 2
        assert ep.stops >= 2
        assert ep.retries >= 2


def test_peer_is_shown_with_its_path(viewer: observe.Viewer) -> None:
    from tests.procs import peer

    with Child() as one, Child() as other:
        name = one.call(peer.open_side)
        one.call(peer.expose, "x", 64, 7, False)
        other.call(peer.open_side)
        other.call(program.write_to, name, 7)
        peers = live(viewer, other.pid).peers
        assert [each.pid for each in peers] == [one.pid]
        assert peers[0].path.startswith("direct")
        assert not peers[0].dead


def test_only_wanted_pids_are_asked() -> None:
    with Child() as one, Child() as other:
        one.call(program.talk)
        other.call(program.talk)
        with observe.Viewer({other.pid}) as viewer:
            live(viewer, other.pid)
            assert [each.pid for each in viewer.look()] == [other.pid]


def test_switch_hides_a_process(viewer: observe.Viewer) -> None:
    with Child(WEFT_TOP="0") as hidden, Child() as shown:
        hidden.call(program.talk)
        shown.call(program.talk)
        live(viewer, shown.pid)
        assert find(viewer, hidden.pid) is None


# ---- no answer -------------------------------------------------------------------------------------------------------


def test_stopped_process_is_stale_and_live_when_it_continues(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk)
        view = live(viewer, child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        try:
            stale = find(viewer, child.pid)
            assert stale is not None
            assert (stale.state, stale.view) == ("stale", view)
            older = find(viewer, child.pid)
            assert older is not None
            assert older.age_s > stale.age_s > 0
        finally:
            os.kill(child.pid, signal.SIGCONT)
        again = until(
            viewer, child.pid, lambda one: one is not None and one.view is not None and one.view.time_ns > view.time_ns
        )
        assert again is not None
        assert again.state == "live"


def test_process_that_never_answered_has_no_view(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        try:
            found = find(viewer, child.pid)
            assert found is not None
            assert (found.state, found.view) == ("stale", None)
        finally:
            os.kill(child.pid, signal.SIGCONT)


def test_many_viewers_of_a_stopped_process_do_not_hang() -> None:
    with Child() as child, contextlib.ExitStack() as viewers:
        child.call(program.talk)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        try:
            for _ in range(40):
                one = viewers.enter_context(observe.Viewer({child.pid}))
                assert [each.state for each in one.look(0.001)] == ["stale"]
        finally:
            os.kill(child.pid, signal.SIGCONT)
        live(viewers.enter_context(observe.Viewer({child.pid})), child.pid)


def test_manual_process_answers_when_it_makes_progress(viewer: observe.Viewer) -> None:
    with Child(WEFT_ENGINE="manual") as child:
        child.call(program.talk)
        view = live(viewer, child.pid)  # the child makes progress while it waits for commands
        assert not view.engine


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_killed_process_vanishes(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk)
        live(viewer, child.pid)
        child.kill()
        child.wait()
        assert find(viewer, child.pid) is None


def test_process_that_ends_before_it_takes_the_question_is_gone_not_broken() -> None:
    name = f"weft.top.{os.geteuid()}.{os.getpid()}.{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("\0" + name)
        listener.listen()
        with observe.Viewer() as viewer:
            asked = find(viewer, name)  # the question waits in the socket's queue
            assert asked is not None
            assert asked.state == "stale"
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeps_the_name:
                listener.close()
                keeps_the_name.bind("\0" + name)
                keeps_the_name.listen()
                assert find(viewer, name) is None


def test_killed_process_vanishes_though_its_forked_child_lives(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk)
        orphan = child.call(program.fork_idle)
        try:
            live(viewer, child.pid)
            child.kill()
            child.wait()
            assert find(viewer, child.pid) is None
            assert find(viewer, orphan) is None
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_forked_child_is_shown_beside_its_parent(viewer: observe.Viewer) -> None:
    with Child() as child:
        child.call(program.talk)
        forked = child.call(program.fork_talker)
        try:
            assert len(live(viewer, child.pid).endpoints) == 1
            assert len(live(viewer, forked).endpoints) == 1
        finally:
            os.kill(forked, signal.SIGKILL)


# ---- liars -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def liar(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A socket with the name of a NIC of this process; every viewer that connects gets `answer`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        name = f"weft.top.{os.geteuid()}.{os.getpid()}.{os.urandom(8).hex()}"
        sock.bind("\0" + name)
        sock.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = sock.accept()
                    with caller:
                        answer(caller)

        thread = threading.Thread(target=serve)
        thread.start()
        yield name
        sock.shutdown(socket.SHUT_RDWR)
        thread.join()


def give(data: bytes) -> Callable[[socket.socket], None]:
    def answer(caller: socket.socket) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            socket.send_fds(caller, [b"x"], [file.fileno()])

    return answer


def give_folder(caller: socket.socket) -> None:
    fd = os.open("/", os.O_RDONLY)
    try:
        socket.send_fds(caller, [b"x"], [fd])
    finally:
        os.close(fd)


GOOD: dict[str, Any] = {
    **dict.fromkeys(("version", "time_ns", "frames_served", "engine_wakes", "waiting_ops", "deferred"), 1),
    "regions": 0,
    "registered_bytes": 0,
    "allocated_bytes": 0,
    "engine": True,
    "peers": [],
    "domains": [],
    "endpoints": [],
    "queues": [],
}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({**GOOD, "version": 2}).encode(),
        json.dumps({**GOOD, "time_ns": "now"}).encode(),
        json.dumps({**GOOD, "engine": 1}).encode(),
        json.dumps({**GOOD, "endpoints": [{}]}).encode(),
        json.dumps({**GOOD, "endpoints": 3}).encode(),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_answer_that_is_none_is_broken(viewer: observe.Viewer, data: bytes) -> None:
    with liar(give(data)) as name:
        found = until(viewer, name, lambda one: one is not None and one.state != "stale")
        assert found is not None
        assert (found.state, found.view) == ("broken", None)


def test_answer_with_a_folder_is_broken(viewer: observe.Viewer) -> None:
    with liar(give_folder) as name:
        until(viewer, name, lambda one: one is not None and one.state == "broken")


def test_answer_of_the_right_form_is_taken(viewer: observe.Viewer) -> None:
    """The wrong answers above differ from this answer in one thing each."""
    with liar(give(json.dumps(GOOD).encode())) as name:
        assert live(viewer, name).time_ns == 1


# Binds the name that a NIC of our user would have, and answers as such a NIC does.
STRANGER = """
import contextlib, os, socket, sys, tempfile
os.setgroups([]); os.setgid(65533); os.setuid(65533)
held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
held.bind("\\0" + sys.argv[1])
held.listen()
print("listens", flush=True)
while True:
    caller, _ = held.accept()
    with caller, tempfile.TemporaryFile() as file, contextlib.suppress(OSError):
        file.write(sys.argv[2].encode())
        file.flush()
        socket.send_fds(caller, [b"x"], [file.fileno()])
"""


@pytest.mark.procs
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started by root alone")
def test_answer_of_another_user_is_not_taken(viewer: observe.Viewer) -> None:
    name = f"weft.top.{os.geteuid()}.{os.getpid()}.{os.urandom(8).hex()}"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", STRANGER, name, json.dumps(GOOD)], stdout=subprocess.PIPE, text=True
    ) as stranger:
        try:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "listens\n"
            for _ in range(3):
                found = find(viewer, name)
                assert found is not None
                assert (found.state, found.view, found.pid) == ("stale", None, os.getpid())
        finally:
            stranger.kill()


def test_process_that_hangs_up_is_stale(viewer: observe.Viewer) -> None:
    with liar(lambda caller: None) as name:
        found = find(viewer, name)
        assert found is not None
        assert found.state == "stale"
