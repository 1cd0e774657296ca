"""Kept arrays: handed over in one copy, owned by the keeper, forgotten by name."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import patience
from tests.share import keepers
from tests.share.owner import Owner, stop, until_its_end_is_known

import weft
from weft import _process, errors
from weft.share.keeping import client, keeper, protocol

pytestmark = [pytest.mark.procs, pytest.mark.usefixtures("keeping")]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Path]:
    """A registry of its own for one test, and so a keeper of its own."""
    folder = tmp_path / "cxi"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CXI_REGISTRY", str(folder))
        yield folder
        keepers.end()


# ---- one process -----------------------------------------------------------------------------------------------------


def test_kept_array_of_weft_stays_the_array(node: weft.Node, name: Any) -> None:
    array = weft.empty((3, 1000), "i8")
    array[:] = np.arange(3000).reshape(3, 1000)
    address = array.ctypes.data
    n = name("model")
    shared = node.share(array, n, keep=True)
    assert shared.kept
    assert shared.array is array
    assert array.ctypes.data == address
    assert (array == np.arange(3000).reshape(3, 1000)).all()
    with weft.open() as other:
        t = other.attach(n)
        assert t.path == "load/store"
        assert t.ticket.pid != os.getpid()
        array[2, 999] = -5  # both ways, without a copy
        assert t[2, 999] == -5
        t[0, 0] = 8
        assert array[0, 0] == 8
        assert t.fetch_add((0, 0), 2) == 8
        assert array[0, 0] == 10


def test_kept_array_of_numpy_is_a_copy_that_shared_array_maps(node: weft.Node, name: Any) -> None:
    array = np.arange(10.0)
    shared = node.share(array, name("model"), keep=True)
    assert shared.array is not array
    assert shared.array.tolist() == array.tolist()
    shared.array[3] = 33
    assert node.attach(shared.name)[3] == 33
    shared[4] = 44
    assert shared.array[4] == 44
    assert array[3] == 3
    assert "the keeper, process" in repr(shared)


def test_part_of_an_array_of_weft_is_copied(node: weft.Node, name: Any) -> None:
    whole = weft.zeros((4, 1000), "i4")
    shared = node.share(whole[1:3], name("part"), keep=True)
    shared.array[:] = 7
    assert node.attach(shared.name).shape == (2, 1000)
    assert not whole.any()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.array(5.0),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["ab", "c"]),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.zeros(3, "M8[s]"),
        bytearray(b"abc"),
    ],
    ids=["empty", "0-d", "structured", "text", "big-endian", "times", "bytearray"],
)
def test_kept_arrays_of_all_kinds(node: weft.Node, name: Any, array: Any) -> None:
    shared = node.share(array, name("kind"), keep=True)
    found = np.asarray(node.attach(shared.name))
    assert found.dtype == np.asarray(array).dtype
    assert found.shape == np.asarray(array).shape
    assert (found == np.asarray(array)).all()


def test_access_of_peers_does_not_bind_the_maker(node: weft.Node, name: Any) -> None:
    array = weft.zeros(4)
    shared = node.share(array, name("model"), "r", keep=True)
    t = node.attach(shared.name)
    with pytest.raises(errors.AccessDenied):
        t[0] = 1
    array[0] = 3
    assert t[0] == 3


def test_close_of_the_share_and_the_node_leaves_the_array(name: Any) -> None:
    n = name("model")
    with weft.open() as node, node.share(np.arange(4), n, keep=True) as shared:
        pass
    assert shared.closed
    with weft.open() as node:
        assert node.attach(n)[:].tolist() == [0, 1, 2, 3]


def test_collected_node_of_a_kept_array_gives_no_warning(name: Any) -> None:
    n = name("model")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        node = weft.open()
        node.share(np.arange(4), n, keep=True)
        del node
        gc.collect()
    assert [str(w.message) for w in found if w.category is ResourceWarning] == []
    assert n in weft.Node.names()


def test_forget_ends_the_name_and_the_access(node: weft.Node, name: Any) -> None:
    n, other = name("model"), name("other")
    array = weft.zeros(5000)
    node.share(array, n, keep=True)
    node.share(np.zeros(3), other, keep=True)  # the keeper goes on
    t = node.attach(n)
    weft.forget(n)
    assert n not in node.names()
    with pytest.raises(errors.KeyRejected, match=r"was kept, and is forgotten \(weft.forget, weft rm\)"):
        t[0]
    with pytest.raises(errors.NotFound, match="forget: no array is shared as"):
        weft.forget(n)
    array[4999] = 4  # the memory stays while an array has it
    node.share(np.ones(5000), name("more"), keep=True)
    assert array[0] == 0
    assert array[4999] == 4


def test_forget_of_an_array_that_is_not_kept_is_refused(node: weft.Node, name: Any) -> None:
    n = name("mine")
    with (
        node.share(np.zeros(3), n),
        pytest.raises(errors.NotSupported, match=rf"{n}' is not kept: process {os.getpid()} \(.+\) shares it itself"),
    ):
        weft.forget(n)


@pytest.mark.parametrize(
    ("wrong", "error"), [(7, TypeError), ("a b", errors.InvalidArgument), ("", errors.InvalidArgument)]
)
def test_forget_of_what_is_no_name_is_refused(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="forget: "):
        weft.forget(wrong)


def test_keep_without_a_name_is_refused(node: weft.Node) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"keep=True needs a name.*\n.*keep=True\)"):
        node.share(np.zeros(3), keep=True)


def test_keep_of_what_cannot_be_shared_is_refused(node: weft.Node, name: Any) -> None:
    for wrong, error in (([1], TypeError), (np.zeros((4, 4))[:, 1], errors.InvalidArgument), (None, TypeError)):
        with pytest.raises(error):
            node.share(wrong, name("x"), keep=True)


@pytest.mark.parametrize("holder", ["kept", "plain"])
def test_keep_under_a_name_that_is_taken_is_refused(node: weft.Node, name: Any, holder: str) -> None:
    n = name("model")
    first = node.share(np.zeros(3), n, keep=holder == "kept")
    array = weft.zeros(4)
    with pytest.raises(errors.AddressInUse, match=f"the name {n!r} is taken"):
        node.share(array, n, keep=True)
    with pytest.raises(errors.AddressInUse, match=f"the name {n!r} is taken"):
        node.share(array, n)
    assert node.attach(n).shape == (3,)
    assert first.kept == (holder == "kept")


def test_keep_of_an_array_that_is_shared_already_is_refused(node: weft.Node, name: Any) -> None:
    array = weft.zeros(4)
    first = node.share(array, name("plain"))
    with pytest.raises(errors.Busy, match=r"shared or registered already.*\n.*\n.*shared.close\(\)"):
        node.share(array, name("kept"), keep=True)
    first.close()
    assert node.share(array, name("kept"), keep=True).array is array


def test_kept_array_can_be_shared_and_kept_again(node: weft.Node, name: Any) -> None:
    array = weft.zeros(4000)
    n = name("model")
    node.share(array, n, keep=True)
    other = node.share(array, name("plain"))
    t = node.attach(other)
    t[3] = 3
    assert node.attach(n)[3] == 3
    other.close()
    weft.forget(n)
    node.share(array, n, keep=True)
    array[1] = 1
    assert node.attach(n)[:4].tolist() == [0, 1, 0, 3]


def test_memory_of_kept_arrays_is_given_back(node: weft.Node, name: Any) -> None:
    """A producer that keeps and forgets runs for ever: its places are allocated again."""
    node.share(np.zeros(3), name("anchor"), keep=True)
    addresses = set()
    for i in range(30):
        array = weft.empty(300_000)
        array[:] = i
        shared = node.share(array, name("frame"), keep=True)
        assert shared.array is array
        addresses.add(array.ctypes.data)
        weft.forget(name("frame"))
        del array, shared
        gc.collect()
    fresh = weft.zeros(300_000)
    assert not fresh.any()
    assert node.attach(node.share(fresh)).path in ("memory", "load/store")
    assert len(addresses) < 10


def test_keep_replace(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros(4), name("model"), keep=True)
    t = node.attach(shared.name)
    new = weft.empty((2, 2), "i8")
    new[:] = [[1, 2], [3, 4]]
    shared.replace(new)
    assert shared.kept
    assert shared.array is new
    with pytest.raises(weft.Replaced, match="is another array now"):
        t[0]
    assert t.reattach()[:].tolist() == [[1, 2], [3, 4]]
    shared.replace(np.arange(3))
    assert t.reattach()[:].tolist() == [0, 1, 2]
    shared.array[0] = 9
    assert t[0] == 9
    with pytest.raises(TypeError):
        shared.replace([1])


def test_keep_resize(node: weft.Node, name: Any) -> None:
    array = weft.zeros((2, 3), "i4", reserve=6)
    shared = node.share(array, name("log"), keep=True)
    t = node.attach(shared.name)
    shared.resize(4)
    shared.array[3] = 5
    assert t.shape == (2, 3)
    assert t.reattach()[3].tolist() == [5, 5, 5]
    shared.resize(1)
    with pytest.raises(weft.Replaced, match=r"of shape \(1, 3\)"):
        t[0]
    assert t.reattach().shape == (1, 3)
    with pytest.raises(errors.NoSpace, match="reserve is used up"):
        shared.resize(7)
    assert np.shares_memory(array, shared.array)


def test_replace_and_resize_of_a_forgotten_array_are_refused(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros(4, reserve=9), name("model"), keep=True)
    weft.forget(shared.name)
    with pytest.raises(errors.NotFound):
        shared.replace(np.zeros(3))
    with pytest.raises(errors.NotFound):
        shared.resize(5)
    with pytest.raises(errors.NotSupported, match="packs no keys"):
        _ = shared.ucp_rkey


def test_keep_more_than_memory_is_refused(node: weft.Node, name: Any) -> None:
    array = weft.empty(1, "u1", reserve=1 << 42)  # sparse: no page of it exists
    with pytest.raises(errors.NoMemory, match=r"keep: the kept array takes 4 TiB, and .* of memory are available"):
        node.share(array, name("large"), keep=True)
    assert name("large") not in node.names()


# ---- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["exit", "kill"])
@pytest.mark.parametrize("memory", ["weft.zeros", "np.zeros"])
def test_kept_array_outlives_its_maker(own_owner: Owner, name: Any, how: str, memory: str) -> None:
    n = name("model")
    own_owner.tell(f"a = {memory}(1000)\nshared = node.share(a, {n!r}, keep=True)\nshared.array[7] = 7")
    with weft.open() as node:
        t = node.attach(n)
        t[8] = 8
        assert own_owner.tell("float(shared.array[8])") == 8
        if how == "kill":
            own_owner.kill()
        else:
            own_owner.process.stdin.close()  # type: ignore[union-attr]
            own_owner.process.wait(100)
        assert t[7] == 7  # attached peers go on
        t[9] = 9
        assert node.attach(n)[7:10].tolist() == [7, 8, 9]
    (one,) = keepers.kept()
    assert (one.name, one.pid, one.kept) == (n, own_owner.pid, True)
    assert "owner.py" in one.command


def test_maker_that_is_killed_in_the_middle_leaves_nothing(own_owner: Owner, node: weft.Node, name: Any) -> None:
    n = name("model")
    node.share(np.zeros(3), name("anchor"), keep=True)
    own_owner.tell(
        "def stuck(*a):\n import signal\n os.kill(os.getpid(), signal.SIGKILL)\nweft.RemoteArray.view = stuck"
    )
    with pytest.raises(AssertionError):
        own_owner.tell(f"node.share(np.zeros(1000000), {n!r}, keep=True)")
    own_owner.kill()
    assert n not in node.names()
    node.share(np.zeros(5), n, keep=True)
    assert node.attach(n).shape == (5,)


def test_keeper_ends_when_it_keeps_nothing(registry: Path, node: weft.Node, name: Any) -> None:
    assert keepers.keeper_pid() is None
    node.share(np.zeros(3), name("a"), keep=True)
    node.share(np.zeros(3), name("b"), keep=True)
    pid = keepers.keeper_pid()
    assert pid is not None
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "weft-keep"
    weft.forget(name("a"))
    assert patience.is_alive(pid)
    assert node.attach(name("b")).shape == (3,)
    weft.forget(name("b"))
    patience.wait_for_end(pid)
    assert sorted(path.suffix for path in (registry / "keep").iterdir()) == [".lock", ".place"]
    node.share(np.zeros(4), name("a"), keep=True)  # the next call starts another
    assert keepers.keeper_pid() != pid


def test_processes_that_start_the_keeper_at_once_find_one(registry: Path, name: Any) -> None:
    n = name("a")
    owners = [Owner(f"{n}-{i}-") for i in range(4)]
    try:
        threads = [
            threading.Thread(target=o.tell, args=("shared = node.share(np.zeros(5), prefix + 'x', keep=True)",))
            for o in owners
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [one for one in weft.names(wait=10) if one.name.startswith(n)]
        assert [one.pid for one in found] == [o.pid for o in owners]
        assert {one.keeper for one in found} == {keepers.keeper_pid()}
    finally:
        for o in owners:
            with o:
                pass


def test_threads_that_start_the_keeper_at_once_find_one(registry: Path, node: weft.Node, name: Any) -> None:
    threads = [
        threading.Thread(target=node.share, args=(np.zeros(i + 1), name(f"t{i}")), kwargs={"keep": True})
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.shape for one in keepers.kept()) == [(i + 1,) for i in range(6)]


def test_keeper_whose_starter_was_killed_serves_the_next_process(registry: Path, node: weft.Node, name: Any) -> None:
    protocol.folder()
    hear, tell = os.pipe()
    os.close(hear)  # the starter is gone: nobody hears that the keeper is ready
    command = [sys.executable, "-c", protocol._PROGRAM, str(tell)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # the keeper would hold the test's pipes
    patience.run(command, 60, check=True, pass_fds=[tell], **silent)
    os.close(tell)
    waited = patience.Patience(60)
    while (connection := protocol._try(protocol.folder())) is None:
        assert not waited.over, "the keeper does not listen"
        time.sleep(0.002)
    with protocol.Link(connection) as link:
        node.share(np.zeros(3), name("a"), keep=True)
        assert link.call("hello")["pid"] == keepers.keeper_pid()


def test_keepers_that_sweep_at_once_leave_one(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keepers start, each after a starter that was killed, and both find the file of a killed keeper."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(str(protocol.folder() / f"{protocol.stem()}.socket"))
    ends: list[object] = []

    def start() -> None:
        try:
            ends.append(keeper.Keeper(stay=True))
        except errors.Busy as reason:
            ends.append(reason)

    def unlink(path: str) -> None:
        if path.endswith(".socket"):
            monkeypatch.undo()
            second.start()
            second.join(0.5)  # the other keeper is through, or waits until this keeper has its place
        removed(path)

    second, removed = threading.Thread(target=start), os.unlink
    monkeypatch.setattr(keeper.os, "unlink", unlink)
    start()
    second.join()
    listening = [one for one in ends if isinstance(one, keeper.Keeper)]
    for one in listening:
        one.close()
    assert len(listening) == 1
    assert len(ends) == 2


STRANGER = """
import json, os, socket, sys
os.setgroups([]); os.setgid(65533); os.setuid(65533)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
    caller.settimeout(60)
    caller.connect("\\0" + sys.argv[1])
    try:
        caller.send(json.dumps({"op": "forget", "name": sys.argv[2]}).encode())
        print(caller.recv(1 << 16))
    except (BrokenPipeError, ConnectionResetError):
        print(b"")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started by root alone")
def test_keeper_hangs_up_on_another_user(node: weft.Node, name: Any) -> None:
    """Every user can read the name of the keeper's socket in /proc/net/unix."""
    n = name("model")
    node.share(np.ones(4), n, keep=True)
    socket_name = client._keeper_of(n, "test")
    done = patience.run([sys.executable, "-S", "-c", STRANGER, socket_name, n], check=True, timeout=100)
    assert done.stdout == "b''\n"
    assert node.attach(n).tolist() == [1] * 4


def test_killed_keeper_takes_its_arrays_along(registry: Path, node: weft.Node, name: Any) -> None:
    n = name("model")
    array = weft.zeros(1000)
    shared = node.share(array, n, keep=True)
    t = node.attach(n)
    pid = keepers.keeper_pid()
    assert pid is not None
    keepers.kill(pid)
    assert n not in node.names()
    until_its_end_is_known(t)
    with pytest.raises(errors.ConnectionReset, match=rf"the keeper, process {pid}, which kept '{n}', is gone\n.*lost"):
        t[0]
    with pytest.raises(errors.NotFound):
        node.attach(n)
    with pytest.raises(errors.NotFound, match=f"forget: nothing is kept as '{n}': the keeper .*killed"):
        weft.forget(n)
    with pytest.raises(errors.ConnectionReset, match=rf"replace: the keeper, process {pid}, which kept '{n}', is"):
        shared.replace(np.zeros(3))
    array[3] = 3  # the maker has its array
    again = node.share(array, n, keep=True)  # and a keeper starts beside the old keeper's file
    assert keepers.keeper_pid() not in (pid, None)
    assert t.reattach()[3] == 3
    assert again.array is array


def test_keeper_that_is_stopped_is_named(
    registry: Path, node: weft.Node, name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = name("model")
    node.share(np.zeros(4), n, keep=True)
    t = node.attach(n)
    pid = keepers.keeper_pid()
    assert pid is not None
    monkeypatch.setattr(protocol, "ANSWER_S", 0.3)
    monkeypatch.setattr(client, "_LOOK_S", 0.3)
    stop(pid)
    try:
        t[1] = 5  # the keeper runs no code for its peers
        assert t[1] == 5
        with pytest.raises(errors.TimedOut, match=rf"process {pid}, did not answer within .* stopped"):
            node.share(np.zeros(4), name("other"), keep=True)
        with pytest.raises(errors.TimedOut, match=f"forget: process {pid}, .* does not answer"):
            weft.forget(n)
    finally:
        os.kill(pid, 18)


def test_registry_of_another_user_is_refused(registry: Path, node: weft.Node, name: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    registry.mkdir(mode=0o700)
    os.chown(registry, 12345, 12345)
    try:
        with pytest.raises(errors.AccessDenied, match=r"belongs to user 12345.*\n(.*\n)*.*WEFT_CXI_REGISTRY="):
            node.share(np.zeros(3), name("x"), keep=True)
    finally:
        os.chown(registry, 0, 0)
    (registry / "keep").mkdir(mode=0o755)
    with pytest.raises(errors.AccessDenied, match="mode 0755"):
        node.share(np.zeros(3), name("x"), keep=True)
    (registry / "keep").rmdir()


def test_keeper_of_another_user_is_refused(
    registry: Path, node: weft.Node, name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket of another user in our folder: only root could put it there."""
    node.share(np.zeros(3), name("x"), keep=True)
    monkeypatch.setattr(protocol, "credentials", lambda connection: (4711, 12345))
    with pytest.raises(errors.NotPermitted, match=r"process 4711, which listens as the keeper, belongs to user 12345"):
        node.share(np.zeros(3), name("y"), keep=True)
    monkeypatch.undo()


def test_keeper_that_cannot_start_says_why(
    registry: Path, node: weft.Node, name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_TCP_TIMEOUT", "nonsense")  # read by the keeper's NIC; ours exists already
    with pytest.raises(errors.FabricError, match=r"(?s)keeper could not be started: .*WEFT_TCP_TIMEOUT='nonsense'"):
        node.share(np.zeros(3), name("x"), keep=True)
    monkeypatch.undo()
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(errors.FabricError, match=r"/no/such/python cannot be started: No such file"):
        node.share(np.zeros(3), name("x"), keep=True)


def test_keeper_refuses_nonsense(registry: Path, node: weft.Node, name: Any) -> None:
    """A process of the same user that speaks another protocol: the keeper answers, and goes on."""
    node.share(np.zeros(3), name("x"), keep=True)
    for data in (b"{", b"[]", b'{"op": "no"}', b'{"op": "keep"}', b'{"op": "room", "nbytes": -5}', b"\xff" * 100):
        connection = protocol._try(protocol.folder())
        assert connection is not None
        with connection:
            connection.send(data)
            assert b'"error"' in connection.recv(1 << 16), data
    with protocol.connected() as link, pytest.raises(errors.FabricError):
        link.call("keep", name=name("y"), dtype="'<f8'", shape=[1000], access="rw", maker=[1, ""], rows=None)
    assert node.attach(name("x")).shape == (3,)


def test_strict_isolation_keeps_nothing(name: Any) -> None:
    with (
        Owner("strict-", WEFT_ISOLATION="strict") as owner,
        pytest.raises(AssertionError, match=r"NotSupported: .*WEFT_ISOLATION=strict shares no memory"),
    ):
        owner.tell(f"node.share(np.zeros(3), {name('x')!r}, keep=True)")


def test_kept_array_is_reached_under_strict_isolation(node: weft.Node, name: Any) -> None:
    n = name("model")
    node.share(np.arange(4), n, keep=True)
    with Owner("strict-", WEFT_ISOLATION="strict") as owner:
        assert owner.tell(f"t = node.attach({n!r})") is None
        assert owner.tell("t[:].tolist(), t.path") == ([0, 1, 2, 3], "engine")


def test_process_with_manual_progress_keeps_an_array(name: Any) -> None:
    n = name("model")
    with Owner("manual-", WEFT_ENGINE="manual") as owner:
        assert owner.tell(f"a = weft.zeros(4)\nshared = node.share(a, {n!r}, keep=True)\na[1] = 1") is None
    with weft.open() as node:
        assert node.attach(n)[:].tolist() == [0, 1, 0, 0]


def test_forked_child_writes_to_the_kept_array(own_owner: Owner, name: Any) -> None:
    n = name("model")
    own_owner.tell(f"a = weft.zeros(4)\nshared = node.share(a, {n!r}, keep=True)")
    own_owner.tell("c = os.fork()\nif c == 0:\n a[2] = 2\n os._exit(0)\nos.waitpid(c, 0)")
    own_owner.kill()
    with weft.open() as node:
        assert node.attach(n)[2] == 2


def test_readers_of_a_kept_array_see_one_array_or_replaced(own_owner: Owner, node: weft.Node, name: Any) -> None:
    n = name("frames")
    own_owner.tell("def make(i):\n a = weft.empty(30000 + i, 'i8')\n a.fill(i)\n return a")
    own_owner.tell(f"shared = node.share(make(0), {n!r}, keep=True)")
    t = node.attach(n)
    thread = threading.Thread(target=own_owner.tell, args=("for i in range(1, 81):\n shared.replace(make(i))",))
    thread.start()
    last = -1
    while last < 80:
        try:
            found = t.read()
        except weft.Replaced:
            t.reattach()
            continue
        value = int(found[0])
        assert len(found) == 30000 + value
        assert (found == value).all()
        assert value >= last
        last = value
    thread.join()


def test_two_makers_race_for_a_name(name: Any) -> None:
    n = name("one")
    with Owner("a-") as a, Owner("b-") as b:
        told: list[str] = []

        def share(owner: Owner, value: int) -> None:
            try:
                owner.tell(f"shared = node.share(np.full(1000, {value}), {n!r}, keep=True)")
                told.append(f"ok {value}")
            except AssertionError as reason:
                told.append(str(reason))

        threads = [threading.Thread(target=share, args=(owner, i)) for i, owner in enumerate((a, b))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [text for text in told if text.startswith("ok")]
        (loser,) = [text for text in told if not text.startswith("ok")]
        assert f"AddressInUse: EADDRINUSE: share: the name '{n}' is taken" in loser
        with weft.open() as node:
            assert set(node.attach(n)[:].tolist()) == {int(winner[3:])}


def test_region_counts_return_to_zero(registry: Path, name: Any) -> None:
    before = _process.nic().statistics()["regions"]
    with weft.open() as node:
        shared = node.share(weft.zeros(100), name("x"), keep=True)
        node.attach(name("x"))[0] = 1
        shared.close()
        weft.forget(name("x"))
    gc.collect()
    assert _process.nic().statistics()["regions"] == before


def test_age_grows(node: weft.Node, name: Any) -> None:
    node.share(np.zeros(3), name("x"), keep=True)
    begun = time.monotonic()
    (one,) = keepers.kept()
    assert one.age_s is not None
    first = one.age_s
    (one,) = keepers.kept()
    assert one.age_s is not None
    assert first <= one.age_s <= first + (time.monotonic() - begun) + 1
