"""A launched job and its Fabric Manager: `weft launch --collectives N`, and the jobs that launches have left.

With FI_CXI_COLL_FABRIC_MGR_URL set, the job is registered with that manager, as a launcher on Slingshot does. Without
it, the launcher serves joins itself while the job runs, from this host's database, which a `weft fm serve` of this host
may serve too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from .. import fi  # noqa: F401  # first: it registers the provider, and the modules import each other
from ..fm.client import exchange
from ..fm.codes import CREATED, CURL_FAILED, SERVER_ERR, ManagerError
from ..fm.store import Limits, Refused, Store
from ..providers.cxi import registry, vni
from ._text import UsageError

if TYPE_CHECKING:
    from ..providers.cxi.launch import Job

URL, TOKEN = "FI_CXI_COLL_FABRIC_MGR_URL", "FI_CXI_COLL_MCAST_TOKEN"
_CACERT = "FI_CXI_COLL_FABRIC_MGR_CACERT"
JOBS = "/fabric/collectives/jobs"
BUSY_S = 5.0  # a manager that is busy for longer has refused the job
# Software endpoints share a NIC, and each may be the root of a group.
_LIMITS = Limits(groups_per_root=8192)


def prefix() -> str:
    """The prefix of the names of jobs that were launched from this registry."""
    here = registry.here()
    return f"launch-{socket.gethostname()}-{os.geteuid()}-{here.read().record['fabric']}-"


def sweep(store: Store) -> list[str]:
    """Release the jobs of launches from this registry whose processes have all ended; their names."""
    begins = prefix()
    names = [one.job_id for one in store.jobs() if one.job_id.startswith(begins) and "/" not in one.job_id]
    if not names:
        return []
    over = vni.over(registry.here().path, [name.removeprefix(begins) for name in names])
    gone = [name for name in names if name.removeprefix(begins) in over]
    for name in gone:
        with contextlib.suppress(Refused):  # another process has just started one
            store.release(name)
    return gone


@contextlib.contextmanager
def collectives(job: Job, addresses: int, db: Path, admin: str | None) -> Iterator[None]:
    """Register a job, and set the variables of joins in this process, which the job's processes inherit.

    Args:
        addresses: Multicast addresses that the job may have; 0: no limit of its own.
        db: Database of the manager that this process runs if URL is unset.
        admin: An administrator's token for the manager at URL; None: the token of TOKEN.
    """
    name = prefix() + job.id
    with contextlib.ExitStack() as stack:
        url = os.environ.get(URL, "")
        if url:
            token = stack.enter_context(_registered(url, admin or os.environ.get(TOKEN, ""), name, addresses))
        else:
            url, token = stack.enter_context(_served(db, name, addresses))
        os.environ.update(
            {
                URL: url,
                TOKEN: token,
                "FI_CXI_COLL_JOB_ID": name,
                "FI_CXI_COLL_JOB_STEP_ID": "0",
                "FI_CXI_HWCOLL_ADDRS_PER_JOB": str(addresses),
            }
        )
        yield


@contextlib.contextmanager
def _registered(url: str, admin: str, name: str, addresses: int) -> Iterator[str]:
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}{JOBS}"
    cacert = os.environ.get(_CACERT)

    def ask(method: str, where: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        status, found = exchange(method, where, admin, data, cacert, SERVER_ERR, repeat_s=BUSY_S)
        if status not in CREATED:
            said = found.get("message", "no reason")
            raise ManagerError(
                f"launch: the Fabric Manager answered {status} to {method} {where}: {said}", status=status
            )
        return found

    token = ask("POST", base, {"jobID": name, "mcastLimit": addresses}).get("sessionToken")
    if not isinstance(token, str):
        raise ManagerError(f"launch: the Fabric Manager at {base} gave no token for the job", prov_errno=CURL_FAILED)
    try:
        yield token
    finally:
        with contextlib.suppress(
            ManagerError
        ):  # it is gone, or was restarted without its file: nothing is left to free
            ask("DELETE", f"{base}/{quote(name, safe='')}")


@contextlib.contextmanager
def _served(db: Path, name: str, addresses: int) -> Iterator[tuple[str, str]]:
    import secrets

    try:
        from ..fm import server
    except ImportError as reason:
        raise UsageError(f"--collectives: {reason}\n  try: pip install 'weft-fabric[fm]', or set {URL}") from None
    try:
        store = Store(db, _LIMITS, wait_s=5)
    except (ValueError, OSError, Refused) as reason:
        raise UsageError(f"--collectives: {reason}") from None
    with store:
        sweep(store)
        token = store.register(name, addresses).token or ""
        # Signals are for the launcher's own thread, which waits for them: the manager's threads inherit this mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            running = server.running(
                server.application(store, [secrets.token_urlsafe(24)]), server.listen("127.0.0.1", 0)
            )
            url = running.__enter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield url, token
        finally:
            running.__exit__(None, None, None)
            with contextlib.suppress(Refused):
                store.release(name)
