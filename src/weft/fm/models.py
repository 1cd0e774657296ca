"""What goes over the wire, as pydantic models: they check requests, and answers and the OpenAPI text are made of them.

The field names are those of the exchange. Source: fi_cxi(7) "fi_join_collective()".
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, FailFast, Field, StrictBool, StrictInt, StrictStr

from .addresses import MAC_PATTERN, mac_text, nic_text, place
from .codes import MCAST_MAX
from .store import Group, Job, Limits, Nic
from .topology import Edge

MEMBERS_MAX = (1 << 20) - 1  # the provider's max_members

_Text = Annotated[StrictStr, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Mac = Annotated[StrictStr, Field(pattern=MAC_PATTERN)]
_SixOctets = Annotated[str, Field(pattern=r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$", examples=["02:00:00:00:08:40"])]


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore")  # a newer client may send more


class MulticastRequest(_Request):
    """POST: make a group."""

    macs: Annotated[
        list[_Mac],
        FailFast(),
        Field(
            min_length=1, max_length=MEMBERS_MAX, description="NIC addresses of the members, in the order of the set"
        ),
    ]
    vni: Annotated[StrictInt, Field(ge=0, le=65535)]
    timeout: Annotated[StrictInt, Field(ge=1, le=20_000_000, description="of the reduction engine, in microseconds")]
    jobID: _Text
    jobStepID: _Text = "(null)"


class Edges(BaseModel):
    """An edge of a group's tree."""

    parent: str
    child: str


class GroupAnswer(BaseModel):
    """A group: its multicast address, its hardware root, and the request that made it."""

    mcastID: Annotated[int, Field(ge=0, le=MCAST_MAX)]
    hwRoot: _SixOctets
    macs: list[str]
    vni: int
    timeout: int
    jobID: str
    jobStepID: str
    created: Annotated[float, Field(description="seconds since 1970")]
    documentSelfLink: str
    tree: list[Edges] | None = None

    @classmethod
    def of(cls, group: Group, tree: list[Edge] | None = None) -> GroupAnswer:
        return cls(
            mcastID=group.mcast_id,
            hwRoot=mac_text(group.hw_root),
            macs=[nic_text(one) for one in group.macs],
            vni=group.vni,
            timeout=group.timeout_us,
            jobID=group.job_id,
            jobStepID=group.job_step_id,
            created=group.created_ns / 1e9,
            documentSelfLink=f"/fabric/collectives/multicast/{group.mcast_id}",
            tree=None if tree is None else [Edges(parent=one.parent, child=one.child) for one in tree],
        )


class GroupList(BaseModel):
    """All groups that the asker may see."""

    groups: list[GroupAnswer]


class JobRequest(_Request):
    """POST: a launcher registers a job before it starts."""

    jobID: _Text
    mcastLimit: Annotated[StrictInt, Field(ge=0, le=MCAST_MAX + 1, description="0: no limit of its own")] | None = None


class JobPatch(_Request):
    """PATCH: a step that is null has ended; its groups are deleted."""

    jobSteps: dict[_Text, None]


class JobAnswer(BaseModel):
    """A job. sessionToken: what its members send; null for a job that no launcher has registered."""

    jobID: str
    mcastLimit: int
    sessionToken: str | None
    jobSteps: dict[str, list[int]]
    created: float
    documentSelfLink: str

    @classmethod
    def of(cls, job: Job) -> JobAnswer:
        return cls(
            jobID=job.job_id,
            mcastLimit=job.mcast_limit,
            sessionToken=job.token,
            jobSteps={step: list(all_of) for step, all_of in job.steps.items()},
            created=job.created_ns / 1e9,
            documentSelfLink=job_link(job.job_id),
        )


def job_link(job_id: str) -> str:
    """Where a job is."""
    return f"/fabric/collectives/jobs/{quote(job_id, safe='')}"


class JobList(BaseModel):
    """All jobs, by their addresses."""

    documentLinks: list[str]


class Released(BaseModel):
    """The multicast addresses that are free now."""

    released: list[int]


class NicRequest(_Request):
    """PUT: an entry of the registry of NICs."""

    host: _Text
    device: _Text
    topology: Literal["dragonfly", "fat-tree"] = "dragonfly"
    up: StrictBool = True


class NicAnswer(BaseModel):
    """A NIC: whose it is, and where in the network."""

    mac: _SixOctets
    host: str
    device: str
    topology: str
    up: bool
    group: int
    switch: int
    port: int
    changed: float

    @classmethod
    def of(cls, nic: Nic) -> NicAnswer:
        at = place(nic.nic, nic.topology)
        return cls(
            mac=mac_text(nic.nic),
            host=nic.host,
            device=nic.device,
            topology=nic.topology,
            up=nic.up,
            group=at.group,
            switch=at.switch,
            port=at.port,
            changed=nic.changed_ns / 1e9,
        )


class NicList(BaseModel):
    """The registry of NICs."""

    nics: list[NicAnswer]


class Status(BaseModel):
    """The manager itself."""

    version: str
    started: Annotated[float, Field(description="seconds since 1970")]
    addresses: int
    addressesPerJob: int
    groupsPerRoot: int
    knownNics: bool
    groups: int
    jobs: int
    nics: int
    created: int
    deleted: int
    refused: int

    @classmethod
    def of(cls, version: str, started: float, limits: Limits, statistics: dict[str, int]) -> Status:
        return cls(
            version=version,
            started=started,
            addresses=limits.addresses,
            addressesPerJob=limits.addresses_per_job,
            groupsPerRoot=limits.groups_per_root,
            knownNics=limits.known_nics,
            **statistics,
        )


class Problem(BaseModel):
    """Every answer that is no success. A status 507 has two digits before a colon: 01 the job's limit, 02 no address is
    free, 03 no member can be the hardware root.
    """

    message: str
