"""Waiting over a real libfabric: sread, descriptors, asyncio, signals; other threads run meanwhile."""

from __future__ import annotations

import asyncio
import select
import threading
from typing import Any

import pytest
from tests.ofi.support import drain, pair, post, run_program, until
from tests.patience import Patience

from weft import fi

FD = {"cq": {"wait_obj": fi.WAIT_FD}}


def test_sread_times_out(provider: str) -> None:
    with pair(provider) as (a, _):
        with pytest.raises(fi.Again, match="timeout"):
            a.cq.sread(timeout=0.01)
        assert a.cq.read() == []


def test_sread_returns_completions(provider: str) -> None:
    with pair(provider) as (a, b):
        room = bytearray(4)
        b.ep.recv(room, context="got")
        to = a.to(b)
        post(lambda: a.ep.send(b"data", dest_addr=to), a, b)
        found: list[Any] = []
        end = Patience(30)
        while not found and not end.over:
            drain(a)
            try:
                found = b.cq.sread(timeout=0.05)
            except fi.Again:
                pass
        assert found[0].op_context == "got"
        assert room == b"data"


def test_other_threads_run_while_one_waits(provider: str) -> None:
    with pair(provider) as (a, _):
        turns = []

        def count() -> None:
            while not turns or turns[-1] != "end":
                turns.append("turn")
                if len(turns) > 100:
                    turns.append("end")

        thread = threading.Thread(target=count)
        thread.start()
        with pytest.raises(fi.Again):
            a.cq.sread(timeout=0.2)
        thread.join(30)
        assert turns[-1] == "end"


def test_queue_without_wait_object_refuses_sread(provider: str) -> None:
    with pair(provider, cq={"wait_obj": fi.WAIT_NONE}) as (a, _):
        with pytest.raises(fi.InvalidArgument, match="WAIT_NONE"):
            a.cq.sread(timeout=0)
        assert a.cq.fd == -1


@pytest.mark.parametrize("wait_obj", [fi.WAIT_NONE, fi.WAIT_YIELD, fi.WAIT_UNSPEC])
def test_trywait_needs_a_wait_object_of_the_provider(provider: str, wait_obj: int) -> None:
    """fi_poll(3) fi_trywait: the library reads the object's wait object, and would end the process without one."""
    with (
        pair(provider) as (a, _),
        a.fabric.eq_open(wait_obj=wait_obj) as eq,
        a.domain.cq_open(wait_obj=wait_obj) as cq,
        a.domain.cntr_open(wait_obj=wait_obj) as cntr,
    ):
        chosen = wait_obj == fi.WAIT_UNSPEC  # the provider's own choice: shm has a wait object for events alone
        has = [eq, *((cq, cntr) if provider == "ofi:tcp" else ())] if chosen else []
        for one in (cq, cntr, eq):
            if one in has:
                a.fabric.trywait([one])
                continue
            with pytest.raises(fi.InvalidArgument, match="no wait object"):
                a.fabric.trywait([one])
            if one is not cntr:
                with pytest.raises(fi.InvalidArgument, match="no wait object"):
                    one.trywait()


def test_descriptor_tells_of_completions() -> None:
    with pair("ofi:tcp", **FD) as (a, b):
        room = bytearray(4)
        b.ep.recv(room, context="got")
        to = a.to(b)
        post(lambda: a.ep.send(b"data", dest_addr=to), a, b)
        assert b.cq.fd >= 0
        assert b.cq.control(fi.GETWAIT) == b.cq.fd
        end = Patience(30)
        while not b.seen and not end.over:
            if b.cq.trywait() and a.cq.trywait():
                select.select([b.cq.fd, a.cq.fd], [], [], 1.0)
            drain(a, b)
        assert b.seen[0].op_context == "got"
        b.fabric.trywait([b.cq])


def test_asyncio_awaits_operations() -> None:
    async def talk() -> tuple[Any, Any, bytearray]:
        with pair("ofi:tcp", **FD) as (a, b):
            to, room = a.to(b), bytearray(5)
            async with fi.AsyncEndpoint(a.ep) as left, fi.AsyncEndpoint(b.ep) as right:
                got = asyncio.ensure_future(right.trecv(room, tag=3, context="r"))
                sent = await asyncio.wait_for(left.tsend(b"async", dest_addr=to, tag=3, context="s"), 30)
                return sent, await asyncio.wait_for(got, 30), room

    sent, got, room = asyncio.run(talk())
    assert sent.op_context == "s"
    assert got.op_context == "r"
    assert room == b"async"


def test_closing_a_queue_ends_its_wait() -> None:
    with pair("ofi:tcp") as (a, _):
        cq = a.domain.cq_open()
        said: list[Any] = []

        def wait() -> None:
            try:
                said.append(cq.sread(timeout=20))
            except fi.FabricError as reason:
                said.append(reason)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: thread.is_alive(), a)
        cq.close()
        thread.join(30)
        assert isinstance(said[0], (fi.Canceled, fi.BadState)), said


def test_queue_is_closed_by_two_threads_at_once_while_a_third_waits(provider: str) -> None:
    ended = run_program(
        """
import sys, threading
from tests.ofi.support import offer
from weft import fi
info = offer(sys.argv[1])
domain = fi.Fabric(info.fabric_attr).domain(info)
found = []
def wait(cq):
    try:
        cq.sread(timeout=20)
    except fi.FabricError as e:
        found.append(type(e).__name__)
for _ in range(20):
    cq = domain.cq_open()
    begun = threading.Event()
    waits = threading.Thread(target=lambda: (begun.set(), wait(cq)))
    waits.start()
    begun.wait()
    closers = [threading.Thread(target=cq.close) for _ in range(3)]
    for one in closers:
        one.start()
    for one in (*closers, waits):
        one.join()
    assert cq.closed
print(set(found) <= {"Canceled", "BadState"}, len(found))
""",
        provider,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.splitlines()[-1] == "True 20"
