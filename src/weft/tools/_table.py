"""Tables for `weft info`, without a library for tables, which would take longer to load than the command runs."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator

_NARROW, _WIDE = 12, 112
_BOLD, _YELLOW, _PLAIN = "\033[1m", "\033[33m", "\033[0m"


class Table:
    """A title, columns with headings or without, rows in sections. A long cell continues in the next line."""

    def __init__(self, title: str, *columns: str) -> None:
        self.title = title
        self.columns = columns
        self._rows: list[tuple[str, ...] | None] = []

    def add_row(self, *cells: str) -> None:
        """One text for each column."""
        self._rows.append(cells)

    def add_section(self) -> None:
        """End a section."""
        self._rows.append(None)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(row is not None for row in self._rows)

    def lines(self, width: int) -> Iterator[str]:
        """The lines without the title, each at most `width` characters long."""
        rows = [row for row in self._rows if row is not None]
        widths = _fit([max(len(cell) for cell in column) for column in zip(self.columns, *rows, strict=True)], width)
        if any(self.columns):
            yield from _row(self.columns, widths)
            yield " " + "\u2500" * (sum(widths) + len(widths) - 1)
        for row in self._rows[: None if self._rows[-1:] != [None] else -1]:
            if row is None:
                yield ""
            else:
                yield from _row(row, widths)
        yield ""


def _fit(widths: list[int], width: int) -> list[int]:
    """Shrink the widest columns until the table fits the width."""
    while sum(widths) + len(widths) + 1 > width and max(widths) > _NARROW:
        widest = widths.index(max(widths))
        widths[widest] -= 1
    return widths


def _row(cells: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    parts = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    for n in range(max(map(len, parts))):
        line = (part[n] if n < len(part) else "" for part in parts)
        yield " " + " ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def piped_width() -> int:
    """The width of tables in a file or a pipe: COLUMNS, if the user has set it."""
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() and len(said) < 6 and int(said) > 0 else _WIDE


class Printer:
    """Prints tables and texts to stdout; if stdout is a file or a pipe, as wide as COLUMNS says."""

    def __init__(self) -> None:
        self._styled = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ
        self._width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else piped_width()

    def table(self, table: Table) -> None:
        """Print a table under its title."""
        self.heading(table.title)
        for line in table.lines(max(self._width, 40)):
            print(line)

    def heading(self, text: str) -> None:
        """Print a title."""
        self._print(text, _BOLD)

    def note(self, text: str) -> None:
        """Print a remark."""
        self._print(f"note: {text}", _YELLOW)

    def _print(self, text: str, style: str) -> None:
        print(f"{style}{text}{_PLAIN}" if self._styled else text)
