"""C programs of two users, and of a container without /proc: what they reach, and what they hear."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.provider import support
from tests.provider.far import Far

import weft

STRANGER = 65533
PATHS = {"PYTHONPATH": f"{Path(weft.__file__).parents[1]}:{sysconfig.get_path('purelib')}"}
AS_STRANGER: dict[str, Any] = {"user": STRANGER, "group": STRANGER, "extra_groups": []}


class Stranger:
    """Another user: a folder, and an interpreter that it may start."""

    def __init__(self, home: Path, python: str) -> None:
        self.home, self.python = home, python

    def environment(self, provider: str, run: Path | None = None) -> dict[str, str]:
        """As `environment`, in the user's own folder or in another one."""
        return environment(provider, run or self.home) | PATHS | {"WEFT_PYTHON": self.python}

    def run(self, *command: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
        return patience.run([*map(str, command)], support.PROGRAM_S, **AS_STRANGER, **more)


def _stranger(home: Path) -> Stranger:
    """The interpreter of these tests may be in a folder of this user's: then the system's of the same version."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        stranger = Stranger(home, python)
        try:
            done = stranger.run(python, "-c", "import weft.fi", cwd="/", env=os.environ | PATHS)
        except OSError:
            continue
        if done.returncode == 0:
            return stranger
    pytest.skip("no Python here that another user may run with Weft")


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Not below pytest's folder, which each session of pytest closes to other users as it begins."""
    with _open_folder() as folder:
        yield folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with _open_folder() as folder:
        yield folder


@contextlib.contextmanager
def _open_folder() -> Iterator[Path]:
    """A folder that other users may pass."""
    with tempfile.TemporaryDirectory(prefix="weft-users-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    """Another user, who may start the test's programs."""
    if os.geteuid() != 0:
        pytest.skip("only root may be another user")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, STRANGER, STRANGER)
    for path in tmp_path.parents:
        if not path.stat().st_mode & 0o001:
            path.chmod(0o711)
    return _stranger(home)


def environment(provider: str, run: Path) -> dict[str, str]:
    """As a user's own: with policy helpers and CXI devices in a folder of the user."""
    return support.environment(
        provider, XDG_RUNTIME_DIR=str(run), WEFT_CXI_REGISTRY=str(run / "registry"), FI_LOG_LEVEL="warn"
    )


# Each user has endpoints of its own: ECONNREFUSED; on cxi EIO, as for an address where nothing listens.
UNREACHABLE = {"weft": "error 111", "cxi": "error 5"}


def test_program_of_another_user_does_not_reach_a_programs_memory(
    programs: Path, tmp_path: Path, stranger: Stranger, provider: str
) -> None:
    """Not by messages, and not by writes: the first one ends in an error."""
    program = str(support.compiled("far", programs))
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    owner = Far([program, provider, "1", "ends"], environment(provider, run), tmp_path / "owner")
    other = Far([program, provider, "0", "ends"], stranger.environment(provider), tmp_path / "stranger", **AS_STRANGER)
    try:
        address = owner.line()
        assert address.startswith("me "), owner.said()
        assert other.line().startswith("me "), other.said()
        other.tell(address[3:])
        out = other.ended()
        assert UNREACHABLE[provider] in out, out + other.said()
        assert "no endpoint of this user is open at that address" in other.said()
        assert owner.process.poll() is None
    finally:
        owner.close()
        other.close()


def test_helper_of_another_user_is_not_used(programs: Path, tmp_path: Path, stranger: Stranger) -> None:
    """A folder of another user is refused, whoever may write there."""
    run = tmp_path / "run"
    run.mkdir(mode=0o777)
    run.chmod(0o777)
    (run / "weft").mkdir(mode=0o700)
    done = stranger.run(support.compiled("info", programs), "weft", "own", env=stranger.environment("weft", run))
    assert done.returncode == 1
    assert f"{run}/weft is not a folder of this user alone" in done.stderr
    assert not list((run / "weft").iterdir())


LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setgroups([]); os.setgid({user}); os.setuid({user})
listener.listen()
print("listens", flush=True)
listener.accept()
"""


def test_socket_of_another_user_is_not_asked(programs: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The name of a socket depends on the environment alone: here another user listens at it."""
    if os.geteuid() != 0:
        pytest.skip("only root may be another user")
    program = support.compiled("info", programs)
    short = tempfile.TemporaryDirectory(prefix="weft-", dir="/tmp")  # the listener's path is at most 107 bytes
    request.addfinalizer(short.cleanup)
    runs = [tmp_path / "run", Path(short.name)]
    for run in runs:
        (run / "weft").mkdir(mode=0o700, parents=True)
    envs = [environment("weft", tmp_path) | {"XDG_RUNTIME_DIR": str(run)} for run in runs]
    support.run(program, "weft", "own", env=envs[0])
    (name,) = (path.name for path in (runs[0] / "weft").glob("policy-*.sock"))
    command = [sys.executable, "-c", LISTENER.format(user=STRANGER), str(runs[1] / "weft" / name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listens\n"
        done = support.run(program, "weft", "own", env=envs[1], status=1)
        listener.kill()
    assert f"{name} is the socket of another user, {STRANGER}" in done.stderr


SERVER = """
import sys
from pathlib import Path
from weft.policyhost.__main__ import Server
Server(Path(sys.argv[1]), idle_s=60).run()
"""


ASKS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.sendall(bytes(4))
    print(len(client.recv(4)))
"""


def test_helper_answers_its_own_user_alone(stranger: Stranger) -> None:
    """Root may connect to any socket: the helper looks who asks."""
    path = stranger.home / "policy.sock"
    question = b"\0" * 4
    command = [stranger.python, "-c", SERVER, str(path)]
    server = subprocess.Popen(command, cwd="/", env=os.environ | PATHS, **AS_STRANGER)
    try:
        watchdog = patience.Patience(support.PROGRAM_S)
        while not path.exists():
            assert not watchdog.over
        with socket.socket(socket.AF_UNIX) as mine:
            mine.settimeout(watchdog.left())
            mine.connect(str(path))
            mine.sendall(question)
            with contextlib.suppress(ConnectionResetError):  # the question is unread
                assert mine.recv(4) == b""
        done = stranger.run(stranger.python, "-c", ASKS, path, cwd="/")
        assert done.stdout == "4\n", done.stderr
    finally:
        server.kill()
        server.wait()


# ---- a container without /proc ---------------------------------------------------------------------------------------

WITHOUT_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]


@pytest.fixture
def run() -> Iterator[Path]:
    """A folder with a short path: a socket's address holds a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="weft-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def walls() -> list[str]:
    """A command that runs a program in a container without /proc."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here (package util-linux)")
    if patience.run([*WITHOUT_PROC, "true"], support.PROGRAM_S).returncode:
        pytest.skip("the kernel permits no mount here")
    return WITHOUT_PROC


@pytest.mark.parametrize("end", ["ends", "killed"])
def test_processes_of_a_container_without_proc_exchange_messages(
    programs: Path, run: Path, provider: str, walls: list[str], end: str
) -> None:
    program = str(support.compiled("peer", programs))
    done = support.run(walls[0], *walls[1:], program, provider, end, env=environment(provider, run))
    last = "the peer ended with 0" if end == "ends" else "a send to the dead: an error"
    assert done.stdout == f"200 messages each way\n{last}\nclosed\n", done.stderr


@pytest.mark.parametrize("name", ["rma", "atomic", "tagged"])
def test_calls_of_a_container_without_proc_print_what_they_print_elsewhere(
    programs: Path, run: Path, provider: str, walls: list[str], name: str
) -> None:
    program = str(support.compiled(name, programs))
    env = environment(provider, run)
    inside = support.run(walls[0], *walls[1:], program, provider, env=env)
    assert inside.stdout == support.run(program, provider, env=env).stdout
    assert inside.stdout.endswith("closed\n")


def test_process_without_proc_keeps_what_it_has_of_a_service(programs: Path, run: Path, walls: list[str]) -> None:
    """A service of four queues: two programs at once do not fit, and the second takes nothing from the first."""
    env = environment("cxi", run)
    env |= support.of_service(env, eqs=4)
    program = str(support.compiled("far", programs))
    first = Far([*walls, program, "cxi", "1", "ends"], env, run / "first")
    try:
        assert first.line().startswith("me "), first.said()
        done = support.run(walls[0], *walls[1:], program, "cxi", "1", "ends", env=env, status=1)
        assert "No space left on device" in done.stdout, done.stdout + done.stderr
        assert "the service's limit is 4, 4 are in use" in done.stderr
    finally:
        first.close()
    done = support.run(program, "cxi", "1", "ends", env=env, status=2)  # it reads no address, and ends
    assert done.stdout.startswith("me "), done.stdout + done.stderr


def test_socket_that_no_address_reaches_without_proc_is_told(programs: Path, tmp_path: Path, walls: list[str]) -> None:
    folder = tmp_path / ("a" * 100)
    folder.mkdir(mode=0o700)
    program = str(support.compiled("info", programs))
    done = support.run(walls[0], *walls[1:], program, "weft", "own", env=environment("weft", folder), status=1)
    assert "there is no /proc here by which longer paths are reached" in done.stderr
    assert "try: a shorter XDG_RUNTIME_DIR" in done.stderr
