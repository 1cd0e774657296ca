"""The table of libfabric's quirks: no other source names a provider, and the documentation shows the table.

    python -m tests.meta.test_quirks

writes the table into docs/reference/ofi.md.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from weft.providers.ofi import quirks
from weft.providers.ofi.quirks import Quirk

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "ofi.md"
ROOM = ROOT / "src" / "weft" / "providers" / "ofi"
SHARE = ROOT / "src" / "weft" / "share"
CPP = [*(ROOT / "cpp" / "ofi").glob("*.[ch]pp"), *(ROOT / "cpp" / "bind").glob("ofi*.[ch]pp")]
PROVIDERS = {
    *("tcp", "shm", "rxm", "ofi_rxm", "rxd", "ofi_rxd", "sockets", "udp", "net", "verbs", "efa", "cxi", "psm2", "psm3"),
    *("opx", "ucx", "mlx", "lnx", "usnic", "gni", "bgq"),
}
WORDS = re.compile(rf"\b({'|'.join(sorted(PROVIDERS))})\b")
# Versions of libfabric in comparisons: of its structs and calls, whose layout depends on the version (library.hpp).
LAYOUT = {"kOldest"}
# Words of weft.share for Weft's own link between hosts, which is no provider of libfabric.
OWN_LINKS = {"tcp", "net"}


def strings(file: Path) -> list[tuple[int, str]]:
    """(line, string) of the string constants that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documents = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documents.add(id(node.value))
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
    ]


def comments(file: Path) -> list[tuple[int, str]]:
    """(line, comment) of a Python source."""
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def python_names(file: Path, own: set[str]) -> list[str]:
    """Where a source has a provider's name: as a string, or in a comment."""
    found = [
        f"{file.name}:{line}: {text!r}"
        for line, text in strings(file)
        if (text.startswith("ofi:") and set(text[4:].split(";")) & PROVIDERS) or text in PROVIDERS - own
    ]
    return found + [f"{file.name}:{line}: {text}" for line, text in comments(file) if WORDS.search(text)]


@pytest.mark.parametrize(
    "file", [one for one in sorted(ROOM.glob("*.py")) if one.name != "quirks.py"], ids=lambda f: f.name
)
def test_no_other_module_names_a_provider(file: Path) -> None:
    assert python_names(file, set()) == [], "the table is providers/ofi/quirks.py"


@pytest.mark.parametrize("file", sorted(SHARE.rglob("*.py")), ids=lambda f: f.name)
def test_sharing_asks_for_a_quirk_and_names_no_provider(file: Path) -> None:
    found = [
        f"{file.name}:{line}: {text!r}"
        for line, text in strings(file)
        if (text.startswith("ofi:") and set(text[4:].split(";")) & PROVIDERS) or text in PROVIDERS - OWN_LINKS
    ]
    assert found == [], "the table is providers/ofi/quirks.py"


@pytest.mark.parametrize("file", sorted(CPP), ids=lambda f: f.name)
def test_extension_names_no_provider_and_compares_no_version(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    named = [f"{file.name}:{n}: {line}" for n, line in enumerate(lines, 1) if WORDS.search(line)]
    assert named == [], "what a provider does is told to the extension as a quirk: cpp/ofi/quirks.hpp"
    compared = [
        f"{file.name}:{n}: {line}"
        for n, line in enumerate(lines, 1)
        for found in re.findall(r"version\s*(?:[<>]=?|[!=]=)\s*([\w:]+)", line)
        if found.rpartition("::")[2] not in LAYOUT
    ]
    assert compared == [], "a version is compared in providers/ofi/quirks.py"


@pytest.mark.parametrize(
    "file", [one for one in sorted(ROOM.glob("*.py")) if one.name != "quirks.py"], ids=lambda f: f.name
)
def test_no_other_module_compares_the_version_of_the_library(file: Path) -> None:
    compared = [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and re.search(r"\bversion\b|known\(\)\[", ast.unparse(node))
    ]
    assert [one for one in compared if "ip.version" not in one] == []


@pytest.mark.parametrize("quirk", list(Quirk), ids=lambda quirk: quirk.name)
def test_quirk_names_a_test_that_exists(quirk: Quirk) -> None:
    file, _, name = quirk.value.test.partition("::")
    assert name.startswith("test_")
    assert f"def {name}(" in (ROOT / "tests" / "ofi" / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("quirk", list(Quirk), ids=lambda quirk: quirk.name)
def test_quirk_of_the_table_names_providers(quirk: Quirk) -> None:
    assert quirk.value.providers
    assert set(quirk.value.providers) <= PROVIDERS | {"every"}


def test_quirks_are_told_apart() -> None:
    """Enum makes one of two members with equal values an alias of the other."""
    assert len(Quirk) == len(Quirk.__members__)


def with_table(text: str) -> str:
    """The page with today's table."""
    begin, _, rest = text.partition("<!-- quirks -->\n")
    return "\n".join([f"{begin}<!-- quirks -->", *quirks.table(), f"<!-- end -->{rest.partition('<!-- end -->')[2]}"])


def test_documentation_shows_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_table(text), "python -m tests.meta.test_quirks"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
