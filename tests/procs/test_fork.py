"""Fork: the NIC and everything on it stay with the process that opened them."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest
from tests.patience import Patience
from tests.procs import leftovers, peer
from tests.procs.children import Child, run
from tests.procs.peer import World

from weft import fi

pytestmark = pytest.mark.procs

SETTINGS = [{"WEFT_ENGINE": "thread"}, {"WEFT_ENGINE": "manual"}, {"WEFT_ISOLATION": "strict"}]
ids = ["thread", "manual", "strict"]

# in_child(function): runs it in a forked child; its exit code is the answer, its stderr ours.
COMMON = """
import gc, os, signal, sys, time, traceback
import numpy as np
import warnings
warnings.simplefilter("error", ResourceWarning)
from weft import fi, _process
from tests.procs.peer import Side, RW
def in_child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
def transfer(a, b):
    memory = b.domain.alloc(64, np.uint8)
    memory[:] = 0
    with b.domain.mr_reg(memory, RW, requested_key=77):
        a.ep.write(b"transferred", dest_addr=a.av.insert(b.name), addr=0, key=77)
        a.done()
    assert bytes(memory[:11]) == b"transferred"
"""

REFUSE = (
    COMMON
    + """
a, b = Side(counters=(fi.WRITE,), wait_obj=fi.WAIT_FD), Side()
transfer(a, b)
array = a.domain.alloc(64, np.uint8)
mr = a.domain.mr_reg(array, RW, requested_key=5)
other = a.domain.mr_reg(np.zeros(8), fi.REMOTE_READ, requested_key=6)
eq = a.fabric.eq_open()
to = a.av.insert(b.name)
word = np.ones(1, np.uint64)
before = _process.nic().statistics()
def child():
    uses = [
        lambda: a.ep.write(b"x", dest_addr=to, addr=0, key=1),
        lambda: a.ep.write(np.zeros(1 << 20, np.uint8), dest_addr=to, addr=0, key=1),
        lambda: a.ep.read(bytearray(8), src_addr=to, addr=0, key=1),
        lambda: a.ep.inject_write(b"x", dest_addr=to, addr=0, key=1),
        lambda: a.ep.writev([b"x"], dest_addr=to, addr=0, key=1),
        lambda: a.ep.writemsg(fi.MsgRma([b"x"], [fi.RmaIov(0, 1, 1)], to)),
        lambda: a.ep.write_batch(b"x", np.zeros(1, fi.RMA_DESC)),
        lambda: a.ep.atomic(word, dest_addr=to, addr=0, key=1, datatype=fi.UINT64, op=fi.SUM),
        lambda: a.ep.fetch_atomic(word, result=word.copy(), dest_addr=to, addr=0, key=1, datatype=fi.UINT64, op=fi.SUM),
        lambda: a.ep.cancel(None),
        lambda: a.ep.getname(),
        lambda: a.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_TX_SIZE),
        lambda: a.cq.read(),
        lambda: a.cq.readfrom(1),
        lambda: a.cq.sread(timeout=1),
        lambda: a.cq.sreadfrom(timeout=1),
        lambda: a.cq.readerr(),
        lambda: a.cq.signal(),
        lambda: a.cq.trywait(),
        lambda: a.counters[fi.WRITE].read(),
        lambda: a.counters[fi.WRITE].readerr(),
        lambda: a.counters[fi.WRITE].wait(1, 1),
        lambda: a.counters[fi.WRITE].add(1),
        lambda: a.counters[fi.WRITE].set(1),
        lambda: a.av.insert(b.name),
        lambda: a.av.lookup(to),
        lambda: a.av.remove(to),
        lambda: a.domain.alloc(8),
        lambda: a.domain.mr_reg(array, RW, requested_key=8),
        lambda: a.domain.endpoint(),
        lambda: a.domain.cq_open(),
        lambda: a.domain.cntr_open(),
        lambda: a.domain.av_open(),
        lambda: a.fabric.domain(a.info),
        lambda: a.fabric.eq_open(),
        lambda: mr.enable(),
        lambda: mr.bind(a.ep),
        lambda: eq.read(),
        lambda: a.ep.__enter__(),
    ]
    for i, use in enumerate(uses):
        try:
            use()
        except fi.BadState as error:
            assert "parent" in str(error) or "forked" in str(error), (i, error)
        else:
            raise AssertionError(f"use {i} was accepted in a forked child")
    for handle in (a.ep, a.cq, a.av, a.domain, a.fabric, mr, eq, a.counters[fi.WRITE]):
        assert repr(handle)
    # Closing and dropping them does nothing, and says nothing.
    for handle in (mr, eq, a.ep, a.counters[fi.WRITE], a.cq, a.av, a.domain, a.fabric):
        handle.close()
        handle.close()
    global_names = [n for n in ("a", "b", "mr", "other", "eq", "array") if n in globals()]
    for name in global_names:
        del globals()[name]
    gc.collect()
in_child(child)
after = _process.nic().statistics()
assert after["regions"] == before["regions"], (before, after)
assert mr.state == "enabled"
transfer(a, b)
transfer(b, a)
mr.close(), other.close(), eq.close(), a.close(), b.close()
print("end")
"""
)

OWN = (
    COMMON
    + """
a = Side()
transfer(a, a)
_process.nic()
def child():
    b, c = Side(), Side()                       # a fabric of its own
    transfer(b, c)
    transfer(c, b)
    def grandchild():
        d = Side()
        transfer(d, d)
        try:
            b.ep.write(b"x", dest_addr=0, key=0)
        except fi.BadState:
            pass
        else:
            raise AssertionError("accepted")
        d.close()
    in_child(grandchild)
    transfer(b, c)
    b.close()
    c.close()
for _ in range(3):
    in_child(child)
    transfer(a, a)
    x, y = Side(), Side()
    transfer(x, y)
    x.close(), y.close()
a.close()
print("end")
"""
)


def check(code: str, settings: dict[str, str]) -> None:
    done = run(code, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("end\n"), done.stdout + done.stderr
    assert done.stderr == "", done.stderr


@pytest.mark.parametrize("settings", SETTINGS, ids=ids)
def test_fork_child_is_refused_and_parent_unharmed(settings: dict[str, str]) -> None:
    check(REFUSE, settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=ids)
def test_fork_child_opens_a_fabric_of_its_own(settings: dict[str, str]) -> None:
    check(OWN, settings)


def fork_idle(world: World) -> int:
    """Fork a child that does nothing; its pid."""
    pid = os.fork()
    if pid == 0:
        time.sleep(120)
        os._exit(0)
    return pid


def write_once(world: World, name: str) -> int:
    to = world.side.av.insert(name)
    world.side.ep.write(b"x", dest_addr=to, addr=0, key=5)
    return int(getattr(world.side.outcome(), "err", 0))


@pytest.mark.parametrize("settings", SETTINGS, ids=ids)
def test_fork_child_does_not_hide_its_parents_death(settings: dict[str, str]) -> None:
    """The kernel drops a name when the last descriptor goes: the child must hold none of them."""
    with Child(**settings) as survivor:
        victim = Child(**settings)
        name = victim.call(peer.open_side)
        victim.call(peer.expose, "memory", 64, 5, False)
        survivor.call(peer.open_side)
        assert survivor.call(write_once, name) == 0
        idle = victim.call(fork_idle)
        try:
            assert survivor.call(write_once, name) == 0
            victim.kill()
            victim.wait()
            os.kill(idle, 0)  # it lives
            deadline = Patience(20)
            while leftovers.sockets(name):  # until the child, which may not have run yet, has closed its copies
                assert not deadline.over, leftovers.sockets(name)
                time.sleep(0.01)
            while survivor.call(write_once, name) != fi.ECONNREFUSED:
                assert not deadline.over, "the death was never noticed"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(idle, signal.SIGKILL)
            victim.destroy()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("spawn", SETTINGS[0]),
        ("spawn", SETTINGS[1]),
        ("fork", SETTINGS[0]),
        ("fork", SETTINGS[1]),
        ("fork", SETTINGS[2]),
    ],
    ids=["spawn-thread", "spawn-manual", "fork-thread", "fork-manual", "fork-strict"],
)
def test_fork_by_multiprocessing(method: str, settings: dict[str, str]) -> None:
    """A Process of either kind opens its own fabric and reaches its parent; the parent reaches it."""
    check(f"from tests.procs import mp_target\nmp_target.main({method!r})\nprint('end')", settings)


FORK_UNDER_TRAFFIC = (
    COMMON
    + """
import threading
a, b = Side(), Side()
memory = b.domain.alloc(1 << 20, np.uint8)
b.region(memory, 9)
to = a.av.insert(b.name)
over = threading.Event()
def traffic():
    data = np.zeros(1 << 20, np.uint8)
    while not over.is_set():
        a.ep.write(data, dest_addr=to, addr=0, key=9)
        a.ep.write(data[:8], dest_addr=to, addr=0, key=9)
        a.done(2)
thread = threading.Thread(target=traffic)
thread.start()
def child():
    try:
        a.ep.write(b"x", dest_addr=to, addr=0, key=9)
    except fi.BadState:
        pass
    c = Side()
    transfer(c, c)
    c.close()
for _ in range(12):
    in_child(child)
over.set()
thread.join()
transfer(a, b)
a.close(), b.close()
print("end")
"""
)


@pytest.mark.parametrize("settings", SETTINGS, ids=ids)
def test_fork_under_traffic_of_another_thread(settings: dict[str, str]) -> None:
    check(FORK_UNDER_TRAFFIC, settings)
