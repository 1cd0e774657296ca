"""Every argument of every public call of weft.fi, with unusable values.

A call is made as it works, and then with one argument replaced. It works all the same, or it raises an error that
names the argument or shows the value, in words of weft: no AttributeError, no text of the interpreter or the binding.
Which arguments there are is read from the signatures; a call that is not in CALLS fails the last test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests import wrong
from tests.fi.support import ALL_CAPS, KEY, PROVIDER, RW, Node, opened
from tests.fi.test_friendly import ANSWER_ALWAYS, METHODS, connected

from weft import fi

VALUES: dict[str, Any] = {**wrong.VALUES, "Info": fi.Info()}


class Stage:
    """Handles of every class, and values for the calls."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.Fabric, self.Domain, self.Endpoint = node.fabric, node.domain, node.ep
        self.AddressVector, self.CompletionQueue = node.av, node.cq
        self.Counter = node.keep(node.domain.cntr_open())
        self.EventQueue = node.keep(node.fabric.eq_open(flags=fi.WRITE))
        self.PassiveEndpoint = node.keep(node.fabric.passive_ep(connected(node.info)))
        self.MrCache = node.keep(fi.open("mr_cache"))
        self.AvSet = node.keep(node.av.av_set(fi.AvSetAttr()))
        self.AvSet.insert(1)
        self.memory = np.zeros(64, np.uint8)
        self.MemoryRegion = node.reg(self.memory, requested_key=KEY)
        self.me = node.me
        self.word = np.zeros(1, np.uint64)
        self.to: dict[str, Any] = {"dest_addr": self.me, "addr": 0, "key": KEY}
        self.raw = self.MemoryRegion.raw_attr()[1]


def _msg(s: Stage) -> fi.MsgRma:
    return fi.MsgRma([bytearray(8)], [fi.RmaIov(0, 8, KEY)], s.me)


def _amsg(s: Stage) -> fi.MsgAtomic:
    return fi.MsgAtomic([s.word], rma_iov=[fi.RmaIoc(0, 1, KEY)], addr=s.me, datatype=fi.UINT64, op=fi.SUM)


Made = Callable[[Stage], dict[str, Any]]
# By the name of the call without tags.
SENDS: dict[str, Made] = {
    "send": lambda s: {"buf": bytes(8), "desc": None, "dest_addr": s.me, "len": 8},
    "sendv": lambda s: {"iov": [bytes(8)], "desc": None, "dest_addr": s.me, "count": 1},
    "inject": lambda s: {"buf": bytes(8), "dest_addr": s.me, "len": 8},
    "senddata": lambda s: {"buf": bytes(8), "desc": None, "data": 1, "dest_addr": s.me, "len": 8},
    "injectdata": lambda s: {"buf": bytes(8), "data": 1, "dest_addr": s.me, "len": 8},
}
RECEIVES: dict[str, Made] = {
    "recv": lambda s: {"buf": bytearray(8), "desc": None, "src_addr": s.me, "len": 8},
    "recvv": lambda s: {"iov": [bytearray(8)], "desc": None, "src_addr": s.me, "count": 1},
}


def _tagged(made: Made, **more: int) -> Made:
    return lambda s: {**made(s), **more}


ATOMIC: dict[str, Any] = {"datatype": fi.UINT64, "op": fi.SUM}
# Arguments with which each call works, and is harmless when it is made.
CALLS: dict[tuple[str, str], Callable[[Stage], dict[str, Any]]] = {
    ("Fabric", "domain"): lambda s: {"info": s.node.info, "flags": 0},
    ("Fabric", "eq_open"): lambda s: {"size": 0, "flags": 0, "wait_obj": fi.WAIT_UNSPEC},
    ("Fabric", "passive_ep"): lambda s: {"info": connected(s.node.info)},
    ("Fabric", "trywait"): lambda s: {"fids": [s.CompletionQueue]},
    ("Domain", "endpoint"): lambda s: {"info": s.node.info},
    ("Domain", "av_open"): lambda s: {
        "type": 0, "rx_ctx_bits": 0, "count": 0, "ep_per_node": 0, "name": None, "flags": 0,
    },
    ("Domain", "cq_open"): lambda s: {
        "size": 0, "flags": 0, "format": 0, "wait_obj": fi.WAIT_UNSPEC, "signaling_vector": 0, "wait_cond": 0,
    },
    ("Domain", "cntr_open"): lambda s: {"events": 0, "wait_obj": fi.WAIT_UNSPEC, "flags": 0},
    ("Domain", "mr_reg"): lambda s: {
        "buf": s.memory, "access": int(RW), "offset": 0, "requested_key": 77, "flags": 0, "len": 8,
    },
    ("Domain", "mr_regv"): lambda s: {
        "iov": [s.memory], "access": int(RW), "count": 1, "offset": 0, "requested_key": 77, "flags": 0,
    },
    ("Domain", "mr_regattr"): lambda s: {
        "attr": fi.MrAttr(mr_iov=[s.memory], access=int(RW), requested_key=77), "flags": 0,
    },
    ("Domain", "map_raw"): lambda s: {"base_addr": 0, "raw_key": s.raw, "key_size": len(s.raw), "flags": 0},
    ("Domain", "unmap_key"): lambda s: {"key": s.Domain.map_raw(0, s.raw)},
    ("Domain", "alloc"): lambda s: {"shape": 8, "dtype": "u1"},
    ("Domain", "bind"): lambda s: {"eq": s.EventQueue, "flags": 0},
    ("Domain", "query_atomic"): lambda s: {"datatype": fi.UINT64, "op": fi.SUM, "flags": 0},
    ("Domain", "query_collective"): lambda s: {
        "coll": fi.ALLREDUCE, "attr": fi.CollectiveAttr(fi.SUM, fi.INT64), "flags": 0,
    },
    ("Endpoint", "bind"): lambda s: {"fid": s.Counter, "flags": int(fi.WRITE)},
    ("Endpoint", "setname"): lambda s: {"addr": "weft://0/1/77"},
    ("Endpoint", "connect"): lambda s: {"addr": "weft://0/1/77", "param": b"", "paramlen": 0},
    ("Endpoint", "accept"): lambda s: {"param": b"", "paramlen": 0},
    ("Endpoint", "shutdown"): lambda s: {"flags": 0},
    ("Endpoint", "getopt"): lambda s: {"level": fi.OPT_ENDPOINT, "optname": fi.OPT_TX_SIZE},
    ("Endpoint", "setopt"): lambda s: {"level": fi.OPT_ENDPOINT, "optname": fi.OPT_TX_SIZE, "optval": 1},
    ("Endpoint", "cancel"): lambda s: {},
    ("Endpoint", "unreceived"): lambda s: {"max": 1},
    ("Endpoint", "atomicvalid"): lambda s: dict(ATOMIC),
    ("Endpoint", "fetch_atomicvalid"): lambda s: dict(ATOMIC),
    ("Endpoint", "compare_atomicvalid"): lambda s: {"datatype": fi.UINT64, "op": fi.CSWAP},
    **{("Endpoint", name): made for name, made in SENDS.items()},
    **{("Endpoint", f"t{name}"): _tagged(made, tag=1) for name, made in SENDS.items()},
    **{("Endpoint", name): made for name, made in RECEIVES.items()},
    **{("Endpoint", f"t{name}"): _tagged(made, tag=1, ignore=0) for name, made in RECEIVES.items()},
    ("Endpoint", "sendmsg"): lambda s: {"msg": fi.Msg([bytes(8)], addr=s.me), "flags": 0},
    ("Endpoint", "tsendmsg"): lambda s: {"msg": fi.MsgTagged([bytes(8)], addr=s.me, tag=1), "flags": 0},
    ("Endpoint", "recvmsg"): lambda s: {"msg": fi.Msg([bytearray(8)]), "flags": 0},
    ("Endpoint", "trecvmsg"): lambda s: {"msg": fi.MsgTagged([bytearray(8)], tag=1), "flags": 0},
    ("Endpoint", "read"): lambda s: {
        "buf": bytearray(8), "desc": None, "src_addr": s.me, "addr": 0, "key": KEY, "len": 8,
    },
    ("Endpoint", "readv"): lambda s: {
        "iov": [bytearray(8)], "desc": None, "src_addr": s.me, "addr": 0, "key": KEY, "count": 1,
    },
    ("Endpoint", "readmsg"): lambda s: {"msg": _msg(s), "flags": 0},
    ("Endpoint", "read_batch"): lambda s: {"local": bytearray(8), "descs": np.zeros(0, fi.RMA_DESC), "flags": 0},
    ("Endpoint", "write"): lambda s: {"buf": bytes(8), "desc": None, "len": 8, **s.to},
    ("Endpoint", "writev"): lambda s: {"iov": [bytes(8)], "desc": None, "count": 1, **s.to},
    ("Endpoint", "writemsg"): lambda s: {"msg": _msg(s), "flags": 0},
    ("Endpoint", "writedata"): lambda s: {"buf": bytes(8), "desc": None, "data": 1, "len": 8, **s.to},
    ("Endpoint", "inject_write"): lambda s: {"buf": bytes(8), "len": 8, **s.to},
    ("Endpoint", "inject_writedata"): lambda s: {"buf": bytes(8), "data": 1, "len": 8, **s.to},
    ("Endpoint", "write_batch"): lambda s: {"local": bytes(8), "descs": np.zeros(0, fi.RMA_DESC), "flags": 0},
    ("Endpoint", "atomic"): lambda s: {"buf": s.word, "desc": None, "count": 1, **s.to, **ATOMIC},
    ("Endpoint", "inject_atomic"): lambda s: {"buf": s.word, "count": 1, **s.to, **ATOMIC},
    ("Endpoint", "atomicv"): lambda s: {"iov": [s.word], "desc": None, **s.to, **ATOMIC},
    ("Endpoint", "atomicmsg"): lambda s: {"msg": _amsg(s), "flags": 0},
    ("Endpoint", "fetch_atomic"): lambda s: {
        "buf": s.word, "desc": None, "result": s.word, "result_desc": None, "count": 1, **s.to, **ATOMIC,
    },
    ("Endpoint", "fetch_atomicv"): lambda s: {
        "iov": [s.word], "desc": None, "resultv": [s.word], "result_desc": None, **s.to, **ATOMIC,
    },
    ("Endpoint", "fetch_atomicmsg"): lambda s: {
        "msg": _amsg(s), "resultv": [s.word], "result_desc": None, "flags": 0,
    },
    ("Endpoint", "compare_atomic"): lambda s: {
        "buf": s.word, "desc": None, "compare": s.word, "compare_desc": None, "result": s.word, "result_desc": None,
        "count": 1, **s.to, "datatype": fi.UINT64, "op": fi.CSWAP,
    },
    ("Endpoint", "compare_atomicv"): lambda s: {
        "iov": [s.word], "desc": None, "comparev": [s.word], "compare_desc": None, "resultv": [s.word],
        "result_desc": None, **s.to, "datatype": fi.UINT64, "op": fi.CSWAP,
    },
    ("Endpoint", "compare_atomicmsg"): lambda s: {
        "msg": fi.MsgAtomic([s.word], rma_iov=[fi.RmaIoc(0, 1, KEY)], addr=s.me, datatype=fi.UINT64, op=fi.CSWAP),
        "comparev": [s.word], "compare_desc": None, "resultv": [s.word], "result_desc": None, "flags": 0,
    },
    ("Endpoint", "barrier"): lambda s: {"coll_addr": 1, "flags": 0},
    ("Endpoint", "barrier2"): lambda s: {"coll_addr": 1, "flags": 0},
    ("Endpoint", "broadcast"): lambda s: {
        "buf": s.word, "count": 1, "desc": None, "coll_addr": 1, "root_addr": s.me, "datatype": fi.UINT64, "flags": 0,
    },
    ("Endpoint", "reduce"): lambda s: {
        "buf": s.word, "count": 1, "desc": None, "result": s.word, "result_desc": None, "coll_addr": 1,
        "root_addr": s.me, **ATOMIC, "flags": 0,
    },
    ("Endpoint", "allreduce"): lambda s: {
        "buf": s.word, "count": 1, "desc": None, "result": s.word, "result_desc": None, "coll_addr": 1, **ATOMIC,
        "flags": 0,
    },
    ("Endpoint", "join_collective"): lambda s: {"coll_addr": fi.ADDR_NOTAVAIL, "set": s.AvSet, "flags": 0},
    ("Endpoint", "alias"): lambda s: {"flags": 0},
    ("AddressVector", "bind"): lambda s: {"eq": s.EventQueue, "flags": 0},
    ("AddressVector", "insert"): lambda s: {"addr": "weft://0/1/77", "count": 1, "flags": 0, "fi_addr": None},
    ("AddressVector", "insertsvc"): lambda s: {"node": "weft0", "service": "77", "flags": 0},
    ("AddressVector", "insertsym"): lambda s: {"node": "0", "nodecnt": 1, "service": "77", "svccnt": 1, "flags": 0},
    ("AddressVector", "set_user_id"): lambda s: {"fi_addr": s.me, "user_id": 1, "flags": 0},
    ("AddressVector", "user_id"): lambda s: {"fi_addr": s.me},
    ("AddressVector", "remove"): lambda s: {"fi_addr": s.AddressVector.insert("weft://0/1/78"), "count": 1, "flags": 0},
    ("AddressVector", "lookup"): lambda s: {"fi_addr": s.me},
    ("AddressVector", "insert_auth_key"): lambda s: {"auth_key": b"\1\0", "auth_key_size": 2, "flags": 0},
    ("AddressVector", "lookup_auth_key"): lambda s: {"fi_addr": 0},
    ("AddressVector", "straddr"): lambda s: {"addr": "weft://0/1/77"},
    ("AddressVector", "av_set"): lambda s: {"attr": fi.AvSetAttr()},
    ("AvSet", "insert"): lambda s: {"addr": len(s.AvSet) + 1},
    ("AvSet", "remove"): lambda s: {"addr": 1},
    ("AvSet", "union"): lambda s: {"src": s.AvSet},
    ("AvSet", "intersect"): lambda s: {"src": s.AvSet},
    ("AvSet", "diff"): lambda s: {"src": s.AvSet},
    ("CompletionQueue", "read"): lambda s: {"count": 1},
    ("CompletionQueue", "readfrom"): lambda s: {"count": 1},
    ("CompletionQueue", "sread"): lambda s: {"count": 1, "cond": None, "timeout": 0},
    ("CompletionQueue", "sreadfrom"): lambda s: {"count": 1, "cond": None, "timeout": 0},
    ("CompletionQueue", "readerr"): lambda s: {"flags": 0},
    ("CompletionQueue", "strerror"): lambda s: {"prov_errno": 1},
    ("Counter", "add"): lambda s: {"value": 1},
    ("Counter", "set"): lambda s: {"value": 1},
    ("Counter", "adderr"): lambda s: {"value": 0},
    ("Counter", "seterr"): lambda s: {"value": 0},
    ("Counter", "set_wb_buffer"): lambda s: {"buffer": bytearray(8)},
    ("Counter", "write_back_at"): lambda s: {"value": 0},
    ("Counter", "wait"): lambda s: {"threshold": 0, "timeout": 0},
    ("EventQueue", "read"): lambda s: {"flags": 0},
    ("EventQueue", "sread"): lambda s: {"timeout": 0, "flags": 0},
    ("EventQueue", "readerr"): lambda s: {"flags": 0},
    ("EventQueue", "write"): lambda s: {"event": 1, "flags": 0},
    ("EventQueue", "strerror"): lambda s: {"prov_errno": 1},
    ("MemoryRegion", "bind"): lambda s: {"fid": s.Endpoint, "flags": 0},
    ("MemoryRegion", "raw_attr"): lambda s: {"key_size": 64, "flags": 0},
    ("MemoryRegion", "refresh"): lambda s: {"iov": None, "count": None, "flags": 0},
    ("PassiveEndpoint", "bind"): lambda s: {"eq": s.EventQueue, "flags": 0},
    ("PassiveEndpoint", "setname"): lambda s: {"addr": "weft://0/1/77"},
    ("PassiveEndpoint", "reject"): lambda s: {"handle": None, "param": b"", "paramlen": 0},
    ("MrCache", "search"): lambda s: {"buf": s.memory, "iface": 0, "device": 0, "resolve": None},
    ("MrCache", "notify"): lambda s: {"addr": 4096, "length": 1, "iface": 0},
    ("MrCache", "flush"): lambda s: {"lru_only": True},
    ("MrCache", "import_fid"): lambda s: {"monitor": None, "flags": 0},
}  # fmt: skip
for _name in ("Domain", "Endpoint", "AddressVector", "CompletionQueue", "Counter", "EventQueue", "MemoryRegion"):
    CALLS[_name, "control"] = lambda s: {"command": 1}
    CALLS[_name, "open_ops"] = lambda s: {"name": "nothing", "flags": 0}
    CALLS[_name, "set_ops"] = lambda s: {"name": "nothing", "ops": None, "flags": 0}
    CALLS[_name, "get_val"] = lambda s: {"name": 1}
    CALLS[_name, "set_val"] = lambda s: {"name": 1}
# Other names by which an argument is positional only in the extension's calls.
WITHOUT_ARGUMENTS = {"close", "statistics", "message_statistics", "getname", "getpeer", "enable", "listen", "signal",
                     "trywait", "pending", "count", "raw_addr", "addr"}  # fmt: skip
# Timeouts of these calls are not tried: None, negative and very long values would wait without end.
WAITS = {"None", "minus one", "2**40", "2**70"}


@pytest.fixture
def stage() -> Iterator[Stage]:
    with opened(ALL_CAPS | (fi.MSG | fi.TAGGED if PROVIDER.name == "weft" else 0)) as node:
        yield Stage(node)
        for key, count in list(node.domain._mapped.items()):
            for _ in range(count):
                node.domain.unmap_key(key)


def fine(error: BaseException, call: str) -> bool:
    """Whether an error has a text of Weft."""
    documented = isinstance(error, (fi.FabricError, TypeError, ValueError)) and not isinstance(
        error, (AttributeError, KeyError)
    )
    return documented and not wrong.FOREIGN.search(str(error)) and len(str(error).split()) >= 4


@pytest.mark.general("addresses as strings")
@pytest.mark.parametrize(("name", "method"), CALLS, ids=[f"{n}.{m}" for n, m in CALLS])
def test_bad_value_of_each_argument_is_refused_in_words(stage: Stage, name: str, method: str) -> None:
    call = getattr(getattr(stage, name), method)
    wrong: list[str] = []
    for argument in CALLS[name, method](stage):
        for what, value in VALUES.items():
            if argument == "timeout" and what in WAITS:
                continue
            given = {**CALLS[name, method](stage), argument: value}
            try:
                result = call(**given)
            except BaseException as e:
                if not fine(e, f"{name}.{method}"):
                    wrong.append(f"{argument}={what}: {type(e).__name__}: {e}")
            else:
                if hasattr(result, "close"):
                    result.close()
            while True:
                try:
                    if not stage.node.cq.read():
                        break
                except fi.Available:
                    stage.node.cq.readerr()
    assert not wrong, "\n".join(wrong)


FUNCTIONS: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "getinfo": lambda: (
        fi.getinfo,
        {"version": fi.VERSION(2, 0), "node": None, "service": None, "flags": 0, "hints": None},
    ),
    "open": lambda: (fi.open, {"name": "mr_cache", "attr": None, "flags": 0}),
    "dupinfo": lambda: (fi.dupinfo, {"info": None}),
    "Fabric": lambda: (fi.Fabric, {"attr": fi.FabricAttr(prov_name="weft")}),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_value_given_to_a_function_is_refused_in_words(function: str) -> None:
    wrong: list[str] = []
    for argument in FUNCTIONS[function]()[1]:
        for what, value in VALUES.items():
            call, given = FUNCTIONS[function]()
            try:
                result = call(**{**given, argument: value})
            except BaseException as e:
                if not fine(e, function):
                    wrong.append(f"{argument}={what}: {type(e).__name__}: {e}")
            else:
                if hasattr(result, "close"):
                    result.close()
    assert not wrong, "\n".join(wrong)


def test_bad_values_are_tried_on_every_call() -> None:
    tried = set(CALLS)
    missing = []
    for name, method in METHODS:
        if (
            (name, method) in tried | {("Counter", "read"), ("Counter", "readerr"), ("Counter", "get_mmio")}
            or method in WITHOUT_ARGUMENTS
            or method in ANSWER_ALWAYS
            or getattr(getattr(getattr(fi, name), method), "__module__", None) == "weft.fi._later"
        ):
            continue
        try:
            parameters = inspect.signature(getattr(getattr(fi, name), method)).parameters
        except ValueError:
            parameters = {"?": None}  # type: ignore[dict-item]
        if len(parameters) > 1 or "?" in parameters:
            missing.append(f"{name}.{method}")
    assert not missing


# ---- calls that were found to be misunderstood -----------------------------------------------------------------------


def test_getinfo_of_hints_in_first_place_says_where_they_go() -> None:
    with pytest.raises(TypeError, match="hints=") as caught:
        fi.getinfo(fi.Info())  # type: ignore[call-overload]
    assert "version" in str(caught.value)


def test_mr_reg_in_c_s_order_says_so(stage: Stage) -> None:
    """fi_mr_reg(domain, buf, len, access, offset, requested_key, flags): len is an argument of its own here."""
    domain, memory = stage.Domain, np.zeros(4096, np.uint8)
    with pytest.raises(fi.InvalidArgument, match=r"len=4096"):
        domain.mr_reg(memory, 4096, int(RW), 0, 88)
    with pytest.raises(fi.InvalidArgument, match=r"len=64"):
        domain.mr_reg(memory[:64], 64, RW)
    with domain.mr_reg(memory, RW, requested_key=88, len=4096) as mr:
        assert mr.length == 4096


def test_transfer_without_key_or_address_is_refused(stage: Stage) -> None:
    """In C both are arguments of every call; as defaults they would mean byte 0 of the region with key 0."""
    ep, me = stage.Endpoint, stage.me
    with stage.Domain.mr_reg(stage.memory, RW, requested_key=0):
        for call in (
            lambda: ep.write(b"x", dest_addr=me, addr=0),
            lambda: ep.read(bytearray(1), src_addr=me, addr=0),
            lambda: ep.writev([b"x"], dest_addr=me, addr=0),
            lambda: ep.inject_write(b"x", dest_addr=me, addr=0),
            lambda: ep.writedata(b"x", data=1, dest_addr=me, addr=0),
            lambda: ep.atomic(stage.word, dest_addr=me, addr=0, **ATOMIC),
            lambda: ep.fetch_atomicv([stage.word], resultv=[stage.word], dest_addr=me, addr=0, **ATOMIC),
        ):
            with pytest.raises(TypeError, match="needs the argument 'key'"):
                call()
        with pytest.raises(TypeError, match="needs the argument 'addr'"):
            ep.write(b"x", dest_addr=me, key=0)
    assert not stage.memory.any()


def test_address_in_place_of_fi_addr_is_refused_with_a_hint(stage: Stage) -> None:
    with pytest.raises(TypeError, match=r"dest_addr must be an int, not 'weft://0/1/7': pass what av\.insert"):
        stage.Endpoint.write(b"x", dest_addr="weft://0/1/7", addr=0, key=KEY)  # type: ignore[arg-type]


@pytest.mark.general("several buffers a call")
@pytest.mark.parametrize(("address", "length"), [(2**64 - 8, 64), (4096, 2**64 - 1)])
def test_range_past_the_end_of_the_address_space_is_refused(stage: Stage, address: int, length: int) -> None:
    beyond = (address, length)
    for call in (
        lambda: stage.Domain.mr_reg(beyond, RW),
        lambda: stage.Domain.mr_regv([stage.memory, beyond], RW),
        lambda: stage.Domain.mr_regattr(fi.MrAttr(mr_iov=[beyond], access=int(RW))),
        lambda: stage.Endpoint.write(beyond, dest_addr=stage.me, addr=0, key=KEY),
        lambda: stage.MrCache.search(beyond),
    ):
        with pytest.raises(fi.InvalidArgument, match="end of the address space"):
            call()
    with pytest.raises(fi.InvalidArgument, match="more bytes than an address space"):
        stage.Domain.mr_regv([(1, 2**63), (2, 2**63)], RW)


def test_count_of_elements_that_wraps_is_refused(stage: Stage) -> None:
    with pytest.raises(fi.InvalidArgument, match="passes the end"):
        stage.Endpoint.atomicv([fi.Ioc(stage.word, 2**61)], dest_addr=stage.me, addr=0, key=KEY, **ATOMIC)
