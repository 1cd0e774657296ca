"""The policy helper: one for the programs of an environment; it takes back dead clients' resources, and ends alone."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support

from weft import cxi, fi
from weft.policyhost import answers, infos, records
from weft.policyhost.__main__ import Server

WAIT_S = 20 * patience.slowness()


def ask(client: answers.Client, /, **question: records.Value) -> records.Record:
    return records.unpack(client.answer(records.pack(question)))


def opened(client: answers.Client, provider: str, protocol: int | None = None) -> tuple[records.Record, records.Record]:
    """A domain, and the record of its Info: the first that is offered, or the first of a protocol."""
    offers = ask(client, ask="getinfo", provider=provider, version=fi.VERSION(2, 1))["offer"]
    found = [records.unpack(offer) for offer in offers if isinstance(offer, bytes)]
    info = fields(next(one for one in found if protocol is None or one.number("ep.protocol") == protocol))
    info["fabric.prov_name"] = provider.encode()
    return ask(client, ask="domain", info=info), records.unpack(records.pack(info))


class Helper:
    """A server in a thread."""

    def __init__(self, path: Path, idle_s: float) -> None:
        self.path = path
        self.served: list[bool] = []
        self.thread = threading.Thread(target=lambda: self.served.append(Server(path, idle_s).run()), daemon=True)
        self.thread.start()

    def connect(self) -> socket.socket:
        deadline = threading.Event()
        for _ in range(int(WAIT_S * 100)):
            client = socket.socket(socket.AF_UNIX)
            try:
                client.connect(str(self.path))
            except OSError:
                client.close()
                deadline.wait(0.01)
                continue
            client.settimeout(WAIT_S)
            return client
        raise TimeoutError("the helper does not listen")


def exchange(client: socket.socket, question: bytes) -> bytes:
    client.sendall(struct.pack("<I", len(question)) + question)
    head = client.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return b""
    return client.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)


def test_record_of_an_info_is_read_back() -> None:
    for info in fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft"))):
        back = infos.info_of(records.unpack(records.pack(infos.record_of(info))))
        for name, (part, field) in infos.NUMBERS.items():
            of, read = (getattr(one, part) if part else one for one in (info, back))
            assert int(getattr(of, field)) == int(getattr(read, field)), name
        assert back.domain_attr.name == info.domain_attr.name


def test_record_that_is_damaged_is_refused() -> None:
    whole = records.pack({"a": 1, "text": "abc", "list": [1, 2], "inner": {"x": 1}})
    read = 0
    for cut in range(len(whole)):
        try:
            records.unpack(whole[:cut])
            read += 1
        except fi.InvalidArgument:
            continue
    assert read == 5  # cut between two entries: a shorter record


@pytest.mark.parametrize("provider", ["cxi", "weft"])
def test_object_of_another_client_is_not_found(provider: str) -> None:
    first, second = answers.Client(), answers.Client()
    domain, info = opened(first, provider)
    assert domain.number("lease")
    assert ask(second, ask="cq", of=domain.number("lease")).number("errno") == int(fi.EOPBADSTATE)
    first.close()
    assert info.text("fabric.prov_name") == provider


def test_resources_of_a_client_that_ends_are_given_back() -> None:
    client = answers.Client()
    domain, info = opened(client, "cxi")
    lease = domain.number("lease")
    for _ in range(3):
        assert ask(client, ask="cq", of=lease).number("lease")
    assert ask(client, ask="endpoint", of=lease, info=fields(info)).number("lease")
    assert _in_use("eqs") >= 3
    held = [one for one, _ in client._leases.values()]
    client.close()
    assert _in_use("eqs") == 0
    assert all(one._closed for one in held)


def fields(info: records.Record) -> dict[str, records.Value]:
    """The record of an Info, as a client sends it."""
    return {name: value if len(value) > 1 else value[0] for name, value in info.items()}


def test_values_of_an_alias_are_its_own() -> None:
    client = answers.Client()
    domain, info = opened(client, "cxi")
    lease = domain.number("lease")
    ep = ask(client, ask="endpoint", of=lease, info=fields(info)).number("lease")
    cq = ask(client, ask="cq", of=lease).number("lease")
    av = ask(client, ask="av", of=lease).number("lease")
    assert not ask(client, ask="bind", of=ep, to=cq, flags=int(fi.TRANSMIT | fi.RECV)).number("errno")
    assert not ask(client, ask="bind", of=ep, to=av).number("errno")
    assert not ask(client, ask="enable", of=ep).number("errno")
    alias = ask(client, ask="alias", of=ep, flags=int(fi.TRANSMIT)).number("lease")

    def set_val(of: int, name: int, value: int) -> records.Record:
        return ask(client, ask="set_val", of=of, name=int(name) & (1 << 64) - 1, value=value)

    before = set_val(ep, cxi.OPT_CXI_SET_TCLASS, int(fi.TC_BEST_EFFORT))
    changed = set_val(alias, cxi.OPT_CXI_SET_TCLASS, int(fi.TC_DEDICATED_ACCESS))
    after = set_val(ep, cxi.OPT_CXI_SET_MSG_ORDER, int(fi.ORDER_SAS))
    assert before.number("lane.tclass") == after.number("lane.tclass") != changed.number("lane.tclass")
    ordered = set_val(alias, cxi.OPT_CXI_SET_MSG_ORDER, 0)
    assert (after.number("lane.msg_order"), ordered.number("lane.msg_order")) == (int(fi.ORDER_SAS), 0)
    client.close()


def test_time_of_retries_is_in_nanoseconds_for_the_library() -> None:
    client = answers.Client()
    domain, info = opened(client, "cxi", protocol=fi.PROTO_CXI_RNR)
    ep = ask(client, ask="endpoint", of=domain.number("lease"), info=fields(info)).number("lease")
    name = int(cxi.OPT_CXI_SET_RNR_MAX_RETRY_TIME) & (1 << 64) - 1
    assert ask(client, ask="set_val", of=ep, name=name, value=7).number("retry_ns") == 7000
    client.close()


def test_object_in_use_stays_the_clients() -> None:
    client = answers.Client()
    domain, _ = opened(client, "weft")
    lease = domain.number("lease")
    cq = ask(client, ask="cq", of=lease).number("lease")
    assert ask(client, ask="close", of=lease).number("errno") == int(fi.EBUSY)
    second = ask(client, ask="cq", of=lease).number("lease")
    assert second
    for one in (second, cq):
        assert not ask(client, ask="close", of=one).number("errno")
    assert not ask(client, ask="close", of=lease).number("errno")
    assert ask(client, ask="cq", of=lease).number("errno") == int(fi.EOPBADSTATE)


def test_nic_that_is_gone_is_told() -> None:
    client = answers.Client()
    command = int(cxi.OPT_CXI_NIC_REFRESH_ATTR) & (1 << 64) - 1
    found = ask(client, ask="nic_control", provider="cxi", name="cxi0", command=command)
    assert found.number("nic.prov.version") == 1
    gone = ask(client, ask="nic_control", provider="cxi", name="cxi7", command=command)
    assert gone.number("errno") == int(fi.ENODEV)
    assert "cxi has no NIC cxi7 any more" in (gone.text("text") or "")
    none = ask(client, ask="nic_control", provider="weft", name="cxi0", command=command)
    assert none.number("errno") == int(fi.ENODEV)


def _in_use(kind: str) -> int:
    from weft.providers.cxi import resources

    return sum(held.get(kind, 0) for held in resources.usage("cxi0").values())


def test_question_that_nobody_knows_is_refused() -> None:
    answer = ask(answers.Client(), ask="weather")
    assert answer.number("errno") == int(fi.ENOSYS)
    assert "weather" in (answer.text("text") or "")


def test_connection_that_a_process_gave_up_is_closed_before_its_next_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go_on = threading.Event(), threading.Event()
    close = answers.Client.close

    def slow(client: answers.Client) -> None:
        closing.set()
        assert go_on.wait(WAIT_S)
        close(client)

    monkeypatch.setattr(answers.Client, "close", slow)
    helper = Helper(tmp_path / "policy.sock", 0.2)
    question = records.pack({"ask": "weather"})
    with helper.connect() as first, helper.connect() as other:
        assert exchange(first, question)
        assert exchange(other, question)  # another connection of the process, served before the first is given up
        first.close()
        assert closing.wait(WAIT_S)
        assert exchange(other, question)
        with helper.connect() as second:
            second.settimeout(0.5)
            with pytest.raises(TimeoutError):
                exchange(second, question)
            go_on.set()
            second.settimeout(WAIT_S)
            head = second.recv(4, socket.MSG_WAITALL)
            assert records.unpack(second.recv(*struct.unpack("<I", head), socket.MSG_WAITALL)).number("errno")
    helper.thread.join(WAIT_S)
    assert not helper.thread.is_alive()


def test_helper_serves_clients_and_ends_when_there_are_none(tmp_path: Path) -> None:
    helper = Helper(tmp_path / "policy.sock", 0.2)
    question = records.pack({"ask": "getinfo", "provider": "weft", "version": fi.VERSION(2, 1)})
    with helper.connect() as one, helper.connect() as other:
        for client in (one, other):
            assert records.unpack(exchange(client, question))["offer"]
        assert helper.thread.is_alive()
    helper.thread.join(WAIT_S)
    assert helper.served == [True]
    assert not helper.path.exists()


def test_second_helper_of_a_socket_leaves_it_to_the_first(tmp_path: Path) -> None:
    helper = Helper(tmp_path / "policy.sock", 5 * patience.slowness())
    with helper.connect():
        assert not Server(helper.path).run()
        assert helper.path.exists()


def test_socket_is_its_users_alone(tmp_path: Path) -> None:
    helper = Helper(tmp_path / "policy.sock", 0.2)
    with helper.connect():
        assert stat.S_IMODE(helper.path.stat().st_mode) == 0o600


def test_client_that_sends_no_record_hears_so_and_one_too_long_is_dropped(tmp_path: Path) -> None:
    helper = Helper(tmp_path / "policy.sock", 0.2)
    with helper.connect() as client:
        assert records.unpack(exchange(client, b"nonsense")).number("errno") == int(fi.EINVAL)
        client.sendall(struct.pack("<I", 0xFFFFFFFF))
        assert client.recv(1) == b""


def test_programs_of_one_environment_share_a_helper(programs: Path, tmp_path: Path) -> None:
    program = support.compiled("info", programs)
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    env = support.environment("weft", XDG_RUNTIME_DIR=str(run))
    running = [subprocess.Popen([program, "weft", "own"], env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for one in running:
        out, _ = patience.communicate(one, support.PROGRAM_S)
        assert out.startswith("weft weft0")
    sockets = list((run / "weft").glob("policy-*.sock"))
    assert len(sockets) == 1
    support.run(program, "weft", "own", env=env | {"WEFT_TOP": "0"})
    assert len(list((run / "weft").glob("policy-*.sock"))) == 2


def test_ranks_of_a_job_share_a_helper(programs: Path, tmp_path: Path) -> None:
    program = support.compiled("info", programs)
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    env = support.environment("cxi", XDG_RUNTIME_DIR=str(run))
    command = [sys.executable, "-m", "weft", "launch", "-n", "4", "--", str(program), "cxi", "own"]
    done = patience.run(command, support.PROGRAM_S, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cxi cxi0") >= 4
    assert len(support.helpers(run)) == 1


@pytest.mark.parametrize("length", [107, 108, 109, 200])
def test_helper_is_found_in_a_folder_of_any_length(programs: Path, length: int) -> None:
    """The path of its socket: an address holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="weft-", dir="/tmp") as folder:
        name = "/weft/policy-0123456789abcdef.sock"
        run = Path(folder) / ("a" * (length - len(name) - len(folder) - 1))
        run.mkdir(mode=0o700)
        env = support.environment("weft", XDG_RUNTIME_DIR=str(run))
        for _ in range(2):
            support.run(support.compiled("info", programs), "weft", "own", env=env)
        (found,) = (run / "weft").glob("policy-*.sock")
        assert len(str(found)) == length
        (helper,) = support.helpers(run)
        os.kill(helper, signal.SIGTERM)


def test_folder_that_others_may_write_to_is_refused(programs: Path, tmp_path: Path) -> None:
    program = support.compiled("info", programs)
    (tmp_path / "weft").mkdir()
    (tmp_path / "weft").chmod(0o777)
    env = support.environment("weft", XDG_RUNTIME_DIR=str(tmp_path), FI_LOG_LEVEL="warn")
    done = support.run(program, "weft", "own", env=env, status=1)
    assert "not a folder of this user alone" in done.stderr


def test_device_of_the_registry_is_the_one_of_c_programs(programs: Path) -> None:
    names = {
        info.domain_attr.name
        for info in fi.getinfo(
            hints=fi.Info(
                fabric_attr=fi.FabricAttr(prov_name="cxi"),
                domain_attr=fi.DomainAttr(mr_mode=fi.MR_ENDPOINT | fi.MR_ALLOCATED | fi.MR_PROV_KEY),
            )
        )
    }
    program = support.compiled("info", programs)
    out = support.run(program, "cxi", "own", env=support.environment("cxi")).stdout
    assert {line.split()[1] for line in out.splitlines()} == names
