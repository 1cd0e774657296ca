"""Misuse that would crash a process, or contradict UCP, if the data path did not check its arguments."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from tests.ucp.support import (
    FORCE_IMM,
    INVALID_ADDR,
    INVALID_PARAM,
    IO_ERROR,
    NO_RESOURCE,
    OK,
    PAGE,
    Rig,
    ended,
    mapped_text,
    refused,
)

from weft import ucp


def test_update_of_a_page_that_may_only_be_read_is_an_error(rig: Rig) -> None:
    at = mapped_text()
    before = ctypes.string_at(at, 8)
    with rig.map(address=at, length=8) as memh, rig.key(memh) as rkey:
        reply = bytearray(8)
        assert ended(rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, at, rkey, reply_buffer=reply)) is IO_ERROR
    assert ctypes.string_at(at, 8) == before


def test_force_imm_cmpl_never_returns_a_request(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        assert ended(rig.ep.put_nbx(b"x", memh.address, rkey)) is OK  # the way there is made
        with refused(IO_ERROR, "passes the end"):
            rig.ep.put_nbx(b"x", memh.address + PAGE, rkey, flags=FORCE_IMM)
        with refused(NO_RESOURCE):
            rig.ep.get_nbx(bytearray(1), memh.address, rkey, flags=FORCE_IMM)


def test_zero_length_key_is_refused_in_every_form_of_call(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as good:
        assert not rig.ep.put_nbx(b"x", memh.address, good)
    with rig.ep.rkey_unpack(rig.map(length=0).pack()) as rkey, refused(INVALID_PARAM, "without bytes"):
        rig.ep.put_nbx(b"x", 0, rkey)


@pytest.mark.parametrize("wrong", [5, "memh", object()])
def test_memh_that_is_no_handle_is_invalid(rig: Rig, wrong: Any) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey, refused(INVALID_PARAM, "memh"):
        rig.ep.put_nbx(b"x", memh.address, rkey, memh=wrong)


def test_endpoint_that_is_closing_takes_no_more_operations(rig: Rig, silent: Any) -> None:
    ep = rig.worker.ep_create(silent.address)
    rkey = ep.rkey_unpack(silent.key)
    ep.put_nbx(b"x", rkey.address, rkey)
    ep.close_nbx()
    with refused(INVALID_PARAM, "clos"):
        ep.put_nbx(b"x", rkey.address, rkey)


def test_flush_callback_has_run_when_wait_returns(rig: Rig) -> None:
    calls: list[Any] = []
    rig.ep.flush_nbx(flags=int(ucp.OP_ATTR_FLAG_NO_IMM_CMPL), cb=lambda *a: calls.append(a)).wait(30)
    assert len(calls) == 1


def test_local_buffer_without_memory_is_an_error(rig: Rig) -> None:
    text = mapped_text()  # pages that may only be read
    with rig.alloc() as memh, rig.key(memh) as rkey, rig.map(address=0x1000, length=8) as local:
        for buffer in (local[:8], (0x1000, 8)):
            with refused(INVALID_ADDR, "no memory behind it"):
                rig.ep.put_nbx(buffer, memh.address, rkey)
            with refused(INVALID_ADDR, "no memory behind it"):
                rig.ep.put_nbx([b"x", buffer], memh.address, rkey, datatype=ucp.DATATYPE_IOV)
            with refused(INVALID_ADDR, "no memory behind it"):
                rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, buffer, memh.address, rkey)
            with refused(INVALID_ADDR, "no memory behind it"):
                rig.worker.wait_mem(buffer, 1, timeout=30)
        for buffer in ((0x1000, 8), (text, 8)):
            with refused(INVALID_ADDR, "no memory behind it"):
                rig.ep.get_nbx(buffer, memh.address, rkey)
            with refused(INVALID_ADDR, "no memory behind it"):
                rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, memh.address, rkey, reply_buffer=buffer)
        with refused(INVALID_ADDR, "no memory behind it"):
            rig.ep.put_nbx((0x1000, 8), memh.address, rkey, memh=local)
        assert ended(rig.ep.put_nbx((text, 8), memh.address, rkey)) is OK  # it may be read
        assert bytes(memh.memory[:8]) == ctypes.string_at(text, 8)
