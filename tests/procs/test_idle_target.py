"""Operations while the target's process makes no call: operations that the NIC executes alone, or that wait.

The target has no engine thread (WEFT_ENGINE=manual). In its own memory the initiator's NIC works without it; under
strict isolation nothing happens before it calls, which makes visible when an operation is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.children import Child
from tests.procs.peer import RW, Side, World

from weft import _process, fi

pytestmark = pytest.mark.procs

NBYTES = 4096
STRICT = {"WEFT_ISOLATION": "strict"}


def open_target(world: World) -> str:
    world.idle = True
    name = peer.open_side(world)
    peer.expose(world, "region", NBYTES, 7, foreign=False, fill=0xEE)
    return name


def serve(world: World) -> None:
    """Make progress until no work is left, then stop calling."""
    for _ in range(50):
        peer.progress()


def post(world: World, name: str, calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """In the initiator: make the calls; returns the names of completions that came without an action of the target."""
    side = world.side
    to = side.av.insert(name) if not world.more else world.more["to"]
    world.more["to"] = to
    world.more["buffer"] = buffer = np.full(NBYTES, 0x11, np.uint8)
    for call, more in calls:
        _CALLS[call](side, buffer, to, **more)
    return progressed(world)


def progressed(world: World) -> list[str]:
    found = []
    for _ in range(50):
        try:
            found += [entry.op_context for entry in world.side.cq.read(8)]
        except fi.Again:
            peer.progress()
    return found


def write(side: Side, data: Any, to: int, name: str, flags: int = 0, size: int = NBYTES) -> None:
    message = fi.MsgRma([data[:size]], [fi.RmaIov(0, size, 7)], to, context=name)
    side.ep.writemsg(message, flags)


def read(side: Side, data: Any, to: int, name: str) -> None:
    side.ep.read(data, src_addr=to, addr=0, key=7, context=name)


_CALLS = {"write": write, "read": read}


def scribble(world: World) -> None:
    world.more["buffer"].fill(0x99)


def buffer_bytes(world: World) -> bytes:
    return bytes(world.more["buffer"])


@dataclass
class Two:
    me: Child
    target: Child
    name: str

    def post(self, *calls: tuple[str, dict[str, Any]]) -> list[str]:
        return self.me.call(post, self.name, list(calls))

    def target_bytes(self) -> bytes:
        return self.target.call(peer.contents, "region")

    def meet(self) -> None:
        """Connect, which needs both processes, before the test begins."""
        call = self.me.start(post, self.name, [("write", {"name": "hello", "size": 0})])
        found = []
        for _ in range(200):
            self.target.call(serve)
            if call is not None:
                found += call.result()
                call = None
            found += self.me.call(progressed)
            if found == ["hello"]:
                return
        raise AssertionError("the two never met")


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    settings = {"WEFT_ENGINE": "manual", **request.param}
    with Child(**settings) as target, Child(**settings) as me:
        name = target.call(open_target)
        me.call(peer.open_side)
        found = Two(me, target, name)
        found.meet()
        yield found


direct = pytest.mark.parametrize("two", [{}], indirect=True, ids=["direct"])
strict = pytest.mark.parametrize("two", [STRICT], indirect=True, ids=["strict"])


@pytest.mark.clause("rma.general.direct")
@direct
def test_idle_target_is_written_and_read_in_place(two: Two) -> None:
    """The bytes move directly from buffer to buffer: the target posts nothing, calls nothing and gets no event."""
    assert two.post(("write", {"name": "w"})) == ["w"]
    assert two.target_bytes() == b"\x11" * NBYTES
    two.target.call(fill, 0x22)
    assert two.post(("read", {"name": "r"})) == ["r"]
    assert two.me.call(buffer_bytes) == b"\x22" * NBYTES
    assert two.target.call(heard) == []


def fill(world: World, value: int) -> None:
    world.arrays["region"][:] = value


def heard(world: World) -> list[Any]:
    try:
        return list(world.side.cq.read(8))
    except fi.Again:
        return []


@pytest.mark.clause("rma.general.async")
@strict
def test_calls_return_before_the_transfer_is_done(two: Two) -> None:
    assert two.post(("write", {"name": "w"}), ("read", {"name": "r"})) == []
    assert two.target_bytes() == b"\xee" * NBYTES  # both calls returned, nothing has moved
    two.target.call(serve)
    assert two.me.call(progressed) == ["w", "r"]
    assert two.target_bytes() == b"\x11" * NBYTES


@pytest.mark.clause("rma.flag.transmit-complete", "rma.flag.delivery-complete")
@pytest.mark.parametrize("level", [fi.TRANSMIT_COMPLETE, fi.DELIVERY_COMPLETE], ids=str)
@strict
def test_no_completion_before_the_target_has_it(two: Two, level: int) -> None:
    """The initiator tracks the write until it is answered; once complete, even the target's death changes nothing."""
    assert two.post(("write", {"name": "w", "flags": level})) == []
    two.target.call(serve)
    assert two.target_bytes() == b"\x11" * NBYTES
    assert two.me.call(progressed) == ["w"]
    two.target.destroy()
    assert two.me.call(progressed) == []


@pytest.mark.clause("rma.flag.inject-complete")
@strict
def test_inject_complete_comes_when_the_buffer_may_be_reused(two: Two) -> None:
    came = two.post(("write", {"name": "w", "flags": fi.INJECT_COMPLETE}))
    while not came:  # until it is complete the buffer is left alone
        two.target.call(serve)
        came = two.me.call(progressed)
    two.me.call(scribble)
    two.target.call(serve)
    assert two.target_bytes() == b"\x11" * NBYTES


@pytest.mark.clause("rma.flag.more")
@direct
def test_more_announces_and_holds_nothing_back(two: Two) -> None:
    """A request that is announced with FI_MORE and never followed by another is done all the same."""
    assert two.post(("write", {"name": "w", "flags": fi.MORE})) == ["w"]
    assert two.target_bytes() == b"\x11" * NBYTES


@pytest.mark.clause("rma.flag.more")
@strict
def test_more_is_followed_by_others_in_order(two: Two) -> None:
    two.post(*[("write", {"name": f"w{i}", "flags": fi.MORE if i < 7 else 0, "size": 8}) for i in range(8)])
    two.target.call(serve)
    assert two.me.call(progressed) == [f"w{i}" for i in range(8)]


FAR = 1 << 20


def expose_far(world: World) -> None:
    """Memory that Weft did not allocate: without process_vm_writev only this process can write it."""
    peer.expose(world, "far", FAR, 8, foreign=True, fill=0xEE)


def write_beside_a_long_copy(world: World, order: int) -> list[str]:
    """A long write by one endpoint, an 8-byte write by each of two: the completions while the target does nothing."""
    side, to = world.side, world.more["to"]
    info = fi.getinfo(hints=fi.Info(caps=peer.CAPS, fabric_attr=fi.FabricAttr(prov_name="weft")))[0]
    info.tx_attr.msg_order = order
    endpoints = []
    for _ in range(2):
        ep = side.domain.endpoint(info)
        ep.bind(side.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(side.av)
        ep.enable()
        endpoints.append(ep)
    world.more["endpoints"] = endpoints
    world.more["long"] = long = np.full(FAR, 0x33, np.uint8)
    word = world.more["buffer"][:8]
    endpoints[0].write(long, dest_addr=to, addr=0, key=8, context="long")
    endpoints[1].write(word, dest_addr=to, addr=0, key=7, context="neighbour")
    endpoints[0].write(word, dest_addr=to, addr=8, key=7, context="behind")
    return progressed(world)


def close_endpoints(world: World) -> None:
    for ep in world.more["endpoints"]:
        ep.close()


@pytest.mark.parametrize("two", [{"WEFT_CMA": "0"}], indirect=True, ids=["ring"])
@pytest.mark.parametrize(
    ("order", "early"),
    [(fi.ORDER_WAW, ["neighbour"]), (fi.ORDER_RAR, ["neighbour", "behind"]), (0, ["neighbour", "behind"])],
    ids=["WAW", "RAR", "none"],
)
def test_long_write_delays_ordered_writes_of_its_endpoint_alone(two: Two, order: int, early: list[str]) -> None:
    two.target.call(expose_far)
    assert two.me.call(write_beside_a_long_copy, order) == early
    late = sorted({"long", "behind"} - set(early))
    found: list[str] = []
    while sorted(found) != late:
        two.target.call(serve)
        found += two.me.call(progressed)
    assert two.target_bytes()[:16] == b"\x11" * 16
    two.me.call(close_endpoints)


def freed_by_close(world: World) -> list[int]:
    """Register and close the same memory under one key, many times; the process's resources after each tenth part."""
    side = world.side
    array = side.domain.alloc(NBYTES, np.uint8)
    found = []
    for i in range(20_000):
        mr = side.domain.mr_reg(array, RW, requested_key=99)
        mr.close()
        if i % 2_000 == 1_999:
            held = peer.resources(world)
            found.append((held["fds"], held["maps"], held["threads"], _process.nic().statistics()["regions"]))
    return found


@pytest.mark.clause("mr.close.releases")
@direct
def test_closing_a_region_releases_key_entry_and_memory(two: Two) -> None:
    """Were one entry of the table kept, the key would stay taken; were anything else kept, it would add up."""
    found = two.target.call(freed_by_close)
    assert len(set(found)) == 1, found
    assert found[0][3] == 1  # the region of open_target
