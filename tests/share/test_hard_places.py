"""The friendly layer as a stranger finds it: odd names, long tickets, no descriptors, handles that come too late."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
from tests import patience
from tests.patience import Patience
from tests.share.owner import Owner

import weft
from weft import errors

FIELDS = 6000


def long_dtype() -> np.dtype[Any]:
    """Its description is longer than a packet."""
    return np.dtype([(f"field_with_a_long_name_{i:05d}", "f8") for i in range(FIELDS)])


@pytest.mark.parametrize("call", ["share", "attach", "kept", "forget", "Lock", "Queue"])
def test_name_that_has_no_bytes_is_refused(node: weft.Node, call: str) -> None:
    """A lone surrogate: os.fsdecode() of a file's name may have one."""
    calls = {
        "share": lambda name: node.share(np.zeros(2), name),
        "attach": node.attach,
        "kept": node.kept,
        "forget": weft.forget,
        "Lock": weft.Lock,
        "Queue": weft.Queue,
    }
    with pytest.raises(errors.InvalidArgument, match=rf"{call}: '\\udc80' is not a valid name"):
        calls[call]("\udc80")


def test_ticket_that_does_not_fit_an_answer_is_refused_under_a_name(node: weft.Node, name: Any) -> None:
    """And not shared under a name that nobody finds."""
    with pytest.raises(errors.MessageTooLong, match=r"share: the ticket has \d+ bytes.*\n  try: a dtype with fewer"):
        node.share(np.zeros(2, long_dtype()), name("long"))
    assert name("long") not in node.names()
    shared = node.share(np.ones(2), name("short"))
    t = node.attach(name("short"))
    with pytest.raises(errors.MessageTooLong, match="replace: the ticket has"):
        shared.replace(np.zeros(2, long_dtype()))
    assert t[:].tolist() == [1, 1]
    assert shared.shape == (2,)
    assert shared.dtype == "f8"
    whole = node.attach(node.share(np.zeros(2, long_dtype())))
    assert len(whole.dtype.names or ()) == FIELDS


@pytest.mark.procs
def test_without_free_descriptors_the_error_says_what_to_do() -> None:
    program = """
import resource, sys, weft
node = weft.open()
arrays = [weft.zeros(4) for _ in range(100)]
first = node.share(arrays[0], "test-hard-places-0")
attached = node.attach(first)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    for i, array in enumerate(arrays[1:], 1):
        node.share(array, f"test-hard-places-{i}")
except OSError as reason:
    print(reason)
try:
    node.attach("test-hard-places-0")
except OSError as reason:
    print(reason)
print(attached[0], flush=True)
"""
    done = patience.run([sys.executable, "-c", program], timeout=100)
    assert done.stderr == ""
    assert "EMFILE: share: no socket for the name: Too many open files" in done.stdout
    assert "EMFILE: attach: no socket for the name: Too many open files" in done.stdout
    assert done.stdout.count("try: ulimit -n with more than 40 (the most is 40); or tickets instead of names") == 2
    assert done.stdout.endswith("0.0\n")


@pytest.mark.parametrize("kind", ["Lock", "Event", "Semaphore", "Queue"])
def test_handle_that_comes_after_the_end_names_its_object(node: weft.Node, name: Any, kind: str) -> None:
    """And not the array of bytes in which the object lived."""
    it = getattr(weft, kind)(name(kind), node=node)
    late = pickle.loads(pickle.dumps(it))
    it.close()
    call = {"Lock": "acquire", "Event": "wait", "Semaphore": "acquire", "Queue": "get"}[kind]
    with pytest.raises(
        errors.KeyRejected, match=rf"{call}: {kind} '{name(kind)}' was closed by its owner, process \d+"
    ):
        getattr(late, call)()


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["notify", "wait", "anotify", "await_"])
@pytest.mark.parametrize("index", [0, None, slice(0, 1), (0,), ...], ids=repr)
def test_signal_is_one_element(node: weft.Node, call: str, index: Any) -> None:
    """notify(0) of a table would otherwise count up a row, for which nobody can wait."""
    array = weft.zeros((2, 3), "i8")
    t = node.attach(node.share(array))
    with pytest.raises(IndexError, match=f"{call}: one element carries a signal, and .* selects "):
        run(getattr(t, call)(index))
    assert not array.any()


@pytest.mark.parametrize("call", ["notify", "wait", "anotify", "await_"])
def test_elements_that_are_no_numbers_carry_no_signals(node: weft.Node, call: str) -> None:
    t = node.attach(node.share(np.zeros((3, 1), "S5")))
    with pytest.raises(
        TypeError, match=rf"{call}: elements of dtype \|S5 carry no signals\n  try: an array of integers"
    ):
        run(getattr(t, call)((0, 0)))


@pytest.mark.parametrize("access", ["r", "w"])
@pytest.mark.parametrize("call", ["wait", "await_"])
def test_wait_without_the_rights_is_refused_at_once(node: weft.Node, call: str, access: str) -> None:
    """And not when the signal has come."""
    t = node.attach(node.share(np.zeros(3, "i8"), access=access))
    with pytest.raises(
        errors.AccessDenied, match=rf"{call}: .* access '{access}'.*\n  try: access='rw' in its"
    ) as told:
        run(getattr(t, call)(0, timeout=100))
    assert ("t.wait_until(" in str(told.value)) == (access == "r")


def run(call: Any) -> Any:
    """The result of a call, also of one that is awaited."""

    async def wait() -> Any:
        return await call

    return asyncio.run(wait()) if asyncio.iscoroutine(call) else call


# ---- shares and names ------------------------------------------------------------------------------------------------


def test_length_is_no_bool(node: weft.Node) -> None:
    shared = node.share(weft.zeros(4, reserve=8))
    with pytest.raises(TypeError, match="resize: the length is an integer, not True"):
        shared.resize(True)
    assert shared.shape == (4,)


@pytest.mark.usefixtures("keeping")
def test_closed_share_of_a_kept_array_says_how_to_have_it_again(node: weft.Node, name: Any) -> None:
    shared = node.share(np.zeros(3), name("kept"), keep=True)
    shared.close()
    for call in (lambda: shared[0], lambda: shared.replace(np.zeros(2)), lambda: shared.resize(2)):
        with pytest.raises(errors.BadState, match=r"is closed\n  try: node.kept\(name\) has it again"):
            call()
    with pytest.raises(TypeError, match="share: a Shared is already shared by its owner"):
        node.share(node.kept(name("kept")))


@pytest.mark.parametrize("kind", ["Lock", "Event", "Semaphore", "Barrier", "Queue"])
def test_name_that_does_not_exist_is_told_in_terms_of_the_object(name: Any, kind: str) -> None:
    with pytest.raises(errors.NotFound) as found:
        getattr(weft, kind)(name("nothing"), create=False)
    assert f"{kind}: nothing has the name '{name('nothing')}' on this host" in str(found.value)
    assert f"try: weft.{kind}('{name('nothing')}', ...) in the process that makes it" in str(found.value)
    assert "node.share" not in str(found.value)


@pytest.mark.procs
@pytest.mark.parametrize("kind", ["Lock", "Event", "Semaphore", "Barrier", "Queue"])
@pytest.mark.parametrize("end", ["kill", "close"])
def test_object_that_has_ended_can_be_shown(own_owner: Owner, name: Any, kind: str, end: str) -> None:
    arguments = "1" if kind == "Barrier" else "None"
    own_owner.tell(f"it = weft.{kind}({name('it')!r}" + (f", {arguments})" if kind == "Barrier" else ")"))
    it = getattr(weft, kind)(name("it"))
    assert f"of process {own_owner.pid}" in repr(it)
    if end == "kill":
        own_owner.kill()
    else:
        own_owner.tell("it.close()")
    patience = Patience(60)
    while "ended" not in repr(it):
        assert not patience.over
    assert repr(it) == f"<weft.{kind} '{name('it')}', ended, of process {own_owner.pid}>"


@pytest.mark.procs
def test_end_of_the_maker_is_told_in_terms_of_the_object(own_owner: Owner, name: Any) -> None:
    own_owner.tell(f"q = weft.Queue({name('jobs')!r}, 2)")
    queue = weft.Queue(name("jobs"))
    thread = threading.Thread(target=own_owner.kill)
    thread.start()
    with pytest.raises(errors.ConnectionReset) as told:
        queue.get(timeout=60)
    thread.join()
    assert f"get: the owner of Queue '{name('jobs')}', process {own_owner.pid}, is gone" in str(told.value)
    assert "try: weft.Queue(...) again" in str(told.value)


def test_object_of_a_closed_node_can_be_shown(node: weft.Node, name: Any) -> None:
    made = weft.Event(name("it"), node=node)
    with weft.open() as other:
        event = weft.Event(name("it"), node=other)
    assert repr(event) == f"<weft.Event '{name('it')}', its node is closed, of process {made.ticket.pid}>"
