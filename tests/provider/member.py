"""One member of a group whose members are processes of any language: as tests/provider/c/collective_mixed.c."""

from __future__ import annotations

import sys

import numpy as np
from tests.fi.group_support import Member, completed, events

from weft import fi


def main(provider: str, count: int, me: int) -> None:
    with Member("cxi" if provider == "cxi" else "") as one:
        name = one.name
        print("me", (name.encode() + b"\0" if isinstance(name, str) else bytes(name)).hex(), flush=True)
        names = [bytes.fromhex(sys.stdin.readline().split()[-1]) for _ in range(count)]
        one.know(names if provider == "cxi" else [other.rstrip(b"\0").decode() for other in names])
        for again in range(2):
            group = one.join()
            ((event, _),) = events([one])
            assert event == fi.JOIN_COMPLETE
            one.ep.barrier(group)
            completed([one])
            sums = np.zeros(4, "int64")
            one.ep.allreduce(np.array([me, 10 * me, -me, again]), result=sums, coll_addr=group, op=fi.SUM)
            completed([one])
            print("sum", *sums, flush=True)
            for root in range(count):
                word, most = np.array([100 * again + me], "uint32"), np.zeros(1)
                one.ep.broadcast(word, coll_addr=group, root_addr=one.names[root])
                result = most if root == me else None
                one.ep.reduce(
                    np.array([me + 0.5]), result=result, coll_addr=group, root_addr=one.names[root], op=fi.MAX
                )
                completed([one], 2)
                print(f"root {root}: {word[0]} {most[0] if root == me else count - 0.5:g}", flush=True)
            group.close()
    print("closed")


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
