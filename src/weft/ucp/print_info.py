"""ucp_mem_print_info: allocates memory of a size and type, and prints the properties of the mapping.

Source: UCP of UCX 1.17, "ucp_mem_print_info".
"""

from __future__ import annotations

import os
import re
from typing import IO, TYPE_CHECKING

from . import placement
from .constants import MemoryType
from .status import UcsError

if TYPE_CHECKING:
    from .context import Context

_SIZE = re.compile(r"(\d+)([kmgtp]?)b?\Z", re.ASCII | re.IGNORECASE)
_UNITS = "kmgtp"


def size_of(text: str) -> int | None:
    """The number of bytes that "32768", "4k", "1M" or "2GB" names; None for any other text."""
    found = _SIZE.match(text.strip())
    if found is None:
        return None
    return int(found[1]) << 10 * (_UNITS.index(found[2].lower()) + 1 if found[2] else 0)


def size_text(n: int) -> str:
    """ "32K", "1M", "5000": as UCX prints sizes."""
    for shift, letter in ((40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if n and n % (1 << shift) == 0:
            return f"{n >> shift}{letter}"
    return str(n)


def mem_print_info(context: Context, mem_spec: str, stream: IO[str]) -> None:
    """See `Context.mem_print_info`."""
    size, comma, kind = mem_spec.partition(",")
    length = size_of(size)
    if length is None:
        print(f"<Failed to convert a memory size: {size!r}; a size is a number and K, M, G, T or nothing>")
        return
    if length == 0:
        print("<Memory size must be greater than 0>")
        return
    types = {t.text: t for t in placement.types_here()}
    memory_type = types.get(kind.strip().lower()) if comma else MemoryType.HOST
    if memory_type is None:
        known = kind.strip().lower() in {t.text for t in MemoryType if t is not MemoryType.UNKNOWN}
        what = "Unsupported" if known else "Invalid"
        print(f"<{what} memory type {kind!r}; supported here: {' '.join(types)}>")
        return
    try:
        memh = context.mem_map(length=length, memory_type=memory_type, allocate=True)
    except UcsError as reason:
        print(f"<Failed to allocate {size_text(length)} of {memory_type.text} memory: {reason}>")
        return
    with memh:
        method = memh._allocation.method
        page = size_text(os.sysconf("SC_PAGESIZE"))
        links = "self shm" if memh.memory_type == MemoryType.HOST else "self"
        stream.write(
            "#\n"
            "# UCP memory allocation\n"
            "#\n"
            f"#  allocated {size_text(memh.length)} at address {memh.address:#x} with {method}, pagesize: {page}\n"
            f"#  registered on: {links} tcp \n"
            "#\n"
            f"#  memory type: {memh.memory_type.text}\n"
            f"#  rkey size: {len(memh.pack())}\n"
            "#\n"
        )
