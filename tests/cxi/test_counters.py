"""Counters of the CXI provider: limits, refusals, the write-back buffer, the page for plain stores.

Source: fi_cxi(7) "CXI Counter Extensions", "CXI Counter Writeback Flag".
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fi.support import Node, opened
from tests.patience import Patience

from weft import fi
from weft.fi import registry
from weft.fi.rules import Refusals
from weft.providers.cxi import counter as cxi
from weft.providers.cxi.resources import Exhausted

CACHED = 1 << 32
WRITTEN = 1 << 63
TOP = 2**48 - 1


class TwoCounters:
    """A pool of two hardware counters."""

    def __init__(self) -> None:
        self.left = 2

    def take(self, kind: str, n: int = 1) -> None:
        assert kind == "cts"
        if self.left < n:
            raise Exhausted("2 of 2 cts in use")
        self.left -= n

    def give(self, kind: str, n: int = 1) -> None:
        self.left += n


@pytest.fixture
def pool() -> TwoCounters:
    return TwoCounters()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, pool: TwoCounters) -> Iterator[Node]:
    """A domain with the counters of the CXI provider."""
    provider: Any = registry.find("weft")
    monkeypatch.setattr(provider, "counters", cxi.RULES, raising=False)
    monkeypatch.setattr(provider, "refusals", Refusals(cxi.REFUSALS), raising=False)
    monkeypatch.setattr(provider.domain_class, "counter", lambda domain: cxi.CxiCounter(domain, pool))
    with opened() as found:
        yield found


def ops_of(cntr: fi.Counter) -> cxi.CntrOps:
    ops = cntr.open_ops("cxi_counter_ops")
    assert isinstance(ops, cxi.CntrOps)
    return ops


def until(done: Any) -> None:
    deadline = Patience(30)
    while not done():
        assert not deadline.over
        time.sleep(0.001)


# ---- limits and refusals ---------------------------------------------------------------------------------------------


def test_value_has_48_bits_and_failures_have_7(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        for call, most in ((cntr.set, TOP), (cntr.add, TOP), (cntr.seterr, 127), (cntr.adderr, 127)):
            with pytest.raises(fi.InvalidArgument, match=f"at most {most}"):
                call(most + 1)
        assert (cntr.read(), cntr.readerr()) == (0, 0)
        cntr.set(TOP)
        cntr.seterr(127)
        cntr.add(1)
        cntr.adderr(1)
        assert (cntr.read(), cntr.readerr()) == (TOP, 127)


def test_wait_for_more_than_48_bits_is_invalid(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        with pytest.raises(fi.InvalidArgument, match="threshold"):
            cntr.wait(TOP + 1, timeout=1)
        cntr.set(TOP)
        cntr.wait(TOP, timeout=30)


def test_wait_ends_with_an_error_that_came_after_it_began(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        cntr.adderr(1)
        with pytest.raises(fi.TimedOut):
            cntr.wait(1, timeout=0.01)
        timer = threading.Timer(0.05, lambda: cntr.seterr(2))
        timer.start()
        with pytest.raises(fi.Available):
            cntr.wait(1, timeout=30)
        timer.join()


@pytest.mark.parametrize(
    "wrong",
    [{"wait_obj": fi.WAIT_FD}, {"wait_obj": fi.WAIT_SET}, {"wait_obj": 99}, {"events": 7}, {"flags": 1}],
    ids=lambda wrong: "-".join(wrong),
)
def test_open_refuses_with_nosys_what_the_nic_has_not(node: Node, wrong: dict[str, int]) -> None:
    with pytest.raises(fi.NoSys):
        node.domain.cntr_open(**wrong)


def test_open_without_a_hardware_counter_is_a_domain_error(node: Node, pool: TwoCounters) -> None:
    first, second = node.domain.cntr_open(), node.domain.cntr_open(events=fi.CNTR_EVENTS_BYTES)
    with pytest.raises(fi.FabricError, match="2 of 2 cts in use") as caught:
        node.domain.cntr_open()
    assert caught.value.errno == fi.EDOMAIN
    second.close()
    second.close()
    assert pool.left == 1
    node.domain.cntr_open(wait_obj=fi.WAIT_YIELD).close()
    first.close()
    assert pool.left == 2


def test_counter_without_wait_object_may_not_be_waited_on(node: Node) -> None:
    with node.domain.cntr_open(wait_obj=fi.WAIT_NONE) as cntr, pytest.raises(fi.InvalidArgument):
        cntr.wait(1)


def test_control_knows_only_the_cached_flag(node: Node) -> None:
    with node.domain.cntr_open(flags=CACHED) as cntr:
        assert cntr.control(fi.GETOPSFLAG) == CACHED
        cntr.control(fi.SETOPSFLAG, 0)
        assert cntr.control(fi.GETOPSFLAG) == 0
        with pytest.raises(fi.InvalidArgument, match=r"flags 4\n  rule: cxi\.CNTR_CACHED or 0$"):
            cntr.control(fi.SETOPSFLAG, 4)
        with pytest.raises(fi.InvalidArgument):
            cntr.control(fi.ENABLE)


def test_cached_read_returns_what_was_written_last(node: Node) -> None:
    with node.domain.cntr_open(flags=CACHED) as cntr:
        cntr.add(5)
        assert cntr.read() == 0
        assert cntr.read() == 5


# ---- operations of a counter -----------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.ext.cntr.name")
def test_open_ops_knows_one_name(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        assert ops_of(cntr).get_mmio_addr().nbytes == mmap.PAGESIZE
        with pytest.raises(fi.InvalidArgument, match="no operations 'dom_ops_v1'"):
            cntr.open_ops("dom_ops_v1")
        with pytest.raises(TypeError):
            cntr.open_ops(3)  # type: ignore[arg-type]


@pytest.mark.clause("cxi.ext.cntr.flags")
def test_open_ops_ignores_flags(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        ops = cntr.open_ops("cxi_counter_ops", 0xFF)
        buffer = bytearray(8)
        ops.set_wb_buffer(buffer)
        assert any(buffer)


def test_general_provider_has_no_operations_of_counters() -> None:
    with opened() as other, other.domain.cntr_open() as cntr:
        with pytest.raises(fi.NoSys):
            cntr.open_ops("cxi_counter_ops")
        with pytest.raises(fi.NoSys):
            cntr.control(fi.GETOPSFLAG)
        with pytest.raises(fi.NoSys):
            cntr.set_wb_buffer(bytearray(8))
        cntr.set(2**64 - 1)
        assert cntr.read() == 2**64 - 1


@pytest.mark.clause("cxi.ext.cntr.set-wb-buffer")
def test_write_back_buffer_gets_the_value_and_the_failures(node: Node) -> None:
    buffer, other = bytearray(8), bytearray(16)
    with node.domain.cntr_open() as cntr:
        ops = ops_of(cntr)
        cntr.set(7)
        ops.set_wb_buffer(buffer)
        assert int.from_bytes(buffer, "little") == WRITTEN | 7 == cxi.gen_cntr_success(7)
        cntr.adderr(3)
        assert (cxi.cntr_wb_read(buffer), cxi.cntr_wb_readerr(buffer)) == (7, 3)
        ops.set_wb_buffer(other)
        cntr.set(9)
        assert cntr.read() == 9
        assert (cxi.cntr_wb_read(other), cxi.cntr_wb_readerr(other)) == (9, 3)
        assert other[8:] == bytes(8)
        assert cxi.cntr_wb_read(buffer) == 7  # the old buffer is left alone


@pytest.mark.clause("cxi.ext.wb.not-each")
def test_write_back_buffer_is_not_written_at_each_operation(node: Node) -> None:
    buffer = bytearray(8)
    with node.domain.cntr_open() as cntr:
        ops_of(cntr).set_wb_buffer(buffer)
        for _ in range(3):
            cntr.add(1)
        assert cxi.cntr_wb_read(buffer) == 0
        assert cntr.read() == 3
        assert cxi.cntr_wb_read(buffer) == 3
        cntr.add(1)
        cntr.wait(4, timeout=30)  # reaching its threshold writes back
        assert cxi.cntr_wb_read(buffer) == 4
        cntr.set(0)
        assert int.from_bytes(buffer, "little") == WRITTEN


def test_write_back_counts_operations_of_an_endpoint(node: Node) -> None:
    buffer = bytearray(8)
    counters: dict[int, Any] = {fi.WRITE: None}
    with opened() as target, opened(counters=counters) as initiator:
        target.reg(bytearray(64), requested_key=4)
        peer = initiator.av.insert(target.name)
        cntr = counters[fi.WRITE]
        ops_of(cntr).set_wb_buffer(buffer)
        initiator.ep.write(b"abc", dest_addr=peer, addr=0, key=4)
        initiator.wait(1)
        cntr.wait(1, timeout=30)
        assert int.from_bytes(buffer, "little") == WRITTEN | 1
        initiator.ep.write(b"abc", dest_addr=peer, addr=0, key=5)
        initiator.wait_error()
        assert cxi.cntr_wb_readerr(buffer) == 1  # the first failure is told at once


@pytest.mark.parametrize(
    ("wrong", "errno"),
    [(None, fi.EINVAL), (bytearray(7), fi.EINVAL), (b"12345678", fi.EACCES), ((0, 8), fi.EFAULT)],
    ids=["none", "short", "read-only", "null"],
)
def test_write_back_buffer_has_to_be_8_writable_bytes(node: Node, wrong: Any, errno: int) -> None:
    with node.domain.cntr_open() as cntr, pytest.raises(fi.FabricError) as caught:
        ops_of(cntr).set_wb_buffer(wrong)
    assert caught.value.errno == errno
    with node.domain.cntr_open() as cntr:
        for short in (4, 7):
            with pytest.raises(fi.InvalidArgument):
                ops_of(cntr).set_wb_buffer(bytearray(8), short)
        ops_of(cntr).set_wb_buffer(bytearray(8), 8)


@pytest.mark.parametrize("size", [8, 16])
def test_write_back_buffer_may_come_with_its_length(node: Node, size: int) -> None:
    buffer = bytearray(size)
    with node.domain.cntr_open() as cntr:
        ops_of(cntr).set_wb_buffer(buffer, size)
        cntr.add(3)
        assert cntr.read() == 3
        assert int.from_bytes(buffer[:6], "little") == 3
        with pytest.raises(fi.InvalidArgument, match="len 7"):
            ops_of(cntr).set_wb_buffer(buffer, 7)


def test_unmapped_write_back_buffer_fails_the_next_read(node: Node) -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    page = libc.mmap(None, mmap.PAGESIZE, 3, 0x22, -1, 0)
    with node.domain.cntr_open() as cntr:
        ops_of(cntr).set_wb_buffer((page, 8))
        libc.munmap(page, mmap.PAGESIZE)
        cntr.add(1)
        with pytest.raises(fi.FabricError, match="could not write the counter back") as caught:
            cntr.read()
        assert caught.value.errno == fi.EFAULT
        ops_of(cntr).set_wb_buffer(bytearray(8))
        assert cntr.read() == 1


@pytest.mark.clause("cxi.ext.cntr.get-mmio")
def test_plain_stores_to_the_page_add_and_reset(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        page = ops_of(cntr).get_mmio_addr()
        page[0] = 5
        assert cntr.read() == 5
        page[8] = 2
        assert (cntr.read(), cntr.readerr()) == (5, 2)
        page[16] = 0
        page[24] = 0
        assert (cntr.read(), cntr.readerr()) == (0, 0)
        ctypes.c_uint64.from_address(page.obj.address).value = 11  # code outside Python
        cntr.wait(11, timeout=30)


def test_stores_take_effect_without_a_call(node: Node) -> None:
    buffer = bytearray(8)
    with node.domain.cntr_open() as cntr:
        ops = ops_of(cntr)
        ops.set_wb_buffer(buffer)
        page = ops.get_mmio_addr()
        cntr.set(9)
        assert cntr.read() == 9
        page[16] = 0
        until(lambda: int.from_bytes(buffer, "little") == cxi.gen_cntr_success(0))
        page[8] = 12  # failures that leave 0 are written back
        until(lambda: cxi.cntr_wb_readerr(buffer) == 12)


def test_store_wakes_a_waiter(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        page = ops_of(cntr).get_mmio_addr()
        waiter = threading.Thread(target=lambda: cntr.wait(0x1234, timeout=60))
        waiter.start()
        time.sleep(0.06)
        page[0] = 0x1234
        waiter.join(60)
        assert not waiter.is_alive()
        assert cntr.read() == 0x1234


def test_functions_of_the_page_lose_no_store_and_check_numbers(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        page = ops_of(cntr).get_mmio_addr()
        for _ in range(100):
            cxi.cntr_add(page, 3)
        cxi.cntr_adderr(page, 4)
        assert (cntr.read(), cntr.readerr()) == (300, 4)
        cxi.cntr_set(page, 0)
        assert (cntr.read(), cntr.readerr()) == (0, 4)
        cxi.cntr_seterr(page, 0)
        assert (cntr.read(), cntr.readerr()) == (0, 0)
        for call, value in ((cxi.cntr_add, TOP + 1), (cxi.cntr_adderr, 128), (cxi.cntr_set, 15), (cxi.cntr_seterr, 1)):
            with pytest.raises(fi.InvalidArgument):
                call(page, value)
        with pytest.raises(fi.InvalidArgument):
            cxi.gen_cntr_success(TOP + 1)
        with pytest.raises(TypeError, match="value must be an int"):
            cxi.cntr_add(page, "1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="get_mmio_addr"):
            cxi.cntr_add(memoryview(bytearray(8)), 1)
        assert cntr.read() == 0


def test_page_of_a_closed_counter_does_nothing(node: Node) -> None:
    cntr = node.domain.cntr_open()
    page = ops_of(cntr).get_mmio_addr()
    cntr.close()
    page[0] = 1
    cxi.cntr_add(page, 1)
    with pytest.raises(fi.BadState):
        cntr.read()
