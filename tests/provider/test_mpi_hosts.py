"""MPI jobs over two hosts (network namespaces): each rank is started by `weft run --hosts`, as the page says."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.procs.hosts import PATIENT, Wire
from tests.provider import clients, support
from tests.provider.test_mpi import ALL, WITHOUT_WINDOWS

pytest.importorskip("nacl")
pytestmark = pytest.mark.procs

SECRET = "one secret of two hosts, long enough"
HOSTS = f"{Wire.ip['a']},{Wire.ip['b']}"
JOB_S = 90.0
_numbers = itertools.count()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as made:
        yield made


class Job:
    """mpiexec on host a, and ranks on both hosts.

    Args:
        mpi: The library whose mpiexec it is.
        hosts: The value of --hosts.
        each: Ranks of a host.
        more: Variables of the ranks of each host.
        kills: The launcher kills the other ranks when one has been killed; otherwise they end by themselves.
    """

    def __init__(
        self,
        wire: Wire,
        folder: Path,
        mpi: clients.Mpi,
        command: list[str],
        provider: str,
        hosts: str = HOSTS,
        each: int = 2,
        more: Mapping[str, Mapping[str, str]] | None = None,
        kills: bool = True,
    ) -> None:
        self.folder, self.program = folder, command[0]
        env = {name: value for name, value in clients.own_environment().items() if not name.startswith("WEFT_")}
        env |= {"LD_LIBRARY_PATH": str(mpi.prefix / "lib"), **mpi.more}
        # A name of its own for each host: Open MPI takes processes of one name for neighbours.
        named = self._script("named", 'hostname host-a\nexec "$@"\n')
        words = [*wire.inside("a"), "unshare", "--uts", str(named), str(mpi.prefix / mpi.launcher[0])]
        reach, ranks = str(self._reach(wire)), ["-n", str(2 * each)]
        if mpi is clients.OPEN_MPI:
            words += ["--prtemca", "plm_ssh_agent", reach, "--prtemca", "prte_if_include", "eth0"]
            words += ["--host", ",".join(f"{ip}:{each}" for ip in wire.ip.values()), *ranks]
        else:
            words += ["-launcher", "ssh", "-launcher-exec", reach, "-localhost", wire.ip["a"], "-iface", "eth0"]
            words += ["-hosts", HOSTS, "-ppn", str(each), *ranks, *([] if kills else ["-disable-auto-cleanup"])]
        words += [str(self._here(more or {})), sys.executable, "-m", "weft", "run"]
        words += ["-p", provider, "--hosts", hosts, "--", *command]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process: subprocess.Popen[str] = subprocess.Popen(words, env=env, text=True, **pipes)

    def _reach(self, wire: Wire) -> Path:
        """In ssh's place: a command on a host. Intel's mpiexec calls it for its own host too."""
        text = f'while [ "$1" != {wire.ip["a"]} ] && [ "$1" != {wire.ip["b"]} ]; do shift; done; to=$1; shift\n'
        text += f'[ "$to" = {wire.ip["b"]} ] || exec sh -c "$*"\n'
        inside = shlex.join([*wire.inside("b"), "unshare", "--uts"])
        text += f'export WHICH_HOST=b; exec {inside} sh -c "hostname host-b; $*"\n'
        return self._script("reach", text)

    def _here(self, more: Mapping[str, Mapping[str, str]]) -> Path:
        """A command with the variables of its host: mpiexec gives its own to all."""
        text = ""
        for host in "ab":
            run = self.folder / host
            run.mkdir(mode=0o700, exist_ok=True)
            of_host = {
                "XDG_RUNTIME_DIR": str(run),
                "WEFT_SECRET": SECRET,
                **PATIENT,
                **more.get(host, {}),
            }
            exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in of_host.items())
            text += f'if [ "${{WHICH_HOST-a}}" = {host} ]; then\n{exports}fi\n'
        return self._script("here", text + 'exec "$@"\n')

    def _script(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}-{next(_numbers)}"
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
        return path

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def until(self, line: str) -> None:
        """Read up to this line."""
        said = ""
        while (one := self.line()) != line:
            said += one
            assert one, said

    def ended(self) -> tuple[int, str]:
        """The exit status, and what the job has printed since."""
        out, _ = patience.communicate(self.process, JOB_S)
        return self.process.returncode, out

    def ranks(self) -> dict[int, int]:
        """The processes of the program: rank -> process."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "environ").read_bytes().split(b"\0")
                program = (path / "cmdline").read_bytes().split(b"\0")[0]
            except OSError:  # the process has ended
                continue
            of = dict(word.split(b"=", 1) for word in words if b"=" in word)
            if program == self.program.encode() and of.get(b"XDG_RUNTIME_DIR", b"").startswith(bytes(self.folder)):
                found[int(of.get(b"PMI_RANK") or of[b"OMPI_COMM_WORLD_RANK"])] = int(path.name)
        return found

    def close(self) -> None:
        """End what is left of the job: ranks that spin would starve all other tests."""
        for one in self.ranks().values():
            os.kill(one, signal.SIGKILL)
        self.process.kill()
        patience.communicate(self.process, JOB_S)


Start = Callable[..., Job]


@pytest.fixture
def start(wire: Wire, programs: Path, tmp_path: Path) -> Iterator[Start]:
    support.provider_files()
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here (package util-linux): hosts cannot have names of their own")
    made: list[Job] = []

    def begin(provider: str, *arguments: str, mpi: clients.Mpi = clients.MPICH, **more: Any) -> Job:
        program = str(clients.compiled(mpi, programs))
        made.append(Job(wire, tmp_path, mpi, [program, *arguments], provider, **more))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def checked(job: Job, parts: list[str]) -> None:
    """The job ends with these parts, each checked, and without a connection that was lost or refused (WEFT_TCP_LOG)."""
    status, said = job.ended()
    assert [line for line in said.splitlines() if line in ALL or "wrong" in line] == parts, said
    assert status == 0
    assert "weft: " not in said, said


def test_mpich_moves_messages_and_windows_between_hosts(start: Start, provider: str) -> None:
    checked(start(provider), ALL)


def test_open_mpi_moves_messages_and_windows_between_hosts(start: Start, provider: str) -> None:
    """Two ranks of each host poll without a pause, bound to one processor each: none of the four starves."""
    checked(start(provider, mpi=clients.OPEN_MPI), ALL)


def test_intel_mpi_moves_messages_and_windows_between_hosts(start: Start) -> None:
    checked(start("weft", mpi=clients.INTEL_MPI), ALL)


def test_intel_mpi_moves_messages_over_cxi_between_hosts(start: Start) -> None:
    """Without windows, which it has not over cxi on one host either."""
    checked(start("cxi", "messages", mpi=clients.INTEL_MPI), WITHOUT_WINDOWS)


def test_kill_of_a_rank_ends_the_job_with_the_reason(start: Start, provider: str) -> None:
    job = start(provider, "forever", kills=False)  # the reason is that of the ranks, which its signal would cut off
    job.until("messages\n")
    ranks = job.ranks()
    os.kill(ranks[3], signal.SIGKILL)
    status, said = job.ended()
    assert status != 0
    assert re.search(rf"the connection to {Wire.ip['b']}:\d+ is lost: ", said), said
    patience.wait_for_end(*ranks.values())
    again, said = start(provider, "messages").ended()
    assert again == 0, said


def refused(job: Job) -> str:
    """What a job says that ends with an error."""
    status, said = job.ended()
    assert status != 0, said
    patience.wait_for_end(*job.ranks().values())  # mpiexec kills them, and does not wait for their end
    return said


def test_host_without_a_secret_refuses_its_ranks(start: Start, provider: str) -> None:
    said = refused(start(provider, more={"b": {"WEFT_SECRET": ""}}))
    assert "--hosts: two hosts need a common secret" in said, said


def test_host_with_another_secret_ends_the_job_with_the_reason(start: Start, provider: str) -> None:
    said = refused(start(provider, more={"b": {"WEFT_SECRET": "another secret, which is long enough"}}))
    assert "the secrets differ" in said, said


def test_host_that_is_not_listed_refuses_its_ranks(start: Start, provider: str) -> None:
    said = refused(start(provider, hosts=f"{Wire.ip['a']},10.77.0.9"))
    assert "this host is none of them" in said, said


def test_job_beside_another_one_has_its_own_places(start: Start, provider: str) -> None:
    first = start(provider, "forever")
    first.until("messages\n")
    status, said = start(provider, "messages").ended()
    assert status == 0, said
    assert first.process.poll() is None
    os.kill(first.ranks()[1], signal.SIGKILL)
    refused(first)
