"""The friendly layer as a stranger finds it: odd names, long tickets, no descriptors, handles that come too late."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
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
