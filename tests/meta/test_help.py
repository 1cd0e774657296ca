"""Every public call has a signature, and refuses useless arguments in plain words."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pydoc
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import weft
from weft import fi, ucp

# Words that no message of ours has: the binding's, and C++'s.
BINDINGS_WORDS = ("incompatible function arguments", "nanobind", "std::", "bad_cast", "Invoked with types", "weft::")


def public(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    names = dir(module) if module is weft else getattr(module, "__all__", None) or dir(module)
    for name in names:
        if not name.startswith("_"):
            yield name, getattr(module, name)


def rooms() -> Iterator[tuple[str, types.ModuleType]]:
    yield "weft", weft
    for name in dir(weft):
        if isinstance(getattr(weft, name), types.ModuleType):
            yield f"weft.{name}", importlib.import_module(f"weft.{name}")


def owner_of(kind: type, name: str) -> type:
    """The class that defines an attribute."""
    return next(base for base in kind.__mro__ if name in vars(base))


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods that a class or a base of it defines, where the base is ours."""
    for name in dir(kind):
        if name.startswith("_") or not owner_of(kind, name).__module__.startswith("weft"):
            continue
        found = getattr(kind, name)
        if callable(found) and not isinstance(inspect.getattr_static(kind, name), property):
            yield name, found


def calls() -> dict[str, Any]:
    """All public functions, classes that have a constructor of ours, and their methods."""
    found: dict[str, Any] = {}
    for room, module in rooms():
        for name, value in public(module):
            if not callable(value) or not getattr(value, "__module__", "").startswith("weft"):
                continue
            if isinstance(value, type):
                constructors = [owner_of(value, "__init__"), owner_of(value, "__new__")]
                if any(base.__module__.startswith("weft") for base in constructors):
                    found[f"{room}.{name}"] = value
                found.update((f"{room}.{name}.{method}", one) for method, one in methods(value))
            else:
                found[f"{room}.{name}"] = value
    return found


CALLS = calls()


def test_many_calls_are_found() -> None:
    """The walk reaches the extension's methods and the friendly names."""
    assert len(CALLS) > 800
    assert {"weft.open", "weft.zeros", "weft.RemoteArray.fetch_add", "weft.fi.Endpoint.write"} < CALLS.keys()
    assert {"weft.ucp.Endpoint.put_nbx", "weft.fi.Counter.add", "weft.fi.MemoryRegion"} < CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_call_has_a_signature(name: str) -> None:
    signature = inspect.signature(CALLS[name])
    assert str(signature).startswith("(")


@pytest.mark.parametrize("name", ["write", "send", "barrier", "atomic_limit"])
def test_help_shows_the_parameters(name: str) -> None:
    shown = pydoc.plain(pydoc.render_doc(getattr(fi.Endpoint, name)))
    for parameter in list(inspect.signature(getattr(fi.Endpoint, name)).parameters)[1:]:
        assert parameter in shown


def test_bound_method_has_a_signature_without_self() -> None:
    with fi_objects() as objects:
        assert list(inspect.signature(objects["counter"].add).parameters) == ["value"]
        assert list(inspect.signature(objects["endpoint"].inject).parameters) == ["buf", "dest_addr", "len"]


def test_signature_names_what_the_call_takes() -> None:
    """No call of the extension refuses a keyword of its own signature."""
    with fi_objects() as objects:
        for found in objects.values():
            for name, method in methods(type(found)):
                if type(method).__name__ != "method_descriptor":
                    continue
                bound = getattr(found, name)
                for parameter in inspect.signature(bound).parameters.values():
                    if parameter.kind is not parameter.POSITIONAL_ONLY:
                        assert "unexpected keyword" not in failure(bound, **{parameter.name: object()})
                assert failure(bound, no_such_argument=1) != ""


# ---- useless arguments ----------------------------------------------------------------------------------------------


def failure(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of a call's exception; "" if it returned."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as reason:
        return f"{type(reason).__name__}: {reason}"
    if inspect.iscoroutine(found):
        return failure(asyncio.run, found)
    return ""


USELESS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((object(),), {}),
    ((object(), object()), {}),
    (("text", "text", "text"), {}),
    ((-1, -1, -1, -1), {}),
    ((None,) * 5, {}),
    ((object(),) * 20, {}),
    ((), {"no_such_argument": 1}),
]
# They wait for input, a signal or a peer, or end the process, whatever they are given.
NOT_CALLED: set[str] = set()


def is_ours(text: str) -> bool:
    return not any(word in text for word in BINDINGS_WORDS)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in NOT_CALLED])
def test_call_with_useless_arguments_says_what_is_wrong(name: str) -> None:
    for args, kwargs in USELESS:
        text = failure(CALLS[name], *args, **kwargs)
        assert is_ours(text), text


@contextmanager
def fi_objects() -> Iterator[dict[str, Any]]:
    """An open object of each kind of weft.fi."""
    info = fi.getinfo(hints=fi.Info(caps=fi.RMA | fi.ATOMIC | fi.MSG | fi.TAGGED))[0]
    with ExitStack() as stack:
        fabric = stack.enter_context(fi.Fabric(info.fabric_attr))
        domain = stack.enter_context(fabric.domain(info))
        cq = stack.enter_context(domain.cq_open(size=8, wait_obj=fi.WAIT_FD))
        av = stack.enter_context(domain.av_open())
        counter = stack.enter_context(domain.cntr_open())
        events = stack.enter_context(fabric.eq_open())
        region = stack.enter_context(domain.mr_reg(np.zeros(64, np.uint8), fi.READ | fi.WRITE))
        endpoint = stack.enter_context(domain.endpoint(info))
        endpoint.bind(cq, fi.TRANSMIT | fi.RECV)
        endpoint.bind(av)
        endpoint.enable()
        yield {
            "fabric": fabric,
            "domain": domain,
            "queue": cq,
            "vector": av,
            "counter": counter,
            "events": events,
            "region": region,
            "endpoint": endpoint,
        }


@contextmanager
def ucp_objects() -> Iterator[dict[str, Any]]:
    """An open object of each kind of weft.ucp, connected with itself."""
    with (
        ucp.Context() as context,
        context.worker_create() as worker,
        context.mem_map(np.zeros(64, np.uint8)) as memory,
        worker.ep_create(worker.address) as endpoint,
        endpoint.rkey_unpack(memory.pack()) as rkey,
    ):
        yield {"context": context, "worker": worker, "memory": memory, "endpoint": endpoint, "rkey": rkey}


@contextmanager
def friendly_objects() -> Iterator[dict[str, Any]]:
    with (
        weft.open(timeout=5) as node,
        node.share(weft.zeros((2, 3))) as shared,
        weft.Group(f"test-help-{os.getpid()}", 1, 0, node=node) as group,
    ):
        yield {"shared": shared, "remote": node.attach(shared), "node": node, "group": group}


@pytest.mark.parametrize("objects", [fi_objects, ucp_objects, friendly_objects])
def test_method_with_useless_arguments_says_what_is_wrong(objects: Callable[[], Any]) -> None:
    called = 0
    with objects() as found:
        for one in found.values():
            for name, _ in methods(type(one)):
                if name in ("close", "destroy", "unmap"):
                    continue  # would end the object; with useless arguments tested on the class above
                for args, kwargs in USELESS:
                    text = failure(getattr(one, name), *args, **kwargs)
                    assert is_ours(text), f"{type(one).__qualname__}.{name}{args}: {text}"
                    called += 1
    assert called > 200


@pytest.mark.parametrize("objects", [fi_objects, ucp_objects, friendly_objects])
def test_attribute_with_a_useless_value_says_what_is_wrong(objects: Callable[[], Any]) -> None:
    with objects() as found:
        for one in found.values():
            for name in dir(type(one)):
                if isinstance(inspect.getattr_static(type(one), name), property):
                    for value in (object(), "text", None):
                        text = failure(setattr, one, name, value)
                        assert is_ours(text), f"{type(one).__qualname__}.{name}: {text}"


def test_wrong_argument_of_a_binding_is_told_with_the_signature() -> None:
    with fi_objects() as objects:
        counter = objects["counter"]
        with pytest.raises(TypeError) as caught:
            counter.add(1, 2)
        assert str(caught.value) == "add: the arguments (int, int) do not fit\n  rule: add(value: int) -> None"
        with pytest.raises(TypeError, match=r"the arguments \(other: int\) do not fit"):
            counter.add(other=1)
        with pytest.raises(TypeError, match="add: the first argument is a CounterCore, not str"):
            fi.Counter.add("text", 1)
    with pytest.raises(TypeError, match="add: the first argument is a CounterCore, not nothing"):
        fi.Counter.add()
