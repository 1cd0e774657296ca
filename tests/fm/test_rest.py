"""The REST service: tokens, jobs, NICs; bodies and peers that are wrong; two managers; TLS."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.fm.conftest import TOKEN, Manager, Start, parsed
from tests.fm.scripted import whole_message
from tests.patience import Patience

from weft.fm import create_multicast, delete_multicast, gate, server
from weft.fm.store import Limits, Store

PATH = server.MULTICAST
BODY: dict[str, Any] = {"macs": ["0:08:40"], "vni": 1, "timeout": 32000, "jobID": "j", "jobStepID": "0"}


# ---- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer guess", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xff\xfe"]
)
@pytest.mark.parametrize("line", [f"POST {PATH}", f"DELETE {PATH}/0", "GET /live", "GET /nowhere"])
def test_request_without_a_valid_token_is_401(lasting: Manager, line: str, header: str) -> None:
    """Before the body is read: it may be anything."""
    lines = [f"{line} HTTP/1.1", "Host: x", "Connection: close", *([f"Authorization: {header}"] if header else [])]
    lines += ["Content-Length: 1000000", "", "{{{"]
    answer = lasting.send("\r\n".join(lines).encode("latin-1"))
    assert parsed(answer)[0] == 401
    assert b"www-authenticate: Bearer" in answer
    assert "token" in parsed(answer)[1]["message"]


def test_token_of_a_job_serves_its_own_groups_alone(manager: Manager) -> None:
    token = manager.ask("POST", "/fabric/collectives/jobs", {"jobID": "mine"})[1]["sessionToken"]
    assert manager.create("0:00:01", job="other")[0] == 201
    assert manager.create("0:00:02", job="mine", token=token)[0] == 201
    assert manager.create("0:00:03", job="other", token=token)[0] == 401
    assert manager.ask("DELETE", f"{PATH}/0", token=token)[0] == 401
    assert manager.ask("GET", f"{PATH}/0", token=token)[0] == 401
    assert [one["jobID"] for one in manager.ask("GET", PATH, token=token)[1]["groups"]] == ["mine"]
    for path in ("/fabric/collectives/jobs", "/fabric/collectives/jobs/other", "/fabric/nics", "/live", "/status"):
        assert manager.ask("GET", path, token=token)[0] == 401
    assert manager.ask("DELETE", "/fabric/collectives/jobs/mine", token=token)[0] == 401
    assert manager.ask("DELETE", f"{PATH}/1", token=token)[0] == 200
    assert manager.ask("GET", "/fabric/collectives/jobs/mine", token=token)[0] == 200


@pytest.mark.parametrize("tokens", [[], [""], ["a b"], ["ü"], ["good", ""]])
def test_manager_needs_tokens_that_a_header_can_have(tmp_path: Path, tokens: list[str]) -> None:
    with Store(tmp_path / "fabric.db") as store, pytest.raises(ValueError, match="token"):
        server.application(store, tokens)


# ---- what a launcher does --------------------------------------------------------------------------------------------


def test_launcher_registers_a_job_ends_a_step_and_releases_it(manager: Manager) -> None:
    """The exchange of Slurm's plugin for Slingshot: GET, POST, the members' joins, PATCH, DELETE."""
    jobs = "/fabric/collectives/jobs"
    assert manager.ask("GET", f"{jobs}/cluster-7")[0] == 404
    status, made = manager.ask("POST", jobs, {"jobID": "cluster-7", "mcastLimit": 2})
    assert (status, made["mcastLimit"], made["jobSteps"]) == (201, 2, {})
    token, url = made["sessionToken"], manager.url + "s"
    assert manager.ask("GET", f"{jobs}/cluster-7")[1]["sessionToken"] == token
    for step, nic in (("0", 1), ("1", 2)):
        create_multicast(url, token, [nic], 7, 32000, "cluster-7", step)
    assert manager.create("0:00:03", job="cluster-7", token=token)[0] == 507
    for path in (jobs, f"{jobs}/"):
        assert manager.ask("GET", path)[1] == {"documentLinks": [f"{jobs}/cluster-7"]}
    status, left = manager.ask("PATCH", f"{jobs}/cluster-7", {"jobSteps": {"0": None}})
    assert (status, left["jobSteps"]) == (200, {"1": [1]})
    assert manager.ask("DELETE", f"{jobs}/cluster-7") == (200, {"released": [1]})
    assert manager.ask("DELETE", f"{jobs}/cluster-7")[0] == 404
    assert manager.create("0:00:03", job="cluster-7", token=token)[0] == 401
    assert manager.ask("GET", PATH)[1] == {"groups": []}


def test_job_is_registered_once(manager: Manager) -> None:
    assert manager.ask("POST", "/fabric/collectives/jobs", {"jobID": "a/b c"})[0] == 201
    assert manager.ask("POST", "/fabric/collectives/jobs", {"jobID": "a/b c"})[0] == 409
    assert manager.ask("GET", "/fabric/collectives/jobs/a%2Fb%20c")[1]["jobID"] == "a/b c"


# ---- NICs, topology, the manager ------------------------------------------------------------------------------------


def test_registry_of_nics(manager: Manager) -> None:
    nic = "/fabric/nics/02:00:00:00:08:41"
    status, made = manager.ask("PUT", nic, {"host": "a", "device": "cxi0"})
    assert (status, made["group"], made["switch"], made["port"], made["up"]) == (200, 1, 1, 1, True)
    assert manager.ask("PUT", nic, {"host": "a", "device": "cxi0", "topology": "fat-tree", "up": False})[0] == 200
    (found,) = manager.ask("GET", "/fabric/nics")[1]["nics"]
    assert (found["topology"], found["group"], found["switch"], found["up"]) == ("fat-tree", 0, 33, False)
    assert manager.ask("DELETE", nic)[0] == 200
    assert manager.ask("DELETE", nic)[0] == 404
    for wrong in ("0:08:41", "02:00:00:00:08", "x"):
        assert manager.ask("PUT", f"/fabric/nics/{wrong}", {"host": "a", "device": "cxi0"})[0] == 400
    assert manager.ask("PUT", nic, {"host": "a", "device": "cxi0", "topology": "torus"})[0] == 400


def test_group_shows_its_tree(manager: Manager) -> None:
    manager.create("0:08:40", "0:08:41", "1:08:40")
    edges = manager.ask("GET", f"{PATH}/0")[1]["tree"]
    assert edges[0] == {"parent": "02:00:00:00:08:40", "child": "1/1"}
    assert {one["child"] for one in edges} == {"1/1", "02:00:00:00:08:41", "33/1", "02:00:00:01:08:40"}
    found = manager.ask("GET", "/fabric/topology")[1]
    assert found["switches"]["33/1"] == ["02:00:00:01:08:40"]
    assert len(found["trees"]["0"]) == 4


def test_status_counts(start: Start) -> None:
    manager = start(Limits(addresses=2))
    for nic in "123":
        manager.create(f"0:00:0{nic}")
    manager.ask("DELETE", f"{PATH}/0")
    found = manager.ask("GET", "/status")[1]
    assert [found[name] for name in ("addresses", "groups", "created", "deleted", "refused")] == [2, 1, 2, 1, 1]
    assert manager.ask("GET", "/health", token=None) == (200, {"ok": True})


def test_openapi_describes_the_exchange(manager: Manager) -> None:
    found = manager.ask("GET", "/openapi.json", token=None)[1]
    assert {"get", "post"} <= set(found["paths"][PATH])
    assert {"200", "201", "400", "401", "409", "507"} <= {
        code
        for path in (PATH, PATH + "/{mcastID}")
        for one in found["paths"][path].values()
        for code in one["responses"]
    }
    wanted = found["components"]["schemas"]["MulticastRequest"]
    assert set(wanted["properties"]) == set(BODY)
    assert "HTTPBearer" in found["components"]["securitySchemes"]


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "PATCH", "DELETE"])
def test_echo_answers_what_it_is_sent(lasting: Manager, method: str) -> None:
    """Section 17: the unit-test server of the REST client."""
    body = {"return_code": 201, "more": [1, {"a": "b"}]}
    assert lasting.ask(method, "/test", body, token=None) == (201, {"operation": method, "data": body})
    assert lasting.ask(method, "/test", {"a": 1}, token=None) == (200, {"operation": method, "data": {"a": 1}})
    assert lasting.ask(method, "/test", token=None) == (200, {"operation": method, "data": None})


@pytest.mark.parametrize(
    "raw",
    [b"{", b"NaN", b'{"a": Infinity}', b"[" * 60_000, b'{"return_code": 99}', b'{"return_code": "200"}'],
    ids=range(6),
)
def test_echo_of_nonsense_is_400(lasting: Manager, raw: bytes) -> None:
    assert lasting.ask("POST", "/test", raw=raw, token=None)[0] == 400


def test_echo_of_half_a_character(manager: Manager) -> None:
    assert manager.ask("POST", "/test", raw=b'"\\ud800"', token=None) == (200, {"operation": "POST", "data": "\ud800"})


# ---- bodies that are wrong -------------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "macs missing": {name: value for name, value in BODY.items() if name != "macs"},
    "job missing": {name: value for name, value in BODY.items() if name != "jobID"},
    **{
        f"macs {value!r}": {**BODY, "macs": value}
        for value in ([], None, "0:08:40", [1], [None], ["0:08"], ["00:08:40:00"])
    },
    **{f"macs {value!r}": {**BODY, "macs": value} for value in (["0:08:4g"], ["0:08:40", "x"], ["0:08:40\n"], [[]])},
    **{f"vni {value!r}": {**BODY, "vni": value} for value in (-1, 65536, "1", 1.5, True, None, 10**30)},
    **{f"timeout {value!r}": {**BODY, "timeout": value} for value in (0, -1, 20_000_001, "1", None)},
    **{f"job {value!r:.9}": {**BODY, "jobID": value} for value in ("", 7, None, "a\nb", "a\0b", "x" * 1025, "\ud800")},
    **{f"step {value!r}": {**BODY, "jobStepID": value} for value in (7, None, "", "\udfff")},
    "list": [BODY],
    "text": "x",
    "number": 1,
}
RAW = [
    b"",
    b"{",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"macs":' * 50_000,
    b"9" * 10_000,
    json.dumps(BODY).encode() + b"}",
]


def answers(manager: Manager) -> None:
    """The manager still makes groups."""
    status, made = manager.create("0:00:01")
    assert status == 201
    assert manager.ask("DELETE", f"{PATH}/{made['mcastID']}")[0] == 200


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
def test_malformed_request_is_400_with_a_message(lasting: Manager, body: Any) -> None:
    before = lasting.store.groups()
    status, found = lasting.ask("POST", PATH, body)
    assert status == 400
    assert found["message"]
    assert lasting.store.groups() == before


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_body_that_is_no_json_is_400(lasting: Manager, raw: bytes) -> None:
    assert lasting.ask("POST", PATH, raw=raw)[0] == 400
    answers(lasting)


@pytest.mark.parametrize("which", ["-1", "8192", "x", "1e3", str(10**30), "0/1", ""])
def test_delete_of_no_address_is_no_success(lasting: Manager, which: str) -> None:
    assert lasting.ask("DELETE", f"{PATH}/{which}")[0] in (400, 404, 405)


def test_step_of_a_job_may_be_missing(manager: Manager) -> None:
    body = {name: value for name, value in BODY.items() if name != "jobStepID"}
    assert manager.ask("POST", PATH, body)[1]["jobStepID"] == "(null)"
    assert manager.ask("POST", PATH, {**BODY, "macs": ["f:FF:ff"], "later": [1, 2]})[0] == 201


def test_body_that_says_that_it_is_huge_is_413_before_it_comes(manager: Manager) -> None:
    for path, limit in ((PATH, gate.BODY_MAX), ("/test", gate.PUBLIC_MAX)):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        status, found = parsed(manager.send(f"{head}Content-Length: {limit + 1}\r\n\r\n".encode()))
        assert status == 413
        assert str(limit) in found["message"]


@pytest.mark.parametrize("path", [PATH, "/test"])
def test_body_that_grows_huge_is_413(manager: Manager, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, with no length before."""
    monkeypatch.setattr(gate, "BODY_MAX", 100_000)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    assert parsed(manager.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 8))[0] == 413
    assert manager.create("0:00:01")[0] == 201


def test_body_that_does_not_come_is_408(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_S", 0.2)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    assert parsed(manager.send(f"{head}Content-Length: 100\r\n\r\n{{".encode()))[0] == 408
    assert manager.create("0:00:01")[0] == 201


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * (1 << 20) + b"\r\n\r\n",
        b"GET / HTCPCP/1.0\r\n\r\n",
        random.Random(7).randbytes(1 << 12).replace(b"\n", b"") + b"\r\n\r\n",
    ],
    ids=["tls", "line", "negative", "two lengths", "chunk", "header", "version", "noise"],
)
def test_stranger_is_answered_400_or_hung_up_on(lasting: Manager, data: bytes) -> None:
    answer = lasting.send(data)
    assert not answer or int(answer.split(b" ", 2)[1]) >= 400
    answers(lasting)


def test_peers_that_say_nothing_hold_up_nobody(manager: Manager) -> None:
    quiet = [socket.create_connection(manager.at) for _ in range(60)]
    for one in quiet[:30]:
        one.sendall(b"POST / HTTP/1.1\r\nHost:")
    assert manager.create("0:00:01")[0] == 201
    for one in quiet:
        one.close()


@pytest.mark.parametrize("count", [server.ADDRESS_CONNECTIONS_MAX + 8, server.CONNECTIONS_MAX + 8])
def test_idle_strangers_do_not_keep_the_administrator_out(
    manager: Manager, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest idle connection of an address goes when one more comes; a request under way stays."""
    for limits, name in ((gate, "BODY_S"), (server, "HEAD_S")):  # none goes for its age
        monkeypatch.setattr(limits, name, 1000.0)
    body = json.dumps(BODY).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(socket.create_connection(manager.at, timeout=60))
        busy.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert busy.recv(100).startswith(b"HTTP/1.1 100")  # the service waits for the body
        idle = [stack.enter_context(socket.create_connection(manager.at, timeout=60)) for _ in range(count)]
        assert manager.ask("GET", "/status")[0] == 200
        busy.sendall(body)
        assert parsed(whole_message(busy))[0] == 201
        assert idle[0].recv(1) == b""  # the oldest was hung up on


def test_link_of_a_job_with_odd_characters_leads_to_the_job(manager: Manager) -> None:
    status, made = manager.ask("POST", "/fabric/collectives/jobs", {"jobID": "a/b c?d#e%"})
    assert status == 201
    assert made["documentSelfLink"] == "/fabric/collectives/jobs/a%2Fb%20c%3Fd%23e%25"
    assert made["documentSelfLink"] in manager.ask("GET", "/fabric/collectives/jobs")[1]["documentLinks"]


def test_peer_that_does_not_end_its_headers_is_hung_up_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first request, too. A request that takes long is not cut off."""
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    manager = start()
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    for rest in (b"", b"POST / HTTP/1.1\r\nHost:"):
        with socket.create_connection(manager.at, timeout=60) as peer:
            peer.sendall(rest)
            assert peer.recv(1) == b""
        with begun(manager, health + rest, b"HTTP/1.1 200 ") as peer:
            while peer.recv(1000):
                pass
    monkeypatch.setattr(gate, "BODY_S", 60.0)
    body = json.dumps(BODY).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    with begun(manager, head.encode(), b"HTTP/1.1 100 ") as peer:
        threading.Event().wait(0.7)  # several looks; the body is within its own limit
        peer.sendall(body)
        assert parsed(whole_message(peer))[0] == 201


def begun(manager: Manager, data: bytes, answer: bytes) -> socket.socket:
    """A connection whose request has come before the manager hung up, as its answer shows: a busy machine is late."""
    limit = Patience(60)
    while not limit.over:
        peer = socket.create_connection(manager.at, timeout=60)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(data)
            head = b""
            while not head.endswith(b"\r\n\r\n") and (more := peer.recv(1)):
                head += more
            if head.startswith(answer):
                return peer
        peer.close()
    raise AssertionError("the manager hangs up on everybody")


def test_peer_that_goes_before_the_answer(manager: Manager) -> None:
    """It may have a group, which is released like any other group."""
    body = json.dumps(BODY).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    for _ in range(20):
        with socket.create_connection(manager.at) as peer:
            peer.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert manager.create("0:00:01", job="mine")[0] == 201
    assert [one["jobID"] for one in manager.ask("GET", PATH)[1]["groups"]] in (["mine"], ["j", "mine"], ["mine", "j"])
    assert manager.ask("DELETE", "/fabric/collectives/jobs/j")[0] in (200, 404)


# ---- again, twice, secretly ------------------------------------------------------------------------------------------


def test_restarted_manager_has_lost_no_group(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    first = start(path=path)
    made = [create_multicast(first.url, TOKEN, [nic, 9], 7, 32000, "j", "0") for nic in range(3)]
    token = first.ask("POST", "/fabric/collectives/jobs", {"jobID": "r"})[1]["sessionToken"]
    first.store.close()
    second = start(path=path)
    found = second.ask("GET", PATH)[1]["groups"]
    assert [(one["mcastID"], int(one["hwRoot"][-2:], 16)) for one in found] == made
    assert create_multicast(second.url, token, [5], 7, 1, "r").mcast_id == 3
    for one in made:
        delete_multicast(second.url, TOKEN, one.mcast_id)


def test_closed_store_is_500_and_logged(start: Start) -> None:
    """The manager's own fault, told as such; the client makes 2054 of it."""
    manager = start()
    manager.store.close()
    status, found = manager.create("0:00:01")
    assert status == 500
    assert "log" in found["message"]


def test_two_managers_on_one_database_give_no_address_twice(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    managers = [start(path=path, wait_s=5) for _ in range(2)]
    made: list[tuple[int, int]] = []
    wrong: list[BaseException] = []

    def work(at: int) -> None:
        try:
            url = managers[at % 2].url
            for n in range(8):
                mine = create_multicast(url, TOKEN, [at, 100 + at, 200 + n * 8 + at], 7, 32000, f"j{at}")
                made.append(mine)
                if n % 3 == 2:
                    made.remove(mine)
                    delete_multicast(managers[(at + 1) % 2].url, TOKEN, mine.mcast_id)
        except BaseException as reason:
            wrong.append(reason)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
    assert len({mcast for mcast, _ in made}) == len({root for _, root in made}) == len(made)
    for each in managers:
        found = each.ask("GET", PATH)[1]["groups"]
        assert sorted(one["mcastID"] for one in found) == sorted(mcast for mcast, _ in made)


def test_manager_with_a_certificate(start: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(files["key"]))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(files["cert"]), append=True)
    authority.cert_pem.write_to_path(str(files["ca"]))
    manager = start(cert=str(files["cert"]), key=str(files["key"]))
    assert manager.url.startswith("https://127.0.0.1:")
    for cacert in ("no", str(files["ca"])):
        made = create_multicast(manager.url, TOKEN, [1], 7, 32000, "j", cacert=cacert)
        delete_multicast(manager.url, TOKEN, made.mcast_id, cacert)
    plain = manager.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert not plain.startswith(b"HTTP/1.1 200")


def test_answers_on_one_connection_come_in_order(manager: Manager) -> None:
    """Requests in one segment, the next before the answer."""
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    other = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(manager.at, timeout=60) as peer:
        peer.sendall(one + other + one)
        assert [parsed(whole_message(peer))[0] for _ in range(3)] == [200, 401, 200]
