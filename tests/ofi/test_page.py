"""docs/howto/ofi.md: its code runs, as shown. (tests/meta/test_docs.py runs the other pages, without a libfabric.)"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

from weft import fi

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "ofi.md"


def test_page_shows_the_real_output() -> None:
    if not any(info.fabric_attr.prov_name == "ofi:shm" for info in fi.getinfo()):
        pytest.skip("this libfabric has no provider shm")
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    code = "".join(re.findall(r"^```python\n(>>> .*?)^```$", text, re.M | re.S))
    assert code.count(">>>") > 10
    test = doctest.DocTestParser().get_doctest(code, names, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.FAIL_FAST).run(test, out=said.append)
    assert not said, "".join(said)
