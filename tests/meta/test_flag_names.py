"""Each file that `make flags` writes is what its generator makes of the sources today."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.meta.flag_names import WEFT, texts

TEXTS = {str(path.relative_to(WEFT)): text for path, text in texts().items()}


@pytest.mark.parametrize("file", TEXTS)
def test_flag_names_are_current(file: str) -> None:
    assert (WEFT / Path(file)).read_text(encoding="utf-8") == TEXTS[file], f"run `make flags` and commit {file}"
