"""The two sides of `weft pingpong`: the control connection, the endpoint, and messages back and forth.

The control connection is plain TCP, as fi_pingpong's: the sides agree what they run, exchange their endpoints'
addresses, and wait for each other before each size. All messages go over the fabric.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from .. import _process, fi
from . import _real
from ._completions import RECEIVED, SENT, Completions
from ._hosts import need_secret
from ._pair import hung_up, name_of, name_text
from ._text import UsageError

PORT = 47592
"""The port of the control connection."""

_TAG = 0x1234
_LINE_BYTES_MAX = 65536
_CONTROL_S = 20.0  # for an answer of the other side on the control connection
_PROGRESS_S = 0.0005  # between two calls that make progress, while the control connection is waited for
_SLICE_S = 0.2  # wait for an event, before the control connection is looked at


class PeerGone(RuntimeError):
    """The other side ended, or sent a line that weft pingpong does not send."""


@dataclass(frozen=True)
class Plan:
    """The options that have to be equal on both sides: fi_pingpong(1) "Options".

    Attributes:
        sizes: Bytes of the messages, in order.
        iterations: Round trips of each size.
    """

    provider: str | None
    ep_type: str
    mode: str
    sizes: tuple[int, ...]
    iterations: int
    check: bool


@dataclass(frozen=True)
class Result:
    """One size: messages sent by the client, answers of the server that came, seconds of all."""

    size: int
    sent: int
    acks: int
    seconds: float


# ---- the control connection ------------------------------------------------------------------------------------------


def wait_for_client(port: int, family: int, debug: Callable[[str], None]) -> socket.socket:
    """Listen at the port of every network of this host, and return the first connection. Raises UsageError."""
    try:
        listener = socket.create_server(("", port), family=family)
    except OSError as reason:
        raise UsageError(f"-B: port {port} is not to be had: {reason.strerror}\n  try: another port, -B N") from None
    with listener:
        debug(f"control connection: waiting at port {listener.getsockname()[1]}")
        connection, caller = listener.accept()
    debug(f"control connection: from {caller[0]}")
    return connection


def call(host: str, port: int, own_port: int | None, family: int) -> socket.socket:
    """Connect to the server. Raises UsageError."""
    try:
        where = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
        connection = socket.socket(where[0], socket.SOCK_STREAM)
        try:
            if own_port is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                connection.bind(("", own_port))
            connection.settimeout(_CONTROL_S)
            connection.connect(where[4])
        except BaseException:
            connection.close()
            raise
    except OSError as reason:
        raise UsageError(
            f"no server at {host}, port {port}: {reason.strerror or reason}\n"
            "  try: first `weft pingpong`, with the same options, there"
        ) from None
    return connection


class Control:
    """Lines of JSON between the two sides. Raises PeerGone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_CONTROL_S)
        self._connection = connection
        self._file = connection.makefile("rb", buffering=0)  # unread lines stay in the socket, where poll sees them
        self.progress: Callable[[], None] | None = None
        """Called while the other side is waited for, where this process has to make progress for it."""

    def far(self) -> str | None:
        """This host's address for the other side if that is another host, else None."""
        here, there = self._connection.getsockname()[0], self._connection.getpeername()[0]
        return None if here == there else self.here()

    def say(self, **what: Any) -> None:
        """Send a line."""
        with self._or_gone():
            self._connection.sendall(json.dumps(what).encode() + b"\n")

    def hear(self, name: str, kind: type) -> Any:
        """The value of a name in the other side's next line, which is of a kind."""
        with self._or_gone():
            self._await()
            line = self._file.readline(_LINE_BYTES_MAX)
            if not line:
                raise PeerGone("the other side has ended")
            said = json.loads(line)
            if "error" in said:
                raise PeerGone(f"the other side has ended: {said['error']}")
            found = said[name]
            if not isinstance(found, kind):
                raise TypeError(f"{name} is {found!r}")
        return found

    def _await(self) -> None:
        """Make progress until there is something to read."""
        deadline = time.monotonic() + _CONTROL_S
        while self.progress is not None and time.monotonic() < deadline:
            self.progress()
            if select.select([self._connection], [], [], _PROGRESS_S)[0]:
                return

    def here(self) -> str:
        """This host's address on the control connection."""
        return str(self._connection.getsockname()[0]).removeprefix("::ffff:")

    def hear_address(self) -> str | bytes:
        """The address of the other side's endpoint."""
        text = self.hear("address", str)
        with self._or_gone():
            return name_of(text)

    def sync(self) -> None:
        """Wait until the other side is here, too."""
        self.say(sync=True)
        self.hear("sync", bool)

    def check(self) -> None:
        """Raise PeerGone if the other side has ended."""
        if hung_up(self._connection.fileno()):
            self.hear("error", str)  # raises: an error, or the end

    @contextlib.contextmanager
    def _or_gone(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError) as reason:
            raise PeerGone(f"the other side is not weft pingpong: {reason!r}") from None
        except OSError as reason:
            if isinstance(reason, fi.FabricError):
                raise
            raise PeerGone(f"the other side does not answer: {reason.strerror or reason}") from None

    def __enter__(self) -> Control:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            with contextlib.suppress(PeerGone):  # the other side may have ended itself
                self.say(error=str(error).partition("\n")[0] or kind.__name__)
        self._file.close()
        self._connection.close()


# ---- the endpoint ----------------------------------------------------------------------------------------------------

_TYPES = {"rdm": fi.EP_RDM, "msg": fi.EP_MSG, "dgram": fi.EP_DGRAM}


_MODES = fi.MR_LOCAL | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_ENDPOINT


def _info(plan: Plan, domain: str | None, host: str | None = None) -> fi.Info:
    hints = fi.Info(
        caps=fi.TAGGED if plan.mode == "tagged" else fi.MSG,
        ep_attr=fi.EpAttr(type=_TYPES[plan.ep_type]),
        domain_attr=fi.DomainAttr(mr_mode=_MODES, name=domain),
        fabric_attr=fi.FabricAttr(prov_name=plan.provider),
    )
    if domain is None and _real.is_real(plan.provider):
        return _real.choose(hints, host)
    return fi.getinfo(hints=hints)[0]


def check(plan: Plan, domain: str | None) -> None:
    """Raise NoData, before the other side is waited for, if no provider offers what the plan needs."""
    _info(plan, domain)


class _Side:
    """An endpoint with one peer, and memory for a message each way."""

    def __init__(self, plan: Plan, domain: str | None, control: Control, client: bool) -> None:
        self._plan, self._control = plan, control
        self._undo = contextlib.ExitStack()
        self.desc: Any = None
        try:
            self._open(domain, client)
        except BaseException:
            self.close()
            raise

    def _open(self, name: str | None, client: bool) -> None:
        plan, keep = self._plan, self._undo.enter_context
        self.info = _info(plan, name, self._control.here())
        fabric = keep(fi.Fabric(self.info.fabric_attr))
        self._listen()
        self._domain = domain = keep(fabric.domain(self.info))
        real = _real.is_real(plan.provider)
        # The shm provider of libfabric 1.17 does not keep the time limit of a sleep: its queue is polled.
        waits = fi.WAIT_NONE if real and self.info.addr_format == fi.ADDR_STR else fi.WAIT_UNSPEC
        self._cq = keep(domain.cq_open(format=fi.CQ_FORMAT_CONTEXT, wait_obj=waits))
        self._control.progress = self._progress if real else None
        self.completions = Completions(self._cq, lambda idle_s: self._control.check())
        if plan.ep_type == "msg":
            self._connect(fabric, client)
        else:
            av = keep(domain.av_open())
            self.ep = keep(domain.endpoint(self.info))
            self.ep.bind(av)
            self._enable(self.ep)
            self._control.say(address=name_text(self.ep.getname()))
            self.peer = av.insert(self._control.hear_address())
        room = max(plan.sizes, default=0) + 64
        self.memory = domain.alloc(2 * room, "u1")
        self.memory.fill(0)
        source: Any = self.memory
        if domain.mr_mode & fi.MR_LOCAL:
            source = keep(domain.mr_reg(self.memory, fi.SEND | fi.RECV, requested_key=1))
            if domain.mr_mode & fi.MR_ENDPOINT:
                source.bind(self.ep)
            if not real or domain.mr_mode & fi.MR_ENDPOINT:
                source.enable()
            self.desc = source if real else None
        # The memory as the calls take it and as bytes, and for calls of a real libfabric its descriptor.
        self.source, self.room = source, room

    def _progress(self) -> None:
        """Let a real provider work, which does so in calls alone."""
        self.completions.progress()

    def _listen(self) -> None:
        """Let a peer of another host connect to this process's NIC."""
        if _real.is_real(self._plan.provider):
            return
        here = self._control.far()
        if here is None or _process.nic().tcp_listening() is not None:
            return
        need_secret("pingpong")
        if self.info.addr_format != fi.ADDR_STR:  # the general provider's addresses name hosts
            raise UsageError(
                f"pingpong: the provider {self.info.fabric_attr.prov_name} reaches other hosts at addresses that "
                "WEFT_CXI_HOSTS lists\n"
                "  try: WEFT_LISTEN and WEFT_CXI_HOSTS on both hosts, docs/howto/two-hosts.md"
            )
        _process.listen(f"tcp://[{here}]:0" if ":" in here else f"tcp://{here}:0")

    def _enable(self, ep: Any) -> None:
        ep.bind(self._cq, fi.TRANSMIT | fi.RECV)
        ep.enable()

    def _connect(self, fabric: Any, client: bool) -> None:
        """A connected endpoint (EP_MSG): the server listens, the client connects."""
        keep, control = self._undo.enter_context, self._control
        eq = keep(fabric.eq_open())
        self.peer = fi.ADDR_UNSPEC
        if client:
            there = control.hear_address()
            self.ep = keep(self._domain.endpoint(self.info))
            self.ep.bind(eq)
            self._enable(self.ep)
            self.ep.connect(there)
        else:
            pep = keep(fabric.passive_ep(self.info))
            pep.bind(eq)
            pep.listen()
            control.say(address=name_text(pep.getname()))
            request = self._event(eq, fi.CONNREQ)
            self.ep = keep(self._domain.endpoint(request.info))
            self.ep.bind(eq)
            self._enable(self.ep)
            self.ep.accept()
        self._event(eq, fi.CONNECTED)

    def _event(self, eq: Any, wanted: Any) -> Any:
        deadline = time.monotonic() + _CONTROL_S
        while True:
            try:
                event, entry = eq.sread(timeout=_SLICE_S)
            except fi.Again:
                self._control.check()
                if time.monotonic() > deadline:
                    raise PeerGone(f"no {wanted} within {_CONTROL_S:g} s") from None
                continue
            if event != wanted:
                raise PeerGone(f"{event} came instead of {wanted}")
            return entry

    def close(self) -> None:
        # As _pair.Side.close: providers differ in what has to be closed first.
        if hasattr(self, "ep"):
            with contextlib.suppress(fi.Busy):
                self.ep.close()
        self._undo.close()


# ---- the test --------------------------------------------------------------------------------------------------------


def _agree(plan: Plan, control: Control, client: bool) -> None:
    """Compare what the sides were given. Raises UsageError on the client, PeerGone on the server."""
    if client:
        control.say(plan=asdict(plan))
        different = control.hear("different", list)
        if different:
            raise UsageError(
                f"the server was given another {' and another '.join(map(str, different))}\n"
                '  rule: both sides get the same options, fi_pingpong(1) "Options"'
            )
        return
    there = control.hear("plan", dict)
    mine = json.loads(json.dumps(asdict(plan)))
    different = [field.name for field in fields(plan) if there.get(field.name) != mine[field.name]]
    control.say(different=different)
    if different:
        raise PeerGone(f"the client was given another {' and another '.join(different)}; both get the same options")


def run(
    plan: Plan, domain: str | None, connection: socket.socket, client: bool, debug: Callable[[str], None]
) -> Iterator[Result]:
    """One side of the test; the result of each size, as that is done.

    Raises PeerGone, UsageError, or the error of a failed operation.
    """
    with Control(connection) as control:
        _agree(plan, control, client)
        side = _Side(plan, domain, control, client)
        try:
            info = side.info
            debug(f"provider {info.fabric_attr.prov_name}, domain {info.domain_attr.name}, {info.ep_attr.type}")
            debug(f"own address {side.ep.getname()!r}; inject_size {info.tx_attr.inject_size}")
            for size in plan.sizes:
                if size > info.ep_attr.max_msg_size:
                    debug(f"{size} B is more than the endpoint's max_msg_size of {info.ep_attr.max_msg_size} B")
                    continue
                debug(f"{size} B, {plan.iterations} times")
                yield _one_size(side, plan, control, size, client)
        finally:
            side.close()


def _one_size(side: _Side, plan: Plan, control: Control, size: int, client: bool) -> Result:
    ep, done, count, check = side.ep, side.completions, plan.iterations, plan.check
    here, there = slice(size), slice(side.room, side.room + size)
    inbox, outbox, arrived, departing = side.source[here], side.source[there], side.memory[here], side.memory[there]
    patterns = _Patterns(size)
    inject = size <= side.info.tx_attr.inject_size
    receive_args: tuple[Any, ...] = (inbox, side.desc, fi.ADDR_UNSPEC)
    receive: Callable[..., None]
    if plan.mode == "tagged":
        receive, receive_args = ep.trecv, (*receive_args, _TAG, 0, RECEIVED)
        send: Callable[..., None] = ep.tinject if inject else ep.tsend
        send_args: tuple[Any, ...] = (outbox, side.peer, _TAG) if inject else (outbox, side.desc, side.peer, _TAG, SENT)
    else:
        receive, receive_args = ep.recv, (*receive_args, RECEIVED)
        send = ep.inject if inject else ep.send
        send_args = (outbox, side.peer) if inject else (outbox, side.desc, side.peer, SENT)

    def transmit(n: int) -> None:
        if check:
            departing[:] = patterns.of(n, client)
        done.post(send, *send_args)
        if not inject:
            done.wait(SENT)

    def took(n: int) -> None:
        done.wait(RECEIVED)
        if check and not np.array_equal(arrived, patterns.of(n, not client)):
            raise PeerGone(f"message {n} of {size} B came with other bytes than were sent")

    receive(*receive_args)
    control.sync()
    begun = time.perf_counter()
    for n in range(count):
        if not client:
            took(n)
        transmit(n)
        if n + 1 < count:
            receive(*receive_args)
        if client:
            took(n)
    seconds = time.perf_counter() - begun
    # The server tells how many messages it has answered.
    if client:
        acks = control.hear("answered", int)
    else:
        acks = count
        control.say(answered=acks)
    control.sync()  # the server's last message may be under way until then
    return Result(size, count, acks, seconds)


class _Patterns:
    """Bytes of -c, which differ from those of the previous message and of the other direction."""

    _PERIOD = 251

    def __init__(self, size: int) -> None:
        self._size = size
        self._bytes = (np.arange(size + self._PERIOD) % self._PERIOD).astype(np.uint8)

    def of(self, number: int, client: bool) -> np.ndarray[Any, Any]:
        """The bytes of a message of the client, or of the server."""
        begin = (2 * number + client) % self._PERIOD
        return self._bytes[begin : begin + self._size]


def say_debug(text: str) -> None:
    """A line of -v."""
    print(f"weft pingpong: {text}", file=sys.stderr, flush=True)
