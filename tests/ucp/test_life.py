"""Life cycle of contexts, workers, endpoints, handles and keys; their reprs; their errors."""

from __future__ import annotations

import copy
import errno
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tests.procs.children import run
from tests.ucp.support import INVALID_PARAM, IO_ERROR, NO_IMM, OK, PAGE, WATCHDOG_S, Rig, array, ended, opened, refused

from weft import ucp

# ---- closing ---------------------------------------------------------------------------------------------------------


def test_closing_a_context_closes_all_that_was_made_of_it(rig: Rig) -> None:
    context = ucp.Context()
    worker = context.worker_create()
    ep = worker.ep_create(rig.worker.address)
    data = array()
    mapped, allocated = context.mem_map(data), context.mem_map(length=PAGE, allocate=True)
    with rig.alloc() as memh:
        rkey = ep.rkey_unpack(memh.pack())
        imported = context.mem_map(exported_memh_buffer=memh.pack(flags=int(ucp.MEMH_PACK_FLAG_EXPORT)))
        context.close()
        assert context.closed
        assert worker.closed
        assert ep.closed
        assert rkey.destroyed
        assert mapped.unmapped
        assert allocated.unmapped
        assert imported.unmapped
        context.close()  # again does nothing
        worker.close()
        ep.close()


@pytest.mark.clause("ucp.unmap.memh-invalid")
def test_closed_context_is_refused_everywhere() -> None:
    context = ucp.Context()
    worker = context.worker_create()
    memh = context.mem_map(array())
    empty = context.mem_map(length=0)
    context.close()
    calls: list[Callable[[], Any]] = [
        lambda: context.mem_map(array()),
        lambda: context.mem_map(length=8, allocate=True),
        lambda: context.mem_map(length=0),
        lambda: context.mem_unmap(memh),
        lambda: context.mem_advise(memh, advice=0),
        lambda: context.mem_print_info("1k"),
        lambda: context.worker_create(),
        lambda: worker.ep_create(b""),
        lambda: worker.address,
        worker.get_address,
        lambda: worker.fi_name,
        worker.progress,
        worker.fence,
        worker.flush_nbx,
        memh.pack,
        memh.query,
        empty.pack,
        empty.query,
    ]
    for call in calls:
        with refused(INVALID_PARAM, "closed|destroyed|unmapped"):
            call()
    with pytest.warns(DeprecationWarning, match="deprecated"), refused(INVALID_PARAM, "closed"):
        context.rkey_pack(memh)


@pytest.mark.parametrize("order", ["worker first", "memory first", "endpoint last"])
def test_objects_end_in_any_order(rig: Rig, order: str) -> None:
    with rig.alloc() as target:
        context = ucp.Context()
        worker = context.worker_create()
        memh = context.mem_map(length=PAGE, allocate=True)
        ep = worker.ep_create(rig.worker.address)
        rkey = ep.rkey_unpack(target.pack())
        assert ended(ep.put_nbx(memh[:8], target.address, rkey)) is OK
        steps: dict[str, list[Callable[[], None]]] = {
            "worker first": [worker.close, memh.unmap, ep.close],
            "memory first": [memh.unmap, rkey.destroy, ep.close, worker.close],
            "endpoint last": [rkey.destroy, memh.unmap, worker.close, ep.close],
        }
        for step in steps[order]:
            step()
        context.close()


def fail(kept: list[Any], rig: Rig, target: ucp.MemHandle) -> None:
    """Raises KeyError with everything open."""
    with (
        ucp.Context() as context,
        context.worker_create() as worker,
        context.mem_map(array()) as memh,
        worker.ep_create(rig.worker.address) as ep,
        ep.rkey_unpack(target.pack()) as rkey,
    ):
        kept += [context, worker, memh, ep, rkey]
        assert ended(ep.put_nbx(b"x", target.address, rkey)) is OK
        ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, target.address + PAGE, rkey)  # closing finds that it failed
        raise KeyError


def test_with_blocks_close_on_failure_and_hide_no_error(rig: Rig) -> None:
    kept: list[Any] = []
    with rig.alloc() as target, pytest.raises(KeyError):
        fail(kept, rig, target)
    context, worker, memh, ep, rkey = kept
    assert context.closed
    assert worker.closed
    assert memh.unmapped
    assert ep.closed
    assert rkey.destroyed


def test_memory_stays_reachable_when_workers_go(rig: Rig) -> None:
    """Memory belongs to the context: closing a worker does not unmap it."""
    with ucp.Context() as context, context.mem_map(length=PAGE, allocate=True) as memh:
        context.worker_create().close()
        with (
            context.worker_create() as worker,
            rig.worker.ep_create(worker.address) as ep,
            ep.rkey_unpack(memh.pack()) as rkey,
        ):
            assert ended(ep.put_nbx(b"x", memh.address, rkey)) is OK


def test_unreferenced_objects_are_collected_without_close() -> None:
    context = ucp.Context()
    worker = context.worker_create()
    ep = worker.ep_create(worker.address)
    memh = context.mem_map(array())
    rkey = ep.rkey_unpack(memh.pack())
    assert ended(ep.put_nbx(b"x", memh.address, rkey)) is OK
    gone = [weakref.ref(found) for found in (context, worker, ep, rkey)]
    del context, worker, ep, memh, rkey
    gc.collect()
    assert [found() for found in gone] == [None] * 4


def test_contexts_and_workers_come_and_go(rig: Rig) -> None:
    """Closed workers leave no descriptors or threads: a process can make more workers than it may open descriptors."""
    with rig.alloc() as memh:
        for _ in range(1500):
            with ucp.Context() as context, context.worker_create() as worker:
                worker.get_efd()
                worker.ep_create(rig.worker.address).rkey_unpack(memh.pack())


# ---- fork ------------------------------------------------------------------------------------------------------------

FORK = """
import os, sys, traceback
import numpy as np
from weft import ucp
from tests.ucp.support import opened, ended, INVALID_PARAM
with opened() as rig:
    memh, data = rig.alloc(), np.zeros(64, np.uint8)
    mapped = rig.map(data)
    exported = memh.pack(flags=1)
    imported = rig.map(exported_memh_buffer=exported)
    rkey = rig.key(memh)
    empty = rig.map(length=0)
    at, packed, address = memh.address, memh.pack(), rig.worker.address
    c, w, ep = rig.context, rig.worker, rig.ep
    uses = [
        lambda: ucp.Context.mem_map(c, data), lambda: c.mem_map(length=8, allocate=True), lambda: c.mem_map(length=0),
        lambda: c.mem_unmap(memh), lambda: c.mem_advise(memh, advice=1), lambda: c.mem_print_info("1k"),
        c.worker_create, memh.pack, memh.query, memh.unmap, lambda: memh.memory, mapped.pack, imported.query,
        empty.pack,
        lambda: w.ep_create(address), w.progress, w.fence, w.flush_nbx, w.get_efd, w.arm, w.signal,
        lambda: w.wait(0), lambda: w.address, lambda: w.rkey_compare(rkey, rkey),
        lambda: ep.rkey_unpack(packed), lambda: ep.put_nbx(b"x", at, rkey), lambda: ep.get_nbx(bytearray(1), at, rkey),
        lambda: ep.put_nbx(np.zeros(1 << 20, np.uint8), at, rkey), lambda: ep.put_nbx([b"x"], at, rkey, datatype=2),
        lambda: ep.atomic_op_nbx(0, 1, at, rkey), ep.flush_nbx, ep.close_nbx,
    ]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for i, use in enumerate(uses):
                try:
                    use()
                except ucp.UcsError as error:
                    assert error.status == INVALID_PARAM, (i, error)
                    assert "parent process" in str(error), (i, error)
                else:
                    raise AssertionError(f"use {i} of the parent's objects went through")
            for it in (c, w, ep, memh, mapped, imported, rkey, empty):
                repr(it)
            for it in (ep, w, c):
                it.close()
            with opened() as own, own.alloc() as fresh, own.key(fresh) as key:
                assert ended(own.ep.put_nbx(b"child", fresh.address, key)) is ucp.Status.OK
                assert bytes(fresh.memory[:5]) == b"child"
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ended(ep.put_nbx(b"parent", at, rkey)) is ucp.Status.OK
    assert bytes(memh.memory[:6]) == b"parent"
    imported.unmap()
"""


@pytest.mark.procs
@pytest.mark.parametrize("engine", ["thread", "manual"])
def test_forked_child_refuses_parent_s_objects_and_makes_new_ones(engine: str) -> None:
    done = run(FORK, WEFT_ENGINE=engine)
    assert done.returncode == 0, done.stderr


# ---- names -----------------------------------------------------------------------------------------------------------


def test_repr_of_every_object_shows_its_state() -> None:
    with ucp.Context(name="here") as context:
        assert repr(context) == "<ucp.Context 'here': RMA|AMO32|AMO64|WAKEUP|EXPORTED_MEMH, 0 mapped, 0 workers>"
        worker = context.worker_create(name="w")
        assert repr(worker) == f"<ucp.Worker 'w' at {worker.fi_name}: 0 endpoints, 0 operations under way>"
        ep = worker.ep_create(worker.address, name="e")
        assert repr(ep) == f"<ucp.Endpoint 'e' to {worker.fi_name}: 0 operations under way, 0 keys>"
        memh = context.mem_map(length=PAGE, allocate=True, prot=0x101)
        assert repr(memh) == f"<ucp.MemHandle 0x{memh.address:x}, {PAGE} B of host memory, LOCAL_READ|REMOTE_READ>"
        assert "no rights" in repr(context.mem_map(array(), prot=0))
        assert "0x0, 0 B" in repr(context.mem_map(length=0))
        rkey = ep.rkey_unpack(memh.pack())
        assert repr(rkey) == repr(memh).replace("MemHandle", "RemoteKey")
        with context.mem_map(array(), symmetric=True) as same:
            assert repr(ep.rkey_unpack(same.pack())).endswith(", symmetric>")
        assert ended(ep.get_nbx(bytearray(1), memh.address, rkey)) is OK
        request = ep.get_nbx(bytearray(1), memh.address, rkey, flags=NO_IMM)
        assert repr(request) == "<ucp.Request: in progress>"
        assert "1 operations under way" in repr(ep)
        assert "1 endpoints, 1 operations under way" in repr(worker)
        request.wait(WATCHDOG_S)
        assert "1 workers" in repr(context)
        rkey.destroy()
        assert repr(rkey).endswith(", destroyed>")
        ep.close()
        assert repr(ep).endswith(": closed>")
        memh.unmap()
        assert repr(memh).endswith(", unmapped>")
        worker.close()
        assert repr(worker) == "<ucp.Worker 'w': destroyed>"
    assert repr(context) == "<ucp.Context 'here': closed>"


def test_keys_and_handles_cannot_be_changed(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for it, name in ((memh, "length"), (memh, "address"), (rkey, "length"), (rkey, "key"), (rkey, "destroyed")):
            with pytest.raises(AttributeError):
                setattr(it, name, 5)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [status for status in ucp.Status if status < 0])
def test_error_carries_its_status_and_survives_pickling(status: ucp.Status) -> None:
    error = ucp.UcsError(status, "what was asked: what was found\n  try: something else")
    for found in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert isinstance(found, OSError)
        assert type(found) is ucp.UcsError
        assert found.status is status
        assert found.message == "what was asked: what was found\n  try: something else"
        assert found.errno == error.errno
        assert found.errno > 0
        assert str(found) == f"{status.name}: {found.message}"
    assert str(ucp.UcsError(status)) == f"{status.name}: {ucp.status_string(status)}"


@pytest.mark.parametrize(
    ("status", "number"),
    [
        ("ERR_NO_MEMORY", errno.ENOMEM),
        ("ERR_INVALID_PARAM", errno.EINVAL),
        ("ERR_BUSY", errno.EBUSY),
        ("ERR_UNREACHABLE", errno.EHOSTUNREACH),
        ("ERR_TIMED_OUT", errno.ETIMEDOUT),
        ("ERR_CANCELED", errno.ECANCELED),
        ("ERR_IO_ERROR", errno.EIO),
        ("ERR_CONNECTION_RESET", errno.ECONNRESET),
    ],
)
def test_error_has_the_system_s_nearest_number(status: str, number: int) -> None:
    """A UcsError does not become one of Python's subclasses of OSError."""
    error = ucp.UcsError(ucp.Status[status], "text")
    assert error.errno == number
    assert type(error) is ucp.UcsError


def test_error_of_a_call_is_pickled_as_it_is(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        request = rig.ep.put_nbx(b"x", memh.address + PAGE, rkey)
        with refused(IO_ERROR) as found:
            request.wait(WATCHDOG_S)
        same = pickle.loads(pickle.dumps(found.value))
        assert (same.status, same.message, str(same)) == (IO_ERROR, found.value.message, str(found.value))


def test_refusals_say_what_to_try() -> None:
    """The message contains a remedy, if there is one."""
    with opened() as rig, rig.alloc() as memh, rig.key(memh) as rkey:
        second = rig.worker.ep_create(rig.worker.address)
        other = ucp.Context()
        refusals: list[tuple[Callable[[], Any], str]] = [
            (lambda: ucp.Context(ucp.Params()), "PARAM_FIELD_FEATURES"),
            (lambda: ucp.Context(features=int(ucp.FEATURE_TAG)), "FEATURE_RMA"),
            (lambda: rig.map(length=8), "allocate=True"),
            (lambda: rig.map(b"constant"), "MEM_MAP_PROT_LOCAL_READ"),
            (lambda: rig.worker.ep_create(), "worker.address"),
            (lambda: rig.ep.put_nbx(b"x", memh.address, None), r"rkey_unpack\(buffer\)"),
            (lambda: second.put_nbx(b"x", memh.address, rkey), r"ep.rkey_unpack\(buffer\) on this endpoint"),
            (lambda: other.mem_unmap(memh), r"memh.context.mem_unmap\(...\)"),
            (lambda: rig.map(array(), prot=3).fi_key, "MEM_MAP_PROT_REMOTE_READ"),
            (lambda: rig.pending(memh.address, rkey).result(), r"request.wait\(\)"),
            (lambda: rkey.destroy(), r"ep.flush_nbx\(\).wait\(\)"),
        ]
        for call, text in refusals:
            with pytest.raises(ucp.UcsError, match=rf"(?s)\n  try: .*{text}"):
                call()
        other.close()
        rig.flush()
