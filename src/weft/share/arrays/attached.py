"""A remote array that is attached: its owner's number in a node's lanes, and jobs that run on them.

A synchronous call runs its job on an idle lane, an awaitable one on the lane of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ... import _process, errors, fi
from ._default import default_node
from .explain import explain, unanswered
from .jobs import Job, nothing
from .lane import FailedOperation, Lane
from .view import View

if TYPE_CHECKING:
    from ..node import Node

# Awaitable calls that copy for longer than this run in the loop's executor, whose start costs about as much.
LOOP_COPY_NS_MAX = 150_000


def _no_lane() -> Lane:
    raise IndexError  # like pop() of an empty list: the caller then calls _lane(), which attaches


def _nothing_to_push(lane: Lane) -> None:
    raise AssertionError("a lane was returned to a view that is not attached")


class Attached(View):
    """A remote array and its owner. A view without a node attaches through the default node at its first use.

    Attributes:
        _pop: Takes an idle lane of the node; raises IndexError if no lane is idle, or if the array is not attached yet.
            It is a method of the node's list of idle lanes, so that the fast paths make no Python call.
        _push: Puts the lane back; a method of the same list.
    """

    __slots__ = ("_node", "_pop", "_push")

    _node: Node | None
    _pop: Callable[[], Lane]
    _push: Callable[[Lane], None]

    def _start(self, node: Node | None) -> None:
        """Mark the view as not attached."""
        self._node = node
        self._pop = _no_lane
        self._push = _nothing_to_push

    def _bind(self, node: Node) -> None:
        """Use the lanes of `node`."""
        self._peer = node._peer(self.ticket.address)
        self._push = node._idle.append
        self._pop = node._idle.pop
        self._node = node
        node._attached.add(self)
        # Under manual progress only the calls that read a completion queue notice the owner's death.
        if node._real is None and not node._manual:
            self._link(node._home.ep, self._peer)

    def _lane(self, what: str) -> Lane:
        """A lane if none is idle: at the first use in a thread, after the node was closed, in the child of a fork."""
        node = self._node
        if node is None or node._made_in != _process.generation:
            node = default_node(self.ticket.fabric)
            self._bind(node)
        return node._lane(what)

    def _real_node(self) -> Node:
        """The node over a real libfabric; attaches if need be."""
        node = self._node
        if node is None or node._made_in != _process.generation:
            self._push(self._lane("attach"))
        assert self._node is not None
        return self._node

    def _probe(self, call: str = "attach") -> None:
        """Read or write no bytes, to fail at once if the owner is gone."""
        if self.ticket.key is None:
            return
        no_bytes = np.empty(0, np.uint8)
        base = self._base

        def post(ep: fi.Endpoint, context: Any) -> None:
            (ep.read if "r" in self.ticket.access else ep.write)(no_bytes, None, self._peer, base, self._key, context)

        self._run(Job([post], nothing, 0, call))

    def _run(self, job: Job) -> Any:
        """Post the job's operations, wait for them, and return what the call returns."""
        if job.posts:
            try:
                lane = self._pop()
            except IndexError:
                lane = self._lane(job.what)
            try:
                lane.run(job.posts)
            except BaseException as reason:
                self._failed(lane, reason, job.what)
            self._push(lane)
        return job.result()

    async def _arun(self, job: Job) -> Any:
        """`_run`, awaitable: on the event loop's lane, or in the loop's executor if copies take long."""
        import asyncio

        loop = asyncio.get_running_loop()
        if not job.posts:
            return job.result()
        if job.cost_ns > LOOP_COPY_NS_MAX or self.ticket.fabric:
            return await loop.run_in_executor(None, self._run, job)
        if self._peer < 0 or self._node is None or self._node._made_in != _process.generation:
            await loop.run_in_executor(None, self._attach_now, job.what)
        node = self._node
        assert node is not None
        try:
            await node._loop_lane(loop, job.what).run(job.posts)
        except errors.TimedOut:
            raise unanswered(self, job.what, node.timeout) from None
        except FailedOperation as failed:
            raise explain(self, failed.entry, job.what) from None
        return job.result()

    def _attach_now(self, what: str) -> None:
        lane = self._lane(what)
        self._push(lane)

    def _failed(self, lane: Lane, reason: BaseException, what: str) -> NoReturn:
        """Raise the error that ends a call. The lane is kept if no operation is under way on it."""
        node = self._node
        assert node is not None
        if isinstance(reason, FailedOperation):
            self._push(lane)
            raise explain(self, reason.entry, what) from None
        if isinstance(reason, errors.Available):
            entry = lane.cq.readerr()
            if node._closed:
                node._check(what)
            self._push(lane)
            raise explain(self, entry, what) from None
        node._drop(lane)
        if isinstance(reason, errors.FabricError):
            node._check(what)
        if isinstance(reason, errors.TimedOut):
            raise unanswered(self, what, node.timeout) from None
        raise reason
