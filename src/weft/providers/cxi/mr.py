"""The CXI provider's policy of regions: optimized or standard, provider keys, resources of a service.

A client key has 32 bits; keys 0 to 99 are those of optimized regions. A provider key has 64 bits, opaque to
applications:

    bit 63         1: made by the provider
    bit 62         1: of cached memory, 0: of one region
    bit 61         optimized
    one region     bit 60 events are wanted, bit 59 writes with data; bits 16 to 58 a sequence number, 0 to 15 an id
    cached memory  bits 3 to 60 an offset, 0 to 2 the address context

Source: fi_cxi(7) "Memory registration modes", "OPTIMIZATION", "Optimized MRs"; where it is silent, the real provider.
"""

from __future__ import annotations

import logging
import random
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ...fi.policy_rules import RegionFacts
from ...fi.rules import Refusals, Rule
from ...flags import Flag
from ..mappings import Mappings
from . import env
from .resources import Exhausted, Pool

if TYPE_CHECKING:
    from .domain import CxiDomain
    from .ext import DomainOptions

PROVIDER, CACHED, OPTIMIZED, EVENTS, SOLICITED = (1 << bit for bit in (63, 62, 61, 60, 59))
ID_BITS, SEQUENCE_BITS, CONTEXT_BITS, OFFSET_BITS = 16, 43, 3, 58
IDS = 1 << ID_BITS
CLIENT_OPTIMIZED = 100  # client keys below this are those of optimized regions
PROVIDER_OPTIMIZED = 92  # ids of optimized regions are below this: 100 less the 8 portal entries of cached memory
PORTALS = 2  # per optimized region: one for reads, one for writes
_PAGE = 4096
_RMA_EVENT = int(Flag.RMA_EVENT)  # the enumeration's operators cost a microsecond each
_log = logging.getLogger("weft.cxi")
_warned = False
_Map = Callable[..., Any]


def is_optimized(key: int) -> bool:
    """True if the key has the form of an optimized region's key."""
    if key & PROVIDER:
        return bool(key & OPTIMIZED)
    return key < CLIENT_OPTIMIZED and bool(env.load().FI_CXI_OPTIMIZED_MRS)


class Keys:
    """The keys of one domain: ids of regions, sequence numbers, offsets of cached memory. Thread-safe.

    Args:
        count_max: Limit of the number of mappings kept for closed regions; 0: no keys of cached memory.
        bytes_max: Limit of their bytes.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.numbers = _nic.Numbers(IDS)
        # Random, so that a stale key does not match a reused id.
        self._sequence = _nic.KeySequence(random.getrandbits(SEQUENCE_BITS), SEQUENCE_BITS)
        self._offsets = _Offsets()
        self.mappings = Mappings(count_max, bytes_max)
        self._takes: _nic.RegionTakes | None = None

    def take(self) -> int | None:
        """The lowest free id; None if all are in use."""
        return self.numbers.take()

    def give(self, id: int) -> None:
        """Free an id."""
        self.numbers.give(id)

    def takes(self, pool: Pool, refusals: Refusals, options: DomainOptions) -> _nic.RegionTakes:
        """The resources of an ordinary region: an id, and entries by its kind; if the domain makes keys, its key."""
        self._takes = pool.takes(
            self.numbers,
            below=CLIENT_OPTIMIZED if env.load().FI_CXI_OPTIMIZED_MRS else 0,
            low=("ptes", PORTALS),
            high=("les", 1),
            refuse=lambda none: _refused(refusals, none),
        )
        self.follow(options)
        return self._takes

    def follow(self, options: DomainOptions) -> None:
        """Apply the options to ordinary regions that are enabled later, by the rules of `CxiRegion.enable`."""
        if self._takes is None or not options.prov_key:
            return
        events = options.mr_match_events
        cached = options.prov_key_cache and self.mappings.count_max > 0 and not events
        use, release = _mapped(self.mappings, self._offsets, optimized=options.optimized_mrs)
        self._takes.make_keys(
            self._sequence,
            base=PROVIDER | (EVENTS if events else 0) | (SOLICITED if options.writedata else 0),
            shift=ID_BITS,
            optimized_bit=OPTIMIZED,
            numbers_below=PROVIDER_OPTIMIZED if options.optimized_mrs else 0,
            map=use if cached else None,
            unmap=release,
            kept=_warn,
        )

    def form(self, options: DomainOptions) -> dict[str, int]:
        """The form of the keys of regions that are not optimized, for a NIC that makes them by itself."""
        return {
            "key_base": PROVIDER | (EVENTS if options.mr_match_events else 0) | (SOLICITED if options.writedata else 0),
            "key_shift": ID_BITS,
            "key_count": IDS,
            "key_sequence": random.getrandbits(SEQUENCE_BITS),
            "key_sequence_mask": (1 << SEQUENCE_BITS) - 1,
            "key_events": EVENTS,
        }

    def of_region(self, id: int, *, optimized: bool, events: bool, data: bool) -> int:
        """A new key, which no region has had."""
        kind = PROVIDER | (OPTIMIZED if optimized else 0) | (EVENTS if events else 0) | (SOLICITED if data else 0)
        return kind | self._sequence.next() << ID_BITS | id

    def of_memory(self, length: int, *, optimized: bool) -> int:
        """A key of cached memory: its place in the address context."""
        return self._offsets.key(length, optimized=optimized)


class _Offsets:
    """The address context of a domain: each cached memory gets a place of its own, which is never reused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def key(self, length: int, *, optimized: bool) -> int:
        with self._lock:
            offset = self._next
            self._next += (length // _PAGE + 2) * _PAGE
        return PROVIDER | CACHED | (OPTIMIZED if optimized else 0) | offset << CONTEXT_BITS


def _mapped(mappings: Mappings, offsets: _Offsets, *, optimized: bool) -> tuple[_Map, _Map]:
    """The functions `map` and `unmap` of `_nic.RegionTakes.make_keys`.

    The domain keeps them, so they do not keep the domain's mappings.
    """
    here = weakref.ref(mappings)

    def facts(domain: Any, ep: Any, address: int, length: int, readonly: bool, owner: Any) -> RegionFacts:
        return RegionFacts(
            address=address,
            length=length,
            access=0,
            flags=0,
            requested_key=0,
            readonly=readonly,
            iface=0,
            owner=owner,
            domain=domain,
            endpoints=(ep,),
        )

    def use(*place: Any) -> Any:
        found, region = here(), facts(*place)
        if found is None:
            raise errors.BadState("mr.enable: the domain is closed")
        return found.use(region, lambda: offsets.key(region.length, optimized=optimized))

    def release(*place: Any) -> None:
        found = here()
        if found is not None and found.release(facts(*place)):
            _warn()

    return use, release


class CxiRegion:
    """One region that peers have rights to (`RegionPolicy`).

    Attributes:
        key: The application's requested key, if the application chooses the keys.
        optimized: Set when enabled: the region has its own portal entries.
        cached: Set when enabled: peers use the key of the cached memory, which outlives the region.
    """

    def __init__(self, domain: CxiDomain, facts: RegionFacts) -> None:
        self._domain = domain
        self.key = facts.requested_key
        self.optimized = self.cached = False
        self._taken: tuple[str, int] | None = None
        self._facts: RegionFacts | None = None
        self._id = domain.region_keys.take()
        if self._id is None:
            raise domain.refusals.refuse(
                Rule.MR_KEYS,
                f"mr_reg: {IDS} regions of the domain are open that peers have rights to\n  try: close some",
            )

    def enable(self, region: RegionFacts) -> int | _nic.Mapping | None:
        """Take portal or list entries, and make the key."""
        options = self._domain.options
        if not options.prov_key:
            # The key alone decides whether the region is optimized, because peers see only the key.
            self.optimized = is_optimized(region.requested_key)
            self._take("ptes" if self.optimized else "les")
            return None
        events = bool(region.counters) or bool(region.flags & _RMA_EVENT) or options.mr_match_events
        caches = self._domain.translation.count_max > 0 and not region.iface  # mappings are of the host's memory
        self.cached = options.prov_key_cache and caches and not events and region.length > 0
        if self.cached:
            self.optimized = options.optimized_mrs
            found = self._domain.region_keys.mappings.use(
                region, lambda: self._domain.region_keys.of_memory(region.length, optimized=self.optimized)
            )
            self._facts = region
            return found
        assert self._id is not None
        self.optimized = options.optimized_mrs and self._id < PROVIDER_OPTIMIZED
        if self.optimized:
            try:
                self._take("ptes")
            except errors.NoSpace:
                self.optimized = False  # use a standard region instead
        if not self.optimized:
            self._take("les")
        # Model: each region then has the second entry that takes data, also without FI_RMA_EVENT, as on hardware.
        data = options.writedata
        return self._domain.region_keys.of_region(self._id, optimized=self.optimized, events=events, data=data)

    def close(self) -> None:
        """Return the resources. Peers still reach cached memory by its key."""
        if self._facts is not None:
            if self._domain.region_keys.mappings.release(self._facts):
                _warn()
            self._facts = None
        if self._taken is not None:
            self._domain.pool.give(*self._taken)
            self._taken = None
        if self._id is not None:
            self._domain.region_keys.give(self._id)
            self._id = None

    def _take(self, kind: str) -> None:
        if self._taken is not None:
            return
        count = PORTALS if kind == "ptes" else 1
        try:
            self._domain.pool.take(kind, count)
        except Exhausted as none:
            raise _refused(self._domain.refusals, none) from none
        self._taken = kind, count


def _warn() -> None:
    """Warn once that peers still reach the cached memory of a closed region."""
    global _warned
    if _warned:
        return
    _warned = True
    _log.warning(
        "mr.close: peers that have the key still reach the memory: it stays mapped for other regions\n"
        '  rule: a key of cached memory names the memory and not the region, fi_cxi(7) "Memory registration modes"\n'
        "  try: FI_CXI_MR_MATCH_EVENTS=1 (or domain.control(cxi.OPT_CXI_SET_MR_MATCH_EVENTS, True)), after which a "
        "closed region cannot be reached, or FI_CXI_PROV_KEY_CACHE=0"
    )


def _refused(refusals: Refusals, none: Exhausted) -> errors.FabricError:
    return refusals.refuse(Rule.MR_RESOURCES, f"mr.enable: {none.message}")
