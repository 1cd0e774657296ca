"""`weft run`: a C program on Weft's NIC, unmodified: libfabric loads Weft's providers from files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
        Variable("OMPI_MCA_osc", "rdma,sm", "Open MPI: windows over the btl; sm has those of shared memory"),
        Variable("OMPI_MCA_osc_sm_priority", "1", "Open MPI: sm has no others"),
        Variable("OMPI_MCA_opal_common_ofi_provider_include", provider, "Open MPI: the provider", kept=False),
        Variable("I_MPI_FABRICS", "ofi", "Intel MPI: ranks of one host also talk over the NIC"),
        Variable("I_MPI_OFI_PROVIDER", provider, "Intel MPI: the provider", kept=False),
    ]


def environment(provider: str) -> dict[str, str]:
    """The names and values of `variables`, with what the user has set."""
    return {one.name: (os.environ.get(one.name) or one.value) if one.kept else one.value for one in variables(provider)}


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
        raise UsageError(f"run: {provider} has no services and no NICs to add\n  try: -p {providers()[0]}")
    vnis = 1 if asked.vni == "auto" else asked.vni and [parse_number("--vni", word) for word in asked.vni.split(",")]
    return dict(become(vnis=vnis, limits=limits_of(list(asked.limits)), nics=asked.nics, reorder=asked.reorder))


def run(command: Sequence[str], provider: str | None, show: bool, explain: bool, job: JobOptions) -> int:
    """The command; its exit status. Raises UsageError, FabricError."""
    known = providers()
    if provider is not None and provider not in known:
        raise UsageError(f"-p: no provider {provider!r}; there are {' and '.join(known)}")
    found = environment(provider or known[0])
    if job != JobOptions():
        if show:
            raise UsageError("--show: a job has its variables as long as it runs\n  try: weft run ... -- env")
        found |= _job(provider or known[0], job)
    if show:
        for one in variables(provider or known[0]):
            print(f"{one.name}={found[one.name]}  # {one.effect}")
        return 0
    if not command:
        raise UsageError("run: no program\n  try: weft run -- fi_info -p cxi")
    if not explain:
        try:
            os.execvpe(command[0], list(command), {**os.environ, **found})
        except OSError as reason:
            return _not_started(command[0], reason)
    with tempfile.NamedTemporaryFile(prefix="weft-explain-") as file:
        found["WEFT_EXPLAIN"] = file.name
        try:
            status = subprocess.run(list(command), env={**os.environ, **found}, check=False, close_fds=False).returncode
        except OSError as reason:
            return _not_started(command[0], reason)
        text = Path(file.name).read_text(encoding="utf-8", errors="replace")
    print(f"weft run: what was refused, and why:\n{text}" if text else "weft run: nothing was refused", file=sys.stderr)
    return status if status >= 0 else 128 - status


def _not_started(program: str, reason: OSError) -> int:
    print(f"weft: {program}: {reason.strerror}", file=sys.stderr)
    return 127 if isinstance(reason, FileNotFoundError) else 126
