"""What the CXI provider decides of one domain. Source: fi_cxi(7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ...fi.attrs import Info
from ...fi.auth_key import keys_in_force, keys_of_vector
from ...fi.offer import Offer
from ...fi.policy import Address, CollectiveLimit, Credential, EndpointPolicy, Failure, RegionPolicy
from ...fi.policy_rules import RegionFacts
from ...fi.rules import Rule
from ...flags import Flag, Tc
from ..base import BaseDomain
from ..hosts import REMOTE_NIC
from . import (
    auth_key,
    collective,
    device,
    device_memory,
    env,
    ext,
    fabrics,
    hosts,
    ledger,
    logs,
    names,
    op_rules,
    pages,
    profile,
    resources,
    rules,
    service,
    statuses,
    telemetry,
    translation,
    watch,
    work,
)
from .auth_key import AuthKey
from .counter import CxiCounter
from .endpoint import CxiEndpoint, tclass
from .ext import DomainOptions, DomOps
from .mr import CLIENT_OPTIMIZED, CxiRegion, Keys, is_optimized
from .names import OpFlag

if TYPE_CHECKING:
    from .provider import Cxi

DEFAULT_SERVICE = 1
OWN_RESOURCES = ("acs", "txqs", "tgqs")
_ACK_BATCH_MAX = (1 << 32) - 1


class CxiDomain(BaseDomain):
    """A NIC opened for use by the members of a service.

    Attributes:
        device: The NIC.
        service: The service whose resources the domain uses.
        pool: The domain's share of these resources.
        tclass: Traffic class of endpoints that name none.
        options: Settings that fi_control changes.
        watch: The reporter of messages that are stuck.
        translation: How the NIC finds memory.
        pages: The treatment of the pages of regions; None: none.
        devices: The treatment of device memory; None: none.
    """

    endpoint_class = CxiEndpoint
    commands = rules.COMMANDS
    advice = rules.ADVICE
    numbers = rules.NUMBERS
    query_flags = int(OpFlag.PCIE_AMO)
    work = work.RULES

    def __init__(self, provider: Cxi, info: Info, offer: Offer) -> None:
        name = str(info.domain_attr.name)
        found = device.by_name(name)
        if found is None:
            raise provider.refusals.refuse(
                Rule.DOMAIN_UNKNOWN, f"domain: {name} is not there any more\n  try: `weft device list`"
            )
        threading = provider.threading_refused(info.domain_attr.threading)
        if threading is not None:
            raise provider.refusals.refuse(
                Rule.NOT_OFFERED,
                f"domain: no offer matches the Info\n  {threading}\n  try: an Info that getinfo returned",
            )
        self.device = found
        self.fabric = fabrics.in_force(found.fabric)
        super().__init__(provider, info, offer)
        self.source = found.engine_nic(), None, self.credential.vni
        self.service = self._service()
        self.tclass = self._tclass(info.domain_attr.tclass)
        events = int(info.tx_attr.size + info.rx_attr.size)
        e = env.load()
        self.queues = rules.queues(
            profile.load().cq_size,
            events,
            e.FI_CXI_CQ_FILL_PERCENT,
            huge_pages=not e.FI_CXI_DISABLE_EQ_HUGETLB,
            ack_batch=min(e.FI_CXI_EQ_ACK_BATCH_SIZE, _ACK_BATCH_MAX),
        )
        self.statuses = statuses.STATUSES
        self.options = DomainOptions.load(self.keys.provider)
        self.ops = DomOps(self)
        self.translation = self._translation(int(info.domain_attr.mr_mode))
        self.text = str(self.translation)
        self.region_keys = Keys(self.translation.count_max, self.translation.bytes_max)
        self.pages = pages.of_domain(odp=self.translation.odp)
        self.devices = device_memory.of_domain(self.nic) if self.info.caps & Flag.HMEM else None
        self.pool = self._pool()
        self.watch = watch.Watch(self.device.name, self.service.id, self.pool)
        self._work_limited = bool(e.FI_CXI_ENABLE_TRIG_OP_LIMIT)
        logs.follow_environment()
        self._telemetry = self._counted()

    def _counted(self) -> telemetry.Delta:
        """Attach the devices' pages to the NIC, and store the current values of FI_CXI_TELEMETRY's counters."""
        self._attach()
        e = env.load()
        return telemetry.Delta(self.device, self.service.id, e.FI_CXI_TELEMETRY, e.FI_CXI_TELEMETRY_RGID)

    def _attach(self) -> None:
        there = device.devices()
        telemetry.attach(self.nic, there)
        self._nics = {one.nic for one in there}

    def _translation(self, mr_mode: int) -> translation.Translation:
        found = translation.of_domain(mr_mode)
        if found.why:
            raise self.refusals.refuse(
                Rule.DOMAIN_RESOURCES,
                f"domain: {found.why}\n  try: another monitor, or FI_MR_CACHE_MONITOR=disabled, without cached keys",
            )
        return found

    def _service(self) -> service.Service:
        """The service of the key; if keys come with the address vector, the default service."""
        found = service.service(self.device.name, self.credential.service or DEFAULT_SERVICE)
        if found is None:
            raise self.refusals.refuse(
                Rule.DOMAIN_RESOURCES,
                f"domain: {self.device.name} has no service {self.credential.service} any more\n"
                "  try: `weft service list`, or another domain_attr.auth_key",
            )
        return found

    def _tclass(self, value: object) -> Tc:
        found = tclass(value, Tc.TC_BEST_EFFORT)
        allowed = self.service.tclasses
        known = ", ".join(str(one) for one in rules.LABELS if allowed is None or one in allowed)
        if found is None or (allowed is not None and value and found not in allowed):
            raise self.refusals.refuse(
                Rule.DOMAIN_TCLASS,
                f"domain: traffic class {value!r}; service {self.service.id} has {known}\n"
                "  rule: a label, no DSCP and no network control",
            )
        return found

    def _pool(self) -> resources.Pool:
        """Open the domain's pool, and take the domain's own resources now, not at their first use."""
        try:
            pool = resources.open_pool(self.device, self.service)
        except errors.NotFound as gone:
            raise self.refusals.refuse(Rule.DOMAIN_RESOURCES, f"domain: {gone.message}") from None
        try:
            for kind in OWN_RESOURCES:
                pool.take(kind)
        except resources.Exhausted as none:
            pool.close()
            raise self.refusals.refuse(Rule.DOMAIN_RESOURCES, f"domain: {none.message}") from none
        return pool

    def close(self) -> None:
        """Return the resources, end access to cached memory, and log the increase of FI_CXI_TELEMETRY's counters."""
        self.region_keys.mappings.close()
        if self.pages is not None:
            self.pages.close()
        self.pool.close()
        self._telemetry.close()

    @property
    def desc_ignored(self) -> bool:
        """True: descriptors have no effect, but for the option enable_hybrid_mr_desc of the domain's endpoints."""
        return True

    def nic_config(self) -> _nic.DomainConfig:
        """As for any domain; all fetching atomics need both remote rights.

        The initiator derives the kind of a region from its key, so two domains with different settings of optimized
        regions do not find each other's regions with keys below 100.
        """
        config = super().nic_config()
        config.fetches_need_both = True
        config.standard_below = 0 if env.load().FI_CXI_OPTIMIZED_MRS else CLIENT_OPTIMIZED
        return config

    # ---- objects -----------------------------------------------------------------------------------------------------

    def take_queue(self) -> None:
        """Take an event queue of the NIC."""
        try:
            self.pool.take("eqs")
        except resources.Exhausted as none:
            raise self.refusals.refuse(Rule.CQ_RESOURCES, f"cq_open: {none.message}") from none

    def give_queue(self) -> None:
        """Return an event queue."""
        self.pool.give("eqs")

    def region(self, region: RegionFacts) -> RegionPolicy | None:
        """The policy of a region; None for regions to which peers have no rights."""
        if self.pages is not None:
            return self.pages.region(region, lambda: self._region(region))
        return self._region(region)

    def _region(self, region: RegionFacts) -> RegionPolicy | None:
        if self.devices is not None:
            return self.devices.region(region, lambda: CxiRegion(self, region) if region.remote else None)
        return CxiRegion(self, region) if region.remote else None

    def opened(self, domain: _nic.DomainCore) -> None:
        """Watch the domain's regions at forks, and its messages."""
        domain.set_news(self.watch.news)
        self.pool.lend_triggers(domain)
        pages.watch(domain, self.pages, odp=self.translation.odp)

    def region_takes(self) -> _nic.RegionTakes | None:
        """A number, and entries by the key, as for `CxiRegion`; None where pages or device memory need a policy for
        each region.
        """
        if self.pages is not None or (self.devices is not None and self.devices.there()):
            return None
        return self.region_keys.takes(self.pool, self.refusals, self.options)

    def lent(self) -> dict[str, int | str]:
        """The ledger from which a C program's NIC takes entries for its messages and regions, and the form of its keys.

        Only a Python program's NIC makes keys of cached memory: here each region has a key of its own.
        """
        path, service = self.pool.place
        return {
            "path": str(path),
            "service": service,
            "les": ledger.KINDS.index("les"),
            "ptes": ledger.KINDS.index("ptes"),
            "tles": ledger.KINDS.index(work.KIND),
            "semaphore": work.client_semaphore(self) if self._work_limited else "",
            "optimized_below": CLIENT_OPTIMIZED if env.load().FI_CXI_OPTIMIZED_MRS else 0,
            **self.region_keys.form(self.options),
        }

    def counted_in(self) -> list[tuple[int, Path]]:
        """The devices' NICs and their pages, in which a C program's NIC counts."""
        return [(one.engine_nic(), telemetry.page(one.name)) for one in device.devices()]

    def elsewhere(self) -> list[tuple[int, str, int]]:
        """The NICs of the fabric that other hosts have: NIC address, IP address and port of their processes."""
        return hosts.elsewhere(self.fabric)

    def counter(self) -> CxiCounter:
        """A counter, which takes a hardware counter of the service."""
        return CxiCounter(self, self.pool)

    def refuses_work(self, ep: EndpointPolicy) -> str:
        """Why not: the endpoint has another VNI, or another traffic class."""
        return work.refuses(self, ep)  # type: ignore[arg-type]  # an endpoint of this domain

    def queue_work(self, domain: _nic.DomainCore, queue: Callable[[bool], str | None]) -> None:
        """Queue deferred work, within the service's trigger entries."""
        work.queue(self, domain, self._work_limited, queue)

    def work_waits(self, waiting: int) -> str:
        """What a C program hears whose deferred work waits for entries."""
        return work.waits(self, waiting)

    def work_full(self) -> None:
        """Take the entries of dead processes back for a C program; raises NoSpace if there are none."""
        work.full(self)

    def atomic_limit(self, datatype: int, op: int, family: int, flags: int) -> tuple[int, int]:
        """From the provider's table and the driver's remap value."""
        return op_rules.atomic_limit(datatype, op, family, flags, self.device.pcie_remap)

    def collective(self, coll: int, op: int, datatype: int) -> CollectiveLimit | None:
        """From the provider's table."""
        return collective.limit(coll, op, datatype)

    def operator_name(self, op: int) -> str:
        """Also the operators of fi_cxi_ext.h."""
        return collective.operator_name(op)

    # ---- commands and calls ------------------------------------------------------------------------------------------

    def control(self, fid: Any, command: int, arg: Any) -> Any:
        """FI_OPT_CXI_* of the domain."""
        if fid._called == "domain":
            known, result = ext.control(self, command, arg)
            if known:
                return result
        return super().control(fid, command, arg)

    def open_ops(self, fid: Any, name: str, flags: int) -> Any:
        """The calls of FI_CXI_DOM_OPS_1 to 6, one table for all; flags are ignored."""
        if fid._called == "domain" and name in ext.DOM_OPS:
            return self.ops
        return super().open_ops(fid, name, 0)

    def set_ops(self, fid: Any, name: str, flags: int, ops: Any) -> None:
        """Copies of device memory by the application (FI_SET_OPS_HMEM_OVERRIDE); the flags are ignored."""
        if fid._called == "domain" and name == names.SET_OPS_HMEM_OVERRIDE:
            self.options.hmem_override = ext.hmem_override(self, ops)
            return
        super().set_ops(fid, name, flags, ops)

    # ---- authorization keys ------------------------------------------------------------------------------------------

    def _credential(self) -> Credential:
        """The application's key, or the result of the search: environment, services of the user, unrestricted ones."""
        attr = self.info.domain_attr
        if keys_in_force(self.info) and not keys_of_vector(self.info) and attr.auth_key is not None:
            key = self.credential_of(bytes(attr.auth_key))
            return auth_key.credential(AuthKey.from_bytes(key.raw), "domain_attr.auth_key")
        found = auth_key.find(self.device)
        if found.key is None and keys_of_vector(self.info):
            return Credential(profile.load().default_vni, found=found.steps)
        if found.key is None:
            raise self.refusals.refuse(
                Rule.DOMAIN_NO_AUTH_KEY,
                f"domain: no authorization key is given, and no service of {self.device.name} is found for this user\n"
                f"{found.text()}\n"
                "  try: `weft service enable 1`, or domain_attr.auth_key = cxi.AuthKey(svc_id, vni)\n"
                '  fi_cxi(7) "Authorization Keys"',
            )
        return auth_key.credential(self._checked(found.key, found.text()), *found.steps)

    def credential_of(self, key: bytes) -> Credential:
        """An authorization key, checked on this device."""
        found = AuthKey.from_bytes(key)
        if keys_of_vector(self.info) and not found.svc_id:
            found = AuthKey(self.service.id, found.vni)
        return auth_key.credential(self._checked(found), "authorization key")

    def key_of(self, credential: Credential) -> bytes:
        """The key of a credential; for keys of an address vector without the service."""
        return AuthKey(0, credential.vni)

    def _checked(self, key: AuthKey, steps: str = "") -> AuthKey:
        why = auth_key.check(self.device, key)
        if why is None:
            used = service.service(self.device.name, key.svc_id)
            why = None if used is None else auth_key.excludes(used)
        if why is not None:
            raise self.refusals.refuse(
                Rule.DOMAIN_AUTH_KEY, f"authorization key {key!r}: {why}" + (f"\n{steps}" if steps else "")
            )
        return key

    def outcome(self, failed: Failure) -> tuple[int, int]:
        """From the status, the kind of the key, and the state of the peer's NIC."""
        return statuses.outcome(
            failed.status,
            optimized=is_optimized(failed.key),
            nic_exists=lambda: _nic_exists(failed.peer),
            vni_known=lambda: _vni_known(failed),
        )

    def peer(self, address: Address, vni: int | None) -> Address:
        """The peer's address with the VNI of the key that it was inserted with, otherwise the domain's VNI."""
        nic, pid, _ = address
        if nic not in self._nics:  # a device added since, or a NIC of another host
            self._attach()
            self._nics.add(nic)
        return hosts.engine_nic(self.fabric, nic), pid, self.credential.vni if vni is None else vni


def _nic_exists(peer: Address | None) -> bool:
    """True if the fabric has the peer's NIC; always True for a NIC of another host, because WEFT_CXI_HOSTS lists it."""
    return peer is None or peer[0] >= REMOTE_NIC or device.by_nic(hosts.nic_address(peer[0])) is not None


def _vni_known(failed: Failure) -> bool:
    """True if the peer's NIC has an endpoint of the VNI. False for NICs of other hosts, which do not tell."""
    if failed.peer is None or failed.peer[0] >= REMOTE_NIC:
        return False
    nic, _, vni = failed.peer
    return (nic, vni) == (failed.own[0], failed.own[2]) or _nic.has_vni(nic, vni)
