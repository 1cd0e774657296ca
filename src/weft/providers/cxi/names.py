"""The numbers of fi_cxi_ext.h: flags, options, names of operations, error numbers. For applications: `weft.cxi`.

A name is the C name without `FI_`, and without `CXI_` if that comes next: FI_CXI_HRP is `HRP`, FI_OPT_CXI_SET_TCLASS
is `OPT_CXI_SET_TCLASS`.

Source: fi_cxi(7) "CXI EXTENSIONS", "OPTIMIZATION"; <rdma/fi_cxi_ext.h>.
"""

from __future__ import annotations

from ...flags import Flag
from ...flags._base import Enum, Flags, spaces


class _ExtFlags(Flags):
    """Flags of fi_cxi_ext.h, which print as `cxi.NAME`."""

    def __repr__(self) -> str:
        own = type(self).__members__
        names = str(self).split("|") if self else []
        said = (name if name.startswith("0x") else f"cxi.{name}" if name in own else f"fi.{name}" for name in names)
        return " | ".join(said) or f"cxi.{type(self).__name__}(0)"


class OpFlag(_ExtFlags):
    """Flags of data transfers and of atomic queries."""

    PCIE_AMO = 1 << 57
    HRP = 1 << 60
    UNRELIABLE = 1 << 61
    CNTR_WB = 1 << 62
    WEAK_FENCE = 1 << 63


class CollectiveFlag(_ExtFlags):
    """Flags of collective operations."""

    PRE_REDUCED = 1 << 57


class CompletionFlag(_ExtFlags):
    """Flags of completions."""

    TRUNC = 1 << 56


class CntrFlag(_ExtFlags):
    """fi_cntr_attr.flags."""

    CNTR_CACHED = 1 << 32


CNTR_EVENTS_BYTES = 1  # fi_cntr_attr.events; FI_CNTR_EVENTS_BYTES
CNTR_SUCCESS_MAX = (1 << 48) - 1
CNTR_FAILURE_MAX = 127
NIC_ATTR_VER = 1  # cxip_nic_attr.version

COUNTER_OPS = "cxi_counter_ops"  # fi_open_ops of a counter
DOM_OPS_1 = "dom_ops_v1"  # fi_open_ops of a domain
DOM_OPS_2 = "dom_ops_v2"
DOM_OPS_3 = "dom_ops_v3"
DOM_OPS_4 = "dom_ops_v4"
DOM_OPS_5 = "dom_ops_v5"
DOM_OPS_6 = "dom_ops_v6"
SET_OPS_HMEM_OVERRIDE = "hmem_override_ops"  # fi_set_ops of a domain


class _ExtEnum(Enum):
    """Enumerations of fi_cxi_ext.h, which print as `cxi.NAME`."""

    def __repr__(self) -> str:
        return f"cxi.{self._name_}"


class Opt(_ExtEnum):
    """Options of endpoints (fi_set_val), commands of domains and NICs (fi_control)."""

    OPT_CXI_SET_TCLASS = -(0xCCC << 16)
    OPT_CXI_SET_MSG_ORDER = OPT_CXI_SET_TCLASS + 1
    OPT_CXI_NIC_REFRESH_ATTR = OPT_CXI_SET_TCLASS + 2
    OPT_CXI_SET_MR_MATCH_EVENTS = OPT_CXI_SET_TCLASS + 3
    OPT_CXI_GET_MR_MATCH_EVENTS = OPT_CXI_SET_TCLASS + 4
    OPT_CXI_SET_OPTIMIZED_MRS = OPT_CXI_SET_TCLASS + 5
    OPT_CXI_SET_OPTIMIZED = OPT_CXI_SET_TCLASS + 5  # as the document spells it
    OPT_CXI_GET_OPTIMIZED_MRS = OPT_CXI_SET_TCLASS + 6
    OPT_CXI_GET_OPTIMIZED = OPT_CXI_SET_TCLASS + 6
    OPT_CXI_SET_PROV_KEY_CACHE = OPT_CXI_SET_TCLASS + 7
    OPT_CXI_GET_PROV_KEY_CACHE = OPT_CXI_SET_TCLASS + 8
    OPT_CXI_SET_RNR_MAX_RETRY_TIME = OPT_CXI_SET_TCLASS + 9
    OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE = OPT_CXI_SET_TCLASS + 10
    OPT_CXI_GET_RX_MATCH_MODE_OVERRIDE = OPT_CXI_SET_TCLASS + 11
    OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE = OPT_CXI_SET_TCLASS + 12
    OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE = OPT_CXI_SET_TCLASS + 13
    OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS = OPT_CXI_SET_TCLASS + 14


class CntrType(_ExtEnum):
    """Numbers of the NIC's counters (cassini_cntr_defs.h) whose events exist in a software NIC."""

    C_CNTR_LPE_SUCCESS_CNTR = 992
    C_CNTR_LPE_PLEC_HITS = 1047
    C_CNTR_IXE_RX_PTL_UNRESTRICTED_PKT = 1175
    C_CNTR_IXE_RX_PTL_RESTRICTED_PKT = 1178
    C_CNTR_IXE_DMAWR_CPU_FTCH_AMO_REQS = 1304
    C_CNTR_IXE_DMAWR_FLUSH_REQS = 1305
    C_CNTR_HNI_HRP_ACK = 1582


CNTR_TYPES_END = 2528  # C1_CNTR_SIZE: the numbers are below, with gaps


class CollectiveOp(_ExtEnum):
    """Operations that only accelerated collectives have.

    The NUM variants of fi_cxi(7) prefer a number to a NaN. The present header has no numbers for them, so they have
    those of the NIC's operations.
    """

    MINMAXLOC = 32
    REPSUM = 33
    OP_LAST = 34
    MINNUM = 0x24
    MAXNUM = 0x25
    MINMAXNUMLOC = 0x26


class CommKeyType(_ExtEnum):
    """cxip_comm_key.keytype."""

    COMM_KEY_NONE = 0
    COMM_KEY_MULTICAST = 1
    COMM_KEY_UNICAST = 2
    COMM_KEY_RANK = 3
    COMM_KEY_MAX = 4


class Errno(_ExtEnum):
    """prov_errno of failed collective operations and joins."""

    ERRNO_RED_FLT_OVERFLOW = 1024
    ERRNO_RED_FIRST = 1024
    ERRNO_RED_FLT_INVALID = 1025
    ERRNO_RED_INT_OVERFLOW = 1026
    ERRNO_RED_CONTR_OVERFLOW = 1027
    ERRNO_RED_OP_MISMATCH = 1028
    ERRNO_RED_MC_FAILURE = 1029
    COLL_RC_RDMA_FAILURE = 1030
    COLL_RC_RDMA_DATA_FAILURE = 1031
    ERRNO_RED_OTHER = 1032
    ERRNO_RED_LAST = 1033
    ERRNO_JOIN_MCAST_INUSE = 2048
    ERRNO_JOIN_FIRST = 2048
    ERRNO_JOIN_HWROOT_INUSE = 2049
    ERRNO_JOIN_MCAST_INVALID = 2050
    ERRNO_JOIN_HWROOT_INVALID = 2051
    ERRNO_JOIN_CURL_FAILED = 2052
    ERRNO_JOIN_CURL_TIMEOUT = 2053
    ERRNO_JOIN_SERVER_ERR = 2054
    ERRNO_JOIN_FAIL_PTE = 2055
    ERRNO_JOIN_OTHER = 2056
    ERRNO_JOIN_FAIL_RDMA = 2057
    ERRNO_JOIN_LAST = 2091


class ReturnCode(_ExtEnum):
    """Return codes of the hardware: prov_errno of failed operations."""

    C_RC_NO_EVENT = 0
    C_RC_OK = 1
    C_RC_UNDELIVERABLE = 2
    C_RC_PT_DISABLED = 3
    C_RC_DROPPED = 4
    C_RC_PERM_VIOLATION = 5
    C_RC_OP_VIOLATION = 6
    C_RC_NO_MATCH = 8
    C_RC_UNCOR = 9
    C_RC_UNCOR_TRNSNT = 10
    C_RC_NO_SPACE = 16
    C_RC_ENTRY_NOT_FOUND = 18
    C_RC_NO_TARGET_CONN = 19
    C_RC_NO_TARGET_MST = 20
    C_RC_NO_TARGET_TRS = 21
    C_RC_SEQUENCE_ERROR = 22
    C_RC_NO_MATCHING_CONN = 23
    C_RC_INVALID_DFA_FORMAT = 24
    C_RC_VNI_NOT_FOUND = 25
    C_RC_PTLTE_NOT_FOUND = 26
    C_RC_PTLTE_SW_MANAGED = 27
    C_RC_SRC_ERROR = 28
    C_RC_MST_CANCELLED = 29
    C_RC_HRP_CONFIG_ERROR = 30
    C_RC_HRP_RSP_ERROR = 31
    C_RC_HRP_RSP_DISCARD = 32
    C_RC_INVALID_AC = 33
    C_RC_PAGE_PERM_ERROR = 34
    C_RC_ATS_ERROR = 35
    C_RC_NO_TRANSLATION = 36
    C_RC_PAGE_REQ_ERROR = 37
    C_RC_PCIE_ERROR_POISONED = 38
    C_RC_PCIE_UNSUCCESS_CMPL = 39
    C_RC_AMO_INVAL_OP_ERROR = 40
    C_RC_AMO_ALIGN_ERROR = 41
    C_RC_AMO_FP_INVALID = 42
    C_RC_AMO_FP_UNDERFLOW = 43
    C_RC_AMO_FP_OVERFLOW = 44
    C_RC_AMO_FP_INEXACT = 45
    C_RC_ILLEGAL_OP = 46
    C_RC_INVALID_ENDPOINT = 47
    C_RC_RESTRICTED_UNICAST = 48
    C_RC_CMD_ALIGN_ERROR = 49
    C_RC_CMD_INVALID_ARG = 50
    C_RC_INVALID_EVENT = 51
    C_RC_ADDR_OUT_OF_RANGE = 52
    C_RC_CONN_CLOSED = 53
    C_RC_CANCELED = 54
    C_RC_NO_MATCHING_TRS = 55
    C_RC_NO_MATCHING_MST = 56
    C_RC_DELAYED = 57
    C_RC_AMO_LENGTH_ERROR = 58
    C_RC_PKTBUF_ERROR = 59
    C_RC_RESOURCE_BUSY = 60
    C_RC_FLUSH_TRANSLATION = 61
    C_RC_TRS_PEND_RSP = 62


spaces(Flag, (OpFlag, CollectiveFlag, CompletionFlag, CntrFlag))
