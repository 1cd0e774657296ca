"""Every argument of every public call of weft.ucp, and every field of its structs, with unusable values.

A call is made as it works, and then with one argument replaced. It works all the same, or it raises TypeError or a
UcsError that names the argument or shows the value, in words of weft: no text of the interpreter or the binding. A call
that is not in CALLS fails the last tests.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests import wrong
from tests.fi import support as fi_support
from tests.ucp.support import INVALID_PARAM, WATCHDOG_S, Rig, opened, refused

from weft import ucp

VALUES: dict[str, Any] = {**wrong.VALUES, "struct": ucp.RkeyCompareParams()}
FOREIGN = re.compile(
    wrong.FOREIGN.pattern + r"|Unknown format code|invalid literal|must be real number|string formatting|"
    r"unsupported format string|slice indices"
)


class Stage:
    """Handles of every class, and values for the calls."""

    def __init__(self, rig: Rig, node: fi_support.Node) -> None:
        self.rig, self.node = rig, node
        self.Context, self.Worker, self.Endpoint = rig.context, rig.worker, rig.ep
        self.MemHandle = rig.alloc()
        self.RemoteKey = rig.key(self.MemHandle)
        self.memory = np.zeros(64, np.uint8)
        self.at = int(self.memory.ctypes.data)
        self.fi_region = node.reg(np.zeros(64, np.uint8), requested_key=7)

    @property
    def Request(self) -> ucp.Request:
        return self.rig.pending(self.MemHandle.address, self.RemoteKey)


# Arguments with which each call works, and is harmless when it is made.
CALLS: dict[tuple[str, str], Callable[[Stage], dict[str, Any]]] = {
    ("Context", "mem_map"): lambda s: {
        "address": s.at, "length": 64, "flags": 0, "prot": 0x303, "memory_type": ucp.MEMORY_TYPE_UNKNOWN,
        "exported_memh_buffer": None, "allocate": False, "nonblock": False, "symmetric": False,
    },
    ("Context", "mem_unmap"): lambda s: {"memh": s.rig.alloc()},
    ("Context", "mem_advise"): lambda s: {
        "memh": s.MemHandle, "params": None, "address": s.MemHandle.address, "length": 8, "advice": 0,
    },
    ("Context", "mem_print_info"): lambda s: {"mem_spec": "4k", "stream": io.StringIO()},
    ("Context", "rkey_pack"): lambda s: {"memh": s.MemHandle},
    ("Context", "worker_create"): lambda s: {"params": None, "thread_mode": 0, "name": "bad"},
    ("Worker", "release_address"): lambda s: {"address": s.Worker.get_address()},
    ("Worker", "ep_create"): lambda s: {
        "params": None, "address": s.Worker.address, "err_mode": 0, "err_handler": None, "user_data": None, "name": "",
    },
    ("Worker", "request_cancel"): lambda s: {"request": s.Request},
    ("Worker", "rkey_compare"): lambda s: {"rkey1": s.RemoteKey, "rkey2": s.RemoteKey, "params": None},
    ("Worker", "wait"): lambda s: {"timeout": 0},
    ("Worker", "wait_mem"): lambda s: {"memory": np.zeros(1, np.uint64), "value": 0, "timeout": 0},
    ("Endpoint", "rkey_unpack"): lambda s: {"rkey_buffer": s.MemHandle.pack()},
    ("Endpoint", "close"): lambda s: {"timeout": 1.0},
    ("Endpoint", "close_nbx"): lambda s: {"flags": 0},
    ("MemHandle", "query"): lambda s: {"attr": None},
    ("MemHandle", "pack"): lambda s: {"params": None, "flags": 0},
    ("MemHandle", "array"): lambda s: {"dtype": "u1", "shape": None},
    ("RemoteKey", "ptr"): lambda s: {"raddr": s.MemHandle.address},
    ("RemoteKey", "view"): lambda s: {"raddr": s.MemHandle.address, "length": 8},
    ("Request", "wait"): lambda s: {"timeout": WATCHDOG_S},
}  # fmt: skip
WAITS = {"None", "minus one", "2**40", "2**70"}
FUNCTIONS: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "Context": lambda s: {"params": None, "features": int(ucp.FEATURE_RMA), "name": "bad"},
    "dt_make_contig": lambda s: {"nbytes": 4},
    "memh_buffer_release": lambda s: {"buffer": s.MemHandle.pack(), "params": None},
    "pack_endpoint": lambda s: {"endpoint": s.node.ep},
    "pack_region": lambda s: {"region": s.fi_region, "endpoint": s.node.ep},
    "rkey_buffer_release": lambda s: {"buffer": s.Context.rkey_pack(s.MemHandle)},
    "status_string": lambda s: {"status": 0},
}
# Structs: the call that takes each, and a struct with which the call works and every field counts.
STRUCTS: dict[str, tuple[Callable[[Stage], Callable[[Any], Any]], Callable[[Stage], Any]]] = {
    "EpParams": (
        lambda s: s.Worker.ep_create,
        lambda s: ucp.EpParams(
            int(
                ucp.EP_PARAM_FIELD_REMOTE_ADDRESS | ucp.EP_PARAM_FIELD_ERR_HANDLING_MODE | ucp.EP_PARAM_FIELD_USER_DATA
                | ucp.EP_PARAM_FIELD_ERR_HANDLER | ucp.EP_PARAM_FIELD_NAME
            ),
            address=s.Worker.address,
        ),
    ),
    "MemAdviseParams": (
        lambda s: lambda params: s.Context.mem_advise(s.MemHandle, params),
        lambda s: ucp.MemAdviseParams(7, s.MemHandle.address, 8, 0),
    ),
    "MemAttr": (lambda s: s.MemHandle.query, lambda s: ucp.MemAttr(7)),
    "MemMapParams": (lambda s: s.Context.mem_map, lambda s: ucp.MemMapParams(31, s.at, 64, 0, 0x303)),
    "MemhBufferReleaseParams": (
        lambda s: lambda params: ucp.memh_buffer_release(s.MemHandle.pack(), params),
        lambda s: ucp.MemhBufferReleaseParams(),
    ),
    "MemhPackParams": (lambda s: s.MemHandle.pack, lambda s: ucp.MemhPackParams(1)),
    "Params": (
        lambda s: ucp.Context,
        lambda s: ucp.Params(int(ucp.PARAM_FIELD_FEATURES | ucp.PARAM_FIELD_NAME), int(ucp.FEATURE_RMA)),
    ),
    "RkeyCompareParams": (
        lambda s: lambda params: s.Worker.rkey_compare(s.RemoteKey, s.RemoteKey, params),
        lambda s: ucp.RkeyCompareParams(),
    ),
    "WorkerParams": (
        lambda s: s.Context.worker_create,
        lambda s: ucp.WorkerParams(
            int(ucp.WORKER_PARAM_FIELD_THREAD_MODE | ucp.WORKER_PARAM_FIELD_NAME | ucp.WORKER_PARAM_FIELD_USER_DATA)
        ),
    ),
}  # fmt: skip
WITHOUT_ARGUMENTS = {"close", "unmap", "fence", "get_address", "get_efd", "arm", "signal", "destroy", "check_status",
                     "result", "cancel", "free"}  # fmt: skip
CLASSES = ("Context", "Worker", "Endpoint", "MemHandle", "RemoteKey", "Request")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with opened() as rig, fi_support.opened() as node:
        yield Stage(rig, node)


def fault(call: Callable[[], Any]) -> str:
    """The fault of a call's answer to an argument; "" if the call worked, or refused with an error of Weft."""
    try:
        result = call()
    except Exception as e:
        documented = type(e) in (ucp.UcsError, TypeError) and len(str(e).split()) >= 4
        return "" if documented and not FOREIGN.search(str(e)) else f"{type(e).__name__}: {e}"
    if isinstance(result, ucp.MemHandle) and not result.unmapped:
        result.unmap()
    elif isinstance(result, (ucp.Context, ucp.Worker, ucp.Endpoint)):
        result.close()
    return ""


def faults(arguments: Callable[[], dict[str, Any]], call: Callable[[dict[str, Any]], Any]) -> Iterator[str]:
    """One line for each argument and value that the call takes wrongly."""
    for argument in arguments():
        for what, value in VALUES.items():
            if argument == "timeout" and what in WAITS:
                continue
            if wrong := fault(lambda a=argument, v=value: call({**arguments(), a: v})):  # type: ignore[misc]
                yield f"{argument}={what}: {wrong}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "method"), CALLS, ids=[f"{n}.{m}" for n, m in CALLS])
def test_bad_value_of_each_argument_is_refused_in_words(stage: Stage, name: str, method: str) -> None:
    def call(given: dict[str, Any]) -> Any:
        handle = getattr(stage, name)
        if name == "Endpoint" and method.startswith("close"):
            handle = stage.Worker.ep_create(stage.Worker.address)
        return getattr(handle, method)(**given)

    call(CALLS[name, method](stage))  # it works as it stands
    assert "\n".join(faults(lambda: CALLS[name, method](stage), call)) == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_value_given_to_a_function_is_refused_in_words(stage: Stage, name: str) -> None:
    getattr(ucp, name)(**FUNCTIONS[name](stage))
    assert "\n".join(faults(lambda: FUNCTIONS[name](stage), lambda given: getattr(ucp, name)(**given))) == ""


@pytest.mark.parametrize("name", STRUCTS)
def test_bad_value_of_each_field_of_a_struct_is_refused_in_words(stage: Stage, name: str) -> None:
    take, make = STRUCTS[name]

    def fields() -> dict[str, Any]:
        return {f.name: getattr(make(stage), f.name) for f in dataclasses.fields(make(stage))}

    assert fault(lambda: take(stage)(make(stage))) == ""
    assert "\n".join(faults(fields, lambda given: take(stage)(getattr(ucp, name)(**given)))) == ""


def test_bad_values_are_tried_on_every_call() -> None:
    missing = []
    for name in CLASSES:
        for method, function in vars(getattr(ucp, name)).items():
            if method.startswith("_") or not inspect.isfunction(function) or (name, method) in CALLS:
                continue
            if method not in WITHOUT_ARGUMENTS or len(inspect.signature(function).parameters) > 1:
                missing.append(f"{name}.{method}")
    functions = {n for n in ucp.__all__ if inspect.isfunction(getattr(ucp, n))}
    structs = {n for n in ucp.__all__ if dataclasses.is_dataclass(getattr(ucp, n))}
    assert missing == []
    assert functions - set(FUNCTIONS) == set()
    assert structs - set(STRUCTS) == {"RequestParam"}  # the operations take this struct, in the extension


def test_wrong_struct_error_names_the_right_struct(stage: Stage) -> None:
    other = ucp.RkeyCompareParams()
    for call, needed in (
        (lambda: stage.MemHandle.query(other), "MemAttr"),  # type: ignore[arg-type]
        (lambda: stage.MemHandle.pack(other), "MemhPackParams"),  # type: ignore[arg-type]
        (lambda: stage.Context.worker_create(other), "WorkerParams"),  # type: ignore[arg-type]
        (lambda: ucp.Context(other), "Params"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=rf"must be a ucp\.{needed}, not RkeyCompareParams"):
            call()
    with refused(INVALID_PARAM, "flags is -1"):
        stage.MemHandle.pack(flags=-1)


@pytest.mark.parametrize("by_param", [False, True], ids=["keyword", "param"])
def test_cb_that_is_not_callable_is_refused_at_the_call(stage: Stage, by_param: bool) -> None:
    here, at, key = bytearray(8), stage.MemHandle.address, stage.RemoteKey
    datatype = ucp.dt_make_contig(8)
    more: dict[str, Any] = {"cb": 5}
    if by_param:
        mask = ucp.OP_ATTR_FIELD_CALLBACK | ucp.OP_ATTR_FIELD_DATATYPE
        more = {"param": ucp.RequestParam(int(mask), cb=5, datatype=datatype)}  # type: ignore[arg-type]
    for call in (
        lambda: stage.Endpoint.put_nbx(here, at, key, **more),
        lambda: stage.Endpoint.get_nbx(here, at, key, **more),
        lambda: stage.Endpoint.atomic_op_nbx(ucp.ATOMIC_OP_ADD, here, at, key, **more),
        lambda: stage.Endpoint.flush_nbx(**more),
        lambda: stage.Worker.flush_nbx(**more),
    ):
        with pytest.raises(TypeError, match=r"nbx: cb is 5; it has to be callable"):
            call()
    stage.rig.flush()
    assert stage.rig.get(8, at, key) == bytes(8)
