"""Mapped memory (ucp_mem_h): ucp_mem_map and what is done with a handle.

Source: UCP of UCX 1.17, "ucp_mem_map" and the routines after it.
"""

from __future__ import annotations

import ctypes
import hashlib
import operator
import os
import struct
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _keys, _nic, _process, buffers, errors
from . import _args, _exit, placement
from .constants import MemAttrField, MemhPackFlag, MemhPackParamField, MemMapFlag, MemMapParamField, MemoryType, Prot
from .params import MemAdviseParams, MemAttr, MemhBufferReleaseParams, MemhPackParams, MemMapParams
from .status import Status, UcsError, of

if TYPE_CHECKING:
    from .context import Context

__all__ = ["MemHandle", "PackedBuffer", "memh_buffer_release", "pack_endpoint", "pack_region", "rkey_buffer_release"]

PROT_ALL = int(Prot.LOCAL_READ | Prot.LOCAL_WRITE | Prot.REMOTE_READ | Prot.REMOTE_WRITE)
_ADDRESS, _LENGTH, _FLAGS, _PROT, _TYPE, _EXPORTED = (int(bit) for bit in MemMapParamField)
_NONBLOCK, _ALLOCATE, _FIXED, _SYMMETRIC = (int(bit) for bit in MemMapFlag)
_PAGE = os.sysconf("SC_PAGESIZE")
_ACCESS_OF = {
    bits: sum(flag for prot, flag in _keys.PROT.items() if bits & prot)
    for bits in (a | b | c | d for a in (0, 1) for b in (0, 2) for c in (0, 256) for d in (0, 512))
}
_PROT_OF = {access: Prot(bits) for bits, access in _ACCESS_OF.items()}
ACCESS_ALL = _ACCESS_OF[PROT_ALL]
_KINDS = {_keys.ADDRESS: "an address", _keys.KEY: "a remote key", _keys.EXPORT: "an exported handle"}


def deprecated(old: str, new: str) -> None:
    """Warn the caller of the caller."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)


class PackedBuffer(bytes):
    """A packed key, exported handle or address: bytes to send, until they are released.

    Made by `MemHandle.pack`, `Context.rkey_pack`, `Worker.get_address`, `pack_region` and `pack_endpoint`. What was
    sent, or copied with bytes(), is not released with it.

    Raises UcsError (INVALID_PARAM) where Weft is given one that was released.
    """

    _released = False
    _by = ""

    def __new__(cls, data: bytes, by: str = "") -> PackedBuffer:
        made = super().__new__(cls, data)
        made._by = by
        return made

    def __repr__(self) -> str:
        return f"<ucp.PackedBuffer: {len(self)} B{', released' if self._released else ''}>"


def _release(buffer: object, by: str, op: str) -> None:
    if not isinstance(buffer, PackedBuffer) or buffer._by != by:
        raise UcsError(
            Status.ERR_INVALID_PARAM, f"{op}: {buffer!r:.60} was not made by {by}\n  try: what {by} returned, itself"
        )
    if buffer._released:
        raise UcsError(Status.ERR_INVALID_PARAM, f"{op}: it was released already\n  try: release each buffer once")
    buffer._released = True


def memh_buffer_release(buffer: PackedBuffer, params: MemhBufferReleaseParams | None = None) -> None:
    """Release what `MemHandle.pack` made (ucp_memh_buffer_release): Weft takes it no more.

    Raises UcsError (INVALID_PARAM) for any other object, and for one that was released.
    Source: UCP, "ucp_memh_buffer_release".
    """
    if params is not None:
        _args.expect("memh_buffer_release", "params", params, MemhBufferReleaseParams)
    _release(buffer, "ucp_memh_pack", "memh_buffer_release")


def rkey_buffer_release(buffer: PackedBuffer) -> None:
    """Release what `Context.rkey_pack` made (ucp_rkey_buffer_release). Deprecated: memh_buffer_release().

    Source: UCP, "ucp_rkey_buffer_release".
    """
    deprecated("rkey_buffer_release", "memh_buffer_release")
    _release(buffer, "ucp_rkey_pack", "rkey_buffer_release")


def parse(buffer: Any, kinds: tuple[int, ...], op: str, what: str) -> _keys.Packed:
    """What is packed in a buffer. Raises UcsError (INVALID_PARAM), saying what is wrong with it."""
    if isinstance(buffer, PackedBuffer) and buffer._released:
        raise UcsError(Status.ERR_INVALID_PARAM, f"{op}: the buffer was released\n  try: pack the handle again")
    try:
        data = buffer if isinstance(buffer, bytes) else bytes(memoryview(buffer))
    except (TypeError, ValueError, BufferError):
        raise UcsError(Status.ERR_INVALID_PARAM, f"{op}: {buffer!r:.60} is no {what}, which is bytes") from None
    try:
        found = _keys.Packed.parse(data)
        if found.kind not in kinds:
            raise ValueError(f"it is {_KINDS.get(found.kind, f'of unknown kind {found.kind}')}")
    except ValueError as reason:
        raise UcsError(Status.ERR_INVALID_PARAM, f"{op}: the buffer is no {what}: {reason}") from None
    return found


# ---- handles -------------------------------------------------------------------------------------------------------


class MemHandle:
    """Mapped memory (ucp_mem_h). Made by `Context.mem_map`; a context manager that unmaps it.

    context           that mapped it.
    address, length   of the memory, in bytes.
    memory_type       a `MemoryType`.
    prot              `Prot`: what may be done with it.
    unmapped          True after mem_unmap.

    memh[a:b] is a part of it, the quickest local buffer of an operation; `memory` all of it as bytes.

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
        """Attributes (ucp_mem_query). Fills the fields that attr.field_mask asks for; without attr all of a new one.

        Raises UcsError (INVALID_PARAM): it is unmapped. Source: UCP, "ucp_mem_query".
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

        params   a `MemhPackParams`; or
        flags    its field. 0: a remote key, for `Endpoint.rkey_unpack`. MEMH_PACK_FLAG_EXPORT: the handle itself, which
                 another process of this host imports by mem_map(exported_memh_buffer=...).

        Release it by memh_buffer_release(). Raises UcsError: INVALID_PARAM (unmapped), UNSUPPORTED (EXPORT of memory
        that peers may not read). Source: UCP, "ucp_memh_pack".
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
        """Unmap it (ucp_mem_unmap). Raises as `Context.mem_unmap`."""
        self._check("mem_unmap")
        self._unmap()

    # ---- the same for Python -----------------------------------------------------------------------------------------

    @property
    def memory(self) -> memoryview:
        """The memory as bytes. Raises UcsError (UNSUPPORTED) where it is a device's."""
        self._check("memory")
        if self.memory_type != MemoryType.HOST:
            raise UcsError(
                Status.ERR_UNSUPPORTED,
                f"memory: {self!r} is a device's memory: the processor does not reach it\n"
                "  try: ep.get_nbx into host memory",
            )
        return self._view()

    def array(self, dtype: Any = "u1", shape: Any = None) -> Any:
        """The memory as a NumPy array of whole elements, or as many as shape says; it holds the memory."""
        import numpy

        memory = self.memory
        try:
            kind = numpy.dtype(dtype)
            dims = (len(memory) // kind.itemsize,) if shape is None else shape
            return numpy.ndarray(dims, kind, buffer=memory)
        except TypeError:
            raise TypeError(f"array: dtype {dtype!r:.60} and shape {shape!r:.60} describe no array") from None
        except (ValueError, OverflowError, ZeroDivisionError):
            raise UcsError(
                Status.ERR_INVALID_PARAM,
                f"array: no array of dtype {dtype!r:.60} and shape {shape!r:.60} lies in {self!r}\n"
                "  try: a dtype without Python objects, and a shape of no more bytes than the memory has",
            ) from None

    @property
    def fi_key(self) -> tuple[int, int]:
        """(key, addr) by which `weft.fi` endpoints reach the first byte: arguments of a transfer.

        dest_addr is what av.insert(worker.fi_name) returns, of any worker of this context.
        Raises UcsError (INVALID_PARAM) where peers have no rights, or there are no bytes.
        """
        self._check("fi_key")
        raise UcsError(Status.ERR_INVALID_PARAM, f"fi_key: {self!r} is not reached by peers")

    def __len__(self) -> int:
        return self.length

    def __enter__(self) -> MemHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _exit.leave(self, self._unmap, error)

    def __repr__(self) -> str:
        rights = "|".join(p.name or "" for p in Prot if p & self.prot) or "no rights"
        state = ", unmapped" if self.unmapped else ""
        return f"<ucp.MemHandle 0x{self.address:x}, {self.length} B of {self.memory_type.text} memory, {rights}{state}>"

    # ---- for the rest of the dialect ---------------------------------------------------------------------------------

    def _check(self, op: str) -> None:
        if self.unmapped:
            raise UcsError(
                Status.ERR_INVALID_PARAM,
                f"{op}: {self!r} was unmapped: a handle is void after mem_unmap\n  try: context.mem_map(...)",
            )
        self.context._check(op)

    def _pack_export(self) -> PackedBuffer:
        raise UcsError(
            Status.ERR_UNSUPPORTED,
            f"memh_pack: EXPORT: {self!r} is not this process's own to export\n  try: have its owner export it",
        )

    def _populate(self, address: int, length: int) -> None:
        """Have these pages there."""

    def _as_local(self, context: Context, buffer: Any, writes: bool) -> Any:
        """The buffer of an operation that names this handle. Called from the data path.

        context   of the operation's worker.
        writes    the operation writes to the buffer.
        """
        self._check("memh")
        if self.context is not context:
            raise UcsError(
                Status.ERR_INVALID_PARAM,
                f"memh: {self!r} was mapped by another context than the worker's\n"
                "  try: context.mem_map(...) of the context that made the worker",
            )
        right = Prot.LOCAL_WRITE if writes else Prot.LOCAL_READ
        if not self.prot & right:
            raise UcsError(
                Status.ERR_INVALID_PARAM, f"memh: {self!r} does not grant {right.name}\n  try: map it with the right"
            )
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
            raise UcsError(
                Status.ERR_INVALID_PARAM,
                f"memh: the buffer, {nbytes} B at {address:#x}, does not lie in {self!r}\n"
                "  try: the handle of the memory that it lies in, or none",
            )
        return self._part(buffer, at, nbytes, writes)

    def _part(self, buffer: Any, at: int, nbytes: int, writes: bool) -> Any:
        return buffer


class Region(_nic.MemoryRegionCore, MemHandle):
    """Memory of this process. The extension makes those of plain buffers, which have no attributes of their own."""

    flags = 0
    _closed: bool
    _allocation: placement.Allocated | None = None

    def __init__(
        self, context: Context, buffer: Any, prot: int, symmetric: bool, allocation: placement.Allocated | None
    ) -> None:
        access = _ACCESS_OF[prot & PROT_ALL]
        if symmetric:
            address, length = _nic.describe_buffer(buffer)[:2]
            wanted = _symmetric_key(address, length, prot)
            try:
                _nic.MemoryRegionCore.__init__(self, context, (buffer,), access=access, requested_key=wanted)
                self.flags = _keys.SYMMETRIC
            except errors.NoKey:  # this layout is mapped already: SYMMETRIC_RKEY is a hint
                symmetric = False
        if not symmetric:
            key = context.take_key()
            _nic.MemoryRegionCore.__init__(self, context, (buffer,), access=access, requested_key=key)
        self.domain = context  # enters it into the context's list
        if allocation is not None:
            self._allocation = allocation
            self._special = True  # close() is ours

    @property
    def context(self) -> Context:
        return self.domain  # type: ignore[no-any-return]

    @property
    def prot(self) -> Prot:
        return _PROT_OF[self.access & ACCESS_ALL]

    @property
    def memory_type(self) -> MemoryType:
        return MemoryType.HOST if self.iface == 0 else placement.type_of(self.address)

    @property
    def unmapped(self) -> bool:
        return self._closed

    def _unmap(self) -> None:
        try:
            self.close()
        except errors.FabricError as reason:
            raise of(reason) from None

    def _close(self) -> None:
        if self._closed:
            return
        self.close_core()
        self._closed = True
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            allocation.free()

    def _view(self) -> memoryview:
        if self._allocation is not None:
            return self._allocation.view()
        bare = (ctypes.c_char * self.length).from_address(self.address)
        bare._held = _nic.region_exporters(self)  # type: ignore[attr-defined]
        return memoryview(bare).cast("B")

    @property
    def fi_key(self) -> tuple[int, int]:
        self._check("fi_key")
        if not self.prot & (Prot.REMOTE_READ | Prot.REMOTE_WRITE):
            raise UcsError(
                Status.ERR_INVALID_PARAM,
                f"fi_key: {self!r} is not for peers\n  try: map it with MEM_MAP_PROT_REMOTE_READ or REMOTE_WRITE",
            )
        return self.key, self.base

    def _packed(self, kind: int, place: _keys.Place) -> _keys.Packed:
        return _keys.Packed(
            kind,
            place,
            _process.identity(),
            self.context._id,
            self.key,
            self.address,
            self.address,
            self.length,
            int(self.prot),
            int(self.memory_type),
            self.flags,
        )

    def _pack_key(self, by: str) -> PackedBuffer:
        return PackedBuffer(self._packed(_keys.KEY, _NOWHERE).pack(), by)

    def _pack_export(self) -> PackedBuffer:
        if not self.prot & Prot.REMOTE_READ:
            raise UcsError(
                Status.ERR_UNSUPPORTED,
                f"memh_pack: EXPORT: {self!r} may not be read by peers, and an importer is one\n"
                "  try: map it with MEM_MAP_PROT_REMOTE_READ (and REMOTE_WRITE)",
            )
        return PackedBuffer(self._packed(_keys.EXPORT, self.context._export_place()).pack(), "ucp_memh_pack")

    def _populate(self, address: int, length: int) -> None:
        if self.memory_type == MemoryType.HOST:
            _nic.populate(address, length, not self.readonly)


_NOWHERE = _keys.Place("", 0, 0, 0, 0)


class Nothing(MemHandle):
    """Memory of no bytes. It may be unmapped as often as one likes."""

    context: Context
    address: int
    length: int
    memory_type: MemoryType
    prot: Prot
    unmapped: bool

    def __init__(self, context: Context) -> None:
        self.context = context
        self.address = self.length = 0
        self.memory_type = MemoryType.HOST
        self.prot = Prot(PROT_ALL)
        self.unmapped = False

    def _unmap(self) -> None:
        pass

    def _view(self) -> memoryview:
        return memoryview(b"")

    def _pack_key(self, by: str, kind: int = _keys.KEY) -> PackedBuffer:
        packed = _keys.Packed(kind, _NOWHERE, _process.identity(), self.context._id, flags=_keys.EMPTY)
        return PackedBuffer(packed.pack(), by)

    def _pack_export(self) -> PackedBuffer:
        return self._pack_key("ucp_memh_pack", _keys.EXPORT)

    def __getitem__(self, index: slice) -> memoryview:
        return self._view()[index]


# ---- mapping -------------------------------------------------------------------------------------------------------


def params_of(
    address: int | None,
    length: int | None,
    flags: int | None,
    prot: int | None,
    memory_type: int | None,
    exported: Any,
) -> MemMapParams:
    """The struct of what was given by keyword."""
    mask = 0
    if address is not None:
        mask |= _ADDRESS
    if length is not None:
        mask |= _LENGTH
    if flags is not None:
        mask |= _FLAGS
    if prot is not None:
        mask |= _PROT
    if memory_type is not None:
        mask |= _TYPE
    if exported is not None:
        mask |= _EXPORTED
    return MemMapParams(
        mask, address or 0, length or 0, flags or 0, prot or 0,
        MemoryType.UNKNOWN if memory_type is None else memory_type, exported,
    )  # fmt: skip


def _invalid(text: str) -> UcsError:
    return UcsError(Status.ERR_INVALID_PARAM, f"mem_map: {text}")


def _check_range(address: int, length: int) -> None:
    if length < 0 or address < 0 or address + length > 1 << 64:
        raise _invalid(f"{length} B at {address:#x} do not lie in the address space")


def mem_map(context: Context, params: MemMapParams, buffer: Any) -> MemHandle:
    """ucp_mem_map. The checks come in UCX's order: the first that applies decides."""
    _args.expect("mem_map", "params", params, MemMapParams)
    mask = params.field_mask
    flags = params.flags if mask & _FLAGS else 0
    prot = params.prot if mask & _PROT else PROT_ALL
    memory_type = params.memory_type if mask & _TYPE else MemoryType.UNKNOWN
    _args.needed("mem_map", flags=flags, prot=prot, memory_type=memory_type)
    _args.whole("mem_map", flags=flags, prot=prot)
    if mask & _ADDRESS:
        _args.integer("mem_map", address=params.address)
    if mask & _LENGTH:
        _args.needed("mem_map", length=params.length)
    if not 0 <= memory_type <= MemoryType.UNKNOWN:
        raise _invalid(
            f"memory type {memory_type} is none of ucs_memory_type_t\n"
            "  try: ucp.MEMORY_TYPE_HOST, or UNKNOWN to have it found out"
        )
    if buffer is not None:
        return _map_buffer(context, buffer, params, flags, prot)
    exported = params.exported_memh_buffer if mask & _EXPORTED else None
    if not mask & (_LENGTH | _EXPORTED):
        raise _invalid("no length was given\n  rule: MEM_MAP_PARAM_FIELD_LENGTH is mandatory, ucp_mem_map_params")
    address = operator.index(params.address or 0) if mask & _ADDRESS else 0
    length = operator.index(params.length) if mask & _LENGTH else 0
    if flags & _FIXED and address % _PAGE:
        raise _invalid(f"MEM_MAP_FIXED at {address:#x}, which is no multiple of the page size, {_PAGE} B")
    if exported is not None:
        if flags & _ALLOCATE:
            raise _invalid("an exported handle is imported, not allocated: leave MEM_MAP_ALLOCATE out")
        return _import(context, exported)
    if length == 0:
        return Nothing(context)
    _check_range(address, length)
    if not flags & _ALLOCATE:
        if address == 0:
            raise _invalid(
                "no address, and no MEM_MAP_ALLOCATE\n"
                "  try: an address, to register memory; allocate=True, to have it allocated"
            )
        if flags & _FIXED:
            raise _invalid("MEM_MAP_FIXED places an allocation: it needs MEM_MAP_ALLOCATE")
        memory: Any = (address, length)
        return _register(context, memory, prot, flags, None)
    allocation = placement.allocate(length, address, bool(flags & _FIXED), memory_type, lazy=bool(flags & _NONBLOCK))
    try:
        return _register(context, allocation.buffer, prot, flags, allocation)
    except BaseException:
        allocation.free()
        raise


def _map_buffer(context: Context, buffer: Any, params: MemMapParams, flags: int, prot: int) -> MemHandle:
    if flags & (_ALLOCATE | _FIXED) or params.field_mask & (_ADDRESS | _EXPORTED):
        raise _invalid("a buffer is registered where it is: neither ALLOCATE, FIXED, an address nor an exported handle")
    try:
        address, nbytes = _nic.describe_buffer(buffer)[:2]
    except errors.FabricError as reason:
        raise of(reason) from None
    if params.field_mask & _LENGTH:
        wanted = operator.index(params.length)
        if not 0 <= wanted <= nbytes:
            raise _invalid(f"length {wanted} passes the end of the buffer, {nbytes} B")
        if wanted < nbytes:
            buffer = (address, wanted) if isinstance(buffer, tuple) else memoryview(buffer).cast("B")[:wanted]
            nbytes = wanted
    if nbytes == 0:
        return Nothing(context)
    if address == 0:
        raise _invalid(
            "a buffer at address 0\n  try: an address, to register memory; allocate=True, to have it allocated"
        )
    _check_range(address, nbytes)
    return _register(context, buffer, prot, flags, None)


def _register(
    context: Context, buffer: Any, prot: int, flags: int, allocation: placement.Allocated | None
) -> MemHandle:
    try:
        return Region(context, buffer, prot, bool(flags & _SYMMETRIC), allocation)
    except errors.AccessDenied:
        raise _invalid(
            "the buffer is read-only, and prot grants writing\n"
            "  try: prot=ucp.MEM_MAP_PROT_LOCAL_READ | ucp.MEM_MAP_PROT_REMOTE_READ"
        ) from None
    except errors.FabricError as reason:
        raise of(reason) from None


def _symmetric_key(address: int, length: int, prot: int) -> int:
    """The same for regions of the same layout, whoever maps them."""
    layout = struct.pack("<QQI", address, length, prot & PROT_ALL)
    digest = hashlib.blake2b(layout, digest_size=8, person=b"weft-symmetric").digest()
    return int.from_bytes(digest, "little") | 1 << 63  # counted keys have the upper bit clear


def _import(context: Context, exported: Any) -> MemHandle:
    found = parse(exported, (_keys.EXPORT,), "mem_map", "exported handle")
    if found.flags & _keys.EMPTY:
        return Nothing(context)
    from . import imported

    worker = context._import_worker()
    ep = worker._endpoint_to(found)
    rkey = ep._key(found)
    try:
        window = rkey._map_if_near(bool(found.prot & Prot.REMOTE_WRITE))
    except UcsError as reason:
        rkey.destroy()
        raise UcsError(
            Status.ERR_UNREACHABLE, f"mem_map: the exported handle cannot be imported: {reason.message}"
        ) from None
    return imported.Imported(context, found, window, ep, rkey)


# ---- the other calls -----------------------------------------------------------------------------------------------


def belongs(context: Context, memh: MemHandle, op: str) -> None:
    """Raise UcsError (INVALID_PARAM) unless the handle is one of the context's, and mapped."""
    if not isinstance(memh, MemHandle):
        raise UcsError(Status.ERR_INVALID_PARAM, f"{op}: {memh!r:.60} is no memory handle")
    if memh.context is not context:
        raise UcsError(
            Status.ERR_INVALID_PARAM, f"{op}: {memh!r} belongs to another context\n  try: memh.context.{op}(...)"
        )
    memh._check(op)


def advise(memh: MemHandle, params: MemAdviseParams) -> None:
    """ucp_mem_advise."""
    _args.expect("mem_advise", "params", params, MemAdviseParams)
    if params.field_mask & 7 != 7:
        raise UcsError(Status.ERR_INVALID_PARAM, "mem_advise: address, length and advice are mandatory, all three")
    _args.needed("mem_advise", address=params.address, length=params.length, advice=params.advice)
    at = params.address - memh.address
    if at < 0 or params.length < 0 or at + params.length > memh.length:
        raise UcsError(
            Status.ERR_INVALID_PARAM,
            f"mem_advise: {params.length} B at {params.address:#x} do not lie within {memh!r}",
        )
    if params.advice not in (0, 1):
        raise UcsError(Status.ERR_INVALID_PARAM, f"mem_advise: {params.advice} is none of MADV_NORMAL, MADV_WILLNEED")
    if params.advice == 1 and params.length:
        memh._populate(params.address, params.length)


def pack_region(region: _nic.MemoryRegionCore, endpoint: _nic.EndpointCore) -> PackedBuffer:
    """A remote key, for `Endpoint.rkey_unpack`, of a region that was registered with `weft.fi`.

    region     a `fi.MemoryRegion` of one buffer, enabled.
    endpoint   an enabled `fi.Endpoint` of its domain, through which it is reached.

    Remote addresses are virtual addresses of the region's memory, as UCP has them, whatever the domain's mr_mode.
    Raises UcsError (INVALID_PARAM): it is closed, or peers have no rights.
    """
    given: Any = region
    if not isinstance(given, _nic.MemoryRegionCore) or isinstance(given, MemHandle):
        raise TypeError(f"pack_region: region must be an fi.MemoryRegion, not {region!r:.60}")
    _expect_endpoint("pack_region", endpoint)
    remote = region.access & _ACCESS_OF[Prot.REMOTE_READ | Prot.REMOTE_WRITE]
    if region.state != "enabled" or not remote:
        raise UcsError(
            Status.ERR_INVALID_PARAM,
            f"pack_region: the region is {region.state if remote else 'not for peers'}\n"
            "  try: an enabled region with REMOTE_READ or REMOTE_WRITE",
        )
    kind = MemoryType.HOST if region.iface == 0 else placement.type_of(region.address)
    return PackedBuffer(_keys.of_region(region, endpoint, int(kind)).pack(), "ucp_memh_pack")


def _expect_endpoint(op: str, endpoint: Any) -> None:
    if not isinstance(endpoint, _nic.EndpointCore):
        raise TypeError(f"{op}: endpoint must be an fi.Endpoint, not {endpoint!r:.60}")


def pack_endpoint(endpoint: _nic.EndpointCore) -> PackedBuffer:
    """The address, for `Worker.ep_create`, of an enabled endpoint of `weft.fi`."""
    _expect_endpoint("pack_endpoint", endpoint)
    return PackedBuffer(_keys.of_endpoint(endpoint).pack(), "ucp_worker_get_address")


_nic.set_ucp_region(Region, MemMapParams)
