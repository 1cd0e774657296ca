"""weft.buffers: every kind of array has the right address, length and rights, and is held; errors are clear."""

from __future__ import annotations

import array
import ctypes
import gc
import itertools
import mmap
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.buffers.arraykinds import HAVE_NUMPY, HAVE_TORCH, KINDS, Kind, OnlyArrayInterface, OnlyDLPack

from weft import buffers
from weft.buffers import NotContiguous, ReadOnly, _dlpack, _info, describe, is_contiguous, scatter_list

needs_numpy = pytest.mark.skipif(not HAVE_NUMPY, reason="NumPy is not installed")
needs_torch = pytest.mark.skipif(not HAVE_TORCH, reason="PyTorch is not installed")
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def peek(info: buffers.BufferInfo) -> bytes:
    return ctypes.string_at(info.address, info.nbytes)


# ---- every kind ------------------------------------------------------------------------------------------------------


@every_kind
def test_describe_every_kind_gives_its_memory(kind: Kind) -> None:
    obj = kind.make(1024)
    info = describe(obj)
    assert info.nbytes == 1024
    assert info.door == kind.door
    assert info.readonly is not kind.writable
    assert (info.device, info.device_id, info.host_access) == (buffers.HMEM_SYSTEM, 0, True)
    assert info.itemsize * _info.count(info.shape) == 1024
    assert info.contiguous
    assert peek(info) == bytes(1024)
    if kind.writable:  # the object shows a write to the address
        ctypes.memset(info.address, 1, 1024)
        assert peek(describe(obj)) == b"\x01" * 1024
        assert describe(obj).address == info.address


@every_kind
def test_describe_every_kind_for_writing_needs_writable_memory(kind: Kind) -> None:
    obj = kind.make(64)
    if kind.writable:
        assert not describe(obj, writable=True).readonly
    else:
        with pytest.raises(ReadOnly, match="its memory is read-only"):
            describe(obj, writable=True)
        with pytest.raises(ReadOnly):
            scatter_list(obj, writable=True)


@every_kind
def test_scatter_list_of_one_piece_is_one_entry(kind: Kind) -> None:
    obj = kind.make(160)
    pieces = scatter_list(obj)
    assert pieces == [(pieces.info.address, 160)]


@every_kind
def test_keepalive_outlives_the_object(kind: Kind) -> None:
    obj = kind.make(1 << 20)
    info = describe(obj)
    del obj
    gc.collect()
    junk = [bytearray(b"\xff" * (1 << 20)) for _ in range(4)]
    assert peek(info) == bytes(1 << 20)
    del junk


@every_kind
def test_dropping_the_keepalive_lets_the_object_go(kind: Kind) -> None:
    obj = kind.make(64)
    before = sys.getrefcount(obj)
    for _ in range(3):
        describe(obj)
        scatter_list(obj)
    gc.collect()
    assert sys.getrefcount(obj) == before
    info = describe(obj)
    info.release()
    info.release()


@pytest.mark.parametrize("kind", [k for k in KINDS if k.name not in ("mmap", "bytes")], ids=lambda kind: kind.name)
def test_describe_empty_array_is_contiguous(kind: Kind) -> None:
    if "ctypes-2d" in kind.name or "cast" in kind.name:
        return
    info = describe(kind.make(0), writable=kind.writable)
    assert info.nbytes == 0
    assert scatter_list(kind.make(0)) == []


def test_buffer_hook_gives_what_the_extension_takes() -> None:
    data = bytearray(24)
    address, nbytes, readonly, device, keepalive = buffers.buffer_hook(data, True)
    assert (nbytes, readonly, device) == (24, False, 0)
    assert address == ctypes.addressof((ctypes.c_char * 24).from_buffer(data))
    assert keepalive is not None


def test_buffer_info_passes_through_the_door_again() -> None:
    info = describe(bytearray(8))
    assert describe(info, writable=True) is info


# ---- the export is held ----------------------------------------------------------------------------------------------


def test_bytearray_cannot_be_resized_while_described() -> None:
    data = bytearray(64)
    info = describe(data)
    with pytest.raises(BufferError):
        data.append(1)
    info.release()
    data.append(1)


def test_mmap_and_array_stay_while_described() -> None:
    mapped = mmap.mmap(-1, 4096)
    info = describe(mapped)
    with pytest.raises(BufferError):
        mapped.close()
    del info
    mapped.close()
    numbers = array.array("i", [1, 2, 3])
    info = describe(numbers)
    with pytest.raises(BufferError):
        numbers.append(4)
    del info
    numbers.append(4)


def test_memoryview_cannot_be_released_while_described() -> None:
    view = memoryview(bytearray(8))
    info = describe(view)
    with pytest.raises(BufferError):
        view.release()
    del info
    view.release()
    with pytest.raises(BufferError, match="does not export its buffer"):
        describe(view)


def test_mmap_readonly_is_readonly(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"weft" * 16)
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        info = describe(mapped)
        assert info.readonly
        assert peek(info) == b"weft" * 16
        info.release()


# ---- (address, length) -----------------------------------------------------------------------------------------------


def test_address_and_length_are_taken_as_they_are() -> None:
    info = describe((0x7F0000001000, 4096), writable=True)
    assert (info.address, info.nbytes, info.readonly, info.keepalive) == (0x7F0000001000, 4096, False, None)
    assert describe((0, 0)).nbytes == 0
    assert scatter_list((0x1000, 16)) == [(0x1000, 16)]


@needs_numpy
def test_address_may_be_a_numpy_integer() -> None:
    import numpy as np

    assert describe((np.uint64(1 << 63), np.int32(8))).address == 1 << 63


@pytest.mark.parametrize("pair", [(-1, 8), (4096, -8), ((1 << 64) - 4, 8), (0, 1)])
def test_impossible_address_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot use"):
        describe(pair)


@pytest.mark.parametrize("pair", [(), (1,), (1, 2, 3), ("a", 2), (1.0, 2), (True, 2)])
def test_other_tuples_are_refused(pair: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"\(address, length\)"):
        describe(pair)


# ---- no array --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "hint"),
    [
        ("text", "encode"),
        (7, "address, length"),
        ([1, 2], "array"),
        ({}, "array"),
        (None, "looked for"),
        (3.0, "looked for"),
    ],
)
def test_object_that_is_no_array_is_refused_with_a_hint(obj: object, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        describe(obj)


@needs_numpy
def test_classes_are_not_their_instances() -> None:
    import numpy as np

    with pytest.raises(TypeError):
        describe(np.ndarray)


@needs_numpy
def test_arrays_of_objects_are_refused() -> None:
    import numpy as np

    objects = np.array([None, "x"], dtype=object)
    with pytest.raises(TypeError, match="pointers of this process"):
        describe(objects)
    with pytest.raises(TypeError, match="pointers of this process"):
        describe(OnlyArrayInterface(objects))
    with pytest.raises(TypeError, match="pointers of this process"):
        describe(np.zeros(2, dtype=[("a", "i4"), ("b", "O")]))
    with pytest.raises(TypeError, match="pointers of this process"):
        describe(np.zeros(2, dtype=[("when", "M8[s]"), ("b", "O")]))


# ---- strides ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [
        ((), (), True),
        ((4,), (8,), True),
        ((4,), (16,), False),
        ((4,), (-8,), False),
        ((1,), (12345,), True),
        ((2, 3), (24, 8), True),
        ((2, 3), (8, 16), False),
        ((2, 1, 3), (24, 999, 8), True),
        ((1, 3), (-5, 8), True),
        ((0, 3), (1, 1), True),
        ((3, 0), (7, 7), True),
        ((2, 2), (0, 8), False),
    ],
)
def test_contiguity_ignores_short_dimensions(
    shape: tuple[int, ...], strides: tuple[int, ...], contiguous: bool
) -> None:
    assert is_contiguous(shape, strides, 8) is contiguous


def test_strided_memoryview_is_refused_with_the_remedy() -> None:
    view = memoryview(bytearray(16))[::2]
    with pytest.raises(
        NotContiguous, match=r"shape \(8,\), strides \(2,\) bytes, itemsize 1\n  try: numpy.ascontiguousarray"
    ):
        describe(view)
    pieces = scatter_list(view, writable=True)
    assert pieces == [(pieces.info.address + 2 * i, 1) for i in range(8)]


@needs_numpy
def test_fortran_order_is_refused_with_the_transpose() -> None:
    import numpy as np

    a = np.zeros((3, 4), order="F")
    with pytest.raises(NotContiguous, match=r"a\.T"):
        describe(a)
    assert describe(a.T).address == a.ctypes.data


def _wrappings() -> list[Any]:
    wrappings: list[Any] = [
        pytest.param(lambda a: a, id="buffer"),
        pytest.param(OnlyArrayInterface, id="array_interface"),
        pytest.param(lambda a: OnlyDLPack(a, versioned=True), id="dlpack"),
    ]
    return wrappings if HAVE_NUMPY else []


@pytest.mark.parametrize("wrap", _wrappings())
@pytest.mark.parametrize(
    "index",
    [
        (slice(None), slice(None), slice(0, 3)),
        (slice(None, None, 2),),
        (slice(None, None, -1),),
        (slice(1, 3), slice(2, 4)),
        (Ellipsis, 1),
        (slice(None), 2),
        (slice(0, 1), slice(None, None, 3), slice(None, None, -2)),
        (slice(0, 0),),
        (),
        (1, 2, 3),
    ],
    ids=str,
)
def test_scatter_list_reads_as_the_array(wrap: Any, index: tuple[Any, ...]) -> None:
    import numpy as np

    whole = np.arange(4 * 6 * 5, dtype=np.int32).reshape(4, 6, 5)
    part = whole[index]
    if not isinstance(part, np.ndarray):
        part = whole[1, 2, 3:4].reshape(())
    for array_ in (part, part.T):
        pieces = scatter_list(wrap(array_), writable=True)
        assert b"".join(ctypes.string_at(address, length) for address, length in pieces) == array_.tobytes()
        assert all(a + n != b for (a, n), (b, _) in itertools.pairwise(pieces)), "neighbours are joined"
        if array_.flags.c_contiguous:
            assert len(pieces) <= 1
            assert describe(wrap(array_)).nbytes == array_.nbytes


@needs_numpy
def test_scatter_list_holds_the_array() -> None:
    import numpy as np

    a = np.arange(100, dtype=np.int64)[::7]
    pieces = scatter_list(a)
    expected = a.tobytes()
    del a
    gc.collect()
    assert b"".join(ctypes.string_at(address, length) for address, length in pieces) == expected


@needs_numpy
def test_broadcast_is_read_but_not_written() -> None:
    import numpy as np

    a = np.lib.stride_tricks.as_strided(np.arange(3, dtype=np.uint8), (2, 3), (0, 1))
    assert [n for _, n in scatter_list(a)] == [3, 3]
    with pytest.raises(ValueError, match="share memory"):
        scatter_list(a, writable=True)


# ---- __array_interface__, by hand ------------------------------------------------------------------------------------


class Interface:
    """An object with any interface dictionary."""

    def __init__(self, **fields: Any) -> None:
        self.__array_interface__ = {"shape": (4,), "typestr": "<i4", "version": 3, **fields}


def test_array_interface_with_a_buffer_and_an_offset() -> None:
    data = bytearray(range(32))
    info = describe(Interface(data=data, offset=8), writable=True)
    assert peek(info) == bytes(range(8, 24))
    with pytest.raises(BufferError):
        data.append(0)
    assert describe(Interface(data=bytes(16))).readonly
    assert describe(Interface(data=bytes(16), typestr="<U2", shape=(2,))).nbytes == 16  # UCS-4


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"data": (0, False)}, "null pointer"),
        ({"data": (4096,)}, "read-only"),
        ({"data": (4096, False, 0)}, "read-only"),
        ({"data": 17}, "neither"),
        ({}, "neither"),
        ({"data": bytearray(15)}, "do not fit"),
        ({"data": bytearray(16), "offset": 4}, "do not fit"),
        ({"data": bytearray(16), "offset": -4}, "do not fit"),
        ({"data": bytearray(16), "offset": 16, "strides": (-4,)}, "do not fit"),
        ({"data": (4096, False), "strides": (4, 4)}, "1 lengths but 2 strides"),
        ({"data": (4096, False), "shape": (-1,)}, "negative"),
        ({"data": (4096, False), "shape": None}, "not valid"),
        ({"data": (4096, False), "typestr": "|t3"}, "typestr"),
        ({"data": (4096, False), "typestr": "int"}, "typestr"),
    ],
)
def test_array_interface_that_contradicts_itself_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        describe(Interface(**fields))


def test_array_interface_that_is_masked_or_no_dict_is_refused() -> None:
    with pytest.raises(BufferError, match="masked"):
        describe(Interface(data=(4096, False), mask=object()))
    wrong: Any = Interface()
    wrong.__array_interface__ = 3
    with pytest.raises(TypeError, match="must be a dict"):
        describe(wrong)


# ---- devices ---------------------------------------------------------------------------------------------------------


class FakeCuda:
    """The interface of CuPy and Numba for device memory."""

    def __init__(self, **fields: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (0x7F1000000000, False),
            "version": 3,
            **fields,
        }


def test_cuda_array_interface_is_device_memory() -> None:
    info = describe(FakeCuda(strides=None, stream=1), writable=True)
    assert (info.address, info.nbytes, info.device, info.device_id) == (0x7F1000000000, 24, buffers.HMEM_CUDA, -1)
    assert not info.host_access
    assert info.strides == (12, 4)


@pytest.mark.parametrize(("device", "number"), [((2, 1), 1), ((10, 1), -1)], ids=["CUDA", "ROCm"])
def test_cuda_array_interface_has_the_number_of_a_cuda_device(device: tuple[int, int], number: int) -> None:
    class OnDevice(FakeCuda):
        def __dlpack_device__(self) -> tuple[int, int]:
            return device

    assert describe(OnDevice()).device_id == number


def test_cuda_array_interface_strides_readonly_and_empty() -> None:
    with pytest.raises(NotContiguous):
        describe(FakeCuda(strides=(24, 4)))
    assert scatter_list(FakeCuda(strides=(24, 4))) == [(0x7F1000000000, 12), (0x7F1000000018, 12)]
    with pytest.raises(ReadOnly):
        describe(FakeCuda(data=(0x7F1000000000, True)), writable=True)
    assert describe(FakeCuda(shape=(0, 3), data=(0, False))).nbytes == 0
    with pytest.raises(ValueError, match="null pointer"):
        describe(FakeCuda(data=(0, False)))
    with pytest.raises(ValueError, match="read-only"):
        describe(FakeCuda(data=None))


def test_cuda_array_interface_that_raises_is_reported() -> None:
    class NeedsGrad:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")

    with pytest.raises(BufferError, match="requires grad"):
        describe(NeedsGrad())


_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_new.restype = ctypes.py_object
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class FakeDLPack:
    """A DLPack tensor made by hand, that counts the calls of its deleter."""

    def __init__(
        self,
        device: tuple[int, int] = (2, 1),
        shape: tuple[int, ...] = (2, 3),
        strides: tuple[int, ...] | None = None,
        dtype: tuple[int, int, int] = (2, 32, 1),
        data: int | None = 0x7F2000000000,
        offset: int = 0,
        version: tuple[int, int] | None = (1, 1),
        flags: int = 0,
        deleter: bool = True,
        name: bytes | None = None,
    ) -> None:
        self.deleted = 0
        self._device, self._versioned = device, version is not None
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(strides))(*strides) if strides is not None else None
        self._delete = _DELETER(self._count)
        tensor = _dlpack._DLTensor(
            data,
            _dlpack._DLDevice(*device),
            len(shape),
            _dlpack._DLDataType(*dtype),
            ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64)) if self._strides is not None else None,
            offset,
        )
        pointer = ctypes.cast(self._delete, ctypes.c_void_p).value if deleter else None
        self._managed: ctypes.Structure
        if version is None:
            self._managed = _dlpack._DLManagedTensor(tensor, None, pointer)
        else:
            self._managed = _dlpack._DLManagedTensorVersioned(*version, None, pointer, flags, tensor)
        self.name = name or (b"dltensor" if version is None else b"dltensor_versioned")
        self.capsules: list[Any] = []

    def _count(self, managed: int) -> None:
        assert managed == ctypes.addressof(self._managed)
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        assert max_version == (1, 1)
        self.capsules.append(_capsule_new(ctypes.addressof(self._managed), self.name, None))
        return self.capsules[-1]


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1)])
def test_dlpack_cuda_device_and_its_deleter(version: tuple[int, int] | None) -> None:
    tensor = FakeDLPack(version=version, offset=256)
    info = describe(tensor, writable=True)
    assert (info.address, info.nbytes, info.device, info.device_id) == (0x7F2000000100, 24, buffers.HMEM_CUDA, 1)
    assert (info.format, info.host_access, info.strides) == ("float32", False, (12, 4))
    assert tensor.deleted == 0
    tensor.__dlpack__ = None  # type: ignore[method-assign,assignment]
    again = OnlyCapsule(tensor.capsules[0])
    with pytest.raises(ValueError, match="used already"):  # the capsule is consumed
        describe(again)
    del info
    gc.collect()
    assert tensor.deleted == 1


class OnlyCapsule:
    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def test_dlpack_deleter_is_called_once_by_release() -> None:
    tensor = FakeDLPack()
    info = describe(tensor)
    info.release()
    info.release()
    del info
    gc.collect()
    assert tensor.deleted == 1


@pytest.mark.parametrize(
    ("device_type", "device", "host_access"),
    [
        (1, buffers.HMEM_SYSTEM, True),
        (2, buffers.HMEM_CUDA, False),
        (3, buffers.HMEM_SYSTEM, True),
        (10, buffers.HMEM_ROCR, False),
        (11, buffers.HMEM_SYSTEM, True),
        (13, buffers.HMEM_CUDA, True),
        (14, buffers.HMEM_ZE, False),
    ],
)
def test_dlpack_device_types(device_type: int, device: int, host_access: bool) -> None:
    info = describe(FakeDLPack(device=(device_type, 0)))
    assert (info.device, info.host_access) == (device, host_access)


def test_dlpack_unknown_device_is_refused_before_export() -> None:
    tensor = FakeDLPack(device=(8, 0))
    with pytest.raises(BufferError, match="device type 8"):
        describe(tensor)
    assert tensor.capsules == []


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"version": (2, 0)}, BufferError, "version 2.0"),
        ({"flags": 2}, BufferError, "exports a copy"),
        ({"dtype": (0, 4, 1)}, BufferError, "4 bits an element"),
        ({"data": None}, ValueError, "null pointer"),
    ],
)
def test_dlpack_refused_tensor_is_given_back(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    tensor = FakeDLPack(**arguments)
    with pytest.raises(error, match=match):
        describe(tensor)
    gc.collect()
    assert tensor.deleted == 1


def test_dlpack_strides_are_elements_and_lanes_count() -> None:
    with pytest.raises(NotContiguous, match=r"strides \(32, 4\) bytes"):
        describe(FakeDLPack(strides=(8, 1)))
    assert scatter_list(FakeDLPack(strides=(8, 1))) == [(0x7F2000000000, 12), (0x7F2000000020, 12)]
    info = describe(FakeDLPack(strides=(99, 1), shape=(1, 3), dtype=(2, 32, 4)))
    assert (info.itemsize, info.nbytes, info.format) == (16, 48, "float32x4")
    assert describe(FakeDLPack(shape=(), strides=None)).nbytes == 4
    assert describe(FakeDLPack(shape=(0, 3), data=None)).nbytes == 0


def test_dlpack_readonly_flag_and_missing_deleter() -> None:
    with pytest.raises(ReadOnly):
        describe(FakeDLPack(flags=1), writable=True)
    describe(FakeDLPack(deleter=False)).release()


def test_dlpack_wrong_capsule_is_refused() -> None:
    with pytest.raises(ValueError, match="no DLPack capsule"):
        describe(FakeDLPack(name=b"something else"))
    with pytest.raises(ValueError, match="no DLPack capsule"):
        describe(OnlyCapsule(3))


@needs_numpy
def test_dlpack_holds_numpy_memory() -> None:
    import numpy as np

    class Tracked(np.ndarray[Any, Any]):
        pass

    a = np.zeros(1000).view(Tracked)
    alive = weakref.ref(a)
    info = describe(OnlyDLPack(a, versioned=True))
    del a
    gc.collect()
    assert alive() is not None
    info.release()
    del info
    gc.collect()
    assert alive() is None


# ---- torch -----------------------------------------------------------------------------------------------------------


@needs_torch
def test_torch_tensor_shares_its_memory() -> None:
    import torch

    assert describe(torch.zeros(5, dtype=torch.float8_e5m2)).format == "float8_e5m2"
    tensor = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    info = describe(tensor, writable=True)
    assert (info.address, info.nbytes, info.format) == (tensor.data_ptr(), 24, "bfloat16")
    with pytest.raises(NotContiguous):
        describe(tensor.t())
    assert [n for _, n in scatter_list(tensor[:, :2])] == [4, 4, 4]


@needs_torch
def test_torch_tensor_with_gradient_is_refused_with_a_remedy() -> None:
    import torch

    tensor = torch.zeros(4, requires_grad=True)
    with pytest.raises(BufferError, match="detach"):
        describe(tensor)
    assert describe(tensor.detach()).nbytes == 16


# ---- imports ---------------------------------------------------------------------------------------------------------


def test_import_brings_no_array_library() -> None:
    script = (
        "import sys; from weft import buffers; buffers.describe(bytearray(3)); "
        "sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
