"""How the CXI provider joins collective groups: communication keys, multicast addresses, the numbers of failed joins.

A set without a key (or with COMM_KEY_NONE) gets its multicast address from a Fabric Manager. FI_CXI_COLL_FABRIC_MGR_URL
names the manager. If no variable of a job's collectives is set, the manager is this host's own: a file in the
registry's folder, which needs no server. Reductions take the same way in every case: the tree of NICs in
cpp/nic/group.hpp. The address is accounted for as on hardware, and carries no packets.

Source: fi_cxi(7) "fi_join_collective()", FI_CXI_COLL_*.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..._process import client
from ...fi.policy import Address, GroupPlan
from ...fi.rules import Rule
from ...flags import Errno
from ...fm import ManagerError, create_multicast, delete_multicast
from . import env, hosts, processes, registry
from .logs import LOG
from .names import CommKeyType
from .names import Errno as Why
from .structs import CollCommKey

if TYPE_CHECKING:
    from ...fm.store import Store
    from .endpoint import CxiEndpoint

RANKS_MAX = 32
"""Members of a group that are one endpoint (COMM_KEY_RANK)."""
FILE = "multicast.db"
"""The host's own manager, in the registry's folder: groups that were joined without a Fabric Manager's address."""
_MCAST_MAX = 8191
_TEXTS = {
    Why.ERRNO_JOIN_MCAST_INUSE: "the system or the job has as many multicast addresses as it may have\n"
    "  try: close groups, or ask the administrator for more",
    Why.ERRNO_JOIN_HWROOT_INUSE: "no member's NIC is free to be the group's hardware root",
    Why.ERRNO_JOIN_MCAST_INVALID: "the Fabric Manager gave no valid multicast address",
    Why.ERRNO_JOIN_HWROOT_INVALID: "the Fabric Manager gave a hardware root that is no member",
    Why.ERRNO_JOIN_CURL_FAILED: "member 0 could not ask the Fabric Manager\n"
    "  try: FI_CXI_COLL_FABRIC_MGR_URL, FI_CXI_COLL_JOB_ID and FI_CXI_COLL_MCAST_TOKEN, as `weft fm serve` and\n"
    "  `weft launch --collectives` give them",
    Why.ERRNO_JOIN_SERVER_ERR: "the Fabric Manager refused, or did not answer",
    Why.ERRNO_JOIN_OTHER: "a member could not take part",
}


def plan(ep: CxiEndpoint, own: Address, comm_key: bytes | None, count: int) -> GroupPlan:
    """`EndpointPolicy.group`."""
    e = env.load()
    key = (
        CollCommKey() if comm_key is None else CollCommKey.from_buffer_copy(comm_key.ljust(ctypes.sizeof(CollCommKey)))
    )
    base = GroupPlan(
        join_radix=e.FI_CXI_ZBCOLL_RADIX,
        failed_err=-int(Errno.ECONNREFUSED),
        other_errno=int(Why.ERRNO_JOIN_OTHER),
        texts={int(one): text for one, text in _TEXTS.items()},
    )
    if key.keytype == CommKeyType.COMM_KEY_RANK:
        if not count <= RANKS_MAX or not key.rank.rank < count:
            raise ep.refusals.refuse(
                Rule.JOIN_KEY,
                f"ep.join_collective: rank {key.rank.rank} of {count} members that are one endpoint\n"
                f"  rule: ranks from 0, at most {RANKS_MAX} members",
            )
        return base._replace(member=int(key.rank.rank), radix=2)
    if key.keytype == CommKeyType.COMM_KEY_MULTICAST:
        root, address = int(key.mcast.hwroot_idx), int(key.mcast.mcast_addr)
        if root >= count or address > _MCAST_MAX:
            raise ep.refusals.refuse(
                Rule.JOIN_KEY,
                f"ep.join_collective: multicast address {address}, root {root} of {count} members\n"
                f"  rule: an address of 13 bits, and a root among the members",
            )
        return base._replace(ask=lambda members, stop: (address, root))
    if key.keytype == CommKeyType.COMM_KEY_UNICAST:
        return base
    if key.keytype != CommKeyType.COMM_KEY_NONE:
        raise ep.refusals.refuse(Rule.JOIN_KEY, f"ep.join_collective: comm_key of the unknown type {key.keytype}")
    if not e.FI_CXI_COLL_FABRIC_MGR_URL and not e.FI_CXI_COLL_JOB_ID and not e.FI_CXI_COLL_MCAST_TOKEN:
        own_manager = _Own(ep)
        return base._replace(ask=own_manager.ask, blocks=True, release=own_manager.release)
    manager = _Manager(ep, e)
    return base._replace(ask=manager.ask, blocks=True, release=manager.release)


def _nics(members: Sequence[Address]) -> list[int]:
    return [hosts.nic_address(nic) for nic, _, _ in members]


class _Manager:
    """The Fabric Manager at FI_CXI_COLL_FABRIC_MGR_URL."""

    def __init__(self, ep: CxiEndpoint, e: env.CxiEnvironment) -> None:
        self._vni = ep.credential.vni
        self._e = e

    def ask(self, members: Sequence[tuple[int, int, int]], stop: threading.Event) -> tuple[int, int]:
        e, nics = self._e, _nics(members)
        with _logged():
            found = create_multicast(
                e.FI_CXI_COLL_FABRIC_MGR_URL,
                e.FI_CXI_COLL_MCAST_TOKEN,
                nics,
                self._vni,
                e.FI_CXI_COLL_TIMEOUT_USEC,
                e.FI_CXI_COLL_JOB_ID,
                e.FI_CXI_COLL_JOB_STEP_ID or None,
                e.FI_CXI_COLL_FABRIC_MGR_CACERT,
                stop=stop,
            )
        return found.mcast_id, nics.index(found.hw_root)

    def release(self, address: int) -> None:
        e = self._e
        with _logged():
            delete_multicast(
                e.FI_CXI_COLL_FABRIC_MGR_URL, e.FI_CXI_COLL_MCAST_TOKEN, address, e.FI_CXI_COLL_FABRIC_MGR_CACERT
            )


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log what the manager said, in one line: the other members of the group learn the number of the error alone."""
    try:
        yield
    except ManagerError as refused:
        LOG.warning("fabric manager: %s", " ".join(refused.message.split()))
        raise


class _Own:
    """This host's manager: a file. The next request frees the addresses of processes that have died."""

    def __init__(self, ep: CxiEndpoint) -> None:
        self._vni = ep.credential.vni
        self._timeout_us = env.load().FI_CXI_COLL_TIMEOUT_USEC
        self._most = env.load().FI_CXI_HWCOLL_ADDRS_PER_JOB
        self._folder = registry.here().path

    def ask(self, members: Sequence[tuple[int, int, int]], stop: threading.Event) -> tuple[int, int]:
        from ...fm.store import Refused

        nics = _nics(members)
        try:
            with self._store() as store:
                for job in store.jobs():
                    if (who := _process_of(job.job_id)) is not None and not processes.alive(who):
                        with contextlib.suppress(Refused):
                            store.release(job.job_id)
                found = store.create(nics, self._vni, self._timeout_us, _own_job())
        except Refused as reason:
            raise ManagerError(
                f"this host's multicast addresses: {reason.message}\n"
                "  try: close groups; FI_CXI_HWCOLL_ADDRS_PER_JOB is the limit of a process",
                prov_errno=int(Why.ERRNO_JOIN_MCAST_INUSE if reason.status == 507 else Why.ERRNO_JOIN_OTHER),
            ) from None
        except (OSError, ValueError) as reason:
            raise ManagerError(
                f"this host's multicast addresses: {reason}", prov_errno=int(Why.ERRNO_JOIN_OTHER)
            ) from None
        return found.mcast_id, nics.index(found.hw_root)

    def release(self, address: int) -> None:
        from ...fm.store import Refused

        try:
            with self._store() as store:
                store.delete(address, _own_job())
        except (Refused, OSError, ValueError) as reason:
            raise ManagerError(
                f"this host's multicast address {address}: {reason}", prov_errno=int(Why.ERRNO_JOIN_CURL_FAILED)
            ) from None

    def _store(self) -> Store:
        from ...fm.store import Limits, Store

        # Endpoints of one software NIC may each be the root of a group.
        limits = Limits(addresses_per_job=self._most, groups_per_root=_MCAST_MAX + 1)
        return Store(self._folder / FILE, limits, wait_s=30)


def _own_job() -> str:
    """The process that joins: a policy helper asks on behalf of its client, which may outlive it."""
    me = processes.identity(client.get())
    return f"process {me['pid']} {me['start']} {me['space']}"


def _process_of(job: str) -> dict[str, int] | None:
    parts = job.split()
    if len(parts) != 4 or parts[0] != "process":
        return None
    try:
        return dict(zip(("pid", "start", "space"), map(int, parts[1:]), strict=True))
    except ValueError:
        return None
