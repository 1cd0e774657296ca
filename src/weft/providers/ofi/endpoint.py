"""Endpoints of a real libfabric (fi_endpoint). The data path is in the extension. Source: fi_endpoint(3), fi_cm(3)."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import weakref
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ...fi import _args, _handle
from ...fi._calls import CALLS
from ...fi._control import Controlled
from ...fi._of_info import EndpointOfInfo
from ...fi.attrs import Info
from ...fi.cntr import Counter
from ...fi.cq import CompletionQueue
from ...flags import BindFlag, Control, EpType, Errno, Flag, Opt, OptLevel
from ._common import later, stands_for
from .av import RealAddressVector, packed_name
from .av_set import RealAvSet
from .eq import RealEventQueue
from .group import RealCollectiveGroup, join
from .quirks import Quirk, file_of_name, has
from .request import RealRequest, private_bytes

if TYPE_CHECKING:
    from .domain import RealDomain

_SIDES = int(Flag.TRANSMIT | Flag.RECV)
# Options that are a C int or bool; all others are a size_t.
_SIZES = {int(Opt.OPT_FI_HMEM_P2P): 4, int(Opt.OPT_CUDA_API_PERMITTED): 1, int(Opt.OPT_SHARED_MEMORY_PERMITTED): 1}


# Names, with this process's number, of its enabled endpoints (Quirk.NAMED_BY_PROCESS).
_names: weakref.WeakValueDictionary[bytes | str, RealEndpoint] = weakref.WeakValueDictionary()
# What a connected endpoint may do once the event queue has reported the connection.
_SENDING = [call.name for call in CALLS if call.kind != "recv" and call.table not in ("batch", "collective")]


@later("libfabric has no such call: post each by itself", "read_batch", "write_batch")
@later("the library does not tell: Weft's NIC does", "statistics", "message_statistics", "unreceived")
@later("scalable endpoints and shared contexts are not supported", "tx_context", "rx_context")
class RealEndpoint(EndpointOfInfo, Controlled, _handle.LifeInDomain, _nic.OfiEndpointCore):
    """An endpoint of the library (struct fid_ep). Made by `Domain.endpoint`.

    The transfers of `fi.Endpoint`, with its arguments. An operation holds its buffers and its context until the queue
    has reported it, or the endpoint is closed.
    Thread safety: any thread. Source: fi_endpoint(3).
    """

    __class__ = stands_for("endpoint.Endpoint")

    _called = "ep"
    _commands = {  # noqa: RUF012
        int(Control.ENABLE): lambda ep, arg: ep.enable(),
        int(Control.ALIAS): lambda ep, flags: ep.alias(flags),
        int(Control.GETOPSFLAG): lambda ep, flags: ep.getopsflag_core(
            _of_one_side("ep.control(GETOPSFLAG)", flags) & _SIDES
        ),
        int(Control.SETOPSFLAG): lambda ep, flags: ep.setopsflag_core(_of_one_side("ep.control(SETOPSFLAG)", flags)),
    }
    domain: Any

    def __init__(self, domain: RealDomain, info: Info, context: Any) -> None:
        self.domain = domain
        self.info = info
        self.context = context
        self._bound: list[Any] = []
        self._cqs: dict[int, Any] = {}
        self._av: Any = None
        self._eq: Any = None
        self._chose_name = False
        self._options: list[tuple[int, int, int, int]] = []  # objects that wait for enable()
        self._joins = 0
        self._request = info.handle if isinstance(info.handle, RealRequest) else None
        if self._request is not None and (self._request.taken or self._request.answered):
            raise errors.InvalidArgument(
                f"endpoint: {self._request!r} has its endpoint, or was rejected\n  try: the info of another request"
            )
        _nic.OfiEndpointCore.__init__(self, domain, domain.fabric.native(info))
        if self._request is not None:
            self._request.taken = True
        domain.fabric._fids[self.fid] = self
        self._opened(3, domain)
        self._linked = info.ep_attr.type != EpType.EP_MSG
        if not self._linked:
            me = weakref.ref(self)
            for name in _SENDING:
                self.__dict__[name] = functools.partial(_when_linked, me, name)

    # ---- set-up ------------------------------------------------------------------------------------------------------

    def bind(self, fid: Any, flags: int = 0) -> None:
        """Associate the endpoint with a queue, a counter or an address vector (fi_ep_bind); flags as in `fi.Endpoint`.

        The endpoint holds the bound objects; they cannot be closed before the endpoint. Raises the library's refusal.
        """
        op = "ep.bind"
        _handle.check(self, op)
        ours = isinstance(fid, (CompletionQueue, Counter)) and type(fid.domain) is type(self.domain)
        if not ours and type(fid) not in (RealAddressVector, RealEventQueue):
            raise errors.InvalidArgument(
                f"{op}: an endpoint takes a CompletionQueue, Counter, AddressVector or EventQueue of its domain, not "
                f"{fid!r}"
            )
        _handle.check(fid, op)
        flags = _args.number(op, flags=flags)
        if type(fid) is RealEventQueue:
            if fid.fabric is not self.domain.fabric:
                raise errors.WrongDomain(f"{op}: {fid!r} belongs to another fabric")
            self.bind_eq(fid, flags)
            self._eq = fid
        elif fid.domain is not self.domain:
            raise errors.WrongDomain(f"{op}: {fid!r} belongs to {fid.domain!r}, the endpoint to {self.domain!r}")
        elif isinstance(fid, CompletionQueue):
            if not flags & _SIDES or flags & ~(_SIDES | int(BindFlag.SELECTIVE_COMPLETION)):
                raise errors.BadFlags(
                    f"{op}: flags {BindFlag(flags)!s} for a completion queue\n"
                    "  known: TRANSMIT, RECV, SELECTIVE_COMPLETION"
                )
            self.bind_cq(fid, flags)
            for side in (int(Flag.TRANSMIT), int(Flag.RECV)):
                if flags & side:
                    self._cqs[side] = fid
        elif isinstance(fid, Counter):
            self.bind_cntr(fid, flags)
        else:
            self.bind_av(fid, flags)
            self._av = fid
        self._bound.append(fid)
        _handle.adopt(self, fid)

    def enable(self) -> None:
        """Make the endpoint ready for transfers (fi_enable). Raises the library's refusal (NoCq, NoAv ...).

        Bound queues and counters can be read from then on. An earlier read raises BadState, because it would end the
        process with some providers.
        """
        _handle.check(self, "ep.enable")
        if not self._enabled:
            if int(Flag.RECV) not in self._cqs and self._quirk(Quirk.NEEDS_RECV_QUEUE):
                raise errors.NoCq(
                    "ep.enable: no completion queue is bound for RECV, and this provider of libfabric then ends the "
                    "process\n  try: ep.bind(cq, fi.RECV), also for an endpoint that only sends"
                )
            if self._quirk(Quirk.NAMED_BY_PROCESS):
                self._take_name()
            try:
                try:
                    self.enable_core()
                except errors.Busy:
                    if not self._quirk(Quirk.NAMED_BY_PROCESS):
                        raise
                    self._take_another_name()
                    self.enable_core()
            except errors.BadState as reason:
                if self._av is not None or self.info.ep_attr.type == EpType.EP_MSG:
                    raise
                raise errors.NoAv(
                    f"ep.enable: no address vector is bound ({reason.message.splitlines()[0].partition(': ')[2]})\n"
                    "  try: ep.bind(domain.av_open())"
                ) from reason
            self._enabled = True
            for asked in self._options:
                self.setopt_core(*asked)
            self._options.clear()

    def _quirk(self, quirk: Quirk) -> bool:
        return has(self.domain.provider.name, quirk)

    def _take_another_name(self) -> None:
        """Replace the library's name, which has the process's number: an earlier process of the same number may have
        left its file, and the library then refuses the name, or ends the process.
        """
        name = self.getname_core()
        if self._chose_name or not isinstance(name, str):
            raise self._name_is_taken(name)
        del _names[name]
        self.setname_core(packed_name(f"{name}:{secrets.randbits(31)}", int(self.info.addr_format)))
        self._take_name()

    @staticmethod
    def _name_is_taken(name: object) -> errors.Busy:
        return errors.Busy(
            f"ep.enable: an endpoint of another process has the address {name!r}, or a process that ended without "
            "closing left it\n  try: another address, or remove its file in /dev/shm if no process uses it"
        )

    def _take_name(self) -> None:
        name = self.getname_core()
        holder = _names.get(name, self)
        if holder is not self and not holder._closed:
            raise errors.AddressInUse(
                f"ep.enable: {holder!r} has the address {name!r}\n  try: another, or close that endpoint"
            )
        if self._chose_name and self._quirk(Quirk.NAME_TAKEN_CRASHES) and os.path.exists(file_of_name(str(name))):
            raise self._name_is_taken(name)
        _names[name] = self

    def getname(self) -> Any:
        """The endpoint's address, to be given to peers (fi_getname): bytes, or a str under FI_ADDR_STR."""
        _handle.check(self, "ep.getname")
        return self.getname_core()

    def setname(self, addr: object) -> None:
        """Choose the endpoint's address, before enable() (fi_setname). Raises BadState after enable(), where providers
        would rename an endpoint that peers know already; and the library's refusal."""
        _handle.check(self, "ep.setname")
        if self._enabled:
            raise errors.BadState(f"ep.setname: {self!r} has its address already\n  try: before ep.enable()")
        self.setname_core(packed_name(addr, int(self.info.addr_format)))
        self._chose_name = True

    # ---- connections -------------------------------------------------------------------------------------------------

    def connect(self, addr: object = None, param: Any = None, paramlen: int | None = None) -> None:
        """Ask a passive endpoint for a connection (fi_connect); the result is an event. Raises as the library."""
        op = "ep.connect"
        self._connectable(op)
        data = private_bytes(op, param, paramlen)
        to = self.info.dest_addr if addr is None else addr
        if to is None:
            raise errors.InvalidArgument(f"{op}: no address was given, and the endpoint's info has no dest_addr")
        self.enable()
        self.connect_core(packed_name(to, int(self.info.addr_format)), data)

    def accept(self, param: Any = None, paramlen: int | None = None) -> None:
        """Accept the request that the endpoint was opened with (fi_accept). Raises the library's refusal."""
        op = "ep.accept"
        self._connectable(op)
        data = private_bytes(op, param, paramlen)
        if self._request is None or self._request.answered:
            raise errors.InvalidArgument(
                f"{op}: {self._request!r} is not an unanswered connection request\n"
                "  try: domain.endpoint(entry.info) of a CONNREQ event"
            )
        self.enable()
        self._request.answered = True
        self.accept_core(data)

    def _link(self) -> None:
        """Let calls go straight to the extension, once the event queue has reported the connection."""
        if not self._linked:
            self._linked = True
            for name in _SENDING:
                if getattr(self.__dict__.get(name), "func", None) is _when_linked:
                    del self.__dict__[name]

    def shutdown(self, flags: int = 0) -> None:
        """End the connection (fi_shutdown). Raises the library's refusal."""
        self._connected_kind("ep.shutdown")
        _args.whole("ep.shutdown", flags=flags)
        self.shutdown_core(int(flags))

    def getpeer(self) -> Any:
        """The address of the peer (fi_getpeer). Raises the library's refusal."""
        self._connected_kind("ep.getpeer")
        return self.getpeer_core()

    def _connected_kind(self, op: str) -> None:
        _handle.check(self, op)
        if self.info.ep_attr.type != EpType.EP_MSG:
            raise errors.NotSupported(
                f"{op}: {self!r} is connectionless\n  try: fi.EpAttr(type=fi.EP_MSG) in the hints of getinfo"
            )

    def _connectable(self, op: str) -> None:
        self._connected_kind(op)
        if self._eq is None:
            raise errors.NoEq(f"{op}: no event queue is bound\n  try: ep.bind(fabric.eq_open())")

    # ---- options and queries -----------------------------------------------------------------------------------------

    def getopt(self, level: int, optname: int) -> Any:
        """An endpoint option (fi_getopt), as a number. Raises the library's refusal (NoProtocolOption)."""
        op = "ep.getopt"
        _handle.check(self, op)
        level, name = _args.command(op, level=level), _args.command(op, optname=optname)
        if not self._enabled and self._quirk(Quirk.GETOPT_BEFORE_ENABLE_CRASHES):
            asked = [value for where, option, value, _ in self._options if (where, option) == (level, name)]
            if not asked:
                raise errors.BadState(
                    f"{op}: {self.domain.provider.name} knows its options when the endpoint is enabled\n"
                    "  try: after ep.enable()"
                )
            return asked[-1]
        return self.getopt_core(level, name)

    def setopt(self, level: int, optname: int, optval: Any) -> None:
        """Set an endpoint option (fi_setopt). Raises the library's refusal (NoProtocolOption)."""
        op = "ep.setopt"
        _handle.check(self, op, optval=optval)
        level, name = _args.command(op, level=level), _args.command(op, optname=optname)
        size = _SIZES.get(name, 8) if level == OptLevel.OPT_ENDPOINT else 8
        asked = level, name, int(optval), size
        if not self._enabled and self._quirk(Quirk.OPTION_BEFORE_ENABLE_CRASHES):
            self._options.append(asked)
        else:
            self.setopt_core(*asked)

    def _valid(self, datatype: int, op: int, family: int) -> int:
        _handle.check(self, "ep.atomicvalid", datatype=datatype, op=op)
        return self.valid_core(_args.c_int(datatype), _args.c_int(op), family)

    def tx_size_left(self) -> int:
        """Operations that fit at least (fi_tx_size_left; deprecated). Raises the library's refusal."""
        _handle.check(self, "ep.tx_size_left")
        return self.size_left(True)

    def rx_size_left(self) -> int:
        """Receives that fit at least (fi_rx_size_left; deprecated). Raises the library's refusal."""
        _handle.check(self, "ep.rx_size_left")
        return self.size_left(False)

    def cancel(self, context: object) -> None:
        """Cancel the oldest receive with this context, and transfers with it that the library can still cancel
        (fi_cancel); each completes as canceled. Raises NotFound. Source: fi_endpoint(3) fi_cancel."""
        _handle.check(self, "ep.cancel")
        if self.info.caps & Flag.DIRECTED_RECV and self._quirk(Quirk.CANCEL_OF_DIRECTED_CRASHES):
            raise errors.NotSupported(
                "ep.cancel: the endpoint has directed receives (FI_DIRECTED_RECV), and the cancel of one then ends "
                f"the process with {self.domain.provider.name} of this libfabric\n"
                "  try: an endpoint without DIRECTED_RECV, or close the endpoint"
            )
        self.cancel_core(context)

    def alias(self, flags: int = 0, context: Any = None) -> Any:
        """Another view of the endpoint, with other operation flags (fi_ep_alias): an `fi.EndpointAlias`.

        Args:
            flags: TRANSMIT or RECV, and the flags of that side.

        Raises:
            InvalidArgument: No side, or two.
            NotSupported: The provider has no aliases.

        Source: fi_endpoint(3) fi_ep_alias.
        """
        _handle.check(self, "ep.alias")
        return self.domain._alias(self, _of_one_side("ep.alias", flags), context)

    def join_collective(
        self, coll_addr: int, set: RealAvSet, flags: int = 0, context: Any = None
    ) -> RealCollectiveGroup:
        """Join the collective group of a set's members (fi_join_collective), one join at a time; arguments as
        `fi.Endpoint.join_collective`. The group is usable after the event JOIN_COMPLETE, whose `fid` it is.

        Raises as `fi.Endpoint.join_collective`, Again (another join of the endpoint is under way), NoSpace (too many
        groups), and the library's refusal. Source: fi_collective(3) fi_join_collective.
        """
        return join(self, coll_addr, set, flags, context)

    def _progress(self) -> None:
        """Let the library work, without taking an entry."""
        for cq in set(self._cqs.values()):
            with contextlib.suppress(errors.FabricError):  # an error entry waits for cq.readerr()
                cq.read(0)

    # ---- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the endpoint (fi_close). Operations under way end: their buffers are free. Raises Busy while a region
        is bound to the endpoint."""
        if self._quirk(Quirk.SREAD_AFTER_CLOSE_CRASHES):
            for queue in self._cqs.values():
                queue._look()
        super().close()

    def _parents(self) -> tuple[Any, ...]:
        return (self.domain, *self._bound)

    def _release(self) -> None:
        self.close_core()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "enabled" if self._enabled else "disabled"
        return f"<Endpoint {self.domain.provider.name} {state}>"


def _of_one_side(op: str, flags: Any) -> int:
    """Flags that name exactly one of TRANSMIT and RECV."""
    _args.whole(op, flags=flags)
    if int(flags) & _SIDES not in (int(Flag.TRANSMIT), int(Flag.RECV)):
        raise errors.InvalidArgument(f"{op}: flags {Flag(int(flags))!s}; exactly one of TRANSMIT and RECV is needed")
    return int(flags)


def _when_linked(found: weakref.ref[RealEndpoint], name: str, *args: Any, **more: Any) -> Any:
    """A transfer of a connected endpoint: refused until it is connected, when the library would end the process."""
    ep = found()
    assert ep is not None, "its caller holds the endpoint"
    if not ep._linked:
        _handle.check(ep, f"ep.{name}")
        raise errors.make(
            Errno.ENOTCONN,
            f"ep.{name}: {ep!r} is not connected\n  try: wait for the CONNECTED event of its event queue",
        )
    return getattr(type(ep), name)(ep, *args, **more)
