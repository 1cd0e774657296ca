"""For the tests of applications: a pytest plugin.

    pytest_plugins = ["weft.testing"]

    def test_exchange(mr_mode):     # runs once under each registration mode
        ...

Source of the modes: fi_mr(3).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .flags import MrMode

__all__ = ["MR_MODES", "mr_mode", "requiring"]

MR_MODES: tuple[MrMode, ...] = (
    MrMode.MR_UNSPEC,
    MrMode.MR_LOCAL,
    MrMode.MR_RAW,
    MrMode.MR_VIRT_ADDR,
    MrMode.MR_ALLOCATED,
    MrMode.MR_PROV_KEY,
    MrMode.MR_MMU_NOTIFY,
    MrMode.MR_RMA_EVENT,
    MrMode.MR_ENDPOINT,
    MrMode.MR_VIRT_ADDR | MrMode.MR_ALLOCATED | MrMode.MR_PROV_KEY,
    MrMode.MR_ENDPOINT | MrMode.MR_PROV_KEY | MrMode.MR_ALLOCATED,
    MrMode.MR_LOCAL
    | MrMode.MR_RAW
    | MrMode.MR_VIRT_ADDR
    | MrMode.MR_ALLOCATED
    | MrMode.MR_PROV_KEY
    | MrMode.MR_MMU_NOTIFY
    | MrMode.MR_RMA_EVENT
    | MrMode.MR_ENDPOINT,
)
"""Each mode alone, the three bits of FI_MR_BASIC, the bits of CXI with provider keys, and all bits at once."""


def _name(mode: MrMode) -> str:
    names = [bit.name.removeprefix("MR_").lower() for bit in MrMode if bit and bit & mode and bit.name is not None]
    return "|".join(names)


def requiring(monkeypatch: pytest.MonkeyPatch, mode: MrMode) -> None:
    """Make the general provider require these mr_mode bits until the test ends (WEFT_MR_MODE)."""
    if mode:
        monkeypatch.setenv("WEFT_MR_MODE", _name(mode))
    else:
        monkeypatch.delenv("WEFT_MR_MODE", raising=False)


def _ids(modes: Sequence[MrMode]) -> list[str]:
    return [_name(mode).replace("|", "+") or "none" for mode in modes]


@pytest.fixture(params=MR_MODES, ids=_ids(MR_MODES))
def mr_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MrMode:
    """The registration mode that getinfo requires while the test runs; the test runs once for each of MR_MODES.

    The test offers at least these bits in its hints: `fi.DomainAttr(mr_mode=mr_mode)`. Processes that the test starts
    inherit the mode.
    """
    mode: MrMode = request.param
    requiring(monkeypatch, mode)
    return mode
