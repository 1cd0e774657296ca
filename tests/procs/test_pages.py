"""Pages that fail behind a region: its owner lives, and the initiator of the access is told, on every path.

The owner loses pages in the ways that programs lose them: a file is cut off, memory is unmapped or protected. It runs
with Python's faulthandler, which was installed before Weft's handler or after it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.children import Child, run
from tests.procs.peer import World

from weft import fi

pytestmark = pytest.mark.procs

NBYTES = 1 << 20
LOST, WHOLE = 5, 6
PATHS = {
    "foreign": {},
    "ring": {"WEFT_CMA": "0"},
    "strict": {"WEFT_ISOLATION": "strict"},
    "strict-manual": {"WEFT_ISOLATION": "strict", "WEFT_ENGINE": "manual"},
    "tcp": {"WEFT_SHM": "0", "WEFT_LISTEN": "tcp://127.0.0.1:0", "WEFT_SECRET": "of the tests, for lost pages"},
}


def system(name: str, *args: int) -> int:
    call = getattr(ctypes.CDLL(None, use_errno=True), name)
    call.restype = ctypes.c_ssize_t
    call.argtypes = [ctypes.c_size_t] * len(args)
    found = int(call(*args))
    assert found != -1, os.strerror(ctypes.get_errno())
    return found


def expose_pages(world: World, path: str, again: bool) -> str:
    """Map a file, register it, and a region of other memory; the endpoint's name."""
    peer.open_side(world)
    with open(path, "wb") as file:
        file.truncate(NBYTES)
    fd = os.open(path, os.O_RDWR)
    at = system("mmap", 0, NBYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    array = np.ctypeslib.as_array((ctypes.c_ubyte * NBYTES).from_address(at))
    array[:] = 1
    world.arrays["lost"] = array
    world.side.region(array, LOST)
    peer.expose(world, "whole", 64, WHOLE, True)
    if again:  # its handlers now come before ours, until the NIC looks
        faulthandler.disable()
        faulthandler.enable()
    return world.side.name


def lose_pages(world: World, path: str, way: str) -> None:
    half = NBYTES // 2
    at = world.arrays["lost"].ctypes.data + half
    if way == "truncate":
        os.truncate(path, half)
    elif way == "munmap":
        system("munmap", at, half)
    else:
        system("mprotect", at, half, 0)


def reach(world: World, name: str) -> int:
    to = world.side.av.insert(name)
    world.more["to"] = to
    world.side.ep.write(b"x" * 8, dest_addr=to, addr=NBYTES // 2, key=LOST)
    return int(getattr(world.side.outcome(), "err", 0))


def access_lost(world: World) -> dict[str, int]:
    """Every kind of access to the lost half; how each ended."""
    ep, to, side = world.side.ep, world.more["to"], world.side
    buffer = np.full(NBYTES, 7, np.uint8)
    word, before = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    where: dict[str, Any] = {"addr": NBYTES // 2, "key": LOST}
    add = {"datatype": fi.UINT64, "op": fi.SUM, "dest_addr": to, **where}
    posts = {}
    for n in (8, 5000, NBYTES // 2):
        posts[f"write {n}"] = lambda n=n: ep.write(buffer[:n], dest_addr=to, **where)
        posts[f"read {n}"] = lambda n=n: ep.read(buffer[:n], src_addr=to, **where)
        posts[f"writev {n}"] = lambda n=n: ep.writev([buffer[: n // 2], buffer[n // 2 : n]], dest_addr=to, **where)
    posts["atomic"] = lambda: ep.atomic(word, **add)
    posts["fetch"] = lambda: ep.fetch_atomic(word, result=before, **add)
    posts["compare"] = lambda: ep.compare_atomic(word, compare=word, result=before, **{**add, "op": fi.CSWAP})
    ended = {}
    for what, post in posts.items():
        post()
        ended[what] = int(getattr(side.outcome(), "err", 0))
    return ended


def write_whole(world: World) -> int:
    world.side.ep.write(b"y" * 64, dest_addr=world.more["to"], addr=0, key=WHOLE)
    return int(getattr(world.side.outcome(), "err", 0))


@pytest.mark.parametrize("again", [False, True], ids=["faulthandler-before", "faulthandler-after"])
@pytest.mark.parametrize("way", ["truncate", "munmap", "mprotect"])
@pytest.mark.parametrize("path", PATHS)
def test_owner_of_a_region_that_loses_pages_lives(path: str, way: str, again: bool, tmp_path: Path) -> None:
    """Each access to the lost pages ends with EFAULT; the owner goes on to serve what is left."""
    settings = {"WEFT_ENGINE": "thread", **PATHS[path]}
    file = str(tmp_path / "pages")
    with Child(**settings) as owner, Child(**settings) as initiator:
        name = owner.call(expose_pages, file, again)
        initiator.call(peer.open_side)
        assert initiator.call(reach, name) == 0
        owner.call(lose_pages, file, way)
        ended = initiator.call(access_lost)
        assert ended == dict.fromkeys(ended, fi.EFAULT)
        assert initiator.call(write_whole) == 0
        assert owner.call(peer.contents, "whole") == b"y" * 64
        assert "Fatal Python error" not in owner.log()


CRASH = """
import ctypes, faulthandler, resource, signal
from weft import fi
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
{before}
info = fi.getinfo()[0]
fabric = fi.Fabric(info.fabric_attr)
domain = fabric.domain(info)
{after}
ctypes.string_at(8)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("faulthandler.enable()", ""),
        ("", "faulthandler.enable()"),
        ("", "faulthandler.enable(); fabric.domain(info)"),
    ],
    ids=["without", "before", "after", "after-and-looked"],
)
def test_program_that_crashes_ends_by_its_signal(before: str, after: str) -> None:
    """What Weft does not guard kills as it always did, and faulthandler says where, once."""
    found = run(CRASH.format(before="faulthandler.disable(); " + before, after=after))
    assert found.returncode == -signal.SIGSEGV
    assert found.stderr.count("Fatal Python error: Segmentation fault") == (1 if before or after else 0)
