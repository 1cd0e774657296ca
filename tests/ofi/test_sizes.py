"""Lengths that libfabric's providers do not check, and then write beyond their memory: refused before the call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import CAPS, Node, pair

from weft import fi

WORDS = 1 << 16

Call = Callable[[Node, int, int, int], Any]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda a, to, at, key: a.ep.sendv([b"8"] * 9, None, dest_addr=to), fi.InvalidArgument, "iov_limit is"),
        (lambda a, to, at, key: a.ep.recvv([bytearray(8)] * 9), fi.InvalidArgument, "iov_limit is"),
        (
            lambda a, to, at, key: a.ep.tsendmsg(fi.MsgTagged(msg_iov=[b"8"] * 9, addr=to, tag=1)),
            fi.InvalidArgument,
            "iov_limit is",
        ),
        (
            lambda a, to, at, key: a.ep.writev([b"8"] * 9, None, dest_addr=to, addr=at, key=key),
            fi.InvalidArgument,
            "iov_limit is",
        ),
        (
            lambda a, to, at, key: a.ep.writemsg(
                fi.MsgRma(msg_iov=[bytes(9)], addr=to, rma_iov=[(at, 1, key)] * 9),
            ),
            fi.InvalidArgument,
            "rma_iov_limit is",
        ),
        (
            lambda a, to, at, key: a.ep.writemsg(fi.MsgRma(msg_iov=[bytes(64)], addr=to, rma_iov=[(at, 32, key)])),
            fi.InvalidArgument,
            "64 bytes, the remote pieces 32",
        ),
        (
            lambda a, to, at, key: a.ep.readmsg(
                fi.MsgRma(msg_iov=[bytearray(8)], addr=to, rma_iov=[(at, 1 << 63, key), (at, (1 << 63) + 8, key)])
            ),
            fi.InvalidArgument,
            "8 bytes, the remote pieces 18446744073709551615",
        ),
        (
            lambda a, to, at, key: a.ep.sendmsg(fi.Msg(msg_iov=[bytes(1 << 20)], addr=to), fi.INJECT),
            fi.MessageTooLong,
            "at most inject_size",
        ),
        (lambda a, to, at, key: a.ep.inject(bytes(1 << 20), dest_addr=to), fi.MessageTooLong, "at most inject_size"),
        (
            lambda a, to, at, key: a.ep.atomic(np.ones(WORDS, "i8"), None, to, at, key, fi.INT64, fi.SUM),
            fi.MessageTooLong,
            "65536 elements; at most",
        ),
        (
            lambda a, to, at, key: a.ep.inject_atomic(np.ones(WORDS, "i8"), to, at, key, fi.INT64, fi.SUM),
            fi.MessageTooLong,
            "65536 elements; at most",
        ),
        (
            lambda a, to, at, key: a.ep.fetch_atomicv(
                [np.ones(64, "i8")], None, [np.ones(1, "i8")], None, to, at, key, fi.INT64, fi.SUM
            ),
            fi.InvalidArgument,
            "the room for results 8",
        ),
        (
            lambda a, to, at, key: a.ep.compare_atomicv(
                [np.ones(64, "i8")], None, [np.ones(1, "i8")], None, [np.ones(64, "i8")], None, to, at, key,
                fi.INT64, fi.CSWAP,
            ),
            fi.InvalidArgument,
            "to compare with 8",
        ),
        (
            lambda a, to, at, key: a.ep.atomicmsg(
                fi.MsgAtomic(
                    msg_iov=[np.ones(64, "i8")],
                    addr=to,
                    rma_iov=[fi.RmaIoc(at, 3, key)],
                    datatype=fi.INT64,
                    op=fi.SUM,
                )
            ),
            fi.InvalidArgument,
            "64 elements, the remote pieces 3",
        ),
        (
            lambda a, to, at, key: a.ep.atomic(np.ones(2, "g"), None, to, at, key, fi.LONG_DOUBLE, fi.SUM),
            fi.NotSupported,
            "SUM on LONG_DOUBLE",
        ),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(provider: str, call: Call, error: type[Exception], says: str) -> None:
    with pair(provider, caps=CAPS | fi.ATOMIC) as (a, b):
        mr = b.register(np.zeros(WORDS, "i8"))
        with pytest.raises(error, match=says) as refused:
            call(a, a.to(b), b.place(mr), mr.key)
        assert "try:" in str(refused.value) or error is fi.NotSupported
        assert a.cq.outstanding() == 0


def test_signal_ends_a_wait(provider: str) -> None:
    """Also over shm, which has no wait object: the library would crash."""
    with pair(provider) as (a, _):
        ended: list[BaseException] = []
        started = threading.Event()

        def wait() -> None:
            started.set()
            try:
                a.cq.sread(1, None, 20.0)
            except BaseException as reason:
                ended.append(reason)

        thread = threading.Thread(target=wait)
        thread.start()
        started.wait()
        while thread.is_alive():
            a.cq.signal()
            thread.join(0.05)
        assert isinstance(ended[0], fi.FabricError)
        assert not isinstance(ended[0], fi.Again)  # the time limit


def test_signal_of_a_queue_without_waiters_is_refused(provider: str) -> None:
    with pair(provider) as (a, _):
        queue = a.domain.cq_open(wait_obj=fi.WAIT_NONE)
        with pytest.raises(fi.InvalidArgument, match=r"WAIT_NONE.*\n.*WAIT_FD"):
            queue.signal()
        queue.close()


@pytest.mark.parametrize("number", [1 << 31, 1 << 32, (1 << 64) - 1])
def test_number_that_is_no_c_int_is_refused_in_words_of_the_caller(provider: str, number: int) -> None:
    """The library's struct has an int; the text names the argument, or is the library's."""
    with pair(provider) as (a, _):
        calls: list[Callable[[], Any]] = [
            lambda: a.domain.query_atomic(number, fi.SUM),
            lambda: a.domain.query_atomic(fi.UINT64, number),
            lambda: a.ep.atomicvalid(number, fi.SUM),
            lambda: a.ep.atomicvalid(fi.UINT64, number),
            lambda: a.ep.getopt(number, fi.OPT_MIN_MULTI_RECV),
            lambda: a.ep.getopt(fi.OPT_ENDPOINT, number),
            lambda: a.ep.setopt(number, fi.OPT_MIN_MULTI_RECV, 1),
        ]
        for call in calls:
            with pytest.raises(fi.FabricError) as refused:
                call()
            assert "_core" not in str(refused.value)
        with pytest.raises(fi.InvalidArgument, match="prov_errno"):
            a.cq.strerror(1 << 32)
