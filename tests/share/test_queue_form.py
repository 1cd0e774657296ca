"""A queue remembers its items' form: a process that attaches it takes it over, or is refused, and loses no item."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import errors

Name = Callable[[str], str]


def test_queue_attached_without_dtype_takes_over_the_makers(node: weft.Node, name: Name) -> None:
    queue = weft.Queue(name("q"), 4, dtype=">f8", shape=(2, 3), node=node)
    other = weft.Queue(name("q"), node=node)
    queue.put(np.arange(6.0).reshape(2, 3))
    found = other.get()
    assert (found.dtype, found.tolist()) == (np.dtype(">f8"), [[0, 1, 2], [3, 4, 5]])
    other.put(np.ones((2, 3)))
    assert queue.get().tolist() == np.ones((2, 3)).tolist()


def test_queue_attached_by_its_ticket_takes_over_the_makers_dtype(node: weft.Node) -> None:
    queue = weft.Queue(None, 4, dtype=[("a", "i4"), ("b", "f8")], node=node)
    queue.put((3, 2.5))
    assert weft.Queue(str(queue.ticket), node=node).get().tolist() == (3, 2.5)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "i8"}, {"dtype": ">f8"}, {"dtype": "f4", "shape": (2,)}, {"dtype": "f8", "shape": (1,)}, {"nbytes": 8}],
)
def test_other_dtype_of_the_same_bytes_is_refused_and_takes_nothing(
    node: weft.Node, name: Name, options: dict[str, Any]
) -> None:
    queue = weft.Queue(name("q"), 4, dtype="f8", node=node)
    queue.put(2.5)
    with pytest.raises(
        errors.InvalidArgument, match=r"has items of float64 \(\), and this one asks for .*\n  rule: all"
    ):
        weft.Queue(name("q"), node=node, **options)
    assert queue.qsize() == 1
    assert queue.get() == 2.5


def test_dtype_for_a_queue_of_pickled_objects_is_refused(node: weft.Node, name: Name) -> None:
    queue = weft.Queue(name("q"), nbytes=8, node=node)
    with pytest.raises(errors.InvalidArgument, match=r"items of pickled objects, and this one asks for float64 \(\)"):
        weft.Queue(name("q"), dtype="f8", node=node)
    queue.put(b"x")
    assert weft.Queue(name("q"), node=node).get() == b"x"


def test_get_into_an_array_of_another_dtype_takes_nothing(node: weft.Node) -> None:
    queue = weft.Queue(None, 4, dtype="f8", node=node)
    other = pickle.loads(pickle.dumps(queue))
    queue.put(2.5)
    with pytest.raises(ValueError, match="out is int64"):
        other.get(out=np.empty((), "i8"))
    assert other.get() == 2.5


def test_kept_queue_remembers_its_dtype(keeping: None, node: weft.Node, name: Name) -> None:
    made = weft.Queue(name("kept"), 4, dtype="f4", shape=3, keep=True, node=node)
    try:
        made.put([1, 2, 3])
        found = weft.Queue(name("kept"), node=node).get()
        assert (found.dtype, found.tolist()) == (np.dtype("f4"), [1, 2, 3])
        with pytest.raises(errors.InvalidArgument, match="this one asks for int32"):
            weft.Queue(name("kept"), dtype="i4", shape=3, node=node)
    finally:
        weft.forget(name("kept"))


def test_dtype_of_too_many_fields_is_refused(node: weft.Node) -> None:
    with pytest.raises(errors.InvalidArgument, match="at most 65536 are kept with a queue"):
        weft.Queue(None, 1, dtype=[(f"field-{n:06}", "u1") for n in range(5000)], node=node)


def test_form_that_others_have_written_into_is_damage(node: weft.Node) -> None:
    queue = weft.Queue(None, 1, dtype="f8", node=node)
    ticket = str(queue.ticket)
    memory = queue._memory
    memory[-14:] = ord("[")
    with pytest.raises(errors.InvalidArgument, match="is damaged"):
        weft.Queue(ticket, node=node)
