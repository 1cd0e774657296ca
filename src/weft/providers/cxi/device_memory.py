"""What a domain does with memory of devices: the check of Level Zero, and windows of the CPU into device memory.

A region of device memory gets a *window*: the DMA-buf of its allocation, mapped into this process. Through the window
the CPU loads and stores device memory itself. The NIC copies up to FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD bytes through the
window, and longer pieces by the device's copy engine. Where no DMA-buf can be made or mapped, the engine does every
copy.

Source: fi_cxi(7) "Heterogenous Memory (HMEM) Supported Interfaces", "FI_HMEM_ZE Limitations", "RUNTIME PARAMETERS".
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ... import _nic, errors
from ...fi.policy import RegionPolicy
from ...fi.policy_rules import RegionFacts
from ...flags import HmemIface
from . import env

_ANY_LENGTH = (1 << 64) - 1
_IFACES = (HmemIface.HMEM_CUDA, HmemIface.HMEM_ROCR, HmemIface.HMEM_ZE)


def implicit_scaling() -> str:
    """Why the driver of Level Zero may spread memory over several tiles of a device; empty: it does not."""
    e = env.load()
    if (e.EnableImplicitScaling, e.NEOReadDebugKeys) == ("0", "1"):
        return ""
    return ", ".join(
        f"{name} is {value}" if value else f"{name} is not set"
        for name, value in (
            ("EnableImplicitScaling", e.EnableImplicitScaling),
            ("NEOReadDebugKeys", e.NEOReadDebugKeys),
        )
    )


class _Memory(NamedTuple):
    """An allocation, as the NIC finds it by an address within."""

    iface: int
    kind: str
    device: int
    base: int
    length: int


@dataclass
class _Window:
    """One mapped allocation, and how many regions use it."""

    nic: _nic.Nic
    base: int
    mapped: mmap.mmap
    at: int
    uses: int = 1

    def close(self) -> None:
        self.nic.hmem_no_window(self.base, self.at)
        self.mapped.close()


_lock = threading.Lock()
_windows: dict[tuple[int, int, int], _Window] = {}  # by (process, base, length) of the allocation


def _use(nic: _nic.Nic, found: _Memory) -> _Window | None:
    """The window of an allocation; None if it has no DMA-buf that can be mapped."""
    key = os.getpid(), found.base, found.length
    with _lock:
        window = _windows.get(key)
        if window is not None:
            window.uses += 1
            return window
        try:
            fd = nic.hmem_dmabuf(found.iface, found.base, found.length)
        except errors.FabricError:
            return None
        try:
            mapped = mmap.mmap(fd, found.length)
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)
        window = _Window(nic, found.base, mapped, int(_nic.describe_buffer(mapped)[0]))
        nic.hmem_window(found.base, found.length, window.at)
        _windows[key] = window
        return window


def _drop(window: _Window) -> None:
    with _lock:
        window.uses -= 1
        if window.uses:
            return
        for key, one in list(_windows.items()):
            if one is window:
                del _windows[key]
        window.close()


class DeviceMemory:
    """What one domain does with the device memory of its regions.

    Args:
        windows: Regions get windows (no FI_CXI_DISABLE_HMEM_DEV_REGISTER).
        without: Interfaces whose memory has no DMA-buf, because the environment says so.
    """

    def __init__(self, nic: _nic.Nic, *, windows: bool, without: frozenset[HmemIface], near: int) -> None:
        self._nic, self.windows, self.without = nic, windows, without
        nic.hmem_near(near)

    def there(self) -> bool:
        """True if this machine has device memory at all."""
        return any(self._nic.hmem_devices(int(iface)) is not None for iface in _IFACES)

    def region(self, facts: RegionFacts, make: Callable[[], RegionPolicy | None]) -> RegionPolicy | None:
        """The policy of a new region, with its window.

        Args:
            make: The policy that it would have otherwise.

        Raises what `make` raises, and NoSys for memory of Level Zero under implicit scaling.
        """
        known = self._nic.hmem_find(facts.address) if facts.length else None
        found = None if known is None else _Memory(*known)
        if found is None or found.kind == "host":
            return make()
        if found.iface == HmemIface.HMEM_ZE:
            _check_scaling(facts)
        window = None
        if self.windows and found.kind == "device" and found.iface not in self.without:
            window = _use(self._nic, found)
        if window is None:
            return make()
        try:
            return _WindowedRegion(make(), window)
        except BaseException:
            _drop(window)
            raise


class _WindowedRegion:
    """A region of device memory with a window (`RegionPolicy`); `inner` decides everything else."""

    def __init__(self, inner: RegionPolicy | None, window: _Window) -> None:
        self.key = inner.key if inner is not None else 0
        self._inner = inner
        self._window: _Window | None = window

    def enable(self, region: RegionFacts) -> int | _nic.Mapping | None:
        return self._inner.enable(region) if self._inner is not None else None

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        if self._window is not None:
            _drop(self._window)
            self._window = None


def _check_scaling(facts: RegionFacts) -> None:
    e = env.load()
    why = "" if e.FI_CXI_FORCE_ZE_HMEM_SUPPORT else implicit_scaling()
    if why:
        raise errors.NoSys(
            f"mr_reg: {facts.length} B at {facts.address:#x} are memory of Level Zero (HMEM_ZE), and implicit "
            "scaling is on\n"
            f"  found: {why}\n"
            '  rule: transfers to and from such memory need implicit scaling off, fi_cxi(7) "FI_HMEM_ZE Limitations"\n'
            "  try: EnableImplicitScaling=0 and NEOReadDebugKeys=1, or for tests FI_CXI_FORCE_ZE_HMEM_SUPPORT=1"
        )


def of_domain(nic: _nic.Nic) -> DeviceMemory:
    """What a new domain with FI_HMEM does."""
    e = env.load()
    off = {
        HmemIface.HMEM_CUDA: e.FI_CXI_DISABLE_DMABUF_CUDA or not e.FI_HMEM_CUDA_USE_DMABUF,
        HmemIface.HMEM_ROCR: e.FI_CXI_DISABLE_DMABUF_ROCR or not e.FI_HMEM_ROCR_USE_DMABUF,
    }
    return DeviceMemory(
        nic,
        windows=not e.FI_CXI_DISABLE_HMEM_DEV_REGISTER,
        without=frozenset(iface for iface, is_off in off.items() if is_off),
        near=_ANY_LENGTH if e.FI_CXI_FORCE_DEV_REG_COPY else int(e.FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD),
    )
