"""The NIC of the process, and the effects of fork on it.

A process has one NIC, made at the first use and closed at exit. A forked child starts without a NIC: the parent's NIC
stays the parent's, every handle made on it refuses use in the child, and the child's first use makes a new NIC.
"""

from __future__ import annotations

import atexit
import math
import operator
import os
import re
import sys
import threading
import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import _huge, _nic, errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ._nic import Nic

client: ContextVar[int] = ContextVar("client", default=0)
"""The process on whose behalf this one acts: a C program's, in the policy helper; 0: its own."""

generation = 0
"""Number of forks between this process and the one that first imported weft. A handle with another generation was made
by an ancestor."""

_lock = threading.Lock()
_current: Nic | None = None
_identities: dict[int, tuple[Nic, int]] = {}  # by id(); the NICs are kept, so that no other NIC gets the number
_handler: tuple[Nic, object] | None = None  # NumPy's memory handler over the segments of that NIC
_fork_was_warned = False
# NICs of ancestors: never dropped, so that their destructors do not run in this process.
_inherited: list[Nic] = []


def nic() -> Nic:
    """The NIC of this process, made on the first call from the environment (weft.settings)."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                from . import settings

                s, cache = settings.load(), settings.load_cache()
                # fi_hmem_iface of the switches that are 0: their memory is not cached.
                switches = (
                    cache.FI_MR_CUDA_CACHE_MONITOR_ENABLED,
                    cache.FI_MR_ROCR_CACHE_MONITOR_ENABLED,
                    cache.FI_MR_ZE_CACHE_MONITOR_ENABLED,
                )
                made = _nic.Nic(
                    engine=s.WEFT_ENGINE,
                    isolation=s.WEFT_ISOLATION,
                    cma=s.WEFT_CMA,
                    shm=s.WEFT_SHM,
                    tcp_log=s.WEFT_TCP_LOG,
                    cache_monitor=cache.FI_MR_CACHE_MONITOR,
                    cache_count_max=cache.FI_MR_CACHE_MAX_COUNT,
                    cache_bytes_max=2**64 - 1 if cache.FI_MR_CACHE_MAX_SIZE is None else cache.FI_MR_CACHE_MAX_SIZE,
                    viewers=s.WEFT_TOP,
                    trace=s.WEFT_TRACE,
                    trace_records=s.WEFT_TRACE_RECORDS,
                    cache_off=[iface for iface, on in enumerate(switches, 1) if not on],
                )
                made.tcp_timeout(s.WEFT_TCP_TIMEOUT)
                made.tcp_encryption(s.WEFT_TCP_ENCRYPTION)
                secret = settings.secret(s)
                if secret is not None:
                    _set_secret(made, secret)
                if s.WEFT_LISTEN:
                    _listen(made, s.WEFT_LISTEN, s.WEFT_ADVERTISE)
                _current = made
                atexit.register(_close, os.getpid())
    return _current


def identity(of: Nic | None = None) -> int:
    """A random number that identifies a NIC of this process (None: its own NIC) in packed keys and addresses."""
    here = of or nic()
    if id(here) not in _identities:
        _identities[id(here)] = (here, int.from_bytes(os.urandom(8), "little"))
    return _identities[id(here)][1]


def _nic_of_process() -> Nic:
    return nic()


def nic_if_open() -> Nic | None:
    """The NIC of this process if it has been made already, else None."""
    return _current


# ---- other hosts -----------------------------------------------------------------------------------------------------


def use_secret(secret: str | bytes) -> None:
    """Set the secret that processes of different hosts prove to each other.

    Raises TypeError, InvalidArgument (shorter than 16 bytes), Busy (the process has another one already), NoSys (PyNaCl
    is missing).
    """
    from . import settings

    if not isinstance(secret, (str, bytes, bytearray)):
        raise TypeError(f"secret is a str or bytes, not {type(secret).__name__}")
    found = secret.encode() if isinstance(secret, str) else bytes(secret)
    settings.check_secret(found, "secret")
    _set_secret(nic(), found)


def _set_secret(here: Nic, secret: bytes) -> None:
    from . import _sodium

    here.tcp_secret(_sodium.key_of(secret), _sodium.functions())


def listen(where: str, known_as: str | None = None) -> tuple[str, int]:
    """Let other hosts connect to this process's NIC.

    Args:
        where: "tcp://host:port"; port 0: a free port; host 0.0.0.0 or [::]: every network of this host.
        known_as: The name or IP address of this host for other hosts; None: the source address of its packets.

    Returns:
        The address and port for other hosts.

    Raises:
        AccessDenied: There is no secret.
        AddressInUse: Another process listens at this address.
        Busy: The process listens elsewhere already.
        InvalidArgument: `where` is no such address, or a host is not known here.
    """
    return _listen(nic(), where, known_as)


def _listen(here: Nic, where: str, known_as: str | None) -> tuple[str, int]:
    return here.tcp_listen(*place(where, known_as))


def place(where: str, known_as: str | None) -> tuple[str, int, str | None]:
    """Where to listen, as `listen` takes it: IP address, port, and the IP address for other hosts or None.

    Raises InvalidArgument, TypeError.
    """
    if not isinstance(where, str):
        raise TypeError(f"listen is a str, 'tcp://host:port', not {where!r}")
    found = re.match(r"tcp://(\[[^\]]+\]|[^\[\]:/]*):(\d+)/?\Z", where, re.ASCII)
    if found is None or int(found[2]) >= 1 << 16:
        raise errors.InvalidArgument(
            f"listen: {where!r} is not a valid address\n"
            "  rule: tcp://host:port, for example tcp://0.0.0.0:7000; port 0 selects a free port"
        )
    import socket  # imported here, because it is slow to import and few processes listen

    ips = []
    for host in [found[1] or "0.0.0.0", *([known_as] if known_as else [])]:
        try:
            ips.append(str(socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0][4][0]))
        except OSError as reason:
            raise errors.InvalidArgument(f"listen: the host {host!r} is not known here: {reason.strerror}") from None
    return ips[0], int(found[2]), ips[1] if known_as else None


def public_nic(number: int, of: Nic | None = None) -> int:
    """A NIC's number in addresses for peers: the number of a listening NIC includes host and port. None: the process's
    own NIC.
    """
    here = of or _current
    at = None if here is None else here.tcp_listening()
    return number if at is None else _nic.route_number(*at, number)


def own_nic(number: int) -> int:
    """The reverse of `public_nic`; numbers of other processes' NICs are returned unchanged."""
    at = None if _current is None else _current.tcp_listening()
    route = None if at is None else _nic.route_of(number)
    return number if route is None or route[:2] != at else route[2]


def array(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dtype: Any,
    *,
    zero: bool = False,
    fresh: bool = False,
    filled: bool = False,
    sparse: bool = False,
    call: str = "empty",
    nic: Nic | None = None,
) -> np.ndarray[Any, Any]:
    """An array in memory of the NIC's segments; freed with the last reference to it and its views. Its pages are
    allocated as they are touched.

    Args:
        nic: The NIC with the segments; None: the process's NIC.
        zero: The memory reads as zero, like numpy.zeros; otherwise it is uninitialised.
        fresh: The memory reads as zero, and none of its pages is allocated yet.
        filled: The caller writes all of it at once.
        sparse: The array may be larger than the memory of this machine: the caller knows that most of it stays
            untouched.

    Raises:
        NoMemory: More than the machine has.
        TypeError: `dtype` or `shape` is wrong.
        ValueError: Negative lengths, or more bytes than an address space has.
    """
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"{call}: dtype {kind} holds Python objects; another process could not use them")
    try:
        dims = (operator.index(shape),) if hasattr(shape, "__index__") else tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"{call}: a shape is an integer or a tuple of integers, not {shape!r}") from None
    if any(n < 0 for n in dims):
        raise ValueError(f"{call}: shape {dims} has a negative length")
    nbytes = kind.itemsize * math.prod(dims)
    if nbytes == 0:
        return numpy.empty(dims, kind)
    if nbytes > sys.maxsize:
        raise ValueError(f"{call}: shape {dims} of {kind} takes {nbytes} B, more than an address space has")
    if not sparse and nbytes > _nic.memory_bytes():
        raise errors.NoMemory(
            f"{call}: shape {dims} of {kind} takes {nbytes} B, and this machine has {_nic.memory_bytes()} B of memory "
            "and swap space\n  try: an array that fits; reserve= for rows that are used later"
        )
    large = nbytes >= _huge.PAGE
    wanted = large and not sparse and _huge.wanted(nbytes)
    memory: Any = (nic or _nic_of_process()).alloc(
        nbytes, fresh=fresh or (zero and large), huge=wanted and filled, follow=wanted and not filled
    )
    if zero and not large:
        numpy.frombuffer(memory, numpy.uint8).fill(0)
    found: np.ndarray[Any, Any] = numpy.ndarray(dims, kind, buffer=memory)
    return found


def numpy_memory_handler() -> object:
    """NumPy's memory handler over the segments of this process's NIC; each NIC has one handler."""
    global _handler
    here = nic()
    if _handler is None or _handler[0] is not here:
        _handler = (here, _nic.numpy_memory_handler(here))
    return _handler[1]


def _before_fork() -> None:
    """Warn once that a child will share arrays that NumPy's users expect to be copied (weft.allocator)."""
    global _fork_was_warned
    if _handler is None or _fork_was_warned:
        return
    count = _nic.numpy_memory_live(_handler[1])
    if count:
        _fork_was_warned = True
        warnings.warn(
            f"fork: {count} NumPy arrays made under weft.allocator() are alive; the child shares them with this "
            "process, so that each sees the other's writes\n"
            "  try: a = a.copy() in the child before it writes, the start method spawn or forkserver, or "
            "weft.allocator() only around arrays that other processes need",
            RuntimeWarning,
            stacklevel=2,  # the caller of os.fork()
        )


def _close(pid: int) -> None:
    global _current
    if pid == os.getpid() and _current is not None:
        closing, _current = _current, None
        closing.close()


def _after_fork_in_child() -> None:
    global _current, _handler, _lock, generation
    generation += 1
    _lock = threading.Lock()
    if _handler is not None:  # forked under weft.allocator(): the segments are the parent's
        before = _nic.set_numpy_memory_handler(None)
        if before is not _handler[1]:
            _nic.set_numpy_memory_handler(before)
        _handler = None
    if _current is not None:
        _inherited.append(_current)
        _current = None


def _door(obj: object, writable: bool) -> tuple[int, int, bool, int, object]:
    """Describe an array that the extension's fast path does not know, through weft.buffers."""
    from . import buffers

    try:
        return buffers.buffer_hook(obj, writable)
    except buffers.ReadOnly as e:
        raise errors.AccessDenied(str(e)) from None
    except BufferError as e:
        raise errors.InvalidArgument(str(e)) from None


_nic.set_error_factory(errors.make)
_nic.set_buffer_hook(_door)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
