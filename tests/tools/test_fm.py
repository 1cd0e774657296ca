"""`weft fm`: the service as a process, and questions to it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from tests import patience
from tests.patience import Patience
from tests.tools.conftest import Command

from weft.fm import client, create_multicast, delete_multicast
from weft.fm.store import Store
from weft.providers.cxi import device

pytestmark = pytest.mark.procs


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host of its own, without anybody's settings."""
    for name in list(os.environ):
        if name.startswith(("FI_CXI_", "SLINGSHOT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    monkeypatch.setattr(client, "LIMIT_S", 60.0)
    return tmp_path / "cxi"


class Served:
    """A running `weft fm serve`: its first line, its address, its process."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft.tools.cli", "fm", "serve", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        watchdog = threading.Timer(Patience(90).left(), self.process.kill)
        watchdog.start()
        lines = [self.process.stdout.readline() for _ in range(5)]
        watchdog.cancel()
        self.said = "".join(lines)
        found = re.search(r"(https?://\S+)/fabric/collectives/multicast", self.said)
        assert found, self.said + self.end()
        self.address = found[1]
        self.url = found[0]

    def end(self, with_signal: int = signal.SIGTERM) -> str:
        """End it; its stderr."""
        self.process.send_signal(with_signal)
        try:
            _, err = patience.communicate(self.process, 60)
        finally:
            self.process.kill()
        return err


@pytest.fixture
def serve() -> Iterator[type[Served]]:
    made: list[Served] = []

    class Kept(Served):
        def __init__(self, *options: str) -> None:
            super().__init__(*options)
            made.append(self)

    yield Kept
    for one in made:
        if one.process.returncode is None:
            one.end(signal.SIGKILL)


def test_served_manager_makes_groups_and_tells_of_them(serve: type[Served], folder: Path, command: Command) -> None:
    manager = serve()
    token = (folder / "fm.token").read_text().strip()
    assert token not in manager.said  # stdout is no terminal
    assert f"token of the administrator: in {folder / 'fm.token'};" in manager.said
    assert stat.S_IMODE((folder / "fm.token").stat().st_mode) == 0o600
    create_multicast(manager.url, token, [0x840, 0x841], 7, 32000, "job 1", "3")
    shown = command("fm", "status", "--url", manager.address)
    assert shown.code == 0
    for text in ("1 of 8192 addresses in use", "02:00:00:00:08:40", "job 1", "cxi0", socket.gethostname(), "1/1"):
        assert text in shown.out, text
    found = json.loads(command("fm", "status", "--url", manager.url, "--json").out)
    assert [one["jobID"] for one in found["jobs"]] == ["job 1"]
    assert found["host"]["devices"][0]["name"] == "cxi0"
    assert command("fm", "release", "job 1", "--url", manager.address).out == "released: 0\n"
    again = command("fm", "release", "job 1", "--url", manager.address)
    assert (again.code, "there is no job job 1" in again.err) == (1, True)
    assert manager.end(signal.SIGINT) == ""


def test_manager_is_found_by_the_variables_of_a_join(
    serve: type[Served], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = serve()
    monkeypatch.setenv("FI_CXI_COLL_FABRIC_MGR_URL", manager.url)
    assert "0 of 8192" in command("fm", "status").out


def test_limits_are_options(serve: type[Served], folder: Path) -> None:
    manager = serve("--addresses", "3", "--addresses-per-job", "2", "--groups-per-root", "2", "--known-nics", "--bare")
    with Store(folder / "fm.db") as store:
        assert store.nics() == []  # --bare
    token = (folder / "fm.token").read_text().strip()
    with pytest.raises(ConnectionRefusedError, match="registry of NICs"):
        create_multicast(manager.url, token, [1], 7, 32000, "j")


def test_restarted_manager_goes_on(serve: type[Served], folder: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# of the administrators\nfirst\n\nsecond\n")
    options = ("--db", str(tmp_path / "mine.db"), "--token-file", str(tokens))
    manager = serve(*options)
    made = create_multicast(manager.url, "second", [1], 7, 32000, "j")
    manager.process.kill()
    manager.process.wait()
    again = serve(*options)
    delete_multicast(again.url, "first", made.mcast_id)
    assert not (folder / "fm.token").exists()


def test_devices_of_the_host_are_registered_and_followed(serve: type[Served], folder: Path) -> None:
    device.add("cxi1")
    manager = serve()
    assert manager.process.poll() is None
    patience = Patience(60)
    with Store(folder / "fm.db", wait_s=30) as store:
        assert [(one.device, one.up) for one in store.nics()] == [("cxi0", True), ("cxi1", True)]
        device.set_up("cxi0", False)
        device.remove("cxi1")
        pause = threading.Event()
        while [(one.device, one.up) for one in store.nics()] != [("cxi0", False)]:
            assert not patience.over
            pause.wait(0.05)


def test_manager_with_a_certificate(serve: type[Served], folder: Path, tmp_path: Path, command: Command,
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    manager = serve("--cert", str(tmp_path / "cert.pem"), "--key", str(tmp_path / "key.pem"))
    assert manager.address.startswith("https://")
    monkeypatch.setenv("FI_CXI_COLL_FABRIC_MGR_CACERT", str(tmp_path / "ca.pem"))
    assert command("fm", "status", "--url", manager.address).code == 0
    monkeypatch.setenv("FI_CXI_COLL_FABRIC_MGR_CACERT", "yes")
    refused = command("fm", "status", "--url", manager.address)
    assert (refused.code, "CERTIFICATE_VERIFY_FAILED" in refused.err) == (1, True)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_status_without_a_manager_says_so(command: Command, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = command("fm", "status", "--url", f"http://127.0.0.1:{port}")
    said = f"fm.token cannot be read: {os.strerror(errno.ENOENT)}\n  try: weft fm serve"
    assert (first.code, said in first.err) == (2, True)
    (folder / "fm.token").write_text("token\n")
    found = command("fm", "status", "--url", f"http://127.0.0.1:{port}")
    assert found.code == 1
    assert f"http://127.0.0.1:{port}/live" in found.err
    assert "try:" in found.err


def test_wrong_token_is_told(serve: type[Served], command: Command, tmp_path: Path) -> None:
    manager = serve()
    (tmp_path / "wrong").write_text("guess\n")
    found = command("fm", "status", "--url", manager.address, "--token-file", str(tmp_path / "wrong"))
    assert (found.code, "401" in found.err) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cert", "x.pem"], "--cert and --key go together"),
        (["--key", "x.pem"], "--cert and --key go together"),
        (["--cert", "none.pem", "--key", "none.pem"], "--cert, --key"),
        (["--addresses", "8193"], "--addresses"),
        (["--groups-per-root", "0"], "--groups-per-root"),
        (["--port", "65536"], "--port"),
        (["--host", "256.0.0.1"], "cannot be listened on"),
        (["--db", "nowhere/at/all.db"], "--db"),
        (["--token-file", "nowhere"], "--token-file"),
        (["--token-file", "empty"], "tokens of printable ASCII"),
        (["--db", "text"], "cannot be used as a database"),
    ],
)
def test_option_that_makes_no_sense_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("# none\n")
    (tmp_path / "text").write_text("a text, and no database" * 100)
    ended = command("fm", "serve", *(["--port", "0"] if "--port" not in options else []), *options)
    assert ended.code == 2
    assert said in ended.err + ended.out


def test_port_that_is_taken_is_refused(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = command("fm", "serve", "--port", str(taken.getsockname()[1]))
    assert (ended.code, "try: --port 0" in ended.err) == (2, True)


def test_missing_packages_are_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [one for one in sys.modules if one in ("weft.fm.server", "weft.fm.models")]:
        monkeypatch.delitem(sys.modules, name)
    with contextlib.suppress(AttributeError):
        monkeypatch.delattr("weft.fm.server")
    ended = command("fm", "serve", "--port", "0")
    assert (ended.code, "pip install 'weft-fabric[fm]'" in ended.err) == (2, True)


def test_help_names_every_command(command: Command) -> None:
    shown = command("fm", "--help").out
    for name in ("serve", "status", "release"):
        assert name in shown
