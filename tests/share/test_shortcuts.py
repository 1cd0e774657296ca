"""weft.share(array, name) and weft.attach(name): the calls of the default node."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import types
from collections.abc import Callable

import numpy as np
import pytest
from tests import patience

import weft

SECOND = """
import sys, weft
t = weft.attach(sys.argv[1], wait=60)
t[1] = t[0] + 1
print(t.path)
"""


def test_second_process_attaches_what_the_first_shares(name: Callable[[str], str]) -> None:
    local = weft.zeros(3)
    local[0] = 7
    with weft.share(local, name("both")):
        done = patience.run([sys.executable, "-c", SECOND, name("both")], check=True, timeout=100)
    assert done.stdout.split() == ["load/store"]
    assert local.tolist() == [7, 8, 0]


def test_share_is_held_by_the_process(name: Callable[[str], str]) -> None:
    """Nothing of the program refers to the share or to a node."""
    weft.share(weft.zeros(2), name("held"))
    gc.collect()
    t = weft.attach(name("held"))
    t[0] = 1
    weft.share.default_node().shared[-1].close()
    with pytest.raises(weft.NotFound):
        weft.attach(name("held"))


def test_arguments_are_those_of_the_node(name: Callable[[str], str]) -> None:
    assert list(inspect.signature(weft.share).parameters) == list(inspect.signature(weft.Node.share).parameters)[1:]
    assert list(inspect.signature(weft.attach).parameters) == list(inspect.signature(weft.Node.attach).parameters)[1:]
    with weft.share(np.zeros(2), access="r", name=name("read-only")) as shared:
        assert isinstance(shared, weft.Shared)
        for source in (name("read-only"), shared, shared.ticket, str(shared.ticket), weft.attach(shared)):
            with pytest.raises(PermissionError):
                weft.attach(source)[0] = 1


def test_share_of_a_closed_default_node_is_of_a_new_one() -> None:
    weft.share(weft.zeros(1)).close()
    weft.share.default_node().close()
    with weft.share(weft.zeros(1)) as shared:
        assert weft.attach(shared)[0] == 0


def test_forked_child_shares_through_a_node_of_its_own(name: Callable[[str], str]) -> None:
    weft.share(weft.zeros(1)).close()
    called = name("child")  # the name has the number of the process
    ready, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(end[1])  # the parent's end, or its death, ends the child
            weft.share(np.full(1, 5.0), called)
            os.write(ready[1], b"!")
            os.read(end[0], 1)
        finally:
            os._exit(0)
    try:
        os.close(ready[1])
        assert os.read(ready[0], 1) == b"!"
        assert weft.attach(called)[0] == 5
    finally:
        os.close(end[1])
        os.waitpid(child, 0)
        os.close(end[0])
        os.close(ready[0])


def test_package_is_a_package_still() -> None:
    import weft.share as package

    assert isinstance(package, types.ModuleType)
    assert package is weft.share is sys.modules["weft.share"]
    assert package.Node is weft.Node
    assert package.attach is weft.attach
