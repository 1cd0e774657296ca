"""weft.testing.fabric_manager: a Fabric Manager for one test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft import errors
from weft.fm import create_multicast
from weft.testing import fabric_manager

NAMES = ("FI_CXI_COLL_FABRIC_MGR_URL", "FI_CXI_COLL_MCAST_TOKEN", "FI_CXI_COLL_JOB_ID", "FI_CXI_COLL_JOB_STEP_ID")


def create(nic: int = 1) -> int:
    """As a join does: from the variables."""
    url, token, job, step = (os.environ[name] for name in NAMES)
    return create_multicast(url, token, [nic], 7, 32000, job, step).mcast_id


def test_join_finds_the_manager_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMES[0], "http://the-users-own/")
    for name in NAMES[1:]:
        monkeypatch.delenv(name, raising=False)
    with fabric_manager() as manager:
        create()
        (group,) = manager.store.groups()
        assert (group.job_id, group.job_step_id) == (manager.job_id, "0")
    assert [os.environ.get(name) for name in NAMES] == ["http://the-users-own/", None, None, None]


def test_limits_are_the_tests() -> None:
    with fabric_manager(addresses_per_job=1):
        create()
        with pytest.raises(errors.ConnectionRefused, match="01:"):
            create(2)


def test_manager_in_a_folder_goes_on_where_it_was(tmp_path: Path) -> None:
    for n in range(2):
        with fabric_manager(folder=tmp_path, groups_per_root=2):
            assert create() == n
