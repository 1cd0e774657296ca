"""`shared.replace`, `shared.resize` and `t.reattach`: the owner's calls, and the attached peers' view."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from tests.share.owner import Owner

import weft
from weft import errors
from weft.memory.reserve import room_of


def test_replaced_array_has_the_name(node: weft.Node, name: Any) -> None:
    n = name("table")
    old, new = weft.zeros(4), np.arange(6).reshape(2, 3)
    shared = node.share(old, n)
    t = node.attach(n)
    shared.replace(new)
    assert shared.array is new
    assert (shared.shape, shared.dtype, shared.name) == ((2, 3), new.dtype, n)
    assert node.attach(n)[:].tolist() == new.tolist()
    assert shared[1].tolist() == [3, 4, 5]
    with pytest.raises(weft.Replaced, match=r"is another array now, of shape \(2, 3\), of dtype int64\n.*reattach"):
        t[0]
    with pytest.raises(weft.Replaced):
        t[0] = 1
    with pytest.raises(weft.Replaced):
        t.fetch_add(0)
    assert old.tolist() == [0, 0, 0, 0]


def test_replaced_is_a_rejected_key(node: weft.Node, name: Any) -> None:
    """Code that handles KeyRejected, the error before there was Replaced, goes on working."""
    shared = node.share(weft.zeros(4), name("table"))
    t = node.attach(shared)
    shared.replace(weft.zeros(4))
    with pytest.raises(errors.KeyRejected) as caught:
        t.read()
    assert type(caught.value) is weft.Replaced
    assert type(pickle.loads(pickle.dumps(caught.value))) is weft.Replaced


def test_reattach_goes_on_with_the_new_array(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros((4, 2), "f4"), name("table"))
    t = node.attach(shared)
    shared.replace(np.arange(5, dtype="i8"))
    assert t.reattach() is t
    assert (t.shape, t.dtype, t.ndim, len(t), t.nbytes) == ((5,), np.int64, 1, 5, 40)
    assert t[:].tolist() == [0, 1, 2, 3, 4]
    assert t.fetch_add(3, 10) == 3
    assert t.take([3, 0]).tolist() == [13, 0]
    assert shared.array.tolist() == [0, 1, 2, 13, 4]


def test_reattach_without_a_change_changes_nothing(node: weft.Node, name: Any) -> None:
    shared = node.share(np.arange(4), name("table"))
    t = node.attach(shared)
    assert t.reattach()[:].tolist() == [0, 1, 2, 3]


def test_reattach_finds_a_new_owner(node: weft.Node, name: Any) -> None:
    n = name("table")
    first = node.share(np.arange(4), n)
    t = node.attach(n)
    first.close()
    with pytest.raises(errors.KeyRejected, match="has closed the share"):
        t[0]
    with pytest.raises(errors.NotFound):
        t.reattach()
    with weft.open() as other:
        other.share(np.arange(7), n)
        with pytest.raises(weft.Replaced):
            t[0]
        assert t.reattach().shape == (7,)


def test_reattach_awaitable(node: weft.Node, name: Any) -> None:
    shared = node.share(np.arange(4), name("table"))
    t = node.attach(shared)

    async def use() -> None:
        shared.replace(np.arange(3))
        with pytest.raises(weft.Replaced):
            await t.aread()
        assert (await t.areattach()) is t
        assert (await t.aread()).tolist() == [0, 1, 2]

    asyncio.run(use())


def test_reattach_of_a_part_is_refused(node: weft.Node, name: Any) -> None:
    t = node.attach(node.share(np.arange(4), name("table")))
    part = t.at[1:3]
    with pytest.raises(errors.InvalidArgument, match=r"part of .*\n.*t\.at\[\.\.\.\] again"):
        part.reattach()
    assert part[:].tolist() == [1, 2]


def test_share_without_a_name_is_replaced_by_ticket(node: weft.Node) -> None:
    shared = node.share(np.arange(4))
    t = node.attach(shared)
    before = shared.ticket
    shared.replace(np.arange(6))
    assert shared.ticket != before
    with pytest.raises(errors.KeyRejected, match="has closed the share"):
        t[0]
    with pytest.raises(errors.InvalidArgument, match=r"no name.*\n.*t\.reattach\(ticket\)"):
        t.reattach()
    assert t.reattach(shared.ticket)[5] == 5
    assert t.reattach(str(shared.ticket))[4] == 4


def test_reattach_that_fails_leaves_the_array(node: weft.Node, name: Any) -> None:
    t = node.attach(node.share(np.arange(4), name("table")))
    for source, error in ((7, TypeError), ("no such", errors.InvalidArgument), (name("absent"), errors.NotFound)):
        with pytest.raises(error):
            t.reattach(source)
        assert t[:].tolist() == [0, 1, 2, 3]
    other = weft.open()
    far = other.attach(t)
    other.close()
    with pytest.raises(errors.BadState, match="the node is closed"):
        far.reattach()


@pytest.mark.parametrize(
    ("array", "error", "text"),
    [
        ([1, 2], TypeError, "replace: "),
        (np.zeros((4, 4))[:, 1], errors.InvalidArgument, "not C-contiguous"),
        (b"abc", errors.AccessDenied, "read-only"),
    ],
)
def test_replace_by_what_cannot_be_shared_keeps_the_old_array(
    node: weft.Node, name: Any, array: Any, error: type[Exception], text: str
) -> None:
    shared = node.share(np.arange(4), name("table"))
    t = node.attach(shared)
    with pytest.raises(error, match=text):
        shared.replace(array)
    assert t[:].tolist() == [0, 1, 2, 3]


def test_replace_and_resize_of_a_closed_share_are_refused(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros(4, reserve=9), name("table"))
    shared.close()
    with pytest.raises(errors.BadState, match=r"replace: .*closed"):
        shared.replace(np.zeros(3))
    with pytest.raises(errors.BadState, match=r"resize: .*closed"):
        shared.resize(5)


def test_replace_keeps_the_access(node: weft.Node, name: Any) -> None:
    shared = node.share(b"abc", name("table"), access="r")
    shared.replace(b"defg")
    t = node.attach(shared.name)
    assert bytes(t[:]) == b"defg"
    with pytest.raises(errors.AccessDenied):
        t[0] = 1


def test_replaced_arrays_regions_are_released(node: weft.Node, name: Any) -> None:
    from weft import _process

    shared = node.share(weft.zeros(4), name("table"))
    before = _process.nic().statistics()["regions"]
    for n in range(20):
        shared.replace(weft.zeros(n))
    shared.replace(weft.zeros(4))
    assert _process.nic().statistics()["regions"] == before


# ---- the length ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [weft.empty, weft.zeros])
def test_reserve_is_room_behind_the_array(make: Any) -> None:
    array = make((3, 5), "f4", reserve=8)
    assert array.shape == (3, 5)
    assert array.flags.c_contiguous
    room = room_of(array)
    assert room is not None
    assert room.shape == (8, 5)
    assert make(4, "u1", reserve=4).shape == (4,)
    assert make(0, "u1", reserve=4).shape == (0,)
    assert make((2, 0), reserve=4).shape == (2, 0)
    assert room_of(array[1:]) is None
    assert room_of(array.reshape(-1)) is None
    assert room_of(make((3, 5))) is None


def test_reserved_zeros_are_zero_and_take_no_memory() -> None:
    from weft import _process

    before = _process.nic().statistics()["allocated_bytes"]
    array = weft.zeros(3, "i8", reserve=10**9)  # more than the machine has
    room = room_of(array)
    assert room is not None
    assert room[[0, 3, 10**9 - 1]].tolist() == [0, 0, 0]
    del array, room
    assert _process.nic().statistics()["allocated_bytes"] == before


@pytest.mark.parametrize(
    ("shape", "reserve", "error", "text"),
    [
        ((3, 4), 2, errors.InvalidArgument, "reserve=2 is less than the 3 rows"),
        (3, -1, errors.InvalidArgument, "reserve=-1"),
        ((), 4, errors.InvalidArgument, "without dimensions"),
        (3, "9", TypeError, "reserve is a number of rows"),
        (3, 4.0, TypeError, "reserve is a number of rows"),
        ("abc", 4, TypeError, "a shape is"),
        ((-3, 4), 9, ValueError, "negative length"),
        (3, 1 << 62, ValueError, "more than an address space"),
    ],
)
def test_bad_reserve_is_refused(shape: Any, reserve: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        weft.empty(shape, reserve=reserve)


def test_longer_array_is_seen_after_reattach(node: weft.Node, name: Any) -> None:
    array = weft.zeros((2, 3), "i4", reserve=10)
    shared = node.share(array, name("rows"))
    t = node.attach(shared)
    shared.resize(5)
    shared.array[4] = 7
    assert shared.array.shape == (5, 3)
    assert np.shares_memory(shared.array, array)
    assert t.shape == (2, 3)
    t[1, 0] = 3  # goes on with the length that it knows
    with pytest.raises(IndexError):
        t[4]
    assert node.attach(shared.name)[4].tolist() == [7, 7, 7]
    assert t.reattach()[4].tolist() == [7, 7, 7]
    assert array[1, 0] == 3
    shared.resize(5)
    assert t[4, 0] == 7


def test_shorter_array_ends_the_access_of_peers(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros(8, "i4", reserve=8), name("rows"))
    t = node.attach(shared)
    shared.resize(3)
    with pytest.raises(weft.Replaced, match=r"of shape \(3,\)"):
        t[7]
    assert t.reattach().shape == (3,)
    shared.resize(0)
    with pytest.raises(weft.Replaced):
        t[0]
    assert t.reattach()[:].tolist() == []
    shared.resize(8)
    assert t.reattach().shape == (8,)


def test_array_without_a_reserve_gets_shorter_and_back(node: weft.Node, name: Any) -> None:
    array = np.arange(6)
    shared = node.share(array, name("rows"))
    shared.resize(2)
    assert node.attach(shared.name)[:].tolist() == [0, 1]
    shared.resize(6)
    assert node.attach(shared.name)[:].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(errors.NoSpace, match="has no room for 7 rows"):
        shared.resize(7)


@pytest.mark.parametrize("access", ["r", "rw"])
def test_resize_beyond_the_room_is_refused(node: weft.Node, name: Any, access: str) -> None:
    shared = node.share(weft.zeros((2, 3), "i4", reserve=4), name("rows"), access)
    shared.resize(4)
    with pytest.raises(errors.NoSpace, match=r"reserve is used up\n.*weft\.empty\(\(5, 3\), 'int32', reserve=n\)"):
        shared.resize(5)
    assert shared.shape == (4, 3)


@pytest.mark.parametrize(
    ("length", "error"), [(-1, errors.InvalidArgument), ("3", TypeError), (2.0, TypeError), (None, TypeError)]
)
def test_resize_to_what_is_no_length_is_refused(
    node: weft.Node, name: Any, length: Any, error: type[Exception]
) -> None:
    shared = node.share(weft.zeros(2, reserve=4), name("rows"))
    with pytest.raises(error, match="resize: the length is"):
        shared.resize(length)


def test_resize_without_dimensions_is_refused(node: weft.Node) -> None:
    with pytest.raises(errors.InvalidArgument, match="without dimensions"):
        node.share(np.zeros(())).resize(1)


def test_empty_array_with_a_reserve_grows(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.empty(0, "i8", reserve=3), name("log"))
    t = node.attach(shared)
    assert t[:].tolist() == []
    for n in range(3):
        shared.resize(n + 1)
        shared.array[n] = n
    assert t.reattach()[:].tolist() == [0, 1, 2]


# ---- while peers read ------------------------------------------------------------------------------------------------

MAKE = {"load/store": "weft.empty", "process_vm": "np.empty"}


@pytest.mark.procs
@pytest.mark.parametrize("path", list(MAKE))
def test_reader_sees_one_array_or_replaced(node: weft.Node, own_owner: Owner, name: Any, path: str) -> None:
    """Array i has 40,000 + i elements, and each is i: a mixture would show."""
    n = name("frames")
    own_owner.tell(f"def make(i):\n a = {MAKE[path]}(40000 + i, 'i8')\n a.fill(i)\n return a")
    own_owner.tell(f"shared = node.share(make(0), {n!r})")
    t = node.attach(n)
    told: list[Any] = []

    def replace() -> None:
        told.append(own_owner.tell("for i in range(1, 151):\n shared.replace(make(i))"))

    thread = threading.Thread(target=replace)
    thread.start()
    seen, replaced = set(), 0
    last = -1
    while last < 150:
        try:
            found = t.read()
        except weft.Replaced:
            replaced += 1
            t.reattach()
            continue
        value = int(found[0])
        assert len(found) == 40000 + value
        assert (found == value).all()
        assert value >= last
        last = value
        seen.add(value)
    thread.join()
    assert told == [None]
    assert t.path == path
    assert replaced >= len(seen) - 1


@pytest.mark.procs
def test_reader_of_a_resized_array_stays_inside(node: weft.Node, own_owner: Owner, name: Any) -> None:
    """Rows that the array has are 1; reserved rows are -1, and no reader may see them."""
    n = name("log")
    own_owner.tell(
        "a = weft.empty(1, 'i8', reserve=30000)\nfrom weft.memory.reserve import room_of\nroom_of(a)[:] = -1"
    )
    own_owner.tell(f"a[0] = 1\nshared = node.share(a, {n!r})")
    t = node.attach(n)
    code = (
        "import random\nrng = random.Random(5)\n"
        "for i in range(300):\n"
        " k, old = rng.randrange(1, 30001), len(shared.array)\n"
        " if k > old: room_of(a)[old:k] = 1\n"
        " shared.resize(k)\n"
        " room_of(a)[k:] = -1\n"
        "shared.resize(30000)\nroom_of(a)[:] = 1"
    )
    thread = threading.Thread(target=own_owner.tell, args=(code,))
    thread.start()
    while t.shape[0] != 30000 or thread.is_alive():
        try:
            found = t.read()
        except weft.Replaced:
            found = None
        else:
            assert (found == 1).all()
        t.reattach()
    thread.join()
    assert t.reattach().shape == (30000,)


def reattach_in_worker(t: Any, answers: Any) -> None:
    answers.put(t.reattach()[:].tolist())


@pytest.mark.procs
def test_pickled_array_reattaches_in_a_worker(node: weft.Node, name: Any) -> None:
    shared = node.share(np.arange(3), name("table"))
    t = node.attach(shared)
    shared.replace(np.arange(5))
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    worker = context.Process(target=reattach_in_worker, args=(t, answers))
    worker.start()
    try:
        assert answers.get(timeout=100) == [0, 1, 2, 3, 4]
        worker.join(100)
    finally:
        worker.kill()
        worker.join()


def test_call_that_began_before_another_task_reattached_says_replaced() -> None:
    """The call fails on the old region when the array is already the new array, which is not closed."""
    with Owner("late-", WEFT_ISOLATION="strict") as owner, weft.open() as node:
        owner.tell("s = node.share(np.zeros(4), 'late-table')")
        t = node.attach("late-table")
        t.read()

        async def read_while_reattached() -> bool:
            reading = asyncio.ensure_future(t.aread())
            await asyncio.sleep(0)  # the read is under way
            if reading.done():  # or has its answer already, on a busy machine
                with pytest.raises(weft.Replaced, match="is another array now"):
                    await reading
                t.reattach()
                return False
            t.reattach()
            with pytest.raises(weft.Replaced, match=r"t.reattach\(\) was called meanwhile\n  try: the call again"):
                await reading
            assert (await t.aread()).tolist() == [1, 1, 1, 1]
            return True

        for _ in range(50):
            owner.tell("s.replace(np.ones(4))")
            if asyncio.run(read_while_reattached()):
                return
        pytest.fail("each of 50 reads had its answer before the array was attached again")
