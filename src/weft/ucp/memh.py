"""Memory handles (ucp_mem_h): the base class of the two kinds of handles, region.py and imported.py.

Source: UCP of UCX 1.17, "ucp_mem_map" and the routines after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _nic, buffers, errors
from .._with import With
from . import _args
from .constants import MemAttrField, MemhPackFlag, MemhPackParamField, MemoryType, Prot
from .packed import PackedBuffer
from .params import MemAttr, MemhPackParams
from .status import invalid, of, unsupported

if TYPE_CHECKING:
    from .context import Context


class MemHandle(With):
    """Mapped memory (ucp_mem_h). Made by `Context.mem_map`; a context manager that unmaps the memory.

    Attributes:
        context: The context that mapped the memory.
        address: Virtual address of the memory.
        length: Bytes.
        memory_type: A `MemoryType`.
        prot: `Prot`: the permitted accesses.
        unmapped: True after mem_unmap.

    memh[a:b] is a part of the memory, the fastest local buffer of an operation; `memory` is the whole memory as bytes.

    Thread safety: any thread. Source: UCP, "ucp_mem_h", "ucp_mem_map".
    """

    if TYPE_CHECKING:

        @property
        def context(self) -> Context: ...
        @property
        def address(self) -> int: ...
        @property
        def length(self) -> int: ...
        @property
        def memory_type(self) -> MemoryType: ...
        @property
        def prot(self) -> Prot: ...
        @property
        def unmapped(self) -> bool: ...
        def _unmap(self) -> None: ...
        def _view(self) -> memoryview: ...
        def _pack_key(self, by: str) -> PackedBuffer: ...
        def __getitem__(self, index: slice) -> Any: ...

    # ---- the calls ---------------------------------------------------------------------------------------------------

    def query(self, attr: MemAttr | None = None) -> MemAttr:
        """Attributes of the memory (ucp_mem_query): fills the fields in attr.field_mask; without attr, a new MemAttr.

        Raises UcsError (INVALID_PARAM): the handle is unmapped. Source: UCP, "ucp_mem_query".
        """
        self._check("mem_query")
        if attr is not None:
            _args.expect("mem_query", "attr", attr, MemAttr)
        else:
            attr = MemAttr(int(MemAttrField.ADDRESS | MemAttrField.LENGTH | MemAttrField.MEM_TYPE))
        if attr.field_mask & MemAttrField.ADDRESS:
            attr.address = self.address
        if attr.field_mask & MemAttrField.LENGTH:
            attr.length = self.length
        if attr.field_mask & MemAttrField.MEM_TYPE:
            attr.mem_type = self.memory_type
        return attr

    def pack(self, params: MemhPackParams | None = None, *, flags: int | None = None) -> PackedBuffer:
        """Pack the handle into bytes for peers (ucp_memh_pack).

        Args:
            params: A `MemhPackParams`, with the field `flags`; or None and the argument.
            flags: The struct's field. 0: a remote key, for `Endpoint.rkey_unpack`. MEMH_PACK_FLAG_EXPORT: the handle,
                for mem_map(exported_memh_buffer=...) in another process of this host.

        Release the bytes with memh_buffer_release().

        Raises:
            UcsError: INVALID_PARAM (unmapped), UNSUPPORTED (EXPORT of memory that peers may not read).

        Source: UCP, "ucp_memh_pack".
        """
        self._check("memh_pack")
        if params is not None:
            _args.expect("memh_pack", "params", params, MemhPackParams)
        if flags is None:
            flags = params.flags if params is not None and params.field_mask & MemhPackParamField.FLAGS else 0
        _args.needed("memh_pack", flags=flags)
        _args.whole("memh_pack", flags=flags)
        if flags & MemhPackFlag.EXPORT:
            return self._pack_export()
        return self._pack_key("ucp_memh_pack")

    def unmap(self) -> None:
        """Unmap the memory (ucp_mem_unmap). Raises as `Context.mem_unmap`."""
        self._check("mem_unmap")
        self._unmap()

    # ---- calls beyond UCP --------------------------------------------------------------------------------------------

    @property
    def memory(self) -> memoryview:
        """The memory as bytes. Raises UcsError (UNSUPPORTED) for device memory."""
        self._check("memory")
        if self.memory_type != MemoryType.HOST:
            raise unsupported(
                f"memory: {self!r} is device memory, which the CPU cannot access\n  try: ep.get_nbx into host memory"
            )
        return self._view()

    def array(self, dtype: Any = "u1", shape: Any = None) -> Any:
        """The memory as a NumPy array of `shape`, or of as many elements as fit; the array keeps the memory alive."""
        import numpy

        memory = self.memory
        try:
            kind = numpy.dtype(dtype)
            dims = (len(memory) // kind.itemsize,) if shape is None else shape
            return numpy.ndarray(dims, kind, buffer=memory)
        except TypeError:
            raise TypeError(f"array: dtype {dtype!r:.60} and shape {shape!r:.60} describe no array") from None
        except (ValueError, OverflowError, ZeroDivisionError):
            raise invalid(
                f"array: an array of dtype {dtype!r:.60} and shape {shape!r:.60} does not fit {self!r}\n"
                "  try: a dtype without Python objects, and a shape of no more bytes than the memory has"
            ) from None

    @property
    def fi_key(self) -> tuple[int, int]:
        """(key, addr) with which `weft.fi` endpoints reach the first byte: arguments of a transfer.

        For dest_addr use av.insert(worker.fi_name), with any worker of this context.
        Raises UcsError (INVALID_PARAM) if peers have no rights to the memory, or the memory has no bytes.
        """
        self._check("fi_key")
        raise invalid(f"fi_key: peers cannot reach {self!r}")

    def __len__(self) -> int:
        return self.length

    def _leave(self) -> None:
        self._unmap()

    def __repr__(self) -> str:
        rights = "|".join(p.name or "" for p in Prot if p & self.prot) or "no rights"
        state = ", unmapped" if self.unmapped else ""
        return f"<ucp.MemHandle 0x{self.address:x}, {self.length} B of {self.memory_type.text} memory, {rights}{state}>"

    # ---- for other modules of weft.ucp -------------------------------------------------------------------------------

    def _check(self, op: str) -> None:
        if self.unmapped:
            raise invalid(f"{op}: {self!r} was unmapped: a handle is void after mem_unmap\n  try: context.mem_map(...)")
        self.context._check(op)

    def _pack_export(self) -> PackedBuffer:
        raise unsupported(
            f"memh_pack: EXPORT: {self!r} belongs to another process\n  try: export the memory in its owner"
        )

    def _populate(self, address: int, length: int) -> None:
        """Make these pages exist."""

    def _as_local(self, context: Context, buffer: Any, writes: bool) -> Any:
        """The buffer of an operation that names this handle. Called from the data path.

        Args:
            context: Context of the operation's worker.
            writes: The operation writes to the buffer.
        """
        self._check("memh")
        if self.context is not context:
            raise invalid(
                f"memh: {self!r} was mapped by another context than the worker's\n"
                "  try: context.mem_map(...) of the context that made the worker"
            )
        right = Prot.LOCAL_WRITE if writes else Prot.LOCAL_READ
        if not self.prot & right:
            raise invalid(f"memh: {self!r} does not grant {right.name}\n  try: map it with the right")
        if isinstance(buffer, _nic.MrSlice):
            address, nbytes = buffer.address, len(buffer)
        else:
            try:
                info = buffers.describe(buffer)
            except errors.FabricError as reason:
                raise of(reason) from None
            address, nbytes = info.address, info.nbytes
        at = address - self.address
        if at < 0 or at + nbytes > self.length:
            raise invalid(
                f"memh: the buffer, {nbytes} B at {address:#x}, does not lie in {self!r}\n"
                "  try: the handle of the memory that contains the buffer, or no handle"
            )
        return self._part(buffer, at, nbytes, writes)

    def _part(self, buffer: Any, at: int, nbytes: int, writes: bool) -> Any:
        return buffer
