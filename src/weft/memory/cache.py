"""Settings, state and statistics of this process's registration cache.

The cache itself is part of the NIC (cpp/mem); applications use it through `fi.open("mr_cache")`.

Source: fi_mr(3) "Memory registration cache".
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import _nic, _process, settings

UNLIMITED = 2**64 - 1


@dataclass(frozen=True)
class CacheStatistics:
    """Counts of this process's registration cache.

    Attributes:
        hits: Look-ups answered from the cache.
        misses: Look-ups that had to ask the system.
        evictions: Entries removed because of a limit or a flush.
        invalidations: Entries removed because their memory changed.
        uncached: Answers that were not stored: caching is off, no monitor watches the memory, a limit, or the memory
            changed during the look-up.
        entries: Entries in the cache now.
        bytes: Their bytes.
        held: Entries in use.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    invalidations: int = 0
    uncached: int = 0
    entries: int = 0
    bytes: int = 0
    held: int = 0


@dataclass(frozen=True)
class CacheState:
    """Whether system memory is cached in this process, and which monitor watches it.

    Attributes:
        monitor: "memhooks", "userfaultfd", "kdreg2" or "disabled".
        works: The monitor works on this machine.
        active: The monitor watches now: there are entries (or `FI_MR_CACHE_MONITOR` is set and Weft has regions).
        count_max: Limit of entries.
        bytes_max: Limit of bytes; None: unlimited.
        why: Why the monitor does not work; empty if it works.
    """

    monitor: str
    works: bool
    active: bool
    count_max: int
    bytes_max: int | None
    why: str

    @property
    def on(self) -> bool:
        """System memory is cached."""
        return self.count_max > 0 and self.monitor != "disabled" and self.works

    def __str__(self) -> str:
        if self.count_max == 0:
            return "off: FI_MR_CACHE_MAX_COUNT is 0"
        if self.monitor == "disabled":
            return "off: FI_MR_CACHE_MONITOR is disabled"
        if not self.works:
            return f"off: {self.why}"
        size = "unlimited" if self.bytes_max is None else f"{self.bytes_max} B"
        watching = "watching" if self.active else "idle, nothing is cached"
        return f"on: {self.monitor} ({watching}), up to {self.count_max} entries, {size}"


def cache_settings() -> settings.CacheSettings:
    """The cache's settings from the environment. Raises InvalidArgument for a bad value and names the valid ones."""
    return settings.load_cache()


def cache_state(nic: _nic.Nic | None = None) -> CacheState:
    """The state of a NIC's cache (None: the process's NIC). Without a NIC: the state that its cache will have."""
    nic = nic or _process.nic_if_open()
    if nic is not None:
        d = _nic.cache_state(nic)
        size = d["bytes_max"]
        # With a count of 0 the NIC starts no monitor.
        monitor = d["monitor"] if d["count_max"] else cache_settings().FI_MR_CACHE_MONITOR or "disabled"
        return CacheState(
            monitor, d["available"], d["active"], d["count_max"], None if size == UNLIMITED else size, d["why"]
        )
    said = cache_settings()
    name, works, why = _nic.probe_monitor(said.FI_MR_CACHE_MONITOR)
    return CacheState(name, works, False, said.FI_MR_CACHE_MAX_COUNT, said.FI_MR_CACHE_MAX_SIZE, why)


def statistics(nic: _nic.Nic | None = None) -> CacheStatistics:
    """Counts since a NIC was made (None: the process's NIC). Without a NIC: zeros."""
    nic = nic or _process.nic_if_open()
    if nic is None:
        return CacheStatistics()
    d = _nic.cache_state(nic)
    return CacheStatistics(**{name: d[name] for name in CacheStatistics.__dataclass_fields__})
