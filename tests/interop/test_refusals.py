"""attach_all: one rank's failure is the same error of every rank. Ranks are threads with nodes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft import errors, share
from weft.interop import peers
from weft.interop import store as store_module
from weft.interop.store import FileStore, attach_all

LONG_S = 1000.0


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


_names = (f"test-{n}" for n in itertools.count())


@pytest.fixture
def name() -> Iterator[str]:
    """Of a meeting: the meetings of a process are counted by name."""
    return next(_names)


def everywhere(size: int, run: Callable[[int], Any]) -> list[Any]:
    """The results of run(rank) of ranks at the same time; an error is a result."""

    def caught(rank: int) -> Any:
        try:
            return run(rank)
        except Exception as reason:
            return reason

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(caught, range(size)))


def same(results: list[Any]) -> Exception:
    """The error of all ranks."""
    assert all(isinstance(one, Exception) for one in results), results
    assert len({(type(one), str(one)) for one in results}) == 1, results
    found: Exception = results[0]
    return found


@pytest.mark.parametrize(
    ("array", "more", "kind", "text"),
    [
        ([1, 2, 3], {}, TypeError, "rank 1 cannot share its array"),
        (np.zeros((4, 4))[:, 1], {}, errors.InvalidArgument, "rank 1 cannot share its array"),
        (bytes(8), {}, errors.AccessDenied, "rank 1 cannot share its array"),
        (np.zeros(3, object), {}, TypeError, "rank 1 cannot share its array"),
        (np.zeros(3), {"access": "x"}, errors.InvalidArgument, "access is 'r', 'w' or 'rw', not 'x'"),
        (np.zeros(3), {"listen": 7}, TypeError, "rank 1 cannot share its array: listen is a str"),
        (np.zeros(3), {"listen": "nonsense"}, errors.FabricError, "rank 1 cannot share its array"),
        (np.zeros(3), {"secret": "short"}, errors.InvalidArgument, "rank 1 cannot share its array"),
        ({3: np.zeros(3)}, {}, TypeError, "names of arrays are str, not 3"),
        (np.zeros(3), {"node": "a node"}, errors.FabricError, "rank 1 cannot share its array"),
    ],
)
def test_rank_that_cannot_share_is_named_by_every_rank(
    store: FileStore, name: str, array: Any, more: dict[str, Any], kind: type[Exception], text: str
) -> None:
    def run(rank: int) -> Any:
        mine, options = (array, more) if rank == 1 else (np.zeros(3), {})
        return attach_all(store, mine, rank=rank, size=3, name=name, **options)

    reason = same(everywhere(3, run))
    assert isinstance(reason, kind)
    assert text in str(reason)


def test_node_and_listen_exclude_each_other(store: FileStore, name: str) -> None:
    with (
        weft.open() as node,
        pytest.raises(errors.InvalidArgument, match="node= and listen= or secret= are both given"),
    ):
        attach_all(store, np.zeros(1), rank=0, size=1, name=name, node=node, secret="sixteen bytes and more")


def test_several_ranks_that_cannot_share_are_all_named(store: FileStore, name: str) -> None:
    mine = [np.zeros(1), [1], [1]]
    reason = same(everywhere(3, lambda rank: attach_all(store, mine[rank], rank=rank, size=3, name=name)))
    assert "rank 1 cannot share its array (and ranks 2): " in str(reason)


def test_after_an_error_the_next_meeting_succeeds(store: FileStore, name: str) -> None:
    def run(rank: int) -> list[int]:
        with pytest.raises(TypeError):
            attach_all(store, [1] if rank else np.zeros(1), rank=rank, size=2, name=name)
        with attach_all(store, np.full(1, rank), rank=rank, size=2, name=name) as peers:
            return [int(t[0]) for t in peers]

    assert everywhere(2, run) == [[0, 1], [0, 1]]


@pytest.fixture
def until_met(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    """A store at which each rank's deadline is over as soon as the rank has got another rank's record."""
    here = threading.local()

    class Noting(FileStore):
        def get(self, key: str) -> bytes:
            value = super().get(key)
            here.met = True
            return value

    def now() -> float:
        return time.monotonic() + (2 * LONG_S if hasattr(here, "met") else 0)

    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
    return Noting(store.folder)


def test_rank_that_does_not_come_is_named(until_met: FileStore, name: str) -> None:
    def run(rank: int) -> Any:
        return None if rank == 1 else attach_all(until_met, np.zeros(1), rank=rank, size=3, name=name, timeout=LONG_S)

    first, _, third = everywhere(3, run)
    reason = same([first, third])
    assert isinstance(reason, errors.TimedOut)
    assert f"1 of 3 ranks have not come to '{name}/0': ranks 1\n" in str(reason)


def test_two_processes_of_one_rank_are_told_of_each_other(store: FileStore, name: str) -> None:
    """The later rank's record takes the place of the earlier rank's, and another rank never comes."""

    class Twice(FileStore):
        def set(self, key: str, value: Any) -> None:
            super().set(key, value)
            super().set(key, "the record of another process")

    with pytest.raises(errors.TimedOut, match="ranks 1\n  looked at: another process came as rank 0, too\n"):
        attach_all(Twice(store.folder), np.zeros(1), rank=0, size=2, name=name, timeout=0.3)


def test_rank_that_counts_other_ranks_is_named(until_met: FileStore, name: str) -> None:
    def run(rank: int) -> Any:
        return attach_all(until_met, np.zeros(1), rank=rank, size=2 + rank, name=name, timeout=LONG_S)

    first, second = everywhere(2, run)
    assert isinstance(first, errors.InvalidArgument)
    assert "rank 1 cannot share its array: it counts 3 ranks where another rank counts 2" in str(first)
    assert isinstance(second, errors.TimedOut)


def test_store_of_an_earlier_run_is_suspected(store: FileStore, name: str) -> None:
    def run(rank: int) -> None:
        attach_all(store, np.zeros(1), rank=rank, size=2, name=name).close()

    assert everywhere(2, run) == [None, None]
    later = f"{name}-later"
    store.set(f"{later}/0/1", store.get(f"{name}/0/1"))
    with pytest.raises(errors.FabricError, match="try: a new store for each run, if an earlier run has used this one"):
        attach_all(store, np.zeros(1), rank=0, size=2, name=later, timeout=3)


def test_rank_that_cannot_attach_is_named_by_every_rank(
    store: FileStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 cannot reach rank 0's array: ranks 0 and 1 hear of it, though they can attach everything."""
    attach, here = share.Node.attach, threading.local()

    def refuses(node: Any, ticket: Any, *more: Any) -> Any:
        if here.rank == 2 and ticket.shape == (7,):
            raise errors.Unreachable("there is no way")
        return attach(node, ticket, *more)

    def run(rank: int) -> Any:
        here.rank = rank
        return attach_all(store, np.zeros(3 if rank else 7), rank=rank, size=3, name=name)

    monkeypatch.setattr(share.Node, "attach", refuses)
    reason = same(everywhere(3, run))
    assert isinstance(reason, errors.Unreachable)
    assert "rank 2 cannot attach the array of rank 0 (process " in str(reason)
    assert "there is no way" in str(reason)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("not json", "rank 1 cannot share its array: its record is damaged: b'not json'"),
        ("[]", "its record is damaged"),
        ('{"weft": 2}', "another version of Weft, whose records are of version 2"),
        ('{"weft": 1, "rank": 0, "host": "", "control": "x", "arrays": {}}', "its record is that of rank 0"),
        ('{"weft": 1, "rank": 1, "size": 3, "host": "", "control": "x", "arrays": {}}', "'x' is no ticket"),
        (
            '{"weft": 1, "rank": 1, "size": 3, "host": "", "control": "weft-ticket:x", "arrays": {"a": 3}}',
            "its record is damaged",
        ),
        ('{"weft": 1, "rank": 1, "failed": ["os.system", "reboot"]}', "rank 1 cannot share its array: reboot"),
        ('{"weft": 1, "rank": 1, "failed": ["FabricError.__init__", "x"]}', "rank 1 cannot share its array: x"),
        ("[" * 100_000, "its record is damaged"),
    ],
)
def test_record_that_is_a_lie_is_refused_by_every_rank(store: FileStore, name: str, record: str, text: str) -> None:
    store.set(f"{name}/0/1", record)
    store.set(f"{name}/0/1/read", "1")

    def run(rank: int) -> Any:
        return None if rank == 1 else attach_all(store, np.zeros(1), rank=rank, size=3, name=name)

    first, _, third = everywhere(3, run)
    assert text in str(same([first, third]))


def test_rank_whose_control_array_lies_is_refused(store: FileStore, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 tells another array as its control array: empty, with a state that does not exist, short."""
    monkeypatch.setattr(peers, "_LINGER_S", 0.1)
    with weft.open() as node:
        for number, words in enumerate((np.zeros(0, np.int64), np.full(512, 77), np.full(1, 2))):
            ticket = node.share(words).ticket
            record = f'{{"weft": 1, "rank": 1, "size": 2, "host": "x", "control": "{ticket}", "arrays": {{}}}}'
            store.set(f"{name}/{number}/1", record)
            with pytest.raises(errors.FabricError) as caught:
                attach_all(store, np.zeros(1), rank=0, size=2, name=name, timeout=3)
            assert "rank 1" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "kind", "text"),
    [
        ({"rank": 2}, errors.InvalidArgument, "rank is 2; it must be 0 to 1, below size"),
        ({"rank": -1}, errors.InvalidArgument, "rank is -1"),
        ({"rank": None}, errors.InvalidArgument, "weft.launch.environment() tells it"),
        ({"size": "2"}, errors.InvalidArgument, "size is an integer, not '2'"),
        ({"size": 0, "rank": 0}, errors.InvalidArgument, "rank is 0"),
        ({"name": ""}, errors.InvalidArgument, "name is a str with characters"),
        ({"timeout": "soon"}, TypeError, "attach_all: timeout is a number of seconds"),
        ({"timeout": float("nan")}, errors.InvalidArgument, "attach_all: timeout"),
        ({"store": object()}, TypeError, "a store has set, get and wait; object has no set"),
    ],
)
def test_arguments_that_are_refused(store: FileStore, more: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        attach_all(**{"store": store, "array": np.zeros(1), "rank": 0, "size": 2, **more})
    assert text in str(caught.value)


class Dictionary:
    """A store that is not ours: values in a dict, errors of its own."""

    def __init__(self, fails: str = "") -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.fails = fails

    def set(self, key: str, value: str) -> None:
        self._may("set")
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        self._may("get")
        return self.values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._may("wait")
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.values for key in keys), timeout.total_seconds()):
                raise RuntimeError(f"wait timeout after {timeout}, keys: {keys}")

    def _may(self, call: str) -> None:
        if call == self.fails:
            raise RuntimeError("Broken pipe")


def test_any_store_with_three_methods_serves(name: str) -> None:
    store = Dictionary()

    def run(rank: int) -> list[int]:
        with attach_all(store, np.full(1, rank), rank=rank, size=3, name=name) as peers:
            return [int(t[0]) for t in peers]

    assert everywhere(3, run) == [[0, 1, 2]] * 3


class Checked(Dictionary):
    """A store with torch's check()."""

    def check(self, keys: list[str]) -> bool:
        self._may("check")
        return all(key in self.values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        raise AssertionError("not needed")


def test_store_that_can_be_asked_is_not_waited_for(name: str) -> None:
    store = Checked()

    def run(rank: int) -> int:
        with attach_all(store, np.full(1, rank), rank=rank, size=2, name=name) as peers:
            return int(peers[1 - rank][0])

    assert everywhere(2, run) == [1, 0]


@pytest.mark.parametrize("fails", ["set", "get", "wait", "check"])
def test_store_that_fails_is_an_error_at_once(name: str, fails: str) -> None:
    """Not at the deadline, which is far away."""
    store = Checked(fails) if fails == "check" else Dictionary(fails)
    results = everywhere(2, lambda rank: attach_all(store, np.zeros(1), rank=rank, size=2, name=name, timeout=1000))
    reason = same(results)
    assert isinstance(reason, errors.ConnectionReset)
    assert "the store failed: RuntimeError: Broken pipe" in str(reason)


# ---- FileStore -------------------------------------------------------------------------------------------------------


def test_file_store_keeps_values(store: FileStore) -> None:
    store.set("a/b", "text")
    store.set("a/b", b"bytes")
    store.wait(["a/b"], timedelta(seconds=5))
    assert store.get("a/b") == b"bytes"
    assert FileStore(store.folder).get("a/b") == b"bytes"
    with pytest.raises(errors.NotFound, match="'a' is not there"):
        store.get("a")
    with pytest.raises(errors.TimedOut, match=r"'other' is not there after 0\.01 s"):
        store.wait(["a/b", "other"], 0.01)


@pytest.mark.parametrize("key", ["../../x", "..", "a/../b", "%2F", ".", "a.part", "Ä/ü"])
def test_file_store_keys_stay_in_the_folder(store: FileStore, key: str) -> None:
    store.set(key, key)
    assert store.get(key) == key.encode()
    assert [path.parent for path in store.folder.iterdir()] == [store.folder]
    assert {path.parent for path in store.folder.parent.rglob("*") if path.is_file()} == {store.folder}


@pytest.mark.parametrize("key", ["", "x" * 201, "a\0b", 7])
def test_file_store_odd_keys_are_refused(store: FileStore, key: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="a key is a str of 1 to 200 characters"):
        store.set(key, "")


def test_file_store_of_others_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    FileStore(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(errors.AccessDenied, match="no other user may write to"):
        FileStore(folder)
    with pytest.raises(errors.NotFound, match="is not there"):
        FileStore(tmp_path / "none" / "store")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.AccessDenied, match="must be a folder"):
        FileStore(tmp_path / "file")
