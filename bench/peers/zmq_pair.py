"""pyzmq between two processes (PAIR over ipc), as JSON: messages, because pyzmq has no one-sided operations.

put_N         a message of N bytes, of a stream that is acknowledged at its end
put_8, get_8  a message and its answer
put_8_call    the call alone
message_N     half the time of a message and its answer; message_N_median: of the same batches
message_rate  a message of 8 bytes of the stream

Figures are the least over short batches, in nanoseconds. Processes are not bound to cores, because each has a second
thread, which does the work.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics

import zmq
from timing import SIZES, count_of, least, ping_pong


def answer(address: str) -> None:
    """The other process: "e..." comes back, "s" begins a stream that "a" ends, anything else is dropped."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.connect(address)
        while True:
            message = socket.recv(copy=False)
            kind = bytes(message.buffer[:1])
            if kind in (b"e", b"a"):
                socket.send(message)
            elif kind == b"q":
                return


def main() -> None:
    address = f"ipc://@weft-bench-zmq-{os.getpid()}"
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.bind(address)
        process = multiprocessing.get_context("spawn").Process(target=answer, args=(address,), daemon=True)
        process.start()
        socket.send(b"a")
        socket.recv()
        echo = b"e" * 8

        def stream(size):
            message = b"s" * size

            def run(count):
                for _ in range(count):
                    socket.send(message, copy=size < 65536)
                socket.send(b"a")
                socket.recv()

            return run

        def calls(count):
            for _ in range(count):
                socket.send(b"s" * 8)

        def trip(count):
            for _ in range(count):
                socket.send(echo)
                socket.recv()

        found: dict[str, float | str] = {"library": f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}"}
        found["put_8_call"] = least(calls, 200)
        found["put_8"] = found["get_8"] = least(trip, 200)
        for size in SIZES:
            found[f"put_{size}"] = least(stream(size), count_of(size))
        for size, count in ((8, 200), (1 << 20, 20)):
            message = b"e" * size

            def half(count, message=message):
                for _ in range(count):
                    socket.send(message, copy=len(message) < 65536)
                    socket.recv(copy=len(message) < 65536)

            halves = [least(half, count, 1) / 2 for _ in range(30)]
            found[f"message_{size}"], found[f"message_{size}_median"] = min(halves), statistics.median(halves)
        found["message_rate"] = least(stream(8), 5000, 10)
        found["half_round_trip"] = ping_pong(lambda _: socket.send(echo), lambda _: socket.recv())
        socket.send(b"q")
        process.join(10)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
