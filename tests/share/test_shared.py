"""A Shared: used as a RemoteArray, passed to workers, and collected when the program drops it."""

from __future__ import annotations

import gc
import inspect
import multiprocessing
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from tests.share.mp_worker import double

import weft
from weft import errors


@pytest.mark.procs
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("given", ["share", "attach"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_worker_uses_its_arguments(node: weft.Node, method: str, given: str) -> None:
    """The same worker code, with every kind of argument and start method."""
    context = multiprocessing.get_context(method)
    local = weft.empty(4, "f8")
    local[:] = [1, 2, 3, 4]
    shared = node.share(local)
    answers = context.Queue()
    worker = context.Process(target=double, args=(shared if given == "share" else node.attach(shared), answers))
    worker.start()
    try:
        kind, *answer = answers.get(timeout=100)
        worker.join(100)
    finally:
        worker.kill()
        worker.join()
    assert answer == [4, [3.0, 7.0, 6.0, 8.0], True], kind
    assert local.tolist() == [3, 7, 6, 8]


def test_shared_has_the_calls_of_its_remote_array(node: weft.Node) -> None:
    local = np.arange(6.0).reshape(2, 3)
    shared = node.share(local)
    shared[0, 1] = 10
    assert local[0, 1] == 10
    assert shared[1].tolist() == [3, 4, 5]
    assert shared.read().tolist() == local.tolist()
    assert np.asarray(shared).tolist() == local.tolist()
    assert [row.tolist() for row in shared] == local.tolist()
    assert (shared == local).all()
    assert 10 in shared
    assert len(shared) == 2
    assert shared.size == 6
    shared.add((1, 2), 0.5)
    assert local[1, 2] == 5.5
    with pytest.raises(ValueError, match="ambiguous"):
        bool(shared)
    assert isinstance(shared.remote, weft.RemoteArray)
    assert shared.remote is shared.remote


def test_shared_has_all_that_a_remote_array_has(node: weft.Node) -> None:
    shared = node.share(weft.zeros(3))
    for name, _ in inspect.getmembers(weft.RemoteArray):
        if not name.startswith("_"):
            getattr(shared, name)
            assert name in dir(shared)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = shared.nonsense


def test_shared_that_is_closed_refuses_to_read(node: weft.Node) -> None:
    shared = node.share(weft.zeros(3))
    shared.close()
    for use in (lambda: shared[0], lambda: shared.read(), lambda: len(shared), lambda: np.asarray(shared)):
        with pytest.raises(errors.BadState, match="closed"):
            use()
    assert "closed" in repr(shared)


def test_shared_is_not_shared_again(node: weft.Node) -> None:
    shared = node.share(weft.zeros(3))
    with pytest.raises(TypeError, match="a Shared is already shared by its owner"):
        node.share(shared)


def test_shared_pickles_as_the_remote_array(node: weft.Node) -> None:
    shared = node.share(weft.zeros(3))
    assert type(pickle.loads(pickle.dumps(shared))) is weft.RemoteArray


def test_share_of_a_collected_node_warns_with_its_line(name: Any) -> None:
    n = name("lost")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        node = weft.open()
        frame = inspect.currentframe()
        assert frame is not None
        node.share(weft.zeros(3), n)
        line = frame.f_lineno - 1
        del node
        gc.collect()
    told = [str(w.message) for w in found if w.category is ResourceWarning]
    assert len(told) == 1, told
    assert f"the share of {n!r} ends" in told[0]
    assert f"{__file__}:{line}" in told[0]
    assert n not in weft.Node.names()


def test_node_without_shares_is_collected_silently() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        owner = weft.open()
        remote = weft.open().attach(owner.share(weft.zeros(3)))
        remote[0] = 1
        del remote
        gc.collect()
        owner.close()
    assert [w for w in found if w.category is ResourceWarning] == []


def test_with_node_keeps_the_blocks_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: weft.Node) -> None:
        raise errors.Busy("peers are copying")

    opened: list[weft.Node] = []

    def block() -> None:
        with weft.open() as node:
            opened.append(node)
            monkeypatch.setattr(weft.Node, "close", refuse)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        block()
    if hasattr(caught.value, "__notes__"):
        assert "peers are copying" in caught.value.__notes__[0]
    monkeypatch.undo()
    opened[0].close()


def test_warning_of_a_lost_share_names_the_nodes_line(name: Any) -> None:
    n = name("lost")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        frame = inspect.currentframe()
        assert frame is not None
        node = weft.open()
        line = frame.f_lineno - 1
        node.share(weft.zeros(3), n)
        del node
        gc.collect()
    (told,) = [str(w.message) for w in found if w.category is ResourceWarning]
    assert f"by the node opened at {__file__}:{line}" in told


@pytest.mark.parametrize("held", ["share", "remote", "node"])
def test_share_holds_its_node(name: Any, held: str) -> None:
    """A name lives as long as the program has the share, or an object made from it: no collection takes it away."""
    n = name("held")
    shared = weft.open().share(np.arange(3), n)
    node = shared._node
    kept: Any = {"share": shared, "remote": shared.remote, "node": node}[held]
    del shared, node
    gc.collect()
    with weft.open() as other:
        assert other.attach(n)[:].tolist() == [0, 1, 2]
    kept = kept if held == "node" else kept._node
    kept.close()


def test_share_that_nobody_holds_ends_with_a_warning(name: Any) -> None:
    n = name("lost")

    def lose() -> None:
        weft.open().share(np.arange(3), n)
        gc.collect()

    with pytest.warns(ResourceWarning, match=f"the share of '{n}' ends, because its node was dropped"):
        lose()
    assert n not in weft.Node.names()


def test_shares_of_a_cycle_end_with_a_warning_each(name: Any) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        node = weft.open()
        holder: dict[str, Any] = {"node": node}
        for i in range(3):
            holder[str(i)] = node.share(np.arange(3), name(f"lost{i}"))
        holder["holder"] = holder
        del node, holder
        gc.collect()
    told = sorted(str(w.message).partition(" ends")[0] for w in found if w.category is ResourceWarning)
    assert told == [f"the share of '{name(f'lost{i}')}'" for i in range(3)]


def test_share_that_is_closed_ends_without_a_warning(name: Any) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        weft.open().share(np.arange(3), name("closed")).close()
        gc.collect()
    assert [str(w.message) for w in found if w.category is ResourceWarning] == []
