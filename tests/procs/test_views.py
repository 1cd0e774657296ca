"""Views of arrays whose owner closes, dies or frees them, and views whose process dies: the memory of a view stays, no
other array gets it, and it comes back when the last process has dropped it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest
from tests.patience import Patience
from tests.procs.children import CALL_S, run
from tests.share.owner import Owner

pytestmark = pytest.mark.procs

_number = itertools.count()
MAKE = "a = weft.zeros(6000, 'i8'); a[:] = 7; shared = node.share(a{}); at = a.ctypes.data"
FREE = "shared.close(); shared = a = None"
NEW = "new = [weft.zeros(6000, 'i8') for _ in range(6)]"
IS_NEW = "at in [n.ctypes.data for n in new]"


def side(**environment: str) -> Owner:
    return Owner(f"test-{os.getpid()}-views-{next(_number)}-", **environment)


@pytest.fixture
def pair() -> Iterator[tuple[Owner, Owner]]:
    """An owner of an array `a`, and a viewer with `t` and its view `v`."""
    with side() as owner, side() as viewer:
        owner.tell(MAKE.format(""))
        viewer.tell(f"t = node.attach({owner.tell('str(shared.ticket)')!r})")
        viewer.tell("v = t.view()")
        yield owner, viewer


def until_reused(owner: Owner) -> None:
    """Allocate until the place of `a` is allocated again: the owner may still have to hear of the view's end."""
    deadline = Patience(CALL_S)
    while True:
        owner.tell(NEW)
        if owner.tell(IS_NEW):
            assert owner.tell("int(sum(n.any() for n in new))") == 0
            return
        owner.tell("del new")
        assert not deadline.over, "the place is not used again"


def test_place_is_not_reused_while_a_view_lives(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    owner.tell(FREE)
    owner.tell(NEW)
    assert not owner.tell(IS_NEW)
    viewer.tell("v[:3000] += 1")
    assert viewer.tell("(int(v.min()), int(v.max()), int(v.sum()))") == (7, 8, 45000)
    assert owner.tell("int(sum(n.any() for n in new))") == 0
    viewer.tell("v = None")
    until_reused(owner)


def test_place_is_kept_for_the_last_of_several_views(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    viewer.tell("part, reader = t.at[5:9].view()[1:], t.view('r')[::-1]")
    owner.tell(FREE)
    for name in ("v", "part"):
        viewer.tell(f"{name} = None")
        owner.tell(NEW)
        assert not owner.tell(IS_NEW)
        owner.tell("del new")
    viewer.tell("reader = None")
    until_reused(owner)


def test_owner_that_closed_its_share_is_still_seen(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    owner.tell("shared.close()")
    owner.tell("a[17] = 99")
    assert viewer.tell("int(v[17])") == 99
    viewer.tell("v[18] = 100")
    assert owner.tell("int(a[18])") == 100


def test_view_of_a_killed_owner_shows_the_last_contents(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    owner.tell("a[17] = 99")
    owner.kill()
    assert viewer.tell("(int(v[17]), int(v.sum()))") == (99, 6000 * 7 + 92)
    viewer.tell("v[:] = 1")
    assert viewer.tell("int(v.sum())") == 6000
    viewer.tell(f"import time\nend = time.monotonic() + {CALL_S}")
    with pytest.raises(AssertionError, match="ConnectionReset"):
        viewer.tell("while time.monotonic() < end: t.view()")  # until the viewer hears of the death
    viewer.tell("v = None")


def test_view_shows_the_array_that_was_replaced(pair: tuple[Owner, Owner]) -> None:
    """A new array under the same name gets another place, and new views show it."""
    owner, viewer = pair
    owner.tell("old = node.share(a, prefix + 'name')")
    viewer.tell(f"w = node.attach({owner.prefix + 'name'!r}).view()")
    owner.tell("old.close(); " + FREE + "; old = None")
    owner.tell("b = weft.zeros(6000, 'i8'); node.share(b, prefix + 'name')")
    viewer.tell(f"x = node.attach({owner.prefix + 'name'!r}).view()")
    viewer.tell("x[:] = 3")
    assert viewer.tell("(int(v[0]), int(w[0]), int(x[0]))") == (7, 7, 3)
    assert owner.tell("(int(b[0]), b.ctypes.data != at)") == (3, True)
    viewer.tell("v = w = None")
    until_reused(owner)


def test_killed_viewer_releases_its_place(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    owner.tell(FREE)
    owner.tell(NEW)
    assert not owner.tell(IS_NEW)
    owner.tell("del new")
    viewer.kill()
    until_reused(owner)


def test_stopped_viewer_keeps_its_place(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    viewer.stop()
    try:
        owner.tell(FREE)
        owner.tell(NEW)
        assert not owner.tell(IS_NEW)
    finally:
        viewer.go_on()
    assert viewer.tell("int(v.sum())") == 42000


FORK = """
r, w = os.pipe()
child = os.fork()
if child == 0:
    os.close(w)
    {child}
    os.read(r, 1)
    os._exit(0 if int(v.sum()) == 42000 else 1)
os.close(r)
"""


def test_forked_child_keeps_the_place_of_a_view(pair: tuple[Owner, Owner]) -> None:
    """The parent drops its view, and the child's view is still no other array's memory."""
    owner, viewer = pair
    viewer.tell(FORK.format(child="pass"))
    viewer.tell("v = None")
    owner.tell(FREE)
    owner.tell(NEW)
    assert not owner.tell(IS_NEW)
    owner.tell("for n in new: n[:] = 1")
    owner.tell("del n, new")
    viewer.tell("os.close(w)")
    assert viewer.tell("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0
    until_reused(owner)


def test_forked_child_that_outlives_its_parent_keeps_the_place(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    viewer.tell(FORK.format(child="import signal; signal.pause()"))
    child = viewer.tell("child")
    try:
        viewer.kill()
        owner.tell(FREE)
        for _ in range(5):  # the owner hears of the death in one of them
            owner.tell(NEW)
            assert not owner.tell(IS_NEW)
            owner.tell("new.clear()")
    finally:
        os.kill(child, signal.SIGKILL)
    until_reused(owner)


def test_forked_child_ends_no_hold_of_its_parent(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    viewer.tell(FORK.format(child="keep = v.copy(); v = None; import gc; gc.collect(); v = keep"))
    viewer.tell("os.close(w)")
    assert viewer.tell("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0
    owner.tell(FREE)
    owner.tell(NEW)
    assert not owner.tell(IS_NEW)
    assert viewer.tell("int(v.sum())") == 42000


def test_forked_child_makes_views_of_its_own(pair: tuple[Owner, Owner]) -> None:
    owner, viewer = pair
    viewer.tell(FORK.format(child="t.view()[0] = 8; v = t.view(); v[1] -= 1"))
    viewer.tell("os.close(w)")
    assert viewer.tell("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0
    assert owner.tell("a[:3].tolist()") == [8, 6, 7]


def test_forked_child_of_the_owner_makes_views(pair: tuple[Owner, Owner]) -> None:
    owner, _ = pair
    owner.tell("v = shared.view()")
    owner.tell(FORK.format(child="v = shared.remote.view('r')"))
    owner.tell("os.close(w)")
    assert owner.tell("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0


# ---- protection ------------------------------------------------------------------------------------------------------

WRITE = """
import ctypes, sys, weft
node = weft.open()
own = weft.zeros(6000, "i8")
own[:] = 7
v = {array}.view("r")
assert v[0] == 7
{before}
ctypes.memset(v.ctypes.data, 1, 1)
print("written")
"""


@pytest.mark.parametrize("access", ["r", "rw"])
@pytest.mark.parametrize("whose", ["another process's", "its own"])
def test_store_to_a_read_only_view_faults(access: str, whose: str) -> None:
    """Past NumPy's flag, the pages themselves are read-only."""
    with side() as owner:
        owner.tell(MAKE.format(f", access={access!r}"))
        array = f"node.share(own, access={access!r})"
        if whose == "another process's":
            array = f"node.attach({owner.tell('str(shared.ticket)')!r})"
        done = run(WRITE.format(array=array, before=""))
        assert (done.returncode, done.stdout) == (-signal.SIGSEGV, ""), done.stderr
        assert owner.tell("int(a[0])") == 7


def test_read_only_view_cannot_be_mapped_writable() -> None:
    """mprotect(2) is refused, because the file behind the view is open for reading only."""
    mprotect = (
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "page = v.ctypes.data & ~4095\n"
        "assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 3) == -1\n"
        "print(ctypes.get_errno()); sys.exit(0)"
    )
    with side() as owner:
        owner.tell(MAKE.format(", access='r'"))
        array = f"node.attach({owner.tell('str(shared.ticket)')!r})"
        done = run(WRITE.format(array=array, before=mprotect))
    assert (done.returncode, done.stdout) == (0, "13\n"), done.stderr


def test_many_views_leave_nothing(pair: tuple[Owner, Owner]) -> None:
    """Neither descriptors nor mappings."""
    _, viewer = pair
    usage = "(len(os.listdir('/proc/self/fd')), len(open('/proc/self/maps').readlines()))"
    viewer.tell("v = None")
    viewer.tell("for i in range(50): t.view(), t.view('r')")
    before = viewer.tell(usage)
    viewer.tell("for i in range(2000): t.view(), t.view('r'), t.at[i].view()")
    after = viewer.tell(usage)
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 8


def test_program_ends_with_views() -> None:
    """Views in globals, in a thread, in atexit handlers: the program ends in order."""
    with side() as owner:
        owner.tell(MAKE.format(""))
        done = run(
            "import atexit, threading, weft\n"
            f"t = weft.open().attach({owner.tell('str(shared.ticket)')!r})\n"
            "v, w = t.view(), t.view('r')\n"
            "def late():\n"
            "    v[0] = 1\n"
            "    print(int(w[0]), int(v[1]))\n"
            "atexit.register(late)\n"
            "class Last:\n"
            "    def __init__(self): self.v = v\n"
            "    def __del__(self): self.v[1] = 2\n"
            "last = Last()\n"
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "1 7\n", "")
        assert owner.tell("a[:3].tolist()") == [1, 2, 7]
