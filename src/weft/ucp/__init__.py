"""UCP's memory routines (UCX 1.17) on the software NIC: the second dialect beside `weft.fi`.

Names are UCP's without their prefix, numbers are UCX's own:

    ucp_init            Context             ucp_mem_map         Context.mem_map
    ucp_worker_create   Context.worker_create   ucp_memh_pack   MemHandle.pack
    ucp_ep_create       Worker.ep_create    ucp_ep_rkey_unpack  Endpoint.rkey_unpack
    ucp_put_nbx         Endpoint.put_nbx    UCP_MEM_MAP_FIXED   MEM_MAP_FIXED

    from weft import ucp
    with ucp.Context() as context, context.worker_create() as worker:
        memh = context.mem_map(length=4096, allocate=True)      # in the process that has the memory
        send(worker.address, memh.pack(), memh.address)

        ep = worker.ep_create(address)                          # in its peer
        with ep.rkey_unpack(rkey_buffer) as rkey:
            ep.put_nbx(b"hello", remote_address, rkey)
            ep.flush_nbx().wait()

Unlike today's UCX, protection is enforced: rights, bounds, unmapped memory and foreign keys are checked at the owner's
memory table, and a refused access ends its request with IO_ERROR. Errors are `UcsError`s with a `Status`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .constants import DATATYPE_IOV as DATATYPE_IOV
from .constants import AtomicOp as AtomicOp
from .constants import EpCloseFlag as EpCloseFlag
from .constants import EpParamField as EpParamField
from .constants import ErrHandlingMode as ErrHandlingMode
from .constants import Feature as Feature
from .constants import MemAdvice as MemAdvice
from .constants import MemAdviseParamField as MemAdviseParamField
from .constants import MemAttrField as MemAttrField
from .constants import MemhPackFlag as MemhPackFlag
from .constants import MemhPackParamField as MemhPackParamField
from .constants import MemMapFlag as MemMapFlag
from .constants import MemMapParamField as MemMapParamField
from .constants import MemoryType as MemoryType
from .constants import OpAttr as OpAttr
from .constants import ParamField as ParamField
from .constants import Prot as Prot
from .constants import ThreadMode as ThreadMode
from .constants import WorkerParamField as WorkerParamField
from .constants import dt_make_contig as dt_make_contig
from .context import Context as Context
from .ep import Endpoint as Endpoint
from .memh import MemHandle as MemHandle
from .of_fi import pack_endpoint as pack_endpoint
from .of_fi import pack_region as pack_region
from .packed import PackedBuffer as PackedBuffer
from .packed import memh_buffer_release as memh_buffer_release
from .packed import rkey_buffer_release as rkey_buffer_release
from .params import EpParams as EpParams
from .params import MemAdviseParams as MemAdviseParams
from .params import MemAttr as MemAttr
from .params import MemhBufferReleaseParams as MemhBufferReleaseParams
from .params import MemhPackParams as MemhPackParams
from .params import MemMapParams as MemMapParams
from .params import Params as Params
from .params import RequestParam as RequestParam
from .params import RkeyCompareParams as RkeyCompareParams
from .params import WorkerParams as WorkerParams
from .request import DONE as DONE
from .request import Request as Request
from .rkey import RemoteKey as RemoteKey
from .status import Status as Status
from .status import UcsError as UcsError
from .status import status_string as status_string
from .worker import Worker as Worker

# The members under their C names, for the type checker to see.
PARAM_FIELD_FEATURES = ParamField.FEATURES
PARAM_FIELD_REQUEST_SIZE = ParamField.REQUEST_SIZE
PARAM_FIELD_REQUEST_INIT = ParamField.REQUEST_INIT
PARAM_FIELD_REQUEST_CLEANUP = ParamField.REQUEST_CLEANUP
PARAM_FIELD_TAG_SENDER_MASK = ParamField.TAG_SENDER_MASK
PARAM_FIELD_MT_WORKERS_SHARED = ParamField.MT_WORKERS_SHARED
PARAM_FIELD_ESTIMATED_NUM_EPS = ParamField.ESTIMATED_NUM_EPS
PARAM_FIELD_ESTIMATED_NUM_PPN = ParamField.ESTIMATED_NUM_PPN
PARAM_FIELD_NAME = ParamField.NAME
PARAM_FIELD_NODE_LOCAL_ID = ParamField.NODE_LOCAL_ID
FEATURE_TAG = Feature.TAG
FEATURE_RMA = Feature.RMA
FEATURE_AMO32 = Feature.AMO32
FEATURE_AMO64 = Feature.AMO64
FEATURE_WAKEUP = Feature.WAKEUP
FEATURE_STREAM = Feature.STREAM
FEATURE_AM = Feature.AM
FEATURE_EXPORTED_MEMH = Feature.EXPORTED_MEMH
WORKER_PARAM_FIELD_THREAD_MODE = WorkerParamField.THREAD_MODE
WORKER_PARAM_FIELD_CPU_MASK = WorkerParamField.CPU_MASK
WORKER_PARAM_FIELD_EVENTS = WorkerParamField.EVENTS
WORKER_PARAM_FIELD_USER_DATA = WorkerParamField.USER_DATA
WORKER_PARAM_FIELD_EVENT_FD = WorkerParamField.EVENT_FD
WORKER_PARAM_FIELD_FLAGS = WorkerParamField.FLAGS
WORKER_PARAM_FIELD_NAME = WorkerParamField.NAME
WORKER_PARAM_FIELD_AM_ALIGNMENT = WorkerParamField.AM_ALIGNMENT
WORKER_PARAM_FIELD_CLIENT_ID = WorkerParamField.CLIENT_ID
THREAD_MODE_SINGLE = ThreadMode.SINGLE
THREAD_MODE_SERIALIZED = ThreadMode.SERIALIZED
THREAD_MODE_MULTI = ThreadMode.MULTI
EP_PARAM_FIELD_REMOTE_ADDRESS = EpParamField.REMOTE_ADDRESS
EP_PARAM_FIELD_ERR_HANDLING_MODE = EpParamField.ERR_HANDLING_MODE
EP_PARAM_FIELD_ERR_HANDLER = EpParamField.ERR_HANDLER
EP_PARAM_FIELD_USER_DATA = EpParamField.USER_DATA
EP_PARAM_FIELD_SOCK_ADDR = EpParamField.SOCK_ADDR
EP_PARAM_FIELD_FLAGS = EpParamField.FLAGS
EP_PARAM_FIELD_CONN_REQUEST = EpParamField.CONN_REQUEST
EP_PARAM_FIELD_NAME = EpParamField.NAME
EP_PARAM_FIELD_LOCAL_SOCK_ADDR = EpParamField.LOCAL_SOCK_ADDR
ERR_HANDLING_MODE_NONE = ErrHandlingMode.NONE
ERR_HANDLING_MODE_PEER = ErrHandlingMode.PEER
EP_CLOSE_FLAG_FORCE = EpCloseFlag.FORCE
MEM_MAP_PARAM_FIELD_ADDRESS = MemMapParamField.ADDRESS
MEM_MAP_PARAM_FIELD_LENGTH = MemMapParamField.LENGTH
MEM_MAP_PARAM_FIELD_FLAGS = MemMapParamField.FLAGS
MEM_MAP_PARAM_FIELD_PROT = MemMapParamField.PROT
MEM_MAP_PARAM_FIELD_MEMORY_TYPE = MemMapParamField.MEMORY_TYPE
MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER = MemMapParamField.EXPORTED_MEMH_BUFFER
MEM_MAP_NONBLOCK = MemMapFlag.NONBLOCK
MEM_MAP_ALLOCATE = MemMapFlag.ALLOCATE
MEM_MAP_FIXED = MemMapFlag.FIXED
MEM_MAP_SYMMETRIC_RKEY = MemMapFlag.SYMMETRIC_RKEY
MEM_MAP_PROT_LOCAL_READ = Prot.LOCAL_READ
MEM_MAP_PROT_LOCAL_WRITE = Prot.LOCAL_WRITE
MEM_MAP_PROT_REMOTE_READ = Prot.REMOTE_READ
MEM_MAP_PROT_REMOTE_WRITE = Prot.REMOTE_WRITE
MEM_ADVISE_PARAM_FIELD_ADDRESS = MemAdviseParamField.ADDRESS
MEM_ADVISE_PARAM_FIELD_LENGTH = MemAdviseParamField.LENGTH
MEM_ADVISE_PARAM_FIELD_ADVICE = MemAdviseParamField.ADVICE
MADV_NORMAL = MemAdvice.NORMAL
MADV_WILLNEED = MemAdvice.WILLNEED
MEMH_PACK_PARAM_FIELD_FLAGS = MemhPackParamField.FLAGS
MEMH_PACK_FLAG_EXPORT = MemhPackFlag.EXPORT
MEM_ATTR_FIELD_ADDRESS = MemAttrField.ADDRESS
MEM_ATTR_FIELD_LENGTH = MemAttrField.LENGTH
MEM_ATTR_FIELD_MEM_TYPE = MemAttrField.MEM_TYPE
MEMORY_TYPE_HOST = MemoryType.HOST
MEMORY_TYPE_CUDA = MemoryType.CUDA
MEMORY_TYPE_CUDA_MANAGED = MemoryType.CUDA_MANAGED
MEMORY_TYPE_ROCM = MemoryType.ROCM
MEMORY_TYPE_ROCM_MANAGED = MemoryType.ROCM_MANAGED
MEMORY_TYPE_RDMA = MemoryType.RDMA
MEMORY_TYPE_ZE_HOST = MemoryType.ZE_HOST
MEMORY_TYPE_ZE_DEVICE = MemoryType.ZE_DEVICE
MEMORY_TYPE_ZE_MANAGED = MemoryType.ZE_MANAGED
MEMORY_TYPE_GAUDI = MemoryType.GAUDI
MEMORY_TYPE_UNKNOWN = MemoryType.UNKNOWN
ATOMIC_OP_ADD = AtomicOp.ADD
ATOMIC_OP_SWAP = AtomicOp.SWAP
ATOMIC_OP_CSWAP = AtomicOp.CSWAP
ATOMIC_OP_AND = AtomicOp.AND
ATOMIC_OP_OR = AtomicOp.OR
ATOMIC_OP_XOR = AtomicOp.XOR
OP_ATTR_FIELD_REQUEST = OpAttr.FIELD_REQUEST
OP_ATTR_FIELD_CALLBACK = OpAttr.FIELD_CALLBACK
OP_ATTR_FIELD_USER_DATA = OpAttr.FIELD_USER_DATA
OP_ATTR_FIELD_DATATYPE = OpAttr.FIELD_DATATYPE
OP_ATTR_FIELD_FLAGS = OpAttr.FIELD_FLAGS
OP_ATTR_FIELD_REPLY_BUFFER = OpAttr.FIELD_REPLY_BUFFER
OP_ATTR_FIELD_MEMORY_TYPE = OpAttr.FIELD_MEMORY_TYPE
OP_ATTR_FIELD_RECV_INFO = OpAttr.FIELD_RECV_INFO
OP_ATTR_FIELD_MEMH = OpAttr.FIELD_MEMH
OP_ATTR_FLAG_NO_IMM_CMPL = OpAttr.FLAG_NO_IMM_CMPL
OP_ATTR_FLAG_FAST_CMPL = OpAttr.FLAG_FAST_CMPL
OP_ATTR_FLAG_FORCE_IMM_CMPL = OpAttr.FLAG_FORCE_IMM_CMPL
OP_ATTR_FLAG_MULTI_SEND = OpAttr.FLAG_MULTI_SEND

# Hidden from type checkers, which see what is imported and defined above, and would accept every misspelt name.
if not TYPE_CHECKING:
    from .._meant import public as _public
    from .._meant import unknown as _unknown

    __all__ = list(_public(globals()))

    def __getattr__(name: str) -> object:
        raise _unknown(sys.modules[__name__], name, __all__, ("ucp_", "ucs_"))
