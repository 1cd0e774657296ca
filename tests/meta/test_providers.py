"""No file outside providers/ distinguishes providers: the policy decides what differs."""

from __future__ import annotations

import re
from pathlib import Path

from weft import fi

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "weft"
# A provider by name or class, or its policy's type looked at.
NAMED = re.compile(
    r"prov(?:ider)?(?:_name|\.name)\s*(?:==|!=|\bin\b|\bnot in\b)"
    r"|\bprov_name\s*=\s*[\"']"
    r"|isinstance\([^)]*\b(?:General|BaseProvider|BaseDomain)\b"
    r"|[\"'](?:cxi|strange)[\"']",
    re.IGNORECASE,
)

# The providers themselves; lists of modules; the public names of a provider; the fixtures that open a provider for the
# tests of an application, as the application does. The rest of weft.testing is for any provider.
NAMED_THERE = ("providers/", "__init__.py", "fi/__init__.py", "cxi.py", "testing/__init__.py", "testing/slingshot.py")


def faults(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).as_posix().startswith(NAMED_THERE):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if NAMED.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return found


def test_calls_tell_no_provider_from_another() -> None:
    assert faults(SRC) == []


def test_provider_named_in_a_call_is_found(tmp_path: Path) -> None:
    (tmp_path / "fi").mkdir()
    text = 'if provider.name == "general":\n    pass\nif isinstance(p, General): ...\nFabricAttr(prov_name="weft")\n'
    (tmp_path / "fi" / "mr.py").write_text(text)
    (tmp_path / "testing").mkdir()
    (tmp_path / "testing" / "stacks.py").write_text('if name == "cxi":\n    pass\n')
    assert len(faults(tmp_path)) == 4


def test_getinfo_offers_as_many_endpoints_as_the_table_has() -> None:
    table = re.search(r"kEpCountMax = (\d+)", (ROOT / "cpp" / "mem" / "table.hpp").read_text())
    assert table is not None
    assert {i.domain_attr.ep_cnt for i in fi.getinfo() if i.fabric_attr.prov_name == "weft"} == {int(table[1])}
