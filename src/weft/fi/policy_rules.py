"""A provider's rules for keys, regions, queues, counters, vectors and commands, as plain data.

Named tuples: a frozen dataclass takes six times as long to define, at each start of a program (bench/bench_import.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .. import _nic
from ..flags import AvFlag, AvType, CntrEvents, Control, CqFormat, Flag, MrFlag, MrMode, WaitObj


class KeyRules(NamedTuple):
    """The keys of regions.

    Attributes:
        client_bits: Bits of a client key; 0: applications cannot choose keys.
        provider: The provider makes the keys, requested_key is ignored (FI_MR_PROV_KEY in force).
        known_at: When provider keys are known: at "register", or at "enable" (fi_mr_key is FI_KEY_NOTAVAIL until then).
        maker: The maker of provider keys: the "nic", or the "policy" (`DomainPolicy.region`), whose keys are any 64
            bits but KEY_NOTAVAIL that no open region of the domain has.
        meanings: Bits of a requested key that the provider reserves; they must be 0.
        raw_size: Bytes of a raw key under FI_MR_RAW.
    """

    client_bits: int = 64
    provider: bool = False
    known_at: Literal["register", "enable"] = "register"
    maker: Literal["nic", "policy"] = "nic"
    meanings: int = 0
    raw_size: int = 16

    def size(self, mr_mode: int) -> int:
        """Bytes of a key under an mr_mode (domain_attr.mr_key_size); keys made by the NIC have eight."""
        if mr_mode & MrMode.MR_RAW:
            return self.raw_size
        if mr_mode & (MrMode.MR_PROV_KEY | MrMode.MR_BASIC) or not self.client_bits:
            return 8
        return (self.client_bits + 7) // 8


class RegionRules(NamedTuple):
    """Registered memory.

    Attributes:
        bytes_min: The smallest size of a region in bytes; 0: empty regions are allowed.
        flags: Known registration flags.
        busy: The object that cannot be closed while a region is bound to an endpoint or a counter: the region ("mr",
            fi_mr(3)), or the endpoint or counter ("ep").
        needs_bind: fi_mr_enable needs a binding to an endpoint under FI_MR_ENDPOINT.
        events: Accesses can be counted (fi_mr_bind of a counter).
        refreshes: fi_mr_refresh works even without FI_MR_MMU_NOTIFY.
        allocated: Under FI_MR_ALLOCATED, registration checks that the region has pages.
        asked: Registrations call `DomainPolicy.region`, except those that `DomainPolicy.region_takes` covers.
        local_free: A region without rights for peers takes no key (requested_key is ignored), and can be used without a
            binding and without fi_mr_enable; both calls succeed without effect.
        offset: "reserved": the attribute offset must be 0; "ignored".
        endpoints_max: Most endpoints that a region may be bound to; None: any number.
        counters_max: Most counters that a region may be bound to; None: any number.
        memory: "declared": iface and device of an attribute say whose memory it is, and are checked; "detected": both
            are ignored, and the address tells.
        bind_flags: "exact": fi_mr_bind takes REMOTE_WRITE for a counter and 0 for an endpoint; "any": for a counter
            REMOTE_WRITE among others, for an endpoint anything.
    """

    bytes_min: int = 1
    flags: int = int(Flag.RMA_EVENT | Flag.RMA_PMEM) | int(MrFlag.MR_SINGLE_USE)
    busy: Literal["mr", "ep"] = "mr"
    needs_bind: bool = True
    events: bool = True
    refreshes: bool = False
    allocated: bool = True
    asked: bool = False
    local_free: bool = False
    offset: Literal["reserved", "ignored"] = "reserved"
    endpoints_max: int | None = None
    counters_max: int | None = None
    memory: Literal["declared", "detected"] = "declared"
    bind_flags: Literal["exact", "any"] = "exact"


_REMOTE = int(Flag.REMOTE_READ | Flag.REMOTE_WRITE)


class RegionFacts(NamedTuple):
    """A region at its registration or enabling, for `DomainPolicy.region` and `RegionPolicy.enable`.

    Attributes:
        address: Virtual address of the first buffer.
        length: Bytes of all buffers.
        access: Flag bits, as registered.
        flags: MrFlag bits, as registered.
        requested_key: The application's requested key.
        readonly: The memory is read-only.
        iface: The memory's interface (enum fi_hmem_iface).
        owner: The object that owns the memory; None for bare addresses and several buffers.
        domain: The NIC's object of the domain.
        endpoints: The NIC's endpoints that the region is bound to; empty at registration.
        counters: The NIC's counters that the region is bound to; empty at registration.
    """

    address: int
    length: int
    access: int
    flags: int
    requested_key: int
    readonly: bool
    iface: int
    owner: object
    domain: _nic.DomainCore
    endpoints: tuple[_nic.EndpointCore, ...] = ()
    counters: tuple[_nic.CounterCore, ...] = ()

    @property
    def remote(self) -> bool:
        """True if peers have rights to the region."""
        return bool(self.access & _REMOTE)


class BindRules(NamedTuple):
    """The bindings of an endpoint, and setting its address.

    Attributes:
        nothing: Binding a queue or counter with flags 0 succeeds without effect.
        remote_counts: A counter of peers' accesses needs FI_RMA_EVENT; False: the counter may be bound without that,
            and never counts.
        named: fi_setname is allowed.
        join_flags: The flags of fi_join_collective are ignored; otherwise they have to be 0.
    """

    nothing: bool = False
    remote_counts: bool = True
    named: bool = True
    join_flags: bool = False


class QueueRules(NamedTuple):
    """Completion queues and event queues.

    Attributes:
        size: Entries of a queue opened with size 0.
        flags: Known flags of cq_open.
        formats: Supported formats.
        format_unspec: The format for FI_CQ_FORMAT_UNSPEC.
        wait_objs: Supported wait objects.
        wait_unspec: The wait object for FI_WAIT_UNSPEC.
        wait_yield: The wait object for FI_WAIT_YIELD.
        wait_conds: fi_cq_attr.wait_cond is checked and kept; otherwise it is ignored.
        signals: A waiting reader can be woken (fi_cq_signal).
        size_least: Least entries of a queue, independent of the requested size.
        fill_percent: Percentage of the entries that may be unread or reserved before calls end with EAGAIN.
        reserves: Operations under way reserve the room of their completions; otherwise unread entries alone count.
        size_max: The largest size of a queue; None: limited only by memory.
        huge_pages: The entries of a completion queue go into huge pages if the kernel has some.
        ack_batch: Number of entries read before the NIC hears of them and can use their slots again.
    """

    size: int = 1024
    flags: int = int(Flag.AFFINITY)
    formats: frozenset[CqFormat] = frozenset(set(CqFormat) - {CqFormat.CQ_FORMAT_UNSPEC})
    format_unspec: CqFormat = CqFormat.CQ_FORMAT_DATA
    wait_objs: frozenset[WaitObj] = frozenset(
        {WaitObj.WAIT_NONE, WaitObj.WAIT_UNSPEC, WaitObj.WAIT_FD, WaitObj.WAIT_YIELD}
    )
    wait_unspec: WaitObj = WaitObj.WAIT_UNSPEC
    wait_yield: WaitObj = WaitObj.WAIT_UNSPEC  # waiting spins and yields before it sleeps
    wait_conds: bool = True
    signals: bool = True
    size_least: int = 1
    fill_percent: int = 100
    reserves: bool = True
    size_max: int | None = 1 << 24
    huge_pages: bool = False
    ack_batch: int = 1


class CounterRules(NamedTuple):
    """Counters.

    Attributes:
        events: Supported kinds of counters.
        wait_objs: Supported wait objects.
        wait_unspec: The wait object for FI_WAIT_UNSPEC.
        wait_yield: The wait object for FI_WAIT_YIELD.
        flags: Known flags of cntr_open.
        cached: The flag with which reads return the value written back last; 0: none.
        value_max: The largest success value, at which a counter saturates.
        errors_max: The largest error value, likewise.
        client_memory: The NIC writes the counter back to client memory, and has a page for stores that change the
            counter.
    """

    events: frozenset[CntrEvents] = frozenset(CntrEvents)
    wait_objs: frozenset[WaitObj] = frozenset(
        {WaitObj.WAIT_NONE, WaitObj.WAIT_UNSPEC, WaitObj.WAIT_FD, WaitObj.WAIT_YIELD}
    )
    wait_unspec: WaitObj = WaitObj.WAIT_UNSPEC
    wait_yield: WaitObj = WaitObj.WAIT_UNSPEC  # waiting spins and yields before it sleeps
    flags: int = 0
    cached: int = 0
    value_max: int = (1 << 64) - 1
    errors_max: int = (1 << 64) - 1
    client_memory: bool = False


class VectorRules(NamedTuple):
    """Address vectors.

    Attributes:
        open_flags: Known flags of av_open.
        insert_flags: Known flags of insert.
        types: Supported types.
        type_unspec: The type for FI_AV_UNSPEC.
        remove_unknown: Removing a fi_addr that is not in use is an error, or is ignored.
        counted: An address or authorization key inserted n times must be removed n times.
        binds: An event queue can be bound to a vector (fi_av_bind).
        keys_later: Authorization keys may be inserted while an endpoint of the vector is enabled.
        service_alone: insertsvc takes a node without a service, and a service without a node.
        set_count: The count of a set limits how many addresses of a range the set takes, and must not be 0 with a
            range.
        set_fixed: A set cannot be changed while a group uses it.
        comm_key_bytes: Bytes of a set's communication key; 0: sets have none.
    """

    open_flags: int = int(Flag.EVENT)
    insert_flags: int = int(Flag.MORE) | int(AvFlag.SYNC_ERR) | int(AvFlag.AUTH_KEY)
    types: frozenset[AvType] = frozenset({AvType.AV_MAP, AvType.AV_TABLE})
    type_unspec: AvType = AvType.AV_TABLE
    remove_unknown: Literal["error", "ignore"] = "error"
    counted: bool = False
    binds: bool = True
    keys_later: bool = False
    service_alone: bool = True
    set_count: bool = False
    set_fixed: bool = False
    comm_key_bytes: int = 0


_WAITING = frozenset({Control.GETWAIT, Control.GETWAITOBJ})


class CommandRules(NamedTuple):
    """The man pages' commands of fi_control for each kind of object; other commands go to the policy."""

    domain: frozenset[int] = frozenset(
        {Control.MAP_RAW_MR, Control.UNMAP_KEY, Control.QUEUE_WORK, Control.CANCEL_WORK, Control.FLUSH_WORK}
    )
    ep: frozenset[int] = frozenset({Control.ENABLE, Control.ALIAS, Control.GETOPSFLAG, Control.SETOPSFLAG})
    mr: frozenset[int] = frozenset({Control.ENABLE, Control.GET_RAW_MR, Control.REFRESH})
    av: frozenset[int] = frozenset()
    cq: frozenset[int] = _WAITING
    cntr: frozenset[int] = _WAITING
    eq: frozenset[int] = _WAITING

    def of(self, called: str) -> frozenset[int]:
        """The commands of a kind of object."""
        found: frozenset[int] = getattr(self, called)
        return found


class Option(NamedTuple):
    """An endpoint option (fi_getopt, fi_setopt).

    Attributes:
        get: Returns the value; None: the option can only be set.
        set: Sets the value, or raises the refusal; None: the option can only be read.
        name: Name of an option that only this provider has.
        tell: Passes a value that was set to the NIC's endpoint; None: the NIC does not need the value.
    """

    get: Callable[[], Any] | None = None
    set: Callable[[Any], None] | None = None
    name: str = ""
    tell: Callable[[_nic.EndpointCore], None] | None = None
