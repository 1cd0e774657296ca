"""The CXI provider's err and prov_errno of error entries for each status of the NIC.

prov_errno is a return code of the hardware. Few failures have their own errno; all others have FI_EIO.
Source: fi_cxi(7) "Interrupting CXI Provider CQ Error Event Errno".
"""

from __future__ import annotations

from collections.abc import Callable

from ... import errors
from ..._nic import Status
from ...fi.policy import StatusMap
from ...flags import Errno
from .names import ReturnCode as Rc

_NO_ENDPOINT = (Status.no_endpoint, Status.peer_gone, Status.closed, Status.refused)

STATUSES: StatusMap = {
    Status.ok: (0, Rc.C_RC_OK),
    Status.again: (Errno.EAGAIN, Rc.C_RC_DELAYED),
    # Only receives can be cancelled. The hardware has no event for a canceled receive.
    Status.canceled: (Errno.ECANCELED, Rc.C_RC_NO_EVENT),
    # The NIC exists, but has no endpoint of the VNI (see outcome); below: the NIC cannot be reached.
    **dict.fromkeys(_NO_ENDPOINT, (Errno.ENOTCONN, Rc.C_RC_VNI_NOT_FOUND)),
    Status.unreachable: (Errno.EHOSTUNREACH, Rc.C_RC_UNDELIVERABLE),
    Status.timeout: (Errno.EHOSTUNREACH, Rc.C_RC_UNDELIVERABLE),
    Status.secret: (Errno.EHOSTUNREACH, Rc.C_RC_UNDELIVERABLE),
    Status.version: (Errno.EHOSTUNREACH, Rc.C_RC_UNDELIVERABLE),
    # No region that the operation may use.
    Status.no_key: (Errno.EIO, Rc.C_RC_ENTRY_NOT_FOUND),
    Status.stale_key: (Errno.EIO, Rc.C_RC_ENTRY_NOT_FOUND),
    Status.not_enabled: (Errno.EIO, Rc.C_RC_ENTRY_NOT_FOUND),
    Status.wrong_endpoint: (Errno.EIO, Rc.C_RC_ENTRY_NOT_FOUND),
    Status.access: (Errno.EIO, Rc.C_RC_OP_VIOLATION),
    Status.endpoint_access: (Errno.EIO, Rc.C_RC_OP_VIOLATION),
    Status.bounds: (Errno.EIO, Rc.C_RC_PERM_VIOLATION),
    Status.unauthorized: (Errno.EIO, Rc.C_RC_PERM_VIOLATION),
    # Messages: cut to the length of the receive, no match for a peek, an unknown sender, no receive.
    Status.truncated: (Errno.ETRUNC, Rc.C_RC_OK),
    Status.no_message: (Errno.ENOMSG, Rc.C_RC_NO_MATCH),
    Status.no_source: (Errno.EADDRNOTAVAIL, Rc.C_RC_OK),
    Status.not_ready: (Errno.EIO, Rc.C_RC_ENTRY_NOT_FOUND),
    # Invalid requests, and lack of room or memory.
    Status.misaligned: (Errno.EIO, Rc.C_RC_AMO_ALIGN_ERROR),
    Status.unsupported: (Errno.EIO, Rc.C_RC_ILLEGAL_OP),
    Status.invalid: (Errno.EIO, Rc.C_RC_CMD_INVALID_ARG),
    Status.fault: (Errno.EIO, Rc.C_RC_NO_TRANSLATION),
    Status.page_request: (Errno.EIO, Rc.C_RC_PAGE_REQ_ERROR),
    Status.device: (Errno.EIO, Rc.C_RC_PCIE_UNSUCCESS_CMPL),
    Status.no_memory: (Errno.EIO, Rc.C_RC_NO_SPACE),
    Status.no_entry: (Errno.EIO, Rc.C_RC_NO_SPACE),
    Status.backlog: (Errno.EIO, Rc.C_RC_DROPPED),
    Status.protocol: (Errno.EIO, Rc.C_RC_INVALID_EVENT),
    Status.corrupted: (Errno.EIO, Rc.C_RC_UNCOR_TRNSNT),
}
"""(err, prov_errno) of each status; `outcome` refines some of them."""

_NO_REGION = (Status.no_key, Status.stale_key, Status.not_enabled, Status.wrong_endpoint)


def outcome(
    status: Status, *, optimized: bool, nic_exists: Callable[[], bool], vni_known: Callable[[], bool]
) -> tuple[int, int]:
    """(err, prov_errno) of a failed operation.

    Args:
        optimized: The key is an optimized region's, which has its own portal entries: the portal entry was not found.
        nic_exists: A NIC has the peer's address.
        vni_known: Another endpoint of that NIC has the VNI: the portal entry was not found.
    """
    if status in _NO_ENDPOINT:
        if not nic_exists():
            return int(Errno.EHOSTUNREACH), int(Rc.C_RC_UNDELIVERABLE)
        if vni_known():
            return int(Errno.EIO), int(Rc.C_RC_PTLTE_NOT_FOUND)
    if status in _NO_REGION and optimized:
        return int(Errno.EIO), int(Rc.C_RC_PTLTE_NOT_FOUND)
    return STATUSES[status]


def explain(prov_errno: int, err_data: object) -> str:
    """The NIC's text, or the name of the return code (fi_cq_strerror)."""
    if isinstance(err_data, (bytes, bytearray)) and err_data:
        return bytes(err_data).decode("utf-8", "replace")
    try:
        return Rc(prov_errno).name.removeprefix("C_RC_")
    except ValueError:
        return f"unknown provider error {prov_errno}: {errors.strerror(prov_errno)}"
