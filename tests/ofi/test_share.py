"""Arrays over a real libfabric: the same calls through the library's tcp and shm providers."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.ofi.support import library
from tests.share.owner import Owner

import weft
from weft import errors, fi
from weft.providers.ofi import library as ofi_library
from weft.share import ofi_node as real_module
from weft.share.names.ticket import Ticket

TIMEOUT_S = 20.0


both = pytest.mark.parametrize("fabric", ["ofi:tcp", "ofi:shm"], indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def _libfabric() -> Iterator[None]:
    """The library of the tests, for this process and the owners that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        if library():
            patch.setenv("WEFT_LIBFABRIC", library())
        else:
            patch.delenv("WEFT_LIBFABRIC", raising=False)
        try:
            ofi_library.load()
        except errors.NoDevice as reason:
            pytest.skip(str(reason))
        yield


@pytest.fixture(scope="module")
def fabric(request: pytest.FixtureRequest) -> str:
    """The provider."""
    return str(getattr(request, "param", "ofi:tcp"))


@pytest.fixture(scope="module")
def far(_libfabric: None, fabric: str) -> Iterator[Owner]:
    """A process with a node over the fabric, which shares a table and counts."""
    with Owner(f"real-{os.getpid()}-{fabric[4:]}-") as owner:
        owner.tell(f"node = weft.open(fabric={fabric!r}, timeout={TIMEOUT_S})")
        owner.tell("table = np.arange(12.0).reshape(3, 4)")
        owner.tell("counts = np.zeros(8, 'i8')")
        owner.tell("shares = [node.share(table, prefix + 'table'), node.share(counts, prefix + 'counts')]")
        yield owner


@pytest.fixture(scope="module")
def node(_libfabric: None, fabric: str) -> Iterator[weft.Node]:
    """A node of this process."""
    with weft.open(fabric=fabric, timeout=TIMEOUT_S) as opened:
        yield opened


@both
def test_array_is_read_and_written_by_numpy_selections(far: Owner, node: weft.Node, fabric: str) -> None:
    t = node.attach(far.prefix + "table")
    far.tell("table[...] = np.arange(12.0).reshape(3, 4)")
    assert t.path == fabric
    assert t[1, 2] == 6
    assert t[0].tolist() == [0, 1, 2, 3]
    assert t[:, 1].tolist() == [1, 5, 9]
    assert t.T[3].tolist() == [3, 7, 11]
    assert t.take([2, 0]).tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    t[2, 3] = 100
    t[:, 0] = -1
    t[1, 1:3] = [50, 60]
    assert far.tell("table.tolist()") == [[-1, 1, 2, 3], [-1, 50, 60, 7], [-1, 9, 10, 100]]
    assert t.sum() == t.read().sum()


@both
def test_elements_are_updated_atomically(far: Owner, node: weft.Node) -> None:
    far.tell("counts.fill(0)")
    t = node.attach(far.prefix + "counts")
    assert t.fetch_add(0, 5) == 0
    assert t.fetch_add(0, 1) == 5
    assert t.compare_swap(0, 6, 9) == 6
    assert t.compare_swap(0, 6, 7) == 9
    t.add(np.arange(8))
    t.add.at([7, 7], 10)
    assert far.tell("counts.tolist()") == [9, 1, 2, 3, 4, 5, 6, 27]


@both
def test_threads_add_without_losing_a_count(far: Owner, node: weft.Node) -> None:
    far.tell("counts.fill(0)")
    t = node.attach(far.prefix + "counts")

    def add() -> None:
        for _ in range(50):
            t.fetch_add(3)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert t[3] == 200


@both
def test_share_of_this_process_is_reached_through_the_fabric(node: weft.Node) -> None:
    mine = np.zeros(5)
    with node.share(mine) as shared:
        shared[2] = 3
        assert mine[2] == 3
        assert shared.ticket.fabric == node._real.name  # type: ignore[union-attr]


def test_awaitable_calls_work(far: Owner, node: weft.Node) -> None:
    t = node.attach(far.prefix + "table")

    async def both_ways() -> float:
        await t.at[0].awrite(np.full(4, 7.0))
        found = await asyncio.gather(*(t.at[0].aread() for _ in range(5)))
        return float(np.sum(found))

    assert asyncio.run(both_ways()) == 5 * 4 * 7


def test_pickled_array_attaches_through_a_node_of_its_fabric(far: Owner, node: weft.Node) -> None:
    far.tell("counts.fill(11)")
    t: weft.RemoteArray = pickle.loads(pickle.dumps(node.attach(far.prefix + "counts")))
    assert t[4] == 11
    assert t._node is not None
    assert t._node is not node
    assert t._node._real is not None


def test_notification_wakes_a_waiter_with_the_data(far: Owner, node: weft.Node) -> None:
    far.tell("counts.fill(0)")
    t = node.attach(far.prefix + "counts")
    seen: list[tuple[int, int]] = []
    waiter = threading.Thread(target=lambda: seen.append((int(t.wait(7, timeout=TIMEOUT_S)), int(t[1]))))
    waiter.start()
    t.notify(7, at=1, data=5)
    waiter.join(TIMEOUT_S)
    assert seen == [(1, 5)]
    assert t.wait_until(1, 5, timeout=TIMEOUT_S) == 5


def test_ticket_is_text(far: Owner, node: weft.Node) -> None:
    text = far.tell("str(shares[0].ticket)")
    assert Ticket.parse(text).fabric == "ofi:tcp"
    assert node.attach(text).shape == (3, 4)


@pytest.mark.parametrize("local", [False, True], ids=["local memory", "registered local memory"])
def test_large_array_moves_in_pieces(far: Owner, fabric: str, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    """Under MR_LOCAL each local buffer is registered, and none stays so."""
    made = real_module.RealFabric.__init__

    def init(self: real_module.RealFabric, *arguments: object) -> None:
        made(self, *arguments)
        self.local = local
        self.info.ep_attr.max_msg_size = 4096

    monkeypatch.setattr(real_module.RealFabric, "__init__", init)
    far.tell("many = np.arange(5000.0)")
    far.tell("held = node.share(many, prefix + 'many')")
    with weft.open(fabric=fabric, timeout=TIMEOUT_S) as node:
        t = node.attach(far.prefix + "many")
        assert (t.read() == np.arange(5000.0)).all()
        t[...] = np.arange(5000.0)[::-1]
        t[::3] = 1  # many short pieces
        assert t.fetch_add(0, 1.0) == 1
        regions = node._domain.regions()
        assert regions == []
    assert far.tell("float(many[1])") == 4998
    far.tell("held.close()")


def test_view_is_refused_and_says_what_to_do(far: Owner, node: weft.Node) -> None:
    t = node.attach(far.prefix + "table")
    with pytest.raises(weft.FabricError, match=r"through this provider.*\n.*\n.*t\.read") as refused:
        t.view()
    assert refused.type is errors.NotSupported


@pytest.mark.parametrize(
    "call",
    [
        lambda node: weft.Group("g", 2, node=node),
        lambda node: weft.Lock(node=node),
        lambda node: node.share(np.zeros(3), "kept", keep=True),
        lambda node: node.ucp_address,
        lambda node: node.share(np.zeros(3)).fi_key,
        lambda node: node.share(np.zeros(3)).ucp_rkey,
    ],
    ids=["Group", "Lock", "keep", "ucp_address", "fi_key", "ucp_rkey"],
)
def test_what_only_wefts_nic_does_is_refused(node: weft.Node, call: Callable[[weft.Node], object]) -> None:
    with pytest.raises(errors.NotSupported, match=r"not over ofi:tcp.*\n.*weft\.open\(\)"):
        call(node)


def test_node_of_another_fabric_is_told_which_to_open(far: Owner, node: weft.Node) -> None:
    with weft.open() as own:
        with pytest.raises(errors.InvalidArgument, match=r"over ofi:tcp.*over Weft\n.*fabric='ofi:tcp'"):
            own.attach(far.prefix + "table")
        with own.share(weft.zeros(3)) as shared, pytest.raises(errors.InvalidArgument, match="over Weft, and"):
            node.attach(shared.ticket)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"fabric": "tcp"}, errors.InvalidArgument),
        ({"fabric": "ofi:"}, errors.InvalidArgument),
        ({"fabric": 7}, errors.InvalidArgument),
        ({"fabric": "ofi:nothing"}, errors.FabricError),
        ({"fabric": "ofi:tcp", "secret": b"0123456789abcdef"}, errors.InvalidArgument),
        ({"fabric": "ofi:tcp", "listen": "nowhere"}, errors.InvalidArgument),
    ],
)
def test_open_refuses(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        weft.open(**arguments)  # type: ignore[arg-type]


def test_listen_selects_the_address() -> None:
    with weft.open(fabric="ofi:tcp", listen="tcp://127.0.0.1:0") as node, node.share(np.arange(3)) as shared:
        assert node._real is not None
        assert node._real.peer(node.address)[4:8] == bytes([127, 0, 0, 1])
        assert shared[1] == 1


@pytest.mark.parametrize("address", ["ofi:tcp/b!", "ofi:tcp/", "ofi:tcp/bAgA", "ofi:tcp/sAgA", "ofi:tcp/b" + "A" * 400])
def test_malformed_address_is_refused(node: weft.Node, address: str) -> None:
    ticket = Ticket("x", address, 1, 0, (3,), "'<f8'", "rw", False, 1, 1, "host")
    with pytest.raises(errors.InvalidArgument, match="is no address of ofi:tcp"):
        node.attach(ticket)


@both
def test_owner_that_is_killed_ends_calls_with_an_error(fabric: str) -> None:
    with Owner(f"real-killed-{os.getpid()}-{fabric[4:]}-") as owner:
        owner.tell(f"node = weft.open(fabric={fabric!r})")
        owner.tell("s = node.share(np.arange(5.0), prefix + 'a')")
        # Over shm nobody tells of the end: the error comes with the timeout.
        with weft.open(fabric=fabric, timeout=TIMEOUT_S if fabric == "ofi:tcp" else 3) as node:
            t = node.attach(owner.prefix + "a")
            assert t[4] == 4
            owner.kill()
            with pytest.raises(errors.ConnectionReset, match=rf"process {owner.pid}, is gone\n.*\n.*attach again"):
                t[0] = 1


def test_owner_that_is_stopped_is_reported_in_time(fabric: str) -> None:
    with Owner(f"real-stopped-{os.getpid()}-") as owner:
        owner.tell(f"node = weft.open(fabric={fabric!r})")
        owner.tell("s = node.share(np.arange(5.0), prefix + 'a')")
        with weft.open(fabric=fabric, timeout=1) as node:
            t = node.attach(owner.prefix + "a")
            owner.stop()
            try:
                with pytest.raises(errors.TimedOut, match="is stopped"):
                    t[0]
            finally:
                owner.go_on()
            node.timeout = TIMEOUT_S
            assert t[4] == 4  # on a new lane


def test_closed_share_is_not_reached_and_the_next_has_another_key(far: Owner, node: weft.Node) -> None:
    far.tell("one = node.share(np.ones(3), prefix + 'one')")
    t = node.attach(far.prefix + "one")
    assert t[0] == 1
    far.tell("one.close()")
    far.tell("two = node.share(np.full(3, 2.0), prefix + 'two')")
    with weft.open(fabric="ofi:tcp", timeout=TIMEOUT_S) as other:
        late = other.attach(far.prefix + "two")
        assert late[0] == 2
    assert late.ticket.key != t.ticket.key
    with pytest.raises(weft.FabricError):
        t[0]


def test_node_closes_while_a_thread_waits(fabric: str) -> None:
    with Owner(f"real-closing-{os.getpid()}-") as owner:
        owner.tell(f"node = weft.open(fabric={fabric!r})")
        owner.tell("s = node.share(np.arange(5.0), prefix + 'a')")
        node = weft.open(fabric=fabric, timeout=20)
        t = node.attach(owner.prefix + "a")
        owner.stop()
        failed: list[BaseException] = []

        def wait() -> None:
            try:
                t[0]
            except BaseException as reason:
                failed.append(reason)

        thread = threading.Thread(target=wait)
        try:
            thread.start()
            while not node._lanes:
                pass
            node.close()
            thread.join(30)
        finally:
            owner.go_on()
        assert not thread.is_alive()
        assert isinstance(failed[0], errors.FabricError)


def test_forgotten_node_is_collected_without_an_error(fabric: str) -> None:
    """A garbage collection comes to the node's objects in any order."""
    node = weft.open(fabric=fabric)
    node.share(np.zeros(3))
    node.cycle = node  # type: ignore[attr-defined]
    del node
    with pytest.warns(ResourceWarning, match="ends"):
        gc.collect()


@both
def test_forgotten_objects_of_the_library_are_closed_in_their_order(fabric: str) -> None:
    offered = fi.getinfo(
        hints=fi.Info(
            ep_attr=fi.EpAttr(type=fi.EP_RDM),
            domain_attr=fi.DomainAttr(mr_mode=fi.MR_VIRT_ADDR),
            fabric_attr=fi.FabricAttr(prov_name=fabric),
        )
    )[0]
    opened = fi.Fabric(offered.fabric_attr)
    domain = opened.domain(offered)
    cq, av, ep = domain.cq_open(), domain.av_open(), domain.endpoint(offered)
    ep.bind(cq, fi.TRANSMIT | fi.RECV)
    ep.bind(av)
    ep.enable()
    mr = domain.mr_reg(bytearray(64), fi.REMOTE_READ, requested_key=77)
    everything = [opened, domain, cq, av, ep, mr]
    everything.append(everything)
    for one in everything[:6]:
        one.context = everything
    del opened, domain, cq, av, ep, mr, everything, one
    with pytest.warns(ResourceWarning, match="never closed"):
        gc.collect()
