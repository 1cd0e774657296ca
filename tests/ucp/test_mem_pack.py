"""ucp_memh_pack and packed objects: remote keys, exported handles, addresses."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ucp.support import (
    ALL_RIGHTS,
    ALLOCATE,
    INVALID_PARAM,
    IO_ERROR,
    OK,
    PAGE,
    UNSUPPORTED,
    Rig,
    array,
    ended,
    opened,
    refused,
)

from weft import ucp

EXPORT = int(ucp.MEMH_PACK_FLAG_EXPORT)

# A key that was packed on another machine: 24 bytes at 0x12345678, REMOTE_READ.
GOLDEN = bytes.fromhex(
    "57454654 01 02 00 00 4f00 00000000 0100 2a000000 0000 8877665544332211 0102030405060708 efcdab8967452301"
    "7856341200000000 7856341200000000 1800000000000000 00010000 00 8c39c52b"
)
HOST_LENGTH = 74  # where the length of the host's name is


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    with opened() as found:
        yield found


@pytest.fixture(scope="module")
def region(shared: Rig) -> Iterator[ucp.MemHandle]:
    with shared.alloc() as memh:
        yield memh


# ---- remote keys -----------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "ucp.pack.function", "ucp.pack.buffer", "ucp.pack.as-rkey", "ucp.pack.opaque",
    "ucp.unpack.function", "ucp.unpack.origin", "ucp.type.rkey-opaque", "ucp.type.rkey-shared", "ucp.pack.share",
)  # fmt: skip
def test_packed_handle_unpacks_to_a_key_of_the_memory(rig: Rig, other: Rig) -> None:
    """The peer gets only the packed bytes, and cannot reach the memory without them."""
    with rig.alloc() as memh:
        packed = memh.pack()
        assert isinstance(packed, bytes)
        assert len(packed) > 0
        sent = bytes(packed)
        assert type(sent) is bytes
        with other.worker.ep_create(rig.worker.address) as ep, ep.rkey_unpack(sent) as rkey:
            assert isinstance(rkey, ucp.RemoteKey)
            assert (rkey.address, rkey.length, rkey.prot) == (memh.address, memh.length, memh.prot)
            assert ended(ep.put_nbx(b"from the peer", memh.address, rkey)) is OK
        assert bytes(memh.memory[:13]) == b"from the peer"


@pytest.mark.clause("ucp.type.rkey-content", "ucp.pack.opaque")
def test_packed_keys_are_equal_only_for_the_same_region(rig: Rig) -> None:
    """The packed key contains the NIC's key of the region; its length does not depend on the region's."""
    data = array()
    with rig.map(data) as one, rig.map(data) as two, rig.alloc(1 << 20) as big:
        for memh in (one, two, big):
            key, _ = memh.fi_key
            assert key.to_bytes(8, "little") in bytes(memh.pack())
        assert one.pack() == one.pack()
        assert one.pack() != two.pack()
        assert len(one.pack()) == len(big.pack())


def test_key_packed_again_by_the_old_call_is_the_same_key(rig: Rig) -> None:
    with rig.alloc() as memh, pytest.warns(DeprecationWarning, match="deprecated"):
        assert rig.context.rkey_pack(memh) == memh.pack()


@pytest.mark.parametrize("flags", [0, 2, 0x80, 1 << 63])
def test_unknown_pack_flags_are_ignored(rig: Rig, flags: int) -> None:
    with rig.alloc() as memh:
        assert memh.pack(flags=flags) == memh.pack(ucp.MemhPackParams(1, flags)) == memh.pack()


@pytest.mark.clause("ucp.pack.portable", "ucp.rkey-pack.portable")
def test_key_packed_elsewhere_unpacks_as_it_was_meant(rig: Rig) -> None:
    """Literal bytes of a key: little-endian, without padding, on every machine."""
    with rig.ep.rkey_unpack(GOLDEN) as rkey:
        assert (rkey.address, rkey.length, rkey.prot) == (0x12345678, 24, ucp.MEM_MAP_PROT_REMOTE_READ)
        assert rig.status_of_get(1, rkey.address, rkey) is IO_ERROR  # its owner is not there


def test_zero_length_handle_packs_and_its_key_reaches_nothing(rig: Rig) -> None:
    packed = rig.map(length=0).pack()
    with rig.ep.rkey_unpack(packed) as rkey:
        assert rkey.length == 0
        assert rig.put(b"", 0, rkey) is OK
        for method in (rig.ep.put_nbx, rig.ep.get_nbx):
            with refused(INVALID_PARAM, "without bytes"):
                method(bytearray(1), 0, rkey, count=1)
        with refused(INVALID_PARAM, "without bytes"):
            rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, 0, rkey)
    ucp.memh_buffer_release(packed)


@pytest.mark.clause("ucp.pack.status")
def test_outcome_of_packing_is_a_status(rig: Rig) -> None:
    with rig.map(array(), prot=int(ucp.MEM_MAP_PROT_LOCAL_READ)) as memh:
        assert memh.pack()
        with refused(UNSUPPORTED, "may not be read by peers"):
            memh.pack(flags=EXPORT)
    with refused(INVALID_PARAM, "unmapped"):
        memh.pack()


# ---- release ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.pack.release", "ucp.release.function")
def test_released_buffer_is_taken_nowhere(rig: Rig) -> None:
    with rig.alloc() as memh:
        packed = memh.pack()
        rkey = rig.ep.rkey_unpack(packed)
        ucp.memh_buffer_release(packed)
        with refused(INVALID_PARAM, "released"):
            rig.ep.rkey_unpack(packed)
        with refused(INVALID_PARAM, "released already"):
            ucp.memh_buffer_release(packed)
        assert rig.put(b"x", memh.address, rkey) is OK  # a key that was unpacked before is good
        exported = memh.pack(flags=EXPORT)
        ucp.memh_buffer_release(exported)
        with refused(INVALID_PARAM, "released"):
            rig.map(exported_memh_buffer=exported)


def test_only_packed_buffers_are_released(rig: Rig) -> None:
    with rig.alloc() as memh:
        packed = memh.pack()
        address = rig.worker.get_address()
        for wrong in (None, b"bytes", bytes(packed), bytearray(packed), address, memh):
            with refused(INVALID_PARAM, "was not made by ucp_memh_pack"):
                ucp.memh_buffer_release(wrong)  # type: ignore[arg-type]
        with refused(INVALID_PARAM, "was not made by ucp_worker_get_address"):
            rig.worker.release_address(packed)
        rig.worker.release_address(address)
        with refused(INVALID_PARAM, "released"):
            rig.worker.ep_create(address)
        ucp.memh_buffer_release(packed)


@pytest.mark.clause(
    "ucp.rkey-pack.function", "ucp.rkey-pack.buffer", "ucp.rkey-pack.size", "ucp.rkey-pack.opaque",
    "ucp.rkey-pack.share", "ucp.rkey-pack.release", "ucp.rkey-release.function", "ucp.rkey-pack.status",
)  # fmt: skip
def test_old_calls_pack_and_release_a_key_and_warn(rig: Rig, other: Rig) -> None:
    with rig.alloc() as memh:
        with pytest.warns(DeprecationWarning, match="use MemHandle.pack") as told:
            packed = rig.context.rkey_pack(memh)
        assert told[0].filename == __file__
        assert isinstance(packed, bytes)
        with other.worker.ep_create(rig.worker.address) as ep, ep.rkey_unpack(bytes(packed)) as rkey:
            assert ended(ep.put_nbx(b"old", memh.address, rkey)) is OK
        assert bytes(memh.memory[:3]) == b"old"
        with refused(INVALID_PARAM, "was not made by ucp_memh_pack"):
            ucp.memh_buffer_release(packed)
        with pytest.warns(DeprecationWarning, match="use memh_buffer_release") as told:
            ucp.rkey_buffer_release(packed)
        assert told[0].filename == __file__
        with refused(INVALID_PARAM, "released"):
            rig.ep.rkey_unpack(packed)
        for wrong in (packed, memh.pack(), b"bytes"):
            with pytest.warns(DeprecationWarning, match="deprecated"), refused(INVALID_PARAM):
                ucp.rkey_buffer_release(wrong)  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="deprecated"), refused(INVALID_PARAM, "unmapped"):
        rig.context.rkey_pack(memh)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_packed_buffer_is_sent_as_bytes_or_pickled(rig: Rig, protocol: int) -> None:
    with rig.alloc() as memh:
        packed = memh.pack()
        for copy in (pickle.loads(pickle.dumps(packed, protocol)), bytes(packed), packed[:], b"".join([packed])):
            assert copy == packed
            with rig.ep.rkey_unpack(copy) as rkey:
                assert rig.put(b"x", memh.address, rkey) is OK
        assert f"{len(packed)} B" in repr(packed)
        ucp.memh_buffer_release(packed)
        assert "released" in repr(packed)


@pytest.mark.parametrize("make", [bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8), lambda b: b + b"more"])
def test_unpack_takes_any_bytes_and_more_may_follow(rig: Rig, make: Any) -> None:
    with rig.alloc() as memh, rig.ep.rkey_unpack(make(memh.pack())) as rkey:
        assert rig.put(b"x", memh.address, rkey) is OK


# ---- invalid keys ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.pack.size")
def test_key_that_was_cut_short_is_invalid_at_every_length(shared: Rig, region: ucp.MemHandle) -> None:
    """The size of the packed bytes is the least that unpacks."""
    packed = region.pack()
    shared.ep.rkey_unpack(packed[: len(packed)]).destroy()
    for size in range(len(packed)):
        with refused(INVALID_PARAM, "no remote key"):
            shared.ep.rkey_unpack(packed[:size])


def test_key_with_a_flipped_bit_is_invalid_at_every_bit(shared: Rig, region: ucp.MemHandle) -> None:
    packed = region.pack()
    for bit in range(len(packed) * 8):
        changed = bytearray(packed)
        changed[bit // 8] ^= 1 << bit % 8
        with refused(INVALID_PARAM, "no remote key"):
            shared.ep.rkey_unpack(changed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({0: ord("w")}, "the magic number"),
        ({4: 0}, "it has version 0"),
        ({4: 2}, "it has version 2"),
        ({8: 100, HOST_LENGTH: 100 - len(GOLDEN)}, "says 100 bytes, and there are 79"),
        ({8: 78}, "says 78 bytes"),
    ],
)
def test_key_of_another_form_is_invalid_though_its_checksum_fits(
    shared: Rig, changes: dict[int, int], words: str
) -> None:
    packed = bytearray(GOLDEN)
    for at, value in changes.items():
        packed[at] = value
    packed[-4:] = zlib.crc32(packed[:-4]).to_bytes(4, "little")
    with refused(INVALID_PARAM, words):
        shared.ep.rkey_unpack(packed)


@given(garbage=st.binary(max_size=300))
def test_random_bytes_are_no_key_no_handle_and_no_address(shared: Rig, garbage: bytes) -> None:
    with refused(INVALID_PARAM, "no remote key"):
        shared.ep.rkey_unpack(garbage)
    with refused(INVALID_PARAM, "no exported handle"):
        shared.map(exported_memh_buffer=garbage)
    with refused(INVALID_PARAM, "no worker address"):
        shared.worker.ep_create(garbage)


@given(data=st.data())
def test_forged_key_with_a_valid_checksum_stays_within_its_region(
    shared: Rig, region: ucp.MemHandle, data: st.DataObject
) -> None:
    """The owner's table decides, not the fields of the key. The test replaces 8 bytes of a field, or flags and kind."""
    packed = bytearray(region.pack())
    at = data.draw(st.integers(4, len(packed) - 12))
    count = data.draw(st.integers(1, 8))
    packed[at : at + count] = data.draw(st.binary(min_size=count, max_size=count))
    packed[-4:] = zlib.crc32(packed[:-4]).to_bytes(4, "little")
    guard = array(16)
    with shared.map(guard[4:12], prot=int(ucp.MEM_MAP_PROT_REMOTE_READ)) as bystander:
        try:
            rkey = shared.ep.rkey_unpack(packed)
        except ucp.UcsError as error:
            assert error.status in (INVALID_PARAM, ucp.Status.ERR_UNREACHABLE)  # noqa: PT017
            return
        for remote in {region.address, rkey.address, bystander.address}:
            try:
                shared.put(b"\xee", remote, rkey)
            except ucp.UcsError as error:
                assert error.status is INVALID_PARAM  # noqa: PT017
        repr(rkey)
        rkey.destroy()
    assert not guard.any()


@pytest.mark.parametrize("wrong", [None, 5, "text", [1, 2], object(), b"", b"WEFT", bytes(79), bytes(200)])
def test_other_bytes_than_a_packed_buffer_are_invalid(shared: Rig, wrong: Any) -> None:
    with refused(INVALID_PARAM, "remote key"):
        shared.ep.rkey_unpack(wrong)


@pytest.mark.clause("ucp.unpack.status", "ucp.pack.as-rkey")
def test_kinds_of_packed_buffers_are_distinguished(rig: Rig) -> None:
    """A packed key is not a handle, a packed handle is not a key, and an address is neither."""
    with rig.alloc() as memh:
        key, handle, address = memh.pack(), memh.pack(flags=EXPORT), rig.worker.address
        rig.ep.rkey_unpack(key).destroy()
        with refused(INVALID_PARAM, "no remote key: it is an exported handle"):
            rig.ep.rkey_unpack(handle)
        with refused(INVALID_PARAM, "no remote key: it is an address"):
            rig.ep.rkey_unpack(address)
        with refused(INVALID_PARAM, "no exported handle: it is a remote key"):
            rig.map(exported_memh_buffer=key)
        with refused(INVALID_PARAM, "no worker address: it is a remote key"):
            rig.worker.ep_create(key)


# ---- exported handles ------------------------------------------------------------------------------------------------


mapped = pytest.mark.skipif(
    os.environ.get("WEFT_ISOLATION") == "strict", reason="strict isolation maps nothing of another endpoint's"
)


@mapped
@pytest.mark.clause(
    "ucp.enum.export", "ucp.enum.export-import", "ucp.enum.export-space", "ucp.map.exported", "ucp.map.exported-peer",
    "ucp.enum.map-field-exported", "ucp.pack.flags",
)  # fmt: skip
def test_exported_handle_is_imported_as_the_peer_s_memory(rig: Rig, other: Rig) -> None:
    """The handle serves the importer's operations, as `memh` and by a slice, here in one address space."""
    assert EXPORT == 1
    with rig.alloc() as memh, other.alloc() as target, other.key(target) as rkey:
        memh.memory[:8] = b"exported"
        params = ucp.MemMapParams(0x20, exported_memh_buffer=memh.pack(ucp.MemhPackParams(1, EXPORT)))
        with other.map(params) as imported:
            assert imported.context is other.context
            assert imported.query() == memh.query()
            assert bytes(imported.memory[:8]) == b"exported"
            assert other.put(imported[:8], target.address, rkey) is OK
            assert bytes(target.memory[:8]) == b"exported"
            assert other.put((imported.address, 8), target.address + 8, rkey, memh=imported) is OK
            assert bytes(target.memory[8:16]) == b"exported"
            target.memory[:8] = b"come back"[:8]
            assert ended(other.ep.get_nbx(imported[100:108], target.address, rkey)) is OK
            assert bytes(memh.memory[100:108]) == b"come bac"
            with refused(UNSUPPORTED, "imported"):
                imported.pack()
            with refused(UNSUPPORTED, "belongs to another process"):
                imported.pack(flags=EXPORT)
        with refused(INVALID_PARAM, "unmapped"):
            imported[:8]
        assert bytes(memh.memory[:8]) == b"exported"


@mapped
def test_exported_handle_is_imported_as_often_as_one_likes(rig: Rig, other: Rig) -> None:
    with rig.alloc() as memh:
        exported = memh.pack(flags=EXPORT)
        one, two = other.map(exported_memh_buffer=exported), other.map(exported_memh_buffer=bytes(exported))
        one.memory[0] = 5
        one.unmap()
        assert two.memory[0] == 5
        two.unmap()


@mapped
def test_imported_handle_without_remote_write_is_read_only(rig: Rig, other: Rig) -> None:
    prot = ALL_RIGHTS & ~int(ucp.MEM_MAP_PROT_REMOTE_WRITE)
    with rig.alloc(prot=prot) as memh, other.map(exported_memh_buffer=memh.pack(flags=EXPORT)) as imported:
        assert imported.prot == ucp.MEM_MAP_PROT_LOCAL_READ
        assert imported.memory.readonly
        with other.alloc() as target, other.key(target) as rkey:
            assert other.put(imported[:4], target.address, rkey) is OK
            with refused(INVALID_PARAM):
                other.ep.get_nbx(imported[:4], target.address, rkey)
            with refused(INVALID_PARAM, "LOCAL_WRITE"):
                other.ep.get_nbx((imported.address, 4), target.address, rkey, memh=imported)


def test_import_takes_address_length_and_type_from_the_handle(rig: Rig, other: Rig) -> None:
    """The other fields have no effect."""
    with rig.alloc(2 * PAGE) as memh:
        exported = memh.pack(flags=EXPORT)
        params = ucp.MemMapParams(0x33, 12345, 7, memory_type=1, exported_memh_buffer=exported)
        with other.map(params) as imported:
            assert imported.query() == memh.query()


@pytest.mark.clause("ucp.enum.export-device")
def test_memory_that_peers_may_not_read_is_not_exported(rig: Rig) -> None:
    """An importer is a peer, whose NIC must be able to reach the memory."""
    for prot in (0, int(ucp.MEM_MAP_PROT_REMOTE_WRITE)):
        with rig.alloc(prot=prot) as memh, refused(UNSUPPORTED, "REMOTE_READ"):
            memh.pack(flags=EXPORT)
        with rig.map(array(), prot=prot) as memh, refused(UNSUPPORTED, "REMOTE_READ"):
            memh.pack(flags=EXPORT)
    with rig.map(length=PAGE, flags=ALLOCATE) as memh:
        assert memh.pack(flags=EXPORT)


def test_zero_length_handle_is_exported_and_imported_as_itself(rig: Rig) -> None:
    memh = rig.map(exported_memh_buffer=rig.map(length=0).pack(flags=EXPORT))
    assert memh.query() == ucp.MemAttr(7, 0, 0, ucp.MEMORY_TYPE_HOST)
    memh.unmap()
    memh.unmap()


def test_handle_of_unmapped_memory_cannot_be_imported(rig: Rig, other: Rig) -> None:
    with rig.alloc() as memh:
        exported = memh.pack(flags=EXPORT)
    with refused(ucp.Status.ERR_UNREACHABLE, "cannot be imported"):
        other.map(exported_memh_buffer=exported)
