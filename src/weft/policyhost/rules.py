"""Records of what a policy decides: cpp/provider/rules.cpp makes the NIC's configurations of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _nic
from ..fi.policy import Failure, MessageRules
from ..flags import AddrFormat, Op
from .records import Record, Value

if TYPE_CHECKING:
    from ..fi.cq import CompletionQueue
    from ..fi.domain import Domain
    from ..fi.endpoint import Endpoint
    from ..fi.policy import DomainPolicy
    from ..settings import CacheSettings, Settings

__all__ = ["CALLS", "MESSAGES", "domain", "endpoint", "outcome", "process", "queue"]

CALLS = ("write", "read", "batch", "atomic", "fetch", "compare", "send", "tsend", "recv", "trecv")
MESSAGES = tuple(name for name in MessageRules._fields if name not in ("tag_bits", "data"))
_FAMILIES = 3
_OPS = tuple(op for op in Op if op < Op.NOOP)  # those that the NIC knows: by number, from 0

_Fields = dict[str, Value]


def process(s: Settings, cache: CacheSettings) -> _Fields:
    """How the NIC of the client's process is made, by the environment."""
    return {
        "manual": int(s.engine == "manual"),
        "strict": int(s.isolation == "strict"),
        "cma": int(s.cma),
        "shm": int(s.shm),
        "viewers": int(s.top),
        "trace": s.trace,
        "trace_records": s.trace_records,
        "cache_monitor": cache.cache_monitor,
        "cache_count_max": cache.cache_max_count,
        "cache_bytes_max": 2**64 - 1 if cache.cache_max_size is None else cache.cache_max_size,
    }


def domain(of: Domain) -> _Fields:
    """A domain's configuration of the NIC, and the rules of its objects."""
    policy = of.policy
    config = policy.nic_config()
    statuses = config.pop("statuses")
    nic = policy.source[0]
    codec = of.provider.addresses
    return {
        **{name: value if isinstance(value, str) else int(value) for name, value in config.items()},
        "status.err": [int(err) for err, _ in statuses],
        "status.prov": [int(prov) for _, prov in statuses],
        "source.nic": nic,
        "vni": policy.credential.vni,
        "addr_format": int(codec.format),
        "addr_size": codec.size or 0,
        "fabric_base": nic & ~0xFFFFF if codec.format == AddrFormat.ADDR_CXI else 0,
        "address_vni": int(codec.emit((0, 0, 1))[4:6] != b"\0\0") if codec.format == AddrFormat.ADDR_CXI else 0,
        "mr_mode": of.attr.mr_mode,
        "mr.iov_limit": of.attr.mr_iov_limit,
        "mr.flags": policy.regions.flags,
        "av.remove_ignores": int(policy.vectors.remove_unknown == "ignore"),
        "asks_outcome": int(policy.credential.service != 0),
        **_resources(of),
    }


def _resources(of: Domain) -> _Fields:
    """The ledger of the domain's service, from which the client's NIC takes list entries; nothing without one."""
    lent = getattr(of.policy, "lent", None)
    return {} if lent is None else {f"ledger.{name}": value for name, value in lent().items()}


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
    config: dict[str, Any] = policy.nic_config()
    nic, pid, vni = policy.address
    pids, rules = config.pop("pids"), config.pop("rules")
    config.pop("messages")
    config.pop("traffic", None)  # telemetry of a C program's endpoints is not there yet
    accelerated, prefer_numbers, mr_collective = config.pop("collectives")
    commands, reorder = config.pop("commands", None), config.pop("reorder", None)
    found: _Fields = {
        **{name: int(value) for name, value in config.items() if value is not None},
        "pid_first": pids[0],
        "pid_last": pids[1],
        "accelerated": int(accelerated),
        "prefer_numbers": int(prefer_numbers),
        "mr_collective": int(mr_collective),
        "rules": None if rules is None else _op_rules(rules),
        "messages": None if policy.messages is None else _messages(policy.messages),
        "address.nic": nic,
        "address.pid": pid,
        "address.vni": vni,
        "data_writes": int(policy.data_writes),
        "inject_context": int(policy.inject_context),
        "call_flags": policy.call_flags,
        "named": int(policy.binds.named),
        "min_multi_recv_max": getattr(policy, "min_multi_recv_max", (1 << 63) - 1),
        "option": _options(ep),
    }
    if commands is not None:
        found["commands.policy"], found["commands.ring"] = commands
    if reorder is not None:
        found["reorder"] = list(reorder)
    return found


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


def _messages(rules: MessageRules) -> _Fields:
    return {name: rules.mode.value if name == "mode" else int(getattr(rules, name)) for name in MESSAGES}


def _op_rules(rules: _nic.OpRules) -> _Fields:
    names = (
        "iov_max",
        "rma_iov_max",
        "atomic_bytes_max",
        "atomic_count_max",
        "only_receives_cancel",
        "fence_needs_cap",
        "fence_also",
        "data_key_mask",
        "data_key_value",
        "pcie_flag",
        "pcie_datatypes",
        "local_lengths",
    )
    return {
        **{name: int(getattr(rules, name)) for name in names},
        "tag_mask": rules.messages.tag_mask,
        "message_data": int(rules.messages.data),
        "key_form": [number for form in rules.key_forms() for number in form],
        "flags": [rules.flags(call) for call in CALLS],
        "errno": [rules.errno_of(refusal) for refusal in _nic.Refusal],
        "refusal": [refusal.value for refusal in _nic.Refusal],
        "atomics": [rules.atomics(family, int(op)) for family in range(_FAMILIES) for op in _OPS],
        "flag": [flag for flag, _ in rules.flag_names()],
        "flag_name": [name for _, name in rules.flag_names()],
    }


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
