"""The CXI provider's error numbers of refusals, and the rules of its queues and vectors, as data.

Source: fi_cxi(7); where it is silent, the real provider.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...fi.policy_rules import BindRules, CommandRules, QueueRules, RegionRules, VectorRules
from ...fi.rules import Refusals, Rule
from ...flags import AvFlag, AvType, Control, CqFormat, Errno, Flag, Tc, WaitObj
from . import counter
from .names import Opt

LABELS = (Tc.TC_BEST_EFFORT, Tc.TC_LOW_LATENCY, Tc.TC_DEDICATED_ACCESS, Tc.TC_BULK_DATA, Tc.TC_SCAVENGER)
"""The traffic classes."""

REFUSALS = Refusals(
    {
        # domains
        Rule.DOMAIN_UNKNOWN: Errno.EINVAL,
        Rule.DOMAIN_FLAGS: Errno.ENOSYS,
        Rule.DOMAIN_CONTROL: Errno.EINVAL,
        Rule.DOMAIN_OPS: Errno.EINVAL,
        Rule.DOMAIN_RESOURCES: Errno.EINVAL,
        Rule.VAL_UNKNOWN: Errno.EINVAL,
        # endpoints
        Rule.EP_CONTROL: Errno.EINVAL,
        Rule.EP_BIND_DOMAIN: Errno.EINVAL,
        Rule.EP_ADDRESS_TAKEN: Errno.ENOSPC,
        Rule.EP_CONNECTIONLESS: Errno.ENOSYS,
        Rule.EP_SETNAME_STATE: Errno.ENOSYS,
        Rule.PEP_TYPE: Errno.ENOSYS,
        # atomics
        Rule.ATOMIC_FLAGS: Errno.EINVAL,
        Rule.ATOMIC_NUMBER: Errno.EINVAL,
        Rule.ATOMIC_NO_CAP: Errno.ENOSYS,
        # vectors
        Rule.AV_OPEN_FLAGS: Errno.EINVAL,
        Rule.AV_OPEN_NAME: Errno.EINVAL,
        Rule.AV_INSERT_FLAGS: Errno.EINVAL,
        Rule.AV_INSERTSVC_SENSE: Errno.ENODATA,
        Rule.AV_INSERTSVC_UNKNOWN: Errno.ENODATA,
        Rule.AV_REMOVE_FLAGS: Errno.EINVAL,
        Rule.AV_AUTH_KEY_FLAGS: Errno.EINVAL,
        # queues and counters
        Rule.CQ_OPEN_FLAGS: Errno.EINVAL,
        Rule.CQ_FORMAT: Errno.ENOSYS,
        Rule.WAIT_OBJ: Errno.ENOSYS,
        Rule.EQ_WAIT_NONE: Errno.ENOSYS,
        **counter.REFUSALS,
        # regions
        Rule.MR_CONTROL: Errno.EINVAL,
        Rule.MR_FLAGS: Errno.EINVAL,
        Rule.MR_IOV_LIMIT: Errno.ENOSYS,
        Rule.MR_BIND_DOMAIN: Errno.EINVAL,
        Rule.MR_BIND_STATE: Errno.EINVAL,
        Rule.MR_BIND_FLAGS: Errno.EINVAL,
        Rule.MR_BIND_ENDPOINT: Errno.EINVAL,
        Rule.MR_ENABLE_UNBOUND: Errno.EINVAL,
    }
)
"""Where a call's error number is not the man page's. docs/reference/cxi-refusals.md lists all of them."""

COMMANDS = CommandRules(
    domain=frozenset({Control.QUEUE_WORK, Control.FLUSH_WORK}),
    mr=frozenset({Control.ENABLE}),
    cq=frozenset({Control.GETWAIT}),
    cntr=frozenset(),
    eq=frozenset({Control.GETWAITOBJ}),
)

NUMBERS = (Control, Opt)
"""Names of the numbers of commands and values."""

ADVICE: Mapping[str, str] = {
    "domain.control": "  known: OPT_CXI_SET_ and OPT_CXI_GET_ with OPTIMIZED_MRS, PROV_KEY_CACHE, MR_MATCH_EVENTS, "
    "RX_MATCH_MODE_OVERRIDE, REQ_BUF_SIZE_OVERRIDE; QUEUE_WORK, FLUSH_WORK",
    "domain.get_val": "  try: domain.control(cxi.OPT_CXI_GET_...)",
    "domain.set_val": "  try: domain.control(cxi.OPT_CXI_SET_...), or ep.set_val for the values of an endpoint",
    "domain.open_ops": "  known: dom_ops_v1 to dom_ops_v6",
    "domain.set_ops": "  known: hmem_override_ops",
    "ep.get_val": "  rule: the values of an endpoint can only be set",
    "ep.set_val": "  known: OPT_CXI_SET_TCLASS, OPT_CXI_SET_MSG_ORDER, OPT_CXI_SET_RNR_MAX_RETRY_TIME\n"
    "  try: domain.control for the options of the domain",
    "cntr.control": "  known: GETOPSFLAG, SETOPSFLAG",
    "cntr.open_ops": "  known: cxi_counter_ops",
}
"""Call -> the last line of its refusal of an unknown command, name or value."""

BINDS = BindRules(nothing=True, remote_counts=False, named=False, join_flags=True)

REGIONS = RegionRules(
    bytes_min=0,
    flags=((1 << 64) - 1) & ~int(Flag.DIRECTED_RECV),
    busy="ep",
    asked=True,
    local_free=True,
    offset="ignored",
    memory="detected",
    endpoints_max=1,
    counters_max=1,
    bind_flags="any",
)

VECTORS = VectorRules(
    open_flags=int(AvFlag.SYMMETRIC) | int(Flag.AV_USER_ID),
    insert_flags=int(Flag.MORE | Flag.AV_USER_ID) | int(AvFlag.AUTH_KEY),
    type_unspec=AvType.AV_TABLE,
    remove_unknown="ignore",
    counted=True,
    binds=False,
    keys_later=True,
    service_alone=False,
    set_count=True,
    set_fixed=True,
    comm_key_bytes=16,  # struct cxip_comm_key
)

EVENT_QUEUES = QueueRules(size=256, wait_objs=frozenset({WaitObj.WAIT_NONE, WaitObj.WAIT_UNSPEC, WaitObj.WAIT_YIELD}))


def queues(
    size: int, least: int = 1, fill_percent: int = 100, *, huge_pages: bool = False, ack_batch: int = 1
) -> QueueRules:
    """Completion queues.

    Args:
        size: Entries of a queue opened with size 0.
        least: Least entries of the hardware's event queue; a larger size of the completion queue enlarges it.
        fill_percent: Percentage of the event queue above which the completion queue counts as saturated.
        huge_pages: Event queues in huge pages of 2 MiB, if the kernel has some.
        ack_batch: Events that are read until their slots return to the NIC.
    """
    return QueueRules(
        size=size,
        size_least=least,
        fill_percent=fill_percent,
        reserves=False,
        flags=int(Flag.AFFINITY | Flag.PEER),
        format_unspec=CqFormat.CQ_FORMAT_CONTEXT,
        wait_objs=frozenset({WaitObj.WAIT_NONE, WaitObj.WAIT_UNSPEC, WaitObj.WAIT_FD, WaitObj.WAIT_POLLFD}),
        wait_unspec=WaitObj.WAIT_FD,
        wait_conds=False,
        signals=False,
        size_max=None,
        huge_pages=huge_pages,
        ack_batch=ack_batch,
    )
