"""Collectives of cxi in C programs beyond libfabric's interface: keys, operators, accumulators, multicast addresses."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import Patience
from tests.provider import support
from tests.provider.far import Far

from weft import testing

KEYS = """unicast: sum {total}
multicast: sum {total}
a root that is no member: Invalid argument
a key of an unknown type: Invalid argument
a rank beyond the set: Invalid argument
ranks: 3 3 3 3
closed
"""
OPERATORS = """least -5 of 1, most 2 of 2
a reproducible sum: 1
minima: 0 -2 NaN 0.5
REPSUM of two: Invalid argument
accumulated: 36
an empty accumulator: Invalid argument
FI_MORE into other bytes: Invalid argument
FI_MORE into NULL: Invalid argument
a broadcast with FI_MORE: Invalid argument
a sum that overflows: 256, 1026; the result as it was
members that disagree: 256, 1028
closed
"""


def test_communication_keys_choose_who_makes_the_tree(programs: Path, library: str) -> None:
    program = support.compiled("collective_cxi", programs)
    for members in (2, 3):
        out = support.run(program, "cxi", str(members), "keys", env=support.environment("cxi", library)).stdout
        assert out == KEYS.format(total=sum(range(members + 1)))


@pytest.mark.clause("cxi.coll.op-minmaxloc-int64", "cxi.coll.op-repsum", "cxi.coll.flag-more", "cxi.coll.nan-min")
def test_operators_and_accumulators_of_the_nic(programs: Path, library: str) -> None:
    program = support.compiled("collective_cxi", programs)
    out = support.run(program, "cxi", "3", "operators", env=support.environment("cxi", library)).stdout
    assert out == OPERATORS


@pytest.mark.clause("cxi.coll.concurrent", "cxi.coll.concurrent-eagain")
def test_ninth_reduction_waits_for_an_earlier_one(programs: Path, library: str, provider: str) -> None:
    program = support.compiled("collective_cxi", programs)
    out = support.run(program, provider, "2", "busy", env=support.environment(provider, library)).stdout
    assert out == "a ninth: Resource temporarily unavailable\nclosed\n"


def test_barrier_without_flags_completes_by_the_endpoints_flags(programs: Path, library: str, provider: str) -> None:
    program = support.compiled("collective_cxi", programs)
    out = support.run(program, provider, "2", "selective", env=support.environment(provider, library)).stdout
    assert out == "selective\nclosed\n"


class Members(Far):
    """The processes of collective_cxi.c that hold multicast addresses until member 0 reads a line."""

    def lines(self) -> list[str]:
        found = [self.line()]
        while not found[-1].startswith("joined"):
            assert found[-1], self.said()
            found.append(self.line())
        return found


@contextlib.contextmanager
def holding(programs: Path, tmp_path: Path, joins: int, **more: str) -> Iterator[Members]:
    program = str(support.compiled("collective_cxi", programs))
    env = support.environment("cxi", FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi", **more) | support.registry(tmp_path)
    found = Members([program, "cxi", "2", "address", str(joins)], env, tmp_path / "stderr", start_new_session=True)
    try:
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(found.process.pid, signal.SIGKILL)
        found.close()


def groups_of(folder: Path) -> int:
    """Groups that this host's own manager knows."""
    from weft.fm.store import Store

    with Store(folder / "registry" / "multicast.db") as store:
        return len(store.groups())


@pytest.mark.clause("cxi.coll.join-multicast", "cxi.coll.mcast-job-limit")
def test_groups_have_multicast_addresses_within_the_limit_of_a_job(programs: Path, tmp_path: Path) -> None:
    with holding(programs, tmp_path, 4, FI_CXI_HWCOLL_ADDRS_PER_JOB="2") as members:
        *refused, last = members.lines()
        assert last == "joined: 2\n"
        assert [one[:48] for one in refused if one[0] != " "] == [
            "join: err -111, prov_errno 2048: join_collective"
        ] * 2
        assert sum("FI_CXI_HWCOLL_ADDRS_PER_JOB is the limit" in one for one in refused) == 2
        assert groups_of(tmp_path) == 2
        members.tell("\n")
        assert members.ended() == "closed\n"
    assert groups_of(tmp_path) == 0


def test_killed_program_gives_its_multicast_address_back(programs: Path, tmp_path: Path) -> None:
    with holding(programs, tmp_path, 1) as members:
        assert members.lines() == ["joined: 1\n"]
        assert groups_of(tmp_path) == 1
        os.killpg(members.process.pid, signal.SIGKILL)
        patience = Patience(support.PROGRAM_S)
        while groups_of(tmp_path):
            assert not patience.over
            time.sleep(0.02)


def test_member_0_asks_the_fabric_manager(programs: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    with testing.fabric_manager() as manager, holding(programs, tmp_path, 1, **manager.environment) as members:
        assert members.lines() == ["joined: 1\n"]
        (made,) = manager.store.groups()
        assert len(made.macs) == 2
        members.tell("\n")
        assert members.ended() == "closed\n"
        assert manager.store.groups() == []


def test_dead_manager_fails_the_join_and_is_named(programs: Path, tmp_path: Path) -> None:
    variables = {"FABRIC_MGR_URL": "http://127.0.0.1:1/", "MCAST_TOKEN": "t", "JOB_ID": "j"}
    with holding(programs, tmp_path, 1, **{f"FI_CXI_COLL_{name}": value for name, value in variables.items()}) as found:
        text, *_, last = found.lines()
        assert text.startswith("join: err -111, prov_errno 2054: join_collective: ")
        assert last == "joined: 0\n"
        found.tell("\n")
        assert found.ended() == "closed\n"
        assert "127.0.0.1:1" in found.said()


def test_close_without_the_manager_is_2052_and_closes(programs: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    with contextlib.ExitStack() as stack:
        with testing.fabric_manager() as manager:
            members = stack.enter_context(holding(programs, tmp_path, 1, **manager.environment))
            assert members.lines() == ["joined: 1\n"]
        members.tell("\n")
        assert members.ended() == "fi_close: 2052\nclosed\n"
        assert "its multicast address was not given back" in members.said()
