"""The client of a join: its requests, and its result for each answer. Facts of the CXI provider, section 17."""

from __future__ import annotations

import pickle
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.fm.scripted import Answer, answer, bytes_of, dripping, scripted, silence

from weft import cxi, fi
from weft.fm import ManagerError, client, create_multicast, delete_multicast
from weft.settings import Secret

LIMIT_S = client.LIMIT_S  # before the fixtures change it
MACS = [0x00840, 0x00841, 0xFFFFF]
GOOD = {"mcastID": 17, "hwRoot": "02:00:00:00:08:41"}


def create(url: str, **more: Any) -> client.Multicast:
    given: dict[str, Any] = {"token": "secret", "macs": MACS, "vni": 1024, "timeout_us": 32000, "job_id": "j", **more}
    return create_multicast(url, **given)


def refused(call: Callable[[], object]) -> ManagerError:
    with pytest.raises(ManagerError) as found:
        call()
    return found.value


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that a test can wait for."""
    monkeypatch.setattr(client, "LIMIT_S", 0.3)


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_create_sends_the_documented_request() -> None:
    with scripted(answer(200, GOOD)) as manager:
        assert create(manager.url, job_step_id="4") == (17, 0x00841)
    head, _, _ = manager.requests[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[:-2] == [
        b"POST /fabric/collectives/multicast HTTP/1.1",
        f"Host: 127.0.0.1:{manager.port}".encode(),
        b"Accept: application/json",
        b"Content-Type: application/json",
        b"charset: utf-8",
        b"Authorization: Bearer secret",
    ]
    assert b"expect" not in head.lower()
    assert manager.body() == {
        "macs": ["0:08:40", "0:08:41", "f:ff:ff"],
        "vni": 1024,
        "timeout": 32000,
        "jobID": "j",
        "jobStepID": "4",
    }


def test_token_that_is_not_to_be_shown_is_sent_and_not_shown() -> None:
    """FI_CXI_COLL_MCAST_TOKEN comes from the settings as a Secret."""
    token = Secret("hidden-word")
    with scripted(answer(401, {"message": "who?"})) as manager:
        found = refused(lambda: create(manager.url, token=token))
        refused(lambda: delete_multicast(manager.url, token, 1))
    assert all(b"Authorization: Bearer hidden-word\r\n" in one for one in manager.requests)
    assert "hidden-word" not in str(found)


def test_create_without_step_sends_null_in_parentheses() -> None:
    with scripted(answer(201, GOOD)) as manager:
        create(manager.url)
    assert manager.body()["jobStepID"] == "(null)"


def test_delete_sends_the_address_in_the_path_and_no_body() -> None:
    with scripted(answer(200)) as manager:
        delete_multicast(manager.url, "secret", 17)
    assert manager.requests[0].startswith(b"DELETE /fabric/collectives/multicast/17 HTTP/1.1\r\n")
    assert manager.requests[0].endswith(b"\r\n\r\n")
    assert b"Authorization: Bearer secret\r\n" in manager.requests[0]


# ---- what answers mean -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201])
@pytest.mark.parametrize(
    ("mcast", "root"), [(0, "02:00:00:00:08:40"), (8191, "0A:FF:EE:FF:FF:FF"), (5, "2:0:0:0:8:41")]
)
def test_create_takes_valid_answers(status: int, mcast: int, root: str) -> None:
    """The low 20 bits of hwRoot are a member's address; the other bits do not count."""
    with scripted(answer(status, {"mcastID": mcast, "hwRoot": root, "more": 1})) as manager:
        found = create(manager.url)
    assert found.mcast_id == mcast
    assert found.hw_root in MACS


@pytest.mark.parametrize(
    "body", [{"mcastID": m, "hwRoot": "02:00:00:00:08:40"} for m in (None, -1, 8192, "7", True, 1.0)]
)
def test_create_with_invalid_mcast_id_is_2050(body: dict[str, Any]) -> None:
    with scripted(answer(200, body)) as manager:
        found = refused(lambda: create(manager.url))
    assert found.prov_errno == cxi.ERRNO_JOIN_MCAST_INVALID == 2050


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"mcastID": ', b"[" * 100_000, b'"x"', b"\xff\xfe", b"9" * 9000])
def test_create_with_an_answer_that_is_no_object_is_2050(raw: bytes) -> None:
    with scripted(answer(200, raw=raw)) as manager:
        assert refused(lambda: create(manager.url)).prov_errno == 2050


@pytest.mark.parametrize(
    "root",
    [None, 7, "", "02:00", "no mac", "02:00:00:00:08:42", "02:00:00", "02:00:00:00:08", "::::::", "02-00-00-00-08-40"],
)
def test_create_with_invalid_root_is_2051(root: object) -> None:
    """Fewer than six octets leave the low octets 0, which is no member here."""
    with scripted(answer(200, {"mcastID": 3, "hwRoot": root})) as manager:
        assert refused(lambda: create(manager.url)).prov_errno == cxi.ERRNO_JOIN_HWROOT_INVALID == 2051


def test_create_reads_missing_octets_as_0() -> None:
    """Section 20: with three to five octets the low octets read as 0."""
    with scripted(answer(200, {"mcastID": 3, "hwRoot": "02:00:00:00:08"})) as manager:
        assert create(manager.url, macs=[0x00800]).hw_root == 0x00800


@pytest.mark.parametrize(
    ("status", "message", "number"),
    [
        (400, "anything", 2049),
        (507, "01: the job has its limit", 2048),
        (507, "error 02: no address", 2048),
        (507, "03: no root", 2049),
        (507, "04: something else", 2054),
        (507, "no code", 2054),
        (507, "1: one digit", 2054),
        (401, "who?", 2054),
        (404, "", 2054),
        (301, "elsewhere", 2054),
        (500, "01: only 507 has codes", 2054),
        (503, "", 2054),
    ],
)
def test_create_refused_has_the_documented_number(status: int, message: str, number: int) -> None:
    with scripted(answer(status, {"message": message})) as manager:
        found = refused(lambda: create(manager.url))
    assert (found.prov_errno, found.status) == (number, status)
    assert found.errno == fi.ECONNREFUSED
    assert message in str(found)


@pytest.mark.parametrize("body", [{}, {"message": 7}, {"message": None}, ["01:"]])
def test_create_refused_without_a_text_is_2054(body: object) -> None:
    with scripted(answer(507, body)) as manager:
        assert refused(lambda: create(manager.url)).prov_errno == 2054


@pytest.mark.parametrize("status", [400, 401, 404, 507, 500])
def test_delete_refused_is_2052(status: int) -> None:
    with scripted(answer(status, {"message": "01: no"})) as manager:
        found = refused(lambda: delete_multicast(manager.url, "t", 3))
    assert (found.prov_errno, found.status) == (2052, status)


@pytest.mark.parametrize("times", [1, 4])
def test_409_is_repeated_until_another_answer(times: int) -> None:
    with scripted(*[answer(409)] * times, answer(200, GOOD)) as manager:
        assert create(manager.url).mcast_id == 17
    assert len(manager.requests) == times + 1
    assert len(set(manager.requests)) == 1
    with scripted(*[answer(409)] * times, answer(200)) as manager:
        delete_multicast(manager.url, "t", 3)
    assert len(manager.requests) == times + 1


def test_409_without_end_ends_when_told() -> None:
    """Without `stop` it is repeated for ever, as the provider does."""
    stop = threading.Event()
    seen: list[int] = []

    def again(peer: socket.socket) -> None:
        seen.append(1)
        if len(seen) == 3:
            stop.set()
        answer(409)(peer)

    with scripted(again) as manager:
        assert refused(lambda: create(manager.url, stop=stop)).prov_errno == 2054
        assert refused(lambda: delete_multicast(manager.url, "t", 1, stop=stop)).prov_errno == 2052
    assert len(seen) == 3


def test_409_is_an_answer_where_the_asker_says_so() -> None:
    """The commands of administrators do not wait for ever."""
    with scripted(answer(409, {"message": "registered"})) as manager:
        found = client.exchange("POST", manager.url, "t", b"", None, 2054, repeat_s=0)
    assert found == (409, {"message": "registered"})


# ---- no answer -------------------------------------------------------------------------------------------------------

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize(
    "what",
    [
        bytes_of(b""),
        bytes_of(HALF),
        bytes_of(b"SSH-2.0-OpenSSH\r\n"),
        bytes_of(b"HTTP/1.1 abc\r\n\r\n"),
        bytes_of(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n{}"),
        bytes_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        bytes_of(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (client.ANSWER_MAX + 2)),
        bytes_of(b"\x16\x03\x01\x00\x05"),
    ],
    ids=["nothing", "half", "another protocol", "no status", "headers", "chunks", "too long", "tls"],
)
def test_manager_that_answers_something_else(what: Answer) -> None:
    with scripted(what) as manager:
        assert refused(lambda: create(manager.url)).prov_errno == 2054
        assert refused(lambda: delete_multicast(manager.url, "t", 1)).prov_errno == 2052


@pytest.mark.parametrize("what", [silence, dripping])
def test_slow_manager_is_given_up_after_the_limit(what: Answer, impatient: None) -> None:
    """5 s for the whole exchange, not for a single read."""
    with scripted(what) as manager:
        found = refused(lambda: create(manager.url))
        assert (found.prov_errno, found.status) == (2054, 0)
        assert isinstance(found.__cause__, TimeoutError)
        assert refused(lambda: delete_multicast(manager.url, "t", 1)).prov_errno == 2052


def test_the_limit_is_five_seconds() -> None:
    assert LIMIT_S == 5.0
    assert client.REPEAT_S == 0.1


def test_manager_that_does_not_accept_is_given_up(impatient: None) -> None:
    """A listener whose queue is full."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        assert refused(lambda: create(f"http://127.0.0.1:{full.getsockname()[1]}/x")).prov_errno == 2054
        for one in waiting:
            one.close()


def test_name_that_nobody_answers_for_is_given_up(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    real = socket.getaddrinfo

    def slow(host: str, *more: Any, **keys: Any) -> Any:
        if keys.get("flags"):
            return real(host, *more, **keys)
        never.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert refused(lambda: create("http://fabric-manager.invalid/x")).prov_errno == 2054
    never.set()


def test_manager_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/fabric/collectives/multicast"
    found = refused(lambda: create(url))
    assert (found.prov_errno, found.status) == (2054, 0)
    assert url in str(found)
    assert refused(lambda: delete_multicast(url, "t", 1)).prov_errno == 2052


def test_answer_before_the_whole_request_is_read() -> None:
    """A manager that refuses a long request hangs up without having read it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)
                answer(400, {"message": "too long"})(peer)
                peer.shutdown(socket.SHUT_WR)
                silence(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        assert refused(lambda: create(url, macs=[1] * 300_000)).prov_errno == 2049
        thread.join(30)


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["url", "token", "job_id"])
def test_missing_setting_is_2052_and_named(missing: str) -> None:
    """Section 17: missing -> join error 2052."""
    given = {"url": "http://127.0.0.1:9/x", "token": "t", "job_id": "j", missing: ""}
    found = refused(lambda: create(**given))
    assert found.prov_errno == cxi.ERRNO_JOIN_CURL_FAILED == 2052
    names = {"url": "FABRIC_MGR_URL", "token": "MCAST_TOKEN", "job_id": "JOB_ID"}
    assert f"FI_CXI_COLL_{names[missing]}" in str(found)


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "host:80/x", "http://", "http://h:99999/", "http://h:x/", "http://[::1/", "http://h/\r\nX: y"],
)
def test_address_that_is_none_is_2052(url: str) -> None:
    assert refused(lambda: create(url)).prov_errno == 2052


@pytest.mark.parametrize("token", ["a\r\nX: y", "a\nb", "\x00", "Schlüssel"])
def test_token_that_no_header_can_have_is_2052(token: str) -> None:
    assert refused(lambda: create("http://127.0.0.1:9/x", token=token)).prov_errno == 2052


@pytest.mark.parametrize("macs", [[], [-1], [1 << 20], [5, 1 << 60]])
def test_members_that_are_no_addresses_are_2052(macs: list[int]) -> None:
    assert refused(lambda: create("http://127.0.0.1:9/x", macs=macs)).prov_errno == 2052


def test_error_pickles() -> None:
    found = pickle.loads(pickle.dumps(ManagerError("text", prov_errno=2049, status=507)))
    assert (found.prov_errno, found.status, found.message, type(found)) == (2049, 507, "text", ManagerError)


# ---- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.parametrize("cacert", ["no", None, ""])
def test_certificate_is_not_verified_by_default(secure: ssl.SSLContext, cacert: str | None) -> None:
    with scripted(answer(200, GOOD), context=secure) as manager:
        assert create(manager.url, cacert=cacert).mcast_id == 17


def test_certificate_of_the_given_authority_is_accepted(
    authority: trustme.CA, secure: ssl.SSLContext, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with scripted(answer(200, GOOD), answer(200), context=secure) as manager:
        assert create(manager.url, cacert=str(file)).mcast_id == 17
        delete_multicast(manager.url, "t", 17, str(file))


@pytest.mark.parametrize("where", ["yes", "file", "folder", "missing", "no certificate"])
def test_certificate_of_a_stranger_is_refused(secure: ssl.SSLContext, where: str, tmp_path: Path) -> None:
    """`yes`: the system's authorities; a path: only the authorities in it."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    text = tmp_path / "text"
    text.write_text("no certificate")
    paths = {"yes": "yes", "file": other, "folder": tmp_path, "missing": tmp_path / "none", "no certificate": text}
    with scripted(answer(200, GOOD), context=secure) as manager:
        assert refused(lambda: create(manager.url, cacert=str(paths[where]))).prov_errno == 2054
        assert refused(lambda: delete_multicast(manager.url, "t", 1, str(paths[where]))).prov_errno == 2052
    assert not [one for one in manager.requests if one]


def test_certificate_of_another_host_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("manager.example").configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with scripted(answer(200, GOOD), context=context) as manager:
        assert refused(lambda: create(manager.url, cacert=str(file))).prov_errno == 2054


def test_https_at_a_manager_without_it_is_2054(impatient: None) -> None:
    with scripted(answer(200, GOOD)) as manager:
        assert refused(lambda: create(manager.url.replace("http:", "https:"))).prov_errno == 2054


@pytest.mark.clause("cxi.coll.join-libcurl")
def test_missing_security_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library that speaks TLS is missing, the error says so."""
    monkeypatch.setitem(sys.modules, "ssl", None)
    found = refused(lambda: create("https://127.0.0.1:9/x"))
    assert "module ssl" in str(found)
    assert "OpenSSL" in str(found)
