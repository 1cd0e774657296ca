"""UCX's numbers under UCX's names, without the prefix UCP_ (UCS_ for memory types).

Source: UCP of UCX 1.17, "Enumerations"; ucp.h, ucp_def.h, ucs/memory/memory_type.h.
"""

from __future__ import annotations

import enum

PREFIXES = {
    "ParamField": "PARAM_FIELD_",
    "Feature": "FEATURE_",
    "WorkerParamField": "WORKER_PARAM_FIELD_",
    "ThreadMode": "THREAD_MODE_",
    "EpParamField": "EP_PARAM_FIELD_",
    "ErrHandlingMode": "ERR_HANDLING_MODE_",
    "EpCloseFlag": "EP_CLOSE_FLAG_",
    "MemMapParamField": "MEM_MAP_PARAM_FIELD_",
    "MemMapFlag": "MEM_MAP_",
    "Prot": "MEM_MAP_PROT_",
    "MemAdviseParamField": "MEM_ADVISE_PARAM_FIELD_",
    "MemAdvice": "MADV_",
    "MemhPackParamField": "MEMH_PACK_PARAM_FIELD_",
    "MemhPackFlag": "MEMH_PACK_FLAG_",
    "MemAttrField": "MEM_ATTR_FIELD_",
    "MemoryType": "MEMORY_TYPE_",
    "AtomicOp": "ATOMIC_OP_",
    "OpAttr": "OP_ATTR_",
}
"""Class -> what C has before a member's name. `make flags` writes the members under their C names to _names.py."""


class ParamField(enum.IntFlag):
    """Fields of `Params` (ucp_params_field)."""

    FEATURES = 1 << 0
    REQUEST_SIZE = 1 << 1
    REQUEST_INIT = 1 << 2
    REQUEST_CLEANUP = 1 << 3
    TAG_SENDER_MASK = 1 << 4
    MT_WORKERS_SHARED = 1 << 5
    ESTIMATED_NUM_EPS = 1 << 6
    ESTIMATED_NUM_PPN = 1 << 7
    NAME = 1 << 8
    NODE_LOCAL_ID = 1 << 9


class Feature(enum.IntFlag):
    """Features of a context (ucp_feature). Weft has RMA, AMO32, AMO64, WAKEUP and EXPORTED_MEMH."""

    TAG = 1 << 0
    RMA = 1 << 1
    AMO32 = 1 << 2
    AMO64 = 1 << 3
    WAKEUP = 1 << 4
    STREAM = 1 << 5
    AM = 1 << 6
    EXPORTED_MEMH = 1 << 7


class WorkerParamField(enum.IntFlag):
    """Fields of `WorkerParams` (ucp_worker_params_field)."""

    THREAD_MODE = 1 << 0
    CPU_MASK = 1 << 1
    EVENTS = 1 << 2
    USER_DATA = 1 << 3
    EVENT_FD = 1 << 4
    FLAGS = 1 << 5
    NAME = 1 << 6
    AM_ALIGNMENT = 1 << 7
    CLIENT_ID = 1 << 8


class ThreadMode(enum.IntEnum):
    """How threads use a worker (ucs_thread_mode). Weft's workers are safe in every mode."""

    SINGLE = 0
    SERIALIZED = 1
    MULTI = 2


class EpParamField(enum.IntFlag):
    """Fields of `EpParams` (ucp_ep_params_field)."""

    REMOTE_ADDRESS = 1 << 0
    ERR_HANDLING_MODE = 1 << 1
    ERR_HANDLER = 1 << 2
    USER_DATA = 1 << 3
    SOCK_ADDR = 1 << 4
    FLAGS = 1 << 5
    CONN_REQUEST = 1 << 6
    NAME = 1 << 7
    LOCAL_SOCK_ADDR = 1 << 8


class ErrHandlingMode(enum.IntEnum):
    """Whether an endpoint reports its peer's end without an operation (ucp_err_handling_mode_t)."""

    NONE = 0
    PEER = 1


class EpCloseFlag(enum.IntFlag):
    """Flags of `Endpoint.close_nbx` (ucp_ep_close_flags_t)."""

    FORCE = 1 << 0


class MemMapParamField(enum.IntFlag):
    """Fields of `MemMapParams` (ucp_mem_map_params_field)."""

    ADDRESS = 1 << 0
    LENGTH = 1 << 1
    FLAGS = 1 << 2
    PROT = 1 << 3
    MEMORY_TYPE = 1 << 4
    EXPORTED_MEMH_BUFFER = 1 << 5


class MemMapFlag(enum.IntFlag):
    """How `Context.mem_map` maps ("UCP memory mapping flags")."""

    NONBLOCK = 1 << 0
    ALLOCATE = 1 << 1
    FIXED = 1 << 2
    SYMMETRIC_RKEY = 1 << 3


class Prot(enum.IntFlag):
    """Permitted accesses to mapped memory ("UCP memory mapping protection mode")."""

    LOCAL_READ = 1 << 0
    LOCAL_WRITE = 1 << 1
    REMOTE_READ = 1 << 8
    REMOTE_WRITE = 1 << 9


class MemAdviseParamField(enum.IntFlag):
    """Fields of `MemAdviseParams` (ucp_mem_advise_params_field)."""

    ADDRESS = 1 << 0
    LENGTH = 1 << 1
    ADVICE = 1 << 2


class MemAdvice(enum.IntEnum):
    """The expected use of memory (ucp_mem_advice_t)."""

    NORMAL = 0
    WILLNEED = 1


class MemhPackParamField(enum.IntFlag):
    """Fields of `MemhPackParams` (ucp_memh_pack_params_field)."""

    FLAGS = 1 << 0


class MemhPackFlag(enum.IntFlag):
    """Flags of `MemHandle.pack` (ucp_memh_pack_flags)."""

    EXPORT = 1 << 0


class MemAttrField(enum.IntFlag):
    """Fields of `MemAttr` (ucp_mem_attr_field)."""

    ADDRESS = 1 << 0
    LENGTH = 1 << 1
    MEM_TYPE = 1 << 2


class MemoryType(enum.IntEnum):
    """Types of memory (ucs_memory_type_t of UCX 1.22; the number of UNKNOWN grows with the releases)."""

    HOST = 0
    CUDA = 1
    CUDA_MANAGED = 2
    ROCM = 3
    ROCM_MANAGED = 4
    RDMA = 5
    ZE_HOST = 6
    ZE_DEVICE = 7
    ZE_MANAGED = 8
    GAUDI = 9
    UNKNOWN = 10

    @property
    def text(self) -> str:
        """The name in a mem_spec: "host", "cuda-managed"."""
        return self.name.lower().replace("_", "-")


class AtomicOp(enum.IntEnum):
    """Operations of `Endpoint.atomic_op_nbx` (ucp_atomic_op_t)."""

    ADD = 0
    SWAP = 1
    CSWAP = 2
    AND = 3
    OR = 4
    XOR = 5


class OpAttr(enum.IntFlag):
    """Bits of `RequestParam.op_attr_mask` (ucp_op_attr_t): fields that are given, and flags."""

    FIELD_REQUEST = 1 << 0
    FIELD_CALLBACK = 1 << 1
    FIELD_USER_DATA = 1 << 2
    FIELD_DATATYPE = 1 << 3
    FIELD_FLAGS = 1 << 4
    FIELD_REPLY_BUFFER = 1 << 5
    FIELD_MEMORY_TYPE = 1 << 6
    FIELD_RECV_INFO = 1 << 7
    FIELD_MEMH = 1 << 8
    FLAG_NO_IMM_CMPL = 1 << 16
    FLAG_FAST_CMPL = 1 << 17
    FLAG_FORCE_IMM_CMPL = 1 << 18
    FLAG_MULTI_SEND = 1 << 19


DATATYPE_CONTIG = 0
DATATYPE_IOV = 2


def dt_make_contig(nbytes: int) -> int:
    """The datatype of elements of `nbytes` bytes (ucp_dt_make_contig)."""
    from . import _args

    _args.needed("dt_make_contig", nbytes=nbytes)
    _args.whole("dt_make_contig", nbytes=nbytes)
    return nbytes << 3 | DATATYPE_CONTIG
