"""The library's registration cache, opened for direct use (fi_open "mr_cache"), and monitors of the application.

Source: fi_mr(3) "Memory registration cache".
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .. import _nic, _process, errors
from .._with import With
from ..flags import FidClass, HmemIface
from ..memory.cache import CacheState, CacheStatistics, cache_settings, cache_state, statistics
from . import _args, _handle

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["CacheStatistics", "CachedMapping", "MemMonitor", "MrCache", "MrCacheEntry", "open"]

SERVICES = ("mr_cache",)


def open(name: str, attr: Any = None, flags: int = 0, context: Any = None) -> MrCache:
    """Open a service of the library by its name (fi_open).

    Args:
        name: "mr_cache": the registration cache.
        attr: A Domain: the cache of its NIC; None: the cache of the process's own NIC.
        flags: 0.
        context: Kept, not used.

    Raises:
        NoSys: There is no such service, or the memory monitor that the environment names does not work on this system
            (the message says why).
        InvalidArgument: A variable of the environment has a bad value.
        BadFlags: Unknown flags.

    Source: fi_mr(3) "Memory registration cache".
    """
    _args.whole("open", flags=flags)
    if name not in SERVICES:
        raise errors.NoSys(f"open: no service is called {name!r}; here: {', '.join(SERVICES)}")
    if attr is not None and not isinstance(attr, _nic.DomainCore):
        raise errors.InvalidArgument(f"open: attr of {name} has to be an fi.Domain or None, not {attr!r}")
    if flags != 0:
        raise errors.BadFlags(f"open: flags {flags!r}; they have to be 0")
    nic = _process.nic() if attr is None else _nic_of(cast("Domain", attr))
    state = cache_state(nic)
    if not state.works and cache_settings().FI_MR_CACHE_MONITOR:
        raise errors.NoSys(
            f"open: FI_MR_CACHE_MONITOR={cache_settings().FI_MR_CACHE_MONITOR} does not work here\n  found: {state.why}"
        )
    return MrCache(context, nic)


def _nic_of(domain: Domain) -> _nic.Nic:
    _handle.check(domain, "open")
    return domain.policy.nic


def _known_iface(op: str, iface: int) -> None:
    if iface not in HmemIface.__members__.values():
        raise errors.InvalidArgument(f"{op}: iface {iface!r} is not one of enum fi_hmem_iface")


@dataclass(frozen=True)
class CachedMapping:
    """The memory that a cache entry describes, for `MemMonitor.valid`.

    Attributes:
        address: First byte of the range.
        length: Bytes of the range.
        iface: Interface of the device that owns the memory.
        device: Number of the device.
        buffer_id: Identity of the allocation or file behind the range, from the resolver.
        user: The resolver's own number.
    """

    address: int
    length: int
    iface: int
    device: int
    buffer_id: int
    user: int


class MemMonitor:
    """A memory monitor of the application (struct fid_mem_monitor): derive a class for `MrCache.import_fid`.

    Attributes:
        iface: The memory to watch: `fi.HMEM_SYSTEM`, `fi.HMEM_CUDA` ...
        name: A name for messages; by default the name of the class.

    The cache calls the methods below without holding its locks. If `start` or `subscribe` raises, the range is not
    cached; an error in `unsubscribe` or `stop` is printed.
    Thread safety: calls come from the threads that search. Source: fi_mr(3) "Memory registration cache".
    """

    fclass = FidClass.CLASS_MEM_MONITOR
    iface: int = HmemIface.HMEM_SYSTEM
    name: str = ""

    def start(self, notify: Callable[[int, int], int]) -> None:
        """Begin to watch: the cache is about to store an entry.

        Args:
            notify: Call notify(addr, length) from any thread when memory changed. On return the overlapping
                entries have been removed; the result is their number.
        """

    def stop(self) -> None:
        """Stop watching: the cache has no more entries of this interface."""

    def subscribe(self, addr: int, length: int) -> None:
        """After this call returns, the monitor must call `notify` for changes of the range."""

    def unsubscribe(self, addr: int, length: int) -> None:
        """The end of one `subscribe` with the same arguments."""

    def valid(self, addr: int, length: int, mapping: CachedMapping) -> bool:
        """Called at each hit: whether the entry still describes the memory. If not, the range is resolved again."""
        return True


class _Watch:
    """Adapter that the NIC calls for a MemMonitor: counts subscriptions to start and stop the monitor."""

    def __init__(self, nic: _nic.Nic, monitor: MemMonitor) -> None:
        self.nic = nic
        self.monitor = monitor
        self.ranges = 0
        # A monitor may call notify from its methods, which ends subscriptions of the same thread.
        self.lock = threading.RLock()

    def subscribe(self, addr: int, length: int) -> None:
        with self.lock:
            if self.ranges == 0:
                self.monitor.start(self.notify)
            self.ranges += 1
            try:
                self.monitor.subscribe(addr, length)
            except BaseException:
                self._left()
                raise

    def unsubscribe(self, addr: int, length: int) -> None:
        with self.lock:
            try:
                self.monitor.unsubscribe(addr, length)
            finally:
                self._left()

    def _left(self) -> None:
        self.ranges -= 1
        if self.ranges == 0:
            self.monitor.stop()

    def _valid(self, addr: int, length: int, mapping: dict[str, int]) -> bool:
        return bool(self.monitor.valid(addr, length, CachedMapping(**mapping)))

    def notify(self, addr: int, length: int) -> int:
        return _nic.cache_notify(self.nic, int(self.monitor.iface), addr, length)


class MrCacheEntry(With, _nic.CacheRef):
    """A cache entry for a range of memory; held until `release()` or the end of a with block.

    Attributes:
        address: First byte of the entry's range, which contains the searched range.
        length: Bytes of the entry's range.
        iface: Interface of the device that owns the memory.
        device: Number of the device.
        persistent: The memory is a shared mapping of a file.
        host_access: The CPU can read the memory.
        buffer_id: For system memory the identity of the file, 0 without a file; otherwise the resolver's value.
        user: For system memory the offset in the file; otherwise the resolver's value.
        cached: The cache stored the entry, and a monitor watches the memory.
        stale: The memory changed since; searches no longer find the entry. Only for cached entries.

    A held entry is not evicted by limits. Thread safety: any thread.
    """

    __slots__ = ()

    @property
    def iface(self) -> HmemIface:
        """Interface of the memory."""
        return HmemIface(super().iface)

    def _leave(self) -> None:
        self.release()

    def __repr__(self) -> str:
        if self.released:
            return "<MrCacheEntry released>"
        state = "stale" if self.stale else "cached" if self.cached else "not cached"
        return f"<MrCacheEntry {self.length} B at {self.address:#x}, {self.iface!s}, {state}>"


class MrCache(_handle.Life):
    """The registration cache of a NIC (struct fid of class FI_CLASS_MR_CACHE). Made by `fi.open("mr_cache")`.

    All open MrCache objects of a NIC are the same cache; closing one removes the monitors imported through it.
    Thread safety: any thread. Source: fi_mr(3) "Memory registration cache".
    """

    fclass = FidClass.CLASS_MR_CACHE

    def __init__(self, context: Any = None, nic: _nic.Nic | None = None) -> None:
        if nic is not None and not isinstance(nic, _nic.Nic):
            raise TypeError(f"MrCache: nic must be the process's Nic or None, not {nic!r}")
        self.context = context
        self._nic = nic or _process.nic()
        self._made_in = _process.generation
        self._mine: dict[int, MemMonitor] = {}
        self._opened(3)

    @property
    def state(self) -> CacheState:
        """Whether system memory is cached, and by which monitor; `str()` of the state is a sentence."""
        return cache_state(self._nic)

    def search(
        self,
        buf: Any,
        iface: int = HmemIface.HMEM_SYSTEM,
        device: int = 0,
        resolve: Callable[[int, int], Mapping[str, int]] | None = None,
    ) -> MrCacheEntry:
        """Look up a buffer's memory in the cache; a miss asks the system and stores the answer.

        Args:
            buf: A buffer, or (address, length).
            iface: Interface of the memory.
            device: The device number. Entries of different devices are separate, so devices without unified virtual
                addressing may use the same addresses.
            resolve: Called as resolve(address, length) on a miss. Returns a mapping with "address" and "length" of a
                range that contains the buffer, and its properties: "buffer_id", "user", "persistent", "host_access".
                None: the system answers (/proc/self/maps); for device memory the entry has only the range.

        An entry that contains the range is a hit. An answer is stored if a monitor watches the memory: the monitor of
        FI_MR_CACHE_MONITOR for system memory, an imported monitor for other memory.

        Raises:
            Fault: Nothing is mapped there.
            InvalidArgument: `buf` has no bytes, the interface does not exist, or the answer of resolve does not contain
                the range.
        """
        op = "search"
        _handle.check(self, op, iface=iface, device=device)
        _known_iface(op, iface)
        if resolve is not None and not callable(resolve):
            raise TypeError(f"{op}: resolve must be a function (address, length) or None, not {resolve!r}")
        address, nbytes = _nic.describe_buffer(buf)[:2]
        if nbytes == 0:
            raise errors.InvalidArgument(f"{op}: the buffer has no bytes, so there is nothing to look up")
        found = None if resolve is None else lambda at, size: dict(resolve(at, size))
        return MrCacheEntry(self._nic, address, nbytes, int(iface), device, found)

    def notify(self, addr: int, length: int, iface: int = HmemIface.HMEM_SYSTEM) -> int:
        """Report a change of memory to the cache, which removes the overlapping entries (fid_mem_notify).

        Returns the number of entries removed. Needed where the monitor cannot see a change.
        """
        _handle.check(self, "notify", iface=iface)
        _known_iface("notify", iface)
        _args.integer("notify", addr=addr, length=length)
        addr, length = operator.index(addr), operator.index(length)
        if addr < 0 or length <= 0 or addr + length >= 1 << 64:
            raise errors.InvalidArgument(f"notify: {length} B at {addr:#x} is not a range of memory")
        return _nic.cache_notify(self._nic, int(iface), addr, length)

    def flush(self, lru_only: bool = True) -> int:
        """Forget the entries that are not held; with lru_only False all entries, and held ones become stale.

        Returns the number of entries.
        """
        _handle.check(self, "flush")
        if not isinstance(lru_only, bool):
            raise TypeError(f"flush: lru_only is True or False, not {lru_only!r}")
        return _nic.cache_flush(self._nic, lru_only)

    def import_fid(self, monitor: MemMonitor, flags: int = 0) -> None:
        """Let a monitor of the application watch the memory of its interface (fi_import_fid).

        Removes the cached entries of that interface. The monitor stays until this object is closed; then the process's
        own monitor watches system memory again, and other memory is no longer watched.

        Raises Busy (another imported monitor watches that interface), NoSys (FI_MR_CACHE_MAX_COUNT is 0), BadFlags.
        """
        op = "import_fid"
        _handle.check(self, op)
        _handle.expect(monitor, MemMonitor, op, "monitor")
        _args.whole(op, flags=flags)
        if flags:
            raise errors.BadFlags(f"{op}: flags {flags:#x}; they have to be 0")
        iface = HmemIface(monitor.iface)
        if self.state.count_max == 0:
            raise errors.NoSys(f"{op}: caching is off, FI_MR_CACHE_MAX_COUNT is 0: no monitor is used")
        with _import_lock:
            here = (id(self._nic), int(iface))
            if here in _imported:
                raise errors.Busy(f"{op}: {_imported[here]!r} watches {iface!s} already; close its MrCache first")
            name = monitor.name or type(monitor).__name__
            _nic.cache_set_monitor(self._nic, int(iface), _Watch(self._nic, monitor), name)
            _imported[here] = self._mine[int(iface)] = monitor

    def statistics(self) -> CacheStatistics:
        """Counts since the NIC was made."""
        return statistics(self._nic)

    def _release(self) -> None:  # the cache and its entries stay
        with _import_lock:
            for iface in list(self._mine):
                del self._mine[iface]
                _imported.pop((id(self._nic), iface), None)
                _nic.cache_set_monitor(self._nic, iface, None, "")

    def __repr__(self) -> str:
        if self._closed:
            return "<MrCache closed>"
        if _handle.elsewhere(self):
            return "<MrCache of the process that forked this one>"
        counts = self.statistics()
        return (
            f"<MrCache {self.state!s}; {counts.entries} entries, {counts.held} held, "
            f"{counts.hits} hits, {counts.misses} misses>"
        )


_import_lock = threading.RLock()
_imported: dict[tuple[int, int], MemMonitor] = {}
"""(`_process.generation`, interface) -> imported monitor."""
