"""Tickets: all that a process needs to reach a shared array, small enough to paste into a command line.

A ticket is data and grants nothing by itself: the owner's NIC checks the key at every access, and a key never names a
newer region. Owners' addresses are random, so a ticket of a dead process does not reach a later process.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ... import errors

PREFIX = "weft-ticket:"
_VERSION = 1
_PLACE = re.compile(r"weft://([^/]+:\d+)(?:/|\Z)", re.ASCII)
FABRIC_PREFIX = "ofi:"
_EXITING = 0x4  # PF_EXITING of include/linux/sched.h, a bit of flags in proc_pid_stat(5)
USER_DEFINED = 256  # dtypes with this number or above are registered with NumPy by other packages


@dataclass(frozen=True)
class Ticket:
    """A shared array, for its peers. `str(ticket)` is one word, which `Ticket.parse` reads; a ticket also pickles.

    Attributes:
        name: The name that the array was shared under, or "".
        address: Address of the owner's endpoint (`fi.Endpoint.getname`).
        key: Remote key of the region; None for an array without elements, which has no region.
        base: Address of the region's first byte for remote accesses: 0, or a virtual address under MR_VIRT_ADDR.
        shape: Elements along each dimension.
        dtype: NumPy's code, as `numpy.lib.format.dtype_to_descr`; "ml:<name>" for a dtype of ml_dtypes.
        access: "r", "w" or "rw": the access that the owner permits.
        direct: True if Weft allocated the owner's memory, so that peers reach it by load and store.
        pid: Process id of the owner, for messages.
        start: Start time of the owner (of /proc/<pid>/stat), for messages.
        host: The owner's kernel and network namespace.
        order: "C" or "F": the order of the elements in the owner's memory.
        kept: True if the owner is the keeper (share(keep=True)).
    """

    name: str
    address: str
    key: int | None
    base: int
    shape: tuple[int, ...]
    dtype: str
    access: str
    direct: bool
    pid: int
    start: int
    host: str
    order: str = "C"
    kept: bool = False

    def __str__(self) -> str:
        fields = [
            _VERSION,
            self.name,
            self.address,
            self.key,
            self.base,
            list(self.shape),
            self.dtype,
            self.access,
            int(self.direct),
            self.pid,
            self.start,
            self.host,
            # Left out if they are as usual: older readers know tickets without them.
            *([] if self.order == "C" and not self.kept else [self.order]),
            *([True] if self.kept else []),
        ]
        return PREFIX + base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip(
            "="
        )

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """Read the text of `str(ticket)`. Raises InvalidArgument if the text is truncated or not a ticket."""
        try:
            if not text.startswith(PREFIX):
                raise ValueError("it does not start with " + PREFIX)
            body = text[len(PREFIX) :].strip()
            fields = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            version, name, address, key, base, shape, dtype, access, direct, pid, start, host, *more = fields
            if version != _VERSION:
                raise ValueError(f"it is of version {version}, this Weft reads version {_VERSION}")
            ticket = cls(
                str(name),
                str(address),
                None if key is None else int(key),
                int(base),
                tuple(int(n) for n in shape),
                str(dtype),
                str(access),
                bool(direct),
                int(pid),
                int(start),
                str(host),
                *more,
            )
            ticket.check()
        except errors.InvalidArgument:
            raise
        except (ValueError, TypeError, UnicodeError, OverflowError, RecursionError) as reason:
            shown = text if len(text) <= 60 else text[:57] + "..."
            raise errors.InvalidArgument(
                f"attach: {shown!r} is no ticket: {reason}\n  try: the complete str(shared.ticket), or the array's name"
            ) from None
        return ticket

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        return _unpickle, (_VERSION, *fields)

    def check(self) -> None:
        """Refuse values that `Node.share` never makes: a ticket may come from anywhere. Raises InvalidArgument."""
        words = self.name, self.address, self.dtype, self.access, self.host, self.order
        shape = self.shape if type(self.shape) is tuple else (-1,)
        kept: Any = self.kept
        numbers = (*shape, self.base, self.pid, self.start, 0 if self.key is None else self.key)
        if (
            all(type(word) is str for word in words)
            and self.direct in (False, True)
            and type(kept) is bool
            and all(type(n) is int and 0 <= n < 1 << 64 for n in numbers)
            and self.access in ("r", "w", "rw")
            and self.order in ("C", "F")
        ):
            nbytes = math.prod(self.shape) * self.numpy_dtype.itemsize
            if nbytes < 1 << 63 and (self.key is not None or nbytes == 0):
                return
        raise errors.InvalidArgument(
            f"attach: the ticket has invalid fields: {self!r:.400}\n"
            "  try: the unchanged ticket of a share: shared.ticket, or str(shared.ticket)"
        )

    @property
    def fabric(self) -> str:
        """The provider of a real libfabric that reaches the owner ("ofi:tcp"); "" for Weft's own links."""
        return fabric_of(self.address)

    @property
    def place(self) -> str:
        """`host:port` at which the owner listens for other hosts; "" if it does not listen."""
        found = _PLACE.match(self.address)
        return found[1] if found else ""

    @property
    def here(self) -> bool:
        """True if the owner runs on this host, so that /proc has its pid."""
        return self.host == host_id()

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype. Raises InvalidArgument if ml_dtypes, which the dtype needs, is not installed."""
        return decode_dtype(self.dtype)


def fabric_of(address: str) -> str:
    """The fabric of a node's address: "ofi:tcp"; "" for Weft's own."""
    return address.split("/", 1)[0] if address.startswith(FABRIC_PREFIX) else ""


def _unpickle(version: int, *fields: Any) -> Ticket:
    if version != _VERSION:
        raise errors.InvalidArgument(
            f"attach: the pickled ticket is of version {version}, this Weft reads version {_VERSION}\n"
            "  try: the same version of Weft in both processes"
        )
    return Ticket(*fields)  # not checked here: Ticket.check() is called before each use


def encode_dtype(dtype: np.dtype[Any]) -> str:
    """A dtype as text."""
    if dtype.num >= USER_DEFINED:
        return f"ml:{dtype.name}"  # bfloat16, float8_*: NumPy spells them "V2", so only the name identifies them
    return repr(np.lib.format.dtype_to_descr(dtype))


@lru_cache(maxsize=256)
def decode_dtype(text: str) -> np.dtype[Any]:
    """The dtype of a text that encode_dtype made. Raises InvalidArgument."""
    if text.startswith("ml:"):
        name = text[3:]
        try:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return found
        except (ImportError, AttributeError):
            raise errors.InvalidArgument(
                f"attach: the array is of dtype {name}, which NumPy gets from the package ml_dtypes\n"
                "  try: pip install ml_dtypes"
            ) from None
    try:
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as reason:
        raise errors.InvalidArgument(f"attach: the ticket's dtype {text!r:.100} is not understood: {reason}") from None
    if dtype.hasobject:  # NumPy would take the received bytes for pointers
        raise errors.InvalidArgument(f"attach: the ticket's dtype {text!r:.100} holds Python objects: no share has it")
    return dtype


@lru_cache(maxsize=1)
def host_id() -> str:
    """Identifies this kernel and network namespace: processes with the same id reach each other."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read(8)
        return f"{os.uname().nodename} {boot}-{os.stat('/proc/self/ns/net').st_ino:x}"
    except OSError:
        return os.uname().nodename


def process_is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process (state T of proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def process_start(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 if the process has ended or is hidden from this one.

    The kernel closes the sockets of a killed process some time before the process is a zombie: a process that is
    exiting has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") or int(fields[6]) & _EXITING else int(fields[19])
