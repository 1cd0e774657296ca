"""The parameter structs of UCP's calls, with their C field names and field masks.

A field is used if its bit in `field_mask` (`op_attr_mask`) is set; otherwise the field is ignored.

Source: UCP of UCX 1.17, "Data Structures"; ucp.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .constants import MemoryType

if TYPE_CHECKING:
    from .ep import Endpoint
    from .memh import MemHandle
    from .request import Request


@dataclass
class Params:
    """Parameters of `Context` (ucp_params_t). FEATURES is mandatory."""

    field_mask: int = 0
    features: int = 0
    request_size: int = 0
    request_init: Any = None
    request_cleanup: Any = None
    tag_sender_mask: int = 0
    mt_workers_shared: int = 0
    estimated_num_eps: int = 0
    estimated_num_ppn: int = 0
    name: str = ""
    node_local_id: int = 0


@dataclass
class WorkerParams:
    """Parameters of `Context.worker_create` (ucp_worker_params_t)."""

    field_mask: int = 0
    thread_mode: int = 0
    cpu_mask: Any = None
    events: int = 0
    user_data: Any = None
    event_fd: int = -1
    flags: int = 0
    name: str = ""
    am_alignment: int = 0
    client_id: int = 0


@dataclass
class EpParams:
    """Parameters of `Worker.ep_create` (ucp_ep_params_t). err_handler(user_data, ep, status) is called once."""

    field_mask: int = 0
    address: Any = None
    err_mode: int = 0
    err_handler: Callable[[Any, Endpoint, int], object] | None = None
    user_data: Any = None
    flags: int = 0
    sockaddr: Any = None
    conn_request: Any = None
    name: str = ""
    local_sockaddr: Any = None


@dataclass
class MemMapParams:
    """Parameters of `Context.mem_map` (ucp_mem_map_params_t).

    Attributes:
        address: Virtual address; 0: NULL.
        length: Bytes.
        flags: `MemMapFlag`.
        prot: `Prot`; all four rights if the field's bit is not set.
        memory_type: `MemoryType`; UNKNOWN: Weft finds the type.
        exported_memh_buffer: Bytes that `MemHandle.pack` made with EXPORT, in another process.
    """

    field_mask: int = 0
    address: int = 0
    length: int = 0
    flags: int = 0
    prot: int = 0
    memory_type: int = MemoryType.UNKNOWN
    exported_memh_buffer: Any = None


@dataclass
class MemAdviseParams:
    """Parameters of `Context.mem_advise` (ucp_mem_advise_params_t). All three fields are mandatory."""

    field_mask: int = 0
    address: int = 0
    length: int = 0
    advice: int = 0


@dataclass
class MemhPackParams:
    """Parameters of `MemHandle.pack` (ucp_memh_pack_params_t)."""

    field_mask: int = 0
    flags: int = 0


@dataclass
class MemhBufferReleaseParams:
    """Parameters of `memh_buffer_release` (ucp_memh_buffer_release_params_t). The struct has no fields yet."""

    field_mask: int = 0


@dataclass
class MemAttr:
    """Attributes that `MemHandle.query` fills in (ucp_mem_attr_t); field_mask selects the fields."""

    field_mask: int = 0
    address: int = 0
    length: int = 0
    mem_type: int = MemoryType.UNKNOWN


@dataclass
class RkeyCompareParams:
    """Parameters of `Worker.rkey_compare` (ucp_rkey_compare_params_t). field_mask must be 0."""

    field_mask: int = 0


@dataclass
class RequestParam:
    """Parameters of an operation (ucp_request_param_t).

    Attributes:
        op_attr_mask: `OpAttr`: the fields that are given, and the flags.
        cb: cb(request, status, user_data), called by progress(); not called for operations done in place.
        datatype: dt_make_contig(nbytes) or DATATYPE_IOV.
        reply_buffer: Receives the old value of a fetching atomic.
        memh: Handle of the local buffer.
    """

    op_attr_mask: int = 0
    flags: int = 0
    request: Request | None = None
    cb: Callable[[Request, int, Any], object] | None = None
    datatype: int = 8
    user_data: Any = None
    reply_buffer: Any = None
    memory_type: int = MemoryType.UNKNOWN
    recv_info: Any = None
    memh: MemHandle | None = None
