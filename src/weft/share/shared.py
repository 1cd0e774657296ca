"""The result of `Node.share`: the owner's side of a shared array."""

from __future__ import annotations

import dataclasses
import json
import operator
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _keys, _process, errors, fi
from .._with import With
from ..fi import _handle
from .arrays.checks import Array
from .arrays.functions import Functions
from .arrays.mapped import register as register_for_views
from .arrays.remote import RemoteArray
from .arrays.show import human_bytes, no_attribute, table_html
from .names.server import check_ticket
from .names.ticket import Ticket
from .offer import Offer, check, register

if TYPE_CHECKING:
    from .node import Node

# Attributes that a Shared takes from its RemoteArray, unless it defines them itself.
_REMOTE_NAMES = frozenset(name for name in dir(RemoteArray) if not name.startswith("_"))


if TYPE_CHECKING:  # a Shared has all methods of a RemoteArray, through __getattr__
    _Calls = RemoteArray
else:
    _Calls = Functions


class Shared(_Calls, With):
    """A shared array. Made by `Node.share`; a context manager. Closing it revokes the peers' access.

    Attributes:
        array: The array that was passed to share(); after replace() or resize() the present one.
        ticket: The ticket for peers: a small value that pickles; str(ticket) is one word. Pickling a Shared sends its
            ticket: the receiver gets a RemoteArray.
        remote: A RemoteArray of the array, as peers get.

    A Shared has all methods of a RemoteArray, through its `remote`: `shared[3]`, `shared.read()`, `shared.add(0)` ...
    So a worker's code is the same whether its argument came by pickle (spawn, forkserver) or by fork, where the child
    has the Shared itself. A forked child attaches the array through its own default node at the first use.
    """

    kept: bool = False
    """True if the keeper has the array (share(keep=True)): closing the Shared, or the end of this process, then leaves
    the array and its name."""

    _node: Node
    _again = "node.share(array) shares it again"

    def __init__(
        self, node: Node, offer: Offer, mr: fi.MemoryRegion | None, ticket: Ticket, site: _handle.Site
    ) -> None:
        self._node = node
        self._local: Array | None = offer.local
        self._room = offer.room
        self._mr = mr
        self._retired: list[fi.MemoryRegion] = []  # of earlier arrays, which a stopped peer still reads
        self.array = offer.array
        self.ticket = ticket
        self._changing = threading.RLock()
        self._closed = False
        self._remote: RemoteArray | None = None
        self._site = site
        register_for_views(self)

    @classmethod
    def _begin(
        cls, node: Node, offer: Offer, name: str | None, access: str, site: _handle.Site, info: dict[str, Any]
    ) -> Shared:
        """`Node.share`, after the checks. info: shown by `weft ls`; that of an array of the keeper says so."""
        mr, ticket = register(node, offer, name or "", access, "keeper" in info)
        shared = cls(node, offer, mr, ticket, site)
        try:
            if name is not None:
                check_ticket(str(ticket), "share")
                node._names.publish(name, str(ticket), json.dumps({"since": time.time(), **info}))
        except BaseException:
            if mr is not None:
                mr.close()
            raise
        with node._lock:
            node._shared[id(shared)] = shared
        return shared

    @property
    def remote(self) -> RemoteArray:
        """A RemoteArray of the array. Raises BadState (the share is closed)."""
        if self._closed:
            raise errors.BadState(f"the share of {self._what()} is closed\n  try: {self._again}")
        found = self._remote
        if found is None:
            here = self._node._made_in == _process.generation
            found = self._remote = RemoteArray._make(self.ticket, self._node if here else None)
        return found

    @property
    def name(self) -> str:
        """The name; "" if the share has none."""
        return self.ticket.name

    @property
    def shape(self) -> tuple[int, ...]:
        """As NumPy's."""
        return self.ticket.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As NumPy's."""
        return self.ticket.numpy_dtype

    @property
    def nbytes(self) -> int:
        """Bytes."""
        n = self.dtype.itemsize
        for k in self.shape:
            n *= k
        return n

    @property
    def access(self) -> str:
        """The peers' access: "r", "w" or "rw"."""
        return self.ticket.access

    @property
    def path(self) -> str:
        """How peers reach the array: "load/store", "process_vm", or the provider of a real libfabric ("ofi:tcp")."""
        if self.ticket.fabric:
            return self.ticket.fabric
        return "load/store" if self.ticket.direct else "process_vm"

    @property
    def ucp_rkey(self) -> bytes:
        """A remote key of the array, as bytes to send, for programs that use `weft.ucp`: ep.rkey_unpack(rkey), on an
        endpoint to `Node.ucp_address`. Remote addresses then begin at `rkey.address`.

        Raises BadState (closed), InvalidArgument (an array without elements has no key).
        """
        self._node._check("ucp_rkey")
        self._node._weft_only("ucp_rkey")
        if self._closed:
            raise errors.BadState("ucp_rkey: the share is closed")
        if self._mr is None:
            raise errors.InvalidArgument("ucp_rkey: the array has no elements, and so no region")
        return _keys.of_region(self._mr, self._node._home.ep).pack()

    @property
    def fi_key(self) -> tuple[str, int, int]:
        """(name, key, addr) of the array for programs that use `weft.fi`: av.insert(name), then transfers with this
        key, from this addr on.

        Raises as ucp_rkey.
        """
        self._node._check("fi_key")
        self._node._weft_only("fi_key")
        if self._closed:
            raise errors.BadState("fi_key: the share is closed")
        if self._mr is None or self.ticket.key is None:
            raise errors.InvalidArgument("fi_key: the array has no elements, and so no region")
        return self.ticket.address, self.ticket.key, self.ticket.base

    @property
    def closed(self) -> bool:
        """True after close(), of the share or of its node."""
        return self._closed

    def close(self) -> None:
        """Revoke the access: peers then get an error. The array itself does not change. Closing again does nothing.

        Raises Busy if a peer is stopped in a copy, so that the copy does not end: try again.
        """
        if self._closed:
            return
        node = self._node
        if node._made_in != _process.generation:
            self._closed = True
            return
        with self._changing:
            if self.name:
                node._names.withdraw(self.name)
            if self._mr is not None:
                self._mr.close()
            self._close_retired()
            self._closed = True
            self._local = self._room = None
        with node._lock:
            node._shared.pop(id(self), None)

    # ---- another array, another length ------------------------------------------------------------------------------

    def replace(self, array: Any) -> None:
        """Put another array under the name: of any shape and dtype, with the same access.

        Args:
            array: As for `Node.share`. A kept share copies it to the keeper, as share(keep=True) does.

        From the return on, the name leads to the new array, and every access to the old one ends with `weft.Replaced`:
        `t.reattach()` goes on with the new array. A peer reads the old elements or gets Replaced, and never a mixture
        of two arrays. The old array is the program's own again; views that peers have of it stay valid. A share without
        a name has a new `ticket`, which the program sends to its peers; they get KeyRejected.

        Raises:
            TypeError: As `Node.share`; so are InvalidArgument and AccessDenied.
            BadState: The share is closed.
            Busy: A peer's copy of the old array does not end, because the peer is stopped: then the name has the new
                array, and the peer may still read the old one until close() succeeds.
        """
        self._check_open("replace")
        offer = check(array, self.access, "replace")
        with self._changing:
            self._check_open("replace")
            self._put(offer, "replace")

    def resize(self, length: int) -> None:
        """Change the length: the number of elements of the first dimension. `shared.array` is then the new array.

        Args:
            length: Rows, from 0 to the `reserve` that the array was made with (`weft.empty(..., reserve=n)`).

        Longer: peers that are attached go on with the length that they know, and t.reattach() shows them the new one.
        The new rows hold what the reserved memory holds: zeros if it was never used, otherwise earlier elements.
        Shorter: every access of an attached peer ends with `weft.Replaced`, and t.reattach() shows the new length. So a
        peer never reads beyond the present array. (A view made before keeps its length; its last rows are then rows
        of the reserve.)

        Raises:
            NoSpace: There is no room for so many rows.
            TypeError: `length` is not an integer.
            InvalidArgument: `length` is negative, or the array has no dimensions.
            BadState: The share is closed.
            Busy: As `replace`.
        """
        self._check_open("resize")
        try:
            if isinstance(length, bool):
                raise TypeError
            wanted = operator.index(length)
        except TypeError:
            raise TypeError(f"resize: the length is an integer, not {length!r}") from None
        if not self.shape:
            raise errors.InvalidArgument("resize: an array without dimensions has no length")
        if wanted < 0:
            raise errors.InvalidArgument(f"resize: the length is {wanted}; it cannot be negative")
        with self._changing:
            self._check_open("resize")
            if wanted != self.shape[0]:
                self._resize(wanted)

    def _resize(self, length: int) -> None:
        offer = self._rows_of(length)
        if length < self.shape[0] or self._mr is None:
            self._put(offer, "resize")
        else:
            self._show(offer, dataclasses.replace(self.ticket, shape=offer.shape))

    def _rows_of(self, length: int) -> Offer:
        """The first rows of the room, or of an array without a room."""
        room = self._room
        if self.ticket.order == "F":
            raise errors.InvalidArgument(
                f"resize: {self._what()} is in Fortran order: the elements of its rows lie apart\n"
                "  try: shared.replace() with an array of the new length"
            )
        if length > (self.shape[0] if room is None else len(room)):
            raise self._no_room(length, room is not None)
        whole = self._local if room is None else room
        assert whole is not None
        return Offer(whole[:length], whole[:length], whole)

    def _no_room(self, length: int, reserved: bool) -> errors.NoSpace:
        return errors.NoSpace(
            f"resize: {self._what()} has no room for {length} rows"
            + (": its reserve is used up" if reserved else f": it was made with {self.shape[0]}, without a reserve")
            + f"\n  try: weft.empty({(length, *self.shape[1:])}, {str(self.dtype)!r}, reserve=n), filled with the old "
            "rows, and shared.replace() with it"
        )

    def _put(self, offer: Offer, call: str) -> None:
        """Share another array under the same name, then end the access to the present one."""
        mr, ticket = register(self._node, offer, self.name, self.access, self.ticket.kept)
        if self.name:
            try:
                check_ticket(str(ticket), call)
            except errors.MessageTooLong:
                if mr is not None:
                    mr.close()
                raise
        before = self._mr
        self._mr = mr
        self._show(offer, ticket)
        if before is not None:
            self._retired.append(before)
        try:
            self._close_retired()
        except errors.Busy as reason:
            raise errors.Busy(
                f"{call}: {self._what()} has the new array, but a peer still uses the old one: {reason.message}"
            ) from None

    def _show(self, offer: Offer, ticket: Ticket) -> None:
        self._local, self._room, self.array = offer.local, offer.room, offer.array
        self.ticket = ticket
        self._remote = None
        register_for_views(self)
        if self.name:
            self._node._names.update(self.name, str(ticket))

    def _close_retired(self) -> None:
        while self._retired:
            self._retired[-1].close()
            self._retired.pop()

    def _check_open(self, call: str) -> None:
        self._node._check(call)
        if self._closed:
            raise errors.BadState(f"{call}: the share of {self._what()} is closed\n  try: {self._again}")

    # ---- as a RemoteArray -------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called for attributes that the class does not have: read, write, at, take, fetch_add, aread ...
            if name in _REMOTE_NAMES:
                return getattr(self.remote, name)
            raise AttributeError(no_attribute(type(self).__name__, name), name=name, obj=self)

        def _array(self) -> RemoteArray:
            return self.remote

        def __getitem__(self, key: Any) -> Any:
            return self.remote[key]

        def __setitem__(self, key: Any, value: Any) -> None:
            self.remote[key] = value

        def __len__(self) -> int:
            return len(self.remote)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.remote)

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
            return self.remote.__array__(dtype, copy)

        def __dlpack__(self, **options: Any) -> Any:
            return self.remote.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.remote.__dlpack_device__()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_REMOTE_NAMES})

    # ---- life -------------------------------------------------------------------------------------------------------

    def _what(self) -> str:
        return repr(self.name) if self.name else f"the array of {self.shape}"

    def _warn_that_it_ends(self) -> None:
        warnings.warn(
            f"the share of {self._what()} ends, because its node was dropped without close(); shared at "
            f"{_handle.where(self._site)}, by the node opened at {_handle.where(self._node._site)}\n"
            "  try: keep the node, or the result of share(), as long as peers need the array",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def __reduce__(self) -> tuple[Callable[[Ticket], RemoteArray], tuple[Ticket]]:
        return RemoteArray._make, (self.ticket,)

    def _why(self) -> str:
        if self.ticket.direct:
            return "peers map its memory, which Weft allocated"
        if self.ticket.fabric:
            return "through this provider of libfabric"
        return "its memory was not allocated by Weft; weft.empty() makes arrays that peers map"

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        state = ", closed" if self._closed else f", access {self.access}, by {self.path}: {self._why()}"
        return f"<weft.Shared{name} {self.dtype} {self.shape}, {human_bytes(self.nbytes)}{state}>"

    def _repr_html_(self) -> str:
        return table_html(
            f"weft.Shared {self.name}",
            [
                ("array", f"{self.dtype} {self.shape}, {human_bytes(self.nbytes)}"),
                ("access", self.access if not self._closed else "closed"),
                ("path", f"{self.path}: {self._why()}"),
                ("ticket", str(self.ticket)),
            ],
        )
