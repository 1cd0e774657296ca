"""The struct of fi_msg(3): messages that receives match in order.

The calls are methods of `Endpoint`.

Source: fi_msg(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..flags import ADDR_UNSPEC


@dataclass(slots=True)
class Msg:
    """A send or a receive in full (struct fi_msg), for `Endpoint.sendmsg` and `Endpoint.recvmsg`.

    Attributes:
        msg_iov: Buffers, in order; at most tx_attr.iov_limit, or rx_attr.iov_limit. None: no bytes.
        desc: A descriptor, or None, for each buffer.
        addr: Of a send the peer: the fi_addr from `AddressVector.insert`. Of a receive under `fi.DIRECTED_RECV` the
            sender; `fi.ADDR_UNSPEC` for any.
        context: Any object; comes back in the completion.
        data: Remote CQ data, sent under `fi.REMOTE_CQ_DATA`.
        iov_count: Number of buffers to use; None for all.

    Source: fi_msg(3) fi_sendmsg, fi_recvmsg.
    """

    msg_iov: Sequence[Any] | None = ()
    desc: Sequence[Any] | None = None
    addr: int = ADDR_UNSPEC
    context: Any = None
    data: int = 0
    iov_count: int | None = None
