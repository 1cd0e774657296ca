"""Objects of the CXI provider for processes of tests: an endpoint at a chosen PID, VNI and service."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from tests.procs.children import CALL_S
from tests.procs.peer import World

from weft import cxi, fi
from weft.providers.cxi import resources

RW = fi.REMOTE_READ | fi.REMOTE_WRITE
BOTH = fi.TRANSMIT | fi.RECV
MODE = fi.MR_ENDPOINT | fi.MR_ALLOCATED
NBYTES = 4096

Ending = tuple[int, int]  # err, prov_errno; (0, 0): success
DONE: Ending = (0, 0)
NO_PID: Ending = (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)  # the NIC knows the VNI, but no endpoint has the PID
NO_VNI: Ending = (fi.ENOTCONN, cxi.C_RC_VNI_NOT_FOUND)  # no endpoint of the NIC has the VNI
NO_ENTRY: Ending = (fi.EIO, cxi.C_RC_ENTRY_NOT_FOUND)  # the endpoint is there, the region is not
LINK_DOWN: Ending = (fi.EHOSTUNREACH, cxi.C_RC_UNDELIVERABLE)


def found(device: str, pid: int | None, key: cxi.AuthKey | None, prov_key: bool = False) -> fi.Info:
    """The Info for an endpoint of a device."""
    hints = fi.Info(
        caps=fi.RMA | fi.ATOMIC,
        domain_attr=fi.DomainAttr(mr_mode=MODE | (fi.MR_PROV_KEY if prov_key else 0), name=device),
        fabric_attr=fi.FabricAttr(prov_name="cxi"),
    )
    hints.domain_attr.auth_key = key
    if pid is None:
        return fi.getinfo(hints=hints)[0]
    return fi.getinfo(node=device, service=str(pid), flags=fi.SOURCE, hints=hints)[0]


class CxiSide:
    """Fabric, domain, queue, vector, counters and an enabled endpoint. pid: None: any."""

    def __init__(
        self, device: str, pid: int | None, key: cxi.AuthKey | None, *, prov_key: bool = False, enable: bool = True
    ) -> None:
        self.info = found(device, pid, key, prov_key)
        self.fabric = fi.Fabric(self.info.fabric_attr)
        self.domain = self.fabric.domain(self.info)
        self.cq = self.domain.cq_open(format=fi.CQ_FORMAT_TAGGED)
        self.av = self.domain.av_open()
        self.written, self.fetched = self.domain.cntr_open(), self.domain.cntr_open()
        self.ep = self.domain.endpoint(self.info)
        self.ep.bind(self.cq, BOTH)
        self.ep.bind(self.av)
        self.ep.bind(self.written, fi.WRITE)
        self.ep.bind(self.fetched, fi.READ)
        self.regions: list[fi.MemoryRegion] = []
        if enable:
            self.ep.enable()

    @property
    def address(self) -> cxi.Address:
        name: cxi.Address = self.ep.getname()
        return name

    def region(self, array: Any, key: int, counter: fi.Counter | None = None) -> fi.MemoryRegion:
        mr = self.domain.mr_reg(array, RW, requested_key=key)
        self.regions.append(mr)
        mr.bind(self.ep)
        if counter is not None:
            mr.bind(counter, fi.REMOTE_WRITE)
        mr.enable()
        return mr

    def close(self) -> None:
        for mr in self.regions:
            mr.close()
        for one in (self.ep, self.cq, self.av, self.written, self.fetched, self.domain, self.fabric):
            one.close()

    def ended(self, timeout: float = 0.0) -> Ending | None:
        """How the next operation ended; None: none has."""
        try:
            entries = self.cq.sread(1, timeout=timeout) if timeout else self.cq.read(1)
        except fi.Available:
            error = self.cq.readerr()
            return error.err, error.prov_errno
        except fi.Again:
            return None
        return DONE if entries else None

    def outcome(self) -> Ending:
        """How the next operation ends. Fails if it does not."""
        ending = self.ended(CALL_S / 2)
        assert ending is not None, f"an operation never ended: {self.ep!r}"
        return ending


class CxiTraffic:
    """Writes and fetch-adds into a peer's region, at most `depth` under way."""

    def __init__(self, side: CxiSide, peer: int, key: int, depth: int = 8) -> None:
        self.side, self.peer, self.key, self.depth = side, peer, key, depth
        self.data = np.ones(NBYTES, np.uint8)
        self.one, self.old = np.ones(1, np.uint64), np.zeros(1, np.uint64)
        self.posted = self.over = 0
        self.endings: dict[Ending, int] = {}
        for counter in (side.written, side.fetched):
            counter.set(0)
            counter.seterr(0)

    def step(self) -> None:
        if self.posted - self.over < self.depth:
            kind, ep = self.posted % 3, self.side.ep
            with contextlib.suppress(fi.Again):
                if kind == 2:
                    ep.fetch_atomic(
                        self.one,
                        result=self.old,
                        dest_addr=self.peer,
                        addr=0,
                        key=self.key,
                        datatype=fi.UINT64,
                        op=fi.SUM,
                    )
                else:
                    n = 8 if kind else NBYTES - 8
                    ep.write(self.data[:n], dest_addr=self.peer, addr=8, key=self.key)
                self.posted += 1
        self._note(self.side.ended())

    def _note(self, ending: Ending | None) -> None:
        if ending is not None:
            self.over += 1
            self.endings[ending] = self.endings.get(ending, 0) + 1

    def finish(self) -> dict[Ending, int]:
        """Every operation ends, and the counters have counted each, as a success or as a failure."""
        while self.over < self.posted:
            self._note(self.side.outcome())
        counters, done = (self.side.written, self.side.fetched), self.endings.get(DONE, 0)
        assert sum(one.read() for one in counters) == done
        if all(one.readerr() < cxi.CNTR_FAILURE_MAX for one in counters):  # where they stay
            assert sum(one.readerr() for one in counters) == self.over - done, (self.endings, self.side.ep)
        return self.endings


# ---- functions for children ------------------------------------------------------------------------------------------


def open_cxi(world: World, device: str, pid: int | None, key: bytes | None, memory_key: int = 0) -> bytes:
    """Open the child's side with 4 KiB of memory; its address."""
    side = CxiSide(device, pid, None if key is None else cxi.AuthKey.from_bytes(key))
    world.more["cxi"] = side
    world.more["memory"] = np.zeros(NBYTES, np.uint8)
    side.region(world.more["memory"], memory_key)
    return bytes(side.address)


def close_cxi(world: World) -> None:
    world.more.pop("cxi").close()


def use(world: World, address: bytes, key: int) -> dict[Ending, int]:
    """Traffic with a peer until the stop command; returns how its operations ended."""
    side = world.more["cxi"]
    peer = side.av.insert(cxi.Address.from_bytes(address))
    traffic = CxiTraffic(side, peer, key)
    while not world.asked():
        traffic.step()
    endings = traffic.finish()
    side.av.remove(peer)
    return endings


def use_once(world: World, address: bytes, key: int) -> list[Ending]:
    """One write and one fetch-add; how they ended."""
    side = world.more["cxi"]
    peer = side.av.insert(cxi.Address.from_bytes(address))
    one, old = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    side.ep.write(one, dest_addr=peer, addr=8, key=key)
    found = [side.outcome()]
    side.ep.fetch_atomic(one, result=old, dest_addr=peer, addr=8, key=key, datatype=fi.UINT64, op=fi.SUM)
    found.append(side.outcome())
    side.av.remove(peer)
    return found


def take_over(world: World, device: str, pid: int, key: bytes, memory_key: int) -> tuple[bytes, dict[str, int]]:
    """Open at once a dead process's PID, VNI, keys, and all resources of its service; their numbers."""
    address = open_cxi(world, device, pid, key, memory_key)
    pool = world.more["cxi"].domain.policy.pool
    had = dict(pool.taken)
    for kind in ("les", "ptes", "eqs", "cts"):
        with contextlib.suppress(resources.Exhausted):
            while True:
                pool.take(kind)
    everything = {kind: pool.taken[kind] for kind in ("les", "ptes", "eqs", "cts")}
    for kind, n in everything.items():
        pool.give(kind, n - had.get(kind, 0))
    return address, everything


def stop(world: World) -> None:
    """The command that ends a function which runs until it is stopped."""
