"""Joins of collective groups through a running Fabric Manager, from fi_join_collective to its database and back."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from tests.fi.group_support import Member, allreduce, events, join_all, members
from tests.fm.conftest import TOKEN, Start
from tests.fm.scripted import answer, scripted, silence
from tests.fm.test_kill import Managers

from weft import cxi, fi
from weft.fm import ManagerError, client, server
from weft.fm.store import Limits, Store
from weft.providers.cxi import device


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host of its own, without anybody's settings."""
    for name in list(os.environ):
        if name.startswith(("FI_CXI_", "SLINGSHOT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


def use(monkeypatch: pytest.MonkeyPatch, url: str, **more: str) -> None:
    """The variables of a job's collectives."""
    values = {"FABRIC_MGR_URL": url, "MCAST_TOKEN": TOKEN, "JOB_ID": "job", "JOB_STEP_ID": "3", **more}
    for name, value in values.items():
        monkeypatch.setenv(f"FI_CXI_COLL_{name}", value)


def failed(found: list[Member]) -> int:
    """Every member joins; the error that all of them get."""
    for one in found:
        one.join()
    got = events(found)
    assert all(isinstance(one, fi.EqErrEntry) for one in got), got
    assert {one.err for one in got} == {-int(fi.ECONNREFUSED)}
    (number,) = {one.prov_errno for one in got}
    return int(number)


@pytest.fixture
def pair() -> Iterator[list[Member]]:
    with members(2, "cxi") as found:
        yield found


@pytest.mark.clause("cxi.coll.join-fm-api", "cxi.env.coll-url")
def test_join_asks_the_manager_by_https_and_close_deletes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fi_cxi(7): a join reaches the manager's secure REST interface at FI_CXI_COLL_FABRIC_MGR_URL."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    manager = start(cert=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))
    use(monkeypatch, manager.url, FABRIC_MGR_CACERT=str(tmp_path / "ca.pem"), TIMEOUT_USEC="54321")
    with members(3, "cxi") as found:
        groups = join_all(found)
        (kept,) = manager.store.groups()
        nic = device.devices()[0].nic
        assert (kept.macs, kept.hw_root) == ((nic,) * 3, nic)
        assert (kept.job_id, kept.job_step_id, kept.timeout_us) == ("job", "3", 54321)
        assert {one.statistics().multicast for one in groups} == {kept.mcast_id}
        total = allreduce(found, groups, [np.array([1.0, 2.0])] * 3, fi.SUM)
        assert [one.tolist() for one in total] == [[3.0, 6.0]] * 3
        for one in found[::-1]:
            one.groups.pop().close()
        assert manager.store.groups() == []
    monkeypatch.setenv("FI_CXI_COLL_FABRIC_MGR_CACERT", "yes")
    with members(2, "cxi") as found:
        assert failed(found) == cxi.ERRNO_JOIN_SERVER_ERR


@pytest.mark.clause("cxi.coll.mcast-job-limit", "cxi.coll.mcast-system-limit")
@pytest.mark.parametrize(
    ("limits", "number"),
    [
        (Limits(addresses_per_job=1, groups_per_root=9), 2048),
        (Limits(addresses=1, groups_per_root=9), 2048),
        (Limits(), 2049),
    ],
    ids=["the job's limit", "the system's limit", "no hardware root"],
)
def test_limit_of_the_manager_fails_the_join_of_every_member(
    start: Start, pair: list[Member], monkeypatch: pytest.MonkeyPatch, limits: Limits, number: int
) -> None:
    """And a closed group makes room."""
    manager = start(limits)
    use(monkeypatch, manager.url)
    join_all(pair)
    assert failed(pair) == number
    for one in pair:
        one.groups[0].close()
    join_all(pair)
    assert len(manager.store.groups()) == 1


@pytest.mark.parametrize(
    ("told", "number"),
    [
        (answer(400, {"message": "malformed"}), 2049),
        (answer(200, {"mcastID": 8192, "hwRoot": "02:00:00:00:08:40"}), 2050),
        (answer(200, {"mcastID": 7, "hwRoot": "02:00:00:00:00:01"}), 2051),
        (answer(401, {"message": "who?"}), 2054),
        (answer(503), 2054),
        (silence, 2054),
    ],
    ids=["malformed", "no address", "no member", "token", "busy", "silent"],
)
def test_answer_of_the_manager_is_the_number_at_every_member(
    pair: list[Member], monkeypatch: pytest.MonkeyPatch, told: Any, number: int
) -> None:
    monkeypatch.setattr(client, "LIMIT_S", 0.5)
    with scripted(told) as manager:
        use(monkeypatch, manager.url)
        assert failed(pair) == number
        assert len(manager.requests) == 1  # member 0 alone asks
    monkeypatch.delenv("FI_CXI_COLL_FABRIC_MGR_URL")


def test_busy_manager_delays_the_join(pair: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    """409 is repeated; meanwhile no member's event queue blocks."""
    nic = device.devices()[0].mac
    with scripted(answer(409), answer(409), answer(201, {"mcastID": 5, "hwRoot": nic}), answer(200)) as manager:
        use(monkeypatch, manager.url)
        groups = join_all(pair)
        assert {one.statistics().multicast for one in groups} == {5}
        assert len(manager.requests) == 3
        for one in pair:
            one.groups.pop().close()
        assert manager.requests[-1].startswith(b"DELETE /fabric/collectives/multicast/5 ")


def test_restarted_manager_still_has_the_group(
    tmp_path: Path, pair: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group works without the manager, and is deleted at the next manager."""
    path, listener = tmp_path / "fabric.db", server.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with Store(path) as store, server.running(server.application(store, [TOKEN]), listener) as url:
        use(monkeypatch, url)
        groups = join_all(pair)
    assert allreduce(pair, groups, [np.array([1])] * 2, fi.SUM)[0].tolist() == [2]
    with Store(path) as store, server.running(server.application(store, [TOKEN]), server.listen("127.0.0.1", port)):
        assert len(store.groups()) == 1
        for one in pair:
            one.groups.pop().close()
        assert store.groups() == []


def test_close_without_the_manager_is_2052_and_closes(tmp_path: Path, pair: list[Member],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Member 0 deletes the address, and a failure is 2052. The manager's administrator releases it."""
    with Store(tmp_path / "fabric.db") as store:
        with server.running(server.application(store, [TOKEN]), server.listen("127.0.0.1", 0)) as url:
            use(monkeypatch, url)
            join_all(pair)
        with pytest.raises(ManagerError) as found:
            pair[0].groups.pop().close()
        assert found.value.prov_errno == cxi.ERRNO_JOIN_CURL_FAILED
        pair[1].groups.pop().close()
        assert store.release("job") == [0]


@pytest.mark.kill
@pytest.mark.procs
def test_manager_killed_during_joins_fails_them_or_not_and_hangs_none(
    tmp_path: Path, pair: list[Member], monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    """Every member gets the same; the manager's file has at most the group of a join that was not answered."""
    rounds = int(os.environ.get("WEFT_KILL_ROUNDS") or 10)
    monkeypatch.setattr(client, "LIMIT_S", 30.0)
    managers = Managers(tmp_path / "fabric.db", 1)
    joined = failures = 0
    try:
        managers.start(0)
        use(monkeypatch, managers.urls[0])
        for _ in range(rounds):
            killer = threading.Thread(target=kill, args=(managers, rng.random() * 0.02))
            killer.start()
            for one in pair:
                one.join()
            got = events(pair)
            killer.join()
            kinds = {isinstance(one, fi.EqErrEntry) for one in got}
            assert len(kinds) == 1
            if kinds == {True}:
                assert {one.prov_errno for one in got} == {cxi.ERRNO_JOIN_SERVER_ERR}
                failures += 1
            else:
                joined += 1
            for one in pair:
                one.groups.pop().close()
            with Store(managers.path) as store:
                assert {one.job_id for one in store.groups()} <= {"job"}
                assert len(store.groups()) <= (kinds == {True})
                if store.groups():
                    store.release("job")
    finally:
        managers.close()
    assert joined + failures == rounds


def kill(managers: Managers, after_s: float) -> None:
    """Kill the manager and start it again: the next manager serves the clients that wait for it to accept."""
    time.sleep(after_s)  # the instant
    managers.kill(0)
    managers.start(0)
