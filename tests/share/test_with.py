"""`with lock` and `with semaphore`: their methods are the extension's own kind, and behave as Python's do."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable

import pytest

import weft

Name = Callable[[str], str]


@pytest.mark.parametrize("kind", ["Lock", "Semaphore"])
def test_enter_and_exit_are_methods_as_others_are(node: weft.Node, name: Name, kind: str) -> None:
    of_class = getattr(weft, kind)
    thing = of_class(node=node)
    enter, leave = thing.__enter__, thing.__exit__
    for _ in range(2):
        assert enter() is thing
        assert leave(None, None, None) is None
    assert enter.__self__ is thing
    assert [enter.__name__, leave.__doc__, of_class.__exit__.__name__] == ["__enter__", "Releases.", "__exit__"]
    assert str(inspect.signature(of_class.__exit__)) == "(self, /, *error)"
    assert of_class.__enter__(thing) is thing
    of_class.__exit__(thing)
    for wrong in [
        lambda: enter(1),
        lambda: leave(error=1),
        lambda: of_class.__enter__(),
        lambda: of_class.__enter__(5),
    ]:
        with pytest.raises(TypeError):
            wrong()
    with of_class(name("short"), node=node) as alive:  # nothing else refers to it
        assert alive.name == name("short")


def test_lock_that_keeps_its_own_method_is_collected(node: weft.Node) -> None:
    class Kept(weft.Lock):
        pass

    lock = Kept(node=node)
    lock.method = lock.__enter__
    gone: list[bool] = []
    weakref.finalize(lock.method.__self__, gone.append, True)
    del lock
    gc.collect()
    assert gone == [True]
