"""How a CXI endpoint sends and receives messages: the protocols and buffers that fi_cxi(7) "Messaging" describes.

Messages of FI_PROTO_CXI up to FI_CXI_RDZV_THRESHOLD + FI_CXI_RDZV_GET_MIN bytes are eager. Longer messages bring
FI_CXI_RDZV_EAGER_SIZE bytes along, and the receiver pulls the rest. Messages without a receive lie in overflow buffers.

Messages of FI_PROTO_CXI_RNR have no order, and none is kept without a receive: the sender sends it again.
"""

from __future__ import annotations

from ...fi.attrs import Info
from ...fi.policy import MessageRules
from ...flags import Protocol
from . import env

__all__ = ["MIN_MULTI_RECV", "MIN_MULTI_RECV_MAX", "TAG_BITS", "TAG_BITS_RNR", "rules", "tag_format"]

TAG_BITS, TAG_BITS_RNR = 48, 40
TAGGED_IDS, UNTAGGED_IDS = 32768 - 256, 256
"""Rendezvous messages that may wait for their receivers: fi_cxi(7) "Rendezvous Messages"."""
UNEXPECTED_BYTES = 1 << 30
"""Bytes of the overflow buffers of one endpoint; when they are full, senders have to wait."""
FRAME_MAX = 64 << 10
"""Bytes of the longest message that is one frame of the software NIC. Longer ones are pulled, in both protocols."""
MIN_MULTI_RECV, MIN_MULTI_RECV_MAX = 64, (1 << 24) - 1


def tag_format(bits: int) -> int:
    """ep_attr.mem_tag_format of tags with this number of bits."""
    return 0xAAAAAAAAAAAAAAAA >> 64 - bits


def rules(info: Info) -> MessageRules:
    """The rules of an endpoint's messages."""
    e = env.load()
    if info.ep_attr.protocol == Protocol.PROTO_CXI_RNR:
        return MessageRules(
            tag_bits=TAG_BITS_RNR,
            data=info.domain_attr.cq_data_size != 0,
            eager_max=FRAME_MAX,
            min_multi_recv=MIN_MULTI_RECV,
            credits=0,
            unordered=True,
            retry_ns_max=e.rnr_max_timeout_us * 1000,
            delivery_complete=False,
            tells_buffers=False,
        )
    # Model: an eager message is one frame of the software NIC, so larger thresholds count as 64 KiB.
    return MessageRules(
        tag_bits=TAG_BITS,
        data=info.domain_attr.cq_data_size != 0,
        eager_max=e.rdzv_threshold + e.rdzv_get_min,
        eager_part=e.rdzv_eager_size,
        tagged_ids=TAGGED_IDS,
        untagged_ids=UNTAGGED_IDS,
        min_multi_recv=MIN_MULTI_RECV,
        buffer_bytes=e.oflow_buf_size,
        buffers_min=e.oflow_buf_min_posted,
        buffers_cached=e.oflow_buf_max_cached,
        # Hardware stops senders when it has no list entries left. There is no model of these: memory is the limit.
        buffers_max=max(UNEXPECTED_BYTES // e.oflow_buf_size, e.oflow_buf_min_posted),
        # Hardware sleeps so long before it sends a dropped flow control message again; 0 is the NIC's own pace.
        stop_ns=max(e.fc_retry_usec_delay, 1) * 1000,
        delivery_complete=False,
        tells_buffers=False,
    )
