"""Completion queues (fi_cq).

The extension implements `read readfrom sread sreadfrom signal`, which run no Python code of Weft; `readerr` asks the
provider. All return the tuples below, one class for each format.

Source: fi_cq(3).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _nic, errors
from .._nic import Status
from ..flags import ADDR_NOTAVAIL, CqFormat, CqWaitCond, Errno, Flag, WaitObj
from . import _args, _handle
from ._control import WAITING, Controlled
from .attrs import CqAttr
from .auth_key import keys_of_vector
from .policy import Address, Failure
from .policy_rules import CounterRules, QueueRules
from .rules import Refusals, Rule

if TYPE_CHECKING:
    from .domain import Domain

CQ_SIZE_MAX = 1 << 24  # 64 B an entry: 1 GiB


class CqEntry(NamedTuple):
    """A completion in FI_CQ_FORMAT_CONTEXT: the context of the operation."""

    op_context: Any


class CqMsgEntry(NamedTuple):
    """A completion in FI_CQ_FORMAT_MSG.

    Attributes:
        op_context: The context of the operation.
        flags: Completion flags: `fi.RMA | fi.WRITE` ...
        len: Bytes that the operation moved, or that a receive took; 0 if the operation failed.
    """

    op_context: Any
    flags: int
    len: int

    def __repr__(self) -> str:
        return _entry_repr(self)


class CqDataEntry(NamedTuple):
    """A completion in FI_CQ_FORMAT_DATA: as CqMsgEntry, with

    Attributes:
        buf: Address of a received message, or 0: some providers give the address of multi-receives only.
        data: Remote CQ data, where flags has `fi.REMOTE_CQ_DATA`.
    """

    op_context: Any
    flags: int
    len: int
    buf: int
    data: int

    def __repr__(self) -> str:
        return _entry_repr(self)


class CqTaggedEntry(NamedTuple):
    """A completion in FI_CQ_FORMAT_TAGGED: as CqDataEntry, with the tag of a tagged receive."""

    op_context: Any
    flags: int
    len: int
    buf: int
    data: int
    tag: int

    def __repr__(self) -> str:
        return _entry_repr(self)


class CqErrEntry(NamedTuple):
    """An operation that failed (struct fi_cq_err_entry). Made by `CompletionQueue.readerr`.

    Attributes:
        op_context: As in CqDataEntry.
        flags: As in CqDataEntry.
        data: As in CqDataEntry.
        len: Of a receive, the bytes that were stored; otherwise 0, as are buf and tag.
        err: Error number: `fi.EKEYREJECTED`, `fi.EACCES` ...
        prov_errno: The provider's reason; `CompletionQueue.strerror` puts it in words.
        err_data: Bytes of a text: the request, and what the NIC found. Of EADDRNOTAVAIL: the sender's address.
        olen: Bytes that were not moved; of a receive that was too short, the bytes that did not fit.
        src_addr: fi_addr of the peer, or `fi.ADDR_NOTAVAIL`.
        status: `fi.Status`: how the NIC ended the operation, the same under every provider. Not in struct
            fi_cq_err_entry.

    Source: fi_cq(3) "fi_cq_readerr".
    """

    op_context: Any
    flags: int
    len: int
    buf: int
    data: int
    tag: int
    olen: int
    err: int
    prov_errno: int
    err_data: bytes
    src_addr: int
    status: Status = Status.ok

    def __repr__(self) -> str:
        return _entry_repr(self)

    def exception(self) -> errors.FabricError:
        """This entry as an exception to raise; its `.completion` is the entry."""
        if self.status is Status.no_source:
            text = f"the sender {self.err_data!r} of a message is not in the address vector: insert it"
        elif self.err_data:
            text = self.err_data.decode("utf-8", "replace")
        else:
            text = errors.strerror(self.err)
        failed = errors.make(self.err, text)
        failed.completion = self
        failed.peer = None if self.src_addr == ADDR_NOTAVAIL else self.src_addr
        return failed


def _entry_repr(entry: Any) -> str:
    shown = []
    for name, value in zip(entry._fields, entry, strict=True):
        if name == "flags":
            text = repr(Flag(value))
        elif name == "err":
            try:
                text = repr(Errno(value))
            except ValueError:
                text = str(value)
        elif name == "status":
            text = value.name
        elif name in ("buf", "src_addr"):
            text = hex(value)
        else:
            text = repr(value)
        shown.append(f"{name}={text}")
    return f"{type(entry).__name__}({', '.join(shown)})"


_nic.set_entry_types(CqEntry, CqMsgEntry, CqDataEntry, CqTaggedEntry, CqErrEntry)


class CompletionQueue(Controlled, _handle.LifeInDomain, _nic.CompletionQueueCore):
    """A queue of completions (struct fid_cq). Made by `Domain.cq_open`.

    `read(count)` returns a list of at most count completions, `readfrom(count)` a list of pairs (completion, fi_addr of
    the source); an empty queue gives an empty list. `sread(count, cond, timeout)` waits for a completion, for timeout
    seconds (None: no limit). `readerr()` returns the error entry at the head, a CqErrEntry. `signal()` wakes one
    waiting sread. The descriptor `fd` is readable when the queue is not empty (wait_obj=fi.WAIT_FD); otherwise it is
    -1.

    A full queue accepts no further entries of peers' writes with data (REMOTE_CQ_DATA). With resource management
    (RM_ENABLED, as the provider offers it) such writes wait at their initiators, in order, until the queue has been
    read half empty; the initiators' transmit queues fill, and their calls raise Again. Entries of writes already under
    way are kept beyond `size`, so `pending()` may exceed `size`. With RM_DISABLED the queue overruns: its entries can
    be read, after that every read raises Overrun.

    `read` and `sread` raise Available while an error entry is at the head (read the entry with `readerr`); `sread`
    raises Again when the time is over, and Canceled when `signal` woke the call.
    Thread safety: any thread. Source: fi_cq(3).
    """

    _called = "cq"
    _commands = WAITING

    def __init__(self, domain: Domain, attr: CqAttr, context: Any) -> None:
        rules, refuse = domain.policy.queues, domain.policy.refusals.refuse
        format, flags, wait_cond = attr.format, attr.flags, attr.wait_cond
        if format not in CqFormat.__members__.values():
            raise refuse(Rule.CQ_FORMAT, f"cq_open: format {format!r} is not one of FI_CQ_FORMAT_*")
        self.format = CqFormat(format) if format else rules.format_unspec
        if self.format not in rules.formats:
            known = ", ".join(str(kind) for kind in CqFormat if kind in rules.formats)
            raise refuse(Rule.CQ_FORMAT_UNSUPPORTED, f"cq_open: no {self.format} here; there are {known}")
        self.wait_obj = waitable("cq_open", attr.wait_obj, rules, domain.policy.refusals)
        if flags & ~rules.flags:
            raise refuse(
                Rule.CQ_OPEN_FLAGS,
                f"cq_open: flags {Flag(flags)!s}; known: {Flag(rules.flags)!s}, AFFINITY as a hint",
            )
        if flags & Flag.PEER:
            raise refuse(Rule.CQ_PEER, "cq_open: PEER: queues of another provider come in a later version of Weft")
        if rules.wait_conds and wait_cond not in CqWaitCond.__members__.values():
            raise refuse(Rule.CQ_WAIT_COND, f"cq_open: wait_cond {wait_cond!r} is not one of FI_CQ_COND_*")
        self.domain = domain
        self.context = context
        self.wait_cond = CqWaitCond(wait_cond) if rules.wait_conds else CqWaitCond.CQ_COND_NONE
        entries = min(max(int(attr.size or rules.size), rules.size_least), CQ_SIZE_MAX)
        self._entries = entries
        entries = max(entries * rules.fill_percent // 100, 1)
        domain.policy.take_queue()
        try:
            super().__init__(
                domain,
                _nic.QueueConfig(
                    size=entries,
                    format=int(self.format),
                    wait_obj=int(self.wait_obj),
                    huge=rules.huge_pages,
                    ack_batch=rules.ack_batch,
                    reserves=rules.reserves,
                ),
                attr.size,
                flags,
                int(attr.signaling_vector),
                int(self.wait_cond),
            )
        except BaseException:
            domain.policy.give_queue()
            raise
        self._opened(3, domain)

    @property
    def capacity(self) -> int:
        """Number of entries. Fewer can be used if the provider treats a queue as saturated before the queue is full."""
        return self._entries

    def readerr(self, flags: int = 0) -> Any:
        """Take the error entry at the head (fi_cq_readerr): a CqErrEntry, whose err_data is the text of the error.

        Under FI_SOURCE_ERR a message of a sender that is in no vector is such an entry (EADDRNOTAVAIL), and err_data is
        the sender's address, to be inserted. On a domain opened with FI_AV_AUTH_KEY src_addr is then the fi_addr of the
        authorization key with the sender's VNI, unless the queue's endpoints number the key differently.

        Raises Again if there is none. Source: fi_cq(3) fi_cq_readerr.
        """
        peers: list[Address | None] = []

        def outcome(status: Status, key: int, peer: Address | None, own: tuple[int, int, int]) -> tuple[int, int]:
            peers.append(peer)
            err, prov_errno = self.domain.policy.outcome(Failure(status, key, peer, own))
            return int(err), int(prov_errno)

        entry = self.readerr_core(flags, outcome)
        if entry.status is Status.no_source and peers[0] is not None:
            codec = self.domain.provider.addresses
            found = codec.emit(codec.public(peers[0]))
            err_data = found.encode() if isinstance(found, str) else bytes(found)
            return entry._replace(err_data=err_data, src_addr=self._key_of(peers[0], entry.src_addr))
        return self.domain.policy.described(self, entry)

    def _key_of(self, sender: Address, otherwise: int) -> int:
        """fi_addr of the authorization key with a sender's VNI, in the vectors of the endpoints that use this queue."""
        if not keys_of_vector(self.domain.info):
            return otherwise
        vectors = {ep._av for ep in _handle.live(self._children) if getattr(ep, "_av", None) is not None}
        found = {vector._key_with(sender[2]) for vector in vectors} - {None}
        return int(found.pop()) if len(found) == 1 else otherwise

    def strerror(self, prov_errno: int, err_data: object = None) -> str:
        """The text of a provider error number of `readerr` (fi_cq_strerror).

        Args:
            prov_errno: `CqErrEntry.prov_errno`.
            err_data: `CqErrEntry.err_data`; if given, its text is returned.

        Source: fi_cq(3) fi_cq_strerror.
        """
        _args.integer("cq.strerror", prov_errno=prov_errno)
        return self.domain.policy.explain_error(self, operator.index(prov_errno), err_data)

    def _release(self) -> None:
        _nic.CompletionQueueCore.close(self)
        self.domain.policy.give_queue()

    def __repr__(self) -> str:
        kind = self.format.name.removeprefix("CQ_FORMAT_")
        if self._closed:
            return f"<CompletionQueue {kind} closed>"
        if _handle.elsewhere(self):
            return f"<CompletionQueue {kind} of the parent process>"
        return f"<CompletionQueue {kind}, {self.pending()}/{self.capacity} unread>"


class PollingQueue(CompletionQueue):
    """A queue opened with FI_WAIT_NONE: the waiting calls may not be made on it, fi_cq(3)."""

    def sread(self, count: int = 64, cond: object = None, timeout: float | None = None) -> list[Any]:
        """Raises InvalidArgument."""
        raise self._no_wait("sread")

    def sreadfrom(self, count: int = 64, cond: object = None, timeout: float | None = None) -> list[tuple[Any, int]]:
        """Raises InvalidArgument."""
        raise self._no_wait("sreadfrom")

    def signal(self) -> None:
        """Raises InvalidArgument, or NoSys where the provider wakes no readers."""
        if not self.domain.policy.queues.signals:
            raise _no_signal(self)
        raise self._no_wait("signal")

    def _no_wait(self, op: str) -> errors.FabricError:
        return self.domain.policy.refusals.refuse(
            Rule.WAIT_NONE,
            f"cq.{op}: the queue was opened with WAIT_NONE\n  try: read(), or open it with WAIT_UNSPEC or WAIT_FD",
            op=op,
        )


class UnsignaledQueue(CompletionQueue):
    """A queue of a provider that wakes no readers."""

    def signal(self) -> None:
        """Raises NoSys."""
        raise _no_signal(self)


def _no_signal(cq: CompletionQueue) -> errors.FabricError:
    _handle.check(cq, "cq.signal")
    return cq.domain.policy.refusals.refuse(
        Rule.CQ_SIGNAL,
        f"cq.signal: {cq.domain.provider.name} does not wake readers\n  try: sread with a timeout",
        op="signal",
    )


_WAITS = {
    WaitObj.WAIT_UNSPEC: " (sread, wait)",
    WaitObj.WAIT_FD: " (select, asyncio)",
    WaitObj.WAIT_NONE: " (read only)",
}


def waitable(op: str, wait_obj: int, rules: QueueRules | CounterRules, refusals: Refusals) -> WaitObj:
    """A supported wait object; raises an error that lists the supported ones."""
    refuse = refusals.refuse
    try:
        kind = WaitObj(wait_obj)
    except ValueError:
        raise refuse(Rule.WAIT_OBJ, f"{op}: wait_obj {wait_obj!r} is not one of FI_WAIT_*") from None
    if kind not in rules.wait_objs:
        known = ", ".join(f"{one}{_WAITS.get(one, '')}" for one in WaitObj if one in rules.wait_objs)
        raise refuse(Rule.WAIT_OBJ_UNSUPPORTED, f"{op}: no {kind} here\n  known: {known}")
    if kind == WaitObj.WAIT_UNSPEC:
        return rules.wait_unspec
    return rules.wait_yield if kind == WaitObj.WAIT_YIELD else kind
