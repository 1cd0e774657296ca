"""libfabric's flags and enumerations, with libfabric's own numbers.

Python names are the C names without `FI_`. Every member is also a plain name of this module (and of `weft.fi`):
`FI_REMOTE_READ` is `Flag.REMOTE_READ` and `fi.REMOTE_READ`.

One 64-bit space serves capabilities, operation flags, bind flags, access flags and completion flags; its high bits mean
different things in different calls (bit 59 is FI_DIRECTED_RECV as a capability and FI_SELECTIVE_COMPLETION when a
completion queue is bound). Such a context has a class of its own here (`BindFlag`, `MrFlag` ...). Mixing a context's
flag with a common one gives the context's class, so that what is printed is what was meant:

    >>> TRANSMIT | SELECTIVE_COMPLETION
    fi.TRANSMIT | fi.SELECTIVE_COMPLETION

All are ints: the extension takes them as they are, and comparing or masking them with ints works.

Source: <rdma/fabric.h>, <rdma/fi_domain.h>, <rdma/fi_eq.h>, <rdma/fi_errno.h>, libfabric 2.x.
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar

# fmt: off
__all__: list[str] = [
    "ADDR_BGQ", "ADDR_CXI", "ADDR_EFA", "ADDR_GNI", "ADDR_IB_UD", "ADDR_MLX", "ADDR_NOTAVAIL", "ADDR_OPX",
    "ADDR_PSMX", "ADDR_PSMX2", "ADDR_PSMX3", "ADDR_STR", "ADDR_UCX", "ADDR_UNSPEC", "AFFINITY", "ALIAS", "ALLGATHER",
    "ALLGATHER_SET", "ALLREDUCE", "ALLREDUCE_SET", "ALLTOALL", "ALLTOALL_SET", "ASYNC_IOV", "ATOMIC", "ATOMICS",
    "ATOMIC_OP_LAST", "ATOMIC_READ", "ATOMIC_WRITE", "AUTH_KEY", "AV_AUTH_KEY", "AV_COMPLETE", "AV_MAP", "AV_TABLE",
    "AV_UNSPEC", "AV_USER_ID", "BACKLOG", "BAND", "BARRIER", "BARRIER_SET", "BFLOAT16", "BOR", "BROADCAST",
    "BROADCAST_SET", "BUS_PCI", "BUS_UNKNOWN", "BUS_UNSPEC", "BXOR", "CANCEL_WORK", "CLAIM", "CLASS_AV",
    "CLASS_AV_SET", "CLASS_CNTR", "CLASS_CONNREQ", "CLASS_CQ", "CLASS_DOMAIN", "CLASS_EP", "CLASS_EQ", "CLASS_FABRIC",
    "CLASS_INTERFACE", "CLASS_LOG", "CLASS_MC", "CLASS_MEM_MONITOR", "CLASS_MR", "CLASS_MR_CACHE", "CLASS_NIC",
    "CLASS_PEER_AV", "CLASS_PEER_AV_SET", "CLASS_PEER_CNTR", "CLASS_PEER_CQ", "CLASS_PEER_SRX", "CLASS_PEP",
    "CLASS_POLL", "CLASS_PROFILE", "CLASS_RX_CTX", "CLASS_SEP", "CLASS_SRX_CTX", "CLASS_STX_CTX", "CLASS_TX_CTX",
    "CLASS_UNSPEC", "CLASS_WAIT", "CLASS_XPU_CTX", "CNTR_EVENTS_BYTES", "CNTR_EVENTS_COMP", "COLLECTIVE",
    "COLLECTIVE_OFFSET", "COMMIT_COMPLETE", "COMPARE_ATOMIC", "COMPLETION", "CONNECTED", "CONNREQ", "CONTEXT",
    "CONTEXT2", "CQ_COND_NONE", "CQ_COND_THRESHOLD", "CQ_FORMAT_CONTEXT", "CQ_FORMAT_DATA", "CQ_FORMAT_MSG",
    "CQ_FORMAT_TAGGED", "CQ_FORMAT_UNSPEC", "CSWAP", "CSWAP_GE", "CSWAP_GT", "CSWAP_LE", "CSWAP_LT", "CSWAP_NE",
    "DATATYPE_LAST", "DELIVERY_COMPLETE", "DIFF", "DIRECTED_RECV", "DISCARD", "DOUBLE", "DOUBLE_COMPLEX", "DUP",
    "E2BIG", "EACCES", "EADDRINUSE", "EADDRNOTAVAIL", "EAGAIN", "EALREADY", "EAVAIL", "EBADF", "EBADFLAGS", "EBUSY",
    "ECANCELED", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "ECRC", "EDOMAIN", "EFAULT", "EFIREWALLADDR",
    "EHOSTDOWN", "EHOSTUNREACH", "EINPROGRESS", "EINTR", "EINVAL", "EIO", "EISCONN", "EKEYREJECTED", "EMFILE",
    "EMSGSIZE", "ENABLE", "ENETDOWN", "ENETUNREACH", "ENOAV", "ENOBUFS", "ENOCQ", "ENODATA", "ENODEV", "ENOENT",
    "ENOEQ", "ENOKEY", "ENOMEM", "ENOMR", "ENOMSG", "ENOPROTOOPT", "ENORX", "ENOSPC", "ENOSYS", "ENOTCONN",
    "EOPBADSTATE", "EOPNOTSUPP", "EOTHER", "EOVERFLOW", "EOVERRUN", "EPERM", "EPROTO", "EP_DGRAM", "EP_MSG", "EP_RDM",
    "EP_SOCK_STREAM", "EP_UNSPEC", "EREMOTEIO", "ERRNO_MAX", "ERRNO_OFFSET", "ESHUTDOWN", "ETIMEDOUT", "ETOOSMALL",
    "ETRUNC", "EVENT", "EWOULDBLOCK", "EXACT_DIRECTED_RECV", "EXPORT_FID", "FENCE", "FETCH_ATOMIC", "FIREWALL_ADDR",
    "FLOAT", "FLOAT8_E4M3", "FLOAT8_E5M2", "FLOAT16", "FLOAT_COMPLEX", "FLUSH_WORK", "FORMAT_UNSPEC", "GATHER",
    "GATHER_SET", "GETFIDFLAG", "GETOPSFLAG", "GETWAIT", "GETWAITOBJ", "GET_FD", "GET_MR_XPU_DESC", "GET_RAW_MR",
    "GET_VAL", "HMEM", "HMEM_CUDA", "HMEM_DEVICE_ONLY", "HMEM_HOST_ALLOC", "HMEM_NEURON", "HMEM_P2P_DISABLED",
    "HMEM_P2P_ENABLED", "HMEM_P2P_PREFERRED", "HMEM_P2P_REQUIRED", "HMEM_ROCR", "HMEM_SYNAPSEAI", "HMEM_SYSTEM",
    "HMEM_ZE", "INJECT", "INJECT_COMPLETE", "INT8", "INT16", "INT32", "INT64", "INT128", "JOIN_COMPLETE",
    "KEY_NOTAVAIL", "LAND", "LINK_DOWN", "LINK_UNKNOWN", "LINK_UP", "LOCAL_COMM", "LOCAL_MR", "LONG_DOUBLE",
    "LONG_DOUBLE_COMPLEX", "LOR", "LXOR", "MAJOR", "MAP_RAW_MR", "MATCH_COMPLETE", "MAX", "MIN", "MINOR", "MORE",
    "MPI_IGNORE_PAYLOAD", "MPI_IGNORE_TAG", "MR_ALLOCATED", "MR_BASIC", "MR_BASIC_MAP", "MR_COLLECTIVE",
    "MR_COMPLETE", "MR_DMABUF", "MR_ENDPOINT", "MR_HMEM", "MR_LOCAL", "MR_MMU_NOTIFY", "MR_PROV_KEY", "MR_RAW",
    "MR_RMA_EVENT", "MR_SCALABLE", "MR_SINGLE_USE", "MR_UNSPEC", "MR_VIRT_ADDR", "MR_XPU_DESC", "MSG", "MSG_PREFIX",
    "MSWAP", "MULTICAST", "MULTI_RECV", "NAMED_RX_CTX", "NAME_MAX", "NOOP", "NOTIFY", "NOTIFY_FLAGS_ONLY",
    "NUMERICHOST", "OPT_BUFFERED_LIMIT", "OPT_BUFFERED_MIN", "OPT_CM_DATA_SIZE", "OPT_CUDA_API_PERMITTED",
    "OPT_ENDPOINT", "OPT_FIREWALL_ADDR", "OPT_FI_HMEM_P2P", "OPT_INJECT_ATOMIC_SIZE", "OPT_INJECT_MSG_SIZE",
    "OPT_INJECT_RMA_SIZE", "OPT_INJECT_TAGGED_SIZE", "OPT_MAX_ATOMIC_SIZE", "OPT_MAX_MSG_SIZE", "OPT_MAX_RMA_SIZE",
    "OPT_MAX_TAGGED_SIZE", "OPT_MIN_MULTI_RECV", "OPT_RECV_BUF_SIZE", "OPT_RX_SIZE", "OPT_SEND_BUF_SIZE",
    "OPT_SHARED_MEMORY_PERMITTED", "OPT_TX_SIZE", "OPT_XPU_TRIGGER", "OP_ATOMIC", "OP_CNTR_ADD", "OP_CNTR_SET",
    "OP_COMPARE_ATOMIC", "OP_FETCH_ATOMIC", "OP_READ", "OP_RECV", "OP_SEND", "OP_TRECV", "OP_TSEND", "OP_WRITE",
    "ORDER_ATOMIC_RAR", "ORDER_ATOMIC_RAW", "ORDER_ATOMIC_WAR", "ORDER_ATOMIC_WAW", "ORDER_DATA", "ORDER_NONE",
    "ORDER_RAR", "ORDER_RAS", "ORDER_RAW", "ORDER_RMA_RAR", "ORDER_RMA_RAW", "ORDER_RMA_WAR", "ORDER_RMA_WAW",
    "ORDER_SAR", "ORDER_SAS", "ORDER_SAW", "ORDER_STRICT", "ORDER_WAR", "ORDER_WAS", "ORDER_WAW", "PARAM_BOOL",
    "PARAM_INT", "PARAM_SIZE_T", "PARAM_STRING", "PEEK", "PEER", "PEER_TRANSFER", "PROD", "PROGRESS_AUTO",
    "PROGRESS_CONTROL_UNIFIED", "PROGRESS_MANUAL", "PROGRESS_UNSPEC", "PROTO_COLL", "PROTO_CXI", "PROTO_CXI_RNR",
    "PROTO_EFA", "PROTO_GNI", "PROTO_IB_RDM", "PROTO_IB_UD", "PROTO_IWARP", "PROTO_IWARP_RDM", "PROTO_LNX",
    "PROTO_LPP", "PROTO_MLX", "PROTO_MRAIL", "PROTO_MXM", "PROTO_NETWORKDIRECT", "PROTO_OPX", "PROTO_PROVIDER",
    "PROTO_PSMX", "PROTO_PSMX2", "PROTO_PSMX3", "PROTO_RDMA_CM_IB_RC", "PROTO_RDMA_CM_IB_XRC", "PROTO_RSTREAM",
    "PROTO_RXD", "PROTO_RXM", "PROTO_RXM_TCP", "PROTO_SHM", "PROTO_SM2", "PROTO_SOCK_TCP", "PROTO_UCX", "PROTO_UDP",
    "PROTO_UNSPEC", "PROTO_XNET", "PROV_ATTR_ONLY", "QUEUE_WORK", "READ", "RECV", "REDUCE", "REDUCE_SCATTER",
    "REDUCE_SCATTER_SET", "REDUCE_SET", "REFRESH", "REG_MR", "REMOTE_COMM", "REMOTE_CQ_DATA", "REMOTE_READ",
    "REMOTE_WRITE", "RESCAN", "RESTRICTED_COMP", "RMA", "RMA_EVENT", "RMA_PMEM", "RM_DISABLED", "RM_ENABLED",
    "RM_UNSPEC", "RX_CQ_DATA", "SCATTER", "SCATTER_SET", "SELECTIVE_COMPLETION", "SEND", "SETFIDFLAG", "SETOPSFLAG",
    "SET_VAL", "SHARED_AV", "SHARED_CONTEXT", "SHUTDOWN", "SOCKADDR", "SOCKADDR_IB", "SOCKADDR_IN", "SOCKADDR_IN6",
    "SOCKADDR_IP", "SOURCE", "SOURCE_ERR", "SUCCESS", "SUM", "SYMMETRIC", "SYNC_ERR", "TAGGED",
    "TAGGED_DIRECTED_RECV", "TAGGED_MULTI_RECV", "TAG_BITS", "TAG_CCL", "TAG_MAX_FORMAT", "TAG_MPI", "TC_BEST_EFFORT",
    "TC_BULK_DATA", "TC_DEDICATED_ACCESS", "TC_DSCP", "TC_LABEL", "TC_LOW_LATENCY", "TC_NETWORK_CTRL", "TC_SCAVENGER",
    "TC_UNSPEC", "THREAD_COMPLETION", "THREAD_DOMAIN", "THREAD_ENDPOINT", "THREAD_FID", "THREAD_SAFE",
    "THREAD_UNSPEC", "TRANSMIT", "TRANSMIT_COMPLETE", "TRIGGER", "TRIGGER_THRESHOLD", "TRIGGER_XPU",
    "TYPE_ADDR_FORMAT", "TYPE_ATOMIC_OP", "TYPE_ATOMIC_TYPE", "TYPE_AV_ATTR", "TYPE_AV_TYPE", "TYPE_CAPS",
    "TYPE_CNTR_ATTR", "TYPE_COLLECTIVE_OP", "TYPE_CQ_ATTR", "TYPE_CQ_ERR_ENTRY", "TYPE_CQ_EVENT_FLAGS",
    "TYPE_CQ_FORMAT", "TYPE_CQ_WAIT_COND", "TYPE_DOMAIN_ATTR", "TYPE_EP_ATTR", "TYPE_EP_TYPE", "TYPE_EQ_EVENT",
    "TYPE_FABRIC_ATTR", "TYPE_FID", "TYPE_HMEM_IFACE", "TYPE_INFO", "TYPE_LOG_LEVEL", "TYPE_LOG_SUBSYS", "TYPE_MODE",
    "TYPE_MR_ATTR", "TYPE_MR_MODE", "TYPE_MSG_ORDER", "TYPE_OP_FLAGS", "TYPE_OP_TYPE", "TYPE_PROGRESS",
    "TYPE_PROTOCOL", "TYPE_RX_ATTR", "TYPE_THREADING", "TYPE_TX_ATTR", "TYPE_VERSION", "TYPE_WAIT_OBJ", "UINT8",
    "UINT16", "UINT32", "UINT64", "UINT128", "UNIVERSE", "UNMAP_KEY", "VARIABLE_MSG", "VERSION", "VERSION_GE",
    "VERSION_LT", "VOID", "WAIT_FD", "WAIT_MUTEX_COND", "WAIT_NONE", "WAIT_POLLFD", "WAIT_SET", "WAIT_UNSPEC",
    "WAIT_YIELD", "WRITE", "XPU", "AddrFormat", "AtomicFlag", "AvFlag", "AvSetFlag", "AvType", "BindFlag", "BusType",
    "CntrEvents", "CollectiveOp", "CompOrder", "Control", "CqFormat", "CqWaitCond", "Datatype", "EpType", "EqEvent",
    "Errno", "FidClass", "Flag", "GetinfoFlag", "HmemIface", "HmemP2p", "LinkState", "Mode", "MrFlag", "MrMode", "Op",
    "OpType", "Opt", "OptLevel", "Order", "ParamType", "Progress", "Protocol", "RecvFlag", "RegisterMode",
    "ResourceMgmt", "TagFormat", "Tc", "Threading", "TriggerEvent", "Type", "WaitObj", "hmem_ze_device",
    "tc_dscp_get", "tc_dscp_set",
]
# fmt: on

_F = TypeVar("_F", bound="_Flags")


class _Flags(enum.IntFlag):
    """IntFlag that prints as the expression that makes it, and whose `|` is one dictionary look-up.

    enum's own `|` goes through the class call on every use; flags are put together in front of every `writemsg`, so it
    is worth the shortcut.
    """

    def __or__(self: _F, other: int) -> _F:
        cls = self.__class__
        if other.__class__ is not cls and other.__class__ is not int:
            common = _common_class(cls, other.__class__)
            if common is None:  # flags of two different fields: a number, not a flag
                return int.__or__(self, other)  # type: ignore[return-value]
            cls = common
        value = int.__or__(self, other)
        member = cls._value2member_map_.get(value)
        return member if member is not None else cls(value)  # type: ignore[return-value]

    __ror__ = __or__

    def __repr__(self) -> str:
        names = _bit_names(self.__class__, int(self))
        return " | ".join(f"fi.{n}" if not n.startswith("0x") else n for n in names) or f"fi.{type(self).__name__}(0)"

    def __str__(self) -> str:
        return "|".join(_bit_names(self.__class__, int(self))) or "0"

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec else str(self)


class _Enum(enum.IntEnum):
    """IntEnum that prints as its public name."""

    def __repr__(self) -> str:
        return f"fi.{self._name_}"

    def __str__(self) -> str:
        return str(self._name_)

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec else str(self)


class Flag(_Flags):
    """Capabilities, operation, access and completion flags: the common 64-bit space."""

    MSG = 1 << 1
    RMA = 1 << 2
    TAGGED = 1 << 3
    ATOMIC = 1 << 4
    ATOMICS = 1 << 4
    MULTICAST = 1 << 5
    COLLECTIVE = 1 << 6
    READ = 1 << 8
    WRITE = 1 << 9
    RECV = 1 << 10
    TRANSMIT = 1 << 11
    SEND = 1 << 11
    REMOTE_READ = 1 << 12
    REMOTE_WRITE = 1 << 13
    MULTI_RECV = 1 << 16
    REMOTE_CQ_DATA = 1 << 17
    MORE = 1 << 18
    PEEK = 1 << 19
    TRIGGER = 1 << 20
    FENCE = 1 << 21
    COMPLETION = 1 << 24
    EVENT = 1 << 24
    INJECT = 1 << 25
    INJECT_COMPLETE = 1 << 26
    TRANSMIT_COMPLETE = 1 << 27
    DELIVERY_COMPLETE = 1 << 28
    AFFINITY = 1 << 29
    COMMIT_COMPLETE = 1 << 30
    MATCH_COMPLETE = 1 << 31
    RESCAN = 1 << 35
    PEER_TRANSFER = 1 << 36
    AV_USER_ID = 1 << 41
    FIREWALL_ADDR = 1 << 42
    PEER = 1 << 43
    XPU = 1 << 44
    TAGGED_DIRECTED_RECV = 1 << 45
    TAGGED_MULTI_RECV = 1 << 46
    HMEM = 1 << 47
    EXACT_DIRECTED_RECV = 1 << 48
    RMA_PMEM = 1 << 49
    SOURCE_ERR = 1 << 50
    LOCAL_COMM = 1 << 51
    REMOTE_COMM = 1 << 52
    SHARED_AV = 1 << 53
    RMA_EVENT = 1 << 56
    SOURCE = 1 << 57
    NAMED_RX_CTX = 1 << 58
    DIRECTED_RECV = 1 << 59


class GetinfoFlag(_Flags):
    """Flags of fi_getinfo alone (FI_SOURCE and FI_RESCAN are in `Flag`)."""

    PROV_ATTR_ONLY = 1 << 54
    NUMERICHOST = 1 << 55


class BindFlag(_Flags):
    """Flags of fi_ep_bind with a completion queue."""

    SELECTIVE_COMPLETION = 1 << 59


class RecvFlag(_Flags):
    """Flags of fi_recvmsg and fi_trecvmsg."""

    DISCARD = 1 << 58
    CLAIM = 1 << 59


class AvFlag(_Flags):
    """Flags of fi_av_open, fi_av_insert and fi_av_remove (FI_AUTH_KEY also of fi_mr_regattr)."""

    AUTH_KEY = 1 << 57
    SYNC_ERR = 1 << 58
    SYMMETRIC = 1 << 59


class AvSetFlag(_Flags):
    """Flags of fi_av_set: the collectives that a set will be used for."""

    BARRIER_SET = 1 << 40
    BROADCAST_SET = 1 << 41
    ALLTOALL_SET = 1 << 42
    ALLREDUCE_SET = 1 << 43
    ALLGATHER_SET = 1 << 44
    REDUCE_SCATTER_SET = 1 << 45
    REDUCE_SET = 1 << 46
    SCATTER_SET = 1 << 47
    GATHER_SET = 1 << 48
    UNIVERSE = 1 << 57


class MrFlag(_Flags):
    """Flags of memory registration (FI_RMA_EVENT and FI_RMA_PMEM are in `Flag`)."""

    MR_DMABUF = 1 << 40
    MR_SINGLE_USE = 1 << 41
    HMEM_HOST_ALLOC = 1 << 45
    HMEM_DEVICE_ONLY = 1 << 46


class AtomicFlag(_Flags):
    """Flags of fi_query_atomic."""

    FETCH_ATOMIC = 1 << 58
    COMPARE_ATOMIC = 1 << 59


class Mode(_Flags):
    """Operational modes (fi_info.mode): what the application must do."""

    CONTEXT2 = 1 << 52
    LOCAL_MR = 1 << 55
    RX_CQ_DATA = 1 << 56
    ASYNC_IOV = 1 << 57
    MSG_PREFIX = 1 << 58
    CONTEXT = 1 << 59


class RegisterMode(_Flags):
    """fi_domain_bind: registrations complete asynchronously (deprecated)."""

    REG_MR = 1 << 59


class MrMode(_Flags):
    """Memory registration modes (fi_domain_attr.mr_mode)."""

    MR_UNSPEC = 0x0
    MR_BASIC = 0x1
    MR_SCALABLE = 0x2
    MR_LOCAL = 0x4
    MR_RAW = 0x8
    MR_VIRT_ADDR = 0x10
    MR_ALLOCATED = 0x20
    MR_PROV_KEY = 0x40
    MR_MMU_NOTIFY = 0x80
    MR_RMA_EVENT = 0x100
    MR_ENDPOINT = 0x200
    MR_HMEM = 0x400
    MR_COLLECTIVE = 0x800
    MR_XPU_DESC = 0x1000


class Order(_Flags):
    """Message ordering (fi_tx_attr.msg_order, fi_rx_attr.msg_order)."""

    ORDER_NONE = 0x0
    ORDER_RAR = 0x1
    ORDER_RAW = 0x2
    ORDER_RAS = 0x4
    ORDER_WAR = 0x8
    ORDER_WAW = 0x10
    ORDER_WAS = 0x20
    ORDER_SAR = 0x40
    ORDER_SAW = 0x80
    ORDER_SAS = 0x100
    ORDER_RMA_RAR = 1 << 32
    ORDER_RMA_RAW = 1 << 33
    ORDER_RMA_WAR = 1 << 34
    ORDER_RMA_WAW = 1 << 35
    ORDER_ATOMIC_RAR = 1 << 36
    ORDER_ATOMIC_RAW = 1 << 37
    ORDER_ATOMIC_WAR = 1 << 38
    ORDER_ATOMIC_WAW = 1 << 39


class CompOrder(_Flags):
    """Completion ordering; deprecated, and refused in hints by API 2.x."""

    ORDER_STRICT = 0x1FF
    ORDER_DATA = 0x10000


class AvType(_Enum):
    """Address vector type."""

    AV_UNSPEC = 0
    AV_MAP = 1
    AV_TABLE = 2


class EpType(_Enum):
    """Endpoint type."""

    EP_UNSPEC = 0
    EP_MSG = 1
    EP_DGRAM = 2
    EP_RDM = 3


class Progress(_Enum):
    """Progress model."""

    PROGRESS_UNSPEC = 0
    PROGRESS_AUTO = 1
    PROGRESS_MANUAL = 2
    PROGRESS_CONTROL_UNIFIED = 3


class Threading(_Enum):
    """Threading model."""

    THREAD_UNSPEC = 0
    THREAD_SAFE = 1
    THREAD_FID = 2
    THREAD_DOMAIN = 3
    THREAD_COMPLETION = 4
    THREAD_ENDPOINT = 5


class ResourceMgmt(_Enum):
    """Resource management."""

    RM_UNSPEC = 0
    RM_DISABLED = 1
    RM_ENABLED = 2


class CqFormat(_Enum):
    """Completion queue entry format."""

    CQ_FORMAT_UNSPEC = 0
    CQ_FORMAT_CONTEXT = 1
    CQ_FORMAT_MSG = 2
    CQ_FORMAT_DATA = 3
    CQ_FORMAT_TAGGED = 4


class CqWaitCond(_Enum):
    """Wait condition of a completion queue."""

    CQ_COND_NONE = 0
    CQ_COND_THRESHOLD = 1


class WaitObj(_Enum):
    """Wait object."""

    WAIT_NONE = 0
    WAIT_UNSPEC = 1
    WAIT_SET = 2
    WAIT_FD = 3
    WAIT_MUTEX_COND = 4
    WAIT_YIELD = 5
    WAIT_POLLFD = 6


class CntrEvents(_Enum):
    """What a counter counts."""

    CNTR_EVENTS_COMP = 0
    CNTR_EVENTS_BYTES = 1


class EqEvent(_Enum):
    """Events of an event queue."""

    NOTIFY = 0
    CONNREQ = 1
    CONNECTED = 2
    SHUTDOWN = 3
    MR_COMPLETE = 4
    AV_COMPLETE = 5
    JOIN_COMPLETE = 6


class HmemIface(_Enum):
    """Device memory interface."""

    HMEM_SYSTEM = 0
    HMEM_CUDA = 1
    HMEM_ROCR = 2
    HMEM_ZE = 3
    HMEM_NEURON = 4
    HMEM_SYNAPSEAI = 5


class HmemP2p(_Enum):
    """Values of the endpoint option FI_OPT_FI_HMEM_P2P."""

    HMEM_P2P_ENABLED = 0
    HMEM_P2P_REQUIRED = 1
    HMEM_P2P_PREFERRED = 2
    HMEM_P2P_DISABLED = 3


class OpType(_Enum):
    """Operation of deferred work."""

    OP_RECV = 0
    OP_SEND = 1
    OP_TRECV = 2
    OP_TSEND = 3
    OP_READ = 4
    OP_WRITE = 5
    OP_ATOMIC = 6
    OP_FETCH_ATOMIC = 7
    OP_COMPARE_ATOMIC = 8
    OP_CNTR_SET = 9
    OP_CNTR_ADD = 10


class TriggerEvent(_Enum):
    """Trigger of a triggered operation."""

    TRIGGER_THRESHOLD = 0
    TRIGGER_XPU = 1


class BusType(_Enum):
    """Bus of a NIC."""

    BUS_UNSPEC = 0
    BUS_UNKNOWN = 0
    BUS_PCI = 1


class LinkState(_Enum):
    """Link state of a NIC."""

    LINK_UNKNOWN = 0
    LINK_DOWN = 1
    LINK_UP = 2


class CollectiveOp(_Enum):
    """Collective operation."""

    BARRIER = 0
    BROADCAST = 1
    ALLTOALL = 2
    ALLREDUCE = 3
    ALLGATHER = 4
    REDUCE_SCATTER = 5
    REDUCE = 6
    SCATTER = 7
    GATHER = 8


class ParamType(_Enum):
    """Type of a parameter."""

    PARAM_STRING = 0
    PARAM_INT = 1
    PARAM_BOOL = 2
    PARAM_SIZE_T = 3


class TagFormat(_Enum):
    """Tag format."""

    TAG_BITS = 0
    TAG_MPI = 1
    TAG_CCL = 2
    TAG_MAX_FORMAT = 65536


class AddrFormat(_Enum):
    """Address format (fi_info.addr_format)."""

    FORMAT_UNSPEC = 0
    SOCKADDR = 1
    SOCKADDR_IN = 2
    SOCKADDR_IN6 = 3
    SOCKADDR_IB = 4
    ADDR_PSMX = 5
    ADDR_GNI = 6
    ADDR_BGQ = 7
    ADDR_MLX = 8
    ADDR_STR = 9
    ADDR_PSMX2 = 10
    ADDR_IB_UD = 11
    ADDR_EFA = 12
    ADDR_PSMX3 = 13
    ADDR_OPX = 14
    ADDR_CXI = 15
    ADDR_UCX = 16
    SOCKADDR_IP = 17


class Protocol(_Enum):
    """Wire protocol (fi_ep_attr.protocol). Values with the top bit set belong to a provider."""

    PROTO_UNSPEC = 0
    PROTO_RDMA_CM_IB_RC = 1
    PROTO_IWARP = 2
    PROTO_IB_UD = 3
    PROTO_PSMX = 4
    PROTO_UDP = 5
    PROTO_SOCK_TCP = 6
    PROTO_MXM = 7
    PROTO_IWARP_RDM = 8
    PROTO_IB_RDM = 9
    PROTO_GNI = 10
    PROTO_RXM = 11
    PROTO_RXD = 12
    PROTO_MLX = 13
    PROTO_NETWORKDIRECT = 14
    PROTO_PSMX2 = 15
    PROTO_SHM = 16
    PROTO_MRAIL = 17
    PROTO_RSTREAM = 18
    PROTO_RDMA_CM_IB_XRC = 19
    PROTO_EFA = 20
    PROTO_PSMX3 = 21
    PROTO_RXM_TCP = 22
    PROTO_OPX = 23
    PROTO_CXI = 24
    PROTO_XNET = 25
    PROTO_COLL = 26
    PROTO_UCX = 27
    PROTO_SM2 = 28
    PROTO_CXI_RNR = 29
    PROTO_LPP = 30
    PROTO_LNX = 31


class FidClass(_Enum):
    """Class of a fabric object."""

    CLASS_UNSPEC = 0
    CLASS_FABRIC = 1
    CLASS_DOMAIN = 2
    CLASS_EP = 3
    CLASS_SEP = 4
    CLASS_RX_CTX = 5
    CLASS_SRX_CTX = 6
    CLASS_TX_CTX = 7
    CLASS_STX_CTX = 8
    CLASS_PEP = 9
    CLASS_INTERFACE = 10
    CLASS_AV = 11
    CLASS_MR = 12
    CLASS_EQ = 13
    CLASS_CQ = 14
    CLASS_CNTR = 15
    CLASS_WAIT = 16
    CLASS_POLL = 17
    CLASS_CONNREQ = 18
    CLASS_MC = 19
    CLASS_NIC = 20
    CLASS_AV_SET = 21
    CLASS_MR_CACHE = 22
    CLASS_MEM_MONITOR = 23
    CLASS_PEER_CQ = 24
    CLASS_PEER_SRX = 25
    CLASS_LOG = 26
    CLASS_PEER_AV = 27
    CLASS_PEER_AV_SET = 28
    CLASS_PEER_CNTR = 29
    CLASS_PROFILE = 30
    CLASS_XPU_CTX = 31


class Tc(_Enum):
    """Traffic class."""

    TC_UNSPEC = 0x0
    TC_DSCP = 0x100
    TC_LABEL = 0x200
    TC_BEST_EFFORT = 0x200
    TC_LOW_LATENCY = 0x201
    TC_DEDICATED_ACCESS = 0x202
    TC_BULK_DATA = 0x203
    TC_SCAVENGER = 0x204
    TC_NETWORK_CTRL = 0x205


class Datatype(_Enum):
    """Datatypes of atomics and collectives."""

    INT8 = 0
    UINT8 = 1
    INT16 = 2
    UINT16 = 3
    INT32 = 4
    UINT32 = 5
    INT64 = 6
    UINT64 = 7
    FLOAT = 8
    DOUBLE = 9
    FLOAT_COMPLEX = 10
    DOUBLE_COMPLEX = 11
    LONG_DOUBLE = 12
    LONG_DOUBLE_COMPLEX = 13
    INT128 = 14
    UINT128 = 15
    FLOAT16 = 16
    BFLOAT16 = 17
    FLOAT8_E4M3 = 18
    FLOAT8_E5M2 = 19
    VOID = 256


class Op(_Enum):
    """Operations of atomics and collectives."""

    MIN = 0
    MAX = 1
    SUM = 2
    PROD = 3
    LOR = 4
    LAND = 5
    BOR = 6
    BAND = 7
    LXOR = 8
    BXOR = 9
    ATOMIC_READ = 10
    ATOMIC_WRITE = 11
    CSWAP = 12
    CSWAP_NE = 13
    CSWAP_LE = 14
    CSWAP_LT = 15
    CSWAP_GE = 16
    CSWAP_GT = 17
    MSWAP = 18
    DIFF = 19
    NOOP = 256


class Errno(_Enum):
    """Error numbers: the platform's below 256, libfabric's own from there. Calls in C return them negated."""

    SUCCESS = 0
    EPERM = 1
    ENOENT = 2
    EINTR = 4
    EIO = 5
    E2BIG = 7
    EBADF = 9
    EAGAIN = 11
    EWOULDBLOCK = 11
    ENOMEM = 12
    EACCES = 13
    EFAULT = 14
    EBUSY = 16
    ENODEV = 19
    EINVAL = 22
    EMFILE = 24
    ENOSPC = 28
    ENOSYS = 38
    ENOMSG = 42
    ENODATA = 61
    EPROTO = 71
    EOVERFLOW = 75
    EMSGSIZE = 90
    ENOPROTOOPT = 92
    EOPNOTSUPP = 95
    EADDRINUSE = 98
    EADDRNOTAVAIL = 99
    ENETDOWN = 100
    ENETUNREACH = 101
    ECONNABORTED = 103
    ECONNRESET = 104
    ENOBUFS = 105
    EISCONN = 106
    ENOTCONN = 107
    ESHUTDOWN = 108
    ETIMEDOUT = 110
    ECONNREFUSED = 111
    EHOSTDOWN = 112
    EHOSTUNREACH = 113
    EALREADY = 114
    EINPROGRESS = 115
    EREMOTEIO = 121
    ECANCELED = 125
    EKEYREJECTED = 129
    EOTHER = 256
    ETOOSMALL = 257
    EOPBADSTATE = 258
    EAVAIL = 259
    EBADFLAGS = 260
    ENOEQ = 261
    EDOMAIN = 262
    ENOCQ = 263
    ECRC = 264
    ETRUNC = 265
    ENOKEY = 266
    ENOAV = 267
    EOVERRUN = 268
    ENORX = 269
    ENOMR = 270
    EFIREWALLADDR = 271


class Control(_Enum):
    """Commands of fi_control."""

    GETFIDFLAG = 0
    SETFIDFLAG = 1
    GETOPSFLAG = 2
    SETOPSFLAG = 3
    ALIAS = 4
    GETWAIT = 5
    ENABLE = 6
    BACKLOG = 7
    GET_RAW_MR = 8
    MAP_RAW_MR = 9
    UNMAP_KEY = 10
    QUEUE_WORK = 11
    CANCEL_WORK = 12
    FLUSH_WORK = 13
    REFRESH = 14
    DUP = 15
    GETWAITOBJ = 16
    GET_VAL = 17
    SET_VAL = 18
    EXPORT_FID = 19
    GET_FD = 20
    GET_MR_XPU_DESC = 21


class OptLevel(_Enum):
    """Level of an endpoint option."""

    OPT_ENDPOINT = 0


class Opt(_Enum):
    """Endpoint options (level FI_OPT_ENDPOINT)."""

    OPT_MIN_MULTI_RECV = 0
    OPT_CM_DATA_SIZE = 1
    OPT_BUFFERED_MIN = 2
    OPT_BUFFERED_LIMIT = 3
    OPT_SEND_BUF_SIZE = 4
    OPT_RECV_BUF_SIZE = 5
    OPT_TX_SIZE = 6
    OPT_RX_SIZE = 7
    OPT_FI_HMEM_P2P = 8
    OPT_XPU_TRIGGER = 9
    OPT_CUDA_API_PERMITTED = 10
    OPT_SHARED_MEMORY_PERMITTED = 11
    OPT_MAX_MSG_SIZE = 12
    OPT_MAX_TAGGED_SIZE = 13
    OPT_MAX_RMA_SIZE = 14
    OPT_MAX_ATOMIC_SIZE = 15
    OPT_INJECT_MSG_SIZE = 16
    OPT_INJECT_TAGGED_SIZE = 17
    OPT_INJECT_RMA_SIZE = 18
    OPT_INJECT_ATOMIC_SIZE = 19
    OPT_FIREWALL_ADDR = 20


class Type(_Enum):
    """What fi_tostr is given."""

    TYPE_INFO = 0
    TYPE_EP_TYPE = 1
    TYPE_CAPS = 2
    TYPE_OP_FLAGS = 3
    TYPE_ADDR_FORMAT = 4
    TYPE_TX_ATTR = 5
    TYPE_RX_ATTR = 6
    TYPE_EP_ATTR = 7
    TYPE_DOMAIN_ATTR = 8
    TYPE_FABRIC_ATTR = 9
    TYPE_THREADING = 10
    TYPE_PROGRESS = 11
    TYPE_PROTOCOL = 12
    TYPE_MSG_ORDER = 13
    TYPE_MODE = 14
    TYPE_AV_TYPE = 15
    TYPE_ATOMIC_TYPE = 16
    TYPE_ATOMIC_OP = 17
    TYPE_VERSION = 18
    TYPE_EQ_EVENT = 19
    TYPE_CQ_EVENT_FLAGS = 20
    TYPE_MR_MODE = 21
    TYPE_OP_TYPE = 22
    TYPE_FID = 23
    TYPE_COLLECTIVE_OP = 24
    TYPE_HMEM_IFACE = 25
    TYPE_CQ_FORMAT = 26
    TYPE_LOG_LEVEL = 27
    TYPE_LOG_SUBSYS = 28
    TYPE_AV_ATTR = 29
    TYPE_CQ_ATTR = 30
    TYPE_MR_ATTR = 31
    TYPE_CNTR_ATTR = 32
    TYPE_CQ_ERR_ENTRY = 33
    TYPE_CQ_WAIT_COND = 34
    TYPE_WAIT_OBJ = 35


def _common_class(a: type[Any], b: type[Any]) -> type[Any] | None:
    """Class of a mixture: the context's where the other is the common space; None where the two do not mix."""
    if a is Flag and b in _CONTEXTS:
        return b
    if (b is Flag and a in _CONTEXTS) or not issubclass(b, _Flags):
        return a
    return None


def _bit_names(cls: type[_Flags], value: int) -> list[str]:
    names: list[str] = []
    bit = 1
    table = _NAMES.get(cls, {})
    while value:
        if value & bit:
            names.append(table.get(bit) or f"{bit:#x}")
            value &= ~bit
        bit <<= 1
    return names


def _name_table(cls: type[_Flags], base: dict[int, str]) -> dict[int, str]:
    table = dict(base)
    own: dict[int, str] = {}
    for name, member in cls.__members__.items():
        own.setdefault(int(member), name)
    table.update(own)
    return table


_CONTEXTS: frozenset[type[_Flags]] = frozenset((GetinfoFlag, BindFlag, RecvFlag, AvFlag, AvSetFlag, MrFlag, AtomicFlag))
_NAMES: dict[type[_Flags], dict[int, str]] = {Flag: _name_table(Flag, {})}
_NAMES.update({c: _name_table(c, _NAMES[Flag]) for c in _CONTEXTS})
_NAMES.update({c: _name_table(c, {}) for c in (Mode, RegisterMode, MrMode, Order, CompOrder)})

# enum puts its own operators into every subclass that does not define them, over inherited ones: put ours back.
for _c in _NAMES:
    _c.__or__ = _c.__ror__ = _Flags.__or__  # type: ignore[assignment, method-assign]

# Sentinels and limits
ADDR_UNSPEC = (1 << 64) - 1  # no address, or any
ADDR_NOTAVAIL = (1 << 64) - 1  # an address that is not known
KEY_NOTAVAIL = (1 << 64) - 1  # no 64-bit key (yet)
SHARED_CONTEXT = (1 << 64) - 1  # ep_attr.tx_ctx_cnt, rx_ctx_cnt
AV_AUTH_KEY = (1 << 64) - 1  # domain_attr.auth_key_size: keys come from the address vector
NAME_MAX = 64
ERRNO_OFFSET = 256  # first of libfabric's own error numbers
ERRNO_MAX = 272
COLLECTIVE_OFFSET = 256  # first datatype and operation that only collectives have
DATATYPE_LAST = 14  # frozen; not the last datatype
ATOMIC_OP_LAST = 19  # frozen
VARIABLE_MSG = 0  # legacy
NOTIFY_FLAGS_ONLY = 0  # legacy
RESTRICTED_COMP = 0  # legacy
EP_SOCK_STREAM = 0  # legacy
MPI_IGNORE_TAG = 0xFFFFFFFF
MPI_IGNORE_PAYLOAD = 0xFF00000000
PROTO_PROVIDER = 1 << 31  # top bit of a protocol number that belongs to a provider

# FI_MR_BASIC stands for these (fi_mr(3) "Basic Memory Registration").
MR_BASIC_MAP = MrMode.MR_VIRT_ADDR | MrMode.MR_ALLOCATED | MrMode.MR_PROV_KEY

# Plain names: spelled out, so that type checkers and completion see them.
MSG = Flag.MSG
RMA = Flag.RMA
TAGGED = Flag.TAGGED
ATOMIC = Flag.ATOMIC
ATOMICS = Flag.ATOMICS
MULTICAST = Flag.MULTICAST
COLLECTIVE = Flag.COLLECTIVE
READ = Flag.READ
WRITE = Flag.WRITE
RECV = Flag.RECV
TRANSMIT = Flag.TRANSMIT
SEND = Flag.SEND
REMOTE_READ = Flag.REMOTE_READ
REMOTE_WRITE = Flag.REMOTE_WRITE
MULTI_RECV = Flag.MULTI_RECV
REMOTE_CQ_DATA = Flag.REMOTE_CQ_DATA
MORE = Flag.MORE
PEEK = Flag.PEEK
TRIGGER = Flag.TRIGGER
FENCE = Flag.FENCE
COMPLETION = Flag.COMPLETION
EVENT = Flag.EVENT
INJECT = Flag.INJECT
INJECT_COMPLETE = Flag.INJECT_COMPLETE
TRANSMIT_COMPLETE = Flag.TRANSMIT_COMPLETE
DELIVERY_COMPLETE = Flag.DELIVERY_COMPLETE
AFFINITY = Flag.AFFINITY
COMMIT_COMPLETE = Flag.COMMIT_COMPLETE
MATCH_COMPLETE = Flag.MATCH_COMPLETE
RESCAN = Flag.RESCAN
PEER_TRANSFER = Flag.PEER_TRANSFER
AV_USER_ID = Flag.AV_USER_ID
FIREWALL_ADDR = Flag.FIREWALL_ADDR
PEER = Flag.PEER
XPU = Flag.XPU
TAGGED_DIRECTED_RECV = Flag.TAGGED_DIRECTED_RECV
TAGGED_MULTI_RECV = Flag.TAGGED_MULTI_RECV
HMEM = Flag.HMEM
EXACT_DIRECTED_RECV = Flag.EXACT_DIRECTED_RECV
RMA_PMEM = Flag.RMA_PMEM
SOURCE_ERR = Flag.SOURCE_ERR
LOCAL_COMM = Flag.LOCAL_COMM
REMOTE_COMM = Flag.REMOTE_COMM
SHARED_AV = Flag.SHARED_AV
RMA_EVENT = Flag.RMA_EVENT
SOURCE = Flag.SOURCE
NAMED_RX_CTX = Flag.NAMED_RX_CTX
DIRECTED_RECV = Flag.DIRECTED_RECV
PROV_ATTR_ONLY = GetinfoFlag.PROV_ATTR_ONLY
NUMERICHOST = GetinfoFlag.NUMERICHOST
SELECTIVE_COMPLETION = BindFlag.SELECTIVE_COMPLETION
DISCARD = RecvFlag.DISCARD
CLAIM = RecvFlag.CLAIM
AUTH_KEY = AvFlag.AUTH_KEY
SYNC_ERR = AvFlag.SYNC_ERR
SYMMETRIC = AvFlag.SYMMETRIC
BARRIER_SET = AvSetFlag.BARRIER_SET
BROADCAST_SET = AvSetFlag.BROADCAST_SET
ALLTOALL_SET = AvSetFlag.ALLTOALL_SET
ALLREDUCE_SET = AvSetFlag.ALLREDUCE_SET
ALLGATHER_SET = AvSetFlag.ALLGATHER_SET
REDUCE_SCATTER_SET = AvSetFlag.REDUCE_SCATTER_SET
REDUCE_SET = AvSetFlag.REDUCE_SET
SCATTER_SET = AvSetFlag.SCATTER_SET
GATHER_SET = AvSetFlag.GATHER_SET
UNIVERSE = AvSetFlag.UNIVERSE
MR_DMABUF = MrFlag.MR_DMABUF
MR_SINGLE_USE = MrFlag.MR_SINGLE_USE
HMEM_HOST_ALLOC = MrFlag.HMEM_HOST_ALLOC
HMEM_DEVICE_ONLY = MrFlag.HMEM_DEVICE_ONLY
FETCH_ATOMIC = AtomicFlag.FETCH_ATOMIC
COMPARE_ATOMIC = AtomicFlag.COMPARE_ATOMIC
CONTEXT2 = Mode.CONTEXT2
LOCAL_MR = Mode.LOCAL_MR
RX_CQ_DATA = Mode.RX_CQ_DATA
ASYNC_IOV = Mode.ASYNC_IOV
MSG_PREFIX = Mode.MSG_PREFIX
CONTEXT = Mode.CONTEXT
REG_MR = RegisterMode.REG_MR
MR_UNSPEC = MrMode.MR_UNSPEC
MR_BASIC = MrMode.MR_BASIC
MR_SCALABLE = MrMode.MR_SCALABLE
MR_LOCAL = MrMode.MR_LOCAL
MR_RAW = MrMode.MR_RAW
MR_VIRT_ADDR = MrMode.MR_VIRT_ADDR
MR_ALLOCATED = MrMode.MR_ALLOCATED
MR_PROV_KEY = MrMode.MR_PROV_KEY
MR_MMU_NOTIFY = MrMode.MR_MMU_NOTIFY
MR_RMA_EVENT = MrMode.MR_RMA_EVENT
MR_ENDPOINT = MrMode.MR_ENDPOINT
MR_HMEM = MrMode.MR_HMEM
MR_COLLECTIVE = MrMode.MR_COLLECTIVE
MR_XPU_DESC = MrMode.MR_XPU_DESC
ORDER_NONE = Order.ORDER_NONE
ORDER_RAR = Order.ORDER_RAR
ORDER_RAW = Order.ORDER_RAW
ORDER_RAS = Order.ORDER_RAS
ORDER_WAR = Order.ORDER_WAR
ORDER_WAW = Order.ORDER_WAW
ORDER_WAS = Order.ORDER_WAS
ORDER_SAR = Order.ORDER_SAR
ORDER_SAW = Order.ORDER_SAW
ORDER_SAS = Order.ORDER_SAS
ORDER_RMA_RAR = Order.ORDER_RMA_RAR
ORDER_RMA_RAW = Order.ORDER_RMA_RAW
ORDER_RMA_WAR = Order.ORDER_RMA_WAR
ORDER_RMA_WAW = Order.ORDER_RMA_WAW
ORDER_ATOMIC_RAR = Order.ORDER_ATOMIC_RAR
ORDER_ATOMIC_RAW = Order.ORDER_ATOMIC_RAW
ORDER_ATOMIC_WAR = Order.ORDER_ATOMIC_WAR
ORDER_ATOMIC_WAW = Order.ORDER_ATOMIC_WAW
ORDER_STRICT = CompOrder.ORDER_STRICT
ORDER_DATA = CompOrder.ORDER_DATA
AV_UNSPEC = AvType.AV_UNSPEC
AV_MAP = AvType.AV_MAP
AV_TABLE = AvType.AV_TABLE
EP_UNSPEC = EpType.EP_UNSPEC
EP_MSG = EpType.EP_MSG
EP_DGRAM = EpType.EP_DGRAM
EP_RDM = EpType.EP_RDM
PROGRESS_UNSPEC = Progress.PROGRESS_UNSPEC
PROGRESS_AUTO = Progress.PROGRESS_AUTO
PROGRESS_MANUAL = Progress.PROGRESS_MANUAL
PROGRESS_CONTROL_UNIFIED = Progress.PROGRESS_CONTROL_UNIFIED
THREAD_UNSPEC = Threading.THREAD_UNSPEC
THREAD_SAFE = Threading.THREAD_SAFE
THREAD_FID = Threading.THREAD_FID
THREAD_DOMAIN = Threading.THREAD_DOMAIN
THREAD_COMPLETION = Threading.THREAD_COMPLETION
THREAD_ENDPOINT = Threading.THREAD_ENDPOINT
RM_UNSPEC = ResourceMgmt.RM_UNSPEC
RM_DISABLED = ResourceMgmt.RM_DISABLED
RM_ENABLED = ResourceMgmt.RM_ENABLED
CQ_FORMAT_UNSPEC = CqFormat.CQ_FORMAT_UNSPEC
CQ_FORMAT_CONTEXT = CqFormat.CQ_FORMAT_CONTEXT
CQ_FORMAT_MSG = CqFormat.CQ_FORMAT_MSG
CQ_FORMAT_DATA = CqFormat.CQ_FORMAT_DATA
CQ_FORMAT_TAGGED = CqFormat.CQ_FORMAT_TAGGED
CQ_COND_NONE = CqWaitCond.CQ_COND_NONE
CQ_COND_THRESHOLD = CqWaitCond.CQ_COND_THRESHOLD
WAIT_NONE = WaitObj.WAIT_NONE
WAIT_UNSPEC = WaitObj.WAIT_UNSPEC
WAIT_SET = WaitObj.WAIT_SET
WAIT_FD = WaitObj.WAIT_FD
WAIT_MUTEX_COND = WaitObj.WAIT_MUTEX_COND
WAIT_YIELD = WaitObj.WAIT_YIELD
WAIT_POLLFD = WaitObj.WAIT_POLLFD
CNTR_EVENTS_COMP = CntrEvents.CNTR_EVENTS_COMP
CNTR_EVENTS_BYTES = CntrEvents.CNTR_EVENTS_BYTES
NOTIFY = EqEvent.NOTIFY
CONNREQ = EqEvent.CONNREQ
CONNECTED = EqEvent.CONNECTED
SHUTDOWN = EqEvent.SHUTDOWN
MR_COMPLETE = EqEvent.MR_COMPLETE
AV_COMPLETE = EqEvent.AV_COMPLETE
JOIN_COMPLETE = EqEvent.JOIN_COMPLETE
HMEM_SYSTEM = HmemIface.HMEM_SYSTEM
HMEM_CUDA = HmemIface.HMEM_CUDA
HMEM_ROCR = HmemIface.HMEM_ROCR
HMEM_ZE = HmemIface.HMEM_ZE
HMEM_NEURON = HmemIface.HMEM_NEURON
HMEM_SYNAPSEAI = HmemIface.HMEM_SYNAPSEAI
HMEM_P2P_ENABLED = HmemP2p.HMEM_P2P_ENABLED
HMEM_P2P_REQUIRED = HmemP2p.HMEM_P2P_REQUIRED
HMEM_P2P_PREFERRED = HmemP2p.HMEM_P2P_PREFERRED
HMEM_P2P_DISABLED = HmemP2p.HMEM_P2P_DISABLED
OP_RECV = OpType.OP_RECV
OP_SEND = OpType.OP_SEND
OP_TRECV = OpType.OP_TRECV
OP_TSEND = OpType.OP_TSEND
OP_READ = OpType.OP_READ
OP_WRITE = OpType.OP_WRITE
OP_ATOMIC = OpType.OP_ATOMIC
OP_FETCH_ATOMIC = OpType.OP_FETCH_ATOMIC
OP_COMPARE_ATOMIC = OpType.OP_COMPARE_ATOMIC
OP_CNTR_SET = OpType.OP_CNTR_SET
OP_CNTR_ADD = OpType.OP_CNTR_ADD
TRIGGER_THRESHOLD = TriggerEvent.TRIGGER_THRESHOLD
TRIGGER_XPU = TriggerEvent.TRIGGER_XPU
BUS_UNSPEC = BusType.BUS_UNSPEC
BUS_UNKNOWN = BusType.BUS_UNKNOWN
BUS_PCI = BusType.BUS_PCI
LINK_UNKNOWN = LinkState.LINK_UNKNOWN
LINK_DOWN = LinkState.LINK_DOWN
LINK_UP = LinkState.LINK_UP
BARRIER = CollectiveOp.BARRIER
BROADCAST = CollectiveOp.BROADCAST
ALLTOALL = CollectiveOp.ALLTOALL
ALLREDUCE = CollectiveOp.ALLREDUCE
ALLGATHER = CollectiveOp.ALLGATHER
REDUCE_SCATTER = CollectiveOp.REDUCE_SCATTER
REDUCE = CollectiveOp.REDUCE
SCATTER = CollectiveOp.SCATTER
GATHER = CollectiveOp.GATHER
PARAM_STRING = ParamType.PARAM_STRING
PARAM_INT = ParamType.PARAM_INT
PARAM_BOOL = ParamType.PARAM_BOOL
PARAM_SIZE_T = ParamType.PARAM_SIZE_T
TAG_BITS = TagFormat.TAG_BITS
TAG_MPI = TagFormat.TAG_MPI
TAG_CCL = TagFormat.TAG_CCL
TAG_MAX_FORMAT = TagFormat.TAG_MAX_FORMAT
FORMAT_UNSPEC = AddrFormat.FORMAT_UNSPEC
SOCKADDR = AddrFormat.SOCKADDR
SOCKADDR_IN = AddrFormat.SOCKADDR_IN
SOCKADDR_IN6 = AddrFormat.SOCKADDR_IN6
SOCKADDR_IB = AddrFormat.SOCKADDR_IB
ADDR_PSMX = AddrFormat.ADDR_PSMX
ADDR_GNI = AddrFormat.ADDR_GNI
ADDR_BGQ = AddrFormat.ADDR_BGQ
ADDR_MLX = AddrFormat.ADDR_MLX
ADDR_STR = AddrFormat.ADDR_STR
ADDR_PSMX2 = AddrFormat.ADDR_PSMX2
ADDR_IB_UD = AddrFormat.ADDR_IB_UD
ADDR_EFA = AddrFormat.ADDR_EFA
ADDR_PSMX3 = AddrFormat.ADDR_PSMX3
ADDR_OPX = AddrFormat.ADDR_OPX
ADDR_CXI = AddrFormat.ADDR_CXI
ADDR_UCX = AddrFormat.ADDR_UCX
SOCKADDR_IP = AddrFormat.SOCKADDR_IP
PROTO_UNSPEC = Protocol.PROTO_UNSPEC
PROTO_RDMA_CM_IB_RC = Protocol.PROTO_RDMA_CM_IB_RC
PROTO_IWARP = Protocol.PROTO_IWARP
PROTO_IB_UD = Protocol.PROTO_IB_UD
PROTO_PSMX = Protocol.PROTO_PSMX
PROTO_UDP = Protocol.PROTO_UDP
PROTO_SOCK_TCP = Protocol.PROTO_SOCK_TCP
PROTO_MXM = Protocol.PROTO_MXM
PROTO_IWARP_RDM = Protocol.PROTO_IWARP_RDM
PROTO_IB_RDM = Protocol.PROTO_IB_RDM
PROTO_GNI = Protocol.PROTO_GNI
PROTO_RXM = Protocol.PROTO_RXM
PROTO_RXD = Protocol.PROTO_RXD
PROTO_MLX = Protocol.PROTO_MLX
PROTO_NETWORKDIRECT = Protocol.PROTO_NETWORKDIRECT
PROTO_PSMX2 = Protocol.PROTO_PSMX2
PROTO_SHM = Protocol.PROTO_SHM
PROTO_MRAIL = Protocol.PROTO_MRAIL
PROTO_RSTREAM = Protocol.PROTO_RSTREAM
PROTO_RDMA_CM_IB_XRC = Protocol.PROTO_RDMA_CM_IB_XRC
PROTO_EFA = Protocol.PROTO_EFA
PROTO_PSMX3 = Protocol.PROTO_PSMX3
PROTO_RXM_TCP = Protocol.PROTO_RXM_TCP
PROTO_OPX = Protocol.PROTO_OPX
PROTO_CXI = Protocol.PROTO_CXI
PROTO_XNET = Protocol.PROTO_XNET
PROTO_COLL = Protocol.PROTO_COLL
PROTO_UCX = Protocol.PROTO_UCX
PROTO_SM2 = Protocol.PROTO_SM2
PROTO_CXI_RNR = Protocol.PROTO_CXI_RNR
PROTO_LPP = Protocol.PROTO_LPP
PROTO_LNX = Protocol.PROTO_LNX
CLASS_UNSPEC = FidClass.CLASS_UNSPEC
CLASS_FABRIC = FidClass.CLASS_FABRIC
CLASS_DOMAIN = FidClass.CLASS_DOMAIN
CLASS_EP = FidClass.CLASS_EP
CLASS_SEP = FidClass.CLASS_SEP
CLASS_RX_CTX = FidClass.CLASS_RX_CTX
CLASS_SRX_CTX = FidClass.CLASS_SRX_CTX
CLASS_TX_CTX = FidClass.CLASS_TX_CTX
CLASS_STX_CTX = FidClass.CLASS_STX_CTX
CLASS_PEP = FidClass.CLASS_PEP
CLASS_INTERFACE = FidClass.CLASS_INTERFACE
CLASS_AV = FidClass.CLASS_AV
CLASS_MR = FidClass.CLASS_MR
CLASS_EQ = FidClass.CLASS_EQ
CLASS_CQ = FidClass.CLASS_CQ
CLASS_CNTR = FidClass.CLASS_CNTR
CLASS_WAIT = FidClass.CLASS_WAIT
CLASS_POLL = FidClass.CLASS_POLL
CLASS_CONNREQ = FidClass.CLASS_CONNREQ
CLASS_MC = FidClass.CLASS_MC
CLASS_NIC = FidClass.CLASS_NIC
CLASS_AV_SET = FidClass.CLASS_AV_SET
CLASS_MR_CACHE = FidClass.CLASS_MR_CACHE
CLASS_MEM_MONITOR = FidClass.CLASS_MEM_MONITOR
CLASS_PEER_CQ = FidClass.CLASS_PEER_CQ
CLASS_PEER_SRX = FidClass.CLASS_PEER_SRX
CLASS_LOG = FidClass.CLASS_LOG
CLASS_PEER_AV = FidClass.CLASS_PEER_AV
CLASS_PEER_AV_SET = FidClass.CLASS_PEER_AV_SET
CLASS_PEER_CNTR = FidClass.CLASS_PEER_CNTR
CLASS_PROFILE = FidClass.CLASS_PROFILE
CLASS_XPU_CTX = FidClass.CLASS_XPU_CTX
TC_UNSPEC = Tc.TC_UNSPEC
TC_DSCP = Tc.TC_DSCP
TC_LABEL = Tc.TC_LABEL
TC_BEST_EFFORT = Tc.TC_BEST_EFFORT
TC_LOW_LATENCY = Tc.TC_LOW_LATENCY
TC_DEDICATED_ACCESS = Tc.TC_DEDICATED_ACCESS
TC_BULK_DATA = Tc.TC_BULK_DATA
TC_SCAVENGER = Tc.TC_SCAVENGER
TC_NETWORK_CTRL = Tc.TC_NETWORK_CTRL
INT8 = Datatype.INT8
UINT8 = Datatype.UINT8
INT16 = Datatype.INT16
UINT16 = Datatype.UINT16
INT32 = Datatype.INT32
UINT32 = Datatype.UINT32
INT64 = Datatype.INT64
UINT64 = Datatype.UINT64
FLOAT = Datatype.FLOAT
DOUBLE = Datatype.DOUBLE
FLOAT_COMPLEX = Datatype.FLOAT_COMPLEX
DOUBLE_COMPLEX = Datatype.DOUBLE_COMPLEX
LONG_DOUBLE = Datatype.LONG_DOUBLE
LONG_DOUBLE_COMPLEX = Datatype.LONG_DOUBLE_COMPLEX
INT128 = Datatype.INT128
UINT128 = Datatype.UINT128
FLOAT16 = Datatype.FLOAT16
BFLOAT16 = Datatype.BFLOAT16
FLOAT8_E4M3 = Datatype.FLOAT8_E4M3
FLOAT8_E5M2 = Datatype.FLOAT8_E5M2
VOID = Datatype.VOID
MIN = Op.MIN
MAX = Op.MAX
SUM = Op.SUM
PROD = Op.PROD
LOR = Op.LOR
LAND = Op.LAND
BOR = Op.BOR
BAND = Op.BAND
LXOR = Op.LXOR
BXOR = Op.BXOR
ATOMIC_READ = Op.ATOMIC_READ
ATOMIC_WRITE = Op.ATOMIC_WRITE
CSWAP = Op.CSWAP
CSWAP_NE = Op.CSWAP_NE
CSWAP_LE = Op.CSWAP_LE
CSWAP_LT = Op.CSWAP_LT
CSWAP_GE = Op.CSWAP_GE
CSWAP_GT = Op.CSWAP_GT
MSWAP = Op.MSWAP
DIFF = Op.DIFF
NOOP = Op.NOOP
SUCCESS = Errno.SUCCESS
EPERM = Errno.EPERM
ENOENT = Errno.ENOENT
EINTR = Errno.EINTR
EIO = Errno.EIO
E2BIG = Errno.E2BIG
EBADF = Errno.EBADF
EAGAIN = Errno.EAGAIN
EWOULDBLOCK = Errno.EWOULDBLOCK
ENOMEM = Errno.ENOMEM
EACCES = Errno.EACCES
EFAULT = Errno.EFAULT
EBUSY = Errno.EBUSY
ENODEV = Errno.ENODEV
EINVAL = Errno.EINVAL
EMFILE = Errno.EMFILE
ENOSPC = Errno.ENOSPC
ENOSYS = Errno.ENOSYS
ENOMSG = Errno.ENOMSG
ENODATA = Errno.ENODATA
EPROTO = Errno.EPROTO
EOVERFLOW = Errno.EOVERFLOW
EMSGSIZE = Errno.EMSGSIZE
ENOPROTOOPT = Errno.ENOPROTOOPT
EOPNOTSUPP = Errno.EOPNOTSUPP
EADDRINUSE = Errno.EADDRINUSE
EADDRNOTAVAIL = Errno.EADDRNOTAVAIL
ENETDOWN = Errno.ENETDOWN
ENETUNREACH = Errno.ENETUNREACH
ECONNABORTED = Errno.ECONNABORTED
ECONNRESET = Errno.ECONNRESET
ENOBUFS = Errno.ENOBUFS
EISCONN = Errno.EISCONN
ENOTCONN = Errno.ENOTCONN
ESHUTDOWN = Errno.ESHUTDOWN
ETIMEDOUT = Errno.ETIMEDOUT
ECONNREFUSED = Errno.ECONNREFUSED
EHOSTDOWN = Errno.EHOSTDOWN
EHOSTUNREACH = Errno.EHOSTUNREACH
EALREADY = Errno.EALREADY
EINPROGRESS = Errno.EINPROGRESS
EREMOTEIO = Errno.EREMOTEIO
ECANCELED = Errno.ECANCELED
EKEYREJECTED = Errno.EKEYREJECTED
EOTHER = Errno.EOTHER
ETOOSMALL = Errno.ETOOSMALL
EOPBADSTATE = Errno.EOPBADSTATE
EAVAIL = Errno.EAVAIL
EBADFLAGS = Errno.EBADFLAGS
ENOEQ = Errno.ENOEQ
EDOMAIN = Errno.EDOMAIN
ENOCQ = Errno.ENOCQ
ECRC = Errno.ECRC
ETRUNC = Errno.ETRUNC
ENOKEY = Errno.ENOKEY
ENOAV = Errno.ENOAV
EOVERRUN = Errno.EOVERRUN
ENORX = Errno.ENORX
ENOMR = Errno.ENOMR
EFIREWALLADDR = Errno.EFIREWALLADDR
GETFIDFLAG = Control.GETFIDFLAG
SETFIDFLAG = Control.SETFIDFLAG
GETOPSFLAG = Control.GETOPSFLAG
SETOPSFLAG = Control.SETOPSFLAG
ALIAS = Control.ALIAS
GETWAIT = Control.GETWAIT
ENABLE = Control.ENABLE
BACKLOG = Control.BACKLOG
GET_RAW_MR = Control.GET_RAW_MR
MAP_RAW_MR = Control.MAP_RAW_MR
UNMAP_KEY = Control.UNMAP_KEY
QUEUE_WORK = Control.QUEUE_WORK
CANCEL_WORK = Control.CANCEL_WORK
FLUSH_WORK = Control.FLUSH_WORK
REFRESH = Control.REFRESH
DUP = Control.DUP
GETWAITOBJ = Control.GETWAITOBJ
GET_VAL = Control.GET_VAL
SET_VAL = Control.SET_VAL
EXPORT_FID = Control.EXPORT_FID
GET_FD = Control.GET_FD
GET_MR_XPU_DESC = Control.GET_MR_XPU_DESC
OPT_ENDPOINT = OptLevel.OPT_ENDPOINT
OPT_MIN_MULTI_RECV = Opt.OPT_MIN_MULTI_RECV
OPT_CM_DATA_SIZE = Opt.OPT_CM_DATA_SIZE
OPT_BUFFERED_MIN = Opt.OPT_BUFFERED_MIN
OPT_BUFFERED_LIMIT = Opt.OPT_BUFFERED_LIMIT
OPT_SEND_BUF_SIZE = Opt.OPT_SEND_BUF_SIZE
OPT_RECV_BUF_SIZE = Opt.OPT_RECV_BUF_SIZE
OPT_TX_SIZE = Opt.OPT_TX_SIZE
OPT_RX_SIZE = Opt.OPT_RX_SIZE
OPT_FI_HMEM_P2P = Opt.OPT_FI_HMEM_P2P
OPT_XPU_TRIGGER = Opt.OPT_XPU_TRIGGER
OPT_CUDA_API_PERMITTED = Opt.OPT_CUDA_API_PERMITTED
OPT_SHARED_MEMORY_PERMITTED = Opt.OPT_SHARED_MEMORY_PERMITTED
OPT_MAX_MSG_SIZE = Opt.OPT_MAX_MSG_SIZE
OPT_MAX_TAGGED_SIZE = Opt.OPT_MAX_TAGGED_SIZE
OPT_MAX_RMA_SIZE = Opt.OPT_MAX_RMA_SIZE
OPT_MAX_ATOMIC_SIZE = Opt.OPT_MAX_ATOMIC_SIZE
OPT_INJECT_MSG_SIZE = Opt.OPT_INJECT_MSG_SIZE
OPT_INJECT_TAGGED_SIZE = Opt.OPT_INJECT_TAGGED_SIZE
OPT_INJECT_RMA_SIZE = Opt.OPT_INJECT_RMA_SIZE
OPT_INJECT_ATOMIC_SIZE = Opt.OPT_INJECT_ATOMIC_SIZE
OPT_FIREWALL_ADDR = Opt.OPT_FIREWALL_ADDR
TYPE_INFO = Type.TYPE_INFO
TYPE_EP_TYPE = Type.TYPE_EP_TYPE
TYPE_CAPS = Type.TYPE_CAPS
TYPE_OP_FLAGS = Type.TYPE_OP_FLAGS
TYPE_ADDR_FORMAT = Type.TYPE_ADDR_FORMAT
TYPE_TX_ATTR = Type.TYPE_TX_ATTR
TYPE_RX_ATTR = Type.TYPE_RX_ATTR
TYPE_EP_ATTR = Type.TYPE_EP_ATTR
TYPE_DOMAIN_ATTR = Type.TYPE_DOMAIN_ATTR
TYPE_FABRIC_ATTR = Type.TYPE_FABRIC_ATTR
TYPE_THREADING = Type.TYPE_THREADING
TYPE_PROGRESS = Type.TYPE_PROGRESS
TYPE_PROTOCOL = Type.TYPE_PROTOCOL
TYPE_MSG_ORDER = Type.TYPE_MSG_ORDER
TYPE_MODE = Type.TYPE_MODE
TYPE_AV_TYPE = Type.TYPE_AV_TYPE
TYPE_ATOMIC_TYPE = Type.TYPE_ATOMIC_TYPE
TYPE_ATOMIC_OP = Type.TYPE_ATOMIC_OP
TYPE_VERSION = Type.TYPE_VERSION
TYPE_EQ_EVENT = Type.TYPE_EQ_EVENT
TYPE_CQ_EVENT_FLAGS = Type.TYPE_CQ_EVENT_FLAGS
TYPE_MR_MODE = Type.TYPE_MR_MODE
TYPE_OP_TYPE = Type.TYPE_OP_TYPE
TYPE_FID = Type.TYPE_FID
TYPE_COLLECTIVE_OP = Type.TYPE_COLLECTIVE_OP
TYPE_HMEM_IFACE = Type.TYPE_HMEM_IFACE
TYPE_CQ_FORMAT = Type.TYPE_CQ_FORMAT
TYPE_LOG_LEVEL = Type.TYPE_LOG_LEVEL
TYPE_LOG_SUBSYS = Type.TYPE_LOG_SUBSYS
TYPE_AV_ATTR = Type.TYPE_AV_ATTR
TYPE_CQ_ATTR = Type.TYPE_CQ_ATTR
TYPE_MR_ATTR = Type.TYPE_MR_ATTR
TYPE_CNTR_ATTR = Type.TYPE_CNTR_ATTR
TYPE_CQ_ERR_ENTRY = Type.TYPE_CQ_ERR_ENTRY
TYPE_CQ_WAIT_COND = Type.TYPE_CQ_WAIT_COND
TYPE_WAIT_OBJ = Type.TYPE_WAIT_OBJ


def VERSION(major: int, minor: int) -> int:
    """Interface version as one number (FI_VERSION)."""
    return major << 16 | minor


def MAJOR(version: int) -> int:
    """Major part of an interface version (FI_MAJOR)."""
    return version >> 16


def MINOR(version: int) -> int:
    """Minor part of an interface version (FI_MINOR)."""
    return version & 0xFFFF


def VERSION_GE(a: int, b: int) -> bool:
    """True where interface version `a` is `b` or later (FI_VERSION_GE)."""
    return a >= b


def VERSION_LT(a: int, b: int) -> bool:
    """True where interface version `a` is before `b` (FI_VERSION_LT)."""
    return a < b


def tc_dscp_set(dscp: int) -> int:
    """Traffic class for a DSCP value (fi_tc_dscp_set)."""
    return dscp | Tc.TC_DSCP


def tc_dscp_get(tclass: int) -> int:
    """DSCP value of a traffic class, 0 where it is a label (fi_tc_dscp_get)."""
    return tclass & 0xFF if tclass & Tc.TC_DSCP else 0


def hmem_ze_device(driver_index: int, device_index: int) -> int:
    """Device identifier of a Level Zero driver and device (fi_hmem_ze_device), for MrAttr.device.

    driver_index, device_index   positions, from 0, in what zeDriverGet and zeDeviceGet return.

    Source: fi_mr(3) fi_hmem_ze_device.
    """
    return driver_index << 16 | device_index
