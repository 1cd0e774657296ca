"""Launching a job as in fi_cxi(7) "Authorization Keys": its own VNIs and services, passed to its processes.

    with launch.begin(vnis=1) as job:            # steps 2 to 4: VNIs, a service on each device
        status = launch.run(job, ["prog"], 4)    # steps 5 and 6: processes, told by SLINGSHOT_* variables
                                                 # step 7 is theirs: a domain without a key gets this one

When the last process of the job has ended, its VNIs are free and its services removed, even if the launcher was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import errors
from ..._with import With
from ...flags import Tc
from . import device as devices
from . import registry, service, vni

# Bits of SLINGSHOT_TCS, as launchers on Slingshot write it.
_TC_BITS = {"DEDICATED_ACCESS": 1, "LOW_LATENCY": 2, "BULK_DATA": 4, "BEST_EFFORT": 8}
_FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SI_KERNEL = 0x80  # a signal of the terminal, which the job's processes have received too
_PR_SET_PDEATHSIG = 1


@dataclass
class Job(With):
    """A launch and its resources.

    Attributes:
        id: Number of the launch.
        vnis: VNIs of the launch.
        services: Device -> id of the launch's service.
    """

    id: str
    vnis: tuple[int, ...]
    services: Mapping[str, int]
    tclasses: tuple[str, ...]
    path: str
    fd: int = field(repr=False)

    def environment(self, rank: int, size: int) -> dict[str, str]:
        """The environment variables of a process of the job."""
        return {
            "SLINGSHOT_VNIS": ",".join(map(str, self.vnis)),
            "SLINGSHOT_DEVICES": ",".join(self.services),
            "SLINGSHOT_SVC_IDS": ",".join(map(str, self.services.values())),
            "SLINGSHOT_TCS": hex(sum(_TC_BITS.get(name, 0) for name in self.tclasses)),
            "WEFT_CXI_REGISTRY": self.path,
            "WEFT_RANK": str(rank),
            "WEFT_SIZE": str(size),
        }

    def close(self) -> None:
        """Release the launch. Its resources are free when its processes have ended too."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            with registry.here().change():
                pass  # every change drops launches that have ended


def begin(
    *,
    vnis: int | Sequence[int] = 1,
    on: Iterable[str] | None = None,
    members: Iterable[service.Member | tuple[str, int]] | None = None,
    tclasses: Iterable[Tc | str] | None = None,
    limits: Mapping[str, int | tuple[int, int]] | None = None,
) -> Job:
    """Allocate VNIs and make a service on each device.

    Args:
        vnis: The number of free VNIs to take, or the VNIs.
        on: Names of devices; None: all that are up.
        members: Members of the services; None: this user.
        tclasses: Traffic classes of the services, as for `service.create`.
        limits: Limits of the services, as for `service.create`.

    Raises:
        NoDevice: No such device, or none is up.
        NoSpace: No VNIs are free, or a limit of a device is reached.
        Busy: Another launch or service has a VNI.
        InvalidArgument: An argument is wrong.
    """
    names = [one.name for one in devices.devices() if one.up] if on is None else list(on)
    if not names:
        raise errors.NoDevice("launch: no device is up\n  try: `weft device list`, `weft device up cxi0`")
    who = [("uid", os.geteuid())] if members is None else list(members)
    here = registry.here()
    id = f"{os.getpid()}-{os.urandom(4).hex()}"
    fd = -1
    try:
        with here.change() as record:
            chosen = vni.allocate(record, vnis) if isinstance(vnis, int) else vni.claim(record, vnis)
            made = {}
            for name in names:
                if name in made:
                    raise errors.InvalidArgument(f"launch: the device {name} is named twice")
                made[name] = service.add(record, name, who, chosen, tclasses, limits, launch=id)
            record["launches"].append({"id": id, "vnis": chosen})
            fd = vni.hold(here.path, id)
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    classes = made[names[0]]["tclasses"]
    return Job(
        id,
        tuple(chosen),
        {name: one["id"] for name, one in made.items()},
        tuple(service.TCLASSES if classes is None else classes),
        str(here.path),
        fd,
    )


def become(
    *,
    vnis: int | Sequence[int] | None,
    limits: Mapping[str, int | tuple[int, int]],
    nics: int | None,
    reorder: int | None,
) -> dict[str, str]:
    """Make this process a job, for the program that replaces the process; returns the program's variables.

    The program inherits the locks of what is made here, which is gone when the last process of the job has ended.

    Args:
        vnis: As for `begin`; None, without limits: no service is made.
        nics: Number of devices, which only the job has; None: those of the host.
        reorder: A seed of WEFT_CXI_REORDER.

    Raises as `begin`.
    """
    found = {} if reorder is None else {"WEFT_CXI_REORDER": str(reorder)}
    if nics is not None:
        here = registry.here()
        id = f"{os.getpid()}-{os.urandom(4).hex()}"
        with here.change():
            os.set_inheritable(vni.hold(here.path, id), True)
        found["WEFT_CXI_REGISTRY"] = os.environ["WEFT_CXI_REGISTRY"] = str(vni.nics(here.path, id))
        while len(devices.devices()) < nics:
            devices.add()
    if vnis is not None or limits:
        job = begin(vnis=1 if vnis is None else vnis, limits=limits or None)
        os.set_inheritable(job.fd, True)
        found |= {
            name: value for name, value in job.environment(0, 1).items() if name not in ("WEFT_RANK", "WEFT_SIZE")
        }
    return found


# ---- processes -------------------------------------------------------------------------------------------------------


def run(
    job: Job,
    command: Sequence[str],
    size: int,
    *,
    grace_s: float = 5.0,
    keep_going: bool = False,
    ended: Callable[[int, int], object] = lambda rank, status: None,
) -> int:
    """Run `size` processes of a command to their end; returns the exit status of the first that failed, or 0.

    Args:
        grace_s: After a failure or a terminating signal the other processes get SIGTERM, and SIGKILL this many seconds
            later.
        keep_going: A failure does not end the other processes.
        ended: Called for each process that ends: its rank, its status (128 + the signal that killed it).

    The launcher forwards its signals. A process whose launcher dies gets SIGTERM. Call it from the main thread.

    Raises:
        NotFound: There is no such command.
        AccessDenied: The command may not be run.
    """
    watched = {*_FORWARDED, signal.SIGCHLD}
    # If SIGCHLD is ignored, the kernel discards the exit statuses of processes.
    child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        prepare = _prepared(before)
        for rank in range(size):
            processes.append(_start(job, command, rank, size, prepare))
        return _wait(processes, watched, grace_s, keep_going, ended)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if child_handler is not None:
            signal.signal(signal.SIGCHLD, child_handler)


def _start(
    job: Job, command: Sequence[str], rank: int, size: int, prepare: Callable[[], None]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command),
            env={**os.environ, **job.environment(rank, size)},
            stdin=None if rank == 0 else subprocess.DEVNULL,
            pass_fds=(job.fd,),
            preexec_fn=prepare,
        )
    except FileNotFoundError as reason:
        raise errors.NotFound(f"launch: {reason.filename or command[0]!r} is not there") from None
    except (PermissionError, OSError) as reason:
        raise errors.AccessDenied(f"launch: {command[0]!r} cannot be run: {reason.strerror}") from None


def _prepared(mask: Iterable[Any]) -> Callable[[], None]:
    """The function that a process runs before exec: restores the signal mask, and requests SIGTERM at our death."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    launcher, mask = os.getpid(), set(mask)

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(128 + signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


def _wait(
    processes: list[subprocess.Popen[bytes]],
    watched: set[signal.Signals],
    grace_s: float,
    keep_going: bool,
    ended: Callable[[int, int], object],
) -> int:
    living = dict(enumerate(processes))
    failed, deadline = 0, None
    while living:
        for rank, process in list(living.items()):
            code = process.poll()
            if code is None:
                continue
            del living[rank]
            status = code if code >= 0 else 128 - code
            ended(rank, status)
            if status and not failed:
                failed = status
                if not keep_going:
                    _send(living, signal.SIGTERM)
                    deadline = deadline or time.monotonic() + grace_s
        if not living:
            break
        left = 60.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        got = signal.sigtimedwait(watched, left)
        if got is None:
            if deadline is not None:
                _send(living, signal.SIGKILL)
                deadline = time.monotonic() + 60.0
        elif got.si_signo != signal.SIGCHLD:
            if got.si_code != _SI_KERNEL:
                _send(living, got.si_signo)
            if got.si_signo in _ENDING and deadline is None:
                deadline = time.monotonic() + grace_s
    return failed


def _send(living: Mapping[int, subprocess.Popen[bytes]], number: int) -> None:
    for process in living.values():
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
