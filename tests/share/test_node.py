"""Nodes: life, threads, statistics, reprs, and the end of owners."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import patience
from tests.patience import Patience
from tests.share.owner import Owner, until_its_end_is_known

import weft
from weft import errors

ROOT = Path(__file__).parents[2]


def test_statistics_count_held_objects(node: weft.Node, name: Any) -> None:
    before = node.statistics()
    share = node.share(weft.zeros(10), name("a"))
    remote = node.attach(share)
    remote.read()
    after = node.statistics()
    assert (after.shared, after.shared_bytes, after.names, after.attached) == (1, 80, 1, 1)
    assert after.direct > before.direct
    assert after.bytes >= before.bytes + 80
    with pytest.raises(AttributeError):
        after.shared = 2  # type: ignore[misc]
    del remote
    gc.collect()
    assert node.statistics().attached == 0
    share.close()
    assert node.statistics().shared == 0


def test_reprs_say_path_and_why(node: weft.Node, name: Any) -> None:
    n = name("a")
    mapped, foreign = node.share(weft.zeros((2, 3), "f4"), n), node.share(np.zeros(3))
    assert f"{n!r} float32 (2, 3), 24 B, access rw, by load/store: peers map its memory" in repr(mapped)
    assert "by process_vm: its memory was not allocated by Weft; weft.empty() makes" in repr(foreign)
    remote = node.attach(mapped)
    assert "RemoteArray" in repr(remote)
    assert "the array is in this process" in repr(remote)
    assert "part of (2, 3)" in repr(remote.at[0])
    assert f"shares 2 ({n})" in repr(node)
    mapped.close()
    assert repr(mapped).endswith("closed>")
    node.close()
    assert repr(node).endswith("closed>")


def test_html_reprs_are_escaped(node: weft.Node) -> None:
    share = node.share(weft.zeros(3, [("<b>", "i4")]), "test-<script>")
    for thing in (node, share, node.attach(share)):
        text = thing._repr_html_()
        assert text.startswith("<table>")
        assert "<script>" not in text
        assert "<b>'" not in text
    assert "&lt;script&gt;" in share._repr_html_()


def test_threads_never_take_each_others_completions(node: weft.Node, owner: Owner, name: Any) -> None:
    """Eight threads, each with values of its own, long and short, good and bad."""
    n = name("a")
    owner.tell(f"a = weft.zeros((8, 5000), 'i8'); a[:] = np.arange(8)[:, None]; s = node.share(a, {n!r}, 'r')")
    remote = node.attach(n)
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for k in range(150):
                assert remote[i, k] == i
                assert (remote[i] == i).all()
                assert (remote[::-1, k] == np.arange(8)[::-1]).all()
                if k % 10 == 0:
                    with pytest.raises(errors.AccessDenied):
                        remote[i, k] = 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not failures
    assert node.statistics().lanes <= 8


def test_concurrent_adds_are_not_lost(node: weft.Node) -> None:
    local = weft.zeros(4, "f8")
    remote = node.attach(node.share(local))

    def work() -> None:
        for _ in range(500):
            remote.add(1, 0.5)
            remote.fetch_add(2, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert local.tolist() == [0, 1000, 2000, 0]


def test_wait_until_sees_another_thread(node: weft.Node) -> None:
    local = weft.zeros(4, "i8")
    remote = node.attach(node.share(local))
    thread = threading.Timer(0.02, lambda: local.fill(7))
    thread.start()
    assert remote.wait_until(2, 7, timeout=60) == 7
    assert remote.wait_until(slice(None), lambda x: (x > 6).all(), timeout=60).tolist() == [7] * 4
    thread.join()


@pytest.mark.procs
def test_dead_owner_is_named(node: weft.Node, own_owner: Owner, name: Any) -> None:
    n = name("a")
    own_owner.tell(f"a = weft.zeros(100000); b = np.zeros(4); s = node.share(a, {n!r}); u = node.share(b, {n!r} + 'b')")
    remote, foreign = node.attach(n), node.attach(n + "b")
    remote[3] = 1
    ticket = remote.ticket
    own_owner.kill()
    until_its_end_is_known(remote)
    for call in (
        lambda: remote[3],
        lambda: remote[3:5],
        lambda: remote.read(),
        lambda: remote.__setitem__(3, 1),
        lambda: remote.fetch_add(3),
        lambda: remote.take([1, 2]),
        lambda: foreign[0],
        lambda: node.attach(ticket),
    ):
        with pytest.raises(ConnectionResetError, match=f"process {own_owner.pid}, is gone"):
            call()
    assert node.statistics().lanes == 1


@pytest.mark.procs
def test_closed_node_and_share_of_another_process(node: weft.Node, own_owner: Owner, name: Any) -> None:
    n = name("a")
    own_owner.tell(f"a = weft.zeros(4); s = node.share(a, {n!r})")
    remote = node.attach(n)
    own_owner.tell("s.close()")
    with pytest.raises(errors.KeyRejected, match=f"process {own_owner.pid} has closed the share of {n!r}"):
        remote.read()
    own_owner.tell(f"b = np.ones(4); t = node.share(b, {n!r})")
    assert node.attach(n)[0] == 1
    with pytest.raises(errors.KeyRejected):
        remote.read()
    own_owner.tell("node.close()")
    with pytest.raises(ConnectionResetError, match="has closed its node"):
        remote.read()


# The kernel closes the descriptors of a killed process from the highest to the lowest: first its sockets, and then for
# some 100 ms these pages. Until then it is not a zombie.
MUCH_TO_CLOSE = """
fd = os.memfd_create("much")
os.posix_fallocate(fd, 0, 512 << 20)
os.dup2(fd, 0)
os.close(fd)
a = weft.zeros(4)
ticket = str(node.share(a).ticket)
print(ticket, flush=True)
import time
time.sleep(100)
"""


def write_until_it_fails(remote: Any) -> None:
    patience = Patience(60)
    while not patience.over:  # the NIC hears of the owner's end at some time
        remote[:] = 1


@pytest.mark.procs
def test_killed_owner_that_has_much_to_close_is_gone(node: weft.Node) -> None:
    program = f"import os, weft\nnode = weft.open()\n{MUCH_TO_CLOSE}"
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as owner:
            assert owner.stdout is not None
            remote = node.attach(owner.stdout.readline().strip())
            remote[:] = 1
            owner.kill()
            with pytest.raises(ConnectionResetError, match=rf"process {owner.pid}, is gone"):
                write_until_it_fails(remote)


@pytest.mark.procs
def test_interrupt_ends_a_wait_and_leaves_the_node_usable(name: Any) -> None:
    """Ctrl-C while the owner is stopped: KeyboardInterrupt at once, and the next call works."""
    program = """
import os, signal, sys, threading, weft
from tests.patience import Patience
from tests.share.owner import stop
node = weft.open()
t = node.attach(sys.argv[1])
owner = int(sys.argv[2])
stop(owner)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    t.read()
    print("read")
except KeyboardInterrupt:
    os.kill(owner, signal.SIGCONT)
    print("interrupted", t[3])
"""
    n = name("a")
    with Owner("int-", WEFT_ISOLATION="strict") as owner:
        owner.tell(f"a = np.arange(1000.0); s = node.share(a, {n!r})")
        done = patience.run([sys.executable, "-c", program, n, str(owner.pid)], timeout=60, cwd=ROOT)
        owner.go_on()
    assert done.stdout == "interrupted 3.0\n", done
    assert done.stderr == ""


EXITS = {
    "everything open": "t.read()",
    "node only": "del t, s, a",
    "a name": "node.share(weft.zeros(3), 'test-exit-%d' % os.getpid())",
    "node closed twice": "node.close(); node.close(); s.close()",
    "node dropped first": "del node; t.read(); del t",
    "array dropped first": "del a; t.read()",
    "share dropped": "del s; t.read()",
    "default node": "u = pickle.loads(pickle.dumps(s)); u.read()",
    "in a thread": "threading.Thread(target=t.read).start()",
    "daemon thread at work": "threading.Thread(target=lambda: [t.read() for _ in iter(int, 1)], daemon=True).start()",
    "a loop": "asyncio.run(t.aread())",
    "a loop left open": "l = asyncio.new_event_loop(); l.run_until_complete(t.aread()); l.close()",
    "a global in a module": "sys.modules['keeper'] = types.SimpleNamespace(t=t, node=node, s=s)",
    "a cycle": "t2 = [t]; t2.append(t2); s.me = s; node.me = node",
    "a raise": "raise SystemExit(0)",
    # Python 3.12 and later warn of a fork beside threads, of which Weft's engine is one.
    "a forked child": "import warnings; warnings.simplefilter('ignore')\n"
    "p = os.fork()\nif p == 0: sys.exit(0)\nos.waitpid(p, 0)",
}


@pytest.mark.procs
@pytest.mark.parametrize("end", EXITS.values(), ids=EXITS.keys())
def test_exit_is_silent(end: str) -> None:
    program = (
        "import asyncio, os, pickle, sys, threading, types, weft\n"
        "node = weft.open(); a = weft.zeros(100); s = node.share(a); t = node.attach(s); t[3] = 1\n" + end
    )
    done = patience.run([sys.executable, "-c", program], timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_forgotten_node_closes_itself(name: Any) -> None:
    n = name("a")
    node = weft.open()
    node.share(weft.zeros(3), n)
    del node
    with pytest.warns(ResourceWarning, match="its node was dropped without close"):
        gc.collect()
    assert n not in weft.Node.names()


def test_array_keeps_its_node() -> None:
    local = weft.zeros(3)
    owner = weft.open()
    remote = weft.open().attach(owner.share(local))
    gc.collect()
    remote[1] = 2
    assert local[1] == 2
    owner.close()


@pytest.mark.procs
def test_operation_that_only_a_stopped_owner_can_do_times_out(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the owner, the reason and a remedy. The node still works with others, later with the owner."""
    program = """
import asyncio, sys, weft
from tests.patience import Patience
from tests.share.owner import stop
node = weft.open(timeout=0.3)
t = node.attach(sys.argv[1])
stop(int(sys.argv[2]))
for call in (lambda: t.read(), lambda: t.fetch_add(0, 1), lambda: asyncio.run(t.aread())):
    try:
        call()
        print("done?")
    except TimeoutError as error:
        print(str(error).replace("\\n", " "))
import os, signal
os.kill(int(sys.argv[2]), signal.SIGCONT)
print(t[3])
"""
    n = name("a")
    with Owner("late-", WEFT_ISOLATION="strict") as owner:
        owner.tell(f"a = np.arange(1000); s = node.share(a, {n!r})")
        done = patience.run([sys.executable, "-c", program, n, str(owner.pid)], timeout=60, cwd=ROOT)
        owner.go_on()
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done
    for line in lines[:3]:
        assert f"process {owner.pid}" in line, done
        assert "is stopped" in line, done
        assert "weft.open(timeout=" in line, done
    assert lines[3] == "3", done
    assert done.stderr == "", done


def test_timeout_must_be_a_time() -> None:
    with pytest.raises(errors.InvalidArgument, match="seconds above 0"):
        weft.open(timeout=0)


def test_deadline_is_put_off_while_pieces_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large array over the owner's engine may take longer than the timeout, as long as bytes arrive."""
    from weft.share.arrays import lane as module

    with weft.open(timeout=0.02) as node:
        lane = node._lane("test")
        looks = iter([*range(10), *[9] * 1000])
        seen: list[int] = []

        def answers() -> int:
            seen.append(next(looks))
            return seen[-1]

        monkeypatch.setattr(module, "answers_so_far", answers)
        with pytest.raises(errors.TimedOut):
            lane.wait()
        assert len(seen) > 10, "it gave up although pieces came"


def test_statistics_show_the_registration_cache(node: weft.Node) -> None:
    from weft import fi

    before = node.statistics()
    block = np.zeros(100_000, np.uint8)
    with fi.open("mr_cache") as cache:
        for _ in range(3):
            cache.search(block).release()
        cache.notify(block.ctypes.data, 1)
        after = node.statistics()
    if cache.statistics().uncached == 0:
        assert after.cache_hits == before.cache_hits + 2
        assert after.cache_misses == before.cache_misses + 1
        assert after.cache_invalidations >= before.cache_invalidations + 1
