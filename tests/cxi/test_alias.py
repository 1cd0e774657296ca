"""Aliases of CXI endpoints: flags, traffic class, order. fi_cxi(7) "CXI Alias EP Overrides"."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import CAPS, opened, register
from tests.fi.support import Node
from tests.patience import run

from weft import cxi, fi
from weft.providers.cxi import telemetry

ROOT = Path(__file__).parents[2]


@pytest.mark.clause("cxi.alias.create")
def test_alias_has_flags_of_its_own() -> None:
    with opened(cq_flags=int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)) as node:
        memory = np.zeros(1, "u8")
        key = register(node, memory, 200).key
        with node.ep.alias(fi.TRANSMIT | fi.COMPLETION) as loud:
            loud.write(np.full(1, 7, "u8"), None, node.me, 0, key, "alias")
            assert [entry.op_context for entry in node.wait()] == ["alias"]
            node.ep.write(np.full(1, 8, "u8"), None, node.me, 0, key, "original")
            loud.write(np.full(1, 9, "u8"), None, node.me, 0, key, "alias")
            assert [entry.op_context for entry in node.wait()] == ["alias"]
            assert memory[0] == 9


@pytest.mark.parametrize("flags", [0, int(fi.COMPLETION), int(fi.TRANSMIT | fi.RECV | fi.COMPLETION)])
def test_alias_is_of_one_side(node: Node, flags: int) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.ep.alias(flags)


@pytest.mark.clause("cxi.alias.tclass", "cxi.alias.set-tclass", "cxi.alias.several")
def test_traffic_class_is_of_one_alias(node: Node) -> None:
    def tclass(ep: Any) -> int:
        return int(ep.policy.tclass)

    key = register(node, np.zeros(1, "u8"), 200).key
    with node.ep.alias(fi.TRANSMIT) as first, node.ep.alias(fi.TRANSMIT) as second:
        first.set_val(cxi.OPT_CXI_SET_TCLASS, fi.TC_LOW_LATENCY)
        second.control(fi.SET_VAL, (cxi.OPT_CXI_SET_TCLASS, int(fi.TC_BULK_DATA)))
        assert (tclass(first), tclass(second), tclass(node.ep)) == (
            fi.TC_LOW_LATENCY,
            fi.TC_BULK_DATA,
            fi.TC_BEST_EFFORT,
        )
        first.set_val(cxi.OPT_CXI_SET_TCLASS, fi.TC_UNSPEC)
        assert tclass(first) == fi.TC_LOW_LATENCY, "unspecified keeps it"
        for ep in (node.ep, first, second):
            ep.write(np.ones(1, "u8"), None, node.me, 0, key)
            node.wait()


@pytest.mark.parametrize("value", [None, int(fi.TC_NETWORK_CTRL), int(fi.TC_DSCP) | 3, 77, "fast"])
def test_traffic_class_that_is_no_label_is_refused(node: Node, value: Any) -> None:
    with node.ep.alias(fi.TRANSMIT) as alias, pytest.raises(fi.InvalidArgument):
        alias.set_val(cxi.OPT_CXI_SET_TCLASS, value)


@pytest.mark.clause("cxi.alias.msg-order", "cxi.alias.set-msg-order")
def test_order_is_of_one_alias() -> None:
    with opened(CAPS) as node, node.ep.alias(fi.TRANSMIT) as alias:
        assert node.info.tx_attr.msg_order == 0
        alias.set_val(cxi.OPT_CXI_SET_MSG_ORDER, int(fi.ORDER_RMA_WAW))
        assert alias.policy.msg_order == fi.ORDER_RMA_WAW  # type: ignore[attr-defined]
        assert node.ep.policy.msg_order is None  # type: ignore[attr-defined]
        memory = np.zeros(1, "u8")
        key = register(node, memory, 200).key
        for n in range(50):
            alias.write(np.full(1, n, "u8"), None, node.me, 0, key)
        node.wait(50)
        assert memory[0] == 49


def test_every_transfer_of_an_ordered_alias_is_done() -> None:
    """Its fence is no flag of the calls, of which a read takes none like it."""
    with opened(CAPS) as node, node.ep.alias(fi.TRANSMIT) as alias:
        alias.set_val(cxi.OPT_CXI_SET_MSG_ORDER, int(fi.ORDER_RMA_WAW))
        memory, result = np.zeros(2, "u8"), np.zeros(1, "u8")
        key = register(node, memory, 200).key
        ranges, descs = [fi.RmaIov(0, 8, key)], np.zeros(1, fi.RMA_DESC)
        descs[0]["length"], descs[0]["dest_addr"], descs[0]["remote_addr"], descs[0]["key"] = 8, node.me, 8, key
        alias.write(np.full(1, 7, "u8"), None, node.me, 0, key)
        alias.read(result, None, node.me, 0, key)
        alias.readmsg(fi.MsgRma([result], ranges, node.me), int(fi.COMPLETION))
        alias.write_batch(np.full(1, 8, "u8"), descs)
        alias.fetch_atomic(np.ones(1, "u8"), None, result, None, node.me, 0, key, fi.UINT64, fi.SUM)
        node.wait(5)
        assert (memory.tolist(), result[0]) == ([8, 8], 7)


@pytest.mark.parametrize("how", ["opened", "set", "alias"])
def test_write_longer_than_inject_size_is_refused_where_inject_is_a_default_flag(how: str) -> None:
    flags = int(fi.COMPLETION | fi.INJECT | fi.TRANSMIT_COMPLETE)

    def edit(info: fi.Info) -> None:
        if how == "opened":
            info.tx_attr.op_flags = flags

    with opened(CAPS, edit=edit) as node, node.ep.alias(fi.TRANSMIT | flags) as alias:
        ep: Any = alias if how == "alias" else node.ep
        if how == "set":
            ep.control(fi.SETOPSFLAG, fi.TRANSMIT | flags)
        long = np.zeros(node.ep.inject_size + 1, "u1")
        key = register(node, np.zeros(4096, "u1"), 200).key
        for call, buf in ((ep.write, long), (ep.writev, [long])):
            with pytest.raises(fi.MessageTooLong, match="inject_size"):
                call(buf, None, node.me, 0, key)
        ep.read(long, None, node.me, 0, key)
        ep.write(long[:-1], None, node.me, 0, key)
        node.wait(2)


OWNER = """
import sys
import numpy as np
from tests.cxi.support import opened, register
with opened() as node:
    memory, shared = np.zeros(1, "u8"), node.domain.alloc(1, "u8")
    register(node, memory, 300)
    register(node, shared, 301)
    print(bytes(node.ep.getname()).hex(), flush=True)
    sys.stdin.read()
"""

INITIATOR = """
import os, signal, subprocess, sys
import numpy as np
from tests.cxi.support import opened
from weft import cxi, fi
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
    try:
        with opened() as node, node.ep.alias(fi.TRANSMIT) as alias:
            alias.set_val(cxi.OPT_CXI_SET_MSG_ORDER, int(sys.argv[2]))
            peer = node.av.insert(bytes.fromhex(owner.stdout.readline().decode()))
            for key in (300, 301):
                alias.write(np.ones(1, "u8"), None, peer, 0, key)
                node.wait()
            owner.send_signal(signal.SIGSTOP)
            os.waitpid(owner.pid, os.WUNTRACED)
            alias.write(np.ones(1, "u8"), None, peer, 0, 300, "first")
            alias.write(np.ones(1, "u8"), None, peer, 0, 301, "second")
            ended = node.cq.read(2)
            owner.send_signal(signal.SIGCONT)
            ended += node.wait(2 - len(ended))
            print(*(entry.op_context for entry in ended))
    finally:
        owner.kill()
"""


@pytest.mark.parametrize(("order", "ended"), [(0, "second first"), (fi.ORDER_RMA_WAW, "first second")])
def test_write_of_an_ordered_alias_waits_for_the_one_before(order: int, ended: str) -> None:
    """The first write needs its owner, who is stopped; the memory of the second is reached without the owner."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "WEFT_CMA": "0"}
    found = run([sys.executable, "-c", INITIATOR, OWNER, str(int(order))], 60, env=env)
    assert found.stdout.strip() == ended, found.stderr


@pytest.mark.parametrize("value", [None, int(fi.ORDER_RAW), 1 << 60, -1, "all"])
def test_order_that_the_provider_does_not_have_is_refused(node: Node, value: Any) -> None:
    with node.ep.alias(fi.TRANSMIT) as alias, pytest.raises(fi.InvalidArgument):
        alias.set_val(cxi.OPT_CXI_SET_MSG_ORDER, value)


@pytest.mark.clause("cxi.alias.weak-fence", "cxi.alias.weak-fence-no-fence")
def test_weak_fence_needs_no_capability() -> None:
    with opened(CAPS) as node, node.ep.alias(fi.TRANSMIT) as alias:
        assert not node.ep.caps & fi.FENCE
        memory = np.zeros(2, "u8")
        key = register(node, memory, 200).key
        alias.write(np.full(1, 1, "u8"), None, node.me, 0, key)
        flag = fi.MsgRma([np.full(1, 2, "u8")], [fi.RmaIov(8, 8, key)], node.me)
        alias.writemsg(flag, int(fi.COMPLETION | cxi.WEAK_FENCE))
        node.wait(2)
        assert memory.tolist() == [1, 2]
        with pytest.raises(fi.InvalidArgument):
            alias.writemsg(flag, int(fi.COMPLETION | fi.FENCE))


def test_alias_closes_before_its_endpoint_and_refuses_writedata(node: Node) -> None:
    with node.ep.alias(fi.TRANSMIT) as alias:
        for call in (
            lambda: alias.writedata(b"12345678", None, 1, node.me, 0, 1),
            lambda: alias.inject_writedata(b"12345678", 1, node.me, 0, 1),
            lambda: alias.send(b"1"),
        ):
            with pytest.raises(fi.NoSys):
                call()
        with pytest.raises(fi.Busy):
            node.ep.close()


@pytest.mark.clause("cxi.alias.tclass", "cxi.alias.several")
def test_packets_are_counted_by_the_class_of_endpoint_and_alias(node: Node) -> None:
    def sent() -> list[int]:
        telemetry.publish(node.domain.policy.device)
        return [telemetry.read("cxi0", f"HNI_PKTS_SENT_BY_TC_{n}").value for n in range(5)]

    key = register(node, np.zeros(1 << 13, "u1"), 200).key
    with node.ep.alias(fi.TRANSMIT) as low, node.ep.alias(fi.TRANSMIT) as bulk:
        low.set_val(cxi.OPT_CXI_SET_TCLASS, fi.TC_LOW_LATENCY)
        bulk.set_val(cxi.OPT_CXI_SET_TCLASS, fi.TC_BULK_DATA)
        for ep, size in ((node.ep, 1), (low, 2048), (low, 2049), (bulk, 8192)):
            ep.write(bytes(size), None, node.me, 0, key)
            node.wait()
        assert sent() == [0, 3, 4, 1, 0]
        node.ep.set_val(cxi.OPT_CXI_SET_TCLASS, fi.TC_SCAVENGER)
        node.ep.write(b"1", None, node.me, 0, key)
        bulk.write(b"1", None, node.me, 0, key)
        node.wait(2)
        assert sent() == [0, 3, 5, 1, 1]


@pytest.mark.clause("cxi.alias.weak-fence-one-sided")
def test_weak_fence_is_a_flag_of_one_sided_operations(node: Node) -> None:
    key = register(node, np.zeros(1, "u8"), 200).key
    with node.ep.alias(fi.TRANSMIT) as alias:
        one, result = np.ones(1, "u8"), np.zeros(1, "u8")
        atomic = fi.MsgAtomic([one], [fi.RmaIoc(0, 1, key)], node.me, fi.UINT64, fi.SUM)
        alias.writemsg(fi.MsgRma([one], [fi.RmaIov(0, 8, key)], node.me), int(cxi.WEAK_FENCE | fi.COMPLETION))
        alias.atomicmsg(atomic, int(cxi.WEAK_FENCE | fi.COMPLETION))
        alias.fetch_atomicmsg(atomic, [result], None, int(cxi.WEAK_FENCE | fi.COMPLETION))
        node.wait(3)
        assert result[0] == 2
    with opened(fi.MSG | fi.TAGGED) as sender:
        for call in (
            lambda: sender.ep.sendmsg(fi.Msg([b"1"], addr=sender.me), int(cxi.WEAK_FENCE)),
            lambda: sender.ep.tsendmsg(fi.MsgTagged([b"1"], addr=sender.me), int(cxi.WEAK_FENCE)),
        ):
            with pytest.raises(fi.BadFlags):
                call()
