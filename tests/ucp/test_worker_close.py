"""worker.close() and context.close() with operations, callbacks and threads under way."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import pytest
from tests.ucp.support import CANCELED, INVALID_PARAM, OK, PAGE, WATCHDOG_S, Rig, SilentPeer, ended, refused, slot

from weft import ucp


@pytest.mark.procs
@pytest.mark.parametrize("what", ["worker", "context"])
def test_closing_calls_the_callbacks_of_canceled_requests_once(silent: SilentPeer, what: str) -> None:
    calls: list[tuple[Any, int, Any]] = []

    def call(request: ucp.Request, status: int, user_data: Any) -> None:
        assert request.status == status
        calls.append((request, status, user_data))

    context = ucp.Context()
    worker = context.worker_create()
    ep = worker.ep_create(silent.address)
    rkey = ep.rkey_unpack(silent.key)
    requests = [
        ep.put_nbx(b"x", rkey.address, rkey, cb=call, user_data=0),
        ep.get_nbx(bytearray(1), rkey.address, rkey, cb=call, user_data=1),
        ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, rkey.address, rkey, reply_buffer=slot(0), cb=call, user_data=2),
        ep.flush_nbx(cb=call, user_data=3),
        worker.flush_nbx(cb=call, user_data=4),
    ]
    freed = ep.put_nbx(b"x", rkey.address, rkey, cb=call, user_data="freed")
    freed.free()
    worker.close() if what == "worker" else context.close()
    assert sorted(calls, key=lambda c: int(c[2])) == [(r, CANCELED, n) for n, r in enumerate(requests)]
    worker.close()
    context.close()
    assert len(calls) == len(requests)


@pytest.mark.procs
@pytest.mark.parametrize("what", ["worker", "context"])
def test_worker_close_raises_callback_errors_after_closing(silent: SilentPeer, what: str) -> None:
    calls: list[int] = []

    def fail(request: ucp.Request, status: int, user_data: Any) -> None:
        raise ValueError("of a callback")

    context = ucp.Context()
    workers = [context.worker_create() for _ in range(2)]
    for worker in workers:
        ep = worker.ep_create(silent.address)
        rkey = ep.rkey_unpack(silent.key)
        ep.put_nbx(b"x", rkey.address, rkey, cb=fail if worker is workers[0] else lambda *a: calls.append(a[1]))
        ep.put_nbx(b"x", rkey.address, rkey, cb=lambda *a: calls.append(a[1]))
    memh = context.mem_map(length=PAGE, allocate=True)
    with pytest.raises(ValueError, match="of a callback"):
        workers[0].close() if what == "worker" else context.close()
    assert workers[0].closed
    assert calls[:1] == [CANCELED]
    context.close()
    assert calls == [CANCELED] * 3
    assert context.closed
    assert memh.unmapped


@pytest.mark.procs
def test_callback_of_closing_may_post_nothing_and_close_again(silent: SilentPeer) -> None:
    said: list[str] = []
    with ucp.Context() as context:
        worker = context.worker_create()
        ep = worker.ep_create(silent.address)
        rkey = ep.rkey_unpack(silent.key)

        def use(request: ucp.Request, status: int, user_data: Any) -> None:
            worker.close()
            for call in (
                lambda: ep.put_nbx(b"x", 0, rkey),
                ep.flush_nbx,
                worker.flush_nbx,
                worker.progress,
                worker.fence,
                lambda: worker.ep_create(silent.address),
            ):
                with refused(INVALID_PARAM) as found:
                    call()
                said.append(found.value.message)

        ep.put_nbx(b"x", rkey.address, rkey, cb=use)
        worker.close()
        assert len(said) == 6


@pytest.mark.procs
def test_threads_that_wait_are_ended_by_closing(silent: SilentPeer) -> None:
    with ucp.Context() as context:
        worker = context.worker_create()
        ep = worker.ep_create(silent.address)
        rkey = ep.rkey_unpack(silent.key)
        requests = [ep.put_nbx(b"x", rkey.address, rkey) for _ in range(3)]
        started = threading.Barrier(4)
        ends: list[ucp.Status] = []

        def wait(request: ucp.Request) -> None:
            started.wait(WATCHDOG_S)
            try:
                request.wait()
            except ucp.UcsError as error:
                ends.append(error.status)

        threads = [threading.Thread(target=wait, args=(request,), daemon=True) for request in requests]
        for thread in threads:
            thread.start()
        started.wait(WATCHDOG_S)
        worker.close()
        for thread in threads:
            thread.join(WATCHDOG_S)
        # A thread that has not begun to wait finds the request ended; one about to progress finds the worker destroyed.
        assert len(ends) == 3
        assert set(ends) <= {CANCELED, INVALID_PARAM}


@pytest.mark.procs
def test_close_nbx_of_a_failed_endpoint_is_done_at_once(rig: Rig, silent: SilentPeer) -> None:
    """Reported failures are not reported again; unreported failures are, and the endpoint is closed in any case."""
    told, untold = rig.worker.ep_create(silent.address), rig.worker.ep_create(silent.address)
    requests = [ep.put_nbx(b"x", 0x1000, ep.rkey_unpack(silent.key)) for ep in (told, untold)]
    silent.kill()
    status = ended(requests[0])
    while not untold.failed_status:
        rig.worker.progress()
    assert told.close_nbx() is ucp.DONE
    assert told.closed
    with refused(status):
        untold.close_nbx()
    assert untold.closed
    for ep in (told, untold):
        with refused(INVALID_PARAM, "endpoint is closed"):
            ep.close_nbx()
        ep.close()
    assert requests[1].status is status


def test_context_that_exported_is_collected_when_it_is_dropped() -> None:
    """An unclosed context: its worker for exported handles does not keep it alive."""

    def one() -> weakref.ref[ucp.Context]:
        context, importer = ucp.Context(), ucp.Context()
        memh = context.mem_map(length=PAGE, allocate=True)
        theirs = importer.mem_map(exported_memh_buffer=memh.pack(flags=ucp.MEMH_PACK_FLAG_EXPORT))
        assert theirs.length == PAGE
        return weakref.ref(context)

    one()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        gone = one()
        gc.collect()
        assert gone() is None
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_requests_do_not_keep_themselves(rig: Rig) -> None:
    """A request that is its own callback's data is collected after it has ended."""
    with rig.alloc() as memh, rig.key(memh) as rkey:

        class Data:
            request: Any

        for more in ({"cb": lambda *a: None}, {}):
            data = Data()
            data.request = rig.ep.put_nbx(
                b"x", memh.address, rkey, flags=ucp.OP_ATTR_FLAG_NO_IMM_CMPL, user_data=data, **more
            )
            assert ended(data.request) is OK
            gone = weakref.ref(data)
            del data
            gc.collect()
            assert gone() is None
