"""Two processes for measuring: what each of them opens, and how the first one starts, asks and ends the second.

    Side                    both processes: domain, endpoint, queue, memory of both kinds
    Target                  the first process: the second one, as an object (_server.RemoteTarget: one of a server's)
    serve(), main()         the second process: does what it is asked, in lines of JSON on stdin and stdout

The target's memory is worked on while it sleeps in readline: it runs no Weft call of its own, its engine thread serves
what cannot be done by load and store. It ends when its stdin does, so it never outlives the first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from .. import _nic, fi
from ._socket import Partner

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DEADLINE_S", "LINE_BYTES", "ServedTarget", "Side", "Target", "TargetError"]

DEADLINE_S = 20.0
"""For anything that takes milliseconds when all is well."""

LINE_BYTES = 4096  # the first bytes of the scratch memory: the word that both processes play ping-pong with
_POLLS = 256  # of an empty queue before the clock is read
_LOOKS = 32  # at a message, and at the queue that it comes through, before the deadline is looked at
_LOOK_S = 0.002  # for a word in memory, before the NIC and the deadline are looked at

KINDS = {"direct": 1, "foreign": 2}
"""Kinds of memory, and the keys that they are registered with where the application chooses keys."""


# Registration modes that this file honours; the provider asks for none of them unless WEFT_MR_MODE does.
MODES = fi.MR_LOCAL | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_ENDPOINT | fi.MR_RMA_EVENT


class TargetError(RuntimeError):
    """The second process died, or did not answer in time. The message has what it wrote to stderr."""


@dataclass(frozen=True)
class Region:
    """A peer's memory: all that it takes to reach it."""

    key: int
    base: int  # what offset 0 is called: 0, or the virtual address under MR_VIRT_ADDR
    address: int
    nbytes: int
    place: tuple[str, int, int] | None  # (device, inode, offset) of the memfd that it lies in


class Side:
    """One process's end: a domain with an endpoint, and `nbytes` of memory of each kind, registered for everything.

    memory   {"direct": of Domain.alloc, "foreign": NumPy's own}
    """

    def __init__(self, nbytes: int) -> None:
        import numpy

        with contextlib.ExitStack() as stack:
            hints = fi.Info(caps=fi.RMA | fi.ATOMIC, domain_attr=fi.DomainAttr(mr_mode=MODES))
            hints.addr_format = fi.ADDR_STR  # the two processes tell each other their names as text
            info = fi.getinfo(hints=hints)[0]
            self.fabric = stack.enter_context(fi.Fabric(info.fabric_attr))
            self.domain = stack.enter_context(self.fabric.domain(info))
            self.cq = stack.enter_context(self.domain.cq_open(format=fi.CQ_FORMAT_CONTEXT))
            self.av = stack.enter_context(self.domain.av_open())
            self.ep = stack.enter_context(self.domain.endpoint(info))
            self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
            self.ep.bind(self.av)
            self.ep.enable()
            self.memory: dict[str, np.ndarray[Any, Any]] = {
                "direct": self.domain.alloc(nbytes, "u1"),
                "foreign": numpy.empty(nbytes, "u1"),
            }
            self.mr: dict[str, fi.MemoryRegion] = {}
            access = fi.READ | fi.WRITE | fi.REMOTE_READ | fi.REMOTE_WRITE
            for kind, array in self.memory.items():
                array.fill(0)  # pages exist before anything is timed
                mr = self.mr[kind] = stack.enter_context(self.domain.mr_reg(array, access, requested_key=KINDS[kind]))
                if self.domain.mr_mode & fi.MR_ENDPOINT:
                    mr.bind(self.ep)
                mr.enable()
            self.inject_size = int(info.tx_attr.inject_size)
            self._stack = stack.pop_all()

    def card(self) -> dict[str, Any]:
        """What a peer has to know, as JSON can carry it."""
        return {
            "pid": os.getpid(),
            "name": self.ep.getname(),
            "regions": {
                kind: {
                    "key": mr.key,
                    "base": mr.address if self.domain.virt_addr else 0,
                    "address": mr.address,
                    "nbytes": mr.length,
                    "place": place_of(mr.address),
                }
                for kind, mr in self.mr.items()
            },
        }

    def wait(self, count: int, alive: Callable[[], None] | None = None) -> int:
        """Up to `count` completions, at least one; how many it was.

        alive   called now and then; raises when waiting has become pointless.

        Raises TargetError after DEADLINE_S, the operation's own error when it failed.
        """
        read = self.cq.read
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for _ in range(_POLLS):
                try:
                    done = read(count)
                except fi.Available:
                    if alive is not None:
                        alive()
                    raise self.cq.readerr().exception() from None
                if done:
                    return len(done)
            if alive is not None:
                alive()
            if time.monotonic() > deadline:
                raise TargetError(f"no completion within {DEADLINE_S:.0f} s")

    def close(self) -> None:
        self.ep.close()  # first: a region that is bound to it (MR_ENDPOINT) cannot be closed before it
        self._stack.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def regions_of(card: Mapping[str, Any]) -> dict[str, Region]:
    return {
        kind: Region(r["key"], r["base"], r["address"], r["nbytes"], tuple(r["place"]) if r["place"] else None)
        for kind, r in card["regions"].items()
    }


# ---- the same memory in two processes ------------------------------------------------------------------------------


def _mappings() -> list[tuple[int, int, int, str, int]]:
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, perms, offset, device, inode = line.split(None, 5)[:5]
            if inode != "0" and perms.startswith("rw"):
                start, end = span.split("-")
                found.append((int(start, 16), int(end, 16), int(offset, 16), device, int(inode)))
    return found


def place_of(address: int) -> tuple[str, int, int] | None:
    """(device, inode, offset) of the file behind an address of this process; None where there is none."""
    for start, end, offset, device, inode in _mappings():
        if start <= address < end:
            return device, inode, address - start + offset
    return None


def address_of(place: tuple[str, int, int] | None, nbytes: int) -> int | None:
    """An address in this process of those bytes of a file; None if they cannot be mapped.

    It is a mapping of its own that lasts as long as this process: the NIC's mapping ends with the peer, and a
    measurement with bare loads and stores would then crash.
    """
    if place is None:
        return None
    if (place, nbytes) not in _aliases:
        device, inode, offset = place
        for start, end, at, dev, ino in _mappings():
            if (dev, ino) == (device, inode) and at <= offset and offset + nbytes <= at + end - start:
                first = (start + offset - at) & ~(mmap.PAGESIZE - 1)
                alias = _map_again(first, start + offset - at - first + nbytes)
                if alias is not None:
                    _aliases[place, nbytes] = alias + start + offset - at - first
                break
    return _aliases.get((place, nbytes))


_aliases: dict[tuple[tuple[str, int, int], int], int] = {}


def _map_again(address: int, nbytes: int) -> int | None:
    """Map what is mapped shared at a page once more, elsewhere: mremap(2) with an old size of 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    may_move = 1  # MREMAP_MAYMOVE, <sys/mman.h>
    size = ctypes.c_size_t
    found: int | None = libc.mremap(ctypes.c_void_p(address), size(0), size(nbytes), ctypes.c_int(may_move))
    return None if found is None or found == ctypes.c_void_p(-1).value else found


# ---- echo: half a round trip as a polling peer sees it -------------------------------------------------------------


def echo(
    side: Side,
    peer: int,
    kind: str,
    there: Region,
    size: int,
    rounds: int,
    first: bool,
    alive: Callable[[], None] | None,
    ring: bool,
) -> float:
    """Write `size` bytes to the peer's region, wait until it has written as many back.

    Returns nanoseconds of half a round trip. Both processes call it, one with first=True. What is
    watched is the last word of the message, its last byte where its size is no multiple of 8.

    ring   the message comes through the ring, so that waiting for it means polling the queue.
    """
    memory = memoryview(side.memory[kind].data)
    words = size % 8 == 0
    inbox, outbox = memory[:size], memory[-size:]
    if words:
        inbox, outbox = inbox.cast("Q"), outbox.cast("Q")
    local = side.mr[kind][len(memory) - size :]
    last = len(inbox) - 1
    base, key = there.base, there.key
    inject, poll, came = side.ep.inject_write, side.cq.read, _nic.poll_u64
    watched, at = side.memory[kind], last * 8
    looks = range(_LOOKS)
    deadline = time.monotonic() + DEADLINE_S

    def not_yet() -> None:
        # Nothing came: drives the NIC, and raises what failed.
        try:
            side.cq.read(1)
        except fi.Available:
            if alive is not None:
                alive()
            raise side.cq.readerr().exception() from None
        if time.monotonic() > deadline:
            raise TargetError(f"the peer's answer did not come within {DEADLINE_S:.0f} s")
        if alive is not None:
            alive()

    start = 0
    for i in range(rounds + 1):  # the first round waits until the peer is there, and is not counted
        if i == 1:
            start = time.perf_counter_ns()
        value = i % 255 + 1
        outbox[last] = value
        if first:
            inject(local, peer, base, key)
        if words and not ring:
            # One call a wait, which gives the core away when others want it.
            while not came(watched, at, value, _LOOK_S):
                not_yet()
        else:
            waits = True
            while waits:
                try:
                    for _ in looks:
                        if inbox[last] == value:
                            waits = False
                            break
                        if ring:
                            poll(1)
                    else:
                        not_yet()
                except fi.Available:
                    not_yet()  # which says what failed
        if not first:
            inject(local, peer, base, key)
    return (time.perf_counter_ns() - start) / (2 * rounds)


def half_round_trip(side: Side, target: Target, peer: int, kind: str, size: int, rounds: int, ring: bool) -> float:
    """`echo` between this process and the second one, in nanoseconds."""
    # What the last echo left here may be the very value that the first answer of this one has. It goes before the peer
    # is asked, which may answer at once.
    side.memory[kind][:size] = 0
    target.tell("echo", kind=kind, size=size, rounds=rounds, ring=ring)
    ns = echo(side, peer, kind, target.regions[kind], size, rounds, True, target.alive, ring)
    target.result()
    return ns


# ---- the first process's view of the second ------------------------------------------------------------------------


class Target:
    """The second process.

    env       added to this process's environment.
    cores     that it may run on; None or none for all.
    scratch   memory that both map, apart from Weft: for limits.

    Raises TargetError, also from every call, when the process has died.
    """

    def __init__(self, nbytes: int, env: Mapping[str, str] | None = None, cores: Sequence[int] | None = None) -> None:
        self._make_scratch(nbytes)
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command(nbytes, self._scratch_fd, cores),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=(self._scratch_fd,),
            env=environment(env),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def _make_scratch(self, nbytes: int) -> None:
        self._scratch_fd = os.memfd_create("weft-perf")
        scratch_bytes = LINE_BYTES + nbytes
        os.ftruncate(self._scratch_fd, scratch_bytes)
        self.scratch = mmap.mmap(self._scratch_fd, scratch_bytes)
        self._told = b""
        self.regions: dict[str, Region] = {}
        self.name = ""
        self.pid = 0

    def greet(self) -> None:
        """Wait until it is up."""
        card = self._answer()
        self.name, self.pid = card["name"], card["pid"]
        self.regions = regions_of(card)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have something done, and wait for the result."""
        self.tell(do, **arguments)
        return self.result()

    def tell(self, do: str, **arguments: Any) -> None:
        """Have something done, while this process does its part."""
        try:
            self._to.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._to.flush()
        except (BrokenPipeError, ConnectionResetError, ValueError):
            raise self._death() from None

    def result(self) -> Any:
        """What the last `tell` came to."""
        return self._answer()["result"]

    def alive(self) -> None:
        """Raise TargetError if the process is gone."""
        if self._process.poll() is not None:
            raise self._death()

    def line_ns(self, rounds: int) -> float:
        """Half a round trip of bare stores to one cache line that both processes map."""
        word = memoryview(self.scratch)[:8]
        word[:] = bytes(8)
        self.tell("line", rounds=rounds)
        ns = _nic.probe_pingpong(word, rounds, True, 2.0)
        self.result()
        if ns < 0:
            raise TargetError("the bare cache-line ping-pong did not finish: is there a core for each process?")
        return ns

    def _answer(self) -> Any:
        fd = self._from.fileno()
        deadline = time.monotonic() + DEADLINE_S
        while b"\n" not in self._told:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TargetError(f"{self} did not answer within {DEADLINE_S:.0f} s{self._stderr_text()}")
            if select.select([fd], [], [], min(left, 1.0))[0]:
                try:
                    data = os.read(fd, 65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    raise self._death()
                self._told += data
        line, _, self._told = self._told.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise TargetError(f"{self} failed: {answer['error']}")
        return answer

    def _death(self) -> TargetError:
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            return TargetError(f"{self} closed its output{self._stderr_text()}")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return TargetError(f"{self} died: {how}{self._stderr_text()}")

    def __str__(self) -> str:
        return f"the second process (pid {self._process.pid})"

    def _stderr_text(self) -> str:
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace").strip()
        if not text:
            return "; it wrote nothing to stderr"
        return "; its stderr:\n" + "\n".join("  " + line for line in text.splitlines()[-20:])

    def close(self) -> None:
        """End it, at once."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._stderr.close()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._to, self._from):
            try:
                pipe.close()
            except OSError:  # what it was told last did not reach it
                pass
        if self._scratch_fd >= 0:
            os.close(self._scratch_fd)
            self._scratch_fd = -1

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it. An operation that failed because the process died is told as its death."""
        try:
            if isinstance(error, fi.FabricError):
                self.alive()
        finally:
            self.close()


class ServedTarget(Target):
    """A second process that a server started: nothing of it is here but the socket that it speaks over."""

    _socket: socket.socket

    def alive(self) -> None:
        """Raise TargetError if the process, its host or the way there is gone."""
        if hung_up(self._socket.fileno()):
            raise self._death()

    def _death(self) -> TargetError:
        return TargetError(f"{self} has ended: was the server stopped?{self._stderr_text()}")

    def _stderr_text(self) -> str:
        return "; what it wrote is in the server's terminal"

    def close(self) -> None:
        """Hang up: it ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._close_pipes()


# ---- the second process --------------------------------------------------------------------------------------------


def command(nbytes: int, scratch_fd: int, cores: Sequence[int] | None) -> list[str]:
    """What starts it."""
    return [sys.executable, "-m", "weft.tools._pair", str(nbytes), str(scratch_fd), *map(str, cores or ())]


def environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """This process's, with an engine thread: a target that waits in readline has to be served by one. And without
    WEFT_LISTEN, whose port may be this process's."""
    return {**os.environ, "WEFT_ENGINE": "thread", "WEFT_LISTEN": "", **(more or {})}


def hung_up(fd: int) -> bool:
    """True once the other end of a pipe or socket is closed everywhere."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return any(events & (select.POLLHUP | select.POLLRDHUP | select.POLLERR) for _, events in poll.poll(0))


def serve(nbytes: int, scratch_fd: int) -> None:
    """Open a Side, print its card, and do what stdin asks until stdin ends."""
    scratch = mmap.mmap(scratch_fd, LINE_BYTES + nbytes)
    word = memoryview(scratch)[:8]
    with Side(nbytes) as side:
        _say(side.card())
        peer, theirs = 0, {}
        partner = Partner()
        for line in sys.stdin:
            request = json.loads(line)
            do, result = request["do"], None
            if do == "line":
                result = _nic.probe_pingpong(word, request["rounds"], False, 2.0)
            elif do == "peer":
                peer = side.av.insert(request["card"]["name"])
                theirs = regions_of(request["card"])
            elif do == "echo":
                kind = request["kind"]
                result = echo(
                    side, peer, kind, theirs[kind], request["size"], request["rounds"], False, _asker, request["ring"]
                )
            elif do == "fill":
                side.memory[request["kind"]][:] = request["value"]
            elif do.startswith("socket"):
                result = partner.do(request)
            elif do == "sum":
                result = int(side.memory[request["kind"]].sum())
            else:
                raise ValueError(f"unknown request {do!r}")
            _say({"result": result})


def _asker() -> None:
    """End if the other process has gone in the middle of an echo."""
    if hung_up(sys.stdin.fileno()):
        sys.exit(0)


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """`python -m weft.tools._pair NBYTES SCRATCH_FD [CORE ...]`: the second process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both processes; the first one ends us
    if arguments[2:]:
        os.sched_setaffinity(0, [int(core) for core in arguments[2:]])  # before the engine thread, which inherits it
    serve(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
