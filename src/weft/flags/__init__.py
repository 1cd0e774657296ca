"""libfabric's flags and enumerations, with libfabric's own numbers.

Python names are the C names without `FI_`. Every member is also a plain name of this module (and of `weft.fi`):
`FI_REMOTE_READ` is `Flag.REMOTE_READ` and `fi.REMOTE_READ`.

Capabilities, operation flags, bind flags, access flags and completion flags share one 64-bit space, whose high bits
mean different things in different calls (bit 59 is FI_DIRECTED_RECV as a capability and FI_SELECTIVE_COMPLETION when a
completion queue is bound). Each such context has a class of its own (`BindFlag`, `MrFlag` ...). Combining a flag of a
context with a common flag gives the class of the context, so that the value prints with the right names:

    >>> TRANSMIT | SELECTIVE_COMPLETION
    fi.TRANSMIT | fi.SELECTIVE_COMPLETION

All are ints: the extension accepts them, and they can be compared and masked with ints.

Source: <rdma/fabric.h>, <rdma/fi_domain.h>, <rdma/fi_eq.h>, <rdma/fi_errno.h>, libfabric 2.x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _names, constants
from ._names import *  # noqa: F403
from .constants import *  # noqa: F403

if not TYPE_CHECKING:  # mypy does not follow `+=` of another module's __all__ and would hide the names imported above
    __all__ = constants.__all__ + _names.__all__
