"""Pages of a region fail: the owner survives, and the initiator of the access gets an error, on every path.

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


def expose_pages(world: World, path: str, again: bool, fill: bool = True) -> str:
    """Map a file, register it, and a region of other memory; the endpoint's name."""
    peer.open_side(world)
    with open(path, "wb") as file:
        file.truncate(NBYTES)
    fd = os.open(path, os.O_RDWR)
    at = system("mmap", 0, NBYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    array = np.ctypeslib.as_array((ctypes.c_ubyte * NBYTES).from_address(at))
    if fill:
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
    """Each access to the lost pages ends with EFAULT; the owner still serves the remaining pages."""
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


# ---- persistent regions ----------------------------------------------------------------------------------------------

PERSISTENT = 7
PAGE = mmap.PAGESIZE


def expose_persistent(world: World, path: str) -> str:
    """Map a file and register it as persistent; the endpoint's name."""
    peer.open_side(world)
    with open(path, "wb") as file:
        file.truncate(NBYTES)
    world.arrays["lost"] = np.memmap(path, np.uint8, "r+")
    world.side.region(world.arrays["lost"], PERSISTENT, flags=fi.RMA_PMEM)
    return world.side.name


def commit(world: World, name: str, ranges: list[tuple[int, int]]) -> list[int]:
    """Write to each (offset, length) with COMMIT_COMPLETE, then add to its first word; how each ended."""
    side = world.side
    to = side.av.insert(name)
    ended = []
    for addr, size in ranges:
        data = np.full(size, 7, np.uint8)
        side.ep.writemsg(fi.MsgRma([data], [fi.RmaIov(addr, size, PERSISTENT)], to), fi.COMMIT_COMPLETE | fi.COMPLETION)
        ended.append(int(getattr(side.outcome(), "err", 0)))
        word = np.ones(1, np.uint64)
        side.ep.atomicmsg(
            fi.MsgAtomic([word], [fi.RmaIoc(addr, 1, PERSISTENT)], to, fi.UINT64, fi.SUM),
            fi.COMMIT_COMPLETE | fi.COMPLETION,
        )
        ended.append(int(getattr(side.outcome(), "err", 0)))
    return ended


@pytest.mark.parametrize("path", PATHS)
def test_commit_to_a_truncated_file_fails_with_efault(path: str, tmp_path: Path) -> None:
    """A commit of pages that the file has lost fails; a commit of pages that the file still has is in the file."""
    settings = {"WEFT_ENGINE": "thread", **PATHS[path]}
    file, half = tmp_path / "persistent", NBYTES // 2
    with Child(**settings) as owner, Child(**settings) as initiator:
        name = owner.call(expose_persistent, str(file))
        initiator.call(peer.open_side)
        assert initiator.call(commit, name, [(0, 8), (half, 8)]) == [0, 0, 0, 0]
        os.truncate(file, half)
        lost = [(half, 8), (half, half), (NBYTES - 8, 8)]
        assert initiator.call(commit, name, lost) == [fi.EFAULT] * 6
        # Across the end: the write fails, the add to a page that is still there does not.
        assert initiator.call(commit, name, [(half - PAGE, 2 * PAGE)]) == [fi.EFAULT, 0]
        assert initiator.call(commit, name, [(64, 5000)]) == [0, 0]
        expected = (int.from_bytes(b"\7" * 8, "little") + 1).to_bytes(8, "little") + b"\7" * 4992
        assert file.read_bytes()[64:5064] == expected
        assert file.stat().st_size == half


# ---- a full disk -----------------------------------------------------------------------------------------------------

DISK = NBYTES // 4


def mount_small_disk(where: str) -> str:
    """Mount a tmpfs of DISK bytes that this thread alone sees; why that cannot be done, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private = 0x20000, 1 << 18 | 1 << 14  # CLONE_NEWNS; MS_PRIVATE | MS_REC
    if libc.unshare(new_namespace) == 0 and libc.mount(b"none", b"/", None, ctypes.c_ulong(private), None) == 0:
        options = f"size={DISK}".encode()
        if libc.mount(b"tmpfs", where.encode(), b"tmpfs", ctypes.c_ulong(0), options) == 0:
            return ""
    return f"a file system of one's own cannot be mounted here: {os.strerror(ctypes.get_errno())}"


def expose_sparse_file(world: World, where: str, again: bool) -> str:
    """Register a file that is larger than its disk, in which nothing is written yet; the endpoint's name."""
    return mount_small_disk(where) or expose_pages(world, f"{where}/sparse", again, fill=False)


def fill_disk(world: World, name: str, size: int) -> list[int]:
    """Write to the sparse file piece by piece from its start, then again the first piece; how each write ended."""
    side = world.side
    to = side.av.insert(name)
    data = np.full(size, 9, np.uint8)
    ended = []
    for addr in [*range(0, NBYTES, size), 0]:
        side.ep.write(data, dest_addr=to, addr=addr, key=LOST)
        ended.append(int(getattr(side.outcome(), "err", 0)))
    return ended


def disk_contents(world: World, stop: int) -> bytes:
    return bytes(world.arrays["lost"][:stop])


@pytest.mark.parametrize("path", PATHS)
def test_write_to_a_hole_of_a_full_disk_fails_with_efault(path: str, tmp_path: Path) -> None:
    """Writes succeed while the disk has room; each further write fails, and the owner still serves the region."""
    settings = {"WEFT_ENGINE": "thread", **PATHS[path]}
    size = DISK // 8
    with Child(**settings) as owner, Child(**settings) as initiator:
        name = owner.call(expose_sparse_file, str(tmp_path), False)
        if "cannot be mounted" in name:
            pytest.skip(name)
        initiator.call(peer.open_side)
        *ended, again = initiator.call(fill_disk, name, size)
        room = ended.index(fi.EFAULT)
        assert 0 < room <= 8
        assert ended == [0] * room + [fi.EFAULT] * (len(ended) - room)
        assert again == 0
        assert owner.call(disk_contents, room * size) == b"\x09" * (room * size)
        assert "Fatal Python error" not in owner.log()


# ---- faults of the program itself ------------------------------------------------------------------------------------

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
    """A fault that Weft does not guard kills as it always did, and faulthandler says where, once."""
    found = run(CRASH.format(before="faulthandler.disable(); " + before, after=after))
    assert found.returncode == -signal.SIGSEGV
    assert found.stderr.count("Fatal Python error: Segmentation fault") == (1 if before or after else 0)
