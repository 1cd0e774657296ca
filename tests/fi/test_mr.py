"""fi_mr(3): registration, keys, modes, bindings, life."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import ALL_CAPS, RW, Addresses, Node, opened, pair

from weft import fi

Duo = tuple[Node, Node, int]


def memory(node: Node, count: int = 64) -> np.ndarray[Any, Any]:
    found = node.domain.alloc(count, np.uint8)
    found.fill(0)
    return found


def put(initiator: Node, peer: int, data: bytes, addr: int, key: int) -> None:
    initiator.ep.write(data, dest_addr=peer, addr=addr, key=key)
    initiator.wait()


def get(initiator: Node, peer: int, count: int, addr: int, key: int) -> bytes:
    back = bytearray(count)
    initiator.ep.read(back, src_addr=peer, addr=addr, key=key)
    initiator.wait()
    return bytes(back)


def refused(initiator: Node, peer: int, addr: int, key: int) -> int:
    """Error number of a one-byte write there."""
    initiator.ep.write(b"\xee", dest_addr=peer, addr=addr, key=key)
    return initiator.wait_error().err


# ---- the three calls -------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "mr.reg.registers",
    "mr.arg.buf",
    "mr.arg.len",
    "mr.arg.mr",
    "mr.arg.requested-key",
    "mr.default.app-key",
    "mr.default.base-zero",
    "mr.default.byte-offset",
    "mr.key.returns",
    "mr.key.signature",
    "mr.ret.success",
    "mr.async.sync-default",
)
def test_mr_reg_opens_len_bytes_of_the_buffer_under_the_key(duo: Duo) -> None:
    """fi_mr(3) fi_mr_reg: by default the caller picks the key and peers count bytes from 0."""
    initiator, target, peer = duo
    data = memory(target, 100)
    mr = target.keep(target.domain.mr_reg(data, RW, requested_key=1234, len=60))
    assert isinstance(mr, fi.MemoryRegion)
    assert (mr.key, mr.length, mr.access, mr.state) == (1234, 60, RW, "enabled")
    put(initiator, peer, b"first", 0, 1234)
    put(initiator, peer, b"last", 56, 1234)
    assert bytes(data[:5]) == b"first"
    assert bytes(data[56:60]) == b"last"
    assert refused(initiator, peer, 60, 1234) == fi.EACCES
    assert not data[60:].any()


@pytest.mark.clause("mr.reg.signature", "mr.arg.access", "mr.arg.flags", "mr.arg.context", "mr.arg.domain")
def test_mr_reg_takes_c_s_arguments(node: Node) -> None:
    """fi_mr_reg(domain, buf, len, access, offset, requested_key, flags, mr, context)."""
    data = memory(node)
    mr = node.keep(
        node.domain.mr_reg(data, fi.REMOTE_READ, offset=0, requested_key=9, flags=fi.RMA_EVENT, context=object(), len=8)
    )
    assert mr.domain is node.domain
    assert (mr.length, mr.access, mr.key) == (8, fi.REMOTE_READ, 9)


@pytest.mark.general("several buffers a call")
@pytest.mark.clause(
    "mr.regv.signature", "mr.regv.single-region", "mr.regv.same-as-reg", "mr.arg.iov", "mr.arg.count", "mr.attr.mr-iov"
)
def test_mr_regv_makes_one_region_of_several_buffers(duo: Duo) -> None:
    """fi_mr(3) fi_mr_regv: offsets run on from one buffer into the next."""
    initiator, target, peer = duo
    parts = [memory(target, 4), np.zeros(6, np.uint8), memory(target, 8), memory(target, 8)]
    mr = target.keep(target.domain.mr_regv(parts, RW, count=3, requested_key=5))
    assert mr.length == 18
    put(initiator, peer, bytes(range(1, 19)), 0, 5)
    assert [p.tolist() for p in parts[:3]] == [[1, 2, 3, 4], list(range(5, 11)), list(range(11, 19))]
    assert not parts[3].any()
    assert get(initiator, peer, 8, 3, 5) == bytes(range(4, 12))
    assert refused(initiator, peer, 18, 5) == fi.EACCES


@pytest.mark.clause(
    "mr.regattr.signature", "mr.regattr.struct", "mr.arg.attr", "mr.attr.requested-key", "mr.attr.iov-count"
)
def test_mr_regattr_registers_what_the_struct_says(duo: Duo) -> None:
    initiator, target, peer = duo
    data = memory(target)
    attr = fi.MrAttr(mr_iov=[data, b"unused"], iov_count=1, access=RW, requested_key=77, context="ignored")
    mr = target.keep(target.domain.mr_regattr(attr, 0))
    assert (mr.key, mr.length) == (77, 64)
    put(initiator, peer, b"attr", 3, 77)
    assert bytes(data[3:7]) == b"attr"


@pytest.mark.clause("mr.register.same-result", "mr.flag.rma-event")
@pytest.mark.parametrize("call", ["mr_reg", "mr_regv", "mr_regattr"])
def test_mr_registration_calls_are_equivalent(duo: Duo, call: str) -> None:
    """fi_mr(3): the three differ in parameters; the flags of the page go with each."""
    initiator, target, peer = duo
    data = memory(target)
    if call == "mr_regattr":
        attr = fi.MrAttr(mr_iov=[data], access=RW, requested_key=3)
        mr = target.domain.mr_regattr(attr, fi.RMA_EVENT)
    else:
        buf: Any = [data] if call == "mr_regv" else data
        mr = getattr(target.domain, call)(buf, RW, requested_key=3, flags=fi.RMA_EVENT)
    target.keep(mr)
    assert (mr.key, mr.length, mr.access, mr.state, mr.address) == (3, 64, RW, "enabled", data.ctypes.data)
    put(initiator, peer, b"x", 63, 3)
    assert data[63] == ord("x")


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(32),
        lambda: memoryview(bytearray(40))[8:],
        lambda: np.zeros((4, 8), np.uint8),
        lambda: np.zeros(4, np.float64),
        lambda: mmap.mmap(-1, 32),
    ],
    ids=["bytearray", "memoryview", "2-d", "float64", "mmap"],
)
def test_mr_reg_takes_any_buffer(duo: Duo, make: Any) -> None:
    initiator, target, peer = duo
    buf = make()
    mr = target.reg(buf, requested_key=1)
    assert mr.length == 32
    put(initiator, peer, b"\x01\x02", 30, 1)
    view: Any = buf if isinstance(buf, mmap.mmap) else memoryview(buf).cast("B")
    assert bytes(view[30:32]) == b"\x01\x02"


def test_mr_reg_holds_the_exporter(duo: Duo) -> None:
    """A region keeps its memory: a bytearray cannot be resized under it."""
    initiator, target, peer = duo
    buf = bytearray(16)
    mr = target.domain.mr_reg(buf, RW, requested_key=1)
    with pytest.raises(BufferError):
        buf.extend(b"more")
    put(initiator, peer, b"still here", 0, 1)
    mr.close()
    buf.extend(b"more")


def test_mr_reg_non_contiguous_is_refused_with_the_remedy(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument, match="contiguous"):
        node.domain.mr_reg(np.zeros((8, 8))[:, 1], RW)


def test_mr_reg_read_only_memory_for_remote_writing_is_refused(node: Node) -> None:
    for buf in (b"constant", memoryview(b"constant")):
        with pytest.raises(fi.AccessDenied):
            node.domain.mr_reg(buf, fi.REMOTE_WRITE)
    locked = np.zeros(8)
    locked.flags.writeable = False
    with pytest.raises(fi.AccessDenied):
        node.domain.mr_reg(locked, RW)
    for access in (fi.REMOTE_WRITE, fi.READ, fi.RECV):  # READ and RECV write to it, too
        with pytest.raises(fi.AccessDenied):
            node.domain.mr_reg(b"constant", access)
        with pytest.raises(fi.AccessDenied):
            node.domain.mr_reg(b"constant", access, len=4)
    with node.domain.mr_reg(b"constant", fi.REMOTE_READ, requested_key=1) as mr:
        assert mr.length == 8


# ---- arguments that are refused --------------------------------------------------------------------------------------


@pytest.mark.general("a region of one byte at least")
@pytest.mark.clause("mr.reg.len-positive")
@pytest.mark.parametrize("call", [lambda d: d.mr_reg(b"", 0), lambda d: d.mr_reg(bytearray(4), 0, len=0)])
def test_mr_reg_of_no_bytes_is_invalid(node: Node, call: Any) -> None:
    with pytest.raises(fi.InvalidArgument):
        call(node.domain)


def test_mr_reg_len_beyond_the_buffer_is_invalid(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument, match="65"):
        node.domain.mr_reg(memory(node), RW, len=65)


@pytest.mark.clause("mr.arg.offset-zero", "mr.attr.offset-zero")
def test_mr_reg_offset_is_reserved(node: Node) -> None:
    data = memory(node)
    for call in (
        lambda: node.domain.mr_reg(data, RW, offset=8),
        lambda: node.domain.mr_regv([data], RW, offset=8),
        lambda: node.domain.mr_regattr(fi.MrAttr(mr_iov=[data], access=RW, offset=8)),
    ):
        with pytest.raises(fi.InvalidArgument, match="offset"):
            call()


@pytest.mark.general("the man page's error number")
@pytest.mark.clause("mr.reg.key-in-use", "mr.ret.negative")
def test_mr_reg_key_in_use_is_enokey(node: Node) -> None:
    """fi_mr(3) ERRORS: -FI_ENOKEY, the requested_key is already in use."""
    first = node.domain.mr_reg(memory(node), RW, requested_key=6)
    with pytest.raises(fi.NoKey) as caught:
        node.domain.mr_reg(memory(node), RW, requested_key=6)
    assert caught.value.errno == fi.ENOKEY
    assert "6" in str(caught.value)
    first.close()
    node.reg(memory(node), requested_key=6)  # free again


@pytest.mark.general("keys of eight bytes")
@pytest.mark.clause("mr.reg.key-out-of-range", "mr.default.key-size")
@pytest.mark.parametrize("key", [1 << 64, -1, fi.KEY_NOTAVAIL])
def test_mr_reg_key_out_of_range_is_ekeyrejected(node: Node, key: int) -> None:
    """fi_mr(3): a key has at most 8 bytes; FI_KEY_NOTAVAIL is none."""
    assert node.info.domain_attr.mr_key_size == 8
    with pytest.raises(fi.KeyRejected):
        node.domain.mr_reg(memory(node), RW, requested_key=key)


@pytest.mark.general("keys of eight bytes")
@pytest.mark.parametrize("key", [0, 1, 0xFFFFFFFF, (1 << 64) - 2])
def test_mr_reg_key_of_8_bytes_works(duo: Duo, key: int) -> None:
    initiator, target, peer = duo
    data = memory(target)
    assert target.reg(data, requested_key=key).key == key
    put(initiator, peer, b"k", 1, key)
    assert data[1] == ord("k")


def test_mr_keys_of_different_domains_are_apart() -> None:
    with opened() as one, opened() as two, opened() as initiator:
        a, b = memory(one), memory(two)
        one.reg(a, requested_key=1)
        two.reg(b, requested_key=1)
        for value, node in ((b"a", one), (b"b", two)):
            put(initiator, initiator.av.insert(node.name), value, 0, 1)
        assert bytes(a[:1]) + bytes(b[:1]) == b"ab"


@pytest.mark.general("the man page's error number")
@pytest.mark.clause("mr.attr.iov-limit")
def test_mr_regv_more_buffers_than_mr_iov_limit_is_invalid(node: Node) -> None:
    limit = node.info.domain_attr.mr_iov_limit
    parts = [bytearray(1) for _ in range(limit + 1)]
    node.keep(node.domain.mr_regv(parts[:limit], RW, requested_key=1))
    with pytest.raises(fi.InvalidArgument, match="mr_iov_limit"):
        node.domain.mr_regv(parts, RW, requested_key=2)
    with pytest.raises(fi.InvalidArgument):
        node.domain.mr_regv([], RW, requested_key=2)


@pytest.mark.clause(
    "mr.err.badflags",
    "mr.flag.device-only-hmem",
    "mr.flag.host-alloc-hmem",
    "mr.flag.dmabuf-hmem",
    "mr.flag.auth-key-domain",
)
@pytest.mark.parametrize(
    "flag",
    [fi.HMEM_DEVICE_ONLY, fi.HMEM_HOST_ALLOC, fi.MR_DMABUF, fi.AUTH_KEY, fi.FENCE],
    ids=repr,
)
@pytest.mark.parametrize("call", ["mr_reg", "mr_regv", "mr_regattr"])
def test_mr_reg_unsupported_flag_is_badflags(node: Node, call: str, flag: int) -> None:
    """fi_mr(3) ERRORS: -FI_EBADFLAGS. Device flags need FI_HMEM, FI_AUTH_KEY a domain with FI_AV_AUTH_KEY."""
    data = memory(node)
    calls = {
        "mr_reg": lambda: node.domain.mr_reg(data, RW, flags=flag),
        "mr_regv": lambda: node.domain.mr_regv([data], RW, flags=flag),
        "mr_regattr": lambda: node.domain.mr_regattr(fi.MrAttr(mr_iov=[data], access=RW), flag),
    }
    with pytest.raises(fi.BadFlags):
        calls[call]()


@pytest.mark.clause("mr.access.combination")
def test_mr_access_is_any_combination_of_permissions(node: Node) -> None:
    bits = [fi.SEND, fi.RECV, fi.READ, fi.WRITE, fi.REMOTE_READ, fi.REMOTE_WRITE, fi.COLLECTIVE]
    for n in range(1 << len(bits)):
        access = sum(int(b) for i, b in enumerate(bits) if n >> i & 1)
        with node.domain.mr_reg(bytearray(1), access, requested_key=n) as mr:
            assert mr.access == access
    with pytest.raises(fi.InvalidArgument, match="FENCE"):
        node.domain.mr_reg(bytearray(1), fi.FENCE)


@pytest.mark.clause("mr.attr.hmem-data-null")
def test_mr_regattr_hmem_data_is_reserved(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument, match="hmem_data"):
        node.domain.mr_regattr(fi.MrAttr(mr_iov=[memory(node)], access=RW, hmem_data=1))


@pytest.mark.clause("mr.attr.iface-ignored", "mr.iface.system-device", "mr.attr.device-ignored")
@pytest.mark.parametrize("iface", [fi.HMEM_SYSTEM, fi.HMEM_CUDA])
def test_mr_regattr_iface_and_device_are_ignored_without_hmem(node: Node, iface: int) -> None:
    mr = node.domain.mr_regattr(fi.MrAttr(mr_iov=[memory(node)], access=RW, requested_key=1, iface=iface, device=123))
    assert mr.state == "enabled"
    mr.close()


@pytest.mark.clause("mr.page-size.zero", "mr.page-size.hint", "mr.page-size.may-ignore", "mr.page-size.os")
def test_mr_regattr_page_size_is_a_hint_of_the_system_s_sizes(duo: Duo) -> None:
    initiator, target, peer = duo
    data = memory(target)
    for size in (0, os.sysconf("SC_PAGE_SIZE")):
        attr = fi.MrAttr(mr_iov=[data], access=RW, requested_key=size, page_size=size)
        with target.domain.mr_regattr(attr):
            put(initiator, peer, b"p", 0, size)
            assert data[0] == ord("p")
    with pytest.raises(fi.InvalidArgument, match="page_size 12345"):
        target.domain.mr_regattr(fi.MrAttr(mr_iov=[data], access=RW, page_size=12345))


def test_mr_reg_read_only_memory_with_a_length_is_refused_where_it_is_written(node: Node) -> None:
    """The result of a read is written to: FI_READ on memory that cannot be, also for a part of it."""
    for access in (fi.READ, fi.RECV, fi.REMOTE_WRITE):
        with pytest.raises(fi.AccessDenied, match="read-only"):
            node.domain.mr_reg(b"constant", access, len=4)
    with node.domain.mr_reg(b"constant", fi.WRITE | fi.REMOTE_READ, len=4) as mr:
        assert mr.length == 4


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause("mr.default.no-bits")
def test_mr_without_mode_bits_follows_the_default_rules(duo: Duo) -> None:
    """fi_mr(3) default registration: the application's key, offsets from 0, no local registration, at once."""
    initiator, target, peer = duo
    assert target.domain.mr_mode == initiator.domain.mr_mode == 0
    data = memory(target)
    mr = target.reg(data, requested_key=0x1234567)
    assert (mr.key, mr.state) == (0x1234567, "enabled")
    initiator.ep.write(bytearray(b"unregistered"), dest_addr=peer, addr=4, key=0x1234567)
    initiator.wait()
    assert bytes(data[4:16]) == b"unregistered"
    unbacked = Addresses(2)
    try:
        target.reg((unbacked.at, unbacked.nbytes), requested_key=2)
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=2)
        assert initiator.wait_error().err == fi.EFAULT
        unbacked.back()
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=2)
        initiator.wait()
        assert unbacked.array()[0] == ord("x")
    finally:
        unbacked.close()


# ---- descriptors, memory ---------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.reg.has-desc", "mr.desc.returns", "mr.desc.signature", "mr.local.app-managed")
def test_mr_every_region_has_a_descriptor(duo: Duo) -> None:
    initiator, target, peer = duo
    data = memory(target)
    target.reg(data, requested_key=1)
    source = bytearray(b"abc")
    local = initiator.reg(source, fi.WRITE)
    assert local.desc is not None
    initiator.ep.write(source, local.desc, peer, 0, 1)
    initiator.wait()
    assert bytes(data[:3]) == b"abc"


@pytest.mark.clause("mr.reg.optional-key")
def test_mr_local_region_needs_no_remote_access(duo: Duo) -> None:
    initiator, target, peer = duo
    data = memory(target)
    target.reg(data, fi.READ | fi.WRITE, requested_key=8)  # for local use: no peer may
    assert refused(initiator, peer, 0, 8) in (fi.EKEYREJECTED, fi.EACCES)
    assert not data.any()


@pytest.mark.clause("mr.default.unallocated", "mr.allocated.unset-unbacked")
def test_mr_reg_of_addresses_without_memory_succeeds(node: Node) -> None:
    """fi_mr(3): by default a range of addresses may be registered before anything is allocated there."""
    mr = node.domain.mr_reg((Addresses(1).at, 4096), RW, requested_key=1)
    assert (mr.length, mr.state) == (4096, "enabled")
    mr.close()


@pytest.mark.clause("mr.default.pages-before-access", "mr.allocated.unset-active", "mr.default.rma-unregistered")
def test_mr_access_to_addresses_without_memory_fails(duo: Duo) -> None:
    """fi_mr(3): a transfer that touches addresses without pages fails; nobody crashes, and the next one works."""
    initiator, target, peer = duo
    hole = target.keep(target.domain.mr_reg((Addresses(1).at, 4096), RW, requested_key=1))
    assert hole.length == 4096
    assert refused(initiator, peer, 100, 1) == fi.EFAULT
    initiator.ep.read(bytearray(8), src_addr=peer, addr=0, key=1)
    assert initiator.wait_error().err == fi.EFAULT
    data = memory(target)
    target.reg(data, requested_key=2)
    put(initiator, peer, b"fine", 0, 2)
    assert bytes(data[:4]) == b"fine"


@pytest.mark.clause("mr.allocated.unset-tracks")
def test_mr_follows_pages_that_change_under_it(duo: Duo) -> None:
    """fi_mr(3): with FI_MR_ALLOCATED unset the mapping may change, and transfers reach the new pages."""
    import ctypes

    initiator, target, peer = duo
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    anonymous, fixed, rw = 0x22, 0x10, 3
    size = 4 * mmap.PAGESIZE
    address = libc.mmap(None, size, rw, anonymous, -1, 0)
    try:
        target.keep(target.domain.mr_reg((address, size), RW, requested_key=1))
        put(initiator, peer, b"old", 0, 1)
        assert libc.mmap(address, size, rw, anonymous | fixed, -1, 0) == address  # new pages, same addresses
        assert get(initiator, peer, 3, 0, 1) == b"\0\0\0"
        put(initiator, peer, b"new", 0, 1)
        assert ctypes.string_at(address, 3) == b"new"
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


@pytest.mark.clause("mr.access.remote-read-unmodified", "mr.default.rma-read-source")
def test_mr_reading_leaves_the_region_as_it_was(duo: Duo) -> None:
    initiator, target, peer = duo
    data = memory(target)
    data[:] = range(64)
    target.reg(data, fi.REMOTE_READ, requested_key=1)
    assert get(initiator, peer, 64, 0, 1) == bytes(range(64))
    assert data.tolist() == list(range(64))
    other = memory(target)  # not registered: no key leads to it
    initiator.ep.read(bytearray(1), src_addr=peer, addr=0, key=2)
    assert initiator.wait_error().err == fi.EKEYREJECTED
    assert not other.any()


def test_mr_access_of_local_buffers(duo: Duo) -> None:
    """fi_mr(3) FI_READ: may hold the result of a read; FI_WRITE: may be the source of a write."""
    initiator, target, peer = duo
    data = memory(target)
    target.reg(data, requested_key=1)
    source, result = bytearray(b"source"), bytearray(6)
    initiator.ep.write(source, initiator.reg(source, fi.WRITE, requested_key=1).desc, peer, 0, 1)
    initiator.ep.read(result, initiator.reg(result, fi.READ, requested_key=2).desc, peer, 0, 1)
    initiator.wait(2)
    assert result == b"source"


# ---- provider keys, virtual addresses, basic -------------------------------------------------------------------------


@pytest.mark.clause(
    "mr.prov-key.no-app-keys",
    "mr.prov-key.via-mr-key",
    "mr.arg.requested-key-ignored",
    "mr.key.usable-at-peer",
)
def test_mr_prov_key_is_the_provider_s_choice() -> None:
    """fi_mr(3) FI_MR_PROV_KEY: requested_key is ignored, even one that would be refused; fi_mr_key has the real one."""
    with pair(mr_mode=fi.MR_PROV_KEY) as (initiator, target, peer):
        parts = [memory(target) for _ in range(3)]
        regions = [target.reg(p, requested_key=k) for p, k in zip(parts, (5, 5, 1 << 70), strict=True)]
        keys = [mr.key for mr in regions]
        assert len(set(keys)) == 3
        assert fi.KEY_NOTAVAIL not in keys
        for i, key in enumerate(keys):
            put(initiator, peer, bytes([i + 1]), 0, key)
        assert [p[0] for p in parts] == [1, 2, 3]


def test_mr_prov_key_stale_key_reaches_nothing() -> None:
    """A provider key names one registration: after close it never reaches a newer region in its place."""
    with pair(mr_mode=fi.MR_PROV_KEY) as (initiator, target, peer):
        data = memory(target)
        old = target.domain.mr_reg(data, RW)
        stale = old.key
        old.close()
        for _ in range(50):
            with target.domain.mr_reg(data, RW) as newer:
                assert newer.key != stale
                assert refused(initiator, peer, 0, stale) == fi.EKEYREJECTED
        assert not data.any()


@pytest.mark.clause("mr.virt-addr.base", "mr.virt-addr.offset")
def test_mr_virt_addr_peers_use_the_target_s_addresses() -> None:
    """fi_mr(3) FI_MR_VIRT_ADDR: byte N of a region is at its virtual address plus N."""
    with pair(mr_mode=fi.MR_VIRT_ADDR) as (initiator, target, peer):
        data = memory(target)
        mr = target.reg(data, requested_key=1)
        assert mr.address == data.ctypes.data
        put(initiator, peer, b"base", mr.address, 1)
        put(initiator, peer, b"N", mr.address + 63, 1)
        assert bytes(data[:4]) == b"base"
        assert data[63] == ord("N")
        for outside in (0, mr.address - 1, mr.address + 64):
            assert refused(initiator, peer, outside, 1) == fi.EACCES


@pytest.mark.general("MR_BASIC, which has no MR_ENDPOINT")
@pytest.mark.clause("mr.basic.virt-addr", "mr.basic.prov-key", "rma.addr.basic")
def test_mr_basic_is_virtual_addresses_and_provider_keys() -> None:
    with pair(mr_mode=fi.MR_BASIC) as (initiator, target, peer):
        assert initiator.domain.mr_mode == fi.MR_BASIC
        data = memory(target)
        mr = target.reg(data, requested_key=5)
        second = target.reg(memory(target), requested_key=5)
        assert mr.key != second.key
        put(initiator, peer, b"basic", mr.address + 10, mr.key)
        assert bytes(data[10:15]) == b"basic"
        assert refused(initiator, peer, 10, mr.key) == fi.EACCES


@pytest.mark.parametrize("mode", ["prov_key", "virt_addr", "prov_key|virt_addr|allocated", "local", "endpoint", "raw"])
def test_mr_mode_of_the_environment_is_in_force(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """WEFT_MR_MODE makes the provider require a mode; an application that offers it gets it."""
    monkeypatch.setenv("WEFT_MR_MODE", mode)
    offered = fi.MR_BASIC_MAP | fi.MR_LOCAL | fi.MR_ENDPOINT | fi.MR_RAW
    info = fi.getinfo(hints=fi.Info(caps=ALL_CAPS, domain_attr=fi.DomainAttr(mr_mode=offered)))[0]
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        assert domain.mr_mode == info.domain_attr.mr_mode != 0


# ---- MR_LOCAL --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.local.set-desc", "mr.general.local-may-be-required")
def test_mr_local_demands_a_descriptor() -> None:
    """fi_mr(3) FI_MR_LOCAL: local buffers are registered, and their desc is given."""
    with pair(mr_mode=fi.MR_LOCAL) as (initiator, target, peer):
        data = memory(target)
        target.reg(data, requested_key=1)
        local = bytearray(b"local")
        with pytest.raises(fi.InvalidArgument, match="MR_LOCAL"):
            initiator.ep.write(local, None, peer, 0, 1)
        assert not data.any()
        mr = initiator.reg(local, fi.WRITE)
        initiator.ep.write(local, mr.desc, peer, 0, 1)
        initiator.ep.write(mr[0:2], None, peer, 10, 1)  # a registered slice is its own descriptor
        initiator.wait(2)
        assert bytes(data[:5]) == b"local"
        assert bytes(data[10:12]) == b"lo"


# ---- MR_RAW ----------------------------------------------------------------------------------------------------------


@pytest.mark.general("keys of eight bytes")
@pytest.mark.clause(
    "mr.key.notavail-raw",
    "mr.raw.need-raw-attr",
    "mr.raw.need-map-raw",
    "mr.raw-attr.raw-key",
    "mr.map-raw.maps",
    "mr.map-raw.by-initiator",
    "mr.raw-attr.map-first",
    "mr.notes.map-small-raw",
)
def test_mr_raw_key_goes_through_raw_attr_and_map_raw() -> None:
    """fi_mr(3) FI_MR_RAW: fi_mr_key is FI_KEY_NOTAVAIL; the raw key, mapped by the initiator, works."""
    with pair(mr_mode=fi.MR_RAW) as (initiator, target, peer):
        data = memory(target)
        mr = target.reg(data, requested_key=0x1122334455667788)
        assert mr.key == fi.KEY_NOTAVAIL
        base, raw = mr.raw_attr()
        key = initiator.domain.map_raw(base, raw)
        assert key != fi.KEY_NOTAVAIL
        put(initiator, peer, b"raw", base, key)
        assert bytes(data[:3]) == b"raw"
        initiator.domain.unmap_key(key)


@pytest.mark.clause(
    "mr.raw-attr.signature",
    "mr.raw-attr.base-addr",
    "mr.raw-attr.any-region",
    "mr.raw-attr.size-in",
    "mr.raw-attr.size-out",
    "mr.raw-attr.too-small",
    "mr.raw-attr.domain-size",
)
@pytest.mark.parametrize("mr_mode", [0, fi.MR_VIRT_ADDR], ids=["offset", "virt_addr"])
def test_mr_raw_attr_works_on_any_region(mr_mode: int) -> None:
    """fi_mr(3) fi_mr_raw_attr: key and base address; -FI_ETOOSMALL says how much room it takes."""
    with opened(mr_mode=mr_mode) as node:
        mr = node.reg(memory(node), requested_key=1)
        size = node.info.domain_attr.mr_key_size
        base, raw = mr.raw_attr(size, 0)
        assert len(raw) == size
        assert base == (mr.address if mr_mode else 0)
        with pytest.raises(fi.TooSmall) as caught:
            mr.raw_attr(size - 1)
        assert caught.value.errno == fi.ETOOSMALL
        assert getattr(caught.value, "needed") == size  # noqa: B009
        with pytest.raises(fi.BadFlags):
            mr.raw_attr(flags=1)


@pytest.mark.clause(
    "mr.map-raw.signature",
    "mr.map-raw.any-key",
    "mr.map-raw.must-unmap",
    "mr.unmap-key.signature",
    "mr.unmap-key.releases",
    "mr.unmap-key.before-domain",
)
def test_mr_mapped_keys_are_unmapped_before_the_domain_closes(duo: Duo) -> None:
    """fi_mr(3) fi_mr_unmap_key: all mapped keys have to be freed before the domain is closed."""
    initiator, target, peer = duo
    data = memory(target)
    base, raw = target.reg(data, requested_key=7).raw_attr()
    with fi.Fabric(initiator.info.fabric_attr) as fabric:
        domain = fabric.domain(initiator.info)
        key = domain.map_raw(base, raw, len(raw), 0)
        put(initiator, peer, b"m", base, key)
        with pytest.raises(fi.Busy, match="mapped"):
            domain.close()
        domain.unmap_key(key)
        with pytest.raises(fi.InvalidArgument):
            domain.unmap_key(key)
        domain.close()
    with pytest.raises(fi.InvalidArgument):
        initiator.domain.map_raw(0, b"short")


# ---- disabled regions, bindings --------------------------------------------------------------------------------------


@pytest.mark.general("the man page's error number")
@pytest.mark.clause(
    "mr.endpoint.association",
    "mr.endpoint.created-disabled",
    "mr.endpoint.bind-first",
    "mr.endpoint.enable-call",
    "mr.bind.endpoint",
    "mr.bind.endpoint-flags",
    "mr.arg.bfid",
    "mr.enable.disabled-regions",
    "mr.enable.signature",
    "mr.bind.signature",
)
def test_mr_endpoint_region_is_bound_then_enabled() -> None:
    """fi_mr(3) FI_MR_ENDPOINT: created disabled; bound; enabled; reachable through its endpoint only."""
    with pair(mr_mode=fi.MR_ENDPOINT) as (initiator, target, peer):
        data = memory(target)
        mr = target.reg(data, requested_key=1)
        assert mr.state == "disabled"
        assert refused(initiator, peer, 0, 1) in (fi.EKEYREJECTED, fi.EACCES)
        with pytest.raises(fi.BadState, match="bound to no endpoint"):
            mr.enable()
        with pytest.raises(fi.BadFlags):
            mr.bind(target.ep, fi.REMOTE_WRITE)
        mr.bind(target.ep, 0)
        assert refused(initiator, peer, 0, 1) in (fi.EKEYREJECTED, fi.EACCES)
        mr.enable()
        assert mr.state == "enabled"
        put(initiator, peer, b"now", 0, 1)
        assert bytes(data[:3]) == b"now"

        other = target.domain.endpoint()
        other.bind(target.cq, fi.TRANSMIT | fi.RECV)
        other.bind(target.av)
        other.enable()
        try:
            assert refused(initiator, initiator.av.insert(other.getname()), 0, 1) in (fi.EKEYREJECTED, fi.EACCES)
        finally:
            other.close()
        assert data[0] == ord("n")


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause(
    "mr.rma-event.flag-needed",
    "mr.rma-event.created-disabled",
    "mr.rma-event.bind-first",
    "mr.rma-event.enable-call",
    "mr.rma-event.no-bind-after",
    "mr.rma-event.configure",
    "mr.enable.bind-before",
)
def test_mr_rma_event_region_is_configured_before_use() -> None:
    """fi_mr(3) FI_MR_RMA_EVENT: with the flag FI_RMA_EVENT created disabled; counters first, then enabled for good."""
    with pair(mr_mode=fi.MR_RMA_EVENT) as (initiator, target, peer):
        plain = target.reg(memory(target), requested_key=1)
        assert plain.state == "enabled"
        data = memory(target)
        mr = target.domain.mr_reg(data, RW, requested_key=2, flags=fi.RMA_EVENT)
        assert mr.state == "disabled"
        with target.domain.cntr_open() as cntr:
            with pytest.raises(fi.BadState, match="RMA_EVENT"):
                plain.bind(cntr, fi.REMOTE_WRITE)
            mr.bind(cntr, fi.REMOTE_WRITE)
            assert refused(initiator, peer, 0, 2) in (fi.EKEYREJECTED, fi.EACCES)
            mr.enable()
            with pytest.raises(fi.BadState):
                mr.bind(cntr, fi.REMOTE_WRITE)
            put(initiator, peer, b"e", 0, 2)
            cntr.wait(1, timeout=30)
            assert data[0] == ord("e")
            assert cntr.read() == 1
        mr.close()


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause(
    "mr.bind.counter",
    "mr.bind.counter-flags",
    "mr.bind.remote-write-rma",
    "mr.bind.remote-write-atomic",
    "mr.access.remote-write-atomic",
)
def test_mr_counter_counts_remote_modifications(duo: Duo) -> None:
    """fi_mr(3) fi_mr_bind FI_REMOTE_WRITE: an event for each RMA write or atomic that modifies the region."""
    initiator, target, peer = duo
    data = target.domain.alloc(8, np.uint64)
    data.fill(0)
    mr, other = target.reg(data, requested_key=1), target.reg(memory(target), requested_key=2)
    cntr = target.domain.cntr_open()
    mr.bind(cntr, fi.REMOTE_WRITE)
    put(initiator, peer, b"12345678", 0, 1)
    put(initiator, peer, b"elsewhere", 0, 2)
    get(initiator, peer, 8, 0, 1)
    initiator.ep.atomic(np.array([1], np.uint64), None, peer, 8, 1, fi.UINT64, fi.SUM)
    initiator.wait()
    cntr.wait(2, timeout=30)
    assert cntr.read() == 2
    assert data[1] == 1
    cntr.close()
    mr.close()
    assert other.state == "enabled"


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause("mr.bind.remote-write-cap")
def test_mr_counter_counts_only_through_an_rma_event_endpoint() -> None:
    """fi_mr(3): FI_REMOTE_WRITE needs the endpoint that the region is accessed through to have FI_RMA_EVENT."""
    with pair(caps=fi.RMA | fi.ATOMIC) as (initiator, target, peer):
        cntr = target.domain.cntr_open()
        target.reg(memory(target), requested_key=1).bind(cntr, fi.REMOTE_WRITE)
        target.extra.append(cntr)  # closed before the region, which it is bound to
        put(initiator, peer, b"x", 0, 1)
        get(initiator, peer, 1, 0, 1)
        assert cntr.read() == 0


@pytest.mark.general("a region that needs no binding")
def test_mr_endpoint_binding_is_harmless_where_it_is_not_required(duo: Duo) -> None:
    """A program written for FI_MR_ENDPOINT binds and enables; without that mode it runs unchanged."""
    initiator, target, peer = duo
    data = memory(target)
    mr = target.domain.mr_reg(data, RW, requested_key=1)
    mr.bind(target.ep)
    mr.enable()
    put(initiator, peer, b"same", 0, 1)
    assert bytes(data[:4]) == b"same"
    target.ep.close()
    mr.close()


@pytest.mark.general("a region that needs no binding")
def test_mr_bind_of_something_else_is_invalid(node: Node) -> None:
    mr = node.reg(memory(node), requested_key=1)
    with pytest.raises(fi.InvalidArgument):
        mr.bind(node.cq)  # type: ignore[arg-type]
    cntr = node.keep(node.domain.cntr_open())
    for flags in (0, fi.REMOTE_READ, fi.REMOTE_WRITE | fi.FENCE):
        with pytest.raises(fi.BadFlags):
            mr.bind(cntr, flags)


@pytest.mark.general("the man page's error number")
def test_mr_bind_across_domains_is_edomain(duo: Duo) -> None:
    initiator, target, _ = duo
    mr = target.reg(memory(target), requested_key=1)
    with initiator.domain.cntr_open() as cntr, pytest.raises(fi.WrongDomain):
        mr.bind(cntr, fi.REMOTE_WRITE)
    with pytest.raises(fi.WrongDomain):
        mr.bind(initiator.ep)


@pytest.mark.clause("mr.refresh.signature", "mr.refresh.enosys")
def test_mr_refresh_is_enosys(node: Node) -> None:
    """fi_mr(3): with FI_MR_ALLOCATED unset, -FI_ENOSYS where the provider does not support the call."""
    mr = node.reg(memory(node), requested_key=1)
    with pytest.raises(fi.NoSys) as caught:
        mr.refresh([memory(node)], 1, 0)
    assert caught.value.errno == fi.ENOSYS


def test_mr_key_mapped_twice_is_unmapped_twice(duo: Duo) -> None:
    """fi_mr(3) fi_mr_unmap_key: every mapping is given back, also of one key, before the domain is closed."""
    initiator, target, _ = duo
    raw = target.reg(memory(target), requested_key=3).raw_attr()[1]
    key = initiator.domain.map_raw(0, raw)
    assert initiator.domain.map_raw(0, raw) == key
    initiator.domain.unmap_key(key)
    with pytest.raises(fi.Busy, match="raw keys are still mapped"):
        initiator.domain.close()
    initiator.domain.unmap_key(key)
    with pytest.raises(fi.InvalidArgument, match="not mapped"):
        initiator.domain.unmap_key(key)


# ---- sub-MRs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def base(duo: Duo) -> Iterator[tuple[Duo, np.ndarray[Any, Any], fi.MemoryRegion]]:
    """A base region of 64 bytes under key 1."""
    data = memory(duo[1])
    mr = duo[1].domain.mr_reg(data, RW, requested_key=1)
    yield duo, data, mr
    mr.close()


@pytest.mark.general("several buffers a call")
def test_mr_sub_mr_crosses_the_border_of_adjoining_buffers(duo: Duo) -> None:
    """fi_mr(3) base_mr: it is contained in the base, whose buffers adjoin; a gap between them is not in it."""
    initiator, target, peer = duo
    data = target.domain.alloc(64, "u1")
    data.fill(0)
    pieces = [data[16:32], data[:16], data[40:]]
    with target.domain.mr_regv(pieces, RW, requested_key=1) as base_mr:
        attr = fi.MrAttr(mr_iov=[data[8:24]], access=RW, requested_key=2, base_mr=base_mr)
        with target.domain.mr_regattr(attr):
            put(initiator, peer, b"0123456789abcdef", 0, 2)
            assert bytes(data[8:24]) == b"0123456789abcdef"
        for beyond in (data[8:33], data[30:42]):
            attr = fi.MrAttr(mr_iov=[beyond], access=RW, requested_key=2, base_mr=base_mr)
            with pytest.raises(fi.InvalidArgument, match="do not lie within base_mr"):
                target.domain.mr_regattr(attr)


@pytest.mark.clause("mr.submr.create", "mr.base-mr.non-null", "mr.base-mr.own-access")
def test_mr_sub_mr_has_its_own_key_and_rights(base: Any) -> None:
    """fi_mr(3) base_mr: a sub-MR lies in its base and has access rights of its own."""
    (initiator, target, peer), data, mr = base
    attr = fi.MrAttr(mr_iov=[data[16:32]], access=fi.REMOTE_READ, requested_key=2, base_mr=mr)
    with target.domain.mr_regattr(attr) as sub:
        assert sub.base_mr is mr
        assert (sub.key, sub.length) == (2, 16)
        put(initiator, peer, b"via base", 16, 1)
        assert get(initiator, peer, 8, 0, 2) == b"via base"
        assert refused(initiator, peer, 0, 2) == fi.EACCES


@pytest.mark.clause("mr.base-mr.contained")
def test_mr_sub_mr_beyond_its_base_is_invalid(base: Any) -> None:
    (_, target, _), data, mr = base
    inner = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data[8:16]], access=RW, requested_key=2, base_mr=mr))
    for buf, of in ((memory(target), mr), (data[8:17], inner), (data[7:16], inner)):
        with pytest.raises(fi.InvalidArgument, match="base"):
            target.domain.mr_regattr(fi.MrAttr(mr_iov=[buf], access=RW, requested_key=3, base_mr=of))
    inner.close()


@pytest.mark.clause("mr.submr.hierarchy", "mr.base-mr.close-fails")
def test_mr_sub_mrs_nest_and_hold_their_base(base: Any) -> None:
    """fi_mr(3) base_mr: a sub-MR may be a base; closing a base with outstanding sub-MRs fails."""
    (initiator, target, peer), data, mr = base
    sub = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data[8:40]], access=RW, requested_key=2, base_mr=mr))
    leaf = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data[10:12]], access=RW, requested_key=3, base_mr=sub))
    put(initiator, peer, b"lf", 0, 3)
    assert bytes(data[10:12]) == b"lf"
    for holder in (mr, sub):
        with pytest.raises(fi.Busy, match="MemoryRegion"):
            holder.close()
        assert holder.state == "enabled"
    leaf.close()
    sub.close()


@pytest.mark.clause(
    "mr.base-mr.inherit-iface",
    "mr.base-mr.inherit-device",
    "mr.base-mr.inherit-page-size",
    "mr.sub-mr-cnt.expected",
    "mr.sub-mr-cnt.not-limit",
    "mr.sub-mr-cnt.may-ignore",
)
def test_mr_sub_mr_ignores_inherited_attributes_and_the_count(duo: Duo) -> None:
    _, target, _ = duo
    data = memory(target)
    mr = target.domain.mr_regattr(fi.MrAttr(mr_iov=[data], access=RW, requested_key=1, sub_mr_cnt=1))
    subs = [
        target.domain.mr_regattr(
            fi.MrAttr(
                mr_iov=[data[i : i + 1]], access=RW, requested_key=10 + i, base_mr=mr, iface=99, device=7, page_size=3
            )
        )
        for i in range(3)
    ]
    assert all(s.state == "enabled" for s in subs)
    for s in (*subs, mr):
        s.close()


# ---- asynchronous registration (deprecated) --------------------------------------------------------------------------


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause(
    "mr.async.enable",
    "mr.async.mr-before-event",
    "mr.async.no-event-on-failure",
    "mr.reg.async-event",
    "mr.reg.async-mr-out",
    "mr.reg.async-context",
    "mr.attr.context-async",
    "mr.attr.context-sync",
)
def test_mr_registration_reports_to_an_event_queue(node: Node) -> None:
    """fi_mr(3): a domain bound to an event queue with FI_REG_MR tells of each registration that succeeded."""
    with fi.Fabric(node.info.fabric_attr) as fabric, fabric.eq_open() as eq, fabric.domain(node.info) as domain:
        domain.bind(eq, fi.REG_MR)
        mr = domain.mr_reg(bytearray(8), RW, requested_key=1, context="mine")
        with pytest.raises(fi.NoKey):
            domain.mr_reg(bytearray(8), RW, requested_key=1, context="failed")
        event, entry = eq.sread(timeout=30)
        assert event == fi.MR_COMPLETE
        assert entry.fid is mr
        assert entry.context == "mine"
        assert eq.read() is None
        mr.close()
    sync = node.reg(memory(node), requested_key=9, context="nobody reads this")
    assert sync.state == "enabled"


# ---- close -----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.close.signature", "mr.close.remote-error", "mr.close.local-ep-unaffected")
def test_mr_close_invalidates_the_key_and_nothing_else(duo: Duo) -> None:
    """fi_mr(3) fi_close: a peer that uses a closed region gets an error; the owner's endpoint is unaffected."""
    initiator, target, peer = duo
    data = memory(target)
    mr = target.domain.mr_reg(data, RW, requested_key=1)
    put(initiator, peer, b"x", 0, 1)
    assert mr.close() is None  # type: ignore[func-returns-value]
    assert mr.closed
    for _ in range(3):
        assert refused(initiator, peer, 1, 1) == fi.EKEYREJECTED
    assert data[1] == 0
    assert target.ep.enabled
    target.reg(data, requested_key=1)
    put(initiator, peer, b"y", 1, 1)
    back = target.me
    target.ep.write(b"z", dest_addr=back, addr=2, key=1)
    target.wait()
    assert bytes(data[:3]) == b"xyz"


@pytest.mark.general("regions are busy while bound, endpoints are not")
@pytest.mark.clause("mr.close.busy-endpoint")
def test_mr_close_with_open_endpoint_is_busy() -> None:
    """fi_mr(3) fi_close: -FI_EBUSY while an endpoint associated with the region is open."""
    with opened(mr_mode=fi.MR_ENDPOINT) as node:
        mr = node.domain.mr_reg(memory(node), RW, requested_key=1)
        mr.bind(node.ep)
        mr.enable()
        with pytest.raises(fi.Busy) as caught:
            mr.close()
        assert caught.value.errno == fi.EBUSY
        assert repr(node.ep) in str(caught.value)
        assert mr.state == "enabled"
        node.ep.close()
        mr.close()


@pytest.mark.general("regions are busy while bound, endpoints are not")
@pytest.mark.clause("mr.close.busy-counter")
def test_mr_close_with_open_counter_is_busy(node: Node) -> None:
    """fi_mr(3) fi_close: -FI_EBUSY while a counter associated with the region is open."""
    mr = node.domain.mr_reg(memory(node), RW, requested_key=1)
    cntr = node.domain.cntr_open()
    mr.bind(cntr, fi.REMOTE_WRITE)
    with pytest.raises(fi.Busy, match="Counter"):
        mr.close()
    cntr.close()
    mr.close()


@pytest.mark.clause("mr.close.active-ops")
def test_mr_close_under_traffic_never_crashes(duo: Duo) -> None:
    """fi_mr(3): operations on a region that is being closed may fail; each completes one way or the other."""
    initiator, target, peer = duo
    data = np.zeros(1 << 18, np.uint8)
    local = np.ones(1 << 18, np.uint8)
    for _ in range(20):
        mr = target.domain.mr_reg(data, RW, requested_key=1)
        for i in range(8):
            initiator.ep.write(local, dest_addr=peer, addr=0, key=1, context=i)
        mr.close()
        seen = 0
        while seen < 8:
            try:
                seen += len(initiator.cq.sread(8, timeout=30))
            except fi.Available:
                assert initiator.cq.readerr().err == fi.EKEYREJECTED
                seen += 1


def test_mr_use_after_close_is_badstate(node: Node) -> None:
    mr = node.domain.mr_reg(memory(node), RW, requested_key=1)
    mr.close()
    mr.close()
    for call in (mr.enable, mr.raw_attr, mr.refresh, lambda: mr.bind(node.ep)):
        with pytest.raises(fi.BadState, match="closed"):
            call()
    assert repr(mr) == "<MemoryRegion closed>"


def test_mr_repr_says_key_length_access_and_state(node: Node) -> None:
    mr = node.reg(memory(node), requested_key=0x2A)
    assert repr(mr) == "<MemoryRegion 0x2a, 64 B, REMOTE_READ|REMOTE_WRITE, enabled>"


def test_mr_hundred_thousand_live_regions(node: Node) -> None:
    data = memory(node, 100)
    regions = [node.domain.mr_reg(data, RW, requested_key=i) for i in range(100_000)]
    assert len({r.key for r in regions}) == 100_000
    for r in regions:
        r.close()


# ---- persistent memory -----------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.flag.rma-pmem")
def test_mr_rma_pmem_needs_a_file_behind_the_memory(node: Node, tmp_path: Any) -> None:
    """What is said to be persistent outlives the process, or it is refused."""
    for buffer in (np.zeros(4096, np.uint8), node.domain.alloc(4096, np.uint8)):
        with pytest.raises(fi.InvalidArgument, match="not a file"):
            node.domain.mr_reg(buffer, RW, requested_key=1, flags=fi.RMA_PMEM)
    np.zeros(10_000, np.uint8).tofile(tmp_path / "f")
    with pytest.raises(fi.InvalidArgument, match="not a file"):
        node.domain.mr_reg(np.memmap(tmp_path / "f", np.uint8, "c"), RW, requested_key=1, flags=fi.RMA_PMEM)  # a copy
    node.reg(np.memmap(tmp_path / "f", np.uint8, "r+"), requested_key=1, flags=fi.RMA_PMEM)


@pytest.mark.clause("mr.flag.rma-pmem")
def test_getinfo_offers_rma_pmem_where_it_is_asked_for() -> None:
    hints = fi.Info(caps=fi.RMA, fabric_attr=fi.FabricAttr(prov_name="weft"))
    assert not fi.getinfo(hints=hints)[0].caps & fi.RMA_PMEM
    hints.caps |= fi.RMA_PMEM
    assert fi.getinfo(hints=hints)[0].caps & fi.RMA_PMEM
