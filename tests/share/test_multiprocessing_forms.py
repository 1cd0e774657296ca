"""Calls in the form of multiprocessing and threading, with their answers."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

import weft
from weft import errors

NOT_NOW: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((False,), {}),
    ((False, 5), {}),
    ((), {"block": False}),
    ((), {"blocking": False}),
    ((True, 0.01), {}),
    ((True,), {"timeout": 0.01}),
    ((), {"block": True, "timeout": 0.01}),
]


@pytest.mark.parametrize(("arguments", "options"), NOT_NOW)
@pytest.mark.parametrize("make", [weft.Lock, lambda node: weft.Semaphore(None, 1, node=node)])
def test_acquire_in_their_form_tells_by_its_result(
    node: weft.Node, make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    thing = make(node=node)
    assert thing.acquire(*arguments, **options) is True
    assert thing.acquire(*arguments, **options) is False
    thing.release()
    assert thing.acquire(True) is True
    with pytest.raises(errors.TimedOut):
        thing.acquire(timeout=0.01)
    thing.release()
    assert thing.acquire(blocking=True, timeout=-1) is True


def test_acquire_with_two_answers_to_one_question_is_refused(node: weft.Node) -> None:
    lock = weft.Lock(node=node)
    for arguments, options in [
        ((True,), {"block": True}),
        ((), {"block": True, "blocking": True}),
        ((1.0, 2.0), {}),
        ((1.0,), {"timeout": 2.0}),
        ((), {"block": "yes"}),
        ((True, True), {}),
    ]:
        with pytest.raises(TypeError):
            lock.acquire(*arguments, **options)  # type: ignore[arg-type]
    assert not lock.locked()


@pytest.mark.parametrize("dtype", [None, "i8"])
def test_full_and_empty_queues_raise_theirs_and_ours(node: weft.Node, dtype: str | None) -> None:
    jobs = weft.Queue(None, 1, dtype=dtype, node=node)
    for get in (jobs.get_nowait, lambda: jobs.get(False), lambda: jobs.get(True, 0.01), lambda: jobs.get(block=False)):
        with pytest.raises(queue.Empty) as empty:
            get()
        assert isinstance(empty.value, errors.TimedOut)
    jobs.put(1)
    for put in (
        lambda: jobs.put_nowait(2),
        lambda: jobs.put(2, False),
        lambda: jobs.put(2, True, 0.01),
        lambda: jobs.put(2, block=False),
    ):
        with pytest.raises(queue.Full) as full:
            put()
        assert isinstance(full.value, errors.TimedOut)
    assert jobs.get(True, 5) == 1
    jobs.put_nowait(3)
    assert jobs.get_nowait() == 3
    jobs.put(4, True)
    assert jobs.get() == 4
