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

from ._names import *  # noqa: F403
from .constants import DATATYPE_IOV as DATATYPE_IOV
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

# Hidden from type checkers, which see what is imported and defined above, and would accept every misspelt name.
if not TYPE_CHECKING:
    from .._meant import public as _public
    from .._meant import unknown as _unknown

    __all__ = list(_public(globals()))

    def __getattr__(name: str) -> object:
        raise _unknown(sys.modules[__name__], name, __all__, ("ucp_", "ucs_"))
