"""What a join makes of a manager's answer: the numbers of fi_cxi_ext.h, from statuses and coded messages."""

from __future__ import annotations

import re

from .. import errors

# Numbers of fi_cxi_ext.h: FI_CXI_ERRNO_JOIN_*.
MCAST_INUSE, HWROOT_INUSE, MCAST_INVALID, HWROOT_INVALID = 2048, 2049, 2050, 2051
CURL_FAILED, SERVER_ERR = 2052, 2054

CREATED = (200, 201)
MCAST_MAX = 8191
"""The largest multicast address."""

# Codes in messages of status 507.
JOB_LIMIT, NO_ADDRESS, NO_ROOT = "01", "02", "03"
_CODES = {JOB_LIMIT: MCAST_INUSE, NO_ADDRESS: MCAST_INUSE, NO_ROOT: HWROOT_INUSE}
_CODE = re.compile(r"([0-9]{2}):")


class ManagerError(errors.ConnectionRefused):
    """The Fabric Manager made no group, or did not delete one (FI_ECONNREFUSED, as the join that asked).

    Args:
        prov_errno: Number of the cause, cxi.ERRNO_JOIN_MCAST_INUSE (2048) to ERRNO_JOIN_SERVER_ERR (2054).
        status: HTTP status of the answer; 0: there was none.
    """

    def __init__(self, message: str = "", *, prov_errno: int = SERVER_ERR, status: int = 0) -> None:
        super().__init__(message, op="fabric manager")
        self.prov_errno = prov_errno
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self.message, self.prov_errno, self.status)


def _rebuilt(message: str, prov_errno: int, status: int) -> ManagerError:
    return ManagerError(message, prov_errno=prov_errno, status=status)


def create_error(status: int, message: str) -> int:
    """The number for an answer to "create" that is no success."""
    if status == 400:
        return HWROOT_INUSE
    if status == 507 and (found := _CODE.search(message)):
        return _CODES.get(found[1], SERVER_ERR)
    return SERVER_ERR
