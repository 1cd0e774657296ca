"""Workers' functions; a module of its own, because spawn imports it by name."""

from __future__ import annotations

from typing import Any


def double(given: Any, answers: Any) -> None:
    """Use an argument as a RemoteArray and tell the result."""
    try:
        given[...] = given.read() * 2
        given.fetch_add(0, 1)
        given.at[1].write(7)
        answers.put((type(given).__name__, len(given), [float(x) for x in given], bool((given == given.read()).all())))
    except BaseException as reason:
        answers.put((type(given).__name__, repr(reason)))
