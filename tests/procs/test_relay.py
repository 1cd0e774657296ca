"""The bytes on the wire between two hosts: a relay between two processes writes them down, and changes them."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.procs import peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import World

from weft import fi

pytestmark = pytest.mark.procs

KEY = 7
NBYTES = 1 << 16
WORD = b"find me!"
SECRET = "of the tests, for a relay"


class Relay:
    """Listens for one side and calls the other; `heard` is what both said, `change` may change what the caller says."""

    def __init__(self, port: int, change: Callable[[bytes], bytes] = lambda said: said) -> None:
        self.heard = bytearray()
        self._to, self._change = port, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller = self._listener.accept()[0]
                called = socket.create_connection(("127.0.0.1", self._to))
                self._open += [caller, called]
                for ends, change in (((caller, called), self._change), ((called, caller), bytes)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(*ends, change), daemon=True))
                    self._threads[-1].start()

    def _pass_on(self, ours: socket.socket, theirs: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while said := ours.recv(1 << 16):
                self.heard += said
                theirs.sendall(change(said))
            theirs.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(CALL_S)


def insert(world: World, name: str) -> None:
    world.more["there"] = world.side.av.insert(name)


def write_words(world: World, nbytes: int) -> Any:
    """The outcome of a write of nothing but WORD: 0, or (errno, text)."""
    array = peer.memory(world.side, nbytes, False, 0)
    array[:] = memoryview(WORD * (nbytes // len(WORD)))
    world.side.ep.write(array, dest_addr=world.more["there"], addr=0, key=KEY)
    entry = world.side.outcome(CALL_S / 2)
    return 0 if not isinstance(entry, fi.CqErrEntry) else (entry.err, entry.err_data.decode())


class Two:
    """An owner that listens, a caller that reaches it by way of a relay only."""

    def __init__(self, change: Callable[[bytes], bytes] = lambda said: said, **env: str) -> None:
        env = {"WEFT_SHM": "0", "WEFT_SECRET": SECRET, **env}
        self.owner = Child(WEFT_LISTEN="tcp://127.0.0.1:0", **env)
        self.caller = Child(**env)
        name: str = self.owner.call(peer.open_side)
        self.owner.call(peer.expose, "r", NBYTES, KEY, False)
        found = re.search(r":(\d+)/", name)
        assert found is not None
        self.relay = Relay(int(found[1]), change)
        self.caller.call(peer.open_side)
        self.caller.call(insert, name.replace(f":{found[1]}/", f":{self.relay.port}/"))


@contextlib.contextmanager
def two(change: Callable[[bytes], bytes] = lambda said: said, **env: str) -> Iterator[Two]:
    made = Two(change, **env)
    try:
        with made.owner, made.caller:
            yield made
    finally:
        made.relay.close()


@pytest.mark.parametrize(("encryption", "seen"), [("on", False), ("off", True), ("auto", True)])
@pytest.mark.parametrize("nbytes", [len(WORD), NBYTES])
def test_payload_is_on_the_wire_only_where_encryption_is_off(encryption: str, seen: bool, nbytes: int) -> None:
    with two(WEFT_TCP_ENCRYPTION=encryption) as pair:
        assert pair.caller.call(write_words, nbytes) == 0
        assert pair.owner.call(peer.contents, "r", 0, nbytes) == WORD * (nbytes // len(WORD))
        assert (WORD in bytes(pair.relay.heard)) == seen
        assert SECRET.encode() not in bytes(pair.relay.heard)


@pytest.mark.parametrize("encryption", ["on", "off"])
def test_payload_changed_on_the_wire_reaches_no_memory(encryption: str) -> None:
    greetings = 2 * 184

    passed = 0

    def change(said: bytes) -> bytes:
        nonlocal passed
        start, passed = passed, passed + len(said)
        at = greetings + 40_000  # in the payload of the first long write
        if start <= at < passed:
            said = said[: at - start] + bytes([said[at - start] ^ 1]) + said[at - start + 1 :]
        return said

    with two(change, WEFT_TCP_ENCRYPTION=encryption) as pair:
        err, text = pair.caller.call(write_words, NBYTES)
        assert err != 0, text
        assert WORD not in pair.owner.call(peer.contents, "r", 0, NBYTES)
