"""Facts about two processes that speak weft.ucp, on every path: test_ucp_two_processes.py checks them.

As facts.py: a fact is a function of a `Pair`, runs in the initiator's process, and is written so that it fails where
the behaviour that it names is missing. Functions that take a `World` run in the target's process.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs.children import CALL_S
from tests.procs.peer import Side
from tests.procs.ucp_pairs import (
    ALL,
    CLAUSES,
    FACTS,
    LARGE,
    REMOTE_RW,
    SYMMETRIC_AT,
    Pair,
    data_of,
    end_share,
    export,
    expose_by_fi,
    fact,
    fi_contents,
    fi_way,
    put_there,
    settle,
    share_array,
    share_refusal,
    status_of,
    unmap,
    withdraw_fi,
)

from weft import _process, fi, ucp
from weft.ucp import Status

__all__ = ["CLAUSES", "FACTS", "Pair"]  # for test_ucp_two_processes.py


# ---- transfers -------------------------------------------------------------------------------------------------------


@fact(
    "ucp.type.rkey-use",
    "ucp.type.rkey-shared",
    "ucp.type.memh-remote",
    "ucp.map.registration",
    "ucp.map.remote-info",
    "ucp.pack.share",
    "ucp.pack.as-rkey",
    "ucp.matrix.means-register",
    "ucp.matrix.means-alloc",
    "ucp.map.no-cpu",
)
def put_and_get_move_their_bytes_and_nothing_else(pair: Pair) -> None:
    remote = pair.target.map(LARGE + 64)
    for n in (1, 4, 8, 255, 4096, 8191, 65536, 200_001, LARGE):
        data = data_of(n, n)
        settle(pair.ep.put_nbx(data, remote.address + 13, remote.key))
        settle(pair.ep.flush_nbx())
        assert remote.bytes(0, 13) == b"\xee" * 13
        assert remote.bytes(13, 13 + n) == data.tobytes()
        assert remote.bytes(13 + n, 13 + n + 8) == b"\xee" * 8 or n < 8
        back = np.full(n + 2, 0x11, np.uint8)
        settle(pair.ep.get_nbx(back[1:-1], remote.address + 13, remote.key))
        assert back[1:-1].tobytes() == data.tobytes()
        assert (back[0], back[-1]) == (0x11, 0x11)
        settle(pair.ep.put_nbx(np.full(n, 0xEE, np.uint8), remote.address + 13, remote.key))
        settle(pair.ep.flush_nbx())
    remote.close()


@fact("ucp.map.sub-region", "ucp.type.memh-local", "ucp.map.local-info")
def parts_of_mapped_memory_are_local_buffers_and_remote_targets(pair: Pair) -> None:
    remote = pair.target.map(4096)
    with pair.context.mem_map(length=4096, allocate=True) as local:
        local.array()[:] = data_of(4096)
        settle(pair.ep.put_nbx(local[100:300], remote.address + 700, remote.key))
        settle(pair.ep.put_nbx(local.array()[500:600], remote.address + 900, remote.key, memh=local))
        settle(pair.ep.flush_nbx())
        assert remote.bytes(700, 900) == bytes(local.memory[100:300])
        assert remote.bytes(900, 1000) == bytes(local.memory[500:600])
        settle(pair.ep.get_nbx(local[0:50], remote.address + 650, remote.key))
        assert bytes(local.memory[:50]) == b"\xee" * 50
    remote.close()


@fact("ucp.type.memh-resources", "ucp.map.several-stacks")
def one_handle_is_reached_by_this_process_and_by_others(pair: Pair) -> None:
    with pair.context.mem_map(length=64, allocate=True) as memh:
        with pair.worker.ep_create(pair.worker.address) as own, own.rkey_unpack(memh.pack()) as key:
            settle(own.put_nbx(b"by self", memh.address, key))
            settle(own.flush_nbx())
        pair.target.there(put_there, pair.worker.address, bytes(memh.pack()), b"by its peer", 8)
        assert bytes(memh.memory[:19]) == b"by self\0by its peer"


@fact()
def list_of_many_buffers_is_one_operation(pair: Pair) -> None:
    remote = pair.target.map(1 << 16)
    pieces = [data_of(n, n + 5) for n in (1, 2, 3, 500, 0, 7, 8, 9, 10, 4000, 1, 1, 1, 30_000, 5)]
    whole = b"".join(p.tobytes() for p in pieces)
    settle(pair.ep.put_nbx(pieces, remote.address + 3, remote.key, datatype=ucp.DATATYPE_IOV))
    settle(pair.ep.flush_nbx())
    assert remote.bytes(3, 3 + len(whole)) == whole
    assert remote.bytes(3 + len(whole), 3 + len(whole) + 8) == b"\xee" * 8
    back = [np.zeros(len(p), np.uint8) for p in pieces]
    settle(pair.ep.get_nbx(back, remote.address + 3, remote.key, datatype=ucp.DATATYPE_IOV))
    assert b"".join(p.tobytes() for p in back) == whole
    remote.close()


@fact()
def more_operations_than_the_queue_holds_all_arrive(pair: Pair) -> None:
    count = 6000
    remote = pair.target.map(count * 8)
    words = np.arange(1, count + 1, dtype=np.uint64)
    for i in range(count):
        pair.ep.put_nbx(words[i : i + 1], remote.address + 8 * i, remote.key)
    settle(pair.ep.flush_nbx())
    assert remote.bytes() == words.tobytes()
    remote.close()


@fact()
def every_atomic_does_what_it_says_in_both_widths(pair: Pair) -> None:
    remote = pair.target.map(64)
    rules: dict[ucp.AtomicOp, Callable[[int, int], int]] = {
        ucp.ATOMIC_OP_ADD: lambda old, x: old + x,
        ucp.ATOMIC_OP_AND: lambda old, x: old & x,
        ucp.ATOMIC_OP_OR: lambda old, x: old | x,
        ucp.ATOMIC_OP_XOR: lambda old, x: old ^ x,
        ucp.ATOMIC_OP_SWAP: lambda old, x: x,
    }
    for size, code in ((4, "<I"), (8, "<Q")):
        mask, at = (1 << 8 * size) - 1, 16
        old, operand = 0xDEADBEEFCAFEF00D & mask, 0x9BADF00D12345679 & mask
        for op, rule in rules.items():
            for replies in (False, True) if op != ucp.ATOMIC_OP_SWAP else (True,):
                settle(pair.ep.put_nbx(b"\xee" * 16 + struct.pack(code, old) + b"\xee" * 8, remote.address, remote.key))
                settle(pair.ep.flush_nbx())
                reply = np.full(8, 0x77, np.uint8)
                more = {"reply_buffer": reply[:size]} if replies else {}
                settle(pair.ep.atomic_op_nbx(op, struct.pack(code, operand), remote.address + at, remote.key, **more))
                settle(pair.ep.flush_nbx())
                expected = struct.pack(code, rule(old, operand) & mask)
                assert remote.bytes(0, at + size + 8) == b"\xee" * at + expected + b"\xee" * 8
                assert reply.tobytes() == ((struct.pack(code, old) if replies else b"") + b"\x77" * 8)[:8]
        for expects, now in ((old, operand), (old ^ 1, old)):
            settle(pair.ep.put_nbx(struct.pack(code, old), remote.address + at, remote.key))
            settle(pair.ep.flush_nbx())
            reply = np.frombuffer(bytearray(struct.pack(code, operand)), np.uint8)
            settle(
                pair.ep.atomic_op_nbx(
                    ucp.ATOMIC_OP_CSWAP,
                    struct.pack(code, expects),
                    remote.address + at,
                    remote.key,
                    reply_buffer=reply,
                )
            )
            assert reply.tobytes() == struct.pack(code, old)
            assert remote.bytes(at, at + size) == struct.pack(code, now)
    remote.close()


@fact()
def fence_orders_what_comes_after_behind_what_came_before(pair: Pair) -> None:
    remote = pair.target.map(LARGE + 8, fill=0)
    for round_ in range(1, 6):
        data = np.full(LARGE, round_, np.uint8)
        pair.ep.put_nbx(data, remote.address, remote.key)
        pair.worker.fence()
        pair.ep.put_nbx(bytes([round_] * 8), remote.address + LARGE, remote.key)
        deadline = Patience(CALL_S / 2)
        while remote.bytes(LARGE, LARGE + 8) != bytes([round_] * 8):
            assert not deadline.over
            pair.worker.progress()
        assert remote.bytes(0, LARGE) == data.tobytes()  # the flag is there: so are the bytes put before the fence
        settle(pair.ep.flush_nbx())
    remote.close()


@fact()
def callback_is_called_once_and_request_can_be_awaited(pair: Pair) -> None:
    remote = pair.target.map(64)
    calls: list[tuple[Any, ...]] = []
    request = pair.ep.put_nbx(
        b"x" * 8,
        remote.address,
        remote.key,
        cb=lambda *args: calls.append(args),
        user_data="mine",
        flags=ucp.OP_ATTR_FLAG_NO_IMM_CMPL,
    )
    assert request
    settle(request)
    for _ in range(10):
        pair.worker.progress()
    assert calls == [(request, Status.OK, "mine")]

    async def go() -> bytes:
        await pair.ep.put_nbx(b"awaited!", remote.address + 8, remote.key)
        await pair.ep.flush_nbx(flags=ucp.OP_ATTR_FLAG_NO_IMM_CMPL)
        back = bytearray(8)
        await asyncio.gather(
            *(
                pair.ep.get_nbx(back, remote.address + 8, remote.key, flags=ucp.OP_ATTR_FLAG_NO_IMM_CMPL)
                for _ in range(5)
            )
        )
        return bytes(back)

    assert asyncio.run(go()) == b"awaited!"
    remote.close()


# ---- protection ------------------------------------------------------------------------------------------------------


@fact("ucp.enum.prot-remote-read", "ucp.enum.prot-remote-write", "ucp.map.prot", "ucp.map.prot-unset")
def right_that_was_not_granted_is_refused_and_nothing_is_touched(pair: Pair) -> None:
    buffer = bytearray(b"\x55" * 8)
    word = bytearray(8)
    for prot in (0, ucp.MEM_MAP_PROT_REMOTE_READ, ucp.MEM_MAP_PROT_REMOTE_WRITE, REMOTE_RW):
        remote = pair.target.map(64, prot=ALL | prot)
        put = status_of(pair.ep.put_nbx(buffer, remote.address, remote.key))
        get = status_of(pair.ep.get_nbx(bytearray(8), remote.address + 8, remote.key))
        fetch = status_of(
            pair.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, remote.address + 16, remote.key, reply_buffer=word)
        )
        may_read, may_write = bool(prot & ucp.MEM_MAP_PROT_REMOTE_READ), bool(prot & ucp.MEM_MAP_PROT_REMOTE_WRITE)
        assert put == (Status.OK if may_write else Status.ERR_IO_ERROR)
        assert get == (Status.OK if may_read else Status.ERR_IO_ERROR)
        assert fetch == (Status.OK if may_read and may_write else Status.ERR_IO_ERROR)
        assert remote.bytes(0, 16) == (b"\x55" if may_write else b"\xee") * 8 + b"\xee" * 8
        assert remote.bytes(24) == b"\xee" * 40
        assert (remote.bytes(16, 24) == b"\xee" * 8) == (not (may_read and may_write))
        remote.close()
    remote = pair.target.map(64)  # all rights by default
    assert status_of(pair.ep.put_nbx(buffer, remote.address, remote.key)) == Status.OK
    remote.close()


@fact("ucp.map.length")
def access_outside_of_the_region_is_refused_and_nothing_is_touched(pair: Pair) -> None:
    nbytes = 100 if pair.foreign else 8192
    remote, neighbour = pair.target.map(nbytes), pair.target.map(nbytes)
    for at, n in ((-1, 1), (-8, 16), (nbytes, 1), (nbytes - 7, 8), (nbytes + (1 << 40), 8), (0, nbytes + 1)):
        address = remote.address + at & (1 << 64) - 1
        assert status_of(pair.ep.put_nbx(bytes(n), address, remote.key)) == Status.ERR_IO_ERROR, (at, n)
        assert status_of(pair.ep.get_nbx(bytearray(n), address, remote.key)) == Status.ERR_IO_ERROR, (at, n)
    assert status_of(pair.ep.put_nbx(b"12345678", neighbour.address, remote.key)) == Status.ERR_IO_ERROR
    assert remote.bytes() == neighbour.bytes() == b"\xee" * nbytes
    assert pair.ep.status == Status.OK  # the endpoint is as good as before
    assert status_of(pair.ep.put_nbx(b"\x01", remote.address + nbytes - 1, remote.key)) == Status.OK
    remote.close()
    neighbour.close()


@fact("ucp.unmap.rkey-invalid", "ucp.unmap.access-fails", "ucp.unmap.deregistration")
def key_of_unmapped_memory_reaches_nothing_not_even_what_took_its_place(pair: Pair) -> None:
    remote = pair.target.map(4096)
    settle(pair.ep.put_nbx(b"before", remote.address, remote.key))
    settle(pair.ep.flush_nbx())
    remote.unmap()
    assert status_of(pair.ep.put_nbx(b"after", remote.address, remote.key)) == Status.ERR_IO_ERROR
    again = pair.target.map(4096)
    assert status_of(pair.ep.put_nbx(b"after", again.address, remote.key)) == Status.ERR_IO_ERROR
    assert status_of(pair.ep.get_nbx(bytearray(4), again.address, remote.key)) == Status.ERR_IO_ERROR
    assert again.bytes() == b"\xee" * 4096
    remote.key.destroy()
    again.close()


@fact()
def refused_update_without_a_reply_is_told_by_the_flush(pair: Pair) -> None:
    remote = pair.target.map(64, prot=ALL)
    assert not pair.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, remote.address, remote.key)
    with pytest.raises(ucp.UcsError) as told:
        settle(pair.ep.flush_nbx())
    assert told.value.status == Status.ERR_IO_ERROR
    settle(pair.ep.flush_nbx())  # once
    remote.close()


@fact("ucp.unpack.one-ep")
def key_of_another_peer_reaches_nothing(pair: Pair) -> None:
    remote = pair.target.map(64)
    other = pair.meet()
    foreign = other.ep.rkey_unpack(remote.packed)  # it is a key, and no key of that peer's
    assert status_of(other.ep.put_nbx(b"12345678", remote.address, foreign)) == Status.ERR_IO_ERROR
    with pytest.raises(ucp.UcsError) as refused:
        other.ep.put_nbx(b"12345678", remote.address, remote.key)
    assert refused.value.status == Status.ERR_INVALID_PARAM
    assert remote.bytes() == b"\xee" * 64
    foreign.destroy()
    other.close()
    remote.close()


# ---- keys of equal layout, pointers, exported handles ----------------------------------------------------------------


@fact(
    "ucp.enum.symmetric",
    "ucp.enum.symmetric-interchange",
    "ucp.compare.equal",
    "ucp.matrix.allocate-fixed-address",
    "ucp.matrix.means-fixed",
)
def symmetric_key_of_one_peer_serves_them_all(pair: Pair) -> None:
    if pair.path == "self":
        return  # one process has one such address
    others = [pair.meet(), pair.meet()]
    flags = int(ucp.MEM_MAP_SYMMETRIC_RKEY | ucp.MEM_MAP_FIXED)
    regions = [t.map(8192, flags=flags, address=SYMMETRIC_AT) for t in (pair.target, *others)]
    plain = pair.target.map(8192, address=SYMMETRIC_AT + (1 << 30))
    one = regions[0].key
    assert {r.address for r in regions} == {SYMMETRIC_AT}
    for r in regions[1:]:
        assert pair.worker.rkey_compare(one, r.key) == 0
        assert pair.worker.rkey_compare(plain.key, r.key) == -pair.worker.rkey_compare(r.key, plain.key) != 0
    for number, r in enumerate(regions):
        settle(r.target.ep.put_nbx(bytes([number] * 8), SYMMETRIC_AT + 16, one))
        settle(r.target.ep.flush_nbx())
    for number, r in enumerate(regions):
        assert r.bytes(8, 32) == b"\xee" * 8 + bytes([number] * 8) + b"\xee" * 8
    different = others[0].map(4096, flags=flags, address=SYMMETRIC_AT + (1 << 20))
    assert pair.worker.rkey_compare(one, different.key) != 0  # another layout
    for r in (*regions, plain, different):
        r.close()
    for other in others:
        other.close()


@fact("ucp.ptr.function", "ucp.ptr.access", "ucp.ptr.shared-memory", "ucp.ptr.no-direct", "ucp.ptr.bad-address")
def pointer_to_remote_memory_is_had_where_loads_get_there(pair: Pair) -> None:
    remote = pair.target.map(8192)
    if pair.path in ("direct", "self"):
        view = remote.key.view(remote.address + 5, 8)
        view[:] = b"by store"
        assert remote.bytes(0, 13) == b"\xee" * 5 + b"by store"
        assert remote.key.ptr(remote.address + 5) == remote.key.ptr(remote.address) + 5
        for outside in (remote.address - 1, remote.address + 8192, 0):
            with pytest.raises(ucp.UcsError) as refused:
                remote.key.ptr(outside)
            assert refused.value.status == Status.ERR_INVALID_ADDR
        readable = pair.target.map(64, prot=ALL | ucp.MEM_MAP_PROT_REMOTE_READ)
        assert bytes(readable.key.view(readable.address, 4)) == b"\xee" * 4
        assert readable.key.view(readable.address, 4).readonly
        with pytest.raises(ucp.UcsError) as refused:
            readable.key.ptr(readable.address)
        assert refused.value.status == Status.ERR_UNREACHABLE
        readable.close()
        del view
    else:
        with pytest.raises(ucp.UcsError) as refused:
            remote.key.ptr(remote.address)
        assert refused.value.status == Status.ERR_UNREACHABLE
    remote.close()


@fact(
    "ucp.map.exported",
    "ucp.map.exported-peer",
    "ucp.enum.export",
    "ucp.enum.export-space",
    "ucp.enum.export-device",
    "ucp.enum.export-import",
)
def exported_handle_serves_the_importers_own_operations(pair: Pair) -> None:
    theirs = pair.target.map(8192)
    packed = pair.target.there(export, theirs.name)
    imported = pair.context.mem_map(exported_memh_buffer=packed)
    assert (imported.address, imported.length) == (theirs.address, 8192)
    if pair.path in ("direct", "self"):
        assert bytes(imported.memory) == b"\xee" * 8192
    else:  # not mapped here: operations go by way of the owner
        with pytest.raises(ucp.UcsError) as refused:
            _ = imported.memory
        assert refused.value.status == Status.ERR_UNSUPPORTED
    destination = pair.target.map(4096)
    # Their memory is the source, named by their address, of an operation of ours; then its destination.
    settle(pair.ep.put_nbx(b"\x42" * 16, theirs.address, theirs.key))
    settle(pair.ep.flush_nbx())
    settle(pair.ep.put_nbx((theirs.address + 8, 16), destination.address, destination.key, memh=imported))
    settle(pair.ep.flush_nbx())
    assert destination.bytes(0, 24) == b"\x42" * 8 + b"\xee" * 16
    settle(pair.ep.get_nbx((theirs.address + 100, 8), destination.address, destination.key, memh=imported))
    assert theirs.bytes(100, 108) == b"\x42" * 8
    with pytest.raises(ucp.UcsError) as refused:
        pair.ep.put_nbx((theirs.address + 8190, 16), destination.address, destination.key, memh=imported)
    assert refused.value.status == Status.ERR_INVALID_PARAM
    imported.unmap()
    with pytest.raises(ucp.UcsError):
        pair.ep.put_nbx((theirs.address, 8), destination.address, destination.key, memh=imported)
    theirs.unmap()
    with pytest.raises(ucp.UcsError) as refused:
        pair.context.mem_map(exported_memh_buffer=packed)
    assert refused.value.status == Status.ERR_UNREACHABLE
    theirs.key.destroy()
    destination.close()


# ---- one memory, two dialects ----------------------------------------------------------------------------------------


@fact()
def region_of_the_other_dialect_is_reached_by_a_packed_key(pair: Pair) -> None:
    for virt_addr in (False, True):
        address, packed, at = pair.target.there(expose_by_fi, 4096, pair.foreign, virt_addr)
        for ep in (pair.ep, pair.worker.ep_create(address)):  # to a worker of that process, and to its endpoint
            with ep.rkey_unpack(packed) as key:
                assert (key.address, key.length) == (at, 4096)
                settle(ep.put_nbx(b"from ucp", at + 24, key))
                settle(ep.flush_nbx())
                assert pair.target.there(fi_contents, 16, 40) == b"\xee" * 8 + b"from ucp" + b"\xee" * 8
                word = bytearray(8)
                settle(ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, at + 64, key, reply_buffer=word))
                assert bytes(word) == b"\xee" * 8
                settle(ep.put_nbx(b"\xee" * 48, at + 24, key))
                settle(ep.flush_nbx())
                assert status_of(ep.put_nbx(b"x", at + 4096, key)) == Status.ERR_IO_ERROR
        pair.target.there(withdraw_fi)


@fact()
def key_of_the_other_dialect_is_refused_on_an_endpoint_to_another_process(pair: Pair) -> None:
    """The key names the endpoint that its region is reached by: an endpoint elsewhere must not lend its name to it."""
    if pair.path == "self":
        return  # one process
    address, packed, at = pair.target.there(expose_by_fi, 4096, pair.foreign, False)
    elsewhere = pair.meet()
    with pytest.raises(ucp.UcsError, match="not the peer of this endpoint") as refused:
        elsewhere.ep.rkey_unpack(packed)
    assert refused.value.status == Status.ERR_UNREACHABLE
    with pair.worker.ep_create(address) as ep, ep.rkey_unpack(packed) as key:  # and on one to its process
        settle(ep.put_nbx(b"at home!", at, key))
        settle(ep.flush_nbx())
    assert pair.target.there(fi_contents, 0, 16) == b"at home!" + b"\xee" * 8
    elsewhere.close()
    pair.target.there(withdraw_fi)


@fact()
def mapped_memory_is_reached_by_an_endpoint_of_the_other_dialect(pair: Pair) -> None:
    remote = pair.target.map(4096)
    name, key, addr = pair.target.there(fi_way, remote.name)
    side = Side(caps=fi.RMA | fi.ATOMIC)
    to = side.av.insert(name)
    side.ep.write(b"from fi!", dest_addr=to, addr=addr + 40, key=key)
    side.done()
    assert remote.bytes(32, 56) == b"\xee" * 8 + b"from fi!" + b"\xee" * 8
    back = bytearray(8)
    side.ep.read(back, src_addr=to, addr=addr + 40, key=key)
    side.done()
    assert bytes(back) == b"from fi!"
    side.ep.write(b"12345678", dest_addr=to, addr=addr + 8192, key=key)
    assert side.failed().err == fi.EACCES
    side.close()
    remote.close()


@fact()
def shared_array_hands_out_keys_of_both_dialects(pair: Pair) -> None:
    if _process.nic().engine == "manual":
        assert "no engine thread" in pair.target.there(share_refusal, pair.foreign)
        return
    address, packed, (name, key, addr) = pair.target.there(share_array, pair.foreign)
    with pair.worker.ep_create(address) as ep, ep.rkey_unpack(packed) as rkey:
        settle(ep.put_nbx(np.arange(1, 4, dtype=np.uint64), rkey.address, rkey))
        settle(ep.flush_nbx())
    side = Side(caps=fi.RMA | fi.ATOMIC)
    to = side.av.insert(name)
    side.ep.atomic(np.array([10], np.uint64), dest_addr=to, addr=addr + 8, key=key, datatype=fi.UINT64, op=fi.SUM)
    side.done()
    back = np.zeros(4, np.uint64)
    side.ep.read(back, src_addr=to, addr=addr, key=key)
    side.done()
    assert back.tolist() == [1, 12, 3, 0]
    side.close()
    pair.target.there(end_share)


# ---- faults ----------------------------------------------------------------------------------------------------------


@fact("ucp.unmap.resources")
def memory_unmapped_under_traffic_ends_every_operation_one_way_or_the_other(pair: Pair) -> None:
    remote, other = pair.target.map(1 << 16), pair.target.map(1 << 16)
    assert pair.target.child is not None or pair.path == "self"
    ends: dict[Status, int] = {}
    call = None
    for i in range(3000):
        n = (8, 300, 5000, 60_000)[i % 4]
        request = pair.ep.put_nbx(bytes(n), remote.address, remote.key)
        end = status_of(request) if request else Status.OK
        ends[end] = ends.get(end, 0) + 1
        if i == 1000:
            if pair.target.child is None:
                remote.unmap()
            else:
                call = pair.target.child.start(unmap, remote.name)
        if i > 1000 and end != Status.OK:
            break
    if call is not None:
        call.result()
    assert set(ends) <= {Status.OK, Status.ERR_IO_ERROR}
    assert status_of(pair.ep.put_nbx(b"x", remote.address, remote.key)) == Status.ERR_IO_ERROR
    assert status_of(pair.ep.put_nbx(b"x", other.address, other.key)) == Status.OK
    remote.key.destroy()
    other.close()


@fact()
def peer_that_is_killed_fails_its_endpoint_and_no_other(pair: Pair) -> None:
    if pair.path == "self":
        return
    for idle in (False, True):
        told: list[tuple[Any, Any, int]] = []
        victim = pair.meet(err_handler=lambda *call: call[0].append(call), user_data=told)
        remote, safe = victim.map(4096), pair.target.map(64)
        settle(victim.ep.put_nbx(b"alive", remote.address, remote.key))
        assert victim.child is not None
        victim.child.kill()
        deadline = Patience(CALL_S / 2)
        while not told:
            if not idle and victim.ep.status == Status.OK:  # until an operation finds out
                end = status_of(victim.ep.put_nbx(b"dead", remote.address, remote.key))
                assert end in (Status.OK, Status.ERR_CONNECTION_RESET, Status.ERR_UNREACHABLE)
            pair.worker.progress()
            assert not deadline.over, "nobody told"
        assert told == [(told, victim.ep, victim.ep.status)]
        assert victim.ep.status in (Status.ERR_CONNECTION_RESET, Status.ERR_UNREACHABLE)
        with pytest.raises(ucp.UcsError) as refused:
            victim.ep.put_nbx(b"dead", remote.address, remote.key)
        assert refused.value.status == victim.ep.status
        settle(pair.ep.put_nbx(b"unharmed", safe.address, safe.key))
        settle(pair.ep.flush_nbx())
        assert safe.bytes(0, 8) == b"unharmed"
        victim.ep.close()
        victim.child.destroy()
        safe.close()
        pair.worker.progress()
        assert len(told) == 1
