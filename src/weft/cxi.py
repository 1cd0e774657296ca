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
from .providers.cxi._names import *  # noqa: F403
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
from .providers.cxi.nic import NicAttr as NicAttr
from .providers.cxi.structs import CollAccumulator as CollAccumulator
from .providers.cxi.structs import CollCommKey as CollCommKey
from .providers.cxi.structs import CollFltMinmax as CollFltMinmax
from .providers.cxi.structs import CollIntMinmax as CollIntMinmax
from .providers.cxi.structs import CollMcastKey as CollMcastKey
from .providers.cxi.structs import CollRankKey as CollRankKey
from .providers.cxi.structs import CollUnicastKey as CollUnicastKey

if not TYPE_CHECKING:  # type checkers see what is imported and defined above
    from ._meant import public as _public

    __all__ = list(_public(globals()))
