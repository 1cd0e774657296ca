"""Shared by the tests of weft.ucp: a context with a worker and an endpoint to it, and waits that end."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.fi.support import Addresses
from tests.procs.children import ROOT, environment

from weft import ucp

__all__ = ["Addresses", "Rig", "SilentPeer", "ended", "opened", "refused", "resident", "slot", "word"]

WATCHDOG_S = 30.0
PAGE = mmap.PAGESIZE
NO_IMM = ucp.OP_ATTR_FLAG_NO_IMM_CMPL
FORCE_IMM = ucp.OP_ATTR_FLAG_FORCE_IMM_CMPL
ALLOCATE, NONBLOCK, FIXED = int(ucp.MEM_MAP_ALLOCATE), int(ucp.MEM_MAP_NONBLOCK), int(ucp.MEM_MAP_FIXED)
SYMMETRIC = int(ucp.MEM_MAP_SYMMETRIC_RKEY)
ALL_RIGHTS = 0x303
OK, INPROGRESS = ucp.Status.OK, ucp.Status.INPROGRESS
BUSY, CANCELED, TIMED_OUT = ucp.Status.ERR_BUSY, ucp.Status.ERR_CANCELED, ucp.Status.ERR_TIMED_OUT
INVALID_PARAM, INVALID_ADDR = ucp.Status.ERR_INVALID_PARAM, ucp.Status.ERR_INVALID_ADDR
IO_ERROR, NO_MEMORY, NO_RESOURCE = ucp.Status.ERR_IO_ERROR, ucp.Status.ERR_NO_MEMORY, ucp.Status.ERR_NO_RESOURCE
UNREACHABLE, UNSUPPORTED = ucp.Status.ERR_UNREACHABLE, ucp.Status.ERR_UNSUPPORTED


@contextlib.contextmanager
def refused(status: ucp.Status, match: str | None = None) -> Iterator[pytest.ExceptionInfo[ucp.UcsError]]:
    """The block must raise a UcsError with this status and a text that matches the pattern."""
    with pytest.raises(ucp.UcsError, match=match) as found:
        yield found
    assert found.value.status is status, found.value


def ended(request: ucp.Request) -> ucp.Status:
    """Progress until an operation ends; returns its status."""
    with contextlib.suppress(ucp.UcsError):
        request.wait(WATCHDOG_S)
    assert request.done, f"{request!r} after {WATCHDOG_S} s"
    return request.status


@dataclass(repr=False)
class Rig:
    """A context, a worker, and a connected endpoint of the worker to itself."""

    context: ucp.Context
    worker: ucp.Worker
    ep: ucp.Endpoint

    def alloc(self, length: int = PAGE, **more: Any) -> ucp.MemHandle:
        return self.context.mem_map(length=length, allocate=True, **more)

    def map(self, *args: Any, **more: Any) -> ucp.MemHandle:
        return self.context.mem_map(*args, **more)

    def key(self, memh: ucp.MemHandle) -> ucp.RemoteKey:
        return self.ep.rkey_unpack(memh.pack())

    def put(self, data: Any, address: int, rkey: ucp.RemoteKey | None, **more: Any) -> ucp.Status:
        return ended(self.ep.put_nbx(data, address, rkey, **more))

    def get(self, count: int, address: int, rkey: ucp.RemoteKey, **more: Any) -> bytes:
        """Bytes of the peer's memory; raises if the access fails."""
        back = bytearray(count)
        self.ep.get_nbx(back, address, rkey, **more).wait(WATCHDOG_S)
        return bytes(back)

    def status_of_get(self, count: int, address: int, rkey: ucp.RemoteKey) -> ucp.Status:
        return ended(self.ep.get_nbx(bytearray(count), address, rkey))

    def flush(self) -> None:
        """Raises a failure that no request has reported."""
        self.ep.flush_nbx().wait(WATCHDOG_S)

    def pending(self, address: int, rkey: ucp.RemoteKey, **more: Any) -> ucp.Request:
        """A put of one byte that is under way until the worker progresses."""
        request = self.ep.put_nbx(b"p", address, rkey, flags=NO_IMM, **more)
        assert request
        assert request.status is INPROGRESS
        return request


@contextlib.contextmanager
def opened(features: int | None = None) -> Iterator[Rig]:
    with ucp.Context(features=features) as context:
        worker = context.worker_create()
        ep = worker.ep_create(worker.address)
        rig = Rig(context, worker, ep)
        if features is None or features & ucp.FEATURE_RMA:
            with rig.alloc() as memh, rig.key(memh) as rkey:
                assert rig.put(b"way", memh.address, rkey) is OK
        yield rig


def resident(address: int, pages: int) -> list[bool]:
    """The pages from an address on that exist (/proc/self/pagemap, bit 63)."""
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // PAGE * 8)
        return [bool(entry >> 63) for entry in memoryview(file.read(pages * 8)).cast("Q")]


def word(memh: ucp.MemHandle, at: int = 0, size: int = 8) -> int:
    """The unsigned number at an offset of mapped memory."""
    return int.from_bytes(memh.memory[at : at + size], sys.byteorder)


def slot(value: int, size: int = 8) -> bytearray:
    """A number as an operand or reply buffer."""
    return bytearray(value.to_bytes(size, sys.byteorder))


def mapped_text() -> int:
    """An address of this process's code, 8-byte aligned: readable, but not writable."""
    found = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
    assert found is not None
    return found & -8


def array(count: int = 64, dtype: Any = np.uint8) -> Any:
    return np.zeros(count, dtype)


_SILENT = """
import os, signal, sys
from weft import ucp
context = ucp.Context()
worker = context.worker_create()
memh = context.mem_map(length=8192, allocate=True)
print(worker.address.hex(), memh.pack().hex(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
sys.stdin.read()
"""


class SilentPeer:
    """A stopped process with mapped memory: operations posted to it stay under way until it continues or ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SILENT], cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            out = self._process.stdout
            assert out is not None
            assert select.select([out], [], [], WATCHDOG_S)[0], "the peer does not start"
            self.address, self.key = (bytes.fromhex(text) for text in out.readline().decode().split())
            assert os.WIFSTOPPED(os.waitpid(self._process.pid, os.WUNTRACED)[1])
        except BaseException:
            self.kill()
            raise

    def go_on(self) -> None:
        """Let the process continue."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the process again."""
        self._process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self._process.pid, os.WUNTRACED)[1])

    def kill(self) -> None:
        if self._process.returncode is not None:
            return
        self._process.kill()
        self._process.communicate()
