"""The CXI provider's policy of one endpoint and its aliases. Source: fi_cxi(7)."""

from __future__ import annotations

import copy
import operator
import os
import weakref
from typing import TYPE_CHECKING, Any

from ... import _nic, errors, settings
from ...fi.attrs import Info
from ...fi.auth_key import keys_of_vector
from ...fi.policy import Address, Credential, EndpointState, GroupPlan
from ...fi.policy_rules import Option
from ...fi.rules import Rule
from ...flags import Flag, Opt, Order, Protocol, Tc
from ..base import BaseEndpoint
from . import env, join, messages, op_rules, profile, rules, traffic
from .address import PID_ANY
from .names import OpFlag
from .names import Opt as CxiOpt
from .resources import Exhausted
from .rules import LABELS

if TYPE_CHECKING:
    from .domain import CxiDomain

PIDS = range(PID_ANY)
PORTALS = 4  # portal entries of an enabled endpoint
_LEVELS = int(Flag.INJECT_COMPLETE | Flag.TRANSMIT_COMPLETE | Flag.DELIVERY_COMPLETE)
TCLASS_NUMBERS = {
    Tc.TC_DEDICATED_ACCESS: 0,
    Tc.TC_LOW_LATENCY: 1,
    Tc.TC_BULK_DATA: 2,
    Tc.TC_BEST_EFFORT: 3,
    Tc.TC_SCAVENGER: 4,
}
"""Label -> n of the counter HNI_PKTS_SENT_BY_TC_n."""
_CUDA = 1  # FI_HMEM_CUDA
_RETRY_US_MAX = (1 << 63) // 1000  # in nanoseconds a signed number of 64 bits
_TARGET_ORDERS = {
    "default": _nic.TargetOrder.as_asked,
    "strict": _nic.TargetOrder.strict,
    "relaxed": _nic.TargetOrder.relaxed,
}


def tclass(value: object, otherwise: Tc) -> Tc | None:
    """The traffic class of a number; `otherwise` for FI_TC_UNSPEC, None for an unknown label."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return otherwise if number == Tc.TC_UNSPEC else next((one for one in LABELS if one == number), None)


class CxiEndpoint(BaseEndpoint):
    """An endpoint of a CXI domain.

    Attributes:
        tclass: Traffic class of its operations.
        msg_order: The order set on an alias; None: the endpoint's.
    """

    domain: CxiDomain
    pids = PIDS
    binds = rules.BINDS
    cancels = False
    triggers = False
    inject_context = True
    fence_covers_all = True
    accelerated = True
    holds_more = True
    close_drops = True
    min_multi_recv_max = messages.MIN_MULTI_RECV_MAX
    commands = rules.COMMANDS
    advice = rules.ADVICE
    numbers = rules.NUMBERS

    def __init__(self, domain: CxiDomain, info: Info) -> None:
        self.messages = self._of_messages = messages.config(info, domain.options, domain.device)
        super().__init__(domain, info)
        self.data_writes = domain.options.writedata and info.domain_attr.cq_data_size != 0
        self.prefer_numbers = profile.load().num_extremes
        self.op_rules = op_rules.make(
            domain.device.pcie_remap,
            unreliable_fetches=profile.load().unreliable_fetches,
            data_writes=self.data_writes,
        )
        if info.ep_attr.protocol == Protocol.PROTO_CXI_RNR:
            self.op_rules.only_receives_cancel = False  # also a message between two attempts
        self.op_rules.messages = messages.rules(info)
        self.traffic = traffic.rules(info)
        self._check_place()
        if domain.info.domain_attr.max_ep_auth_key > 1 and (info.caps | info.rx_attr.caps) & Flag.DIRECTED_RECV:
            raise self.refusals.refuse(
                Rule.EP_AUTH_KEY,
                "endpoint: DIRECTED_RECV and several authorization keys exclude each other\n"
                "  try: caps without fi.DIRECTED_RECV, or domain_attr.max_ep_auth_key 1",
            )
        self.tclass = self._tclass(info.tx_attr.tclass)
        self.msg_order: int | None = None
        self.rnr_retry_us: int | None = None
        self.options = {
            int(Opt.OPT_MIN_MULTI_RECV): self._multi_recv(),
            int(Opt.OPT_CUDA_API_PERMITTED): Option(set=self._set_cuda),
            int(CxiOpt.OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS): Option(
                get=self._rnr_attempts, name=CxiOpt.OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS.name
            ),
        }
        self._taken = False
        self._ep: weakref.ref[_nic.EndpointCore] | None = None

    # ---- opening -----------------------------------------------------------------------------------------------------

    def _check_place(self) -> None:
        if self.info.src_addr is None:
            return
        nic = self.domain.provider.addresses.parse(self.info.src_addr)[0]
        if nic != self.domain.device.nic:
            raise self.refusals.refuse(
                Rule.EP_PLACE,
                f"endpoint: src_addr is on the NIC {nic:#x}, the domain {self.domain.device.name} on "
                f"{self.domain.device.nic:#x}",
            )

    def _credential(self, vni: int) -> Credential:
        """The domain's credential, or the endpoint's own key: of the domain's service and, by the document, its VNI."""
        found, domain = super()._credential(vni), self.domain.credential
        own_vni = profile.load().endpoint_vnis
        for what, mine, of_domain in (
            ("service", found.service, domain.service),
            ("VNI", found.vni, domain.vni),
        ):
            if mine != of_domain and not (own_vni and what == "VNI"):
                raise self.refusals.refuse(
                    Rule.EP_AUTH_KEY,
                    f"endpoint: the authorization key is for {what} {mine}, the domain's is for {what} {of_domain}\n"
                    "  rule: an endpoint has its domain's service and VNI\n"
                    "  try: ep_attr.auth_key None, or a domain that is opened with that key\n"
                    '  fi_cxi(7) "Authorization Keys"',
                )
        return found

    def _tclass(self, value: object) -> Tc:
        found = tclass(value, self.domain.tclass)
        allowed = self.domain.service.tclasses
        if found is None or (allowed is not None and found not in allowed):
            known = ", ".join(str(one) for one in LABELS if allowed is None or one in allowed)
            raise self.refusals.refuse(
                Rule.EP_TCLASS,
                f"endpoint: traffic class {value!r}; service {self.domain.service.id} has {known}\n"
                "  rule: a label, no DSCP and no network control",
            )
        return found

    @property
    def lane(self) -> tuple[int, int]:
        """What an alias was set to."""
        order = self.info.tx_attr.msg_order if self.msg_order is None else self.msg_order
        return int(order), TCLASS_NUMBERS[self.tclass]

    def nic_config(self) -> _nic.EndpointConfig:
        """As for any endpoint. With no hints, op_flags lists all permitted flags, so no default flags are passed.

        Counters of regions count whether or not the endpoint was opened with FI_RMA_EVENT.
        Descriptors count only if enable_hybrid_mr_desc was on when the endpoint was opened.
        """
        config, e = super().nic_config(), env.load()
        domain, info = self.domain, self.info
        config.caps |= int(Flag.RMA_EVENT)
        config.tclass = TCLASS_NUMBERS[self.tclass]
        config.tells_lengths = False
        config.rules.desc_ignored = not domain.options.hybrid_mr_desc
        config.foreign_key = False  # a region is bound to an endpoint, whose VNI it has
        config.own_vni = not keys_of_vector(domain.info) and self.credential.vni != domain.credential.vni
        config.page_requests_max = int(e.WEFT_CXI_ODP_REQUESTS) if domain.translation.odp else 0
        if {"FI_CXI_CQ_POLICY", "FI_CXI_LLRING_MODE"} & os.environ.keys():
            config.commands = _nic.CommandQueueConfig(
                slots=config.tx_size,
                policy=_nic.WriteBack[e.FI_CXI_CQ_POLICY],
                ring=_nic.LowLatencyRing[e.FI_CXI_LLRING_MODE],
            )
        seed = settings.load().WEFT_CXI_REORDER
        if seed is not None:
            ep = info.ep_attr
            config.reorder = _nic.ReorderConfig(
                on=True,
                seed=seed % (1 << 64),
                raw_bytes=int(ep.max_order_raw_size),
                war_bytes=int(ep.max_order_war_size),
                waw_bytes=int(ep.max_order_waw_size),
            )
        config.reorder.target = _TARGET_ORDERS[e.FI_CXI_MR_TARGET_ORDERING]
        if info.tx_attr.op_flags == domain.offer.info.tx_attr.op_flags:
            config.tx_op_flags = 0
        if info.rx_attr.op_flags == domain.offer.info.rx_attr.op_flags:
            config.rules.messages.receive_flags = 0
        domain.pool.lend(config.messages)
        return config

    def check_enable(self, state: EndpointState) -> None:
        """Check the address vector and its keys, then portal entries and the PID, last the queues."""
        refuse = self.refusals.refuse
        if not state.has_av:
            raise refuse(Rule.EP_ENABLE_AV, "ep.enable: no address vector is bound\n  try: ep.bind(domain.av_open())")
        if keys_of_vector(self.domain.info) and not state.keys:
            raise refuse(
                Rule.EP_ENABLE_KEYS,
                "ep.enable: the address vector holds no authorization key\n  try: av.insert_auth_key first",
            )
        if not self._taken:
            try:
                self.domain.pool.take("ptes", PORTALS)
            except Exhausted as none:
                raise refuse(Rule.EP_RESOURCES, f"ep.enable: {none.message}") from none
            self._taken = True
        missing = ""
        if not state.has_tx_cq:
            missing = "for TRANSMIT, which every endpoint needs, also one that only receives"
        elif self.info.caps & Flag.RECV and not state.has_rx_cq:
            missing = "for RECV, and the endpoint has that capability"
        if missing:
            try:
                state.try_address()
            finally:
                self.close()
            raise refuse(
                Rule.EP_ENABLE_CQ,
                f"ep.enable: no completion queue is bound {missing}\n  try: ep.bind(cq, fi.TRANSMIT | fi.RECV)",
            )

    def enabling(self, ep: _nic.EndpointCore) -> None:
        """Follow the domain's match mode, which may have changed since the endpoint was opened."""
        self._ep = weakref.ref(ep)
        self.domain.watch.add(ep)
        config = self.matching()
        if config is not None:
            self.domain.pool.lend(config)
            ep.set_match_mode(config)

    def matching(self) -> _nic.MessageConfig | None:
        """Where an endpoint that is enabled now matches messages; None: its protocol has no match mode."""
        if not self._has_mode():
            return None
        messages.set_match_mode(self._of_messages, self.domain.options)
        return self._of_messages.replace()

    def _has_mode(self) -> bool:
        return self.info.ep_attr.protocol != Protocol.PROTO_CXI_RNR

    def make_room(self, missing: errors.NoSpace) -> None:
        """Return the list entries of dead processes if the endpoint's buffers would get none."""
        if "list entries" not in missing.message:
            raise missing
        mine = self._of_messages
        try:
            self.domain.pool.want(
                "les",
                mine.requests.posted_min if mine.match.mode == _nic.MatchMode.software else mine.buffers.posted_min,
            )
        except Exhausted as none:
            raise self.refusals.refuse(Rule.EP_RESOURCES, f"ep.enable: {none.message}") from none

    def group(self, own: Address, comm_key: bytes | None, count: int) -> GroupPlan:
        """The plan that the set's communication key asks for."""
        return join.plan(self, own, comm_key, count)

    def close(self) -> None:
        """Return the portal entries."""
        if self._taken:
            self._taken = False
            self.domain.pool.give("ptes", PORTALS)

    # ---- operation flags, aliases ------------------------------------------------------------------------------------

    def op_flags(self, side: int, flags: int) -> int:
        """The flags unchanged, with transmit-complete added if they contain no completion level."""
        if side == Flag.TRANSMIT and not flags & _LEVELS:
            flags |= int(Flag.TRANSMIT_COMPLETE)
        return flags

    def alias(self) -> CxiEndpoint:
        """The policy of an alias, which can have its own traffic class and order."""
        return copy.copy(self)

    def set_val(self, fid: Any, name: int, value: Any) -> None:
        """Traffic class, message order, time of retries of FI_PROTO_CXI_RNR."""
        setters = {
            CxiOpt.OPT_CXI_SET_TCLASS: self._set_tclass,
            CxiOpt.OPT_CXI_SET_MSG_ORDER: self._set_msg_order,
            CxiOpt.OPT_CXI_SET_RNR_MAX_RETRY_TIME: self._set_rnr_retry,
        }
        setter = setters.get(name)  # type: ignore[call-overload]
        if setter is None:
            super().set_val(fid, name, value)
            return
        if value is None:
            raise self.refusals.refuse(Rule.OPT_VALUE, f"ep.set_val: {CxiOpt(name)!s}: a value is needed, not None")
        setter(value)
        if name == CxiOpt.OPT_CXI_SET_RNR_MAX_RETRY_TIME:
            fid.set_retry_time(value * 1000)

    def _set_tclass(self, value: Any) -> None:
        found = tclass(value, self.tclass)
        if found is None:
            raise self.refusals.refuse(
                Rule.EP_TCLASS,
                f"ep.set_val: traffic class {value!r} is no label\n  known: {', '.join(map(str, LABELS))}",
            )
        self.tclass = self._tclass(found)

    def _set_msg_order(self, value: Any) -> None:
        known = int(profile.load().msg_order)
        if not isinstance(value, int) or value < 0 or value & ~known:
            raise self.refusals.refuse(
                Rule.EP_MSG_ORDER, f"ep.set_val: msg_order {value!r}; the provider has {Order(known)!s}"
            )
        self.msg_order = value
        # If the alias's order is stronger than the endpoint's, each operation waits for the earlier ones.
        more = value & ~int(self.info.tx_attr.msg_order)
        self.call_flags = int(OpFlag.WEAK_FENCE) if more else 0

    def _rnr(self, op: str) -> None:
        if self.info.ep_attr.protocol != Protocol.PROTO_CXI_RNR:
            raise self.refusals.refuse(Rule.EP_PROTOCOL, f"{op}: the endpoint's protocol is not PROTO_CXI_RNR")

    def _set_rnr_retry(self, value: Any) -> None:
        self._rnr("ep.set_val(OPT_CXI_SET_RNR_MAX_RETRY_TIME)")
        if not isinstance(value, int) or not 0 <= value <= _RETRY_US_MAX:
            raise self.refusals.refuse(
                Rule.OPT_VALUE, f"ep.set_val: a time in microseconds, 0 to {_RETRY_US_MAX}, not {value!r}"
            )
        self.rnr_retry_us = value

    def _rnr_attempts(self) -> int:
        self._rnr("ep.getopt(OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS)")
        ep = self._ep() if self._ep is not None else None
        if ep is None:
            return 0
        return int(_nic.EndpointCore.message_statistics(ep)["append_attempts"])

    # ---- options -----------------------------------------------------------------------------------------------------

    def _set_cuda(self, value: Any) -> None:
        if self.domain.nic.hmem_devices(_CUDA) is None:
            raise self.refusals.refuse(
                Rule.OPT_DEVICE,
                "ep.setopt: OPT_CUDA_API_PERMITTED: no CUDA runtime is loaded\n  try: a domain opened with fi.HMEM",
            )
        if not isinstance(value, bool):
            raise errors.InvalidArgument(f"ep.setopt: OPT_CUDA_API_PERMITTED is a bool, not {value!r}")
        if not value:
            raise self.refusals.refuse(
                Rule.OPT_DEVICE, "ep.setopt: OPT_CUDA_API_PERMITTED False: without GDRCopy the CUDA API is needed"
            )
