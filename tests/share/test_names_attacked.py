"""Names while another user's process holds the socket, or descriptors are missing."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests import patience
from tests.share.owner import Owner

import weft
from weft import errors
from weft.share.names import server as names
from weft.share.names import unixsockets

STRANGER = 65533  # a user that owns nothing

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started by root alone")
Squat = Callable[..., subprocess.Popen[str]]

SQUATTER = """
import os, socket, sys
os.setgroups([]); os.setgid({user}); os.setuid({user})
held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
held.bind(b"\\0" + {place!r}.encode())
callers = []
if {listens}:
    held.listen(0 if {full} else 8)
    while True:  # fill the queue of callers
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.setblocking(False)
        callers.append(caller)
        try:
            caller.connect(held.getsockname())
        except BlockingIOError:
            break
        if not {full}:
            break
print("squatted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def squat() -> Iterator[Squat]:
    """Start another user's process that binds the socket of a name."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *, listens: bool = True, full: bool = False) -> subprocess.Popen[str]:
        place = f"weft-name-{os.geteuid()}-{name}"
        program = SQUATTER.format(user=STRANGER, place=place, listens=listens, full=full)
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "squatted\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@as_root
@pytest.mark.procs
@pytest.mark.parametrize(("listens", "full"), [(True, False), (True, True), (False, False)])
def test_name_held_by_another_user_can_be_shared(
    node: weft.Node, own_owner: Owner, squat: Squat, name: Any, listens: bool, full: bool
) -> None:
    n = name("camera")
    squatter = squat(n, listens=listens, full=full)
    assert n not in node.names()
    own_owner.tell(f"a = node.share(np.full(3, 7.0), {n!r})")
    assert n in node.names()
    assert node.attach(n)[0] == 7
    with pytest.raises(errors.AddressInUse, match=f"by process {own_owner.pid} "):
        node.share(weft.zeros(1), n)
    squatter.kill()
    squatter.wait(100)
    assert node.attach(n)[0] == 7
    with pytest.raises(errors.AddressInUse, match=f"by process {own_owner.pid} "):
        node.share(weft.zeros(1), n)  # the first place is free, and the name is not
    own_owner.tell("a.close()")
    assert n not in node.names()
    node.share(weft.zeros(1), n)


@as_root
@pytest.mark.procs
def test_name_that_only_a_stranger_holds_is_not_attached(node: weft.Node, squat: Squat, name: Any) -> None:
    n = name("camera")
    squatter = squat(n)
    with pytest.raises(errors.NotPermitted, match=f"process {squatter.pid} of user {STRANGER}.*you are user 0"):
        node.attach(n)


@as_root
@pytest.mark.procs
def test_attach_waits_beside_a_stranger(node: weft.Node, squat: Squat, name: Any) -> None:
    n = name("camera")
    squat(n)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(node.attach(n, wait=100)[0]))
    thread.start()
    node.share(weft.zeros(3), n)
    thread.join()
    assert answers == [0]


@as_root
@pytest.mark.procs
def test_lookup_by_another_user_is_refused(node: weft.Node, name: Any) -> None:
    n = name("private")
    shared = node.share(weft.zeros(3), n)
    program = f"""
import os, socket
os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})
asker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asker.connect(b"\\0weft-name-{os.geteuid()}-{n}")
print(asker.recv(100000).decode())
"""
    told = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    assert told.stdout.startswith(f"E{n} belongs to user 0, you are user {STRANGER}")
    assert str(shared.ticket) not in told.stdout


@as_root
@pytest.mark.procs
def test_name_is_taken_once_beside_a_stranger(node: weft.Node, squat: Squat, name: Any) -> None:
    """Several processes take a name at the same instant: one process gets it, the others get an error."""
    n = name("camera")
    squat(n)
    start = threading.Barrier(4)
    outcomes: list[str] = []

    def take() -> None:
        start.wait(100)
        try:
            node.share(weft.zeros(1), n)
            outcomes.append("shared")
        except errors.AddressInUse:
            outcomes.append("taken")

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("shared") <= 1
    assert len(outcomes) == 4
    if "shared" in outcomes:
        assert node.attach(n).shape == (1,)


@pytest.mark.procs
def test_owner_without_descriptors_answers_for_its_names(node: weft.Node, own_owner: Owner, name: Any) -> None:
    n = name("a")
    node.attach(own_owner.tell(f"str(node.share(np.zeros(3), {n!r}).ticket)"))  # the two NICs know each other
    own_owner.tell(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "held = []\n"
        "try:\n"
        "  while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass"
    )
    for _ in range(3):
        assert node.attach(n).shape == (3,)


def test_names_thread_pauses_while_there_is_no_descriptor(
    node: weft.Node, name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server checks for descriptors at growing intervals, and answers when one is free."""
    n = name("a")
    node.share(weft.zeros(3), n)
    tries = []
    accept = names.NameServer._accept

    def refuse(self: Any, listener: socket.socket) -> socket.socket:
        if len(tries) < 6:
            tries.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self, listener)

    monkeypatch.setattr(names.NameServer, "_accept", refuse)
    start = time.monotonic()
    assert node.attach(n).shape == (3,)
    assert len(tries) == 6
    assert time.monotonic() - start >= 0.01 * (2**5 - 1)
    assert node.attach(n).shape == (3,)


def test_names_thread_ends_with_its_node(name: Any) -> None:
    def serving() -> int:
        return sum(thread.name == "weft-names" for thread in threading.enumerate())

    before, descriptors = serving(), set()
    for _ in range(3):
        node = weft.open()
        node.share(weft.zeros(3), name("a"))
        assert serving() == before + 1
        node.close()
        assert serving() == before
        assert name("a") not in weft.Node.names()
        descriptors.add(len(os.listdir("/proc/self/fd")))
    assert len(descriptors) == 1


def test_share_of_a_taken_name_leaves_no_region(node: weft.Node, name: Any) -> None:
    """The array is not reachable, and closing the node finds nothing open."""
    n = name("a")
    node.share(weft.zeros(3), n)
    held = repr(node._domain)
    assert "MemoryRegion" in held
    refusals = []
    for _ in range(3):
        with pytest.raises(errors.AddressInUse) as caught:
            node.share(weft.zeros(3), n)
        refusals.append(caught.value)  # with it all descriptors of share()
    assert repr(node._domain) == held
    assert node.statistics().shared == 1


def test_names_are_found_without_sock_diag(node: weft.Node, name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str, states: int) -> list[tuple[str, int | None]]:
        raise PermissionError

    monkeypatch.setattr(unixsockets, "_by_diag", refuse)
    n = name("a")
    shared = node.share(weft.zeros(3), n)
    assert n in node.names()
    with pytest.raises(errors.AddressInUse, match="in this process"):
        node.share(weft.zeros(1), n)
    assert node.attach(n).shape == (3,)
    shared.close()
    assert n not in node.names()
