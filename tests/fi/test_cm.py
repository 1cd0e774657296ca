"""Connected endpoints (FI_EP_MSG): passive endpoints, requests, answers, the end; and transfers to the one peer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import ALL_CAPS, PROVIDER, RW, WATCHDOG_S, addresses

from weft import fi
from weft._nic import CmKind

KEY = 8


class Side:
    """Fabric, event queue, domain and completion queue of one side; endpoints are opened by the tests."""

    def __init__(self, caps: int = ALL_CAPS) -> None:
        self.info = PROVIDER.offer(caps, self.asked)
        self.fabric = fi.Fabric(self.info.fabric_attr)
        self.eq = self.fabric.eq_open()
        self.domain = self.fabric.domain(self.info)
        if PROVIDER.adapt is not None:
            PROVIDER.adapt(self.domain)
        if PROVIDER.events is not None:
            PROVIDER.events(self.eq)
        self.cq = self.domain.cq_open(format=fi.CQ_FORMAT_DATA)
        self.opened: list[Any] = []

    @staticmethod
    def asked(caps: int) -> fi.Info:
        name = "weft" if PROVIDER.weft else PROVIDER.name
        return fi.Info(caps=caps, ep_attr=fi.EpAttr(type=fi.EP_MSG), fabric_attr=fi.FabricAttr(prov_name=name))

    def endpoint(self, info: fi.Info | None = None) -> fi.Endpoint:
        if info is not None and not PROVIDER.weft:  # the level of completion that the tests rely on
            info.tx_attr.op_flags |= self.info.tx_attr.op_flags
        ep = self.domain.endpoint(info)
        if PROVIDER.application is not None and PROVIDER.choose is not None:
            PROVIDER.application(self.domain, ep)
        ep.bind(self.eq)
        ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.opened.append(ep)
        return ep

    def listener(self) -> fi.PassiveEndpoint:
        pep = self.fabric.passive_ep(self.info)
        pep.bind(self.eq)
        pep.listen()
        self.opened.append(pep)
        return pep

    def region(self, memory: Any) -> fi.MemoryRegion:
        mr = self.domain.mr_reg(memory, RW, requested_key=KEY)
        self.opened.append(mr)
        return mr

    def event(self, wanted: int) -> Any:
        event, entry = self.eq.sread(WATCHDOG_S)
        assert event == wanted, (event, entry)
        return entry

    def failure(self) -> fi.EqErrEntry:
        with pytest.raises(fi.Available):
            self.eq.sread(WATCHDOG_S)
        return self.eq.readerr()

    def outcome(self) -> int:
        """The result of the last transfer: 0 or an FI_ code."""
        try:
            self.cq.sread(1, timeout=WATCHDOG_S)
        except fi.Available:
            return int(self.cq.readerr().err)
        return 0

    def close(self) -> None:
        for obj in (*reversed(self.opened), self.cq, self.domain, self.eq, self.fabric):
            obj.close()


def holds(memory: Any, expected: list[int]) -> bool:
    """True if the bytes are there: when the write completes, or after progress where that is the program's part."""
    if PROVIDER.settle is not None:
        PROVIDER.settle(lambda: memory.tolist() == expected)
    return bool(memory.tolist() == expected)


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    active, passive = Side(), Side()
    yield active, passive
    active.close()
    passive.close()


def connect(active: Side, passive: Side, pep: fi.PassiveEndpoint) -> tuple[fi.Endpoint, fi.Endpoint]:
    """(active's endpoint, passive's), connected."""
    ep = active.endpoint()
    ep.connect(pep.getname())
    there = passive.endpoint(passive.event(fi.CONNREQ).info)
    there.accept()
    assert passive.event(fi.CONNECTED).fid is there
    assert active.event(fi.CONNECTED).fid is ep
    return ep, there


# ---- making and ending connections -----------------------------------------------------------------------------------


def test_connection_carries_private_data_both_ways(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep, ep = passive.listener(), active.endpoint()
    ep.connect(pep.getname(), b"hello" + bytes(251))
    request = passive.event(fi.CONNREQ)
    assert request.fid is pep
    assert request.data == b"hello" + bytes(251)
    assert request.info.dest_addr == ep.getname()
    assert not PROVIDER.weft or "from" in repr(request.info.handle)
    there = passive.endpoint(request.info)
    there.accept(b"welcome")
    assert passive.event(fi.CONNECTED).fid is there
    answer = active.event(fi.CONNECTED)
    assert (answer.fid, answer.data) == (ep, b"welcome")
    assert (ep.getpeer(), there.getpeer()) == (there.getname(), ep.getname())
    assert not PROVIDER.weft or "connected" in repr(ep)


def test_rejected_endpoint_gets_the_private_data(sides: tuple[Side, Side]) -> None:
    reject(*sides)


def reject(active: Side, passive: Side) -> tuple[fi.PassiveEndpoint, fi.Endpoint]:
    """(the listener, the endpoint that it has turned down)."""
    pep, ep = passive.listener(), active.endpoint()
    ep.connect(pep.getname())
    handle = passive.event(fi.CONNREQ).info.handle
    pep.reject(handle, b"not today")
    failed = active.failure()
    assert (failed.fid, failed.err, failed.err_data) == (ep, fi.ECONNREFUSED, b"not today")
    with pytest.raises(fi.InvalidArgument, match="answered already"):
        pep.reject(handle)
    return pep, ep


def test_rejected_endpoint_may_retry(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep, ep = reject(active, passive)
    ep.connect(pep.getname())
    there = passive.endpoint(passive.event(fi.CONNREQ).info)
    there.accept()
    assert active.event(fi.CONNECTED).fid is ep


def test_connect_to_a_closed_passive_endpoint_is_refused(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep = passive.listener()
    name = pep.getname()
    ep = active.endpoint()
    pep.close()
    ep.connect(name)
    assert active.failure().err == fi.ECONNREFUSED
    # An endpoint that does not listen, connected or not, takes no requests either.
    other = passive.endpoint()
    other.enable()
    active.endpoint().connect(other.getname())
    assert active.failure().err == fi.ECONNREFUSED


def test_passive_endpoint_that_closes_rejects_the_requests_that_wait(sides: tuple[Side, Side]) -> None:
    if not PROVIDER.weft:
        pytest.skip("other providers choose the error")
    active, passive = sides
    pep = passive.listener()
    first, second = active.endpoint(), active.endpoint()
    first.connect(pep.getname())
    while passive.eq.read(fi.PEEK) is None:  # the first request is an event
        pass
    second.connect(pep.getname())
    pep.close()
    failed = [active.failure() for _ in range(2)]
    assert {one.fid for one in failed} == {first, second}
    assert {one.err for one in failed} == {fi.ECONNREFUSED}
    assert passive.eq.read() is None


def test_connection_to_nowhere_is_an_error(sides: tuple[Side, Side]) -> None:
    active, _ = sides
    ep = active.endpoint()
    ep.connect("weft://0/1/12345" if PROVIDER.weft else addresses(1)[0])
    failed = active.failure()
    assert (failed.fid, failed.err) == (ep, fi.ECONNREFUSED)
    assert not PROVIDER.weft or "12345" in active.eq.strerror(failed.prov_errno, failed.err_data)


def test_shutdown_is_an_event_and_ends_transfers_both_ways(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    ep, there = connect(active, passive, passive.listener())
    for side in sides:
        side.region(np.zeros(8, np.uint8))
    ep.shutdown()
    assert passive.event(fi.SHUTDOWN).fid is there
    for one in (ep, there):
        with pytest.raises(fi.FabricError) as caught:
            one.write(b"x", addr=0, key=KEY)
        assert caught.value.errno == fi.ENOTCONN
        with pytest.raises(fi.FabricError) as caught:
            one.getpeer()
        assert caught.value.errno == fi.ENOTCONN


def test_shutdown_with_flags_is_refused_and_ends_nothing(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    ep, _ = connect(active, passive, passive.listener())
    memory = np.zeros(8, np.uint8)
    passive.region(memory)
    with pytest.raises(fi.BadFlags, match="flags 0x1"):
        ep.shutdown(flags=1)
    ep.write(b"\x22" * 8, addr=0, key=KEY)
    assert active.outcome() == 0
    assert holds(memory, [0x22] * 8)


def send(sender: fi.Endpoint, to: fi.Endpoint, kind: CmKind, number: int, data: bytes = b"") -> None:
    """A connection message, sent by a program that violates the order of the calls."""
    nic, pid, vni = to.domain.provider.addresses.parse(to.getname())
    assert pid is not None
    sender.send_cm((nic, pid, vni), kind, number, data)


def test_shutdown_from_a_stranger_ends_no_connection(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep = passive.listener()
    ep, there = connect(active, passive, pep)
    stranger = active.endpoint()
    stranger.enable()
    send(stranger, there, CmKind.shutdown, ep.cm_look()[2])
    stranger.connect(pep.getname(), b"after it")  # messages arrive in order
    assert passive.event(fi.CONNREQ).data == b"after it"
    assert there.getpeer() == ep.getname()


def test_late_reject_of_an_earlier_request_does_not_end_the_new_one(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep, ep = passive.listener(), active.endpoint()
    ep.connect(pep.getname())
    first = passive.event(fi.CONNREQ).info.handle
    pep.reject(first)
    assert active.failure().err == fi.ECONNREFUSED
    ep.connect(pep.getname())
    request = passive.event(fi.CONNREQ).info
    stranger = passive.endpoint()
    stranger.enable()
    send(stranger, ep, CmKind.reject, first.connection, b"late")
    stranger.connect(active.listener().getname(), b"after it")  # messages arrive in order
    assert active.event(fi.CONNREQ).data == b"after it"
    there = passive.endpoint(request)
    there.accept(b"welcome")
    assert active.event(fi.CONNECTED).data == b"welcome"
    assert ep.getpeer() == there.getname()


def test_accept_with_a_stale_number_connects_nothing(sides: tuple[Side, Side]) -> None:
    """An answer to an earlier request of the endpoint comes late."""
    active, passive = sides
    pep, ep = passive.listener(), active.endpoint()
    ep.connect(pep.getname())
    first = passive.event(fi.CONNREQ).info.handle
    pep.reject(first)
    assert active.failure().err == fi.ECONNREFUSED
    ep.connect(pep.getname())
    request = passive.event(fi.CONNREQ).info
    stranger = passive.endpoint()
    stranger.enable()
    send(stranger, ep, CmKind.accept, first.connection, b"late")
    there = passive.endpoint(request)
    there.accept(b"welcome")
    assert active.event(fi.CONNECTED).data == b"welcome"
    assert ep.getpeer() == there.getname()


def test_closing_an_endpoint_shuts_its_connection_down(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    ep, there = connect(active, passive, passive.listener())
    ep.close()
    assert passive.event(fi.SHUTDOWN).fid is there


def test_one_listener_takes_many_connections(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep = passive.listener()
    pairs = [connect(active, passive, pep) for _ in range(20)]
    memory = np.zeros(20, np.uint8)
    passive.region(memory)
    for i, (ep, _) in enumerate(pairs):
        ep.write(bytes([i]), addr=i, key=KEY)
        assert active.outcome() == 0
    assert holds(memory, list(range(20)))


def test_requests_wait_until_they_are_read(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep = passive.listener()
    eps = [active.endpoint() for _ in range(5)]
    for i, ep in enumerate(eps):
        ep.connect(pep.getname(), bytes([i]))
    found = [passive.event(fi.CONNREQ) for _ in eps]
    assert [entry.data for entry in found] == [bytes([i]) for i in range(5)]
    for entry in reversed(found):
        passive.endpoint(entry.info).accept(entry.data)
    answered = {}
    for _ in eps:
        entry = active.event(fi.CONNECTED)
        answered[entry.fid] = entry.data
    assert [answered[ep] for ep in eps] == [bytes([i]) for i in range(5)]


def test_waiting_thread_is_woken_by_a_request(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(passive.eq.sread(WATCHDOG_S)))
    thread.start()  # before anything of connections is bound to the queue
    pep = passive.listener()
    active.endpoint().connect(pep.getname())
    thread.join(WATCHDOG_S)
    assert found
    assert found[0][0] == fi.CONNREQ


# ---- transfers -------------------------------------------------------------------------------------------------------


Call = Callable[[fi.Endpoint, Any], None]


@pytest.mark.clause(
    "rma.arg.dest-addr-connected", "rma.arg.src-addr-connected", "rma.writemsg.endpoints", "rma.readmsg.endpoints"
)
@pytest.mark.parametrize("addr", [0, 77, fi.ADDR_UNSPEC])
def test_connected_endpoint_disregards_the_address_of_the_call(sides: tuple[Side, Side], addr: int) -> None:
    active, passive = sides
    ep, _ = connect(active, passive, passive.listener())
    memory = np.zeros(64, np.uint8)
    passive.region(memory)
    data, back = bytes(range(1, 65)), np.zeros(64, np.uint8)
    where: dict[str, Any] = {"addr": 0, "key": KEY}
    message = [fi.RmaIov(0, 64, KEY)]
    writes: list[Callable[[], None]] = [
        lambda: ep.write(data, dest_addr=addr, **where),
        lambda: ep.writev([data], dest_addr=addr, **where),
        lambda: ep.writemsg(fi.MsgRma([data], rma_iov=message, addr=addr)),
        lambda: ep.writedata(data, data=5, dest_addr=addr, **where),
    ]
    for write in writes:
        memory[:] = 0
        write()
        assert active.outcome() == 0
        assert holds(memory, list(data))
    reads: list[Callable[[], None]] = [
        lambda: ep.read(back, src_addr=addr, **where),
        lambda: ep.readv([back], src_addr=addr, **where),
        lambda: ep.readmsg(fi.MsgRma([back], rma_iov=message, addr=addr)),
    ]
    for read in reads:
        back[:] = 0
        read()
        assert active.outcome() == 0
        assert back.tobytes() == data


@pytest.mark.parametrize("addr", [0, 77, fi.ADDR_UNSPEC])
def test_connected_endpoint_disregards_the_address_of_a_batch_and_of_atomics(
    sides: tuple[Side, Side], addr: int
) -> None:
    active, passive = sides
    ep, _ = connect(active, passive, passive.listener())
    memory = np.zeros(64, np.uint8)
    passive.region(memory)
    descs = np.zeros(1, fi.RMA_DESC)
    descs[0] = (0, 64, addr, 0, KEY, 0, 0)
    ep.write_batch(np.full(64, 9, np.uint8), descs)
    assert active.outcome() == 0
    assert holds(memory, [9] * 64)
    one, before = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    ep.fetch_atomic(one, None, before, None, addr, 0, KEY, datatype=fi.UINT64, op=fi.SUM)
    assert active.outcome() == 0
    assert before.tobytes() == b"\x09" * 8


def test_immediate_data_arrives_at_the_peer(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    ep, _ = connect(active, passive, passive.listener())
    passive.region(np.zeros(8, np.uint8))
    ep.inject_writedata(b"x", 1234, 0, 0, KEY)
    (entry,) = passive.cq.sread(1, timeout=WATCHDOG_S)
    assert (entry.data, entry.flags & fi.REMOTE_CQ_DATA) == (1234, fi.REMOTE_CQ_DATA)


def test_before_it_is_connected_an_endpoint_transfers_nothing(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep, ep = passive.listener(), active.endpoint()
    ep.connect(pep.getname())
    with pytest.raises(fi.FabricError) as caught:
        ep.write(b"x", addr=0, key=KEY)
    assert caught.value.errno == fi.ENOTCONN
    assert "CONNECTED" in str(caught.value)


@pytest.mark.general("addresses as strings")
def test_connected_endpoint_admits_only_its_peer_to_memory(sides: tuple[Side, Side]) -> None:
    """A third endpoint that knows its address and the key is refused."""
    from tests.fi.support import opened

    active, passive = sides
    ep, there = connect(active, passive, passive.listener())
    memory = np.zeros(8, np.uint8)
    passive.region(memory)
    with opened() as stranger:
        for name in (there.getname(), ep.getname()):
            stranger.ep.write(b"\x11" * 8, dest_addr=stranger.av.insert(name), addr=0, key=KEY)
            assert stranger.wait_error().err in (fi.EACCES, fi.EKEYREJECTED)
    assert not memory.any()
    ep.write(b"\x22" * 8, addr=0, key=KEY)
    assert active.outcome() == 0
    assert holds(memory, [0x22] * 8)


def test_accepted_peer_may_write_before_connected_is_read(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep, ep = passive.listener(), active.endpoint()
    memory = np.zeros(8, np.uint8)
    active.region(memory)
    ep.connect(pep.getname())
    there = passive.endpoint(passive.event(fi.CONNREQ).info)
    there.accept()
    passive.event(fi.CONNECTED)
    there.write(b"\x33" * 8, addr=0, key=KEY)
    assert passive.outcome() == 0
    assert holds(memory, [0x33] * 8)
    assert active.event(fi.CONNECTED).fid is ep


# ---- wrong steps -----------------------------------------------------------------------------------------------------


def test_wrong_steps_have_their_errors(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    rdm = fi.getinfo(hints=fi.Info(caps=ALL_CAPS, ep_attr=fi.EpAttr(type=fi.EP_RDM)))[0]
    with pytest.raises(fi.InvalidArgument, match="EP_MSG"):
        passive.fabric.passive_ep(rdm)
    pep = passive.fabric.passive_ep(passive.info)
    passive.opened.append(pep)
    with pytest.raises(fi.NoEq):
        pep.listen()
    with pytest.raises(fi.BadState):
        pep.getname()
    pep.bind(passive.eq)
    with pytest.raises(fi.InvalidArgument, match="already"):
        pep.bind(passive.eq)
    pep.listen()
    pep.listen()
    unbound = active.domain.endpoint()
    active.opened.append(unbound)
    with pytest.raises(fi.NoEq):
        unbound.connect(pep.getname())
    ep = active.endpoint()
    with pytest.raises(fi.InvalidArgument, match="no address vector"):
        ep.bind(active.domain.av_open())
    with pytest.raises(fi.InvalidArgument, match="no address was given"):
        ep.connect()
    with pytest.raises(fi.InvalidArgument, match="256"):
        ep.connect(pep.getname(), bytes(257))
    with pytest.raises(fi.InvalidArgument, match="is not an unanswered connection request"):
        ep.accept()
    with pytest.raises(fi.FabricError) as caught:
        ep.shutdown()
    assert caught.value.errno == fi.ENOTCONN
    ep.connect(pep.getname())
    with pytest.raises(fi.FabricError) as caught:
        ep.connect(pep.getname())
    assert caught.value.errno == fi.EALREADY
    request = passive.event(fi.CONNREQ)
    there = passive.endpoint(request.info)
    there.accept()
    active.event(fi.CONNECTED)
    with pytest.raises(fi.FabricError) as caught:
        ep.connect(pep.getname())
    assert caught.value.errno == fi.EISCONN
    with pytest.raises(fi.InvalidArgument, match="answered"):
        passive.endpoint(request.info).accept()
    assert ep.getopt(fi.OPT_ENDPOINT, fi.OPT_CM_DATA_SIZE) == 256


def test_connectionless_endpoint_does_not_connect() -> None:
    from tests.fi.support import opened

    with opened() as node:
        for call in (lambda: node.ep.connect(node.name), node.ep.accept, node.ep.shutdown, node.ep.getpeer):
            with pytest.raises(fi.NotSupported, match="EP_MSG"):
                call()


def test_listen_without_an_event_queue_is_enoeq(sides: tuple[Side, Side]) -> None:
    _, passive = sides
    pep = passive.fabric.passive_ep(passive.info)
    passive.opened.append(pep)
    with pytest.raises(fi.NoEq):
        pep.listen()
    pep.bind(passive.eq)
    pep.listen()
    assert pep.getname()


def test_connect_needs_an_event_queue_and_an_address(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep = passive.listener()
    unbound = active.domain.endpoint()
    active.opened.append(unbound)
    with pytest.raises(fi.NoEq):
        unbound.connect(pep.getname())
    with pytest.raises(fi.InvalidArgument):
        active.endpoint().connect()


def test_accept_answers_a_request_once(sides: tuple[Side, Side]) -> None:
    active, passive = sides
    pep, ep = passive.listener(), active.endpoint()
    with pytest.raises(fi.InvalidArgument):
        ep.accept()
    ep.connect(pep.getname())
    request = passive.event(fi.CONNREQ)
    there = passive.endpoint(request.info)
    there.accept()
    assert passive.event(fi.CONNECTED).fid is there
    assert active.event(fi.CONNECTED).fid is ep
    with pytest.raises(fi.InvalidArgument):
        passive.endpoint(request.info).accept()


def test_unreferenced_endpoints_are_collected() -> None:
    """More endpoints than the limit of domains: no endpoint may stay alive because of its connection."""
    for _ in range(300):
        side = Side()
        pep, ep = side.listener(), side.endpoint()
        ep.connect(pep.getname())
        side.close()
        del side, pep, ep


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("length", [8, 3000, 100_000])
def test_messages_pass_both_ways_over_a_connection(length: int, tagged: bool) -> None:
    """A connected endpoint ignores the address of a send and of a receive."""
    kind = fi.TAGGED if tagged else fi.MSG
    active, passive = (Side(int(ALL_CAPS | kind | fi.SEND | fi.RECV)) for _ in range(2))
    try:
        ends = connect(active, passive, passive.listener())
        for (sender, side), (receiver, other) in zip(
            zip(ends, (active, passive), strict=True), zip(ends[::-1], (passive, active), strict=True), strict=True
        ):
            data, room = bytes(range(250)) * (length // 250 + 1), bytearray(length)
            receiver.trecv(room, tag=3) if tagged else receiver.recv(room)
            sender.tsend(data[:length], tag=3) if tagged else sender.send(data[:length])
            assert side.outcome() == other.outcome() == 0
            assert room == data[:length]
    finally:
        active.close()
        passive.close()


@pytest.mark.general("addresses as strings")
@pytest.mark.parametrize("length", [0, 8, 3000, 100_000])
@pytest.mark.parametrize("tagged", [False, True])
def test_message_of_a_stranger_is_refused_by_a_connected_endpoint(tagged: bool, length: int) -> None:
    """Only its peer reaches a connected endpoint: a third one's messages fail and take no receive, whatever waits."""
    from tests.fi.support import opened

    caps = int(ALL_CAPS | fi.MSG | fi.TAGGED | fi.SEND | fi.RECV)
    active, passive = Side(caps), Side(caps)
    try:
        ep, there = connect(active, passive, passive.listener())
        room = bytearray(length)
        there.trecv(room, tag=0, ignore=(1 << 64) - 1) if tagged else there.recv(room)
        with opened(caps) as stranger:
            for name in (there.getname(), ep.getname()):
                peer = stranger.av.insert(name)
                for _ in range(3):
                    data = b"\x11" * length
                    stranger.ep.tsend(data, None, peer, 3) if tagged else stranger.ep.send(data, None, peer)
                    entry = stranger.wait_error()
                    assert entry.err == fi.EACCES, entry
        assert not passive.cq.read()
        data = b"\x22" * length
        ep.tsend(data, tag=3) if tagged else ep.send(data)
        assert active.outcome() == passive.outcome() == 0
        assert room == data
        assert not passive.cq.read()
    finally:
        active.close()
        passive.close()
