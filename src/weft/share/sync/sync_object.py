"""What locks, semaphores, events, barriers and queues have in common: a name, shared memory, and a path to it.

An object is a small shared array of the process that makes it; cpp/sync says what is in it. A process that maps the
array calls the object by itself, in C++; for any other process the NIC of the array's owner does (arrays/calls.py).
A thread that waits sleeps on a futex, or on its completion queue; a task waits on the descriptor of its event loop.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ... import _nic, _process, errors
from ...fi import _handle
from ...memory.arrays import zeros
from ..arrays import calls
from ..arrays._default import default_node
from ..arrays.calls import AGAIN, DONE, MAPPED, Answer, Request
from ..arrays.reattaching import KINDS, attach, head_of
from ..arrays.remote import RemoteArray
from ..arrays.show import named
from ..names.processes import pid_namespace
from ..names.server import check_name
from ..names.ticket import PREFIX, Ticket
from ..names.waiting import seconds
from ..node import Node

if TYPE_CHECKING:
    from ..shared import Shared

T = TypeVar("T", bound="SyncObject")

# sync::Outcome, and two that _wait_for adds.
_HOW = _nic.SyncOutcome
DIED, NOT_HOLDER, CLOSED, BROKEN = map(int, (_HOW.died, _HOW.not_holder, _HOW.closed, _HOW.broken))
TOO_LONG, DAMAGED, NO_SEAT = map(int, (_HOW.too_long, _HOW.damaged, _HOW.no_seat))
_LOST, _CLOSED_HERE = 100, 101

_BARRIER, _WAIT, _WITHDRAW = int(_nic.SyncKind.barrier), int(_nic.SyncOp.wait), int(_nic.SyncOp.withdraw)
_ARTICLES = {"Event": "an"}
_MAP_PAUSE_S = 0.0005
_TURN_S = 10.0  # for the turn to change an object, which takes a process a fraction of a microsecond


class OwnerDied(errors.FabricError):
    """EOWNERDEAD: the process that held a lock has ended, and the data that the lock protects may be half-changed.

    The lock is not taken, and every `acquire()` raises this error until `Lock.recover()` takes the lock.
    """

    code = 130


class Result(NamedTuple):
    """The result of a call: values by call (cpp/sync/object.hpp), and the bytes of a record. state: its length, if the
    call reserved the record's slot."""

    outcome: int
    value: int
    value2: int
    value3: int
    state: int
    data: Any


class SyncObject:
    """A lock, semaphore, event, barrier or queue, shared by processes. Base of these classes.

    Args:
        name: The object's name on this host, or the ticket of another handle; None: a new object without a name.
        node: The node that shares or attaches it; None: the default node of the process.
        create: True: make the object (AddressInUse if the name is taken). False: it must exist. None: make it if
            missing.
        wait: With create=False: seconds to wait for a name that does not exist yet.
        keep: True: the keeper (`weft keep`, started if needed) has the object, which outlives its maker, however the
            maker ends, until `weft.forget(name)`. It needs a name, and an object that exists must be kept, too.

    Handles pickle, as shared arrays do, and a forked child may go on with those of its parent. Without `keep` the
    object lives in the process that made it, until that handle's close(), its node's, or the end of the process; calls
    of the others then raise KeyRejected or ConnectionReset. Thread safety: any thread.
    """

    _KIND: ClassVar[int]
    _CORE: ClassVar[Any]

    # Of the extension's classes.
    _map: Callable[..., int]
    _unmap: Callable[[], None]
    _wait_for: Callable[..., tuple[int, int, int, int, int, Any]]
    _mapped: bool
    _kept_items: int
    _current: bool

    name: str
    """The object's name; "" if it has none."""

    def __init__(
        self,
        name: str | Ticket | None = None,
        *,
        node: Node | None = None,
        create: bool | None = None,
        wait: float = 0.0,
        keep: bool = False,
    ) -> None:
        self._begin(name, 0, 0, node, create, wait, keep)

    def _begin(
        self,
        name: str | Ticket | None,
        n: int,
        item: int,
        node: Node | None,
        create: bool | None,
        wait: float,
        keep: bool,
    ) -> bool:
        """Make or attach the object. n, item: numbers of a new one. Returns whether it was made."""
        what = type(self).__name__
        if keep not in (True, False):
            raise TypeError(f"{what}: keep is True or False, not {keep!r}")
        if create not in (True, False, None):
            raise TypeError(f"{what}: create is True, False or None, not {create!r}")
        if name is not None and not isinstance(name, (str, Ticket)):
            raise TypeError(f"{what}: a name is a str, not {type(name).__name__}: {name!r}")
        patience = seconds(wait, f"{what}: wait")
        self._CORE.__init__(self)
        self._start(default_node() if node is None else node)
        self._node._check(what)
        self._node._weft_only(what)
        made = self._make_or_attach(what, name, (n, item, keep), create, patience)
        if keep and not self._array.ticket.kept:
            self._unmap()
            raise errors.InvalidArgument(
                f"{what}: {self._shown()} exists and is not kept: it ends with process {self._array.ticket.pid}, which "
                "made it\n  try: keep=True in all who may make it; or another name"
            )
        return made

    def _make_or_attach(
        self, what: str, name: str | Ticket | None, new: tuple[int, int, bool], create: bool | None, wait: float
    ) -> bool:
        if isinstance(name, Ticket) or (isinstance(name, str) and name.startswith(PREFIX)):
            if create:
                raise errors.InvalidArgument(f"{what}: a ticket names an object that exists, and create is True")
            self._attach(name, 0.0)
            return False
        self.name = name or ""
        if name is None:
            if create is False:
                raise errors.InvalidArgument(f"{what}: create is False, and there is no name to look for")
            if new[2]:
                raise errors.InvalidArgument(
                    f"{what}: keep=True needs a name, because what is kept is found and forgotten by its name\n"
                    f"  try: weft.{what}('...', keep=True)"
                )
            self._create(*new)
            return True
        check_name(name, what)
        if create is False:
            self._attach(name, wait)
            return False
        if create:
            try:
                self._create(*new)
            except errors.AddressInUse as reason:
                first = reason.message.partition("\n")[0].replace("share:", f"{what}:", 1)
                raise errors.AddressInUse(f"{first}\n  try: another name; or without create=True, to use it") from None
            return True
        deadline = time.monotonic() + 5.0
        while True:
            try:
                self._attach(name, 0.0)
                return False
            except (errors.NotFound, errors.ConnectionReset, errors.KeyRejected):
                pass
            try:
                self._create(*new)
                return True
            except errors.AddressInUse:  # another process was faster; or its owner has just ended
                if time.monotonic() > deadline:
                    raise

    def _start(self, node: Node | None) -> None:
        self.name = ""
        self._node: Node
        if node is not None:
            self._node = node
        self._lock = threading.RLock()
        self._closed = False
        self._made: Shared | None = None
        self._memory: Any = None
        self._array: RemoteArray
        self._n = self._item = 0
        self._generation = -1 if node is None else _process.generation  # -1: not attached yet

    def _create(self, n: int, item: int, keep: bool) -> None:
        what = type(self).__name__
        form = self._form_text()
        size = _nic.sync_bytes(self._KIND, n, item, len(form))
        if size is None:
            raise errors.InvalidArgument(f"{what}: no such object: {n} of {item} bytes")
        if keep:
            from ..keeping.client import make_kept  # few programs keep objects

            self._attach(make_kept(self.name, what, self._KIND, n, item, form), 0.0)
            return
        memory = zeros(size, np.uint8)
        _nic.sync_create(memory, self._KIND, n, item, pid_namespace(), form)
        self._made = self._node._share(memory, self.name or None, "rw", False, {"kind": what}, _handle.here(3))
        self._memory = memory
        self._array = self._made.remote
        self._reach()
        self._node._objects.add(self)

    def _attach(self, source: str | Ticket, wait: float) -> None:
        what = type(self).__name__
        try:
            self._array = attach(RemoteArray, self._node, source, wait, "attach", objects=True)
        except errors.NotFound as reason:
            lines = reason.message.replace("attach: no array is shared as", f"{what}: nothing has the name", 1)
            kept = [line for line in lines.split("\n") if "try: node.share(" not in line]
            raise errors.NotFound(
                "\n".join(kept) + f"\n  try: weft.{what}({source!r}, ...) in the process that makes it; wait=10 while "
                "it is starting"
            ) from None
        self.name = self._array.ticket.name
        self._reach()

    @property
    def ticket(self) -> Ticket:
        """The object's ticket, for other processes: a name for the class."""
        return self._array.ticket

    # ---- reaching the object ----------------------------------------------------------------------------------------

    def _reach(self) -> None:
        """Check what the array is, and map it if loads and stores reach it. Raises InvalidArgument."""
        array, what = self._array, type(self).__name__
        head = head_of(array)
        if head is None:
            raise errors.InvalidArgument(
                f"{what}: {named(array.ticket)} is an array, {array.dtype} {array.shape}, and not {_article(what)}\n"
                "  try: another name, or node.attach(...) for the array"
            )
        _, kind, _, _, n, item, namespace, closed, form_bytes = head
        if kind != self._KIND:
            found = KINDS.get(kind, "damaged object")
            raise errors.InvalidArgument(
                f"{what}: {named(array.ticket)} is {_article(found)}, and not {_article(what)}\n"
                f"  try: another name, or weft.{found}({self.name!r})"
            )
        if closed:
            raise self._ended(what)
        if _nic.sync_bytes(kind, n, item, form_bytes) != array.nbytes:
            raise self._damaged(what)
        self._n, self._item = n, item
        self._learn(array.at[array.nbytes - form_bytes :].read().tobytes() if form_bytes else b"")
        self._generation = _process.generation
        if namespace == pid_namespace():
            self._map_now()

    def _form_text(self) -> bytes:
        """The facts of a new object, besides its numbers, that other processes need; stored with the object."""
        return b""

    def _learn(self, form: bytes) -> None:
        """What the maker's _form_text() said."""

    def _map_now(self) -> None:
        array = self._array
        deadline = time.monotonic() + (self._node.timeout or 30.0)
        while True:
            lane = array._lane("attach")
            try:
                found = self._map(lane.ep, array._peer, array._key, array._base, array.nbytes)
            finally:
                array._push(lane)
            if found != 16:  # Status.again: the mapping is still being made
                break
            array.at[:8].read()  # which waits for it
            if time.monotonic() > deadline:
                break
            time.sleep(_MAP_PAUSE_S)
        if found == -2:
            raise self._damaged("attach")
        # Any other answer: the NIC of the owner does the calls, or refuses them with its reason.

    def _ensure(self, call: str) -> None:
        """Before a call that the extension could not do at once: attach in a forked child; refuse a closed handle."""
        if self._closed:
            raise errors.BadState(f"{call}: this {type(self).__name__} is closed")
        if self._generation == _process.generation:
            self._node._check(call)
            return
        with self._lock:
            if self._generation != _process.generation:
                self._node = default_node()
                self._made = self._memory = None  # in a forked child: they are the parent's
                self._array = RemoteArray._make(self._array.ticket, self._node)
                try:
                    self._reach()
                except errors.KeyRejected:
                    raise self._ended(call) from None

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _do(
        self,
        call: str,
        op: int,
        a: int = 0,
        b: int = 0,
        data: Any = None,
        timeout: float | None = 0.0,
        *,
        room: int = 0,
    ) -> Result:
        """One call, which waits at most `timeout` seconds; the outcome may be AGAIN. Raises for all other outcomes."""
        self._ensure(call)
        if self._mapped:
            result = Result(*self._wait_for(op, a, b, data, timeout))
        else:
            request = Request(op, 0, a, b, b"" if data is None else bytes(data), room)
            result = Result(*calls.ask(self, self._array, call, request, timeout, self._KIND == _BARRIER))
        return self._checked(call, result)

    def _spare_lane(self) -> None:
        """Make a lane idle. The extension calls this when it must undo a call and finds none."""
        self._array._push(self._array._lane("undo"))

    def _at_once(self, call: str, op: int, a: int = 0) -> Result:
        """A call that waits for nothing but its turn to change the object."""
        return self._turn(call, self._do(call, op, a, timeout=_TURN_S))

    async def _aat_once(self, call: str, op: int, a: int = 0) -> Result:
        """`_at_once`, awaitable."""
        return self._turn(call, await self._ado(call, op, a, timeout=_TURN_S))

    def _turn(self, call: str, result: Result) -> Result:
        if result.outcome == AGAIN:
            raise errors.TimedOut(
                f"{call}: another process has been changing {self._shown()} for {_TURN_S:g} s\n"
                "  try: find out whether a process that uses it is stopped (Ctrl-Z, a debugger)"
            )
        return result

    async def _aready(self, call: str) -> None:
        """`_ensure`, without blocking the event loop."""
        import asyncio

        if self._generation != _process.generation and not self._closed:
            await asyncio.get_running_loop().run_in_executor(None, self._ensure, call)
        self._ensure(call)

    async def _ado(
        self,
        call: str,
        op: int,
        a: int = 0,
        b: int = 0,
        data: Any = None,
        timeout: float | None = 0.0,
        *,
        room: int = 0,
        undo: Callable[[Answer], Any] | None = None,
    ) -> Result:
        """`_do`, awaitable."""
        await self._aready(call)
        flags = MAPPED if self._mapped else 0
        # A party that waits at a barrier comes once: one that came here, left and came again through the owner's NIC
        # would be missed by a reset() between the two.
        comes = self._KIND == _BARRIER and op == _WAIT and (timeout is None or timeout > 0)
        if self._mapped and not comes:
            result = Result(*self._wait_for(op, a, b, data, 0.0))
            if result.outcome != AGAIN or (timeout is not None and timeout <= 0):
                return self._checked(call, result)
        request = Request(op, flags, a, b, b"" if data is None else bytes(data), room)
        answer = await calls.aask(self._array, call, request, timeout, undo=undo)
        if answer.outcome == AGAIN and answer.state and self._KIND == _BARRIER:
            answer = await self._awithdraw(call, answer, flags)
        return self._checked(call, Result(*answer))

    async def _awithdraw(self, call: str, answer: Answer, flags: int) -> Answer:
        """A party that came to a barrier, and waits no longer, leaves it."""
        left = await calls.aask(self._array, call, Request(_WITHDRAW, flags, state=answer.state), 0.0)
        return answer._replace(outcome=DONE, value=left.value2) if left.outcome == DONE and left.value else answer

    def _checked(self, call: str, result: Result) -> Result:
        """The result, if its outcome is DONE or AGAIN. Raises the error of any other."""
        outcome = result.outcome
        if outcome in (DONE, AGAIN):
            return result
        if outcome == CLOSED:
            raise self._ended(call)
        if outcome == _CLOSED_HERE:
            raise errors.BadState(f"{call}: this {type(self).__name__} was closed while the call waited")
        if outcome == _LOST:
            self._node._check(call)
            try:
                self._array._probe(call)  # raises the reason
            except errors.KeyRejected:
                raise self._ended(call) from None
            except errors.ConnectionReset as reason:
                if "is gone" not in reason.message:  # the owner lives, and has closed its node
                    raise
            raise self._gone(call) from None
        if outcome == DAMAGED:
            raise self._damaged(call)
        raise self._refused(call, result)

    def _refused(self, call: str, result: Result) -> errors.FabricError:
        """The error of an outcome that only some classes have."""
        return self._damaged(call)

    def _gone(self, call: str) -> errors.FabricError:
        if self.ticket.kept:
            return errors.ConnectionReset(
                f"{call}: the keeper, process {self.ticket.pid}, which kept {self._shown()}, is gone\n"
                "  rule: if the keeper is killed, what it kept is lost\n"
                f"  try: weft.{type(self).__name__}(..., keep=True) again"
            )
        return errors.ConnectionReset(
            f"{call}: the owner of {self._shown()}, process {self.ticket.pid}, is gone\n"
            f"  rule: an object lives as long as the process that made it\n  try: weft.{type(self).__name__}(...) again"
        )

    def _ended(self, call: str) -> errors.FabricError:
        if self.ticket.kept:
            return errors.KeyRejected(
                f"{call}: {self._shown()} was kept, and is forgotten (weft.forget, weft rm)\n"
                f"  try: weft.{type(self).__name__}(..., keep=True) makes a new one"
            )
        return errors.KeyRejected(f"{call}: {self._shown()} was closed by its owner, process {self.ticket.pid}")

    def _damaged(self, call: str) -> errors.FabricError:
        return errors.InvalidArgument(
            f"{call}: the memory of {self._shown()} is damaged: a process that shares it has written into it"
        )

    def _shown(self) -> str:
        return f"{type(self).__name__} {self.name!r}" if self.name else f"the {type(self).__name__}"

    def _check_timeout(
        self,
        first: Any = None,
        second: Any = None,
        /,
        *,
        timeout: float | None = None,
        block: bool | None = None,
        blocking: bool | None = None,
    ) -> tuple[float | None, bool]:
        """`patience` of the arguments of acquire()."""
        return patience("acquire", first, second, timeout, block, blocking)

    # ---- properties and life ----------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """How this process reaches the object: "load/store" (it is mapped here), "engine" or "tcp" (the owner's NIC
        does the calls)."""
        self._ensure("path")
        if self._mapped:
            return "load/store"
        found = self._array.path
        return found if found == "tcp" else "engine"

    @property
    def kept(self) -> bool:
        """True if the keeper has the object: it outlives its maker, until `weft.forget(name)`."""
        return self.ticket.kept

    @property
    def closed(self) -> bool:
        """True after close() of this handle."""
        return self._closed

    def close(self) -> None:
        """End the use through this handle. The handle that made the object ends the object, unless it is kept: threads
        and processes that wait for it get KeyRejected. Closing again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._generation != _process.generation:
            return
        made, memory = self._made, self._memory
        self._made = self._memory = None
        if made is not None:
            _nic.sync_close(memory)
            made.close()
        self._unmap()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle, (type(self), self.ticket)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        if self._closed:
            return f"<weft.{type(self).__name__}{name}, closed>"
        if self._generation != _process.generation:
            return f"<weft.{type(self).__name__}{name}, not attached yet>"
        try:
            state = self._state()
        except errors.FabricError:
            why = "its node is closed" if self._node.closed else "ended"
            return f"<weft.{type(self).__name__}{name}, {why}, of process {self.ticket.pid}>"
        of = f"kept by process {self.ticket.pid}" if self.ticket.kept else f"of process {self.ticket.pid}"
        return f"<weft.{type(self).__name__}{name}, {state}, {of}, by {self.path}>"

    def _state(self) -> str:
        return ""


def unpickle(cls: type[T], ticket: Ticket) -> T:
    """A handle that has come from another process: it attaches through the default node at its first use."""
    made = cls.__new__(cls)
    made._CORE.__init__(made)
    made._start(None)
    made.name = ticket.name
    made._array = RemoteArray._make(ticket)
    return made


def limit(timeout: Any, call: str) -> float | None:
    """A timeout in seconds, not below 0; None: no limit. Raises TypeError, InvalidArgument (NaN)."""
    if timeout is None:
        return None
    if isinstance(timeout, bool):
        raise TypeError(f"{call}: timeout is a number of seconds, not {timeout!r}")
    found = seconds(timeout, f"{call}: timeout")
    return None if math.isinf(found) and found > 0 else max(found, 0.0)


def patience(call: str, first: Any, second: Any, timeout: Any, block: Any, blocking: Any) -> tuple[float | None, bool]:
    """The arguments of a waiting call: (timeout, whether they are in the form of multiprocessing and threading).

    Weft's form is `timeout`, first or by name. The other form has `block` or `blocking`, or a bool first, then
    `timeout`: the call's result then tells what Weft's form tells by TimedOut. Raises TypeError, InvalidArgument (NaN).
    """
    if block is not None and blocking is not None:
        raise TypeError(f"{call}: block and blocking are two names of one argument")
    asked = block if blocking is None else blocking
    if isinstance(first, bool):
        if asked is not None:
            raise TypeError(f"{call}: block is given twice")
        asked, first, second = first, second, None
    if second is not None or (first is not None and timeout is not None):
        raise TypeError(f"{call}: timeout is given twice")
    given = timeout if first is None else first
    if asked is None:
        return limit(given, call), False
    if not isinstance(asked, bool):
        raise TypeError(f"{call}: block is True or False, not {asked!r}")
    if blocking is not None and given == -1:  # threading's word for no limit
        given = None
    found = limit(given, call)
    return (found if asked else 0.0), True


def _article(kind: str) -> str:
    return f"{_ARTICLES.get(kind, 'a')} {kind}"
