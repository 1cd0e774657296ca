"""The thread that reads a queue for providers with manual progress: events that end it, and events that do not."""

from __future__ import annotations

import threading
from collections.abc import Callable

from weft import errors, fi
from weft.fi._progress import ProgressThread

WATCHDOG_S = 30.0


class Queue:
    """Answers reads in turn as told; then it is empty. error_read: set when an error entry was fetched."""

    def __init__(self, *answers: Callable[[], list[object]]) -> None:
        self._answers = list(answers)
        self.error_read = threading.Event()
        self.empty = threading.Event()

    def sread(self, count: int, cond: object, timeout: float) -> list[object]:
        if self._answers:
            return self._answers.pop(0)()
        self.empty.set()
        raise errors.Again("empty")

    def readerr(self) -> None:
        self.error_read.set()


def failed() -> list[object]:
    raise errors.Available("an error entry")


def closed() -> list[object]:
    raise errors.BadState("closed")


def test_failed_operation_of_a_peer_does_not_end_the_thread() -> None:
    queue = Queue(failed, list, failed)
    thread = ProgressThread(queue, "test-progress")
    assert queue.error_read.wait(WATCHDOG_S)
    assert queue.empty.wait(WATCHDOG_S)
    thread.close()
    assert "test-progress" not in {one.name for one in threading.enumerate()}


def test_closed_queue_ends_the_thread() -> None:
    thread = ProgressThread(Queue(closed), "test-progress")
    thread.close(WATCHDOG_S)
    assert "test-progress" not in {one.name for one in threading.enumerate()}


def test_close_within_the_thread_itself_does_not_wait() -> None:
    ended = threading.Event()
    made = threading.Event()

    def between() -> None:
        made.wait(WATCHDOG_S)
        thread.close()
        ended.set()

    thread = ProgressThread(Queue(), "test-progress", between)
    made.set()
    assert ended.wait(WATCHDOG_S)
    thread.close()


def test_thread_over_a_real_queue_ends_with_close() -> None:
    info = fi.getinfo(hints=fi.Info(caps=fi.RMA))[0]
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open(wait_obj=fi.WAIT_UNSPEC) as cq,
    ):
        rounds = threading.Semaphore(0)
        thread = ProgressThread(cq, "test-progress", rounds.release)
        assert rounds.acquire(timeout=WATCHDOG_S)
        assert rounds.acquire(timeout=WATCHDOG_S)
        thread.close()
    assert "test-progress" not in {one.name for one in threading.enumerate()}
