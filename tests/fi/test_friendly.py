"""Every public call of weft.fi, used wrongly: the error is of a documented class and its text helps.

A text helps when it names what was given or what was found, and is more than a few words. Which calls there are is read
from the classes themselves, so that a new one is tried as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import Node, opened

from weft import fi

KEY = 5
DOCUMENTED = (fi.FabricError, TypeError, ValueError, OverflowError, BufferError)
# Methods of the binding's base classes that the Python class wraps under another name: not for applications.
INNER = {
    "atomic_limit", "bind_av", "bind_cm", "bind_cntr", "bind_cq", "bind_ep", "close_core", "cm_look", "cm_step",
    "cm_take", "disable_core", "enable_at", "enable_core", "enable_mapped", "insert_address", "send_cm", "try_at",
    "lookup_address", "map_key", "missing_page", "readerr_core",
    "regions", "remove_address", "set_mr_quick", "staged_with", "unmap_handle", "unstage",
    "get_mmio", "set_match_mode", "set_min_multi_recv", "set_news", "set_retry_time", "set_user_id_of", "set_wb_buffer",
    "user_id_of", "write_back_at",
}  # fmt: skip
# These calls always answer: closing twice, statistics, texts, and the calls that report events.
ANSWER_ALWAYS = {"close", "statistics", "message_statistics", "strerror", "straddr", "post", "post_error"}
ANSWER_ALWAYS_OF = {("AddressVector", "count"), ("EventQueue", "pending")}
# These calls accept any object (a context, an event of the application), or refuse with every argument.
ANY_ARGUMENT = {("Endpoint", "cancel"), ("EventQueue", "post"), ("EventQueue", "post_error"), ("EventQueue", "write"),
                ("MemoryRegion", "refresh")}  # fmt: skip


class Wrong:
    """An object that no call accepts."""

    def __repr__(self) -> str:
        return "<Wrong>"


def connected(info: fi.Info) -> fi.Info:
    """The same for connected endpoints."""
    other = fi.dupinfo(info)
    other.ep_attr.type = fi.EP_MSG
    return other


def stack() -> Iterator[dict[str, Any]]:
    with opened() as node:
        handles = {
            "Fabric": node.fabric,
            "Domain": node.domain,
            "Endpoint": node.ep,
            "AddressVector": node.av,
            "CompletionQueue": node.cq,
            "Counter": node.keep(node.domain.cntr_open()),
            "EventQueue": node.keep(node.fabric.eq_open()),
            "PassiveEndpoint": node.keep(node.fabric.passive_ep(connected(node.info))),
            "MrCache": node.keep(fi.open("mr_cache")),
            "AvSet": node.keep(node.av.av_set(fi.AvSetAttr())),
            "MemoryRegion": node.reg(np.zeros(64, np.uint8), requested_key=KEY),
        }
        yield {"node": node, **handles}


CLASSES = (
    "Fabric",
    "Domain",
    "Endpoint",
    "AddressVector",
    "CompletionQueue",
    "Counter",
    "EventQueue",
    "MemoryRegion",
    "MrCache",
    "PassiveEndpoint",
    "AvSet",
)
METHODS = [
    (name, method)
    for name in CLASSES
    for method in sorted(dir(getattr(fi, name)))
    if not method.startswith("_") and method not in INNER and callable(getattr(getattr(fi, name), method))
]


def required(function: Any) -> int:
    """The number of required arguments; 1 if the call has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 1
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


def helps(error: BaseException) -> bool:
    text = str(error)
    return len(text.split()) >= 4


@pytest.mark.parametrize(("name", "method"), METHODS, ids=[f"{n}.{m}" for n, m in METHODS])
def test_argument_of_a_useless_type_is_refused_and_named(name: str, method: str) -> None:
    for handles in stack():
        call = getattr(handles[name], method)
        try:
            parameters = inspect.signature(call).parameters
        except ValueError:
            parameters = None  # a plain CPython method
        if (parameters is not None and not parameters) or (name, method) in ANY_ARGUMENT:
            continue
        count = max(required(call), 1)
        with pytest.raises(DOCUMENTED) as caught:
            call(*[Wrong() for _ in range(count)])
        text = str(caught.value)
        assert helps(caught.value), text
        later = call.__doc__ and call.__doc__.startswith("Not in this version: raises NoSys")
        if later:
            assert isinstance(caught.value, fi.NoSys)
        else:
            assert "Wrong" in text or "int" in text or "argument" in text, text
        # The refused call has changed nothing: a transfer still works.
        node: Node = handles["node"]
        source = np.arange(8, dtype=np.uint8)
        node.ep.write(source, dest_addr=node.me, addr=0, key=KEY)
        assert len(node.wait()) == 1


@pytest.mark.parametrize(("name", "method"), METHODS, ids=[f"{n}.{m}" for n, m in METHODS])
def test_closed_handle_says_that_it_is_closed(name: str, method: str) -> None:
    for handles in stack():
        node: Node = handles["node"]
        handle = handles[name]
        call = getattr(handle, method)
        if node.domain.policy.regions.busy == "ep":
            handles["MemoryRegion"].close()
        node.ep.close()
        for other in (
            "AvSet",
            "PassiveEndpoint",
            "MrCache",
            "MemoryRegion",
            "Counter",
            "EventQueue",
            "CompletionQueue",
            "AddressVector",
            "Domain",
            "Fabric",
        ):
            if name != "Endpoint":
                handles[other].close()
            if other == name:
                break
        args = GOOD.get((name, method), ())
        if callable(args):
            args = args(handles)
        if method in ANSWER_ALWAYS or (name, method) in ANSWER_ALWAYS_OF:
            call(*args)
            continue
        with pytest.raises(fi.BadState) as caught:
            call(*args)
        assert "closed" in str(caught.value), str(caught.value)


DATA = np.zeros(8, np.uint8)
WORD = np.zeros(1, np.uint64)
U64 = (fi.UINT64, fi.SUM)


def msg() -> fi.MsgRma:
    return fi.MsgRma([DATA], [fi.RmaIov(0, 8, KEY)], 0)


def atomic_msg() -> fi.MsgAtomic:
    return fi.MsgAtomic([WORD], [fi.RmaIoc(0, 1, KEY)], 0, *U64)


# Arguments with which the call would work if its handle were open.
GOOD: dict[tuple[str, str], Any] = {
    ("Fabric", "domain"): lambda h: (h["node"].info,),
    ("Fabric", "passive_ep"): lambda h: (h["node"].info,),
    ("PassiveEndpoint", "bind"): lambda h: (h["EventQueue"],),
    ("PassiveEndpoint", "reject"): lambda h: (None,),
    ("PassiveEndpoint", "setname"): ("weft://0/1/7",),
    ("Fabric", "trywait"): ([],),
    ("Domain", "alloc"): (8,),
    ("Domain", "bind"): lambda h: (h["EventQueue"],),
    ("Domain", "map_raw"): (0, bytes(8)),
    ("AddressVector", "insert_auth_key"): (b"\1\0",),
    ("AddressVector", "av_set"): lambda h: (fi.AvSetAttr(),),
    **{("AvSet", name): lambda h: (h["AvSet"],) for name in ("union", "intersect", "diff")},
    **{("AvSet", name): (0,) for name in ("insert", "remove")},
    ("AddressVector", "lookup_auth_key"): (0,),
    ("Domain", "mr_reg"): (DATA, fi.REMOTE_READ),
    ("Domain", "mr_regattr"): lambda h: (fi.MrAttr([DATA], fi.REMOTE_READ),),
    ("Domain", "mr_regv"): ([DATA], fi.REMOTE_READ),
    ("Domain", "query_atomic"): U64,
    ("Domain", "query_collective"): (fi.BARRIER,),
    ("Domain", "unmap_key"): (1,),
    ("Endpoint", "barrier"): (1,),
    ("Endpoint", "barrier2"): (1,),
    ("Endpoint", "broadcast"): (WORD, 1, None, 1, 0, fi.UINT64),
    ("Endpoint", "reduce"): (WORD, 1, None, WORD, None, 1, 0, *U64),
    ("Endpoint", "allreduce"): (WORD, 1, None, WORD, None, 1, *U64),
    ("Endpoint", "join_collective"): lambda h: (fi.ADDR_NOTAVAIL, h["AvSet"]),
    ("Endpoint", "atomic"): (WORD, None, 0, 0, KEY, *U64),
    ("Endpoint", "atomicmsg"): lambda h: (atomic_msg(),),
    ("Endpoint", "atomicv"): ([WORD], None, 0, 0, KEY, *U64),
    ("Endpoint", "atomicvalid"): U64,
    ("Endpoint", "fetch_atomicvalid"): U64,
    ("Endpoint", "compare_atomicvalid"): (fi.UINT64, fi.CSWAP),
    ("Endpoint", "bind"): lambda h: (h["CompletionQueue"], fi.TRANSMIT),
    ("Endpoint", "cancel"): (1,),
    ("Endpoint", "unreceived"): (1,),
    ("Endpoint", "compare_atomic"): (WORD, None, WORD, None, WORD, None, 0, 0, KEY, fi.UINT64, fi.CSWAP),
    ("Endpoint", "compare_atomicmsg"): lambda h: (
        fi.MsgAtomic([WORD], [fi.RmaIoc(0, 1, KEY)], 0, fi.UINT64, fi.CSWAP),
        [WORD],
        None,
        [WORD],
    ),
    ("Endpoint", "compare_atomicv"): ([WORD], None, [WORD], None, [WORD], None, 0, 0, KEY, fi.UINT64, fi.CSWAP),
    ("Endpoint", "fetch_atomic"): (WORD, None, WORD, None, 0, 0, KEY, *U64),
    ("Endpoint", "fetch_atomicmsg"): lambda h: (atomic_msg(), [WORD]),
    ("Endpoint", "fetch_atomicv"): ([WORD], None, [WORD], None, 0, 0, KEY, *U64),
    ("Endpoint", "getopt"): (fi.OPT_ENDPOINT, 0),
    ("Endpoint", "inject_atomic"): (WORD, 0, 0, KEY, *U64),
    ("Endpoint", "inject_write"): (DATA, 0, 0, KEY),
    ("Endpoint", "inject_writedata"): (DATA, 1, 0, 0, KEY),
    ("Endpoint", "inject"): (DATA, 0),
    ("Endpoint", "injectdata"): (DATA, 1, 0),
    ("Endpoint", "recv"): (DATA,),
    ("Endpoint", "recvmsg"): lambda h: (fi.Msg([DATA]),),
    ("Endpoint", "recvv"): ([DATA],),
    ("Endpoint", "send"): (DATA, None, 0),
    ("Endpoint", "senddata"): (DATA, None, 1, 0),
    ("Endpoint", "sendmsg"): lambda h: (fi.Msg([DATA], addr=0),),
    ("Endpoint", "sendv"): ([DATA], None, 0),
    ("Endpoint", "tinject"): (DATA, 0, 1),
    ("Endpoint", "tinjectdata"): (DATA, 1, 0, 1),
    ("Endpoint", "trecv"): (DATA, None, 0, 1),
    ("Endpoint", "trecvmsg"): lambda h: (fi.MsgTagged([DATA], tag=1),),
    ("Endpoint", "trecvv"): ([DATA], None, 0, 1),
    ("Endpoint", "tsend"): (DATA, None, 0, 1),
    ("Endpoint", "tsenddata"): (DATA, None, 1, 0, 1),
    ("Endpoint", "tsendmsg"): lambda h: (fi.MsgTagged([DATA], addr=0, tag=1),),
    ("Endpoint", "tsendv"): ([DATA], None, 0, 1),
    ("Endpoint", "read"): (DATA, None, 0, 0, KEY),
    ("Endpoint", "read_batch"): (DATA, np.zeros(1, fi.RMA_DESC)),
    ("Endpoint", "readmsg"): lambda h: (msg(),),
    ("Endpoint", "readv"): ([DATA], None, 0, 0, KEY),
    ("Endpoint", "setname"): ("weft://0/1/77",),
    ("Endpoint", "setopt"): (fi.OPT_ENDPOINT, 0, 0),
    ("Endpoint", "write"): (DATA, None, 0, 0, KEY),
    ("Endpoint", "write_batch"): (DATA, np.zeros(1, fi.RMA_DESC)),
    ("Endpoint", "writedata"): (DATA, None, 1, 0, 0, KEY),
    ("Endpoint", "writemsg"): lambda h: (msg(),),
    ("Endpoint", "writev"): ([DATA], None, 0, 0, KEY),
    ("AddressVector", "bind"): lambda h: (h["EventQueue"],),
    ("AddressVector", "insert"): ("weft://0/1/77",),
    ("AddressVector", "insertsvc"): ("0", "77"),
    ("AddressVector", "insertsym"): ("0",),
    ("AddressVector", "set_user_id"): (0, 1),
    ("AddressVector", "user_id"): (0,),
    ("AddressVector", "lookup"): (0,),
    ("AddressVector", "remove"): (0,),
    ("AddressVector", "straddr"): lambda h: (h["node"].domain.provider.addresses.emit((0, 77, 1)),),
    ("CompletionQueue", "strerror"): (1,),
    ("Counter", "add"): (1,),
    ("Counter", "adderr"): (1,),
    ("Counter", "set"): (1,),
    ("Counter", "seterr"): (1,),
    ("Counter", "wait"): (0,),
    ("EventQueue", "post"): (1, fi.EqEntry(None)),
    ("EventQueue", "post_error"): lambda h: (fi.EqErrEntry(h["EventQueue"]),),
    ("EventQueue", "strerror"): (1,),
    ("EventQueue", "write"): (fi.NOTIFY, fi.EqEntry(None)),
    ("MemoryRegion", "bind"): lambda h: (h["Counter"], fi.REMOTE_WRITE),
    ("MrCache", "import_fid"): lambda h: (fi.MemMonitor(),),
    ("MrCache", "notify"): (4096, 1),
    ("MrCache", "search"): (DATA,),
}
for _name in ("Domain", "Endpoint", "AddressVector", "CompletionQueue", "Counter", "EventQueue", "MemoryRegion"):
    GOOD[_name, "control"] = (1,)
    GOOD[_name, "open_ops"] = ("name",)
    GOOD[_name, "set_ops"] = ("name", None)
    GOOD[_name, "get_val"] = (1,)
    GOOD[_name, "set_val"] = (1, 1)
