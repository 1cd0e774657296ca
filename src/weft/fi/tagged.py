"""The struct of fi_tagged(3): messages that receives match by their tags.

The calls are methods of `Endpoint`: those of fi_msg(3) with `t` in front of their names.

Source: fi_tagged(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..flags import ADDR_UNSPEC


@dataclass(slots=True)
class MsgTagged:
    """A tagged send or receive in full (struct fi_msg_tagged), for `Endpoint.tsendmsg` and `Endpoint.trecvmsg`.

    Attributes:
        msg_iov: Buffers, in order; at most tx_attr.iov_limit, or rx_attr.iov_limit. None: no bytes. A peek uses none.
        desc: A descriptor, or None, for each buffer.
        addr: Of a send the peer: the fi_addr from `AddressVector.insert`. Of a receive under `fi.DIRECTED_RECV` the
            sender; `fi.ADDR_UNSPEC` for any.
        tag: The message's tag; bits as ep_attr.mem_tag_format has them.
        ignore: Of a receive: bits of the tag that need not be equal.
        context: Any object; comes back in the completion. A PEEK | CLAIM and its later CLAIM need the same object.
        data: Remote CQ data, sent under `fi.REMOTE_CQ_DATA`.
        iov_count: Number of buffers to use; None for all.

    Source: fi_tagged(3) fi_tsendmsg, fi_trecvmsg.
    """

    msg_iov: Sequence[Any] | None = ()
    desc: Sequence[Any] | None = None
    addr: int = ADDR_UNSPEC
    tag: int = 0
    ignore: int = 0
    context: Any = None
    data: int = 0
    iov_count: int | None = None
