"""attach_all by a store, in processes without MPI and torch: every rank has every rank's array; ranks that die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.interop import ranks
from tests.share.owner import stop

pytestmark = pytest.mark.procs


def test_attach_all_each_rank_reads_and_writes_the_others(tmp_path: Path) -> None:
    program = """
    mine = weft.zeros(8, "int64")
    mine[:] = rank
    with attach_all(mine) as peers:
        say([int(peers[other][0]) for other in range(size)])
        peers[(rank + 1) % size][1] = 100 + rank
        peers[0].add(2, 1)
        meet("written")
        say(int(mine[1]), int(peers[0][2]), len(peers), peers.rank, list(peers.mapped), len(set(peers.hosts)))
        peers.view((rank + 1) % size)[3] = 7           # the memory itself
        meet("stored")
        say(int(mine[3]))
    """
    for rank, said in enumerate(ranks.said(program, 3, tmp_path)):
        assert said == [[[0, 1, 2]], [100 + (rank - 1) % 3, 3, 3, rank, [True] * 3, 1], [7]]


def test_attach_all_arrays_differ_by_rank(tmp_path: Path) -> None:
    """Other shapes and dtypes, NumPy's own memory, and a rank that shares nothing."""
    program = """
    mine = [np.full((2, 3), 5.5), weft.zeros(4, "uint8"), None][rank]
    with attach_all(mine) as peers:
        say([list(t.shape) for t in peers], [str(t.dtype) for t in peers], float(peers[0][1, 2]), list(peers.mapped))
        say(list(peers.names(2)), list(peers.shared))
        refused(lambda: peers[2])
        refused(lambda: peers[0, "weights"])
    """
    for rank, said in enumerate(ranks.said(program, 3, tmp_path)):
        assert said[0] == [[[2, 3], [4]], ["float64", "uint8"], 5.5, [rank == 0, True, False]]
        assert said[1] == [[], [[""], [""], []][rank]]
        assert said[2][0] == said[3][0] == "NotFound"
        assert "rank 2 does not share one array" in said[2][1]
        assert "rank 0 does not share 'weights'" in said[3][1]


def test_attach_all_several_arrays_by_name(tmp_path: Path) -> None:
    program = """
    mine = {"weight": weft.full((2, 2), float(rank)), "bias": weft.full(2, 10 + rank)}
    with attach_all(mine, access="r") as peers:
        other = 1 - rank
        say(list(peers.names(other)), float(peers[other, "weight"][1, 1]), int(peers.view(other, "bias")[0]))
        refused(lambda: peers[other, "bias"].fill(1))
        refused(lambda: peers[other])
    """
    for rank, said in enumerate(ranks.said(program, 2, tmp_path)):
        assert said[0] == [["weight", "bias"], float(1 - rank), 11 - rank]
        assert (said[1][0], said[2][0]) == ("AccessDenied", "NotFound")


def test_attach_all_twice_and_with_a_node_of_the_caller(tmp_path: Path) -> None:
    """The node stays open; two meetings of one name are told apart by their order."""
    program = """
    with weft.open() as node:
        with attach_all(weft.full(2, rank), node=node) as first:
            with attach_all(weft.full(3, 10 + rank), node=node) as second:
                say([int(t[0]) for t in first], [int(t[0]) for t in second], first.node is node)
        say(node.closed, len(node.shared), first.closed)
        meet("closed")
        refused(lambda: first[1 - rank].read())
    """
    for said in ranks.said(program, 2, tmp_path):
        assert said[0] == [[0, 1], [10, 11], True]
        assert said[1] == [False, 0, True]
        assert said[2][0] in ("KeyRejected", "ConnectionReset")


def test_attach_all_of_one_rank(tmp_path: Path) -> None:
    program = """
    with attach_all(weft.full(2, 4)) as peers:
        say(int(peers[0][0]), len(peers))
    """
    assert ranks.said(program, 1, tmp_path) == [[[4, 1]]]


def test_attach_all_by_tcp_where_memory_is_not_shared(tmp_path: Path) -> None:
    """WEFT_SHM=0: processes of this host reach each other as processes of other hosts do."""
    program = """
    with attach_all(np.arange(1000) + rank, listen="tcp://127.0.0.1:0", secret="sixteen bytes and more") as peers:
        other = 1 - rank
        say(int(peers[other].read().sum()), peers[other].path, list(peers.mapped))
        peers[other].add(0, 1)
        meet("added")
        say(int(peers[rank][0]))
    """
    for rank, said in enumerate(ranks.said(program, 2, tmp_path, WEFT_SHM="0")):
        assert said[0][:2] == [499500 + 1000 * (1 - rank), "tcp"]
        assert said[1] == [rank + 1]


def test_close_waits_for_the_other_ranks(tmp_path: Path) -> None:
    """Rank 0 closes at once; rank 1 still reads rank 0's array after that."""
    program = """
    peers = attach_all(weft.full(4, rank))
    if rank == 0:
        store.set("closing", "1")
        peers.close(60)
        say(peers.closed)
        peers.close()
    else:
        store.wait(["closing"], 60.0)
        say(int(peers[0][3]))
        peers.close(60)
    """
    assert ranks.said(program, 2, tmp_path) == [[[True]], [[0]]]


def test_fork_the_child_uses_the_arrays_and_closes_nothing(tmp_path: Path) -> None:
    """The child leaves the with block as its parent does later."""
    program = """
    with attach_all(weft.full(4, rank)) as peers:
        pid = os.fork()
        if pid == 0:
            peers[1 - rank].add(3, 10)
            peers.close()
            os._exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        meet("added")
        say(status, int(peers[1 - rank][3]), int(peers[rank][3]))
    """
    assert ranks.said(program, 2, tmp_path) == [[[7, 11, 10]], [[7, 10, 11]]]


def test_close_of_the_node_comes_first(tmp_path: Path) -> None:
    """The caller's node is closed in the with block: the shares have ended, and nothing is waited for."""
    program = """
    node = weft.open()
    with attach_all(weft.full(4, rank), node=node) as peers:
        meet("attached")
        node.close()
    say(peers.closed)
    """
    assert ranks.said(program, 2, tmp_path) == [[[True]], [[True]]]


def test_close_does_not_wait_for_a_rank_that_died(tmp_path: Path) -> None:
    program = """
    peers = attach_all(weft.full(4, rank))
    meet("attached")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(lambda: [peers[1].read() for _ in iter(int, 1)])
    peers.close(1000)
    say("closed")
    """
    first, second = ranks.run(program, 2, tmp_path)
    assert (first.status, second.status) == (0, -signal.SIGKILL)
    assert first.said[0][0] == "ConnectionReset"
    assert first.said[1] == ["closed"]


# ---- ranks that die, or stop -----------------------------------------------------------------------------------------

DIES = """
import weft.interop.peers as peers_module
attach = peers_module._attach
def dies(*arguments):
    {before}
    return attach(*arguments)
if rank == 1:
    peers_module._attach = dies
refused(lambda: attach_all(weft.zeros(1), timeout={timeout}))
"""


def test_rank_that_dies_during_the_exchange_is_named(tmp_path: Path) -> None:
    """kill -9 after the rank has told its tickets, and before it has attached: no rank waits until the deadline."""
    program = DIES.format(before="os.kill(os.getpid(), signal.SIGKILL)", timeout=1000)
    ended = ranks.run(program, 3, tmp_path)
    assert [one.status for one in ended] == [0, -signal.SIGKILL, 0], [one.err for one in ended]
    for one in (ended[0], ended[2]):
        assert one.said[0][0] == "ConnectionReset"
        assert "rank 1" in one.said[0][1]


def test_rank_that_is_stopped_during_the_exchange_is_named(tmp_path: Path) -> None:
    """SIGSTOP: the rank's memory is there, and the rank does not go on. The rest have the error at their deadline."""
    program = DIES.format(before="os.kill(os.getpid(), signal.SIGSTOP)", timeout=3)
    processes = [ranks.start(program, rank, 3, tmp_path / "store") for rank in range(3)]
    try:
        first, third = ranks.finish([processes[0], processes[2]])
    finally:
        processes[1].kill()
    ranks.finish([processes[1]])
    for one in (first, third):
        assert one.said[0][0] == "TimedOut", one
        assert "rank" in one.said[0][1]
        assert "1" in one.said[0][1]


def test_leaving_by_an_error_does_not_wait(tmp_path: Path) -> None:
    """A rank that leaves its with block by an error ends its share at once; other ranks' accesses fail."""
    program = """
    try:
        with attach_all(weft.zeros(1)) as peers:
            meet("attached")
            if rank == 1:
                raise KeyError("mine")
            refused(lambda: [peers[1].read() for _ in iter(int, 1)])
    except KeyError as reason:
        say(str(reason))
    """
    first, second = ranks.said(program, 2, tmp_path)
    assert second == [["'mine'"]]
    assert first[0][0] in ("KeyRejected", "ConnectionReset")


def test_stopped_rank_does_not_hang_the_others_close(tmp_path: Path) -> None:
    program = """
    peers = attach_all(weft.full(4, rank))
    meet("attached")
    if rank == 1:
        store.set("pid", str(os.getpid()))
        time.sleep(1000)
    store.wait(["stopped"], 60.0)
    peers.close(0.2)
    say("closed")
    """
    folder = tmp_path / "store"
    processes = [ranks.start(program, rank, 2, folder) for rank in range(2)]
    from weft.interop.store import FileStore

    store = FileStore(folder)
    try:
        store.wait(["pid"], 60.0)
        stop(int(store.get("pid")))
        store.set("stopped", "1")
        (first,) = ranks.finish(processes[:1])
        assert first.said == [["closed"]], first
    finally:
        processes[1].kill()
        ranks.finish(processes[1:])
    assert os.path.isdir(folder)
