"""A fake GPU: the fake driver of cuda.cpp, and arrays in its memory.

gpu = fakes.gpu.start()                 # builds the library, tells Weft of it (WEFT_CUDA_LIBRARY)
array = gpu.array(4096)                 # device memory: touching it from Python's side would end the process
array.put(b"...");  array.get()         # through the driver
"""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

from tests import patience

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "fakes"


def library(name: str) -> Path:
    """The shared library of a fake, compiled where it is older than its source."""
    source, target = HERE / f"{name}.cpp", BUILD / f"libfake_{name}.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
        assert compiler, "the fakes need a C++ compiler, as the build does"
        BUILD.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}.so")
        patience.run(
            [*compiler.split(), "-std=c++20", "-O1", "-shared", "-fPIC", "-o", str(made), str(source)],
            check=True,
            timeout=120,
        )
        made.replace(target)
    return target


class Array:
    """Memory of the fake driver, with the CUDA array interface."""

    def __init__(self, gpu: Gpu, address: int, nbytes: int, kind: str) -> None:
        self.gpu, self.address, self.nbytes, self.kind = gpu, address, nbytes, kind

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3, "strides": None}

    def __getitem__(self, index: slice) -> Array:
        start, stop, step = index.indices(self.nbytes)
        assert step == 1
        return Array(self.gpu, self.address + start, stop - start, self.kind)

    def __len__(self) -> int:
        return self.nbytes

    def put(self, data: bytes) -> Array:
        source = ctypes.create_string_buffer(data, len(data))
        self.gpu.check(self.gpu.lib.cuMemcpyAsync(self.address, ctypes.addressof(source), len(data), 1))
        return self

    def get(self) -> bytes:
        out = ctypes.create_string_buffer(self.nbytes)
        self.gpu.check(self.gpu.lib.cuMemcpyAsync(ctypes.addressof(out), self.address, self.nbytes, 1))
        return out.raw

    def free(self) -> None:
        self.gpu.check(self.gpu.lib.cuMemFree_v2(self.address))


class Gpu:
    """The fake driver, as a program uses it: contexts, allocations, copies."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.cuMemcpyAsync.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        self.lib.cuMemFree_v2.argtypes = [ctypes.c_uint64]
        self.lib.cuCtxPushCurrent_v2.argtypes = [ctypes.c_void_p]
        self.lib.fake_cuda_count.restype = ctypes.c_uint64
        self.check(self.lib.cuInit(0))

    def check(self, result: int) -> None:
        assert result == 0, f"the fake driver answered {result}"

    def array(self, nbytes: int, kind: str = "device", device: int = 0) -> Array:
        """Memory of `kind` device, managed or host (pinned), zeroed."""
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(nbytes)
        popped = ctypes.c_void_p()
        self.check(self.lib.cuCtxPushCurrent_v2(device + 1))
        if kind == "device":
            self.check(self.lib.cuMemAlloc_v2(ctypes.byref(address), size))
        elif kind == "managed":
            self.check(self.lib.cuMemAllocManaged(ctypes.byref(address), size, 1))
        else:
            self.check(self.lib.cuMemHostAlloc(ctypes.byref(address), size, 0))
        self.check(self.lib.cuCtxPopCurrent_v2(ctypes.byref(popped)))
        # The program's own copies need a context on this thread, as a real program has one.
        if not getattr(self, "_entered", False):
            self.check(self.lib.cuCtxPushCurrent_v2(1))
            self._entered = True
        return Array(self, address.value, nbytes, kind)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the driver's calls."""
        return {
            name: self.lib.fake_cuda_count(i)
            for i, name in enumerate(
                ("copies", "opens", "closes", "queries", "dmabufs", "registered", "registered_bytes")
            )
        }


_gpu: Gpu | None = None


def start() -> Gpu:
    """The fake of this process; child processes get it from the environment."""
    global _gpu
    if _gpu is None:
        path = library("cuda")
        os.environ["WEFT_CUDA_LIBRARY"] = str(path)
        _gpu = Gpu(path)
        from weft.memory import hmem

        hmem._loaded = None  # the NIC of this process may have looked for a driver before
    return _gpu
