"""ROCr's memory (FI_HMEM_ROCR), on a runtime without a GPU (tests/fakes/hsa.cpp), in processes of their own."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from tests.fakes import gpu as fake
from tests.procs.children import Child
from tests.procs.peer import CAPS, RW, Side, World

from weft import fi
from weft.memory import hmem

KEY = 3
N = 1 << 16
PATTERN = bytes(range(256)) * (N // 256)


def start(world: World) -> str:
    os.environ["WEFT_ROCR_LIBRARY"] = str(fake.library("hsa"))
    library = ctypes.CDLL(os.environ["WEFT_ROCR_LIBRARY"])
    library.fake_hsa_allocate.restype = ctypes.c_uint64
    library.fake_hsa_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
    world.more["hsa"] = library
    world.side = Side(caps=CAPS | fi.HMEM)
    return world.side.name


def allocate(world: World, gpu: int) -> tuple[int, int]:
    return world.more["hsa"].fake_hsa_allocate(N, gpu), N


def expose(world: World, gpu: int) -> tuple[int, int, str]:
    memory = allocate(world, gpu)
    attr = fi.MrAttr(mr_iov=[memory], access=int(RW), requested_key=KEY, iface=fi.HMEM_ROCR, device=max(gpu, 0))
    mr = world.side.domain.mr_regattr(attr, 0 if gpu >= 0 else fi.HMEM_HOST_ALLOC)
    world.side.regions.append(mr)
    found = hmem.locate(memory[0])
    assert found is not None
    return mr.iface, mr.device, found.kind


def exchange(world: World, name: str, gpu: int) -> Any:
    """Write from memory of a GPU (-1: pinned, -2: the host's own), read back there."""
    peer = world.side.av.insert(name)
    local: Any = allocate(world, gpu) if gpu >= -1 else np.zeros(N, np.uint8)
    nic = hmem._process.nic()
    staging = np.frombuffer(PATTERN, np.uint8).copy()
    address = local[0] if isinstance(local, tuple) else local.ctypes.data
    nic.hmem_copy(address, staging.ctypes.data, N)
    world.side.ep.write(local, dest_addr=peer, addr=0, key=KEY)
    world.side.done()
    staging[:] = 0
    nic.hmem_copy(address, staging.ctypes.data, N)
    world.side.ep.read(local, src_addr=peer, addr=0, key=KEY)
    world.side.done()
    nic.hmem_copy(staging.ctypes.data, address, N)
    return staging.tobytes()


@pytest.mark.procs
@pytest.mark.clause("mr.iface.rocr", "mr.attr.iface")
@pytest.mark.parametrize("p2p", ["0", "1"])
@pytest.mark.parametrize("gpu", [0, 1, -1])
def test_rocr_memory_is_reached_from_another_process(gpu: int, p2p: str) -> None:
    fake.library("hsa")
    with Child(FI_HMEM_DISABLE_P2P=p2p) as target, Child(FI_HMEM_DISABLE_P2P=p2p) as initiator:
        name = target.call(start)
        initiator.call(start)
        kind = "device" if gpu >= 0 else "host"
        iface = int(fi.HMEM_ROCR) if gpu >= 0 else 0
        assert target.call(expose, gpu) == (iface, max(gpu, 0), kind)
        for local in (0, -1, -2):
            assert initiator.call(exchange, name, local) == PATTERN
