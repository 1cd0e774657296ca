"""Address translation of a domain's NIC: ATS or NTA, pinned pages or on-demand paging, cached mappings.

A software NIC uses the addresses of the process and translates nothing. Only the effects that an application can notice
are modelled: keys that outlive their regions, the memory that may be registered, and mlockall.

Source: fi_cxi(7) "Translation", "Translation Cache", "RUNTIME PARAMETERS".
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from ... import _nic
from ...flags import MrMode
from . import env, pages

_log = logging.getLogger("weft.cxi")
_PROCESSOR, _IOMMU = Path("/proc/cpuinfo"), Path("/sys/module/amd_iommu_v2")
_said: set[str] = set()
_locked = False


class Translation(NamedTuple):
    """The translation settings of a domain.

    Attributes:
        ats: ATS; otherwise NTA.
        odp: On-demand paging; otherwise memory is pinned, and must exist when it is registered.
        count_max: Most mappings of closed regions to keep; 0: none.
        bytes_max: Most bytes of these mappings together.
        why: Not "": why the monitor of FI_MR_CACHE_MONITOR is not available; opening a domain then fails.
    """

    ats: bool
    odp: bool
    count_max: int
    bytes_max: int
    why: str = ""

    def __str__(self) -> str:
        return f"{'ATS' if self.ats else 'NTA'}, {'pages on demand' if self.odp else 'pinned pages'}"


def of_domain(mr_mode: int) -> Translation:
    """The settings from the environment, as far as this host supports them.

    Args:
        mr_mode: Mode of the domain: MR_ALLOCATED promises that memory exists, so there is no on-demand paging.

    The first domain under ATS and on-demand paging locks the process in memory (FI_CXI_ATS_MLOCK_MODE=all).
    """
    e = env.load()
    odp = bool(e.FI_CXI_ODP) and not mr_mode & MrMode.MR_ALLOCATED
    reason = no_ats() if e.FI_CXI_ATS else ""
    if reason:
        _say(f"FI_CXI_ATS=1: {reason}. NTA is used, as on such a node of the hardware")
    if e.FI_CXI_ATS and e.FI_CXI_ODP and e.FI_CXI_ATS_MLOCK_MODE == "all":
        _lock()
    ats = e.FI_CXI_ATS and not reason
    keeps = not ats and e.FI_MR_CACHE_MONITOR != "disabled"
    count = int(e.FI_MR_CACHE_MAX_COUNT) if keeps else 0
    why = ""
    if count and e.all["FI_MR_CACHE_MONITOR"].origin == "environment":
        _, works, because = _nic.probe_monitor(
            "userfaultfd" if e.FI_MR_CACHE_MONITOR == "uffd" else e.FI_MR_CACHE_MONITOR
        )
        why = "" if works else f"FI_MR_CACHE_MONITOR={e.FI_MR_CACHE_MONITOR}: {because}"
    return Translation(ats, odp, count, int(e.FI_MR_CACHE_MAX_SIZE), why)


def no_ats() -> str:
    """Why a NIC of this host could not use ATS; "" if it could."""
    try:
        processor = _PROCESSOR.read_text(encoding="utf-8", errors="replace")
    except OSError as reason:
        return f"whether this host has it cannot be found out: {reason}"
    if "AuthenticAMD" not in processor:
        return "ATS needs an AMD processor, which this host has not"
    if not _IOMMU.exists():
        return "ATS needs the iommu_v2 interface of the kernel (module amd_iommu_v2), which is not there"
    return ""


def _lock() -> None:
    global _locked
    if _locked:
        return
    why = pages.lock_all()
    _locked = not why
    if why:
        _say(
            f"FI_CXI_ATS_MLOCK_MODE=all: mlockall: {why}. Memory stays pageable\n"
            "  try: a higher `ulimit -l`, CAP_IPC_LOCK, or FI_CXI_ATS_MLOCK_MODE=off"
        )


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning("%s", text)
