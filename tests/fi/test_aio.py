"""Calls of an endpoint that coroutines await (fi.AsyncEndpoint)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from tests.fi.group_support import join_all, members
from tests.fi.msg_support import CAPS, TAG, alone, data_of, talkers
from tests.fi.support import KEY, WATCHDOG_S, Node, opened

from weft import fi

pytestmark = pytest.mark.general("messages")


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), WATCHDOG_S))


@pytest.mark.parametrize("tagged", [False, True], ids=["msg", "tagged"])
@pytest.mark.parametrize("length", [0, 8, 10_000, 1 << 20])
def test_send_and_receive_are_awaited(length: int, tagged: bool) -> None:
    with talkers(wait_obj=fi.WAIT_FD) as (sender, receiver, peer):
        payload, room = data_of(length), np.zeros(length, np.uint8)

        async def main() -> tuple[Any, Any]:
            async with fi.AsyncEndpoint(sender.ep) as here, fi.AsyncEndpoint(receiver.ep) as there:
                if tagged:
                    taking = asyncio.create_task(there.trecv(room, tag=TAG, context="r"))
                    await asyncio.sleep(0)
                    return await here.tsend(payload, None, peer, TAG, context="s"), await taking
                taking = asyncio.create_task(there.recv(room, context="r"))
                await asyncio.sleep(0)
                return await here.send(payload, None, peer, context="s"), await taking

        sent, received = run(main)
        assert (sent.op_context, received.op_context, received.len) == ("s", "r", length)
        assert np.array_equal(room, payload)


def test_waiting_receive_leaves_the_loop_to_other_tasks() -> None:
    """The loop sleeps on the descriptor: another task, and a message of another thread, wake it."""
    with talkers(wait_obj=fi.WAIT_FD) as (sender, receiver, peer):

        async def main() -> list[str]:
            order: list[str] = []
            async with fi.AsyncEndpoint(receiver.ep) as ep:

                async def receive() -> None:
                    await ep.trecv(bytearray(8), tag=TAG)
                    order.append("received")

                waiting = asyncio.create_task(receive())
                await asyncio.sleep(0.01)
                order.append("other")
                await asyncio.get_running_loop().run_in_executor(None, sender.ep.tinject, b"12345678", peer, TAG)
                await waiting
            return order

        assert run(main) == ["other", "received"]


def test_many_tasks_await_one_endpoint() -> None:
    with alone(wait_obj=fi.WAIT_FD) as node:

        async def main() -> list[int]:
            async with fi.AsyncEndpoint(node.ep) as ep:
                takes = [asyncio.create_task(ep.trecv(bytearray(8), tag=tag)) for tag in range(100)]
                await asyncio.gather(*(ep.tsend(b"12345678", None, node.me, tag) for tag in reversed(range(100))))
                return [entry.tag for entry in await asyncio.gather(*takes)]

        assert run(main) == list(range(100))


def test_structs_and_transfers_are_awaited_too() -> None:
    with opened(int(CAPS | fi.RMA | fi.ATOMIC), wait_obj=fi.WAIT_FD) as node:
        memory = np.zeros(8, np.uint64)
        node.reg(memory, requested_key=KEY)

        async def main() -> None:
            async with fi.AsyncEndpoint(node.ep) as ep:
                entry = await ep.write(np.arange(8, dtype="u8"), None, node.me, 0, KEY, context="w")
                assert (entry.op_context, entry.flags) == ("w", fi.RMA | fi.WRITE)
                old = np.zeros(1, np.uint64)
                await ep.fetch_atomic(np.ones(1, "u8"), None, old, None, node.me, 8, KEY, datatype=fi.UINT64, op=fi.SUM)
                assert (old[0], memory[1]) == (1, 2)
                msg = fi.MsgTagged([bytearray(8)], tag=TAG, context="mine")
                taking = asyncio.create_task(ep.trecvmsg(msg, int(fi.COMPLETION)))
                await asyncio.sleep(0)
                await ep.tinject(b"12345678", node.me, TAG)
                assert (await taking).op_context == msg.context == "mine"

        run(main)


def test_failure_is_raised_with_its_entry() -> None:
    with alone(wait_obj=fi.WAIT_FD) as node:

        async def main() -> fi.CqErrEntry:
            async with fi.AsyncEndpoint(node.ep) as ep:
                await ep.tinject(b"x" * 100, node.me, TAG)
                with pytest.raises(
                    fi.FabricError, match="the message has 100 B, and the receive had room for 60 B"
                ) as caught:
                    await ep.trecv(bytearray(60), tag=TAG)
                entry: fi.CqErrEntry = caught.value.completion
                return entry

        assert run(main).err == fi.ETRUNC


def test_cancelled_task_cancels_its_receive() -> None:
    with alone(wait_obj=fi.WAIT_FD) as node:

        async def main() -> Any:
            async with fi.AsyncEndpoint(node.ep) as ep:
                with pytest.raises((TimeoutError, asyncio.TimeoutError)):
                    await asyncio.wait_for(ep.trecv(bytearray(8), tag=TAG, context="first"), 0.01)
                taking = asyncio.create_task(ep.trecv(bytearray(8), tag=TAG, context="second"))
                await asyncio.sleep(0)
                await ep.tinject(b"12345678", node.me, TAG)
                return (await taking).op_context

        assert run(main) == "second"


def test_call_waits_for_room() -> None:
    def few(info: fi.Info) -> None:
        info.rx_attr.size = 2

    with alone(edit=few, wait_obj=fi.WAIT_FD) as node:

        async def main() -> int:
            async with fi.AsyncEndpoint(node.ep) as ep:
                takes = [asyncio.create_task(ep.trecv(bytearray(8), tag=TAG)) for _ in range(6)]
                for _ in range(6):
                    await ep.tsend(b"12345678", None, node.me, TAG)
                return len(await asyncio.gather(*takes))

        assert run(main) == 6


def test_misuse_is_refused_in_words(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument, match="WAIT_FD"):
        fi.AsyncEndpoint(node.ep)
    with alone(wait_obj=fi.WAIT_FD) as other:

        async def main() -> fi.AsyncEndpoint:
            ep = fi.AsyncEndpoint(other.ep)
            with pytest.raises(fi.InvalidArgument, match="several completions"):
                await ep.recvmsg(fi.Msg([bytearray(64)]), int(fi.MULTI_RECV))
            taking = asyncio.create_task(ep.trecv(bytearray(8), tag=TAG))
            await asyncio.sleep(0)
            ep.close()
            with pytest.raises(fi.Canceled):
                await taking
            with pytest.raises(fi.BadState, match="closed"):
                await ep.tsend(b"1", None, other.me, TAG)
            return ep

        ep = run(main)
        with pytest.raises(fi.BadState, match="another event loop"):
            run(lambda: ep.tsend(b"1", None, other.me, TAG))


def test_collectives_are_awaited() -> None:
    with members(2, wait_obj=fi.WAIT_FD) as found:
        groups = join_all(found)

        async def member(at: int) -> tuple[int, Any]:
            result = np.zeros(1, "i8")
            async with fi.AsyncEndpoint(found[at].ep) as ep:
                await ep.barrier(groups[at])
                done = await ep.allreduce(
                    np.full(1, at + 1, "i8"), None, None, result, None, groups[at], op=fi.SUM, context="sum"
                )
            return int(result[0]), done.op_context

        async def main() -> list[tuple[int, Any]]:
            return await asyncio.gather(member(0), member(1))

        assert run(main) == [(3, "sum"), (3, "sum")]
