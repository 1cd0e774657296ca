"""What providers of a real libfabric do that its pages do not allow, by provider and version: the one table.

Each quirk guards a call that would end the process, hang, or touch other memory. A quirk has the versions of libfabric
in which it was seen, the version that ended it where that is known, and the test that shows the guard. No other module
of this package compares a provider's name or the library's version.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from . import library

__all__ = ["Quirk", "has"]

_ANY = 1 << 31


def _version(major: int, minor: int) -> int:
    return major << 16 | minor


@dataclass(frozen=True)
class _Where:
    """providers: words of layered names ("tcp" is also "tcp;ofi_rxm"). first <= version < ended."""

    providers: tuple[str, ...]
    test: str
    first: int = 0
    ended: int = _ANY


class Quirk(Enum):
    """The value says where the quirk is, and which test shows the guard. Equal values would be one quirk."""

    NEEDS_RECV_QUEUE = _Where(("shm",), "test_before_enable.py")
    """enable() without a queue for RECV ends the process."""
    NAMED_BY_PROCESS = _Where(("shm",), "test_addresses.py")
    """An endpoint's name is that of a file with the process's number, which an ended process may have left; a second
    endpoint of the process that takes a name ends the process."""
    NAME_TAKEN_CRASHES = _Where(("shm",), "test_addresses.py", first=_version(2, 0))
    """A chosen name whose file is there ends the process."""
    NO_DMABUFS = _Where(("tcp", "net", "udp", "sockets"), "test_regions.py")
    """A DMA-buf's struct is taken for an iovec: another address is registered."""
    COPIES_BY_PROCESSOR = _Where(("shm",), "test_regions.py")
    """A DMA-buf has to be mapped, since the processor copies."""
    IGNORES_PEEK = _Where(("shm", "tcp"), "test_peek.py")
    """FI_PEEK and FI_CLAIM of an untagged receive are ignored: the message is received."""
    PLAIN_ATOMICS_CRASH = _Where(("shm",), "test_share.py")
    """Operations of several endpoints after a plain atomic end one of the processes (seen in 1.17): fetch instead."""
    SREAD_AFTER_CLOSE_CRASHES = _Where(("tcp",), "test_quirks.py", ended=_version(2, 0))
    """sread of a queue whose endpoint was closed reads freed memory: look again and again instead."""
    OPTION_BEFORE_ENABLE_CRASHES = _Where(("shm",), "test_quirks.py", ended=_version(2, 0))
    """setopt(OPT_MIN_MULTI_RECV) before enable() reads a null pointer: set it when the endpoint is enabled."""
    GETOPT_BEFORE_ENABLE_CRASHES = _Where(("shm",), "test_quirks.py")
    """getopt(OPT_MIN_MULTI_RECV) before enable() reads a null pointer: answer from what setopt asked for, or refuse."""
    INSERT_BEFORE_ENABLE_CRASHES = _Where(("shm",), "test_quirks.py::test_address_before_enable_is_refused")
    """av.insert reads a null pointer while an endpoint that is bound to the vector is not enabled: refuse."""
    CANCEL_OF_DIRECTED_CRASHES = _Where(("tcp",), "test_quirks.py", first=_version(2, 0))
    """The cancel of a receive ends the process if the endpoint has directed receives."""
    STRERROR_ASKS_ENDPOINT = _Where(("ofi_rxm",), "test_quirks.py")
    """strerror of a queue asks the first endpoint that is bound to it, and ends the process if there is none: the
    library's own text of the number instead."""
    OWN_COLLECTIVES = _Where(("cxi",), "test_quirks.py")
    """Collectives are the provider's own; those of the others are libfabric's, over messages, and check nothing."""
    PASSIVE_KEEPS_INFO = _Where(("sockets",), "test_quirks.py")
    """A passive endpoint keeps pointers into the fi_info that it was opened with: keep the info as long."""


def has(provider: str, quirk: Quirk) -> bool:
    """Whether a provider ("ofi:tcp", "ofi:tcp;ofi_rxm") of the loaded library has a quirk."""
    return _has(provider, (library.known() or ("", 0))[1], quirk)


@lru_cache(maxsize=256)
def _has(provider: str, version: int, quirk: Quirk) -> bool:
    where = quirk.value
    layers = provider.removeprefix(library.PREFIX).split(";")
    return not set(layers).isdisjoint(where.providers) and where.first <= version < where.ended
