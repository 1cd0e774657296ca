"""The tcp link between hosts: two network namespaces, on a wire that delays, loses, and is cut."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests import patience
from tests.procs import facts, peer
from tests.procs.children import CALL_S, Child
from tests.procs.hosts import PATIENT, Wire
from tests.procs.peer import World

from weft import _process, fi

pytestmark = pytest.mark.procs

SECRET = "of the tests, for two hosts"
QUICK = {"WEFT_TCP_TIMEOUT": "1"}  # where a host is lost: a busy machine may lose it too
# How a lost host ends an operation; a lost process is a reset.
LOST = {fi.ETIMEDOUT, fi.EHOSTUNREACH}
NBYTES = 1 << 20
KEY = 7


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def settings(wire: Wire, host: str, **more: str) -> dict[str, str]:
    return {
        "WEFT_LISTEN": f"tcp://{wire.ip[host]}:0",
        "WEFT_SECRET": SECRET,
        **PATIENT,
        **more,
    }


def child(wire: Wire, host: str, **more: str) -> Child:
    return Child(wire.inside(host), **settings(wire, host, **more))


# ---- in the children -------------------------------------------------------------------------------------------------


def insert(world: World, name: Any) -> int:
    world.more["there"] = world.side.av.insert(name)
    return int(world.more["there"])


def write(world: World, nbytes: int = 8, value: int = 1, key: int = KEY) -> Any:
    """The outcome of one write: 0, or (errno, text)."""
    side = world.side
    array = peer.memory(side, nbytes, False, value)
    side.ep.write(array, dest_addr=world.more["there"], addr=0, key=key)
    entry = side.outcome(CALL_S / 2)
    return 0 if not isinstance(entry, fi.CqErrEntry) else (entry.err, entry.err_data.decode())


def begin_writing(world: World) -> None:
    """Post large writes, some of which will still be under way when the caller comes back."""
    world.more["data"] = peer.memory(world.side, NBYTES, False, 3)
    for _ in range(64):
        world.side.ep.write(world.more["data"], dest_addr=world.more["there"], addr=0, key=KEY)


def endings(world: World, count: int) -> set[int]:
    found = set()
    for _ in range(count):
        entry = world.side.outcome(CALL_S / 2)
        found.add(entry.err if isinstance(entry, fi.CqErrEntry) else 0)
    return found


def statistics(world: World) -> dict[str, int]:
    nic = _process.nic()
    return {**nic.statistics(), **nic.tcp_statistics()}


def tcp_log(world: World) -> list[str]:
    return _process.nic().tcp_log()


def paths(world: World) -> list[Any]:
    return [p["path"] for p in _process.nic().peers() if not p["same_process"]]


def reach(one: Child) -> None:
    """Write to the peer, again if a busy machine has taken its host for lost."""
    limit = patience.Patience(CALL_S)
    while (found := one.call(write)) != 0:
        assert found[0] in LOST | {fi.ECONNRESET}, found
        assert not limit.over


def exposed(one: Child) -> str:
    """Open a side with a region under KEY; its address."""
    name: str = one.call(peer.open_side)
    one.call(peer.expose, "r", NBYTES, KEY, False)
    return name


def check_fact(world: World, name: str, inside: list[str]) -> None:
    pair = facts.Pair("tcp", inside)
    try:
        facts.FACTS[name](pair)
    finally:
        pair.close()


# ---- all is well -----------------------------------------------------------------------------------------------------


def test_addresses_of_other_hosts_work_in_third_processes(wire: Wire) -> None:
    with child(wire, "a") as a, child(wire, "b") as b, child(wire, "b") as third:
        name = exposed(a)
        assert name.startswith(f"weft://{wire.ip['a']}:"), name
        for one in (b, third):  # as text, by way of this process
            one.call(peer.open_side)
            one.call(insert, name)
            assert one.call(write) == 0
            assert one.call(paths) == ["tcp"]
        assert a.call(peer.contents, "r", 0, 8) == b"\1" * 8


def test_listening_processes_of_one_host_use_shared_memory(wire: Wire) -> None:
    with child(wire, "a") as a, child(wire, "a") as b:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        assert b.call(write) == 0
        assert b.call(paths) == ["direct+cma"] or b.call(paths) == ["direct"]
        assert b.call(statistics)["called"] == 0


def test_the_same_port_on_another_host_is_not_this_host(wire: Wire) -> None:
    """Both hosts have a listener on that port and an endpoint of that number: the IP address decides."""
    with (
        Child(
            wire.inside("a"), **settings(wire, "a", WEFT_LISTEN="tcp://0.0.0.0:7007", WEFT_ADVERTISE=wire.ip["a"])
        ) as a,
        Child(
            wire.inside("b"), **settings(wire, "b", WEFT_LISTEN="tcp://0.0.0.0:7007", WEFT_ADVERTISE=wire.ip["b"])
        ) as b,
        child(wire, "b") as c,
    ):
        for one in (a, b):
            one.call(peer.open_side, {"address": "weft://0/1/55"})
            one.call(peer.expose, "r", NBYTES, KEY, False)
        c.call(peer.open_side)
        c.call(insert, f"weft://{wire.ip['a']}:7007/0/1/55")
        assert c.call(write) == 0
        assert c.call(paths) == ["tcp"]
        assert a.call(peer.contents, "r", 0, 1) == b"\1"
        assert b.call(peer.contents, "r", 0, 1) == b"\0"


@pytest.mark.parametrize("family", [4, 6])
def test_an_endpoint_is_named_by_host_and_port_alone(wire: Wire, family: int) -> None:
    """fi_av(3): node and service, and socket addresses, name an endpoint; its number is the port."""
    ip = (wire.ip if family == 4 else wire.ip6)["a"]
    at = f"tcp://{ip if family == 4 else f'[{ip}]'}:7070"
    with Child(wire.inside("a"), **settings(wire, "a", WEFT_LISTEN=at)) as a, child(wire, "b") as b:
        a.call(peer.open_side, {"address": "weft://0/1/7070"})
        a.call(peer.expose, "r", NBYTES, KEY, False)
        b.call(peer.open_side)
        if family == 4:
            struct_form = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 7070, socket.inet_aton(ip))
        else:
            struct_form = struct.pack("=H", socket.AF_INET6) + struct.pack(
                "!HI16sI", 7070, 0, socket.inet_pton(socket.AF_INET6, ip), 0
            )
        same = {b.call(insert, form) for form in ((ip, 7070), struct_form, f"weft://{at.removeprefix('tcp://')}")}
        assert len(same) == 1
        assert b.call(write) == 0
        assert a.call(peer.contents, "r", 0, 1) == b"\1"


@pytest.mark.parametrize("rule", [{}, {"delay_ms": 2, "jitter_ms": 1, "loss": 0.01}], ids=["good", "bad"])
@pytest.mark.parametrize("name", ["write_moves_bytes_and_nothing_else", "large_transfers_arrive_whole"])
def test_facts_hold_on_a_bad_wire(wire: Wire, rule: dict[str, float], name: str) -> None:
    wire.behave(**rule)
    with child(wire, "a", WEFT_LISTEN="tcp://0.0.0.0:0") as a:
        a.call(check_fact, name, wire.inside("b"), timeout=4 * CALL_S)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_killed_process_is_a_reset_and_affects_no_other_peer(wire: Wire) -> None:
    with child(wire, "a") as a, child(wire, "a") as witness, child(wire, "b") as b, child(wire, "b") as other:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        assert b.call(write, NBYTES) == 0
        other.call(peer.open_side)
        other.call(insert, exposed(witness))
        wire.behave(delay_ms=20)
        b.call(begin_writing)
        a.kill()
        a.wait()
        assert b.call(endings, 64) <= {0, fi.ECONNRESET, fi.ECONNREFUSED}
        assert b.call(write)[0] in (fi.ECONNRESET, fi.ECONNREFUSED)
        assert other.call(write, NBYTES) == 0
        a.destroy()


@pytest.mark.parametrize("how", ["partition", "cable"])
def test_a_lost_host_is_noticed_and_found_again(wire: Wire, how: str) -> None:
    with child(wire, "a", **QUICK) as a, child(wire, "b", **QUICK) as b:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        reach(b)
        if how == "partition":
            wire.behave(loss=1)
        else:
            wire.link("a", up=False)
        b.call(begin_writing)
        ended = b.call(endings, 64)
        assert ended <= LOST, ended
        again = b.call(write)  # a new call, which finds nobody
        assert again[0] in LOST, again
        assert wire.ip["a"] in again[1], again
        if how == "partition":
            wire.behave()
        else:
            wire.link("a", up=True)
        limit = patience.Patience(CALL_S)
        while (found := b.call(write, 8, 9)) != 0:
            assert found[0] in LOST | {fi.ECONNRESET}, found
            assert not limit.over
        assert a.call(peer.contents, "r", 0, 8) == b"\t" * 8


def test_an_idle_lost_host_is_noticed_without_an_operation(wire: Wire) -> None:
    """Packets of the link's own tell: no operation is under way when the wire is cut."""
    with child(wire, "a", **QUICK) as a, child(wire, "b", **QUICK) as b:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        reach(b)
        wire.behave(loss=1)
        limit = patience.Patience(CALL_S)
        while not (b.call(statistics)["lost"] and a.call(statistics)["lost"]):
            assert not limit.over, (b.call(tcp_log), a.call(tcp_log))
            time.sleep(0.05)
        assert not b.call(paths)


def test_stopped_process_without_due_data_is_not_lost(wire: Wire) -> None:
    timeout = {"WEFT_TCP_TIMEOUT": "2"}  # the kernels answer, and the wire, which is a process
    with child(wire, "a", **timeout) as a, child(wire, "b", **timeout) as b:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        assert b.call(write) == 0
        a.kill(signal.SIGSTOP)
        pings, limit = 0, patience.Patience(CALL_S)
        before = b.call(statistics)["engine_wakes"]
        while pings < 12 and not limit.over:  # three times the timeout, counted by the timer of the link
            pings = b.call(statistics)["engine_wakes"] - before
            time.sleep(0.05)
        a.kill(signal.SIGCONT)
        assert b.call(write) == 0
        assert b.call(statistics)["lost"] == 0


def test_a_stalled_process_ends_large_transfers_in_time(wire: Wire) -> None:
    with child(wire, "a", **QUICK) as a, child(wire, "b", **QUICK) as b:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        reach(b)
        a.kill(signal.SIGSTOP)
        b.call(begin_writing)
        assert b.call(endings, 64) <= LOST
        a.kill(signal.SIGCONT)
        reach(b)


def test_hosts_that_cannot_be_reached_say_so(wire: Wire) -> None:
    with child(wire, "b") as b:
        b.call(peer.open_side)
        b.call(insert, "weft://10.99.0.1:7000/0/1/5")  # no way there
        found = b.call(write)
        assert found[0] == fi.EHOSTUNREACH, found
        assert "10.99.0.1:7000" in found[1]
        b.call(insert, f"weft://{wire.ip['a']}:7000/0/1/5")  # the host is there, and nobody listens
        assert b.call(write)[0] == fi.ECONNREFUSED


def test_different_secret_is_refused_on_both_sides(wire: Wire) -> None:
    with child(wire, "a") as a, child(wire, "b", WEFT_SECRET="quite another secret") as b:
        name = exposed(a)
        b.call(peer.open_side)
        b.call(insert, name)
        code, text = b.call(write)
        assert code == fi.EACCES
        assert "the secrets differ" in text
        assert "WEFT_SECRET" in text
        assert "runs as another user" not in text
        assert SECRET not in text
        assert any("secrets differ" in line and wire.ip["b"] in line for line in a.call(tcp_log))
        assert a.call(peer.contents, "r", 0, 8) == bytes(8)


def test_a_right_that_was_not_granted_is_refused_across_hosts(wire: Wire) -> None:
    """Short payload and payload of several packets."""
    with child(wire, "a") as a, child(wire, "b") as b:
        name = a.call(peer.open_side)
        a.call(peer.expose, "r", NBYTES, KEY, False, 0, fi.REMOTE_READ)
        b.call(peer.open_side)
        b.call(insert, name)
        for nbytes in (8, NBYTES):
            code, text = b.call(write, nbytes)
            assert code == fi.EACCES
            assert "does not grant this access" in text
        assert a.call(peer.contents, "r") == bytes(NBYTES)


def test_without_a_secret_no_host_is_connected(wire: Wire) -> None:
    with child(wire, "a") as a, Child(wire.inside("b")) as b:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        code, text = b.call(write)
        assert code == fi.EACCES
        assert "WEFT_SECRET" in text


def test_forked_child_does_not_keep_its_parents_connection(wire: Wire) -> None:
    with child(wire, "a") as a, child(wire, "b") as b:
        b.call(peer.open_side)
        b.call(insert, exposed(a))
        assert b.call(write) == 0
        orphan = a.call(leave_a_child)
        try:
            a.kill()
            a.wait()
            assert b.call(write)[0] in (fi.ECONNRESET, fi.ECONNREFUSED)
        finally:
            os.kill(orphan, signal.SIGKILL)
        a.destroy()


def leave_a_child(world: World) -> int:
    """Fork; the child lives on, without touching anything. Its pid."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


# ---- the friendly layer ----------------------------------------------------------------------------------------------

OWNER = """
import sys, numpy as np, weft
node = weft.open(listen=f"tcp://{sys.argv[1]}:0", secret=sys.argv[2])
a = np.arange(1_000_000.0)
shared = node.share(a)
print(shared.ticket, flush=True)
sys.stdin.readline()
print(float(a[17]), float(a[18]), flush=True)
"""

USER = """
import asyncio, pickle, sys, numpy as np, weft
node = weft.open(secret=sys.argv[2])
r = node.attach(sys.argv[1])
assert (r[:] == np.arange(1_000_000.0)).all()
assert r.path == "tcp", r.path
r[17] = 5.5
assert r.fetch_add(18, 1.0) == 18.0
async def main():
    assert ((await r.aread())[100:105] == np.arange(100.0, 105.0)).all()
    assert await r.afetch_add(20, 1.0) == 20.0
asyncio.run(main())
assert pickle.loads(pickle.dumps(r))[19] == 19.0
try:
    sys.exit(f"a view between hosts: {r.view()}")
except weft.errors.NotSupported as refused:
    assert "its owner is on another host" in str(refused) and "try: numpy.asarray(t)" in str(refused), refused
assert sys.argv[2] not in sys.argv[1] and sys.argv[2] not in repr(r)
print("done")
"""


def test_arrays_are_shared_between_hosts_by_ticket(wire: Wire) -> None:
    owner = wire.run("a", OWNER, wire.ip["a"], SECRET)
    try:
        assert owner.stdout is not None
        ticket = owner.stdout.readline().strip()
        user = wire.run("b", USER, ticket, SECRET, WEFT_SECRET=SECRET)
        said, _ = patience.communicate(user, CALL_S)
        assert said.strip() == "done", said
        rest, _ = patience.communicate(owner, CALL_S, "\n")
        assert rest.split() == ["5.5", "19.0"]
    finally:
        owner.kill()
        owner.wait()


CHANGING_OWNER = """
import sys, numpy as np, weft
node = weft.open(listen=f"tcp://{sys.argv[1]}:{sys.argv[3]}", secret=sys.argv[2])
shared = node.share(np.arange(4.0), name="across")
def after(change):
    print(shared.ticket, flush=True)
    sys.stdin.readline()
    change()
after(lambda: shared.replace(np.arange(6).reshape(2, 3)))
after(lambda: shared.replace(weft.zeros((2, 2), reserve=9)))
after(lambda: shared.resize(1))
after(lambda: None)
"""

FOLLOWER = """
import asyncio, sys, numpy as np, weft
node = weft.open(secret=sys.argv[2])
t = node.attach(sys.argv[1])
def told(kind, call):
    try:
        call()
    except kind as reason:
        return str(reason)
    sys.exit(f"no {kind.__name__}")
def successor():
    print("next", flush=True)
    return sys.stdin.readline().strip()
assert t[:].tolist() == [0, 1, 2, 3]
first = successor()
text = told(weft.errors.KeyRejected, lambda: t[0])
assert "has closed the share of 'across'" in text or "is another array now" in text, text
assert "t.reattach(ticket)" in told(weft.errors.Unreachable, t.reattach)
assert "t.reattach(ticket)" in text, text
assert t.reattach(first) is t
assert (t.shape, t.dtype, t.path) == ((2, 3), np.dtype("i8"), "tcp")
assert t[:].tolist() == [[0, 1, 2], [3, 4, 5]]
second = successor()
t.reattach(second)
t[1] = 5
assert t[:].tolist() == [[0, 0], [5, 5]]
third = successor()
told(weft.errors.KeyRejected, lambda: t[0])
t.reattach(third)
assert t.shape == (1, 2), t.shape
t.fetch_add((0, 1), 4)
assert t[0].tolist() == [0, 4]
assert asyncio.run(t.aread()).tolist() == [[0, 4]]
fourth = successor()
told(weft.errors.ConnectionReset, lambda: t[0])
t.reattach(fourth)
assert (t[:].tolist(), t.path) == ([0, 1, 2, 3], "tcp")
print("done", flush=True)
"""


def test_remote_array_goes_on_with_its_successor_across_hosts(wire: Wire) -> None:
    """reattach(ticket) over tcp: after replace(), after resize(), and with a new owner after the old owner's death."""
    owners = [wire.run("a", CHANGING_OWNER, wire.ip["a"], SECRET, "7654")]

    def ticket() -> str:
        assert owners[-1].stdout is not None
        return owners[-1].stdout.readline().strip()

    def change() -> str:
        assert owners[-1].stdin is not None
        owners[-1].stdin.write("\n")
        owners[-1].stdin.flush()
        return ticket()

    user = wire.run("b", FOLLOWER, ticket(), SECRET, WEFT_SECRET=SECRET)
    try:
        assert user.stdin is not None
        assert user.stdout is not None
        for turn in range(4):
            said = user.stdout.readline().strip()
            assert said == "next", said + user.stdout.read()
            if turn < 3:
                found = change()
            else:
                owners[-1].kill()
                owners[-1].wait()
                owners.append(wire.run("a", CHANGING_OWNER, wire.ip["a"], SECRET, "7654"))
                found = ticket()
            user.stdin.write(found + "\n")
            user.stdin.flush()
        said, _ = patience.communicate(user, CALL_S)
        assert said.strip() == "done", said
    finally:
        for process in [user, *owners]:
            process.kill()
            process.communicate()


def test_ticket_of_a_host_that_does_not_listen_gives_a_remedy(wire: Wire) -> None:
    code = (
        "import sys, numpy as np, weft; n = weft.open(); s = n.share(np.zeros(3)); print(s.ticket, flush=True); input()"
    )
    owner = wire.run("a", code)
    try:
        assert owner.stdout is not None
        ticket = owner.stdout.readline().strip()
        user = wire.run("b", "import sys, weft; weft.open().attach(sys.argv[1])", ticket)
        said, _ = patience.communicate(user, CALL_S)
        assert "Unreachable" in said
        assert "listen=" in said
    finally:
        owner.kill()
        owner.wait()
