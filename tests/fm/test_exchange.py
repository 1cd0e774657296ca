"""The exchange of a join, byte for byte as the provider's client sends it. Facts of the CXI provider, section 17."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import threading

import pytest
from tests import patience
from tests.fm.conftest import TOKEN, Manager, Start, parsed
from tests.fm.scripted import whole_message

from weft.fm import ManagerError, create_multicast, delete_multicast
from weft.fm.store import Limits

BODY = b'{ "macs": [ "0:08:40", "0:08:41" ], "vni": 1024, "timeout": 20000000, "jobID": "cluster-7", "jobStepID": "0" }'


def request(method: bytes, path: bytes, body: bytes, token: bytes = TOKEN.encode(), expect: bool = True) -> bytes:
    return (
        method + b" " + path + b" HTTP/1.1\r\n"
        b"Host: manager.example:7430\r\n" + (b"Expect:\r\n" if expect else b"") + b"Accept: application/json\r\n"
        b"Content-Type: application/json\r\n"
        b"charset: utf-8\r\n"
        b"Authorization: Bearer " + token + b"\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )


@pytest.mark.parametrize("expect", [True, False], ids=["empty Expect", "no Expect"])
@pytest.mark.parametrize("path", [b"/fabric/collectives/multicast", b"/fabric/collectives/multicasts"])
def test_provider_creates_and_deletes_a_group(manager: Manager, path: bytes, expect: bool) -> None:
    status, made = parsed(manager.send(request(b"POST", path, BODY, expect=expect)))
    assert status == 201
    assert made["mcastID"] == 0
    assert made["hwRoot"] == "02:00:00:00:08:40"
    assert (made["jobID"], made["jobStepID"], made["vni"], made["timeout"]) == ("cluster-7", "0", 1024, 20_000_000)
    status, gone = parsed(manager.send(request(b"DELETE", path + b"/0", b"", expect=expect)))
    assert (status, gone["mcastID"]) == (200, 0)
    assert parsed(manager.send(request(b"DELETE", path + b"/0", b"", expect=expect)))[0] == 404


def test_two_requests_on_one_connection(manager: Manager) -> None:
    """The provider's library keeps a connection and uses it again."""
    answers = manager.send(request(b"POST", b"/fabric/collectives/multicast", BODY) * 2, answers=2)
    assert answers.count(b"HTTP/1.1 201 ") == 2
    assert [b'"mcastID":%d,' % at in answers for at in range(3)] == [True, True, False]


def test_request_that_comes_in_small_pieces(manager: Manager) -> None:
    whole = request(b"POST", b"/fabric/collectives/multicast", BODY)
    with socket.create_connection(manager.at, timeout=60) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(whole), 7):
            peer.sendall(whole[at : at + 7])
        assert parsed(whole_message(peer))[0] == 201


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_with_the_headers_of_the_provider(manager: Manager) -> None:
    """The library that the provider uses sends what the manager takes."""
    headers = ["Expect:", "Accept: application/json", "Content-Type: application/json", "charset: utf-8"]
    headers.append(f"Authorization: Bearer {TOKEN}")
    command = ["curl", "--silent", "--max-time", "60", "--write-out", "\n%{http_code}"]
    for one in headers:
        command += ["--header", one]
    created = patience.run([*command, "--data-binary", BODY, manager.url], check=True, timeout=100).stdout
    body, _, status = created.rpartition("\n")
    assert (status, json.loads(body)["mcastID"]) == ("201", 0)
    gone = patience.run(
        [*command, "--data-binary", "", "--request", "DELETE", f"{manager.url}/0"], check=True, timeout=100
    ).stdout
    assert gone.rpartition("\n")[2] == "200"


# ---- our client, the same manager ------------------------------------------------------------------------------------


def test_client_creates_and_deletes(manager: Manager) -> None:
    made = create_multicast(manager.url, TOKEN, [0x840, 0x841], 7, 32000, "j", "0")
    assert made == (0, 0x840)
    (group,) = manager.store.groups()
    assert (group.macs, group.vni, group.timeout_us, group.job_id, group.job_step_id) == (
        (0x840, 0x841),
        7,
        32000,
        "j",
        "0",
    )
    delete_multicast(manager.url, TOKEN, made.mcast_id)
    assert not manager.store.groups()


def refusal(url: str, job: str = "j", macs: tuple[int, ...] = (1, 2), token: str = TOKEN) -> ManagerError:
    with pytest.raises(ManagerError) as found:
        create_multicast(url, token, macs, 7, 32000, job)
    return found.value


@pytest.mark.clause("cxi.coll.mcast-job-limit")
def test_job_has_at_most_its_limit_of_addresses(start: Start) -> None:
    """fi_cxi(7): an administrator can limit the addresses of a job; the job then gets 2048."""
    manager = start(Limits(addresses_per_job=2))
    for nic in (1, 2):
        create_multicast(manager.url, TOKEN, [nic], 7, 32000, "j")
    found = refusal(manager.url, macs=(3,))
    assert (found.prov_errno, found.status) == (2048, 507)
    assert "01:" in str(found)
    create_multicast(manager.url, TOKEN, [4], 7, 32000, "another")
    delete_multicast(manager.url, TOKEN, 0)
    create_multicast(manager.url, TOKEN, [3], 7, 32000, "j")


@pytest.mark.clause("cxi.coll.mcast-system-limit")
def test_system_has_a_hard_limit_of_addresses(start: Start) -> None:
    """fi_cxi(7): the number of multicast addresses has a hard limit; beyond it a group gets 2048."""
    manager = start()
    others = sqlite3.connect(manager.store.path)
    with others:  # the state that 8,190 groups of other jobs leave, in one transaction
        others.execute("INSERT INTO jobs VALUES ('others', 0, NULL, 0)")
        rows = ((at, 1000 + at) for at in range(1, 8191))
        others.executemany("INSERT INTO groups VALUES (?, ?, 1, 1, 'others', '', '[1]', 0)", rows)
    others.close()
    made = [create_multicast(manager.url, TOKEN, [nic], 7, 32000, "j").mcast_id for nic in (1, 2)]
    assert made == [0, 8191]
    found = refusal(manager.url, macs=(3,))
    assert (found.prov_errno, found.status) == (2048, 507)
    assert "02:" in str(found)
    manager.store.delete(4711)
    assert create_multicast(manager.url, TOKEN, [4], 7, 32000, "j").mcast_id == 4711


def test_administrator_lowers_the_systems_limit(start: Start) -> None:
    manager = start(Limits(addresses=1))
    create_multicast(manager.url, TOKEN, [1], 7, 32000, "j")
    assert refusal(manager.url, macs=(2,)).prov_errno == 2048


def test_nic_is_the_root_of_one_group(manager: Manager) -> None:
    """Without a member that can be the root a group gets 2049."""
    roots = [create_multicast(manager.url, TOKEN, [5, 6], 7, 32000, "j").hw_root for _ in range(2)]
    assert roots == [5, 6]
    found = refusal(manager.url, macs=(5, 6))
    assert (found.prov_errno, found.status) == (2049, 507)
    assert "03:" in str(found)
    delete_multicast(manager.url, TOKEN, 1)
    assert create_multicast(manager.url, TOKEN, [5, 6], 7, 32000, "j").hw_root == 6


def test_wrong_token_is_2054(manager: Manager) -> None:
    found = refusal(manager.url, token="guess")
    assert (found.prov_errno, found.status) == (2054, 401)
    assert "FI_CXI_COLL_MCAST_TOKEN" in str(found)
    with pytest.raises(ManagerError) as gone:
        delete_multicast(manager.url, "guess", 0)
    assert gone.value.prov_errno == 2052


def test_busy_manager_is_asked_again(start: Start) -> None:
    """Another process holds the database: 409 until it is done."""
    manager = start(wait_s=0.05)
    other = sqlite3.connect(manager.store.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    assert manager.create("0:00:01")[0] == 409
    threading.Timer(0.5, lambda: (other.execute("ROLLBACK"), other.close())).start()
    assert create_multicast(manager.url, TOKEN, [1], 7, 32000, "j").mcast_id == 0
