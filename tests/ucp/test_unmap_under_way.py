"""Memory that is unmapped while an operation is under way stays in place until the operation ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator

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


@pytest.mark.parametrize("how", ["slice", "memh", "bytes"])
def test_late_data_does_not_reach_a_newer_region(rig: Rig, silent: SilentPeer, way: _Way, how: str) -> None:
    source, target = rig.alloc(), rig.alloc()
    source.memory[:8] = b"arrivals"
    put = way.ep.put_nbx(source[0:8], way.address, way.rkey)
    rig.worker.fence()
    buffer = {"slice": target[0:8], "memh": (target.address, 8), "bytes": target.memory[0:8]}[how]
    if how == "memh":
        get = way.ep.get_nbx(target[0:8], way.address, way.rkey, memh=target)
    else:
        get = way.ep.get_nbx(buffer, way.address, way.rkey)
    assert not put.done
    assert not get.done
    del buffer
    source.unmap()
    target.unmap()
    newer = [rig.alloc() for _ in range(4)]
    assert not {memh.address for memh in newer} & {source.address, target.address}
    silent.go_on()
    assert (ended(put), ended(get)) == (OK, OK)
    assert [bytes(memh.memory) for memh in newer] == [bytes(PAGE)] * 4
    back = bytearray(8)
    assert ended(way.ep.get_nbx(back, way.address, way.rkey)) is OK
    assert back == b"arrivals"  # the memory that was unmapped was sent


def test_late_reply_does_not_reach_a_newer_region(rig: Rig, silent: SilentPeer, way: _Way) -> None:
    target = rig.alloc()
    first = way.ep.atomic_op_nbx(ucp.ATOMIC_OP_SWAP, 1, way.address, way.rkey, reply_buffer=slot(0))
    second = way.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, way.address, way.rkey, reply_buffer=target[0:8])
    target.unmap()
    newer = rig.alloc()
    assert newer.address != target.address
    silent.go_on()
    assert (ended(first), ended(second)) == (OK, OK)
    assert bytes(newer.memory) == bytes(PAGE)


def test_memory_comes_back_when_the_operation_is_over(rig: Rig, silent: SilentPeer, way: _Way) -> None:
    target = rig.alloc()
    address = target.address
    get = way.ep.get_nbx(target[0:8], way.address, way.rkey)
    target.unmap()
    silent.go_on()
    assert ended(get) is OK
    del get, target
    gc.collect()
    found = [rig.alloc() for _ in range(4)]
    assert address in {memh.address for memh in found}


def test_buffer_of_an_unmapped_region_is_kept_by_the_operation(rig: Rig, silent: SilentPeer, way: _Way) -> None:
    """Of memory that is the user's: a bytearray may not move until the operation is over."""
    data = bytearray(PAGE)
    memh = rig.map(data)
    get = way.ep.get_nbx(memh[0:8], way.address, way.rkey)
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
