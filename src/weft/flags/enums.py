"""Enumerations, each with libfabric's numbers (error numbers are in errno.py)."""

from __future__ import annotations

from ._base import Enum


class AvType(Enum):
    """Address vector type."""

    AV_UNSPEC = 0
    AV_MAP = 1
    AV_TABLE = 2


class EpType(Enum):
    """Endpoint type."""

    EP_UNSPEC = 0
    EP_MSG = 1
    EP_DGRAM = 2
    EP_RDM = 3


class Progress(Enum):
    """Progress model."""

    PROGRESS_UNSPEC = 0
    PROGRESS_AUTO = 1
    PROGRESS_MANUAL = 2
    PROGRESS_CONTROL_UNIFIED = 3


class Threading(Enum):
    """Threading model."""

    THREAD_UNSPEC = 0
    THREAD_SAFE = 1
    THREAD_FID = 2
    THREAD_DOMAIN = 3
    THREAD_COMPLETION = 4
    THREAD_ENDPOINT = 5


class ResourceMgmt(Enum):
    """Resource management."""

    RM_UNSPEC = 0
    RM_DISABLED = 1
    RM_ENABLED = 2


class CqFormat(Enum):
    """Completion queue entry format."""

    CQ_FORMAT_UNSPEC = 0
    CQ_FORMAT_CONTEXT = 1
    CQ_FORMAT_MSG = 2
    CQ_FORMAT_DATA = 3
    CQ_FORMAT_TAGGED = 4


class CqWaitCond(Enum):
    """Wait condition of a completion queue."""

    CQ_COND_NONE = 0
    CQ_COND_THRESHOLD = 1


class WaitObj(Enum):
    """Wait object."""

    WAIT_NONE = 0
    WAIT_UNSPEC = 1
    WAIT_SET = 2
    WAIT_FD = 3
    WAIT_MUTEX_COND = 4
    WAIT_YIELD = 5
    WAIT_POLLFD = 6


class CntrEvents(Enum):
    """What a counter counts."""

    CNTR_EVENTS_COMP = 0
    CNTR_EVENTS_BYTES = 1


class EqEvent(Enum):
    """Events of an event queue."""

    NOTIFY = 0
    CONNREQ = 1
    CONNECTED = 2
    SHUTDOWN = 3
    MR_COMPLETE = 4
    AV_COMPLETE = 5
    JOIN_COMPLETE = 6


class HmemIface(Enum):
    """Device memory interface."""

    HMEM_SYSTEM = 0
    HMEM_CUDA = 1
    HMEM_ROCR = 2
    HMEM_ZE = 3
    HMEM_NEURON = 4
    HMEM_SYNAPSEAI = 5


class HmemP2p(Enum):
    """Values of the endpoint option FI_OPT_FI_HMEM_P2P."""

    HMEM_P2P_ENABLED = 0
    HMEM_P2P_REQUIRED = 1
    HMEM_P2P_PREFERRED = 2
    HMEM_P2P_DISABLED = 3


class OpType(Enum):
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


class TriggerEvent(Enum):
    """Trigger of a triggered operation."""

    TRIGGER_THRESHOLD = 0
    TRIGGER_XPU = 1


class BusType(Enum):
    """Bus of a NIC."""

    BUS_UNSPEC = 0
    BUS_UNKNOWN = 0
    BUS_PCI = 1


class LinkState(Enum):
    """Link state of a NIC."""

    LINK_UNKNOWN = 0
    LINK_DOWN = 1
    LINK_UP = 2


class CollectiveOp(Enum):
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


class ParamType(Enum):
    """Type of a parameter."""

    PARAM_STRING = 0
    PARAM_INT = 1
    PARAM_BOOL = 2
    PARAM_SIZE_T = 3


class TagFormat(Enum):
    """Tag format."""

    TAG_BITS = 0
    TAG_MPI = 1
    TAG_CCL = 2
    TAG_MAX_FORMAT = 65536


class AddrFormat(Enum):
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


class Protocol(Enum):
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


class FidClass(Enum):
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


class Tc(Enum):
    """Traffic class."""

    TC_UNSPEC = 0x0
    TC_DSCP = 0x100
    TC_BEST_EFFORT = 0x200
    TC_LABEL = 0x200  # where the labels begin
    TC_LOW_LATENCY = 0x201
    TC_DEDICATED_ACCESS = 0x202
    TC_BULK_DATA = 0x203
    TC_SCAVENGER = 0x204
    TC_NETWORK_CTRL = 0x205


class Datatype(Enum):
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


class Op(Enum):
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


class Control(Enum):
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


class OptLevel(Enum):
    """Level of an endpoint option."""

    OPT_ENDPOINT = 0


class Opt(Enum):
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


class Type(Enum):
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
