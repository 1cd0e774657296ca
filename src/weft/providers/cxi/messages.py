"""How a CXI endpoint sends and receives messages: the protocols and buffers that fi_cxi(7) "Messaging" describes.

Messages of FI_PROTO_CXI up to FI_CXI_RDZV_THRESHOLD + FI_CXI_RDZV_GET_MIN bytes are eager. Longer messages bring
FI_CXI_RDZV_EAGER_SIZE bytes along, and the receiver pulls the rest. Messages without a receive lie in overflow buffers.

Messages of FI_PROTO_CXI_RNR have no order. The receiver keeps no message without a receive: the sender sends the
message again.

Matching by hardware takes list entries of the service (resources.py), one for each receive, each message without a
receive and each overflow buffer; FI_CXI_RX_MATCH_MODE says what happens when no entry is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import _nic
from ..._nic import MatchMode
from ...fi.attrs import Info
from ...flags import Flag, Protocol
from . import env

if TYPE_CHECKING:
    from .device import Device
    from .ext import DomainOptions

TAG_BITS, TAG_BITS_RNR = 48, 40
TAGGED_IDS, UNTAGGED_IDS = 32768 - 256, 256
"""Rendezvous messages that may wait for their receivers: fi_cxi(7) "Rendezvous Messages"."""
UNEXPECTED_BYTES = 1 << 30
"""Bytes of the overflow buffers of one endpoint, and of its request buffers: when they are full, senders wait."""
IDC_BYTES = 192
"""Bytes of the longest message that is in its command: fi_cxi(7) FI_CXI_DISABLE_NON_INJECT_MSG_IDC."""
APPEND_RETRY_US = 2_000_000
"""How long a receive of FI_PROTO_CXI_RNR waits for a list entry in releases without the variable."""
_U32_MAX = (1 << 32) - 1
EVENT_BYTES = 64
"""Bytes of an event in a queue of the NIC."""
PARKED_BYTES = 192
"""The most that a message without a receive occupies in a buffer besides its eager bytes."""
MIN_MULTI_RECV, MIN_MULTI_RECV_MAX = 64, (1 << 24) - 1


def tag_format(bits: int) -> int:
    """ep_attr.mem_tag_format of tags with this number of bits."""
    return 0xAAAAAAAAAAAAAAAA >> 64 - bits


def rules(info: Info) -> _nic.MsgRules:
    """The rules of an endpoint's calls of messages."""
    bits = TAG_BITS_RNR if info.ep_attr.protocol == Protocol.PROTO_CXI_RNR else TAG_BITS
    return _nic.MsgRules(tag_mask=(1 << bits) - 1, data=info.domain_attr.cq_data_size != 0)


def config(info: Info, options: DomainOptions, device: Device) -> _nic.MessageConfig:
    """How an endpoint's messages are sent and received."""
    e = env.load()
    registers = bool(info.caps & Flag.HMEM) and not e.FI_CXI_DISABLE_HOST_REGISTER
    copy_max = 0 if e.FI_CXI_DISABLE_NON_INJECT_MSG_IDC else IDC_BYTES
    if info.ep_attr.protocol == Protocol.PROTO_CXI_RNR:
        return _nic.MessageConfig(
            eager_max=_U32_MAX,  # no rendezvous
            copy_max=copy_max,
            min_multi_recv=MIN_MULTI_RECV,
            buffers=_nic.RxBufferConfig(posted_min=0),
            credits=0,
            unordered=True,
            retry_ns_max=e.FI_CXI_RNR_MAX_TIMEOUT_US * 1000,
            delivery_complete=False,
            tells_buffers=False,
            match=_nic.RxModeConfig(mode=MatchMode.hardware),
            append_retry_ns=(e.FI_CXI_RNR_APPEND_RETRY_TIMEOUT_US if e.release == "current" else APPEND_RETRY_US)
            * 1000,
        )
    eager_max = e.FI_CXI_RDZV_THRESHOLD + e.FI_CXI_RDZV_GET_MIN
    # Model: hardware keeps its note of a message outside the buffer. A buffer holds the longest message at least.
    oflow_bytes = max(e.FI_CXI_OFLOW_BUF_SIZE, eager_max + PARKED_BYTES)
    found = _nic.MessageConfig(
        eager_max=eager_max,
        eager_part=e.FI_CXI_RDZV_EAGER_SIZE,
        copy_max=copy_max,
        control_slots=control_slots(),
        reads_max=e.FI_CXI_SW_RX_TX_INIT_MAX if _reads(device) else 0,
        registers_buffers=registers,
        tagged_ids=TAGGED_IDS,
        untagged_ids=UNTAGGED_IDS,
        min_multi_recv=MIN_MULTI_RECV,
        buffers=_nic.RxBufferConfig(
            bytes=oflow_bytes,
            posted_min=e.FI_CXI_OFLOW_BUF_MIN_POSTED,
            cached_max=e.FI_CXI_OFLOW_BUF_MAX_CACHED,
            count_max=_buffers_max(oflow_bytes, e.FI_CXI_OFLOW_BUF_MIN_POSTED),
        ),
        # Time that hardware sleeps before it sends a dropped flow control message again; 0: the NIC's own pace.
        stop_ns=max(e.FI_CXI_FC_RETRY_USEC_DELAY, 1) * 1000,
        delivery_complete=False,
        software_counts=True,
        tells_buffers=False,
        match=_nic.RxModeConfig(size=int(info.rx_attr.size), lossless=e.FI_CXI_MSG_LOSSLESS),
    )
    set_match_mode(found, options)
    return found


def control_slots() -> int:
    """Events in the queue of control messages: one for each process of the application, in whole pages of 4 KiB, and at
    most FI_CXI_CTRL_RX_EQ_MAX_SIZE bytes."""
    e = env.load()
    return min(env.whole_pages(e.FI_UNIVERSE_SIZE * EVENT_BYTES), e.FI_CXI_CTRL_RX_EQ_MAX_SIZE, _U32_MAX) // EVENT_BYTES


def _reads(device: Device) -> bool:
    """True if FI_CXI_RDZV_PROTO=alt_read is in force: the driver does not let the NIC fetch the rest of messages."""
    if env.load().FI_CXI_RDZV_PROTO != "alt_read":
        return False
    if device.rdzv_get_en:
        import logging  # here: the offers of `weft info` need no log

        logging.getLogger("weft.cxi").warning(
            "device %s: FI_CXI_RDZV_PROTO=alt_read needs the driver's property rdzv_get_en=0, and it is 1: the default "
            "protocol is used (try: weft device set %s rdzv_get_en=0)",
            device.name,
            device.name,
        )
    return not device.rdzv_get_en


def set_match_mode(config: _nic.MessageConfig, options: DomainOptions) -> None:
    """Set the match mode of FI_CXI_RX_MATCH_MODE and the domain's options, which apply when an endpoint is enabled."""
    e, match = env.load(), config.match
    match.mode = MatchMode[options.rx_match_mode]
    hybrid = match.mode == MatchMode.hybrid
    match.early_for_messages = hybrid and e.FI_CXI_HYBRID_PREEMPTIVE
    match.early_for_receives = hybrid and e.FI_CXI_HYBRID_RECV_PREEMPTIVE
    match.by_receives = hybrid and e.FI_CXI_HYBRID_POSTED_RECV_PREEMPTIVE
    match.by_messages = hybrid and e.FI_CXI_HYBRID_UNEXPECTED_MSG_PREEMPTIVE
    bytes = max(options.req_buf_size, e.FI_CXI_RDZV_THRESHOLD + e.FI_CXI_RDZV_GET_MIN + PARKED_BYTES)
    config.requests = _nic.RxBufferConfig(
        bytes=bytes,
        posted_min=e.FI_CXI_REQ_BUF_MIN_POSTED,
        cached_max=e.FI_CXI_REQ_BUF_MAX_CACHED,
        count_max=_buffers_max(bytes, e.FI_CXI_REQ_BUF_MIN_POSTED),
    )


def _buffers_max(bytes: int, posted: int) -> int:
    return max(UNEXPECTED_BYTES // bytes, posted)
