"""The CXI provider's own commands and calls of a domain: FI_OPT_CXI_*, struct fi_cxi_dom_ops.

Source: fi_cxi(7) "CXI Domain Control Extensions", "CXI Domain Extensions".
"""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import errors
from ...fi.rules import Rule
from ...flags import Flag
from . import env, ledger, names, telemetry
from .env import REQ_HEADER_BYTES
from .number import number

if TYPE_CHECKING:
    from .domain import CxiDomain

DOM_OPS = (names.DOM_OPS_1, names.DOM_OPS_2, names.DOM_OPS_3, names.DOM_OPS_4, names.DOM_OPS_5, names.DOM_OPS_6)
_MODES = ("hardware", "software", "hybrid")


@dataclass(frozen=True)
class HmemOverride:
    """struct fi_hmem_override_ops: the application's functions for copies between device and host memory."""

    copy_from_hmem_iov: Any = None
    copy_to_hmem_iov: Any = None


def hmem_override(domain: CxiDomain, ops: Any) -> HmemOverride:
    """Both functions, or the refusal."""
    given = [getattr(ops, name, None) for name in ("copy_from_hmem_iov", "copy_to_hmem_iov")]
    if not all(map(callable, given)):
        raise domain.refusals.refuse(
            Rule.OPS_ARGUMENT,
            f"domain.set_ops({names.SET_OPS_HMEM_OVERRIDE!r}): both copies are needed, not {ops!r}\n"
            "  try: cxi.HmemOverride(copy_from_hmem_iov, copy_to_hmem_iov)",
            op="domain.set_ops",
        )
    found: HmemOverride = ops
    return found


@dataclass
class DomainOptions:
    """The settings of one domain: at first the environment's.

    Attributes:
        prov_key: The domain makes keys (FI_MR_PROV_KEY).
        optimized_mrs: Regions may be optimized.
        prov_key_cache: Keys of cached memory are used.
        mr_match_events: A region's key is invalid after fi_close, even if its memory is cached.
        rx_match_mode: The match mode of endpoints enabled later.
        req_buf_size: Bytes of a request buffer.
        hmem_override: The application's copies of device memory. Without effect: the NIC copies with the library of the
            device.
        writedata: There are writes with remote data; then no region is optimized, and no key of cached memory.
        hybrid_mr_desc: Endpoints that are opened from here on look at descriptors of local buffers.
    """

    prov_key: bool
    optimized_mrs: bool
    prov_key_cache: bool
    mr_match_events: bool
    rx_match_mode: str
    req_buf_size: int
    writedata: bool = False
    hybrid_mr_desc: bool = False
    hmem_override: HmemOverride | None = None

    @classmethod
    def load(cls, prov_key: bool) -> DomainOptions:
        """The settings from the environment."""
        found = env.load()
        data = prov_key and found.release == "current" and bool(found.FI_CXI_ENABLE_WRITEDATA)
        return cls(
            prov_key,
            bool(found.FI_CXI_OPTIMIZED_MRS) and not data,
            bool(found.FI_CXI_PROV_KEY_CACHE) and not data,
            bool(found.FI_CXI_MR_MATCH_EVENTS),
            str(found.FI_CXI_RX_MATCH_MODE),
            int(found.FI_CXI_REQ_BUF_SIZE),
            data,
        )


_FLAGS = {
    names.Opt.OPT_CXI_SET_OPTIMIZED_MRS: "optimized_mrs",
    names.Opt.OPT_CXI_SET_PROV_KEY_CACHE: "prov_key_cache",
    names.Opt.OPT_CXI_SET_MR_MATCH_EVENTS: "mr_match_events",
}
_GETS = {
    names.Opt.OPT_CXI_GET_OPTIMIZED_MRS: "optimized_mrs",
    names.Opt.OPT_CXI_GET_PROV_KEY_CACHE: "prov_key_cache",
    names.Opt.OPT_CXI_GET_MR_MATCH_EVENTS: "mr_match_events",
    names.Opt.OPT_CXI_GET_RX_MATCH_MODE_OVERRIDE: "rx_match_mode",
    names.Opt.OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE: "req_buf_size",
}
_PROV_KEY_ONLY = ("optimized_mrs", "prov_key_cache")


def control(domain: CxiDomain, command: int, arg: Any) -> tuple[bool, Any]:
    """(True if the command exists, its result)."""
    options = domain.options
    if command in _GETS:
        return True, getattr(options, _GETS[command])  # type: ignore[index]
    if command in _FLAGS:
        _set_flag(domain, names.Opt(command), _FLAGS[command], arg)  # type: ignore[index]
    elif command == names.Opt.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE:
        options.rx_match_mode = _mode(domain, arg)
    elif command == names.Opt.OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE:
        options.req_buf_size = _buffer(domain, arg)
    else:
        return False, None
    return True, None


def _value(domain: CxiDomain, command: int, what: str) -> errors.FabricError:
    name = str(names.Opt(command))
    return domain.refusals.refuse(Rule.DOMAIN_VALUE, f"domain.control({name}): it takes {what}", op="domain.control")


def _set_flag(domain: CxiDomain, command: names.Opt, field: str, arg: Any) -> None:
    if arg is None or not isinstance(arg, (bool, int)):
        raise _value(domain, command, f"a bool, not {arg!r}")
    if field in _PROV_KEY_ONLY and not domain.options.prov_key:
        raise domain.refusals.refuse(
            Rule.DOMAIN_VALUE,
            f"domain.control({command!s}): the application chooses the keys of this domain\n"
            "  rule: only with MR_PROV_KEY, where the provider does\n"
            "  try: fi.MR_PROV_KEY in hints.domain_attr.mr_mode",
            op="domain.control",
        )
    setattr(domain.options, field, bool(arg))
    domain.region_keys.follow(domain.options)


def _mode(domain: CxiDomain, arg: Any) -> str:
    text = arg.decode("ascii", "replace").rstrip("\0") if isinstance(arg, bytes) else arg
    if isinstance(text, str) and text.lower() == "hardware":
        text = "hardware"
    if text not in _MODES:
        raise _value(domain, names.Opt.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE, f"one of {', '.join(_MODES)}, not {arg!r}")
    return str(text)


def _buffer(domain: CxiDomain, arg: Any) -> int:
    if not isinstance(arg, int) or not 0 < arg < 1 << 64:
        raise _value(domain, names.Opt.OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE, f"bytes, more than 0, not {arg!r}")
    found = env.load()
    return max(arg, REQ_HEADER_BYTES + int(found.FI_CXI_RDZV_THRESHOLD) + int(found.FI_CXI_RDZV_GET_MIN))


# ---- calls -----------------------------------------------------------------------------------------------------------


class CounterValue(NamedTuple):
    """A counter of the NIC: its value, and the time of the reading in nanoseconds since 1970."""

    value: int
    time_ns: int


class Topology(NamedTuple):
    """The place of a NIC in a dragonfly."""

    group_id: int
    switch_id: int
    port_id: int


class UnexpectedMessages(NamedTuple):
    """The result of ep_get_unexp_msgs: number of entries written, and number of messages."""

    written: int
    ux_count: int


class DomOps:
    """The calls of struct fi_cxi_dom_ops. As in C, each takes its object; it returns the values that C writes through
    pointers.

    Source: fi_cxi(7) "CXI Domain Extensions".
    """

    def __init__(self, domain: CxiDomain) -> None:
        self._refuse = domain.refusals.refuse

    @property
    def entry_alone(self) -> bool:
        """True: ep_get_unexp_msgs fills entries without a list of senders."""
        return env.release() == "current"

    def cntr_read(self, fid: Any, cntr: int) -> CounterValue:
        """A counter of the NIC.

        Args:
            cntr: The counter's number in cassini_cntr_defs.h. `cxi.CntrType` lists the counters of events that a NIC in
                software has; every other counter stays 0.

        Raises:
            InvalidArgument: The object is no domain, or there is no such counter.
        """
        domain = self._domain("cntr_read", fid)
        index = self._number("cntr_read", "cntr", cntr)
        if not 0 <= index < names.CNTR_TYPES_END:
            known = ", ".join(f"{number} {name}" for number, name in telemetry.NUMBERS.items())
            raise self._refuse(
                Rule.OPS_ARGUMENT,
                f"cntr_read: no counter {cntr}\n"
                f"  rule: a number of cassini_cntr_defs.h, below {names.CNTR_TYPES_END}; counted here are {known}",
            )
        name = telemetry.NUMBERS.get(index)
        if name is None:
            return CounterValue(0, time.time_ns())
        return CounterValue(*telemetry.fresh(domain.device, name))

    def topology(self, fid: Any) -> Topology:
        """Group, switch and port of the domain's NIC, by its address. Raises InvalidArgument (no domain)."""
        device = self._domain("topology", fid).device
        return Topology(device.group, device.switch, device.port)

    def enable_hybrid_mr_desc(self, fid: Any, enable: bool) -> None:
        """Make descriptors of local buffers count for endpoints that are opened while this is on: a transfer then takes
        the descriptor of a region that covers its buffer, or None, and refuses others. By default no descriptor is
        looked at. Raises InvalidArgument (no domain)."""
        self._domain("enable_hybrid_mr_desc", fid).options.hybrid_mr_desc = self._switch(enable)

    def ep_get_unexp_msgs(
        self, fid_ep: Any, entry: list[Any] | None = None, count: int = 0, src_addr: list[int] | None = None
    ) -> UnexpectedMessages:
        """The messages that no receive has taken, untagged ones first, each kind in order of arrival.

        Args:
            entry: List whose first items become `fi.CqTaggedEntry`s: flags (TAGGED or MSG, REMOTE_CQ_DATA), len, data,
                tag; op_context and buf are None and 0.
            count: The most entries. With 0, or without a list, the messages are only counted.
            src_addr: List whose first items become the senders' fi_addr, for an endpoint with SOURCE. By the document
                it is needed (WEFT_CXI_RELEASE=current: entry alone will do).

        Returns:
            (number of entries written, number of messages), without messages that a peek has claimed.

        Raises:
            InvalidArgument: The object is no endpoint, or an endpoint without RECV.
            BadState: The endpoint is not enabled.
            Again: The match mode is changing: retry.
        """
        policy = getattr(fid_ep, "policy", None)
        if getattr(fid_ep, "_called", None) != "ep" or not hasattr(policy, "min_multi_recv"):
            raise self._refuse(Rule.OPS_FID, f"ep_get_unexp_msgs: {fid_ep!r} is no endpoint of this provider")
        most = self._number("ep_get_unexp_msgs", "count", count)
        if not fid_ep.enabled:
            raise self._refuse(Rule.OPS_STATE, f"ep_get_unexp_msgs: {fid_ep!r} is not enabled\n  try: ep.enable()")
        if not fid_ep.caps & Flag.RECV:
            raise self._refuse(Rule.OPS_ARGUMENT, f"ep_get_unexp_msgs: {fid_ep!r} was opened without RECV")
        if fid_ep.message_statistics().state == "changing":
            raise self._refuse(Rule.OPS_CHANGING, f"ep_get_unexp_msgs: {fid_ep!r} changes its match mode: retry")
        fills = entry is not None and (src_addr is not None or self.entry_alone)
        found, sources, total = fid_ep.unreceived(max(most, 0) if fills else 0)
        if entry is not None and fills:
            entry[: len(found)] = found
        if src_addr is not None and fid_ep.caps & Flag.SOURCE:
            src_addr[: len(found)] = sources
        return UnexpectedMessages(len(found), total)

    def get_dwq_depth(self, fid: Any) -> int:
        """Triggered operations that all users of the domain's service together can queue. Raises InvalidArgument."""
        return ledger.depth(self._domain("get_dwq_depth", fid).service.limits["tles"])

    def enable_mr_match_events(self, fid: Any, enable: bool) -> None:
        """Deprecated: `control(cxi.OPT_CXI_SET_MR_MATCH_EVENTS, enable)`."""
        self._domain("enable_mr_match_events", fid)
        fid.control(names.Opt.OPT_CXI_SET_MR_MATCH_EVENTS, self._switch(enable))

    def enable_optimized_mrs(self, fid: Any, enable: bool) -> None:
        """Deprecated: `control(cxi.OPT_CXI_SET_OPTIMIZED_MRS, enable)`."""
        self._domain("enable_optimized_mrs", fid)
        fid.control(names.Opt.OPT_CXI_SET_OPTIMIZED_MRS, self._switch(enable))

    def _domain(self, call: str, fid: Any) -> CxiDomain:
        policy = getattr(fid, "policy", None)
        if getattr(fid, "_called", None) != "domain" or not isinstance(getattr(policy, "options", None), DomainOptions):
            raise self._refuse(Rule.OPS_FID, f"{call}: {fid!r} is no domain of this provider")
        if fid.closed:
            raise errors.BadState(f"{call}: {fid!r} is closed")
        return policy  # type: ignore[return-value]  # nothing else has such options

    def _switch(self, value: Any) -> bool:
        """A bool, or a number that C would take for one."""
        found = number(value)
        if found is None:
            raise self._refuse(Rule.OPS_ARGUMENT, f"enable: {value!r} is neither True nor False")
        return bool(found)

    def _number(self, call: str, name: str, value: Any) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise TypeError(f"{call}: {name} must be an int, not {value!r}") from None
