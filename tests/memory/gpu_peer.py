"""The code of the children of test_hmem_procs.py: sides whose memory is a fake GPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fakes import gpu as fake
from tests.procs import peer
from tests.procs.peer import CAPS, RW, Side, World

from weft import fi

KEY = 11


def open_side(world: World, with_gpu: bool, keywords: dict[str, Any]) -> str:
    if with_gpu:
        world.more["gpu"] = fake.start()
    world.side = Side(caps=CAPS | fi.HMEM, **keywords)
    return world.side.name


def insert(world: World, name: str) -> None:
    world.more["peer"] = world.side.av.insert(name)


def expose(world: World, nbytes: int, kind: str = "device", device: int = 0) -> int:
    array = world.more["gpu"].array(nbytes, kind, device)
    world.arrays["device"] = array
    world.mrs["device"] = world.side.region((array.address, nbytes), KEY, RW)
    return int(array.address)


def withdraw(world: World, free: bool) -> None:
    peer.withdraw(world, "device")
    array = world.arrays.pop("device")
    if free:
        array.free()


def contents(world: World) -> bytes:
    return bytes(world.arrays["device"].get())


def counts(world: World) -> dict[str, int]:
    found: dict[str, int] = world.more["gpu"].counts
    return found


def local(world: World, data: bytes, of_device: bool) -> Any:
    return world.more["gpu"].array(len(data)).put(data) if of_device else np.frombuffer(bytearray(data), np.uint8)


def put(world: World, data: bytes, of_device: bool, addr: int = 0) -> Any:
    world.side.ep.write(local(world, data, of_device), dest_addr=world.more["peer"], addr=addr, key=KEY)
    return outcome(world)


def get(world: World, nbytes: int, of_device: bool, addr: int = 0) -> Any:
    sink = local(world, bytes(nbytes), of_device)
    world.side.ep.read(sink, src_addr=world.more["peer"], addr=addr, key=KEY)
    found = outcome(world)
    if found:
        return found
    return sink.get() if of_device else sink.tobytes()


def add(world: World, value: int, of_device: bool) -> int:
    """fetch_atomic SUM on the first word; returns the previous value."""
    before = local(world, bytes(8), of_device)
    operand = local(world, value.to_bytes(8, "little"), of_device)
    world.side.ep.fetch_atomic(operand, None, before, None, world.more["peer"], 0, KEY, datatype=fi.UINT64, op=fi.SUM)
    assert not outcome(world)
    return int.from_bytes(before.get() if of_device else before.tobytes(), "little")


def outcome(world: World) -> int:
    found = world.side.outcome()
    return int(found.err) if isinstance(found, fi.CqErrEntry) else 0


def expose_again(world: World, nbytes: int) -> None:
    """The region of freed memory closed, a new one under its key."""
    peer.withdraw(world, "device")
    expose(world, nbytes)


def until_closed(world: World, closes: int) -> dict[str, int]:
    world.until(lambda: counts(world)["closes"] >= closes, "the dead peer's memory is still open")
    return counts(world)


def replace(world: World, nbytes: int) -> None:
    """Other memory where the region's was freed."""
    before = world.arrays["device"].address
    world.arrays["device"] = world.more["gpu"].array(nbytes)
    assert world.arrays["device"].address == before
