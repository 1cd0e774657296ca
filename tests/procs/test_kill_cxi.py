"""kill -9 at random instants of processes that use the CXI provider: their resources can be taken at once.

A victim opens and closes endpoints, enables regions, uses a survivor's memory or lets its own be used, closes domains,
or launches a job; at a random instant it is killed. Then the registry is whole, and a process takes the victim's PID,
VNI and keys, and every resource of its service, at the first attempt; the survivor reaches it there. Operations of the
survivor end as documented. WEFT_KILL_ROUNDS sets the number of rounds, WEFT_SEED what happens in them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import cxi_side
from tests.procs.children import Child
from tests.procs.cxi_side import DONE, NBYTES, NO_ENTRY, NO_PID, NO_VNI, CxiSide, CxiTraffic, stop
from tests.procs.peer import World
from tests.procs.victims import fork_victim

from weft import cxi
from weft.providers.cxi import device, launch, registry, resources, service

pytestmark = [pytest.mark.kill, pytest.mark.procs]

ROLES = ("enable", "region", "initiator", "target", "both", "close", "launcher", "rank")
DEVICES = ("cxi0", "cxi1")
VNI, KEY = 700, 7
LIMITS = {"les": 40, "ptes": 24, "eqs": 5, "cts": 9}
RESERVED = {"tles": (100, 100)}  # of a launch, on each device
# Results of operations whose target comes and goes: done; no endpoint; no region yet, optimized or standard.
ENDINGS = {DONE, NO_PID, NO_VNI, NO_ENTRY}

RANK = """
import sys, time, numpy
from weft import fi
from tests.procs.cxi_side import CxiSide
side = CxiSide("cxi0", None, None)
side.region(numpy.zeros(64, numpy.uint8), 5)
me = side.av.insert(side.address)
while True:
    side.ep.write(b"12345678", dest_addr=me, addr=0, key=5)
    side.outcome()
    time.sleep(0.001)
"""


# ---- the victim ------------------------------------------------------------------------------------------------------


def victim(role: str, where: str, pid: int, key: bytes, survivor: bytes, seed: int, told: int) -> None:
    os.write(told, b"!")
    auth_key, rng = cxi.AuthKey.from_bytes(key), random.Random(seed)
    memory = np.zeros(NBYTES, np.uint8)
    if role in ("launcher", "rank"):
        job = launch.begin(limits=RESERVED)
        launch.run(job, [sys.executable, "-c", RANK], 2, grace_s=2)
        job.close()
        return
    while role in ("enable", "close"):
        os.write(told, b"r")
        side = CxiSide(where, pid, auth_key, enable=role == "enable")
        if role == "close" and rng.random() < 0.5:
            side.ep.enable()
            side.region(memory, KEY)
        side.close()
    side = CxiSide(where, pid, auth_key, prov_key=role == "region" and rng.random() < 0.5)
    while role == "region":
        os.write(told, b"r")
        mr = side.region(memory, rng.randrange(200))
        side.regions.remove(mr)
        mr.close()
    side.region(memory, KEY, side.domain.cntr_open() if rng.random() < 0.5 else None)
    traffic = CxiTraffic(side, side.av.insert(cxi.Address.from_bytes(survivor)), KEY)
    os.write(told, b"r")
    while True:
        if role == "target":
            side.ended(0.01)
        else:
            traffic.step()
            assert set(traffic.endings) <= {DONE}, traffic.endings  # the survivor is alive


def spawn(world: World, begun: bool, *about: object) -> int:
    """Fork a victim; returns before it starts to work, or while it works."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: a launcher's orphans are ours
    pid, ready = fork_victim(lambda told: victim(*about, told))  # type: ignore[arg-type]
    for _ in range(1 + begun):
        assert os.read(ready, 1), f"the victim could not start: {os.waitpid(pid, 0)}"
    threading.Thread(target=drain, args=(ready,), daemon=True).start()
    return pid


def drain(fd: int) -> None:
    while os.read(fd, 1 << 12):
        pass
    os.close(fd)


def reap(world: World, pid: int, limit_s: float) -> int:
    """How the victim ended; and everyone that it had started ends."""
    patience, code = Patience(limit_s), None
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            assert code is not None
            return code
        if found == pid:
            code = os.waitstatus_to_exitcode(status)
        if not found:
            assert not patience.over, f"a process of the victim {pid} is still there"
            time.sleep(0.002)


def ranks_of(pid: int) -> list[int]:
    """The processes that a launcher has started."""
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


# ---- the rounds ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in list(os.environ):
        if name.startswith(("FI_", "CXI", "SLINGSHOT_", "WEFT_CXI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    device.add("cxi1")
    yield tmp_path / "cxi"
    shutil.rmtree(tmp_path / "cxi")


def kill(role: str, pid: int, rng: random.Random) -> set[int]:
    """At a random instant; VNIs that the victim's launch had then."""
    if role not in ("launcher", "rank"):
        time.sleep(rng.choice((rng.uniform(0, 0.004), rng.uniform(0, 0.08))))
        os.kill(pid, signal.SIGKILL)
        return set()
    time.sleep(rng.choice((rng.uniform(0, 0.01), rng.uniform(0, 1.0))))
    had = {vni for one in registry.here().read().record["launches"] for vni in one["vnis"]}
    doomed = rng.sample(ranks_of(pid), 1) if role == "rank" and ranks_of(pid) else [pid]
    os.kill(doomed[0], signal.SIGKILL)
    return had


def check(keys: dict[str, int], left: set[int]) -> None:
    """The registry is whole, and nobody dead has anything."""
    with registry.here().change() as record:
        assert record["launches"] == []
        for name in DEVICES:
            assert [one["id"] for one in record["services"][name]["all"]] == [1, keys[name]]
    for name in DEVICES:
        assert resources.users(name, keys[name]) == []
    if left:
        with launch.begin(vnis=sorted(left), limits=RESERVED) as job:
            assert set(job.vnis) == left
    for name in DEVICES:
        service.destroy(name, service.create(name, limits={"tles": (2048 - 512, 2048 - 512)}).id)


@pytest.mark.timeout(3000)
def test_resources_of_a_killed_process_are_free_at_once(folder: Path, kill_rounds: int, rng: random.Random) -> None:
    keys = {name: service.create(name, vnis=[VNI], limits=LIMITS).id for name in DEVICES}
    endings: dict[cxi_side.Ending, int] = {}
    reached = False  # a victim was killed that the survivor had reached: all other instants are random
    roles = [ROLES[n % len(ROLES)] for n in range(kill_rounds)]
    rng.shuffle(roles)
    with Child() as survivor, Child() as heir, Child() as zygote:
        mine = survivor.call(cxi_side.open_cxi, "cxi0", None, bytes(cxi.AuthKey(1, VNI)), KEY)
        for number, role in enumerate(roles):
            where, pid, seed = rng.choice(DEVICES), rng.randrange(511), rng.getrandbits(32)
            if (where, pid) == ("cxi0", cxi.Address.from_bytes(mine).pid):
                continue
            found = device.by_name(where)
            assert found is not None
            key, address = bytes(cxi.AuthKey(keys[where], VNI)), bytes(cxi.Address(found.nic, pid))
            begun = role not in ("launcher", "rank") and rng.random() < 0.6
            killed = zygote.call(spawn, begun, role, where, pid, key, mine, seed)
            first = role in ("target", "both") and not reached
            patience = Patience(60)
            while first and survivor.call(cxi_side.use_once, address, KEY) != [DONE, DONE]:
                assert not patience.over, f"round {number}: the {role} was never reached\n{zygote.log()}"
            using = survivor.start(cxi_side.use, address, KEY) if role in ("target", "both", "enable") else None
            if first:
                time.sleep(0.3)
                reached = True
            left = kill(role, killed, rng)
            code = zygote.call(reap, killed, 30.0)
            assert code == -signal.SIGKILL or role == "rank", f"round {number} {role}: {code}\n{zygote.log()}"
            if using is not None:
                survivor.start(stop)
                for ending, n in using.result().items():
                    endings[ending] = endings.get(ending, 0) + n
                survivor.receive("stop", 60)
            about = f"round {number}: {role} on {where}, pid {pid}"
            check(keys, left)
            there, had = heir.call(cxi_side.take_over, where, pid, key, KEY)
            assert (there, had) == (address, LIMITS), about
            assert survivor.call(cxi_side.use_once, address, KEY) == [DONE, DONE], about
            heir.call(cxi_side.close_cxi)
            nobody = survivor.call(cxi_side.use_once, address, KEY)
            assert nobody == 2 * [NO_PID if where == "cxi0" else NO_VNI], about
        survivor.call(cxi_side.close_cxi)
    print(f"{kill_rounds} kills; operations of the survivor ended with {endings}")
    assert DONE in endings
    assert set(endings) <= ENDINGS, endings
    for name in DEVICES:
        assert resources.users(name) == []
    assert {file.name for file in folder.iterdir()} <= {
        "lock", "registry.json", "registry.json.new", "use", "launch", "telemetry",
    }  # fmt: skip
