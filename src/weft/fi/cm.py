"""Connecting endpoints (fi_cm): passive endpoints, requests, and the states of a connected endpoint (FI_EP_MSG).

    pep = fabric.passive_ep(info); pep.bind(eq); pep.listen()          # the side that listens
    event, entry = eq.sread()                                          # CONNREQ: entry.info, entry.data
    ep = domain.endpoint(entry.info); ep.bind(eq); ep.bind(cq, ...); ep.accept()

    ep = domain.endpoint(info); ep.bind(eq); ep.bind(cq, ...)          # the side that connects
    ep.connect(pep_name, b"private data")

Both sides then read a CONNECTED event. The NIC carries the messages (cpp/nic/cm.hpp); this file keeps the states.

Source: fi_cm(3), fi_endpoint(3).
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import _nic, _process, errors
from .._nic import CmKind, CmNews, CmState, Status
from ..flags import EpType, EqEvent, Errno
from . import _args, _handle
from .attrs import Info, dupinfo
from .eq import EqCmEntry, EqErrEntry, EventQueue
from .offer import Offer
from .policy import CM_DATA_SIZE, Address, DomainPolicy
from .rules import Refusals, Rule

if TYPE_CHECKING:
    from .fabric import Fabric

CmFound = tuple[int, int, int, tuple[int, int, int], int, Status, bytes]
"""A message from the NIC's queue: token, kind, what, source, connection, status, data."""

_tokens = itertools.count(1)


@dataclass(frozen=True)
class CmEvent:
    """A connection message that arrived for an endpoint."""

    kind: CmKind
    what: CmKind | None
    source: Address
    connection: int
    status: Status
    data: bytes

    @staticmethod
    def of(found: CmFound) -> CmEvent:
        """The event that the NIC's queue has as a tuple (`_nic.CmQueue.pop`)."""
        _, kind, what, source, connection, status, data = found
        return CmEvent(CmKind(kind), CmKind(what) if what else None, source, connection, status, data)


@dataclass(eq=False)
class ConnectionRequest:
    """A peer that wants to connect: `info.handle` of a CONNREQ event. Accepted or rejected once."""

    pep: PassiveEndpoint
    source: Address
    connection: int
    answered: bool = field(default=False)

    def __repr__(self) -> str:
        name = self.pep.provider.addresses.text(self.source)
        return f"<ConnectionRequest from {name}{', answered' if self.answered else ''}>"


def private_data(op: str, param: Any, paramlen: int | None, refusals: Refusals) -> bytes:
    """The bytes that go with a request or an answer."""
    _args.maybe(op, paramlen=paramlen)
    if param is None:
        return b""
    try:
        data = bytes(memoryview(param).cast("B"))[:paramlen]
    except TypeError:
        raise errors.InvalidArgument(f"{op}: param is bytes, not {param!r}") from None
    if len(data) > CM_DATA_SIZE:
        raise refusals.refuse(
            Rule.CM_DATA_SIZE,
            f"{op}: {len(data)} B of private data; a request or an answer carries {CM_DATA_SIZE} at most",
        )
    return data


def attach(eq: EventQueue, core: Any, owner: Any, policy: DomainPolicy, listens: bool = False) -> None:
    """Report the connection messages of an endpoint in an event queue."""
    token = next(_tokens)
    core.bind_cm(eq._attach(token, owner, policy), token, listens)


def new_connection() -> int:
    """A random number that identifies a connection."""
    return int.from_bytes(os.urandom(8), "little") >> 1


class PassiveEndpoint(_handle.Life):
    """An endpoint that receives connection requests (struct fid_pep). Made by `Fabric.passive_ep`.

    Thread safety: any thread. Source: fi_endpoint(3) fi_passive_ep, fi_cm(3).
    """

    _eq: EventQueue | None = None
    _listens = False

    def __init__(self, fabric: Fabric, info: Info, context: Any) -> None:
        self.fabric = fabric
        self.provider = fabric.provider
        self._refuse = fabric.provider.refusals.refuse
        if info.ep_attr.type != EpType.EP_MSG:
            raise self._refuse(
                Rule.PEP_TYPE,
                f"passive_ep: ep_attr.type {info.ep_attr.type!r}; only EP_MSG listens\n"
                "  try: fi.EpAttr(type=fi.EP_MSG) in the hints of getinfo",
            )
        self.info = dupinfo(info)
        self.context = context
        self._made_in = _process.generation
        self._policy = self.provider.domain(fabric.attr, self.info, Offer(self.info))
        self._address: Address = self._policy.endpoint(self.info).address
        self.config = _nic.EndpointConfig(
            vni=self._address[2], pids=self._policy.endpoint(self.info).nic_config().pids, connected=True
        )
        # A passive endpoint belongs to a fabric, but the NIC's endpoint needs a domain and a vector: internal ones.
        self._domain = _nic.DomainCore(
            self._policy.nic, _nic.DomainConfig(nic=self._address[0], statuses=self._policy.nic_config().statuses)
        )
        self._av = _nic.AddressVectorCore(self._domain)
        self._core = _nic.EndpointCore(self._domain, self.config)
        self._core.bind_av(self._av)
        self._opened(3, fabric)

    def bind(self, eq: EventQueue, flags: int = 0) -> None:
        """Set the event queue for connection requests (fi_pep_bind), before listen().

        Args:
            flags: 0.

        Raises:
            BadFlags: Unknown flags.
            InvalidArgument: `fid` is not an event queue, or a queue is bound already.
            WrongDomain: The queue is of another fabric.

        Source: fi_endpoint(3) fi_pep_bind.
        """
        op = "pep.bind"
        _handle.check(self, op)
        _handle.expect(eq, EventQueue, op, "eq")
        _handle.check(eq, op)
        flags = _args.number(op, flags=flags)
        if flags:
            raise self._refuse(Rule.PEP_BIND_FLAGS, f"{op}: flags {flags:#x}; they have to be 0\n  try: {op}(eq)")
        if eq.fabric is not self.fabric:
            raise self._refuse(
                Rule.PEP_BIND_FABRIC,
                f"{op}: {eq!r} belongs to another fabric\n  try: a queue of the same fabric, pep.fabric.eq_open()",
            )
        if self._eq is not None:
            raise self._refuse(
                Rule.PEP_BIND_TAKEN,
                f"{op}: requests are reported to {self._eq!r} already\n"
                "  try: another passive endpoint for another queue",
            )
        self._eq = eq
        attach(eq, self._core, self, self._policy, listens=True)
        _handle.adopt(self, eq)

    @property
    def address(self) -> Address:
        """(nic, pid, vni). Without a pid the NIC chooses."""
        return self._address

    def setname(self, addr: object) -> None:
        """Choose the address, before listen() (fi_setname). Raises BadState after it, InvalidArgument."""
        _handle.check(self, "pep.setname")
        if self._listens:
            raise self._refuse(Rule.EP_SETNAME_STATE, f"pep.setname: the address of {self!r} is fixed since listen()")
        codec = self.provider.addresses
        nic, pid, vni = codec.own(codec.parse(addr))
        if (nic, vni) != (self._address[0], self._address[2]):
            raise self._refuse(
                Rule.EP_SETNAME_PLACE,
                f"pep.setname: {addr!r} is on another NIC or VNI than {self!r}\n"
                "  try: src_addr in the info that passive_ep is given; setname changes the PID only",
            )
        self._address = (nic, pid, vni)

    def getname(self) -> Any:
        """The address that peers connect to (fi_getname). Raises BadState before listen(). Source: fi_cm(3)."""
        _handle.check(self, "pep.getname")
        if not self._listens:
            raise self._refuse(
                Rule.EP_GETNAME_STATE,
                "pep.getname: a passive endpoint has no address before listen()\n  try: pep.listen()",
            )
        return self.provider.addresses.emit(self.provider.addresses.public(self._address))

    def listen(self) -> None:
        """Start to receive requests (fi_listen): each is a CONNREQ event. A second call changes nothing.

        Up to 65536 requests wait in the event queue; further peers are refused.
        Raises NoEq (no event queue bound), AddressInUse. Source: fi_cm(3) fi_listen.
        """
        _handle.check(self, "pep.listen")
        if self._listens:
            return
        if self._eq is None:
            raise self._refuse(Rule.EP_NO_EQ, "pep.listen: no event queue is bound\n  try: pep.bind(fabric.eq_open())")
        nic, pid, vni = self._address
        try:
            self._address = (nic, self._core.enable_at(nic, pid), vni)
        except errors.AddressInUse as taken:
            raise self._refuse(Rule.EP_ADDRESS_TAKEN, taken.message) from None
        self._listens = True

    def reject(self, handle: ConnectionRequest, param: Any = None, paramlen: int | None = None) -> None:
        """Turn a request down (fi_reject): its sender gets an error event, ECONNREFUSED, with the private data.

        Args:
            handle: `info.handle` of the CONNREQ event.
            param: Private data for the sender, up to 256 B.
            paramlen: Bytes of `param` to send; None: all.

        Raises:
            InvalidArgument: It is no request to this endpoint, it is answered already, or there is too much data.

        Source: fi_cm(3) fi_reject.
        """
        op = "pep.reject"
        _handle.check(self, op)
        _handle.expect(handle, ConnectionRequest, op, "handle")
        if handle.pep is not self or handle.answered:
            raise self._refuse(Rule.CM_REQUEST, f"{op}: {handle!r} is answered already, or was not made to {self!r}")
        data = private_data(op, param, paramlen, self.provider.refusals)
        handle.answered = True
        self._core.send_cm(to_core(handle.source), CmKind.reject, handle.connection, data)

    def _on_cm(self, eq: EventQueue, found: CmFound) -> None:
        event = CmEvent.of(found)
        if event.kind is not CmKind.request or self._closed:
            return  # for example the delivery report of a rejection, which needs no reaction
        info = dupinfo(self.info)
        info.src_addr = None
        info.dest_addr = self.provider.addresses.emit(event.source)
        info.handle = ConnectionRequest(self, event.source, event.connection)
        eq.post(EqEvent.CONNREQ, EqCmEntry(self, info, event.data))

    def _release(self) -> None:
        for entry in () if self._eq is None else self._eq._forget(self):
            request = entry.info.handle
            request.answered = True
            self._core.send_cm(to_core(request.source), CmKind.reject, request.connection, b"")
        self._core.close()
        self._av.close()
        self._domain.close()
        self._policy.close()

    def _parents(self) -> tuple[Any, ...]:
        return (self.fabric,) if self._eq is None else (self.fabric, self._eq)

    def __repr__(self) -> str:
        if self._closed:
            return "<PassiveEndpoint closed>"
        state = "listening" if self._listens else "not listening"
        return f"<PassiveEndpoint {self.provider.addresses.text(self._address)} {state}>"


def to_core(address: Address) -> tuple[int, int, int]:
    """An address with its pid."""
    nic, pid, vni = address
    assert pid is not None
    return nic, pid, vni


def must_be_idle(ep: Any, op: str) -> None:
    """Refuse to connect an endpoint that has, or had, a connection."""
    state = ep.cm_look()[0]
    if state != CmState.idle:
        rule = Rule.EP_CONNECTED if state == CmState.connected else Rule.EP_CONNECTING
        raise ep._refuse(rule, f"{op}: {ep!r} is {state_text(ep)}\n  try: a new endpoint for another connection")


def state_text(ep: Any) -> str:
    """The state of an endpoint's connection, in words."""
    return str(ep.cm_look()[0].name.replace("_", " "))


def on_cm(ep: Any, eq: EventQueue, event: CmEvent) -> None:
    """Handle the outcome of a request or an answer, or a message of the peer: the NIC keeps the state."""
    news = ep.cm_take(event.kind, event.what or 0, to_core(event.source), event.connection)
    if news == CmNews.connected:
        eq.post(EqEvent.CONNECTED, EqCmEntry(ep, None, event.data))
    elif news == CmNews.ended:
        eq.post(EqEvent.SHUTDOWN, EqCmEntry(ep, None, b""))
    elif news == CmNews.rejected:
        eq.post_error(EqErrEntry(ep, ep.context, 0, int(Errno.ECONNREFUSED), 0, event.data))
    elif news == CmNews.failed:
        err, prov_errno = ep.domain.policy.statuses[event.status]
        eq.post_error(EqErrEntry(ep, ep.context, 0, err, prov_errno, event.data))
