"""`weft run`: a C program on Weft's NIC, unmodified: libfabric loads Weft's providers from files."""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ._program import not_started, run_to_end
from ._text import UsageError, parse_number


def _names(found: Path) -> list[str]:
    """The providers in a folder."""
    return sorted(one.name[3:-6] for one in found.glob("lib*-fi.so"))


def folder() -> Path:
    """The folder of libweft-fi.so and libcxi-fi.so. Raises UsageError if this installation has none."""
    found = Path(__file__).parents[1] / "policyhost" / "libfabric"
    if not _names(found):
        raise UsageError(
            f"run: this installation of Weft has no providers for C programs in {found}\n"
            "  try: make provider, in a checkout; a wheel has them"
        )
    return found


def providers() -> list[str]:
    """The providers for C programs; the software Slingshot is the first. Raises UsageError if there are none."""
    return _names(folder())


class Variable(NamedTuple):
    """A variable that `weft run` sets.

    Attributes:
        kept: A value that the user has set stays.
    """

    name: str
    value: str
    effect: str
    kept: bool = True


def variables(provider: str) -> list[Variable]:
    """The variables that put libfabric programs on a provider of Weft: libfabric's, then those of each MPI library."""
    path = [str(folder()), *filter(None, os.environ.get("FI_PROVIDER_PATH", "").split(":"))]
    return [
        Variable("FI_PROVIDER_PATH", ":".join(dict.fromkeys(path)), "libfabric loads Weft's providers", kept=False),
        Variable("FI_PROVIDER", provider, "the one provider that programs get", kept=False),
        Variable("WEFT_PYTHON", sys.executable, "the interpreter of the policy helper", kept=False),
        Variable("MPIR_CVAR_CH4_NETMOD", "ofi", "MPICH: libfabric in place of UCX"),
        Variable("MPIR_CVAR_SINGLE_HOST_ENABLED", "0", "MPICH: cxi also on one host"),
        Variable("MPIR_CVAR_NOLOCAL", "1", "MPICH: ranks of one host also talk over the NIC"),
        Variable("OMPI_MCA_pml", "cm", "Open MPI: messages over the mtl alone"),
        Variable("OMPI_MCA_mtl", "ofi", "Open MPI: messages over libfabric"),
        Variable("OMPI_MCA_btl", "ofi,self", "Open MPI: windows over libfabric"),
        Variable("OMPI_MCA_osc", "^ucx", "Open MPI: windows over the btl or the mtl; sm has those of shared memory"),
        Variable("OMPI_MCA_osc_sm_priority", "1", "Open MPI: sm has no others"),
        Variable("OMPI_MCA_opal_common_ofi_provider_include", provider, "Open MPI: the provider", kept=False),
        Variable("I_MPI_FABRICS", "ofi", "Intel MPI: ranks of one host also talk over the NIC"),
        Variable("I_MPI_OFI_PROVIDER", provider, "Intel MPI: the provider", kept=False),
    ]


def _reached(provider: str, hosts: str) -> list[Variable]:
    """The variables of a program that the programs of all these hosts reach. Raises UsageError, FabricError."""
    from ..fi import registry
    from ..launch import expand_hosts
    from ..providers.hosts import bracketed, ip_of
    from ._hosts import need_secret

    atexit.register(_end_job)
    need_secret("--hosts")
    names = expand_hosts(hosts)
    ips = [ip_of(name, 0) for name in names]
    ours = [number for number, ip in enumerate(ips) if _is_ours(ip)]
    twice = [name for name, ip in zip(names, ips, strict=True) if ips.count(ip) > 1]
    if len(ours) != 1 or twice:
        same = [names[number] for number in ours] if len(ours) > 1 else twice
        why = f"{' and '.join(same)} are one host" if same else "this host is none of them"
        raise UsageError(f"run: --hosts {hosts}: {why} ({', '.join(ips)})\n  rule: every host once, by its own address")
    at = ips[ours[0]]
    if len(ips) > 1 and ipaddress.ip_address(at).is_loopback:  # Debian's 127.0.1.1: others know another address
        at = "::" if ":" in at else "0.0.0.0"
    take = getattr(registry.find(provider), "take_place", None)
    place = {"WEFT_LISTEN": f"tcp://{bracketed(at)}:0"} if take is None else take(ips, ours[0], at)
    atexit.unregister(_end_job)
    return [
        *(Variable(name, value, "--hosts: where the others reach it", kept=False) for name, value in place.items()),
        Variable("WEFT_TCP_LOG", "1", "--hosts: lost and rejected connections, on stderr"),
    ]


def _end_job() -> None:
    """As MPI_Abort: MPICH's launcher does not end a job because a process has ended before MPI_Init."""
    with contextlib.suppress(OSError, ValueError):
        launcher = int(os.environ.get("PMI_FD", ""))
        time.sleep(1)  # the launcher passes our reason on; after an abort it may drop it
        os.write(launcher, b"cmd=abort exitcode=2\n")


def _is_ours(ip: str) -> bool:
    """True if the address is this host's."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
        one.bind((ip, 0))
        return True
    return False


def environment(provider: str) -> dict[str, str]:
    """The names and values of `variables`, with what the user has set."""
    return _values(variables(provider))


def _values(of: Sequence[Variable]) -> dict[str, str]:
    return {one.name: (os.environ.get(one.name) or one.value) if one.kept else one.value for one in of}


class JobOptions(NamedTuple):
    """What `weft run` makes for the program alone, and what ends with the program; see its options."""

    vni: str | None = None
    limits: Sequence[str] = ()
    nics: int | None = None
    reorder: int | None = None


def _job(provider: str, asked: JobOptions) -> dict[str, str]:
    """The variables of a job of the program. Raises UsageError, FabricError."""
    from ..fi import registry
    from .service import limits_of

    become = getattr(registry.find(provider), "become_job", None)
    if become is None:
        raise UsageError(
            f"run: {provider} has no services, NICs and orders for --vni, --limit, --nics, --reorder\n"
            f"  try: -p {providers()[0]}"
        )
    vnis = 1 if asked.vni == "auto" else asked.vni and [parse_number("--vni", word) for word in asked.vni.split(",")]
    return dict(become(vnis=vnis, limits=limits_of(list(asked.limits)), nics=asked.nics, reorder=asked.reorder))


def run(
    command: Sequence[str], provider: str | None, hosts: str | None, show: bool, explain: bool, job: JobOptions
) -> int:
    """The command; its exit status. Raises UsageError, FabricError."""
    known = providers()
    if provider is not None and provider not in known:
        raise UsageError(f"-p: no provider {provider!r}; there are {' and '.join(known)}")
    name = provider or known[0]
    if hosts is not None and (job.nics is not None or job.vni == "auto" or (job.limits and job.vni is None)):
        raise UsageError("--hosts: the programs of all hosts need the same VNI, and have one NIC each\n  try: --vni N")
    ours = [*variables(name), *(_reached(name, hosts) if hosts is not None else [])]
    found = _values(ours)
    if job != JobOptions():
        if show:
            raise UsageError("--show: a job has its variables as long as it runs\n  try: weft run ... -- env")
        os.environ.update(found)  # the job's service is on the NIC that --hosts gives the program
        found |= _job(name, job)
    if show:
        for one in ours:
            print(f"{one.name}={found[one.name]}  # {one.effect}")
        return 0
    if not command:
        raise UsageError("run: no program\n  try: weft run -- fi_info -p cxi")
    if not explain:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; the program does not
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvpe(command[0], list(command), {**os.environ, **found})
        except OSError as reason:
            _end_job()
            return not_started(command[0], reason)
    handle, name = tempfile.mkstemp(prefix="weft-explain-")
    os.close(handle)
    # A shell removes the file: its standard input ends when this process ends, even by SIGKILL.
    remove = ["/bin/sh", "-c", 'read end; rm -f "$0"', name]
    with subprocess.Popen(remove, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True):
        status = run_to_end(command, {**os.environ, **found, "WEFT_EXPLAIN": name}, close_fds=False)
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    print(f"weft run: what was refused, and why:\n{text}" if text else "weft run: nothing was refused", file=sys.stderr)
    return status
