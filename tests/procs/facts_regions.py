"""Facts about regions of several buffers, atomics and the modes of registration."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.pairs import (
    U64_SUM,
    Pair,
    expose_vector,
    fact,
    next_key,
    state,
    vector,
)
from tests.procs.peer import RW, Side, World

from weft import fi

# ---- regions of several buffers, slices ------------------------------------------------------------------------------


@fact("mr.regv.single-region", "mr.arg.iov", "mr.attr.mr-iov")
def a_region_of_several_buffers_is_one(pair: Pair) -> None:
    key = next(next_key)
    pair.there(expose_vector, key, [100, 1, 900, 24], pair.foreign)
    data = pair.local(1025)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=key, len=1025)
    pair.me.done()
    assert pair.there(vector, key) == bytes(data)
    back = np.zeros(950, np.uint8)
    pair.me.ep.read(back, src_addr=pair.peer, addr=60, key=key)
    pair.me.done()
    assert bytes(back) == bytes(data[60:1010])
    pair.me.ep.write(data, dest_addr=pair.peer, addr=1, key=key)
    assert pair.me.failed().err == fi.EACCES
    pair.there(peer.withdraw, key)


@fact("mr.local.unset-valid-desc", "rma.arg.desc", "rma.msg.desc", "mr.access.write-rma", "mr.access.read-rma")
def registered_buffers_and_descriptors_serve(pair: Pair) -> None:
    region = pair.expose(4096)
    data = pair.local(4096)
    with pair.me.domain.mr_reg(data, fi.READ | fi.WRITE) as mr:
        pair.me.ep.write(mr[100:200], dest_addr=pair.peer, addr=50, key=region.key)
        pair.me.ep.write(data[200:300], mr.desc, dest_addr=pair.peer, addr=150, key=region.key)
        message = fi.MsgRma([data[300:310]], [fi.RmaIov(250, 10, region.key)], pair.peer, desc=[mr.desc])
        pair.me.ep.writemsg(message)
        pair.me.done(3)
        assert region.bytes(50, 260) == bytes(data[100:310])
        data[:] = 0
        pair.me.ep.read(mr[0:210], src_addr=pair.peer, addr=50, key=region.key)
        pair.me.done()
        assert bytes(data[:210]) == region.bytes(50, 260)
    region.close()


# ---- atomics ---------------------------------------------------------------------------------------------------------


@fact("mr.general.atomic-target", "mr.access.remote-write-atomic", "mr.default.atomic-unregistered")
def atomics_change_fetch_and_compare(pair: Pair) -> None:
    region = pair.expose(64, fill=0)
    ep, to = pair.me.ep, pair.peer
    one, result = np.array([7, 9], np.uint64), np.zeros(2, np.uint64)
    ep.atomic(one, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.SUM)
    ep.inject_atomic(one, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.SUM)
    ep.fetch_atomic(one, result=result, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.SUM)
    pair.me.done(2)
    assert list(result) == [14, 18]
    assert np.frombuffer(region.bytes(), np.uint64).tolist() == [0, 21, 27, 0, 0, 0, 0, 0]
    ep.fetch_atomic(None, result=result, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.ATOMIC_READ)
    pair.me.done()
    assert list(result) == [21, 27]
    new, expect = np.array([100, 200], np.uint64), np.array([21, 28], np.uint64)
    ep.compare_atomic(
        new, compare=expect, result=result, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.CSWAP
    )
    pair.me.done()
    assert list(result) == [21, 27]
    assert np.frombuffer(region.bytes(8, 24), np.uint64).tolist() == [100, 27]
    ep.atomicv([new[:1], new[1:]], dest_addr=to, addr=32, key=region.key, datatype=fi.UINT64, op=fi.ATOMIC_WRITE)
    message = fi.MsgAtomic([new], [fi.RmaIoc(48, 2, region.key)], to, fi.UINT64, fi.SUM, context="m")
    ep.fetch_atomicmsg(message, [result])
    pair.me.done(2)
    assert list(result) == [0, 0]
    assert np.frombuffer(region.bytes(32), np.uint64).tolist() == [100, 200, 100, 200]
    ep.atomic(one, dest_addr=to, addr=4, key=region.key, **U64_SUM)
    assert pair.me.failed().err == fi.EINVAL  # not a multiple of eight
    region.close()


@fact()
def atomics_of_all_widths_agree_with_a_model(pair: Pair) -> None:
    region = pair.expose(256, fill=0)
    rng = np.random.default_rng(4)
    for datatype, dtype in (
        (fi.INT8, "i1"),
        (fi.UINT16, "u2"),
        (fi.INT32, "i4"),
        (fi.INT64, "i8"),
        (fi.FLOAT, "f4"),
        (fi.DOUBLE, "f8"),
        (fi.DOUBLE_COMPLEX, "c16"),
    ):
        model = np.zeros(16, dtype)
        pair.me.ep.write(model, dest_addr=pair.peer, addr=0, key=region.key)
        pair.me.done()
        for op in (fi.SUM, fi.PROD, fi.MIN, fi.MAX, fi.ATOMIC_WRITE):
            if dtype == "c16" and op in (fi.MIN, fi.MAX):
                continue
            operand = rng.integers(1, 5, 16).astype(dtype)
            result = np.zeros(16, dtype)
            pair.me.ep.fetch_atomic(
                operand, result=result, dest_addr=pair.peer, addr=0, key=region.key, datatype=datatype, op=op
            )
            pair.me.done()
            assert np.array_equal(result, model), (dtype, op)
            with np.errstate(all="ignore"):
                model = {
                    fi.SUM: model + operand,
                    fi.PROD: model * operand,
                    fi.MIN: np.minimum(model, operand) if dtype != "c16" else model,
                    fi.MAX: np.maximum(model, operand) if dtype != "c16" else model,
                    fi.ATOMIC_WRITE: operand,
                }[op].astype(dtype)
        assert region.bytes(0, model.nbytes) == model.tobytes(), dtype
    region.close()


def add_many(world: World, address: str, key: int, count: int) -> None:
    side = Side()
    to = side.av.insert(address)
    one = np.ones(1, np.uint64)
    for i in range(count):
        side.ep.atomic(one, dest_addr=to, addr=0, key=key, **U64_SUM)
        if i % 64 == 63:
            side.done(64)
    side.done(count % 64)
    side.close()


@fact()
def atomics_from_two_sides_lose_nothing(pair: Pair) -> None:
    if pair.target is None:
        return
    region = pair.expose(8, fill=0)
    call = pair.target.start(add_many, pair.name, region.key, 1000)
    one, result = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    seen = []
    for _ in range(1000):
        pair.me.ep.fetch_atomic(one, result=result, dest_addr=pair.peer, addr=0, key=region.key, **U64_SUM)
        pair.me.done()
        seen.append(int(result[0]))
    call.result()
    assert seen == sorted(set(seen))
    assert np.frombuffer(region.bytes(), np.uint64)[0] == 2000
    region.close()


# ---- registration modes ----------------------------------------------------------------------------------------------


def open_mode(world: World, name: str, mode: int, foreign: bool, fill: int) -> tuple[str, int, int]:
    side = world.sides[name] = Side(mr_mode=mode)
    array = peer.memory(side, 128, foreign, fill)
    world.arrays[name] = array
    mr = side.region(array, key=77)
    return side.name, mr.key, mr.address


def close_mode(world: World, name: str) -> bytes:
    found = bytes(world.arrays.pop(name))
    world.sides.pop(name).close()
    return found


@fact(
    "rma.addr.basic",
    "mr.virt-addr.base",
    "mr.virt-addr.offset",
    "mr.prov-key.via-mr-key",
    "mr.prov-key.no-app-keys",
    "mr.arg.requested-key-ignored",
    "mr.basic.virt-addr",
    "mr.basic.prov-key",
)
def registration_modes_decide_address_and_key(pair: Pair) -> None:
    virt, prov, basic = int(fi.MR_VIRT_ADDR), int(fi.MR_PROV_KEY), int(fi.MR_BASIC)
    for mode in (virt, prov, virt | prov, basic):
        address, key, base = pair.there(open_mode, f"mode {mode}", mode, pair.foreign, 0xEE)
        side = Side(mr_mode=mode)
        to = side.av.insert(address)
        by_address = mode != prov
        start = base if by_address else 0
        side.ep.write(b"first", dest_addr=to, addr=start, key=key)
        side.ep.write(b"later", dest_addr=to, addr=start + 20, key=key)
        side.done(2)
        if by_address:  # an offset is no address
            side.ep.write(b"wrong", dest_addr=to, addr=40, key=key)
            assert side.failed().err == fi.EACCES
        if mode != virt:
            side.ep.write(b"wrong", dest_addr=to, addr=start, key=77)  # what was requested
            assert side.failed().err == fi.EKEYREJECTED
        else:
            assert key == 77
        side.close()
        found = pair.there(close_mode, f"mode {mode}")
        assert found == b"first" + b"\xee" * 15 + b"later" + b"\xee" * 103


def bound_region(world: World, key: int, foreign: bool) -> tuple[str, str]:
    """Two endpoints of a domain with MR_ENDPOINT, and a region bound to the first of them, not enabled yet."""
    first = world.sides["bound"] = Side(mr_mode=int(fi.MR_ENDPOINT))
    second = first.domain.endpoint(first.info)
    second.bind(first.cq, fi.TRANSMIT | fi.RECV)
    second.bind(first.av)
    second.enable()
    array = peer.memory(first, 64, foreign, 0)
    mr = first.domain.mr_reg(array, RW, requested_key=key)
    world.more["bound"] = (second, mr, array)
    return first.name, str(second.getname())


def enable_bound(world: World) -> None:
    mr = world.more["bound"][1]
    mr.bind(world.sides["bound"].ep)
    mr.enable()


def close_bound(world: World) -> bytes:
    second, mr, array = world.more.pop("bound")
    with pytest.raises(fi.Busy):
        mr.close()
    second.close()
    side = world.sides.pop("bound")
    side.ep.close()
    mr.close()
    side.close()
    return bytes(array)


@fact(
    "mr.endpoint.association",
    "mr.endpoint.created-disabled",
    "mr.endpoint.enable-call",
    "mr.bind.endpoint",
    "mr.bind.endpoint-flags",
    "mr.close.busy-endpoint",
    "mr.enable.disabled-regions",
)
def a_region_of_an_endpoint_is_reached_through_it_alone(pair: Pair) -> None:
    key = next(next_key)
    right, wrong = (pair.me.av.insert(name) for name in pair.there(bound_region, key, pair.foreign))
    pair.me.ep.write(b"disabled", dest_addr=right, addr=0, key=key)
    assert pair.me.failed().err == fi.EACCES
    pair.there(enable_bound)
    pair.me.ep.write(b"enabled", dest_addr=right, addr=10, key=key)
    pair.me.done()
    pair.me.ep.write(b"through another", dest_addr=wrong, addr=20, key=key)
    assert pair.me.failed().err == fi.EACCES
    assert pair.there(close_bound) == b"\0" * 10 + b"enabled" + b"\0" * 47
    pair.me.av.remove([right, wrong])


@fact("mr.flag.single-use", "mr.flag.single-use-invalid")
def single_use_region_serves_one_operation(pair: Pair) -> None:
    """Small and in many fragments, every kind: afterwards the key is refused, and the memory stays as it is."""
    size = 200_000
    data = pair.local(size)
    ep, to = pair.me.ep, pair.peer
    word, old = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    calls: list[Callable[[int], Any]] = [
        lambda key: ep.write(data, dest_addr=to, addr=0, key=key),
        lambda key: ep.write(data[:8], dest_addr=to, addr=0, key=key),
        lambda key: ep.read(np.zeros(size, np.uint8), src_addr=to, addr=0, key=key),
        lambda key: ep.read(np.zeros(8, np.uint8), src_addr=to, addr=0, key=key),
        lambda key: ep.fetch_atomic(word, result=old, dest_addr=to, addr=0, key=key, **U64_SUM),
        lambda key: ep.writemsg(
            fi.MsgRma([data[:64]], [fi.RmaIov(0, 32, key), fi.RmaIov(size - 32, 32, key)], to), fi.COMPLETION
        ),
    ]
    for call in calls:
        region = pair.expose(size, flags=int(fi.MR_SINGLE_USE))
        # A refused access does not use it up.
        ep.write(data[:8], dest_addr=to, addr=size - 4, key=region.key)
        assert pair.me.failed().err == fi.EACCES
        call(region.key)
        pair.me.done()
        after = region.bytes()
        for again in calls:
            again(region.key)
            assert pair.me.failed().err == fi.EKEYREJECTED
        assert region.bytes() == after
        assert pair.there(state, region.key) == "used up"
        region.close()


@fact("mr.flag.single-use-invalid")
def single_use_region_that_was_never_used_is_closed(pair: Pair) -> None:
    region = pair.expose(64, flags=int(fi.MR_SINGLE_USE))
    assert pair.there(state, region.key) == "enabled"
    region.close()
    pair.me.ep.write(pair.local(8), dest_addr=pair.peer, addr=0, key=region.key)
    assert pair.me.failed().err == fi.EKEYREJECTED


def map_file(world: World, key: int, path: str, nbytes: int, flags: int) -> None:
    with open(path, "wb") as file:
        file.truncate(nbytes)
    array = np.memmap(path, np.uint8, "r+")
    world.arrays[key] = array
    world.mrs[key] = world.side.region(array, key, RW, flags=flags)


def dirty_bytes(world: World, path: str) -> int:
    """Bytes of this process's mapping of a file that are not on the disk yet."""
    found, ours = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if "-" in line.split()[0]:
                ours = line.rstrip().endswith(path)
            elif ours and line.startswith(("Shared_Dirty:", "Private_Dirty:")):
                found += int(line.split()[1]) << 10
    return found


@fact("rma.flag.commit-complete", "mr.flag.rma-pmem", "mr.flag.rma-pmem-required")
def commit_complete_comes_when_the_file_has_it(pair: Pair) -> None:
    size = 300_000
    path = f"{tempfile.gettempdir()}/commit-test-{os.getpid()}-{next(next_key)}"
    data = pair.local(size)
    ep, to = pair.me.ep, pair.peer
    word, old = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    plain, pmem = next(next_key), next(next_key)
    try:
        pair.there(map_file, pmem, path, size, int(fi.RMA_PMEM))

        def write(key: int, flags: int) -> None:
            ep.writemsg(fi.MsgRma([data], [fi.RmaIov(0, size, key)], to), flags | fi.COMPLETION)

        write(pmem, 0)
        pair.me.done()
        can_see = pair.there(dirty_bytes, path) > 0  # not so on tmpfs and the like
        write(pmem, fi.COMMIT_COMPLETE)
        pair.me.done()
        assert pair.there(dirty_bytes, path) == 0 or not can_see
        with open(path, "rb") as file:
            assert file.read() == bytes(data)
        message = fi.MsgAtomic([word], [fi.RmaIoc(0, 1, pmem)], to, fi.UINT64, fi.SUM)
        ep.atomicmsg(message, fi.COMMIT_COMPLETE | fi.COMPLETION)
        pair.me.done()
        assert pair.there(dirty_bytes, path) == 0 or not can_see
        with open(path, "rb") as file:
            assert int.from_bytes(file.read(8), "little") == int(data[:8].view(np.uint64)[0]) + 1
        ep.fetch_atomicmsg(message, [old])
        pair.me.done()
        pair.there(peer.withdraw, pmem)
        # Not registered as persistent: nothing durable can be promised, and nothing is written.
        pair.there(map_file, plain, path, size, 0)
        write(plain, fi.COMMIT_COMPLETE)
        failed = pair.me.failed()
        assert failed.err == fi.EOPNOTSUPP
        assert b"RMA_PMEM" in failed.err_data
        with open(path, "rb") as file:
            assert not any(file.read())
        pair.there(peer.withdraw, plain)
    finally:
        os.unlink(path)
