"""Two processes for measurements: the objects of each, and how the first process starts, controls and ends the second.

    Side                    both processes: domain, endpoint, queue, memory of both kinds
    Target                  the first process: the second process as an object (_server.RemoteTarget: of a server)
    serve(), main()         the second process: executes requests, lines of JSON on stdin and stdout

The second process sleeps in readline while the first accesses its memory: it makes no Weft calls, and its engine thread
serves accesses that loads and stores cannot do. It ends when its stdin is closed, so it never outlives the first.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from .. import _nic, fi
from .._with import With
from . import _messages, _real
from ._socket import Partner

if TYPE_CHECKING:
    import numpy as np

DEADLINE_S = 20.0
"""Timeout of every step; normally a step takes milliseconds."""

LINE_BYTES = 4096  # the first bytes of the scratch memory: the word for the ping-pong
_POLLS = 256  # polls of an empty queue before the clock is read
_LOOKS = 32  # checks of a message, and of its queue, before the deadline is checked
_END_S = 5.0  # for the end of a process with a real libfabric
_LOOK_S = 0.002  # wait for a word in memory, before the NIC and the deadline are checked

KINDS = {"direct": 1, "foreign": 2}
"""Kinds of memory, and their keys if the application chooses keys."""


# Registration modes that this file honours; the provider requires them only if WEFT_MR_MODE does.
CAPS = fi.RMA | fi.ATOMIC | fi.MSG | fi.TAGGED
MODES = fi.MR_LOCAL | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_ENDPOINT | fi.MR_RMA_EVENT


class TargetError(RuntimeError):
    """The second process died, or did not answer in time. The message contains its stderr."""


@dataclass(frozen=True)
class Region:
    """A peer's memory: all values that an access needs."""

    key: int
    base: int  # the remote address of the first byte: 0, or the virtual address under MR_VIRT_ADDR
    address: int
    nbytes: int
    place: tuple[str, int, int] | None  # (device, inode, offset) of the memory's memfd


class Side(With):
    """The objects of one process: a domain with an endpoint, and `nbytes` of memory of each kind, with all rights.

    Attributes:
        provider: Name of the provider; None: the first one.
        memory: {"direct": of Domain.alloc, "foreign": NumPy's own}; of a real libfabric "direct" alone, NumPy's own.
        desc: The descriptor of the direct memory for transfers, where the provider wants one.
        manual: The provider makes progress only while the process reads its queue.
    """

    def __init__(self, nbytes: int, provider: str | None = None) -> None:
        import numpy

        with contextlib.ExitStack() as stack:
            self.manual = _real.is_real(provider)
            info = _info(provider)
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
            if self.manual:
                del self.memory["foreign"]
            self.mr: dict[str, fi.MemoryRegion] = {}
            access = fi.READ | fi.WRITE | fi.REMOTE_READ | fi.REMOTE_WRITE | fi.SEND | fi.RECV
            for kind, array in self.memory.items():
                array.fill(0)  # make the pages exist before the measurement
                mr = self.mr[kind] = stack.enter_context(self.domain.mr_reg(array, access, requested_key=KINDS[kind]))
                if self.domain.mr_mode & fi.MR_ENDPOINT:
                    mr.bind(self.ep)
                if not self.manual or self.domain.mr_mode & fi.MR_ENDPOINT:
                    mr.enable()
            local = self.manual and self.domain.mr_mode & fi.MR_LOCAL
            self.desc = self.mr["direct"] if local else None  # Weft's own calls take a slice of the region instead
            self.atomics = bool(info.caps & fi.ATOMIC)
            self.inject_size = int(info.tx_attr.inject_size)
            self._stack = stack.pop_all()

    def card(self) -> dict[str, Any]:
        """The facts that a peer needs, for JSON."""
        return {
            "pid": os.getpid(),
            "name": name_text(self.ep.getname()),
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
        """Read up to `count` completions, at least one; returns their number.

        Args:
            alive: Called from time to time; raises if no completion can come any more.

        Raises:
            TargetError: No completion came within DEADLINE_S.
            FabricError: The error of a failed operation.
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

    def progress(self) -> None:
        """Let the provider work while no operation of this process is under way. Raises the error of a failed
        operation.
        """
        try:
            self.cq.read(1)
        except fi.Available:
            raise self.cq.readerr().exception() from None

    def close(self) -> None:
        # The general provider closes no region that is bound to an open endpoint (MR_ENDPOINT), the CXI provider no
        # endpoint to which regions are bound, and then the stack closes the regions first.
        with contextlib.suppress(fi.Busy):
            self.ep.close()
        self._stack.close()


def _info(provider: str | None) -> fi.Info:
    if provider is not None and _real.is_real(provider):
        return _real.side_info(provider)
    # Keys of the application, where the provider allows them: keys that the CXI provider chooses outlive their regions.
    hints = fi.Info(caps=CAPS, domain_attr=fi.DomainAttr(mr_mode=MODES & ~fi.MR_PROV_KEY))
    hints.fabric_attr.prov_name = provider
    if provider is None:  # addresses as text: no other provider is chosen where the first one refuses the modes
        hints.addr_format = fi.ADDR_STR
    try:
        return fi.getinfo(hints=hints)[0]
    except fi.NoData:
        hints.domain_attr.mr_mode = MODES
        return fi.getinfo(hints=hints)[0]


def name_text(name: Any) -> str:
    """An endpoint's address for JSON: text as it is, bytes (the CXI provider's) in hexadecimal after "0x"."""
    return name if isinstance(name, str) else "0x" + bytes(name).hex()


def name_of(text: str) -> str | bytes:
    """The reverse of `name_text`."""
    return bytes.fromhex(text[2:]) if text.startswith("0x") else text


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
    """(device, inode, offset) of the file behind an address of this process; None if there is no file."""
    for start, end, offset, device, inode in _mappings():
        if start <= address < end:
            return device, inode, address - start + offset
    return None


def address_of(place: tuple[str, int, int] | None, nbytes: int) -> int | None:
    """An address in this process of those bytes of a file; None if they cannot be mapped.

    The mapping is separate from the NIC's and lasts as long as this process. The NIC's mapping ends with the peer, and
    a measurement with bare loads and stores would then crash.
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
    """Map a shared mapping a second time, at another address: mremap(2) with an old size of 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    may_move = 1  # MREMAP_MAYMOVE, <sys/mman.h>
    size = ctypes.c_size_t
    found: int | None = libc.mremap(ctypes.c_void_p(address), size(0), size(nbytes), ctypes.c_int(may_move))
    return None if found is None or found == ctypes.c_void_p(-1).value else found


# ---- echo: half a round trip with a polling peer -------------------------------------------------------------------


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
    """Write `size` bytes to the peer's region, and wait until the peer has written as many back.

    Both processes call this function, one with first=True. It watches the last word of the message, or the last byte if
    the size is not a multiple of 8.

    Args:
        ring: The message comes through the ring, so that waiting for it means polling the queue.

    Returns:
        Nanoseconds of half a round trip.
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
        # Nothing arrived: drive the NIC, and raise the error of a failed operation.
        try:
            side.cq.read(1)
        except fi.Available:
            if alive is not None:
                alive()
            raise side.cq.readerr().exception() from None
        if time.monotonic() > deadline:
            raise TargetError(f"the peer did not answer within {DEADLINE_S:.0f} s")
        if alive is not None:
            alive()

    def until_room() -> None:
        while True:
            not_yet()
            try:
                inject(local, peer, base, key)
                return
            except fi.Again:
                pass

    start = 0
    for i in range(rounds + 1):  # the first round waits until the peer is ready, and is not counted
        if i == 1:
            start = time.perf_counter_ns()
        value = i % 255 + 1
        outbox[last] = value
        if first:
            try:
                inject(local, peer, base, key)
            except fi.Again:
                until_room()
        if words and not ring:
            # One call waits, and yields the core to other processes.
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
                    not_yet()  # raises the failure
        if not first:
            try:
                inject(local, peer, base, key)
            except fi.Again:
                until_room()
    return (time.perf_counter_ns() - start) / (2 * rounds)


def half_round_trip(side: Side, target: Target, peer: int, kind: str, size: int, rounds: int, ring: bool) -> float:
    """`echo` between this process and the second one, in nanoseconds."""
    # The last echo may have left the value that this echo's first answer has. Clear it before asking the peer, because
    # the peer may answer at once.
    side.memory[kind][:size] = 0
    target.tell("echo", kind=kind, size=size, rounds=rounds, ring=ring)
    ns = echo(side, peer, kind, target.regions[kind], size, rounds, True, target.alive, ring)
    target.result()
    return ns


# ---- the second process, in the first ------------------------------------------------------------------------------


class Target:
    """The second process.

    Attributes:
        env: Variables added to this process's environment.
        cores: Cores that the process may run on; None or empty: all.
        provider: Name of the provider; None: the first one.
        scratch: Memory that both processes map without Weft, to measure limits.
        progress: Called while an answer is waited for, where this process has to make progress for the other.

    Every call raises TargetError if the process has died.
    """

    progress: Callable[[], None] | None = None

    def __init__(
        self,
        nbytes: int,
        env: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
        provider: str | None = None,
    ) -> None:
        self._real = _real.is_real(provider)
        self._make_scratch(nbytes)
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command(nbytes, self._scratch_fd, cores, provider),
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
        self.name: str | bytes = ""
        self.pid = 0

    def greet(self) -> None:
        """Wait until the process is ready."""
        card = self._answer()
        self.name, self.pid = name_of(card["name"]), card["pid"]
        self.regions = regions_of(card)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a request, and wait for the result."""
        self.tell(do, **arguments)
        return self.result()

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a request, and return while the process executes it."""
        try:
            self._to.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._to.flush()
        except (BrokenPipeError, ConnectionResetError, ValueError):
            raise self._death() from None

    def result(self) -> Any:
        """The result of the last `tell`."""
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
            if self.progress is not None:
                self.progress()
            if select.select([fd], [], [], min(left, 1.0) if self.progress is None else 0)[0]:
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
        """End the process at once; a process with a real libfabric ends by itself, and removes the library's files."""
        if self._real:
            with contextlib.suppress(OSError):
                self._to.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_S)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._stderr.close()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._to, self._from):
            try:
                pipe.close()
            except OSError:  # the process did not read the last request
                pass
        if self._scratch_fd >= 0:
            os.close(self._scratch_fd)
            self._scratch_fd = -1

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process. If an operation failed because the process died, raise the death instead."""
        try:
            if isinstance(error, fi.FabricError) and not isinstance(error, fi.NoData):  # NoData: of getinfo, here
                self._await_end()
                self.alive()
        finally:
            self.close()

    def _await_end(self) -> None:
        """Give a dying process a moment: its connections end before the process does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)


class ServedTarget(Target):
    """A second process that a server started; this process has only the socket to it."""

    _socket: socket.socket

    def _await_end(self) -> None:
        pass  # its host answers for it

    def alive(self) -> None:
        """Raise TargetError if the process, its host or the connection is gone."""
        if hung_up(self._socket.fileno()):
            raise self._death()

    def _death(self) -> TargetError:
        return TargetError(f"{self} has ended: was the server stopped?{self._stderr_text()}")

    def _stderr_text(self) -> str:
        return "; its stderr is in the server's terminal"

    def close(self) -> None:
        """Close the connection, which ends the process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._close_pipes()


# ---- the second process --------------------------------------------------------------------------------------------


def command(nbytes: int, scratch_fd: int, cores: Sequence[int] | None, provider: str | None = None) -> list[str]:
    """The command line of the second process."""
    numbers = map(str, (nbytes, scratch_fd, *(cores or ())))
    return [sys.executable, "-m", "weft.tools._pair", f"provider={provider or ''}", *numbers]


def provider_of(request: Mapping[str, Any]) -> str | None:
    """The provider that a client asks for. Raises ValueError if it is no name."""
    name = request.get("provider")
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"{name!r} is not the name of a provider")
    return name


def environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """This process's environment, with an engine thread, because a target that waits in readline makes no progress;
    without WEFT_LISTEN, whose port this process may use."""
    return {**os.environ, "WEFT_ENGINE": "thread", "WEFT_LISTEN": "", **(more or {})}


def hung_up(fd: int) -> bool:
    """True if all copies of the other end of a pipe or socket are closed."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return any(events & (select.POLLHUP | select.POLLRDHUP | select.POLLERR) for _, events in poll.poll(0))


def serve(nbytes: int, scratch_fd: int, provider: str | None = None) -> None:
    """Open a Side, print its card, and execute requests from stdin until stdin ends."""
    scratch = mmap.mmap(scratch_fd, LINE_BYTES + nbytes)
    word = memoryview(scratch)[:8]
    with Side(nbytes, provider) as side:
        _say(side.card())
        peer, theirs = 0, {}
        partner = Partner()
        requests = _Requests(side)
        for line in requests:
            request = json.loads(line)
            do, result = request["do"], None
            if do == "line":
                result = _nic.probe_pingpong(word, request["rounds"], False, 2.0)
            elif do == "peer":
                peer = side.av.insert(name_of(request["card"]["name"]))
                theirs = regions_of(request["card"])
            elif do == "echo":
                kind = request["kind"]
                result = echo(
                    side, peer, kind, theirs[kind], request["size"], request["rounds"], False, _asker, request["ring"]
                )
            elif do in ("round_trips", "stream"):
                result = _messages.request(side, peer, request, _asker)
            elif do == "poll":
                requests.polls = request["on"]
            elif do == "fill":
                side.memory[request["kind"]][:] = request["value"]
            elif do.startswith("socket"):
                result = partner.do(request)
            elif do == "sum":
                result = int(side.memory[request["kind"]].sum())
            else:
                raise ValueError(f"unknown request {do!r}")
            _say({"result": result})


class _Requests:
    """Lines of stdin, until it ends.

    Attributes:
        polls: Read the queue between them, without sleeping, because nobody else makes progress for this process.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self.polls = False

    def __iter__(self) -> Iterator[bytes]:
        fd, told = sys.stdin.fileno(), b""
        while True:
            line, end, rest = told.partition(b"\n")
            if end:
                told = rest
                yield line
                continue
            if self.polls:
                for _ in range(_LOOKS):
                    self._side.progress()
                if not select.select([fd], [], [], 0)[0]:
                    continue
            data = os.read(fd, 65536)
            if not data:
                return
            told += data


def _asker() -> None:
    """End this process if the other process died during an echo."""
    if hung_up(sys.stdin.fileno()):
        sys.exit(0)


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """`python -m weft.tools._pair provider=[NAME] NBYTES SCRATCH_FD [CORE ...]`: the second process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the first ends the second
    provider = arguments[0].removeprefix("provider=") or None
    nbytes, scratch_fd, *cores = map(int, arguments[1:])
    if cores:
        os.sched_setaffinity(0, cores)  # before the engine thread starts, which inherits the cores
    serve(nbytes, scratch_fd, provider)


if __name__ == "__main__":
    main(sys.argv[1:])
