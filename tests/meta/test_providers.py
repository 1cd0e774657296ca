"""No file outside providers/ tells one provider from another: what differs is asked of the policy."""

from __future__ import annotations

import re
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src" / "weft"
# A provider by name or class, or its policy's type looked at.
NAMED = re.compile(
    r"prov(?:ider)?(?:_name|\.name)\s*(?:==|!=|\bin\b|\bnot in\b)"
    r"|isinstance\([^)]*\b(?:General|BaseProvider|BaseDomain)\b"
    r"|\bcxi\b|\bstrange\b",
    re.IGNORECASE,
)


def faults(root: Path) -> list[str]:
    found = []
    for path in sorted((root / "fi").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if NAMED.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return found


def test_calls_tell_no_provider_from_another() -> None:
    assert faults(SRC) == []


def test_provider_named_in_a_call_is_found(tmp_path: Path) -> None:
    (tmp_path / "fi").mkdir()
    (tmp_path / "fi" / "mr.py").write_text('if provider.name == "general":\n    pass\nif isinstance(p, General): ...\n')
    assert len(faults(tmp_path)) == 2
