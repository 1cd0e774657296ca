"""A wire between two network namespaces for kernels without netem: TUN devices, and this process in between.

    python -m tests.procs.relay NAMESPACE_A NAMESPACE_B SEED

Makes `eth0` in both, says "ready", and carries packets as the last line on stdin says: delay_ms jitter_ms loss.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA  # <linux/if_tun.h>
_IFF_TUN_NO_PI = 0x1001
_CLONE_NEWNET = 0x40000000
_PACKET_MAX = 1 << 16


def device(namespace: str) -> int:
    """A TUN device in a namespace, which this thread is in from here on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN_NO_PI))
    return fd


def main(a: str, b: str, seed: str) -> None:
    rng = random.Random(int(seed))
    ends = [device(a), device(b)]
    print("ready", flush=True)
    delay = jitter = loss = 0.0
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([*ends, 0], [], [], left)
        if 0 in ready:
            line = os.read(0, 4096).decode()
            if not line:
                return
            delay, jitter, loss = (float(word) for word in line.strip().splitlines()[-1].split())
            print("ok", flush=True)
        for i, fd in enumerate(ends):
            if fd not in ready:
                continue
            for _ in range(64):
                try:
                    packet = os.read(fd, _PACKET_MAX)
                except OSError:  # nothing more, or the device is down
                    break
                if rng.random() >= loss:
                    count += 1
                    due = time.monotonic() + (delay + jitter * rng.random()) / 1000
                    heapq.heappush(waiting, (due, count, ends[1 - i], packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, fd, packet = heapq.heappop(waiting)
            try:
                os.write(fd, packet)
            except OSError:  # down, or full: a wire loses it
                pass


if __name__ == "__main__":
    main(*sys.argv[1:4])
