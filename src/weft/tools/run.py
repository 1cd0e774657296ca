"""`weft run`: a C program on Weft's NIC, unmodified: libfabric loads Weft's providers from files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ._text import UsageError

__all__ = ["environment", "folder", "run"]


def _names(found: Path) -> list[str]:
    """The providers in a folder; the software Slingshot is the first."""
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


def environment(provider: str) -> dict[str, str]:
    """The variables that put libfabric programs on a provider of Weft: libfabric's, then those of each MPI library."""
    path = [str(folder()), *filter(None, os.environ.get("FI_PROVIDER_PATH", "").split(":"))]
    return {
        "FI_PROVIDER_PATH": ":".join(dict.fromkeys(path)),
        "FI_PROVIDER": provider,
        "WEFT_PYTHON": sys.executable,
        # MPICH: libfabric in place of UCX; its settings for cxi also on one host.
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "MPIR_CVAR_SINGLE_HOST_ENABLED": "0",
        # Open MPI: messages over libfabric alone.
        "OMPI_MCA_pml": "cm",
        "OMPI_MCA_mtl": "ofi",
        "OMPI_MCA_mtl_ofi_provider_include": provider,
        # Intel MPI; its wheel has no libfabric: I_MPI_OFI_LIBRARY names one.
        "I_MPI_FABRICS": "ofi",
        "I_MPI_OFI_PROVIDER": provider,
    }


def run(command: Sequence[str], provider: str | None, show: bool, explain: bool) -> int:
    """The command; its exit status. Raises UsageError."""
    known = _names(folder())
    if provider is not None and provider not in known:
        raise UsageError(f"-p: no provider {provider!r}; there are {' and '.join(known)}")
    variables = environment(provider or known[0])
    if show:
        for name, value in variables.items():
            print(f"{name}={value}")
        return 0
    if not command:
        raise UsageError("run: no program\n  try: weft run -- fi_info -p cxi")
    if not explain:
        try:
            os.execvpe(command[0], list(command), {**os.environ, **variables})
        except OSError as reason:
            return _not_started(command[0], reason)
    with tempfile.NamedTemporaryFile(prefix="weft-explain-") as file:
        variables["WEFT_EXPLAIN"] = file.name
        try:
            status = subprocess.run(list(command), env={**os.environ, **variables}, check=False).returncode
        except OSError as reason:
            return _not_started(command[0], reason)
        text = Path(file.name).read_text(encoding="utf-8", errors="replace")
    print(f"weft run: what was refused, and why:\n{text}" if text else "weft run: nothing was refused", file=sys.stderr)
    return status if status >= 0 else 128 - status


def _not_started(program: str, reason: OSError) -> int:
    print(f"weft: {program}: {reason.strerror}", file=sys.stderr)
    return 127 if isinstance(reason, FileNotFoundError) else 126
