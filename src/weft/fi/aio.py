"""Calls of an endpoint that a coroutine awaits: `entry = await ep.trecv(buf, tag=7)`.

    ep = fi.AsyncEndpoint(endpoint)              # its completion queues were opened with wait_obj=fi.WAIT_FD
    entry = await ep.trecv(room, tag=7)          # the completion, as the queue's format has it
    await ep.tsend(data, dest_addr=peer, tag=7)

The calls are those of `Endpoint`, with the same arguments. The event loop watches the descriptors of the queues, so a
coroutine that waits costs no processor time. Libfabric has no such object: in C the application does the same by
fi_trywait(3) and its own loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import errors
from .._aio import MANUAL_POLL_S, Watched
from ..flags import Flag, Progress
from . import _handle
from ._calls import CALLS

if TYPE_CHECKING:
    from ._async_calls import AsyncCalls  # made by `make stub`
    from .cq import CompletionQueue
    from .endpoint import Endpoint
    from .ep_alias import EndpointAlias
else:
    AsyncCalls = object


class _Awaited:
    """One operation under way: the context of its completion."""

    __slots__ = ("context", "future")

    def __init__(self, future: asyncio.Future[Any], context: Any) -> None:
        self.future = future
        self.context = context


def _call(name: str) -> Any:
    """A call whose arguments have a context."""

    async def awaited(self: AsyncEndpoint, *args: Any, context: Any = None, **more: Any) -> Any:
        call = getattr(self.ep, name)
        return await self._run(context, lambda waiter: call(*args, context=waiter, **more))

    awaited.__name__ = name
    awaited.__doc__ = f"`Endpoint.{name}`; returns its completion. context: by keyword."
    return awaited


def _struct_call(name: str) -> Any:
    """A call whose struct has a context."""

    async def awaited(self: AsyncEndpoint, msg: Any, *args: Any, **more: Any) -> Any:
        call = getattr(self.ep, name)
        flags = int(more.get("flags", args[-1] if args and isinstance(args[-1], int) else 0))
        if flags & Flag.MULTI_RECV:
            raise errors.InvalidArgument(
                f"{name}: a receive with MULTI_RECV has several completions, and one call returns one\n"
                "  try: Endpoint.recvmsg, and read the completion queue"
            )
        return await self._run(
            msg.context, lambda waiter: call(dataclasses.replace(msg, context=waiter), *args, **more)
        )

    awaited.__name__ = name
    awaited.__doc__ = f"`Endpoint.{name}`; returns its completion."
    return awaited


def _inject(name: str) -> Any:
    """A call without a completion."""

    async def awaited(self: AsyncEndpoint, *args: Any, **more: Any) -> None:
        call = getattr(self.ep, name)
        await self._start(lambda: call(*args, **more))

    awaited.__name__ = name
    awaited.__doc__ = f"`Endpoint.{name}`, which has no completion: returns when there is room for the operation."
    return awaited


class AsyncEndpoint(AsyncCalls):
    """An endpoint whose calls are awaited.

    Args:
        ep: An enabled endpoint or an alias. Its queues are open for waiting by descriptor (WAIT_FD), without selective
            completion, and nobody else reads them: this object reads all completions. Closing this object closes
            neither.

    Each call returns its completion: the entry that the queue would give, with the context of the call. A failed
    operation raises the error of its entry (`CqErrEntry.exception`). While a queue is full, the call waits for room. If
    the task is cancelled, the operation is cancelled as far as `Endpoint.cancel` can; its buffers stay in use until it
    ends. To be used in one event loop, by any number of its tasks.
    """

    def __init__(self, ep: Endpoint | EndpointAlias) -> None:
        _handle.check(ep, "AsyncEndpoint")
        self.ep = ep
        original: Any = getattr(ep, "original", ep)
        self._queues: list[CompletionQueue] = list(dict.fromkeys(original._cqs.values()))
        for cq in self._queues:
            if cq.fd < 0:
                raise errors.InvalidArgument(
                    f"AsyncEndpoint: {cq!r} has no descriptor for the event loop to watch\n"
                    "  try: domain.cq_open(wait_obj=fi.WAIT_FD)"
                )
        self._manual = original.domain.policy.progress == Progress.PROGRESS_MANUAL
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: list[Watched] = []
        self._under_way: set[_Awaited] = set()
        self._polling = False
        self._room: asyncio.Event | None = None

    def close(self) -> None:
        """Stop reading the queues. Awaits of operations raise Canceled; the operations themselves continue."""
        watched, self._watched = self._watched, []
        for one in watched:
            one.close()
        for waiter in list(self._under_way):
            self._settle(waiter, None, errors.Canceled("the AsyncEndpoint was closed"))

    async def __aenter__(self) -> AsyncEndpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<AsyncEndpoint of {self.ep!r}, {len(self._under_way)} awaited>"

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def _run(self, context: Any, post: Callable[[_Awaited], None]) -> Any:
        loop = self._watch()
        waiter = _Awaited(loop.create_future(), context)
        self._under_way.add(waiter)
        try:
            await self._start(lambda: post(waiter))
        except BaseException:
            self._under_way.discard(waiter)
            raise
        self._drain()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            try:
                self.ep.cancel(waiter)
            except errors.FabricError:  # the operation has begun, and ends by itself
                pass
            raise

    async def _start(self, post: Callable[[], None]) -> None:
        self._watch()
        while True:
            try:
                post()
                return
            except errors.Again:  # a queue is full: operations under way have to end
                assert self._room is not None
                self._room.clear()
                self._drain()
                try:
                    await asyncio.wait_for(self._room.wait(), MANUAL_POLL_S)
                except (TimeoutError, asyncio.TimeoutError):
                    pass

    # ---- completions -------------------------------------------------------------------------------------------------

    def _watch(self) -> asyncio.AbstractEventLoop:
        """Watch the queues in the running loop, from the first call on."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._room = loop, asyncio.Event()
            self._watched = [Watched(loop, cq.fd, self._drain) for cq in self._queues]
        elif loop is not self._loop:
            raise errors.BadState("this AsyncEndpoint belongs to another event loop: make one for each loop")
        elif not self._watched:
            raise errors.BadState("this AsyncEndpoint is closed")
        return loop

    def _drain(self) -> None:
        """Give completions to the tasks that wait for them. The loop calls this when a descriptor is readable."""
        for cq in self._queues:
            while self._read(cq) or not (self._manual or cq._closed or cq.trywait()):
                pass
        if self._manual and self._under_way and not self._polling:
            self._polling = True
            assert self._loop is not None
            self._loop.call_later(MANUAL_POLL_S, self._poll)

    def _poll(self) -> None:
        self._polling = False
        self._drain()

    def _read(self, cq: CompletionQueue) -> bool:
        """Read one round of completions; False if there are none."""
        try:
            entries = cq.read()
        except errors.Available:
            failed = cq.readerr()
            self._settle(failed.op_context, None, failed.exception())
            return True
        except errors.BadState:  # closed
            return False
        for entry in entries:
            self._settle(entry.op_context, entry, None)
        return bool(entries)

    def _settle(self, waiter: Any, entry: Any, error: Exception | None) -> None:
        if not isinstance(waiter, _Awaited) or waiter not in self._under_way:
            return
        self._under_way.discard(waiter)
        if self._room is not None:
            self._room.set()
        if waiter.future.done():
            return
        if error is not None:
            waiter.future.set_exception(error)
        else:
            waiter.future.set_result(entry._replace(op_context=waiter.context))


_FORMS = {"one": _call, "list": _call, "message": _struct_call, "inject": _inject}
for _each in CALLS:
    setattr(AsyncEndpoint, _each.name, _FORMS[_each.form](_each.name))
