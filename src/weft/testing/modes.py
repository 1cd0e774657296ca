"""The registration modes of fi_mr(3), and making the general provider require one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ..flags import MrMode
from .mode_names import MODE_NAMES


def mode_of(name: str) -> MrMode:
    """The bits of a name in MODE_NAMES: "virt_addr+prov_key"."""
    return _union(MrMode[f"MR_{bit.upper()}"] for bit in name.split("+") if bit != "none")


def _union(bits: Iterable[MrMode]) -> MrMode:
    mode = MrMode.MR_UNSPEC
    for bit in bits:
        mode |= bit
    return mode


MR_MODES: tuple[MrMode, ...] = tuple(map(mode_of, MODE_NAMES))
"""Each mode alone, the three bits of FI_MR_BASIC, the bits of CXI with provider keys, and all bits at once."""


def requiring(monkeypatch: pytest.MonkeyPatch, mode: MrMode) -> None:
    """Make the general provider require these mr_mode bits until the test ends (WEFT_MR_MODE)."""
    if mode:
        names = [bit.name.removeprefix("MR_").lower() for bit in MrMode if bit and bit & mode and bit.name is not None]
        monkeypatch.setenv("WEFT_MR_MODE", "|".join(names))
    else:
        monkeypatch.delenv("WEFT_MR_MODE", raising=False)
