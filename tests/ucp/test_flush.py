"""ucp_ep_flush_nbx, ucp_worker_flush_nbx, ucp_worker_fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.ucp.support import (
    CANCELED,
    INPROGRESS,
    INVALID_PARAM,
    IO_ERROR,
    NO_IMM,
    OK,
    PAGE,
    Rig,
    SilentPeer,
    ended,
    refused,
    word,
)

from weft import ucp

FLUSHES: dict[str, Callable[[Rig], Callable[..., ucp.Request]]] = {
    "endpoint": lambda rig: rig.ep.flush_nbx,
    "worker": lambda rig: rig.worker.flush_nbx,
}


@pytest.mark.parametrize("of", FLUSHES)
def test_flush_of_nothing_is_done_in_place(rig: Rig, of: str) -> None:
    assert FLUSHES[of](rig)() is ucp.DONE
    request = FLUSHES[of](rig)(flags=NO_IMM)
    assert request
    assert ended(request) is OK


@pytest.mark.parametrize("of", FLUSHES)
def test_flush_completes_earlier_operations(rig: Rig, of: str) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        requests = [rig.pending(memh.address + n, rkey) for n in range(100)]
        assert rkey.in_flight == 100
        assert ended(FLUSHES[of](rig)()) is OK
        assert {request.status for request in requests} == {OK}
        assert rkey.in_flight == 0
        assert bytes(memh.memory[:100]) == b"p" * 100


@pytest.mark.procs
@pytest.mark.parametrize("of", FLUSHES)
def test_flush_is_under_way_as_long_as_an_operation_before_it(rig: Rig, silent: SilentPeer, of: str) -> None:
    order: list[str] = []
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        ep.put_nbx(b"x", rkey.address, rkey, cb=lambda *a: order.append("put"))
        assert not ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, rkey.address + 8, rkey)
        flush = ep.flush_nbx if of == "endpoint" else rig.worker.flush_nbx
        request = flush(cb=lambda *a: order.append("flush"))
        for _ in range(100):
            rig.worker.progress()
        assert request.status is INPROGRESS
        assert order == []
        assert rig.ep.flush_nbx() is ucp.DONE  # another endpoint has nothing to wait for
        silent.go_on()
        assert ended(request) is OK
        assert order == ["put", "flush"]
        assert rkey.in_flight == 0


@pytest.mark.procs
def test_cancelled_flush_ends_and_the_operations_go_on(rig: Rig, silent: SilentPeer) -> None:
    calls: list[Any] = []
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        put = ep.put_nbx(b"x", rkey.address, rkey)
        request = ep.flush_nbx(cb=lambda request, status, user_data: calls.append(status))
        request.cancel()
        assert ended(request) is CANCELED
        rig.worker.progress()
        assert calls == [CANCELED]
        assert put.status is INPROGRESS
        silent.go_on()
        assert ended(put) is OK


# ---- failures that no request has reported ---------------------------------------------------------------------------


def unheard(rig: Rig, way: str, address: int, rkey: ucp.RemoteKey, ep: ucp.Endpoint | None = None) -> None:
    """An operation that fails without a request."""
    if way == "atomic":
        assert not (ep or rig.ep).atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, address, rkey)
    else:
        (ep or rig.ep).put_nbx(b"12345678", address, rkey).free()


def flush(call: Callable[..., ucp.Request]) -> None:
    call().wait(30)


@pytest.mark.parametrize("of", FLUSHES)
@pytest.mark.parametrize("way", ["atomic", "freed"])
def test_flush_reports_an_unreported_failure_once(rig: Rig, way: str, of: str) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        unheard(rig, way, memh.address + PAGE, rkey)
        unheard(rig, way, memh.address + PAGE, rkey)
        with refused(IO_ERROR, "passes the end of the region"):
            flush(FLUSHES[of](rig))
        flush(FLUSHES[of](rig))
        unheard(rig, way, memh.address, rkey)
        flush(FLUSHES[of](rig))


def test_flush_reports_failure_on_its_own_endpoint_only(rig: Rig) -> None:
    with rig.worker.ep_create(rig.worker.address) as ep, rig.alloc() as memh, ep.rkey_unpack(memh.pack()) as rkey:
        unheard(rig, "atomic", memh.address + PAGE, rkey, ep)
        flush(rig.ep.flush_nbx)
        with refused(IO_ERROR):
            flush(ep.flush_nbx)
        flush(rig.worker.flush_nbx)


def test_closing_reports_failure_if_no_flush_did(rig: Rig) -> None:
    with rig.alloc() as memh:
        for close in ("close", "with"):
            ep = rig.worker.ep_create(rig.worker.address)
            rkey = ep.rkey_unpack(memh.pack())
            assert ended(ep.put_nbx(b"x", memh.address, rkey)) is OK
            unheard(rig, "atomic", memh.address + PAGE, rkey, ep)
            with refused(IO_ERROR, "passes the end"):
                if close == "close":
                    ep.close()
                else:
                    with ep:
                        pass
            assert ep.closed


def told_by_result(request: ucp.Request) -> None:
    with refused(IO_ERROR):
        request.result()


SEES: dict[str, Callable[[ucp.Request], object]] = {
    "wait": ended,
    "status": lambda request: request.status,
    "check_status": lambda request: request.check_status(),
    "result": told_by_result,
}


@pytest.mark.parametrize("of", FLUSHES)
@pytest.mark.parametrize("see", SEES)
def test_failure_reported_by_a_request_is_not_reported_again(rig: Rig, see: str, of: str) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.ep.put_nbx(b"x", memh.address + PAGE, rkey)
        while not request.done:
            rig.worker.progress()
        SEES[see](request)
        flush(FLUSHES[of](rig))
        assert request.status is IO_ERROR


def test_failure_reported_by_a_callback_is_not_reported_again(rig: Rig) -> None:
    told: list[int] = []
    with rig.alloc() as memh, rig.key(memh) as rkey:
        rig.ep.put_nbx(b"x", memh.address + PAGE, rkey, cb=lambda request, status, user_data: told.append(status))
        while not told:
            rig.worker.progress()
        flush(rig.ep.flush_nbx)
        assert told == [IO_ERROR]


@pytest.mark.parametrize("of", FLUSHES)
def test_next_flush_reports_failure_of_a_dropped_request_once(rig: Rig, of: str) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        rig.ep.put_nbx(b"12345678", memh.address + PAGE, rkey)
        with refused(IO_ERROR, "passes the end of the region"):
            flush(FLUSHES[of](rig))
        flush(FLUSHES[of](rig))


def test_flush_reports_failure_of_an_untested_request(rig: Rig) -> None:
    """The failure is kept until it is reported, whether the program holds the request or not."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.ep.put_nbx(b"x", memh.address + PAGE, rkey)
        repr(request)
        with refused(IO_ERROR):
            flush(rig.worker.flush_nbx)
        assert request.status is IO_ERROR
        flush(rig.ep.flush_nbx)


def test_closing_reports_failure_of_a_dropped_request(rig: Rig) -> None:
    with rig.alloc() as memh:
        for close in ("close", "close_nbx"):
            ep = rig.worker.ep_create(rig.worker.address)
            ep.put_nbx(b"x", memh.address + PAGE, ep.rkey_unpack(memh.pack()))
            with refused(IO_ERROR, "passes the end"):
                ep.close() if close == "close" else ep.close_nbx().wait(30)
            assert ep.closed
        ep = rig.worker.ep_create(rig.worker.address)
        ep.put_nbx(b"x", memh.address + PAGE, ep.rkey_unpack(memh.pack()))
        assert ep.close_nbx(ucp.EP_CLOSE_FLAG_FORCE) is ucp.DONE  # a forced close reports nothing
        flush(rig.worker.flush_nbx)


@pytest.mark.procs
@pytest.mark.parametrize("of", FLUSHES)
def test_flush_under_way_reports_the_death_of_the_peer(rig: Rig, silent: SilentPeer, of: str) -> None:
    """A flush that waited reports the failure, even if the operation's request reports it, too."""
    ep = rig.worker.ep_create(silent.address)
    rkey = ep.rkey_unpack(silent.key)
    request = ep.put_nbx(b"x", rkey.address, rkey)
    waiting = (ep if of == "endpoint" else rig.worker).flush_nbx()
    silent.kill()
    status = ended(request)
    assert status in (ucp.Status.ERR_UNREACHABLE, ucp.Status.ERR_CONNECTION_RESET)
    with refused(status):
        waiting.wait(30)
    with refused(status):  # the endpoint has failed
        ep.flush_nbx()
    assert rig.worker.flush_nbx() is ucp.DONE  # every failure was reported
    ep.close()


@pytest.mark.procs
@pytest.mark.parametrize("of", FLUSHES)
def test_flush_under_way_is_canceled_with_its_worker(silent: SilentPeer, of: str) -> None:
    statuses: list[int] = []
    with ucp.Context() as context, context.worker_create() as worker:
        ep = worker.ep_create(silent.address)
        rkey = ep.rkey_unpack(silent.key)
        ep.put_nbx(b"x", rkey.address, rkey)
        waiting = (ep if of == "endpoint" else worker).flush_nbx(cb=lambda request, status, _: statuses.append(status))
        assert waiting.status is INPROGRESS
        worker.close()
        assert waiting.status is CANCELED
        assert statuses == [CANCELED]


def test_failed_flush_request_carries_the_failure(rig: Rig) -> None:
    """The same for a flush that returns a request."""
    statuses: list[int] = []
    with rig.alloc() as memh, rig.key(memh) as rkey:
        unheard(rig, "freed", memh.address + PAGE, rkey)
        pending = rig.pending(memh.address, rkey)
        try:
            request = rig.ep.flush_nbx(flags=NO_IMM, cb=lambda request, status, data: statuses.append(status))
        except ucp.UcsError as error:
            statuses.append(error.status)
        else:
            assert ended(request) is IO_ERROR
        assert statuses == [IO_ERROR]
        assert ended(pending) is OK


def test_flush_of_a_closed_object_is_invalid(rig: Rig) -> None:
    worker = rig.context.worker_create()
    ep = worker.ep_create(rig.worker.address)
    ep.close()
    with refused(INVALID_PARAM, "endpoint is closed"):
        ep.flush_nbx()
    worker.close()
    for call in (worker.flush_nbx, worker.fence):
        with refused(INVALID_PARAM, "worker is destroyed"):
            call()


# ---- fence -----------------------------------------------------------------------------------------------------------


def test_operations_behind_a_fence_are_performed_in_order(rig: Rig) -> None:
    """Each round a put, a fence, and an update of the same word; requests and operations in place."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for turn in range(1, 200):
            rig.ep.put_nbx((1000 * turn).to_bytes(8, "little"), memh.address, rkey, flags=NO_IMM if turn % 3 else 0)
            rig.worker.fence()
            rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, turn, memh.address, rkey)
            rig.flush()
            assert word(memh) == 1001 * turn


@pytest.mark.procs
def test_fence_neither_waits_nor_completes_operations(rig: Rig, silent: SilentPeer) -> None:
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        before = ep.put_nbx(b"first", rkey.address, rkey)
        rig.worker.fence()
        behind = ep.put_nbx(b"again", rkey.address, rkey)
        assert before.status is behind.status is INPROGRESS
        silent.go_on()
        assert ended(behind) is OK
        assert before.status is OK
        back = bytearray(5)
        assert ended(ep.get_nbx(back, rkey.address, rkey)) is OK
        assert back == b"again"
