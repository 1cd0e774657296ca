"""Texts of errors (why a call on a remote array failed), and of paths (how Weft reaches the elements, and why)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ... import _process, errors, fi
from ..._nic import Status
from ..names.ticket import process_is_stopped, process_start
from ..names.users import stranger
from .show import named, short
from .sources import named_now

if TYPE_CHECKING:
    from ..names.ticket import Ticket
    from .attached import Attached
    from .view import View

_GONE = frozenset({Status.no_endpoint, Status.peer_gone, Status.refused, Status.closed})
_REVOKED = frozenset({Status.no_key, Status.stale_key})


def explain(a: Attached, entry: fi.CqErrEntry, what: str) -> errors.FabricError:
    """The exception for a failed operation, in terms of nodes and arrays."""
    ticket = a.ticket
    status = entry.status
    detail = entry.err_data.decode("utf-8", "replace") if entry.err_data else errors.strerror(entry.err)
    if a._node is not None and a._node._closed:
        text = f"{what}: the node was closed while the operation was under way"
        return errors.BadState(text)
    if status is Status.timeout:
        late = unanswered(a, what, None)
        late.completion = entry
        return late
    across = ticket.place and not ticket.here
    if _owner_ended(ticket):
        failed: errors.FabricError = errors.ConnectionReset(_gone(ticket, what))
    elif (status in _GONE or entry.err == fi.ECONNRESET) and not (across and entry.err == fi.EACCES):
        start = 0 if across else process_start(ticket.pid)
        # A dying process hangs up before the kernel lists it as dead; a process that closes its node says goodbye
        # first.
        if status is Status.closed or (status is not Status.peer_gone and start and start == ticket.start):
            text = (
                f"{what}: the owner of {named(ticket)}, process {ticket.pid}, has closed its node\n"
                "  try: attach again after the owner has shared the array again"
            )
            if ticket.kept:
                text = _forgotten(ticket, what)
            if status is not Status.closed and (why := stranger(ticket.pid)):
                text = f"{what}: process {ticket.pid}, the owner of {named(ticket)}, lives, but is another user\n{why}"
        elif ticket.kept:
            text = keeper_gone(ticket, what)
        else:
            text = _gone(ticket, what, f" at {ticket.place}" if across else "")
        failed = errors.ConnectionReset(text)
    elif status in _REVOKED:
        failed = _revoked(ticket, what)
    elif status is Status.access:
        failed = errors.AccessDenied(
            f"{what}: {named(ticket)} is shared with access {ticket.access!r}\n"
            f"  try: node.share(array, access='rw') in its owner, process {ticket.pid}"
        )
    else:
        failed = errors.make(entry.err, f"{what} of {named(ticket)} of process {ticket.pid}: {detail}")
    failed.completion = entry
    failed.op = what
    return failed


def _owner_ended(ticket: Ticket) -> bool:
    """True if the owner of an array over libfabric has ended: libfabric's providers notice the end late, or never, and
    report it by different errors.
    """
    return bool(ticket.fabric) and ticket.here and process_start(ticket.pid) != ticket.start


def _gone(ticket: Ticket, what: str, where: str = "") -> str:
    return (
        f"{what}: the owner of {named(ticket)}, process {ticket.pid}{where}, is gone\n"
        "  rule: an array lives as long as the process that shares it\n"
        "  try: attach again after a new owner has shared it"
    )


def keeper_gone(ticket: Ticket, what: str) -> str:
    """The text for a kept array whose keeper has ended."""
    return (
        f"{what}: the keeper, process {ticket.pid}, which kept {named(ticket)}, is gone\n"
        "  rule: the keeper ends when its last array is forgotten; if it is killed, its arrays are lost\n"
        "  try: attach again after a process has shared it again"
    )


def _revoked(ticket: Ticket, what: str) -> errors.KeyRejected:
    now = named_now(ticket)
    if now is not None and (now.address, now.key) == (ticket.address, ticket.key):
        return errors.Replaced(
            f"{what}: {named(ticket)} was another array when the call began; t.reattach() was called meanwhile\n"
            "  try: the call again, which uses the new array"
        )
    if now is not None:
        changed = "" if now.shape == ticket.shape else f", of shape {now.shape}"
        if now.dtype != ticket.dtype:
            changed += f", of dtype {now.numpy_dtype}"
        return errors.Replaced(
            f"{what}: {named(ticket)} is another array now{changed}\n"
            "  try: t.reattach(), which goes on with the new array"
        )
    if ticket.kept:
        return errors.KeyRejected(_forgotten(ticket, what))
    if not ticket.name or not ticket.here:  # no name leads from here to a successor
        return errors.KeyRejected(
            f"{what}: process {ticket.pid} has closed the share of {named(ticket)}, or replaced it\n"
            "  try: t.reattach(ticket), with the ticket that the owner has now (shared.ticket)"
        )
    return errors.KeyRejected(
        f"{what}: process {ticket.pid} has closed the share of {named(ticket)}\n"
        "  try: attach again after the owner has shared the array again"
    )


def _forgotten(ticket: Ticket, what: str) -> str:
    return (
        f"{what}: {named(ticket)} was kept, and is forgotten (weft.forget, weft rm)\n"
        "  try: attach again after a process has shared it again"
    )


def unanswered(a: Attached, what: str, limit_s: float | None) -> errors.FabricError:
    """The exception for an operation that needed the owner's NIC, which did not answer.

    Args:
        limit_s: The node's timeout; None if the NIC's own limit ended the operation.
    """
    ticket = a.ticket
    if _owner_ended(ticket):
        return errors.ConnectionReset(_gone(ticket, what))
    stopped = ticket.here and process_is_stopped(ticket.pid)
    why = "is stopped (Ctrl-Z, a debugger)" if stopped else "is too busy, or makes no progress"
    path = path_of(a)[0]
    rule = (
        "the first operation needs an answer of the owner's NIC"
        if path == "unknown"
        else f"on this path ({path}) the owner's NIC executes every access"
    )
    limit = "" if limit_s is None else f" within {limit_s:g} s"
    return errors.TimedOut(
        f"{what}: process {ticket.pid}, the owner of {named(ticket)}, did not answer{limit}\n"
        f"  rule: {rule}; it seems that the owner {why}\n"
        "  try: let the owner continue"
        + ("\n" if limit_s is None else ", or weft.open(timeout=...) with more seconds (None: no limit)\n")
        + "  note: the operation may still complete later"
    )


def timed_out(a: View, index: Any, value: Any, timeout: float | None, found: Any) -> errors.TimedOut:
    """The exception for `wait_until`."""
    wanted = "the condition" if callable(value) else short(value)
    return errors.TimedOut(
        f"wait_until: {named(a.ticket)}[{short(index)}] is {short(found)} after {float(timeout or 0):g} s, not {wanted}"
    )


def path_of(a: View) -> tuple[str, str]:
    """`RemoteArray.path` and `RemoteArray.why`."""
    ticket = a.ticket
    if ticket.key is None:
        return "memory", "the array has no elements"
    if ticket.fabric:
        return ticket.fabric, "its owner shares it through this provider of libfabric"
    if ticket.here and ticket.pid == os.getpid() and ticket.start == process_start(ticket.pid):
        return "memory", "the array is in this process"
    peer = _peer_of(a)
    if peer is None:
        return "unknown", "not connected to its owner"
    if peer["path"] == "tcp":
        return "tcp", f"its owner is on another host, at {ticket.place}"
    if peer["path"] == "frames":
        return "engine", "WEFT_ISOLATION=strict in one of the two processes: memory is not mapped"
    if ticket.direct:
        return "load/store", "its memory was allocated by Weft and is mapped here"
    if peer["path"] == "direct+cma":
        return (
            "process_vm",
            "the owner's array was not allocated by Weft (weft.empty() makes arrays that are mapped)",
        )
    return (
        "engine",
        f"the owner's array was not allocated by Weft, and {peer['cma_reason'] or 'process_vm is off'}",
    )


def _peer_of(a: View) -> dict[str, object] | None:
    """What the NIC knows of the owner's process; None: it is not connected."""
    nic, node = _process.nic_if_open(), getattr(a, "_node", None)
    if nic is None or a._peer < 0 or node is None or node._closed or node._made_in != _process.generation:
        return None
    found = nic.peer_of(node._home.ep, a._peer)
    return None if found is None or found["dead"] else found
