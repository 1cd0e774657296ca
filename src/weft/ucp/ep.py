"""Endpoints (ucp_ep_h): each connects a worker to one worker of a peer.

The extension implements put_nbx, get_nbx, atomic_op_nbx and flush_nbx: an operation crosses into the NIC once and runs
no Python code of Weft.

Source: UCP of UCX 1.17, "ucp_ep_create", "ucp_ep_rkey_unpack".
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _keys, _nic, _process, errors
from .._with import Closable
from . import _args
from .constants import EpCloseFlag, ErrHandlingMode
from .packed import parse
from .request import DONE, Request, deadline_of
from .rkey import RemoteKey
from .status import Status, UcsError, invalid, of

if TYPE_CHECKING:
    from .worker import Worker

_numbers = itertools.count()


class Endpoint(Closable, _nic.UcpEndpointCore):
    """An endpoint to a peer's worker (ucp_ep_h). Made by `Worker.ep_create`; a context manager.

    `put_nbx`, `get_nbx`, `atomic_op_nbx` and `flush_nbx` return requests. `rkey_unpack` makes the keys that they need.

    An endpoint whose peer is gone has failed: its present and later operations end with the status. If the endpoint
    was made with ERR_HANDLING_MODE_PEER, progress() calls err_handler(user_data, ep, status) once.

    Thread safety: any thread. Source: UCP, "ucp_ep_h".
    """

    def __init__(
        self,
        worker: Worker,
        peer: _keys.Packed,
        err_mode: int,
        err_handler: Callable[[Any, Endpoint, int], object] | None,
        user_data: Any,
        name: str,
    ) -> None:
        self.worker = worker
        self.name = name
        self.user_data = user_data
        self._peer = peer
        self._err_handler = err_handler
        self._number = next(_numbers)
        self._keys: weakref.WeakSet[RemoteKey] = weakref.WeakSet()
        self._closing: Request | None = None  # of close_nbx(), until the endpoint is closed
        self._closed = False
        super().__init__(worker, self._insert(peer.place), err_mode == ErrHandlingMode.PEER)

    def _insert(self, place: _keys.Place) -> int:
        try:
            return self.worker._av.insert_address(*place.address())
        except errors.FabricError as reason:
            raise of(reason) from None

    # ---- keys --------------------------------------------------------------------------------------------------------

    def rkey_unpack(self, rkey_buffer: Any) -> RemoteKey:
        """Make a remote key for operations on this endpoint (ucp_ep_rkey_unpack).

        Args:
            rkey_buffer: The bytes that `MemHandle.pack` returned in the peer's process.

        Destroy the key when it is no longer needed, before the endpoint. Unpacking does not ask the peer; if the peer
        refuses the key, the operations that use it fail.

        Raises:
            UcsError: INVALID_PARAM (not a key, a key that was truncated or changed, a closed endpoint), UNREACHABLE
                (the key's owner is not the peer of this endpoint).

        Source: UCP, "ucp_ep_rkey_unpack".
        """
        self._check("ep_rkey_unpack")
        return self._key(parse(rkey_buffer, (_keys.KEY,), "ep_rkey_unpack", "remote key"))

    def _key(self, found: _keys.Packed) -> RemoteKey:
        dest = self.dest
        if found.context == 0:  # a region of weft.fi: the key names its endpoint
            if found.process != self._peer.process:
                raise UcsError(
                    Status.ERR_UNREACHABLE,
                    "ep_rkey_unpack: the key belongs to a process that is not the peer of this endpoint\n"
                    "  try: unpack it on an endpoint to its owner",
                )
            dest = self._insert(found.place)
        key = RemoteKey(self, found, dest)
        self._keys.add(key)
        return key

    # ---- life --------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """OK, or how the endpoint failed."""
        return Status(self.failed_status)

    def _check(self, op: str) -> None:
        if self._closed:
            raise invalid(f"{op}: the endpoint is closed\n  try: worker.ep_create(address)")
        self.worker._check(op)

    def _on_failure(self, status: int, text: str) -> None:
        """Called once by progress(), when the NIC reports that the peer is gone."""
        if self._err_handler is not None and not self._closed:
            self._err_handler(self.user_data, self, status)

    def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._closing = None
        for key in list(self._keys):
            key._end()
        self.shut()
        self.worker._endpoints.discard(self)

    def _close_failed(self) -> None:
        """Close an endpoint whose peer is gone. Its operations have already failed, so there is nothing to wait for."""
        try:
            self.worker.progress()
            self.tell_failure()
        finally:
            self._shut()

    def close_nbx(self, flags: int = 0) -> Request:
        """Close the endpoint after the posted operations have ended (ucp_ep_close_nbx).

        Args:
            flags: EP_CLOSE_FLAG_FORCE: at once; operations under way end by themselves, and unreported failures stay
                unreported.

        A failed endpoint is closed at once, too. Closing destroys the endpoint's remote keys.

        Raises:
            UcsError: A failure that was not reported before; the endpoint is closed all the same.

        Source: UCP, "ucp_ep_close_nbx".
        """
        self._check("ep_close_nbx")
        _args.needed("ep_close_nbx", flags=flags)
        _args.whole("ep_close_nbx", flags=flags)
        if flags & EpCloseFlag.FORCE:
            self._shut()
            return DONE
        if self.failed_status:
            self._close_failed()
            return DONE

        def end(request: Request, status: int, user_data: Any) -> None:
            self._shut()

        try:
            request: Request = self.flush_nbx(cb=end)
        except UcsError:
            self._shut()
            raise
        if request:
            self.begin_close()
            self._closing = request
            if self._closed:  # the flush has ended in another thread
                self._closing = None
        else:
            self._shut()
        return request

    def close(self, timeout: float | None = 30.0) -> None:
        """Wait for the posted operations, then close the endpoint. Closing again does nothing.

        Args:
            timeout: Seconds to wait; then close() closes the endpoint anyway and raises UcsError (TIMED_OUT).

        Raises:
            UcsError: At the timeout; also a failure that neither a request nor a flush has reported. The endpoint is
                then closed.

        Source: UCP, "ucp_ep_close_nbx".
        """
        deadline_of(timeout, "ep_close")
        if self._closed or self.worker.closed or self.worker._made_in != _process.generation:
            self._closed = True
            return
        if self.failed_status:
            self._close_failed()
            return
        try:
            self.flush_nbx().wait(timeout)
        finally:
            self._shut()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        if self._closed:
            state = "closed"
        elif self.failed_status:
            state = f"failed: {self.status.name}"
        else:
            state = f"{self.under_way()} operations under way, {len(self._keys)} keys"
        return f"<ucp.Endpoint{name} to {self._peer.place}: {state}>"
