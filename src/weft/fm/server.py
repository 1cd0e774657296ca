"""The REST service of the Fabric Manager (`weft fm serve`); needs the extra [fm].

    POST   /fabric/collectives/multicast          make a group: a join does it            201
    DELETE /fabric/collectives/multicast/{id}     delete it                               200
    GET    /fabric/collectives/multicast[/{id}]   the groups; one, with its tree
    ...    /fabric/collectives/jobs[/{job}]       what a launcher does: register a job, end its steps, release it
    ...    /fabric/nics[/{mac}]                   the registry of NICs;  GET /fabric/topology
    GET    /                                      a page that shows all this live
    ...    /test                                  echo, as the unit tests of a REST client want it

`/fabric/collectives/multicasts` is the same as `.../multicast`: launchers name it so. An answer that is no success has
a `message`. Every request but those for the page, /openapi.json, /health and /test has a token: an administrator's, or
that of a job, which serves for the job's own groups.

Source: fi_cxi(7) "fi_join_collective()", FI_CXI_COLL_FABRIC_MGR_URL, FI_CXI_COLL_MCAST_TOKEN.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

from .. import __version__
from .._extras import needed
from .addresses import mac_text, nic_of_mac
from .codes import MCAST_MAX
from .gate import Gate
from .store import Nic, Refused, Store
from .topology import switch_name, tree

with needed("weft.fm.server"):
    from fastapi import APIRouter, Depends, FastAPI, Request
    from fastapi import Path as InPath
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse
    from fastapi.security import HTTPBearer
    from starlette.exceptions import HTTPException

    from . import models

if TYPE_CHECKING:
    import uvicorn

Live = Callable[[], dict[str, Any]]
"""What the page shows of the host: devices, services, counters; a function that may block, and may raise OSError."""

MULTICAST = "/fabric/collectives/multicast"
PUBLIC = frozenset({"/", "/openapi.json", "/health", "/test"})
LIVE_S = 0.25
"""The host is asked at most as often as this, however many pages look."""
TREES_MAX = 256  # on the page
HEAD_S = 10.0
"""Limit for a request's headers, or for an idle connection."""
CONNECTIONS_MAX = 512  # more are answered with 503
ADDRESS_CONNECTIONS_MAX = 128
"""Connections of one address. A further one, or one near CONNECTIONS_MAX, takes the place of the oldest idle one."""
_SHOWN = {"mcastID", "hwRoot", "vni", "timeout", "jobID", "jobStepID", "created"}
_log = logging.getLogger("weft.fm")


def application(store: Store, tokens: Sequence[str], live: Live | None = None) -> FastAPI:
    """The service over a store.

    Args:
        tokens: Tokens of administrators; at least one.
        live: Function whose result the page shows too; None: the page shows only what the manager knows itself.
    """

    if not tokens or not all(one and one.isascii() and one.isprintable() and " " not in one for one in tokens):
        raise ValueError("a Fabric Manager needs a token, of printable ASCII without spaces")
    app = FastAPI(
        title="Weft Fabric Manager",
        version=__version__,
        description=(__doc__ or "").partition("\n")[0],
        docs_url=None,  # both pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    _explain_errors(app)
    _add_multicast(app, store)
    _add_jobs(app, store)
    _add_nics(app, store)
    _add_page(app, store, live)
    _add_echo(app)
    app.add_middleware(Gate, tokens=list(tokens), job_of_token=store.job_of_token, public=PUBLIC)
    return app


class _Ascii(JSONResponse):
    """JSON in ASCII: a text of the request may hold what UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


def _explain_errors(app: FastAPI) -> None:
    """Every answer that is no success is {"message": text}; a malformed request is 400."""

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Any, reason: RequestValidationError) -> JSONResponse:
        faults = [f"{'.'.join(str(at) for at in one['loc'])}: {one['msg']}" for one in reason.errors()[:8]]
        return _Ascii({"message": "malformed request: " + "; ".join(faults)}, 400)

    @app.exception_handler(Refused)
    async def refused(_: Any, reason: Refused) -> JSONResponse:
        _log.info("refused: %d %s", reason.status, reason.message)
        return _Ascii({"message": reason.message}, reason.status)

    @app.exception_handler(HTTPException)
    async def other(_: Any, reason: HTTPException) -> JSONResponse:
        return _Ascii({"message": str(reason.detail)}, reason.status_code, dict(reason.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Any, reason: Exception) -> JSONResponse:
        return _Ascii({"message": f"the manager failed: {type(reason).__name__}; its log says more"}, 500)


_Mcast = Annotated[int, InPath(ge=0, le=MCAST_MAX)]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": models.Problem, "description": text}
    for status, text in {
        400: "malformed",
        401: "the token is missing, unknown, or another job's",
        404: "there is none",
        409: "busy: ask again after 100 ms",
        507: "a limit: 01 of the job, 02 no address is free, 03 no hardware root",
    }.items()
}


def _who(request: Any) -> str | None:
    """The job whose token the bearer has; None: an administrator."""
    who: str | None = request.state.who
    return who


def _administrator(request: Any) -> None:
    if _who(request) is not None:
        raise Refused(401, "this needs an administrator's token")


def _add_multicast(app: FastAPI, store: Store) -> None:

    router = APIRouter(tags=["multicast"], dependencies=[Depends(HTTPBearer(auto_error=False))], responses=_PROBLEMS)

    def create(wanted: models.MulticastRequest, request: Request) -> models.GroupAnswer:
        """Make a group: an address, a hardware root, a tree."""
        who = _who(request)
        if who is not None and who != wanted.jobID:
            raise Refused(401, f"the token is not that of job {wanted.jobID}")
        macs = [int(one.replace(":", ""), 16) for one in wanted.macs]
        made = store.create(macs, wanted.vni, wanted.timeout, wanted.jobID, wanted.jobStepID)
        _log.info("multicast %d: %d members, job %s", made.mcast_id, len(macs), made.job_id)
        return models.GroupAnswer.of(made)

    def all_of(request: Request) -> models.GroupList:
        """The groups that the bearer may see."""
        who = _who(request)
        found = [one for one in store.groups() if who is None or one.job_id == who]
        return models.GroupList(groups=[models.GroupAnswer.of(one) for one in found])

    def one(mcastID: _Mcast, request: Request) -> models.GroupAnswer:
        """A group with its tree."""
        found = store.group(mcastID)
        if _who(request) not in (None, found.job_id):
            raise Refused(401, f"multicast address {mcastID} is another job's")
        kinds = {nic.nic: nic.topology for nic in store.nics()}
        return models.GroupAnswer.of(found, tree(found.hw_root, found.macs, kinds))

    def delete(mcastID: _Mcast, request: Request) -> models.GroupAnswer:
        """Delete a group."""
        found = store.delete(mcastID, _who(request))
        _log.info("multicast %d: deleted", mcastID)
        return models.GroupAnswer.of(found)

    for path, shown in ((MULTICAST, True), (MULTICAST + "s", False)):
        more: dict[str, Any] = {"include_in_schema": shown, "response_model_exclude_none": True}
        router.add_api_route(path, create, methods=["POST"], status_code=201, **more)
        router.add_api_route(path, all_of, methods=["GET"], **more)
        router.add_api_route(path + "/{mcastID}", one, methods=["GET"], **more)
        router.add_api_route(path + "/{mcastID}", delete, methods=["DELETE"], **more)
    app.include_router(router)


def _add_jobs(app: FastAPI, store: Store) -> None:

    router = APIRouter(
        prefix="/fabric/collectives/jobs",
        tags=["jobs"],
        dependencies=[Depends(HTTPBearer(auto_error=False))],
        responses=_PROBLEMS,
    )

    def jobs(request: Request) -> models.JobList:
        """All jobs."""
        _administrator(request)
        return models.JobList(documentLinks=[models.job_link(one.job_id) for one in store.jobs()])

    router.add_api_route("", jobs, methods=["GET"])
    router.add_api_route("/", jobs, methods=["GET"], include_in_schema=False)

    @router.post("", status_code=201)
    def register(wanted: models.JobRequest, request: Request) -> models.JobAnswer:
        """Register a job: its limit, and a token for its members."""
        _administrator(request)
        return models.JobAnswer.of(store.register(wanted.jobID, wanted.mcastLimit))

    @router.get("/{job:path}")
    def job(job: str, request: Request) -> models.JobAnswer:
        """A job, with the addresses of its steps."""
        if _who(request) not in (None, job):
            raise Refused(401, f"the token is not that of job {job}")
        return models.JobAnswer.of(store.job(job))

    @router.patch("/{job:path}")
    def end_steps(job: str, wanted: models.JobPatch, request: Request) -> models.JobAnswer:
        """End steps of a job: their groups are deleted."""
        _administrator(request)
        return models.JobAnswer.of(store.release_steps(job, list(wanted.jobSteps)))

    @router.delete("/{job:path}")
    def release(job: str, request: Request) -> models.Released:
        """Forget a job, its token and its groups."""
        _administrator(request)
        return models.Released(released=store.release(job))

    app.include_router(router)


def _add_nics(app: FastAPI, store: Store) -> None:

    router = APIRouter(
        prefix="/fabric", tags=["fabric"], dependencies=[Depends(HTTPBearer(auto_error=False))], responses=_PROBLEMS
    )

    def address(mac: str) -> int:
        if not re.fullmatch(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", mac):
            raise Refused(400, f"{mac!r} is no address of six octets, such as {mac_text(0x840)}")
        return nic_of_mac(mac) or 0

    @router.get("/nics")
    def nics(request: Request) -> models.NicList:
        """The registry of NICs."""
        _administrator(request)
        return models.NicList(nics=[models.NicAnswer.of(one) for one in store.nics()])

    @router.put("/nics/{mac}")
    def put_nic(mac: str, wanted: models.NicRequest, request: Request) -> models.NicAnswer:
        """Add a NIC, or change its entry."""
        _administrator(request)
        nic = Nic(address(mac), wanted.host, wanted.device, wanted.topology, wanted.up)
        return models.NicAnswer.of(store.put_nic(nic))

    @router.delete("/nics/{mac}", status_code=200)
    def remove_nic(mac: str, request: Request) -> dict[str, str]:
        """Remove a NIC."""
        _administrator(request)
        store.remove_nic(address(mac))
        return {"removed": mac}

    @router.get("/topology")
    def topology(request: Request) -> dict[str, Any]:
        """The switches with their NICs, and the groups' trees over them."""
        _administrator(request)
        return _topology(store)

    app.include_router(router)


def _topology(store: Store, trees_max: int | None = None) -> dict[str, Any]:
    """trees_max: the number of groups, and of members of a group, up to which trees are shown; None: all."""
    nics, groups = store.nics(), store.groups()
    kinds = {one.nic: one.topology for one in nics}
    members = {one.nic for one in nics} | {mac for group in groups for mac in group.macs}
    switches: dict[str, list[str]] = {}
    for nic in sorted(members):
        switches.setdefault(switch_name(nic, kinds.get(nic, "dragonfly")), []).append(mac_text(nic))
    drawn = [one for one in groups if trees_max is None or len(one.macs) <= trees_max][:trees_max]
    trees = {str(one.mcast_id): tree(one.hw_root, one.macs, kinds) for one in drawn}
    return {"switches": switches, "trees": {name: [list(edge) for edge in edges] for name, edges in trees.items()}}


# ---- the page --------------------------------------------------------------------------------------------------------


class _Seldom:
    """Calls `live` at most every LIVE_S seconds, from one thread at a time."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._last: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() - self._at >= LIVE_S:
                try:
                    self._last = self._live()
                except OSError as reason:  # FabricError is one
                    self._last = {"error": str(reason)}
                self._at = time.monotonic()
            return self._last


def _policy(page: str) -> str:
    """A content security policy that lets the page's own script and style run, and nothing else."""

    def own(tag: str) -> str:
        text = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {own('script')}; style-src {own('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _add_page(app: FastAPI, store: Store, live: Live | None) -> None:

    page = File(__file__).with_name("page.html").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": _policy(page),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    host = None if live is None else _Seldom(live)
    started = time.time()

    @app.get("/", include_in_schema=False)
    def show() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @app.get("/health", tags=["manager"])
    def health() -> dict[str, bool]:
        """200 if the database can be read."""
        store.statistics()
        return {"ok": True}

    bearer = [Depends(HTTPBearer(auto_error=False))]

    @app.get("/status", tags=["manager"], dependencies=bearer, responses=_PROBLEMS)
    def status(request: Request) -> models.Status:
        """Limits and figures of the manager."""
        _administrator(request)
        return models.Status.of(__version__, started, store.limits, store.statistics())

    @app.get("/live", tags=["manager"], dependencies=bearer, responses=_PROBLEMS)
    def all_live(request: Request) -> dict[str, Any]:
        """What the page shows."""
        groups = store.groups()
        return {
            "time": time.time(),
            "status": status(request).model_dump(),
            "groups": [
                models.GroupAnswer.of(one).model_dump(include=_SHOWN) | {"members": len(one.macs)} for one in groups
            ],
            "jobs": [
                models.JobAnswer.of(one).model_dump(exclude={"sessionToken", "documentSelfLink"})
                for one in store.jobs()
            ],
            "nics": [models.NicAnswer.of(one).model_dump() for one in store.nics()],
            "topology": _topology(store, trees_max=TREES_MAX),
            "host": {} if host is None else host(),
        }


def _add_echo(app: FastAPI) -> None:
    """{"operation": METHOD, "data": body}, with the status that the body's return_code says."""

    @app.api_route("/test", methods=["GET", "PUT", "POST", "PATCH", "DELETE"], include_in_schema=False)
    async def echo(request: Request) -> JSONResponse:
        text = await request.body()
        try:
            data = json.loads(text, parse_constant=_no_number) if text else None
        except (ValueError, RecursionError):
            raise Refused(400, "the body is no JSON") from None
        status = data.get("return_code", 200) if isinstance(data, dict) else 200
        if type(status) is not int or not 200 <= status <= 599 or status in (204, 205, 304):
            raise Refused(400, f"return_code {status!r} is no status of an answer with a body")
        return _Ascii({"operation": request.method, "data": data}, status)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


# ---- running ---------------------------------------------------------------------------------------------------------


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any that is free. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=256)


def run(app: FastAPI, listener: socket.socket, *, cert: str | None = None, key: str | None = None) -> None:
    """Serve until SIGINT or SIGTERM; requests that are under way get 3 s. cert, key: PEM files, for https."""
    _server(app, cert, key).run(sockets=[listener])


@contextlib.contextmanager
def running(app: FastAPI, listener: socket.socket, *, cert: str | None = None, key: str | None = None) -> Iterator[str]:
    """Serve in a thread during the block; the address of POST, for FI_CXI_COLL_FABRIC_MGR_URL. Closes the listener."""
    server = _server(app, cert, key)
    server.config.load()  # an invalid certificate is an error here, not in the thread
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="weft-fm", daemon=True)
    thread.start()
    try:
        yield address_of(listener, secure=cert is not None) + MULTICAST
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def address_of(listener: socket.socket, *, secure: bool = False) -> str:
    """http://host:port of a listening socket."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if secure else ''}://{shown}:{port}"


def _impatient() -> type[asyncio.Protocol]:
    """uvicorn's protocol, which also closes the connection of a peer that does not finish a request's headers within
    HEAD_S seconds: such a peer would occupy one of CONNECTIONS_MAX for ever.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    open_now: dict[Any, str] = {}  # the connections and their addresses, oldest first

    class Impatient(H11Protocol):
        _seen: Any = ()  # nothing has been looked at

        def connection_made(self, transport: Any) -> None:
            self._make_room(str((transport.get_extra_info("peername") or ("",))[0]))
            super().connection_made(transport)
            self._watch()

        def _make_room(self, address: str) -> None:
            same = [one for one, where in open_now.items() if where == address]
            crowded = list(open_now) if len(open_now) >= CONNECTIONS_MAX - 2 else []
            for among in (same if len(same) >= ADDRESS_CONNECTIONS_MAX else [], crowded):
                idle = next((one for one in among if one._is_idle()), None)
                if idle is not None and idle in open_now:
                    idle._leave()
            open_now[self] = address

        def _is_idle(self) -> bool:
            cycle: Any = self.cycle
            return cycle is None or bool(cycle.response_complete)

        def _leave(self) -> None:
            open_now.pop(self, None)
            self.connections.discard(self)  # uvicorn's own count: it drops a connection some turns of the loop later
            self.transport.abort()

        def _watch(self) -> None:
            self._timer = self.loop.call_later(HEAD_S / 2, self._look)

        def _look(self) -> None:  # two looks end a connection: a process that was stopped reads between them
            cycle: Any = self.cycle  # the last request whose headers have come; None before the first
            if cycle is self._seen and (cycle is None or cycle.response_complete):
                self.transport.close()
            else:
                self._seen = cycle
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            open_now.pop(self, None)
            super().connection_lost(exc)

    return Impatient


def _server(app: FastAPI, cert: str | None, key: str | None) -> uvicorn.Server:
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_impatient(),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
    )
