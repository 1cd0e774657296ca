"""Every public call, used wrongly: the message names the error and the remedy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import errors

Call = Callable[[Any, Any], Any]


@pytest.fixture
def thing(node: weft.Node) -> Any:
    return node.attach(node.share(weft.zeros((4, 5), "f4")))


NODE: dict[str, tuple[Call, type[Exception], list[str]]] = {
    "share a list": (lambda n, t: n.share([1, 2]), TypeError, ["share", "list", "numpy.array(...)"]),
    "share text": (lambda n, t: n.share("abc"), TypeError, ["str", "text.encode()"]),
    "share None": (lambda n, t: n.share(None), TypeError, ["NoneType"]),
    "share objects": (lambda n, t: n.share(np.array([{}])), TypeError, ["Python objects", "pickle.dumps"]),
    "share strided": (
        lambda n, t: n.share(np.zeros((4, 4))[:, 1]),
        errors.InvalidArgument,
        ["not C-contiguous", "strides (32,)", "numpy.ascontiguousarray(a)", "t[:, 3]"],
    ),
    "share Fortran": (lambda n, t: n.share(np.zeros((4, 3), order="F")[:2]), errors.InvalidArgument, ["a.T"]),
    "share memoryview": (lambda n, t: n.share(memoryview(b"abcdef")[::2]), errors.InvalidArgument, ["contiguous"]),
    "share masked": (lambda n, t: n.share(np.ma.zeros(3)), errors.InvalidArgument, ["a.filled()"]),
    "share bytes rw": (lambda n, t: n.share(b"abc"), errors.AccessDenied, ["read-only", "access='r'"]),
    "share access": (lambda n, t: n.share(np.zeros(3), access="x"), errors.InvalidArgument, ["'rw'", "'x'"]),
    "share access list": (lambda n, t: n.share(np.zeros(3), access=["r"]), errors.InvalidArgument, ["'rw'", "['r']"]),
    "pickle node": (lambda n, t: pickle.dumps(n), TypeError, ["belongs to its process", "weft.open()"]),
    "copy node": (lambda n, t: copy.copy(n), TypeError, ["belongs to its process"]),
    "share name": (lambda n, t: n.share(np.zeros(3), name=7), TypeError, ["a name is a str", "int"]),
    "share name first": (
        lambda n, t: n.share("table", np.zeros(3)),
        TypeError,
        ["comes before the array (numpy.ndarray)", "share(array, 'table')"],
    ),
    "weft.share name first": (
        lambda n, t: weft.share("table", [1, 2]),  # type: ignore[arg-type]
        TypeError,
        ["comes before the array (list)", "share(array, 'table')"],
    ),
    "share remote": (lambda n, t: n.share(t), TypeError, ["already shared by its owner", "ticket"]),
    "share address": (lambda n, t: n.share((4096, 8)), TypeError, ["no dtype"]),
    "attach int": (lambda n, t: n.attach(7), TypeError, ["a name, a ticket", "int"]),
    "attach array": (lambda n, t: n.attach(np.zeros(3)), TypeError, ["numpy.ndarray"]),
    "attach ticket": (lambda n, t: n.attach("weft-ticket:xx"), errors.InvalidArgument, ["is no ticket", "str(shared"]),
    "attach unknown": (lambda n, t: n.attach("no-such"), errors.NotFound, ["'no-such'", "names here", "wait=10"]),
    "attach wait": (lambda n, t: n.attach("x", wait="soon"), TypeError, ["seconds", "'soon'"]),
    "RemoteArray()": (lambda n, t: weft.RemoteArray(), TypeError, ["node.attach"]),
}

ARRAY: dict[str, tuple[Call, type[Exception], list[str]]] = {
    "index": (lambda n, t: t[4], IndexError, ["index 4 is out of bounds for axis 0 with size 4"]),
    "index 2": (lambda n, t: t[0, 5], IndexError, ["index 5 is out of bounds for axis 1 with size 5"]),
    "too many": (lambda n, t: t[0, 0, 0], IndexError, ["2 dimensions, 3 were indexed"]),
    "float index": (lambda n, t: t[1.5], IndexError, ["1.5", "integers, slices"]),
    "string index": (lambda n, t: t["a"], IndexError, ["'a'", "integers, slices"]),
    "bool index": (lambda n, t: t[True], IndexError, ["bool"]),
    "fancy in tuple": (lambda n, t: t[0, [1, 2]], IndexError, ["t.take(indices, axis=...)"]),
    "two ellipses": (lambda n, t: t[..., ...], IndexError, ["single ellipsis"]),
    "zero step": (lambda n, t: t[::0], ValueError, ["slice step cannot be zero"]),
    "write index": (lambda n, t: t.__setitem__(9, 1), IndexError, ["index 9"]),
    "write shape": (lambda n, t: t.__setitem__(0, [1, 2]), ValueError, ["(2,)", "(5,)", "broadcast"]),
    "write text": (lambda n, t: t.__setitem__(0, "abc"), ValueError, ["'abc'", "float32"]),
    "write dict": (lambda n, t: t.__setitem__(slice(None), {}), TypeError, ["dict"]),
    "write() shape": (lambda n, t: t.write([1, 2]), ValueError, ["(2,)", "(4, 5)", "t[...] = value"]),
    "write() dtype": (
        lambda n, t: t.write(np.zeros((4, 5), "c8")),
        TypeError,
        ["complex64", "float32", "value.astype(t.dtype)"],
    ),
    "read out shape": (lambda n, t: t.read(np.empty((5, 4), "f4")), ValueError, ["(5, 4)", "numpy.empty((4, 5)"]),
    "read out dtype": (lambda n, t: t.read(np.empty((4, 5))), TypeError, ["float64", "float32", "numpy.empty"]),
    "read out bytes": (lambda n, t: t.read(bytes(80)), errors.AccessDenied, ["read-only"]),
    "read out strided": (
        lambda n, t: t.read(np.empty((5, 4), "f4").T),
        errors.InvalidArgument,
        ["not C-contiguous", "no out=, and a[...] = the result"],
    ),
    "read out list": (lambda n, t: t.read([0] * 20), TypeError, ["out", "list"]),
    "fill array": (lambda n, t: t.fill([1, 2]), ValueError, ["one value", "(2,)"]),
    "take float": (lambda n, t: t.take([1.5]), TypeError, ["float64", "astype(int)"]),
    "take bounds": (lambda n, t: t.take([0, 7, 8]), IndexError, ["index 7", "axis 0 with size 4", "1 more"]),
    "take axis": (lambda n, t: t.take([0], axis=2), IndexError, ["axis 2", "2 dimensions"]),
    "take axis type": (lambda n, t: t.take([0], axis="x"), TypeError, ["axis is an integer"]),
    "take mask": (lambda n, t: t.take(np.ones(3, bool)), IndexError, ["mask of shape (3,)", "size 4"]),
    "put shape": (lambda n, t: t.put([0], [1, 2]), ValueError, ["(2,)", "(1, 5)"]),
    "add kind": (lambda n, t: t.fetch_add((0, 0), 1j), TypeError, ["complex128", "float32"]),
    "add shape": (lambda n, t: t.fetch_add(0, [1, 2]), ValueError, ["(2,)", "(5,)"]),
    "op": (lambda n, t: t.fetch_op((0, 0), "mean", 1), errors.InvalidArgument, ["'mean'", "'sum'"]),
    "bits of floats": (lambda n, t: t.fetch_op((0, 0), "xor", 1), TypeError, ["xor", "float32"]),
    "wait": (lambda n, t: t.wait_until((0, 0), 5, timeout=0), errors.TimedOut, ["is", "0.0", "after 0 s, not 5"]),
    "copy": (lambda n, t: t.__array__("f8", copy=False), ValueError, ["float32", "float64", "without copy=False"]),
    "view mode": (lambda n, t: t.view("w"), errors.InvalidArgument, ["'w'", "'rw'", "can also read"]),
    "view dtype": (lambda n, t: t.view("f8"), errors.InvalidArgument, ["'f8'", "t.view().view(dtype)"]),
    "view type": (lambda n, t: t.view(3), errors.InvalidArgument, ["'r' or 'rw'", "3"]),
    "at assignment": (lambda n, t: t.at.__setitem__(0, 1), TypeError, ["t[...] = value"]),
}


@pytest.mark.parametrize("case", [*NODE, *ARRAY])
def test_wrong_use_is_explained(node: weft.Node, thing: Any, case: str) -> None:
    call, kind, words = {**NODE, **ARRAY}[case]
    with pytest.raises(kind) as caught:
        call(node, thing)
    for word in words:
        assert word in str(caught.value)
    assert thing[0, 0] == 0
    assert node.statistics().lanes == 1


CALLS: dict[str, Call] = {
    "t[i]": lambda n, t: t[0, 0],
    "t[a:b]": lambda n, t: t[0:2],
    "t[::2]": lambda n, t: t[::2, 0],
    "t[i] =": lambda n, t: t.__setitem__((0, 0), 1),
    "t[...] =": lambda n, t: t.__setitem__(..., 1),
    "read": lambda n, t: t.read(),
    "write": lambda n, t: t.write(np.zeros((4, 5), "f4")),
    "fill": lambda n, t: t.fill(1),
    "take": lambda n, t: t.take([0]),
    "put": lambda n, t: t.put([0], 1),
    "fetch_add": lambda n, t: t.fetch_add((0, 0), 1),
    "fetch_add row": lambda n, t: t.fetch_add(0, 1.0),
    "compare_swap": lambda n, t: t.compare_swap((0, 0), 0, 1),
    "swap": lambda n, t: t.swap((0, 0), 1),
    "fetch_op": lambda n, t: t.fetch_op((0, 0), "min", 1),
    "add": lambda n, t: t.add((0, 0), 1),
    "wait_until": lambda n, t: t.wait_until((0, 0), 0),
    "asarray": lambda n, t: np.asarray(t),
    "view r": lambda n, t: t.view("r"),
    "view rw": lambda n, t: t.view("rw"),
}
WRITES = {"t[i] =", "t[...] =", "write", "fill", "put", "add"}
BOTH = {"fetch_add", "fetch_add row", "compare_swap", "swap", "fetch_op", "view rw"}


@pytest.mark.parametrize("call", CALLS)
def test_after_the_node_is_closed(call: str) -> None:
    with weft.open() as owner:
        node = weft.open()
        t = node.attach(owner.share(weft.zeros((4, 5), "f4")))
        t.read()
        node.close()
        with pytest.raises(errors.BadState, match=r"the node is closed\n  try: weft.open\(\)"):
            CALLS[call](node, t)


@pytest.mark.parametrize("call", CALLS)
def test_after_the_share_is_closed(node: weft.Node, call: str) -> None:
    share = node.share(weft.zeros((4, 5), "f4"))
    t = node.attach(share)
    share.close()
    with pytest.raises(
        errors.KeyRejected, match=r"has closed the share of .*, or replaced it\n  try: t.reattach\(ticket\)"
    ):
        CALLS[call](node, t)


@pytest.mark.parametrize("call", CALLS)
def test_access_that_was_not_granted(node: weft.Node, call: str) -> None:
    read_only = node.attach(node.share(weft.zeros((4, 5), "f4"), access="r"))
    write_only = node.attach(node.share(weft.zeros((4, 5), "f4"), access="w"))
    for t, access, refused in (
        (read_only, "r", call in WRITES | BOTH),
        (write_only, "w", call not in WRITES),
    ):
        if refused:
            with pytest.raises(errors.AccessDenied, match=rf"shared with access '{access}'\n  try: node.share"):
                CALLS[call](node, t)
        else:
            CALLS[call](node, t)


def test_closed_node_refuses(node: weft.Node) -> None:
    share = node.share(weft.zeros(3))
    node.close()
    assert share.closed
    for call in (lambda: node.share(weft.zeros(3)), lambda: node.attach(share), lambda: node.__enter__()):
        with pytest.raises(errors.BadState, match="the node is closed"):
            call()


def test_ticket_of_another_host(node: weft.Node) -> None:
    import dataclasses

    ticket = node.share(weft.zeros(3)).ticket
    address = ticket.address.replace(ticket.place, "", 1)  # this process may listen for other hosts; that one does not
    ticket = dataclasses.replace(ticket, host="elsewhere 0-0", address=address)
    with pytest.raises(errors.Unreachable, match="of host elsewhere"):
        node.attach(ticket)


def test_torch_tensors(node: weft.Node) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 3)
    t = node.attach(node.share(tensor))
    t[1] = torch.ones(3)
    assert tensor[1].tolist() == [1, 1, 1]
    out = torch.empty(4, 3)
    assert t.read(out=out) is out
    assert out.tolist() == tensor.tolist()
    half = torch.zeros(4, dtype=torch.bfloat16)
    pytest.importorskip("ml_dtypes")
    assert str(node.share(half).dtype) == "bfloat16"
