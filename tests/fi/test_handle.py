"""Life cycle: closing, leaks, threads, fork. The same rules for every object."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from tests import patience
from tests.fi.support import RW, Node, opened

from weft import fi

KINDS: dict[str, Callable[[Node], Any]] = {
    "Fabric": lambda n: fi.Fabric(n.info.fabric_attr),
    "Domain": lambda n: n.fabric.domain(n.info),
    "Endpoint": lambda n: n.domain.endpoint(),
    "AddressVector": lambda n: n.domain.av_open(),
    "CompletionQueue": lambda n: n.domain.cq_open(),
    "Counter": lambda n: n.domain.cntr_open(),
    "EventQueue": lambda n: n.fabric.eq_open(),
    "MemoryRegion": lambda n: n.domain.mr_reg(bytearray(8), RW, requested_key=99),
    "MemoryRegion v": lambda n: n.domain.mr_regv([bytearray(8)], RW, requested_key=99),
    "MemoryRegion attr": lambda n: n.domain.mr_regattr(fi.MrAttr(mr_iov=[bytearray(8)], access=RW, requested_key=99)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_handle_is_a_context_manager_and_close_is_idempotent(node: Node, kind: str) -> None:
    with KINDS[kind](node) as handle:
        assert not handle.closed
    assert handle.closed
    handle.close()
    assert "closed" in repr(handle)
    with pytest.raises(fi.BadState, match="closed"):
        handle.__enter__()


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
@every_kind
def test_handle_has_no_copies(node: Node, kind: str, make: Callable[[Any], Any]) -> None:
    with KINDS[kind](node) as handle, pytest.raises(TypeError, match=r"belongs to its process.*\n  try: send"):
        make(handle)


UNMADE = """
import numpy as np
from weft import RemoteArray, fi, ucp
from weft.fi.mr import MemoryRegion

b = np.zeros(8)
for kind in (fi.Endpoint, fi.Counter, fi.CompletionQueue, fi.AddressVector, fi.Domain, MemoryRegion, ucp.Context,
             ucp.Endpoint, ucp.RemoteKey, ucp.Request, ucp.Worker, RemoteArray):
    unmade = kind.__new__(kind)
    for name in dir(kind):
        if name in ("__class__", "__init__", "__new__", "__init_subclass__", "__subclasshook__"):
            continue
        for args in ((), (b,), (1,), (b, 1), (1, 2), (b, 1, 2), (b, 1, 2, 3), (b, b, 1, 2, 3, "INT64", "SUM")):
            try:
                getattr(unmade, name)(*args)
            except Exception:
                pass
print("alive")
"""


def test_object_whose_init_has_not_run_ends_no_process() -> None:
    """As of a subclass that forgets super().__init__()."""
    done = patience.run([sys.executable, "-c", UNMADE], timeout=100)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.general("a region that needs no binding")
@every_kind
def test_handle_leak_warns_with_the_place_that_made_it(node: Node, kind: str) -> None:
    gc.collect()  # do not count leftovers of other tests
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = KINDS[kind](node)
        del handle
        gc.collect()
    (leak,) = [w for w in caught if issubclass(w.category, ResourceWarning)]
    assert f"<{kind.split()[0]} " in str(leak.message)
    assert __file__ in str(leak.message)
    line = int(str(leak.message).rsplit(":", 1)[1])
    with open(__file__, encoding="utf-8") as source:
        assert kind.split()[0] in source.readlines()[line - 1] or line > 20


@every_kind
def test_handle_that_leaked_is_released(node: Node, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle = KINDS[kind](node)
        del handle
        gc.collect()
    KINDS[kind](node).close()  # nothing is left in its way: key, parents
    assert "MemoryRegion" not in repr(node.domain)


def warned(made: Callable[[], Any]) -> list[str]:
    """The ResourceWarnings of weft's handles during a call, and when its result is collected."""
    gc.collect()  # do not count leftovers of other tests
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made()
        gc.collect()
        while caught:  # a warning holds its handle, and so the handle's parents
            found += [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)]
            caught.clear()
            gc.collect()
    return [text for text in found if "was never closed" in text]


@every_kind
def test_handle_closed_ones_do_not_warn(node: Node, kind: str) -> None:
    """Python swallows exceptions of __del__, so the test examines the warnings."""
    assert warned(lambda: KINDS[kind](node).close()) == []
    assert len(warned(lambda: KINDS[kind](node))) == 1


def test_handle_child_keeps_its_parents() -> None:
    """A child keeps its parents alive. Each unclosed object warns when it is collected, and not before."""
    kept: list[Any] = []

    def made() -> None:
        info = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))[0]
        kept.append(fi.Fabric(info.fabric_attr).domain(info).cq_open())

    assert warned(made) == []
    cq = kept[0]
    assert not cq.domain.closed
    assert not cq.domain.fabric.closed
    del cq
    found = warned(kept.clear)
    assert [text.split()[0] for text in found] == ["<CompletionQueue", "<Domain", "<Fabric"]


def test_handle_close_from_many_threads_is_one_close(node: Node) -> None:
    failures: list[BaseException] = []

    def close(handle: Any) -> None:
        try:
            handle.close()
        except BaseException as e:
            failures.append(e)

    for kind in KINDS.values():
        handle = kind(node)
        threads = [threading.Thread(target=close, args=(handle,)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert handle.closed
    assert not failures


# ---- fork ------------------------------------------------------------------------------------------------------------


def in_fork(function: Callable[[], None]) -> None:
    """Run `function` in a forked child; fail with its traceback."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads at fork: that is the point
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            function()
            status = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-60_000:])
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()  # until the child ends
    _, status = os.waitpid(pid, 0)
    assert status == 0, said.decode() or f"the child ended with status {status}"


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(fi.BadState, match=r"fork|parent process"):
        call()


def test_fork_child_is_refused_every_handle(node: Node) -> None:
    mr = node.reg(bytearray(8), requested_key=1)
    cntr = node.keep(node.domain.cntr_open())
    eq = node.keep(node.fabric.eq_open(flags=fi.WRITE))
    me = node.me

    def child() -> None:
        for call in (
            lambda: node.fabric.domain(node.info),
            lambda: node.fabric.eq_open(),
            lambda: node.domain.cq_open(),
            lambda: node.domain.endpoint(),
            lambda: node.domain.mr_reg(bytearray(8), RW, requested_key=2),
            lambda: node.domain.mr_regv([bytearray(8)], RW, requested_key=2),
            lambda: node.domain.alloc(8),
            lambda: node.av.insert("weft://0/1/1"),
            lambda: node.av.lookup(0),
            lambda: node.ep.getname(),
            lambda: node.ep.write(b"x", dest_addr=me, addr=0, key=1),
            lambda: node.ep.read(bytearray(1), src_addr=me, addr=0, key=1),
            lambda: node.cq.read(),
            lambda: node.cq.sread(timeout=1),
            lambda: cntr.read(),
            lambda: cntr.add(1),
            lambda: mr.raw_attr(),
            lambda: mr.bind(cntr, fi.REMOTE_WRITE),
            lambda: eq.read(),
            lambda: node.domain.__enter__(),
        ):
            refused(call)

    in_fork(child)
    node.ep.write(b"mine", dest_addr=me, addr=0, key=1)
    node.wait()


def test_fork_child_closes_copies_without_harm(node: Node) -> None:
    data = bytearray(8)
    mr = node.reg(data, requested_key=1)
    me = node.me

    def child() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for handle in (node.ep, mr, node.cq, node.av, node.domain, node.fabric):
                handle.close()
                assert handle.closed
            gc.collect()

    in_fork(child)
    node.ep.write(b"parent", dest_addr=me, addr=0, key=1)
    node.wait()
    assert data[:6] == b"parent"


def test_fork_child_opens_a_fabric_of_its_own(node: Node) -> None:
    name = node.name

    def child() -> None:
        with opened() as mine:
            data = mine.domain.alloc(8, "u1")
            data.fill(0)
            mine.reg(data, requested_key=1)
            mine.ep.write(b"child", dest_addr=mine.me, addr=0, key=1)
            mine.wait()
            assert bytes(data[:5]) == b"child"
            assert mine.name != name

    in_fork(child)
    in_fork(child)


def test_fork_child_of_a_child(node: Node) -> None:
    def grandchild() -> None:
        refused(lambda: node.domain.cq_open())
        with opened() as mine:
            assert mine.ep.enabled

    def child() -> None:
        with opened() as mine:
            in_fork(grandchild)
            assert mine.ep.enabled

    in_fork(child)


def test_fork_memory_of_the_parent_is_private_to_it(node: Node) -> None:
    """Operations of the child access the child's regions, not the parent's regions with the same key."""
    data = node.domain.alloc(8, "u1")
    data.fill(1)
    node.reg(data, requested_key=1)

    def child() -> None:
        with opened() as mine:
            theirs = mine.domain.alloc(8, "u1")
            mine.reg(theirs, requested_key=1)
            mine.ep.write(b"\x09" * 8, dest_addr=mine.me, addr=0, key=1)
            mine.wait()

    in_fork(child)
    assert data.tolist() == [1] * 8
