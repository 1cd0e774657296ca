"""Collective groups of C programs, as tests/fi/test_collective.py and tests/cxi/test_collective.py have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.provider import support

INTEGERS = [f"FI_{sign}INT{bits}" for bits in (8, 16, 32, 64) for sign in ("", "U")]
FLOATS = ["FI_FLOAT", "FI_DOUBLE"]
LARGE = ["FI_FLOAT_COMPLEX", "FI_DOUBLE_COMPLEX", "FI_LONG_DOUBLE", "FI_LONG_DOUBLE_COMPLEX"]
ARITHMETIC = ("FI_MIN", "FI_MAX", "FI_SUM")
BITS = ("FI_BOR", "FI_BAND", "FI_BXOR")
LOGIC = ("FI_LOR", "FI_LAND", "FI_LXOR")


def pairs(provider: str) -> set[str]:
    """The lines of the reductions that a provider has on whole numbers, floats and doubles."""
    every = {(op, type) for op in (*ARITHMETIC, "FI_PROD", *LOGIC) for type in INTEGERS + FLOATS}
    every |= {(op, type) for op in BITS for type in INTEGERS}
    if provider == "cxi":
        every = {(op, type) for op in BITS for type in INTEGERS if type.startswith("FI_U")}
        every |= {(op, type) for op in ARITHMETIC for type in ("FI_INT64", "FI_DOUBLE")}
    return {f"reductions: {op} of {type}" for op, type in every}


@pytest.mark.clause("cxi.coll.barrier", "cxi.coll.broadcast", "cxi.coll.reduce", "cxi.coll.allreduce")
@pytest.mark.parametrize("members", [2, 3, 4])
def test_every_collective_has_the_serial_result(programs: Path, library: str, provider: str, members: int) -> None:
    program = support.compiled("collective", programs)
    out = support.run(program, provider, str(members), "rooted", env=support.environment(provider, library)).stdout
    lines = out.splitlines()
    assert lines[0] == "barriers"
    assert lines[-2:] == ["wrong results: 0", "closed"]
    assert {one for one in lines if one.startswith("reductions")} == pairs(provider)
    copied = INTEGERS + FLOATS + (LARGE if provider == "weft" else [])
    assert {one for one in lines if one.startswith("broadcast")} == {f"broadcast: {one}" for one in copied}
