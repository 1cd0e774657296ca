"""Memory of devices through the CXI provider, on drivers without a GPU (tests/fakes).

fi_cxi(7) "Heterogenous Memory (HMEM) Supported Interfaces", "Translation".
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cxi.support import CAPS, RW, opened, register
from tests.fakes import gpu as fake
from tests.fi.support import Node

from weft import fi
from weft.memory import hmem

N = 1 << 14
PATTERN = bytes(range(256)) * (N // 256)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gpu() -> fake.Gpu:
    return fake.start()


@pytest.fixture(params=[False, True], ids=["client keys", "provider keys"])
def node(request: pytest.FixtureRequest, gpu: fake.Gpu) -> Iterator[Node]:
    with opened(CAPS | fi.HMEM, prov_key=request.param) as found:
        yield found


def put_and_get(node: Node, key: int) -> bytes:
    node.ep.write(PATTERN, None, node.me, 0, key)
    node.wait()
    back = bytearray(N)
    node.ep.read(back, None, node.me, 0, key)
    node.wait()
    return bytes(back)


@pytest.mark.clause("cxi.hmem.cuda")
@pytest.mark.parametrize("named", [False, True])
def test_cuda_memory_is_registered_and_transferred(node: Node, gpu: fake.Gpu, named: bool) -> None:
    """Its kind is found from the address, also where `iface` names none."""
    array = gpu.array(N)
    iface = fi.HMEM_CUDA if named else fi.HMEM_SYSTEM
    mr = node.keep(node.domain.mr_regattr(fi.MrAttr(mr_iov=[array], access=int(RW), requested_key=300, iface=iface)))
    mr.bind(node.ep)
    mr.enable()
    assert mr.iface == fi.HMEM_CUDA
    assert put_and_get(node, mr.key) == PATTERN
    assert array.get() == PATTERN
    other = gpu.array(N).put(PATTERN[::-1])
    node.ep.write(other, None, node.me, 0, mr.key)
    node.wait()
    assert array.get() == PATTERN[::-1], "and as a local buffer"


@pytest.mark.clause("cxi.xlate.dmabuf")
def test_device_memory_is_registered_through_a_dmabuf(gpu: fake.Gpu) -> None:
    with opened(CAPS | fi.HMEM) as node:
        array = gpu.array(2 * N)
        fd, offset = hmem.export_dmabuf(array[4096 : 4096 + N])
        try:
            piece = fi.MrDmabuf(fd=fd, offset=offset, len=N, base_addr=array.address)
            attr = fi.MrAttr(access=int(RW), requested_key=300, dmabuf=piece)
            mr = node.keep(node.domain.mr_regattr(attr, fi.MR_DMABUF))
            mr.bind(node.ep)
            mr.enable()
            assert put_and_get(node, 300) == PATTERN
            assert array.get()[4096 : 4096 + N] == PATTERN
        finally:
            os.close(fd)


def test_pages_of_devices_are_not_touched(monkeypatch: pytest.MonkeyPatch, gpu: fake.Gpu) -> None:
    """Fork safety and pinning are about memory of the host."""
    monkeypatch.setenv("CXI_FORK_SAFE", "1")
    monkeypatch.setenv("WEFT_CXI_PIN", "1")
    from weft.providers.cxi import pages

    with opened(CAPS | fi.HMEM) as node:
        register(node, gpu.array(N), 300)
        assert pages.kept_from_children() == pages.locked() == []
        assert put_and_get(node, 300) == PATTERN


ROCR = """
import ctypes, os
from tests.cxi.support import CAPS, RW, opened
from tests.cxi.test_hmem import N, PATTERN, put_and_get
from weft import fi
library = ctypes.CDLL(os.environ["WEFT_ROCR_LIBRARY"])
library.fake_hsa_allocate.restype = ctypes.c_uint64
library.fake_hsa_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
with opened(CAPS | fi.HMEM) as node:
    memory = library.fake_hsa_allocate(N, 0), N
    attr = fi.MrAttr(mr_iov=[memory], access=int(RW), requested_key=300, iface=fi.HMEM_ROCR)
    mr = node.keep(node.domain.mr_regattr(attr))
    mr.bind(node.ep)
    mr.enable()
    assert mr.iface == fi.HMEM_ROCR, mr
    assert put_and_get(node, 300) == PATTERN
print("done")
"""


@pytest.mark.clause("cxi.hmem.rocr")
def test_rocr_memory_is_registered_and_transferred() -> None:
    env = {**os.environ, "WEFT_ROCR_LIBRARY": str(fake.library("hsa"))}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", ROCR], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("forced", ["0", "1"])
def test_level_zero_memory_is_refused(monkeypatch: pytest.MonkeyPatch, gpu: fake.Gpu, forced: str) -> None:
    """Weft has no way to it, so that FI_CXI_FORCE_ZE_HMEM_SUPPORT has nothing to force."""
    monkeypatch.setenv("FI_CXI_FORCE_ZE_HMEM_SUPPORT", forced)
    with opened(CAPS | fi.HMEM) as node, pytest.raises(fi.NoSys, match="HMEM_ZE"):
        node.domain.mr_regattr(fi.MrAttr(mr_iov=[bytearray(8)], access=int(RW), requested_key=300, iface=fi.HMEM_ZE))
