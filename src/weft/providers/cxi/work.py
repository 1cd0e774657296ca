"""Deferred work of the CXI provider: its rules, and the trigger entries of a service.

Every queued operation takes a trigger entry of the service until it starts, and one more with CNTR_WB. The processes of
a service share them (ledger.py); 8 of a service are the provider's own. Without FI_CXI_ENABLE_TRIG_OP_LIMIT, work for
which there is no entry waits for one: hardware deadlocks then, and the watchdog names the setting that would have
sufficed. With the variable the work is refused (-FI_ENOSPC), and one process at a time queues, under a named semaphore.

Source: fi_cxi(7) "Triggered Operation".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ... import _nic, errors
from ..._files import locked, private_folder
from ...fi.rules import Rule
from ...flags import Flag
from . import ledger, registry
from .names import OpFlag

if TYPE_CHECKING:
    from pathlib import Path

    from .domain import CxiDomain
    from .endpoint import CxiEndpoint

RULES = _nic.WorkRules(
    receives_wait=False,
    single=True,
    flags=int(Flag.COMPLETION | Flag.TRANSMIT_COMPLETE | Flag.DELIVERY_COMPLETE | Flag.MATCH_COMPLETE),
    sends_unchecked=True,
    write_back=int(OpFlag.CNTR_WB),
)
"""The rules of `Domain.control(fi.QUEUE_WORK, work)`."""

_FOLDER = "semaphores"
KIND = "tles"


def refuses(domain: CxiDomain, ep: CxiEndpoint) -> str:
    """Why the domain's command queue of triggers has no operations of the endpoint; "": it has."""
    if ep.credential.vni != domain.credential.vni:
        return f"the endpoint's VNI is {ep.credential.vni}, the domain's {domain.credential.vni}: they have to be equal"
    if ep.tclass != domain.tclass:
        return f"the endpoint's traffic class is {ep.tclass!s}, the domain's {domain.tclass!s}: they have to be equal"
    return ""


def queue(domain: CxiDomain, fid: _nic.DomainCore, limited: bool, start: Callable[[bool], str | None]) -> None:
    """Queue work by start(may_wait).

    Args:
        limited: FI_CXI_ENABLE_TRIG_OP_LIMIT: raises NoSpace if there is no entry, instead of letting the work wait.
    """
    if not limited:
        if start(True) == "waits":
            domain.pool.reclaim(KIND)  # entries of dead processes
            domain.watch.work_waits(fid)
        return
    with _held(semaphore(domain.device.name, domain.credential.vni, domain.service.id)):
        if start(False) != "full" or (domain.pool.reclaim(KIND) and start(False) != "full"):
            return
        raise _full(domain)


def semaphore(device: str, vni: int, service: int) -> Path:
    """The file that is the semaphore of a user's processes with this VNI and service. The file outlives the processes;
    its lock does not outlive the process that holds it.
    """
    return registry.folder() / _FOLDER / f"weft-trig-op-{os.geteuid()}-{device}-{vni}-{service}"


def client_semaphore(domain: CxiDomain) -> str:
    """The semaphore of a C program's domain, in a folder that exists."""
    path = semaphore(domain.device.name, domain.credential.vni, domain.service.id)
    private_folder(path.parent)
    return str(path)


def waits(domain: CxiDomain, waiting: int) -> str:
    """Why a C program's deferred work waits for entries, and what would have sufficed; the entries of dead processes
    are given back."""
    domain.pool.reclaim(KIND)
    found = domain.watch.stuck_work(waiting)
    return f"deferred work: {found.what}\n  in force: {found.in_force}\n  try: {found.advice}"


def full(domain: CxiDomain) -> None:
    """Give the entries of dead processes back. Raises NoSpace if no entry is free even then."""
    if not domain.pool.reclaim(KIND):
        raise _full(domain)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    private_folder(path.parent)
    with locked(path, "deferred work"):
        yield


def _full(domain: CxiDomain) -> errors.FabricError:
    depth = ledger.depth(domain.service.limits[KIND])
    by = ", ".join(f"{name} has {count}" for name, count in domain.pool.users(KIND)) or "nobody has any"
    return domain.refusals.refuse(
        Rule.WORK_SPACE,
        f"deferred work: no entry is free: service {domain.service.id} of {domain.device.name} has "
        f"{depth}\n  in use by: {by}\n  rule: FI_CXI_ENABLE_TRIG_OP_LIMIT, fi_cxi(7)\n"
        "  try: wait until queued work has started, or a service with more: `weft service create --device "
        f"{domain.device.name} --limit tles=<more>:<more>`",
        op="domain.control",
    )
