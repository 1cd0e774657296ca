"""The end of an interpreter is silent and clean with open objects, operations and waits; leaks give a warning."""

from __future__ import annotations

import random

import pytest
from tests.procs.children import run

pytestmark = pytest.mark.procs

LIVE = """
import random, sys, threading, time
import numpy as np
from weft import fi
from tests.procs.peer import Side, RW, memory
seed, threads, engine = {seed}, {threads}, {engine!r}
rng = random.Random(seed)
a, b = Side(counters=(fi.WRITE, fi.READ), wait_obj=fi.WAIT_FD), Side()
mem, mem2 = a.domain.alloc(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
mr, mr2 = a.domain.mr_reg(mem, RW, requested_key=1), b.domain.mr_reg(mem2, RW, requested_key=2)
sub = a.domain.mr_regattr(fi.MrAttr(mr_iov=[mem[:10]], access=RW, requested_key=9, base_mr=mr))
eq = a.fabric.eq_open()
to_b, to_a = a.av.insert(b.name), b.av.insert(a.name)
for i in range(20):
    a.ep.write(mem, dest_addr=to_b, addr=0, key=2, context=object())
    b.ep.read(mem2, src_addr=to_a, addr=0, key=1, context=[i])
# Operations that never end: the listener below takes calls and answers none.
import os, socket
deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ending = a.name.replace("weft:/", "").replace("/", "-")
(mine,) = [l.split("@")[1] for l in open("/proc/net/unix") if "@weft-" in l and l.rstrip().endswith(ending)]
deaf.bind("\\0" + mine.strip().rsplit("-", 1)[0] + "-" + str(os.getpid()))
deaf.listen()
nobody = a.av.insert(f"weft://0/1/{{os.getpid()}}")
for i in range(5):
    a.ep.write(mem, dest_addr=nobody, addr=0, key=2, context=object())
def sleep_on(call):
    try:
        call()
    except fi.FabricError:
        pass
    except TypeError:
        pass
def waiter():
    while True:
        sleep_on(lambda: b.cq.sread(timeout=None))
def counter():
    sleep_on(lambda: a.counters[fi.WRITE].wait(1 << 40))
def poller():
    while True:
        sleep_on(a.cq.read)
for target in (waiter, counter, poller)[:threads]:
    threading.Thread(target=target, daemon=True).start()
if threads:
    time.sleep(0.05)
ops = []
if not threads:
    slice_ = mr[10:100]
    for holder, name in [(side, name) for side in (a, b) for name in ("ep", "cq", "av", "domain", "fabric")]:
        ops.append(lambda h=holder, n=name: delattr(h, n))
        ops.append(lambda h=holder, n=name: getattr(h, n).close())
    for name in ("mr", "mr2", "sub", "eq", "mem", "mem2", "slice_", "a", "b"):
        ops.append(lambda n=name: globals().pop(n))
        if name[0] in "mse" and name not in ("mem", "mem2", "slice_"):
            ops.append(lambda n=name: globals()[n].close())
    rng.shuffle(ops)
    for op in ops[: rng.randrange(len(ops) + 1)]:
        try:
            op()
        except (fi.Busy, fi.BadState, KeyError, AttributeError, NameError):
            pass
if rng.random() < 0.3:
    cycle = [a] if "a" in globals() else []
    cycle.append(cycle)
print("end")
if rng.random() < 0.3:
    sys.exit(0)
"""


def check(done: object) -> None:
    assert done.stdout == "end\n", done.stdout + done.stderr  # type: ignore[attr-defined]
    assert done.stderr == "", done.stderr  # type: ignore[attr-defined]
    assert done.returncode == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", range(8))
def test_exit_with_live_handles_in_any_state_is_silent(number: int, rng: random.Random) -> None:
    """Closed, dropped, open, in a cycle: in random order, with operations under way."""
    seed, engine = rng.getrandbits(32), ("thread", "manual")[number % 2]
    done = run(LIVE.format(seed=seed, threads=0, engine=engine), flags=("-W", "ignore"), WEFT_ENGINE=engine)
    print(f"seed {seed}")
    check(done)


@pytest.mark.parametrize("engine", ["thread", "manual"])
def test_exit_with_waiting_threads_is_silent(engine: str) -> None:
    """Daemon threads in sread, in wait and in a polling loop while the interpreter ends."""
    for seed in (1, 2):
        check(run(LIVE.format(seed=seed, threads=3, engine=engine), flags=("-W", "ignore"), WEFT_ENGINE=engine))


RETURNING = """
import atexit, os, random, threading, time
numbers = [random.random() for _ in range(400_000)]
atexit.register(numbers.sort)  # the last of the exit functions: the threads wait for the GIL, which it keeps
import weft
from weft.errors import TimedOut
name = f"exit-{os.getpid()}"
cells = weft.share(weft.zeros(4, "i8"), name)
far = weft.attach(name)
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.05)  # the shutdown gives the GIL away
slow = Slow()
def waiter():
    while True:
        try:
            far.wait_until(0, 9, timeout=0.001)
        except TimedOut:
            pass
for _ in range(16):
    threading.Thread(target=waiter, daemon=True).start()
time.sleep(0.05)
print("end")
"""


def test_exit_while_threads_return_from_their_waits_is_silent() -> None:
    """The threads ask for the GIL while the interpreter ends, which Python before 3.14 answers by unwinding them."""
    for _ in range(2):
        check(run(RETURNING, WEFT_ISOLATION="strict"))


SHUFFLES = """
import gc, random, warnings
import numpy as np
warnings.simplefilter("ignore")
from weft import fi, _process
from tests.procs.peer import Side, RW
rng = random.Random({seed})
for round_ in range(60):
    a, b = Side(counters=(fi.WRITE,)), Side()
    mem = a.domain.alloc(1 << 16, np.uint8)
    mr = a.domain.mr_reg(mem, RW, requested_key=1)
    to_b, to_a = a.av.insert(b.name), b.av.insert(a.name)
    mr2 = b.domain.mr_reg(np.zeros(1 << 16, np.uint8), RW, requested_key=2)
    for i in range(rng.randrange(4)):
        a.ep.write(mem, dest_addr=to_b, addr=0, key=2, context=object())
        b.ep.writedata(mr[0:8] if rng.random() < 0.5 else b"12345678", data=i, dest_addr=to_a, addr=0, key=1, context=a)
    held = dict(mem=mem, mr=mr, mr2=mr2, ep=a.ep, cq=a.cq, av=a.av, domain=a.domain, fabric=a.fabric, c=a.counters,
                ep2=b.ep, cq2=b.cq, av2=b.av, domain2=b.domain, fabric2=b.fabric)
    if rng.random() < 0.3:
        held["cycle"] = cycle = [a]
        cycle.append(cycle)
    del a, b, mem, mr, mr2
    names = list(held)
    rng.shuffle(names)
    for name in names:
        if rng.random() < 0.4 and hasattr(held[name], "close"):
            try:
                held[name].close()
            except fi.Busy:
                pass
        del held[name]
        if rng.random() < 0.1:
            gc.collect()
    cycle = None
    gc.collect()
    nic = _process.nic()
    if nic.engine == "manual":
        nic.progress()
s = _process.nic().statistics()
assert s["regions"] == 0, s
assert s["allocated_bytes"] == 0, s
import os
fds = len(os.listdir("/proc/self/fd"))
assert fds < 40, fds
print("end")
"""


@pytest.mark.parametrize("engine", ["thread", "manual"])
def test_teardown_in_any_order_gives_everything_back(engine: str, rng: random.Random) -> None:
    seed = rng.getrandbits(32)
    print(f"seed {seed}")
    check(run(SHUFFLES.format(seed=seed), flags=("-W", "ignore"), WEFT_ENGINE=engine))


LEAK = """
import gc
from tests.procs.peer import Side
import numpy as np
def leak():
    side = Side()
    side.region(np.zeros(8), 1)
    side.domain.mr_reg(np.zeros(8), 0x1000, requested_key=2)      # the line of the leak
    side.fabric.eq_open()
leak()
gc.collect()
print("end")
"""


def test_leaks_warn_with_the_line_that_made_them() -> None:
    done = run(LEAK, flags=("-W", "always::ResourceWarning"))
    assert done.returncode == 0
    assert done.stdout == "end\n"
    for kind in ("Endpoint", "CompletionQueue", "AddressVector", "Domain", "Fabric", "MemoryRegion", "EventQueue"):
        assert f"ResourceWarning: <{kind}" in done.stderr, (kind, done.stderr)
    assert "was never closed; made at <string>:8" in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr


def test_leaks_as_errors_do_not_break_the_teardown() -> None:
    """-W error turns the warning into an exception inside __del__: Python prints it, and all resources are released."""
    done = run(LEAK, flags=("-W", "error::ResourceWarning"))
    assert done.returncode == 0
    assert done.stdout == "end\n"
    assert "ResourceWarning: <MemoryRegion" in done.stderr
