"""The programs of test_under_fire.py: python -m tests.memory.fire PROGRAM {"seed": ...}; its result is JSON."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import threading
from typing import Any

PAGE = mmap.PAGESIZE
FIXED = 0x10
FIXED_NOREPLACE = 0x100000
ANONYMOUS = 0x22  # MAP_PRIVATE | MAP_ANONYMOUS
SHARED = 0x01
MREMAP_MOVE_TO = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
MADV_DONTNEED = 4
SLOT_PAGES = 4

libc = ctypes.CDLL(None, use_errno=True)
P, N, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
libc.mmap.restype = libc.mremap.restype = libc.sbrk.restype = P
libc.mmap.argtypes = [P, N, I, I, I, ctypes.c_long]
libc.munmap.argtypes = [P, N]
libc.mremap.argtypes = [P, N, N, I, P]
libc.madvise.argtypes = [P, N, I]
libc.sbrk.argtypes = [ctypes.c_long]


def mapped(at: int | None, pages: int, flags: int = ANONYMOUS, fd: int = -1, offset: int = 0) -> int:
    found: int = libc.mmap(at, pages * PAGE, 3, flags | (FIXED if at else 0), fd, offset)
    assert found not in (None, 2**64 - 1), os.strerror(ctypes.get_errno())
    return found


def filled(at: int, pages: int) -> bool:
    """Maps pages into a hole; False where another thread's mmap was given the addresses meanwhile."""
    return bool(libc.mmap(at, pages * PAGE, 3, ANONYMOUS | FIXED_NOREPLACE, -1, 0) == at)


class Arena:
    """Slots of SLOT_PAGES pages, each with a lock. A slot of which another thread's mmap got a part is lost."""

    def __init__(self, slots: int) -> None:
        self.base = mapped(None, slots * SLOT_PAGES)
        self.locks = [threading.Lock() for _ in range(slots)]
        self.lost: set[int] = set()
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(1024 * PAGE)
            self.fd = os.dup(file.fileno())

    def slot(self, i: int) -> int:
        return self.base + i * SLOT_PAGES * PAGE

    def change(self, i: int, rng: random.Random) -> None:
        """Something happens to a part of a slot, which ends up mapped again. With its lock."""
        first = rng.randrange(SLOT_PAGES)
        pages = rng.randint(1, SLOT_PAGES - first)
        at = self.slot(i) + first * PAGE
        match rng.randrange(6):
            case 0:
                libc.munmap(at, pages * PAGE)
                if not filled(at, pages):
                    self.lost.add(i)
            case 1:
                mapped(at, pages)
            case 2:
                mapped(at, pages, SHARED, self.fd, rng.randrange(1000) * PAGE)
            case 3:
                moved = libc.mremap(mapped(None, pages), pages * PAGE, pages * PAGE, MREMAP_MOVE_TO, at)
                assert moved == at
            case 4:
                libc.madvise(at, pages * PAGE, MADV_DONTNEED)
            case 5:
                # Out of the slot. One page, which is one mapping: mremap of several mappings is the kernel's affair.
                away = mapped(None, 1)
                assert libc.mremap(at, PAGE, PAGE, MREMAP_MOVE_TO, away) == away
                if not filled(at, 1):
                    self.lost.add(i)
                libc.munmap(away, PAGE)


def noise(rng: random.Random, stop: threading.Event) -> None:
    """The rest of a program: allocates, frees, moves the break."""
    while not stop.is_set():
        block = bytearray(rng.choice((100, 5000, 200_000, 3_000_000)))
        del block
        if rng.random() < 0.2:
            libc.sbrk(16 * PAGE)
            libc.sbrk(-16 * PAGE)


def run_threads(work: Any, count: int, seed: int) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(random.Random(f"{seed}:{i}"))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    other = threading.Thread(target=noise, args=(random.Random(seed), stop), daemon=True)
    for thread in [*threads, other]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    other.join()
    if failed:
        raise failed[0]


def maps(seed: int, threads: int, steps: int) -> dict[str, Any]:
    from weft import fi

    cache = fi.open("mr_cache")
    arena = Arena(24)
    wrong: list[str] = []

    def work(rng: random.Random) -> None:
        for step in range(steps):
            i = rng.randrange(len(arena.locks))
            with arena.locks[i]:
                if i in arena.lost:
                    continue
                if rng.random() < 0.3:
                    arena.change(i, rng)
                    continue
                first = rng.randrange(SLOT_PAGES)
                at = arena.slot(i) + first * PAGE
                size = rng.randint(1, (SLOT_PAGES - first) * PAGE)
                with cache.search((at, size)) as entry:
                    now = system_says(entry.address, entry.length)
                    said = (entry.buffer_id != 0, entry.user, entry.persistent)
                    if said != now:
                        wrong.append(f"step {step}: {size} B at {at:#x}: the cache {said}, the system {now}")

    run_threads(work, threads, seed)
    counts = cache.statistics()
    cache.close()
    return {"contradictions": wrong[:5], "hits": counts.hits, "invalidations": counts.invalidations}


def system_says(address: int, length: int) -> tuple[bool, int, bool]:
    """(there is a file behind the first byte, offset there, all of it is a shared mapping of files), from the text."""
    file, offset, shared, at = False, 0, True, address
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            low, high = (int(word, 16) for word in fields[0].split("-"))
            if not low <= at < high:
                continue
            if at == address:
                file = fields[4] != "0"
                offset = int(fields[2], 16) + address - low if file else 0
            path = fields[5].strip() if len(fields) > 5 else ""
            shared = shared and fields[1][3] == "s" and path.startswith("/") and not path.startswith("/memfd:")
            at = high
            if at >= address + length:
                break
    return file, offset, shared


def contents(seed: int, threads: int, steps: int, count_max: int) -> dict[str, Any]:
    os.environ["FI_MR_CACHE_MAX_COUNT"] = str(count_max)
    from weft import fi

    cache = fi.open("mr_cache")
    arena = Arena(32)
    wrong: list[str] = []
    stamps = iter(range(1, 2**62))
    next_stamp = threading.Lock()

    def stamp(i: int) -> None:
        with next_stamp:
            ctypes.c_uint64.from_address(arena.slot(i)).value = next(stamps)

    for i in range(len(arena.locks)):
        stamp(i)

    def work(rng: random.Random) -> None:
        for step in range(steps):
            i = rng.randrange(len(arena.locks))
            at = arena.slot(i)
            word = ctypes.c_uint64.from_address(at)
            with arena.locks[i]:
                if rng.random() < 0.3:
                    mapped(at, 1) if rng.random() < 0.7 else libc.madvise(at, PAGE, MADV_DONTNEED)
                    stamp(i)
                    continue
                answer = {"address": at, "length": PAGE}
                with cache.search(
                    (at, 8), resolve=lambda a, n, answer=answer, word=word: {**answer, "user": word.value}
                ) as e:
                    if e.user != word.value:
                        wrong.append(f"step {step}: slot {i}: the cache {e.user}, the page {word.value}")

    run_threads(work, threads, seed)
    counts = cache.statistics()
    cache.close()
    return {"contradictions": wrong[:5], "hits": counts.hits, "invalidations": counts.invalidations}


def puts(seed: int, steps: int) -> dict[str, Any]:
    """Another process writes: it has segments mapped itself, and would not see what this one maps over them."""
    import numpy as np

    import weft

    rng = random.Random(seed)
    wrong: list[str] = []
    ways = {"direct": 0, "foreign": 0}
    array = weft.empty(64 * PAGE, np.uint8)
    array[:] = 0
    peer = subprocess.Popen(
        [sys.executable, "-m", "tests.memory.fire", "writer", "{}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdin is not None
    assert peer.stdout is not None
    with weft.open() as node:
        node.share(array).close()
        for step in range(steps):
            first = rng.randrange(64)
            at = array.ctypes.data + first * PAGE
            if rng.random() < 0.2:
                pages = rng.randint(1, 3 if first < 60 else 1)
                if rng.random() < 0.5:
                    libc.munmap(at, pages * PAGE)
                    assert filled(at, pages)  # no other thread of this process maps anything meanwhile
                else:
                    mapped(at, pages)
            pages = rng.randint(1, min(4, 64 - first))
            block = np.frombuffer((ctypes.c_uint8 * (pages * PAGE)).from_address(at), np.uint8)
            with node.share(block) as shared:
                ways["direct" if shared.ticket.direct else "foreign"] += 1
                peer.stdin.write(f"{shared.ticket} {step}\n")
                peer.stdin.flush()
                assert peer.stdout.readline() == "done\n"
                if ctypes.string_at(at, pages * PAGE) != random.Random(step).randbytes(pages * PAGE):
                    wrong.append(f"step {step}: {pages} pages at page {first}, direct {shared.ticket.direct}")
    peer.stdin.close()
    assert peer.wait(30) == 0
    return {"contradictions": wrong[:5], **ways}


def writer() -> dict[str, Any]:
    """The peer of `puts`: for each line "ticket seed" it fills the array with random bytes of that seed."""
    import numpy as np

    import weft

    with weft.open() as node:
        for line in sys.stdin:
            ticket, seed = line.split()
            remote = node.attach(ticket)
            remote[:] = np.frombuffer(random.Random(int(seed)).randbytes(remote.nbytes), np.uint8)
            print("done", flush=True)
    return {}


PROGRAMS = {"maps": maps, "contents": contents, "puts": puts, "writer": writer}

if __name__ == "__main__":
    program, arguments = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(PROGRAMS[program](**arguments)))
