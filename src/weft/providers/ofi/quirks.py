"""What providers of a real libfabric do that its pages do not allow, by provider and version: the one table.

Each quirk guards a call that would end the process, hang, or touch other memory. A quirk has the versions of libfabric
in which it was seen, the version that ended it where that is known, and the test that shows the guard. No other module
compares a provider's name or the library's version. The extension is told a domain's quirks when the domain is opened.
docs/reference/ofi.md shows the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ... import _nic
from . import library

_ANY = 1 << 31
_EVERY = "every"
_GROUP_SETTING = "FI_OFI_RXM_BUFFER_SIZE"
_GROUP_BYTES = 16384  # of that setting, by default
_NO_LIMIT = (1 << 64) - 1


def _version(major: int, minor: int) -> int:
    return major << 16 | minor


@dataclass(frozen=True)
class _Where:
    """providers: words of layered names ("tcp" is also "tcp;ofi_rxm"). first <= version < ended."""

    providers: tuple[str, ...]
    test: str
    says: str
    first: int = 0
    ended: int = _ANY


class Quirk(Enum):
    """The value says where the quirk is, what it is, and which test shows the guard. Equal values would be one "
    "quirk."""

    NEEDS_RECV_QUEUE = _Where(
        ("shm",),
        "test_before_enable.py::test_endpoint_without_a_queue_for_each_side_is_enocq",
        "`ep.enable()` without a queue for RECV ends the process: refused",
    )
    NAMED_BY_PROCESS = _Where(
        ("shm",),
        "test_addresses.py::test_name_that_a_process_of_the_same_number_left_behind_is_not_taken",
        "An endpoint's name is that of a file with the process's number, which an ended process may have left; a "
        "second endpoint of the process that takes a name ends the process: another name is taken, or the name refused",
    )
    NAME_TAKEN_CRASHES = _Where(
        ("shm",),
        "test_addresses.py::test_chosen_name_of_another_process_is_busy",
        "A chosen name whose file is there ends the process: refused",
        first=_version(2, 0),
    )
    NO_DMABUFS = _Where(
        ("tcp", "net", "udp", "sockets"),
        "test_regions.py::test_dmabuf_is_registered_where_it_is_mapped",
        "A DMA-buf's struct is taken for an iovec, so another address is registered: refused",
    )
    DMABUFS_ARE_NOT_KNOWN = _Where(
        (_EVERY,),
        "test_regions.py::test_sub_mr_keeps_its_base_open",
        "The struct of a region's attributes has no DMA-buf and no base_mr: refused",
        ended=_version(1, 20),
    )
    COPIES_BY_PROCESSOR = _Where(
        ("shm",),
        "test_regions.py::test_dmabuf_that_is_not_mapped_is_refused",
        "The processor copies, so a DMA-buf has to be mapped: refused without an address",
    )
    YIELD_HAS_NO_LIMIT = _Where(
        ("shm",),
        "test_waits.py::test_sread_times_out",
        "FI_WAIT_YIELD, the provider's choice, disregards the limit of a wait: Weft yields itself, with every provider",
    )
    IGNORES_PEEK = _Where(
        ("shm", "tcp"),
        "test_peek.py::test_untagged_peek_is_refused_and_the_message_stays",
        "PEEK and CLAIM of an untagged receive are ignored, and the message is received: refused",
    )
    DISCARD_ALONE_CRASHES = _Where(
        ("shm",),
        "test_quirks.py::test_discard_without_peek_or_claim_is_refused",
        "DISCARD without PEEK or CLAIM ends the process: refused with every provider",
        first=_version(2, 0),
    )
    PLAIN_ATOMICS_CRASH = _Where(
        ("shm",),
        "test_share.py::test_threads_add_without_losing_a_count",
        "Operations of several endpoints after a plain atomic end one of the processes: Weft's arrays fetch instead",
    )
    READ_BEFORE_ENABLE_CRASHES = _Where(
        (_EVERY,),
        "test_quirks.py::test_error_entries_are_read_after_enable_alone",
        "A read of a queue or counter, while an endpoint that is bound to the queue is not enabled, may end the "
        "process: refused",
    )
    SREAD_AFTER_CLOSE_CRASHES = _Where(
        ("tcp",),
        "test_quirks.py::test_sread_after_the_endpoint_closed_finds_nothing",
        "`cq.sread()` of a queue whose endpoint was closed reads freed memory: Weft looks again and again instead",
        ended=_version(2, 0),
    )
    CLOSE_DURING_CONNECT_CRASHES = _Where(
        ("tcp",),
        "test_quirks.py::test_endpoint_closes_while_another_connects_to_it",
        "An endpoint closes to which another of its domain is connecting, and the next read ends the process: the "
        "library works once before the close",
        first=_version(2, 0),
    )
    WRITTEN_CONNREQ_CRASHES = _Where(
        ("tcp",),
        "test_quirks.py::test_endpoint_closes_while_its_event_queue_has_an_event_of_any_number",
        "The close of an endpoint takes a CONNREQ that the application wrote for an event with an info: with every "
        "provider Weft writes a notice, and keeps the event",
        first=_version(2, 0),
    )
    CLOSE_WITHOUT_VECTOR_CRASHES = _Where(
        ("ofi_rxm",),
        "test_before_enable.py::test_queue_can_be_read_when_the_endpoint_that_was_not_enabled_is_closed",
        "The close of an endpoint that has no address vector ends the process: Weft binds one before",
    )
    REFUSED_CLOSE_FREES = _Where(
        (_EVERY,),
        "test_busy_domain.py::test_domain_that_the_library_keeps_is_left_to_it",
        "A close of a domain that is refused may have freed a part of the domain (seen with rxm): Weft closes once",
    )
    OPTION_BEFORE_ENABLE_CRASHES = _Where(
        ("shm",),
        "test_quirks.py::test_option_that_is_set_before_enable_holds_after_it",
        "`ep.setopt(OPT_MIN_MULTI_RECV)` before enable() reads a null pointer: Weft sets the option at enable()",
        ended=_version(2, 0),
    )
    GETOPT_BEFORE_ENABLE_CRASHES = _Where(
        ("shm",),
        "test_quirks.py::test_option_is_known_before_enable_once_it_was_set",
        "`ep.getopt(OPT_MIN_MULTI_RECV)` before enable() reads a null pointer: answered from what setopt asked for, or "
        "refused",
    )
    INSERT_BEFORE_ENABLE_CRASHES = _Where(
        ("shm",),
        "test_quirks.py::test_address_before_enable_is_refused",
        "`av.insert()` reads a null pointer while an endpoint that is bound to the vector is not enabled: refused",
    )
    CANCEL_OF_DIRECTED_CRASHES = _Where(
        ("tcp",),
        "test_quirks.py::test_cancel_of_a_directed_receive_is_done_or_refused",
        "The cancel of a receive ends the process if the endpoint has directed receives: refused",
        first=_version(2, 0),
    )
    STRERROR_ASKS_ENDPOINT = _Where(
        ("ofi_rxm",),
        "test_quirks.py::test_strerror_of_a_queue_without_an_endpoint_is_a_text",
        "`cq.strerror()` asks the first endpoint of the queue, and ends the process if there is none: the library's "
        "own text of the number instead",
    )
    OWN_COLLECTIVES = _Where(
        ("cxi",),
        "test_quirks.py::test_quirk_holds_for_its_providers_and_versions",
        "Collectives are the provider's own; those of the others are libfabric's, over messages, and check nothing: "
        "Weft checks",
    )
    PASSIVE_KEEPS_INFO = _Where(
        ("sockets",),
        "test_quirks.py::test_info_of_a_passive_endpoint_stays_as_long_as_the_endpoint",
        "A passive endpoint keeps pointers into the fi_info that it was opened with: Weft keeps the info as long",
    )


def has(provider: str, quirk: Quirk) -> bool:
    """Whether a provider ("ofi:tcp", "ofi:tcp;ofi_rxm") of the loaded library has a quirk."""
    return _has(provider, (library.known() or ("", 0))[1], quirk)


@lru_cache(maxsize=256)
def _has(provider: str, version: int, quirk: Quirk) -> bool:
    where = quirk.value
    layers = {_EVERY, *provider.removeprefix(library.PREFIX).split(";")}
    return not layers.isdisjoint(where.providers) and where.first <= version < where.ended


def bits(provider: str) -> int:
    """The quirks that the extension guards, as it takes them."""
    return sum(1 << place for place, name in enumerate(_nic.ofi_quirks()) if has(provider, Quirk[name]))


def longest_collective(provider: str) -> tuple[int, str]:
    """The most bytes of a collective, and the provider's setting of that: libfabric's own collectives never end with
    messages that are longer than the provider's buffers."""
    if has(provider, Quirk.OWN_COLLECTIVES):
        return _NO_LIMIT, ""
    try:
        most = int(os.environ.get(_GROUP_SETTING, ""), 0)
    except ValueError:  # not set, or no number
        most = 0
    return (most if 0 < most < _NO_LIMIT else _GROUP_BYTES), _GROUP_SETTING


def file_of_name(name: str) -> str:
    """The file of an endpoint's name (NAMED_BY_PROCESS)."""
    return "/dev/shm/" + name.removeprefix("fi_shm://")


def table() -> Iterator[str]:
    """The rows of the table of the documentation."""
    yield "| quirk | providers | versions | what it is, and what Weft does | test in `tests/ofi` |"
    yield "| --- | --- | --- | --- | --- |"
    for quirk in Quirk:
        where = quirk.value
        file, _, name = where.test.partition("::")
        yield (
            f"| `{quirk.name}` | {', '.join(where.providers)} | {_versions(where)} | {where.says} | `{name or file}` |"
        )


def _versions(where: _Where) -> str:
    first, ended = (f"{number >> 16}.{number & 0xFFFF}" for number in (where.first, where.ended))
    if where.first and where.ended != _ANY:
        return f"{first} to before {ended}"
    if where.first:
        return f"from {first}"
    return "all" if where.ended == _ANY else f"before {ended}"
