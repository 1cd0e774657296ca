"""The cost of the CXI provider and of the general provider in one process and run: write, fetch-add, registration."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from common import Row, least, loop_ns, publish, spread
from weft import cxi as cxi_ext
from weft import fi

RW = fi.REMOTE_READ | fi.REMOTE_WRITE
MODE = fi.MR_ENDPOINT | fi.MR_ALLOCATED
BATCH = 200
ROUNDS = 40
WITHIN_NS = 15.0
NEAR = "within 15 ns of general"


class Opened:
    """A domain whose endpoint reaches itself, under FI_MR_ENDPOINT."""

    def __init__(self, provider: str, mode: int) -> None:
        hints = fi.Info(fabric_attr=fi.FabricAttr(prov_name=provider), caps=fi.RMA | fi.ATOMIC)
        hints.domain_attr.mr_mode = mode
        self.provider, self.info = provider, fi.getinfo(hints=hints)[0]
        self.fabric = fi.Fabric(self.info.fabric_attr)
        self.domain = self.fabric.domain(self.info)
        self.cq, self.av = self.domain.cq_open(), self.domain.av_open()
        self.ep = self.endpoint()
        self.peer = self.av.insert(self.ep.getname())
        self.words = self.domain.alloc(64, "u8")
        self.words.fill(0)
        self.mr = self.domain.mr_reg(self.words, RW, requested_key=7)
        self.mr.bind(self.ep)
        self.mr.enable()

    def endpoint(self) -> fi.Endpoint:
        ep = self.domain.endpoint(self.info)
        ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(self.av)
        ep.enable()
        return ep

    def drain(self) -> None:
        while self.cq.read(1024):
            pass

    def write(self) -> float:
        write, local, peer, key = self.ep.write, self.mr[:8], self.peer, self.mr.key

        def run(n: int) -> None:
            for _ in range(n):
                write(local, None, peer, 64, key)

        return least(run, BATCH, 1, self.drain)

    def fetch_add(self) -> float:
        fetch, operand, result = self.ep.fetch_atomic, self.mr[8:16], self.mr[16:24]
        peer, key, u64, total = self.peer, self.mr.key, int(fi.UINT64), int(fi.SUM)

        def run(n: int) -> None:
            for _ in range(n):
                fetch(operand, None, result, None, peer, 64, key, u64, total)

        return least(run, BATCH, 1, self.drain)

    def region(self) -> tuple[float, float]:
        """(mr_reg, bind and enable; close) of a region. fi_mr(3) closes the endpoint first, fi_cxi(7) the region."""
        clock, reg, buf, regions_first = time.perf_counter_ns, self.domain.mr_reg, self.words, self.provider == "cxi"
        ep = self.ep if regions_first else self.endpoint()
        keep: list[fi.MemoryRegion] = []
        start = clock()
        for key in range(1000, 1000 + BATCH):
            mr = reg(buf, RW, requested_key=key)
            mr.bind(ep)
            mr.enable()
            keep.append(mr)
        made = clock()
        if not regions_first:
            ep.close()
        begin = clock()
        for mr in keep:
            mr.close()
        return (made - start) / BATCH, (clock() - begin) / BATCH

    def open_domain(self) -> float:
        start = time.perf_counter_ns()
        domain = self.fabric.domain(self.info)
        found = time.perf_counter_ns() - start
        domain.close()
        return float(found)

    def close(self) -> None:
        if self.provider == "cxi":
            self.mr.close()
        self.ep.close()
        for one in (self.mr, self.cq, self.av, self.domain, self.fabric):
            one.close()


@contextlib.contextmanager
def providers() -> Iterator[tuple[Opened, Opened, Opened, Opened]]:
    """The general provider; cxi with the application's keys; cxi with keys of cached memory, and of single regions."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        os.environ |= {"XDG_RUNTIME_DIR": folder, "WEFT_MR_MODE": "endpoint|allocated"}
        opened = []
        keys = MODE | fi.MR_PROV_KEY
        for provider, mode in (("weft", MODE), ("cxi", MODE), ("cxi", keys), ("cxi", keys)):
            one = Opened(provider, mode)
            stack.callback(one.close)
            opened.append(one)
        opened[3].domain.control(cxi_ext.OPT_CXI_SET_PROV_KEY_CACHE, False)
        yield opened[0], opened[1], opened[2], opened[3]


def main() -> None:
    rows = []
    loop = loop_ns()

    def pair(path: str, general: Callable[[], float], cxi: Callable[[], float], why: str = "") -> None:
        (a, a_median), (b, b_median) = spread(ROUNDS, general, cxi)
        met = b - a <= WITHIN_NS
        rows.append(Row(f"{path}: general", "", a - loop, "ns", None, median=a_median - loop))
        rows.append(
            Row(f"{path}: cxi", NEAR, b - loop, "ns", met, a - loop, "general", "" if met else why,
                median=b_median - loop)
        )  # fmt: skip

    with providers() as (general, cxi, cached, single):
        pair("8 B write to itself, registered slice", general.write, cxi.write, "the provider's rules of calls")
        pair("fetch-add on itself", general.fetch_add, cxi.fetch_add, "the provider's rules of calls")
        steps: dict[Any, list[tuple[float, float]]] = {general: [], cxi: [], cached: [], single: []}
        for _ in range(ROUNDS):  # at first, a provider key of a single region touches a new page of the key index
            single.region()
        for _ in range(ROUNDS):
            for one, found in steps.items():
                found.append(one.region())

        def step(one: Opened, which: int) -> Callable[[], float]:
            values = cycle([found[which] for found in steps[one]])  # one try measures both; a second try sees the same
            return lambda: next(values)

        for which, what in ((0, "mr_reg, bind, enable"), (1, "close of a bound region")):
            pair(what, step(general, which), step(cxi, which), "an id, and portal or list entries of the service")
            for one, of in ((cached, "of cached memory, the same"), (single, "of single regions")):
                ((ns, median),) = spread(ROUNDS, step(one, which))
                path = f"{what}: cxi, provider keys {of}"
                rows.append(Row(path, "", ns - loop, "ns", None, median=median - loop))
        for one in (general, cxi):
            ((ns, median),) = spread(20, one.open_domain)
            rows.append(
                Row(f"opening a domain: {one.provider}", "<= 5 ms", ns / 1e6, "ms", ns <= 5e6, median=median / 1e6)
            )
    publish("cxi", rows)


if __name__ == "__main__":
    main()
