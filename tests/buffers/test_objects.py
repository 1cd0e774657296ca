"""Memory that holds pointers to Python objects: every call refuses it: a peer's write would crash the process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import ALL_CAPS, RW, Node, opened
from tests.ucp.support import ALL_RIGHTS, Rig, slot
from tests.ucp.support import opened as ucp_opened

import weft
from weft import fi, ucp
from weft.buffers import describe

MATCH = "pointers of this process"


class _Struct(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int64), ("b", ctypes.py_object))


class _Union(ctypes.Union):
    _fields_ = (("number", ctypes.c_int64), ("object", ctypes.py_object))


class _Packed(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("a", ctypes.c_int64), ("inner", _Union * 2))


class _Inherits(_Packed):
    _fields_ = (("more", ctypes.c_int64),)


class _Interface:
    """An object of which NumPy would make a structured array with a field of objects."""

    def __init__(self) -> None:
        self._data = np.zeros(2, "V16")
        self.__array_interface__ = dict(
            self._data.__array_interface__, typestr="|V16", descr=[("n", "<i8"), ("deep", [("o", "|O")])]
        )


KINDS: dict[str, Callable[[], Any]] = {
    "object array": lambda: np.array([None, "x"], object),
    "2-d object array": lambda: np.full((2, 2), None, object),
    "structured": lambda: np.zeros(2, [("n", "i8"), ("o", "O")]),
    "nested": lambda: np.zeros(2, [("n", "i8"), ("deep", [("time", "M8[s]"), ("o", "O", 2)])]),
    "record": lambda: np.zeros(2, [("n", "i8"), ("o", "O")]).view(np.recarray),
    "object scalar of a structure": lambda: np.zeros(2, [("n", "i8"), ("o", "O")])[0],
    "Fortran order": lambda: np.full((2, 3), None, object).T,
    "memoryview": lambda: memoryview(np.array([None, "x"], object)),
    "memoryview of structures": lambda: memoryview(np.zeros(2, [("n", "i8"), ("o", "O")])),
    "py_object": lambda: ctypes.py_object([]),
    "py_object array": lambda: (ctypes.py_object * 2)([], {}),
    "ctypes structure": lambda: _Struct(1, []),
    "ctypes union": lambda: _Union(1),
    "packed ctypes structure": _Packed,
    "array of inheriting structures": lambda: (_Inherits * 3)(),
    "memoryview of a union": lambda: memoryview(_Union(1)),
    "cast memoryview of a union": lambda: memoryview(_Union(1)).cast("B")[:8],
    "array interface": _Interface,
}
if hasattr(np.dtypes, "StringDType"):
    KINDS["StringDType"] = lambda: np.array(["a", "b" * 100], np.dtypes.StringDType())

FI_DOORS: dict[str, Callable[[Node, Any, int], Any]] = {
    "mr_reg": lambda n, x, key: n.domain.mr_reg(x, RW),
    "mr_reg with len": lambda n, x, key: n.domain.mr_reg(x, RW, requested_key=9, len=8),
    "mr_regv": lambda n, x, key: n.domain.mr_regv([bytearray(8), x], RW),
    "mr_regattr": lambda n, x, key: n.domain.mr_regattr(fi.MrAttr(mr_iov=[x], access=RW)),
    "write": lambda n, x, key: n.ep.write(x, dest_addr=n.me, addr=0, key=key),
    "read": lambda n, x, key: n.ep.read(x, src_addr=n.me, addr=0, key=key),
    "inject_write": lambda n, x, key: n.ep.inject_write(x, n.me, 0, key),
    "writev": lambda n, x, key: n.ep.writev([bytearray(8), x], dest_addr=n.me, addr=0, key=key),
    "readv": lambda n, x, key: n.ep.readv([x], src_addr=n.me, addr=0, key=key),
    "write_batch": lambda n, x, key: n.ep.write_batch(x, np.zeros(1, fi.RMA_DESC)),
    "read_batch": lambda n, x, key: n.ep.read_batch(x, np.zeros(1, fi.RMA_DESC)),
    "atomic": lambda n, x, key: n.ep.atomic(x, None, n.me, 0, key, fi.UINT64, fi.SUM),
    "fetch_atomic": lambda n, x, key: n.ep.fetch_atomic(slot(1), None, x, None, n.me, 0, key, fi.UINT64, fi.SUM),
    "compare_atomic": lambda n, x, key: n.ep.compare_atomic(
        slot(1), None, x, None, slot(0), None, n.me, 0, key, fi.UINT64, fi.CSWAP
    ),
}
UCP_DOORS: dict[str, Callable[[Rig, Any, ucp.MemHandle, ucp.RemoteKey], Any]] = {
    "mem_map": lambda r, x, memh, rkey: r.map(x),
    "mem_map with prot": lambda r, x, memh, rkey: r.map(x, prot=ALL_RIGHTS),
    "put_nbx": lambda r, x, memh, rkey: r.ep.put_nbx(x, memh.address, rkey),
    "get_nbx": lambda r, x, memh, rkey: r.ep.get_nbx(x, memh.address, rkey),
    "get_nbx of a list": lambda r, x, memh, rkey: r.ep.get_nbx([x], memh.address, rkey, datatype=ucp.DATATYPE_IOV),
    "atomic operand": lambda r, x, memh, rkey: r.ep.atomic_op_nbx(
        ucp.ATOMIC_OP_ADD, x, memh.address, rkey, datatype=ucp.dt_make_contig(8)
    ),
    "atomic reply": lambda r, x, memh, rkey: r.ep.atomic_op_nbx(
        ucp.ATOMIC_OP_ADD, 1, memh.address, rkey, reply_buffer=x
    ),
}


@pytest.fixture(scope="module")
def node() -> Iterator[tuple[Node, int]]:
    with opened(ALL_CAPS) as found:
        yield found, found.reg(bytearray(4096), requested_key=4).key


@pytest.fixture(scope="module")
def rig() -> Iterator[tuple[Rig, ucp.MemHandle, ucp.RemoteKey]]:
    with ucp_opened() as found, found.alloc() as memh, found.key(memh) as rkey:
        yield found, memh, rkey


@pytest.mark.parametrize("kind", KINDS)
def test_describe_of_objects_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match=MATCH):
        describe(KINDS[kind]())


@pytest.mark.parametrize("door", FI_DOORS)
@pytest.mark.parametrize("kind", KINDS)
def test_fi_call_with_objects_is_refused(node: tuple[Node, int], kind: str, door: str) -> None:
    with pytest.raises((TypeError, fi.FabricError), match=MATCH):
        FI_DOORS[door](node[0], KINDS[kind](), node[1])


@pytest.mark.parametrize("door", UCP_DOORS)
@pytest.mark.parametrize("kind", KINDS)
def test_ucp_call_with_objects_is_refused(rig: tuple[Rig, ucp.MemHandle, ucp.RemoteKey], kind: str, door: str) -> None:
    with pytest.raises((TypeError, ucp.UcsError), match=MATCH):
        UCP_DOORS[door](rig[0], KINDS[kind](), *rig[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_shared_array_of_objects_is_refused(kind: str) -> None:
    with weft.Node() as node, pytest.raises((TypeError, fi.FabricError), match="objects"):
        node.share(KINDS[kind]())


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(2, [("Out", "i8"), ("O", "f8")]),
        lambda: memoryview(np.zeros(2, [("Out", "i8"), ("O", "f8")])),
        lambda: np.zeros(2, [("Out", "M8[s]")]),
        lambda: (ctypes.c_int64 * 3)(),
        lambda: memoryview((ctypes.c_int64 * 3)()),
    ],
    ids=["O as a name", "memoryview", "no PEP 3118 format", "ctypes", "memoryview of ctypes"],
)
def test_array_without_objects_is_registered(node: tuple[Node, int], make: Callable[[], Any]) -> None:
    with node[0].domain.mr_reg(make(), RW, requested_key=77) as mr:
        assert mr.key == 77
