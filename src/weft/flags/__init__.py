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

from . import _names, bits, constants, enums, errno
from ._names import *  # noqa: F403
from .bits import *  # noqa: F403
from .constants import *  # noqa: F403
from .enums import *  # noqa: F403
from .errno import *  # noqa: F403

__all__: list[str] = []
__all__ += bits.__all__
__all__ += enums.__all__
__all__ += errno.__all__
__all__ += constants.__all__
__all__ += _names.__all__
