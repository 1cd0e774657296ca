"""The groups, jobs and NICs in one file: rules, and damaged files."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from weft.fm.addresses import mac_text, nic_of_mac, nic_text, place
from weft.fm.store import Limits, Nic, Refused, Store
from weft.fm.topology import tree


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fabric.db"


def refused(store: Store, status: int, code: str = "", macs: tuple[int, ...] = (1,), job: str = "j") -> None:
    with pytest.raises(Refused) as found:
        store.create(macs, 1, 1, job)
    assert found.value.status == status
    assert found.value.message.startswith(code)


# ---- rules -----------------------------------------------------------------------------------------------------------


def test_addresses_go_round_so_that_a_late_packet_finds_no_younger_group(path: Path) -> None:
    with Store(path, Limits(groups_per_root=9)) as store:
        assert [store.create([1], 1, 1, "j").mcast_id for _ in range(3)] == [0, 1, 2]
        store.delete(1)
        assert store.create([1], 1, 1, "j").mcast_id == 3
    with sqlite3.connect(path) as c:
        c.execute("UPDATE facts SET value = 8190 WHERE name = 'last'")
    c.close()
    with Store(path, Limits(groups_per_root=9)) as store:
        assert [store.create([1], 1, 1, "j").mcast_id for _ in range(3)] == [8191, 1, 4]


def test_root_is_the_first_member_that_is_free_and_up(path: Path) -> None:
    with Store(path) as store:
        store.put_nic(Nic(7, "host", "cxi0", up=False))
        assert store.create([7, 8, 9], 1, 1, "j").hw_root == 8
        assert store.create([8, 7, 9], 1, 1, "j").hw_root == 9
        refused(store, 507, "03:", (7, 8, 9))
        store.put_nic(Nic(7, "host", "cxi0"))
        assert store.create([8, 7], 1, 1, "j").hw_root == 7


def test_nic_that_is_not_in_the_registry_cannot_be_removed(path: Path) -> None:
    with Store(path) as store:
        store.put_nic(Nic(7, "host", "cxi0"))
        with pytest.raises(Refused) as found:
            store.remove_nic(8)
        assert found.value.status == 404
        store.remove_nic(7)
        assert store.nics() == []
        with pytest.raises(Refused):
            store.remove_nic(7)


def test_member_that_shares_a_nic_counts_once_as_a_root(path: Path) -> None:
    """Endpoints of one host may share a NIC."""
    with Store(path) as store:
        made = store.create([5, 5, 5], 1, 1, "j")
        assert (made.macs, made.hw_root) == ((5, 5, 5), 5)
        refused(store, 507, "03:", (5, 5))


def test_groups_per_root_is_the_administrators(path: Path) -> None:
    with Store(path, Limits(groups_per_root=2)) as store:
        assert [store.create([5], 1, 1, "j").hw_root for _ in range(2)] == [5, 5]
        refused(store, 507, "03:", (5,))


def test_unknown_nics_are_refused_where_known_ones_are_asked_for(path: Path) -> None:
    with Store(path, Limits(known_nics=True)) as store:
        refused(store, 400)
        store.put_nic(Nic(1, "host", "cxi0"))
        refused(store, 400, macs=(1, 2))
        assert store.create([1], 1, 1, "j").hw_root == 1


def test_refused_group_leaves_nothing(path: Path) -> None:
    with Store(path, Limits(addresses=0)) as store:
        refused(store, 507, "02:")
        refused(store, 400, macs=())
        assert (store.groups(), store.jobs()) == ([], [])
        assert store.statistics() == {"created": 0, "deleted": 0, "refused": 1, "groups": 0, "jobs": 0, "nics": 0}


def test_job_with_a_limit_of_its_own(path: Path) -> None:
    with Store(path, Limits(addresses_per_job=1)) as store:
        store.register("big", 2)
        for nic in (1, 2):
            store.create([nic], 1, 1, "big")
        refused(store, 507, "01:", (3,), "big")
        store.create([3], 1, 1, "small")
        refused(store, 507, "01:", (4,), "small")


def test_job_that_came_with_its_first_group_goes_with_its_last(path: Path) -> None:
    with Store(path) as store:
        kept = store.register("registered")
        for job in ("registered", "unregistered"):
            store.delete(store.create([1], 1, 1, job).mcast_id)
        assert [one.job_id for one in store.jobs()] == ["registered"]
        assert store.job_of_token(str(kept.token)) == "registered"
        with pytest.raises(Refused) as found:
            store.register("registered")
        assert found.value.status == 409


def test_release_frees_addresses_and_forgets_the_token(path: Path) -> None:
    with Store(path) as store:
        token = store.register("j").token
        for step in ("0", "0", "1"):
            store.create([len(store.groups())], 1, 1, "j", step)
        assert store.job("j").steps == {"0": (0, 1), "1": (2,)}
        assert store.release_steps("j", ["0", "none"]).steps == {"1": (2,)}
        assert store.release("j") == [2]
        assert store.job_of_token(str(token)) is None
        assert store.statistics()["deleted"] == 3
        for call in (store.job, store.release):
            with pytest.raises(Refused) as found:
                call("j")
            assert found.value.status == 404


@pytest.mark.parametrize(
    "limits", [{"addresses": 8193}, {"addresses": -1}, {"addresses_per_job": -1}, {"groups_per_root": 0}]
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)


def test_random_operations_keep_the_rules(path: Path, rng: random.Random) -> None:
    """Beside a model of a few lines; the file is opened again now and then."""
    limits = Limits(addresses=20, addresses_per_job=6, groups_per_root=2)
    store, model = Store(path, limits), dict[int, tuple[int, str]]()
    for _ in range(300):
        what = rng.random()
        if what < 0.6:
            macs, job = [rng.randrange(12) for _ in range(rng.randint(1, 3))], f"j{rng.randrange(6)}"
            held = sum(one == job for _, one in model.values())
            free = [n for n in dict.fromkeys(macs) if sum(root == n for root, _ in model.values()) < 2]
            wanted = "01" if held >= 6 else "02" if len(model) >= 20 else "" if free else "03"
            if wanted:
                refused(store, 507, wanted, tuple(macs), job)
            else:
                made = store.create(macs, 1, 1, job)
                assert made.mcast_id not in model
                assert made.hw_root == free[0]
                model[made.mcast_id] = (made.hw_root, job)
        elif what < 0.9 and model:
            gone = rng.choice(list(model))
            assert (store.delete(gone).hw_root, store_job := model.pop(gone)[1])[1] == store_job
        elif what < 0.95:
            job = f"j{rng.randrange(6)}"
            mine = sorted(m for m, (_, one) in model.items() if one == job)
            if mine:
                assert store.release(job) == mine
            for m in mine:
                del model[m]
        else:
            store.close()
            store = Store(path, limits)
        assert {one.mcast_id: (one.hw_root, one.job_id) for one in store.groups()} == model
    store.close()


# ---- the file --------------------------------------------------------------------------------------------------------


def test_file_is_the_owners_alone(path: Path) -> None:
    """It holds tokens."""
    before = os.umask(0)
    try:
        Store(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"no database at all, but a text of some length" * 40, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_file_of_something_else_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be used as a database"):
        Store(path)
    assert path.read_bytes() == content


def test_database_of_something_else_is_refused(path: Path) -> None:
    c = sqlite3.connect(path)
    c.execute("CREATE TABLE theirs (x)")
    c.commit()
    with pytest.raises(ValueError, match="something else"):
        Store(path)
    c.execute("PRAGMA user_version = 9")
    c.close()
    with pytest.raises(ValueError, match="another version"):
        Store(path)


def test_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Store(tmp_path / "none" / "fabric.db")


def test_closed_store_says_so(path: Path) -> None:
    store = Store(path)
    store.close()
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.groups()


def test_many_stores_open_a_new_file_at_once(path: Path) -> None:
    """The first makes the tables; nobody sees half of them."""
    barrier, found = threading.Barrier(8), []

    def one(nic: int) -> None:
        barrier.wait()
        with Store(path, wait_s=30) as store:
            found.append(store.create([nic], 1, 1, "j").mcast_id)

    threads = [threading.Thread(target=one, args=(nic,)) for nic in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(found)) == 8
    with Store(path) as store:
        assert {one.mcast_id for one in store.groups()} == set(found)


# ---- addresses and trees ---------------------------------------------------------------------------------------------


def test_texts_of_addresses() -> None:
    assert (nic_text(0x12345), mac_text(0x12345)) == ("1:23:45", "02:00:00:01:23:45")
    for nic in (0, 1, 0x840, 0xFFFFF):
        assert nic_of_mac(mac_text(nic)) == nic


def test_place_in_the_network() -> None:
    """fi_cxi(7) "Addressing Format": 6 bits of a port, 5 of a switch, 9 of a group; in a fat tree 14 of a switch."""
    nic = 5 << 11 | 3 << 6 | 9
    assert place(nic) == (5, 3, 9)
    assert place(nic, "fat-tree") == (0, 5 << 5 | 3, 9)


def test_tree_has_every_member_and_switch_once(rng: random.Random) -> None:
    for _ in range(50):
        macs = [rng.randrange(1 << 20) for _ in range(rng.randint(1, 30))]
        kinds = {one: rng.choice(["dragonfly", "fat-tree"]) for one in macs if rng.random() < 0.3}
        root = rng.choice(macs)
        edges = tree(root, macs, kinds)
        children = [one.child for one in edges]
        assert len(children) == len(set(children))
        seen = {mac_text(root)}
        for parent, child in edges:
            assert parent in seen
            seen.add(child)
        assert {mac_text(one) for one in macs} <= seen
