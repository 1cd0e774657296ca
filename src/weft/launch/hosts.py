"""Host lists as Slurm writes them: `nid[001-004,010],login1`. Source: scontrol(1) "show hostnames"."""

from __future__ import annotations

import re
from pathlib import Path

from .. import errors

HOSTS_MAX = 1 << 16
"""Hosts of a list. The largest machines have some ten thousand; a longer list is a mistake in a range."""
_FILE_BYTES_MAX = 1 << 24

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z", re.ASCII)
_TASKS = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?\Z", re.ASCII)


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts of a list, in its order: "nid[001-003,010],login" gives nid001, nid002, nid003, nid010, login.

    Numbers are padded to the digits of a range's first number. Several brackets of one name are combined, the last one
    running fastest. Raises InvalidArgument for a list that is not understood, or that has more than 65,536 hosts.
    """
    found: list[str] = []
    for word in _split(text):
        found += _expand(word, text, HOSTS_MAX - len(found))
    return tuple(found)


def _split(text: str) -> list[str]:
    """The words between the commas that are outside of brackets."""
    words, depth, word = [], 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise _fault(text, f"a {char!r} too many")
        if char == "," and not depth:
            words.append(word)
            word = ""
        else:
            word += char
    if depth:
        raise _fault(text, "a '[' is not closed")
    words = [one.strip() for one in (*words, word)]
    if not all(words):
        raise _fault(text, "a name is empty")
    return words


def _expand(word: str, text: str, most: int) -> list[str]:
    found = [""]
    for at, part in enumerate(re.split(r"\[([^\]]*)\]", word)):
        if re.search(r"\s", part) or (at % 2 == 0 and not re.fullmatch(r"[\w.:-]*", part, re.ASCII)):
            raise _fault(text, f"{part!r} is no part of a host's name")
        pieces = _numbers(part, text, most) if at % 2 else [part]
        if len(found) * len(pieces) > most:
            raise _fault(text, f"more than {HOSTS_MAX} hosts")
        found = [before + piece for before in found for piece in pieces]
    return found


def _numbers(part: str, text: str, most: int) -> list[str]:
    """The numbers in a pair of brackets, as text with their leading zeros."""
    found: list[str] = []
    for word in part.split(","):
        match = _RANGE.match(word)
        if match is None or len(word) > 40:
            raise _fault(text, f"{word[:40]!r} is neither a number nor a range such as 001-004")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _fault(text, f"the range {word} runs backwards")
        if last - first >= most - len(found):
            raise _fault(text, f"more than {HOSTS_MAX} hosts")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def _fault(text: str, why: str) -> errors.InvalidArgument:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return errors.InvalidArgument(
        f"{shown!r} is not a list of hosts: {why}\n  rule: names joined by ',', with ranges in brackets\n"
        "  try: a list such as nid[001-004,010],login1"
    )


def expand_tasks(text: str) -> tuple[int, ...]:
    """Processes of each host: "2(x3),1" gives 2, 2, 2, 1. Raises InvalidArgument. Source: sbatch(1),
    SLURM_TASKS_PER_NODE."""
    found: list[int] = []
    for word in text.split(","):
        match = _TASKS.match(word)
        times = 0 if match is None or len(word) > 40 else int(match[2] or 1)
        if match is None or not 0 < times <= HOSTS_MAX - len(found):
            raise errors.InvalidArgument(f"{text[:80]!r} is not a list such as 2(x3),1: processes of each host")
        found += [int(match[1])] * times
    return tuple(found)


def hosts_in_file(path: str) -> tuple[str, ...]:
    """The hosts in a file with a name in each line (PBS_NODEFILE), each once. Raises InvalidArgument."""
    try:
        with Path(path).open(encoding="ascii") as file:
            words = file.read(_FILE_BYTES_MAX).split()
    except (OSError, UnicodeError) as reason:
        raise errors.InvalidArgument(f"{path}: {getattr(reason, 'strerror', None) or 'not a text'}") from None
    return tuple(dict.fromkeys(words))
