"""Telemetry: counters of each device, as files with `value@seconds.nanoseconds`.

The NICs of all processes count in one page per device (`telemetry/<device>/.page` in the registry's folder), so the
counts belong to the device, and counts of a killed process remain. The page also contains a flag for a link that is
down, which every NIC checks before each operation (`show_link`). `publish` writes the counts to
`telemetry/<device>/<NAME>`, in the format of the driver's files in sysfs.

Source: fi_cxi(7) "RUNTIME PARAMETERS", FI_CXI_TELEMETRY.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ... import errors
from ..._files import explained, locked, open_regular, private_folder, read_regular, replace
from . import env, registry
from .names import CntrType

if TYPE_CHECKING:
    from .device import Device

NAMES = (
    "HNI_HRP_ACK",
    "IXE_DMAWR_CPU_FTCH_AMO_REQS",
    "IXE_DMAWR_FLUSH_REQS",
    "IXE_RX_PTL_RESTRICTED_PKT",
    "IXE_RX_PTL_UNRESTRICTED_PKT",
    "LPE_PLEC_HITS",
    "LPE_SUCCESS_CNTR",
    *(f"HNI_PKTS_SENT_BY_TC_{number}" for number in range(5)),
    "PCT_HRP_RESPONSES_RECEIVED",
)
"""Names of the counters."""

NUMBERS = {int(one): one.name.removeprefix("C_CNTR_") for one in CntrType}
"""Number of a counter -> its name."""

NAME_MAX = 63
PAGE_BYTES = 4096
# A page has a line of eight words for the counts of initiators, and a line for the counts of targets; then a line with
# the word of the link; then blocks of two such lines, each of one writer. A count is the sum of its words
# (cpp/nic/telemetry.hpp).
_TARGETS = 7  # the names before this index are what targets count, but for HNI_HRP_ACK
OFFSETS = {
    name: 8 * (index - _TARGETS + 1) if index >= _TARGETS else 8 * index + (0 if name == "HNI_HRP_ACK" else 64)
    for index, name in enumerate(NAMES)
}
"""Counter -> where its first word is in a page."""
_BLOCKS, _BLOCK_BYTES = 256, 128
_DOWN = 128  # the word that is not 0 while the link is down

_BINARY = "ALL-in-binary"
_log = logging.getLogger("weft.cxi")


class Reading(NamedTuple):
    """The content of a counter's file."""

    value: int
    time_ns: int


class CountingNic(Protocol):
    """A NIC that counts: `_nic.Nic`."""

    def attach_telemetry(self, nic: int, fd: int) -> None: ...


def _folder(device: str) -> Path:
    return registry.here().path / "telemetry" / device


def page(device: str) -> Path:
    """The file of a device's page; made if missing."""
    folder = _folder(device)
    file = folder / ".page"
    if not file.exists():
        private_folder(folder)
        with explained(file), locked(folder / ".lock", "telemetry"), contextlib.suppress(FileExistsError):
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, PAGE_BYTES)  # a store into a hole of a file on a full disk kills
            finally:
                os.close(fd)
    return file


def attach(nic: CountingNic, devices: Iterable[Device]) -> None:
    """Attach the pages of these devices to a process's NIC, before it uses them. Repeated calls do nothing."""
    for device in devices:
        try:
            _attach(nic, device)
        except OSError as reason:  # a domain works without counters
            _log.warning("device %s: telemetry leaves this process out: %s", device.name, reason)


def _attach(nic: CountingNic, device: Device) -> None:
    fd = open_regular(page(device.name), os.O_RDWR)
    try:
        if os.fstat(fd).st_size < PAGE_BYTES:  # the process that made it was killed
            os.posix_fallocate(fd, 0, PAGE_BYTES)
        nic.attach_telemetry(device.engine_nic(), fd)
        shown = os.pread(fd, 8, _DOWN)
    finally:
        os.close(fd)
    if any(shown) == device.up:  # a process was killed between the registry's change and the page's
        show_link(device.name)


def show_link(device: str) -> None:
    """Copy the link state of a device from the registry to its page, where the NICs of all processes see it."""
    here = registry.here()
    with here.lock():
        found = [one["up"] for one in here.read().record["devices"] if one["name"] == device]
        if found:
            with explained(page(device)), open(open_regular(page(device), os.O_RDWR), "r+b", buffering=0) as file:
                file.seek(_DOWN)
                file.write(struct.pack("=Q", not found[0]))


def counts(device: str) -> dict[str, int]:
    """The counts of a device now, by name, from its page."""
    data = read_regular(page(device), PAGE_BYTES).ljust(PAGE_BYTES, b"\0")
    return {
        name: sum(
            struct.unpack_from("=Q", data, at)[0] for at in (offset, *range(_BLOCKS + offset, PAGE_BYTES, _BLOCK_BYTES))
        )
        for name, offset in OFFSETS.items()
    }


def publish(device: Device) -> None:
    """Write the counts of a device to its files."""
    found = counts(device.name)
    folder = _folder(device.name)
    with locked(folder / ".lock", "telemetry"):
        now = time.time_ns()
        for name, value in found.items():
            replace(folder / name, f"{value}@{now // 10**9}.{now % 10**9:09d}\n")


def fresh(device: Device, name: str) -> Reading:
    """A counter of a device as it is now, or as it was at most WEFT_CXI_COUNTER_INTERVAL ago."""
    e = env.load()
    interval_ns = int(e.WEFT_CXI_COUNTER_INTERVAL) * 10**6
    if interval_ns:
        with contextlib.suppress(errors.NotFound):
            last = read(device.name, name)
            if time.time_ns() - last.time_ns < interval_ns:
                return last
    publish(device)
    return read(device.name, name)


def read(device: str, name: str) -> Reading:
    """A counter of a device, as published last.

    Raises NotFound, InvalidArgument (an unknown name, an invalid file).
    """
    if name == _BINARY or not name or len(name) > NAME_MAX or "/" in name or name.startswith("."):
        raise errors.InvalidArgument(
            f"telemetry: {name!r} is no counter\n  rule: a name of at most {NAME_MAX} characters, not {_BINARY}"
        )
    file = _folder(device) / name
    try:
        text = read_regular(file, 256).decode("ascii")
    except FileNotFoundError:
        raise errors.NotFound(f"telemetry: {device} has no counter {name!r}\n  counters: {', '.join(NAMES)}") from None
    except (OSError, ValueError) as reason:
        raise errors.InvalidArgument(f"telemetry: {file} cannot be read: {reason}") from None
    value, at, when = text.strip().partition("@")
    seconds, dot, nanoseconds = when.partition(".")
    if not (at and dot and value.isdecimal() and seconds.isdecimal() and nanoseconds.isdecimal()):
        raise errors.InvalidArgument(f"telemetry: {file} is no value@seconds.nanoseconds, but {text[:80]!r}")
    return Reading(int(value), int(seconds) * 10**9 + int(nanoseconds))


def read_all(device: str) -> dict[str, Reading]:
    """All counters of a device, by name; empty before the first `publish`."""
    return {name: read(device, name) for name in NAMES if (_folder(device) / name).exists()}


class Delta:
    """The increase of counters between the opening and the closing of a domain (FI_CXI_TELEMETRY).

    Args:
        names: Counters; those that cannot be read are left out, with a warning.
        rgid: FI_CXI_TELEMETRY_RGID: only domains of that service; below 0: all.
    """

    def __init__(self, device: Device, service: int, names: Iterable[str], rgid: int = -1) -> None:
        self._device = device
        self._before: dict[str, Reading] = {}
        wanted = list(names) if rgid < 0 or rgid == service else []
        if wanted:
            self._publish()
        for name in wanted:
            try:
                self._before[name] = read(device.name, name)
            except errors.FabricError as reason:
                _log.warning("device %s: FI_CXI_TELEMETRY: %s is skipped: %s", device.name, name, reason)

    def _publish(self) -> None:
        try:
            publish(self._device)
        except OSError as reason:
            _log.warning("device %s: telemetry: %s", self._device.name, reason)

    def close(self) -> dict[str, int]:
        """Log the differences at the level of info; a smaller value means that the counter was reset: a warning."""
        if self._before:
            self._publish()
        found = {}
        for name, before in self._before.items():
            try:
                after = read(self._device.name, name)
            except errors.FabricError as reason:
                _log.warning("device %s: FI_CXI_TELEMETRY: %s: %s", self._device.name, name, reason)
                continue
            found[name] = after.value - before.value
            if found[name] < 0:
                _log.warning("device %s: telemetry %s was reset", self._device.name, name)
            else:
                _log.info(
                    "device %s: telemetry %s +%d in %.6f s",
                    self._device.name,
                    name,
                    found[name],
                    (after.time_ns - before.time_ns) / 1e9,
                )
        self._before = {}
        return found
