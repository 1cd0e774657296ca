"""Records of what a policy decides: the NIC's settings as records of their tables, and what cpp/provider adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import _nic
from ..fi.mr_register import quick_rules
from ..fi.policy import Failure
from ..fi.rules import Rule
from ..flags import AddrFormat, Control, Flag
from .records import Record, Value

if TYPE_CHECKING:
    from ..fi.cm import PassiveEndpoint
    from ..fi.cq import CompletionQueue
    from ..fi.domain import Domain
    from ..fi.endpoint import Endpoint
    from ..fi.ep_alias import EndpointAlias
    from ..fi.policy import Address, DomainPolicy
    from ..settings import CacheSettings, Settings

_Fields = dict[str, Value]
_CHECKED = (
    *(Rule.AV_INSERT_FLAGS, Rule.AV_REMOVE_FLAGS, Rule.EP_BIND_FLAGS, Rule.EP_CONNECTIONLESS, Rule.WAIT_NONE),
    *(Rule.MR_BIND_COUNT, Rule.MR_BIND_ENDPOINT, Rule.MR_BIND_FLAGS, Rule.MR_BIND_STATE, Rule.MR_CONTROL),
    *(Rule.MR_ENABLE_UNBOUND, Rule.MR_FLAGS, Rule.MR_IOV_LIMIT),
)
"""The rules whose calls cpp/provider checks; their error numbers are the provider's."""


def process(s: Settings, cache: CacheSettings) -> _Fields:
    """The configuration of the client process's NIC, from the environment."""
    return {
        "manual": int(s.WEFT_ENGINE == "manual"),
        "strict": int(s.WEFT_ISOLATION == "strict"),
        "cma": int(s.WEFT_CMA),
        "shm": int(s.WEFT_SHM),
        "viewers": int(s.WEFT_TOP),
        "trace": s.WEFT_TRACE,
        "trace_records": s.WEFT_TRACE_RECORDS,
        "cache_monitor": cache.FI_MR_CACHE_MONITOR,
        "cache_count_max": cache.FI_MR_CACHE_MAX_COUNT,
        "cache_bytes_max": 2**64 - 1 if cache.FI_MR_CACHE_MAX_SIZE is None else cache.FI_MR_CACHE_MAX_SIZE,
    }


def domain(of: Domain) -> _Fields:
    """A domain's configuration of the NIC, and the rules of its objects."""
    policy = of.policy
    config = policy.nic_config()
    config.regions, _ = quick_rules(of)
    nic = policy.source[0]
    codec = of.provider.addresses
    return {
        "config": config.to_record(),
        "source.nic": nic,
        "vni": policy.credential.vni,
        "addr_format": int(codec.format),
        "addr_size": codec.size or 0,
        "fabric_base": nic & ~0xFFFFF if codec.format == AddrFormat.ADDR_CXI else 0,
        "address_vni": int(codec.emit((0, 0, 1))[4:6] != b"\0\0") if codec.format == AddrFormat.ADDR_CXI else 0,
        "mr_mode": of.attr.mr_mode,
        "mr.iov_limit": of.attr.mr_iov_limit,
        "mr.flags": policy.regions.flags,
        "mr.offset_ignored": int(policy.regions.offset == "ignored"),
        "mr.counters_max": policy.regions.counters_max or 2**32,
        "av.insert_flags": policy.vectors.insert_flags,
        "av.remove_ignores": int(policy.vectors.remove_unknown == "ignore"),
        "av.counted": int(policy.vectors.counted),
        "asks_outcome": int(policy.credential.service != 0),
        "av_auth_key": int(of._av_auth_key),
        "work_cancels": int(Control.CANCEL_WORK in of.policy.commands.domain),
        **{f"errno.{rule.name}": int(policy.refusals.errno(rule)) for rule in _CHECKED},
        **_resources(of),
    }


def _resources(of: Domain) -> _Fields:
    """What a domain of a device has besides; empty for others.

    The ledger of its service, from which the client's NIC takes list entries, and the devices' pages, where it counts.
    """
    lent, counted_in = getattr(of.policy, "lent", None), getattr(of.policy, "counted_in", None)
    far = getattr(of.policy, "elsewhere", None)
    if lent is None or counted_in is None or far is None:
        return {}
    elsewhere: list[Value] = [{"nic": nic, "ip": ip, "port": port} for nic, ip, port in far()]
    pages: list[Value] = [{"nic": nic, "path": str(path)} for nic, path in counted_in()]
    return {**{f"ledger.{name}": value for name, value in lent().items()}, "page": pages, "elsewhere": elsewhere}


def queue(cq: CompletionQueue) -> _Fields:
    """A completion queue's configuration."""
    rules = cq.domain.policy.queues
    return {
        "entries": max(cq.capacity * rules.fill_percent // 100, 1),
        "format": int(cq.format),
        "wait_obj": int(cq.wait_obj),
        "wait_cond": int(cq.wait_cond),
        "signals": int(rules.signals),
        "huge": int(rules.huge_pages),
        "ack_batch": rules.ack_batch,
        "reserves": int(rules.reserves),
    }


def endpoint(ep: Endpoint) -> _Fields:
    """An endpoint's configuration of the NIC, and its options."""
    policy = ep.policy
    config = policy.nic_config()
    return {
        "config": config.to_record(),
        "messages": int(policy.messages is not None),
        "source": int(bool(ep.caps & Flag.SOURCE)),
        "receives": int(bool(ep.caps & Flag.RECV)),
        "triggers": int(bool(ep.caps & Flag.TRIGGER) and policy.triggers),
        **_address(policy.address),
        "data_writes": int(policy.data_writes),
        "inject_context": int(policy.inject_context),
        "named": int(policy.binds.named),
        "min_multi_recv_max": getattr(policy, "min_multi_recv_max", (1 << 63) - 1),
        "option": _options(ep),
        **handle(ep),
    }


def handle(of: Endpoint | EndpointAlias) -> _Fields:
    """What a handle of an endpoint, the endpoint itself or an alias, has of its own: default flags, order, class."""
    msg_order, tclass = of.policy.lane
    return {
        "tx_flags": of.control(Control.GETOPSFLAG, int(Flag.TRANSMIT)),
        "rx_flags": of.control(Control.GETOPSFLAG, int(Flag.RECV)),
        "lane.msg_order": msg_order,
        "lane.tclass": tclass,
        "call_flags": of.policy.call_flags,
        "no_work": of.domain.policy.refuses_work(of.policy),
    }


def matching(of: Endpoint) -> _Fields:
    """Where an endpoint that is enabled now matches messages, if its domain's options say it."""
    found = getattr(of.policy, "matching", None)
    config = found() if found is not None else None
    return {} if config is None else {"matching": config.to_record()}


def passive_endpoint(pep: PassiveEndpoint) -> _Fields:
    """A passive endpoint's configuration of the NIC, and its address."""
    return {"config": pep.config.to_record(), **_address(pep.address)}


def _address(of: Address) -> _Fields:
    nic, pid, vni = of
    return {"address.nic": nic, "address.pid": pid, "address.vni": vni}


def _options(ep: Endpoint) -> list[Value]:
    found: list[Value] = []
    for name, option in ep.policy.options.items():
        if option.get is None:
            continue
        try:
            found.append({"name": name, "value": int(option.get())})
        except (OSError, ValueError):  # a refusal: it has no value now
            continue
    return found


def outcome(policy: DomainPolicy, asked: Record) -> Mapping[str, Value]:
    """The error numbers of a failed operation."""
    peer = tuple(int(one) for one in asked.get("peer", []))
    own = tuple(int(one) for one in asked.get("own", []))
    err, prov = policy.outcome(
        Failure(
            _nic.Status(asked.number("status")),
            asked.number("key"),
            (peer[0], peer[1], peer[2]) if len(peer) == 3 else None,
            (own[0], own[1], own[2]) if len(own) == 3 else (0, None, 0),
        )
    )
    return {"err": int(err), "prov_errno": int(prov)}
