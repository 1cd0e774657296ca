"""CXI devices for one test: a separate registry, with limits that the test can reach.

    with weft.testing.cxi(limits={"eqs": 1}) as host, host.opened() as stack, pytest.raises(fi.NoSpace):
        stack.domain.cq_open()      # the service has one event queue, and the stack's own queue has taken it

Source: fi_cxi(7) "Authorization Keys" (services and their limits).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import fi
from ..providers.cxi import device as devices
from ..providers.cxi import registry
from ..providers.cxi import service as services
from . import stacks

_CAPS = fi.RMA | fi.ATOMIC | fi.RMA_EVENT
# Variables hidden while a host is active: those of a launch, and the list of hosts.
_HIDDEN = ("SLINGSHOT_", "WEFT_CXI_HOSTS")


class CxiHost:
    """The devices and services of a host that only this test sees.

    Args:
        folder: Folder of the registry; a process with WEFT_CXI_REGISTRY=folder sees the same host.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = dict(environment)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Use this host in the process during the block (WEFT_CXI_REGISTRY); for a process with one thread.

        The methods below do so themselves. Needed only if a test has two hosts and calls getinfo itself.
        """
        hidden = [name for name in os.environ if name.startswith(_HIDDEN)]
        with _environment(self._environment | dict.fromkeys(hidden)):
            yield

    def hints(self, caps: int = _CAPS, *, auth_key: bytes | None = None, client_keys: bool = False) -> fi.Info:
        """Hints for the provider.

        Args:
            auth_key: A `cxi.AuthKey`; None: the provider searches for one.
            client_keys: Without MR_PROV_KEY: the application chooses the keys.
        """
        asked = stacks.hints(caps, "cxi")
        if client_keys:
            asked.domain_attr.mr_mode &= ~fi.MR_PROV_KEY
        if auth_key is not None:
            asked.domain_attr.auth_key = auth_key
        return asked

    def getinfo(self, asked: fi.Info | None = None) -> list[fi.Info]:
        """The offers of getinfo on this host. Raises NoData."""
        with self.active():
            return fi.getinfo(hints=asked or self.hints())

    @contextlib.contextmanager
    def opened(self, asked: fi.Info | None = None) -> Iterator[stacks.Stack]:
        """A Stack on the first device that matches; closed at the end. Raises like getinfo and the opening calls."""
        with contextlib.ExitStack() as kept:
            with self.active():
                found = kept.enter_context(stacks.opened(asked or self.hints()))
            yield found

    @contextlib.contextmanager
    def pair(self, asked: fi.Info | None = None) -> Iterator[stacks.Pair]:
        """Two Stacks; the first has inserted the second. Closed at the end. Raises like `opened`."""
        with contextlib.ExitStack() as kept:
            with self.active():
                found = kept.enter_context(stacks.pair(asked or self.hints()))
            yield found

    def service(self, device: str = "cxi0", **wanted: Any) -> services.Service:
        """Make a service: members, vnis, tclasses, limits, enabled, system as for `weft service create`.

        An application uses it with `cxi.AuthKey(service.id, vni)`. Raises NoDevice, InvalidArgument, NoSpace.
        """
        with self.active():
            return services.create(device, **wanted)

    def set_device(self, name: str = "cxi0", **values: Any) -> devices.Device:
        """Change a device: up, nic, topology, speed, mtu, amo_remap_to_pcie_fadd, rdzv_get_en.

        Raises NoDevice, InvalidArgument, Busy.
        """
        with self.active():
            return devices.set_values(name, **values)

    def __repr__(self) -> str:
        return f"<CxiHost {self.folder}>"


@contextlib.contextmanager
def cxi(
    *, limits: Mapping[str, int | tuple[int, int]] | None = None, devices: int = 1, release: str = ""
) -> Iterator[CxiHost]:
    """A host with CXI devices, during the block: getinfo of this process, and of processes that it starts, sees it.

    Args:
        limits: kind -> limit, or (limit, reserved), of the default service of each device: "acs", "cts", "eqs", "ptes",
            "txqs", "tgqs", "les", "tles".
        devices: Number of devices: cxi0, cxi1 ...
        release: "doc" or "current" (WEFT_CXI_RELEASE); "": the environment's.

    Two such hosts are separate: their endpoints do not reach each other, and their limits are independent.

    Raises:
        InvalidArgument: Limits that a device cannot have.
    """
    with tempfile.TemporaryDirectory(prefix="weft-cxi-") as folder:
        host = CxiHost(Path(folder), {"WEFT_CXI_REGISTRY": folder} | ({"WEFT_CXI_RELEASE": release} if release else {}))
        with host.active():
            _furnish(devices, limits or {})
            yield host


def _furnish(count: int, limits: Mapping[str, int | tuple[int, int]]) -> None:
    for number in range(1, count):
        devices.add(f"cxi{number}")
    if limits:
        with registry.here().change() as record:
            for part in record["services"].values():
                part["all"][0]["limits"].update(_checked(limits))


def _checked(limits: Mapping[str, int | tuple[int, int]]) -> dict[str, list[int]]:
    """The limits in the registry's form; checked like those of `weft service create`."""
    made = services._limits(limits)
    return {kind: made[kind] for kind in limits}


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables for a block; None removes one."""
    before = {name: os.environ.get(name) for name in values}
    _put(values)
    try:
        yield
    finally:
        _put(before)


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
