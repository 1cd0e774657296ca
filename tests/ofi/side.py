"""A peer in a process of its own, for the tests of two processes.

python side.py PROVIDER serve     prints its address and its region, then serves until its input ends
python side.py PROVIDER leave     opens everything, has receives outstanding, and leaves without closing
"""

from __future__ import annotations

import json
import select
import sys

import numpy as np
from tests.ofi.support import CAPS, drain, offer, open_node

from weft import fi


def serve(provider: str) -> None:
    node = open_node(offer(provider))
    memory = np.arange(4096, dtype=np.uint8)
    mr = node.register(memory)
    address = node.ep.getname()
    told = {
        "address": address if isinstance(address, str) else address.hex(),
        "text": isinstance(address, str),
        "place": node.place(mr),
        "key": mr.key,
    }
    rooms = [bytearray(64) for _ in range(8)]
    for room in rooms:
        node.ep.trecv(room, tag=1, context=room)
    print(json.dumps(told), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:  # progress is made in calls alone
        drain(node)
        for entry in node.seen:
            if isinstance(entry.op_context, bytearray):
                print(bytes(entry.op_context[: entry.len]).decode(), flush=True)
        node.seen.clear()
    node.close()
    print("closed", flush=True)


def leave(provider: str) -> None:
    node = open_node(offer(provider))
    for _ in range(20):
        node.ep.trecv(bytearray(8), tag=1, context=object())
    node.register(np.zeros(1 << 16, np.uint8))
    assert CAPS & fi.RMA
    globals()["kept"] = node
    print("leaving", flush=True)


if __name__ == "__main__":
    {"serve": serve, "leave": leave}[sys.argv[2]](sys.argv[1])
