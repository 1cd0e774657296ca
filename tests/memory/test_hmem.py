"""Device memory (FI_HMEM) in one process, on a driver without a GPU (tests/fakes/cuda.cpp)."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fakes import gpu as fake
from tests.fi.support import ALL_CAPS, RW, Node, hints, pair

from weft import fi
from weft.memory import hmem

HMEM = ALL_CAPS | fi.HMEM
KEY = 5
N = 1 << 16
PATTERN = bytes(range(256)) * (N // 256)


@pytest.fixture(scope="module")
def gpu() -> fake.Gpu:
    return fake.start()


@pytest.fixture
def duo(gpu: fake.Gpu) -> Iterator[tuple[Node, Node, int]]:
    with pair(HMEM) as found:
        yield found


@pytest.fixture
def strict_duo(gpu: fake.Gpu) -> Iterator[tuple[Node, Node, int]]:
    """Under FI_MR_HMEM."""
    with pair(HMEM, mr_mode=int(fi.MR_HMEM)) as found:
        yield found


def attr(buffer: Any, iface: int = fi.HMEM_CUDA, device: int = 0, **more: Any) -> fi.MrAttr:
    return fi.MrAttr(
        mr_iov=[buffer], access=int(RW | fi.READ | fi.WRITE), requested_key=KEY, iface=iface, device=device, **more
    )


def put_and_get(initiator: Node, peer: int, nbytes: int = N) -> bytes:
    """Write a pattern into the region of KEY, read it back."""
    initiator.ep.write(PATTERN[:nbytes], dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    back = bytearray(nbytes)
    initiator.ep.read(back, src_addr=peer, addr=0, key=KEY)
    initiator.wait()
    return bytes(back)


# ---- what getinfo says ----------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.hmem.capability")
def test_hmem_mode_goes_with_the_hmem_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MR_MODE", "hmem")
    without = fi.getinfo(hints=hints(ALL_CAPS))[0]
    assert not without.caps & fi.HMEM
    assert not without.domain_attr.mr_mode & fi.MR_HMEM
    having = fi.getinfo(hints=hints(HMEM, int(fi.MR_HMEM)))[0]
    assert having.caps & fi.HMEM
    assert having.domain_attr.mr_mode & fi.MR_HMEM
    with pytest.raises(fi.NoData, match="MR_HMEM"):
        fi.getinfo(hints=hints(HMEM))


def test_getinfo_mr_hmem_is_cleared_if_not_needed() -> None:
    assert not fi.getinfo(hints=hints(HMEM, int(fi.MR_HMEM)))[0].domain_attr.mr_mode & fi.MR_HMEM


@pytest.mark.clause("mr.p2p.no-hmem", "mr.p2p.env")
def test_hmem_is_not_offered_without_copies_and_without_p2p(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.fi import registry
    from weft.providers.general import General

    class Pinning(General):
        name = "pinning"
        copies_device_memory = False

    registry.register(Pinning())
    try:
        asked = fi.Info(caps=HMEM, fabric_attr=fi.FabricAttr(prov_name="pinning"))
        assert fi.getinfo(hints=asked)[0].caps & fi.HMEM
        monkeypatch.setenv("FI_HMEM_DISABLE_P2P", "1")
        with pytest.raises(fi.NoData, match="FI_HMEM_DISABLE_P2P"):
            fi.getinfo(hints=asked)
        # A provider that copies keeps the capability.
        assert fi.getinfo(hints=hints(HMEM))[0].caps & fi.HMEM
    finally:
        registry._providers.pop("pinning")


def test_p2p_switch_that_is_not_understood_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_HMEM_DISABLE_P2P", "maybe")
    with pytest.raises(fi.InvalidArgument, match=r"FI_HMEM_DISABLE_P2P='maybe'.*\n.*0, 1"):
        fi.getinfo(hints=hints(HMEM))


# ---- FI_MR_HMEM unset -----------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.hmem.unset-any-call", "mr.hmem.unset-discover", "mr.iface.cuda", "mr.device.cuda")
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("call", ["mr_reg", "mr_regv", "mr_regattr", "address"])
def test_device_memory_is_registered_by_any_call(
    duo: tuple[Node, Node, int], gpu: fake.Gpu, call: str, device: int
) -> None:
    initiator, target, peer = duo
    array = gpu.array(N, device=device)
    domain = target.domain
    if call == "mr_reg":
        mr = domain.mr_reg(array, RW, requested_key=KEY)
    elif call == "mr_regv":
        mr = domain.mr_regv([array[: N // 2], array[N // 2 :]], RW, requested_key=KEY)
    elif call == "mr_regattr":
        mr = domain.mr_regattr(attr(array, iface=fi.HMEM_SYSTEM))
    else:
        mr = domain.mr_reg((array.address, N), RW, requested_key=KEY)
    target.keep(mr)
    assert (mr.iface, mr.device) == (fi.HMEM_CUDA, device)
    assert f"HMEM_CUDA {device}" in repr(mr)
    assert put_and_get(initiator, peer) == PATTERN
    assert array.get() == PATTERN


@pytest.mark.clause("mr.hmem.unset-no-register", "mr.hmem.unset-null-desc", "mr.local.hidden-by-cache")
@pytest.mark.parametrize("nbytes", [1, 8, 4096, N])
def test_unregistered_device_buffers_serve_local_operations(
    duo: tuple[Node, Node, int], gpu: fake.Gpu, nbytes: int
) -> None:
    initiator, target, peer = duo
    memory = np.zeros(N, np.uint8)
    target.reg(memory, requested_key=KEY)
    source, sink = gpu.array(nbytes).put(PATTERN[:nbytes]), gpu.array(nbytes)
    initiator.ep.write(source, dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert memory[:nbytes].tobytes() == PATTERN[:nbytes]
    assert not memory[nbytes:].any()
    initiator.ep.read(sink, src_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert sink.get() == PATTERN[:nbytes]


@pytest.mark.clause("mr.hmem.unset-valid-desc")
def test_device_buffer_with_a_valid_desc_is_transferred(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = duo
    memory = np.zeros(N, np.uint8)
    target.reg(memory, requested_key=KEY)
    array = gpu.array(N).put(PATTERN)
    local = initiator.keep(initiator.domain.mr_reg(array, fi.WRITE | fi.READ))
    initiator.ep.write(array, local.desc, dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert memory.tobytes() == PATTERN
    memory[:] = 7
    initiator.ep.read(local[100:200], src_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert array.get() == PATTERN[:100] + b"\x07" * 100 + PATTERN[200:]


@pytest.mark.parametrize("kind", ["device", "managed", "host"])
def test_every_kind_of_allocation_is_reached_from_both_ends(
    duo: tuple[Node, Node, int], gpu: fake.Gpu, kind: str
) -> None:
    initiator, target, peer = duo
    array, local = gpu.array(N, kind), gpu.array(N, kind).put(PATTERN)
    target.reg((array.address, N), requested_key=KEY)
    initiator.ep.write((local.address, N), dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert array.get() == PATTERN


def test_lists_mix_device_and_host_buffers(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = duo
    first, last = gpu.array(300), gpu.array(500)
    middle = np.zeros(200, np.uint8)
    target.keep(target.domain.mr_regv([first, middle, last], RW, requested_key=KEY))
    pieces = [gpu.array(250).put(PATTERN[:250]), PATTERN[250:600], gpu.array(400).put(PATTERN[600:1000])]
    initiator.ep.writev(pieces, dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert first.get() + middle.tobytes() + last.get() == PATTERN[:1000]
    back = [np.zeros(10, np.uint8), gpu.array(980), np.zeros(10, np.uint8)]
    initiator.ep.readv(back, src_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert back[0].tobytes() + back[1].get() + back[2].tobytes() == PATTERN[:1000]


def test_batches_take_device_memory(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = duo
    array = gpu.array(1024)
    target.reg(array, requested_key=KEY)
    descs = np.zeros(4, fi.RMA_DESC)
    descs["local_offset"] = np.arange(4) * 64
    descs["length"] = 64
    descs["dest_addr"] = peer
    descs["remote_addr"] = np.arange(4) * 256
    descs["key"] = KEY
    initiator.ep.write_batch(gpu.array(256).put(PATTERN[:256]), descs)
    initiator.wait()
    assert [array.get()[i * 256 : i * 256 + 65] for i in range(4)] == [
        PATTERN[i * 64 : i * 64 + 64] + b"\0" for i in range(4)
    ]
    with pytest.raises(fi.InvalidArgument, match="descs is device memory"):
        initiator.ep.write_batch(np.zeros(256, np.uint8), gpu.array(192))


@pytest.mark.parametrize("where", ["operand", "result", "target", "all"])
def test_atomics_take_device_memory(duo: tuple[Node, Node, int], gpu: fake.Gpu, where: str) -> None:
    initiator, target, peer = duo

    def place(name: str, values: list[int]) -> Any:
        data = np.array(values, np.uint64)
        return gpu.array(data.nbytes).put(data.tobytes()) if where in (name, "all") else data

    def values_of(buffer: Any) -> list[int]:
        raw = buffer.get() if isinstance(buffer, fake.Array) else buffer.tobytes()
        return np.frombuffer(raw, np.uint64).tolist()  # type: ignore[no-any-return]

    word, operand, result = place("target", [10, 20]), place("operand", [1, 2]), place("result", [0, 0])
    target.reg(word, requested_key=KEY)
    initiator.ep.fetch_atomic(operand, None, result, None, peer, 0, KEY, datatype=fi.UINT64, op=fi.SUM)
    initiator.wait()
    assert (values_of(word), values_of(result)) == ([11, 22], [10, 20])
    compare = place("operand", [11, 0])
    initiator.ep.compare_atomic(
        operand, None, compare, None, result, None, peer, 0, KEY, datatype=fi.UINT64, op=fi.CSWAP
    )
    initiator.wait()
    assert (values_of(word), values_of(result)) == ([1, 22], [11, 22])
    initiator.ep.atomicv([operand], None, peer, 0, KEY, datatype=fi.UINT64, op=fi.SUM)
    initiator.wait()
    assert values_of(word) == [2, 24]


def test_inject_takes_device_memory(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = duo
    memory = np.zeros(64, np.uint8)
    target.reg(memory, requested_key=KEY)
    initiator.ep.inject_write(gpu.array(64).put(PATTERN[:64]), peer, 0, KEY)
    initiator.ep.read(np.zeros(1, np.uint8), src_addr=peer, addr=0, key=KEY)  # behind it
    initiator.wait()
    assert memory.tobytes() == PATTERN[:64]


def test_copy_that_the_driver_refuses_is_an_error_completion(
    duo: tuple[Node, Node, int], gpu: fake.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    initiator, target, peer = duo
    array = gpu.array(64)
    target.reg(array, requested_key=KEY)
    monkeypatch.setenv("WEFT_FAKE_CUDA_FAIL", "copy")
    initiator.ep.write(b"x" * 64, dest_addr=peer, addr=0, key=KEY)
    failed = initiator.wait_error()
    assert failed.err == fi.EIO
    assert "device's runtime could not copy" in initiator.cq.strerror(failed.prov_errno, failed.err_data)
    monkeypatch.delenv("WEFT_FAKE_CUDA_FAIL")
    assert put_and_get(initiator, peer, 64) == PATTERN[:64]


def test_memory_past_its_allocation_is_refused(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    array = gpu.array(4096)
    with pytest.raises(fi.InvalidArgument, match="pass the end of the device's allocation"):
        duo[1].domain.mr_reg((array.address + 4000, 200), RW, requested_key=KEY)


def test_domain_without_hmem_refuses_device_memory(gpu: fake.Gpu) -> None:
    array = gpu.array(64)
    with pair() as (initiator, target, peer):
        with pytest.raises(fi.NoSys, match="without HMEM"):
            target.domain.mr_reg(array, RW, requested_key=KEY)
        target.reg(np.zeros(64, np.uint8), requested_key=KEY)
        with pytest.raises(fi.NoSys, match="without HMEM"):
            initiator.ep.write(array, dest_addr=peer, addr=0, key=KEY)
        with pytest.raises(fi.BadFlags, match="HMEM"):
            target.domain.mr_regattr(attr(array), fi.HMEM_DEVICE_ONLY)


# ---- FI_MR_HMEM set -------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.hmem.set-regattr", "mr.attr.iface", "mr.attr.device")
def test_under_mr_hmem_device_memory_is_registered_by_regattr(
    strict_duo: tuple[Node, Node, int], gpu: fake.Gpu
) -> None:
    initiator, target, peer = strict_duo
    array = gpu.array(N, device=1)
    for call in (
        lambda: target.domain.mr_reg(array, RW, requested_key=KEY),
        lambda: target.domain.mr_regv([array], RW, requested_key=KEY),
        lambda: target.domain.mr_regattr(attr(array, iface=fi.HMEM_SYSTEM)),
    ):
        with pytest.raises(fi.InvalidArgument, match=r"iface=fi.HMEM_CUDA, device=1"):
            call()
    with pytest.raises(fi.InvalidArgument, match="HMEM_CUDA 1"):
        target.domain.mr_regattr(attr(array, device=0))
    target.keep(target.domain.mr_regattr(attr(array, device=1)))
    assert put_and_get(initiator, peer) == PATTERN
    assert array.get() == PATTERN


@pytest.mark.clause(
    "mr.hmem.set-register", "mr.hmem.set-desc", "mr.hmem.set-local-unset", "mr.hmem.set-local-unset-desc"
)
def test_mr_hmem_requires_a_desc_for_device_buffers_only(strict_duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = strict_duo
    ep, memory = initiator.ep, np.zeros(64, np.uint8)
    target.reg(memory, requested_key=KEY)
    array = gpu.array(64).put(PATTERN[:64])
    word = gpu.array(8)
    where: dict[str, Any] = {"dest_addr": peer, "addr": 0, "key": KEY}
    u64: dict[str, Any] = {"datatype": fi.UINT64, "op": fi.SUM}
    for call in (
        lambda: ep.write(array, **where),
        lambda: ep.read(array, src_addr=peer, addr=0, key=KEY),
        lambda: ep.writev([array], **where),
        lambda: ep.writev([array], [None], **where),
        lambda: ep.inject_write(array, peer, 0, KEY),
        lambda: ep.writemsg(fi.MsgRma(msg_iov=[array], rma_iov=[fi.RmaIov(0, 64, KEY)], addr=peer)),
        lambda: ep.atomic(word, None, peer, 0, KEY, **u64),
        lambda: ep.fetch_atomic(np.zeros(1, np.uint64), None, word, None, peer, 0, KEY, **u64),
        lambda: ep.atomicv([word], None, peer, 0, KEY, **u64),
        lambda: ep.write_batch(array, np.zeros(1, fi.RMA_DESC)),
    ):
        with pytest.raises(fi.InvalidArgument, match=r"MR_HMEM, and no desc"):
            call()
    with pytest.raises(fi.InvalidArgument, match="desc is str"):
        ep.write(array, "nonsense", **where)  # type: ignore[arg-type]
    ep.write(PATTERN[:64], **where)  # a host buffer needs nothing
    initiator.wait()
    assert memory.tobytes() == PATTERN[:64]
    local = initiator.keep(initiator.domain.mr_regattr(attr(array[:64])))
    array.put(bytes(64))
    ep.write(array, local.desc, **where)
    initiator.wait()
    assert not memory.any()


@pytest.mark.clause("mr.hmem.unset-local-set-desc")
def test_under_mr_local_alone_host_buffers_want_a_desc_or_none(gpu: fake.Gpu) -> None:
    with pair(HMEM, mr_mode=int(fi.MR_LOCAL)) as (initiator, target, peer):
        memory = np.zeros(64, np.uint8)
        target.reg(memory, requested_key=KEY)
        array = gpu.array(64).put(PATTERN[:64])
        local = initiator.keep(initiator.domain.mr_reg(array, fi.WRITE))
        with pytest.raises(fi.InvalidArgument, match="desc is int"):
            initiator.ep.write(array, 17, dest_addr=peer, addr=0, key=KEY)  # type: ignore[arg-type]
        initiator.ep.write(array, local.desc, dest_addr=peer, addr=0, key=KEY)
        initiator.wait()
        assert memory.tobytes() == PATTERN[:64]
        memory[:] = 0
        initiator.ep.write(array, None, dest_addr=peer, addr=0, key=KEY)  # NULL: device memory is MR_HMEM's concern
        initiator.wait()
        assert memory.tobytes() == PATTERN[:64]


# ---- attributes -----------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "mr.flag.device-only", "mr.flag.host-alloc", "mr.flag.host-alloc-iface", "mr.flag.host-alloc-device"
)
def test_flags_must_match_the_kind_of_allocation(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = duo
    device, managed, host = (gpu.array(N, kind) for kind in ("device", "managed", "host"))
    regattr = target.domain.mr_regattr
    for array, flags in (
        (managed, fi.HMEM_DEVICE_ONLY),
        (host, fi.HMEM_DEVICE_ONLY),
        (device, fi.HMEM_HOST_ALLOC),
        (managed, fi.HMEM_HOST_ALLOC),
    ):
        with pytest.raises(fi.InvalidArgument, match=f"the runtime reports {array.kind} memory"):
            regattr(attr(array), flags)
    with pytest.raises(fi.BadFlags, match="exclude each other"):
        regattr(attr(device), fi.HMEM_DEVICE_ONLY | fi.HMEM_HOST_ALLOC)
    with pytest.raises(fi.InvalidArgument, match="iface HMEM_SYSTEM"):
        regattr(attr(device, iface=fi.HMEM_SYSTEM), fi.HMEM_DEVICE_ONLY)
    mr = regattr(attr(device), fi.HMEM_DEVICE_ONLY)
    assert put_and_get(initiator, peer) == PATTERN
    assert device.get() == PATTERN
    mr.close()
    # The device field is not looked at.
    mr = target.keep(regattr(attr(host, device=99), fi.HMEM_HOST_ALLOC))
    assert put_and_get(initiator, peer) == PATTERN
    assert ctypes.string_at(host.address, N) == PATTERN


@pytest.mark.clause("mr.device.reserved", "mr.attr.device", "mr.device.ze", "mr.device.neuron", "mr.device.synapseai")
def test_device_is_a_union_that_iface_decides() -> None:
    number = hmem.device_number
    ze = fi.hmem_ze_device(2, 3)
    assert number(fi.HMEM_ZE, ze) == ze == 2 << 16 | 3
    for iface in (fi.HMEM_CUDA, fi.HMEM_ROCR, fi.HMEM_ZE, fi.HMEM_NEURON, fi.HMEM_SYNAPSEAI):
        assert number(iface, 7) == 7
        assert number(iface, 0xAAAAAAAA_00000007) == 7  # the int member is the low half
        assert number(iface, 0xFFFFFFFF) == -1
    assert number(fi.HMEM_SYSTEM, 0xAAAAAAAA_00000007) == 0xAAAAAAAA_00000007  # reserved: all 64 bits
    with pytest.raises(fi.InvalidArgument, match="64 bits"):
        number(fi.HMEM_CUDA, 1 << 64)


def test_device_that_is_not_there_is_refused(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    for device in (2, -1, 0xFFFFFFFF):
        with pytest.raises(fi.InvalidArgument, match="there are 2"):
            duo[1].domain.mr_regattr(attr(gpu.array(64), device=device))
    with pytest.raises(fi.InvalidArgument, match="not one of FI_HMEM"):
        duo[1].domain.mr_regattr(attr(gpu.array(64), iface=77))


@pytest.mark.clause("mr.iface.system")
def test_iface_system_is_memory_of_malloc_and_mmap(strict_duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = strict_duo
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    at = libc.malloc(ctypes.c_size_t(N))
    for memory in ((at, N), mmap.mmap(-1, N), np.zeros(N, np.uint8)):
        with target.domain.mr_regattr(attr(memory, fi.HMEM_SYSTEM)) as mr:
            assert mr.iface == fi.HMEM_SYSTEM
            assert put_and_get(initiator, peer) == PATTERN
    assert ctypes.string_at(at, N) == PATTERN
    libc.free(at)
    with pytest.raises(fi.InvalidArgument, match="memory of HMEM_CUDA"):
        target.domain.mr_regattr(attr(gpu.array(N), fi.HMEM_SYSTEM))


def test_host_memory_declared_as_device_memory_is_refused(duo: tuple[Node, Node, int]) -> None:
    with pytest.raises(fi.InvalidArgument, match="the runtime reports no device memory there"):
        duo[1].domain.mr_regattr(attr(np.zeros(64, np.uint8)))


@pytest.mark.clause("mr.iface.rocr", "mr.iface.ze", "mr.iface.neuron", "mr.iface.synapseai")
@pytest.mark.parametrize("iface", [fi.HMEM_ROCR, fi.HMEM_ZE, fi.HMEM_NEURON, fi.HMEM_SYNAPSEAI])
def test_interface_without_a_runtime_says_what_was_looked_for(duo: tuple[Node, Node, int], iface: fi.HmemIface) -> None:
    state = hmem.interfaces()[iface]
    assert state.iface == iface
    if state.ready:
        pytest.skip(f"a runtime of {iface.name} is installed here")
    with pytest.raises(fi.NoSys) as caught:
        duo[1].domain.mr_regattr(attr(np.zeros(64, np.uint8), iface=iface))
    assert caught.value.errno == fi.ENOSYS
    assert iface.name in str(caught.value)
    assert state.library in str(caught.value)


@pytest.mark.clause("mr.base-mr.inherit-hmem-data")
def test_sub_mr_has_its_bases_device_and_hmem_data(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = duo
    array = gpu.array(N, device=1)
    base = target.keep(target.domain.mr_reg(array, RW, requested_key=99))
    with pytest.raises(fi.InvalidArgument, match="hmem_data"):
        target.domain.mr_regattr(attr(array, device=1, hmem_data=object()))
    sub = target.domain.mr_regattr(
        attr(array[1000:2000], iface=fi.HMEM_SYSTEM, device=42, hmem_data=object(), base_mr=base)
    )
    with sub:
        assert (sub.iface, sub.device, sub.hmem_data) == (base.iface, base.device, base.hmem_data)
        assert put_and_get(initiator, peer, 1000) == PATTERN[:1000]
    assert array.get() == bytes(1000) + PATTERN[:1000] + bytes(N - 2000)


def test_device_array_of_an_interface_without_runtime_is_refused(duo: tuple[Node, Node, int]) -> None:
    class Elsewhere:
        __cuda_array_interface__ = {"shape": (64,), "typestr": "|u1", "data": (1 << 40, False), "version": 3}  # noqa: RUF012

    with pytest.raises(fi.NoSys, match="does not know its address"):
        duo[1].domain.mr_reg(Elsewhere(), RW, requested_key=KEY)


# ---- DMA-buf --------------------------------------------------------------------------------------------------------


@pytest.fixture
def dmabuf() -> Iterator[int]:
    """The stand-in for a DMA-buf where no device exports one: a memfd of two pages."""
    fd = os.memfd_create("dmabuf")
    os.ftruncate(fd, 2 * N)
    yield fd
    os.close(fd)


def dmabuf_attr(fd: int, offset: int = 0, length: int = N, base_addr: int | None = None, **more: Any) -> fi.MrAttr:
    piece = fi.MrDmabuf(fd=fd, offset=offset, len=length, base_addr=base_addr)
    return fi.MrAttr(access=int(RW), requested_key=KEY, dmabuf=piece, **more)


@pytest.mark.clause(
    "mr.flag.dmabuf", "mr.attr.dmabuf", "mr.attr.dmabuf-no-map", "mr.dmabuf.fd", "mr.dmabuf.offset", "mr.dmabuf.len",
    "mr.dmabuf.base-addr-null",
)  # fmt: skip
def test_dmabuf_region_is_the_piece_of_the_descriptor(duo: tuple[Node, Node, int], dmabuf: int) -> None:
    initiator, target, peer = duo
    mr = target.domain.mr_regattr(dmabuf_attr(dmabuf, offset=5000, length=N), fi.MR_DMABUF)
    assert mr.length == N
    assert put_and_get(initiator, peer) == PATTERN
    assert os.pread(dmabuf, 2 * N, 0) == bytes(5000) + PATTERN + bytes(N - 5000)
    initiator.ep.write(b"x", dest_addr=peer, addr=N, key=KEY)
    assert initiator.wait_error().err == fi.EACCES
    mr.close()


@pytest.mark.clause("mr.attr.dmabuf-needs-flag")
def test_dmabuf_is_read_exactly_under_its_flag(duo: tuple[Node, Node, int], dmabuf: int) -> None:
    memory = np.zeros(64, np.uint8)
    both = dmabuf_attr(dmabuf, mr_iov=[memory])
    with duo[1].domain.mr_regattr(both) as mr:
        assert mr.length == 64
    with duo[1].domain.mr_regattr(both, fi.MR_DMABUF) as mr:
        assert mr.length == N
    with pytest.raises(fi.InvalidArgument, match="MrDmabuf"):
        duo[1].domain.mr_regattr(fi.MrAttr(mr_iov=[memory], access=int(RW)), fi.MR_DMABUF)
    with pytest.raises(fi.InvalidArgument, match="MrDmabuf"):
        duo[1].domain.mr_reg(memory, RW, flags=fi.MR_DMABUF)


@pytest.mark.clause("mr.virt-addr.dmabuf", "mr.dmabuf.base-addr")
def test_under_virt_addr_a_dmabuf_starts_at_base_addr_plus_offset(gpu: fake.Gpu, dmabuf: int) -> None:
    with pair(HMEM, mr_mode=int(fi.MR_VIRT_ADDR)) as (initiator, target, peer):
        start = 0x7000_0000_0000
        target.keep(target.domain.mr_regattr(dmabuf_attr(dmabuf, 4096, N, start), fi.MR_DMABUF))
        initiator.ep.write(PATTERN, dest_addr=peer, addr=start + 4096, key=KEY)
        initiator.wait()
        assert os.pread(dmabuf, N, 4096) == PATTERN
        initiator.ep.write(b"x", dest_addr=peer, addr=start + 4095, key=KEY)
        assert initiator.wait_error().err == fi.EACCES
        with pytest.raises(fi.InvalidArgument, match="page-aligned"):
            target.domain.mr_regattr(dmabuf_attr(dmabuf, 0, N, start + 1), fi.MR_DMABUF)


@pytest.mark.clause("mr.base-mr.not-dmabuf")
def test_dmabuf_region_is_no_sub_mr(duo: tuple[Node, Node, int], dmabuf: int) -> None:
    base = duo[1].reg(np.zeros(64, np.uint8), requested_key=9)
    with pytest.raises(fi.InvalidArgument, match="base_mr has to be None"):
        duo[1].domain.mr_regattr(dmabuf_attr(dmabuf, base_mr=base), fi.MR_DMABUF)


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 2 * N + 1), (2 * N, 1), (-1, 8)])
def test_piece_outside_of_the_dmabuf_is_refused(
    duo: tuple[Node, Node, int], dmabuf: int, offset: int, length: int
) -> None:
    with pytest.raises(fi.InvalidArgument, match=f"{2 * N} B"):
        duo[1].domain.mr_regattr(dmabuf_attr(dmabuf, offset, length), fi.MR_DMABUF)


@pytest.mark.parametrize("fd", [-1, 1 << 20, 1 << 40])
def test_descriptor_that_is_no_dmabuf_is_refused(duo: tuple[Node, Node, int], fd: int) -> None:
    with pytest.raises(fi.InvalidArgument, match="no DMA-buf"):
        duo[1].domain.mr_regattr(dmabuf_attr(fd), fi.MR_DMABUF)


def test_read_only_dmabuf_is_for_remote_reading_alone(duo: tuple[Node, Node, int], dmabuf: int) -> None:
    initiator, target, peer = duo
    os.pwrite(dmabuf, PATTERN, 0)
    fd = os.open(f"/proc/self/fd/{dmabuf}", os.O_RDONLY)
    try:
        for access in (fi.REMOTE_WRITE, fi.READ, fi.RECV, RW):
            attr = fi.MrAttr(access=int(access), requested_key=KEY, dmabuf=fi.MrDmabuf(fd=fd, offset=0, len=N))
            with pytest.raises(fi.NotSupported, match="cannot be mapped"):
                target.domain.mr_regattr(attr, fi.MR_DMABUF)
        attr = fi.MrAttr(access=int(fi.REMOTE_READ), requested_key=KEY, dmabuf=fi.MrDmabuf(fd=fd, offset=0, len=N))
        with target.domain.mr_regattr(attr, fi.MR_DMABUF):
            back = np.zeros(N, np.uint8)
            initiator.ep.read(back, src_addr=peer, addr=0, key=KEY)
            initiator.wait()
            assert back.tobytes() == PATTERN
    finally:
        os.close(fd)


@pytest.mark.parametrize("where", ["host", "managed", "host pinned"])
def test_export_of_memory_that_is_no_device_s_own_is_refused(gpu: fake.Gpu, where: str) -> None:
    if where == "host":
        memory: Any = np.zeros(64, np.uint8)
        match = "no device memory"
    else:
        memory = gpu.array(N, where.removeprefix("host ") if where == "managed" else "host")
        match = "managed memory" if where == "managed" else "host memory"
    with pytest.raises(fi.InvalidArgument, match=match):
        hmem.export_dmabuf(memory)
    if where != "host":
        memory.free()


def test_pages_that_a_dmabuf_loses_are_an_error_completion(duo: tuple[Node, Node, int], dmabuf: int) -> None:
    initiator, target, peer = duo
    target.keep(target.domain.mr_regattr(dmabuf_attr(dmabuf), fi.MR_DMABUF))
    assert put_and_get(initiator, peer) == PATTERN
    os.ftruncate(dmabuf, 0)
    initiator.ep.write(b"x" * 8, dest_addr=peer, addr=0, key=KEY)
    assert initiator.wait_error().err == fi.EFAULT


def test_exported_dmabuf_is_the_devices_memory(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    initiator, target, peer = duo
    array = gpu.array(2 * N)
    fd, offset = hmem.export_dmabuf(array[4096 : 4096 + N])
    try:
        assert offset == 4096
        base = array.address
        for base_addr in (None, base):
            mr = target.domain.mr_regattr(dmabuf_attr(fd, offset, N, base_addr), fi.MR_DMABUF)
            assert mr.iface == (fi.HMEM_SYSTEM if base_addr is None else fi.HMEM_CUDA)
            array.put(bytes(2 * N))
            assert put_and_get(initiator, peer) == PATTERN
            assert array.get() == bytes(4096) + PATTERN + bytes(N - 4096)
            mr.close()
    finally:
        os.close(fd)
    with pytest.raises(fi.InvalidArgument, match="no device memory"):
        hmem.export_dmabuf(np.zeros(64, np.uint8))


def test_locate_returns_the_allocation(gpu: fake.Gpu) -> None:
    hmem.interfaces()
    array = gpu.array(8192, "managed", device=1)
    found = hmem.locate(array.address + 5000)
    assert found == hmem.Memory(fi.HMEM_CUDA, "managed", 1, array.address, 8192)
    assert hmem.locate(id(array)) is None
    assert mmap.PAGESIZE  # the fake allocates whole pages


@pytest.mark.clause("mr.cache.purpose", "mr.local.hidden-by-cache", "mr.cache.uva")
def test_owner_of_a_device_address_is_looked_up_once(duo: tuple[Node, Node, int], gpu: fake.Gpu) -> None:
    """The cache spares the application the registration, and the library the look-up; new memory there is seen."""
    initiator, target, peer = duo
    memory = np.zeros(64, np.uint8)
    target.reg(memory, requested_key=KEY)
    with fi.open("mr_cache") as cache:
        if not cache.state.on:
            pytest.skip(f"no cache here: {cache.state}")
        array = gpu.array(4096).put(PATTERN[:4096])

        def put() -> None:
            initiator.ep.write((array.address, 64), dest_addr=peer, addr=0, key=KEY)
            initiator.wait()
            assert memory.tobytes() == array.get()[:64]

        put()
        before, queries = cache.statistics(), gpu.counts["queries"]
        for _ in range(10):
            put()
        after = cache.statistics()
        assert (after.hits - before.hits, after.misses - before.misses) == (10, 0)
        assert gpu.counts["queries"] - queries < 60  # of each copy; a look-up anew would be six more
        # The same addresses, another allocation: not the known one.
        at = array.address
        array.free()
        array = gpu.array(8192).put(PATTERN[100:4196])
        put()
        initiator.ep.write((array.address + 4096, 64), dest_addr=peer, addr=0, key=KEY)
        initiator.wait()
        assert array.address == at or cache.statistics().misses > after.misses
