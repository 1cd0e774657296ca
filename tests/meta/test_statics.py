"""Objects that are made at their first use: only where the interpreter's lock is held.

Such an object has a guard, which says that a thread is making the object. A child that is forked at this instant has
the guard, and not the thread: it waits for ever at its own first use. A fork waits for the interpreter's lock, so it
finds no thread in cpp/bind; engines and threads without that lock use the other rooms.
"""

from __future__ import annotations

import re
from pathlib import Path

from weft import _nic


def test_objects_below_the_python_seam_are_made_as_the_library_is_loaded() -> None:
    guards = set(re.findall(rb"_ZGVZ\w+", Path(str(_nic.__file__)).read_bytes()))
    ours = {name.decode() for name in guards if b"4weft" in name and b"8nanobind" not in name}
    assert any("N4weft4bind" in name for name in ours), "the extension has no symbols"
    assert not {name for name in ours if "N4weft4bind" not in name}
