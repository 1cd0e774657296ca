"""fi_mr(3): registration and its three calls, arguments, descriptors, closing."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest
from tests.fi.mr_support import Duo, get, memory, put, refused
from tests.fi.support import PROVIDER, RW, Addresses, Node, opened

from weft import fi

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
def test_mr_regattr_uses_the_fields_of_the_struct(duo: Duo) -> None:
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
    if PROVIDER.weft:
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


def test_mr_reg_part_of_read_only_memory_for_writing_is_refused(node: Node) -> None:
    """A read writes to its result, so FI_READ on read-only memory is refused, also for a part of it."""
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
    """fi_mr(3): a transfer that touches addresses without pages fails; no process crashes, and later transfers work."""
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
    """fi_mr(3): a domain bound to an event queue with FI_REG_MR reports each successful registration."""
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
    assert "closed>" in repr(mr)


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
    """Memory that is declared persistent must outlive the process; other memory is refused."""
    for buffer in (np.zeros(4096, np.uint8), node.domain.alloc(4096, np.uint8)):
        with pytest.raises(fi.InvalidArgument, match="not mapped from a file"):
            node.domain.mr_reg(buffer, RW, requested_key=1, flags=fi.RMA_PMEM)
    np.zeros(10_000, np.uint8).tofile(tmp_path / "f")
    with pytest.raises(fi.InvalidArgument, match="not mapped from a file"):
        node.domain.mr_reg(np.memmap(tmp_path / "f", np.uint8, "c"), RW, requested_key=1, flags=fi.RMA_PMEM)  # a copy
    node.reg(np.memmap(tmp_path / "f", np.uint8, "r+"), requested_key=1, flags=fi.RMA_PMEM)


@pytest.mark.clause("mr.flag.rma-pmem")
def test_getinfo_offers_rma_pmem_where_it_is_asked_for() -> None:
    hints = fi.Info(caps=fi.RMA, fabric_attr=fi.FabricAttr(prov_name="weft"))
    assert not fi.getinfo(hints=hints)[0].caps & fi.RMA_PMEM
    hints.caps |= fi.RMA_PMEM
    assert fi.getinfo(hints=hints)[0].caps & fi.RMA_PMEM
