"""src/weft/flags/_names.py is what its generator makes of the classes today."""

from __future__ import annotations

from tests.meta.flag_names import NAMES, text


def test_flag_names_are_current() -> None:
    assert NAMES.read_text(encoding="utf-8") == text(), "run `make flags` and commit src/weft/flags/_names.py"
