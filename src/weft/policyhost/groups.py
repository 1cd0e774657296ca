"""Answers about collective groups: sets of addresses, joins, and the multicast addresses of groups.

A client has its vectors and sets itself. A join carries the addresses of the members; the answer is what the NIC joins.
Member 0 of a group with a multicast address has a lease, on which it asks for the address and gives it back. Either may
take seconds, so they run in a thread, and the client asks for the outcome until it is there.
"""

from __future__ import annotations

import contextvars
import struct
import threading
from typing import Any

from .. import errors
from ..fi.av_set import AvSetAttr, named
from ..fi.collective import CollectiveAttr
from ..fi.joining import GroupShape, Joiner, Multicast, shape
from ..fi.policy import GroupPlan
from ..fi.rules import Rule
from .records import Record, Value

_Answer = dict[str, Value]

_MEMBER = struct.Struct("<IIHHI")
"""nic, pid, vni, whether the fi_addr is in use, and what members of one host have in common."""


def query(domain: Any, asked: Record) -> _Answer:
    """fi_query_collective."""
    attr = CollectiveAttr(asked.number("op"), asked.number("datatype")) if "op" in asked else None
    found = domain.query_collective(asked.number("collective"), attr, asked.number("flags"))
    return {
        "count": found.datatype_attr.count,
        "size": found.datatype_attr.size,
        "max_members": found.max_members,
        "mode": found.mode,
    }


def av_set(av: Any, asked: Record) -> _Answer:
    """fi_av_set: the numbers that the attributes name, and the rules of the set."""
    size, key = asked.number("comm_key_size"), asked.bytes_of("comm_key")
    numbers = {name: asked.number(name) for name in ("count", "start_addr", "end_addr", "stride", "flags")}
    found = named(av, AvSetAttr(comm_key_size=size, comm_key=key, **numbers))
    refusals, first = av.domain.policy.refusals, found.first
    return {
        "comm_key": found.comm_key,
        **({} if first is None else first._asdict()),
        "fixed": int(av.domain.policy.vectors.set_fixed),
        "member_errno": int(refusals.errno(Rule.AV_SET_MEMBER)),
        "vector_errno": int(refusals.errno(Rule.AV_SET_VECTOR)),
        "joined_errno": int(refusals.errno(Rule.AV_SET_JOINED)),
    }


def join(ep: Any, asked: Record) -> tuple[_Answer, Lease | None]:
    """fi_join_collective: what the NIC joins, and the lease of member 0."""
    op = "ep.join_collective"
    members = list(_MEMBER.iter_unpack(asked.bytes_of("members") or b""))
    names, unknown = list(range(len(members))), next((at for at, one in enumerate(members) if not one[3]), None)
    if unknown is not None:
        names[unknown] = asked.number("unknown")
    in_order = iter(members)

    def find(name: int) -> tuple[int, int, int]:
        nic, pid, vni, known, _ = next(in_order)
        if not known:
            raise errors.InvalidArgument(f"fi_addr {name} is not in the address vector")
        return nic, pid, vni

    nic, pid, vni = (asked.number(f"own.{name}") for name in ("nic", "pid", "vni"))
    made = shape(
        ep,
        op,
        asked.number("coll_addr"),
        asked.number("flags"),
        Joiner(
            enabled=bool(asked.number("enabled")),
            has_eq=bool(asked.number("has_eq")),
            own=(nic, pid, vni),
            other_vector="the set is of another vector than the endpoint" if asked.number("other_vector") else "",
            comm_key=asked.bytes_of("comm_key"),
            names=names,
            find=find,
            is_own=lambda one: one[:2] == (nic, pid),
            hosts=lambda _: [host for *_, host in members],
        ),
    )
    return _answer(made), Lease(made) if made.asks else None


def _answer(made: GroupShape) -> _Answer:
    plan = made.plan
    return {
        "member": made.mine,
        "one_endpoint": int(plan.member is not None),
        "key": made.key,
        "join_radix": plan.join_radix,
        "radix": made.radix,
        "block": made.block,
        "asks": int(made.asks),
        "failed_err": plan.failed_err,
        "other_errno": plan.other_errno,
        "meaning": [{"number": number, "text": text} for number, text in plan.texts.items()],
    }


class Lease:
    """The multicast address of a group of which a client is member 0."""

    def __init__(self, made: GroupShape) -> None:
        self._multicast = Multicast(made.plan, made.members)
        self._plan: GroupPlan = made.plan
        self._context = contextvars.copy_context()  # the client's: the manager's job is the process that asks
        self._lock = threading.Lock()  # guards _begun, _found
        self._begun = False
        self._found: _Answer | None = None

    def start(self, what: str) -> None:
        """Begin "ask" or "leave"; outcome() tells the end."""
        task = {"ask": self._ask, "leave": self._leave}.get(what)
        if task is None:
            raise errors.NoSys(f"the policy helper has no task {what!r} of a group")
        with self._lock:
            self._begun, self._found = True, None
        threading.Thread(target=self._context.copy().run, args=(task,), daemon=True).start()

    def have(self, multicast: int) -> None:
        """The client has this address, of an earlier helper perhaps."""
        self._multicast.have(multicast)

    def outcome(self) -> _Answer:
        """What the task that was begun last has found; empty: it is still under way; idle: none was begun here."""
        with self._lock:
            return (self._found or {}) if self._begun else {"idle": 1}

    def close(self) -> None:
        """The client has ended."""
        self._context.copy().run(self._multicast.give_back, True)

    def _ask(self) -> None:
        def supply(multicast: int, root: int, error: int) -> None:
            text = str(self._multicast.refusal or "") if error else None
            self._tell({"done": 1, "multicast": multicast, "root": root, "error": error, "text_of_error": text})

        self._multicast.ask(supply)

    def _leave(self) -> None:
        error, text = 0, None
        try:
            self._multicast.give_back(quiet=False)
        except errors.FabricError as reason:
            error, text = int(getattr(reason, "prov_errno", 0)) or self._plan.other_errno, reason.message
        self._tell({"done": 1, "error": error, "text_of_error": text})

    def _tell(self, found: _Answer) -> None:
        with self._lock:
            self._found = found


def run(lease: Lease, asked: Record) -> _Answer:
    """Begin a task of a group's lease, or tell the outcome."""
    what = asked.text("task")
    if what == "have":
        lease.have(asked.number("multicast"))
        return {}
    if what is not None:
        lease.start(what)
    return lease.outcome()
