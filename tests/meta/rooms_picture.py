"""The pictures of docs/design/rooms.md: which room uses which, drawn from the law of test_imports.py.

A room stands above the rooms that it uses. An arrow that other arrows imply is left out: tools -> share -> fi needs no
tools -> fi. Where an arrow passes a floor it has a place of its own there, so it crosses no room.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from statistics import fmean

_WIDTH, _HEIGHT = 84, 30  # of a room, in pixels
_DOWN = 66  # from floor to floor
_GAP = 24  # between places of a floor; a passing arrow takes no width of its own
_SWEEPS = 8


def reduced(below: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows of `below` that no longer way implies."""

    def reached(room: str) -> set[str]:
        return below[room].union(*(reached(under) for under in below[room]))

    return {
        room: {under for under in unders if not any(under in reached(other) for other in unders - {under})}
        for room, unders in below.items()
    }


def floors(below: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room, 0 the highest: as high as the rooms that use it allow."""
    users = {room: {user for user in below if room in below[user]} for room in below}
    found: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in found:
            found[room] = max((floor(user) + 1 for user in users[room]), default=0)
        return found[room]

    for room in below:
        floor(room)
    return found


def layout(below: Mapping[str, set[str]]) -> tuple[dict[str, tuple[float, int]], list[list[str]]]:
    """(x and floor of each place, ways): a way is the places of an arrow from its room to the room that it uses.

    A place is a room, or "room>under@floor" where an arrow passes.
    """
    floor = floors(below)
    rows: list[list[str]] = [[] for _ in range(max(floor.values()) + 1)]
    for room in sorted(below):
        rows[floor[room]].append(room)
    ways = []
    for room, unders in reduced(below).items():
        for under in sorted(unders):
            passed = [f"{room}>{under}@{level}" for level in range(floor[room] + 1, floor[under])]
            for level, place in enumerate(passed, floor[room] + 1):
                rows[level].append(place)
            ways.append([room, *passed, under])
    beside: dict[str, list[str]] = {place: [] for row in rows for place in row}
    for way in ways:
        for one, other in itertools.pairwise(way):
            beside[one].append(other)
            beside[other].append(one)
    x: dict[str, float] = {}

    def spread(row: list[str]) -> None:
        widths = [0 if ">" in place else _WIDTH for place in row]
        at = -(sum(widths) + _GAP * (len(row) - 1)) / 2
        for place, width in zip(row, widths, strict=True):
            x[place] = at + width / 2
            at += width + _GAP

    for row in rows:
        spread(row)
    for _ in range(_SWEEPS):
        for row in [*rows, *rows[::-1]]:
            row.sort(key=lambda place: (fmean(x[other] for other in beside[place]) if beside[place] else 0.0, place))
            spread(row)
    return {place: (x[place], level) for level, row in enumerate(rows) for place in row}, ways


def svg(title: str, below: Mapping[str, set[str]]) -> str:
    """A picture of the rooms `below`: room -> the rooms that it uses. Raises RecursionError for a circle."""
    at, ways = layout(below)
    across = 2 * max(abs(x) for x, _ in at.values()) + _WIDTH + 2 * _GAP
    down = (max(level for _, level in at.values()) + 1) * _DOWN - (_DOWN - _HEIGHT) + 2 * _GAP

    def top(place: str) -> tuple[float, float]:
        x, level = at[place]
        return across / 2 + x, _GAP + level * _DOWN

    size = f'viewBox="0 0 {across:g} {down:g}" width="{across:g}" height="{down:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" role="img">',
        f"<title>{title}</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
        '<path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
    ]
    for way in ways:
        x, y = top(way[0])
        path = f"M{x:g} {y + _HEIGHT:g}"
        for place in way[1:]:
            to_x, to_y = top(place)
            path += f"C{x:g} {to_y - 12:g} {to_x:g} {to_y - _DOWN + _HEIGHT + 12:g} {to_x:g} {to_y:g}"
            if ">" in place:
                path += f"v{_HEIGHT}"
            x = to_x
        lines.append(f'<path d="{path}" fill="none" stroke="#777" marker-end="url(#end)"/>')
    for room in below:
        x, y = top(room)
        lines.append(
            f'<rect x="{x - _WIDTH / 2:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="#eef3fb"'
            f' stroke="#35598f"/><text x="{x:g}" y="{y + _HEIGHT / 2 + 4.5:g}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
