"""The CXI provider's own names: what `<rdma/fi_cxi_ext.h>` has in C, for use beside `weft.fi`.

A name is the C name without `FI_`, and without `CXI_` where that then stands first: FI_CXI_HRP is `cxi.HRP`,
FI_OPT_CXI_SET_TCLASS is `cxi.OPT_CXI_SET_TCLASS`.

    from weft import cxi, fi

    hints = fi.Info(caps=fi.RMA | fi.ATOMIC, fabric_attr=fi.FabricAttr(prov_name="cxi"))
    hints.domain_attr.auth_key = cxi.AuthKey(svc_id=1, vni=1024)
    info = fi.getinfo(hints=hints)[0]

Source: fi_cxi(7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import fi as _fi  # noqa: F401  # first: it makes its providers known
from .providers.cxi.address import Address as Address
from .providers.cxi.auth_key import AuthKey as AuthKey
from .providers.cxi.counter import CntrOps as CntrOps
from .providers.cxi.counter import cntr_add as cntr_add
from .providers.cxi.counter import cntr_adderr as cntr_adderr
from .providers.cxi.counter import cntr_set as cntr_set
from .providers.cxi.counter import cntr_seterr as cntr_seterr
from .providers.cxi.counter import cntr_wb_read as cntr_wb_read
from .providers.cxi.counter import cntr_wb_readerr as cntr_wb_readerr
from .providers.cxi.counter import gen_cntr_success as gen_cntr_success
from .providers.cxi.ext import HmemOverride as HmemOverride
from .providers.cxi.names import CNTR_EVENTS_BYTES as CNTR_EVENTS_BYTES
from .providers.cxi.names import CNTR_FAILURE_MAX as CNTR_FAILURE_MAX
from .providers.cxi.names import CNTR_SUCCESS_MAX as CNTR_SUCCESS_MAX
from .providers.cxi.names import COUNTER_OPS as COUNTER_OPS
from .providers.cxi.names import DOM_OPS_1 as DOM_OPS_1
from .providers.cxi.names import DOM_OPS_2 as DOM_OPS_2
from .providers.cxi.names import DOM_OPS_3 as DOM_OPS_3
from .providers.cxi.names import DOM_OPS_4 as DOM_OPS_4
from .providers.cxi.names import DOM_OPS_5 as DOM_OPS_5
from .providers.cxi.names import DOM_OPS_6 as DOM_OPS_6
from .providers.cxi.names import NIC_ATTR_VER as NIC_ATTR_VER
from .providers.cxi.names import SET_OPS_HMEM_OVERRIDE as SET_OPS_HMEM_OVERRIDE
from .providers.cxi.names import CntrFlag as CntrFlag
from .providers.cxi.names import CntrType as CntrType
from .providers.cxi.names import CollectiveFlag as CollectiveFlag
from .providers.cxi.names import CollectiveOp as CollectiveOp
from .providers.cxi.names import CommKeyType as CommKeyType
from .providers.cxi.names import CompletionFlag as CompletionFlag
from .providers.cxi.names import Errno as Errno
from .providers.cxi.names import OpFlag as OpFlag
from .providers.cxi.names import Opt as Opt
from .providers.cxi.names import ReturnCode as ReturnCode
from .providers.cxi.nic import NicAttr as NicAttr
from .providers.cxi.structs import CollAccumulator as CollAccumulator
from .providers.cxi.structs import CollCommKey as CollCommKey
from .providers.cxi.structs import CollFltMinmax as CollFltMinmax
from .providers.cxi.structs import CollIntMinmax as CollIntMinmax
from .providers.cxi.structs import CollMcastKey as CollMcastKey
from .providers.cxi.structs import CollRankKey as CollRankKey
from .providers.cxi.structs import CollUnicastKey as CollUnicastKey

PCIE_AMO = OpFlag.PCIE_AMO
HRP = OpFlag.HRP
UNRELIABLE = OpFlag.UNRELIABLE
CNTR_WB = OpFlag.CNTR_WB
WEAK_FENCE = OpFlag.WEAK_FENCE

PRE_REDUCED = CollectiveFlag.PRE_REDUCED

TRUNC = CompletionFlag.TRUNC

CNTR_CACHED = CntrFlag.CNTR_CACHED

C_CNTR_LPE_SUCCESS_CNTR = CntrType.C_CNTR_LPE_SUCCESS_CNTR
C_CNTR_LPE_PLEC_HITS = CntrType.C_CNTR_LPE_PLEC_HITS
C_CNTR_IXE_RX_PTL_UNRESTRICTED_PKT = CntrType.C_CNTR_IXE_RX_PTL_UNRESTRICTED_PKT
C_CNTR_IXE_RX_PTL_RESTRICTED_PKT = CntrType.C_CNTR_IXE_RX_PTL_RESTRICTED_PKT
C_CNTR_IXE_DMAWR_CPU_FTCH_AMO_REQS = CntrType.C_CNTR_IXE_DMAWR_CPU_FTCH_AMO_REQS
C_CNTR_IXE_DMAWR_FLUSH_REQS = CntrType.C_CNTR_IXE_DMAWR_FLUSH_REQS
C_CNTR_HNI_HRP_ACK = CntrType.C_CNTR_HNI_HRP_ACK

OPT_CXI_SET_TCLASS = Opt.OPT_CXI_SET_TCLASS
OPT_CXI_SET_MSG_ORDER = Opt.OPT_CXI_SET_MSG_ORDER
OPT_CXI_NIC_REFRESH_ATTR = Opt.OPT_CXI_NIC_REFRESH_ATTR
OPT_CXI_SET_MR_MATCH_EVENTS = Opt.OPT_CXI_SET_MR_MATCH_EVENTS
OPT_CXI_GET_MR_MATCH_EVENTS = Opt.OPT_CXI_GET_MR_MATCH_EVENTS
OPT_CXI_SET_OPTIMIZED_MRS = Opt.OPT_CXI_SET_OPTIMIZED_MRS
OPT_CXI_SET_OPTIMIZED = Opt.OPT_CXI_SET_OPTIMIZED
OPT_CXI_GET_OPTIMIZED_MRS = Opt.OPT_CXI_GET_OPTIMIZED_MRS
OPT_CXI_GET_OPTIMIZED = Opt.OPT_CXI_GET_OPTIMIZED
OPT_CXI_SET_PROV_KEY_CACHE = Opt.OPT_CXI_SET_PROV_KEY_CACHE
OPT_CXI_GET_PROV_KEY_CACHE = Opt.OPT_CXI_GET_PROV_KEY_CACHE
OPT_CXI_SET_RNR_MAX_RETRY_TIME = Opt.OPT_CXI_SET_RNR_MAX_RETRY_TIME
OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE = Opt.OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE
OPT_CXI_GET_RX_MATCH_MODE_OVERRIDE = Opt.OPT_CXI_GET_RX_MATCH_MODE_OVERRIDE
OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE = Opt.OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE
OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE = Opt.OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE
OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS = Opt.OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS

MINMAXLOC = CollectiveOp.MINMAXLOC
REPSUM = CollectiveOp.REPSUM
OP_LAST = CollectiveOp.OP_LAST
MINNUM = CollectiveOp.MINNUM
MAXNUM = CollectiveOp.MAXNUM
MINMAXNUMLOC = CollectiveOp.MINMAXNUMLOC

COMM_KEY_NONE = CommKeyType.COMM_KEY_NONE
COMM_KEY_MULTICAST = CommKeyType.COMM_KEY_MULTICAST
COMM_KEY_UNICAST = CommKeyType.COMM_KEY_UNICAST
COMM_KEY_RANK = CommKeyType.COMM_KEY_RANK
COMM_KEY_MAX = CommKeyType.COMM_KEY_MAX

ERRNO_RED_FLT_OVERFLOW = Errno.ERRNO_RED_FLT_OVERFLOW
ERRNO_RED_FIRST = Errno.ERRNO_RED_FIRST
ERRNO_RED_FLT_INVALID = Errno.ERRNO_RED_FLT_INVALID
ERRNO_RED_INT_OVERFLOW = Errno.ERRNO_RED_INT_OVERFLOW
ERRNO_RED_CONTR_OVERFLOW = Errno.ERRNO_RED_CONTR_OVERFLOW
ERRNO_RED_OP_MISMATCH = Errno.ERRNO_RED_OP_MISMATCH
ERRNO_RED_MC_FAILURE = Errno.ERRNO_RED_MC_FAILURE
COLL_RC_RDMA_FAILURE = Errno.COLL_RC_RDMA_FAILURE
COLL_RC_RDMA_DATA_FAILURE = Errno.COLL_RC_RDMA_DATA_FAILURE
ERRNO_RED_OTHER = Errno.ERRNO_RED_OTHER
ERRNO_RED_LAST = Errno.ERRNO_RED_LAST
ERRNO_JOIN_MCAST_INUSE = Errno.ERRNO_JOIN_MCAST_INUSE
ERRNO_JOIN_FIRST = Errno.ERRNO_JOIN_FIRST
ERRNO_JOIN_HWROOT_INUSE = Errno.ERRNO_JOIN_HWROOT_INUSE
ERRNO_JOIN_MCAST_INVALID = Errno.ERRNO_JOIN_MCAST_INVALID
ERRNO_JOIN_HWROOT_INVALID = Errno.ERRNO_JOIN_HWROOT_INVALID
ERRNO_JOIN_CURL_FAILED = Errno.ERRNO_JOIN_CURL_FAILED
ERRNO_JOIN_CURL_TIMEOUT = Errno.ERRNO_JOIN_CURL_TIMEOUT
ERRNO_JOIN_SERVER_ERR = Errno.ERRNO_JOIN_SERVER_ERR
ERRNO_JOIN_FAIL_PTE = Errno.ERRNO_JOIN_FAIL_PTE
ERRNO_JOIN_OTHER = Errno.ERRNO_JOIN_OTHER
ERRNO_JOIN_FAIL_RDMA = Errno.ERRNO_JOIN_FAIL_RDMA
ERRNO_JOIN_LAST = Errno.ERRNO_JOIN_LAST

C_RC_NO_EVENT = ReturnCode.C_RC_NO_EVENT
C_RC_OK = ReturnCode.C_RC_OK
C_RC_UNDELIVERABLE = ReturnCode.C_RC_UNDELIVERABLE
C_RC_PT_DISABLED = ReturnCode.C_RC_PT_DISABLED
C_RC_DROPPED = ReturnCode.C_RC_DROPPED
C_RC_PERM_VIOLATION = ReturnCode.C_RC_PERM_VIOLATION
C_RC_OP_VIOLATION = ReturnCode.C_RC_OP_VIOLATION
C_RC_NO_MATCH = ReturnCode.C_RC_NO_MATCH
C_RC_UNCOR = ReturnCode.C_RC_UNCOR
C_RC_UNCOR_TRNSNT = ReturnCode.C_RC_UNCOR_TRNSNT
C_RC_NO_SPACE = ReturnCode.C_RC_NO_SPACE
C_RC_ENTRY_NOT_FOUND = ReturnCode.C_RC_ENTRY_NOT_FOUND
C_RC_NO_TARGET_CONN = ReturnCode.C_RC_NO_TARGET_CONN
C_RC_NO_TARGET_MST = ReturnCode.C_RC_NO_TARGET_MST
C_RC_NO_TARGET_TRS = ReturnCode.C_RC_NO_TARGET_TRS
C_RC_SEQUENCE_ERROR = ReturnCode.C_RC_SEQUENCE_ERROR
C_RC_NO_MATCHING_CONN = ReturnCode.C_RC_NO_MATCHING_CONN
C_RC_INVALID_DFA_FORMAT = ReturnCode.C_RC_INVALID_DFA_FORMAT
C_RC_VNI_NOT_FOUND = ReturnCode.C_RC_VNI_NOT_FOUND
C_RC_PTLTE_NOT_FOUND = ReturnCode.C_RC_PTLTE_NOT_FOUND
C_RC_PTLTE_SW_MANAGED = ReturnCode.C_RC_PTLTE_SW_MANAGED
C_RC_SRC_ERROR = ReturnCode.C_RC_SRC_ERROR
C_RC_MST_CANCELLED = ReturnCode.C_RC_MST_CANCELLED
C_RC_HRP_CONFIG_ERROR = ReturnCode.C_RC_HRP_CONFIG_ERROR
C_RC_HRP_RSP_ERROR = ReturnCode.C_RC_HRP_RSP_ERROR
C_RC_HRP_RSP_DISCARD = ReturnCode.C_RC_HRP_RSP_DISCARD
C_RC_INVALID_AC = ReturnCode.C_RC_INVALID_AC
C_RC_PAGE_PERM_ERROR = ReturnCode.C_RC_PAGE_PERM_ERROR
C_RC_ATS_ERROR = ReturnCode.C_RC_ATS_ERROR
C_RC_NO_TRANSLATION = ReturnCode.C_RC_NO_TRANSLATION
C_RC_PAGE_REQ_ERROR = ReturnCode.C_RC_PAGE_REQ_ERROR
C_RC_PCIE_ERROR_POISONED = ReturnCode.C_RC_PCIE_ERROR_POISONED
C_RC_PCIE_UNSUCCESS_CMPL = ReturnCode.C_RC_PCIE_UNSUCCESS_CMPL
C_RC_AMO_INVAL_OP_ERROR = ReturnCode.C_RC_AMO_INVAL_OP_ERROR
C_RC_AMO_ALIGN_ERROR = ReturnCode.C_RC_AMO_ALIGN_ERROR
C_RC_AMO_FP_INVALID = ReturnCode.C_RC_AMO_FP_INVALID
C_RC_AMO_FP_UNDERFLOW = ReturnCode.C_RC_AMO_FP_UNDERFLOW
C_RC_AMO_FP_OVERFLOW = ReturnCode.C_RC_AMO_FP_OVERFLOW
C_RC_AMO_FP_INEXACT = ReturnCode.C_RC_AMO_FP_INEXACT
C_RC_ILLEGAL_OP = ReturnCode.C_RC_ILLEGAL_OP
C_RC_INVALID_ENDPOINT = ReturnCode.C_RC_INVALID_ENDPOINT
C_RC_RESTRICTED_UNICAST = ReturnCode.C_RC_RESTRICTED_UNICAST
C_RC_CMD_ALIGN_ERROR = ReturnCode.C_RC_CMD_ALIGN_ERROR
C_RC_CMD_INVALID_ARG = ReturnCode.C_RC_CMD_INVALID_ARG
C_RC_INVALID_EVENT = ReturnCode.C_RC_INVALID_EVENT
C_RC_ADDR_OUT_OF_RANGE = ReturnCode.C_RC_ADDR_OUT_OF_RANGE
C_RC_CONN_CLOSED = ReturnCode.C_RC_CONN_CLOSED
C_RC_CANCELED = ReturnCode.C_RC_CANCELED
C_RC_NO_MATCHING_TRS = ReturnCode.C_RC_NO_MATCHING_TRS
C_RC_NO_MATCHING_MST = ReturnCode.C_RC_NO_MATCHING_MST
C_RC_DELAYED = ReturnCode.C_RC_DELAYED
C_RC_AMO_LENGTH_ERROR = ReturnCode.C_RC_AMO_LENGTH_ERROR
C_RC_PKTBUF_ERROR = ReturnCode.C_RC_PKTBUF_ERROR
C_RC_RESOURCE_BUSY = ReturnCode.C_RC_RESOURCE_BUSY
C_RC_FLUSH_TRANSLATION = ReturnCode.C_RC_FLUSH_TRANSLATION
C_RC_TRS_PEND_RSP = ReturnCode.C_RC_TRS_PEND_RSP

if not TYPE_CHECKING:  # type checkers see what is imported and defined above
    from ._meant import public as _public

    __all__ = list(_public(globals()))
