"""What keeps messages and deferred work from moving: log lines about match modes, and a watchdog for stuck programs.

    watch = Watch("cxi0", service, pool)    # of a domain
    watch.add(ep)                           # an endpoint that will be enabled
    domain.set_news(watch.news)

The NIC tells of changes of the match mode, of refused sends and of receivers that stop this process (`news`). The first
such news starts a thread, which looks at the endpoints twice a second, logs one line for each resource that has been
stuck for a second, and ends when nothing is stuck. A program without trouble has no such thread. Meanwhile the same
lines are in a file of the registry's folder, `stuck/<process>.json`, which `weft doctor --watch` shows (trouble.py).

Source: fi_cxi(7) "Rendezvous Messages", "Selecting Proper Receive Match Mode".
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _nic, errors
from . import env, messages, trouble
from .ledger import OWN_TLES
from .logs import LOG
from .trouble import Stuck

if TYPE_CHECKING:
    from .resources import Pool

STUCK_S = 1.0
LOOK_S = 0.5
CYCLES = 5  # times that flow control begins in a second: a cycle

Counts = dict[str, Any]


class Watch:
    """The endpoints of one domain."""

    def __init__(self, device: str, service: int, pool: Pool) -> None:
        self.device, self.service, self.pool = device, service, pool
        self.pid = os.getpid()
        self._eps: weakref.WeakSet[_nic.EndpointCore] = weakref.WeakSet()
        self._told: dict[int, Counts] = {}  # by pid of the endpoint: counts of which a line told
        self._domains: weakref.WeakSet[_nic.DomainCore] = weakref.WeakSet()  # whose deferred work waits for entries
        _all.add(self)

    def add(self, ep: _nic.EndpointCore) -> None:
        """Watch an endpoint until it is closed."""
        self._eps.add(ep)

    def work_waits(self, domain: _nic.DomainCore) -> None:
        """Deferred work of the domain waits for trigger entries."""
        self._domains.add(domain)
        _dog.wake()

    def endpoints(self) -> list[tuple[int, Counts]]:
        """(pid, counts) of each enabled endpoint."""
        found = []
        for ep in list(self._eps):
            counts = _nic.EndpointCore.message_statistics(ep)
            if counts["state"] or counts["stops"] or counts["no_id"]:
                found.append((_nic.EndpointCore.address.__get__(ep)[1], counts))
        return found

    def entries_wanted(self) -> int:
        """List entries with which the service would have sufficed so far, for all processes together."""
        wanted = self.pool.held("les")
        for watch in list(_all):
            if (watch.device, watch.service) == (self.device, self.service):
                for _, counts in watch.endpoints():
                    wanted += counts["entries_wanted"] - _entries(counts)
        return int(wanted)

    # ---- news --------------------------------------------------------------------------------------------------------

    def news(self, pid: int, what: str) -> bool:
        """News of the endpoint with a pid: "match_mode", "stopped" or "no_id"; log them. "no_entry": a receive finds no
        list entry; returns whether dead processes had some."""
        if self.pid != os.getpid():
            return False
        if what == "no_entry":
            return self.pool.reclaim("les")
        if what == "match_mode":
            self.pool.reclaim("les")
            for number, counts in self.endpoints():
                if number == pid:
                    self._log(pid, counts)
        _dog.wake()
        return False

    def _log(self, pid: int, now: Counts) -> None:
        before = self._told.setdefault(pid, {})
        where = f"device {self.device}, service {self.service}, endpoint {pid}"
        for name, line in _lines(now):
            # Log the first, second, fourth ... time: a cycle has thousands of changes. 0: the endpoint has closed.
            if now[name] and now[name].bit_length() != before.get(name, 0).bit_length():
                LOG.warning("%s: %s; %s", where, line, self._advice(now))
            before[name] = now[name]

    def _advice(self, now: Counts) -> str:
        wanted, limit = self.entries_wanted(), self.pool.limit("les")
        have = f"the service has {limit} list entries"
        if now["cause"] in ("many receives", "many messages"):
            return f"{have}; try: a larger rx_attr.size"
        if now["cause"] == "few entries":
            wanted += _request_buffers() + 1
        more = f"a service with `--limit les={wanted}`" if wanted > limit else "a service of its own"
        mode = "" if now["mode"] == "hybrid" else ", or FI_CXI_RX_MATCH_MODE=hybrid"
        return f"{have}, {wanted} would have sufficed so far; try: {more}{mode}"

    # ---- stuck -------------------------------------------------------------------------------------------------------

    def stuck(self, before: dict[tuple[int, int], Counts]) -> Iterator[Stuck]:
        """The resources that are stuck now, as far as one look can tell; `before`: the counts of the last look."""
        for pid, now in self.endpoints():
            last = before.get((id(self), pid), {})
            before[id(self), pid] = now
            for one in _stuck(now, last):
                if one.resource == "list entries":
                    yield self._of_entries(pid, one)
                else:
                    yield one._replace(device=self.device, service=self.service, endpoint=pid)

        yield from self._of_work()

    def _of_work(self) -> Iterator[Stuck]:
        """Deferred work that waits for trigger entries, which hardware would never start."""
        waiting = 0
        for domain in list(self._domains):
            try:
                mine = _nic.work_statistics(domain)["waiting"]
            except errors.FabricError:  # closed
                mine = 0
            waiting += mine
            if not mine:
                self._domains.discard(domain)
        if waiting:
            self.pool.reclaim("tles")
            yield self.stuck_work(waiting)

    def stuck_work(self, waiting: int) -> Stuck:
        """The trigger entries, while this many deferred operations of a process wait for them."""
        held, most = self.pool.held("tles"), self.pool.limit("tles")
        wanted = held + waiting
        least = wanted + OWN_TLES
        return Stuck(
            "trigger entries",
            f"{waiting} deferred operations of this process wait for entries (hardware would deadlock); processes of "
            f"the service have {held}",
            f"{most} entries of the service, {OWN_TLES} of them the provider's own; FI_CXI_ENABLE_TRIG_OP_LIMIT=0",
            wanted,
            f"a service with `--limit tles={least}:{least}`, or less work at a time (get_dwq_depth), or "
            "FI_CXI_ENABLE_TRIG_OP_LIMIT=1 to be refused",
            self.device,
            self.service,
        )

    def _of_entries(self, pid: int, one: Stuck) -> Stuck:
        wanted, limit = self.entries_wanted(), self.pool.limit("les")
        return one._replace(
            device=self.device,
            service=self.service,
            endpoint=pid,
            in_force=f"{limit} list entries of the service",
            wanted=wanted,
            advice=f"FI_CXI_RX_MATCH_MODE=hybrid, or a service with `--limit les={max(wanted, limit + 1)}`",
        )


def _entries(counts: Counts) -> int:
    return int(counts["entries_of_receives"] + counts["entries_of_messages"] + counts["entries_of_buffers"])


def _request_buffers() -> int:
    return int(env.load().FI_CXI_REQ_BUF_MIN_POSTED)


def _lines(now: Counts) -> Iterator[tuple[str, str]]:
    """(count, line about it) of each transition."""
    cause, back = now["cause"], f"{now['onloaded']} messages gave their entries back"
    end = "it goes on" if now["state"] == "changing" else f"flow control ended with {_entries(now)} entries in use here"
    yield "flow_controls", f"flow control, {now['flow_controls']} times: {cause}; {back}, and {end}"
    yield "changes", f"matching moves to software: {cause}; {back}"
    yield "pauses", f"senders pause (lossless), {now['pauses']} times: {cause}"
    yield "no_entries", f"a receive was refused, {now['no_entries']} times: no list entry for it"


def _stuck(now: Counts, last: Counts) -> Iterator[Stuck]:
    """What one look at an endpoint, and the last look, make of it."""
    e = env.load()
    for kind, limit in (("tagged", messages.TAGGED_IDS), ("untagged", messages.UNTAGGED_IDS)):
        if now["no_id"] and now[f"{kind}_ids"] >= limit:
            longest = now["no_id_bytes"]
            threshold = max(longest - e.FI_CXI_RDZV_GET_MIN, e.FI_CXI_RDZV_THRESHOLD + 1)
            advice = f"FI_CXI_RDZV_THRESHOLD={threshold}"
            if threshold + e.FI_CXI_RDZV_GET_MIN > e.FI_CXI_OFLOW_BUF_SIZE:
                advice += f" with FI_CXI_OFLOW_BUF_SIZE={threshold + e.FI_CXI_RDZV_GET_MIN}"
            yield Stuck(
                f"{kind} rendezvous IDs",
                f"{limit} {kind} messages wait to be pulled, and none more can be sent until a receive takes one",
                f"{limit} IDs, FI_CXI_RDZV_THRESHOLD={e.FI_CXI_RDZV_THRESHOLD}, "
                f"FI_CXI_RDZV_GET_MIN={e.FI_CXI_RDZV_GET_MIN}",
                longest,
                advice,
            )
    if now["stopped"]:
        yield Stuck(
            "receiver",
            f"{now['stopped']} peers take no messages; the one at fi_addr {now['stopped_dest']} for "
            f"{now['stopped_s']:.1f} s",
            "what the peer has",
            now["stopped"],
            "at the peer: post receives, or read its completion queue",
        )
    controls = now["flow_controls"] - last.get("flow_controls", now["flow_controls"])
    refusals = now["no_entries"] - last.get("no_entries", now["no_entries"])
    if controls >= CYCLES or refusals >= CYCLES:
        what = f"flow control begins again and again, {now['flow_controls']} times so far"
        if refusals >= CYCLES:
            what = f"receives are refused again and again, {now['no_entries']} times so far"
        yield Stuck("list entries", what, "", 0, "")
    still = (
        last
        and now["unexpected"]
        and now["refused"]
        and now["kept"] - now["unexpected"] == (last["kept"] - last["unexpected"])
    )
    if still and (now["state"] == "changing" or now["refused"] > last["refused"]):
        yield Stuck(
            "receives",
            f"{now['unexpected']} messages wait, and no receive takes one",
            f"{now['posted']} receives posted, {now['buffers']} buffers",
            now["unexpected"],
            "post receives that match",
        )


# ---- the watchdog ----------------------------------------------------------------------------------------------------


class _Since(NamedTuple):
    at: float
    stuck: Stuck


class _Dog:
    """The thread of a process in trouble."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Start the thread if there is none. Never waits: news may come in any call."""
        if not self._lock.acquire(blocking=False):
            return  # the thread is being started, or ends: the next news starts it
        try:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weft-watch", daemon=True)
                self._thread.start()
        except RuntimeError:  # the interpreter ends
            self._thread = None
        finally:
            self._lock.release()

    def _run(self) -> None:
        try:
            self._look()
        except BaseException:  # a domain or its registry ended during the look: the next news starts a thread again
            with self._lock:
                self._thread = None
            raise

    def _look(self) -> None:
        since: dict[tuple[Any, ...], _Since] = {}
        told: set[tuple[Any, ...]] = set()
        before: dict[tuple[int, int], Counts] = {}
        first = True
        while True:
            now, seen = time.monotonic(), {}
            for watch in list(_all):
                for one in watch.stuck(before):
                    seen[one.key] = _Since(since[one.key].at if one.key in since else now, one)
            since = seen
            lasting = {key: each for key, each in since.items() if now - each.at >= STUCK_S}
            for key, each in lasting.items():
                if key not in told:
                    told.add(key)
                    LOG.warning("%s", each.stuck.line(now - each.at))
            told &= since.keys()
            try:
                trouble.write([(time.time() - (now - each.at), each.stuck) for each in lasting.values()])
            except (OSError, errors.FabricError):
                pass  # the registry is gone, or its disk is full: the log has the lines
            if not since and not first:
                with self._lock:
                    self._thread = None
                return
            first = False
            time.sleep(LOOK_S)


_all: weakref.WeakSet[Watch] = weakref.WeakSet()
_dog = _Dog()


def _after_fork() -> None:
    global _dog
    _dog = _Dog()
    _all.clear()


os.register_at_fork(after_in_child=_after_fork)
