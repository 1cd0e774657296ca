"""Resources of a NIC, shared by processes: limits, reservations, and the leftovers of dead processes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import resource
import threading
from pathlib import Path

import pytest
from tests.cxi.support import RW, opened
from tests.procs.children import Child

from weft import _nic, cxi, errors, fi, testing
from weft.providers.cxi import device, processes, resources, service
from weft.providers.cxi.record import TOTALS


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


def pool_of(id: int = 1) -> resources.Pool:
    found = service.service("cxi0", id)
    assert found is not None
    return resources.open_pool(device.devices()[0], found)


def take_all(pool: resources.Pool, kind: str, step: int = 1) -> int:
    taken = 0
    while True:
        try:
            pool.take(kind, step)
        except resources.Exhausted:
            return taken
        taken += step


# ---- one process -----------------------------------------------------------------------------------------------------


def test_nic_has_as_much_as_the_real_one() -> None:
    pool = pool_of()
    assert take_all(pool, "ptes", 4) == 2560
    assert take_all(pool, "les") == 13955
    pool.close()


@pytest.mark.clause("cxi.auth.service-resources")
@pytest.mark.parametrize("most", [0, 1, 7, 100, 4097])
def test_limit_of_a_service_is_exact(most: int) -> None:
    pool = pool_of(service.create(limits={"les": most}).id)
    assert take_all(pool, "les") == most
    pool.close()


def test_exhausted_says_what_and_who() -> None:
    made = service.create(limits={"cts": 3})
    pool = pool_of(made.id)
    pool.take("cts", 2)
    with pytest.raises(resources.Exhausted) as caught:
        pool.take("cts", 2)
    error = caught.value
    assert (error.kind, error.limit, error.in_use, error.errno) == ("cts", 3, 2, 28)
    assert f"process {os.getpid()}" in error.by[0][0]
    assert f"2 cts of cxi0, service {made.id}: the service's limit is 3, 2 are in use" in str(error)
    pool.take("cts", 1)  # the refused take took nothing
    pool.close()


def test_what_is_given_back_can_be_taken_again() -> None:
    pool = pool_of(service.create(limits={"eqs": 10}).id)
    for _ in range(30):
        assert take_all(pool, "eqs") == 10
        pool.give("eqs", 10)
    assert pool.taken == {}
    pool.close()


def test_domains_of_a_process_share_a_limit_exactly() -> None:
    made = service.create(limits={"les": 1000})
    first, second = pool_of(made.id), pool_of(made.id)
    first.take("les", 400)
    assert take_all(second, "les") == 600
    first.close()
    assert take_all(second, "les") == 400
    second.close()
    assert resources.usage("cxi0") == {}


def test_more_than_was_taken_cannot_be_given_back() -> None:
    pool = pool_of()
    pool.take("les")
    with pytest.raises(errors.InvalidArgument, match="2 les given back, 1 were taken"):
        pool.give("les", 2)
    pool.close()


def test_closed_pool_gives_nothing() -> None:
    pool = pool_of()
    pool.close()
    pool.close()
    with pytest.raises(errors.BadState):
        pool.take("les")


def test_reservation_is_kept_for_its_service() -> None:
    reserved = service.create(limits={"ptes": (2560, 560)})
    other = pool_of()
    assert take_all(other, "ptes") == 2000
    mine = pool_of(reserved.id)
    assert take_all(mine, "ptes") == 560
    with pytest.raises(resources.Exhausted, match="the device has 2560"):
        mine.take("ptes")
    other.close()
    mine.close()


def test_device_s_total_bounds_all_services_together() -> None:
    pools = [pool_of(), pool_of(service.create().id)]
    assert take_all(pools[0], "txqs", 24) + take_all(pools[1], "txqs") == TOTALS["txqs"]
    for pool in pools:
        pool.close()


def test_threads_take_no_more_than_there_is() -> None:
    pool = pool_of(service.create(limits={"les": 2000}).id)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(take_all(pool, "les"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) == 2000
    pool.close()


# ---- several processes -----------------------------------------------------------------------------------------------

_kept: list[resources.Pool] = []
_open = contextlib.ExitStack()


def take_in_child(world: object, folder: str, id: int, kind: str, count: int) -> int:
    os.environ["WEFT_CXI_REGISTRY"] = folder
    pool = pool_of(id)
    _kept.append(pool)
    if count < 0:
        return take_all(pool, kind)
    pool.take(kind, count)
    return count


def test_processes_never_have_more_than_the_limit(folder: Path) -> None:
    made = service.create(limits={"les": 3000})
    running = [Child() for _ in range(3)]
    try:
        calls = [child.start(take_in_child, str(folder), made.id, "les", -1) for child in running]
        taken = sum(call.result() for call in calls)
        assert taken == 3000  # nothing is kept in advance by a process that takes all it can
        assert sum(held["les"] for held in resources.usage("cxi0").values()) == 3000
    finally:
        for child in running:
            child.destroy()


def test_killed_process_gives_back_what_it_had(folder: Path) -> None:
    made = service.create(limits={"cts": 5})
    with Child() as child:
        assert child.call(take_in_child, str(folder), made.id, "cts", 5) == 5
        assert any(str(child.pid) in name for name in resources.users("cxi0", made.id))
        pool = pool_of(made.id)
        with pytest.raises(resources.Exhausted, match=f"process {child.pid}"):
            pool.take("cts")
        child.kill()
        child.wait()
        assert take_all(pool, "cts") == 5
        assert resources.users("cxi0", made.id) == [
            name for name in resources.users("cxi0") if str(os.getpid()) in name
        ]
        pool.close()
        child.destroy()


def test_processes_of_a_container_without_proc_keep_what_they_have(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(processes, "PROC", "/nowhere")
    pool = pool_of()
    pool.take("cts", 3)
    pool.reclaim("cts")  # what dead processes have
    assert pool.held("cts") == 3
    with Child() as child:
        dead = {"pid": child.pid, "start": 0, "space": 0}
        assert processes.alive(dead)
        child.kill()
        child.wait()
        assert not processes.alive(dead)
        child.destroy()
    pool.close()


def test_forked_child_neither_takes_nor_gives(folder: Path) -> None:
    pool = pool_of()
    pool.take("cts", 3)
    pid = os.fork()
    if pid == 0:
        try:
            pool.give("cts", 3)
            pool.close()
            try:
                pool.take("cts")
            except errors.BadState:
                mine = pool_of()
                mine.take("cts", 2)
                mine.close()
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.taken == {"cts": 3}
    assert resources.usage("cxi0")[1]["cts"] >= 3
    pool.close()


@pytest.mark.parametrize("text", [b"{}", b"not a ledger", b"\x77ledger9" + bytes(4096)])
def test_garbage_is_refused_with_what_to_do(folder: Path, text: bytes) -> None:
    pool_of().close()
    (folder / "use" / "cxi0.ledger").unlink()
    (folder / "use" / "cxi0.ledger").write_bytes(text)
    with pytest.raises(errors.InvalidArgument, match=r"use/cxi0\.ledger is no ledger .*\n  try: rm "):
        pool_of()
    (folder / "use" / "cxi0.ledger").unlink()
    pool_of().close()


def test_copy_of_a_ledger_is_made_anew(folder: Path) -> None:
    """Nobody would ever release a lock that was held when the file was copied."""
    pool = pool_of()
    pool.take("cts", 5)
    file = folder / "use" / "cxi0.ledger"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data)
    other = pool_of(service.create().id)
    assert resources.usage("cxi0") == {2: {}}
    other.close()
    pool.close()


def test_ledger_whose_maker_was_killed_is_begun_again(folder: Path) -> None:
    (folder / "use").mkdir(parents=True)
    (folder / "use").chmod(0o700)
    folder.chmod(0o700)
    (folder / "use" / "cxi0.ledger").write_bytes(bytes(_nic.Ledger.bytes()))
    pool = pool_of()
    pool.take("cts", 2)
    assert resources.usage("cxi0") == {1: {"cts": 2}}
    pool.close()


def test_what_one_pool_gives_back_another_can_take() -> None:
    """Two services in one process: neither keeps anything in advance."""
    pools = [pool_of(), pool_of(service.create().id)]
    assert take_all(pools[1], "cts", 7) == TOTALS["cts"] // 7 * 7
    assert take_all(pools[0], "cts") == TOTALS["cts"] % 7
    for pool in pools:
        pool.close()


def test_takes_read_and_write_no_file(folder: Path) -> None:
    pool = pool_of()
    pool.take("cts")
    before = {one: one.stat().st_mtime_ns for one in folder.rglob("*") if one.suffix != ".ledger"}
    for kind in TOTALS:
        pool.take(kind)
        pool.give(kind)
    assert {one: one.stat().st_mtime_ns for one in folder.rglob("*") if one.suffix != ".ledger"} == before
    pool.close()


# ---- the ledger ------------------------------------------------------------------------------------------------------


def test_reservation_counts_from_the_moment_its_service_is_made() -> None:
    pool = pool_of()
    pool.take("ptes", 10)
    reserved = service.create(limits={"ptes": (2560, 560)})
    assert take_all(pool, "ptes") == 1990
    service.destroy("cxi0", reserved.id)
    assert take_all(pool, "ptes") == 560
    pool.close()


def split_in_child(world: object, folder: str, id: int, most: int) -> int:
    os.environ["WEFT_CXI_REGISTRY"] = folder
    pool = pool_of(id)
    _kept.append(pool)
    taken = 0
    with contextlib.suppress(resources.Exhausted):
        while taken < most:
            pool.take("les")
            taken += 1
    return taken


@pytest.mark.clause("cxi.auth.service-resources")
@pytest.mark.parametrize("first", [0, 1, 5, 9, 10, 11])
def test_two_processes_share_a_limit_of_ten_exactly(folder: Path, first: int) -> None:
    made = service.create(limits={"les": 10})
    with Child() as one, Child() as two:
        a = one.call(split_in_child, str(folder), made.id, first)
        b = two.call(split_in_child, str(folder), made.id, 100)
        assert (a, b) == (min(first, 10), 10 - min(first, 10))
        assert resources.usage("cxi0")[made.id]["les"] == 10
        one.kill()
        one.wait()
        assert two.call(split_in_child, str(folder), made.id, 100) == a  # a pool more: exactly the dead child's
        one.destroy()


def region_in_child(world: object, folder: str, id: int) -> int:
    """Regions that could be enabled, with keys of list entries; they stay open."""
    os.environ["WEFT_CXI_REGISTRY"] = folder
    node = _open.enter_context(opened(auth_key=bytes(cxi.AuthKey(id, 7))))
    memory = node.domain.alloc(64, "u1")
    for made in range(100):
        mr = node.domain.mr_reg(memory, RW, requested_key=1000 + made)
        mr.bind(node.ep)
        try:
            mr.enable()
        except errors.NoSpace:
            return made
        _open.callback(mr.close)
    raise AssertionError("there is no limit")


@pytest.mark.clause("cxi.auth.service-resources")
def test_two_processes_have_exactly_ten_regions_of_a_service_with_ten_list_entries(folder: Path) -> None:
    made = service.create(limits={"les": 10})
    with Child() as one, Child() as two:
        calls = [child.start(region_in_child, str(folder), made.id) for child in (one, two)]
        assert sum(call.result() for call in calls) == 10


def churn_in_child(world: object, folder: str, id: int, seconds: float) -> None:
    os.environ["WEFT_CXI_REGISTRY"] = folder
    pool, rng = pool_of(id), random.Random(os.getpid())
    while True:
        n = rng.randrange(1, 4)
        with contextlib.suppress(resources.Exhausted):
            pool.take("les", n)
            pool.give("les", n)


def test_process_killed_in_the_middle_of_a_take_leaves_the_ledger_whole(folder: Path) -> None:
    """The lock of the ledger goes with its process, and so do the resources that the process had taken."""
    made = service.create(limits={"les": 10})
    for _ in range(15):
        with Child() as victim:
            victim.start(churn_in_child, str(folder), made.id, 0)
            pool = pool_of(made.id)
            seen = 0
            while seen < 50:  # the two are in the ledger at a time
                with contextlib.suppress(resources.Exhausted):
                    pool.take("les", 7)
                    pool.give("les", 7)
                    seen += 1
            victim.kill()
            victim.wait()
            assert take_all(pool, "les") == 10
            pool.close()
            victim.destroy()
    assert resources.usage("cxi0") == {}


LOCK_AT, FIRST_ROW_HELD_AT = 16, 4096 + 8 + 64  # cpp/mem/ledger.cpp: Head, Row


def test_lock_of_a_process_that_was_killed_within_the_ledger_is_passed_on(folder: Path) -> None:
    """It may have been killed at any place: half-written sums are made anew from the processes' slots."""
    pool = pool_of()
    pool.take("acs", 3)
    pid = os.fork()
    if pid == 0:
        with open(folder / "use" / "cxi0.ledger", "r+b") as file:
            page = mmap.mmap(file.fileno(), 0)
        at = ctypes.addressof(ctypes.c_char.from_buffer(page))
        if ctypes.CDLL(None).pthread_mutex_lock(ctypes.c_void_p(at + LOCK_AT)) != 0:
            os._exit(1)
        page[FIRST_ROW_HELD_AT : FIRST_ROW_HELD_AT + 4] = b"\xff\xff\xff\x7f"
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    pool.take("acs", 1)
    assert pool.taken == {"acs": 4}
    assert resources.usage("cxi0") == {1: {"acs": 4}}
    assert take_all(pool, "acs") == TOTALS["acs"] - 4
    pool.close()


@pytest.mark.clause("cxi.opt.max-standard")
def test_domain_has_room_for_64k_standard_regions() -> None:
    with opened() as node:
        memory = bytearray(8)
        regions = [node.domain.mr_reg(memory, RW, requested_key=100 + n) for n in range(1 << 16)]
        with pytest.raises(fi.NoSpace, match="65536 regions"):
            node.domain.mr_reg(memory, RW, requested_key=1 << 20)
        regions.pop().close()
        regions.append(node.domain.mr_reg(memory, RW, requested_key=1 << 20))
        for region in regions:
            region.close()


def test_queue_that_cannot_be_opened_takes_no_event_queue() -> None:
    """The service's event queue is taken before the NIC's queue is made, which here has no descriptor to wait on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with testing.cxi(limits={"eqs": 1}) as host, host.opened() as stack:
        stack.ep.close()
        stack.cq.close()
        for _ in range(3):
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard[1]))
            try:
                with pytest.raises(fi.FabricError) as caught:
                    stack.domain.cq_open(wait_obj=fi.WAIT_FD)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, hard)
            assert caught.value.errno == fi.EMFILE
        stack.domain.cq_open(wait_obj=fi.WAIT_FD).close()


def test_process_without_descriptors_keeps_what_it_has() -> None:
    """Whether a process lives is read from /proc, which takes a descriptor: without one, nobody counts as dead."""
    pool, hard = pool_of(service.create(limits={"eqs": 2}).id), resource.getrlimit(resource.RLIMIT_NOFILE)
    pool.take("eqs", 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard[1]))
    try:
        with pytest.raises(errors.NoSpace):
            pool.take("eqs")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, hard)
    with pytest.raises(errors.NoSpace):
        pool.take("eqs")
