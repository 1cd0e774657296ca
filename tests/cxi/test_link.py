"""A device whose link is taken down: operations fail as unreachable, and work again when it is up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.cxi.support import found, opened, register
from tests.fi.support import Node
from tests.procs import cxi_side
from tests.procs.children import Child
from tests.procs.cxi_side import DONE, LINK_DOWN, stop

from weft import cxi, fi
from weft.providers.cxi import device, telemetry

KEYS = (7, 200)  # an optimized and a standard one


class Two(NamedTuple):
    """An initiator on cxi0, and a target on cxi1 with 64 bytes under both keys."""

    at: Node
    peer: int
    memory: Any

    def outcome(self) -> tuple[int, int]:
        try:
            self.at.cq.sread(1, timeout=10)
        except fi.Available:
            entry = self.at.cq.readerr()
            return entry.err, entry.prov_errno
        return DONE

    def each(self) -> list[tuple[int, int]]:
        """How each kind of operation ends."""
        ep, found = self.at.ep, []
        buf = np.ones(1, np.uint64)
        for key in KEYS:
            there: dict[str, Any] = {"addr": 0, "key": key}
            message = fi.MsgRma([buf], [fi.RmaIov(0, 8, key)], self.peer)
            for post in (
                lambda: ep.write(buf, dest_addr=self.peer, **there),  # noqa: B023
                lambda: ep.read(buf, src_addr=self.peer, **there),  # noqa: B023
                lambda: ep.writemsg(message, fi.DELIVERY_COMPLETE | fi.COMPLETION),  # noqa: B023
                lambda: ep.atomic(buf, dest_addr=self.peer, datatype=fi.UINT64, op=fi.SUM, **there),  # noqa: B023
                lambda: ep.fetch_atomic(buf, result=buf, dest_addr=self.peer, datatype=fi.UINT64, op=fi.SUM, **there),  # noqa: B023
            ):
                post()
                found.append(self.outcome())
        return found


@pytest.fixture
def two() -> Iterator[Two]:
    device.add("cxi1")
    with opened() as at, opened(name="cxi1") as target:
        memory = np.zeros(8, np.uint64)
        for key in KEYS:
            register(target, memory, key)
        yield Two(at, at.av.insert(target.ep.getname()), memory)


@pytest.mark.clause("cxi.guide.err-ehostunreach")
@pytest.mark.parametrize("name", ["cxi0", "cxi1"])
def test_nothing_passes_a_link_that_is_down(two: Two, name: str) -> None:
    """The initiator's link, or the target's."""
    assert set(two.each()) == {DONE}
    two.memory[:] = 0
    device.set_up(name, False)
    assert two.each() == [LINK_DOWN] * 10
    assert not two.memory.any()
    device.set_up(name, True)
    assert set(two.each()) == {DONE}
    assert two.memory[0]


def test_failure_counts_and_says_that_the_link_is_down(two: Two) -> None:
    device.set_up("cxi0", False)
    two.at.ep.write(b"12345678", dest_addr=two.peer, addr=0, key=7, context="mine")
    with pytest.raises(fi.Available):
        two.at.cq.sread(1, timeout=10)
    entry = two.at.cq.readerr()
    assert entry.op_context == "mine"
    assert b"the link of its NIC, or of this endpoint's, is down" in entry.err_data


def test_endpoint_enabled_with_the_link_down_works_when_it_is_up() -> None:
    with opened(enable=False) as at:
        device.set_up("cxi0", False)
        at.ep.enable()
        memory = np.zeros(8, np.uint8)
        register(at, memory, 7)
        at.ep.write(b"12345678", dest_addr=at.me, addr=0, key=7)
        two = Two(at, at.me, memory)
        assert two.outcome() == LINK_DOWN
        device.set_up("cxi0", True)
        at.ep.write(b"12345678", dest_addr=at.me, addr=0, key=7)
        assert two.outcome() == DONE
        assert bytes(memory) == b"12345678"


def test_link_state_of_a_killed_writer_is_put_right(registry: Path) -> None:
    """The registry decides; the next domain corrects a page whose writer died between the registry and the page."""
    with opened():
        pass
    with open(telemetry.page("cxi0"), "r+b") as page:
        page.seek(128)
        page.write(b"\1")
    with opened() as at:
        memory = np.zeros(8, np.uint8)
        register(at, memory, 7)
        at.ep.write(b"12345678", dest_addr=at.me, addr=0, key=7)
        at.wait()
        assert memory.tobytes() == b"12345678"
        with open(telemetry.page("cxi0"), "rb") as page:
            page.seek(128)
            assert page.read(1) == b"\0"


def test_device_added_while_processes_run_can_be_taken_down() -> None:
    with opened() as at:
        nic = device.add("cxi1").nic
        with opened(name="cxi1") as target:
            memory = np.zeros(64, np.uint8)
            for key in KEYS:
                register(target, memory, key)
            two = Two(at, at.av.insert(cxi.Address(nic, target.ep.getname().pid)), memory)
            device.set_up("cxi1", False)
            assert set(two.each()) == {LINK_DOWN}
            device.set_up("cxi1", True)
            assert set(two.each()) == {DONE}


@pytest.mark.procs
@pytest.mark.parametrize(
    "path", [{}, {"WEFT_CMA": "0"}, {"WEFT_ISOLATION": "strict"}], ids=["direct", "ring", "strict"]
)
def test_link_goes_down_and_up_under_traffic(path: dict[str, str]) -> None:
    """Three processes, each on a device of its own, write to each other while links come and go."""
    names = ("cxi0", "cxi1", "cxi2")
    for name in names[1:]:
        device.add(name)
    running = [Child(**path) for _ in names]
    try:
        there = [child.call(cxi_side.open_cxi, name, None, None, 7) for child, name in zip(running, names, strict=True)]
        for turn in range(4):
            down = names[turn % 3]
            calls = [child.start(cxi_side.use, there[(n + 1) % 3], 7) for n, child in enumerate(running)]
            device.set_up(down, False)
            device.set_up(down, True)
            for child in running:
                child.start(stop)
            for call, child in zip(calls, running, strict=True):
                assert set(call.result()) <= {DONE, LINK_DOWN}, down
                child.receive("stop", 60)
            device.set_up(down, False)
            for n, child in enumerate(running):
                expected = LINK_DOWN if down in (names[n], names[(n + 1) % 3]) else DONE
                assert child.call(cxi_side.use_once, there[(n + 1) % 3], 7) == [expected, expected], (down, names[n])
            device.set_up(down, True)
            for n, child in enumerate(running):
                assert child.call(cxi_side.use_once, there[(n + 1) % 3], 7) == [DONE, DONE]
        for child in running:
            child.call(cxi_side.close_cxi)
            child.close()
    finally:
        for child in running:
            child.destroy()


def test_fabric_of_devices_that_are_down_is_opened_and_their_domain_is_not() -> None:
    info = found()
    device.set_up("cxi0", False)
    with fi.Fabric(info.fabric_attr) as fabric:
        with pytest.raises(fi.InvalidArgument, match=r"the link of cxi0 is down\n.*weft device up cxi0"):
            fabric.domain(info)
        device.set_up("cxi0", True)
        fabric.domain(info).close()


def test_domain_that_the_environment_excludes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    info = found()
    monkeypatch.setenv("FI_CXI_DEVICE_NAME", "cxi7")
    with fi.Fabric(info.fabric_attr) as fabric, pytest.raises(fi.InvalidArgument, match="FI_CXI_DEVICE_NAME"):
        fabric.domain(info)
