"""A provider's decisions, as data and protocols.

The calls of `weft.fi` ask these objects. A `Provider` makes getinfo's offers and opens domains. Its `DomainPolicy`
has the rules of one opened domain (keys, regions, queues, vectors, the domain's identity), and an `EndpointPolicy` the
rules of one endpoint. The NIC does what hardware does, and gets the answers as numbers when a domain or endpoint is
opened (`nic_config`).

If another provider might answer a refusal differently, the refusal has a name (rules.py).

The members with a value or a body are the answers of most providers, who take nothing and restrict nothing.
`weft.providers.base` implements the other members with the man pages' answers, for providers that differ in some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .. import _nic, errors
from .._nic import Status
from ..flags import AddrFormat, Errno, MrMode, Progress
from .policy_rules import (
    BindRules,
    CommandRules,
    CounterRules,
    KeyRules,
    Option,
    QueueRules,
    RegionFacts,
    RegionRules,
    VectorRules,
)
from .rules import Refusals

if TYPE_CHECKING:
    import threading

    from .attrs import FabricAttr, Info
    from .offer import Candidate, No, Offer

Address = tuple[int, int | None, int]
"""(nic, pid or None, vni): an endpoint's address in the NIC; None: the NIC will choose the pid."""

CM_DATA_SIZE = _nic.limits().cm_bytes
"""Bytes of private data that a connection request or an answer may carry."""

StatusMap = Mapping[Status, tuple[int, int]]
"""Status of the NIC -> (err, prov_errno) of error entries."""


def man_page_statuses() -> dict[Status, tuple[int, int]]:
    """Each status with the man pages' error number, and itself as prov_errno."""
    return {status: (_nic.status_errno(status), int(status)) for status in Status}


# ---- identity --------------------------------------------------------------------------------------------------------


class Credential(NamedTuple):
    """A decoded authorization key, which admits an object to a part of the fabric.

    Attributes:
        vni: Virtual network; endpoints reach only peers of the same network.
        service: The provider's service (its resources); 0: none.
        raw: The key as bytes, as an application would pass it.
        found: The steps that led to the credential, for errors and diagnostics.
    """

    vni: int
    service: int = 0
    raw: bytes = b""
    found: tuple[str, ...] = ()


class AddressCodec(Protocol):
    """The form of addresses for applications: strings, or binary of one size.

    Attributes:
        format: fi_info.addr_format.
        size: Bytes of an address; None: strings, of any length.
        tells_vni: An address contains its VNI; otherwise parse() returns 0, and the VNI comes from the user's key.
    """

    @property
    def format(self) -> AddrFormat: ...
    @property
    def size(self) -> int | None: ...
    @property
    def tells_vni(self) -> bool: ...

    def parse(self, address: object) -> Address:
        """Parse an address. Raises InvalidArgument, with the form of an address."""
        ...

    def emit(self, address: Address) -> Any:
        """The reverse of `parse`: the address that getname returns and peers insert."""
        ...

    def split(self, given: object) -> list[Any] | None:
        """The addresses in one buffer if `given` is several addresses of a fixed size; None for anything else."""
        ...

    def single(self, given: object) -> bool:
        """True if `given` is one address, not an iterable of addresses; the address may still be invalid."""
        ...

    def text(self, address: Address) -> str:
        """An address for people (fi_av_straddr, messages)."""
        ...

    def public(self, address: Address) -> Address:
        """An address of this process in the form for other processes."""
        ...

    def own(self, address: Address) -> Address:
        """The reverse of `public`; addresses of other processes are returned unchanged."""
        ...


# ---- the protocols ---------------------------------------------------------------------------------------------------
# A body of `return` alone does nothing; without the statement mypy takes a method for one that each class implements.


class Asked(NamedTuple):
    """The arguments of getinfo, checked; hints with every part present."""

    version: int
    node: str | None = None
    service: str | None = None
    flags: int = 0
    hints: Info | None = None


class EndpointState(Protocol):
    """The bindings of an endpoint, for `EndpointPolicy.check_enable`.

    Attributes:
        keys: Authorization keys in the address vector.
    """

    @property
    def connected(self) -> bool: ...
    @property
    def has_av(self) -> bool: ...
    @property
    def has_tx_cq(self) -> bool: ...
    @property
    def has_rx_cq(self) -> bool: ...
    @property
    def keys(self) -> int: ...
    def try_address(self) -> None:
        """Raises the refusal of enable() if another endpoint has the address, or if all addresses are in use."""


@dataclass(frozen=True)
class CollectiveLimit:
    """What a provider answers about a collective, for fi_query_collective.

    Attributes:
        count: Most elements of a call.
        size: Bytes of an element.
        max_members: Most members of a group.
    """

    count: int
    size: int
    max_members: int


class GroupPlan(NamedTuple):
    """How a provider joins one collective group.

    Attributes:
        member: This member's number, of a group whose members are all one endpoint; None: its place in the set.
        join_radix: Children of a member in the tree of the join.
        radix: Most children of a member in the group's tree, among members of one host.
        ask: Called by member 0 when all have joined, with the members' addresses and an event that is set when the
            group is closed; returns a multicast address and the number of the member at its root. Raises FabricError,
            with the number of the error that every member gets as prov_errno. None: groups have no such addresses.
        blocks: ask() waits for other processes, so it runs in a thread of its own.
        release: Gives the address back. Raises FabricError.
        failed_err: The err of a failed join.
        other_errno: prov_errno where no other number fits: a member is lost.
        texts: The meanings of prov_errno.
    """

    member: int | None = None
    join_radix: int = 2
    radix: int = 16
    ask: Callable[[Sequence[tuple[int, int, int]], threading.Event], tuple[int, int]] | None = None
    blocks: bool = False
    release: Callable[[int], None] | None = None
    failed_err: int = int(Errno.ECONNREFUSED)
    other_errno: int = int(Errno.ECONNRESET)
    texts: Mapping[int, str] = MappingProxyType({})

    def meaning(self, number: int) -> str:
        """The meaning of a prov_errno."""
        return self.texts.get(number, f"error {number} of the join")


class Failure(NamedTuple):
    """An operation that failed, for `DomainPolicy.outcome`.

    Attributes:
        status: The NIC's status.
        key: The remote key.
        peer: The target's address; None if the operation had none.
        own: The endpoint's own address.
    """

    status: Status
    key: int
    peer: Address | None
    own: Address


class RegionPolicy(Protocol):
    """The policy of one region, under `RegionRules.asked`.

    Attributes:
        key: The region's key, if the policy makes keys that are known at registration; otherwise ignored.
    """

    key: int

    def enable(self, region: RegionFacts) -> int | _nic.Mapping | None:
        """Take the resources that peers' access to the region needs, before the first access.

        If the policy makes keys that are known when a region is enabled, returns the key, or a mapping: peers then
        access the memory through the mapping, by its key, and closing the region revokes nothing (the policy closes the
        mapping, or the NIC does with its endpoint). Otherwise returns None.

        Raises the refusal; the region is then unchanged, and may be enabled later. Not called for regions without
        rights for peers, under `RegionRules.local_free`.
        """
        ...

    def close(self) -> None:
        """The region is closed, or its registration failed: return its resources."""


class Extensions(Protocol):
    """The object that answers fi_control, fi_open_ops, fi_set_ops, fi_get_val and fi_set_val.

    Attributes:
        commands: The supported commands of the man pages.
        fid: The object that the call was made on.
    """

    commands: CommandRules

    def control(self, fid: Any, command: int, arg: Any) -> Any:
        """Run a command of the provider. Raises for an unknown one."""
        ...

    def open_ops(self, fid: Any, name: str, flags: int) -> Any:
        """The provider's own calls. Raises for an unknown name."""
        ...

    def set_ops(self, fid: Any, name: str, flags: int, ops: Any) -> None:
        """Set calls of the application for the provider's use. Raises for an unknown name."""

    def get_val(self, fid: Any, name: int) -> Any:
        """A value. Raises for an unknown name."""
        ...

    def set_val(self, fid: Any, name: int, value: Any) -> None:
        """Set a value. Raises for an unknown name."""


class EndpointPolicy(Extensions, Protocol):
    """The policy of one endpoint, or of one alias.

    Attributes:
        address: The endpoint's address; with a PID if the application chose one.
        credential: The endpoint's authorization key.
        options: option -> its getter and setter.
        binds: The rules of the endpoint's bindings.
        data_writes: Writes with remote CQ data (fi_writedata) are supported.
        messages: How messages are sent and received; None: the endpoint has no calls of messages, and refuses them
            (fi_msg(3), fi_tagged(3)) with `no_messages`.
        cancels: Transfers that have not started can be cancelled; receives always can.
        triggers: With the capability FI_TRIGGER, operations take the flag FI_TRIGGER (fi_trigger(3)).
        inject_context: The error entry of an inject call has the endpoint's context; otherwise none.
        call_flags: Flags of every operation, besides those of its call.
        op_rules: The rules of calls; None: everything that the NIC can do.
        lane: Order of its operations (FI_ORDER_ bits), and the number of their traffic class in telemetry, 0 to 4.
    """

    address: Address
    credential: Credential
    options: Mapping[int, Option]
    binds: BindRules = BindRules()
    data_writes: bool = True
    messages: _nic.MessageConfig | None = _nic.MessageConfig()
    no_messages: str = "this provider has no messages"
    cancels: bool = True
    triggers: bool = True
    inject_context: bool = False
    call_flags: int = 0
    op_rules: _nic.OpRules | None = None

    @property
    def lane(self) -> tuple[int, int]: ...

    def nic_config(self) -> _nic.EndpointConfig:
        """What the NIC enforces."""
        ...

    def check_enable(self, state: EndpointState) -> None:
        """Raise if the endpoint may not be enabled yet; take its resources. Called again after a failure."""

    def enabling(self, ep: _nic.EndpointCore) -> None:
        """The endpoint is about to be enabled: set the values that apply from then on."""
        return

    def make_room(self, missing: errors.NoSpace) -> None:
        """The NIC lacks resources to enable the endpoint: make them available, or raise the refusal."""
        raise missing

    def close(self) -> None:
        """Return the endpoint's resources: it is closed, or enabling failed and may be repeated."""
        return

    def group(self, own: Address, comm_key: bytes | None, count: int) -> GroupPlan:
        """How the endpoint at `own` joins a group of `count` members; comm_key: of its set. Raises the refusal."""
        return GroupPlan()

    def op_flags(self, side: int, flags: int) -> int:
        """The default flags of operations after FI_SETOPSFLAG, or of a new alias. Raises the refusal.

        Args:
            side: FI_TRANSMIT or FI_RECV.
        """
        ...

    def alias(self) -> EndpointPolicy:
        """The policy of a new alias: a copy, which then changes independently (fi_ep_alias); this one, if none of it
        can change."""
        return self


class CounterPolicy(Extensions, Protocol):
    """The policy of one counter."""

    def close(self) -> None:
        """Return the counter's resources."""
        return


class DomainPolicy(Extensions, Protocol):
    """The policy of one domain, and of its objects other than endpoints and counters.

    Attributes:
        nic: The NIC of the domain's objects.
        source: Default address of the domain's endpoints.
        credential: The domain's authorization key, or the default.
        refusals: The error numbers of refusals.
        statuses: (err, prov_errno) of failed operations.
        progress: PROGRESS_AUTO or PROGRESS_MANUAL.
        keys: Rules of remote keys.
        regions: Rules of memory regions.
        queues: Rules of completion queues.
        counters: Rules of counters.
        vectors: Rules of address vectors.
        query_flags: Flags of fi_query_atomic besides the man page's.
        text: A part of the domain's repr, after its name; "": none.
    """

    query_flags: int = 0
    text: str = ""
    nic: _nic.Nic
    source: Address
    credential: Credential
    refusals: Refusals
    statuses: StatusMap
    progress: Progress
    keys: KeyRules
    regions: RegionRules
    queues: QueueRules
    counters: CounterRules
    vectors: VectorRules

    def nic_config(self) -> _nic.DomainConfig:
        """What the NIC enforces; the settings of regions follow from `keys` and `regions`."""
        ...

    def opened(self, domain: _nic.DomainCore) -> None:
        """The domain is open; `domain` is the NIC's object, which lists its regions. Must not raise."""
        return

    def credential_of(self, key: bytes) -> Credential:
        """Understand an authorization key. Raises InvalidArgument, saying what a key looks like."""
        ...

    def take_queue(self) -> None:
        """Take the resources of a new completion queue. Raises the refusal."""
        return

    def give_queue(self) -> None:
        """The reverse of `take_queue`: the queue is closed."""
        return

    def atomic_limit(self, datatype: int, op: int, family: int, flags: int) -> tuple[int, int]:
        """(most elements of a call, bytes of an element); (0, size) if the operation does not exist.

        Args:
            family: 0 base, 1 fetch, 2 compare.
            flags: The flags of the call that are in `query_flags`.
        """
        return _nic.atomic_valid(datatype, op, family)

    def collective(self, coll: int, op: int, datatype: int) -> CollectiveLimit | None:
        """The limits of a collective (fi.BARRIER ...); None: it is not supported. Unknown numbers may be given."""
        ...

    def operator_name(self, op: int) -> str:
        """The name of a reduction's operator."""
        ...

    def key_of(self, credential: Credential) -> bytes:
        """An authorization key in the form of fi_av_lookup_auth_key."""
        return credential.raw

    def peer(self, address: Address, vni: int | None) -> Address:
        """The NIC's address of a peer for this domain.

        Args:
            address: An address from the codec's `parse`.
            vni: VNI of the authorization key that the peer is inserted with (FI_AV_AUTH_KEY); None: no key.

        Raises the refusal if the two contradict each other.
        """
        ...

    def outcome(self, failed: Failure) -> tuple[int, int]:
        """(err, prov_errno) of an error entry: from `statuses`, unless they depend on more than the status.

        Called when an error entry is read. Parts of a vectored call use only `statuses`.
        """
        return self.statuses[failed.status]

    def described(self, cq: Any, entry: Any) -> Any:
        """The CqErrEntry of a failed operation, with what only the provider can say of it."""
        return entry

    def explain_error(self, cq: Any, prov_errno: int, err_data: object) -> str:
        """The text of a provider error number of a queue (fi_cq_strerror)."""
        ...

    def region(self, region: RegionFacts) -> RegionPolicy | None:
        """The policy of a new region, called under `RegionRules.asked`. Raises the refusal."""
        return None

    def region_takes(self) -> _nic.RegionTakes | None:
        """The resources that the domain's regions take, as data; called once, under `RegionRules.asked`.

        The extension then takes these resources itself for a plain region (one buffer, no flags), and makes the key if
        the policy has set the form of keys (`RegionTakes.make_keys`). `region` is called only for other regions, and,
        if the policy makes keys without setting a form, for every region that is enabled. None: `region` is called for
        every region.
        """
        return None

    def endpoint(self, info: Info) -> EndpointPolicy:
        """Open an endpoint: take its resources, decide its address and key. Raises the refusal."""
        ...

    def counter(self) -> CounterPolicy:
        """Open a counter: take its resources. Raises the refusal."""
        ...

    def refuses_work(self, ep: EndpointPolicy) -> str:
        """Why deferred work has no operations of the endpoint; "": it has."""
        return ""

    def queue_work(self, domain: _nic.DomainCore, queue: Callable[[bool], str | None]) -> None:
        """Queue deferred work by queue(may_wait), or raise the refusal.

        Args:
            queue: Called as queue(may_wait); returns "armed", "waits", "full", or None for a receive that was posted at
                once. may_wait: the work waits if the service has no free entry; otherwise nothing is queued then.
        """
        queue(True)

    def close(self) -> None:
        """Return the domain's resources."""
        return


class Provider(Extensions, Protocol):
    """A provider of fabrics; also the policy of event queues.

    Attributes:
        name: As in fi_fabric_attr.
        version: As in fi_fabric_attr.
        addresses: The form of its addresses.
        refusals: The error numbers of refusals before a domain is open.
        queues: The rules of event queues.
        vectors: The supported address vectors, for getinfo.
        auth_key_size: Bytes of an authorization key.
        max_ep_auth_key: Authorization keys that an endpoint may have at a time (FI_AV_AUTH_KEY).
        trywaits: The kinds of objects that fi_trywait accepts: "cq", "cntr", "eq".
        fabric_class: The class that `fi.Fabric(attr)` makes for this provider; None: `fi.Fabric` itself.
        nothing: Why the provider may have no offers, and what to do; for hints that name the provider.
    """

    name: str
    version: int
    addresses: AddressCodec
    refusals: Refusals
    auth_key_size: int = 2
    max_ep_auth_key: int = _nic.limits().region_vni_count  # a region admits all keys of its vector
    queues: QueueRules
    vectors: VectorRules
    trywaits: frozenset[str] = frozenset({"cq", "cntr", "eq"})
    fabric_class: type | None = None
    nothing: str = "it has no device here"

    def offers(self, asked: Asked) -> list[Offer]:
        """The offers for getinfo, best first."""
        ...

    def fabrics(self) -> list[str]:
        """The names of the fabrics that can be opened, also of fabrics without an offer at the moment."""
        ...

    def absent(self, name: str | None) -> str:
        """Why no domain of this name can be opened, and what to do."""
        ...

    def resolve(self, asked: Asked, offer: Offer | None) -> tuple[Any, Any]:
        """Source and destination address for an offer, in the provider's format; None for none.

        Args:
            offer: None for fi_av_insertsvc.

        Raises:
            NotAvailable: No such address.
            InvalidArgument: Invalid node or service.
        """
        ...

    def mr_mode(self, required: MrMode, caps: int, asked: MrMode, mode: int, version: int) -> MrMode | str:
        """The mr_mode in force, or the reason of a rejection.

        Args:
            required: Bits that the offer requires.
            caps: The capabilities that the result would have.
            asked: domain_attr.mr_mode of the hints.
            mode: fi_info.mode of the hints, for FI_LOCAL_MR.
            version: Interface version of the caller.
        """
        ...

    def meets(self, offer: Offer, asked: Asked, info: Info, no: No) -> None:
        """After the common rules: change getinfo's result for an offer, or reject the hints.

        Args:
            no: Called with the fields of a Rejection.
        """
        return

    def select(self, candidates: list[Candidate], asked: Asked) -> list[Candidate]:
        """Which of its candidates getinfo returns, and in which order."""
        return candidates

    def key_size(self, mr_mode: int) -> int:
        """domain_attr.mr_key_size under an mr_mode."""
        ...

    def credential_of(self, key: bytes) -> Credential:
        """Understand an authorization key. Raises InvalidArgument, saying what a key looks like."""
        ...

    def domain(self, attr: FabricAttr, info: Info, offer: Offer) -> DomainPolicy:
        """Open a domain: take its resources, decide its rules. May change `info`, which is the domain's own copy."""
        ...

    def explain_error(self, prov_errno: int, err_data: object) -> str:
        """The text of a provider error number (fi_cq_strerror)."""
        ...

    def environment(self) -> Sequence[tuple[str, str, str, str, str, str]]:
        """This provider's environment variables, as fi_info -e shows them.

        Rows of: variable, value in force, "environment" or "default", valid values, meaning, effect.
        """
        return ()
