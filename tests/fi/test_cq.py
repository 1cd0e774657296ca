"""fi_cq(3): completion queues."""

from __future__ import annotations

import os
import select
import threading
from typing import Any

import pytest
from tests.fi.support import Node, opened, pair
from tests.patience import Patience

from weft import fi

KEY = 3


def write(initiator: Node, peer: int, context: Any = None, key: int = KEY) -> None:
    initiator.ep.write(b"x", dest_addr=peer, addr=0, key=key, context=context)


@pytest.mark.general("the format of FI_CQ_FORMAT_UNSPEC")
@pytest.mark.parametrize(
    ("format", "cls", "fields"),
    [
        (fi.CQ_FORMAT_CONTEXT, fi.CqEntry, ("op_context",)),
        (fi.CQ_FORMAT_MSG, fi.CqMsgEntry, ("op_context", "flags", "len")),
        (fi.CQ_FORMAT_DATA, fi.CqDataEntry, ("op_context", "flags", "len", "buf", "data")),
        (fi.CQ_FORMAT_TAGGED, fi.CqTaggedEntry, ("op_context", "flags", "len", "buf", "data", "tag")),
        (fi.CQ_FORMAT_UNSPEC, fi.CqDataEntry, ("op_context", "flags", "len", "buf", "data")),
    ],
)
def test_cq_entries_have_the_format_s_fields(format: int, cls: type, fields: tuple[str, ...]) -> None:
    with pair(format=format) as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        context = object()
        write(initiator, peer, context)
        (entry,) = initiator.wait()
        assert type(entry) is cls
        assert entry._fields == fields
        assert entry.op_context is context
        if "flags" in fields:
            assert entry.flags & (fi.RMA | fi.WRITE) == fi.RMA | fi.WRITE
        if "data" in fields:
            initiator.ep.writedata(b"x", data=0xFFFF, dest_addr=peer, addr=0, key=KEY)
            (event,) = target.wait()
            assert event.data == 0xFFFF


@pytest.mark.parametrize("format", [fi.CQ_FORMAT_CONTEXT, fi.CQ_FORMAT_MSG, fi.CQ_FORMAT_DATA, fi.CQ_FORMAT_TAGGED])
def test_each_entry_has_its_own_operation_s_fields(format: int) -> None:
    """Entries of different operations with and without contexts, read in turn: no entry has fields of another."""
    with pair(format=format) as (initiator, target, peer):
        target.reg(bytearray(64), requested_key=KEY)
        local, context = bytearray(64), object()
        posts = [(initiator.ep.write, fi.WRITE), (initiator.ep.read, fi.READ)]
        asked = [(*post, n, c) for post in posts for n in (8, 8, 9, 8) for c in (None, context, None, None)]
        for post, kind, n, given in asked:
            post(memoryview(local)[:n], None, peer, 0, KEY, given)
            (entry,) = initiator.wait()
            assert entry.op_context is given
            if format != fi.CQ_FORMAT_CONTEXT:
                assert entry.flags & (fi.READ | fi.WRITE) == kind
                assert entry.len == n


def test_event_without_context_has_the_data_of_its_own_write() -> None:
    with pair(format=fi.CQ_FORMAT_DATA) as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        for data in (1, 1, 2, 1):
            initiator.ep.writedata(b"x", data=data, dest_addr=peer, addr=0, key=KEY)
            (event,) = target.wait()
            assert (event.op_context, event.data) == (None, data)


def test_each_read_makes_a_list_of_its_own(duo: tuple[Node, Node, int]) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    write(initiator, peer)
    first = initiator.cq.sread(1, timeout=30)
    first.append("mine")
    write(initiator, peer)
    assert len(initiator.cq.sread(1, timeout=30)) == 1


def test_cq_read_of_an_empty_queue_is_an_empty_list(node: Node) -> None:
    assert node.cq.read() == []
    assert node.cq.readfrom() == []
    assert node.cq.pending() == 0


def test_cq_read_takes_at_most_count_oldest_first(duo: tuple[Node, Node, int]) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    for i in range(200):
        write(initiator, peer, i)
    found = [e.op_context for e in initiator.cq.sread(1, timeout=30)]
    while len(found) < 200:
        some = initiator.cq.read(7)
        assert len(some) <= 7
        found += [e.op_context for e in some]
    assert found == list(range(200))


def test_cq_readfrom_pairs_entries_with_sources(duo: tuple[Node, Node, int]) -> None:
    """fi_cq(3): operations of this side, and peers not in the vector, have FI_ADDR_NOTAVAIL."""
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    initiator.ep.writedata(b"x", data=1, dest_addr=peer, addr=0, key=KEY, context="c")
    ((entry, source),) = initiator.cq.sreadfrom(timeout=30)
    assert (entry.op_context, source) == ("c", fi.ADDR_NOTAVAIL)
    ((entry, source),) = target.cq.sreadfrom(timeout=30)
    assert (entry.data, source) == (1, fi.ADDR_NOTAVAIL)


@pytest.mark.general("the man page's error number")
def test_cq_error_entry_stops_reading_until_readerr(duo: tuple[Node, Node, int]) -> None:
    """fi_cq(3): with an error in the queue reading fails with -FI_EAVAIL; fi_cq_readerr takes it."""
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    write(initiator, peer, "before")
    write(initiator, peer, "bad", key=KEY + 1)
    write(initiator, peer, "after")
    seen: list[Any] = []
    while seen != ["before", "bad", "after"]:
        try:
            seen += [e.op_context for e in initiator.cq.sread(timeout=30)]
        except fi.Available:
            with pytest.raises(fi.Available):
                initiator.cq.read()
            error = initiator.cq.readerr()
            assert isinstance(error, fi.CqErrEntry)
            assert error.err == fi.EKEYREJECTED
            assert error.flags & (fi.RMA | fi.WRITE)
            seen.append(error.op_context)
    with pytest.raises(fi.Again):
        initiator.cq.readerr()


def test_cq_error_entry_prints_names(duo: tuple[Node, Node, int]) -> None:
    initiator, _, peer = duo
    write(initiator, peer, "ctx", key=1)
    text = repr(initiator.wait_error())
    for part in ("op_context='ctx'", "fi.RMA | fi.WRITE", "err=fi.EKEYREJECTED", "err_data=b"):
        assert part in text


def test_cq_sread_times_out_with_eagain(node: Node) -> None:
    with pytest.raises(fi.Again):
        node.cq.sread(timeout=0.01)
    with pytest.raises(fi.Again):
        node.cq.sread(timeout=0)
    with pytest.raises(fi.Again):
        node.cq.sreadfrom(timeout=0.01)


def test_cq_sread_waits_for_a_peer(duo: tuple[Node, Node, int]) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.extend(target.cq.sread(timeout=30)))
    waiter.start()
    initiator.ep.writedata(b"x", data=44, dest_addr=peer, addr=0, key=KEY)
    waiter.join(60)
    assert [e.data for e in found] == [44]


def test_cq_signal_wakes_a_waiting_sread(node: Node) -> None:
    raised: list[BaseException] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            node.cq.sread(timeout=60)
        except fi.FabricError as e:
            raised.append(e)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert started.wait(30)
    node.cq.signal()
    waiter.join(60)
    assert not waiter.is_alive()
    assert [type(e) for e in raised] == [fi.Canceled]


def test_cq_threshold_condition_waits_for_as_many() -> None:
    with pair() as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        cond = [3]
        started = threading.Event()
        found: list[Any] = []

        def wait() -> None:
            started.set()
            found.extend(target.cq.sread(8, cond[0], 30))

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert started.wait(30)
        for i in range(3):
            initiator.ep.writedata(b"x", data=i, dest_addr=peer, addr=0, key=KEY)
        waiter.join(60)
        assert sorted(e.data for e in found) == [0, 1, 2]


def test_cq_wait_none_may_not_be_waited_on() -> None:
    """fi_cq(3): it is invalid to call fi_cq_sread on a queue opened with FI_WAIT_NONE."""
    with pair(wait_obj=fi.WAIT_NONE) as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        for call in (initiator.cq.sread, initiator.cq.sreadfrom, initiator.cq.signal):
            with pytest.raises(fi.InvalidArgument, match="WAIT_NONE"):
                call()
        write(initiator, peer, "polled")
        until = Patience(30)
        while not (found := initiator.cq.read()):
            assert not until.over
        assert found[0].op_context == "polled"
        assert initiator.cq.fd == -1


@pytest.mark.general("automatic progress")
@pytest.mark.skipif(
    os.environ.get("WEFT_ENGINE") == "manual",
    reason="fi_domain(3) FI_PROGRESS_MANUAL: waiting outside the fabric interfaces progresses nothing",
)
def test_cq_fd_is_readable_while_entries_wait() -> None:
    with pair(wait_obj=fi.WAIT_FD) as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        fd = target.cq.fd
        assert fd >= 0
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        target.fabric.trywait([target.cq])
        for value in range(3):
            initiator.ep.writedata(b"x", data=value, dest_addr=peer, addr=0, key=KEY)
            assert poll.poll(30_000)
            with pytest.raises(fi.Again):
                target.fabric.trywait([target.cq])
            (event,) = target.cq.read()
            assert event.data == value
            target.fabric.trywait([target.cq])
            assert not poll.poll(0)


@pytest.mark.general("automatic progress")
@pytest.mark.skipif(
    os.environ.get("WEFT_ENGINE") == "manual",
    reason="fi_domain(3) FI_PROGRESS_MANUAL: waiting outside the fabric interfaces progresses nothing",
)
def test_cq_fd_asked_for_late_is_readable_while_entries_wait() -> None:
    """Until somebody asks for the descriptor nothing is written to it: the first to ask finds the queue's state."""
    with pair(wait_obj=fi.WAIT_FD) as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        for value in range(2):
            initiator.ep.writedata(b"x", data=value, dest_addr=peer, addr=0, key=KEY)
        (first,) = target.cq.sread(1, timeout=30)
        poll = select.poll()
        poll.register(target.cq.fd, select.POLLIN)
        assert poll.poll(30_000)
        (second,) = target.cq.read()
        assert (first.data, second.data) == (0, 1)
        target.fabric.trywait([target.cq])
        assert not poll.poll(0)
        initiator.ep.writedata(b"x", data=2, dest_addr=peer, addr=0, key=KEY)
        assert poll.poll(30_000)


@pytest.mark.parametrize("wait_obj", [fi.WAIT_SET, fi.WAIT_MUTEX_COND, fi.WAIT_POLLFD], ids=str)
def test_cq_other_wait_objects_are_enosys(node: Node, wait_obj: int) -> None:
    with pytest.raises(fi.NoSys, match="WAIT_FD"):
        node.domain.cq_open(wait_obj=wait_obj)


@pytest.mark.parametrize(
    "arguments", [{"format": 9}, {"wait_obj": 99}, {"wait_cond": 5}, {"size": -1}], ids=lambda a: next(iter(a))
)
def test_cq_open_invalid_arguments(node: Node, arguments: dict[str, int]) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.domain.cq_open(**arguments)


def test_cq_open_unknown_flags_are_badflags(node: Node) -> None:
    node.keep(node.domain.cq_open(flags=fi.AFFINITY, signaling_vector=1))  # a hint
    with pytest.raises(fi.BadFlags):
        node.domain.cq_open(flags=fi.WRITE)


@pytest.mark.general("the size of a queue opened with 0")
def test_cq_size_is_a_minimum(node: Node) -> None:
    cq = node.keep(node.domain.cq_open(size=100))
    assert cq.capacity >= 100
    assert node.keep(node.domain.cq_open()).capacity >= 1024


def test_cq_close_with_bound_endpoint_is_busy() -> None:
    with opened() as node:
        with pytest.raises(fi.Busy) as caught:
            node.cq.close()
        assert repr(node.ep) in str(caught.value)
        node.ep.close()
        node.cq.close()


@pytest.mark.general("the format of FI_CQ_FORMAT_UNSPEC")
def test_cq_use_after_close_is_badstate(node: Node) -> None:
    cq = node.domain.cq_open()
    cq.close()
    for call in (cq.read, cq.readfrom, cq.readerr, cq.sread):
        with pytest.raises(fi.BadState):
            call()
    assert repr(cq) == "<CompletionQueue DATA closed>"


def test_cq_close_loses_unread_entries_and_releases_contexts() -> None:
    import gc
    import weakref

    class Context:
        pass

    context = Context()
    ref = weakref.ref(context)
    with pair() as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        write(initiator, peer, context)
        del context
        until = Patience(30)
        while not initiator.cq.pending():
            assert not until.over
        assert ref() is not None
    del initiator, target
    gc.collect()
    assert ref() is None


def test_cq_repr_says_how_full_it_is(duo: tuple[Node, Node, int]) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    write(initiator, peer)
    until = Patience(30)
    while not initiator.cq.pending():
        assert not until.over
    assert repr(initiator.cq) == f"<CompletionQueue TAGGED, 1/{initiator.cq.capacity} unread>"


def test_failure_of_the_initiators_own_names_no_peer(node: Node) -> None:
    node.ep.write(b"x", dest_addr=node.me, addr=0, key=12345)
    failed = node.wait_error().exception()
    assert isinstance(failed, fi.KeyRejected)
    assert failed.peer is None
    assert failed.completion._replace(src_addr=3).exception().peer == 3  # the fi_addr that an entry names


def test_cq_full_of_remote_data_holds_the_writer_back() -> None:
    """fi_domain(3) FI_RM_ENABLED: a queue is not overrun; its peers' writes with data wait."""
    with pair(size=8) as (initiator, target, peer):
        target.reg(bytearray(8), requested_key=KEY)
        posted, refused = 0, ""
        while posted < 100_000 and "of the peer" not in refused:
            try:
                initiator.ep.writedata(b"x", data=posted, dest_addr=peer, addr=0, key=KEY)
                posted += 1
            except fi.Again as error:
                refused = str(error)
            initiator.cq.read()
        assert "completion queue of the peer at fi_addr 0 is full" in refused
        # Room for operations under way is bounded by the endpoint's transmit queue, not by the peer's writes.
        assert target.cq.pending() < 10_000
        seen: list[int] = []
        while len(seen) < posted:
            seen += [entry.data for entry in target.cq.sread(timeout=60)]
            initiator.cq.read()
        assert seen == list(range(posted))


def test_cq_without_resource_management_overruns() -> None:
    """fi_cq(3): the existing entries can be read; then the queue is lost, and later entries take no memory."""
    counters: dict[int, Any] = {fi.REMOTE_WRITE: None}
    with (
        opened(size=8, resource_mgmt=fi.RM_DISABLED, counters=counters) as target,
        opened() as initiator,
    ):
        peer = initiator.av.insert(target.name)
        target.reg(bytearray(8), requested_key=KEY)
        for i in range(200):
            initiator.ep.writedata(b"x", data=i, dest_addr=peer, addr=0, key=KEY)
            initiator.wait()
        counters[fi.REMOTE_WRITE].wait(200, timeout=60)
        assert target.cq.pending() == 8
        assert [entry.data for entry in target.cq.read()] == list(range(8))
        with pytest.raises(fi.Overrun, match="holds 8 entries"):
            target.cq.read()
        with pytest.raises(fi.Overrun):
            target.cq.sread(timeout=60)


def test_error_entry_has_the_status_of_the_nic(duo: tuple[Node, Node, int]) -> None:
    """The status is the same number under every provider; prov_errno is the provider's number."""
    initiator, target, peer = duo
    initiator.ep.write(b"12345678", dest_addr=peer, addr=0, key=KEY)
    failed = initiator.wait_error()
    assert failed.status is fi.Status.no_key
    assert "status=no_key" in repr(failed)
    target.reg(bytearray(8), requested_key=KEY)
    initiator.ep.write(b"12345678", dest_addr=peer, addr=4, key=KEY)
    assert initiator.wait_error().status is fi.Status.bounds
