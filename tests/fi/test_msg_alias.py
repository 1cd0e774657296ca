"""Messages through aliases of an endpoint (fi_endpoint(3) fi_ep_alias): the alias's flags, the endpoint's queues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cxi.support import opened as opened_cxi
from tests.fi.msg_support import nothing, refused
from tests.fi.support import Node, opened

from weft import fi

pytestmark = pytest.mark.general("messages")

CAPS = int(fi.MSG | fi.TAGGED)
SELECTIVE = int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)


@pytest.fixture(params=["general", "cxi"])
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """An endpoint that sends to itself, and completes only what asks for it."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    with (opened_cxi if request.param == "cxi" else opened)(CAPS, cq_flags=SELECTIVE) as found:
        yield found
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most


@pytest.mark.parametrize("tagged", [False, True])
def test_flags_of_an_alias_are_the_defaults_of_its_calls(node: Node, tagged: bool) -> None:
    tx, rx = node.ep.alias(fi.TRANSMIT | fi.COMPLETION), node.ep.alias(fi.RECV | fi.COMPLETION)
    room = bytearray(3)
    for sender, receiver, told in (
        (node.ep, node.ep, []),
        (tx, node.ep, ["s"]),
        (node.ep, rx, ["r"]),
        (tx, rx, ["r", "s"]),
    ):
        if tagged:
            receiver.trecv(room, tag=1, context="r")
            sender.tsend(b"abc", None, node.me, 1, "s")
        else:
            receiver.recv(room, context="r")
            sender.send(b"abc", None, node.me, "s")
        assert sorted(entry.op_context for entry in (node.wait(len(told)) if told else [])) == told
        while bytes(room) != b"abc":
            assert nothing(node)
        room[:] = bytes(3)
    assert nothing(node)
    tx.close()
    rx.close()


def test_multi_recv_of_an_alias_is_a_default_flag(node: Node) -> None:
    rx = node.ep.alias(fi.RECV | fi.MULTI_RECV | fi.COMPLETION)
    rx.recv(bytearray(200), context="m")
    for _ in range(3):
        node.ep.inject(bytes(50), node.me)
    assert [bool(entry.flags & fi.MULTI_RECV) for entry in node.wait(3)] == [False, False, True]
    rx.close()


@pytest.mark.parametrize("by", ["alias", "endpoint"])
def test_receive_is_cancelled_through_alias_and_endpoint(node: Node, by: str) -> None:
    rx = node.ep.alias(fi.RECV)
    (node.ep if by == "alias" else rx).trecv(bytearray(8), tag=1, context="r")
    (rx if by == "alias" else node.ep).cancel("r")
    entry = refused(node)
    assert (entry.op_context, entry.err) == ("r", fi.ECANCELED)
    with pytest.raises(fi.NotFound):
        rx.cancel("r")
    rx.close()
