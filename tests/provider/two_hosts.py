"""The environment of C programs on two hosts (network namespaces): over tcp links, with a secret."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import patience
from tests.procs.hosts import PATIENT, Wire
from tests.provider import support

SECRET = "one secret of two hosts, long enough"
PORT = 7000
NICS = {"a": 0x840, "b": 0x880}
"""Of cxi0 on each host; cxi1 has the next number."""


def environment(wire: Wire, host: str, folder: Path, provider: str, process: int = 0, **more: str) -> dict[str, str]:
    """The environment of a process, with a policy helper and CXI devices of its host's own.

    Args:
        process: 0 or 1, its number on the host: each has a device and a port.
        more: Further variables; an empty text: not set.
    """
    run = folder / host
    run.mkdir(mode=0o700, exist_ok=True)
    hosts = ",".join(f"{nic + n:#x}={wire.ip[h]}:{PORT + n}" for h, nic in NICS.items() for n in (0, 1))
    device = f"cxi{process}"
    env = support.environment(
        provider,
        XDG_RUNTIME_DIR=str(run),
        WEFT_CXI_REGISTRY=str(run / "registry"),
        FI_LOG_LEVEL="warn",
        **({"WEFT_CXI_HOSTS": hosts, "FI_CXI_DEVICE_NAME": device} if provider == "cxi" else {}),
        **PATIENT | {"WEFT_SECRET": SECRET, "WEFT_LISTEN": f"tcp://{wire.ip[host]}:{PORT + process}"} | more,
    )
    env = {name: value for name, value in env.items() if value}
    if provider == "cxi":
        bare = {name: value for name, value in env.items() if name not in ("WEFT_LISTEN", "FI_CXI_DEVICE_NAME")}
        for words in [["add", device]] * process + [["set", device, f"nic={NICS[host] + process:#x}"]]:
            done = patience.run([sys.executable, "-m", "weft", "device", *words], support.PROGRAM_S, env=bare)
            assert done.returncode == 0, done.stderr
    return env
