"""Names of the registration modes of the fixture `mr_mode`; the plugin needs them before it may import flags."""

from __future__ import annotations

_BASIC = "virt_addr+allocated+prov_key"
MODE_NAMES = (
    "none",
    "local",
    "raw",
    "virt_addr",
    "allocated",
    "prov_key",
    "mmu_notify",
    "rma_event",
    "endpoint",
    _BASIC,
    "endpoint+prov_key+allocated",
    f"local+raw+{_BASIC}+mmu_notify+rma_event+endpoint",
)
