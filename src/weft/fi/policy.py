"""What a provider decides: data and protocols, and nothing that acts.

The calls of this package ask. A `Provider` says what getinfo offers and opens domains; its `DomainPolicy` has the rules
of one opened domain (keys, regions, queues, vectors, who the domain is to its peers), and an `EndpointPolicy` those of
one endpoint. What hardware does with the answers is the NIC's: it takes them as numbers when domain and endpoint
are opened (`nic_config`).

Where a call refuses something that another provider might answer differently, the refusal has a name (rules.py).

`weft.providers.base` has all of this with the man pages' answers, for providers that differ in a few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .. import _nic
from .._nic import Status
from ..flags import AddrFormat, AvFlag, AvType, CntrEvents, CqFormat, Flag, MrFlag, MrMode, Progress, WaitObj
from .rules import Refusals

if TYPE_CHECKING:
    from .attrs import FabricAttr, Info
    from .offer import Candidate, Offer, Rejection

__all__ = [
    "CM_DATA_SIZE",
    "Address",
    "AddressCodec",
    "Asked",
    "Credential",
    "DomainPolicy",
    "EndpointPolicy",
    "EndpointState",
    "KeyRules",
    "Option",
    "Provider",
    "QueueRules",
    "RegionRules",
    "StatusMap",
    "VectorRules",
    "man_page_statuses",
]

Address = tuple[int, int | None, int]
"""(nic, pid or None, vni): an endpoint's identity as the NIC has it; without a pid, one that the NIC will choose."""

CM_DATA_SIZE = _nic.limits().cm_bytes
"""Bytes of private data that a connection request or an answer may carry."""

StatusMap = Mapping[Status, tuple[int, int]]
"""Status of the NIC -> (err, prov_errno) as error entries report it."""


def man_page_statuses() -> dict[Status, tuple[int, int]]:
    """Each status with the man pages' error number, and itself as prov_errno."""
    return {status: (_nic.status_errno(status), int(status)) for status in Status}


# ---- identity --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Credential:
    """What admits an object to a part of the fabric: an authorization key, understood.

    vni       virtual network: peers of another one are not reached.
    service   the provider's service (its resources); 0: none.
    raw       the key as bytes, as an application would pass it.
    found     how the credential was chosen, step by step, for errors and diagnostics.
    """

    vni: int
    service: int = 0
    raw: bytes = b""
    found: tuple[str, ...] = ()


class AddressCodec(Protocol):
    """How addresses look to applications: strings, or binary of one size.

    format   fi_info.addr_format.
    size     bytes of an address; None: strings, of any length.
    """

    @property
    def format(self) -> AddrFormat: ...
    @property
    def size(self) -> int | None: ...

    def parse(self, address: object) -> Address:
        """Take an address apart. Raises InvalidArgument, saying what an address looks like."""
        ...

    def emit(self, address: Address) -> Any:
        """The reverse of `parse`: what getname returns and peers insert."""
        ...

    def split(self, given: object) -> list[Any] | None:
        """The addresses in one buffer if `given` is several addresses of a fixed size; None for anything else."""
        ...

    def single(self, given: object) -> bool:
        """Whether `given` is one address rather than an iterable of addresses; the address may still be invalid."""
        ...

    def text(self, address: Address) -> str:
        """An address for people (fi_av_straddr, messages)."""
        ...

    def public(self, address: Address) -> Address:
        """An address of this process as others use it."""
        ...

    def own(self, address: Address) -> Address:
        """The reverse of `public`; addresses of other processes stay as they are."""
        ...


# ---- rules of a domain -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyRules:
    """The keys of regions.

    client_bits   bits of a key that an application may choose; 0: it may choose none.
    provider      the provider makes the keys, requested_key is ignored (FI_MR_PROV_KEY in force).
    known_at      when the key of a region is known: "register", or "enable" (fi_mr_key is FI_KEY_NOTAVAIL until then).
    meanings      bits of a requested key that the provider has a use of its own for; they have to be 0.
    raw_size      bytes of a raw key under FI_MR_RAW.
    """

    client_bits: int = 64
    provider: bool = False
    known_at: Literal["register", "enable"] = "register"
    meanings: int = 0
    raw_size: int = 16

    def size(self, mr_mode: int) -> int:
        """Bytes of a key under an mr_mode (domain_attr.mr_key_size): keys that the NIC makes have eight."""
        if mr_mode & MrMode.MR_RAW:
            return self.raw_size
        if mr_mode & (MrMode.MR_PROV_KEY | MrMode.MR_BASIC) or not self.client_bits:
            return 8
        return (self.client_bits + 7) // 8


@dataclass(frozen=True)
class RegionRules:
    """Registered memory.

    bytes_min    bytes of a region at least; 0: regions of nothing are made.
    flags        registration flags that are known.
    busy         which object cannot be closed while a region is bound to an endpoint or a counter: the region ("mr",
                 fi_mr(3)), or the endpoint or counter ("ep").
    needs_bind   fi_mr_enable needs a binding to an endpoint under FI_MR_ENDPOINT.
    events       accesses can be counted (fi_mr_bind of a counter).
    refreshes    fi_mr_refresh works also where FI_MR_MMU_NOTIFY does not ask for it.
    allocated    under FI_MR_ALLOCATED, that pages are there is looked at during registration.
    """

    bytes_min: int = 1
    flags: int = int(Flag.RMA_EVENT | Flag.RMA_PMEM) | int(MrFlag.MR_SINGLE_USE)
    busy: Literal["mr", "ep"] = "mr"
    needs_bind: bool = True
    events: bool = True
    refreshes: bool = False
    allocated: bool = True


@dataclass(frozen=True)
class QueueRules:
    """Completion queues and counters.

    size            entries of a queue opened with size 0.
    flags           flags of cq_open that are known.
    formats         the formats that there are; format_unspec is the one for FI_CQ_FORMAT_UNSPEC.
    wait_objs       the wait objects that there are; wait_unspec is the one for FI_WAIT_UNSPEC.
    counter_events  the kinds of counters that there are.
    """

    size: int = 1024
    flags: int = int(Flag.AFFINITY)
    formats: frozenset[CqFormat] = frozenset(set(CqFormat) - {CqFormat.CQ_FORMAT_UNSPEC})
    format_unspec: CqFormat = CqFormat.CQ_FORMAT_DATA
    wait_objs: frozenset[WaitObj] = frozenset({WaitObj.WAIT_NONE, WaitObj.WAIT_UNSPEC, WaitObj.WAIT_FD})
    counter_events: frozenset[CntrEvents] = frozenset(CntrEvents)


@dataclass(frozen=True)
class VectorRules:
    """Address vectors.

    open_flags       flags of av_open that are known.
    insert_flags     flags of insert that are known.
    types            the types that there are; type_unspec is the one for FI_AV_UNSPEC.
    remove_unknown   removing a fi_addr that is not in use is an error, or is ignored.
    """

    open_flags: int = int(Flag.EVENT)
    insert_flags: int = int(Flag.MORE) | int(AvFlag.SYNC_ERR) | int(AvFlag.AUTH_KEY)
    types: frozenset[AvType] = frozenset({AvType.AV_MAP, AvType.AV_TABLE})
    type_unspec: AvType = AvType.AV_TABLE
    remove_unknown: Literal["error", "ignore"] = "error"


@dataclass(frozen=True)
class Option:
    """An endpoint option (fi_getopt, fi_setopt).

    get   its value now; None: it can only be set.
    set   takes the new value, and raises what a refusal is; None: it can only be read.
    """

    get: Callable[[], Any] | None = None
    set: Callable[[Any], None] | None = None


# ---- the protocols ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """The arguments of getinfo, checked; hints with every part present."""

    version: int
    node: str | None = None
    service: str | None = None
    flags: int = 0
    hints: Info | None = None


class EndpointState(Protocol):
    """What `EndpointPolicy.check_enable` may look at: what is bound."""

    @property
    def connected(self) -> bool: ...
    @property
    def has_av(self) -> bool: ...
    @property
    def has_tx_cq(self) -> bool: ...
    @property
    def has_rx_cq(self) -> bool: ...


class EndpointPolicy(Protocol):
    """What is decided of one endpoint.

    address      where it will be: with a pid where the application named one.
    credential   the authorization key that it uses.
    options      option -> what getopt and setopt do.
    """

    address: Address
    credential: Credential
    options: Mapping[int, Option]

    def nic_config(self) -> dict[str, Any]:
        """The arguments of `_nic.EndpointCore`: what the NIC enforces on its calls."""
        ...

    def check_enable(self, state: EndpointState) -> None:
        """Raise where it may not be enabled yet."""
        ...

    def alias(self, flags: int) -> Any:
        """An alias of the endpoint (fi_ep_alias). Raises if the provider has no aliases."""
        ...

    def control(self, command: int, arg: Any) -> Any:
        """fi_control on the endpoint. Raises for a command that is not known."""
        ...

    def open_ops(self, name: str) -> Any:
        """The provider's own calls of an endpoint (fi_open_ops). Raises for a name that is not known."""
        ...

    def get_val(self, name: int) -> Any:
        """fi_get_val. Raises for a name that is not known."""
        ...

    def set_val(self, name: int, value: Any) -> None:
        """fi_set_val. Raises for a name that is not known."""
        ...


class DomainPolicy(Protocol):
    """What is decided of one domain, when it is opened.

    nic          the NIC that everything on the domain is made on.
    source       default address of its endpoints.
    credential   the authorization key that it was opened with, or the default.
    refusals     the error numbers of refusals.
    statuses     what failed operations are reported as.
    progress     how operations of this domain make progress: PROGRESS_AUTO, or PROGRESS_MANUAL.
    keys, regions, queues, vectors   the rules of what is made on it.
    """

    nic: _nic.Nic
    source: Address
    credential: Credential
    refusals: Refusals
    statuses: StatusMap
    progress: Progress
    keys: KeyRules
    regions: RegionRules
    queues: QueueRules
    vectors: VectorRules

    def nic_config(self) -> dict[str, Any]:
        """The arguments of `_nic.DomainCore`: what the NIC enforces."""
        ...

    def credential_of(self, key: bytes) -> Credential:
        """Understand an authorization key. Raises InvalidArgument, saying what a key looks like."""
        ...

    def endpoint(self, info: Info) -> EndpointPolicy:
        """Open an endpoint: take its resources, decide its address and key. Raises what a refusal is."""
        ...

    def control(self, command: int, arg: Any) -> Any:
        """fi_control on the domain. Raises for a command that is not known."""
        ...

    def open_ops(self, name: str) -> Any:
        """The provider's own calls of a domain (fi_open_ops). Raises for a name that is not known."""
        ...

    def get_val(self, name: int) -> Any:
        """fi_get_val. Raises for a name that is not known."""
        ...

    def set_val(self, name: int, value: Any) -> None:
        """fi_set_val. Raises for a name that is not known."""
        ...

    def close(self) -> None:
        """Give back what the domain took."""
        ...


class Provider(Protocol):
    """A provider of fabrics.

    name, version     as in fi_fabric_attr.
    addresses         how its addresses look.
    refusals          the error numbers of refusals before a domain is open.
    queues            what event queues may be opened with.
    vectors           the address vectors that there are, for getinfo.
    auth_key_size     bytes of an authorization key.
    max_ep_auth_key   authorization keys that an endpoint may have at a time (FI_AV_AUTH_KEY).
    fabric_class      the class that `fi.Fabric(attr)` makes for this provider; None: `fi.Fabric` itself.
    """

    name: str
    version: int
    addresses: AddressCodec
    refusals: Refusals
    auth_key_size: int
    max_ep_auth_key: int
    queues: QueueRules
    vectors: VectorRules
    fabric_class: type | None

    def offers(self, asked: Asked) -> list[Offer]:
        """What getinfo chooses from, best first."""
        ...

    def resolve(self, asked: Asked, offer: Offer | None) -> tuple[Any, Any]:
        """Source and destination address for an offer, in the provider's format; None for none.

        offer   None for fi_av_insertsvc.

        Raises NotAvailable where there is no such address, InvalidArgument where it makes no sense.
        """
        ...

    def meets(self, offer: Offer, asked: Asked, info: Info, no: Callable[[Rejection], object]) -> None:
        """After the common rules: change what getinfo is about to return for an offer, or reject the hints."""
        ...

    def select(self, candidates: list[Candidate], asked: Asked) -> list[Candidate]:
        """Which of its candidates getinfo returns, and in which order."""
        ...

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
        """A provider error number in words (fi_cq_strerror)."""
        ...
