"""ucp_mem_map and ucp_mem_advise, and the check that a handle belongs to a context.

Source: UCP of UCX 1.17, "ucp_mem_map" and the routines after it.
"""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any

from .. import _keys, _nic, errors
from . import _args, placement
from .constants import MemMapFlag, MemMapParamField, MemoryType, Prot
from .imported import Imported
from .memh import MemHandle
from .packed import parse
from .params import MemAdviseParams, MemMapParams
from .region import PROT_ALL, Nothing, Region
from .status import Status, UcsError, invalid, of

if TYPE_CHECKING:
    from .context import Context

_ADDRESS, _LENGTH, _FLAGS, _PROT, _TYPE, _EXPORTED = (int(bit) for bit in MemMapParamField)
_NONBLOCK, _ALLOCATE, _FIXED, _SYMMETRIC = (int(bit) for bit in MemMapFlag)
_PAGE = os.sysconf("SC_PAGESIZE")


def mem_map(context: Context, params: MemMapParams, buffer: Any) -> MemHandle:
    """ucp_mem_map. The checks are in UCX's order, because the first failing check decides the status."""
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
            f"memory type {memory_type} is not in ucs_memory_type_t\n"
            "  try: ucp.MEMORY_TYPE_HOST, or UNKNOWN to let Weft find the type"
        )
    if buffer is not None:
        return _map_buffer(context, buffer, params, flags, prot)
    exported = params.exported_memh_buffer if mask & _EXPORTED else None
    if not mask & (_LENGTH | _EXPORTED):
        raise _invalid("no length was given\n  rule: MEM_MAP_PARAM_FIELD_LENGTH is mandatory, ucp_mem_map_params")
    address = operator.index(params.address or 0) if mask & _ADDRESS else 0
    length = operator.index(params.length) if mask & _LENGTH else 0
    if flags & _FIXED and address % _PAGE:
        raise _invalid(f"MEM_MAP_FIXED at {address:#x}, which is not a multiple of the page size, {_PAGE} B")
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
                "  try: an address, to register memory; allocate=True, to allocate memory"
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


def params_of(
    address: int | None, length: int | None, flags: int | None, prot: int | None, memory_type: int | None, exported: Any
) -> MemMapParams:
    """The struct with the fields that were given by keyword."""
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


def _map_buffer(context: Context, buffer: Any, params: MemMapParams, flags: int, prot: int) -> MemHandle:
    if flags & (_ALLOCATE | _FIXED) or params.field_mask & (_ADDRESS | _EXPORTED):
        raise _invalid("a buffer is registered in place: without ALLOCATE, FIXED, an address or an exported handle")
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
            "a buffer at address 0\n  try: an address, to register memory; allocate=True, to allocate memory"
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


def _import(context: Context, exported: Any) -> MemHandle:
    found = parse(exported, (_keys.EXPORT,), "mem_map", "exported handle")
    if found.flags & _keys.EMPTY:
        return Nothing(context)
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
    return Imported(context, found, window, ep, rkey)


def _check_range(address: int, length: int) -> None:
    if length < 0 or address < 0 or address + length > 1 << 64:
        raise _invalid(f"{length} B at {address:#x} do not lie in the address space")


def _invalid(text: str) -> UcsError:
    return invalid(f"mem_map: {text}")


def belongs(context: Context, memh: MemHandle, op: str) -> None:
    """Raise UcsError (INVALID_PARAM) unless the handle is one of the context's, and mapped."""
    if not isinstance(memh, MemHandle):
        raise invalid(f"{op}: {memh!r:.60} is not a memory handle")
    if memh.context is not context:
        raise invalid(f"{op}: {memh!r} belongs to another context\n  try: memh.context.{op}(...)")
    memh._check(op)


def advise(memh: MemHandle, params: MemAdviseParams) -> None:
    """ucp_mem_advise."""
    _args.expect("mem_advise", "params", params, MemAdviseParams)
    if params.field_mask & 7 != 7:
        raise invalid("mem_advise: address, length and advice are mandatory, all three")
    _args.needed("mem_advise", address=params.address, length=params.length, advice=params.advice)
    at = params.address - memh.address
    if at < 0 or params.length < 0 or at + params.length > memh.length:
        raise invalid(f"mem_advise: {params.length} B at {params.address:#x} do not lie within {memh!r}")
    if params.advice not in (0, 1):
        raise invalid(f"mem_advise: {params.advice} is not MADV_NORMAL or MADV_WILLNEED")
    if params.advice == 1 and params.length:
        memh._populate(params.address, params.length)
