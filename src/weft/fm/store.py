"""The groups, jobs and NICs of a fabric, in one SQLite file: the Fabric Manager without its service.

    store = Store("fabric.db", Limits(addresses_per_job=4))
    group = store.create(macs=[0x840, 0x841], vni=1024, timeout_us=32000, job_id="j", job_step_id="0")
    store.delete(group.mcast_id)

A method returns when its change is on the disk. A process that is killed at any instant leaves the state before a
change or after it, and several processes may use one file at once: every rule is checked in the transaction that makes
the change.

Rules: a multicast address belongs to one group; a NIC is the hardware root of at most `Limits.groups_per_root` groups;
a job has at most its limit of addresses.

Source: fi_cxi(7) "fi_join_collective()": multicast addresses and their limits.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .addresses import NIC_MAX, mac_text
from .codes import JOB_LIMIT, MCAST_MAX, NO_ADDRESS, NO_ROOT

if TYPE_CHECKING:
    import os
    import sqlite3

_VERSION = 1
_WAIT_S = 1.0  # for another process's transaction; then the request is answered with 409, and the client repeats it
_SCHEMA = f"""
CREATE TABLE jobs (
    job TEXT PRIMARY KEY, mcast_limit INTEGER NOT NULL CHECK (mcast_limit >= 0),
    token TEXT UNIQUE, created_ns INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE groups (
    mcast INTEGER PRIMARY KEY CHECK (mcast BETWEEN 0 AND {MCAST_MAX}),
    root INTEGER NOT NULL, vni INTEGER NOT NULL, timeout_us INTEGER NOT NULL,
    job TEXT NOT NULL REFERENCES jobs (job), step TEXT NOT NULL, macs TEXT NOT NULL, created_ns INTEGER NOT NULL
);
CREATE INDEX groups_by_job ON groups (job, step);
CREATE INDEX groups_by_root ON groups (root);
CREATE TABLE nics (
    nic INTEGER PRIMARY KEY CHECK (nic BETWEEN 0 AND {NIC_MAX}),
    host TEXT NOT NULL, device TEXT NOT NULL, topology TEXT NOT NULL, up INTEGER NOT NULL, changed_ns INTEGER NOT NULL
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO facts VALUES ('last', -1), ('created', 0), ('deleted', 0), ('refused', 0);
PRAGMA user_version = {_VERSION};
"""

_NEXT_FREE = f"""
SELECT m FROM (SELECT :first AS m UNION ALL SELECT mcast + 1 FROM groups WHERE mcast >= :first)
WHERE m <= {MCAST_MAX} AND m NOT IN (SELECT mcast FROM groups) ORDER BY m LIMIT 1
"""


class Refused(Exception):
    """A request that the manager does not fulfil: the HTTP status of the answer, and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Limits:
    """What the administrator allows.

    Attributes:
        addresses: Multicast addresses of the system, at most 8192.
        addresses_per_job: Limit of a job that is registered without one (FI_CXI_HWCOLL_ADDRS_PER_JOB); 0: no such
            limit.
        groups_per_root: Groups of which one NIC may be the hardware root.
        known_nics: True: the members of a group must be in the registry of NICs.
    """

    addresses: int = MCAST_MAX + 1
    addresses_per_job: int = 0
    groups_per_root: int = 1
    known_nics: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.addresses <= MCAST_MAX + 1:
            raise ValueError(f"addresses={self.addresses}: a system has 0 to {MCAST_MAX + 1} multicast addresses")
        if self.addresses_per_job < 0:
            raise ValueError(f"addresses_per_job={self.addresses_per_job} is negative")
        if self.groups_per_root < 1:
            raise ValueError(f"groups_per_root={self.groups_per_root}: at least 1")


@dataclass(frozen=True)
class Group:
    """A multicast address in use.

    Attributes:
        mcast_id: The address.
        hw_root: The NIC that is the root of the tree.
        macs: The members' NICs, in the order of the set; a NIC that several members share occurs several times.
    """

    mcast_id: int
    hw_root: int
    macs: tuple[int, ...]
    vni: int
    timeout_us: int
    job_id: str
    job_step_id: str
    created_ns: int


@dataclass(frozen=True)
class Job:
    """A job that has, or may have, groups.

    Attributes:
        mcast_limit: The most addresses of the job; 0: no limit of its own.
        token: The secret by which the job's members prove membership; None: the job came with its first group, not by a
            launcher.
        steps: step -> its multicast addresses.
    """

    job_id: str
    mcast_limit: int
    token: str | None
    created_ns: int
    steps: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Nic:
    """An entry of the registry of NICs. topology: "dragonfly" or "fat-tree"; up: a NIC that is not up is the root of no
    group.
    """

    nic: int
    host: str
    device: str
    topology: str = "dragonfly"
    up: bool = True
    changed_ns: int = 0


class Store:
    """The file. Thread-safe; made if it is missing. Raises Refused (409) while other processes keep the file busy."""

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None, *, wait_s: float = _WAIT_S) -> None:
        self.path = Path(path)
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._wait_s = wait_s
        self._connection: sqlite3.Connection | None = self._open()

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        end = time.monotonic() + self._wait_s
        while True:
            try:
                return self._opened()
            except sqlite3.OperationalError as reason:
                if not _busy(reason):
                    raise ValueError(f"{self.path} cannot be used as a database: {reason}") from None
                if time.monotonic() > end:
                    raise Refused(409, f"{self.path} is busy") from None
            except sqlite3.DatabaseError as reason:
                raise ValueError(f"{self.path} cannot be used as a database: {reason}") from None
            time.sleep(0.01)  # SQLite does not wait where two processes change the journal's mode at once

    def _opened(self) -> sqlite3.Connection:
        import os
        import sqlite3

        with contextlib.suppress(FileExistsError):  # it has tokens: others may not read it, whatever the umask
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        found = sqlite3.connect(self.path, timeout=self._wait_s, isolation_level=None, check_same_thread=False)
        try:
            # FULL: a commit is on the disk, and survives the host's end too, before the answer goes out.
            for order in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                found.execute(f"PRAGMA {order}")
            found.execute("BEGIN IMMEDIATE")
            (version,) = found.execute("PRAGMA user_version").fetchone()
            if version == 0:
                if found.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                    raise ValueError(f"{self.path} is a database of something else")
                for statement in _SCHEMA.split(";"):
                    found.execute(statement)
            elif version != _VERSION:
                raise ValueError(f"{self.path} is of another version of Weft: {version}, not {_VERSION}")
            found.execute("COMMIT")
        except BaseException:
            found.close()
            raise
        return found

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        import sqlite3

        if not self._lock.acquire(timeout=2 * self._wait_s + 1):
            raise Refused(409, "the manager is busy")
        try:
            found = self._connection
            if found is None:
                raise ValueError(f"the store {self.path} is closed")
            try:
                found.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield found
                found.execute("COMMIT")
            except BaseException as reason:
                if found.in_transaction:
                    found.execute("ROLLBACK")
                if isinstance(reason, sqlite3.OperationalError):
                    if _busy(reason):
                        raise Refused(409, "the manager's database is busy") from None
                    raise Refused(500, f"the manager's database: {reason}") from None  # a full disk
                raise
        finally:
            self._lock.release()

    # ---- groups ------------------------------------------------------------------------------------------------------

    def create(self, macs: Sequence[int], vni: int, timeout_us: int, job_id: str, job_step_id: str = "") -> Group:
        """Give a group its address and its root: the first member whose NIC is up and may be the root of another group.

        Raises Refused: 507 with "01:" (the job has its limit), "02:" (no address is free) or "03:" (no member can be
        the root); 400 (no member; an unknown NIC, where Limits.known_nics asks for known ones).
        """
        if not macs:
            raise Refused(400, "macs is empty: a group has at least one member")
        members = dict.fromkeys(macs)
        try:
            with self._transaction() as c:
                if self.limits.known_nics and (strangers := [one for one in members if _up(c, one) is None]):
                    raise Refused(400, f"not in the registry of NICs: {', '.join(map(mac_text, strangers[:8]))}")
                now = time.time_ns()
                c.execute(
                    "INSERT OR IGNORE INTO jobs VALUES (?, ?, NULL, ?)", (job_id, self.limits.addresses_per_job, now)
                )
                (most,) = c.execute("SELECT mcast_limit FROM jobs WHERE job = ?", (job_id,)).fetchone()
                (held,) = c.execute("SELECT COUNT(*) FROM groups WHERE job = ?", (job_id,)).fetchone()
                if most and held >= most:
                    raise Refused(507, f"{JOB_LIMIT}: job {job_id} has {held} of {most} multicast addresses")
                mcast = self._free_address(c)
                root = next((one for one in members if self._may_be_root(c, one)), None)
                if root is None:
                    raise Refused(
                        507,
                        f"{NO_ROOT}: no hardware root: each of the {len(members)} NICs is the root of a group, or down",
                    )
                step = str(job_step_id)
                c.execute(
                    "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (mcast, root, vni, timeout_us, job_id, step, json.dumps(list(macs)), now),
                )
                c.execute("UPDATE facts SET value = ? WHERE name = 'last'", (mcast,))
                c.execute("UPDATE facts SET value = value + 1 WHERE name = 'created'")
        except Refused as reason:
            if reason.status == 507:
                self._count_refused()
            raise
        return Group(mcast, root, tuple(macs), vni, timeout_us, job_id, step, now)

    def _free_address(self, c: sqlite3.Connection) -> int:
        """The next address after the last one given, so that a late packet does not reach a newer group."""
        most = self.limits.addresses
        (used,) = c.execute("SELECT COUNT(*) FROM groups").fetchone()
        if used < most:
            (last,) = c.execute("SELECT value FROM facts WHERE name = 'last'").fetchone()
            for first in ((last + 1) % (MCAST_MAX + 1), 0):
                found = c.execute(_NEXT_FREE, {"first": first}).fetchone()
                if found is not None:
                    return int(found[0])
        raise Refused(507, f"{NO_ADDRESS}: no multicast address is free: {used} of {most} are in use")

    def _may_be_root(self, c: sqlite3.Connection, nic: int) -> bool:
        (groups,) = c.execute("SELECT COUNT(*) FROM groups WHERE root = ?", (nic,)).fetchone()
        return groups < self.limits.groups_per_root and _up(c, nic) is not False

    def _count_refused(self) -> None:
        with contextlib.suppress(Refused), self._transaction() as c:
            c.execute("UPDATE facts SET value = value + 1 WHERE name = 'refused'")

    def delete(self, mcast_id: int, job_id: str | None = None) -> Group:
        """Free an address; the group that had it. job_id: it must be that job's. Raises Refused (404, 401)."""
        with self._transaction() as c:
            found = self._group(c, mcast_id)
            if job_id is not None and found.job_id != job_id:
                raise Refused(401, f"multicast address {mcast_id} is another job's")
            c.execute("DELETE FROM groups WHERE mcast = ?", (mcast_id,))
            c.execute("UPDATE facts SET value = value + 1 WHERE name = 'deleted'")
            self._forget_empty(c, found.job_id)
        return found

    def group(self, mcast_id: int) -> Group:
        """The group with an address. Raises Refused (404)."""
        with self._transaction(write=False) as c:
            return self._group(c, mcast_id)

    def _group(self, c: sqlite3.Connection, mcast_id: int) -> Group:
        row = c.execute("SELECT * FROM groups WHERE mcast = ?", (mcast_id,)).fetchone()
        if row is None:
            raise Refused(404, f"multicast address {mcast_id} is not in use")
        return _group_of(row)

    def groups(self) -> list[Group]:
        """All groups, by address."""
        with self._transaction(write=False) as c:
            return [_group_of(row) for row in c.execute("SELECT * FROM groups ORDER BY mcast")]

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def register(self, job_id: str, mcast_limit: int | None = None) -> Job:
        """Make a job known, before it starts: its limit, and a token for its members. Raises Refused (409: known)."""
        most = self.limits.addresses_per_job if mcast_limit is None else mcast_limit
        with self._transaction() as c:
            row = c.execute("SELECT token FROM jobs WHERE job = ?", (job_id,)).fetchone()
            if row is not None:
                raise Refused(409, f"job {job_id} is registered")
            made = Job(job_id, most, secrets.token_urlsafe(24), time.time_ns(), {})
            c.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (job_id, most, made.token, made.created_ns))
        return made

    def job(self, job_id: str) -> Job:
        """A job. Raises Refused (404)."""
        with self._transaction(write=False) as c:
            return self._job(c, job_id)

    def _job(self, c: sqlite3.Connection, job_id: str) -> Job:
        row = c.execute("SELECT * FROM jobs WHERE job = ?", (job_id,)).fetchone()
        if row is None:
            raise Refused(404, f"there is no job {job_id}")
        steps: dict[str, tuple[int, ...]] = {}
        for step, mcast in c.execute("SELECT step, mcast FROM groups WHERE job = ? ORDER BY mcast", (job_id,)):
            steps[step] = (*steps.get(step, ()), mcast)
        name, most, token, created_ns = row
        return Job(name, most, token, created_ns, steps)

    def jobs(self) -> list[Job]:
        """All jobs, by name."""
        with self._transaction(write=False) as c:
            names = [name for (name,) in c.execute("SELECT job FROM jobs ORDER BY job")]
            return [self._job(c, name) for name in names]

    def job_of_token(self, token: str) -> str | None:
        """The job whose members have this token."""
        with self._transaction(write=False) as c:
            row = c.execute("SELECT job, token FROM jobs WHERE token = ?", (token,)).fetchone()
        return str(row[0]) if row is not None and hmac.compare_digest(row[1], token) else None

    def release_steps(self, job_id: str, steps: Sequence[str]) -> Job:
        """Free the addresses of these steps of a job. Raises Refused (404)."""
        with self._transaction() as c:
            self._job(c, job_id)
            for step in steps:
                self._free(c, "job = ? AND step = ?", (job_id, step))
            return self._job(c, job_id)

    def release(self, job_id: str) -> list[int]:
        """Forget a job, its token and its groups; the addresses that it had. Raises Refused (404)."""
        with self._transaction() as c:
            found = self._job(c, job_id)
            self._free(c, "job = ?", (job_id,))
            c.execute("DELETE FROM jobs WHERE job = ?", (job_id,))
        return sorted(mcast for all_of in found.steps.values() for mcast in all_of)

    @staticmethod
    def _free(c: sqlite3.Connection, which: str, values: tuple[Any, ...]) -> None:
        done = c.execute(f"DELETE FROM groups WHERE {which}", values).rowcount
        c.execute("UPDATE facts SET value = value + ? WHERE name = 'deleted'", (done,))

    @staticmethod
    def _forget_empty(c: sqlite3.Connection, job_id: str) -> None:
        """Delete a job without groups if it came with its first group."""
        c.execute(
            "DELETE FROM jobs WHERE job = ? AND token IS NULL AND NOT EXISTS (SELECT 1 FROM groups WHERE job = ?)",
            (job_id, job_id),
        )

    # ---- NICs --------------------------------------------------------------------------------------------------------

    def put_nic(self, nic: Nic) -> Nic:
        """Add a NIC to the registry, or change its entry."""
        now = time.time_ns()
        with self._transaction() as c:
            c.execute(
                "INSERT OR REPLACE INTO nics VALUES (?, ?, ?, ?, ?, ?)",
                (nic.nic, nic.host, nic.device, nic.topology, int(nic.up), now),
            )
        return Nic(nic.nic, nic.host, nic.device, nic.topology, nic.up, now)

    def remove_nic(self, nic: int) -> None:
        """Remove a NIC; groups that it is a member of stay. Raises Refused (404)."""
        with self._transaction() as c:
            if not c.execute("DELETE FROM nics WHERE nic = ?", (nic,)).rowcount:
                raise Refused(404, f"{mac_text(nic)} is not in the registry of NICs")

    def nics(self) -> list[Nic]:
        """The registry, by address."""
        with self._transaction(write=False) as c:
            rows = c.execute("SELECT * FROM nics ORDER BY nic").fetchall()
        return [Nic(nic, host, device, topology, bool(up), at) for nic, host, device, topology, up, at in rows]

    # ---- figures -----------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """Counts since the file was made: groups created, deleted, refused by a limit; and the present groups, jobs and
        NICs.
        """
        with self._transaction(write=False) as c:
            facts = dict(c.execute("SELECT name, value FROM facts WHERE name <> 'last'"))
            tables = ("groups", "jobs", "nics")
            return facts | {t: c.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in tables}


def _busy(reason: sqlite3.OperationalError) -> bool:
    return "locked" in str(reason) or "busy" in str(reason)


def _up(c: sqlite3.Connection, nic: int) -> bool | None:
    """Whether a NIC's link is up; None: it is not in the registry."""
    row = c.execute("SELECT up FROM nics WHERE nic = ?", (nic,)).fetchone()
    return None if row is None else bool(row[0])


def _group_of(row: tuple[Any, ...]) -> Group:
    mcast, root, vni, timeout_us, job, step, macs, created_ns = row
    return Group(mcast, root, tuple(json.loads(macs)), vni, timeout_us, job, step, created_ns)
