"""The figures of `make house` stay within their marks."""

from __future__ import annotations

import pytest
from tests.meta import house
from tests.meta.house import MARKS, Figure, figures

FIGURES = {figure.name: figure for figure in figures(MARKS)}


@pytest.mark.parametrize("name", MARKS)
def test_figure_of_the_house_is_within_its_mark(name: str) -> None:
    assert name in FIGURES, f"no figure has this name; the figures: {', '.join(FIGURES)}"
    figure = FIGURES[name]
    way = "at least" if figure.least else "at most"
    assert figure.holds, f"{name}: {figure.value}, and {way} {figure.mark} by its mark (tests/meta/house.py)"


@pytest.mark.parametrize(
    ("value", "mark", "least", "holds"),
    [(3, 3, False, True), (4, 3, False, False), (3, 3, True, True), (2, 3, True, False), (2, None, False, True)],
)
def test_figure_past_its_mark_does_not_hold(value: int, mark: int | None, least: bool, holds: bool) -> None:
    assert Figure("x", value, mark, least).holds is holds


def test_methods_are_counted_by_class_and_file() -> None:
    files = {
        "cpp/nic/a.cpp": "void Endpoint::post(int x) {\n  Other::call(x);\n}\nEndpoint::~Endpoint() {\n}\n",
        "cpp/nic/b.cpp": "std::vector<int> Endpoint::post(long y) const {\n}\nStatus Nic::open() {\n}\n",
        "cpp/mem/c.cpp": "void Endpoint::elsewhere() {\n}\n",
    }
    assert house.methods(files) == {"Endpoint": (2, 2), "Nic": (1, 1)}
