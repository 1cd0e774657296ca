"""The registration cache of this process, described: settings, state and statistics.

The cache itself is the NIC's (cpp/mem); `fi.open("mr_cache")` is how an application uses it.

Source: fi_mr(3) "Memory registration cache".
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import _nic, _process, settings

__all__ = ["CacheState", "CacheStatistics", "cache_settings", "cache_state", "statistics"]

UNLIMITED = 2**64 - 1


@dataclass(frozen=True)
class CacheStatistics:
    """Counts of the registration cache of this process, and its contents.

    hits, misses          look-ups that the cache answered; look-ups that it could not answer.
    evictions             entries that gave way to a limit or were flushed.
    invalidations         entries that went because their memory changed.
    uncached              answers that were not kept: caching is off, the memory is not monitored, a limit, or a change
                          during the look-up.
    entries, bytes, held  the present contents; held: entries that are in use.
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
    """Whether system memory is cached here, and which monitor watches it.

    monitor   "memhooks", "userfaultfd", "kdreg2" or "disabled".
    works     the monitor can do its work on this machine.
    active    it is watching now: something is cached (or, under `FI_MR_CACHE_MONITOR`, memory of Weft is registered).
    count_max, bytes_max   limits; bytes_max None: unlimited.
    why       why it does not work; empty where it does.
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
    """What the environment says. Raises InvalidArgument for values that are not understood, naming those that are."""
    return settings.load_cache()


def cache_state() -> CacheState:
    """The state of this process's cache; before the process uses its NIC, what it would be."""
    nic = _process.nic_if_open()
    if nic is not None:
        d = _nic.cache_state(nic)
        size = d["bytes_max"]
        # A count of 0 leaves the monitor out.
        monitor = d["monitor"] if d["count_max"] else cache_settings().cache_monitor or "disabled"
        return CacheState(
            monitor, d["available"], d["active"], d["count_max"], None if size == UNLIMITED else size, d["why"]
        )
    said = cache_settings()
    name, works, why = _nic.probe_monitor(said.cache_monitor)
    return CacheState(name, works, False, said.cache_max_count, said.cache_max_size, why)


def statistics() -> CacheStatistics:
    """Counts since the NIC was made; zeros before."""
    nic = _process.nic_if_open()
    if nic is None:
        return CacheStatistics()
    d = _nic.cache_state(nic)
    return CacheStatistics(**{name: d[name] for name in CacheStatistics.__dataclass_fields__})
