"""What this machine allows a software NIC: each fact comes from a test with the real system call, or from /proc.

`python -m weft.tools._machine PID ADDRESS NBYTES` is the child of the probe of process_vm_readv: it reads memory of the
process that started it, prints the result, and waits while that process reads its memory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import _huge, _nic, _process, _sodium, errors, settings

# Not in Python's fcntl before 3.13: <linux/fcntl.h>, since Linux 5.1.
_F_SEAL_FUTURE_WRITE = 0x10
_USERFAULTFD = {"x86_64": 323, "aarch64": 282}  # <asm/unistd.h>
_UFFD_USER_MODE_ONLY = 1  # <linux/userfaultfd.h>
# Inode numbers of the namespaces that a machine starts with: <linux/proc_ns.h>.
_INITIAL = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}

_PATTERN = b"weft: process_vm"


@dataclass(frozen=True)
class Check:
    """One fact.

    Attributes:
        state: "ok"; "note": Weft works, with the limitation in `effect`; "bad": Weft does not work.
        found: The test or the source, and its result.
        effect: The consequence for Weft.
        todo: The remedy; "" if none is needed.
    """

    group: str
    name: str
    state: str
    found: str
    effect: str = ""
    todo: str = ""


def checks(groups: Container[str] | None = None) -> Iterator[Check]:
    """All facts, in the order of the output; groups: only those of these."""
    for group, one in (
        ("machine", _system),
        ("machine", _cores),
        ("machine", _distribution),
        ("sharing memory", _memfd),
        ("sharing memory", _sockets),
        ("sharing memory", _pidfd),
        ("sharing memory", _huge_pages),
        ("reaching other memory", _cma),
        ("reaching other memory", _ptrace_scope),
        ("reaching other memory", _seccomp),
        ("reaching other memory", _userfaultfd),
        ("reaching other memory", _registration_cache),
        ("limits", _memlock),
        ("limits", _descriptors),
        ("other hosts", _tcp_secret),
        ("other hosts", _tcp_listen),
        ("namespaces", _network_namespace),
        ("namespaces", _process_namespace),
        ("namespaces", _user_namespace),
    ):
        if groups is None or group in groups:
            name, state, *words = one()
            yield Check(group, name, state, *words)


# name, state, found[, effect[, todo]]
_Words = tuple[str, ...]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _why(e: OSError) -> str:
    return f"{errno.errorcode.get(e.errno or 0, e.errno)}, {e.strerror}"


# ---- machine -------------------------------------------------------------------------------------------------------


def _system() -> _Words:
    found = f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}"
    return "system", "ok", found


def _distribution() -> _Words:
    """Whether another project's distribution `weft`, which has a package of the same name, is installed too."""
    import importlib.metadata

    for one in importlib.metadata.distributions(name="weft"):
        if not str(one.metadata["Summary"]).startswith("A memory fabric in software"):
            return (
                "package",
                "note",
                f"weft-fabric, and another project's distribution weft {one.version}",
                "both own the folder weft: files of one may have replaced files of the other",
                "pip uninstall weft weft-fabric, then pip install weft-fabric",
            )
    return "package", "ok", "weft-fabric; no other distribution named weft"


def _cores() -> _Words:
    mine, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{mine} of {there} can be used (affinity)"
    quota = _quota()
    if quota is not None:
        found += f"; the control group allows {quota:.3g} cores' time"
    if mine == 1 or (quota is not None and quota < 2):
        return (
            "cores",
            "note",
            found,
            "two polling peers take turns: small operations cost a context switch",
            "provide two cores: taskset, --cpus=2 of the container",
        )
    return "cores", "ok", found


def _quota() -> float | None:
    """CPU time that the control group (version 2) grants, in cores; None for all."""
    where = next((line[3:] for line in (_read("/proc/self/cgroup") or "").splitlines() if line.startswith("0::")), "/")
    words = (_read(f"/sys/fs/cgroup{where.rstrip('/')}/cpu.max") or "max").split()
    return None if words[0] == "max" else int(words[0]) / int(words[1])


# ---- sharing memory ------------------------------------------------------------------------------------------------


def _memfd() -> _Words:
    try:
        fd = os.memfd_create("weft-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as e:
        return (
            "memfd",
            "bad",
            f"memfd_create: {_why(e)}",
            "Weft cannot make memory to share",
            "allow memfd_create in the seccomp profile; Linux has it since 3.17",
        )
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        mmap.mmap(fd, mmap.PAGESIZE).close()
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | _F_SEAL_FUTURE_WRITE)
        except OSError:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return (
                "memfd",
                "note",
                "made, mapped, sealed against resizing; F_SEAL_FUTURE_WRITE: refused",
                "a malicious peer of the same user could map the memory table writable",
                "Linux 5.1 or newer",
            )
    except OSError as e:
        return (
            "memfd",
            "bad",
            f"made, then failed: {_why(e)}",
            "Weft cannot share memory",
            "check `ulimit -f` and the container's memory limit",
        )
    finally:
        os.close(fd)
    return "memfd", "ok", "made, mapped and sealed"


def _sockets() -> _Words:
    name = "abstract sockets"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0weft-doctor-{os.getpid()}")
            listener.listen()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                one.connect(listener.getsockname())
                other, _ = listener.accept()
                with other:
                    other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                    socket.send_fds(one, [b"x"], [listener.fileno()])
                    _, fds, _, _ = socket.recv_fds(other, 1, 1)
                    for fd in fds:
                        os.close(fd)
    except OSError as e:
        return (
            name,
            "bad",
            _why(e),
            "processes cannot find each other or pass memory",
            "allow AF_UNIX sockets in the sandbox (AppArmor, seccomp, systemd RestrictAddressFamilies)",
        )
    if not fds:
        return (
            name,
            "bad",
            "connected, but no descriptor arrived",
            "processes cannot pass memory",
            "a newer kernel",
        )
    return name, "ok", "bound, connected, asked for credentials, passed a descriptor"


def _pidfd() -> _Words:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as e:
        return (
            "pidfd",
            "note",
            f"pidfd_open: {_why(e) if isinstance(e, OSError) else 'not in this Python'}",
            "Weft notices the death of a peer only by its socket",
            "Linux 5.3 or newer, and a seccomp profile that allows it",
        )
    return "pidfd", "ok", "opened"


def _huge_pages() -> _Words:
    where = "/sys/kernel/mm/transparent_hugepage/"
    modes = {}
    for name in ("enabled", "shmem_enabled"):
        words = (_read(where + name) or "[missing]").split()
        modes[name] = next((word.strip("[]") for word in words if word.startswith("[")), "unknown")
    found = f"transparent: {modes['enabled']}; for shared memory: {modes['shmem_enabled']}"
    if _huge.asks() and _collapses():
        return (
            "huge pages",
            "ok",
            found,
            f"Weft asks for each itself, as arrays of {_huge.PAGE >> 20} MiB and more are filled",
        )
    if modes["shmem_enabled"] in ("never", "deny", "missing"):
        return (
            "huge pages",
            "note",
            found,
            "memory that Weft allocates has small pages: large copies cost more TLB misses",
            f"as root: echo advise > {where}shmem_enabled",
        )
    return "huge pages", "ok", found, "Weft asks for them"


def _collapses() -> bool:
    """Whether the kernel makes a huge page of shared memory when it is asked to: tried, and given back."""
    try:
        fd = os.memfd_create("weft-doctor", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        os.ftruncate(fd, 4 * _huge.PAGE)
        offset = 0
        for _ in range(8):  # address and offset must agree modulo a huge page: a new mapping mostly gets the old place
            with mmap.mmap(fd, 3 * _huge.PAGE, offset=offset) as memory:
                address = _nic.describe_buffer(memory)[0]
                if (address - offset) % _huge.PAGE == 0:
                    return _nic.use_huge_pages(address, 3 * _huge.PAGE)
                offset = address % _huge.PAGE
        return False
    except OSError:
        return False
    finally:
        os.close(fd)


# ---- access to memory of other processes ---------------------------------------------------------------------------


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def vm_read(pid: int, address: int, nbytes: int) -> bytes:
    """process_vm_readv. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    into = ctypes.create_string_buffer(nbytes)
    local, remote = _Iovec(ctypes.addressof(into), nbytes), _Iovec(address, nbytes)
    ulong = ctypes.c_ulong
    n = libc.process_vm_readv(pid, ctypes.byref(local), ulong(1), ctypes.byref(remote), ulong(1), ulong(0))
    if n < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return into.raw[:n]


def _try_vm_read(pid: int, address: int) -> str:
    """ "" if it worked, otherwise the kernel's error."""
    try:
        return "" if vm_read(pid, address, len(_PATTERN)) == _PATTERN else "it read other bytes"
    except OSError as e:
        return _why(e)


def _cma() -> _Words:
    """Test both directions: under Yama a process may read its child's memory, but the child not its parent's."""
    mine = ctypes.create_string_buffer(_PATTERN)
    with subprocess.Popen(
        [sys.executable, "-m", "weft.tools._machine", str(os.getpid()), str(ctypes.addressof(mine))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C must reach only this process; the child ends with its stdin
    ) as child:
        assert child.stdout is not None
        address, _, upwards = child.stdout.readline().rstrip("\n").partition(" ")
        downwards = _try_vm_read(child.pid, int(address)) if address else "the child did not start"
    name = "process_vm_readv (CMA)"
    effect = "the owner's engine copies memory that Weft did not allocate, through the ring"
    if downwards:
        return name, "note", f"refused, even on a child: {downwards}", effect, _cma_todo()
    if upwards:
        return (
            name,
            "note",
            f"works on a child; refused on any other process: {upwards}",
            effect + ", unless the owner is a child of the reader",
            _cma_todo(),
        )
    return name, "ok", "a parent read its child, and the child its parent"


def _cma_todo() -> str:
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if scope not in (None, "0"):
        kernel = "as root: sysctl kernel.yama.ptrace_scope=0"
    else:
        kernel = "in a container: --cap-add=SYS_PTRACE, or a seccomp profile that allows process_vm_readv and _writev"
    return f"{kernel}; or allocate with weft.empty(), which needs neither"


def _ptrace_scope() -> _Words:
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if scope is None:
        return "ptrace scope", "ok", "no Yama in this kernel: processes of one user may read each other"
    meaning = {
        "0": "processes of one user may read each other",
        "1": "a process may read its descendants only",
        "2": "only with CAP_SYS_PTRACE",
        "3": "no process may",
    }.get(scope, "unknown")
    state = "ok" if scope == "0" else "note"
    return "ptrace scope", state, f"{scope}: {meaning}", "" if scope == "0" else "see process_vm_readv above"


def _seccomp() -> _Words:
    status = dict(line.split(":\t", 1) for line in (_read("/proc/self/status") or "").splitlines() if ":\t" in line)
    mode = status.get("Seccomp", "").strip()
    if mode == "0":
        return "seccomp", "ok", "off"
    filters = status.get("Seccomp_filters", "?").strip()
    said = {"1": "strict", "2": f"{filters} filters are installed"}.get(mode, "unknown")
    return "seccomp", "ok", said, "a filter may refuse system calls; this command tests those that Weft makes"


def _userfaultfd() -> _Words:
    effect = "watches memory for the registration cache under FI_MR_CACHE_MONITOR=userfaultfd, or where memhooks cannot"
    number = _USERFAULTFD.get(platform.machine())
    if number is None:
        return "userfaultfd", "ok", f"not tried on {platform.machine()}", effect
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(ctypes.c_long(number), ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK | _UFFD_USER_MODE_ONLY))
    if fd < 0:
        said = errno.errorcode.get(ctypes.get_errno(), "?")
        setting = _read("/proc/sys/vm/unprivileged_userfaultfd")
        return "userfaultfd", "ok", f"refused: {said}; vm.unprivileged_userfaultfd is {setting}", effect
    os.close(fd)
    return "userfaultfd", "ok", "opened", effect


def _registration_cache() -> _Words:
    from ..memory import cache_state

    state = cache_state()
    effect = "caches facts about memory (fi_mr(3)); without the cache each use asks the system again"
    return "registration cache", "ok" if state.on else "note", str(state), effect


# ---- limits --------------------------------------------------------------------------------------------------------


def _limit(value: int, unit: Callable[[int], str] = str) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else unit(value)


def _memlock() -> _Words:
    soft, hard = (_limit(n, lambda n: f"{n >> 10} KiB") for n in resource.getrlimit(resource.RLIMIT_MEMLOCK))
    return (
        "memlock",
        "ok",
        f"{soft} (hard: {hard})",
        "limits the memory that a real NIC can register and pin; Weft pins nothing",
    )


def _descriptors() -> _Words:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)} (hard: {_limit(hard)})"
    if soft != resource.RLIM_INFINITY and soft < 256:
        return "descriptors", "note", found, "each peer and each waiting queue takes some", "ulimit -n 1024"
    return "descriptors", "ok", found, "each peer and each waiting queue takes some"


# ---- namespaces ----------------------------------------------------------------------------------------------------


def _namespace(kind: str) -> tuple[int, str]:
    try:
        inode = os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError as e:  # a container without /proc
        return 0, f"cannot be seen: {_why(e)}"
    initial = _INITIAL.get(kind)
    if initial is None:
        try:
            initial = os.stat(f"/proc/1/ns/{kind}").st_ino
        except OSError:
            return inode, str(inode)
        return inode, f"{inode}, " + ("that of process 1" if inode == initial else "not that of process 1")
    return inode, f"{inode}, " + ("the machine's" if inode == initial else "one of its own, as in a container")


def _tcp_secret() -> _Words:
    """The secret of the tcp link."""
    name = "a secret for the tcp link"
    try:
        found = settings.secret(settings.load())
    except OSError as reason:
        return (
            name,
            "bad",
            str(reason).splitlines()[0],
            "processes that use the link do not start",
            "correct or unset it",
        )
    if found is None:
        return (
            name,
            "note",
            "neither WEFT_SECRET nor WEFT_SECRET_FILE is set",
            "no tcp: no connections to or from other hosts",
            "the same on all hosts; python -c 'import secrets; print(secrets.token_hex(32))' makes one",
        )
    try:
        _sodium.functions()
    except errors.NoSys as reason:
        return (
            name,
            "bad",
            str(reason).splitlines()[0],
            "processes that use the link do not start",
            f"pip install 'pynacl>={_sodium.VERSION_MIN}'",
        )
    return name, "ok", f"{len(found)} bytes, not shown", "the same is needed on all hosts"


def _tcp_listen() -> _Words:
    """Whether processes of this host listen, and at which address."""
    name = "listening for other hosts"
    where = settings.load().WEFT_LISTEN
    if not where:
        return (
            name,
            "note",
            "WEFT_LISTEN is not set",
            "other hosts cannot connect to processes of this host, unless these call weft.open(listen=...)",
            "WEFT_LISTEN=tcp://0.0.0.0:0",
        )
    try:
        listening = _process.nic().tcp_listening()
    except OSError as reason:
        return name, "bad", f"{where}: {str(reason).splitlines()[0]}", "processes do not start", "correct or unset it"
    assert listening is not None
    far = not listening[0].startswith(("127.", "::1"))
    effect = (
        f"other hosts connect to {listening[0]}" if far else "only this host has a route to that address: no network?"
    )
    return name, "ok" if far else "note", where, effect, "" if far else "WEFT_ADVERTISE=<address of this host>"


def _network_namespace() -> _Words:
    return (
        "network",
        "ok",
        _namespace("net")[1],
        "Weft finds peers in the same namespace; another namespace counts as another host",
    )


def _process_namespace() -> _Words:
    found = _namespace("pid")[1]
    return "process", "ok", found, "process_vm_readv reaches processes of the same namespace; the ring serves others"


def _user_namespace() -> _Words:
    mine = next((line.split() for line in (_read("/proc/self/uid_map") or "").splitlines()), [])
    found = _namespace("user")[1]
    if mine[2:] != ["4294967295"]:
        found += f"; it maps {' '.join(mine[2:]) or 'no'} user numbers"
    return "user", "ok", f"{found}; user {os.geteuid()}", "peers must belong to the same user"


def main(pid: int, address: int) -> None:
    """The child of `_cma`."""
    mine = ctypes.create_string_buffer(_PATTERN)
    print(ctypes.addressof(mine), _try_vm_read(pid, address), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
