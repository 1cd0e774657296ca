"""Each status with which the NIC ends an operation has a text: prov_errno of an error entry is that number."""

from __future__ import annotations

import re
from pathlib import Path

from weft.providers.general import PROV_ERRORS

STATUSES = Path(__file__).resolve().parents[2] / "cpp/base/status.hpp"


def test_every_status_that_ends_an_operation_has_a_text() -> None:
    body = re.search(r"enum class Status : int32_t \{(.*?)\n\};", STATUSES.read_text(), re.DOTALL)
    assert body is not None
    numbers = {name: int(number) for name, number in re.findall(r"^\s*(\w+) = (\d+),", body[1], re.MULTILINE)}
    assert numbers.pop("again") == 16  # not an end: try later
    assert [name for name, number in numbers.items() if number not in PROV_ERRORS] == []
