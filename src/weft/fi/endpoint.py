"""Endpoints (fi_endpoint): the source of this process's operations, and the target of its peers' operations.

The data path, fi_msg(3), fi_tagged(3), fi_rma(3) and fi_atomic(3), is in the extension: the class inherits these
methods unchanged, so that an operation crosses into the NIC once and runs no Python code of Weft.

Source: fi_endpoint(3), fi_cm(3), fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .. import _nic, errors
from .._nic import CmKind, CmState
from ..flags import BindFlag, EpType, Flag, Opt, OptLevel
from . import _args, _handle, _offered
from ._control import Controlled
from ._counted import Counted
from ._later import EndpointLater
from ._of_info import EndpointOfInfo
from ._ops_flag import COMMANDS, OpFlags
from .atomic import query
from .auth_key import keys_in_force, keys_of_vector, take_key
from .av import AddressVector
from .cm import (
    CmEvent,
    CmFound,
    ConnectionRequest,
    attach,
    must_be_idle,
    new_connection,
    on_cm,
    private_data,
    state_text,
    to_core,
)
from .cntr import Counter
from .cq import CompletionQueue, CqTaggedEntry
from .ep_alias import EndpointAlias
from .eq import EventQueue
from .group import Joins, on_event
from .policy import Address, AddressCodec, Extensions
from .rules import Rule

if TYPE_CHECKING:
    from .attrs import Info
    from .domain import Domain
    from .ep_statistics import EndpointStatistics, MessageStatistics

_CQ_FLAGS = int(Flag.TRANSMIT | Flag.RECV | BindFlag.SELECTIVE_COMPLETION)
_LOCAL_COUNTS = int(Flag.SEND | Flag.RECV | Flag.READ | Flag.WRITE)
_REMOTE_COUNTS = int(Flag.REMOTE_READ | Flag.REMOTE_WRITE)


class Endpoint(
    EndpointOfInfo, OpFlags, Controlled, Counted, Joins, EndpointLater, _handle.LifeInDomain, _nic.EndpointCore
):
    """An endpoint (struct fid_ep), reliable-datagram or connected. Made by `Domain.endpoint`.

    Bind a completion queue, an address vector and, where wanted, counters; then `enable()`; then transfer:

        send sendv sendmsg inject senddata injectdata recv recvv recvmsg                        fi_msg(3)
        tsend tsendv tsendmsg tinject tsenddata tinjectdata trecv trecvv trecvmsg               fi_tagged(3)
        read readv readmsg write writev writemsg inject_write writedata inject_writedata        fi_rma(3)
        read_batch write_batch                                                                  many in one call
        atomic atomicv atomicmsg inject_atomic fetch_atomic* compare_atomic*                    fi_atomic(3)
        barrier barrier2 broadcast reduce allreduce                                             fi_collective(3)
        cancel(context)                                                                         fi_cancel

    A connected endpoint (`fi.EP_MSG`) has no address vector: bind an event queue, `connect(name)` or `accept()`, and
    read the CONNECTED event. Its transfers go to its peer; dest_addr is ignored.

    A transfer raises Again while the transmit queue is full: read the completion queue and retry.
    Thread safety: any thread. Source: fi_endpoint(3).
    """

    _called = "ep"
    _commands = COMMANDS
    _selective = 0  # sides bound with SELECTIVE_COMPLETION

    def __init__(self, domain: Domain, info: Info, context: Any) -> None:
        self._refuse = domain.policy.refusals.refuse
        if info.ep_attr.type not in (0, domain.info.ep_attr.type):
            raise self._refuse(Rule.EP_TYPE, f"endpoint: type {info.ep_attr.type!r} is not a type of {domain!r}")
        _offered.endpoint(domain.provider, domain._offer, info)
        self.domain = domain
        self.info = info
        self.context = context
        if keys_in_force(domain.info) and not keys_of_vector(domain.info):
            take_key("endpoint", domain.provider, info.ep_attr)
        self.policy = domain.policy.endpoint(info)
        self._address = self.policy.address
        self._bound: list[Any] = []
        self._cqs: dict[int, CompletionQueue] = {}
        self._cntrs: dict[int, Counter] = {}
        self._av: AddressVector | None = None
        self._eq: EventQueue | None = None
        self._op_flags = {int(Flag.TRANSMIT): int(info.tx_attr.op_flags), int(Flag.RECV): int(info.rx_attr.op_flags)}
        self._connected = domain.info.ep_attr.type == EpType.EP_MSG
        config = self.policy.nic_config()
        config.tells_context = self.policy.inject_context and context is not None
        super().__init__(domain, config)
        if self._connected:
            # The NIC needs an address vector; the application does not see this one, which has one peer.
            self._own_av = _nic.AddressVectorCore(domain)
            self.bind_av(self._own_av)
        self._ask_about()
        self._opened(3, domain)

    @property
    def _codec(self) -> AddressCodec:
        return self.domain.provider.addresses

    # ---- set-up ------------------------------------------------------------------------------------------------------

    def bind(self, fid: CompletionQueue | Counter | AddressVector | EventQueue, flags: int = 0) -> None:
        """Associate the endpoint with a queue, a counter or an address vector (fi_ep_bind), before enable().

        Args:
            fid: The object; the endpoint holds it, and it cannot be closed before the endpoint.
            flags: Of a completion queue `fi.TRANSMIT` (completions of this side's operations), `fi.RECV` (of what peers
                send), or both; with `fi.SELECTIVE_COMPLETION` only operations flagged `fi.COMPLETION` are reported. Of
                a counter any of `fi.READ`, `fi.WRITE` (operations of this side), `fi.REMOTE_READ`, `fi.REMOTE_WRITE`
                (of peers on this endpoint; needs `fi.RMA_EVENT`), `fi.SEND`, `fi.RECV`. Of other objects 0.

        Raises BadFlags, BadState (enabled already), WrongDomain, InvalidArgument (bound already; another object).
        Source: fi_endpoint(3) fi_ep_bind.
        """
        _handle.check(self, "ep.bind")
        if not isinstance(fid, (CompletionQueue, Counter, AddressVector, EventQueue)):
            raise self._refuse(
                Rule.EP_BIND_OBJECT,
                f"ep.bind: an endpoint takes a CompletionQueue, Counter, AddressVector or EventQueue, not {fid!r}",
            )
        _handle.check(fid, "ep.bind")
        flags = _args.number("ep.bind", flags=flags)
        if self._enabled:
            raise self._refuse(Rule.EP_BIND_STATE, f"ep.bind: {self!r} is enabled\n  try: bind before enable()")
        if isinstance(fid, CompletionQueue):
            bound = self._bind_cq(fid, int(flags))
        elif isinstance(fid, Counter):
            bound = self._bind_cntr(fid, int(flags))
        else:
            if flags:
                raise self._refuse(Rule.EP_BIND_FLAGS, f"ep.bind: flags {Flag(flags)!s} for {fid!r}; they have to be 0")
            self._same_domain(fid)
            bound = self._bind_eq(fid) if isinstance(fid, EventQueue) else self._bind_av(fid)
        if bound:
            self._bound.append(fid)
            _handle.adopt(self, fid)

    def _same_domain(self, fid: Any) -> None:
        if isinstance(fid, EventQueue):
            if fid.fabric is not self.domain.fabric:
                raise self._refuse(Rule.EP_BIND_DOMAIN, f"ep.bind: {fid!r} belongs to another fabric")
        elif fid.domain is not self.domain:
            raise self._refuse(
                Rule.EP_BIND_DOMAIN, f"ep.bind: {fid!r} belongs to {fid.domain!r}, the endpoint to {self.domain!r}"
            )

    def _bind_eq(self, eq: EventQueue) -> bool:
        if self._eq is not None:
            raise self._refuse(Rule.EP_BIND_TAKEN, f"ep.bind: the endpoint reports to {self._eq!r} already")
        self._eq = eq
        attach(eq, self, self, self.domain.policy)
        return True

    def _bind_av(self, av: AddressVector) -> bool:
        if self._connected:
            raise self._refuse(
                Rule.EP_BIND_CONNECTED,
                "ep.bind: a connected endpoint has one peer and no address vector\n  try: connect() or accept()",
            )
        if self._av is not None:
            raise self._refuse(Rule.EP_BIND_TAKEN, f"ep.bind: the endpoint has an address vector already, {self._av!r}")
        self.bind_av(av)
        self._av = av
        return True

    def _bind_cq(self, cq: CompletionQueue, flags: int) -> bool:
        if flags & ~_CQ_FLAGS:
            raise self._refuse(
                Rule.EP_BIND_FLAGS,
                f"ep.bind: flags {BindFlag(flags)!s} for a completion queue\n"
                "  known: TRANSMIT, RECV, SELECTIVE_COMPLETION",
            )
        self._same_domain(cq)
        sides = flags & int(Flag.TRANSMIT | Flag.RECV)
        if not sides and self.policy.binds.nothing:
            return False
        if not sides:
            raise self._refuse(
                Rule.EP_BIND_NOTHING, "ep.bind: say what the completion queue is for: TRANSMIT, RECV or both"
            )
        for side in (int(Flag.TRANSMIT), int(Flag.RECV)):
            if sides & side and side in self._cqs:
                raise self._refuse(Rule.EP_BIND_TAKEN, f"ep.bind: {Flag(side)!s} goes to {self._cqs[side]!r} already")
        self.bind_cq(cq, flags)
        for side in (int(Flag.TRANSMIT), int(Flag.RECV)):
            if sides & side:
                self._cqs[side] = cq
                if flags & BindFlag.SELECTIVE_COMPLETION:
                    self._selective |= side
                else:
                    self._op_flags[side] |= int(Flag.COMPLETION)
        return True

    def _bind_cntr(self, cntr: Counter, flags: int) -> bool:
        if flags & ~(_LOCAL_COUNTS | _REMOTE_COUNTS):
            raise self._refuse(
                Rule.EP_BIND_FLAGS,
                f"ep.bind: flags {Flag(flags)!s} for a counter\n"
                "  known: SEND, RECV, READ, WRITE, REMOTE_READ, REMOTE_WRITE",
            )
        self._same_domain(cntr)
        rules = self.policy.binds
        if not flags and rules.nothing:
            return False
        if not flags:
            raise self._refuse(
                Rule.EP_BIND_NOTHING, "ep.bind: say what the counter counts: READ, WRITE, REMOTE_READ, REMOTE_WRITE ..."
            )
        if rules.remote_counts and flags & _REMOTE_COUNTS and not self.info.caps & Flag.RMA_EVENT:
            raise self._refuse(
                Rule.EP_BIND_EVENT,
                f"ep.bind: {Flag(flags & _REMOTE_COUNTS)!s} needs an endpoint opened with RMA_EVENT\n"
                "  try: getinfo with fi.RMA_EVENT among the capabilities of the hints",
            )
        for bit in (1 << n for n in range(flags.bit_length())):
            if flags & bit and bit in self._cntrs:
                raise self._refuse(
                    Rule.EP_BIND_TAKEN, f"ep.bind: {Flag(bit)!s} is counted by {self._cntrs[bit]!r} already"
                )
        counted = flags if rules.remote_counts else flags & ~_REMOTE_COUNTS
        if counted:
            self.bind_cntr(cntr, counted)
        for bit in (1 << n for n in range(flags.bit_length())):
            if flags & bit:
                self._cntrs[bit] = cntr
        return True

    def enable(self) -> None:
        """Make the endpoint ready for transfers and claim its address (fi_enable). Enabling again changes nothing.

        Raises NoAv (no address vector bound), NoCq (no completion queue for a direction that the endpoint has: failures
        are reported there even where successes are not), AddressInUse (another endpoint has the pid that src_addr or
        setname asked for).
        Source: fi_endpoint(3) fi_enable.
        """
        _handle.check(self, "ep.enable")
        if self._enabled:
            return
        self.policy.check_enable(Bindings(self))
        nic, pid, vni = self._address
        vnis = self._vnis()
        if vnis:
            vni = vnis[0]
        self.policy.enabling(self)
        try:
            self._address = (nic, self._claim(nic, pid, vnis), vni)
        except errors.AddressInUse as taken:
            self.policy.close()
            raise self._taken((nic, pid, vni), taken) from None
        self._enabled = True

    def _vnis(self) -> list[int]:
        """The VNIs that the endpoint gets of its vector's keys; empty: the keys of its domain are elsewhere."""
        if not keys_of_vector(self.domain.info) or self._av is None:
            return []
        vnis: list[int] = self._av.vnis
        if not vnis:
            raise self._refuse(
                Rule.EP_ENABLE_KEYS,
                f"ep.enable: {self._av!r} holds no authorization key\n"
                "  rule: on a domain opened with AV_AUTH_KEY the endpoint has the keys of its vector\n"
                "  try: av.insert_auth_key first",
            )
        return vnis

    def _claim(self, nic: int, pid: int | None, vnis: list[int]) -> int:
        """Enable at the address; returns the pid."""
        while True:
            try:
                return self.enable_at(nic, pid, vnis)
            except errors.NoSpace as missing:
                try:
                    self.policy.make_room(missing)
                except BaseException:
                    self.policy.close()
                    raise

    def _taken(self, address: Address, why: errors.AddressInUse) -> errors.FabricError:
        """The refusal of an address that another endpoint has, as the provider writes addresses."""
        text = self.domain.provider.addresses.text(address)
        refused: errors.FabricError = self._refuse(
            Rule.EP_ADDRESS_TAKEN, f"ep.enable: {text} is taken\n  {why.message}"
        )
        return refused

    def getname(self) -> Any:
        """The endpoint's address, to be given to peers (fi_getname): a str under FI_ADDR_STR.

        If this process listens for other hosts (`weft.open(listen=...)`, `WEFT_LISTEN`), they can use the address too.

        Raises BadState before enable(). Source: fi_cm(3) fi_getname.
        """
        _handle.check(self, "ep.getname")
        if not self._enabled:
            raise self._refuse(Rule.EP_GETNAME_STATE, "ep.getname: the endpoint has no address before enable()")
        return self._codec.emit(self._codec.public(self._address))

    def setname(self, addr: object) -> None:
        """Choose the endpoint's address, in the form of `getname`, before enable() (fi_setname).

        Raises BadState after enable(), InvalidArgument (another NIC or VNI than the endpoint's). Source: fi_cm(3).
        """
        _handle.check(self, "ep.setname")
        if not self.policy.binds.named:
            raise self._refuse(
                Rule.EP_SETNAME,
                "ep.setname: not supported; getinfo(node, service, fi.SOURCE) returns an info with the address",
            )
        if self._enabled:
            raise self._refuse(Rule.EP_SETNAME_STATE, f"ep.setname: the address of {self!r} is fixed since enable()")
        nic, pid, vni = self._codec.own(self._codec.parse(addr))
        if (nic, vni) != (self._address[0], self._address[2]):
            here = self._codec.text((self._address[0], None, self._address[2]))
            raise self._refuse(
                Rule.EP_SETNAME_PLACE, f"ep.setname: {addr!r} is on another NIC or VNI than the endpoint, {here}"
            )
        self._address = (nic, pid, vni)

    # ---- connections (fi_cm) -----------------------------------------------------------------------------------------

    def connect(self, addr: object = None, param: Any = None, paramlen: int | None = None) -> None:
        """Ask a passive endpoint for a connection (fi_connect). The result is an event: CONNECTED with the peer's
        private data; or an error, ECONNREFUSED if the peer rejects (err_data has its private data) or no endpoint
        listens.

        Args:
            addr: An address from `PassiveEndpoint.getname()`; None: `info.dest_addr`.
            param: Private data for the peer, up to 256 B.
            paramlen: Bytes of `param` to send; None: all.

        Enables the endpoint. After a refusal the endpoint may connect again.
        Raises NotSupported (not an EP_MSG endpoint), NoEq (no event queue bound), InvalidArgument (no address, too much
        data), FabricError with EISCONN or EALREADY. Source: fi_cm(3) fi_connect.
        """
        op = "ep.connect"
        self._connectable(op)
        data = private_data(op, param, paramlen, self.domain.policy.refusals)
        to = self.info.dest_addr if addr is None else addr
        if to is None:
            raise self._refuse(
                Rule.EP_CONNECT_ADDRESS, f"{op}: no address was given, and the endpoint's info has no dest_addr"
            )
        there = self._codec.parse(to)
        if there[1] is None:
            raise self._refuse(Rule.EP_CONNECT_ADDRESS, f"{op}: {to!r} names no endpoint: the pid is missing")
        self.enable()
        must_be_idle(self, op)
        self.cm_step(CmKind.request, to_core(there), new_connection(), data)

    def accept(self, param: Any = None, paramlen: int | None = None) -> None:
        """Accept the request that the endpoint was opened with (fi_accept): `domain.endpoint(entry.info)` of a
        CONNREQ event. Both sides then read a CONNECTED event.

        Args:
            param: Private data for the peer, up to 256 B.
            paramlen: Bytes of `param` to send; None: all.

        Enables the endpoint. Raises NotSupported, NoEq, InvalidArgument (no request, a request answered already, too
        much data). Source: fi_cm(3) fi_accept.
        """
        op = "ep.accept"
        self._connectable(op)
        data = private_data(op, param, paramlen, self.domain.policy.refusals)
        request = self.info.handle
        if not isinstance(request, ConnectionRequest) or request.answered:
            raise self._refuse(
                Rule.CM_REQUEST,
                f"{op}: {request!r} is not an unanswered connection request\n"
                "  try: domain.endpoint(entry.info) of a CONNREQ event",
            )
        self.enable()
        must_be_idle(self, op)
        self.cm_step(CmKind.accept, to_core(request.source), request.connection, data)
        request.answered = True

    def shutdown(self, flags: int = 0) -> None:
        """End the connection (fi_shutdown): the peer reads a SHUTDOWN event, and neither side reaches the other again.

        Raises BadFlags (flags other than 0), NotSupported, FabricError with ENOTCONN. Source: fi_cm(3) fi_shutdown.
        """
        op = "ep.shutdown"
        self._connectable(op)
        flags = _args.number(op, flags=flags)
        if flags:
            raise self._refuse(Rule.EP_SHUTDOWN_FLAGS, f"{op}: flags {flags:#x}; they have to be 0")
        self._of_peer(op)
        self.cm_step(CmKind.shutdown, (0, 0, 0), 0, b"")

    def getpeer(self) -> Any:
        """The address of the peer (fi_getpeer). Raises NotSupported, FabricError with ENOTCONN. Source: fi_cm(3)."""
        op = "ep.getpeer"
        self._connectable(op)
        return self._codec.emit(self._of_peer(op))

    def _connectable(self, op: str) -> None:
        _handle.check(self, op)
        if not self._connected:
            raise self._refuse(
                Rule.EP_CONNECTIONLESS,
                f"{op}: {self!r} is connectionless\n  try: fi.EpAttr(type=fi.EP_MSG) in the hints of getinfo",
            )
        if self._eq is None:
            raise self._refuse(Rule.EP_NO_EQ, f"{op}: no event queue is bound\n  try: ep.bind(fabric.eq_open())")

    def _of_peer(self, op: str) -> tuple[int, int | None, int]:
        if self._eq is not None:
            self._eq.pending()  # takes messages that have arrived
        state, peer, _ = self.cm_look()
        if state != CmState.connected:
            raise self._refuse(Rule.EP_NOT_CONNECTED, f"{op}: {self!r} is not connected ({state_text(self)})")
        return peer

    def _on_cm(self, eq: EventQueue, found: CmFound) -> None:
        if not self._closed and not on_event(self, eq, found[1], found[4]):
            on_cm(self, eq, CmEvent.of(found))

    def unreceived(self, max: int) -> tuple[list[CqTaggedEntry], list[int], int]:  # type: ignore[override]
        """Messages that no receive has taken: untagged ones first, each kind in order of arrival.

        Returns entries of at most `max` of them, their senders' fi_addr (`fi.ADDR_NOTAVAIL`: in no address vector), and
        the number of all. Raises BadState (closed), TypeError, OverflowError.
        """
        op = "ep.unreceived"
        _handle.check(self, op, max=max)
        found, total = super().unreceived(max)
        entries = [CqTaggedEntry(None, flags, length, 0, data, tag) for flags, length, data, tag, _ in found]
        return entries, [source for *_, source in found], total

    # ---- options -----------------------------------------------------------------------------------------------------

    def getopt(self, level: int, optname: int) -> Any:
        """An endpoint option (fi_getopt): level `fi.OPT_ENDPOINT`, optname `fi.OPT_MAX_MSG_SIZE`, `fi.OPT_TX_SIZE` ...

        Raises NoProtocolOption. Source: fi_endpoint(3) "fi_getopt / fi_setopt".
        """
        _handle.check(self, "ep.getopt")
        optname = _args.command("ep.getopt", optname=optname)
        self._level("ep.getopt", _args.command("ep.getopt", level=level))
        option = self.policy.options.get(optname)
        if option is None or option.get is None:
            known = ", ".join(
                one.name or _opt(name) for name, one in self.policy.options.items() if one.get is not None
            )
            raise self._refuse(Rule.OPT_UNKNOWN, f"ep.getopt: unknown option {_opt(optname)}; known: {known}")
        return option.get()

    def setopt(self, level: int, optname: int, optval: Any) -> None:
        """Set an endpoint option (fi_setopt).

        Args:
            level: `fi.OPT_ENDPOINT`.
            optname: `fi.OPT_MIN_MULTI_RECV`: a buffer posted with MULTI_RECV ends when fewer bytes are left. Request
                other sizes in the hints of getinfo.

        Raises NoProtocolOption, and the provider's refusals of the value. Source: fi_endpoint(3).
        """
        _handle.check(self, "ep.setopt")
        optname = _args.command("ep.setopt", optname=optname)
        self._level("ep.setopt", _args.command("ep.setopt", level=level))
        option = self.policy.options.get(optname)
        if option is None or option.set is None:
            raise self._refuse(
                Rule.OPT_READ_ONLY,
                f"ep.setopt: {(option and option.name) or _opt(optname)} cannot be set; request sizes and limits in "
                "the hints of getinfo",
            )
        option.set(optval)
        if option.tell is not None:
            option.tell(self)

    def _level(self, op: str, level: int) -> None:
        if level != OptLevel.OPT_ENDPOINT:
            raise self._refuse(Rule.OPT_LEVEL, f"{op}: level {level}; only OPT_ENDPOINT is known")

    # ---- queries -----------------------------------------------------------------------------------------------------

    def _valid(self, datatype: int, op: int, family: int) -> int:
        _handle.check(self, "ep.atomicvalid", datatype=datatype, op=op)
        if not self.info.caps & Flag.ATOMIC or not self.info.caps & (Flag.READ | Flag.WRITE):
            raise self._refuse(
                Rule.ATOMIC_NO_CAP,
                "the endpoint was opened without ATOMIC, and READ or WRITE: ask for them in the hints of getinfo",
            )
        return query(datatype, op, family, self.domain.policy.refusals, self.atomic_limit).count

    def cancel(self, context: object) -> None:
        """Cancel the oldest receive with this context that has taken no message, and operations with this context that
        have not started (fi_cancel); each completes as canceled. The context is the same object, not an equal one.

        Raises NotFound (no such operation; it may just have completed), BadState. Source: fi_endpoint(3) fi_cancel.
        """
        _handle.check(self, "ep.cancel")
        if self.policy.cancels:
            super().cancel(context)
            return
        if not self.info.caps & Flag.RECV:
            raise self._refuse(
                Rule.EP_CANCEL_NONE,
                "ep.cancel: the endpoint has no receives; transfers cannot be cancelled under this provider",
            )
        if not self._enabled:
            raise self._refuse(Rule.EP_CANCEL_STATE, f"ep.cancel: {self!r} is not enabled")
        try:
            super().cancel(context)
        except errors.NotFound:
            raise self._refuse(
                Rule.EP_CANCEL_NONE,
                "ep.cancel: no receive has this context; transfers cannot be cancelled under this provider",
            ) from None

    # ---- operation flags ---------------------------------------------------------------------------------------------

    def alias(self, flags: int = 0, context: Any = None) -> EndpointAlias:
        """Another view of the endpoint, with its own operation flags (fi_ep_alias).

        Args:
            flags: `fi.TRANSMIT` or `fi.RECV`, and the default flags of operations of that side.
            context: Any object, kept as `alias.context`.

        Close the alias before the endpoint.
        Raises InvalidArgument (no side, or both), BadFlags (flags that the provider does not have).
        Source: fi_endpoint(3) fi_ep_alias.
        """
        side, op_flags = self._of_alias(flags)
        return EndpointAlias(self, self, side, op_flags, context)

    if TYPE_CHECKING:  # of Counted

        def statistics(self) -> EndpointStatistics: ...  # type: ignore[override]
        def message_statistics(self) -> MessageStatistics: ...  # type: ignore[override]

    @property
    def _extensions(self) -> Extensions:
        return self.policy

    # ---- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the endpoint (fi_close): its address is free, receives and waiting messages are dropped. Operations
        under way complete as canceled; the provider cxi drops them, too. Raises Busy. Source: fi_endpoint(3)."""
        _handle.close(self, self._release, {**self._children, **self._staged()}, self._parents())

    def _parents(self) -> tuple[Any, ...]:
        return (self.domain, *self._bound)

    def _staged(self) -> _handle.Children:
        """Regions that the extension bound to the endpoint, if they keep the endpoint from being closed."""
        if self._closed or self.domain.policy.regions.busy != "ep" or _handle.elsewhere(self):
            return {}
        return {id(mr): weakref.ref(mr) for mr in reversed(self.domain.staged_with(self))}

    def _release(self) -> None:
        if self._connected:
            self.cm_step(CmKind.shutdown, (0, 0, 0), 0, b"")  # notifies the peer
            self._own_av.close()
        _nic.EndpointCore.close(self)
        self.policy.close()

    def __repr__(self) -> str:
        name = self._codec.text(self._address)
        if self._closed:
            return f"<Endpoint {name} closed>"
        if _handle.elsewhere(self):
            return f"<Endpoint {name} of the parent process>"
        parts = ["enabled" if self._enabled else "disabled"]
        parts[0] += f", tx {self.statistics().tx_pending}/{self.info.tx_attr.size}"
        cqs = list(dict.fromkeys(self._cqs.values()))
        if cqs:
            parts.append("cq=" + "+".join("closed" if cq._closed else f"{cq.pending()}/{cq.capacity}" for cq in cqs))
        if self._connected:
            parts.append(state_text(self))
        if self._av is not None:
            parts.append(f"av={self._av.count()} peers")
        return f"<Endpoint {name} {', '.join(parts)}>"


class Bindings:
    """The bindings of an endpoint, for its policy."""

    def __init__(self, ep: Endpoint) -> None:
        self.connected = ep._connected
        self.has_av = ep._av is not None
        self.has_tx_cq = int(Flag.TRANSMIT) in ep._cqs
        self.has_rx_cq = int(Flag.RECV) in ep._cqs
        self.keys = 0 if ep._av is None else len(ep._av.vnis)
        self._ep = ep

    def try_address(self) -> None:
        ep = self._ep
        nic, pid, _ = ep._address
        vnis = ep._av.vnis if ep._av is not None and keys_of_vector(ep.domain.info) else []
        try:
            ep.try_at(nic, pid, vnis)
        except errors.AddressInUse as taken:
            raise ep._taken(ep._address, taken) from None


def _opt(optname: int) -> str:
    try:
        return str(Opt(optname))
    except ValueError:
        return str(optname)
