"""Two sides of weft.ucp on any path, the facts' functions at the target, and the list of the facts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import Side, World

import weft
from weft import errors, fi, ucp
from weft.ucp import Status

LARGE = 8 << 20
ALL = ucp.MEM_MAP_PROT_LOCAL_READ | ucp.MEM_MAP_PROT_LOCAL_WRITE
REMOTE_RW = ucp.MEM_MAP_PROT_REMOTE_READ | ucp.MEM_MAP_PROT_REMOTE_WRITE
FACTS: dict[str, Callable[[Pair], None]] = {}
CLAUSES: dict[str, tuple[str, ...]] = {}
_names = itertools.count()
# Free in every process of this system: between the heap and where mmap places things.
SYMMETRIC_AT = 0x5A00_0000_0000


def fact(*clauses: str) -> Callable[[Callable[[Pair], None]], Callable[[Pair], None]]:
    def keep(function: Callable[[Pair], None]) -> Callable[[Pair], None]:
        FACTS[function.__name__] = function
        CLAUSES[function.__name__] = clauses
        return function

    return keep


# ---- at the target ---------------------------------------------------------------------------------------------------


def open_worker(world: World) -> bytes:
    """Open a context and a worker; its address."""
    world.more["context"] = ucp.Context()
    world.more["worker"] = world.more["context"].worker_create()
    return bytes(world.more["worker"].address)


def map_memory(
    world: World, name: int, nbytes: int, foreign: bool, fill: int, prot: int, flags: int, address: int
) -> tuple[bytes, int]:
    """Map memory under a name; (packed key, address)."""
    context: ucp.Context = world.more["context"]
    if foreign:
        array = np.full(nbytes, fill, np.uint8)
        memh = context.mem_map(array, prot=prot, flags=flags)
    else:
        memh = context.mem_map(
            length=nbytes, address=address, prot=prot, flags=flags, allocate=True, memory_type=ucp.MEMORY_TYPE_HOST
        )
        array = memh.array()[:nbytes]
        array[:] = fill
    world.arrays[name] = array
    world.more[name] = memh
    return bytes(memh.pack()), memh.address


def unmap(world: World, name: int) -> None:
    world.more.pop(name).unmap()


def contents(world: World, name: int, start: int = 0, stop: int | None = None) -> bytes:
    return bytes(world.arrays[name][start:stop])


def export(world: World, name: int) -> bytes:
    return bytes(world.more[name].pack(flags=ucp.MEMH_PACK_FLAG_EXPORT))


def expose_by_fi(world: World, nbytes: int, foreign: bool, virt_addr: bool) -> tuple[bytes, bytes, int]:
    """A region of weft.fi, as UCP names it: (its endpoint's address, its key, its address)."""
    mode = int(fi.MR_VIRT_ADDR | fi.MR_PROV_KEY) if virt_addr else 0
    if virt_addr:
        os.environ["WEFT_MR_MODE"] = "virt_addr|prov_key"
    try:
        world.side = Side(mr_mode=mode)
    finally:
        os.environ.pop("WEFT_MR_MODE", None)
    array = peer.memory(world.side, nbytes, foreign, 0xEE)
    world.arrays["fi"] = array
    mr = world.side.region(array, 7)
    return bytes(ucp.pack_endpoint(world.side.ep)), bytes(ucp.pack_region(mr, world.side.ep)), mr.address


def withdraw_fi(world: World) -> None:
    peer.close_side(world)


def fi_contents(world: World, start: int, stop: int) -> bytes:
    return bytes(world.arrays["fi"][start:stop])


def fi_way(world: World, name: int) -> tuple[str, int, int]:
    """How weft.fi reaches mapped memory: (name for the address vector, key, address of the first byte)."""
    return world.more["worker"].fi_name, *world.more[name].fi_key


def share_array(world: World, foreign: bool) -> tuple[bytes, bytes, tuple[str, int, int]]:
    """An array of the friendly layer, as both dialects reach it."""
    node = world.more["node"] = weft.open()
    array = np.zeros(64, np.uint64) if foreign else weft.zeros(64, np.uint64)
    world.arrays["shared"] = array
    shared = world.more["shared"] = node.share(array)
    return node.ucp_address, shared.ucp_rkey, shared.fi_key


def share_refusal(world: World, foreign: bool) -> str:
    """Why this process, which has no engine thread, shares no array."""
    try:
        share_array(world, foreign)
    except errors.NotSupported as refused:
        return str(refused)
    finally:
        world.more.pop("node").close()
    return ""


def end_share(world: World) -> None:
    world.more.pop("shared").close()
    world.more.pop("node").close()


def put_there(world: World, address: bytes, packed: bytes, data: bytes, at: int) -> None:
    """Put into memory that the other side mapped."""
    with world.more["worker"].ep_create(address) as ep, ep.rkey_unpack(packed) as key:
        settle(ep.put_nbx(data, key.address + at, key))
        settle(ep.flush_nbx())


def close_context(world: World) -> None:
    world.more.pop("context").close()


# ---- the two ---------------------------------------------------------------------------------------------------------


class Target:
    """Another process with a worker, and this side's endpoint to it."""

    def __init__(self, pair: Pair, child: Child | None, **ep: Any) -> None:
        self.pair, self.child, self.world = pair, child, World()
        self.address: bytes = self.there(open_worker)
        self.ep = pair.worker.ep_create(self.address, **ep)

    def there(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.world, *args) if self.child is None else self.child.call(function, *args)

    def map(
        self, nbytes: int, fill: int = 0xEE, prot: int = ALL | REMOTE_RW, flags: int = 0, address: int = 0
    ) -> Remote:
        name = next(_names)
        foreign = self.pair.foreign and not address
        key, at = self.there(map_memory, name, nbytes, foreign, fill, int(prot), int(flags), address)
        return Remote(self, name, nbytes, key, at)

    def close(self) -> None:
        self.ep.close()
        self.there(close_context)
        if self.child is not None:
            code = self.child.close()
            assert code == 0, code


class Remote:
    """Mapped memory of a target, and this side's key of it."""

    def __init__(self, target: Target, name: int, nbytes: int, packed: bytes, address: int) -> None:
        self.target, self.name, self.nbytes, self.packed, self.address = target, name, nbytes, packed, address
        self.key = target.ep.rkey_unpack(packed)

    def bytes(self, start: int = 0, stop: int | None = None) -> bytes:
        found: bytes = self.target.there(contents, self.name, start, self.nbytes if stop is None else stop)
        return found

    def unmap(self) -> None:
        self.target.there(unmap, self.name)

    def close(self) -> None:
        self.key.destroy()
        self.unmap()


class Pair:
    """This side's context, worker and endpoint, and one target."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.foreign = path in ("foreign", "ring")
        self.context = ucp.Context()
        self.worker = self.context.worker_create()
        self.target = self.meet()
        self.ep = self.target.ep

    def meet(self, **ep: Any) -> Target:
        """One more target."""
        if self.path == "self":
            return Target(self, None, **ep)
        settings = {k: v for k, v in os.environ.items() if k.startswith("WEFT_")}
        child = Child(**settings)
        child.progress = self.progress
        return Target(self, child, **ep)

    def progress(self) -> None:
        self.worker.progress()

    def silent(self) -> bool:
        self.worker.flush_nbx().wait(CALL_S / 2)
        return self.worker.under_way() == 0

    def close(self) -> None:
        self.target.close()
        self.context.close()


def settle(request: ucp.Request) -> None:
    request.wait(CALL_S / 2)


def status_of(request: ucp.Request) -> Status:
    """How it ended."""
    deadline = Patience(CALL_S / 2)
    while not request.done:
        assert not deadline.over, "no end in sight"
        request.worker.progress()
    if request.status != Status.OK:
        with pytest.raises(ucp.UcsError) as told:
            request.result()
        assert (told.value.status, bool(told.value.message)) == (request.status, True)
    return request.status


def data_of(nbytes: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
