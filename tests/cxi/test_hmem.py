"""Memory of devices through the CXI provider, on drivers without a GPU (tests/fakes).

fi_cxi(7) "Heterogenous Memory (HMEM) Supported Interfaces", "Translation".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import patience
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


# ---- buffers of messages without a receive ---------------------------------------------------------------------------

MESSAGES = int(fi.MSG | fi.TAGGED)
OFLOW_BYTES, OFLOW, REQUEST_BYTES, REQUESTS = 2 << 20, 3, 2 << 20, 4


def registered(gpu: fake.Gpu) -> tuple[int, int]:
    """Pieces of host memory that the driver has, and their bytes."""
    return gpu.counts["registered"], gpu.counts["registered_bytes"]


@pytest.mark.clause("cxi.env.disable-host-register-default")
@pytest.mark.parametrize(
    ("mode", "count", "each"), [("hardware", OFLOW, OFLOW_BYTES), ("software", REQUESTS, REQUEST_BYTES)]
)
def test_overflow_and_request_buffers_are_registered_with_the_gpu(
    gpu: fake.Gpu, monkeypatch: pytest.MonkeyPatch, mode: str, count: int, each: int
) -> None:
    monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", mode)
    before = registered(gpu)
    with opened(MESSAGES | fi.HMEM) as node:
        assert registered(gpu) == (before[0] + count, before[1] + count * each)
        assert node.ep.message_statistics().buffers_registered == count
    assert registered(gpu) == before


def test_buffer_that_is_added_later_is_registered_until_it_is_freed(
    gpu: fake.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_SIZE", "8192")
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_MIN_POSTED", "1")
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_MAX_CACHED", "1")
    monkeypatch.setenv("FI_CXI_RDZV_GET_MIN", "0")
    before = registered(gpu)[0]
    with opened(MESSAGES | fi.HMEM) as receiver, opened(MESSAGES) as sender:
        peer = sender.av.insert(receiver.name)
        assert registered(gpu)[0] == before + 1
        for _ in range(40):
            sender.ep.tsend(bytes(2000), None, peer, 1)
            sender.wait()
        assert registered(gpu)[0] > before + 5
        for _ in range(40):
            receiver.ep.trecv(bytearray(2000), tag=1)
            receiver.wait()
        assert registered(gpu)[0] - before == receiver.ep.message_statistics().buffers <= 2
    assert registered(gpu)[0] == before


@pytest.mark.clause("cxi.env.disable-host-register")
@pytest.mark.parametrize("mode", ["hardware", "software"])
def test_variable_keeps_the_buffers_from_the_gpu(gpu: fake.Gpu, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("FI_CXI_DISABLE_HOST_REGISTER", "1")
    monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", mode)
    before = registered(gpu)
    with opened(MESSAGES | fi.HMEM) as receiver, opened(MESSAGES) as sender:
        peer = sender.av.insert(receiver.name)
        sender.ep.tsend(PATTERN[:1000], None, peer, 1)
        sender.wait()
        assert registered(gpu) == before
        array = gpu.array(1000)
        receiver.ep.trecv(array, tag=1)
        receiver.wait()
        assert array.get() == PATTERN[:1000]


def test_buffers_without_hmem_are_not_registered(gpu: fake.Gpu) -> None:
    before = registered(gpu)
    with opened(MESSAGES) as node:
        assert registered(gpu) == before
        assert node.ep.message_statistics().buffers_registered == 0


@pytest.mark.parametrize("iface", [fi.HMEM_ZE, fi.HMEM_NEURON, 77])
def test_interface_and_device_of_the_attribute_are_ignored(gpu: fake.Gpu, iface: int) -> None:
    with opened(CAPS | fi.HMEM) as node:
        for memory, found in ((gpu.array(64), fi.HMEM_CUDA), (bytearray(64), fi.HMEM_SYSTEM)):
            attr = fi.MrAttr(mr_iov=[memory], access=int(RW), requested_key=300, iface=iface, device=99)
            with node.domain.mr_regattr(attr) as mr:
                assert mr.iface == found


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


# Prints the DMA-bufs that the registration asked for, and the copies of the runtime for a short write.
ROCR_COUNTS = """
import ctypes, os
from tests.cxi.support import CAPS, RW, opened
from weft import fi
library = ctypes.CDLL(os.environ["WEFT_ROCR_LIBRARY"])
library.fake_hsa_allocate.restype = library.fake_hsa_count.restype = ctypes.c_uint64
library.fake_hsa_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
with opened(CAPS | fi.HMEM) as node:
    memory = library.fake_hsa_allocate(4096, 0), 4096
    mr = node.keep(node.domain.mr_regattr(fi.MrAttr(mr_iov=[memory], access=int(RW), requested_key=300)))
    mr.bind(node.ep)
    mr.enable()
    before = library.fake_hsa_count(0)
    node.ep.write(b"short", None, node.me, 0, 300)
    node.wait()
    after = library.fake_hsa_count(0)
    back = bytearray(5)
    node.ep.read(back, None, node.me, 0, 300)
    node.wait()
    assert back == b"short", back
    print(library.fake_hsa_count(1), after - before)
"""


def run_rocr(script: str) -> str:
    env = {**os.environ, "WEFT_ROCR_LIBRARY": str(fake.library("hsa"))}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    done = patience.run([sys.executable, "-c", script], env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.clause("cxi.xlate.dmabuf-rocr-off")
@pytest.mark.parametrize(
    ("name", "value", "asked_and_copied"),
    [(None, "", "1 0"), ("FI_CXI_DISABLE_DMABUF_ROCR", "1", "0 1"), ("FI_HMEM_ROCR_USE_DMABUF", "0", "0 1")],
)
def test_rocr_memory_without_dmabufs_takes_the_runtime_s_path(
    monkeypatch: pytest.MonkeyPatch, name: str | None, value: str, asked_and_copied: str
) -> None:
    if name is not None:
        monkeypatch.setenv(name, value)
    assert run_rocr(ROCR_COUNTS) == asked_and_copied


@pytest.mark.clause("cxi.xlate.dmabuf-cuda-off")
@pytest.mark.parametrize(
    ("name", "value", "asked", "copied"),
    [(None, "", 1, 0), ("FI_CXI_DISABLE_DMABUF_CUDA", "1", 0, 1), ("FI_HMEM_CUDA_USE_DMABUF", "0", 0, 1)],
)
def test_cuda_memory_without_dmabufs_takes_the_driver_s_path(
    monkeypatch: pytest.MonkeyPatch, gpu: fake.Gpu, name: str | None, value: str, asked: int, copied: int
) -> None:
    if name is not None:
        monkeypatch.setenv(name, value)
    with opened(CAPS | fi.HMEM) as node:
        before = gpu.counts["dmabufs"]
        assert engine_copies(node, gpu, 64) == copied
        assert gpu.counts["dmabufs"] - before == asked


@pytest.mark.clause("cxi.hmem.rocr")
def test_rocr_memory_is_registered_and_transferred() -> None:
    assert run_rocr(ROCR) == "done"


# ---- windows of the CPU into device memory ---------------------------------------------------------------------------


def engine_copies(node: Node, gpu: fake.Gpu, nbytes: int) -> int:
    """How many copies of the device's engine a write of so many bytes to a new region of device memory takes."""
    array = gpu.array(N)
    with register(node, array, 300):
        before = gpu.counts["copies"]
        node.ep.write(PATTERN[:nbytes], None, node.me, 0, 300)
        node.wait()
        taken = gpu.counts["copies"] - before
    assert array.get()[:nbytes] == PATTERN[:nbytes]
    array.free()
    return taken


@pytest.mark.clause("cxi.env.hmem-dev-register-bar", "cxi.env.disable-hmem-dev-register")
def test_short_writes_to_device_memory_need_no_copy_engine(monkeypatch: pytest.MonkeyPatch, gpu: fake.Gpu) -> None:
    with opened(CAPS | fi.HMEM) as node:
        assert [engine_copies(node, gpu, nbytes) for nbytes in (1, 64, 4096)] == [0, 0, 0]
    monkeypatch.setenv("FI_CXI_DISABLE_HMEM_DEV_REGISTER", "1")
    with opened(CAPS | fi.HMEM) as node:
        assert [engine_copies(node, gpu, nbytes) for nbytes in (1, 64, 4096)] == [1, 1, 1]


@pytest.mark.clause("cxi.env.safe-devmem-copy-threshold")
@pytest.mark.parametrize(("threshold", "by_engine"), [(None, [0, 1, 1]), (0, [1, 1, 1]), (5000, [0, 0, 1])])
def test_threshold_is_the_longest_copy_by_the_cpu(
    monkeypatch: pytest.MonkeyPatch, gpu: fake.Gpu, threshold: int | None, by_engine: list[int]
) -> None:
    if threshold is not None:
        monkeypatch.setenv("FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD", str(threshold))
    with opened(CAPS | fi.HMEM) as node:
        assert [engine_copies(node, gpu, nbytes) for nbytes in (4096, 5000, 5001)] == by_engine


def test_forced_copies_by_the_cpu_have_any_length(monkeypatch: pytest.MonkeyPatch, gpu: fake.Gpu) -> None:
    monkeypatch.setenv("FI_CXI_FORCE_DEV_REG_COPY", "1")
    with opened(CAPS | fi.HMEM) as node:
        assert engine_copies(node, gpu, N) == 0


@pytest.mark.clause("cxi.xlate.dmabuf-default")
def test_device_memory_is_mapped_as_a_dmabuf_by_default(monkeypatch: pytest.MonkeyPatch, gpu: fake.Gpu) -> None:
    """The variables against DMA-bufs leave the copies of the device's library."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("fake-cuda")

    def mapped_by_registration(node: Node) -> int:
        array = gpu.array(N)
        before = mapped()
        with register(node, array, 300):
            made = mapped() - before
            assert put_and_get(node, 300) == PATTERN
        assert mapped() == before, "the mapping ends with the region"
        array.free()
        return made

    with opened(CAPS | fi.HMEM) as node:
        assert mapped_by_registration(node) == 1
    for name, value in (("FI_CXI_DISABLE_DMABUF_CUDA", "1"), ("FI_HMEM_CUDA_USE_DMABUF", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with opened(CAPS | fi.HMEM) as node:
                assert mapped_by_registration(node) == 0


def test_two_regions_of_an_allocation_share_its_window(gpu: fake.Gpu) -> None:
    with opened(CAPS | fi.HMEM) as node:
        array = gpu.array(N)
        first, second = register(node, array[:4096], 300), register(node, array[4096:], 301)
        first.close()
        before = gpu.counts["copies"]
        node.ep.write(b"still near", None, node.me, 0, 301)
        node.wait()
        assert gpu.counts["copies"] == before
        second.close()
        assert array.get()[4096:4106] == b"still near"


def test_window_of_freed_memory_reaches_no_other_allocation(gpu: fake.Gpu) -> None:
    """Against FI_MR_ALLOCATED; the window shows an allocation, not addresses."""
    with opened(CAPS | fi.HMEM) as node:
        array = gpu.array(N)
        register(node, array, 300)
        array.free()
        again = gpu.array(N)
        node.ep.write(b"late", None, node.me, 0, 300)
        if again.address == array.address:
            node.wait()
            assert again.get()[:4] == b"late"
        else:
            with pytest.raises(fi.Available):
                node.wait()
