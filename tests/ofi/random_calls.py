"""Random calls, legal and not, by three threads on two endpoints of one domain of a real libfabric.

    python -m tests.ofi.random_calls PROVIDER FIRST COUNT [-v] [--only N ...]

Makes the calls of COUNT seeds from FIRST on. Each seed is printed before its calls, so that the last seed of a process
that ended by a signal is known. An exception of Weft's, or of a wrong argument, is an answer; anything else is printed,
and the process ends with 1.

-v      prints each call before it is made, with its number and its thread, and its answer.
--only  makes these calls alone, in the order of their numbers, in one thread.
--one   makes the calls in one thread.
--small has no buffer of more than 4 KiB.
--mild  removes no address and closes nothing but regions before the last call.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import sys
import threading
from dataclasses import dataclass
from typing import Any

from tests.ofi.support import ACCEPTED, CAPS

from weft import fi

SIZES = (0, 1, 64, 4096, 70_000, 200_000)
CALLS, THREADS, RUN_S = 60, 3, 30.0
ODD: tuple[Any, ...] = (None, -1, 0, 1, 1 << 31, 1 << 32, (1 << 46) + 8, (1 << 64) - 1, "x", b"x", 1.5, [], object())
NAMES: tuple[Any, ...] = (b"\0" * 16, b"\xff" * 28, b"\2\0" + bytes(14), "fi_shm://1:0:0", "\udcff", ("127.0.0.1", 9))
RIGHTS = int(fi.REMOTE_WRITE | fi.REMOTE_READ)
ANSWERS = (fi.FabricError, TypeError, ValueError, OverflowError, BufferError)


@dataclass
class Call:
    """on: a name of the world's objects. Arguments that are `Region` are chosen when the call is made."""

    on: str
    method: str
    args: tuple[Any, ...] = ()
    more: dict[str, Any] | None = None

    @property
    def mild(self) -> bool:
        """No peer goes away."""
        return self.method != "remove" and (self.method != "close" or self.on == "regions")

    def __str__(self) -> str:
        words = [*map(shown, self.args), *(f"{name}={shown(value)}" for name, value in (self.more or {}).items())]
        return f"{self.on}.{self.method}({', '.join(words)})"


@dataclass
class Region:
    """The region of this number, of the regions that are registered when the call is made."""

    number: int


def shown(value: Any) -> str:
    size = value.nbytes if isinstance(value, memoryview) else len(value) if isinstance(value, (bytes, bytearray)) else 0
    return f"{type(value).__name__}({size})" if size > 28 else repr(value)


class World:
    """Two endpoints with one queue and one vector; threads close them meanwhile."""

    def __init__(self, rng: random.Random, provider: str) -> None:
        wanted = fi.Info(
            caps=CAPS | rng.choice((0, fi.MULTI_RECV, fi.DIRECTED_RECV, fi.SOURCE)),
            ep_attr=fi.EpAttr(type=fi.EP_RDM),
            domain_attr=fi.DomainAttr(mr_mode=ACCEPTED, threading=rng.choice((fi.THREAD_SAFE, fi.THREAD_DOMAIN))),
            fabric_attr=fi.FabricAttr(prov_name=provider),
        )
        try:
            found = fi.getinfo(hints=wanted)
        except fi.NoData:
            wanted.caps = fi.Flag(CAPS)
            found = fi.getinfo(hints=wanted)
        near = [one for one in found if one.domain_attr.name == "lo" and len(one.src_addr or b"") == 16]
        self.info = (near or found)[0]
        self.fabric = fi.Fabric(self.info.fabric_attr)
        self.domain = self.fabric.domain(self.info)
        self.av = self.domain.av_open()
        self.cq = self.domain.cq_open(format=fi.CQ_FORMAT_TAGGED)
        self.eq = self.fabric.eq_open(flags=fi.WRITE)
        self.ep0, self.ep1 = eps = [self.domain.endpoint(self.info) for _ in range(2)]
        enabled = rng.random() < 0.9
        for ep in eps:
            ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
            ep.bind(self.av)
            if enabled:
                ep.enable()
        self.addresses = [self.av.insert(ep.getname()) for ep in eps] if enabled else [0, 1]
        self.regions: list[Any] = []

    def make(self, call: Call) -> Any:
        args = [self._found(one) for one in call.args]
        more = {name: self._found(value) for name, value in (call.more or {}).items()}
        if call.on == "regions":
            return args[0] and args[0].close()
        if call.on == "gc":
            return gc.collect()
        made = getattr(getattr(self, call.on), call.method)(*args, **more)
        if call.method == "mr_reg":
            self.regions.append(made)
        return made

    def _found(self, value: Any) -> Any:
        if isinstance(value, Region):
            return self.regions[value.number % len(self.regions)] if self.regions else None
        return getattr(self, value.on) if isinstance(value, Call) else value

    def close(self) -> None:
        for one in (self.ep0, self.ep1, *self.regions, self.cq, self.av, self.domain, self.eq, self.fabric):
            try:
                one.close()
            except fi.FabricError:
                pass  # an object whose close was refused keeps the objects that it uses


def calls_of(rng: random.Random, addresses: list[int], sizes: tuple[int, ...]) -> list[Call]:
    """The calls of a thread."""
    return [_call(rng, addresses, sizes) for _ in range(CALLS)]


def _call(rng: random.Random, addresses: list[int], sizes: tuple[int, ...]) -> Call:
    def odd(*more: Any) -> Any:
        return rng.choice((*more, *ODD))

    def mostly(value: Any) -> Any:
        return value if rng.random() < 0.8 else rng.choice(ODD)

    if rng.random() < 0.02:
        return rng.choice([Call(one, "close") for one in ("ep0", "ep1", "cq", "av", "eq", "domain")] + [Call("gc", "")])
    size = rng.choice(sizes)
    buf = mostly(rng.choice((bytearray(size), memoryview(bytearray(size)), bytes(size), Region(rng.randrange(4)))))
    ep, to, tag, context = rng.choice(("ep0", "ep1")), mostly(rng.choice(addresses)), rng.randrange(4), odd("a", "b", 7)
    remote = {"addr": mostly(rng.choice((0, 64, 1 << 46))), "key": mostly(rng.choice((0, 1, 2, 3))), "context": context}
    sent, tagged = {"dest_addr": to, "context": context}, {"dest_addr": to, "tag": tag, "context": context}
    bound = rng.choice(("cq", "av", "ep0", "domain", "eq"))
    flags = rng.choice(
        (0, 0, int(fi.MULTI_RECV), int(fi.PEEK), int(fi.CLAIM), int(fi.PEEK | fi.CLAIM), int(fi.DISCARD))
    )
    return rng.choice(
        (
            *[Call(ep, "tsend", (buf,), tagged)] * 2,
            *[Call(ep, "trecv", (buf,), {"tag": tag, "context": context})] * 2,
            *[Call(ep, "send", (buf,), sent)] * 2,
            *[Call(ep, "recv", (buf,), {"src_addr": rng.choice((fi.ADDR_UNSPEC, to)), "context": context})] * 2,
            Call(ep, "tinject", (buf,), {"dest_addr": to, "tag": tag}),
            Call(ep, "senddata", (buf,), {"data": odd(5), **sent}),
            Call(ep, "write", (buf,), {"dest_addr": to, **remote}),
            Call(ep, "read", (buf,), {"src_addr": to, **remote}),
            Call(ep, "recvmsg", (fi.Msg([buf], context=context), flags)),
            Call(ep, "trecvmsg", (fi.MsgTagged([buf], tag=tag, context=context), flags)),
            Call(ep, "cancel", (context,)),
            *[Call("cq", "read", (8,))] * 3,
            Call("cq", "read", (odd(1),)),
            Call("cq", "sread", (8,), {"timeout": 0.01}),
            Call("cq", "readfrom", (4,)),
            Call("cq", "readerr"),
            Call("cq", "signal"),
            Call("cq", "strerror", (odd(),)),
            Call(ep, "setopt", (mostly(fi.OPT_ENDPOINT), mostly(fi.OPT_MIN_MULTI_RECV), odd())),
            Call(ep, "getopt", (mostly(fi.OPT_ENDPOINT), mostly(fi.OPT_MIN_MULTI_RECV))),
            Call(ep, "getname"),
            Call(ep, "setname", (odd(*NAMES),)),
            Call(ep, "enable"),
            Call(ep, "bind", (Call(bound, ""), rng.choice((0, 1 << 10, 3 << 10)))),
            Call("av", "insert", (odd(*NAMES),)),
            Call("av", "remove", (to,)),
            Call("av", "lookup", (to,)),
            Call("av", "straddr", (odd(*NAMES),)),
            *[Call("domain", "mr_reg", (buf, RIGHTS), {"requested_key": tag})] * 2,
            Call("regions", "close", (Region(rng.randrange(4)),)),
            Call("domain", "query_atomic", (mostly(fi.UINT64), mostly(fi.SUM))),
            Call(ep, "atomicvalid", (mostly(fi.UINT64), mostly(fi.SUM))),
            Call("eq", "write", (odd(7), 1)),
            Call("eq", "read"),
        )
    )


class Seed:
    """The calls of a seed."""

    def __init__(self, seed: int, provider: str, verbose: bool) -> None:
        self.seed, self.verbose = seed, verbose
        self.world = World(random.Random(seed), provider)
        self.wrong: list[str] = []

    def _say(self, words: str) -> None:
        if self.verbose:
            print(words.replace("\n", " "), flush=True)

    def _make(self, number: int, call: Call) -> None:
        self._say(f"{number}: {call}")
        try:
            self._say(f"    {number} -> {self.world.make(call)!r:.200}")
        except ANSWERS as e:
            words = str(e)
            self._say(f"    {number} {type(e).__name__}: {words:.200}")
            if "_core" in words or "do not fit" in words:
                self.wrong.append(f"seed {self.seed}: {call}: names internals: {words}")
        except BaseException as e:
            self.wrong.append(f"seed {self.seed}: {call}: {type(e).__name__}: {e}")

    def run(self, only: list[int] | None, one: bool, small: bool, mild: bool) -> list[str]:
        """Makes the calls. Returns results that are no answers."""
        rngs = [random.Random(self.seed * THREADS + number) for number in range(THREADS)]
        sizes = SIZES[:4] if small else SIZES
        plans = [list(enumerate(calls_of(rng, self.world.addresses, sizes), CALLS * n)) for n, rng in enumerate(rngs)]
        if only is not None:
            plans = [[call for call in plan if call[0] in only] for plan in plans]
        if mild:
            plans = [[call for call in plan if call[1].mild] for plan in plans]
        if one or only is not None:
            plans = [[call for plan in plans for call in plan]]

        def thread(plan: list[tuple[int, Call]]) -> None:
            for number, call in plan:
                self._make(number, call)

        threads = [threading.Thread(target=thread, args=(plan,), daemon=True) for plan in plans]
        for each in threads:
            each.start()
        for each in threads:
            each.join(RUN_S)
            if each.is_alive():
                faulthandler.dump_traceback(sys.stderr)
                self.wrong.append(f"seed {self.seed}: a thread has not come back from its calls within {RUN_S} s")
                return self.wrong
        self.world.close()
        return self.wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Make random calls to a real libfabric.")
    parser.add_argument("provider")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("-v", action="store_true")
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--mild", action="store_true")
    asked = parser.parse_args()
    wrong: list[str] = []
    for seed in range(asked.first, asked.first + asked.count):
        print(f"seed {seed}", flush=True)
        wrong += Seed(seed, asked.provider, asked.v).run(asked.only, asked.one, asked.small, asked.mild)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
