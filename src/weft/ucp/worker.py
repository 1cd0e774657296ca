"""Workers (ucp_worker_h): they have an address, make endpoints, and progress operations.

Source: UCP of UCX 1.17, "ucp_worker_create" and the routines after it.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _keys, _nic, _process, errors
from .._with import Closable
from ..flags import BindFlag, CqFormat, Flag, WaitObj
from . import _args, aio
from .constants import EpParamField, ErrHandlingMode, Feature, ThreadMode
from .ep import Endpoint
from .packed import PackedBuffer, parse, release
from .params import EpParams, RkeyCompareParams
from .request import Request, deadline_of
from .rkey import RemoteKey
from .status import invalid, of, unsupported

if TYPE_CHECKING:
    from .context import Context

TX_SIZE = 4096  # maximum number of operations under way; further calls wait
LOOK_S = 0.01  # wait_mem() polls a word this long before it progresses the worker again
_CAPS = Flag.RMA | Flag.ATOMIC | Flag.READ | Flag.WRITE | Flag.REMOTE_READ | Flag.REMOTE_WRITE | Flag.HMEM


NicEndpoint = tuple[_nic.CompletionQueueCore, _nic.AddressVectorCore, _nic.EndpointCore]


def nic_endpoint(context: Context, wakeup: bool) -> NicEndpoint:
    """A NIC endpoint of a context's domain, with its queue and address vector. It does not hold the context.

    Args:
        wakeup: The queue has a descriptor.

    Raises:
        UcsError: The NIC refuses the endpoint.
    """
    try:
        cq = _nic.CompletionQueueCore(
            context,
            _nic.QueueConfig(
                size=TX_SIZE,
                format=int(CqFormat.CQ_FORMAT_CONTEXT),
                wait_obj=int(WaitObj.WAIT_FD if wakeup else WaitObj.WAIT_UNSPEC),
            ),
        )
        av = _nic.AddressVectorCore(context)
        ep = _nic.EndpointCore(context, _nic.EndpointConfig(caps=int(_CAPS), tx_size=TX_SIZE, vni=_keys.VNI_DEFAULT))
        ep.bind_cq(cq, int(Flag.TRANSMIT | Flag.RECV | BindFlag.SELECTIVE_COMPLETION))
        ep.bind_av(av)
        ep.enable_at(0, None)
    except errors.FabricError as reason:
        raise of(reason) from None
    return cq, av, ep


class Worker(Closable, _nic.UcpWorkerCore):
    """A worker (ucp_worker_h). Made by `Context.worker_create`; a context manager.

    `get_address` returns the address for peers, `ep_create` makes an endpoint of a peer's address. `progress` does the
    work that there is; `wait`, `arm`, `get_efd` and `signal` are for sleeping until then. `flush_nbx` and `fence` act
    on all endpoints of the worker.

    The NIC's engine serves peers: their accesses to this process's memory need no progress() of a worker.
    Thread safety: any thread, under every thread_mode. Source: UCP, "ucp_worker_h".
    """

    def __init__(self, context: Context, thread_mode: int, name: str, user_data: Any) -> None:
        self.context = context
        self.name = name
        self.user_data = user_data
        try:
            self.thread_mode = ThreadMode(thread_mode)
        except ValueError:
            raise invalid(
                f"worker_create: no thread mode {thread_mode}\n  rule: THREAD_MODE_SINGLE, SERIALIZED or MULTI"
            ) from None
        self._made_in = _process.generation
        self._endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()
        self._watches: dict[asyncio.AbstractEventLoop, aio.Watch] = {}
        self._closed = False
        self._cq, self._av, self._ep = nic_endpoint(context, bool(context.features & Feature.WAKEUP))
        super().__init__(context, self._cq, self._av, self._ep, int(context.features))

    # ---- addresses and endpoints -------------------------------------------------------------------------------------

    @property
    def _place(self) -> _keys.Place:
        """The worker's place, in the form for peers."""
        return _keys.place_of(self._ep.address)

    @property
    def address(self) -> bytes:
        """The address that peers pass to ep_create: bytes to send."""
        self._check("worker_get_address")
        return _keys.Packed(_keys.ADDRESS, self._place, _process.identity(), self.context._id).pack()

    def get_address(self) -> PackedBuffer:
        """The worker's address (ucp_worker_get_address); release it with release_address()."""
        return PackedBuffer(self.address, "ucp_worker_get_address")

    def release_address(self, address: PackedBuffer) -> None:
        """Release an address (ucp_worker_release_address). Raises UcsError (INVALID_PARAM) for anything else."""
        release(address, "ucp_worker_get_address", "worker_release_address")

    @property
    def fi_name(self) -> str:
        """The worker's address for address vectors of `weft.fi`: av.insert(name)."""
        self._check("fi_name")
        nic, pid, vni = self._ep.address
        return _keys.format_address(_process.public_nic(nic), pid, vni)

    def ep_create(
        self,
        params: EpParams | bytes | None = None,
        *,
        address: Any = None,
        err_mode: int = ErrHandlingMode.NONE,
        err_handler: Callable[[Any, Endpoint, int], object] | None = None,
        user_data: Any = None,
        name: str = "",
    ) -> Endpoint:
        """Make an endpoint to a peer's worker (ucp_ep_create).

        Args:
            params: An `EpParams`; or the address of the peer's worker, `worker.address`; or None and the struct's
                fields as arguments.
            address: Address of the peer's worker.
            err_mode: An `ErrHandlingMode`.
            err_handler: Called as err_handler(user_data, ep, status); sets err_mode to PEER.
            user_data: The first argument of err_handler.
            name: A name for messages.

        The first operation connects to the peer.

        Raises:
            UcsError: INVALID_PARAM (no address, or a malformed one), UNSUPPORTED (sockaddr, connection requests).

        Source: UCP, "ucp_ep_create".
        """
        self._check("ep_create")
        if isinstance(params, EpParams):
            _args.expect("ep_create", "params", params, EpParams)
            mask = params.field_mask
            beyond = EpParamField.SOCK_ADDR | EpParamField.CONN_REQUEST | EpParamField.LOCAL_SOCK_ADDR
            if mask & beyond:
                raise unsupported(
                    "ep_create: Weft's endpoints are made from worker addresses\n  try: EP_PARAM_FIELD_REMOTE_ADDRESS"
                )
            address = params.address if mask & EpParamField.REMOTE_ADDRESS else None
            err_mode = params.err_mode if mask & EpParamField.ERR_HANDLING_MODE else ErrHandlingMode.NONE
            err_handler = params.err_handler if mask & EpParamField.ERR_HANDLER else None
            user_data = params.user_data if mask & EpParamField.USER_DATA else None
            name = params.name if mask & EpParamField.NAME else ""
        else:
            address = params if params is not None else address
            if err_handler is not None:
                err_mode = ErrHandlingMode.PEER
        _args.function("ep_create", "err_handler", err_handler)
        _args.text("ep_create", name=name)
        try:
            err_mode = ErrHandlingMode(err_mode)
        except ValueError:
            raise invalid(
                f"ep_create: there is no err_mode {err_mode!r:.60}\n  rule: ERR_HANDLING_MODE_NONE or PEER"
            ) from None
        if address is None:
            raise invalid("ep_create: no address was given\n  try: the peer's worker.address")
        return self._endpoint_to(
            parse(address, (_keys.ADDRESS,), "ep_create", "worker address"), err_mode, err_handler, user_data, name
        )

    def _endpoint_to(
        self,
        peer: _keys.Packed,
        err_mode: int = ErrHandlingMode.NONE,
        err_handler: Callable[[Any, Endpoint, int], object] | None = None,
        user_data: Any = None,
        name: str = "",
    ) -> Endpoint:
        ep = Endpoint(self, peer, err_mode, err_handler, user_data, name)
        self._endpoints.add(ep)
        return ep

    # ---- order and completion ----------------------------------------------------------------------------------------

    def fence(self) -> None:
        """Order later operations after earlier ones, on each endpoint (ucp_worker_fence).

        The call does not wait. Source: UCP, "ucp_worker_fence".
        """
        self._check("worker_fence")
        super().fence()

    def request_cancel(self, request: Request) -> None:
        """Cancel an operation that has not begun (ucp_request_cancel): CANCELED. An operation under way continues."""
        self._check("request_cancel")
        if not isinstance(request, Request):
            raise invalid(f"request_cancel: {request!r:.60} is not a request")
        if request and request.worker is not self:
            raise invalid("request_cancel: the request is of another worker\n  try: request.cancel()")
        if request.ended or self.cancel_flush(request):
            return
        try:
            self._ep.cancel(request)
        except errors.FabricError:  # the operation has begun, so it continues
            pass

    def rkey_compare(self, rkey1: RemoteKey, rkey2: RemoteKey, params: RkeyCompareParams | None = None) -> int:
        """Compare two remote keys: -1, 0 or 1 (ucp_rkey_compare).

        Equal keys are interchangeable: keys of regions of the same layout that peers mapped with
        MEM_MAP_SYMMETRIC_RKEY, and keys that one endpoint unpacked for the same region. The order holds for the life of
        this process: functools.cmp_to_key(worker.rkey_compare) sorts.

        Raises UcsError (INVALID_PARAM): a key of another worker, a destroyed key, field_mask not 0.
        Source: UCP, "ucp_rkey_compare".
        """
        self._check("rkey_compare")
        if params is not None:
            _args.expect("rkey_compare", "params", params, RkeyCompareParams)
        if params is not None and params.field_mask:
            raise invalid(f"rkey_compare: field_mask is {params.field_mask:#x}; it has to be 0")
        key: Any
        for key in (rkey1, rkey2):
            if not isinstance(key, RemoteKey) or key.endpoint.worker is not self:
                raise invalid(f"rkey_compare: {key!r:.80} is not a key of this worker")
            if key.destroyed:
                raise invalid(f"rkey_compare: {key!r} was destroyed")
        one, two = rkey1._order(), rkey2._order()
        return (one > two) - (one < two)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def _need_wakeup(self, op: str) -> None:
        self._check(op)
        if not self.context.features & Feature.WAKEUP:
            raise invalid(
                f"{op}: the context was made without the feature WAKEUP\n"
                "  try: Context(features=... | ucp.FEATURE_WAKEUP)"
            )

    def get_efd(self) -> int:
        """A descriptor that becomes readable when progress() has something to do (ucp_worker_get_efd).

        The worker owns the descriptor. Call arm() before waiting on it. Raises UcsError (INVALID_PARAM) without the
        feature WAKEUP. Source: UCP, "ucp_worker_get_efd".
        """
        self._need_wakeup("worker_get_efd")
        return self._cq.fd

    def arm(self) -> bool:
        """True: the descriptor signals the next event. False (C's UCS_ERR_BUSY): progress first (ucp_worker_arm).

        After a signal(), the next call returns False. Source: UCP, "ucp_worker_arm".
        """
        self._need_wakeup("worker_arm")
        return self.arm_core() and self._cq.trywait()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until progress() has something to do, or signal() is called (ucp_worker_wait).

        Args:
            timeout: Seconds; None: no limit; 0 or less: test once.

        Returns:
            False at the timeout.

        Source: UCP, "ucp_worker_wait".
        """
        self._need_wakeup("worker_wait")
        deadline_of(timeout, "worker_wait")
        return bool(self.wait_core(timeout))

    def wait_mem(self, memory: Any, value: int, timeout: float | None = None) -> bool:
        """Wait until the aligned 8-byte word at the start of a local buffer is `value`; False after timeout seconds.

        Args:
            timeout: Seconds; None: no limit; 0 or less: test once.

        UCP's call waits until the word changes, and may return without a change. Source: UCP, "ucp_worker_wait_mem".
        """
        self._check("worker_wait_mem")
        deadline = deadline_of(timeout, "worker_wait_mem")
        if memory is None:
            raise TypeError("worker_wait_mem: memory must be a buffer of 8 bytes, not None")
        _args.needed("worker_wait_mem", value=value)
        _args.whole("worker_wait_mem", value=value)
        while True:
            left = LOOK_S if deadline is None else deadline - time.monotonic()
            try:
                if _nic.poll_u64(memory, 0, value, max(0.0, min(LOOK_S, left))):
                    return True
            except errors.FabricError as reason:
                raise of(reason) from None
            if left <= 0:
                return False
            self.progress()

    def signal(self) -> None:
        """End one wait(), and make the descriptor readable (ucp_worker_signal). Any thread.

        Source: UCP, "ucp_worker_signal".
        """
        self._check("worker_signal")
        self._cq.signal()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> aio.Watch:
        found = self._watches.get(loop)
        if found is None:
            for gone in [known for known in self._watches if known.is_closed()]:
                self._watches.pop(gone).close()
            found = self._watches[loop] = aio.Watch(self, loop)
        return found

    # ---- life --------------------------------------------------------------------------------------------------------

    def _check(self, op: str) -> None:
        if self._closed:
            raise invalid(f"{op}: the worker is destroyed\n  try: context.worker_create()")
        self.context._check(op)

    def close(self) -> None:
        """Destroy the worker (ucp_worker_destroy): its endpoints are closed, operations under way end as CANCELED.

        Their callbacks are called before close() returns. An exception of a callback is raised by close(), after the
        other callbacks were called and the worker is closed. close() does not report failures of earlier operations:
        flush first. Closing again does nothing. Source: UCP, "ucp_worker_destroy".
        """
        if self._closed:
            return
        self._closed = True
        if self._made_in != _process.generation:
            self.context._workers.discard(self)
            return
        self.begin_close()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        for ep in list(self._endpoints):
            ep._shut()
        self._ep.close()
        self.shut()
        self._av.close()
        self._cq.close()
        self.context._workers.discard(self)
        self.call_due()

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        if self._closed:
            return f"<ucp.Worker{name}: destroyed>"
        if self._made_in != _process.generation:
            return f"<ucp.Worker{name}: of the parent process>"
        return (
            f"<ucp.Worker{name} at {self.fi_name}: {len(self._endpoints)} endpoints, "
            f"{self.under_way()} operations under way>"
        )
