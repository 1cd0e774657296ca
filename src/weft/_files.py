"""Files that processes of a user share: the registry's folder, private folders, a lock, and replacing a file whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from . import errors

_NOT_REGULAR = "it is no regular file"
LOCK_S_MAX = 10.0  # changes take milliseconds; a slower holder is stopped or stuck


def registry_said() -> Path | None:
    """WEFT_CXI_REGISTRY, None if it is not set. Raises InvalidArgument if it is not an absolute path."""
    said = os.environ.get("WEFT_CXI_REGISTRY", "")
    if not said:
        return None
    if not os.path.isabs(said):
        raise errors.InvalidArgument(
            f"WEFT_CXI_REGISTRY={said!r} in the environment is no absolute path\n"
            f"  try: WEFT_CXI_REGISTRY={os.path.abspath(said)}"
        )
    return Path(said)


def runtime_folder() -> Path:
    """The folder for files of running processes of this user: $XDG_RUNTIME_DIR/weft, or one in the temporary folder."""
    run = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(run) and os.path.isdir(run):
        return Path(run, "weft")
    return _in_temporary_folder()


def _in_temporary_folder() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp", f"weft-{os.geteuid()}")


def private_folder_in_runtime(path: Path) -> None:
    """`private_folder` for a folder that may be in `runtime_folder()`."""
    if path.parent == _in_temporary_folder():  # any user can make the folder above it
        private_folder(path.parent)
    private_folder(path)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert errors of the system (disk full, read-only file system ...) to Weft's, with the file and a remedy."""
    try:
        yield
    except errors.FabricError:
        raise
    except OSError as reason:
        what = (
            "that you can write to" if reason.errno in (errno.EACCES, errno.EROFS) else "on a file system that has room"
        )
        todo = f"rm {path}" if reason.strerror == _NOT_REGULAR else f"WEFT_CXI_REGISTRY=<a folder {what}>"
        raise errors.make(reason.errno or errno.EIO, f"registry: {path}: {reason.strerror}\n  try: {todo}") from None


def private_folder(path: Path) -> None:
    """Make a private folder, and the folders above it. Raises AccessDenied if other users can access the folder."""
    try:
        path.mkdir(mode=0o700)
    except FileNotFoundError:
        private_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as reason:
        raise errors.AccessDenied(
            f"registry: the folder {path} cannot be made: {reason.strerror}\n"
            "  try: WEFT_CXI_REGISTRY=<a folder that you can write to>"
        ) from None
    found = os.lstat(path)
    if found.st_uid != os.geteuid():
        raise errors.AccessDenied(
            f"registry: {path} belongs to user {found.st_uid}, this is user {os.geteuid()}\n"
            "  rule: a registry is private to its user: who may write to it decides about services and keys\n"
            "  try: WEFT_CXI_REGISTRY=<a folder of your own>"
        )
    if not os.path.isdir(path) or os.path.islink(path):
        raise errors.AccessDenied(
            f"registry: {path} is no folder, or a link to one\n  try: WEFT_CXI_REGISTRY=<the folder itself>"
        )
    if found.st_mode & 0o077:
        way = f"chmod 700 {path}" if _is_ours(path) else f"WEFT_CXI_REGISTRY={path / 'weft-cxi'}, a folder of its own"
        raise errors.AccessDenied(
            f"registry: the folder {path} has mode {found.st_mode & 0o777:04o}: others can get at it\n  try: {way}"
        )


def _is_ours(path: Path) -> bool:
    """True if the folder is empty or a registry's. The mode of other folders, such as /tmp, must not be changed."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return not names or bool({"registry.json", "fabrics.json"} & set(names))


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Raises OSError (EINVAL) for anything else: in a FIFO's or device's place a plain
    open would wait for a writer, and a read would not end."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    except OSError as reason:
        if reason.errno != errno.ENXIO:  # a FIFO that nobody reads
            raise
    else:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    raise OSError(errno.EINVAL, _NOT_REGULAR, os.fspath(path))


def read_regular(path: str | os.PathLike[str], limit: int = -1) -> bytes:
    """The bytes of a regular file, at most `limit`. Raises as `open_regular`."""
    with open(open_regular(path), "rb") as file:
        return file.read(limit)


# After a fork in the middle of a change the child would keep the lock, so forks wait until changes have ended.
forks_wait = threading.RLock()
os.register_at_fork(before=forks_wait.acquire, after_in_parent=forks_wait.release, after_in_child=forks_wait.release)


@contextlib.contextmanager
def locked(path: Path, what: str, limit_s: float | None = None) -> Iterator[None]:
    """Hold the lock file `path`.

    Args:
        limit_s: Seconds to wait for the holder; None: LOCK_S_MAX.

    Raises:
        Busy: Another process does not release the lock; the message names the holder.
    """
    with forks_wait:
        with explained(path):
            fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            _take(fd, path, what, LOCK_S_MAX if limit_s is None else limit_s)
            with contextlib.suppress(OSError):  # the text is only for the errors of waiting processes
                os.pwrite(fd, b"%-20d\n" % os.getpid(), 0)
            yield
        finally:
            os.close(fd)


def _take(fd: int, path: Path, what: str, limit_s: float) -> None:
    deadline, pause_s = time.monotonic() + limit_s, 0.0002
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
                raise errors.Busy(
                    f"{what}: process {holder} has held {path} for {limit_s:g} s\n"
                    f"  try: see what it does (ps {holder}); the lock goes with the process"
                ) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)


def replace(path: Path, text: str, after_ns: int = 0) -> None:
    """Replace the file by `text` atomically. Requires the lock, because the temporary file has a fixed name.

    Args:
        after_ns: The new file's time is later than this, whatever the clock's resolution, so that a reader that
            compares inode, time and size notices the change.
    """
    new = path.with_name(path.name + ".new")
    with explained(path):
        fd = open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        try:
            data = text.encode()
            while data:
                data = data[os.write(fd, data) :]
            now = max(time.time_ns(), after_ns + 1)
            os.utime(fd, ns=(now, now))
        finally:
            os.close(fd)
        os.rename(new, path)
