"""docs/howto/peers.md: which processes can use an array. Each line of its tables has a test here, or names another."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import shutil
import subprocess
import sys
import sysconfig
import threading
import uuid
from typing import Any

import pytest
from tests import patience
from tests.procs import peer_kinds
from tests.procs.children import ROOT

import weft

pytestmark = [
    pytest.mark.procs,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
METHODS = ["spawn", "fork", "forkserver"]
WATCHDOG_S = 100


@pytest.fixture
def values() -> Any:
    found = weft.empty(9)
    found[:] = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    return found


def argument(node: weft.Node, values: Any, kind: str) -> Any:
    """A worker's argument: a share, an array attached here, or the part of one."""
    shared = node.share(values)
    return {"share": shared, "remote": node.attach(shared), "part": node.attach(shared).at[:5]}[kind]


# ---- workers of multiprocessing and concurrent.futures ---------------------------------------------------------------
@pytest.mark.parametrize("kind", ["share", "remote", "part"])
@pytest.mark.parametrize("method", METHODS)
def test_process_uses_an_array_that_it_got_as_argument(values: Any, method: str, kind: str) -> None:
    context = multiprocessing.get_context(method)
    with weft.open() as node:
        answers = context.Queue()
        worker = context.Process(target=peer_kinds.into, args=(answers, argument(node, values, kind), 10.0))
        worker.start()
        try:
            pid, was = answers.get(timeout=WATCHDOG_S)
            worker.join(WATCHDOG_S)
        finally:
            worker.kill()
            worker.join()
        assert pid == worker.pid
    end = 5 if kind == "part" else 9
    assert was == end - 1
    assert values.tolist() == [1, *(10 * i for i in range(1, end)), *range(end, 9)]


@pytest.mark.parametrize("method", METHODS)
def test_pool_executor_hands_arrays_to_its_workers(values: Any, method: str) -> None:
    """Tasks pickle their arguments with every start method; a worker attaches an array once for all its tasks."""
    context = multiprocessing.get_context(method)
    with weft.open() as node:
        shared = node.share(values)
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            for _ in concurrent.futures.as_completed(
                [pool.submit(peer_kinds.scale, shared, 1.0) for _ in range(10)], timeout=WATCHDOG_S
            ):
                pass
    assert values.tolist() == [10, *range(1, 9)]


@pytest.mark.parametrize("method", METHODS)
def test_pool_of_multiprocessing_hands_parts_to_its_workers(values: Any, method: str) -> None:
    with weft.open() as node:
        whole = node.attach(node.share(values))
        with multiprocessing.get_context(method).Pool(2) as pool:
            parts = [whole.at[start : start + 3] for start in (0, 3, 6)]
            pool.starmap_async(peer_kinds.scale, [(part, 2.0) for part in parts]).get(WATCHDOG_S)
    assert values.tolist() == [1, 2, 4, 4, 8, 10, 7, 14, 16]


def test_worker_outlives_its_parents_share_with_an_error_that_says_so(values: Any) -> None:
    context = multiprocessing.get_context("spawn")
    with weft.open() as node:
        shared = node.share(values)
        ticket = pickled(shared)
    answers = context.Queue()
    worker = context.Process(target=peer_kinds.into, args=(answers, ticket, 1.0))
    worker.start()
    try:
        answer = answers.get(timeout=WATCHDOG_S)
        worker.join(WATCHDOG_S)
    finally:
        worker.kill()
        worker.join()
    assert "closed" in answer
    assert "attach again" in answer


def pickled(shared: weft.share.Shared) -> Any:
    """A share as its peers get it."""
    import pickle

    return pickle.loads(pickle.dumps(shared))


# ---- threads ---------------------------------------------------------------------------------------------------------
def test_threads_use_one_array_at_once(values: Any) -> None:
    rounds, threads = 200, 4
    with weft.open() as node:
        there = node.attach(node.share(values))
        failed: list[BaseException] = []

        def work(column: int) -> None:
            try:
                for turn in range(rounds):
                    there.fetch_add(0, 1.0)
                    there[column] = turn
                    assert there[column] == turn
            except BaseException as reason:
                failed.append(reason)

        running = [threading.Thread(target=work, args=(1 + i,), daemon=True) for i in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(WATCHDOG_S)
        assert not any(thread.is_alive() for thread in running)
    assert failed == []
    assert values[0] == rounds * threads


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")
def test_free_threaded_python_stays_so() -> None:
    """Importing the extension does not switch the GIL on."""
    program = "import sys, weft; weft.open(); print(sys._is_gil_enabled())"
    done = patience.run([sys.executable, "-W", "error", "-c", program], timeout=100)
    assert done.stdout == "False\n", done.stderr


# ---- subinterpreters -------------------------------------------------------------------------------------------------
@pytest.mark.skipif(sys.version_info < (3, 14), reason="concurrent.futures has no interpreters before Python 3.14")
def test_interpreter_pool_is_refused_with_what_to_do() -> None:
    with concurrent.futures.InterpreterPoolExecutor(1) as pool:  # type: ignore[attr-defined]
        failed = pool.submit(exec, "import weft").exception(timeout=WATCHDOG_S)
    assert "weft works in the main interpreter of a process alone" in str(failed)
    assert "try: threads or processes" in str(failed)


# ---- containers ------------------------------------------------------------------------------------------------------
OWN_PID = ["unshare", "--pid", "--fork", "--mount-proc"]
OTHER_HOST_NAME = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]


def through_the_wall(owner: list[str], peer: list[str]) -> tuple[list[Any], list[Any]]:
    """An owner and a peer, each behind walls of its own: what came of the name, of the ticket of an array of Weft, and
    of the ticket of another array; and the arrays as their owner then saw them."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here (package util-linux)")
    for walls in (owner, peer):
        if walls and patience.run([*walls, "true"], timeout=20).returncode:
            pytest.skip(f"the kernel permits no {' '.join(walls[:3])}")
    side = [sys.executable, "-m", "tests.procs.peer_kinds"]
    name = f"weft-test-{uuid.uuid4()}"  # these tests run side by side, and see each other's names
    with subprocess.Popen(
        [*owner, *side, "owner", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        try:
            tickets = json.loads(first.stdout.readline())
            done = patience.run([*peer, *side, "peer", name, *tickets], cwd=ROOT, timeout=WATCHDOG_S)
            first.stdin.close()
            seen = json.loads(first.stdout.readline())
        finally:
            first.stdin.close()
            first.wait(WATCHDOG_S)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), seen


@pytest.mark.parametrize(
    ("owner", "peer"),
    [
        ([], OWN_PID),
        (OWN_PID, []),
        (OWN_PID, OWN_PID),
        (["unshare", "--ipc", "--mount"], ["unshare", "--ipc", "--mount"]),
        ([], ["unshare", "--user", "--map-root-user"]),
    ],
    ids=["peer's pid", "owner's pid", "both pids", "ipc and mounts", "peer's user"],
)
def test_containers_of_one_network_share_memory(owner: list[str], peer: list[str]) -> None:
    """Names, tickets, writes and atomics work, and `path` is the path that the data takes; the process numbers need not
    mean the same on both sides."""
    found, seen = through_the_wall(owner, peer)
    assert [one[:2] for one in found] == [["ok", 0.0], ["ok", 1.0], ["ok", 0.0]]
    assert [one[2] for one in found[:2]] == ["load/store"] * 2
    assert found[2][2] in ("process_vm", "engine")  # as the kernel permits
    assert seen == [[2.0, 7.0, *[0.0] * 6], [1.0, 7.0, *[0.0] * 6]]


def test_containers_of_two_networks_are_two_hosts() -> None:
    """Names are not seen, and a ticket's error says what to do; over tcp: test_hosts.py."""
    (name, mapped, own), seen = through_the_wall([], ["unshare", "--net"])
    assert name[0] == "NotFound"
    for kind, text in (mapped, own):
        assert kind == "Unreachable"
        assert "try: weft.open(listen='tcp://0.0.0.0:0', secret=...)" in text
    assert seen == [[0.0] * 8] * 2


def test_containers_with_two_host_names_are_two_hosts() -> None:
    found, _ = through_the_wall([], OTHER_HOST_NAME)
    assert [kind for kind, _ in found] == ["Unreachable"] * 3
    assert "this is elsewhere" in found[0][1]


UNMAPPED = ["unshare", "--user"]
OTHER_NUMBER = ["unshare", "--user", "--map-user=54321"]


@pytest.mark.parametrize(
    ("owner", "peer", "text"),
    [
        ([], UNMAPPED, "the user of this process is not mapped in its user namespace"),
        (UNMAPPED, [], "the owner has no number (it is not mapped) in its user namespace"),
        ([], OTHER_NUMBER, "and this process is user 54321 here"),
        (OTHER_NUMBER, [], "the owner is user 54321 in its user namespace"),
    ],
    ids=["peer is nobody", "owner is nobody", "peer has another number", "owner has another number"],
)
def test_user_with_another_number_is_refused_with_both(owner: list[str], peer: list[str], text: str) -> None:
    """Not "the owner has closed its node": it has not."""
    found, seen = through_the_wall(owner, peer)
    assert [kind for kind, _ in found] == ["NotFound", "ConnectionReset", "ConnectionReset"]
    for _, told in found[1:]:
        assert "lives, but is another user" in told
        assert text in told
        assert "try: map the user to the same number on both sides" in told
    if peer == UNMAPPED:
        assert text in found[0][1]
    assert seen == [[0.0] * 8] * 2
