"""kill -9 of the manager at random instants: its state is whole after every restart, and no answered group is lost.

Clients make and delete groups through one manager or two on one database; at a random instant a manager is killed. An
answered request holds after the restart; an unanswered request has happened wholly or not at all. WEFT_KILL_ROUNDS sets
the number of rounds, WEFT_SEED what happens in them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fm.conftest import TOKEN
from tests.patience import Patience
from tests.procs.victims import fork_victim

from weft.fm import ManagerError, client, create_multicast, delete_multicast, server
from weft.fm.store import Limits, Store

pytestmark = [pytest.mark.kill, pytest.mark.procs]

LIMITS = Limits(addresses=200, addresses_per_job=40, groups_per_root=2)
CLIENTS = 3


@pytest.fixture
def fm_kill_rounds() -> int:
    """20, or WEFT_KILL_ROUNDS."""
    return int(os.environ.get("WEFT_KILL_ROUNDS") or 20)


def manager(path: Path, listener: socket.socket, told: int) -> None:
    store = Store(path, LIMITS, wait_s=5)
    app = server.application(store, [TOKEN])
    os.write(told, b"!")
    server.run(app, listener)


class Managers:
    """Managers on one database, each behind an address that survives it: the listening socket is the test's."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self.listeners = [server.listen("127.0.0.1", 0) for _ in range(count)]
        self.urls = [server.address_of(one) + server.MULTICAST for one in self.listeners]
        self.pids = [0] * count

    def start(self, at: int) -> None:
        pid, ready = fork_victim(lambda told: manager(self.path, self.listeners[at], told))
        self.pids[at] = pid
        with open(ready, "rb") as file:
            assert file.read(1) == b"!", "the manager could not start"

    def kill(self, at: int) -> None:
        os.kill(self.pids[at], signal.SIGKILL)
        os.waitpid(self.pids[at], 0)
        self.pids[at] = 0

    def close(self) -> None:
        for at, pid in enumerate(self.pids):
            if pid:
                self.kill(at)
        for one in self.listeners:
            one.close()


class Client:
    """Makes and deletes groups, and knows the answers for each.

    here    mcast_id -> (hw_root, job): made, and answered.   gone   deleted, and answered.
    unsure  a request that was not answered: ("create", job) or ("delete", mcast_id).
    """

    def __init__(self, number: int, urls: list[str], seed: int) -> None:
        self.number, self.urls, self.rng = number, urls, random.Random(seed)
        self.here: dict[int, tuple[int, str]] = {}
        self.unsure: list[tuple[str, object]] = []
        self.calls = 0

    def run(self, end: threading.Event) -> None:
        while not end.is_set():
            self.step()

    def step(self) -> None:
        url = self.rng.choice(self.urls)
        self.calls += 1
        if self.here and self.rng.random() < 0.4:
            mcast = self.rng.choice(list(self.here))
            kept = self.here.pop(mcast)
            try:
                delete_multicast(url, TOKEN, mcast)
            except ManagerError as reason:
                check_unanswered(reason, 2052)
                self.unsure.append(("delete", (mcast, kept)))
            return
        job = f"client-{self.number}-{self.rng.randrange(3)}"
        macs = [self.rng.randrange(1 << 20) for _ in range(3)]
        try:
            mcast, root = create_multicast(url, TOKEN, macs, 1, 32000, job)
        except ManagerError as reason:
            if (reason.status, reason.prov_errno) != (507, 2048):
                check_unanswered(reason, 2054)
                self.unsure.append(("create", tuple(macs)))
            return
        assert mcast not in self.here
        self.here[mcast] = (root, job)


def check_unanswered(reason: ManagerError, number: int) -> None:
    """The manager that was asked was killed: the documented error, and no answer of another kind."""
    assert (reason.prov_errno, reason.status) == (number, 0), reason


def check(path: Path, clients: list[Client]) -> None:
    """The file is whole, the rules hold, and it agrees with the answers; then unsure requests are settled."""
    c = sqlite3.connect(path)
    assert c.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert c.execute("PRAGMA foreign_key_check").fetchall() == []
    c.close()
    with Store(path, LIMITS, wait_s=30) as store:
        found = {one.mcast_id: one for one in store.groups()}
        figures = store.statistics()
        jobs = {one.job_id: one for one in store.jobs()}
    assert figures["created"] - figures["deleted"] == len(found) == figures["groups"]
    assert sorted(m for job in jobs.values() for all_of in job.steps.values() for m in all_of) == sorted(found)
    assert all(job.steps for job in jobs.values())  # none was registered
    assert all(sum(map(len, job.steps.values())) <= LIMITS.addresses_per_job for job in jobs.values())
    roots = [one.hw_root for one in found.values()]
    assert all(roots.count(one) <= LIMITS.groups_per_root for one in roots)
    for each in clients:
        mine = {
            m: (one.hw_root, one.job_id) for m, one in found.items() if one.job_id.startswith(f"client-{each.number}-")
        }
        for mcast, what in each.here.items():
            assert mine.get(mcast) == what, f"multicast address {mcast} was answered, and is lost"
        for kind, what in each.unsure:
            for mcast in set(mine) - set(each.here):
                if (kind == "delete" and what == (mcast, mine[mcast])) or (
                    kind == "create" and what == found[mcast].macs
                ):
                    each.here[mcast] = mine[mcast]
        each.unsure.clear()
        assert set(mine) == set(each.here), "a group that was deleted, or that nobody made"


@contextlib.contextmanager
def busy(clients: list[Client]) -> Iterator[None]:
    """The clients work during the block; an error of a client is raised."""
    end, wrong = threading.Event(), list[BaseException]()

    def work(one: Client) -> None:
        try:
            one.run(end)
        except BaseException as reason:
            wrong.append(reason)

    threads = [threading.Thread(target=work, args=(one,)) for one in clients]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        end.set()
        for one in threads:
            one.join()
    if wrong:
        raise wrong[0]


@pytest.mark.parametrize("count", [1, 2], ids=["one", "two on one database"])
def test_killed_manager_loses_no_answered_group(
    tmp_path: Path, rng: random.Random, fm_kill_rounds: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LIMIT_S", 30.0)  # a manager that starts again on a busy machine
    managers = Managers(tmp_path / "fabric.db", count)
    clients = [Client(n, managers.urls, rng.randrange(1 << 30)) for n in range(CLIENTS)]
    unsure = 0
    try:
        for at in range(count):
            managers.start(at)
        for _ in range(fm_kill_rounds):
            victim = rng.randrange(count)
            with busy(clients):
                wait_for_calls(clients, rng.randint(0, 6))
                time.sleep(rng.random() * 0.02)  # the instant
                managers.kill(victim)
                if rng.random() < 0.3 and count == 2:
                    managers.kill(1 - victim)
                for at in range(count):
                    if not managers.pids[at]:
                        managers.start(at)
            unsure += sum(len(one.unsure) for one in clients)
            check(managers.path, clients)
        assert sum(len(one.here) for one in clients) or fm_kill_rounds < 5
        assert unsure or fm_kill_rounds < 10, "no manager was killed during a request"
    finally:
        managers.close()


def wait_for_calls(clients: list[Client], more: int) -> None:
    """Until the clients have made so many calls more."""
    patience, wanted = Patience(60), sum(one.calls for one in clients) + more
    while sum(one.calls for one in clients) < wanted:
        assert not patience.over, "the manager answers nobody"
        time.sleep(0.001)


def test_manager_killed_while_it_makes_its_file_leaves_none_that_is_half(tmp_path: Path, rng: random.Random) -> None:
    """A new file in every round."""
    for n in range(12):
        path = tmp_path / f"{n}.db"
        pid, ready = fork_victim(
            lambda told, path=path: (os.write(told, b"!"), Store(path).close(), os.write(told, b"."))
        )
        with open(ready, "rb") as file:
            assert file.read(1) == b"!"
            time.sleep(rng.random() * 0.01)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with Store(path) as store:
            assert store.create([1], 1, 1, "j").mcast_id == 0
