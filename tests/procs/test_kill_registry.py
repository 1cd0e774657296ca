"""kill -9 at random instants of `weft device`, `weft service`, `weft launch` and of users of a device's resources.

Each round two processes run such commands on one registry, each on a device of its own; one is killed, or both. A
process announces each command, and says afterwards that it is done: the registry then has the old or the new state,
never another. WEFT_KILL_ROUNDS sets the number of rounds, WEFT_SEED what happens in them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.patience import Patience
from tests.procs.victims import fork_victim

from weft.providers.cxi import device, launch, registry, resources, service
from weft.tools import cli

pytestmark = [pytest.mark.kill, pytest.mark.procs]

DEVICES = ("cxi1", "cxi2")
STEPS = 5  # commands of a process that is not killed before


def weft(*arguments: object) -> None:
    cli.app([str(one) for one in arguments], standalone_mode=False)


class Victim:
    """Runs random commands on one device until it is killed; `state` is what that device has."""

    def __init__(self, name: str, seed: int, vnis: set[int], fd: int) -> None:
        self.name, self.rng, self.vnis, self.fd = name, random.Random(seed), vnis, fd

    def say(self, word: str, vnis: set[int]) -> None:
        os.write(self.fd, f"{word} {' '.join(map(str, sorted(vnis)))}\n".encode())

    def run(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        for _ in range(STEPS):
            self.step()
        os._exit(0)

    def step(self) -> None:
        """One command. A service is known by its only VNI."""
        kind = self.rng.randrange(6)
        after = set(self.vnis)
        if kind <= 1 or not self.vnis:
            vni = self.rng.choice([one for one in range(1, 900) if one not in self.vnis])
            after.add(vni)
            self.say("will", after)
            weft("service", "create", "--device", self.name, "--vni", vni, "--limit", "cts=9")
        elif kind == 2:
            vni = self.rng.choice(sorted(self.vnis))
            after.remove(vni)
            (id,) = (one.id for one in service.services(self.name) if one.vnis == (range(vni, vni + 1),))
            self.say("will", after)
            weft("service", "destroy", "--device", self.name, id)
        elif kind == 3:
            weft("device", "set", self.name, f"mtu={self.rng.randrange(1000, 9000)}")
        elif kind == 4:
            self.use()
        else:
            with contextlib.suppress(SystemExit):
                weft("launch", "-n", "2", "--device", self.name, "--", "/bin/sleep", "0.01")
        self.vnis = after
        self.say("done", after)

    def use(self) -> None:
        found = device.by_name(self.name)
        assert found is not None
        pool = resources.open_pool(found, self.rng.choice(service.services(self.name)))
        pool.take("cts", 3)
        pool.take("les", self.rng.randrange(1, 500))
        pool.give("cts", 1)
        pool.close()


def vnis_of(name: str) -> set[int]:
    """VNIs of the services that a victim made on its device; launches' VNIs are above them."""
    found = [one for one in service.services(name) if one.id != 1 and one.launch is None]
    return {one.start for each in found for one in each.vnis or ()}


def last_words(fd: int) -> list[set[int]]:
    """The states that a killed victim's device may have: after its last command, or before it."""
    data = b""
    while piece := os.read(fd, 1 << 16):
        data += piece
    os.close(fd)
    lines = data.decode().splitlines()[-2:]
    return [{int(word) for word in line.split()[1:]} for line in lines]


@pytest.mark.timeout(600)
def test_kill_leaves_the_registry_whole(
    kill_rounds: int, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cxi"
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(folder))
    for name in DEVICES:
        device.add(name)
    for n in range(kill_rounds):
        if n % 10 == 0:  # kills fall into the making of a registry as well
            fresh_registry(rng, tmp_path / f"fresh{n}")
        before = {name: vnis_of(name) for name in DEVICES}
        seeds = [rng.randrange(1 << 32) for _ in DEVICES]
        running = [
            fork_victim(lambda fd, name=name, seed=seed, vnis=before[name]: Victim(name, seed, vnis, fd).run())
            for name, seed in zip(DEVICES, seeds, strict=True)
        ]
        doomed = running if rng.random() < 0.5 else rng.sample(running, 1)
        delays = sorted(rng.random() * 0.08 for _ in doomed)
        began = time.monotonic()
        for delay, (pid, _) in zip(delays, doomed, strict=True):
            time.sleep(max(began + delay - time.monotonic(), 0))
            os.kill(pid, signal.SIGKILL)
        for pid, _ in running:
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), f"round {n}: a command failed"
        for name, (_, fd) in zip(DEVICES, running, strict=True):
            said = last_words(fd)
            assert vnis_of(name) in [*said, *([before[name]] if len(said) < 2 else [])], f"round {n}: {name}"
        check(n)
    with launch.begin() as job:  # and it works as before
        assert len(job.services) == 3
    assert {file.name for file in folder.iterdir()} <= {"lock", "registry.json", "registry.json.new", "use", "launch"}


def check(n: int) -> None:
    """Facts of every state of a registry that nobody uses."""
    for name in ("cxi0", *DEVICES):
        ids = [one.id for one in service.services(name)]
        assert ids == sorted(set(ids)), f"round {n}: {name} has services {ids}"
        assert ids[0] == 1
    patience = Patience(20)
    while any(one.launch is not None for name in DEVICES for one in service.services(name)):
        assert not patience.over, f"round {n}: a launch is still there"
        time.sleep(0.005)
    with registry.here().change() as record:
        assert record["launches"] == []
        for part in record["services"].values():
            assert all(one["id"] < part["next"] for one in part["all"])
    for name in DEVICES:
        assert resources.users(name) == [], f"round {n}: somebody dead uses {name}"


def fresh_registry(rng: random.Random, folder: Path) -> None:
    """Kill the first user of a registry; the second finds no registry, or a whole one."""

    def first(fd: int) -> None:
        os.environ["WEFT_CXI_REGISTRY"] = str(folder)
        os.write(fd, b"!")
        device.devices()
        signal.pause()

    pid, fd = fork_victim(first)
    os.read(fd, 1)
    time.sleep(rng.random() * 0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    assert [one["name"] for one in registry.at(folder).read().record["devices"]] == ["cxi0"]
