"""Wrong arguments of the calls on elements, and these calls after the end of owner, share and node."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frames import frames_of_weft
from tests.share.elements import mapped
from tests.share.owner import Owner, until_its_end_is_known

import weft
from weft import errors

# ---- wrong arguments ------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "read(1)": (lambda t: t.read(1), TypeError, "out"),
    "read('x')": (lambda t: t.read("x"), TypeError, "out"),
    "read(to=)": (lambda t: t.read(to=1), TypeError, "unexpected keyword argument 'to'"),
    "read(1, 2)": (lambda t: t.read(1, 2), TypeError, "at most 1 positional"),
    "write()": (lambda t: t.write(), TypeError, "needs the argument 'value'"),
    "write(None)": (lambda t: t.write(None), ValueError, "shape ()"),
    "write({})": (lambda t: t.write({}), TypeError, "dict"),
    "fill()": (lambda t: t.fill(), TypeError, "needs the argument 'value'"),
    "fill('x')": (lambda t: t.fill("x"), ValueError, "'x'"),
    "take()": (lambda t: t.take(), TypeError, "needs the argument 'indices'"),
    "take(None)": (lambda t: t.take(None), TypeError, "indices are integers"),
    "take('x')": (lambda t: t.take("x"), TypeError, "indices are integers"),
    "take(axis=None)": (lambda t: t.take([0], axis=None), TypeError, "axis is an integer"),
    "take(out=1)": (lambda t: t.take([0], out=1), TypeError, "out"),
    "put(0)": (lambda t: t.put([0]), TypeError, "needs the argument 'values'"),
    "put of objects": (lambda t: t.put([0], np.array([{}])), TypeError, "Python objects"),
    "fetch_add()": (lambda t: t.fetch_add(), TypeError, "needs the argument 'index'"),
    "fetch_add({})": (lambda t: t.fetch_add({}), IndexError, "not an index"),
    "fetch_add of text": (lambda t: t.fetch_add((0, 0), "x"), TypeError, "'x'"),
    "fetch_add of None": (lambda t: t.fetch_add((0, 0), None), TypeError, "None"),
    "fetch_add out of bounds": (lambda t: t.fetch_add((9, 0)), IndexError, "index 9 is out of bounds"),
    "fetch_add of a bool index": (lambda t: t.fetch_add(True), IndexError, "bool"),
    "compare_swap(0, 1)": (lambda t: t.compare_swap(0, 1), TypeError, "needs the argument 'value'"),
    "swap(0)": (lambda t: t.swap(0), TypeError, "needs the argument 'value'"),
    "fetch_op(op=3)": (lambda t: t.fetch_op((0, 0), 3, 1), errors.InvalidArgument, "no operation 3"),
    "fetch_op(op=None)": (lambda t: t.fetch_op((0, 0), None, 1), errors.InvalidArgument, "no operation None"),
    "add()": (lambda t: t.add(), TypeError, "needs the argument 'index'"),
    "add('x')": (lambda t: t.add("x"), IndexError, "'x'"),
    "add(1.5)": (lambda t: t.add(1.5), IndexError, "1.5"),
    "add(op=1)": (lambda t: t.add((0, 0), op=1), errors.InvalidArgument, "no operation 1"),
    "add of text": (lambda t: t.add(np.full((4, 5), "a")), TypeError, "<U1"),
    "add of objects": (lambda t: t.add(np.full((4, 5), None)), TypeError, "object"),
    "add.at()": (lambda t: t.add.at(), TypeError, "needs the argument 'indices'"),
    "add.at('x')": (lambda t: t.add.at("x"), TypeError, "indices are integers"),
    "add.at(1.5)": (lambda t: t.add.at(1.5), TypeError, "indices are integers"),
    "add.at(values)": (lambda t: t.add.at([0, 1], np.ones(3)), ValueError, "do not broadcast"),
    "add.at bounds": (lambda t: t.add.at([0, 4]), IndexError, "index 4"),
    "add.at tuple": (lambda t: t.add.at((0, slice(None))), IndexError, "t.at[...].add.at"),
    "add.at many": (lambda t: t.add.at((0, 0, 0)), IndexError, "2 dimensions, 3"),
    "add.at op": (lambda t: t.add.at([0], 1, "mean"), errors.InvalidArgument, "'mean'"),
    "add.at kind": (lambda t: t.add.at([0], 1j), TypeError, "complex128"),
    "del t[0]": (lambda t: t.__delitem__(0), TypeError, "cannot be deleted"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_explained(home: weft.Node, case: str) -> None:
    call, kind, text = WRONG[case]
    local, remote, share = mapped(home, np.zeros((4, 5), "f4"))
    with share, pytest.raises(kind) as caught:
        call(remote)
    assert text in str(caught.value)
    assert not local.any()


def test_error_of_an_index_object_is_its_own(home: weft.Node) -> None:
    class Bad:
        def __index__(self) -> int:
            raise ZeroDivisionError("mine")

    _, remote, _ = mapped(home, np.zeros(4))
    for call in (lambda: remote[Bad()], lambda: remote[Bad() :], lambda: remote.fetch_add(Bad())):
        with pytest.raises(ZeroDivisionError, match="mine"):
            call()


def test_value_that_closes_the_node_while_it_is_converted_is_an_error() -> None:
    with weft.open() as owner, weft.open() as node:
        remote = node.attach(owner.share(weft.zeros(4)))
        remote[0] = 1

        class Closes:
            def __float__(self) -> float:
                node.close()
                return 2.0

        with pytest.raises(errors.BadState):
            remote[0] = Closes()


def test_calls_have_signatures_and_help(home: weft.Node) -> None:
    _, remote, _ = mapped(home, np.zeros(4))
    wanted = {
        "read": "(out=None)",
        "write": "(value)",
        "fill": "(value)",
        "take": "(indices, axis=0, out=None)",
        "put": "(indices, values, axis=0)",
        "fetch_add": "(index, value=1)",
        "compare_swap": "(index, expected, value)",
        "swap": "(index, value)",
        "fetch_op": "(index, op, value)",
        "add": "(index, value=1, op='sum')",
    }
    for name, text in wanted.items():
        call = getattr(remote, name)
        assert str(inspect.signature(call)) == text
        assert len(inspect.getdoc(call) or "") > 40
    assert str(inspect.signature(remote.add.at)) == "(indices, values=1, op='sum')"
    assert "numpy.add.at" in (inspect.getdoc(remote.add.at) or "")


# ---- life -----------------------------------------------------------------------------------------------------------

AFTER: dict[str, Callable[[Any], object]] = {
    "t[i]": lambda t: t[3],
    "t[i] = x": lambda t: t.__setitem__(3, 1),
    "t[a:b]": lambda t: t[3:5],
    "t[a:b] = x": lambda t: t.__setitem__(slice(3, 5), np.ones(2)),
    "t[::2] = 1": lambda t: t.__setitem__(slice(None, None, 2), 1),
    "read": lambda t: t.read(),
    "read(out)": lambda t: t.read(out=np.empty(100_000)),
    "write": lambda t: t.write(np.empty(100_000)),
    "take": lambda t: t.take([3]),
    "put": lambda t: t.put([3], 1),
    "fetch_add": lambda t: t.fetch_add(3),
    "compare_swap": lambda t: t.compare_swap(3, 0, 0),
    "add": lambda t: t.add(3),
    "add block": lambda t: t.add(np.ones(100_000)),
    "add.at": lambda t: t.add.at([3, 3], 1),
}


@pytest.mark.procs
@pytest.mark.parametrize("end", ["kill", "close", "replace"])
def test_call_after_the_owners_end_is_an_error(node: weft.Node, own_owner: Owner, name: Any, end: str) -> None:
    """Killed; the share closed; the share closed, and another array shared by the same name in the same place."""
    n = name("a")
    own_owner.tell(f"a = weft.zeros(100_000); s = node.share(a, {n!r})")
    remote = node.attach(n)
    for call in AFTER.values():
        call(remote)
    if end == "kill":
        own_owner.kill()
        until_its_end_is_known(remote)
    else:
        own_owner.tell("s.close()")
        if end == "replace":
            own_owner.tell(f"del a; b = weft.empty(100_000); b.fill(7); s = node.share(b, {n!r})")
    kind = errors.ConnectionReset if end == "kill" else errors.KeyRejected
    for call in AFTER.values():
        with pytest.raises(kind):
            call(remote)
    if end == "replace":
        again = node.attach(n)
        assert again[3] == 7
        assert frames_of_weft(lambda: again[3]) == []
        assert own_owner.tell("bool((b == 7).all())") is True


@pytest.mark.procs
def test_closing_during_long_copies_ends_them(own_owner: Owner, name: Any) -> None:
    """The node of the copying threads is closed: each copy is whole, or a BadState."""
    n = name("a")
    own_owner.tell(f"a = weft.zeros(4 << 20, 'u1'); s = node.share(a, {n!r})")
    for _ in range(5):
        node = weft.open()
        remote = node.attach(n)
        out = np.ones(4 << 20, "u1")
        started = threading.Barrier(4)
        problems: list[BaseException] = []

        def work(remote: Any = remote, out: Any = out, started: Any = started, problems: Any = problems) -> None:
            started.wait()
            try:
                while True:
                    remote.read(out=out)
                    remote.write(out)
            except errors.BadState:
                pass
            except BaseException as reason:
                problems.append(reason)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        for _ in range(20):
            remote[0] = 1
        node.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert problems == []
        with pytest.raises(errors.BadState, match="the node is closed"):
            remote[0]


@pytest.mark.procs
def test_kill_during_blocks_and_scatters_is_a_reset(node: weft.Node, own_owner: Owner, name: Any) -> None:
    n = name("a")
    own_owner.tell(f"a = weft.zeros(1 << 18, 'i8'); s = node.share(a, {n!r})")
    remote = node.attach(n)
    block, rows = np.ones(1 << 18, "i8"), np.arange(1 << 18)
    remote.add(block)
    killer = threading.Timer(0.2, own_owner.process.kill)
    killer.start()

    def forever() -> None:
        while True:
            remote.add(block)
            remote.add.at(rows, block)
            remote.take(rows)
            remote.read(out=block)

    with pytest.raises(errors.ConnectionReset):
        forever()
    killer.join()


@pytest.mark.procs
def test_child_of_a_fork_uses_its_own_way(node: weft.Node, owner: Owner, name: Any) -> None:
    n = name("a")
    owner.tell(f"c = weft.zeros(8, 'i8'); sc = node.share(c, {n!r})")
    remote = node.attach(n)
    assert remote.fetch_add(0, 1) == 0
    child = os.fork()
    if child == 0:
        code = 1
        try:
            part = remote.at[2:]
            remote.add(0, 1)
            part[0] = 5
            remote.add(np.ones(8, "i8"))
            code = 0 if remote[0] == 3 and frames_of_weft(lambda: remote[0]) == [] else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert remote.read().tolist() == [3, 1, 6, 1, 1, 1, 1, 1]
    assert frames_of_weft(lambda: remote[0]) == []
    owner.tell("sc.close()")


@pytest.mark.procs
def test_accesses_are_counted(node: weft.Node, owner: Owner, name: Any) -> None:
    n = name("a")
    owner.tell(f"d = weft.zeros(8, 'i8'); sd = node.share(d, {n!r})")
    remote = node.attach(n)
    assert remote[0] == 0
    before = node.statistics()
    for i in range(100):
        remote[i % 8] = i
        remote.fetch_add(0)
    after = node.statistics()
    assert after.direct - before.direct == 200
    assert after.bytes - before.bytes == 1600
    assert after.lanes == before.lanes
    owner.tell("sd.close()")


def test_views_of_closed_owners_free_their_memory(home: weft.Node) -> None:
    """A RemoteArray does not keep a closed node's domain open, nor is it kept by it."""
    import gc
    import weakref

    with weft.open() as node:
        remote = node.attach(node.share(weft.zeros(4)))
        remote[0] = 1
        kept = weakref.ref(remote)
        add = remote.add
        del remote
        assert kept() is not None
        add(0)
        del add
        gc.collect()
        assert kept() is None


def test_reversed_and_sequences(home: weft.Node) -> None:
    _, remote, _ = mapped(home, np.arange(4))
    assert list(reversed(remote)) == [3, 2, 1, 0]
    assert [int(x) for x in remote] == [0, 1, 2, 3]
