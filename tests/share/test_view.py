"""Views: the owner's memory as a NumPy array of this process."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.share.owner import WATCHDOG_S, Owner

import weft
from weft import errors

Name = Callable[[str], str]
NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def attach(owner: Owner, node: weft.Node, name: str, array: str, access: str = "rw") -> Any:
    """Share an array in the other process, where it is `a`, and attach it."""
    owner.tell(f"a = {array}")
    return node.attach(owner.tell(f"str(node.share(a, access={access!r}).ticket)"))


# ---- whose memory it is ----------------------------------------------------------------------------------------------


def test_view_is_the_owners_memory(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros((4, 5), 'i8')")
    v = t.view("rw")
    assert type(v) is np.ndarray
    assert (v.shape, v.dtype, v.flags.c_contiguous) == ((4, 5), np.dtype("i8"), True)
    owner.tell("a[2, 3] = 7")
    assert v[2, 3] == 7
    v += 1
    assert owner.tell("a.tolist()") == v.tolist()
    t[0, 0] = 50
    assert v[0, 0] == 50
    assert t.fetch_add((0, 0), 1) == 50
    assert v[0, 0] == 51


def test_read_is_still_a_copy(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros(8)")
    for copy in (np.asarray(t), np.array(t), t.read(), t[:].copy()):
        assert copy.flags.writeable
        copy[:] = 1
        assert not np.shares_memory(copy, t.view())
    assert owner.tell("a.tolist()") == [0] * 8


@pytest.mark.parametrize(
    "key",
    [
        (),
        ...,
        1,
        -1,
        (1, 2),
        (1, 2, 3),
        slice(1, 3),
        (slice(None), slice(None, None, 2)),
        (slice(None, None, -1), 0, slice(3, 0, -2)),
        (None, 2, ..., None),
        slice(2, 2),
    ],
)
def test_selection_is_a_view_of_that_part(owner: Owner, node: weft.Node, name: Name, key: Any) -> None:
    t = attach(owner, node, name("a"), "weft.empty((4, 5, 6), 'i4')")
    whole = t.view()
    whole[...] = np.arange(120).reshape(4, 5, 6)
    part, expected = t.at[key].view(), whole[key if key != () else ...]
    assert np.array_equal(part, expected)
    assert part.shape == np.asarray(expected).shape
    part[...] = -1
    assert np.array_equal(t.read(), whole)
    assert (t.at[key].read() == -1).all()


@pytest.mark.parametrize(
    "dtype",
    ["?", "u1", "f2", ">i4", "c16", "S5", "U3", "M8[us]", "V7", "a:i4,b:f8", "aligned"],
)
def test_view_of_every_dtype(owner: Owner, node: weft.Node, name: Name, dtype: str) -> None:
    spelled = {
        "a:i4,b:f8": "[('a', 'i4'), ('b', 'f8', (2,))]",
        "aligned": "np.dtype({'names': ['x', 'y'], 'formats': ['u1', 'f8']}, align=True)",
    }.get(dtype, repr(dtype))
    t = attach(owner, node, name("a"), f"weft.zeros(6, {spelled})")
    v = t.view()
    assert v.dtype == t.dtype
    v.view("u1")[...] = np.arange(v.nbytes, dtype="u1")
    assert t.read().tobytes() == v.tobytes() == bytes(range(v.nbytes))
    assert owner.tell("a.tobytes()") == v.tobytes()


def test_view_has_fortran_order_where_the_array_has_it(owner: Owner, node: weft.Node, name: Name) -> None:
    owner.tell("base = weft.zeros((4, 3), 'i4')")
    t = attach(owner, node, name("a"), "base.T")
    v = t.view()
    assert (v.shape, v.strides, v.flags.f_contiguous) == ((3, 4), (4, 12), True)
    v[2, 0] = 5
    assert owner.tell("int(base[0, 2])") == 5
    assert t.T.view().flags.c_contiguous


def test_view_of_a_field(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros(4, [('x', 'i4'), ('y', 'f8')])")
    t["y"].view()[1:] = 0.5
    assert owner.tell("a['y'].tolist()") == [0, 0.5, 0.5, 0.5]


def test_view_of_an_array_without_dimensions(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros((), 'i8')")
    v = t.view()
    assert v.shape == ()
    v[()] = 9
    assert owner.tell("int(a)") == 9


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
@pytest.mark.parametrize("mode", ["r", "rw"])
def test_view_without_elements(owner: Owner, node: weft.Node, name: Name, shape: tuple[int, ...], mode: str) -> None:
    t = attach(owner, node, name("a"), f"weft.zeros({shape}, 'i8')")
    v = t.view(mode)
    assert (v.shape, v.dtype, v.flags.writeable) == (shape, np.dtype("i8"), mode == "rw")


def test_view_of_a_part_of_the_owners_array(owner: Owner, node: weft.Node, name: Name) -> None:
    """The share starts within a page."""
    owner.tell("base = weft.zeros(10_000, 'u1')")
    t = attach(owner, node, name("a"), "base[4090:4104]")
    t.view()[:] = 5
    assert owner.tell("base.nonzero()[0].tolist()") == list(range(4090, 4104))


def test_large_view(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros(40 << 20, 'u1')")
    v = t.view()
    v[:: 1 << 20] = np.arange(40)
    assert owner.tell("a[::1 << 20].tolist()") == list(range(40))


# ---- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("access", "writable"), [("rw", True), ("r", False)])
def test_view_has_the_access_that_the_share_grants(
    owner: Owner, node: weft.Node, name: Name, access: str, writable: bool
) -> None:
    t = attach(owner, node, name("a"), "weft.zeros(4)", access)
    assert t.view().flags.writeable is writable
    assert not t.view("r").flags.writeable


@pytest.mark.parametrize("access", ["r", "rw"])
def test_read_only_view_cannot_be_made_writable(owner: Owner, node: weft.Node, name: Name, access: str) -> None:
    v = attach(owner, node, name("a"), "weft.zeros(4)", access).view("r")
    for refused in (v, v[1:], v.view("u1"), np.asarray(v), np.frombuffer(v)):
        with pytest.raises(ValueError, match="read-only"):
            refused[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            refused.flags.writeable = True
    assert memoryview(v).readonly


def test_read_only_view_sees_stores(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros(4)")
    reader, writer = t.view("r"), t.view("rw")
    writer[1] = 6
    owner.tell("a[2] = 8")
    assert reader.tolist() == [0, 6, 8, 0]


def test_ticket_that_claims_more_is_refused(owner: Owner, node: weft.Node, name: Name) -> None:
    """The owner's table decides, not the ticket."""
    import dataclasses

    ticket = attach(owner, node, name("a"), "weft.zeros(4, 'u1')", "r").ticket
    wider = node.attach(dataclasses.replace(ticket, access="rw"))
    with pytest.raises(errors.AccessDenied, match="shared with access"):
        wider.view()
    longer = node.attach(dataclasses.replace(ticket, shape=(5,)))
    with pytest.raises(errors.FabricError, match="bounds"):
        longer.view()


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_memory_that_weft_did_not_allocate_is_refused(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "np.zeros(4)")
    with pytest.raises(errors.NotSupported) as caught:
        t.view()
    for words in ("view: ", f"process {owner.pid}", "not allocated by Weft", "try: weft.empty()", "numpy.asarray(t)"):
        assert words in str(caught.value)
    with pytest.raises(BufferError, match=r"try: weft.empty\(\)"):
        np.from_dlpack(t)
    with pytest.raises(ValueError, match=r"try: weft.empty\(\)"):
        t.__array__(copy=False)
    assert np.asarray(t).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("strict", ["owner", "viewer"])
def test_strict_isolation_is_refused(name: Name, strict: str) -> None:
    isolation = {side: {"WEFT_ISOLATION": "strict" if side == strict else "shared"} for side in ("owner", "viewer")}
    with Owner(name("o"), **isolation["owner"]) as owner, Owner(name("v"), **isolation["viewer"]) as viewer:
        owner.tell("shared = node.share(weft.zeros(4))")
        viewer.tell(f"t = node.attach({owner.tell('str(shared.ticket)')!r})")
        with pytest.raises(AssertionError) as caught:
            viewer.tell("t.view()")
        for words in ("NotSupported", "WEFT_ISOLATION=strict in one", "try: numpy.asarray(t)", "or both processes"):
            assert words in str(caught.value)


def test_dead_owner_is_refused(own_owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(own_owner, node, name("a"), "weft.zeros(4)")
    own_owner.kill()

    def view_until_this_process_hears_of_it() -> None:
        deadline = Patience(WATCHDOG_S)
        while not deadline.over:
            t.view()

    with pytest.raises(ConnectionResetError, match=f"view: .*process {own_owner.pid}, is gone"):
        view_until_this_process_hears_of_it()


def test_closed_share_is_refused_while_its_view_lives(owner: Owner, node: weft.Node, name: Name) -> None:
    owner.tell("shared = node.share(weft.zeros(4))")
    t = node.attach(owner.tell("str(shared.ticket)"))
    v = t.view()
    owner.tell("shared.close()")
    with pytest.raises(errors.KeyRejected, match=r"view: .*has closed the share"):
        t.view()
    assert v.tolist() == [0, 0, 0, 0]


# ---- NumPy and DLPack ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not NUMPY_2, reason="NumPy before 2 does not pass copy=False on")
def test_asarray_without_a_copy_is_the_view(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros(4)")
    for given in (np.asarray(t, copy=False), np.array(t, copy=False), np.asarray(t, dtype="f8", copy=False)):
        given[1] += 1
    assert t[1] == 3
    with pytest.raises(ValueError, match=r"float64: a conversion to float32 .*\n  try: numpy.asarray"):
        np.asarray(t, dtype="f4", copy=False)
    assert np.asarray(t, dtype="f4").dtype == np.float32


def test_from_dlpack_is_the_view(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros((2, 3), 'f4')")
    assert t.__dlpack_device__() == (1, 0)
    d = np.from_dlpack(t)
    assert np.shares_memory(d, t.view())
    part = np.from_dlpack(t.at[:, 1])
    t[1, 1] = 5
    assert (d[1, 1], part[1]) == (5, 5)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="np.from_dlpack has no copy=")
def test_from_dlpack_copies_if_asked(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros((2, 3), 'f4')")
    copy = np.from_dlpack(t, copy=True)
    copy[...] = 1
    assert (t.read() == 0).all()
    assert not np.shares_memory(copy, t.view())


def test_torch_gets_the_view(owner: Owner, node: weft.Node, name: Name) -> None:
    torch = pytest.importorskip("torch")
    t = attach(owner, node, name("a"), "weft.zeros(5, 'f4')")
    tensor = torch.from_dlpack(t)
    tensor[3] = 2
    assert owner.tell("a.tolist()") == [0, 0, 0, 2, 0]


def test_remote_array_receives_from_another(owner: Owner, node: weft.Node, name: Name) -> None:
    """A remote array is a local buffer, through its view."""
    source = attach(owner, node, name("a"), "weft.zeros(5)")
    source[...] = 3
    local = weft.zeros(5)
    target = node.attach(node.share(local))
    source.read(out=target)
    assert local.tolist() == [3] * 5


def test_pickle_of_a_view_is_a_copy(owner: Owner, node: weft.Node, name: Name) -> None:
    v = attach(owner, node, name("a"), "weft.zeros(4)").view()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(v, protocol))
        copy[:] = 1
        assert v.tolist() == [0, 0, 0, 0]


# ---- lifetime --------------------------------------------------------------------------------------------------------


def test_view_of_a_view_keeps_the_memory(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros(1 << 16)")
    column = t.view().reshape(256, 256)[:, 3].view("i8")
    del t
    gc.collect()
    owner.tell("a.reshape(256, 256)[:, 3] = 1")
    assert (column == np.float64(1).view("i8")).all()


def test_view_outlives_the_node(owner: Owner, name: Name) -> None:
    with weft.open() as node:
        t = attach(owner, node, name("a"), "weft.zeros(4)")
        v, read_only = t.view(), t.view("r")
    v[2] = 5
    assert owner.tell("a.tolist()") == read_only.tolist() == [0, 0, 5, 0]
    with pytest.raises(errors.BadState, match="the node is closed"):
        t.view()


def mappings() -> int:
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum("weft-segment" in line for line in maps)


def test_views_of_an_array_share_a_mapping_that_ends_with_the_last(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros((100, 10))")
    t.read()
    before = mappings()
    views = [t.at[i].view() for i in range(100)]
    assert mappings() == before + 1
    views.append(t.view("r"))
    assert mappings() == before + 2
    views.clear()
    gc.collect()
    assert mappings() == before


def test_threads_make_and_drop_views(owner: Owner, node: weft.Node, name: Name) -> None:
    t = attach(owner, node, name("a"), "weft.zeros((8, 1000), 'i8')")
    failed: list[BaseException] = []

    def work(row: int) -> None:
        try:
            for i in range(300):
                v = t.at[row].view() if i % 3 else t.view()[row]
                v += 1
                assert v[0] == i + 1
                assert t.view("r")[row, -1] == i + 1
                del v
        except BaseException as reason:
            failed.append(reason)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert (t.read() == 300).all()


# ---- of this process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["r", "rw"])
@pytest.mark.parametrize("allocated", ["weft", "numpy", "bytearray"])
def test_view_of_an_array_of_this_process(node: weft.Node, access: str, allocated: str) -> None:
    made: Any = {
        "weft": lambda: weft.zeros((3, 4), "u1"),
        "numpy": lambda: np.zeros((3, 4), "u1"),
        "bytearray": lambda: bytearray(12),
    }[allocated]()
    shared = node.share(made, access=access)
    local = np.asarray(made)
    for source in (shared, node.attach(shared)):
        v = source.view()
        assert v.flags.writeable is (access == "rw")
        local[...] += 1
        assert np.array_equal(v, local)
        if access == "r":
            with pytest.raises(ValueError, match="WRITEABLE"):
                v.flags.writeable = True
        else:
            v[...] = 0
            assert not local.any()


def test_view_of_the_parents_memory_is_refused_in_a_forked_child(node: weft.Node) -> None:
    """The child's copy of memory that Weft did not allocate is not the array: a view of it would never change."""
    shared = node.share(np.zeros(4))
    ticket = shared.ticket
    shared.view()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            weft.attach(ticket).view()
        except errors.NotSupported as reason:
            code = 0 if "not allocated by Weft" in reason.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("make", [weft.zeros, np.zeros])
def test_view_outlives_the_array_of_this_process(node: weft.Node, make: Callable[[int], Any]) -> None:
    shared = node.share(make(1 << 16))
    v = shared.view()
    v[:] = 7
    shared.close()
    del shared
    gc.collect()
    others = [make(1 << 16) for _ in range(4)]
    for other in others:
        other[:] = 1
    assert (v == 7).all()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="reference counts")
def test_place_is_not_reused_in_this_process(node: weft.Node) -> None:
    local = weft.zeros(3 << 17)
    shared = node.share(local)
    at = local.ctypes.data
    v = shared.view("r")
    shared.close()
    shared.array = None
    del local
    gc.collect()
    others = [weft.zeros(3 << 17) for _ in range(4)]
    assert at not in [other.ctypes.data for other in others]
    del v
    gc.collect()
    others.append(weft.zeros(3 << 17))
    assert at == others[-1].ctypes.data
