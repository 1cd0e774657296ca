"""Memory that is unmapped while an operation is under way stays in place until the operation ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes import gpu as fake
from tests.ucp.support import OK, PAGE, Rig, SilentPeer, ended, slot

from weft import ucp


class _Way:
    """Memory of a stopped peer, and an endpoint of the rig to it."""

    def __init__(self, rig: Rig, silent: SilentPeer) -> None:
        self.ep = rig.worker.ep_create(silent.address)
        self.rkey = self.ep.rkey_unpack(silent.key)
        self.address = self.rkey.address


@pytest.fixture
def way(rig: Rig, silent: SilentPeer) -> Iterator[_Way]:
    yield _Way(rig, silent)
    silent.go_on()


def local(memh: ucp.MemHandle, how: str) -> tuple[Any, dict[str, Any]]:
    """The first 8 bytes of mapped memory as the buffer of an operation, and further arguments."""
    pair = (memh.address, 8)
    return {
        "slice": (memh[0:8], {}),
        "slice, memh": (memh[0:8], {"memh": memh}),
        "bytes": (memh.memory[0:8], {}),
        "address": (pair, {}),
        "address, memh": (pair, {"memh": memh}),
        "address, param": (pair, {"param": ucp.RequestParam(ucp.OP_ATTR_FIELD_MEMH, memh=memh)}),
        "list": ([(memh.address, 3), (memh.address + 3, 5)], {"datatype": ucp.DATATYPE_IOV}),
    }[how]


@pytest.mark.parametrize("how", ["slice", "slice, memh", "bytes", "address", "address, memh", "address, param", "list"])
def test_late_data_does_not_reach_a_newer_region(rig: Rig, silent: SilentPeer, way: _Way, how: str) -> None:
    source, target = rig.alloc(), rig.alloc()
    source.memory[:8] = b"arrivals"
    buffer, more = local(source, how)
    put = way.ep.put_nbx(buffer, way.address, way.rkey, **more)
    rig.worker.fence()
    buffer, more = local(target, how)
    get = way.ep.get_nbx(buffer, way.address, way.rkey, **more)
    assert not put.done
    assert not get.done
    del buffer, more
    source.unmap()
    target.unmap()
    newer = [rig.alloc() for _ in range(8)]
    assert not {memh.address for memh in newer} & {source.address, target.address}
    silent.go_on()
    assert (ended(put), ended(get)) == (OK, OK)
    assert [bytes(memh.memory) for memh in newer] == [bytes(PAGE)] * 8
    back = bytearray(8)
    assert ended(way.ep.get_nbx(back, way.address, way.rkey)) is OK
    assert back == b"arrivals"  # the memory that was unmapped was sent


@pytest.mark.parametrize("how", ["slice", "address"])
def test_late_reply_does_not_reach_a_newer_region(rig: Rig, silent: SilentPeer, way: _Way, how: str) -> None:
    target = rig.alloc()
    reply, _ = local(target, how)
    first = way.ep.atomic_op_nbx(ucp.ATOMIC_OP_SWAP, 1, way.address, way.rkey, reply_buffer=slot(0))
    second = way.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, way.address, way.rkey, reply_buffer=reply)
    del reply
    target.unmap()
    newer = [rig.alloc() for _ in range(8)]
    assert target.address not in {memh.address for memh in newer}
    silent.go_on()
    assert (ended(first), ended(second)) == (OK, OK)
    assert [bytes(memh.memory) for memh in newer] == [bytes(PAGE)] * 8


def test_late_data_at_an_address_stays_with_the_region_that_owns_the_memory(
    rig: Rig, silent: SilentPeer, way: _Way
) -> None:
    """A second region over the same memory, mapped by its address, owns nothing."""
    target = rig.alloc()
    second = rig.map(address=target.address, length=8)
    get = way.ep.get_nbx((second.address, 8), way.address, way.rkey, memh=second)
    second.unmap()
    target.unmap()
    newer = [rig.alloc() for _ in range(8)]
    assert target.address not in {memh.address for memh in newer}
    silent.go_on()
    assert ended(get) is OK
    assert [bytes(memh.memory) for memh in newer] == [bytes(PAGE)] * 8


@pytest.mark.parametrize("how", ["slice", "address", "address, memh"])
def test_memory_comes_back_when_the_operation_is_over(rig: Rig, silent: SilentPeer, way: _Way, how: str) -> None:
    target = rig.alloc()
    address = target.address
    buffer, more = local(target, how)
    get = way.ep.get_nbx(buffer, way.address, way.rkey, **more)
    del buffer, more
    target.unmap()
    silent.go_on()
    assert ended(get) is OK
    del get, target
    gc.collect()
    found = [rig.alloc() for _ in range(4)]
    assert address in {memh.address for memh in found}


@pytest.mark.parametrize("how", ["slice", "address", "address, memh"])
def test_buffer_of_an_unmapped_region_is_kept_by_the_operation(
    rig: Rig, silent: SilentPeer, way: _Way, how: str
) -> None:
    """Of memory that is the user's: a bytearray may not move until the operation is over."""
    data = bytearray(PAGE)
    memh = rig.map(data)
    buffer, more = local(memh, how)
    get = way.ep.get_nbx(buffer, way.address, way.rkey, **more)
    del buffer, more
    memh.unmap()
    with pytest.raises(BufferError):
        data.extend(bytes(1 << 20))
    silent.go_on()
    assert ended(get) is OK
    del get, memh
    rig.worker.progress()
    data.extend(b"more")


def test_device_memory_is_freed_when_the_operation_is_over(rig: Rig, silent: SilentPeer, way: _Way) -> None:
    fake.start()
    target = rig.alloc(memory_type=ucp.MEMORY_TYPE_CUDA)
    address = target.address
    get = way.ep.get_nbx(target[0:8], way.address, way.rkey)
    target.unmap()
    with rig.map(address=address, length=8) as found:
        assert found.memory_type == ucp.MEMORY_TYPE_CUDA  # the runtime has it still
    silent.go_on()
    assert ended(get) is OK
    del get, target
    gc.collect()
    rig.worker.progress()
    with rig.map(address=address, length=8) as found:
        assert found.memory_type == ucp.MEMORY_TYPE_HOST
