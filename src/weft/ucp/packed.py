"""Packed keys, exported handles and addresses: the bytes that processes send each other, and their release.

Source: UCP of UCX 1.17, "ucp_memh_pack", "ucp_memh_buffer_release", "ucp_rkey_buffer_release".
"""

from __future__ import annotations

import warnings
from typing import Any

from .. import _keys
from . import _args
from .params import MemhBufferReleaseParams
from .status import invalid

_KINDS = {_keys.ADDRESS: "an address", _keys.KEY: "a remote key", _keys.EXPORT: "an exported handle"}


class PackedBuffer(bytes):
    """A packed key, exported handle or address: bytes to send, until they are released.

    Made by `MemHandle.pack`, `Context.rkey_pack`, `Worker.get_address`, `pack_region` and `pack_endpoint`. The
    release of a buffer does not affect copies that were sent or made with bytes().

    Calls that are given a released buffer raise UcsError (INVALID_PARAM).
    """

    _released = False
    _by = ""

    def __new__(cls, data: bytes, by: str = "") -> PackedBuffer:
        made = super().__new__(cls, data)
        made._by = by
        return made

    def __repr__(self) -> str:
        return f"<ucp.PackedBuffer: {len(self)} B{', released' if self._released else ''}>"


def memh_buffer_release(buffer: PackedBuffer, params: MemhBufferReleaseParams | None = None) -> None:
    """Release a buffer that `MemHandle.pack` made (ucp_memh_buffer_release): Weft refuses it from then on.

    Raises UcsError (INVALID_PARAM) for any other object, and for a buffer that was released already.
    Source: UCP, "ucp_memh_buffer_release".
    """
    if params is not None:
        _args.expect("memh_buffer_release", "params", params, MemhBufferReleaseParams)
    release(buffer, "ucp_memh_pack", "memh_buffer_release")


def rkey_buffer_release(buffer: PackedBuffer) -> None:
    """Release a buffer that `Context.rkey_pack` made (ucp_rkey_buffer_release). Deprecated: memh_buffer_release().

    Source: UCP, "ucp_rkey_buffer_release".
    """
    deprecated("rkey_buffer_release", "memh_buffer_release")
    release(buffer, "ucp_rkey_pack", "rkey_buffer_release")


def release(buffer: object, by: str, op: str) -> None:
    """Mark a buffer that `by` made as released; UcsError (INVALID_PARAM) for anything else, and the second time."""
    if not isinstance(buffer, PackedBuffer) or buffer._by != by:
        raise invalid(f"{op}: {buffer!r:.60} was not made by {by}\n  try: the object that {by} returned")
    if buffer._released:
        raise invalid(f"{op}: the buffer was released already\n  try: release each buffer once")
    buffer._released = True


def parse(buffer: Any, kinds: tuple[int, ...], op: str, what: str) -> _keys.Packed:
    """The contents of a packed buffer. Raises UcsError (INVALID_PARAM), naming the fault of the buffer."""
    if isinstance(buffer, PackedBuffer) and buffer._released:
        raise invalid(f"{op}: the buffer was released\n  try: pack the handle again")
    try:
        data = buffer if isinstance(buffer, bytes) else bytes(memoryview(buffer))
    except (TypeError, ValueError, BufferError):
        raise invalid(f"{op}: {buffer!r:.60} is no {what}: bytes are needed") from None
    try:
        found = _keys.Packed.parse(data)
        if found.kind not in kinds:
            raise ValueError(f"it is {_KINDS.get(found.kind, f'of unknown kind {found.kind}')}")
    except ValueError as reason:
        raise invalid(f"{op}: the buffer is no {what}: {reason}") from None
    return found


def deprecated(old: str, new: str) -> None:
    """Warn the caller of the caller."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
