"""Answers to the calls by which a C program reaches beyond libfabric's interface: fi_control with a provider's own
command, fi_open_ops, fi_set_ops, fi_get_val, fi_set_val, and struct fi_cxi_dom_ops.

Each answer is that of the same call of `weft.fi`. The library reads a C program's arguments, which are pointers, by the
types that fi_cxi(7) gives them, and keeps what its own objects need: an answer has those values besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import rules
from .records import Record, Value

_Answer = dict[str, Value]


def own_control(held: Any, asked: Record) -> _Answer:
    """fi_control: the result of a command, and what the library's domain has from the domain's options."""
    return {**_result(held.control(_signed(asked.number("command")), _argument(asked))), **_followed(held)}


def get_val(held: Any, asked: Record) -> _Answer:
    """fi_get_val."""
    return _result(held.get_val(_signed(asked.number("name"))))


def set_val(held: Any, asked: Record) -> _Answer:
    """fi_set_val: the handle with the value."""
    held.set_val(_signed(asked.number("name")), _argument(asked))
    retry_us = getattr(held.policy, "rnr_retry_us", None) or 0  # None: the protocol has no time of retries
    return {**rules.handle(held), "retry_ns": retry_us * 1000}


def getopt(held: Any, asked: Record) -> _Answer:
    """fi_getopt of an option that the library does not know by itself."""
    return _result(held.getopt(_signed(asked.number("level")), _signed(asked.number("name"))))


def setopt(held: Any, asked: Record) -> _Answer:
    """fi_setopt of an option that the library does not know by itself."""
    held.setopt(_signed(asked.number("level")), _signed(asked.number("name")), _argument(asked))
    return {}


def open_ops(held: Any, asked: Record) -> _Answer:
    """fi_open_ops: whether there are such calls; the library has the table."""
    ops = held.open_ops(asked.text("name") or "", asked.number("flags"))
    return {"entry_alone": int(getattr(ops, "entry_alone", False))}


class _Copies(NamedTuple):
    """struct fi_hmem_override_ops of a C program; None: the function is missing."""

    copy_from_hmem_iov: Callable[[], None] | None
    copy_to_hmem_iov: Callable[[], None] | None


def set_ops(held: Any, asked: Record) -> _Answer:
    """fi_set_ops: the table that the program gives, as far as it is filled."""
    given = [_there if asked.number(name) else None for name in ("copy_from", "copy_to")]
    held.set_ops(asked.text("name") or "", _Copies(*given), asked.number("flags"))
    return {}


def _there() -> None:
    """Stands for a function of the C program."""


def dom_ops(held: Any, asked: Record) -> _Answer:
    """A call of struct fi_cxi_dom_ops on a domain."""
    return _DOM_OPS[asked.text("call") or ""](held, held.policy.ops, asked)


def work_waits(held: Any, asked: Record) -> _Answer:
    """Deferred work of the program waits for entries of its service."""
    tell = getattr(held.policy, "work_waits", None)
    return {} if tell is None else {"text": tell(asked.number("waiting"))}


def work_full(held: Any, asked: Record) -> _Answer:
    """No entry is free for deferred work that may not wait: an answer without values says that there are some now."""
    held.policy.work_full()
    return {}


def _cntr_read(held: Any, ops: Any, asked: Record) -> _Answer:
    value, time_ns = ops.cntr_read(held, asked.number("cntr"))
    return {"value": value, "time_ns": time_ns}


def _topology(held: Any, ops: Any, asked: Record) -> _Answer:
    return dict(ops.topology(held)._asdict())


def _switch(name: str) -> Callable[[Any, Any, Record], _Answer]:
    def switch(held: Any, ops: Any, asked: Record) -> _Answer:
        getattr(ops, name)(held, bool(asked.number("enable")))
        return _followed(held)

    return switch


_DOM_OPS: Mapping[str, Callable[[Any, Any, Record], _Answer]] = {
    "cntr_read": _cntr_read,
    "topology": _topology,
    "get_dwq_depth": lambda held, ops, asked: {"value": ops.get_dwq_depth(held)},
    **{one: _switch(one) for one in ("enable_hybrid_mr_desc", "enable_mr_match_events", "enable_optimized_mrs")},
}


def _argument(asked: Record) -> Any:
    """The value behind the program's pointer; None: the pointer is NULL, or the library does not know its type."""
    if "text" in asked:
        return asked.text("text")
    return asked.number("value") if "value" in asked else None


def _result(found: Any) -> _Answer:
    if isinstance(found, str):
        return {"text": found}
    return {} if found is None else {"value": int(found)}


def _followed(held: Any) -> _Answer:
    """The form of a domain's keys, which follows its options."""
    lent = getattr(getattr(held, "policy", None), "lent", None)
    return {} if lent is None else {"key_base": lent().get("key_base", 0)}


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
