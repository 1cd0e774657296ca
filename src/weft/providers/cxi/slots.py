"""The NICs of programs that `weft run --hosts` starts, whose places all programs of a job know without asking.

A host has 64 slots, as a switch has ports. The program in slot s of host h (0 for the first of --hosts) has the NIC
address 0x840 + 64 h + s and listens at port 7000 + s. A program takes the lowest free slot, and holds the slot's lock
until the program ends, however it ends. Each slot has a registry of its own, `slots/<s>` in the host's, with a copy of
the host's first device that is up: `weft service` applies, and the host's registry stays as it is.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

from ... import errors
from ..._files import open_regular, private_folder
from ..hosts import bracketed
from . import registry
from .record import NIC_FIRST

SLOTS = 64
_HOSTS_MAX = 64  # the kernel's limit of a variable is 128 KiB, and WEFT_CXI_HOSTS has every slot
_PORTS = range(7000, 7000 + SLOTS)


def take(ips: Sequence[str], here: int, at: str) -> dict[str, str]:
    """Take a slot of this host; returns the variables of its program, which inherits the slot's lock.

    Args:
        ips: The hosts' addresses.
        here: The number of this host among them.
        at: The address to listen at.

    Raises InvalidArgument (too many hosts), NoDevice (no device is up), Busy (all slots are taken).
    """
    if len(ips) > _HOSTS_MAX:
        raise errors.InvalidArgument(
            f"run: --hosts has {len(ips)} hosts\n  rule: at most {_HOSTS_MAX} hosts\n  try: -p weft"
        )
    host = registry.here().read().record
    device = next((one for one in host["devices"] if one["up"]), None)
    if device is None:
        raise errors.NoDevice("run: no device is up\n  try: `weft device list`, `weft device up cxi0`")
    folder = registry.folder() / "slots"
    private_folder(folder)
    slot = next((slot for slot in range(SLOTS) if _is_free(folder / f"{slot}.lock", at, _PORTS[slot])), None)
    if slot is None:
        raise errors.Busy(
            f"run: no slot of this host is free for another program\n  rule: a host has {SLOTS} slots, and other "
            f"programs have their locks in {folder}, or listen at ports {_PORTS[0]} to {_PORTS[-1]}\n"
            "  try: end some of them, or take more hosts"
        )
    nics = [[NIC_FIRST + h * SLOTS + s for s in range(SLOTS)] for h in range(len(ips))]
    with registry.at(folder / str(slot)).change() as record:
        record["devices"] = [{**device, "nic": nics[here][slot]}]
        record["services"] = {device["name"]: host["services"][device["name"]]}
    listed = (f"{nics[h][s]:#x}={bracketed(ip)}:{port}" for h, ip in enumerate(ips) for s, port in enumerate(_PORTS))
    return {
        "WEFT_CXI_REGISTRY": str(folder / str(slot)),
        "WEFT_CXI_HOSTS": ",".join(listed),
        "WEFT_LISTEN": f"tcp://{bracketed(at)}:{_PORTS[slot]}",
    }


def _is_free(path: os.PathLike[str], at: str, port: int) -> bool:
    """True if the slot of this lock is free: now this process and its program hold the lock and the port's name."""
    import socket  # slow to import

    lock = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    name = socket.socket(socket.AF_UNIX)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        name.bind(f"\0weft-run-{at}:{port}")  # other users, with other locks, have programs that do not listen yet
        socket.create_server((at, port), family=socket.AF_INET6 if ":" in at else socket.AF_INET).close()
    except OSError:
        os.close(lock)
        name.close()
        return False
    for held in (lock, name.detach()):
        os.set_inheritable(held, True)
    return True
