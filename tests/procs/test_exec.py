"""The owner of a region runs another program, or dies while its descriptors live on: no peer writes to the next one.

Peers copy to foreign memory by process id, and exec() keeps that. The hang-up of a connection tells them mostly in
time; where the program lets descriptors be inherited, or a bare fork holds them, it never comes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.procs import peer
from tests.procs.children import ROOT, Child, environment
from tests.procs.peer import World

from weft import fi

pytestmark = pytest.mark.procs

NBYTES = 1 << 20
LOST = {fi.ECONNRESET, fi.ECONNREFUSED}

# Memory at an address of both programs, the old and the new. It starts full of ones.
MAPPED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
AT, NBYTES = 0x500000000000, 1 << 20
assert libc.mmap(AT, NBYTES, 3, 0x32, -1, 0) == AT
ctypes.memset(AT, 1, NBYTES)
"""
NEXT = (
    MAPPED
    + """
print("next", flush=True)
sys.stdin.readline()
print(sum(b != 1 for b in ctypes.string_at(AT, NBYTES)), flush=True)
"""
)
OWNER = (
    MAPPED
    + """
import signal
import numpy as np
from tests.procs.peer import Side
side = Side()
side.region(np.ctypeslib.as_array((ctypes.c_ubyte * NBYTES).from_address(AT)), 5)
print(side.name, flush=True)
for line in sys.stdin:
    what = line.split()
    if what[0] == "inheritable":
        for fd in os.listdir("/proc/self/fd"):
            try:
                os.set_inheritable(int(fd), True)
            except OSError:
                pass  # the directory's own
        print("ok", flush=True)
    elif what[0] == "bare":  # none of our handlers around fork() runs
        child = libc.syscall(int(what[1]), signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            while True:
                signal.pause()
        print(child, flush=True)
    elif what[0] == "exec":
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
)


class Owner:
    """A program that shares foreign memory, and becomes another."""

    def __init__(self, **settings: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, NEXT],
            cwd=ROOT,
            env=environment(**settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.bare = 0
        self.name = self.heard()

    def heard(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the owner ended with {self.process.wait()}"
        return line.strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def fork_bare(self) -> None:
        clone = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
        if clone is None:
            pytest.skip("the number of the system call is known for two processors")
        self.tell(f"bare {clone}")
        self.bare = int(self.heard())

    def close(self) -> None:
        for pid in (self.process.pid, self.bare):
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def owners() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(**settings: str) -> Owner:
            owner = Owner(**settings)
            stack.callback(owner.close)
            return owner

        yield make


def reach(world: World, name: str) -> int:
    peer.open_side(world)
    world.more["to"] = world.side.av.insert(name)
    return write_once(world)


def write_once(world: World, byte: bytes = b"\1") -> int:
    world.side.ep.write(byte * 4096, dest_addr=world.more["to"], addr=0, key=5)
    return int(getattr(world.side.outcome(), "err", 0))


def write_until_lost(world: World) -> int:
    """Write bytes that change every byte, until a write fails."""
    buffer = bytes([2]) * NBYTES
    while True:
        world.side.ep.write(buffer, dest_addr=world.more["to"], addr=0, key=5)
        err = int(getattr(world.side.outcome(), "err", 0))
        if err != 0:
            return err


SETTINGS = {
    "foreign": {"WEFT_ENGINE": "thread"},
    "foreign-manual": {"WEFT_ENGINE": "manual"},
    "ring": {"WEFT_ENGINE": "thread", "WEFT_CMA": "0"},
    "ring-manual": {"WEFT_ENGINE": "manual", "WEFT_CMA": "0"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("how", ["plain", "inheritable", "bare-child"])
def test_exec_of_the_owner_ends_its_peers_writes(how: str, settings: dict[str, str], owners: Any) -> None:
    """The writes under way and later writes end with an error; the next program's memory is its own."""
    owner = owners(WEFT_ENGINE="thread")
    with Child(**settings) as initiator:
        assert initiator.call(reach, owner.name) == 0
        if how == "inheritable":
            owner.tell("inheritable")
            assert owner.heard() == "ok"
        elif how == "bare-child":
            owner.fork_bare()
        writing = initiator.start(write_until_lost)
        owner.tell("exec")
        assert owner.heard() == "next"
        assert writing.result() in LOST
        owner.tell("look")
        assert owner.heard() == "0"


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_owner_death_is_noticed_if_a_child_has_its_descriptors(settings: dict[str, str], owners: Any) -> None:
    owner = owners(WEFT_ENGINE="thread")
    with Child(**settings) as initiator:
        assert initiator.call(reach, owner.name) == 0
        owner.fork_bare()
        owner.process.kill()
        owner.process.wait()
        assert initiator.call(write_once) in LOST


SPAWN = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
wanted = (ctypes.c_int * 1)(int(sys.argv[1]))
names = "flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup"
class Arguments(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in names.split()]
arguments = Arguments(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
pid = libc.syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2]])
if pid < 0:
    print("refused", flush=True)
    raise SystemExit
os.waitpid(pid, 0)
"""


def be_idle(world: World) -> None:
    world.idle = True


def test_process_that_took_a_dead_owners_id_is_not_written(owners: Any) -> None:
    """The initiator has looked at nothing since the owner died: the copy itself must notice."""
    owner = owners(WEFT_ENGINE="thread")
    with Child(WEFT_ENGINE="manual") as initiator:
        assert initiator.call(reach, owner.name) == 0
        initiator.call(be_idle)
        owner.fork_bare()  # no hang-up
        owner.process.kill()
        owner.process.wait()
        with subprocess.Popen(
            [sys.executable, "-c", SPAWN, str(owner.process.pid), NEXT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as taker:
            assert taker.stdin is not None
            assert taker.stdout is not None
            line = taker.stdout.readline().strip()
            if line == "refused":
                pytest.skip("this user may not choose a process id")
            assert line == "next"
            assert initiator.call(write_once, b"\2") in LOST
            taker.stdin.write("look\n")
            taker.stdin.flush()
            assert taker.stdout.readline().strip() == "0"
