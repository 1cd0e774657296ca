"""Memory of Level Zero (FI_HMEM_ZE) through the CXI provider, on a loader without a GPU (tests/fakes/ze.cpp), in
processes of their own: the environment decides what may be registered.

fi_cxi(7) "Heterogenous Memory (HMEM) Supported Interfaces", "FI_HMEM_ZE Limitations", "RUNTIME PARAMETERS".
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.cxi.support import CAPS, RW, opened
from tests.fakes import gpu as fake
from tests.fi.support import Node

from weft import fi
from weft.memory import hmem

ROOT = Path(__file__).parents[2]
N = 1 << 14
PATTERN = bytes(range(256)) * (N // 256)
HOST, DEVICE, SHARED = 1, 2, 3
OFF = {"EnableImplicitScaling": "0", "NEOReadDebugKeys": "1"}


class Ze:
    """The fake loader, as a program uses it."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(os.environ["WEFT_ZE_LIBRARY"])
        self.lib.fake_ze_allocate.restype = self.lib.fake_ze_count.restype = ctypes.c_uint64
        self.lib.fake_ze_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]

    def allocate(self, kind: int = DEVICE, device: int = 0, nbytes: int = N) -> tuple[int, int]:
        return self.lib.fake_ze_allocate(nbytes, kind, device), nbytes

    @property
    def copies(self) -> int:
        return int(self.lib.fake_ze_count(0))

    @property
    def exports(self) -> int:
        return int(self.lib.fake_ze_count(1))


def expose(node: Node, memory: Any, key: int = 300, **more: Any) -> fi.MemoryRegion:
    attr = fi.MrAttr(mr_iov=[memory], access=int(RW), requested_key=key, iface=fi.HMEM_ZE, **more)
    mr = node.keep(node.domain.mr_regattr(attr))
    mr.bind(node.ep)
    mr.enable()
    return mr


def put_and_get(node: Node, key: int, nbytes: int = N) -> bytes:
    node.ep.write(PATTERN[:nbytes], None, node.me, 0, key)
    node.wait()
    back = bytearray(nbytes)
    node.ep.read(back, None, node.me, 0, key)
    node.wait()
    return bytes(back)


def transfers() -> str:
    """Registers and transfers each kind of memory, of both devices of both drivers."""
    ze = Ze()
    with opened(CAPS | fi.HMEM) as node:
        for kind in (DEVICE, SHARED, HOST):
            for device in range(4):
                memory = ze.allocate(kind, device)
                number = fi.hmem_ze_device(device // 2, device % 2)
                mr = expose(node, memory, 300, device=number)
                found = hmem.locate(memory[0] + 100)
                assert found is not None
                assert (found.base, found.length) == memory, found
                assert kind == HOST or found.device == number, found
                assert mr.iface == (fi.HMEM_SYSTEM if kind == HOST else fi.HMEM_ZE), mr
                assert put_and_get(node, mr.key) == PATTERN
                other = ze.allocate(DEVICE, 3 - device)
                node.ep.read(other, None, node.me, 0, mr.key)
                node.wait()
                node.ep.write(bytes(N), None, node.me, 0, mr.key)
                node.wait()
                node.ep.write(other, None, node.me, 0, mr.key)
                node.wait()
                back = bytearray(N)
                node.ep.read(back, None, node.me, 0, mr.key)
                node.wait()
                assert back == PATTERN, "and as a local buffer"
                mr.close()
    return "ok"


def registers() -> str:
    """A registration's answer, and how often memory was exported as a DMA-buf for a window of the CPU."""
    ze = Ze()
    with opened(CAPS | fi.HMEM) as node:
        try:
            mr = expose(node, ze.allocate())
        except fi.NoSys as refused:
            return f"ENOSYS {refused.message}"
        assert put_and_get(node, mr.key) == PATTERN
        return f"ok {ze.exports}"


def asked(function: Any, **env: str) -> str:
    """The answer of a function of this file, in a process with this environment."""
    code = f"from tests.cxi.test_ze import {function.__name__}; print({function.__name__}())"
    clean = {name: value for name, value in os.environ.items() if name not in (*OFF, "FI_CXI_FORCE_ZE_HMEM_SUPPORT")}
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    whole = {**clean, "WEFT_ZE_LIBRARY": str(fake.library("ze")), "PYTHONPATH": paths, **env}
    done = patience.run([sys.executable, "-c", code], env=whole, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


@pytest.mark.clause("cxi.hmem.ze")
def test_memory_of_level_zero_is_registered_and_transferred() -> None:
    assert asked(transfers, **OFF) == "ok"


@pytest.mark.clause("cxi.hmem.ze-scaling", "cxi.hmem.ze-scaling-env", "cxi.env.ze-default")
@pytest.mark.parametrize(
    ("scaling", "keys"), [(None, None), ("0", None), (None, "1"), ("1", "1"), ("0", "0"), ("0", "1")]
)
def test_ze_memory_is_registered_only_without_implicit_scaling(scaling: str | None, keys: str | None) -> None:
    env = {name: value for name, value in zip(OFF, (scaling, keys), strict=True) if value is not None}
    answer = asked(registers, **env)
    if (scaling, keys) == ("0", "1"):
        assert answer.startswith("ok")
    else:
        assert answer.startswith("ENOSYS")
        for name, value in (("EnableImplicitScaling", scaling), ("NEOReadDebugKeys", keys)):
            assert f"{name} is {'not set' if value is None else value}" in answer


@pytest.mark.clause("cxi.hmem.ze-force", "cxi.env.ze-force")
def test_forced_ze_support_skips_the_check_of_implicit_scaling() -> None:
    assert asked(registers, FI_CXI_FORCE_ZE_HMEM_SUPPORT="0").startswith("ENOSYS")
    assert asked(registers, FI_CXI_FORCE_ZE_HMEM_SUPPORT="1").startswith("ok")


@pytest.mark.clause("cxi.hmem.dev-register-off", "cxi.env.disable-hmem-dev-register")
def test_without_device_registration_the_cpu_gets_no_window_into_ze_memory() -> None:
    assert asked(registers, FI_CXI_FORCE_ZE_HMEM_SUPPORT="1") == "ok 1"
    assert asked(registers, FI_CXI_FORCE_ZE_HMEM_SUPPORT="1", FI_CXI_DISABLE_HMEM_DEV_REGISTER="1") == "ok 0"
