"""Remote keys: ucp_ep_rkey_unpack and ucp_rkey_destroy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.ucp.support import (
    BUSY,
    INVALID_PARAM,
    IO_ERROR,
    NO_IMM,
    OK,
    SYMMETRIC,
    WATCHDOG_S,
    Rig,
    SilentPeer,
    array,
    ended,
    refused,
    slot,
)

from weft import ucp


def uses(ep: ucp.Endpoint, address: int, rkey: Any) -> list[Callable[[], Any]]:
    """Every operation that takes a key."""
    return [
        lambda: ep.put_nbx(b"12345678", address, rkey),
        lambda: ep.put_nbx(b"12345678", address, rkey, flags=NO_IMM),
        lambda: ep.put_nbx([b"1", b"2"], address, rkey, datatype=ucp.DATATYPE_IOV),
        lambda: ep.get_nbx(bytearray(8), address, rkey),
        lambda: ep.get_nbx([bytearray(8)], address, rkey, datatype=ucp.DATATYPE_IOV),
        lambda: ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, address, rkey),
        lambda: ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, address, rkey, reply_buffer=slot(0)),
    ]


@pytest.mark.clause("ucp.type.rkey-use", "ucp.unpack.function", "ucp.map.remote-info")
def test_put_get_and_atomic_take_a_key_and_nothing_else(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for call in uses(rig.ep, memh.address, rkey):
            assert ended(call()) is OK
        before = bytes(memh.memory)
        for wrong in (None, memh, memh.pack(), 5, rig.ep):
            for call in uses(rig.ep, memh.address, wrong):
                with refused(INVALID_PARAM, r"rkey_unpack\(buffer\)"):
                    call()
        assert bytes(memh.memory) == before


def test_key_has_the_attributes_of_the_mapping(rig: Rig) -> None:
    for prot in (0x303, 0x100, 0x201, 0x000):
        with rig.map(array(77), prot=prot) as memh, rig.key(memh) as rkey:
            assert (rkey.address, rkey.length, rkey.prot) == (memh.address, 77, prot)
            assert rkey.memory_type == ucp.MEMORY_TYPE_HOST
            assert rkey.endpoint is rig.ep


@pytest.mark.clause("ucp.unpack.one-ep")
def test_key_serves_no_endpoint_but_its_own(rig: Rig) -> None:
    """A key does not serve another endpoint to the same worker, to another worker, or of another worker."""
    more = rig.context.worker_create()
    endpoints = [
        rig.worker.ep_create(rig.worker.address),
        rig.worker.ep_create(more.address),
        more.ep_create(rig.worker.address),
    ]
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for ep in endpoints:
            for call in uses(ep, memh.address, rkey):
                with refused(INVALID_PARAM, "unpacked on another endpoint"):
                    call()
            with ep.rkey_unpack(memh.pack()) as own:
                assert ended(ep.put_nbx(b"own", memh.address, own)) is OK
        assert rig.put(b"still", memh.address, rkey) is OK


def test_key_is_good_through_every_worker_of_its_context(rig: Rig) -> None:
    """Memory belongs to a context: every worker of the context reaches it, also a worker that is made later."""
    with rig.alloc() as memh:
        packed = memh.pack()
        for turn in range(3):
            with (
                rig.context.worker_create() as late,
                rig.worker.ep_create(late.address) as ep,
                ep.rkey_unpack(packed) as rkey,
            ):
                assert ended(ep.put_nbx(bytes([turn + 1]), memh.address + turn, rkey)) is OK
        assert bytes(memh.memory[:3]) == b"\1\2\3"


def test_key_of_another_context_is_refused_by_the_owner_s_table(rig: Rig, other: Rig) -> None:
    """Unpacking does not ask the peer; the access fails and changes no memory."""
    with other.alloc() as memh, rig.key(memh) as rkey:
        for call in uses(rig.ep, memh.address, rkey)[:5]:
            assert ended(call()) is IO_ERROR
        with refused(IO_ERROR, "no region there has this key"):
            rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, memh.address, rkey)
            rig.flush()
        assert not any(memh.memory)


def test_key_of_one_region_does_not_reach_another(rig: Rig) -> None:
    data = array(200)
    with rig.map(data[:100]) as one, rig.map(data[100:]), rig.key(one) as rkey:
        for remote in (one.address + 100, one.address + 150, one.address + 96):
            assert rig.put(b"12345678", remote, rkey) is IO_ERROR
        assert not data.any()


def test_key_without_remote_rights_unpacks_and_reaches_nothing(rig: Rig) -> None:
    with rig.alloc(prot=0x003) as memh, rig.key(memh) as rkey:
        assert rkey.prot == 3
        assert rig.put(b"x", memh.address, rkey) is IO_ERROR
        assert rig.status_of_get(1, memh.address, rkey) is IO_ERROR


# ---- ucp_rkey_destroy ------------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.unpack.release", "ucp.destroy.function", "ucp.destroy.resources")
def test_destroyed_key_is_refused_everywhere(rig: Rig) -> None:
    with rig.alloc() as memh:
        rkey, twin = rig.key(memh), rig.key(memh)
        assert "2 keys" in repr(rig.ep)
        rkey.destroy()
        assert "1 keys" in repr(rig.ep)
        assert rkey.destroyed
        calls = [*uses(rig.ep, memh.address, rkey), rkey.destroy, lambda: rkey.ptr(memh.address)]
        calls += [lambda: rkey.view(memh.address, 1), lambda: rig.worker.rkey_compare(rkey, twin)]
        calls += [lambda: rig.worker.rkey_compare(twin, rkey)]
        for call in calls:
            with refused(INVALID_PARAM, "destroyed"):
                call()
        assert not any(memh.memory)
        assert rig.put(b"twin", memh.address, twin) is OK


@pytest.mark.clause("ucp.destroy.resources")
def test_destroying_a_key_lets_go_of_the_memory_that_it_mapped(rig: Rig) -> None:
    with rig.alloc() as memh:
        rkey = rig.key(memh)
        mapped = rkey.view(memh.address, 8).obj
        before = sys.getrefcount(mapped)
        rkey.destroy()
        assert sys.getrefcount(mapped) == before - 1


@pytest.mark.clause("ucp.destroy.after-flush")
@pytest.mark.parametrize("way", ["flush", "wait", "worker flush"])
def test_key_in_use_is_busy_until_its_operations_were_flushed(rig: Rig, way: str) -> None:
    with rig.alloc() as memh:
        rkey = rig.key(memh)
        request = rig.pending(memh.address, rkey)
        with refused(BUSY, "1 operations with this key are under way"):
            rkey.destroy()
        assert not rkey.destroyed
        if way == "wait":
            request.wait(WATCHDOG_S)
        elif way == "flush":
            rig.ep.flush_nbx().wait(WATCHDOG_S)
        else:
            rig.worker.flush_nbx().wait(WATCHDOG_S)
        rkey.destroy()
        assert request.status is OK


@pytest.mark.procs
@pytest.mark.clause("ucp.destroy.after-flush")
def test_key_stays_busy_as_long_as_the_peer_does_not_answer(rig: Rig, silent: SilentPeer) -> None:
    """An atomic without a reply counts as under way, although its request was done at once."""
    with rig.worker.ep_create(silent.address) as ep:
        rkey = ep.rkey_unpack(silent.key)
        request = ep.put_nbx(b"x", rkey.address, rkey)
        assert not ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, rkey.address + 8, rkey)
        for _ in range(100):
            rig.worker.progress()
        with refused(BUSY, "2 operations"):
            rkey.destroy()
        silent.go_on()
        request.wait(WATCHDOG_S)
        ep.flush_nbx().wait(WATCHDOG_S)
        rkey.destroy()


def test_leaving_a_key_s_block_flushes_and_destroys_it(rig: Rig) -> None:
    with rig.alloc() as memh:
        with rig.key(memh) as rkey:
            request = rig.pending(memh.address, rkey)
        assert rkey.destroyed
        assert request.status is OK
        with rig.key(memh) as rkey:
            rkey.destroy()


def test_rkey_with_block_reports_a_failure_and_destroys_the_key(rig: Rig) -> None:
    def update_behind_the_end(rkey: ucp.RemoteKey) -> None:
        with rkey:
            rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, rkey.address + rkey.length, rkey)

    with rig.alloc() as memh:
        rkey = rig.key(memh)
        with refused(IO_ERROR, "passes the end"):
            update_behind_the_end(rkey)
        assert rkey.destroyed


@pytest.mark.clause("ucp.destroy.before-ep")
@pytest.mark.parametrize("way", ["close", "close_nbx", "force", "worker", "context"])
def test_closing_the_endpoint_ends_its_keys(rig: Rig, way: str) -> None:
    """A key must be destroyed before its endpoint; closing the endpoint destroys the key."""
    with ucp.Context() as context, rig.alloc() as memh:
        worker = context.worker_create()
        ep = worker.ep_create(rig.worker.address)
        rkey = ep.rkey_unpack(memh.pack())
        assert ended(ep.put_nbx(b"x", memh.address, rkey)) is OK
        if way == "close":
            ep.close()
        elif way == "close_nbx":
            assert ended(ep.close_nbx()) is OK
        elif way == "force":
            assert not ep.close_nbx(ucp.EP_CLOSE_FLAG_FORCE)
        elif way == "worker":
            worker.close()
        else:
            context.close()
        assert ep.closed
        assert rkey.destroyed
        for call in [rkey.destroy, lambda: rkey.ptr(memh.address), *uses(ep, memh.address, rkey)]:
            with refused(INVALID_PARAM):
                call()


def test_key_outlives_its_packed_buffer_and_not_its_region(rig: Rig) -> None:
    memh = rig.alloc()
    packed = memh.pack()
    rkey = rig.ep.rkey_unpack(packed)
    ucp.memh_buffer_release(packed)
    assert rig.put(b"x", memh.address, rkey) is OK
    memh.unmap()
    again = [rig.alloc() for _ in range(4)]  # one region lies where the old region lay
    assert rig.put(b"x", rkey.address, rkey) is IO_ERROR
    assert not any(any(found.memory) for found in again)
    rkey.destroy()


def test_symmetric_key_reaches_whichever_region_has_its_layout(rig: Rig) -> None:
    """The key compares equal to the newer region's key, and equal keys are interchangeable. Without a newer region the
    key reaches nothing."""
    data = array()
    with rig.map(data, flags=SYMMETRIC) as memh:
        rkey = rig.key(memh)
        address = memh.address
        assert rig.put(b"1", address, rkey) is OK
    assert rig.put(b"2", address, rkey) is IO_ERROR
    assert data[0] == ord("1")
    with rig.map(data, flags=SYMMETRIC) as newer, rig.key(newer) as equal:
        assert rig.worker.rkey_compare(rkey, equal) == 0
        assert rig.put(b"3", address, rkey) is OK
    assert data[0] == ord("3")
    with rig.map(data) as ordinary:
        assert rig.put(b"4", address, rkey) is IO_ERROR
        assert ordinary.address == address
    assert data[0] == ord("3")
    rkey.destroy()


def test_symmetric_key_serves_the_worker_s_other_endpoints(rig: Rig, other: Rig) -> None:
    data = array()
    with rig.map(data, flags=SYMMETRIC) as memh, rig.key(memh) as rkey:
        with rig.worker.ep_create(rig.worker.address) as second:
            assert ended(second.put_nbx(b"x", memh.address, rkey)) is OK
        with rig.worker.ep_create(other.worker.address) as stranger:  # it has no region of this layout
            assert ended(stranger.put_nbx(b"y", memh.address, rkey)) is IO_ERROR
        with other.worker.ep_create(rig.worker.address) as theirs, refused(INVALID_PARAM, "another endpoint"):
            theirs.put_nbx(b"z", memh.address, rkey)
    assert data[0] == ord("x")
