"""Arrays of all ranks of a job, by a key-value store that all ranks reach: a folder, torch's TCPStore, or another.

    here = weft.launch.environment()
    store = FileStore(f"/shared/{user}/{job}")                                   # a new folder for each run
    with attach_all(store, array, rank=here.rank, size=here.size) as peers:      # in every rank
        peers[3][10:20]

The store carries one value of each rank, its tickets.
"""

from __future__ import annotations

import datetime
import itertools
import os
import stat
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .. import errors
from ..share import Node
from .channel import RECORD_BYTES_MAX
from .control import pauses
from .peers import DEFAULT_TIMEOUT_S, PeerArrays, Result, meet

# Seconds of one wait at the store. Between two waits the deadline is checked.
_SLICE_S = 0.5
_SETTLE_S = 3.0


class KeyValueStore(Protocol):
    """The methods that attach_all() calls. torch.distributed's stores have them."""

    def set(self, key: str, value: Any, /) -> Any:
        """Store a value, a str or bytes, under a key."""

    def get(self, key: str, /) -> Any:
        """The value of a key that is there, as bytes or str."""

    def wait(self, keys: Any, timeout: Any, /) -> Any:
        """Return when all keys (a list) are there; raise an error after `timeout`, a datetime.timedelta."""


def attach_all(
    store: KeyValueStore,
    array: Any,
    *,
    rank: int,
    size: int,
    name: str = "weft",
    access: str = "rw",
    node: Node | None = None,
    listen: str | None = None,
    secret: str | bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> PeerArrays:
    """Share an array with all ranks, and attach the arrays of all ranks. Collective.

    Args:
        store: Where the ranks meet: a FileStore, a store of torch.distributed, or any object with `set(key, value)`,
            `get(key)` and `wait([keys], timeout)`; `check([keys])`, which does not wait, is used where it is.
        rank: This rank's number; `weft.launch.environment()` knows rank and size under a launcher.
        size: The number of ranks.
        name: Name of the meeting, the same in all ranks. Meetings of one name at one store are counted: ranks call in
            the same order. Keys are `<name>/<count>/<rank>`, and stay in the store.

    `array` and the other arguments, the result and the errors are those of `weft.interop.mpi.attach_all`; TimedOut
    names the ranks that did not come.

    Raises:
        InvalidArgument: `rank` or `size` is wrong.
        TypeError: `store` lacks a method.
    """
    return meet_by_store(
        store,
        dict(array) if isinstance(array, Mapping) else {"": array},
        access,
        rank=rank,
        size=size,
        name=name,
        made=PeerArrays,
        node=node,
        listen=listen,
        secret=secret,
        timeout=timeout,
    )


def meet_by_store(
    store: Any,
    arrays: Mapping[str, Any],
    access: str,
    *,
    rank: int,
    size: int,
    name: str,
    made: type[Result],
    **more: Any,
) -> Result:
    """`meet` with the channel of a store."""
    return meet(_StoreChannel(store, rank, size, name), arrays, access, made=made, **more)


_counts: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(itertools.count)


class _StoreChannel:
    """A channel (channel.py) over a store."""

    advice = "\n  try: a new store for each run, if an earlier run has used this one: its values stay there"

    def __init__(self, store: Any, rank: Any, size: Any, name: Any) -> None:
        for method in ("set", "get", "wait"):
            if not callable(getattr(store, method, None)):
                raise TypeError(
                    f"attach_all: a store has set, get and wait; {type(store).__name__} has no {method}\n"
                    "  try: weft.interop.store.FileStore(folder), or torch.distributed.TCPStore(...)"
                )
        if type(name) is not str or not name:
            raise errors.InvalidArgument(f"attach_all: name is a str with characters, not {name!r:.60}")
        for what, value in (("rank", rank), ("size", size)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise errors.InvalidArgument(
                    f"attach_all: {what} is an integer, not {value!r:.60}\n"
                    "  try: weft.launch.environment() tells it, if a launcher started this process"
                )
        if not 0 <= rank < size:
            raise errors.InvalidArgument(f"attach_all: rank is {rank}; it must be 0 to {size - 1}, below size")
        self.rank: int = rank
        self.size: int = size
        self._store = store
        self._prefix = f"{name}/{next(_counts[name, rank])}"

    def gather(self, mine: bytes, deadline: float, call: str) -> list[bytes]:
        """Set this rank's key, and get those of the others."""
        self._at_store(call, self._store.set, self._key(self.rank), mine.decode())
        missing = [rank for rank in range(self.size) if rank != self.rank]
        found = {self.rank: mine}
        while missing:
            came = [rank for rank in missing if self._wait(rank, deadline, call)]
            for rank in came:
                value = self._at_store(call, self._store.get, self._key(rank))
                found[rank] = value.encode() if isinstance(value, str) else bytes(value)[: RECORD_BYTES_MAX + 1]
            missing = [rank for rank in missing if rank not in found]
            if missing and time.monotonic() > deadline:
                shown = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
                raise errors.TimedOut(
                    f"{call}: {len(missing)} of {self.size} ranks have not come to {self._prefix!r}: ranks {shown}\n"
                    f"{self._twins(mine, call)}"
                    "  rule: every rank calls, with the same store, name and size\n"
                    "  try: see which process has ended or is stopped; a longer timeout="
                )
        return [found[rank] for rank in range(self.size)]

    def _twins(self, mine: bytes, call: str) -> str:
        """Error text when another process registered under this rank and overwrote its record; "" otherwise."""
        found = self._at_store(call, self._store.get, self._key(self.rank))
        if (found.encode() if isinstance(found, str) else bytes(found)) == mine:
            return ""
        return f"  looked at: another process came as rank {self.rank}, too\n"

    def settle(self) -> None:
        """Tell that this rank has all records, and wait for the others to tell the same."""
        over = time.monotonic() + _SETTLE_S
        try:
            self._store.set(f"{self._key(self.rank)}/read", "1")
            others = [rank for rank in range(self.size) if rank != self.rank]
            while others and time.monotonic() < over:
                others = [rank for rank in others if not self._wait(f"{rank}/read", over, "")]
        except Exception:
            pass  # the error that the records tell is the one to raise

    def _key(self, rank: int | str) -> str:
        return f"{self._prefix}/{rank}"

    def _wait(self, rank: int | str, deadline: float, call: str) -> bool:
        """Whether a rank's key is there. Waits a little, and not at all once the deadline is over."""
        begun = time.monotonic()
        seconds = min(max(deadline - begun, 0.001), _SLICE_S)
        check = getattr(self._store, "check", None)
        if callable(check):  # torch's stores print a warning when wait() ends by its timeout
            pause = pauses()
            while not self._at_store(call, check, [self._key(rank)]):
                if time.monotonic() - begun > seconds:
                    return False
                time.sleep(next(pause))
            return True
        try:
            self._store.wait([self._key(rank)], datetime.timedelta(seconds=seconds))
            return True
        except Exception as reason:
            # Stores have errors of their own for a timeout. An error that comes at once is no timeout.
            early = time.monotonic() - begun < 0.8 * seconds
            if early and not isinstance(reason, TimeoutError) and "time" not in str(reason).lower():
                raise _broken(call, reason) from reason
            return False

    def _at_store(self, call: str, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except errors.FabricError:
            raise
        except Exception as reason:
            raise _broken(call, reason) from reason


def _broken(call: str, reason: Exception) -> errors.ConnectionReset:
    return errors.ConnectionReset(
        f"{call}: the store failed: {type(reason).__name__}: {str(reason)[:400]}\n"
        "  try: see whether the rank that has the store still runs"
    )


class FileStore:
    """A store in a folder that all ranks see: of this host, or of a shared file system.

    Args:
        folder: The folder; made if missing, for this user alone. Take a new folder for each run: values stay in the
            folder, and a later run would take an earlier run's values for its own.

    On a shared file system a rank may see another's value some seconds late.

    Raises:
        AccessDenied: The folder belongs to another user, or others may write to it.
        NotFound: A folder above is missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise errors.NotFound(f"FileStore: the folder {self.folder.parent} is not there") from None
        found = self.folder.stat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise errors.AccessDenied(
                f"FileStore: {self.folder} must be a folder of this user that no other user may write to\n"
                f"  found: mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}\n  try: a new folder"
            )

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value. A reader gets a whole value: the earlier value or this one."""
        path = self._path(key)
        part = path.with_name(f"{path.name}.{os.uname().nodename}.{os.getpid()}.part")
        part.write_bytes(value.encode() if isinstance(value, str) else value)
        part.replace(path)

    def get(self, key: str) -> bytes:
        """The value. Raises NotFound if the key is not there: `wait` for it."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise errors.NotFound(f"FileStore: {key!r} is not there\n  try: wait([key])") from None

    def wait(self, keys: Sequence[str], timeout: float | datetime.timedelta = 300.0) -> None:
        """Return when all keys are there. timeout: seconds. Raises TimedOut, which names a missing key."""
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
        over = time.monotonic() + seconds
        for key in keys:
            pause = pauses()
            while not self._path(key).exists():
                if time.monotonic() > over:
                    raise errors.TimedOut(f"FileStore: {key!r} is not there after {seconds:g} s")
                time.sleep(next(pause))

    def _path(self, key: str) -> Path:
        if type(key) is not str or not key or len(key) > 200 or "\0" in key:
            raise errors.InvalidArgument(f"FileStore: a key is a str of 1 to 200 characters, not {key!r:.60}")
        return self.folder / key.replace("%", "%25").replace("/", "%2F").replace(".", "%2E")
