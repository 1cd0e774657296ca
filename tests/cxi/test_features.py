"""The promises and prohibitions of fi_cxi(7) "Supported Features", shown on opened endpoints."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cxi.support import RW, opened
from tests.fi.support import Node
from tests.frames import frames_of_weft

from weft import cxi, fi
from weft.providers.cxi import device, service


@pytest.fixture
def at() -> Iterator[Node]:
    with opened(caps=fi.RMA | fi.ATOMIC) as found:
        yield found


@pytest.fixture
def memory(at: Node) -> Iterator[np.ndarray]:
    """64 bytes that the endpoint's region of key 200 gives to everyone."""
    found = np.zeros(64, np.uint8)
    mr = at.domain.mr_reg(found, RW, requested_key=200)
    mr.bind(at.ep)
    mr.enable()
    yield found
    mr.close()


def peer(at: Node) -> int:
    return int(at.av.insert(at.ep.getname()))


@pytest.mark.clause("cxi.overview.reliable")
def test_each_write_arrives_or_fails_and_completes_once(at: Node, memory: np.ndarray) -> None:
    to = peer(at)
    for n in range(64):
        key = 200 if n % 2 else 201  # of no region
        at.ep.write(np.full(1, n + 1, np.uint8), dest_addr=to, addr=n, key=key, context=n)
    ended: dict[int, bool] = {}
    while len(ended) < 64:
        try:
            for entry in at.cq.sread(timeout=10.0):
                assert ended.setdefault(entry.op_context, True)
        except fi.FabricError:
            failed = at.cq.readerr()
            assert failed.op_context not in ended
            ended[failed.op_context] = False
    assert ended == {n: n % 2 == 1 for n in range(64)}
    assert memory.tolist() == [n + 1 if n % 2 else 0 for n in range(64)]
    assert at.cq.read() == []


@pytest.mark.clause("cxi.overview.counting-events")
def test_counter_counts_operations_without_completions() -> None:
    with opened(enable=False, cq_flags=int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)) as at:
        cntr = at.domain.cntr_open()
        at.ep.bind(cntr, fi.WRITE)
        at.ep.enable()
        memory = np.zeros(8, np.uint8)
        mr = at.domain.mr_reg(memory, RW, requested_key=200)
        mr.bind(at.ep)
        mr.enable()
        to = peer(at)
        for _ in range(5):
            at.ep.write(np.ones(8, np.uint8), dest_addr=to, addr=0, key=200)
        cntr.wait(5, timeout=10.0)
        assert (cntr.read(), at.cq.read()) == (5, [])
        mr.close()
        at.ep.close()
        cntr.close()


@pytest.mark.clause("cxi.thread.safe")
def test_threads_share_an_endpoint_without_a_lock(at: Node, memory: np.ndarray) -> None:
    to, one, count = peer(at), np.array([1], np.uint64), 200

    def add() -> None:
        for _ in range(count):
            while True:
                try:
                    at.ep.atomic(one, dest_addr=to, addr=0, key=200, datatype=fi.UINT64, op=fi.SUM)
                    break
                except fi.Again:
                    with read:
                        ended.extend(at.cq.read())

    read, ended = threading.Lock(), []  # the lock is for the list
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while len(ended) < 4 * count:
        ended += at.cq.sread(timeout=10.0)
    assert int(memory.view(np.uint64)[0]) == 4 * count


@pytest.mark.clause("cxi.xfer.atomic")
def test_atomics_work_between_endpoints(at: Node, memory: np.ndarray) -> None:
    to = peer(at)
    value = np.array([5], np.uint64)
    before = np.zeros(1, np.uint64)
    at.ep.atomic(value, dest_addr=to, addr=0, key=200, datatype=fi.UINT64, op=fi.SUM)
    at.cq.sread(timeout=10.0)
    at.ep.fetch_atomic(value, result=before, dest_addr=to, addr=0, key=200, datatype=fi.UINT64, op=fi.SUM)
    at.cq.sread(timeout=10.0)
    assert (int(before[0]), int(memory.view(np.uint64)[0])) == (5, 10)


@pytest.mark.clause("cxi.req.direct-data-path")
def test_writes_call_no_code_of_the_provider(at: Node, memory: np.ndarray) -> None:
    """Operations go to the NIC without a call into the control layer: no Python frame of Weft runs for one."""
    to = peer(at)
    buf = np.ones(8, np.uint8)

    def writes() -> None:
        for n in range(100):
            at.ep.write(buf, dest_addr=to, addr=0, key=200, context=n)

    assert frames_of_weft(writes) == []
    assert memory[:8].all()


@pytest.mark.clause("cxi.req.libcxi-control")
def test_transfer_uses_neither_devices_nor_services_nor_registry(at: Node, memory: np.ndarray, registry: Path) -> None:
    """Devices, services and resources are the registry's; a transfer needs none of it."""
    to = peer(at)
    file = registry / "registry.json"
    text = file.read_text()
    file.write_text("nothing")
    with pytest.raises(fi.InvalidArgument):
        device.devices()
    with pytest.raises(fi.InvalidArgument):
        service.create("cxi0")
    at.ep.write(np.full(8, 5, np.uint8), dest_addr=to, addr=0, key=200)
    at.cq.sread(timeout=10.0)
    assert memory[:8].tolist() == [5] * 8
    file.write_text(text)


@pytest.mark.clause("cxi.auth.service-tclasses")
def test_service_decides_which_traffic_classes_there_are(at: Node) -> None:
    made = service.create("cxi0", members=[("unrestricted", 0)], tclasses=["LOW_LATENCY"])
    for tclass, allowed in ((fi.TC_LOW_LATENCY, True), (fi.TC_BULK_DATA, False)):
        info = fi.getinfo(
            hints=fi.Info(
                caps=fi.RMA,
                fabric_attr=fi.FabricAttr(prov_name="cxi"),
                domain_attr=fi.DomainAttr(auth_key=cxi.AuthKey(made.id, 9), tclass=tclass),
            )
        )[0]
        with fi.Fabric(info.fabric_attr) as fabric:
            if allowed:
                fabric.domain(info).close()
            else:
                with pytest.raises(fi.InvalidArgument, match="traffic class"):
                    fabric.domain(info)


@pytest.mark.clause("cxi.sep.unsupported")
def test_scalable_endpoints_and_shared_contexts_are_refused(at: Node) -> None:
    for call in (at.domain.scalable_ep, at.domain.stx_context, at.ep.tx_context, at.ep.rx_context):
        with pytest.raises(fi.NoSys) as caught:
            call(at.info)
        assert caught.value.errno == fi.ENOSYS


def test_infos_without_hints_can_be_opened() -> None:
    for info in (one for one in fi.getinfo() if one.fabric_attr.prov_name == "cxi"):
        several = info.domain_attr.max_ep_auth_key > 1
        with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
            if several and info.caps & fi.DIRECTED_RECV:
                with pytest.raises(fi.InvalidArgument, match="DIRECTED_RECV"):
                    domain.endpoint(info)
            else:
                domain.endpoint(info).close()


def test_operations_of_an_info_without_hints_are_not_held_back() -> None:
    """Such an Info lists MORE and INJECT among op_flags; they are no defaults of its operations."""
    info = next(one for one in fi.getinfo() if one.fabric_attr.prov_name == "cxi")
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        cq, av = domain.cq_open(), domain.av_open()
        ep = domain.endpoint(info)
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.enable()
        mr = domain.mr_reg(np.zeros(8192, np.uint8), RW)
        mr.bind(ep)
        mr.enable()
        ep.write(np.ones(8192, np.uint8), dest_addr=av.insert(ep.getname()), addr=0, key=mr.key, context="sent")
        assert cq.sread(timeout=10.0)[0].op_context == "sent"
        for each in (mr, ep, av, cq):
            each.close()
