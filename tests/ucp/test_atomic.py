"""ucp_atomic_op_nbx."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ucp.support import (
    FORCE_IMM,
    INVALID_PARAM,
    IO_ERROR,
    NO_IMM,
    NO_RESOURCE,
    OK,
    PAGE,
    WATCHDOG_S,
    Rig,
    SilentPeer,
    array,
    ended,
    opened,
    refused,
    slot,
    word,
)

from weft import ucp

ADD, SWAP, CSWAP = ucp.ATOMIC_OP_ADD, ucp.ATOMIC_OP_SWAP, ucp.ATOMIC_OP_CSWAP
AND, OR, XOR = ucp.ATOMIC_OP_AND, ucp.ATOMIC_OP_OR, ucp.ATOMIC_OP_XOR
POSTED = (ADD, AND, OR, XOR)  # without a reply too
RULES: dict[int, Callable[[int, int, int], int]] = {  # (old, operand, reply's value) -> new, before it is cut to size
    ADD: lambda old, x, reply: old + x,
    SWAP: lambda old, x, reply: x,
    CSWAP: lambda old, x, reply: reply if old == x else old,
    AND: lambda old, x, reply: old & x,
    OR: lambda old, x, reply: old | x,
    XOR: lambda old, x, reply: old ^ x,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    with opened() as found:
        yield found


# ---- what they do ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.type.rkey-use", "ucp.matrix.means-register")
@pytest.mark.parametrize("allocated", [False, True])
@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("op", RULES, ids=lambda op: ucp.AtomicOp(op).name)
@settings(max_examples=30)
@given(data=st.data())
def test_atomic_with_reply_follows_the_model(shared: Rig, op: int, size: int, allocated: bool, data: Any) -> None:
    """The old value is returned, the new value is stored, and the bytes around both are unchanged."""
    limit = (1 << 8 * size) - 1
    numbers = st.one_of(st.integers(0, limit), st.sampled_from([0, 1, limit, limit >> 1, 1 << 8 * size - 1]))
    old, operand, new = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    if data.draw(st.booleans(), label="equal"):
        operand = old
    memh = shared.alloc() if allocated else shared.map(array(PAGE))
    with memh, shared.key(memh) as rkey:
        memh.array().fill(0xA5)
        at = 16 + data.draw(st.sampled_from([0, size, 5 * size]))
        memh.memory[at : at + size] = slot(old, size)
        reply = bytearray(b"\xc3" * 8 + slot(new, size) + b"\xc3" * 8)
        with memoryview(reply)[8 : 8 + size] as buffer:
            assert (
                ended(shared.ep.atomic_op_nbx(op, slot(operand, size), memh.address + at, rkey, reply_buffer=buffer))
                is OK
            )
        assert word(memh, at, size) == RULES[op](old, operand, new) & limit
        assert reply == b"\xc3" * 8 + slot(old, size) + b"\xc3" * 8
        assert set(memh.memory[:at]) == set(memh.memory[at + size :]) == {0xA5}


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("op", POSTED, ids=lambda op: ucp.AtomicOp(op).name)
@settings(max_examples=30)
@given(data=st.data())
def test_atomic_without_reply_follows_the_model(shared: Rig, op: int, size: int, data: Any) -> None:
    limit = (1 << 8 * size) - 1
    old, operand = data.draw(st.integers(0, limit)), data.draw(st.integers(0, limit))
    with shared.alloc() as memh, shared.key(memh) as rkey:
        memh.array().fill(0x5A)
        memh.memory[8 : 8 + size] = slot(old, size)
        assert shared.ep.atomic_op_nbx(op, slot(operand, size), memh.address + 8, rkey) is ucp.DONE
        shared.flush()
        assert word(memh, 8, size) == RULES[op](old, operand, 0) & limit
        assert set(memh.memory[:8]) == set(memh.memory[8 + size :]) == {0x5A}


@pytest.mark.parametrize("size", [4, 8])
def test_add_wraps_around(rig: Rig, size: int) -> None:
    limit = (1 << 8 * size) - 1
    with rig.alloc() as memh, rig.key(memh) as rkey:
        memh.memory[:size] = slot(limit, size)
        reply = slot(0, size)
        assert ended(rig.ep.atomic_op_nbx(ADD, slot(3, size), memh.address, rkey, reply_buffer=reply)) is OK
        assert (word(memh, 0, size), reply) == (2, slot(limit, size))
        assert not any(memh.memory[size:])


def test_cswap_changes_only_elements_equal_to_the_comparand(rig: Rig) -> None:
    """`buffer` has the expected value, `reply_buffer` carries the new value there and the old value back."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        memh.memory[:8] = slot(10)
        reply = slot(77)
        assert ended(rig.ep.atomic_op_nbx(CSWAP, slot(9), memh.address, rkey, reply_buffer=reply)) is OK
        assert (word(memh), reply) == (10, slot(10))
        reply = slot(77)
        assert ended(rig.ep.atomic_op_nbx(CSWAP, slot(10), memh.address, rkey, reply_buffer=reply)) is OK
        assert (word(memh), reply) == (77, slot(10))


@pytest.mark.parametrize(
    ("make", "more", "size"),
    [
        (lambda n: n, {}, 8),
        (lambda n: n, {"datatype": ucp.dt_make_contig(4)}, 4),
        (lambda n: slot(n, 4), {}, 4),
        (lambda n: slot(n, 8), {}, 8),
        (lambda n: slot(n, 8), {"count": 1}, 8),
        (lambda n: slot(n, 4) + b"\xff" * 12, {"datatype": ucp.dt_make_contig(4)}, 4),
        (lambda n: np.array([n], np.uint64), {}, 8),
        (lambda n: np.uint32(n), {}, 4),
        (lambda n: np.array([n], np.uint32), {"datatype": ucp.dt_make_contig(4), "count": 1}, 4),
    ],
)
def test_operand_is_a_number_or_a_buffer_of_the_element_s_size(rig: Rig, make: Any, more: Any, size: int) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        memh.memory[:8] = b"\xff" * 8
        reply = bytearray(8)
        assert ended(rig.ep.atomic_op_nbx(ADD, make(5), memh.address, rkey, reply_buffer=reply, **more)) is OK
        assert word(memh, 0, size) == 4
        assert bytes(memh.memory[size:8]) == b"\xff" * (8 - size)
        assert reply == b"\xff" * size + bytes(8 - size)  # of a 4-byte element 4 bytes of the reply change


@pytest.mark.parametrize(
    ("number", "size"),
    [(1 << 70, 8), (1 << 64, 8), (-(1 << 63) - 1, 8), (1 << 40, 4), (1 << 32, 4), (-(1 << 31) - 1, 4)],
)
def test_number_that_does_not_fit_the_element_is_refused(rig: Rig, number: int, size: int) -> None:
    """No bits of the operand are dropped."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for reply in (None, bytearray(8)):
            with refused(INVALID_PARAM, "does not fit"):
                rig.ep.atomic_op_nbx(
                    ADD, number, memh.address, rkey, datatype=ucp.dt_make_contig(size), reply_buffer=reply
                )
        rig.flush()
        assert word(memh) == 0


@pytest.mark.parametrize(("number", "size"), [((1 << 64) - 1, 8), (-(1 << 63), 8), ((1 << 32) - 1, 4), (-(1 << 31), 4)])
def test_number_may_be_signed_or_unsigned_of_the_element_s_size(rig: Rig, number: int, size: int) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        rig.ep.atomic_op_nbx(ADD, number, memh.address, rkey, datatype=ucp.dt_make_contig(size))
        rig.flush()
        assert word(memh) == number % (1 << 8 * size)


def test_operand_that_is_no_whole_number_of_elements_is_refused(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for length in (0, 4, 12):
            with refused(INVALID_PARAM, f"has {length} B"):
                rig.ep.atomic_op_nbx(ADD, bytes(length), memh.address, rkey, datatype=ucp.dt_make_contig(8))


@pytest.mark.parametrize("opcode", [-1, 1 << 64])
def test_operation_that_is_no_unsigned_number_is_refused(rig: Rig, opcode: int) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey, refused(INVALID_PARAM, f"opcode is {opcode}"):
        rig.ep.atomic_op_nbx(opcode, 1, memh.address, rkey)


@pytest.mark.procs
def test_post_never_calls_back(rig: Rig, silent: SilentPeer) -> None:
    """The request is DONE at once, as in C, and the callback is never called."""
    calls: list[Any] = []
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        request = ep.atomic_op_nbx(ADD, 1, rkey.address, rkey, cb=lambda *a: calls.append(a), user_data="data")
        assert request is ucp.DONE
        with_request = ep.atomic_op_nbx(ADD, 1, rkey.address, rkey, cb=lambda *a: calls.append(a), flags=NO_IMM)
        silent.go_on()
        assert ended(with_request) is OK
        assert ended(ep.flush_nbx()) is OK
        rig.worker.progress()
        assert [a[0] for a in calls] == [with_request]


def test_negative_number_subtracts(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        memh.memory[:8] = slot(7)
        rig.ep.atomic_op_nbx(ADD, -3, memh.address, rkey)
        rig.flush()
        assert word(memh) == 4


def test_operand_is_the_caller_s_again_when_the_call_returns(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for flags in (0, NO_IMM):
            operand = slot(1)
            rig.ep.atomic_op_nbx(ADD, operand, memh.address, rkey, flags=flags)
            operand[:] = b"\xff" * 8
            operand.extend(b"not held")
        rig.flush()
        assert word(memh) == 2


def test_atomic_with_a_struct_has_its_datatype_there(rig: Rig) -> None:
    """As in C: without OP_ATTR_FIELD_DATATYPE the element's size is not known."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        param = ucp.RequestParam(0x8 | 0x20, datatype=ucp.dt_make_contig(4), reply_buffer=slot(0, 4))
        assert ended(rig.ep.atomic_op_nbx(ADD, slot(6, 4), memh.address, rkey, param)) is OK
        assert word(memh, 0, 4) == 6
        with refused(INVALID_PARAM, "OP_ATTR_FIELD_DATATYPE"):
            rig.ep.atomic_op_nbx(ADD, slot(6, 4), memh.address, rkey, ucp.RequestParam())


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [False, True])
def test_no_imm_cmpl_brings_a_request_and_its_callback(rig: Rig, reply: bool) -> None:
    calls: list[Any] = []
    with rig.alloc() as memh, rig.key(memh) as rkey:
        buffer = slot(0) if reply else None
        request = rig.ep.atomic_op_nbx(
            ADD, 1, memh.address, rkey, reply_buffer=buffer, flags=NO_IMM, cb=lambda *a: calls.append(a), user_data=3
        )
        assert request
        assert calls == []
        assert ended(request) is OK
        assert calls == [(request, OK, 3)]
        assert word(memh) == 1


def test_force_imm_cmpl_with_a_reply_is_no_resource(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        with refused(NO_RESOURCE, "FORCE_IMM_CMPL"):
            rig.ep.atomic_op_nbx(ADD, 1, memh.address, rkey, reply_buffer=slot(0), flags=FORCE_IMM)
        assert word(memh) == 0
        assert rig.ep.atomic_op_nbx(ADD, 1, memh.address, rkey, flags=FORCE_IMM) is ucp.DONE
        assert word(memh) == 1


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_misuse_is_invalid_and_changes_nothing(rig: Rig) -> None:
    """Arguments that UCX's release builds accept; in UCX, SWAP without a reply even crashes the process."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        at, call, contig = memh.address, rig.ep.atomic_op_nbx, ucp.dt_make_contig
        wrong: list[tuple[str, Callable[[], Any]]] = [
            ("elements of 1 B", lambda: call(ADD, 1, at, rkey, datatype=contig(1))),
            ("elements of 2 B", lambda: call(ADD, 1, at, rkey, datatype=contig(2))),
            ("elements of 16 B", lambda: call(ADD, bytes(16), at, rkey, datatype=contig(16))),
            ("elements of 16 B", lambda: call(ADD, bytes(16), at, rkey)),
            ("elements of 0 B", lambda: call(ADD, b"", at, rkey)),
            (r"dt_make_contig\(4\)", lambda: call(ADD, 1, at, rkey, datatype=ucp.DATATYPE_IOV)),
            (r"dt_make_contig\(4\)", lambda: call(ADD, 1, at, rkey, datatype=7)),
            ("the buffer has 4 B, the element 8", lambda: call(ADD, bytes(4), at, rkey, datatype=contig(8))),
            ("count is 2", lambda: call(ADD, bytes(16), at, rkey, count=2, datatype=contig(8))),
            ("count is 0", lambda: call(ADD, 1, at, rkey, count=0)),
            ("no atomic operation 6", lambda: call(6, 1, at, rkey)),
            ("no atomic operation 1000", lambda: call(1000, 1, at, rkey, reply_buffer=slot(0))),
            ("NULL", lambda: call(ADD, None, at, rkey)),
            ("SWAP needs a reply_buffer", lambda: call(SWAP, 1, at, rkey)),
            ("CSWAP needs a reply_buffer", lambda: call(CSWAP, 1, at, rkey)),
            ("CSWAP needs a reply_buffer", lambda: call(CSWAP, 1, at, rkey, flags=NO_IMM)),
            ("reply_buffer has 4 B, the element 8", lambda: call(ADD, 1, at, rkey, reply_buffer=bytearray(4))),
            ("read-only", lambda: call(ADD, 1, at, rkey, reply_buffer=bytes(8))),
            ("no multiple of 8", lambda: call(ADD, 1, at + 4, rkey)),
            ("no multiple of 8", lambda: call(ADD, 1, at + 1, rkey, reply_buffer=slot(0))),
            ("no multiple of 4", lambda: call(ADD, slot(1, 4), at + 2, rkey)),
        ]
        for text, misuse in wrong:
            with refused(INVALID_PARAM, text):
                misuse()
        for operand in (1.5, "1"):
            with pytest.raises(TypeError):
                call(ADD, operand, at, rkey)
        rig.flush()
        assert not any(memh.memory)


def test_atomic_needs_the_feature_of_its_size() -> None:
    for feature, size in ((ucp.FEATURE_AMO32, 4), (ucp.FEATURE_AMO64, 8)):
        with opened(int(feature)) as rig, rig.alloc() as memh, rig.key(memh) as rkey:
            assert ended(rig.ep.atomic_op_nbx(ADD, slot(1, size), memh.address, rkey, reply_buffer=slot(0))) is OK
            with refused(INVALID_PARAM, "without the feature AMO"):
                rig.ep.atomic_op_nbx(ADD, slot(1, 12 - size), memh.address + 8, rkey)
            assert word(memh) == 1


@pytest.mark.clause("ucp.enum.prot-remote-read", "ucp.enum.prot-remote-write")
@pytest.mark.parametrize("prot", [0x000, 0x100, 0x200, 0x300, 0x003])
def test_atomic_needs_to_write_and_with_a_reply_to_read(rig: Rig, prot: int) -> None:
    with rig.map(array(), prot=prot) as memh, rig.key(memh) as rkey:
        view = np.frombuffer(memh.memory, np.uint64)
        expected = OK if prot & 0x200 else IO_ERROR
        assert ended(rig.ep.atomic_op_nbx(ADD, 1, memh.address, rkey, flags=NO_IMM)) is expected
        assert view[0] == (expected is OK)
        before = int(view[0])
        expected = OK if prot & 0x300 == 0x300 else IO_ERROR
        reply = slot(99)
        assert ended(rig.ep.atomic_op_nbx(ADD, 1, memh.address, rkey, reply_buffer=reply)) is expected
        assert view[0] == before + (expected is OK)
        assert reply == (slot(before) if expected is OK else slot(99))


def test_atomic_outside_of_the_region_is_refused(rig: Rig) -> None:
    data = np.zeros(4, np.uint64)
    with rig.map(data[1:3]) as memh, rig.key(memh) as rkey:
        for at in (-8, 16, 1 << 20):
            reply = slot(5)
            assert ended(rig.ep.atomic_op_nbx(ADD, 1, memh.address + at, rkey, reply_buffer=reply)) is IO_ERROR
            assert reply == slot(5)
            assert rig.ep.atomic_op_nbx(ADD, 1, memh.address + at, rkey) is not None
            with refused(IO_ERROR, "atomic of 8 B"):
                rig.flush()
            rig.flush()
    with rig.map(data.view(np.uint8)[:12]) as memh, rig.key(memh) as rkey:  # the end cuts the second word
        assert ended(rig.ep.atomic_op_nbx(ADD, 1, memh.address + 8, rkey, flags=NO_IMM)) is IO_ERROR
        assert ended(rig.ep.atomic_op_nbx(ADD, slot(1, 4), memh.address + 8, rkey, flags=NO_IMM)) is OK
    assert data.tolist() == [0, 1, 0, 0]


def test_atomic_memh_must_grant_the_access(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey, rig.alloc(prot=1) as readable, rig.alloc(prot=2) as writable:
        call = rig.ep.atomic_op_nbx
        assert ended(call(ADD, readable[:8], memh.address, rkey, reply_buffer=writable[:8])) is OK
        assert ended(call(ADD, readable.memory[:8], memh.address, rkey, memh=readable)) is OK
        for wrong in (
            lambda: call(ADD, writable[:8], memh.address, rkey),
            lambda: call(ADD, writable.memory[:8], memh.address, rkey, memh=writable),
            lambda: call(ADD, 1, memh.address, rkey, reply_buffer=readable[:8]),
        ):
            with refused(INVALID_PARAM, "LOCAL_"):
                wrong()


def test_atomics_of_several_threads_are_atomic_at_all_widths(rig: Rig) -> None:
    """Four threads, each with its own worker, on one word: no update is lost, each old value is returned once."""
    rounds, threads = 500, 4
    with rig.alloc() as memh:
        seen: list[list[int]] = [[] for _ in range(threads)]
        failed: list[BaseException] = []

        def add(mine: list[int]) -> None:
            try:
                with (
                    rig.context.worker_create() as worker,
                    worker.ep_create(rig.worker.address) as ep,
                    ep.rkey_unpack(memh.pack()) as rkey,
                ):
                    for _ in range(rounds):
                        reply = slot(0)
                        assert ended(ep.atomic_op_nbx(ADD, 1, memh.address, rkey, reply_buffer=reply)) is OK
                        mine.append(int.from_bytes(reply, sys.byteorder))
                        ep.atomic_op_nbx(XOR, 1 << 63, memh.address + 8, rkey)
            except BaseException as error:
                failed.append(error)

        workers = [threading.Thread(target=add, args=(mine,)) for mine in seen]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join(WATCHDOG_S)
        assert not failed
        assert sorted(n for mine in seen for n in mine) == list(range(rounds * threads))
        assert (word(memh), word(memh, 8)) == (rounds * threads, 0)
