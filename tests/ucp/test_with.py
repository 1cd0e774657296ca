"""`with` on handles of weft.ucp: an exception of the block is raised even if closing fails."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.ucp.support import Rig

from weft import ucp


def _failing(monkeypatch: pytest.MonkeyPatch, rig: Rig, name: str) -> Any:
    """A handle whose closing fails."""

    def fail(*_: Any, **__: Any) -> None:
        raise ucp.UcsError(ucp.Status.ERR_BUSY, "of close")

    memh = rig.alloc()
    made = {
        "Context": lambda: ucp.Context(),
        "Worker": lambda: rig.context.worker_create(),
        "Endpoint": lambda: rig.worker.ep_create(rig.worker.address),
        "MemHandle": lambda: memh,
        "RemoteKey": lambda: rig.key(memh),
    }[name]()
    closing = {"MemHandle": "_unmap", "RemoteKey": "destroy"}.get(name, "close")
    monkeypatch.setattr(type(made), closing, fail)
    return made


@pytest.mark.parametrize("name", ["Context", "Worker", "Endpoint", "MemHandle", "RemoteKey"])
def test_with_keeps_the_blocks_error_when_closing_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as patch:
        handle = _failing(patch, rig, name)
        with pytest.raises(KeyError, match="mine") as caught, handle:
            raise KeyError("mine")
        assert caught.value.__context__ is None
        if sys.version_info >= (3, 11):
            (note,) = caught.value.__notes__
            assert "of close" in note
            assert repr(handle) in note
        with pytest.raises(ucp.UcsError, match="of close"), handle:
            pass
    if name == "Context":
        handle.close()


@pytest.mark.parametrize("error", [None, KeyError("mine")])
def test_with_worker_whose_callback_raises_keeps_the_blocks_error(rig: Rig, error: KeyError | None) -> None:
    """Closing calls the callbacks of canceled operations; the exception of a callback hides no other error."""

    def fail(request: ucp.Request, status: int, user_data: Any) -> None:
        raise ValueError("of a callback")

    memh = rig.alloc()
    worker = rig.context.worker_create()

    def block() -> None:
        with worker:
            ep = worker.ep_create(rig.worker.address)
            rkey = ep.rkey_unpack(memh.pack())
            assert ep.put_nbx(b"x", memh.address, rkey, cb=fail, flags=ucp.OP_ATTR_FLAG_NO_IMM_CMPL)
            if error is not None:
                raise error

    with pytest.raises((ValueError, KeyError)) as caught:
        block()
    assert str(caught.value) == ("of a callback" if error is None else "'mine'")
    assert worker.closed
