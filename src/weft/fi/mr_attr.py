"""The attribute structs of fi_mr_regattr, and attributes that only few regions have. Source: fi_mr(3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..flags import ADDR_UNSPEC, HmemIface

if TYPE_CHECKING:
    from .av import AddressVector
    from .mr import MemoryRegion


@dataclass(slots=True)
class MrDmabuf:
    """A piece of a DMA-buf (struct fi_mr_dmabuf), for `Domain.mr_regattr` with `fi.MR_DMABUF`.

    Attributes:
        fd: Descriptor of the DMA-buf; the region keeps its own duplicate.
        offset: Start of the region in the DMA-buf, in bytes.
        len: Bytes of the region, from offset on.
        base_addr: Page-aligned virtual address at which the DMA-buf's allocation starts; None: not mapped.

    Source: fi_mr(3) "dmabuf".
    """

    fd: int = -1
    offset: int = 0
    len: int = 0
    base_addr: int | None = None


@dataclass(slots=True)
class MrAuthKey:
    """Authorization keys of an address vector (struct fi_mr_auth_key), for MrAttr.auth_key.

    Attributes:
        av: The vector with the keys; all of them admit peers, unless src_addr restricts the region.
        src_addr: Restricts the region to one endpoint of that vector, or, with the flag `fi.AUTH_KEY`, to one key from
            `AddressVector.insert_auth_key`. Needs a domain opened with `fi.DIRECTED_RECV`.

    Source: fi_mr(3) "av", "addr".
    """

    SIZE: ClassVar[int] = 16  # sizeof(struct fi_mr_auth_key)

    av: AddressVector
    src_addr: int = ADDR_UNSPEC


@dataclass(slots=True)
class MrAttr:
    """The memory to register, and its attributes (struct fi_mr_attr), for `Domain.mr_regattr`.

    Attributes:
        mr_iov: Buffers that together are the region.
        iov_count: Number of these buffers to use; None for all.
        access: `fi.REMOTE_READ | fi.REMOTE_WRITE ...`.
        offset: Reserved, 0.
        requested_key: The key to use; ignored under `fi.MR_PROV_KEY`.
        context: Returned in the event of an asynchronous registration; otherwise ignored.
        auth_key_size: Bytes of auth_key; 0: the domain's key, whatever auth_key is.
        auth_key: An authorization key: only peers that use it reach the region. On a domain opened with
            `fi.AV_AUTH_KEY` a MrAuthKey, with the size MrAuthKey.SIZE.
        iface: Interface of the memory: `fi.HMEM_CUDA` ... Ignored without `fi.HMEM`. Under `fi.MR_HMEM` device memory
            needs iface and device; otherwise HMEM_SYSTEM lets Weft find the owner.
        device: The device number.
        hmem_data: Reserved, None.
        page_size: A hint, ignored; a page size of this system, or 0.
        base_mr: The region of which this one is a sub-MR; None: of none.
        sub_mr_cnt: A hint, ignored: the expected number of sub-MRs.
        dmabuf: A `MrDmabuf` instead of mr_iov, under `fi.MR_DMABUF`.

    Source: fi_mr(3) "Memory region attributes".
    """

    mr_iov: Sequence[Any] = ()
    iov_count: int | None = None
    access: int = 0
    offset: int = 0
    requested_key: int = 0
    context: Any = None
    auth_key_size: int = 0
    auth_key: Any = None
    iface: int = HmemIface.HMEM_SYSTEM
    device: int = 0
    hmem_data: Any = None
    page_size: int = 0
    base_mr: MemoryRegion | None = None
    sub_mr_cnt: int = 0
    dmabuf: MrDmabuf | None = None


class Extra(NamedTuple):
    """Attributes that only few regions have."""

    by_owner: bool = False
    owned: bool = False
    unowned: bool = False  # pages may disappear while the region is open
    base_addr: int | None = None
    vnis: tuple[int, ...] = ()
    source: tuple[int, int, int] | None = None
    auth_av: Any = None
    page_size: int = 0


PLAIN = Extra()
