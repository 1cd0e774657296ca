"""Contexts (ucp_context_h): where memory is mapped and workers are made.

Source: UCP of UCX 1.17, "ucp_init", "ucp_mem_map".
"""

from __future__ import annotations

import secrets
import sys
import weakref
from typing import IO, Any

from .. import _keys, _nic, _process
from .._with import Closable
from ..memory import hmem
from . import _args, mem, print_info
from .constants import Feature, ParamField, WorkerParamField
from .memh import MemHandle
from .packed import PackedBuffer, deprecated
from .params import MemAdviseParams, MemMapParams, Params, WorkerParams
from .region import ACCESS_ALL
from .status import invalid, unsupported
from .worker import NicEndpoint, Worker, nic_endpoint

_FEATURES = Feature.RMA | Feature.AMO32 | Feature.AMO64 | Feature.WAKEUP | Feature.EXPORTED_MEMH
_HINTS = (
    "Weft implements only UCP's memory routines\n"
    "  try: ucp.FEATURE_RMA | ucp.FEATURE_AMO32 | ucp.FEATURE_AMO64 | ucp.FEATURE_WAKEUP | ucp.FEATURE_EXPORTED_MEMH"
)


class Context(Closable, _nic.UcpContextCore):
    """A UCP context on this process's NIC (ucp_init).

        with ucp.Context() as context, context.worker_create() as worker:
            memh = context.mem_map(length=1 << 20, allocate=True)

    Args:
        params: A `Params`, with the mandatory field FEATURES.
        features: `Feature`s, instead of params; without both arguments, all features of Weft.
        name: A name for messages.

    Closing the context (ucp_cleanup) destroys its workers and unmaps its memory. Thread safety: any thread.

    Raises:
        UcsError: INVALID_PARAM (no features), UNSUPPORTED (features that Weft does not have).

    Source: UCP, "ucp_init".
    """

    def __init__(self, params: Params | None = None, *, features: int | None = None, name: str = "") -> None:
        if params is not None:
            _args.expect("Context", "params", params, Params)
            if not params.field_mask & ParamField.FEATURES:
                raise invalid(
                    "Context: params has no features\n"
                    "  try: field_mask=ucp.PARAM_FIELD_FEATURES, features=ucp.FEATURE_RMA"
                )
            _args.needed("Context", features=params.features)
            features = params.features
            if params.field_mask & ParamField.NAME:
                name = params.name
        _args.integer("Context", features=features)
        _args.text("Context", name=name)
        wanted = _FEATURES if features is None else Feature(features)
        # Numbers, because the complement of an IntFlag has only its members' bits, so that unknown bits would pass.
        if beyond := int(wanted) & ~int(_FEATURES):
            raise unsupported(f"Context: features {Feature(beyond)!r}: {_HINTS}")
        self.features = wanted
        self.name = name
        nic = _process.nic()
        hmem.load(nic)
        self._made_in = _process.generation
        self._id = secrets.randbits(64)
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._imports: weakref.WeakSet[Any] = weakref.WeakSet()
        self._door: NicEndpoint | None = None
        self._importer: weakref.ref[Worker] | None = None
        self._closed = False
        super().__init__(nic, ACCESS_ALL)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _mem_map(
        self,
        params: MemMapParams | Any = None,
        *,
        address: int | None = None,
        length: int | None = None,
        flags: int | None = None,
        prot: int | None = None,
        memory_type: int | None = None,
        exported_memh_buffer: Any = None,
        allocate: bool = False,
        nonblock: bool = False,
        symmetric: bool = False,
    ) -> MemHandle:
        """mem_map() of anything but a plain buffer."""
        self._check("mem_map")
        buffer = None
        if params is not None and not isinstance(params, MemMapParams):
            buffer = params
            params = None
        allocate, nonblock, symmetric = bool(allocate), bool(nonblock), bool(symmetric)
        _args.integer("mem_map", address=address, length=length, memory_type=memory_type)
        _args.whole("mem_map", flags=flags, prot=prot)
        if params is None:
            bits = (4 if flags is not None else 0) | 2 * allocate | nonblock | 8 * symmetric
            params = mem.params_of(
                address, length, (flags or 0) | 2 * allocate | nonblock | 8 * symmetric if bits else None,
                prot, memory_type, exported_memh_buffer,
            )  # fmt: skip
        elif not (address is length is flags is prot is memory_type is exported_memh_buffer is None) or (
            allocate or nonblock or symmetric
        ):
            raise TypeError("mem_map: give a MemMapParams, or its fields as keywords, not both")
        return mem.mem_map(self, params, buffer)

    _mem_map.__qualname__ = "Context.mem_map"  # the name in messages about its arguments

    def mem_unmap(self, memh: MemHandle) -> None:
        """Unmap memory (ucp_mem_unmap). Its handle and its remote keys become invalid.

        Waits, for a bounded time, for peers that are copying. Memory that Weft allocated is freed with the last array
        over it. Operations of this process that use the memory as their buffer continue: the memory stays in place
        until they have ended.

        Raises UcsError: INVALID_PARAM (unmapped already, or mapped by another context), BUSY (a peer's copy does
        not end in time: try again). Source: UCP, "ucp_mem_unmap".
        """
        self._check("mem_unmap")
        mem.belongs(self, memh, "mem_unmap")
        memh._unmap()

    def mem_advise(
        self,
        memh: MemHandle,
        params: MemAdviseParams | None = None,
        *,
        address: int | None = None,
        length: int | None = None,
        advice: int | None = None,
    ) -> None:
        """Advise Weft how memory will be used (ucp_mem_advise).

        Args:
            params: A `MemAdviseParams` with all three fields; or None and the three fields as arguments.
            address: Virtual address; without address and length, all of the memory.
            length: Bytes.
            advice: A `MemAdvice`.

        After MADV_WILLNEED the pages exist when the call returns, as far as the system has memory.

        Raises:
            UcsError: INVALID_PARAM: a field is missing, the range passes the memory, unknown advice.

        Source: UCP, "ucp_mem_advise".
        """
        self._check("mem_advise")
        mem.belongs(self, memh, "mem_advise")
        _args.integer("mem_advise", address=address, length=length, advice=advice)
        if params is None:
            if address is None and length is None:
                address, length = memh.address, memh.length
            given = ((1, address), (2, length), (4, advice))
            mask = sum(bit for bit, value in given if value is not None)
            params = MemAdviseParams(mask, address or 0, length or 0, advice or 0)
        elif not (address is length is advice is None):
            raise TypeError("mem_advise: give a MemAdviseParams, or its fields as keywords, not both")
        mem.advise(memh, params)

    def mem_print_info(self, mem_spec: str, stream: IO[str] | None = None) -> None:
        """Allocate memory, print its properties, and unmap it (ucp_mem_print_info).

        Args:
            mem_spec: "<size>[,<type>]": "32768", "1m,cuda".
            stream: The output; None: standard output.

        An error in mem_spec is printed on standard output, in angle brackets, as UCX does.
        Source: UCP, "ucp_mem_print_info".
        """
        self._check("mem_print_info")
        _args.text("mem_print_info", mem_spec=mem_spec)
        if stream is not None and not hasattr(stream, "write"):
            raise TypeError(f"mem_print_info: stream must be a text file or None, not {stream!r:.60}")
        print_info.mem_print_info(self, mem_spec, sys.stdout if stream is None else stream)

    def rkey_pack(self, memh: MemHandle) -> PackedBuffer:
        """A remote key of mapped memory, packed (ucp_rkey_pack). Deprecated: `memh.pack()`.

        Release it by rkey_buffer_release(). Source: UCP, "ucp_rkey_pack".
        """
        deprecated("Context.rkey_pack", "MemHandle.pack")
        self._check("rkey_pack")
        mem.belongs(self, memh, "rkey_pack")
        return memh._pack_key("ucp_rkey_pack")

    # ---- workers -----------------------------------------------------------------------------------------------------

    def worker_create(self, params: WorkerParams | None = None, *, thread_mode: int = 0, name: str = "") -> Worker:
        """A worker (ucp_worker_create).

        Args:
            params: A `WorkerParams`; or None and its fields as arguments.
            thread_mode: Weft treats every thread_mode as THREAD_MODE_MULTI.
            name: A name for messages.

        Raises:
            UcsError: INVALID_PARAM (no such thread mode), UNSUPPORTED (event_fd).

        Source: UCP, "ucp_worker_create".
        """
        self._check("worker_create")
        user_data = None
        if params is not None:
            _args.expect("worker_create", "params", params, WorkerParams)
            mask = params.field_mask
            thread_mode = params.thread_mode if mask & WorkerParamField.THREAD_MODE else 0
            name = params.name if mask & WorkerParamField.NAME else ""
            user_data = params.user_data if mask & WorkerParamField.USER_DATA else None
            if mask & WorkerParamField.EVENT_FD:
                raise unsupported("worker_create: event_fd: a worker has its own descriptor\n  try: worker.get_efd()")
        _args.text("worker_create", name=name)
        worker = Worker(self, thread_mode, name, user_data)
        self._workers.add(worker)
        return worker

    # Neither object refers to the context, so that a context that exported or imported memory can be collected.

    def _export_place(self) -> _keys.Place:
        """The endpoint to which importers of this context's exported handles connect."""
        if self._door is None:
            self._door = nic_endpoint(self, wakeup=False)
        return _keys.place_of(self._door[2].address)

    def _import_worker(self) -> Worker:
        """The worker through which imported handles are accessed. The handles hold the worker."""
        worker = None if self._importer is None else self._importer()
        if worker is None or worker.closed:
            worker = self.worker_create(name="imported handles")
            self._importer = weakref.ref(worker)
        return worker

    # ---- life --------------------------------------------------------------------------------------------------------

    def _check(self, op: str) -> None:
        if self._closed:
            raise invalid(f"{op}: the context is closed\n  try: a new ucp.Context()")
        if self._made_in != _process.generation:
            raise invalid(f"{op}: this context belongs to the parent process\n  try: a new ucp.Context() in the child")

    def close(self) -> None:
        """Destroy the context's workers and unmap its memory (ucp_cleanup). Closing again does nothing.

        Raises UcsError (BUSY) if a peer's copy does not end in time: try again. If closing calls a callback that
        raises, close() raises the exception after everything is closed.
        """
        if self._closed or self._made_in != _process.generation:
            return
        failure: BaseException | None = None
        for worker in list(self._workers):
            try:
                worker.close()
            except Exception as error:  # of a callback: the worker is closed
                failure = failure or error
        if self._door is not None:
            cq, av, ep = self._door
            ep.close()
            av.close()
            cq.close()
            self._door = None
        for memh in [*self.regions(), *self._imports]:
            memh._unmap()
        self._closed = True
        super().close()
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        if self._closed:
            return f"<ucp.Context{name}: closed>"
        regions = len(self.regions()) if self._made_in == _process.generation else 0
        features = "|".join(f.name or "" for f in Feature if f & self.features)
        return f"<ucp.Context{name}: {features}, {regions} mapped, {len(self._workers)} workers>"
