"""NIXL's wheel on Weft's NIC, unmodified, without a GPU: two agents, which choose `cxi` by themselves."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests import patience
from tests.provider import clients, nixl_pair, support

pytestmark = pytest.mark.procs

LIMIT_S = 60.0
# As on hardware, whose provider has writes with data only so.
WITH_DATA = {"WEFT_CXI_RELEASE": "current", "FI_CXI_ENABLE_WRITEDATA": "1"}


def environment(folder: Path, **more: str) -> dict[str, str]:
    wheel = clients.nixl()
    libraries = folder / "libraries"
    libraries.mkdir()
    for one in (support.need_library(support.MPICH), clients.hwloc()):
        (libraries / one.name).symlink_to(one)
    found = support.environment(None, support.MPICH)  # no FI_PROVIDER
    found["LD_LIBRARY_PATH"] = f"{clients.stubs(folder / 'stubs')}:{libraries}"
    found["PYTHONPATH"] = f"{wheel}:{sysconfig.get_path('purelib')}"
    return found | support.registry(folder) | more  # an agent takes most of a service's list entries


def agents(folder: Path, env: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], str]:
    """The initiator, and the output of both. A target whose initiator has failed is killed."""
    command = [sys.executable, nixl_pair.__file__]
    with (folder / "said").open("w") as said:
        target = subprocess.Popen([*command, "target", str(folder), str(LIMIT_S)], env=env, stdout=said, stderr=said)
        try:
            initiator = patience.run([*command, "initiator", str(folder), str(LIMIT_S)], LIMIT_S, env=env)
            if initiator.returncode == 0:
                assert target.wait(LIMIT_S) == 0
        finally:
            target.kill()
            target.wait()
    return initiator, (folder / "said").read_text() + initiator.stdout + initiator.stderr


def test_nixl_agents_choose_cxi_and_move_up_to_64_mib(tmp_path: Path) -> None:
    env = environment(tmp_path, NIXL_LOG_LEVEL="INFO", **WITH_DATA)
    initiator, said = agents(tmp_path, env)
    assert initiator.returncode == 0, said
    lines = initiator.stdout.splitlines()
    assert [one for one in lines if one.endswith("written and read")] == [
        f"{size} B written and read" for size in nixl_pair.SIZES
    ]
    assert "using provider=cxi" in said


def test_nixl_without_writes_with_data_is_told_why_its_write_fails(tmp_path: Path) -> None:
    """The default is the provider of fi_cxi(7), which has no writes with data."""
    env = environment(tmp_path, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi")
    for name in WITH_DATA:
        env.pop(name, None)
    initiator, said = agents(tmp_path, env)
    assert initiator.returncode != 0
    assert "fi_writemsg: flags 0x20000 (REMOTE_CQ_DATA) are not for this call" in said
