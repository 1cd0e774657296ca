"""The result of `Node.share`: the owner's side of a shared array."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _keys, _process, errors, fi
from ..fi import _handle
from .arrays import Array
from .functions import Functions
from .mapped import register
from .remote import RemoteArray
from .show import human_bytes, no_attribute, table_html
from .ticket import Ticket

if TYPE_CHECKING:
    from .node import Node

__all__ = ["Shared"]

# Attributes that a Shared takes from its RemoteArray, unless it defines them itself.
_REMOTE_NAMES = frozenset(name for name in dir(RemoteArray) if not name.startswith("_"))


if TYPE_CHECKING:  # a Shared has all methods of a RemoteArray, through __getattr__
    _Calls = RemoteArray
else:
    _Calls = Functions


class Shared(_Calls):
    """A shared array. Made by `Node.share`; a context manager. Closing it revokes the peers' access.

    array      the array that was passed to share().
    ticket     the ticket for peers: a small value that pickles; str(ticket) is one word. Pickling a Shared sends
               its ticket: the receiver gets a RemoteArray.
    remote     a RemoteArray of the array, as peers get.

    A Shared has all methods of a RemoteArray, through its `remote`: `shared[3]`, `shared.read()`, `shared.add(0)` ...
    So a worker's code is the same whether its argument came by pickle (spawn, forkserver) or by fork, where the child
    has the Shared itself. A forked child attaches the array through its own default node at the first use.
    """

    _node: Node

    def __init__(
        self, node: Node, array: Any, local: Array, mr: fi.MemoryRegion | None, ticket: Ticket, site: _handle.Site
    ) -> None:
        self._node = node
        self._local: Array | None = local
        self._mr = mr
        self.array = array
        self.ticket = ticket
        self._closed = False
        self._remote: RemoteArray | None = None
        self._site = site
        register(self)

    @property
    def remote(self) -> RemoteArray:
        """A RemoteArray of the array. Raises BadState (the share is closed)."""
        if self._closed:
            raise errors.BadState(f"the share of {self._what()} is closed\n  try: node.share(array) shares it again")
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
        """How peers reach the array: "load/store" or "process_vm"."""
        return "load/store" if self.ticket.direct else "process_vm"

    @property
    def ucp_rkey(self) -> bytes:
        """A remote key of the array, as bytes to send, for programs that use `weft.ucp`: ep.rkey_unpack(rkey), on an
        endpoint to `Node.ucp_address`. Remote addresses then begin at `rkey.address`.

        Raises BadState (closed), InvalidArgument (an array without elements has no key).
        """
        self._node._check("ucp_rkey")
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

        Raises Busy if a peer's copy does not end, because the peer is stopped: try again.
        """
        if self._closed:
            return
        node = self._node
        if node._made_in != _process.generation:
            self._closed = True
            return
        if self.name:
            node._names.withdraw(self.name)
        if self._mr is not None:
            self._mr.close()
        self._closed = True
        self._local = None
        with node._lock:
            node._shared.pop(id(self), None)

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
            f"{_handle.where(self._site)}\n"
            "  try: keep the node, or the result of share(), as long as peers need the array",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def __enter__(self) -> Shared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _handle.exit(self, kind, error, trace)

    def __reduce__(self) -> tuple[Callable[[Ticket], RemoteArray], tuple[Ticket]]:
        return RemoteArray._make, (self.ticket,)

    def _why(self) -> str:
        if self.ticket.direct:
            return "peers map its memory, which Weft allocated"
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
