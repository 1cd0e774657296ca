"""The page of the tables of settings, as the extension describes them: `python -m tests.meta.settings`."""

from __future__ import annotations

from pathlib import Path

from weft import _nic

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"

HEAD = """# Settings of the NIC

What a provider's policy decides when a domain, an endpoint, a queue or a counter is opened. Each table is one struct in
`cpp` (`WEFT_TABLE`); the Python type of the same name in `weft._nic`, the fields of a decision record
(`cpp/base/record.hpp`: `to_record()`, `from_record()`), the `settings` of a snapshot and this page are made from its
lines. The number is the field's tag in records.

This page is generated: `python -m tests.meta.settings`.
"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for table in sorted(_nic.tables()):
        name, text, fields = table
        parts.append(
            f"\n## {name}\n\n{text}\n\n| tag | field | type | default | meaning |\n| --- | --- | --- | --- | --- |\n"
        )
        for tag, field, kind, unit, default, about in fields:
            shown = f"{kind}, {unit}" if unit else kind
            parts.append(f"| {tag} | `{field}` | {shown} | `{default}` | {_cell(about)} |\n")
    for name, text, values in sorted(_nic.choices()):
        parts.append(f"\n## {name}\n\n{text}\n\n| number | name | meaning |\n| --- | --- | --- |\n")
        parts += [f"| {number} | `{value}` | {_cell(about)} |\n" for value, number, about in values]
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("{", "&#123;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
