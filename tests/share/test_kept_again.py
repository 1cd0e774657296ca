"""`node.kept(name)`: a process takes the place of the maker of an array. Kept locks, events, semaphores, queues ..."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.share import keepers
from tests.share.owner import Owner

import weft
from weft import errors
from weft.tools import keep as commands

pytestmark = [pytest.mark.procs, pytest.mark.usefixtures("keeping")]

KINDS = {"Lock": (), "Event": (), "Semaphore": (2,), "Barrier": (1,), "Queue": (8,)}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Path]:
    """A registry of its own for one test, and so a keeper of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
        yield tmp_path / "cxi"
        keepers.end()


def made(kind: str, name: str, **options: Any) -> Any:
    return getattr(weft, kind)(name, *KINDS[kind], **options)


# ---- the place of the maker ------------------------------------------------------------------------------------------


def test_process_goes_on_as_the_maker_that_was_killed(own_owner: Owner, node: weft.Node, name: Any) -> None:
    n = name("log")
    own_owner.tell(f"a = weft.zeros((2, 3), 'i4', reserve=6)\nshared = node.share(a, {n!r}, keep=True)\na[1] = 4")
    own_owner.kill()
    t, shared = node.attach(n), node.kept(n)
    assert (shared.kept, shared.name, shared.shape) == (True, n, (2, 3))
    assert shared.array.tolist() == [[0, 0, 0], [4, 4, 4]]
    shared.array[0] = 5  # the memory itself
    assert t[0].tolist() == [5, 5, 5]
    shared.resize(4)
    shared.array[3] = 7
    assert t.shape == (2, 3)
    assert t.reattach()[3].tolist() == [7, 7, 7]
    shared.resize(1)
    with pytest.raises(weft.Replaced):
        t[0]
    with pytest.raises(errors.NoSpace, match="reserve is used up"):
        shared.resize(7)
    shared.replace(np.arange(3.0))
    assert t.reattach()[:].tolist() == [0, 1, 2]
    shared.array[1] = 9
    assert t[1] == 9
    shared.close()
    assert n in node.names()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.array(5.0),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6, dtype=">i4").reshape(2, 3),
    ],
    ids=["empty", "0-d", "structured", "Fortran order", "big-endian"],
)
@pytest.mark.parametrize("access", ["r", "w", "rw"])
def test_maker_s_place_for_arrays_of_all_kinds(node: weft.Node, name: Any, array: Any, access: str) -> None:
    """The access binds the peers alone."""
    n = name("kind")
    node.share(array, n, access, keep=True)
    shared = node.kept(n)
    assert shared.array.dtype == array.dtype
    assert shared.array.tolist() == array.tolist()
    assert shared.array.flags.f_contiguous == array.flags.f_contiguous
    assert shared.array.flags.writeable
    shared.replace(array)
    assert node.kept(n).array.tolist() == array.tolist()
    assert node.attach(n).ticket.access == access


def test_memory_stays_with_the_place_after_forget(node: weft.Node, name: Any) -> None:
    n = name("model")
    node.share(np.arange(5000), n, keep=True)
    shared = node.kept(n)
    weft.forget(n)
    assert shared.array[4999] == 4999
    with pytest.raises(errors.NotFound, match="replace: no array is shared as"):
        shared.replace(np.zeros(3))


def test_place_of_what_is_not_kept_is_refused(node: weft.Node, name: Any) -> None:
    node.share(np.zeros(3), name("plain"))
    weft.Lock(name("lock"), keep=True)
    with pytest.raises(errors.NotSupported, match="is not kept: process"):
        node.kept(name("plain"))
    with pytest.raises(errors.NotSupported, match=r"kept: '.*' is a Lock, and no array\n  try: weft.Lock\('"):
        node.kept(name("lock"))
    with pytest.raises(errors.NotFound, match="kept: no array is shared as"):
        node.kept(name("nothing"))
    with pytest.raises(TypeError, match="kept: a name is a str"):
        node.kept(7)  # type: ignore[arg-type]
    node.close()
    with pytest.raises(errors.BadState):
        node.kept(name("plain"))


def test_strict_process_takes_no_place(node: weft.Node, name: Any) -> None:
    node.share(np.zeros(3), name("a"), keep=True)
    with (
        Owner("strict-", WEFT_ISOLATION="strict") as owner,
        pytest.raises(AssertionError, match=r"NotSupported: .*WEFT_ISOLATION=strict shares no memory"),
    ):
        owner.tell(f"node.kept({name('a')!r})")


def test_one_of_two_that_change_the_same_array_is_told(node: weft.Node, name: Any) -> None:
    n = name("model")
    maker = node.share(np.zeros(4), n, keep=True)
    first, second = node.kept(n), node.kept(n)
    first.replace(np.ones(4))
    for late in (maker, second):
        with pytest.raises(weft.Replaced, match=rf"another process has replaced or resized '{n}' .*\n  try: node.kept"):
            late.replace(np.full(4, 2.0))
        with pytest.raises(weft.Replaced):
            late.resize(2)
    assert node.attach(n)[:].tolist() == [1, 1, 1, 1]
    node.kept(n).replace(np.full(4, 3.0))
    assert node.attach(n)[:].tolist() == [3, 3, 3, 3]


def test_two_processes_that_replace_at_once_lose_nothing(node: weft.Node, name: Any) -> None:
    """Each adds one to the array that it found, and again if another array has come: as compare and swap."""
    n, rounds = name("count"), 20
    node.share(np.zeros(1000, "i8"), n, keep=True)
    program = (
        f"def more():\n for i in range({rounds}):\n  while True:\n   try:\n    s = node.kept({n!r})\n"
        "    s.replace(s.array + 1)\n    break\n   except weft.Replaced:\n    pass"
    )
    with Owner("a-") as a, Owner("b-") as b:
        for owner in (a, b):
            owner.tell(program)
        threads = [threading.Thread(target=owner.tell, args=("more()",)) for owner in (a, b)]
        for thread in threads:
            thread.start()
        reader = node.attach(n)
        while any(thread.is_alive() for thread in threads):
            with contextlib.suppress(weft.Replaced):
                found = reader.read()
                assert (found == found[0]).all()
                continue
            reader.reattach()
        for thread in threads:
            thread.join()
    assert set(node.attach(n)[:].tolist()) == {2 * rounds}


def test_readers_see_whole_rows_while_another_process_resizes(own_owner: Owner, node: weft.Node, name: Any) -> None:
    """Row i holds i. The array gets longer and shorter; a reader sees rows of one length, or Replaced."""
    n = name("rows")
    array = weft.zeros((1, 8), "i8", reserve=500)
    node.share(array, n, keep=True)
    own_owner.tell(
        f"def run():\n s = node.kept({n!r})\n for i in range(1, 120):\n"
        "  s.resize(i + 1)\n  s.array[i] = i\n  if i % 10 == 0:\n   s.resize(i)\n   s.resize(i + 1)"
    )
    thread = threading.Thread(target=own_owner.tell, args=("run()",))
    thread.start()
    t = node.attach(n)
    while thread.is_alive():
        try:
            rows = t.read()
            assert (rows[:-1] == np.arange(len(rows) - 1)[:, None]).all()
        except weft.Replaced:
            pass
        t.reattach()
    thread.join()
    assert t.reattach().shape == (120, 8)


def test_killed_keeper_ends_the_place(registry: Path, node: weft.Node, name: Any) -> None:
    n = name("model")
    node.share(np.arange(4.0), n, keep=True)
    shared = node.kept(n)
    pid = keepers.keeper_pid()
    assert pid is not None
    keepers.kill(pid)
    assert shared.array.tolist() == [0, 1, 2, 3]  # still mapped
    for what, call in {"replace": lambda: shared.replace(np.zeros(3)), "resize": lambda: shared.resize(2)}.items():
        with pytest.raises(errors.ConnectionReset, match=rf"{what}: the keeper, process {pid}, which kept '{n}', is"):
            call()
    with pytest.raises(errors.NotFound, match=f"kept: nothing is kept as '{n}': the keeper of this user is gone"):
        node.kept(n)

    def read() -> None:
        patience = Patience(60)
        while not patience.over:  # until the NIC has heard that the connection is gone
            shared.read()

    with pytest.raises(errors.ConnectionReset, match=rf"the keeper, process {pid}, which kept"):
        read()
    node.share(shared.array, n, keep=True)
    assert node.attach(n)[:].tolist() == [0, 1, 2, 3]


# ---- kept objects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["kill", "close"])
def test_kept_object_outlives_its_maker(own_owner: Owner, name: Any, kind: str, how: str) -> None:
    n = name("it")
    own_owner.tell(f"it = weft.{kind}({n!r}, *{KINDS[kind]!r}, keep=True)")
    assert own_owner.tell("it.kept") is True
    if how == "kill":
        own_owner.kill()
    else:
        own_owner.tell("it.close()")
        own_owner.tell("node.close()")
    for it in (made(kind, n), made(kind, n, keep=True), made(kind, n, create=False)):
        assert it.kept
        assert it.path == "load/store"
        assert "kept by process" in repr(it)
    (one,) = keepers.kept()
    assert (one.name, one.kind, one.pid) == (n, kind, own_owner.pid)


def test_maker_that_dies_with_its_kept_lock_leaves_owner_died(own_owner: Owner, name: Any) -> None:
    n = name("lock")
    own_owner.tell(f"lock = weft.Lock({n!r}, keep=True)\nlock.acquire()")
    lock = weft.Lock(n)
    assert lock.holder == own_owner.pid
    own_owner.kill()
    with pytest.raises(weft.OwnerDied, match=rf"process {own_owner.pid}, which held Lock '{n}', has died"):
        lock.acquire(timeout=60)
    assert lock.recover() is True
    lock.release()
    with lock:
        assert lock.holder == os.getpid()


@pytest.mark.parametrize("path", ["load/store", "engine"])
def test_waiter_of_a_kept_lock_hears_of_its_makers_death(own_owner: Owner, name: Any, path: str) -> None:
    n = name("lock")
    own_owner.tell(f"lock = weft.Lock({n!r}, keep=True)\nlock.acquire()")
    with Owner("waits-", **({"WEFT_ISOLATION": "strict"} if path == "engine" else {})) as waiter:
        waiter.tell(f"lock = weft.Lock({n!r})")
        assert waiter.tell("lock.path") == path
        told: list[str] = []

        def wait() -> None:
            try:
                waiter.tell("lock.acquire(timeout=60)")
            except AssertionError as reason:
                told.append(str(reason))

        thread = threading.Thread(target=wait)
        thread.start()
        own_owner.kill()
        thread.join()
        assert "OwnerDied" in told[0]
        assert waiter.tell("lock.recover()") is True


def test_kept_queue_has_its_items_after_its_makers_end(own_owner: Owner, name: Any) -> None:
    n = name("jobs")
    own_owner.tell(f"q = weft.Queue({n!r}, 8, keep=True)\nq.put({{'a': 1}})\nq.put(b'two')")
    own_owner.kill()
    queue = weft.Queue(n)
    assert queue.get() == {"a": 1}
    queue.put(3)
    assert [queue.get(), queue.get()] == [b"two", 3]


def test_permits_of_a_killed_maker_come_back_to_a_kept_semaphore(own_owner: Owner, name: Any) -> None:
    n = name("gpus")
    own_owner.tell(f"s = weft.Semaphore({n!r}, 1, keep=True)\ns.acquire()")
    semaphore = weft.Semaphore(n)
    assert not semaphore.try_acquire()
    own_owner.kill()
    semaphore.acquire(timeout=60)


@pytest.mark.parametrize("awaits", [False, True])
def test_forget_wakes_those_who_wait(node: weft.Node, name: Any, awaits: bool) -> None:
    n = name("event")
    event = weft.Event(n, keep=True)
    weft.Event(name("other"), keep=True)  # the keeper goes on
    told: list[BaseException] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        try:
            if awaits:
                asyncio.run(event.await_(timeout=60))
            else:
                event.wait(timeout=60)
        except errors.FabricError as reason:
            told.append(reason)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    weft.forget(n)
    thread.join()
    assert type(told[0]) is errors.KeyRejected
    assert "was kept, and is forgotten (weft.forget, weft rm)" in str(told[0])
    assert n not in node.names()
    again = weft.Event(n, keep=True)
    assert not again.is_set()
    with pytest.raises(errors.KeyRejected):
        event.set()


def test_killed_keeper_ends_its_objects(registry: Path, name: Any) -> None:
    n = name("lock")
    lock, event = weft.Lock(n, keep=True), weft.Event(name("event"), keep=True)
    pid = keepers.keeper_pid()
    assert pid is not None
    told: list[BaseException] = []

    def wait() -> None:
        try:
            event.wait(timeout=60)
        except errors.FabricError as reason:
            told.append(reason)

    thread = threading.Thread(target=wait)
    thread.start()
    keepers.kill(pid)
    thread.join()
    assert type(told[0]) is errors.ConnectionReset
    assert f"the keeper, process {pid}, which kept" in str(told[0])
    with pytest.raises(errors.ConnectionReset, match=f"the keeper, process {pid}, which kept"):
        lock.acquire(timeout=60)
    with weft.Lock(n, keep=True) as again:
        assert again.kept
        assert keepers.keeper_pid() != pid


def test_processes_that_make_a_kept_lock_at_once_have_one(registry: Path, name: Any) -> None:
    n = name("lock")
    owners = [Owner(f"{i}-") for i in range(4)]
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(owner)
            owner.tell("counts = 0")
        threads = [
            threading.Thread(target=owner.tell, args=(f"lock = weft.Lock({n!r}, keep=True)",)) for owner in owners
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        owners[0].tell("lock.acquire()")
        assert [owner.tell("lock.holder") for owner in owners] == [owners[0].pid] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_object_that_is_not_kept_is_not_taken_for_a_kept_one(node: weft.Node, name: Any, kind: str) -> None:
    with made(kind, name("plain"), node=node) if kind in ("Lock", "Semaphore") else contextlib.nullcontext():
        plain = made(kind, name("other"), node=node)
        assert not plain.kept
        with pytest.raises(
            errors.InvalidArgument, match=rf"exists and is not kept: it ends with process {os.getpid()}"
        ):
            made(kind, name("other"), keep=True)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((), {"keep": True}, errors.InvalidArgument, r"Lock: keep=True needs a name.*\n  try: weft.Lock\('...', keep"),
        (("x",), {"keep": 3}, TypeError, "Lock: keep is True or False, not 3"),
        (("x",), {"keep": None}, TypeError, "Lock: keep is True or False, not None"),
        (("a b",), {"keep": True}, errors.InvalidArgument, "Lock: 'a b' is not a valid name"),
        (("",), {"keep": True}, errors.InvalidArgument, "Lock: '' is not a valid name"),
        (("nothing",), {"keep": True, "create": False}, errors.NotFound, "Lock: nothing has the name 'nothing'"),
    ],
)
def test_wrong_arguments_of_keep_are_refused(arguments: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        weft.Lock(*arguments, **options)


@pytest.mark.parametrize("keep", [False, True])
def test_name_that_is_taken_is_not_made_again(name: Any, keep: bool) -> None:
    weft.Lock(name("it"), keep=True)
    with pytest.raises(errors.AddressInUse, match=r"Lock: the name .* is taken.*\n  try: another name; or without"):
        weft.Lock(name("it"), create=True, keep=keep)


def test_kept_object_is_neither_replaced_nor_resized(node: weft.Node, name: Any) -> None:
    """Also by a program that finds its own way to the keeper."""
    from weft.share.keeping import protocol

    weft.Lock(name("lock"), keep=True)
    ticket = str(weft.Lock(name("lock")).ticket)
    with protocol.connected() as link:
        for call in (
            {"op": "replace", "dtype": "'|u1'", "shape": [0], "order": "C", "rows": None},
            {"op": "resize", "length": 0},
        ):
            with pytest.raises(errors.NotSupported, match="is a Lock, and no array"):
                link.call(**call, name=name("lock"), ticket=ticket)  # type: ignore[arg-type]
        for wrong in ({"number": 99}, {"number": 5, "n": 0}, {"number": 4, "n": 1 << 60}):
            asked = {"number": 1, "n": 0, "item": 0, "kind": "Lock", "name": name("y"), "maker": [1, ""], **wrong}
            with pytest.raises(errors.FabricError):
                link.call("make", **asked)  # type: ignore[arg-type]
    assert name("y") not in node.names()


def test_strict_process_makes_and_uses_a_kept_lock(name: Any) -> None:
    n = name("lock")
    with Owner("strict-", WEFT_ISOLATION="strict") as owner:
        owner.tell(f"lock = weft.Lock({n!r}, keep=True)\nlock.acquire()")
        assert owner.tell("lock.path") == "engine"
        lock = weft.Lock(n)
        assert not lock.try_acquire()
        owner.kill()
    with pytest.raises(weft.OwnerDied):
        lock.acquire(timeout=60)
    assert lock.recover()
    lock.release()


TCP = {"WEFT_SHM": "0", "WEFT_SECRET": "of the tests of kept locks, over tcp", "WEFT_LISTEN": "tcp://127.0.0.1:0"}


def test_keeper_that_listens_serves_its_locks_over_tcp(registry: Path, name: Any) -> None:
    """`weft keep --stay` with WEFT_LISTEN, and processes that share no memory with it."""
    n = name("lock")
    keep = [sys.executable, "-m", "weft", "keep", "--stay"]
    with (
        subprocess.Popen(keep, env={**os.environ, **TCP}, stdout=subprocess.PIPE, text=True) as keeper,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(keeper.terminate)
        assert keeper.stdout is not None
        assert "keeping arrays" in keeper.stdout.readline()
        maker, other = (stack.enter_context(Owner(f"{kind}-", **TCP)) for kind in ("maker", "other"))
        maker.tell(f"lock = weft.Lock({n!r}, keep=True)\nlock.acquire()")
        ticket = maker.tell("str(lock.ticket)")
        other.tell(f"lock = weft.Lock({ticket!r})")
        assert [maker.tell("lock.path"), other.tell("lock.path")] == ["tcp", "tcp"]
        assert other.tell("lock.try_acquire()") is False
        with pytest.raises(AssertionError, match=r"NotSupported: .*share: keep=True shares memory with the keeper"):
            other.tell(f"node.share(np.zeros(3), {name('array')!r}, keep=True)")
        maker.kill()
        with pytest.raises(AssertionError, match="OwnerDied"):
            other.tell("lock.acquire(timeout=60)")
        assert other.tell("lock.recover()") is True
        other.tell(f"weft.forget({n!r})")
        with pytest.raises(AssertionError, match=r"KeyRejected: .*was kept, and is forgotten"):
            other.tell("lock.release()")


def test_weft_ls_and_rm_know_kept_objects(name: Any, capsys: pytest.CaptureFixture[str]) -> None:
    n = name("jobs")
    weft.Queue(n, keep=True)
    with weft.open() as node:
        weft.Lock(name("lock"), node=node)
        assert commands.ls(True) == 0
        found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["names"]}
        assert (found[n]["kind"], found[n]["kept"]) == ("Queue", True)
        assert (found[name("lock")]["kind"], found[name("lock")]["kept"]) == ("Lock", False)
        assert commands.ls(False) == 0
        assert "Queue" in capsys.readouterr().out
        assert commands.rm([name("lock")], False) == 1
        assert "is not kept" in capsys.readouterr().out
    assert commands.rm([n], False) == 0
    assert n not in weft.Node.names()
