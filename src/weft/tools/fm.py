"""`weft fm`: the Fabric Manager's service, and questions to it. Source: fi_cxi(7) FI_CXI_COLL_FABRIC_MGR_URL."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from ._command import Command, Group, option, switch
from ._text import UsageError, console, plain_table

PORT = 7430
BUSY_S = 5.0  # after this time the user is told that the manager is busy
_URL, _TOKEN, _CACERT = "FI_CXI_COLL_FABRIC_MGR_URL", "FI_CXI_COLL_MCAST_TOKEN", "FI_CXI_COLL_FABRIC_MGR_CACERT"

app = typer.Typer(
    cls=Group,
    help="The Fabric Manager: multicast addresses for collective groups.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Text = str | None
_Url = Annotated[_Text, option("URL", f"The manager. [{_URL}, or this host's]", "--url")]
_TokenFile = Annotated[
    Path | None, option("FILE", "An administrator's token. [that of `weft fm serve`]", "--token-file")
]
_Json = Annotated[bool, switch("One JSON object.", "--json")]


@app.command(cls=Command)
def serve(
    host: Annotated[str, option("ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port; 0: any that is free.", min=0, max=65535)] = PORT,
    db: Annotated[Path | None, option("FILE", "The database. [fm.db beside the devices]")] = None,
    token_file: Annotated[
        Path | None, option("FILE", "Administrators' tokens, one a line. [made: fm.token]", "--token-file")
    ] = None,
    cert: Annotated[Path | None, option("PEM", "Certificate, for https.")] = None,
    key: Annotated[Path | None, option("PEM", "The certificate's private key.")] = None,
    addresses: Annotated[int, option("N", "Multicast addresses of the system.", min=0, max=8192)] = 8192,
    addresses_per_job: Annotated[int, option("N", "Multicast addresses of a job; 0: no limit.", min=0)] = 0,
    groups_per_root: Annotated[int, option("N", "Groups of which one NIC may be the hardware root.", min=1)] = 1,
    known_nics: Annotated[bool, switch("Refuse members that are not registered.", "--known-nics")] = False,
    bare: Annotated[bool, switch("Neither show nor register the devices of this host.", "--bare")] = False,
) -> None:
    """Serve joins, launchers and a web page until Ctrl-C. Needs the extra: pip install 'weft-fabric[fm]'."""
    if (cert is None) != (key is None):
        raise UsageError("--cert and --key go together: the certificate and its private key, as PEM files")
    try:
        from ..fm import server
    except ImportError as reason:
        raise UsageError(
            f"the service needs a package that is not installed: {reason}\n  try: pip install 'weft-fabric[fm]'"
        ) from None
    from ..fm.store import Limits, Refused, Store

    db = db or beside("fm.db")
    tokens = _tokens(token_file or beside("fm.token"), make=token_file is None)
    try:
        store = Store(db, Limits(addresses, addresses_per_job, groups_per_root, known_nics))
    except (ValueError, OSError, Refused) as reason:
        raise UsageError(f"--db: {reason}") from None
    try:
        listener = server.listen(host, port)
    except OSError as reason:
        raise UsageError(f"{host} port {port} cannot be listened on: {reason}\n  try: --port 0") from None
    live = registrar = None
    if not bare:
        from . import _fm_host

        live, registrar = _fm_host.live, _fm_host.Registrar(store)
    _introduce(server.address_of(listener, secure=cert is not None), server.MULTICAST, db, token_file, tokens[0])
    if host not in ("127.0.0.1", "::1", "localhost") and cert is None:
        print("note: without --cert and --key, tokens cross the network readable", file=sys.stderr)
    files = {"cert": None if cert is None else str(cert), "key": None if key is None else str(key)}
    try:
        server.run(server.application(store, tokens, live), listener, **files)
    except OSError as reason:  # ssl.SSLError is one
        raise UsageError(f"--cert, --key: {reason}") from None
    finally:
        if registrar is not None:
            registrar.close()
        store.close()


def beside(name: str) -> Path:
    """A file in the folder of the registry of devices, which is the user's own."""
    from .. import fi  # noqa: F401  # first: it registers the provider, and the modules import each other
    from ..providers.cxi import registry

    here = registry.here()
    here.read()  # makes the folder, or says why not
    return here.path / name


def own_token() -> str | None:
    """The administrator's token of this host's `weft fm serve`; None: there is none."""
    file = beside("fm.token")
    return _tokens(file, make=False)[0] if file.exists() else None


def _tokens(file: Path, *, make: bool) -> list[str]:
    import secrets

    if make and not file.exists():
        part = file.with_name(f".{file.name}.{os.getpid()}")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as made:
            made.write(secrets.token_urlsafe(24) + "\n")
        with contextlib.suppress(FileExistsError):  # another process has just written one
            os.link(part, file)
        part.unlink()
    try:
        found = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, ValueError) as reason:
        why = getattr(reason, "strerror", None) or reason
        raise UsageError(f"--token-file: {file} cannot be read: {why}\n  try: weft fm serve, which makes one") from None
    found = [one for one in found if one and not one.startswith("#")]
    if not found or any(not one.isascii() or not one.isprintable() or " " in one for one in found):
        raise UsageError(f"--token-file: {file} must have tokens of printable ASCII without spaces, one a line")
    return found


def _introduce(address: str, path: str, db: Path, token_file: Path | None, token: str) -> None:
    file = token_file or beside("fm.token")
    page = f"{address}/#{quote(token)}" if sys.stdout.isatty() else f"{address}/"
    print(
        f"Fabric Manager at {address}, database {db}\n"
        f"  page: {page}\n"
        f"  token of the administrator: in {file}; the page, and `weft fm` on other hosts, ask for it\n"
        f"  joins: {_URL}={address}{path}\n"
        f"         {_TOKEN}=$(cat {file})\n"
        "         FI_CXI_COLL_JOB_ID=<the job's name>",
        flush=True,
    )


# ---- questions -------------------------------------------------------------------------------------------------------


def _ask(method: str, path: str, url: _Text, token_file: Path | None) -> Any:
    from ..fm.client import exchange
    from ..fm.codes import SERVER_ERR, ManagerError

    whole = url or os.environ.get(_URL) or f"http://127.0.0.1:{PORT}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--url: {whole!r} is no http:// or https:// address")
    tokens = _tokens(token_file or beside("fm.token"), make=False)
    where = f"{parts.scheme}://{parts.netloc}{path}"
    status, found = exchange(method, where, tokens[0], b"", os.environ.get(_CACERT), SERVER_ERR, repeat_s=BUSY_S)
    if status != 200:
        said = found.get("message", "no reason")
        raise ManagerError(f"the manager answered {status} to {method} {where}: {said}", status=status)
    return found


@app.command(cls=Command)
def status(url: _Url = None, token_file: _TokenFile = None, as_json: _Json = False) -> None:
    """Show a manager's limits and figures, its groups and jobs."""
    found = _ask("GET", "/live", url, token_file)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    import time

    s, out = found["status"], console()
    out.print(
        f"weft {s['version']}, up {time.time() - s['started']:.0f} s: {s['groups']} of {s['addresses']} addresses "
        f"in use, {s['created']} groups made, {s['deleted']} deleted, {s['refused']} refused by a limit"
    )
    groups = plain_table("groups", "address", "root", "members", "vni", "timeout us", "job", "step")
    for one in found["groups"]:
        cells = ("mcastID", "hwRoot", "members", "vni", "timeout", "jobID", "jobStepID")
        groups.add_row(*(str(one[cell]) for cell in cells))
    jobs = plain_table("jobs", "job", "limit", "addresses")
    for one in found["jobs"]:
        steps = "; ".join(f"{step}: {' '.join(map(str, all_of))}" for step, all_of in one["jobSteps"].items())
        jobs.add_row(one["jobID"], str(one["mcastLimit"] or "none"), steps)
    nics = plain_table("NICs", "address", "device", "host", "link", "switch", "port")
    for one in found["nics"]:
        nics.add_row(
            one["mac"], one["device"], one["host"], "up" if one["up"] else "down",
            f"{one['group']}/{one['switch']}", str(one["port"]),
        )  # fmt: skip
    for table in (groups, jobs, nics):
        out.print(table)


@app.command(cls=Command)
def release(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)],
    url: _Url = None,
    token_file: _TokenFile = None,
) -> None:
    """Delete all groups of a job that has ended, and forget its token."""
    found = _ask("DELETE", f"/fabric/collectives/jobs/{quote(job, safe='')}", url, token_file)
    print(f"released: {', '.join(map(str, found['released'])) or 'nothing'}")
