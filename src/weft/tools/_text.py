"""Text of the commands: values of options, figures with units, the console."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SIZE_MAX = 1 << 30


PLACE = re.compile(r"(?:tcp://)?(\[[^\]]+\]|[^\[\]:/]+):(\d+)/?\Z", re.ASCII)
"""host:port, with or without tcp:// before it."""


def is_place(text: str) -> bool:
    """True for `host:port`, False for a name."""
    return PLACE.match(text) is not None


class UsageError(ValueError):
    """An invalid option. The message lists the valid values."""


# ---- options -------------------------------------------------------------------------------------------------------


def parse_names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """A comma-separated choice, in the order of `known`; "all" for all."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return list(known)
    for word in words:
        if word not in known:
            raise UsageError(
                f"{option}: {word!r} is unknown{_meant(word, known)}\n"
                f"  known: {', '.join(known)}; several joined by ','; or all"
            )
    if not words:
        raise UsageError(f"{option} is empty\n  known: {', '.join(known)}; several joined by ','; or all")
    return [name for name in known if name in words]


def parse_sizes(text: str) -> list[int]:
    """ "8,4K,1MiB" in bytes, ascending, each once. K, M and G are powers of 1024."""
    found = set()
    for word in text.split(","):
        word = word.strip()
        number = word.upper().removesuffix("B").removesuffix("I")
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(number[-1:], 1)
        digits = number[:-1] if scale > 1 else number
        if not (digits.isascii() and digits.isdigit()):
            raise UsageError(
                f"--sizes: {word!r} is not a size\n  try: bytes such as 8 or 4096, or 4K, 64K, 1M; joined by ','"
            )
        size = int(digits) * scale
        if not 1 <= size <= SIZE_MAX:
            raise UsageError(f"--sizes: {word!r} is {size} bytes; a size is from 1 to {SIZE_MAX} (1G)")
        found.add(size)
    return sorted(found)


def parse_count(option: str, text: str) -> int:
    """A number in the form of limits: 4096, 4K, 0x1000."""
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(number[-1:], 1)
    try:
        value = int(number[:-1] if scale > 1 else number, 0) * scale
    except ValueError:
        value = -1
    if value < 0:
        raise UsageError(f"{option}: {text!r} is not a number\n  try: a number such as 256, 4K or 0x100")
    return value


def parse_number(option: str, text: str) -> int:
    """A whole number, such as 64 or 0x40."""
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if value < 0:
        raise UsageError(f"{option}: {text!r} is not a whole number\n  try: a number such as 64 or 0x40")
    return value


def known_words(cls: type[enum.IntEnum] | type[enum.IntFlag], prefix: str = "", mask: int = -1) -> dict[str, int]:
    """The words that an option accepts for an enumeration: names in lower case, without the common prefix; only
    flags in `mask`. There is no word for zero, which means "anything": leave the option out.
    """
    members: Mapping[str, int] = cls.__members__
    return {name.removeprefix(prefix).lower(): int(m) for name, m in members.items() if int(m) & mask}


def _look_up(option: str, word: str, known: dict[str, int], prefix: str, joined: str = "") -> int:
    # The man page's spellings are accepted, too: FI_EP_RDM, EP_RDM, ep-rdm and rdm are the same.
    name = word.strip().lower().replace("-", "_").removeprefix("fi_").removeprefix(prefix.lower())
    if name not in known:
        raise UsageError(
            f"{option}: {word.strip()!r} is unknown{_meant(name, known)}\n  known: {', '.join(known)}{joined}"
        )
    return known[name]


def parse_flags(option: str, text: str, known: dict[str, int], prefix: str = "") -> int:
    """Names joined by "|" or ",", as one number."""
    words = [word for word in text.replace("|", ",").split(",") if word.strip()]
    joined = "; several joined by ',' or '|'"
    if not words:
        raise UsageError(f"{option} is empty\n  known: {', '.join(known)}{joined}")
    value = 0
    for word in words:
        value |= _look_up(option, word, known, prefix, joined)
    return value


def parse_enum(option: str, text: str, known: dict[str, int], prefix: str = "") -> int:
    """One name."""
    return _look_up(option, text, known, prefix)


def _meant(word: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


# ---- figures -------------------------------------------------------------------------------------------------------


def format_size(size: int) -> str:
    """4096 as "4 KiB"; a size that is not a multiple of a unit stays in bytes: benchmarks need the exact size."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def _scaled(value: float, scales: Sequence[tuple[float, str]], last: str) -> str:
    for scale, unit in scales:
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} {last}"


def _or_empty(write: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "" if value is None else write(value)


format_time = _or_empty(lambda ns: _scaled(ns, ((1e9, "s"), (1e6, "ms"), (1e3, "us")), "ns"))
"""Nanoseconds with three digits and a unit."""

format_rate = _or_empty(lambda rate: _scaled(rate, ((1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s")), "/s"))
"""Operations a second."""

format_bandwidth = _or_empty(lambda gbps: f"{gbps:.3g} GB/s" if gbps >= 0.1 else f"{gbps * 1e3:.3g} MB/s")
"""GB/s, or MB/s below 0.1 of them."""


# ---- console -------------------------------------------------------------------------------------------------------


def console() -> Console:
    """The console for tables: stdout; if stdout is a file or a pipe, as wide as COLUMNS says."""
    from rich.console import Console

    from ._table import piped_width

    found = Console(highlight=False, markup=False, emoji=False)
    return found if found.is_terminal else Console(width=piped_width(), highlight=False, markup=False, emoji=False)


def plain_table(title: str, *columns: str) -> Table:
    """A table whose only line is under its head."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
