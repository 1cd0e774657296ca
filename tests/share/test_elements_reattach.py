"""Elements of arrays whose owner replaces or resizes them: one C++ call before and after `t.reattach()`."""

from __future__ import annotations

import gc
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frames import frames_of_weft
from tests.share.owner import Owner

import weft
from weft import _nic

CALLS: dict[str, Callable[[Any], object]] = {
    "t[i]": lambda t: t[1],
    "t[i] = x": lambda t: t.__setitem__(1, 2),
    "t[a:b]": lambda t: t[0:2],
    "read": lambda t: t.read(),
    "write": lambda t: t.write(np.ones(t.shape, t.dtype)),
    "fill": lambda t: t.fill(3),
    "take": lambda t: t.take([1, 0]),
    "put": lambda t: t.put([1], 4),
    "fetch_add": lambda t: t.at[1:].fetch_add(0) if t.ndim == 1 else t.fetch_add((1, 0)),
    "add": lambda t: t.add((1,) * t.ndim),
    "add block": lambda t: t.add(np.ones(t.shape, t.dtype)),
    "add.at": lambda t: t.add.at([0, 0], np.ones((2, *t.shape[1:]), t.dtype)),
}


def all_direct(t: Any) -> None:
    """All calls work, and those on the whole array run no Python of Weft's."""
    for call in CALLS.values():
        call(t)
    for name in CALLS.keys() - {"fetch_add"}:
        frames = frames_of_weft(lambda name=name: CALLS[name](t))  # the lambdas above ask for some attributes
        assert set(frames) <= {"shape", "dtype", "ndim"}, name


def test_reattached_array_of_another_shape_and_dtype_is_direct(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros((4, 2), "f4"), name("table"))
    t = node.attach(shared)
    all_direct(t)
    add = t.add
    for array in (weft.zeros(5, "i8"), weft.zeros((3, 2, 2), "u2"), weft.zeros(9, "c16")):
        shared.replace(array)
        for call in CALLS.values():
            with pytest.raises(weft.Replaced):
                call(t)
        assert t.reattach() is t
        all_direct(t)
        array[...] = 0
        t[1] = 7
        assert (array[1] == 7).all()
        add((-1,) * array.ndim, 3)  # the method follows its array
        assert array[(-1,) * array.ndim] == 3


@pytest.mark.procs
def test_array_of_another_process_is_direct_after_reattach(node: weft.Node, own_owner: Owner, name: Any) -> None:
    n = name("table")
    own_owner.tell(f"a = weft.zeros(6, 'i8'); s = node.share(a, {n!r})")
    t = node.attach(n)
    all_direct(t)
    own_owner.tell("b = weft.zeros((3, 3), 'f8'); s.replace(b)")
    with pytest.raises(weft.Replaced):
        t[0]
    t.reattach()
    all_direct(t)
    t[2, 2] = 5
    assert own_owner.tell("float(b[2, 2])") == 5
    own_owner.tell("import numpy as np; c = np.zeros(4); s.replace(c)")  # memory that load and store do not reach
    t.reattach()
    for call in CALLS.values():
        call(t)
    t[3] = 6
    assert own_owner.tell("float(c[3])") == 6
    own_owner.tell("s.replace(a)")
    all_direct(t.reattach())


def test_resized_array_is_direct(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros(4, "i8", reserve=10), name("rows"))
    t = node.attach(shared)
    all_direct(t)
    shared.resize(8)
    all_direct(t)  # with the length that it knows
    with pytest.raises(IndexError):
        t[7]
    assert len(t.reattach()) == 8
    all_direct(t)
    t[7] = 1
    assert shared.array[7] == 1
    shared.resize(2)
    for call in CALLS.values():
        with pytest.raises(weft.Replaced):
            call(t)
    assert len(t.reattach()) == 2
    all_direct(t)
    shared.resize(0)
    with pytest.raises(weft.Replaced):
        t[0]
    assert t.reattach()[:].tolist() == []
    with pytest.raises(IndexError):
        t[0]
    shared.resize(3)
    all_direct(t.reattach())


def test_failed_reattach_leaves_the_elements(node: weft.Node, name: Any) -> None:
    t = node.attach(node.share(np.arange(4), name("table")))
    for source in (7, "no such", name("absent")):
        with pytest.raises((TypeError, weft.FabricError)):
            t.reattach(source)
        all_direct(t)


def test_parts_keep_the_array_that_they_are_of(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros(4, "i8"), name("table"))
    t = node.attach(shared)
    part = t.at[1:3]
    shared.replace(weft.zeros(9, "i8"))
    t.reattach()
    with pytest.raises(weft.Replaced):
        part[0] = 1
    t.at[1:3][0] = 5
    assert shared.array[1] == 5


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="this Python's collector does not start at every object"
)
def test_array_that_is_reattached_within_a_call(node: weft.Node, name: Any) -> None:
    """The garbage collection that an allocation starts runs code that reattaches the array which the call reads."""
    shared = node.share(np.full((50, 40), 1.0), name("table"))
    t = node.attach(shared)
    shape = [0]

    def replaces(phase: str, info: Any) -> None:
        # The thread that answers for names may collect as well: it would wait for its own answer.
        if phase == "start" and shape[0] < 30 and threading.current_thread() is threading.main_thread():
            shape[0] += 1
            shared.replace(np.full((50, 40 + shape[0]), 1.0))
            t.reattach()

    gc.callbacks.append(replaces)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        while shape[0] < 30:
            keep: list[Any] = []
            for call in (lambda: t[3:9], lambda: t[0], lambda: t.take([1, 2, 3]), lambda: t.read(), lambda: t[[4, 4]]):
                try:
                    keep.append([call()])  # the collection counts lists
                except weft.Replaced:
                    continue
                assert (keep[-1][0] == 1).all()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(replaces)
    assert t.reattach().shape == (50, 70)
    all_direct(t)


def test_threads_use_the_array_while_it_is_reattached(node: weft.Node, name: Any) -> None:
    """Array i has 64 + i elements, and each is i. A thread reads one array's elements, never an older array's."""
    shared = node.share(np.zeros(64, "i8"), name("table"))
    t = node.attach(shared)
    rounds, done = 60, threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        last = 0
        try:
            while not done.is_set():
                try:
                    one, row, many = int(t[5]), t[3:9], t.take([1, 60])
                except weft.Replaced:
                    continue
                assert last <= one <= row[0] <= many[0]
                assert len(set(row.tolist())) == len(set(many.tolist())) == 1
                last = many[0]
        except BaseException as reason:
            problems.append(reason)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(1, rounds + 1):
        shared.replace(np.full(64 + i, i))
        t.reattach()
    done.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert problems == []
    assert t.read().tolist() == [rounds] * (64 + rounds)


def test_elements_join_and_adopt_elements_alone(node: weft.Node) -> None:
    t = node.attach(node.share(weft.zeros(3)))
    for other in (object(), None, 3, node, type(t)):
        with pytest.raises(TypeError, match="_join"):
            t._join(other)
        with pytest.raises(TypeError, match="_adopt"):
            t._adopt(other)
    t[0] = 1
    bare = _nic.Elements()
    for call in (lambda: bare[0], lambda: bare.read(), lambda: bare.add(0)):
        with pytest.raises(AttributeError):
            call()
    bare._adopt(t)
    assert bare[0] == 1
    t._adopt(t)
    assert t[0] == 1
