"""The Python functions of Weft that a call runs: for tests which say that a path has none."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from types import FrameType

import weft

HOME = os.path.dirname(weft.__file__)


def frames_of_weft(call: Callable[[], object]) -> list[str]:
    """The names of the functions, in the order of the calls.

    The garbage collector waits: a collection would run `__del__` of objects that earlier tests dropped.
    """
    found = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            found.append(frame.f_code.co_name)

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return found
