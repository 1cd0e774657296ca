"""Requests: callbacks, status, waiting, cancelling, freeing, awaiting; endpoints that close with requests under way."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.ucp.support import (
    BUSY,
    CANCELED,
    INPROGRESS,
    INVALID_PARAM,
    IO_ERROR,
    NO_IMM,
    OK,
    PAGE,
    TIMED_OUT,
    WATCHDOG_S,
    Rig,
    SilentPeer,
    array,
    ended,
    opened,
    refused,
    slot,
)

from weft import ucp


class Calls:
    """A callback that writes down its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[ucp.Request, int, Any]] = []

    def __call__(self, request: ucp.Request, status: int, user_data: Any) -> None:
        assert request.done
        self.seen.append((request, status, user_data))


def posts(rig: Rig, address: int, rkey: ucp.RemoteKey) -> list[Callable[..., ucp.Request]]:
    """Every operation that makes a request, by keyword arguments."""
    ep, worker = rig.ep, rig.worker
    return [
        lambda **more: ep.put_nbx(b"12345678", address, rkey, **more),
        lambda **more: ep.put_nbx([b"1234", b"5678"], address, rkey, datatype=ucp.DATATYPE_IOV, **more),
        lambda **more: ep.get_nbx(bytearray(8), address, rkey, **more),
        lambda **more: ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, address, rkey, **more),
        lambda **more: ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, address, rkey, reply_buffer=slot(0), **more),
        lambda **more: ep.flush_nbx(**more),
        lambda **more: worker.flush_nbx(**more),
    ]


# ---- status and callbacks --------------------------------------------------------------------------------------------


def test_request_is_in_progress_until_the_worker_progresses(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.pending(memh.address, rkey)
        assert not request.done
        assert request.check_status() is INPROGRESS
        with refused(BUSY, "worker.progress"):
            request.result()
        assert "in progress" in repr(request)
        assert rig.worker.progress() == 1
        assert request.done
        assert request.status is request.check_status() is OK
        request.result()
        request.wait()
        assert repr(request) == "<ucp.Request: OK>"
        assert rig.worker.progress() == 0


def test_operations_done_in_place_return_one_false_request(rig: Rig) -> None:
    done = ucp.DONE
    assert not done
    assert done.done
    assert done.status is done.check_status() is OK
    done.result()
    done.wait()
    done.wait(0)
    done.cancel()
    done.free()
    assert not done
    assert "done in place" in repr(done)
    rig.worker.request_cancel(done)


def test_callback_is_called_once_by_progress_and_not_by_the_call(rig: Rig) -> None:
    """cb(request, status, user_data), for every kind of operation."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for post in posts(rig, memh.address, rkey):
            calls = Calls()
            user_data = object()
            request = post(cb=calls, user_data=user_data, flags=NO_IMM)
            assert request
            assert calls.seen == []
            while not request.done:
                rig.worker.progress()
            rig.worker.progress()
            rig.worker.progress()
            assert len(calls.seen) == 1
            assert calls.seen[0][0] is request
            assert calls.seen[0][1] == OK
            assert calls.seen[0][2] is user_data


def test_callbacks_come_in_the_order_of_completion(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        calls = Calls()
        requests = [rig.pending(memh.address + n, rkey, cb=calls, user_data=n) for n in range(100)]
        rig.flush()
        rig.worker.progress()
        assert [n for _, _, n in calls.seen] == list(range(100))
        assert [request for request, _, _ in calls.seen] == requests


def test_failed_operation_passes_its_status_to_the_callback(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        calls = Calls()
        request = rig.ep.put_nbx(b"x", memh.address + PAGE, rkey, cb=calls)
        assert ended(request) is IO_ERROR
        assert [(status, data) for _, status, data in calls.seen] == [(IO_ERROR, None)]
        for _ in range(2):  # it tells as often as it is asked
            with refused(IO_ERROR, "passes the end of the region"):
                request.result()
            with refused(IO_ERROR):
                request.wait()
        assert repr(request) == "<ucp.Request: ERR_IO_ERROR>"


def test_operation_done_in_place_calls_no_callback(rig: Rig) -> None:
    calls = Calls()
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for post in posts(rig, memh.address, rkey):
            assert post(cb=calls) is ucp.DONE
        rig.worker.progress()
    assert calls.seen == []


def test_progress_raises_callback_errors_after_all_callbacks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is raised; further ones go where Python's unraisable exceptions go."""
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda what: unraisable.append(str(what.exc_value)))

    def fail(request: ucp.Request, status: int, user_data: Any) -> None:
        raise ValueError(user_data)

    with rig.alloc() as memh, rig.key(memh) as rkey:
        calls = Calls()
        requests = [
            rig.pending(memh.address, rkey, cb=cb, user_data=n)
            for n, cb in enumerate((calls, fail, calls, fail, calls), 1)
        ]
        with pytest.raises(ValueError, match="2"):
            rig.worker.progress()
        assert [n for _, _, n in calls.seen] == [1, 3, 5]
        assert unraisable == ["4"]
        assert all(request.status is OK for request in requests)
        assert rig.worker.progress() == 0
        request = rig.pending(memh.address, rkey, cb=fail, user_data="out of wait")
        with pytest.raises(ValueError, match="out of wait"):
            request.wait(WATCHDOG_S)
        assert request.status is OK


def test_callback_may_post_progress_and_wait(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        order: list[str] = []

        def second(request: ucp.Request, status: int, user_data: Any) -> None:
            order.append("second")

        def first(request: ucp.Request, status: int, user_data: Any) -> None:
            order.append("first")
            rig.pending(memh.address + 1, rkey, cb=second).wait(WATCHDOG_S)
            order.append("waited")

        rig.pending(memh.address, rkey, cb=first).wait(WATCHDOG_S)
        assert order == ["first", "second", "waited"]
        assert bytes(memh.memory[:2]) == b"pp"


def test_callback_may_close_the_endpoint_and_the_worker(rig: Rig) -> None:
    with rig.alloc() as memh:
        for what in ("endpoint", "worker", "context"):
            context = ucp.Context()
            worker = context.worker_create()
            ep = worker.ep_create(rig.worker.address)
            rkey = ep.rkey_unpack(memh.pack())
            assert ended(ep.put_nbx(b"x", memh.address, rkey)) is OK
            objects: dict[str, Any] = {"endpoint": ep, "worker": worker, "context": context}

            def close(request: ucp.Request, status: int, it: Any) -> None:
                it.close()

            calls = Calls()
            request = ep.put_nbx(b"x", memh.address, rkey, flags=NO_IMM, cb=close, user_data=objects[what])
            later = ep.put_nbx(b"x", memh.address, rkey, flags=NO_IMM, cb=calls)
            while not request.done:
                worker.progress()
            assert objects[what].closed
            assert later.done
            context.close()


def test_requests_that_are_over_hold_nothing(rig: Rig) -> None:
    """Neither buffers nor callbacks."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        data, calls = array(8), Calls()
        gone = weakref.ref(data), weakref.ref(calls)
        request = rig.ep.put_nbx(data, memh.address, rkey, flags=NO_IMM, cb=calls)
        del data, calls
        gc.collect()
        assert gone[0]() is not None
        assert ended(request) is OK
        gc.collect()
        assert gone[0]() is None
        assert gone[1]() is None
        assert request.status is OK


# ---- free and cancel -------------------------------------------------------------------------------------------------


def test_freed_request_calls_no_callback(rig: Rig) -> None:
    """A request released before its completion calls no callback. The operation continues."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        calls = Calls()
        request = rig.pending(memh.address, rkey, cb=calls)
        request.free()
        rig.flush()
        rig.worker.progress()
        assert calls.seen == []
        assert bytes(memh.memory[:1]) == b"p"
        request = rig.pending(memh.address, rkey, cb=calls)
        assert ended(request) is OK
        request.free()  # afterwards it changes nothing
        assert len(calls.seen) == 1


def test_cancel_of_a_begun_operation_changes_nothing(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        calls = Calls()
        request = rig.pending(memh.address, rkey, cb=calls)
        request.cancel()
        assert ended(request) is OK
        request.cancel()
        rig.worker.request_cancel(request)
        assert request.status is OK
        assert len(calls.seen) == 1
        assert bytes(memh.memory[:1]) == b"p"


@pytest.mark.procs
def test_cancelled_operation_that_had_not_begun_ends_as_canceled(rig: Rig, silent: SilentPeer) -> None:
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        for cancel in (lambda request: request.cancel(), rig.worker.request_cancel):
            for method in (ep.put_nbx, ep.get_nbx):
                calls = Calls()
                request = method(bytearray(8), rkey.address, rkey, cb=calls)
                assert request.status is INPROGRESS
                cancel(request)
                assert ended(request) is CANCELED
                assert [status for _, status, _ in calls.seen] == [CANCELED]
        assert ep.under_way() == 0
        assert ep.status is OK
        silent.go_on()
        assert ended(ep.put_nbx(b"later", rkey.address, rkey)) is OK


@pytest.mark.parametrize("wrong", [None, 5, "request", object()])
def test_only_requests_of_the_worker_are_cancelled(rig: Rig, wrong: Any) -> None:
    with refused(INVALID_PARAM, "is not a request"):
        rig.worker.request_cancel(wrong)
    with rig.alloc() as memh, rig.key(memh) as rkey, rig.context.worker_create() as worker:
        request = rig.pending(memh.address, rkey)
        with refused(INVALID_PARAM, "of another worker"):
            worker.request_cancel(request)
        assert ended(request) is OK


# ---- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.procs
def test_wait_that_times_out_leaves_the_operation_under_way(rig: Rig, silent: SilentPeer) -> None:
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        calls = Calls()
        request = ep.put_nbx(b"x", rkey.address, rkey, cb=calls)
        for timeout in (0, 0.001, 0.02):
            with refused(TIMED_OUT, "continues"):
                request.wait(timeout)
            assert request.status is INPROGRESS
        assert "1 operations under way" in repr(ep)
        silent.go_on()
        request.wait(WATCHDOG_S)
        assert [status for _, status, _ in calls.seen] == [OK]


def test_wait_without_wakeup_is_fine() -> None:
    with opened(int(ucp.FEATURE_RMA)) as rig, rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.ep.put_nbx(b"x", memh.address, rkey, flags=NO_IMM)
        request.wait(WATCHDOG_S)
        assert request.status is OK


@pytest.mark.procs
def test_threads_that_wait_on_one_worker_all_come_back(rig: Rig, silent: SilentPeer) -> None:
    """One thread takes all completions off the queue; the other threads still get the results of their requests."""
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        requests = [ep.put_nbx(b"x", rkey.address, rkey) for _ in range(4)]
        started = threading.Barrier(5)

        def wait(request: ucp.Request) -> None:
            started.wait(WATCHDOG_S)
            request.wait()

        threads = [threading.Thread(target=wait, args=(request,), daemon=True) for request in requests]
        for thread in threads:
            thread.start()
        started.wait(WATCHDOG_S)
        silent.go_on()
        for thread in threads:
            thread.join(WATCHDOG_S)
        assert not any(thread.is_alive() for thread in threads)
        assert [request.status for request in requests] == [OK] * 4


# ---- asyncio ---------------------------------------------------------------------------------------------------------


def asynchronously(awaitable: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(awaitable, WATCHDOG_S)

    return asyncio.run(main())


@pytest.mark.parametrize("features", [None, int(ucp.FEATURE_RMA | ucp.FEATURE_AMO64)])
def test_requests_are_awaited(features: int | None) -> None:
    """With the feature WAKEUP and without; in one event loop after the other."""
    with opened(features) as rig, rig.alloc() as memh, rig.key(memh) as rkey:

        async def main() -> None:
            for post in posts(rig, memh.address, rkey):
                calls = Calls()
                request = post(flags=NO_IMM, cb=calls)
                assert await request is None
                assert request.status is OK
                rig.worker.progress()  # a flush of nothing is over before its callback
                assert len(calls.seen) == 1
                await request  # again
                await post()
            await ucp.DONE
            failing = rig.ep.put_nbx(b"x", memh.address + PAGE, rkey)
            with refused(IO_ERROR, "passes the end"):
                await failing

        asynchronously(main())
        asynchronously(main())


def test_many_requests_are_awaited_at_once_by_many_tasks(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:

        async def one(n: int) -> int:
            await rig.ep.put_nbx(bytes([n]), memh.address + n, rkey, flags=NO_IMM)
            back = bytearray(1)
            await rig.ep.get_nbx(back, memh.address + n, rkey, flags=NO_IMM)
            return back[0]

        async def main() -> list[int]:
            return list(await asyncio.gather(*(one(n) for n in range(100))))

        assert asynchronously(main()) == list(range(100))


@pytest.mark.procs
@pytest.mark.parametrize("features", [None, int(ucp.FEATURE_RMA)])
def test_other_tasks_run_while_a_request_is_awaited(silent: SilentPeer, features: int | None) -> None:
    with opened(features) as rig, rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:

        async def other(request: ucp.Request) -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            assert not request.done
            silent.go_on()

        async def main() -> None:
            request = ep.put_nbx(b"x", rkey.address, rkey)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(request_of(request), 0.001)
            task = asyncio.create_task(other(request))
            await request
            await task

        async def request_of(request: ucp.Request) -> None:
            await request

        asynchronously(main())


@pytest.mark.procs
def test_awaited_request_that_somebody_else_progressed_ends_too(rig: Rig, silent: SilentPeer) -> None:
    """A blocking wait beside the event loop takes both completions off the queue."""
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:

        async def main() -> None:
            awaited, waited = (ep.put_nbx(b"x", rkey.address, rkey) for _ in range(2))

            async def wait() -> None:
                await awaited

            task = asyncio.create_task(wait())
            for _ in range(3):
                await asyncio.sleep(0)
            silent.go_on()
            waited.wait(WATCHDOG_S)
            await task
            assert awaited.status is OK

        asynchronously(main())


@pytest.mark.procs
def test_closing_the_worker_ends_awaited_requests(silent: SilentPeer) -> None:
    with ucp.Context() as context:
        worker = context.worker_create()
        ep = worker.ep_create(silent.address)
        rkey = ep.rkey_unpack(silent.key)

        async def main() -> None:
            request = ep.put_nbx(b"x", rkey.address, rkey)

            async def wait() -> None:
                await request

            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            worker.close()
            with refused(CANCELED):
                await task

        asynchronously(main())


# ---- endpoints that close --------------------------------------------------------------------------------------------


def test_closing_waits_for_posted_operations(rig: Rig) -> None:
    with rig.alloc() as memh:
        for close in ("close", "close_nbx", "with"):
            ep = rig.worker.ep_create(rig.worker.address)
            rkey = ep.rkey_unpack(memh.pack())
            request = ep.put_nbx(b"x", memh.address, rkey, flags=NO_IMM)
            if close == "close":
                ep.close()
            elif close == "with":
                with ep:
                    pass
            else:
                assert ended(ep.close_nbx()) is OK
            assert ep.closed
            assert request.status is OK
            ep.close()  # again does nothing
            for call in (ep.flush_nbx, ep.close_nbx, lambda: ep.rkey_unpack(memh.pack())):  # noqa: B023
                with refused(INVALID_PARAM, "endpoint is closed"):
                    call()


@pytest.mark.procs
def test_endpoint_closes_although_the_request_of_its_close_was_freed(rig: Rig, silent: SilentPeer) -> None:
    ep = rig.worker.ep_create(silent.address)
    rkey = ep.rkey_unpack(silent.key)
    request = ep.put_nbx(b"x", rkey.address, rkey)
    ep.close_nbx().free()
    assert (ep.closed, rkey.destroyed) == (False, False)
    silent.go_on()
    rig.worker.flush_nbx().wait(WATCHDOG_S)
    assert request.status is OK
    assert (ep.closed, rkey.destroyed) == (True, True)


@pytest.mark.procs
def test_endpoint_close_waits_for_operations_unless_forced(rig: Rig, silent: SilentPeer) -> None:
    first, second, third = (rig.worker.ep_create(silent.address) for _ in range(3))
    requests = []
    for ep in (first, second, third):
        rkey = ep.rkey_unpack(silent.key)
        requests.append(ep.put_nbx(b"x", rkey.address, rkey))
    closing = first.close_nbx()
    assert closing.status is INPROGRESS
    assert not first.closed
    assert second.close_nbx(ucp.EP_CLOSE_FLAG_FORCE) is ucp.DONE
    assert second.closed
    with refused(TIMED_OUT):
        third.close(timeout=0.01)
    assert third.closed  # all the same
    assert [request.status for request in requests] == [INPROGRESS] * 3
    silent.go_on()
    assert ended(closing) is OK
    assert first.closed
    assert [ended(request) for request in requests] == [OK] * 3


@pytest.mark.procs
@pytest.mark.parametrize("what", ["worker", "context"])
def test_destroying_the_worker_cancels_operations_under_way(silent: SilentPeer, what: str) -> None:
    context = ucp.Context()
    worker = context.worker_create()
    ep = worker.ep_create(silent.address)
    rkey = ep.rkey_unpack(silent.key)
    data = bytearray(8)
    requests = [ep.put_nbx(data, rkey.address, rkey), ep.get_nbx(bytearray(8), rkey.address, rkey)]
    worker.close() if what == "worker" else context.close()
    for request in requests:
        assert request.status is CANCELED
        with refused(CANCELED):
            request.wait(WATCHDOG_S)
    data.extend(b"nobody holds it")
    context.close()


# ---- peers that fail -------------------------------------------------------------------------------------------------


@pytest.mark.procs
def test_failed_endpoint_calls_its_handler_once(rig: Rig, silent: SilentPeer) -> None:
    told: list[Any] = []
    ep = rig.worker.ep_create(silent.address, err_handler=lambda *a: told.append(a), user_data="mine")
    rkey = ep.rkey_unpack(silent.key)
    request = ep.put_nbx(b"x", rkey.address, rkey)
    silent.kill()
    status = ended(request)
    assert status in (ucp.Status.ERR_UNREACHABLE, ucp.Status.ERR_CONNECTION_RESET)  # the peer was never reached
    rig.worker.progress()
    assert told == [("mine", ep, status)]
    assert ep.status is status
    for call in (
        lambda: ep.put_nbx(b"x", rkey.address, rkey),
        lambda: ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, rkey.address, rkey),
        ep.flush_nbx,
    ):
        with refused(status):
            call()
    assert "failed" in repr(ep)
    ep.close()
    assert len(told) == 1


def test_endpoint_to_a_worker_that_is_gone_is_unreachable(rig: Rig) -> None:
    with ucp.Context() as context, rig.alloc() as memh:
        worker = context.worker_create()
        address = worker.address
        worker.close()
        ep = rig.worker.ep_create(address)
        rkey = ep.rkey_unpack(memh.pack())
        assert ended(ep.put_nbx(b"x", memh.address, rkey)) is ucp.Status.ERR_UNREACHABLE
        with refused(ucp.Status.ERR_UNREACHABLE, "another to the peer's new address"):
            ep.put_nbx(b"x", memh.address, rkey)
        assert rig.ep.status is OK
        ep.close()


@pytest.mark.procs
@pytest.mark.parametrize("mode", ["none", "peer"])
@pytest.mark.parametrize("when", ["under way", "afterwards"])
def test_death_of_a_peer_is_one_status_in_every_error_mode(rig: Rig, silent: SilentPeer, mode: str, when: str) -> None:
    """CONNECTION_RESET: of operations under way and later ones, of flushes, of the handler, of the endpoint."""
    told: list[int] = []
    handler = (lambda user_data, ep, status: told.append(status)) if mode == "peer" else None
    ep = rig.worker.ep_create(silent.address, err_handler=handler)
    rkey = ep.rkey_unpack(silent.key)
    silent.go_on()
    assert ended(ep.put_nbx(b"x", rkey.address, rkey)) is OK
    reset = ucp.Status.ERR_CONNECTION_RESET
    if when == "under way":
        silent.stop()
        request = ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, rkey.address, rkey, flags=NO_IMM)
        silent.kill()
        assert ended(request) in (OK, reset)  # direct memory was updated without the peer
    silent.kill()

    def dies() -> None:
        while True:  # memory that is mapped here is reached until the end is noticed
            ep.put_nbx(b"x", rkey.address, rkey, flags=NO_IMM).wait(WATCHDOG_S)

    with refused(reset):
        dies()
    assert ep.status is reset
    for call in (lambda: ep.put_nbx(b"x", rkey.address, rkey), ep.flush_nbx):
        with refused(reset):
            call()
    rig.worker.progress()
    assert told == ([reset] if mode == "peer" else [])
    ep.close()
