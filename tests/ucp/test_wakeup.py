"""Sleeping until there is something to progress: ucp_worker_get_efd, arm, wait, signal, wait_mem."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.ucp.support import (
    INVALID_PARAM,
    NO_IMM,
    OK,
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


def readable(worker: ucp.Worker, timeout: float = 0) -> bool:
    return bool(select.select([worker.get_efd()], [], [], timeout)[0])


def armed(worker: ucp.Worker) -> bool:
    """arm(), and again if the end of a peer came in between, which progress() handles."""
    if worker.arm():
        return True
    worker.progress()
    return worker.arm()


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Starts the call; the result joins it."""
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(call()))
    thread.start()

    def join() -> Any:
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        return out[0]

    return join


def test_descriptor_is_the_worker_s_and_the_same_each_time(rig: Rig) -> None:
    fd = rig.worker.get_efd()
    assert fd >= 0
    assert rig.worker.get_efd() == fd
    with rig.context.worker_create() as more:
        assert more.get_efd() != fd


def test_armed_descriptor_is_readable_at_the_next_completion(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        assert armed(rig.worker) is True
        assert not readable(rig.worker)
        request = rig.pending(memh.address, rkey)
        assert readable(rig.worker, WATCHDOG_S)
        assert rig.worker.arm() is False  # C's BUSY: progress first
        assert rig.worker.progress() == 1
        assert request.status is OK
        assert armed(rig.worker) is True
        assert not readable(rig.worker)


def test_signal_makes_the_descriptor_readable_and_arm_busy_once(rig: Rig) -> None:
    assert armed(rig.worker)
    rig.worker.signal()
    assert readable(rig.worker, WATCHDOG_S)
    assert rig.worker.arm() is False
    assert armed(rig.worker) is True
    assert not readable(rig.worker)
    for _ in range(3):
        rig.worker.signal()
    assert rig.worker.arm() is False
    assert armed(rig.worker) is True


def test_wait_returns_at_once_if_signal_or_completion_is_pending(rig: Rig) -> None:
    rig.worker.signal()
    assert rig.worker.wait(WATCHDOG_S) is True
    assert armed(rig.worker)
    assert rig.worker.wait(0) is False
    with rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.pending(memh.address, rkey)
        assert rig.worker.wait() is True
        assert not request.done  # waiting is not progressing
        assert rig.worker.progress() == 1
        assert armed(rig.worker)
        assert rig.worker.wait(0.001) is False


def test_wait_returns_when_an_own_callback_is_due(rig: Rig) -> None:
    """A flush that was done when the call returned: progress() calls its callback."""
    calls: list[Any] = []
    rig.ep.flush_nbx(flags=NO_IMM, cb=lambda *a: calls.append(a))
    assert rig.worker.arm() is False
    assert rig.worker.wait(WATCHDOG_S) is True
    rig.worker.progress()
    assert len(calls) == 1
    assert armed(rig.worker) is True


def test_signal_of_another_thread_ends_a_wait(rig: Rig) -> None:
    """Before the wait or during it: whichever comes first."""
    for _ in range(20):
        join = in_thread(lambda: rig.worker.wait(WATCHDOG_S))
        rig.worker.signal()
        assert join() is True
        assert armed(rig.worker) is True


@pytest.mark.procs
@pytest.mark.skipif(os.environ.get("WEFT_ENGINE") == "manual", reason="nothing moves without progress()")
def test_descriptor_becomes_readable_when_a_peer_answers(rig: Rig, silent: SilentPeer) -> None:
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        request = ep.put_nbx(b"x", rkey.address, rkey)
        silent.go_on()
        while not request.done:
            while rig.worker.progress():
                pass
            if rig.worker.arm():
                assert request.done or readable(rig.worker, WATCHDOG_S)
        assert request.status is OK


@pytest.mark.procs
def test_descriptor_becomes_readable_when_a_peer_dies(rig: Rig, silent: SilentPeer) -> None:
    told: list[Any] = []
    ep = rig.worker.ep_create(silent.address, err_handler=lambda *a: told.append(a))
    rkey = ep.rkey_unpack(silent.key)
    silent.go_on()
    assert ended(ep.put_nbx(b"x", rkey.address, rkey)) is OK
    while not rig.worker.arm():
        rig.worker.progress()
    silent.kill()
    while not told:
        if not rig.worker.progress() and rig.worker.arm():
            assert rig.worker.wait(WATCHDOG_S)
    assert ep.status is not OK
    ep.close()


def test_without_the_feature_there_is_nothing_to_sleep_on() -> None:
    with opened(int(ucp.FEATURE_RMA)) as rig:
        for call in (rig.worker.get_efd, rig.worker.arm, lambda: rig.worker.wait(0)):
            with refused(INVALID_PARAM, "FEATURE_WAKEUP"):
                call()


def test_closed_worker_has_nothing_to_sleep_on(rig: Rig) -> None:
    worker = rig.context.worker_create()
    worker.close()
    for call in (worker.get_efd, worker.arm, worker.wait, worker.signal, worker.progress):
        with refused(INVALID_PARAM, "worker is destroyed"):
            call()
    with refused(INVALID_PARAM, "worker is destroyed"):
        worker.wait_mem(array(8), 0, 0)


# ---- ucp_worker_wait_mem ---------------------------------------------------------------------------------------------


def test_wait_mem_returns_when_the_word_has_the_value(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey, rig.context.worker_create() as waiting:
        assert waiting.wait_mem(memh[:8], 0, WATCHDOG_S) is True
        assert waiting.wait_mem(memh.memory, 5, 0.001) is False
        join = in_thread(lambda: waiting.wait_mem(memh[:8], 5, WATCHDOG_S))
        assert rig.put(slot(4), memh.address, rkey) is OK
        assert rig.put(slot(5), memh.address, rkey) is OK
        assert join() is True


def test_wait_of_a_deadline_that_has_passed_only_looks(rig: Rig) -> None:
    assert armed(rig.worker)
    for timeout in (-0.001, -1, -1e300, float("-inf"), 0):
        assert in_thread(lambda: rig.worker.wait(timeout))() is False  # noqa: B023
    with rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.pending(memh.address, rkey)
        assert in_thread(lambda: rig.worker.wait(-0.001))() is True
        assert ended(request) is OK


def test_wait_mem_of_no_time_looks_once(rig: Rig) -> None:
    for timeout in (0, -1):
        assert rig.worker.wait_mem(slot(5), 5, timeout) is True
        assert rig.worker.wait_mem(slot(5), 6, timeout) is False


def test_wait_mem_lets_other_threads_run_and_keeps_its_deadline(rig: Rig) -> None:
    word = slot(5)
    waits = in_thread(lambda: rig.worker.wait_mem(word, 6, WATCHDOG_S))
    start = time.monotonic()
    assert rig.worker.wait_mem(word, 7, 0.12) is False  # longer than the interval at which a wait checks for Ctrl-C
    assert time.monotonic() - start >= 0.12
    word[:] = slot(6)
    assert waits() is True


@pytest.mark.parametrize("first", [1, 4, 7])
def test_wait_mem_of_a_word_that_is_not_aligned_is_refused(rig: Rig, first: int) -> None:
    with refused(INVALID_PARAM, "no aligned 8-byte word"):
        rig.worker.wait_mem(memoryview(bytearray(32))[first : first + 8], 0, 1)


def test_wait_mem_of_less_than_a_word_is_refused(rig: Rig) -> None:
    with refused(INVALID_PARAM, "no aligned 8-byte word"):
        rig.worker.wait_mem(bytearray(7), 0, 1)


@pytest.mark.parametrize("timeout", ["a second", object(), float("nan")])
def test_timeout_that_is_no_number_of_seconds_is_refused(rig: Rig, timeout: Any) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.pending(memh.address, rkey)
        for call in (rig.worker.wait, lambda t: rig.worker.wait_mem(array(8), 1, t), request.wait):
            if isinstance(timeout, float):
                with refused(INVALID_PARAM, "timeout is nan"):
                    call(timeout)
            else:
                with pytest.raises(TypeError, match="seconds"):
                    call(timeout)
        assert ended(request) is OK
