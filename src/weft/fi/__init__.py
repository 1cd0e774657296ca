"""libfabric's objects and calls in Python, on the software NIC.

Names are the C names without `fi_` and `FI_`: `fi_mr_reg` is `Domain.mr_reg`, `FI_REMOTE_READ` is `fi.REMOTE_READ`.

    from weft import fi

    info = fi.getinfo(hints=fi.Info(caps=fi.RMA | fi.ATOMIC))[0]
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        cq, av = domain.cq_open(), domain.av_open()
        ep = domain.endpoint(info)
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.enable()
        ...
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .. import _process as _process  # registers our errors and the buffer functions with the NIC
from .. import errors, flags
from .._nic import Status as Status
from ..errors import *  # noqa: F403
from ..flags import *  # noqa: F403
from .attrs import DomainAttr as DomainAttr
from .attrs import EpAttr as EpAttr
from .attrs import FabricAttr as FabricAttr
from .attrs import Info as Info
from .attrs import NicAttr as NicAttr
from .attrs import RxAttr as RxAttr
from .attrs import TxAttr as TxAttr
from .attrs import allocinfo as allocinfo
from .attrs import dupinfo as dupinfo
from .info import getinfo as getinfo
from .info import version as version
from .offer import Candidate as Candidate
from .offer import Explanation as Explanation
from .offer import Rejection as Rejection

# Weft's own providers register themselves when they are imported: the general provider here, last because it uses the
# names imported above; the other at its first use, because few programs use both.
from . import registry as _registry  # isort: skip
from ..providers import general as _general  # isort: skip

_registry.register_later("cxi", "weft.providers.cxi.provider")
_registry.register_family("ofi", "weft.providers.ofi.provider")

# Each of these names is loaded with its module when it is first used, because getinfo needs none of them.
_ON_USE = {
    "_tostr": "tostr",
    "aio": "AsyncEndpoint",
    "atomic": "AtomicAttr Ioc MsgAtomic RmaIoc datatype_of datatype_size dtype_of",
    "av": "AddressVector",
    "av_set": "AvSet AvSetAttr",
    "cm": "ConnectionRequest PassiveEndpoint",
    "cntr": "Counter",
    "collective": "CollectiveAttr",
    "group": "CollectiveGroup GroupStatistics",
    "cq": "CompletionQueue CqDataEntry CqEntry CqErrEntry CqMsgEntry CqTaggedEntry",
    "domain": "Domain",
    "endpoint": "Endpoint",
    "ep_statistics": "EndpointStatistics MessageStatistics",
    "ep_alias": "EndpointAlias",
    "eq": "EqCmEntry EqEntry EqErrEntry EventQueue",
    "fabric": "Fabric trywait",
    "mr": "MemoryRegion",
    "mr_attr": "MrAttr MrAuthKey MrDmabuf",
    "mr_cache": "CachedMapping CacheStatistics MemMonitor MrCache MrCacheEntry open",
    "msg": "Msg",
    "rma": "MsgRma RmaIov",
    "tagged": "MsgTagged",
    "trigger": "DeferredWork MsgCompare MsgFetch OpAtomic OpCntr OpCompareAtomic OpFetchAtomic OpMsg OpRma "
    "OpTagged TriggerThreshold TriggeredContext",
}
_MODULES = {name: module for module, names in _ON_USE.items() for name in names.split()}

if TYPE_CHECKING:  # what __getattr__ imports at run time; `make flags` writes the list
    import numpy as np

    from ._on_use import *  # noqa: F403

    RMA_DESC: np.dtype[np.void]

# Hidden from type checkers. mypy does not follow `+=` of another module's __all__ and would hide every name of `flags`;
# and if it saw __getattr__, it would accept every misspelt name. Without both it sees what is imported above.
if not TYPE_CHECKING:
    __all__ = [
        "RMA_DESC",
        "Candidate",
        "DomainAttr",
        "EpAttr",
        "Explanation",
        "FabricAttr",
        "Info",
        "NicAttr",
        "Rejection",
        "RxAttr",
        "Status",
        "TxAttr",
        "allocinfo",
        "dupinfo",
        "getinfo",
        "version",
    ]
    __all__ += list(_MODULES)
    __all__ += errors.__all__
    __all__ += flags.__all__

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
            globals()[name] = found
            return found
        # NumPy is imported when something needs it, not with this package.
        if name == "RMA_DESC":
            from .rma import rma_desc

            return rma_desc()
        from .._meant import unknown

        raise unknown(sys.modules[__name__], name, __all__, ("fi_",))
