"""Descriptors of fi_rma(3): the structs of the data path.

The calls are methods of `Endpoint`, with Weft's `read_batch` and `write_batch`, which take many transfers in one call.

Source: fi_rma(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..flags import ADDR_UNSPEC

if TYPE_CHECKING:
    import numpy as np


@dataclass(slots=True)
class RmaIov:
    """A piece of remote memory (struct fi_rma_iov).

    Attributes:
        addr: Byte offset from the region's start, or a virtual address of the target under `fi.MR_VIRT_ADDR`.
        len: Bytes.
        key: The region's remote key.

    Source: fi_rma(3) fi_writemsg.
    """

    addr: int = 0
    len: int = 0
    key: int = 0


@dataclass(slots=True)
class MsgRma:
    """A read or write in full (struct fi_msg_rma), for `Endpoint.readmsg` and `Endpoint.writemsg`.

    Attributes:
        msg_iov: Local buffers, in order; at most tx_attr.iov_limit.
        rma_iov: Remote pieces, in order; at most tx_attr.rma_iov_limit. Both sides have the same total length.
        addr: The peer: the fi_addr from `AddressVector.insert`.
        desc: A descriptor, or None, for each local buffer.
        context: Any object; comes back in the completion.
        data: Remote CQ data, sent under `fi.REMOTE_CQ_DATA`.
        iov_count: Number of local buffers to use; None for all.
        rma_iov_count: Number of remote pieces to use; None for all.

    Source: fi_rma(3) fi_writemsg, fi_readmsg.
    """

    msg_iov: Sequence[Any] = ()
    rma_iov: Sequence[RmaIov] = ()
    addr: int = ADDR_UNSPEC
    desc: Sequence[Any] | None = None
    context: Any = None
    data: int = 0
    iov_count: int | None = None
    rma_iov_count: int | None = None


@lru_cache(maxsize=1)
def rma_desc() -> np.dtype[np.void]:
    """`fi.RMA_DESC`: one transfer of `Endpoint.write_batch` or `read_batch`, 48 bytes.

    The fields are local_offset (u8, bytes from the start of the local buffer), length (u8, bytes), dest_addr (u8,
    fi_addr of the peer), remote_addr (u8, as RmaIov.addr), key (u8, remote key), status (i4, written on return: 0, or
    the error number of this transfer) and pad (u4).
    """
    import numpy

    return numpy.dtype(
        [
            ("local_offset", "<u8"),
            ("length", "<u8"),
            ("dest_addr", "<u8"),
            ("remote_addr", "<u8"),
            ("key", "<u8"),
            ("status", "<i4"),
            ("pad", "<u4"),
        ]
    )
