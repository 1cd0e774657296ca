"""Names on one host: unique, found without a server, gone with their owner."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import warnings
from typing import Any

import pytest
from tests.patience import Patience
from tests.share.owner import Owner

import weft
from weft import errors
from weft.share.names import unixsockets
from weft.share.names.server import NameServer, lookup, names


def test_unknown_name_lists_those_there_are(node: weft.Node, name: Any) -> None:
    n = name("embeddings")
    node.share(weft.zeros(1), n)
    with pytest.raises(errors.NotFound) as caught:
        node.attach(n[:-1])
    assert f"did you mean: {n!r}" in str(caught.value)
    assert "names here:" in str(caught.value)
    assert "wait=10" in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)


def test_name_taken_twice_names_the_process(node: weft.Node, name: Any) -> None:
    n = name("a")
    node.share(weft.zeros(1), n)
    with pytest.raises(errors.AddressInUse, match="in this process"):
        node.share(weft.zeros(1), n)
    assert node.statistics().shared == 1


@pytest.mark.procs
def test_name_of_another_process(node: weft.Node, own_owner: Owner, name: Any) -> None:
    n = name("a")
    own_owner.tell(f"node.share(np.zeros(3), {n!r})")
    assert n in node.names()
    with pytest.raises(errors.AddressInUse, match=f"by process {own_owner.pid}"):
        node.share(weft.zeros(1), n)
    own_owner.kill()
    assert n not in node.names()
    node.share(weft.zeros(1), n)


def test_closing_gives_the_name_back(node: weft.Node, name: Any) -> None:
    n = name("a")
    with node.share(weft.zeros(1), n):
        assert n in node.names()
    assert n not in node.names()
    with weft.open() as other:
        other.share(weft.zeros(1), n)
    assert n not in node.names()


def test_withdrawn_name_is_free_although_a_copy_of_its_socket_was_open(name: Any) -> None:
    """As a child has it that was forked and has not run Weft's fork handlers yet."""
    first, second = name("first"), name("second")
    server = NameServer()
    try:
        server.publish(first, "ticket of the first")
        server.publish(second, "ticket of the second")
        held = next(one for one in server._listeners.values() if one.name == first)
        copy = os.dup(held.listener.fileno())
        closing = threading.Timer(0.02, os.close, [copy])
        closing.start()
        server.withdraw(first)
        assert first not in names()
        assert lookup(second) == "ticket of the second"
        closing.join()
    finally:
        server.close()


def test_attach_waits_for_a_name(node: weft.Node, name: Any) -> None:
    n = name("late")
    array = weft.zeros(3)

    def later() -> None:
        time.sleep(0.05)
        node.share(array, n)

    thread = threading.Thread(target=later)
    thread.start()
    assert node.attach(n, wait=30).shape == (3,)
    thread.join()
    with pytest.raises(errors.NotFound, match=r"waited 0.01 s"):
        node.attach(n + "x", wait=0.01)


@pytest.mark.parametrize("bad", ["", "a b", "a\nb", "x" * 65, "ü" * 40, "q'"])
def test_bad_names_are_refused(node: weft.Node, bad: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="is not a valid name"):
        node.share(weft.zeros(1), bad)
    with pytest.raises(errors.InvalidArgument, match="is not a valid name"):
        node.attach(bad)


@pytest.mark.procs
def test_forked_child_does_not_keep_names(own_owner: Owner, node: weft.Node, name: Any) -> None:
    n = name("a")
    own_owner.tell(f"node.share(np.zeros(3), {n!r})")
    own_owner.tell("import signal\nr, w = os.pipe()\nc = os.fork()\nif c == 0:\n os.write(w, b'!')\n signal.pause()")
    child = own_owner.tell("c")
    own_owner.tell("os.read(r, 1)")  # the child has left os.fork(), and with it Weft's fork handlers
    try:
        own_owner.kill()
        assert n not in node.names()
    finally:
        import os
        import signal

        os.kill(int(child), signal.SIGKILL)


@pytest.mark.procs
def test_stopped_owner_times_out(node: weft.Node, own_owner: Owner, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:

    from weft.share.names import server as names

    n = name("a")
    own_owner.tell(f"node.share(np.zeros(3), {n!r})")
    monkeypatch.setattr(names, "_ANSWER_TIMEOUT_S", 0.05)
    own_owner.stop()
    try:
        with pytest.raises(errors.TimedOut, match=f"process {own_owner.pid}.*did not answer"):
            node.attach(n)
    finally:
        own_owner.go_on()


def test_collected_server_closes_its_sockets_without_a_warning(name: Any) -> None:
    n = name("dropped")
    gc.collect()  # sockets that other tests have left
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        server = NameServer()
        server.publish(n, "ticket")
        del server
        gc.collect()
    of_names = [text for w in found if any(mark in (text := str(w.message)) for mark in (n, "family=1,", "AF_UNIX"))]
    assert of_names == []
    patience = Patience(60)  # the server's thread may drop the last reference
    while n in weft.Node.names() and patience.left() > 0:
        time.sleep(0.001)
    assert n not in weft.Node.names()


@pytest.mark.parametrize("kernel", ["answers", "refuses"])
def test_name_that_nobody_listens_for_yet_is_not_shown(name: Any, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """attach() would not find the name: the process that takes it has bound its socket, and listens in a moment."""
    if kernel == "refuses":
        monkeypatch.setattr(unixsockets, "_by_diag", refusing)
    taken = name("early")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as early:
        early.bind(f"\0weft-name-{os.geteuid()}-{taken}".encode())
        assert taken not in weft.Node.names()
        early.listen(1)
        assert taken in weft.Node.names()


def refusing(*_: object) -> Any:
    raise OSError("no queries here")
