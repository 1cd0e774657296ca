"""The distribution is weft-fabric: `weft` on PyPI is another project, so no page and no text sends people there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# "pip install weft" of any form, and an extra of weft: weft[tcp].
INSTALLS = re.compile(r"pip3? install(?: +(?:-\S+|'[^'\n]*'|\"[^\"\n]*\"))*? +['\"]?weft(?![-\w/.])")
EXTRA = re.compile(r"(?<![\w.-])weft\[[a-z]+\]")


def faults(text: str) -> list[str]:
    return [found.group(0) for pattern in (INSTALLS, EXTRA) for found in pattern.finditer(text)]


def test_no_text_installs_the_other_weft() -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = {}
    for name in names:
        if name.startswith("tests/spec/") or (ROOT / name) == Path(__file__):
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if wrong := faults(text):
            found[name] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "text",
    ["pip install weft", "pip install 'weft[tcp]'", "pip install -U weft", "pip install --only-binary weft weft",
     'install "weft[fm]"', "the extra weft[tcp]"],
)  # fmt: skip
def test_text_about_the_other_weft_is_noticed(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    ["pip install weft-fabric", "pip install 'weft-fabric[tcp]'", "pip install --only-binary weft-fabric weft-fabric",
     "pip uninstall weft weft-fabric", "weft[0]", "pip install ./weft"],
)  # fmt: skip
def test_text_about_weft_fabric_is_left_alone(text: str) -> None:
    assert faults(text) == []
