"""
The software NIC of Weft. weft.fi and weft.ucp call this module; applications do not.
"""

from collections.abc import Sequence
import enum
from typing import overload


import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

_Out = TypeVar("_Out")

def set_error_factory(f: Callable[[int, str], BaseException]) -> None:
    """
    Registers the function (FI_ code, message) -> exception that makes every exception raised here.
    """

def set_buffer_hook(f: Callable[[object, bool], tuple[int, int, bool, int, object]]) -> None:
    """
    Registers the function (obj, writable) -> (address, nbytes, readonly, device, keepalive) of weft.buffers,
    which reads the buffer protocols that the binding itself does not read.
    """

def describe_buffer(obj: object, writable: bool = False) -> tuple[int, int, bool, int, object]:
    """
    Returns (address, nbytes, readonly, device, keepalive) of an object that data-path calls accept as a buffer.
    """

class Limits:
    """The default limits of a NIC."""

    def __init__(self, *, endpoint_count: int = 4096, domain_count: int = 256, region_count: int = 2097152, region_vni_count: int = 32, iov_count: int = 8, inject_bytes: int = 256, message_bytes: int = 0x7fffffffffffffff, atomic_bytes: int = 4096, cm_bytes: int = 256) -> None: ...

    @property
    def endpoint_count(self) -> int:
        """Open endpoints per NIC."""

    @endpoint_count.setter
    def endpoint_count(self, value: int, /) -> None: ...

    @property
    def domain_count(self) -> int:
        """Open domains per NIC."""

    @domain_count.setter
    def domain_count(self, value: int, /) -> None: ...

    @property
    def region_count(self) -> int:
        """Open regions per NIC."""

    @region_count.setter
    def region_count(self, value: int, /) -> None: ...

    @property
    def region_vni_count(self) -> int:
        """VNIs that one region may admit."""

    @region_vni_count.setter
    def region_vni_count(self, value: int, /) -> None: ...

    @property
    def iov_count(self) -> int:
        """Local buffers of one operation; also its remote ranges."""

    @iov_count.setter
    def iov_count(self, value: int, /) -> None: ...

    @property
    def inject_bytes(self) -> int:
        """Default inject_size of an endpoint."""

    @inject_bytes.setter
    def inject_bytes(self, value: int, /) -> None: ...

    @property
    def message_bytes(self) -> int:
        """The most of one operation."""

    @message_bytes.setter
    def message_bytes(self, value: int, /) -> None: ...

    @property
    def atomic_bytes(self) -> int:
        """The most of one atomic operation."""

    @atomic_bytes.setter
    def atomic_bytes(self, value: int, /) -> None: ...

    @property
    def cm_bytes(self) -> int:
        """Private data in a connection request, and in its answer."""

    @cm_bytes.setter
    def cm_bytes(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> Limits:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> Limits:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

def limits() -> Limits:
    """Returns the default limits."""

def tables() -> list[tuple[str, str, list[tuple[int, str, str, str, str, str]]]]:
    """
    The tables of settings: (name, text, [(tag, field, type, unit, default, text)]).
    """

def choices() -> list[tuple[str, str, list[tuple[str, int, str]]]]:
    """The enumerations of settings: (name, text, [(value, number, text)])."""

class Status(enum.IntEnum):
    """
    How an operation ended. A domain's policy maps each status to the provider's error codes.
    """

    ok = 0
    """no provider error"""

    no_key = 1
    """no region has that key"""

    stale_key = 2
    """the key is stale: its region was closed"""

    access = 3
    """the region does not grant that access"""

    bounds = 4
    """the access passes the bounds of the region"""

    not_enabled = 5
    """the region is not enabled"""

    wrong_endpoint = 6
    """the region is bound to another endpoint"""

    no_endpoint = 7
    """no endpoint has that address"""

    peer_gone = 8
    """the peer's process is gone"""

    refused = 9
    """the peer refused the connection"""

    misaligned = 10
    """the address is not aligned to the datatype of the atomic"""

    canceled = 11
    """the operation was canceled"""

    fault = 12
    """no memory is mapped at the address"""

    timeout = 13
    """no answer came in time"""

    unsupported = 14
    """
    the owner cannot do that with the region: COMMIT_COMPLETE needs RMA_PMEM
    """

    invalid = 15
    """the operation has an invalid argument"""

    again = 16
    """the operation has not ended: try later"""

    protocol = 17
    """the peer violated the protocol"""

    no_memory = 18
    """out of memory or file descriptors"""

    device = 19
    """the device's runtime could not copy"""

    unauthorized = 20
    """the region admits other authorization keys, or another peer"""

    unreachable = 21
    """the peer's host cannot be reached"""

    endpoint_access = 22
    """the endpoint does not serve that access"""

    closed = 23
    """the peer closed its NIC"""

    secret = 24
    """the two processes have different secrets"""

    version = 25
    """the peer speaks another version of the protocol"""

    corrupted = 26
    """bytes were changed on their way, and the connection was dropped"""

    backlog = 27
    """the listener's queue of requests is full"""

    truncated = 28
    """the message was longer than its receive"""

    no_message = 29
    """no message matches"""

    no_source = 30
    """the sender is not in the address vector"""

    not_ready = 31
    """no receive was posted in time"""

    page_request = 32
    """a missing page did not come in time"""

    no_entry = 33
    """the receive waited too long for a list entry of its service"""

def status_errno(status: Status) -> int:
    """The FI_ code of a status according to the man pages."""

class MatchMode(enum.Enum):
    """Where the messages of an endpoint are matched: FI_CXI_RX_MATCH_MODE."""

    unlimited = 0
    """As in hardware, without a limit of list entries."""

    hardware = 1
    """In hardware; without list entries flow control begins."""

    hybrid = 2
    """In hardware; without list entries in software from then on."""

    software = 3
    """In software, which needs no list entries."""

class WriteBack(enum.Enum):
    """When the NIC writes back how far it has read: FI_CXI_CQ_POLICY."""

    always = 0
    """After each command."""

    high_empty = 1
    """After 1/16 of the slots, and when the NIC has read all commands."""

    low_empty = 2
    """After 1/4 of the slots, and when the NIC has read all commands."""

    low = 3
    """After 1/4 of the slots."""

class LowLatencyRing(enum.Enum):
    """Which commands go through the low-latency ring: FI_CXI_LLRING_MODE."""

    idle = 0
    """Of an idle queue."""

    always = 1
    """Of every command."""

    never = 2
    """Of no command."""

class TargetOrder(enum.Enum):
    """The order of a write's packets in the target's memory."""

    as_asked = 0
    """As the operation asks."""

    strict = 1
    """All in order."""

    relaxed = 2
    """No order."""

class SyncKind(enum.IntEnum):
    """The kinds of objects that processes share."""

    lock = 1
    """A lock."""

    semaphore = 2
    """A semaphore."""

    event = 3
    """An event."""

    barrier = 4
    """A barrier."""

    queue = 5
    """A queue of records."""

class SyncOp(enum.IntEnum):
    """The calls of such an object."""

    take = 1
    """lock (a: 1 to take it from the dead), semaphore"""

    release = 2
    """
    lock (a: value2 of a take() from the dead: to them again), semaphore (a: permits)
    """

    set = 3
    """event"""

    clear = 4
    """event"""

    wait = 5
    """event, barrier"""

    withdraw = 6
    """barrier: ends a wait that has not come to its end (state: of the wait)"""

    abort = 7
    """barrier"""

    reset = 8
    """barrier"""

    put = 9
    """queue: in, a: the record's type, b: a number for unput"""

    get = 10
    """queue: out"""

    reserve = 11
    """
    queue, for records that are copied outside the guard: a slot to write (a: bytes, b: type); commit
    """

    commit = 12
    """queue: a: the slot"""

    claim = 13
    """queue: a slot to read; free_slot"""

    free_slot = 14
    """
    queue: a: the slot. Of a slot to write: its record is never delivered. Of one to read, b: 1: the record becomes the first again; `again` if others have taken later ones. b: 2: also then, by a copy; `again` if the queue is full
    """

    look = 15
    """value, value2, value3: what there is"""

    gone = 16
    """the process for which the owner's NIC has called (token) is lost"""

    close = 17
    """wakes everyone; every call then ends"""

    put_back = 18
    """
    queue: in, a: the record's type: the first record again, for one who got it in vain
    """

    unput = 19
    """
    queue: a: value of a put, b: its number: the record is not delivered; `not_holder`: others have it
    """

class SyncOutcome(enum.IntEnum):
    """How a call of such an object ended."""

    done = 0
    """done"""

    again = 1
    """not now"""

    died = 2
    """
    lock: the process that held it ended; value: its pid, value2: 1 for one that a NIC called for
    """

    not_holder = 3
    """lock: value: the pid that holds it"""

    closed = 4
    """the object is closed"""

    broken = 5
    """
    barrier: value: the pid that ended, 0: aborted; value2: 1: reset() while this party waited
    """

    too_long = 6
    """queue: value: bytes of the record, or of a slot"""

    damaged = 7
    """the memory does not hold such an object"""

    no_seat = 8
    """semaphore: too many processes have permits"""

    canceled = 9
    """the call waits in the owner's NIC no longer"""

    busy = 10
    """not now, because another process is changing the object"""

class StatusCode:
    """What an application sees of a status."""

    def __init__(self, *, err: int = 0, prov: int = 0) -> None: ...

    @property
    def err(self) -> int:
        """The FI_ code."""

    @err.setter
    def err(self, value: int, /) -> None: ...

    @property
    def prov(self) -> int:
        """The provider's number."""

    @prov.setter
    def prov(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> StatusCode:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> StatusCode:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class StatusMap:
    """What an application sees of each status of an operation."""

    def __init__(self, *, entries: Sequence[StatusCode | tuple[int, ...]] = ...) -> None: ...

    @property
    def entries(self) -> tuple[StatusCode, ...]:
        """For each Status, by number."""

    @entries.setter
    def entries(self, value: Sequence[StatusCode | tuple[int, ...]], /) -> None: ...

    def replace(self, **changes: Any) -> StatusMap:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> StatusMap:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class AddressText:
    """The form of addresses in texts."""

    def __init__(self, *, form: str = '', nic_mask: int = 0xffffffff) -> None: ...

    @property
    def form(self) -> str:
        """
        {nic}, {nic:x}, {pid} and {vni} are replaced by the numbers; empty: the form of the links.
        """

    @form.setter
    def form(self, value: str, /) -> None: ...

    @property
    def nic_mask(self) -> int:
        """Bits of the NIC's number that the texts show."""

    @nic_mask.setter
    def nic_mask(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> AddressText:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> AddressText:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class RegionRules:
    """
    What registering, binding and enabling an ordinary region needs, without a question to the policy.
    """

    def __init__(self, *, quick: bool = False, disabled: bool = False, key_ignored: bool = False, key_later: bool = False, local_free: bool = False, needs_bind: bool = False, ep_busy: bool = False, decided: bool = False, access: int = 0, key_end: int = 0, key_meanings: int = 0) -> None: ...

    @property
    def quick(self) -> bool:
        """
        Registers one buffer without flags by itself; otherwise each registration is a question.
        """

    @quick.setter
    def quick(self, value: bool, /) -> None: ...

    @property
    def disabled(self) -> bool:
        """Regions are made disabled, to be bound and enabled (FI_MR_ENDPOINT)."""

    @disabled.setter
    def disabled(self, value: bool, /) -> None: ...

    @property
    def key_ignored(self) -> bool:
        """The provider makes the keys."""

    @key_ignored.setter
    def key_ignored(self, value: bool, /) -> None: ...

    @property
    def key_later(self) -> bool:
        """A region has its key when it is enabled, not when it is registered."""

    @key_later.setter
    def key_later(self, value: bool, /) -> None: ...

    @property
    def local_free(self) -> bool:
        """
        Regions that peers have no right to take no key, and are enabled at once.
        """

    @local_free.setter
    def local_free(self, value: bool, /) -> None: ...

    @property
    def needs_bind(self) -> bool:
        """A region is enabled after it is bound."""

    @needs_bind.setter
    def needs_bind(self, value: bool, /) -> None: ...

    @property
    def ep_busy(self) -> bool:
        """
        An endpoint cannot be closed while regions are bound to it; otherwise the region cannot.
        """

    @ep_busy.setter
    def ep_busy(self, value: bool, /) -> None: ...

    @property
    def decided(self) -> bool:
        """
        Enabling asks the policy, unless the region's resources and its key are known.
        """

    @decided.setter
    def decided(self, value: bool, /) -> None: ...

    @property
    def access(self) -> int:
        """All access bits that exist; registrations with others are questions."""

    @access.setter
    def access(self, value: int, /) -> None: ...

    @property
    def key_end(self) -> int:
        """Keys of applications are below this number."""

    @key_end.setter
    def key_end(self, value: int, /) -> None: ...

    @property
    def key_meanings(self) -> int:
        """Bits that keys of applications do not have."""

    @key_meanings.setter
    def key_meanings(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> RegionRules:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> RegionRules:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class WorkRules:
    """The rules of deferred work (FI_QUEUE_WORK)."""

    def __init__(self, *, receives_wait: bool = True, single: bool = False, flags: int = 0xffffffffffffffff, sends_unchecked: bool = False, write_back: int = 0) -> None: ...

    @property
    def receives_wait(self) -> bool:
        """Receives may have a threshold above 0."""

    @receives_wait.setter
    def receives_wait(self, value: bool, /) -> None: ...

    @property
    def single(self) -> bool:
        """
        An operation has at most one local buffer, and exactly one remote range.
        """

    @single.setter
    def single(self, value: bool, /) -> None: ...

    @property
    def flags(self) -> int:
        """The most flags of an operation, besides FI_MORE."""

    @flags.setter
    def flags(self, value: int, /) -> None: ...

    @property
    def sends_unchecked(self) -> bool:
        """
        A send is refused only for FI_INJECT; other flags that it does not know have no effect.
        """

    @sends_unchecked.setter
    def sends_unchecked(self, value: bool, /) -> None: ...

    @property
    def write_back(self) -> int:
        """The flag that writes the triggering counter back; 0: there is none."""

    @write_back.setter
    def write_back(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> WorkRules:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> WorkRules:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class DomainConfig:
    """The settings of a domain."""

    def __init__(self, *, nic: int = 0, prov_key: bool = False, virt_addr: bool = False, raw_keys: bool = False, statuses: StatusMap = ..., addresses: AddressText = ..., fetches_need_both: bool = False, standard_below: int = 0, mr_local: bool = False, hmem: bool = False, mr_hmem: bool = False, mr_allocated: bool = False, desc_ignored: bool = False, may_overrun: bool = False, empty_region_errno: int = 22, regions: RegionRules = ..., work: WorkRules = ...) -> None: ...

    @property
    def nic(self) -> int:
        """The number of the NIC of its objects."""

    @nic.setter
    def nic(self, value: int, /) -> None: ...

    @property
    def prov_key(self) -> bool:
        """The NIC makes the keys of regions (FI_MR_PROV_KEY)."""

    @prov_key.setter
    def prov_key(self, value: bool, /) -> None: ...

    @property
    def virt_addr(self) -> bool:
        """Peers name places in regions by virtual address (FI_MR_VIRT_ADDR)."""

    @virt_addr.setter
    def virt_addr(self, value: bool, /) -> None: ...

    @property
    def raw_keys(self) -> bool:
        """Transfers take handles of map_key() as keys (FI_MR_RAW)."""

    @raw_keys.setter
    def raw_keys(self, value: bool, /) -> None: ...

    @property
    def statuses(self) -> StatusMap:
        """What applications see of each status of a failed operation."""

    @statuses.setter
    def statuses(self, value: StatusMap, /) -> None: ...

    @property
    def addresses(self) -> AddressText:
        """The form of addresses in the domain's texts."""

    @addresses.setter
    def addresses(self, value: AddressText, /) -> None: ...

    @property
    def fetches_need_both(self) -> bool:
        """
        FI_ATOMIC_READ needs FI_REMOTE_READ and FI_REMOTE_WRITE, as other fetching atomics.
        """

    @fetches_need_both.setter
    def fetches_need_both(self, value: bool, /) -> None: ...

    @property
    def standard_below(self) -> int:
        """
        Not 0: the keys below are those of optimized regions for peers, and of standard regions for this domain; the two kinds of domains do not find each other's regions.
        """

    @standard_below.setter
    def standard_below(self, value: int, /) -> None: ...

    @property
    def mr_local(self) -> bool:
        """Local buffers need a descriptor (FI_MR_LOCAL)."""

    @mr_local.setter
    def mr_local(self, value: bool, /) -> None: ...

    @property
    def hmem(self) -> bool:
        """Buffers may be device memory (FI_HMEM)."""

    @hmem.setter
    def hmem(self, value: bool, /) -> None: ...

    @property
    def mr_hmem(self) -> bool:
        """Buffers in device memory need a descriptor (FI_MR_HMEM)."""

    @mr_hmem.setter
    def mr_hmem(self, value: bool, /) -> None: ...

    @property
    def mr_allocated(self) -> bool:
        """Registered memory has pages, which stay (FI_MR_ALLOCATED)."""

    @mr_allocated.setter
    def mr_allocated(self, value: bool, /) -> None: ...

    @property
    def desc_ignored(self) -> bool:
        """Local descriptors are ignored."""

    @desc_ignored.setter
    def desc_ignored(self, value: bool, /) -> None: ...

    @property
    def may_overrun(self) -> bool:
        """Peers may overrun completion queues (FI_RM_DISABLED)."""

    @may_overrun.setter
    def may_overrun(self, value: bool, /) -> None: ...

    @property
    def empty_region_errno(self) -> int:
        """The code that refuses a region of 0 bytes; 0: there are such regions."""

    @empty_region_errno.setter
    def empty_region_errno(self, value: int, /) -> None: ...

    @property
    def regions(self) -> RegionRules:
        """How regions are registered, bound and enabled."""

    @regions.setter
    def regions(self, value: RegionRules, /) -> None: ...

    @property
    def work(self) -> WorkRules:
        """What deferred work may be."""

    @work.setter
    def work(self, value: WorkRules, /) -> None: ...

    def replace(self, **changes: Any) -> DomainConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> DomainConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class RxBufferConfig:
    """Buffers for messages."""

    def __init__(self, *, bytes: int = 2097152, posted_min: int = 3, cached_max: int = 0, count_max: int = 0xfffffffe) -> None: ...

    @property
    def bytes(self) -> int:
        """The size of a buffer."""

    @bytes.setter
    def bytes(self, value: int, /) -> None: ...

    @property
    def posted_min(self) -> int:
        """Buffers that are ready in advance, the current one included."""

    @posted_min.setter
    def posted_min(self, value: int, /) -> None: ...

    @property
    def cached_max(self) -> int:
        """The most buffers that are kept when no message needs them; 0: all."""

    @cached_max.setter
    def cached_max(self, value: int, /) -> None: ...

    @property
    def count_max(self) -> int:
        """The most buffers; when all are full, senders wait."""

    @count_max.setter
    def count_max(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> RxBufferConfig:
        """A copy with other values."""

    def to_record(self) -> builtins.bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: builtins.bytes) -> RxBufferConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class TrafficRules:
    """
    The provider's rules for how an endpoint's operations travel, used only for telemetry.
    """

    def __init__(self, *, on: bool = False, optimized_below: int = 0, provider_bit: int = 0, optimized_bit: int = 0, cached_bit: int = 0, events_bit: int = 0, client_events: bool = False, flush_flags: int = 0, unreliable_flag: int = 0, hrp_flag: int = 0, pcie_flag: int = 0, hrp_without_uint32: bool = False) -> None: ...

    @property
    def on(self) -> bool:
        """False: the endpoint's operations are not counted."""

    @on.setter
    def on(self, value: bool, /) -> None: ...

    @property
    def optimized_below(self) -> int:
        """Client keys below this number belong to optimized regions."""

    @optimized_below.setter
    def optimized_below(self, value: int, /) -> None: ...

    @property
    def provider_bit(self) -> int:
        """The bit that is set in keys made by the provider."""

    @provider_bit.setter
    def provider_bit(self, value: int, /) -> None: ...

    @property
    def optimized_bit(self) -> int:
        """The bit that is set in provider keys of optimized regions."""

    @optimized_bit.setter
    def optimized_bit(self, value: int, /) -> None: ...

    @property
    def cached_bit(self) -> int:
        """
        The bit that is set in cached provider keys, whose regions have no events.
        """

    @cached_bit.setter
    def cached_bit(self, value: int, /) -> None: ...

    @property
    def events_bit(self) -> int:
        """
        The bit that is set in provider keys, other than cached ones, of regions with events.
        """

    @events_bit.setter
    def events_bit(self, value: int, /) -> None: ...

    @property
    def client_events(self) -> bool:
        """Regions with client keys count as regions with events."""

    @client_events.setter
    def client_events(self, value: bool, /) -> None: ...

    @property
    def flush_flags(self) -> int:
        """Operation flags with which a write or an atomic flushes."""

    @flush_flags.setter
    def flush_flags(self, value: int, /) -> None: ...

    @property
    def unreliable_flag(self) -> int:
        """The operation flag of unreliable atomics."""

    @unreliable_flag.setter
    def unreliable_flag(self, value: int, /) -> None: ...

    @property
    def hrp_flag(self) -> int:
        """The operation flag of High Rate Puts."""

    @hrp_flag.setter
    def hrp_flag(self, value: int, /) -> None: ...

    @property
    def pcie_flag(self) -> int:
        """The operation flag of atomics over PCIe."""

    @pcie_flag.setter
    def pcie_flag(self, value: int, /) -> None: ...

    @property
    def hrp_without_uint32(self) -> bool:
        """
        An erratum of the NIC: atomics of UINT32 are never sent as High Rate Puts.
        """

    @hrp_without_uint32.setter
    def hrp_without_uint32(self, value: bool, /) -> None: ...

    def replace(self, **changes: Any) -> TrafficRules:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> TrafficRules:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class ReorderConfig:
    """Operations that overtake each other wherever no rule orders them."""

    def __init__(self, *, on: bool = False, seed: int = 0, raw_bytes: int = 0xffffffffffffffff, war_bytes: int = 0xffffffffffffffff, waw_bytes: int = 0xffffffffffffffff, target: TargetOrder = ...) -> None: ...

    @property
    def on(self) -> bool:
        """False: none does."""

    @on.setter
    def on(self, value: bool, /) -> None: ...

    @property
    def seed(self) -> int:
        """One seed gives one sequence of decisions."""

    @seed.setter
    def seed(self, value: int, /) -> None: ...

    @property
    def raw_bytes(self) -> int:
        """Up to which the order of a read after a write holds."""

    @raw_bytes.setter
    def raw_bytes(self, value: int, /) -> None: ...

    @property
    def war_bytes(self) -> int:
        """Up to which the order of a write after a read holds."""

    @war_bytes.setter
    def war_bytes(self, value: int, /) -> None: ...

    @property
    def waw_bytes(self) -> int:
        """Up to which the order of a write after a write holds."""

    @waw_bytes.setter
    def waw_bytes(self, value: int, /) -> None: ...

    @property
    def target(self) -> TargetOrder:
        """How a write's packets land."""

    @target.setter
    def target(self, value: TargetOrder, /) -> None: ...

    def replace(self, **changes: Any) -> ReorderConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> ReorderConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class PidRange:
    """
    The range from which the NIC chooses an endpoint's number if the application gives none.
    """

    def __init__(self, *, first: int = 1073741824, last: int = 2147483647) -> None: ...

    @property
    def first(self) -> int:
        """The smallest number."""

    @first.setter
    def first(self, value: int, /) -> None: ...

    @property
    def last(self) -> int:
        """The largest number."""

    @last.setter
    def last(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> PidRange:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> PidRange:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class CommandQueueConfig:
    """The model of a transmit command queue."""

    def __init__(self, *, slots: int = 0, policy: WriteBack = ..., ring: LowLatencyRing = ...) -> None: ...

    @property
    def slots(self) -> int:
        """Its slots; 0: no model."""

    @slots.setter
    def slots(self, value: int, /) -> None: ...

    @property
    def policy(self) -> WriteBack:
        """When slots are known to be free."""

    @policy.setter
    def policy(self, value: WriteBack, /) -> None: ...

    @property
    def ring(self) -> LowLatencyRing:
        """Which commands go through the ring."""

    @ring.setter
    def ring(self, value: LowLatencyRing, /) -> None: ...

    def replace(self, **changes: Any) -> CommandQueueConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> CommandQueueConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class QueueConfig:
    """The settings of a completion queue."""

    def __init__(self, *, size: int = 1024, format: int = 0, wait_obj: int = 1, huge: bool = False, ack_batch: int = 1, reserves: bool = True) -> None: ...

    @property
    def size(self) -> int:
        """Entries."""

    @size.setter
    def size(self, value: int, /) -> None: ...

    @property
    def format(self) -> int:
        """The format of its entries: enum fi_cq_format."""

    @format.setter
    def format(self, value: int, /) -> None: ...

    @property
    def wait_obj(self) -> int:
        """How a program waits: enum fi_wait_obj. FD: the queue has a descriptor."""

    @wait_obj.setter
    def wait_obj(self, value: int, /) -> None: ...

    @property
    def huge(self) -> bool:
        """The entries lie in huge pages if the kernel has some."""

    @huge.setter
    def huge(self, value: bool, /) -> None: ...

    @property
    def ack_batch(self) -> int:
        """
        Entries that are read until the NIC is told of all of them and can use their slots again.
        """

    @ack_batch.setter
    def ack_batch(self, value: int, /) -> None: ...

    @property
    def reserves(self) -> bool:
        """
        Operations under way reserve the room of their completions; otherwise unread entries alone count.
        """

    @reserves.setter
    def reserves(self, value: bool, /) -> None: ...

    def replace(self, **changes: Any) -> QueueConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> QueueConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class CounterConfig:
    """The settings of a counter."""

    def __init__(self, *, events: int = 0, wait_obj: int = 1, value_max: int = 0xffffffffffffffff, errors_max: int = 0xffffffffffffffff, value_errno: int = 22, errors_errno: int = 22, threshold_errno: int = 22, client_memory: bool = False, cached: bool = False) -> None: ...

    @property
    def events(self) -> int:
        """What it counts: enum fi_cntr_events; 1: bytes."""

    @events.setter
    def events(self, value: int, /) -> None: ...

    @property
    def wait_obj(self) -> int:
        """How a program waits: enum fi_wait_obj. FD: it has a descriptor."""

    @wait_obj.setter
    def wait_obj(self, value: int, /) -> None: ...

    @property
    def value_max(self) -> int:
        """The largest value, at which it saturates."""

    @value_max.setter
    def value_max(self, value: int, /) -> None: ...

    @property
    def errors_max(self) -> int:
        """The largest error value, likewise."""

    @errors_max.setter
    def errors_max(self, value: int, /) -> None: ...

    @property
    def value_errno(self) -> int:
        """The code that refuses larger values."""

    @value_errno.setter
    def value_errno(self, value: int, /) -> None: ...

    @property
    def errors_errno(self) -> int:
        """The code that refuses larger error values."""

    @errors_errno.setter
    def errors_errno(self, value: int, /) -> None: ...

    @property
    def threshold_errno(self) -> int:
        """The code that refuses larger thresholds."""

    @threshold_errno.setter
    def threshold_errno(self, value: int, /) -> None: ...

    @property
    def client_memory(self) -> bool:
        """set_wb_buffer() and get_mmio() are available."""

    @client_memory.setter
    def client_memory(self, value: bool, /) -> None: ...

    @property
    def cached(self) -> bool:
        """
        read() returns the value written back last, and requests the next write-back.
        """

    @cached.setter
    def cached(self, value: bool, /) -> None: ...

    def replace(self, **changes: Any) -> CounterConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> CounterConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class EndpointConfig:
    """The settings of an endpoint."""

    def __init__(self, *, caps: int = 0, tx_size: int = 1024, inject_size: int = 256, max_msg_size: int = 0x7fffffffffffffff, msg_order: int = 0, tx_op_flags: int = 0, vni: int = 0, foreign_key: bool = False, own_vni: bool = False, connected: bool = False, fence_covers_all: bool = False, tclass: int = 0, holds_more: bool = False, tells_lengths: bool = True, close_drops: bool = False, traffic: TrafficRules = ..., reorder: ReorderConfig = ..., pids: PidRange = ..., messages: MessageConfig = ..., commands: CommandQueueConfig = ..., accelerated: bool = False, prefer_numbers: bool = False, page_requests_max: int = 0, tells_context: bool = False, rules: OpRules = ...) -> None: ...

    @property
    def caps(self) -> int:
        """Its capabilities."""

    @caps.setter
    def caps(self, value: int, /) -> None: ...

    @property
    def tx_size(self) -> int:
        """The most operations under way."""

    @tx_size.setter
    def tx_size(self, value: int, /) -> None: ...

    @property
    def inject_size(self) -> int:
        """The most that an operation with INJECT sends."""

    @inject_size.setter
    def inject_size(self, value: int, /) -> None: ...

    @property
    def max_msg_size(self) -> int:
        """The most of one operation."""

    @max_msg_size.setter
    def max_msg_size(self, value: int, /) -> None: ...

    @property
    def msg_order(self) -> int:
        """The order of its operations: FI_ORDER_ bits."""

    @msg_order.setter
    def msg_order(self, value: int, /) -> None: ...

    @property
    def tx_op_flags(self) -> int:
        """Flags of operations whose call takes no flags."""

    @tx_op_flags.setter
    def tx_op_flags(self, value: int, /) -> None: ...

    @property
    def vni(self) -> int:
        """Its VNI."""

    @vni.setter
    def vni(self, value: int, /) -> None: ...

    @property
    def foreign_key(self) -> bool:
        """Its VNI is not the domain's."""

    @foreign_key.setter
    def foreign_key(self, value: bool, /) -> None: ...

    @property
    def own_vni(self) -> bool:
        """It reaches peers on its own VNI, whatever the address vector has."""

    @own_vni.setter
    def own_vni(self, value: bool, /) -> None: ...

    @property
    def connected(self) -> bool:
        """It has one peer, by a connection (FI_EP_MSG)."""

    @connected.setter
    def connected(self, value: bool, /) -> None: ...

    @property
    def fence_covers_all(self) -> bool:
        """
        FI_FENCE waits for operations to every peer, not only to the operation's own.
        """

    @fence_covers_all.setter
    def fence_covers_all(self, value: bool, /) -> None: ...

    @property
    def tclass(self) -> int:
        """The traffic class in telemetry, 0 to 4."""

    @tclass.setter
    def tclass(self, value: int, /) -> None: ...

    @property
    def holds_more(self) -> bool:
        """
        Operations with MORE wait for the next one without it, or until no more fit.
        """

    @holds_more.setter
    def holds_more(self, value: bool, /) -> None: ...

    @property
    def tells_lengths(self) -> bool:
        """Completions of its operations have the length; otherwise 0."""

    @tells_lengths.setter
    def tells_lengths(self, value: bool, /) -> None: ...

    @property
    def close_drops(self) -> bool:
        """
        Operations that are under way when it is closed have no entries; otherwise they end as canceled.
        """

    @close_drops.setter
    def close_drops(self, value: bool, /) -> None: ...

    @property
    def traffic(self) -> TrafficRules:
        """How telemetry counts its operations."""

    @traffic.setter
    def traffic(self, value: TrafficRules, /) -> None: ...

    @property
    def reorder(self) -> ReorderConfig:
        """Which of its operations overtake each other."""

    @reorder.setter
    def reorder(self, value: ReorderConfig, /) -> None: ...

    @property
    def pids(self) -> PidRange:
        """Numbers that the NIC chooses from."""

    @pids.setter
    def pids(self, value: PidRange, /) -> None: ...

    @property
    def messages(self) -> MessageConfig:
        """How messages are sent and received."""

    @messages.setter
    def messages(self, value: MessageConfig, /) -> None: ...

    @property
    def commands(self) -> CommandQueueConfig:
        """A modelled command queue."""

    @commands.setter
    def commands(self, value: CommandQueueConfig, /) -> None: ...

    @property
    def accelerated(self) -> bool:
        """Collectives as on Slingshot: its operators, accumulators and errors."""

    @accelerated.setter
    def accelerated(self, value: bool, /) -> None: ...

    @property
    def prefer_numbers(self) -> bool:
        """
        Of accelerated reductions: MIN, MAX and MINMAXLOC of a NaN and a number are the number.
        """

    @prefer_numbers.setter
    def prefer_numbers(self, value: bool, /) -> None: ...

    @property
    def page_requests_max(self) -> int:
        """
        Missing pages that one transfer gets in time, otherwise it fails; 0: any number.
        """

    @page_requests_max.setter
    def page_requests_max(self, value: int, /) -> None: ...

    @property
    def tells_context(self) -> bool:
        """A failed inject call has the endpoint's context in its error entry."""

    @tells_context.setter
    def tells_context(self, value: bool, /) -> None: ...

    @property
    def rules(self) -> OpRules:
        """The rules of its calls, checked before an operation is posted."""

    @rules.setter
    def rules(self, value: OpRules, /) -> None: ...

    def replace(self, **changes: Any) -> EndpointConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> EndpointConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class Allocation:
    """
    Memory in a segment that peers map and access by load and store: a writable buffer of bytes.
    The memory is freed with the last reference to this object.
    """

    @property
    def address(self) -> int:
        """Virtual address of the first byte."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

class Nic:
    """
    The software NIC of this process: one engine, its links, its memory table.
    """

    def __init__(self, *, engine: str = 'thread', isolation: str = 'shared', cma: bool = True, shm: bool = True, tcp_log: bool = False, mr_count_max: int = 2097152, cache_monitor: str = '', cache_count_max: int = 1024, cache_bytes_max: int = 18446744073709551615, cache_off: Sequence[int] = [], viewers: bool = True, trace: str = '', trace_records: int = 262144) -> None:
        """
        engine        thread: an engine thread serves peers; manual: only calls into the NIC serve them.
        isolation     shared: peers map our segments; strict: no memory is shared, and our engine makes every
                      access.
        cma           whether the NIC may use process_vm_readv and process_vm_writev.
        shm           whether the NIC reaches processes of this host through shared memory; otherwise through
                      tcp, like other hosts.
        tcp_log       write the reasons for rejected callers and lost connections to stderr.
        mr_count_max  the most regions at a time, a power of two.
        cache_*       the registration cache: the monitor of system memory ("": this machine's default), the
                      limits, and the interfaces whose memory is not cached.
        viewers       whether processes of this user may look at the NIC's state (snapshot()).
        trace         the folder for a file that the NIC records into, of trace_records records; "": none.
        """

    @property
    def engine(self) -> str: ...

    @property
    def isolation(self) -> str: ...

    def progress(self) -> int:
        """
        Makes one round of progress: frames, connections, waiting operations. Returns the number of steps; 0
        also while another thread is in a round.
        """

    def statistics(self) -> dict[str, int]:
        """
        Returns counts since the NIC was made: operations by path (direct, cma, framed), failed operations,
        bytes, frames served for peers, messages that this sender has helped to copy, and wake-ups of the
        engine; and the present numbers of peers, regions and allocated bytes.
        """

    def snapshot(self) -> str:
        """
        Returns the state of domains, endpoints, queues, counters and peers, as JSON: what `weft top` shows.
        """

    def missing_page(self, address: int, length: int) -> int | None:
        """
        Returns the address of the first page in [address, address + length) that is missing or not readable, or None.
        """

    def peers(self) -> list[dict[str, object]]:
        """
        Returns a dict for each process that this NIC is connected to: pid, path (direct+cma, direct, frames or
        tcp), dead, and the reason if cma is off.
        """

    def peer_of(self, ep: EndpointCore, dest: int) -> dict[str, object] | None:
        """
        Returns what peers() has of the process that operations of `ep` to `dest` reach; None: not connected.
        """

    def alloc(self, nbytes: int, *, address: int = 0, fixed: bool = False, fresh: bool = False, huge: bool = False, follow: bool = False) -> Allocation:
        """
        Allocates memory that peers access by load and store. Raises FabricError (ENOMEM).

        address  where to place the memory, a multiple of the page size, if nothing is mapped there; with
                 `fixed` the memory replaces existing mappings.
        fresh    the memory reads as zero, and none of its pages is allocated yet. Otherwise it may hold bytes
                 of an earlier allocation.
        huge     all pages are allocated now, huge ones where the kernel has some; the bytes stay.
        follow   pages are allocated as they are touched; a thread makes huge pages of them.
        """

    def overlay(self, address: int, nbytes: int, source: int) -> bool:
        """
        Puts the pages at `source`, memory of a peer that is mapped here, in the place of a whole allocation of
        alloc(): the addresses stay, and until they are freed peers do not map them. False: the addresses are no
        such allocation, or the kernel refused.
        """

    def region_in(self, address: int, nbytes: int) -> tuple[int, int] | None:
        """
        Returns (address, length) of an open region's buffer that overlaps these addresses, or None.
        """

    def close(self) -> None:
        """
        Stops the engine. Objects made on the NIC keep their memory until they are closed.
        """

    def hmem_load(self, iface: int, library: str) -> str | None:
        """
        Loads the runtime of a device interface (1 CUDA, 2 ROCR, 3 ZE). Returns None, or the reason why the runtime cannot be used.
        """

    def hmem_devices(self, iface: int) -> int | None:
        """
        The number of devices of an interface; None if its runtime is not loaded.
        """

    def hmem_find(self, address: int) -> tuple[int, str, int, int, int] | None:
        """
        Returns (iface, kind, device, base, length) of the allocation that contains the address; None if the
        loaded runtimes do not know the address. kind: device, managed or host.
        """

    def hmem_copy(self, to: int, from_: int, length: int) -> None:
        """Copies bytes; the source and the destination may be device memory."""

    def hmem_window(self, base: int, length: int, at: int) -> None:
        """
        Declares that device memory is also mapped at `at`: short copies are loads and stores there (see hmem_near()).
        """

    def hmem_no_window(self, base: int, at: int) -> bool:
        """
        Ends a window of hmem_window(); the caller may unmap it afterwards. False if there is none.
        """

    def hmem_near(self, most: int | None = None) -> int:
        """
        Sets the length in bytes of the longest copy through a window, if given. Returns the number of such copies so far.
        """

    def hmem_p2p(self, on: bool) -> None:
        """
        True: peers open each other's device memory; False: the owner copies (FI_HMEM_DISABLE_P2P).
        """

    def hmem_alloc(self, iface: int, nbytes: int, managed: bool = False) -> int:
        """
        Allocates memory on the first device and returns its address; free it with hmem_free().
        Raises FabricError (ENOMEM, ENOSYS).
        """

    def hmem_free(self, iface: int, address: int) -> None: ...

    def hmem_dmabuf(self, iface: int, address: int, length: int) -> int:
        """
        Returns a DMA-buf descriptor of device memory; the caller closes the descriptor.
        """

    def telemetry(self, nic: int) -> dict[str, int]:
        """
        Returns the counts of a NIC: those of this process and of all processes that attached the same page.
        """

    def attach_telemetry(self, nic: int, fd: int) -> None:
        """
        Stores the counts of a NIC in the first 4 KiB of this file from now on: a cache line of 8 words for
        initiators and one for targets, in the order of telemetry(); from byte 256 on, 30 blocks of two such
        lines, each of one writer. A count is the sum of its words. The NIC keeps a descriptor of the file, so
        the caller may close its own. Raises Busy if this process has already counted for the NIC without a file.
        """

    def tcp_secret(self, key: bytes, sodium: dict[str, int]) -> None:
        """
        Sets the key that both sides of a tcp connection must have: 32 bytes. It is set once.

        sodium   addresses of libsodium's functions (sodium_functions()), which must stay loaded.

        Raises ValueError (another length), KeyError (a function is missing), FabricError: Busy (another key is set).
        """

    @staticmethod
    def sodium_functions() -> list[str]:
        """Names of the functions that tcp_secret() needs."""

    def tcp_has_secret(self) -> bool:
        """Whether tcp_secret() was called."""

    def tcp_timeout(self, seconds: float) -> None:
        """
        Sets the time in seconds within which the NIC notices a dead host. Raises Busy once the link is in use.
        """

    def tcp_encryption(self, when: str) -> None:
        """
        Sets which packets are encrypted: "auto" (all except between loopback addresses), "on" or "off".
        "on" of one side is enough. All packets are authenticated in any case. Raises Busy once the link is in use.
        """

    def tcp_listen(self, ip: str, port: int = 0, known_as: str | None = None) -> tuple[str, int]:
        """
        Accepts connections of other hosts. Returns the address to give to peers.

        port      0: any free port.
        known_as  the IP address to give to peers; needed if `ip` is a wildcard.

        Raises FabricError: AccessDenied (no secret), AddressInUse, Busy (this process already listens at another
        address), InvalidArgument.
        """

    def tcp_listening(self) -> tuple[str, int] | None:
        """
        The address at which other hosts can call; None if the NIC does not listen.
        """

    def tcp_log(self) -> list[str]:
        """
        The last 64 rejected callers and lost connections, oldest first, with the reasons.
        """

    def tcp_statistics(self) -> dict[str, int]:
        """
        Numbers of connections so far: accepted, called, failed greetings (refused), lost.
        """

def route_number(ip: str, port: int, nic: int = 0) -> int:
    """
    Returns the number by which this process names a NIC of another host. Raises InvalidArgument (not an IP address).
    """

def route_of(number: int) -> tuple[str, int, int] | None:
    """
    Returns (ip, port, nic) of a number from route_number(); None for a NIC of this host.
    """

def has_vni(nic: int, vni: int) -> bool:
    """
    True if an endpoint of this user, in any process of this host, has this NIC and VNI.
    """

class Numbers:
    """
    A pool of the numbers from 0 to count - 1. Its calls are atomic, because they hold the GIL.
    """

    def __init__(self, count: int) -> None: ...

    def take(self) -> int | None:
        """Takes the lowest free number; None if no number is free."""

    def give(self, number: int) -> bool:
        """Gives a number back; False if it was not taken."""

    def __len__(self) -> int: ...

class Stock:
    """
    Counts of several kinds of resource. Its calls are atomic, because they hold the GIL.
    """

    def __init__(self, kinds: Sequence[str]) -> None: ...

    def __getitem__(self, kind: str) -> int: ...

    def take(self, kind: str, count: int) -> bool:
        """
        Takes `count` of a kind; False if there are fewer: then nothing is taken.
        """

    def add(self, kind: str, count: int) -> None: ...

    def clear(self, kind: str) -> int:
        """Takes all of a kind and returns their number."""

class KeySequence:
    """
    Consecutive numbers of a given number of bits. Its calls are atomic, because they hold the GIL.
    """

    def __init__(self, first: int, bits: int) -> None: ...

    def next(self) -> int: ...

class Ledger:
    """
    The resources of a device that each process has taken, in a file that the processes map.

    fd    a file of `bytes()` bytes; the caller may close it afterwards.

    Kinds of resources are numbers from 0 to 7. Limits are exact between processes. The ledger stays correct if a
    process is killed at any instant. Raises Busy if another process holds the lock for 10 s.
    """

    def __init__(self, fd: int) -> None: ...

    @staticmethod
    def bytes() -> int:
        """Size of the file."""

    def begin(self, id: int, totals: Sequence[int]) -> None:
        """
        Makes a file of zeros an empty ledger; no other process may use the file.
        """

    def begun(self, id: int) -> bool:
        """True if the file is a ledger that begin() made with this id."""

    def set_limits(self, services: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> None:
        """Sets the limits of all services that exist: (id, most, reserved)."""

    def open(self, who: tuple[int, int, int], service: int) -> int:
        """
        A slot for a process (pid, start, space) that uses a service; call set_limits() afterwards.
        """

    def close(self, slot: int) -> None:
        """Returns all resources of the slot."""

    def drop(self, slot: int, who: tuple[int, int, int]) -> None:
        """close(), if the slot still belongs to this process."""

    def take(self, slot: int, kind: int, count: int) -> bool:
        """Takes `count`; False if there are fewer: then nothing is taken."""

    def give(self, slot: int, kind: int, count: int) -> None:
        """Returns resources of the slot."""

    def there(self, service: int, kind: int) -> int:
        """The number that the service can still take."""

    def held(self) -> list[tuple[int, int, tuple[int, int, int], list[int]]]:
        """For each slot: (slot, service, (pid, start, space), numbers by kind)."""

class RegionTakes:
    """
    The resources that regions take of their provider (`DomainPolicy.region_takes`).

    numbers       the pool of which each region takes a number when it is registered.
    ledger, slot  the resources that regions take when they are enabled, and the slot that has them.
    taken         counts the resources that these regions have, by the names of their kinds.
    below         a region with a key below this number takes `low` when it is enabled, any other takes `high`:
                  each is a pair (kind, count).
    more          called with (kind, count) if fewer are free: frees some, or raises the provider's refusal.

    `more`, and the functions of make_keys(), must not refer to the domain: the domain keeps them as long as it exists.
    """

    def __init__(self, numbers: Numbers, ledger: Ledger, slot: int, taken: Stock, *, below: int, low: tuple[str, int], high: tuple[str, int], more: Callable[[str, int], object]) -> None: ...

    def close(self) -> None:
        """
        The slot was given back: taking calls `more`, which raises, and nothing is returned.
        """

    def make_keys(self, sequence: KeySequence, *, base: int, shift: int, optimized_bit: int = 0, numbers_below: int = 0, map: Callable[[object, object, int, int, bool, object], Mapping] | None = None, unmap: Callable[[object, object, int, int, bool, object], object] | None = None, kept: Callable[[], object] | None = None) -> None:
        """
        Sets how regions that are enabled later get their keys: base | sequence << shift | number.

        A region with a number below numbers_below takes `low` if `low` is available, and its key has optimized_bit; any
        other region takes `high`.
        map    if not None, a region of host memory gets the key of a mapping and takes no resources. Called with
               (domain, endpoint, address, length, readonly, exporter or None), as unmap, which is the reverse.
        kept   called once, when a region is closed whose mapping other regions of the same memory use.
        """

def set_region_type(type: type) -> None:
    """
    Registers the class of regions that DomainCore.mr_reg makes: a subclass of MemoryRegionCore.
    """

class DomainCore:
    """The NIC's side of a domain."""

    def __init__(self, nic: Nic, config: DomainConfig, takes: RegionTakes | None = None) -> None:
        """takes  the resources that a region takes of the provider."""

    def mr_reg(self, buf: object, access: int, offset: int = 0, requested_key: int = 0, flags: int = 0, context: object = None, *, len: int | None = None) -> Any:
        """
        Register memory (fi_mr_reg). Returns a MemoryRegion.

        buf             a buffer of at least 1 byte, or (address, length). Held until the region is closed. Peers
                        access memory that Weft allocated (`Domain.alloc`, `weft.empty`) fastest.
        access          the permitted accesses: `fi.READ`, `fi.WRITE` (as local buffer of transfers),
                        `fi.REMOTE_READ`, `fi.REMOTE_WRITE` (by peers) ...
        offset          reserved, 0.
        requested_key   the key that peers will use, below 2**64 - 1; ignored under `fi.MR_PROV_KEY`.
        flags           `fi.RMA_EVENT`: a counter will be bound.
        context         for the event of an asynchronous registration.
        len             number of bytes from the start of buf; None: all.

        Raises NoKey (the key is in use), KeyRejected (out of range), AccessDenied (read-only memory and an access
        that writes), InvalidArgument (no bytes, unknown access, offset), BadFlags.
        Thread safety: any thread. Source: fi_mr(3) fi_mr_reg.
        """

    def map_key(self, key: int) -> int:
        """
        Returns a handle for a peer's key. Transfers of a domain with raw keys take handles in place of keys.
        """

    def unmap_handle(self, handle: int) -> bool:
        """Frees a handle of map_key(); False if there is no such handle."""

    def set_mr_quick(self, quick: bool) -> None:
        """False: from now on every mr_reg calls _mr_reg."""

    def staged_with(self, ep: object) -> list[Any]:
        """The open regions that were bound to an endpoint without Python."""

    def set_news(self, callback: Callable[[int, str], object]) -> None:
        """
        Calls callback(pid, what) soon after an endpoint has news, in a call that posts or reads. The callback must
        not refer to the domain. match_mode: the endpoint's message_statistics() about its match mode have changed.
        no_id: too many long messages waited to be pulled. stopped: a receiver has refused a message; the last two
        are told for the first, second, fourth ... time.
        """

    def regions(self) -> list[Any]:
        """The open regions."""

    def close(self) -> None: ...

class CmKind(enum.IntEnum):
    """The kinds of messages by which endpoints connect."""

    request = 1
    """A peer wants a connection."""

    accept = 2
    """The peer has accepted."""

    reject = 3
    """The peer has rejected."""

    shutdown = 4
    """The peer has ended the connection."""

    delivered = 16
    """The peer's NIC has received our message."""

    failed = 17
    """Our message could not be delivered."""

    lost = 18
    """The peer's process or host is gone."""

    group_agreed = 32
    """All members of a group have joined: member 0 may supply()."""

    group_joined = 33
    """A join has succeeded."""

    group_failed = 34
    """A join has failed."""

class CmNews(enum.IntEnum):
    """What a message of connecting means for an endpoint."""

    none = 0
    """Nothing that an application hears of."""

    connected = 1
    """The endpoint is connected."""

    rejected = 2
    """The peer has rejected; the endpoint may try again."""

    failed = 3
    """The request or the answer failed, or the peer is lost."""

    ended = 4
    """The peer has ended the connection, or is gone."""

class CmState(enum.IntEnum):
    """The states of a connected endpoint."""

    idle = 0
    """No connection was asked for."""

    connecting = 1
    """A request is under way."""

    accepting = 2
    """An answer is under way."""

    connected = 3
    """Transfers reach the peer."""

    shut_down = 4
    """The connection has ended."""

class CmQueue:
    """The queue of received connection messages."""

    def __init__(self, nic: Nic, fd: int) -> None:
        """fd  an eventfd to which the NIC writes when a message arrives."""

    def pop(self) -> tuple[int, int, int, tuple[int, int, int], int, Status, bytes] | None:
        """
        Takes the oldest message: (token, kind, what, source, connection, status, data). None if the queue is empty.
        """

    def unread(self) -> int: ...

    def close(self) -> None:
        """Stops writing to the descriptor, which may then be closed."""

class AddressVectorCore:
    """The NIC's side of an address vector."""

    def __init__(self, domain: DomainCore, symmetric: bool = False, user_ids: bool = False) -> None:
        """
        symmetric  FI_SYMMETRIC: the vectors of all processes have the same entries, so messages name their sender
                   by its fi_addr.
        user_ids   FI_AV_USER_ID: completions report FI_ADDR_NOTAVAIL for a peer until its user id is set.
        """

    def insert_address(self, nic: int, pid: int, vni: int) -> int:
        """
        Inserts an address and returns its fi_addr. An address that is already present keeps its fi_addr.
        """

    def remove_address(self, fi_addr: int) -> None: ...

    def lookup_address(self, fi_addr: int) -> tuple[int, int, int]: ...

    def set_user_id_of(self, fi_addr: int, user_id: int) -> None:
        """Completions report this number for the peer."""

    def user_id_of(self, fi_addr: int) -> int:
        """What completions report for a peer."""

    @property
    def reverse_lookups(self) -> int:
        """
        How often the fi_addr of an address was searched, for completions that report the sender.
        """

    def count(self) -> int: ...

    def close(self) -> None: ...

def addresses_in_use(av: AddressVectorCore, first: int, last: int, stride: int, most: int) -> list[int]:
    """
    The fi_addr first, first + stride ... to last of a vector that are in use, ascending, `most` at most.
    """

class AddressSet:
    """The addresses of a set (fi_av_set(3)): in order, each once."""

    def __init__(self, addresses: Sequence[int]) -> None: ...

    def insert(self, address: int) -> str:
        """Returns why the set did not change; empty: it did."""

    def remove(self, address: int) -> str:
        """As insert."""

    def unite(self, other: AddressSet) -> None: ...

    def intersect(self, other: AddressSet) -> None: ...

    def subtract(self, other: AddressSet) -> None: ...

    def addresses(self) -> list[int]: ...

    def __len__(self) -> int: ...

def set_entry_types(context: type, msg: type, data: type, tagged: type, error: type) -> None:
    """
    Registers the NamedTuple classes of completion entries, one for each format.
    """

class CompletionQueueCore:
    """The NIC's side of a completion queue."""

    @overload
    def __init__(self, domain: DomainCore, config: QueueConfig, size: object = 0, flags: object = 0, signaling_vector: object = 0, wait_cond: object = 0) -> None: ...

    @overload
    def __init__(self, domain: OfiDomainCore, config: QueueConfig, size: int, flags: int, signaling_vector: int, wait_cond: int) -> None:
        """
        The arguments after `config` are of struct fi_cq_attr, for a real libfabric.
        """

    def read(self, count: int = 64) -> list[Any]:
        """
        Takes completions without waiting (fi_cq_read).

        count  the most completions to take.

        Returns a list of entries of the queue's format, oldest first; the list is empty if the queue is. An entry's
        op_context is the object given to the operation.
        Raises Available when the entry at the head is a failed operation: readerr() takes it.
        Polling drives the NIC's progress. Source: fi_cq(3) fi_cq_read.
        """

    def readfrom(self, count: int = 64) -> list[tuple[Any, int]]:
        """
        As read, with the initiator of each: a list of (entry, fi_addr) (fi_cq_readfrom).

        fi_addr is ADDR_NOTAVAIL for operations of this side, for peers that are not in the address vector, and if
        the endpoint was opened without fi.SOURCE in its capabilities.
        Raises Available, as read. Source: fi_cq(3) fi_cq_readfrom.
        """

    def sread(self, count: int = 64, cond: int | None = None, timeout: float | None = None) -> list[Any]:
        """
        Waits until there is a completion, then takes up to count of them (fi_cq_sread).

        count    the most completions to take.
        cond     with CQ_COND_THRESHOLD the number of entries to wait for.
        timeout  seconds; None or negative: no limit.

        The call spins briefly, yields, then sleeps. Other Python threads run during the wait, and Ctrl-C ends it.
        Raises Again (timeout), Available (a failed operation is at the head), Canceled (signal()).
        Source: fi_cq(3) fi_cq_sread.
        """

    def sreadfrom(self, count: int = 64, cond: int | None = None, timeout: float | None = None) -> list[tuple[Any, int]]:
        """
        As sread, with the initiator of each: a list of (entry, fi_addr) (fi_cq_sreadfrom).

        Raises Again, Available, Canceled, as sread. Source: fi_cq(3) fi_cq_sreadfrom.
        """

    @property
    def fid(self) -> int: ...

    @property
    def fd(self) -> int:
        """
        A descriptor that is readable while entries may be unread (wait_obj FD), or -1.
        """

    @property
    def in_use(self) -> bool:
        """True while an object of a real libfabric that uses this one exists."""

    @property
    def huge_pages(self) -> tuple[bool, int]:
        """
        (True if the entries lie in huge pages, the kernel's error number if it refused huge pages, otherwise 0).
        """

    @property
    def capacity(self) -> int:
        """The number of entries that the queue holds."""

    @property
    def acknowledgements(self) -> int:
        """
        How often a batch of entries that were read has been acknowledged to the NIC; 0 without batches.
        """

    def pending(self) -> int:
        """
        The number of unread entries; with a real libfabric, which does not tell how many it has, of those that Weft
        has read before the application asked.
        """

    def outstanding(self) -> int:
        """
        Operations of a real libfabric whose completions the queue has not reported yet.
        """

    def readerr_core(self, flags: int = 0, decide: Callable[[Status, int, tuple[int, int, int] | None, tuple[int, int, int]], tuple[int, int]] | None = None) -> Any:
        """
        Takes the failed operation at the head (fi_cq_readerr): a CqErrEntry whose err_data says in words what
        was asked and what was found. Raises Again if no failed operation is at the head.

        decide  called as decide(status, key, peer, own); returns (err, prov_errno), which replace those of the
                domain's map. peer and own are addresses (nic, pid, vni); peer is None if the operation had no
                target.
        """

    def signal(self) -> None:
        """Ends one waiting sread (fi_cq_signal). Source: fi_cq(3) fi_cq_signal."""

    def trywait(self) -> bool:
        """
        True when the fd may be waited on; False when entries are unread (fi_trywait). Source: fi_poll(3) fi_trywait.
        """

    def close(self) -> None: ...

class CounterPage:
    """
    The page of a counter: a writable buffer of 4096 bytes. A store of 8 bytes at offset 0 adds to the value, at
    64 to the failures; 0 stored at 128 resets the value, at 192 the failures. The page stays mapped while a
    reference to this object exists; after the counter is closed, stores have no effect.
    """

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def store(self, offset: int, value: int) -> None:
        """
        Has the effect of a plain store, at once. No store made by this call is lost.
        """

class CounterCore:
    """The NIC's side of a counter."""

    @overload
    def __init__(self, domain: DomainCore, config: CounterConfig, flags: int = 0) -> None: ...

    @overload
    def __init__(self, domain: OfiDomainCore, config: CounterConfig, flags: int) -> None:
        """flags: of struct fi_cntr_attr, for a real libfabric."""

    def read(self) -> int:
        """
        The number of successful events so far (fi_cntr_read). Drives the NIC's progress.

        Source: fi_cntr(3) fi_cntr_read.
        """

    def readerr(self) -> int:
        """
        The number of failed events so far (fi_cntr_readerr).

        Source: fi_cntr(3) fi_cntr_readerr.
        """

    def wait(self, threshold: int, timeout: float | None = None) -> None:
        """
        Waits until the value reaches threshold (fi_cntr_wait).

        timeout  seconds; None or negative: no limit.

        Raises TimedOut; Available if the error value changed during the wait. Source: fi_cntr(3) fi_cntr_wait.
        """

    @property
    def fid(self) -> int: ...

    @property
    def fd(self) -> int:
        """
        A descriptor that becomes readable when the counter changes (wait_obj FD), or -1.
        """

    @property
    def in_use(self) -> bool:
        """True while an object of a real libfabric that uses this one exists."""

    def add(self, value: int) -> None:
        """Adds to the value (fi_cntr_add). Source: fi_cntr(3) fi_cntr_add."""

    def set(self, value: int) -> None:
        """Sets the value (fi_cntr_set). Source: fi_cntr(3) fi_cntr_set."""

    def adderr(self, value: int) -> None:
        """
        Adds to the error value (fi_cntr_adderr). Source: fi_cntr(3) fi_cntr_adderr.
        """

    def seterr(self, value: int) -> None:
        """
        Sets the error value (fi_cntr_seterr). Source: fi_cntr(3) fi_cntr_seterr.
        """

    def set_wb_buffer(self, buffer: object) -> None:
        """
        Sets the buffer to which the NIC writes the counter: now, and at every later write-back. The NIC writes
        the first 8 bytes of a writable buffer (host memory, device memory, or (address, length)) and no longer
        those of the previous buffer. The counter keeps a reference to the buffer.
        Source: fi_cxi(7) "CXI Counter Extensions".
        """

    def get_mmio(self) -> CounterPage:
        """
        Returns the counter's page for plain stores; every call returns the same object.
        Source: fi_cxi(7) "CXI Counter Extensions".
        """

    def write_back_at(self, value: int) -> None:
        """
        Writes the counter back when its value reaches `value`; at once if it already has.
        """

    @property
    def cached(self) -> bool:
        """True: read() returns the value written back last."""

    @cached.setter
    def cached(self, arg: bool, /) -> None: ...

    def close(self) -> None: ...

class MrSlice:
    """
    A range of bytes of a registered region: the fastest kind of local buffer.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> MrSlice: ...

    @property
    def address(self) -> int:
        """Virtual address."""

    def __repr__(self) -> str: ...

class MemoryRegionCore:
    """The NIC's side of a region."""

    def __init__(self, domain: DomainCore, buffers: Iterable[object], *, access: int, requested_key: int = 0, flags: int = 0, context: object = None, enabled: bool = True, owned: bool = False, unowned: bool = False, by_owner: bool = False, base: int | None = None, vnis: Sequence[int] = (), source: tuple[int, int, int] | None = None, key_later: bool = False) -> None:
        """
        owned          memory given as (address, length) has an owner that keeps it mapped.
        unowned        pages of the memory may go missing, even if an object owns the memory.
        by_owner       the kernel reads the memory for no other process: this process's engine copies.
        base           under virtual addressing the address of the first byte, if it is not the buffer's own.
        vnis, source   the initiators that the region admits: those with one of these VNIs; only this endpoint
                       (nic, pid, vni).
        key_later      the region gets its key when it is enabled: from the NIC, or as the argument of enable_core().
        """

    def __getitem__(self, index: slice, /) -> MrSlice: ...

    def bind(self, fid: Any, flags: int = 0) -> None:
        """
        Associate the region with a counter or an endpoint (fi_mr_bind).

        fid     a Counter, which then counts the accesses that flags select; or an Endpoint: under `fi.MR_ENDPOINT`
                one through which peers may access the region, otherwise an association without effect, so that a
                program written for `fi.MR_ENDPOINT` runs unchanged.
        flags   for a counter `fi.REMOTE_WRITE`: each RMA write and each atomic that may modify the region, made
                through an endpoint opened with `fi.RMA_EVENT`. All atomics except ATOMIC_READ count, including
                comparisons that fail and change nothing. For an endpoint 0.

        A region may be bound to several objects: each of its counters counts every access, each of its endpoints
        serves it. Binding the same object again changes nothing. A binding ends with its endpoint; endpoints that
        are opened later do not serve the region.

        Raises BadFlags; BadState (the region was enabled with `enable()` already; a counter under `fi.MR_RMA_EVENT`
        on a region registered without `fi.RMA_EVENT`); WrongDomain; InvalidArgument (some other object).
        Source: fi_mr(3) fi_mr_bind.
        """

    def enable(self) -> None:
        """
        Enable a region that was created disabled (fi_mr_enable). An enabled region takes no further bindings.

        Regions are created disabled under `fi.MR_ENDPOINT`, and under `fi.MR_RMA_EVENT` with the flag `fi.RMA_EVENT`.
        Enabling an enabled region changes nothing.

        Raises BadState under `fi.MR_ENDPOINT` before the region is bound to an endpoint.
        Source: fi_mr(3) fi_mr_enable.
        """

    def close(self) -> None:
        """
        Close the region (fi_close): its key is invalid from here on, and a peer that uses the key gets an error.

        The call waits, for a bounded time, for peers that are copying. Operations of this process that have the
        region as their buffer continue, and hold its memory until they end. Closing again does nothing.

        Raises Busy, with a text that names the obstacle: sub-MRs; endpoints and counters that are bound to the
        region and still open (close those first); peers that did not finish in time.
        Source: fi_mr(3) fi_close.
        """

    domain: Any

    @property
    def key(self) -> int:
        """The remote key, or KEY_NOTAVAIL."""

    @property
    def desc(self) -> object:
        """
        Local descriptor, for the desc argument of data transfers (fi_mr_desc).
        """

    @property
    def length(self) -> int:
        """Length in bytes."""

    @property
    def address(self) -> int:
        """Virtual address of the first byte."""

    @property
    def base(self) -> int:
        """
        The address of the first byte in remote accesses: 0, or a virtual address.
        """

    @property
    def access(self) -> int:
        """Access bits."""

    @property
    def iface(self) -> int:
        """The memory's interface (enum fi_hmem_iface); 0: host memory."""

    @property
    def device(self) -> int:
        """The device's number; 0 for host memory."""

    @property
    def state(self) -> str:
        """
        disabled, enabled, used up (after the one operation of MR_SINGLE_USE) or closed.
        """

    @property
    def readonly(self) -> bool:
        """True if the region's buffer is read-only."""

    @property
    def direct(self) -> bool:
        """
        True if peers access the memory by load and store, because Weft allocated it.
        """

    def bind_ep(self, ep: EndpointCore) -> None: ...

    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...

    def enable_core(self, key: int | None = None) -> None:
        """
        Enables the region for peers. key: needed by a region with key_later if the NIC makes no keys.
        Raises NoKey (the key is in use), NoSpace.
        """

    def enable_mapped(self, mapping: Mapping) -> None:
        """
        Replaces enable_core() for a region with key_later: peers access the memory through the mapping, and the
        region gets the mapping's key.
        """

    def disable_core(self) -> None:
        """
        Revokes the access of peers until enable(); returns when no access is under way. Raises Busy (a peer did
        not finish in time).
        """

    def missing_page(self, address: int, length: int) -> int | None:
        """
        Returns the address of the first missing page in [address, address + length), or None.
        """

    def unstage(self) -> None:
        """
        Leaves the further steps to Python, and gives back what mr_reg took of RegionTakes.
        """

    def close_core(self) -> None: ...

def light_regions() -> bool:
    """
    Whether mr_reg makes its objects without nanobind's table of instances.
    """

def allow_light_regions(allowed: bool) -> None:
    """
    For tests: False has nanobind make every object; True makes light ones again, where that is possible.
    """

class Mapping:
    """
    Memory that peers access through an endpoint, independent of the regions for which it was mapped. A mapping
    covers whole pages; its offset 0 is `address`.

    A mapping ends with close(), with the last reference to it, when its endpoint is closed, and when memory
    that Weft allocated is freed. A mapping keeps no other memory alive: accesses to pages that are gone fail.
    """

    def __init__(self, domain: DomainCore, ep: EndpointCore, *, address: int, length: int, access: int, key: int) -> None:
        """
        access  REMOTE_READ, REMOTE_WRITE or both.

        Raises NoKey (the key is in use), NoSpace.
        """

    @property
    def key(self) -> int:
        """The key that peers use."""

    @property
    def address(self) -> int:
        """Virtual address that offset 0 names."""

    @property
    def length(self) -> int:
        """
        The requested bytes from `address` on. Peers can access all of the pages that contain them.
        """

    @property
    def direct(self) -> bool:
        """
        True for memory that Weft allocated. The mapping ends when that memory is freed.
        """

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Revokes the key; returns when no access is under way."""

def atomic_valid(datatype: int, op: int, family: int) -> tuple[int, int]:
    """
    Returns the default limit (elements of one call, bytes of one element); (0, size) if the operation does not
    exist for the datatype. EndpointCore.atomic_limit() returns an endpoint's own limit.
    """

def reduction_bytes(op: int, datatype: int, count: int, general: bool = False) -> int | None:
    """
    Bytes of user data of a reduction; 0 if it cannot have that many elements; None if the NIC has no such
    operation on the datatype. general: operations of the general provider.
    """

def fold(buf: object | None, result: object | None, count: int, datatype: int, op: int, pre_reduced: bool = False, general: bool = False, prefer_numbers: bool = False) -> None:
    """
    Folds count elements of buf into the accumulator result (64 bytes, zeroed first): a reduction with FI_MORE.
    pre_reduced: buf is an accumulator too; count, datatype and op are then not read. prefer_numbers: MIN, MAX and
    MINMAXLOC of a NaN and a number are the number.
    """

def unfold(accumulator: object, out: object, count: int, datatype: int) -> int | None:
    """
    Writes what an accumulator holds as count elements to out, and returns its status (enum ReduceStatus of
    nic/reduction.hpp). None: the accumulator is empty, or no accumulator.
    """

class Refusal(enum.Enum):
    """Why a call was refused."""

    none = 0
    """the call is not refused"""

    cq_full = 1
    """the completion queue has no room"""

    tx_full = 2
    """the most operations are under way"""

    not_enabled = 3
    """the endpoint is not enabled"""

    closed = 4
    """the endpoint is closed"""

    no_cq = 5
    """no completion queue is bound for what the endpoint starts"""

    bad_address = 6
    """the fi_addr is not in the address vector"""

    not_connected = 7
    """the endpoint has no connection (FI_EP_MSG)"""

    length_mismatch = 8
    """local buffers and remote ranges differ in length"""

    too_long = 9
    """longer than max_msg_size"""

    too_many_pieces = 10
    """more than the NIC can describe, independent of the rules"""

    no_capability = 11
    """the endpoint lacks the capability"""

    forked = 12
    """the endpoint belongs to the parent process"""

    not_now = 13
    """the operation would outlast the call"""

    rx_full = 14
    """no more receives fit"""

    rdzv_full = 15
    """
    MessageConfig.tagged_ids or untagged_ids: too many messages wait to be pulled
    """

    flow_stopped = 16
    """
    the receiver has refused earlier messages, and takes no more at present
    """

    no_claim = 17
    """the context has claimed no message (FI_CLAIM)"""

    rx_changing = 18
    """the endpoint changes its match mode"""

    rx_no_entry = 19
    """the service has no list entry for a receive"""

    bad_flags = 20
    """flags that the call does not take"""

    too_many_buffers = 21
    """more local buffers than iov_max"""

    bad_range_count = 22
    """more remote ranges than rma_iov_max, or none"""

    inject_too_long = 23
    """longer than inject_size"""

    unknown_atomic = 24
    """not a number of an operation or a datatype"""

    too_many_elements = 25
    """more elements than atomic_count_max"""

    no_atomic = 26
    """this operation does not exist for this datatype and family"""

    part_element = 27
    """a buffer is not a whole number of elements"""

    no_element = 28
    """the buffers hold no whole element"""

    short_buffer = 29
    """a buffer holds fewer elements than the call asks for"""

    bad_key = 30
    """the key has none of the provider's key forms"""

    key_offset = 31
    """the address plus the offset in the key exceeds the form's limit"""

    no_fence = 32
    """FI_FENCE without the capability"""

    flags_clash = 33
    """
    flags of an atomic or a receive that its target, or another flag, excludes
    """

    bad_tag = 34
    """bits of a tag or of an ignore mask that the provider does not have"""

    no_context = 35
    """FI_CLAIM without a context"""

    no_message_data = 36
    """remote CQ data of a message, and the domain has none"""

    no_desc = 37
    """a descriptor is required"""

    no_device_desc = 38
    """a descriptor is required of device memory"""

    desc_closed = 39
    """the descriptor's region is closed"""

    desc_foreign = 40
    """the descriptor belongs to another domain"""

    desc_elsewhere = 41
    """the descriptor does not cover the buffer"""

    desc_no_right = 42
    """the descriptor's region lacks the access"""

    no_hmem = 43
    """device memory, and the domain was opened without FI_HMEM"""

    no_device_runtime = 44
    """the interface's runtime is not loaded"""

    unknown_device_memory = 45
    """device memory that its runtime does not know"""

    past_allocation = 46
    """past the end of an allocation of a device"""

    no_page = 47
    """no memory is mapped at a bare address"""

    null_buffer = 48
    """a buffer is NULL, and its length is not 0"""

class MsgRules:
    """The rules of messages, besides the flags of their calls."""

    def __init__(self, *, tag_mask: int = 0xffffffffffffffff, receive_flags: int = 0, recv_iov_max: int = 8, data: bool = True) -> None: ...

    @property
    def tag_mask(self) -> int:
        """The bits that tags and ignore masks may have."""

    @tag_mask.setter
    def tag_mask(self, value: int, /) -> None: ...

    @property
    def receive_flags(self) -> int:
        """Flags of receives whose call takes no flags."""

    @receive_flags.setter
    def receive_flags(self, value: int, /) -> None: ...

    @property
    def recv_iov_max(self) -> int:
        """The most buffers of one receive."""

    @recv_iov_max.setter
    def recv_iov_max(self, value: int, /) -> None: ...

    @property
    def data(self) -> bool:
        """Messages may carry remote CQ data."""

    @data.setter
    def data(self, value: bool, /) -> None: ...

    def replace(self, **changes: Any) -> MsgRules:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> MsgRules:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class KeyForm:
    """A form of peers' keys: key & mask == value."""

    def __init__(self, *, mask: int = 0, value: int = 0, offset_mask: int = 0, offset_shift: int = 0, sum_max: int = 0xffffffffffffffff) -> None: ...

    @property
    def mask(self) -> int:
        """The bits that tell the form."""

    @mask.setter
    def mask(self, value: int, /) -> None: ...

    @property
    def value(self) -> int:
        """Their values."""

    @value.setter
    def value(self, value: int, /) -> None: ...

    @property
    def offset_mask(self) -> int:
        """The bits of an offset, after the shift; 0: the form has no offset."""

    @offset_mask.setter
    def offset_mask(self, value: int, /) -> None: ...

    @property
    def offset_shift(self) -> int:
        """The shift of the offset."""

    @offset_shift.setter
    def offset_shift(self, value: int, /) -> None: ...

    @property
    def sum_max(self) -> int:
        """The most of the offset, the address and the length together."""

    @sum_max.setter
    def sum_max(self, value: int, /) -> None: ...

    def replace(self, **changes: Any) -> KeyForm:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> KeyForm:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class OpRules:
    """
    The rules of an endpoint's calls. New rules admit all that the NIC can do, and refuse other calls with the codes of the man pages.
    """

    def __init__(self, *, mr_collective: bool = False, mr_local: bool = False, mr_hmem: bool = False, hmem: bool = False, desc_ignored: bool = False, only_receives_cancel: bool = False, fence_needs_cap: bool = False, local_lengths: bool = False, key_form_count: int = 0, fence_also: int = 0, data_key_mask: int = 0, data_key_value: int = 0, iov_max: int = 8, rma_iov_max: int = 8, atomic_bytes_max: int = 4096, atomic_count_max: int = 0xffffffffffffffff, messages: MsgRules = ..., pcie_flag: int = 0, pcie_datatypes: int = 0, key_forms: Sequence[KeyForm | tuple[int, ...]] = ...) -> None: ...

    @property
    def mr_collective(self) -> bool:
        """
        Buffers of collectives need a descriptor, of a region for that use (FI_MR_COLLECTIVE).
        """

    @mr_collective.setter
    def mr_collective(self, value: bool, /) -> None: ...

    @property
    def mr_local(self) -> bool:
        """
        Every local buffer needs a descriptor; set by the domain (FI_MR_LOCAL).
        """

    @mr_local.setter
    def mr_local(self, value: bool, /) -> None: ...

    @property
    def mr_hmem(self) -> bool:
        """
        Local buffers in device memory need a descriptor; set by the domain (FI_MR_HMEM).
        """

    @mr_hmem.setter
    def mr_hmem(self, value: bool, /) -> None: ...

    @property
    def hmem(self) -> bool:
        """Local buffers may be device memory; set by the domain (FI_HMEM)."""

    @hmem.setter
    def hmem(self, value: bool, /) -> None: ...

    @property
    def desc_ignored(self) -> bool:
        """Given descriptors are ignored, as in a domain that ignores them."""

    @desc_ignored.setter
    def desc_ignored(self, value: bool, /) -> None: ...

    @property
    def only_receives_cancel(self) -> bool:
        """cancel() ends receives, and no operation that has not started."""

    @only_receives_cancel.setter
    def only_receives_cancel(self, value: bool, /) -> None: ...

    @property
    def fence_needs_cap(self) -> bool:
        """FENCE is refused without the capability FENCE."""

    @fence_needs_cap.setter
    def fence_needs_cap(self, value: bool, /) -> None: ...

    @property
    def local_lengths(self) -> bool:
        """A call with one remote range takes its length from the local buffers."""

    @local_lengths.setter
    def local_lengths(self, value: bool, /) -> None: ...

    @property
    def key_form_count(self) -> int:
        """
        Forms of keys in use; a key that has none of the forms is refused at the call (bad_key). 0: keys are any 64 bits.
        """

    @key_form_count.setter
    def key_form_count(self, value: int, /) -> None: ...

    @property
    def fence_also(self) -> int:
        """
        Flags with the effect of FENCE, with or without the capability. A call takes them if set_flags() admits them.
        """

    @fence_also.setter
    def fence_also(self, value: int, /) -> None: ...

    @property
    def data_key_mask(self) -> int:
        """
        Writes with data go only to keys with key & data_key_mask == data_key_value; 0: to all.
        """

    @data_key_mask.setter
    def data_key_mask(self, value: int, /) -> None: ...

    @property
    def data_key_value(self) -> int:
        """See data_key_mask."""

    @data_key_value.setter
    def data_key_value(self, value: int, /) -> None: ...

    @property
    def iov_max(self) -> int:
        """The most local buffers of one call."""

    @iov_max.setter
    def iov_max(self, value: int, /) -> None: ...

    @property
    def rma_iov_max(self) -> int:
        """The most remote ranges of one call."""

    @rma_iov_max.setter
    def rma_iov_max(self, value: int, /) -> None: ...

    @property
    def atomic_bytes_max(self) -> int:
        """The most of one atomic. The NIC's own limit also applies."""

    @atomic_bytes_max.setter
    def atomic_bytes_max(self, value: int, /) -> None: ...

    @property
    def atomic_count_max(self) -> int:
        """The most elements of one atomic."""

    @atomic_count_max.setter
    def atomic_count_max(self, value: int, /) -> None: ...

    @property
    def messages(self) -> MsgRules:
        """The rules of messages, besides the flags of their calls."""

    @messages.setter
    def messages(self, value: MsgRules, /) -> None: ...

    @property
    def pcie_flag(self) -> int:
        """
        The flag of atomics over PCIe. With this flag only the fetching sum exists.
        """

    @pcie_flag.setter
    def pcie_flag(self, value: int, /) -> None: ...

    @property
    def pcie_datatypes(self) -> int:
        """The datatypes of atomics over PCIe: bit n stands for datatype n."""

    @pcie_datatypes.setter
    def pcie_datatypes(self, value: int, /) -> None: ...

    @property
    def key_forms(self) -> tuple[KeyForm, ...]:
        """The forms of peers' keys."""

    @key_forms.setter
    def key_forms(self, value: Sequence[KeyForm | tuple[int, ...]], /) -> None: ...

    def replace(self, **changes: Any) -> OpRules:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> OpRules:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def add_key_form(self, mask: int, value: int, *, offset_mask: int = 0, offset_shift: int = 0, sum_max: int = 18446744073709551615) -> None:
        """
        Adds a form of peers' keys: key & mask == value. From the first form on, a key that has none of the
        forms is refused at the call (bad_key). A key of a form with an offset is refused (key_offset) if
        (key >> offset_shift & offset_mask) + address + length is more than sum_max. At most four forms.
        """

    def flags(self, call: str) -> int:
        """
        The flags that a call takes. call: write, read, batch, atomic, fetch, compare, send, tsend, recv or trecv.
        """

    def set_flags(self, call: str, flags: int) -> None: ...

    def name_flags(self, names: Sequence[tuple[int, str]]) -> None:
        """
        Names of the provider's own flags, for the texts of refusals: (flag, name).
        """

    def atomics(self, family: int, op: int) -> int:
        """The datatypes of an operation: bit n stands for datatype n."""

    def set_atomics(self, family: int, op: int, datatypes: int) -> None: ...

    def errno_of(self, refusal: Refusal) -> int:
        """The FI_ code of a refusal."""

    def set_errno(self, refusal: Refusal, code: int) -> None: ...

class RxModeConfig:
    """
    Where messages are matched, and so whether receives and messages take list entries.
    """

    def __init__(self, *, mode: MatchMode = ..., size: int = 0xffffffff, lossless: bool = False, early_for_messages: bool = False, early_for_receives: bool = False, by_receives: bool = False, by_messages: bool = False) -> None: ...

    @property
    def mode(self) -> MatchMode:
        """Where messages are matched."""

    @mode.setter
    def mode(self, value: MatchMode, /) -> None: ...

    @property
    def size(self) -> int:
        """rx_attr.size: see by_receives and by_messages."""

    @size.setter
    def size(self, value: int, /) -> None: ...

    @property
    def lossless(self) -> bool:
        """
        In hardware mode a message without a list entry waits at its sender, and no flow control begins.
        """

    @lossless.setter
    def lossless(self, value: bool, /) -> None: ...

    @property
    def early_for_messages(self) -> bool:
        """
        hybrid: changes to software when a message without a receive would take one of the last entries, which the buffers for matching by software need.
        """

    @early_for_messages.setter
    def early_for_messages(self, value: bool, /) -> None: ...

    @property
    def early_for_receives(self) -> bool:
        """The same for a posted receive."""

    @early_for_receives.setter
    def early_for_receives(self, value: bool, /) -> None: ...

    @property
    def by_receives(self) -> bool:
        """hybrid: changes to software when more receives than `size` are posted."""

    @by_receives.setter
    def by_receives(self, value: bool, /) -> None: ...

    @property
    def by_messages(self) -> bool:
        """
        hybrid: changes to software when more messages than `size` have no receive.
        """

    @by_messages.setter
    def by_messages(self, value: bool, /) -> None: ...

    def replace(self, **changes: Any) -> RxModeConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> RxModeConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

class MessageConfig:
    """How an endpoint sends and receives messages: the provider's protocol."""

    def __init__(self, *, eager_max: int = 16384, eager_part: int = 0, copy_max: int = 256, tagged_ids: int = 0, untagged_ids: int = 0, min_multi_recv: int = 64, posted_max: int = 1073741824, unexpected_max: int = 1073741824, buffers: RxBufferConfig = ..., requests: RxBufferConfig = ..., match: RxModeConfig = ..., append_retry_ns: int = 0, credits: int = 32, unordered: bool = False, retry_ns_max: int = 500000000, stop_ns: int = 5000000, delivery_complete: bool = True, control_slots: int = 0, reads_max: int = 0, registers_buffers: bool = False, software_counts: bool = False, tells_buffers: bool = True) -> None: ...

    @property
    def eager_max(self) -> int:
        """
        Longer messages wait in the sender's memory until a receive takes them; the receiver has shorter ones at once.
        """

    @eager_max.setter
    def eager_max(self, value: int, /) -> None: ...

    @property
    def eager_part(self) -> int:
        """
        What a message of several frames brings along. At most the payload of one frame; more is cut to that.
        """

    @eager_part.setter
    def eager_part(self, value: int, /) -> None: ...

    @property
    def copy_max(self) -> int:
        """
        Messages up to this length are copied by the call if they cannot be sent at once.
        """

    @copy_max.setter
    def copy_max(self, value: int, /) -> None: ...

    @property
    def tagged_ids(self) -> int:
        """
        The most tagged messages that may wait to be pulled at a time; 0: any number.
        """

    @tagged_ids.setter
    def tagged_ids(self, value: int, /) -> None: ...

    @property
    def untagged_ids(self) -> int:
        """The same for untagged messages."""

    @untagged_ids.setter
    def untagged_ids(self, value: int, /) -> None: ...

    @property
    def min_multi_recv(self) -> int:
        """
        OPT_MIN_MULTI_RECV of a new endpoint: a buffer for several messages ends when less is left.
        """

    @min_multi_recv.setter
    def min_multi_recv(self, value: int, /) -> None: ...

    @property
    def posted_max(self) -> int:
        """The most receives."""

    @posted_max.setter
    def posted_max(self, value: int, /) -> None: ...

    @property
    def unexpected_max(self) -> int:
        """The most messages without a receive."""

    @unexpected_max.setter
    def unexpected_max(self, value: int, /) -> None: ...

    @property
    def buffers(self) -> RxBufferConfig:
        """
        Buffers for messages without a receive. In hardware mode each takes a list entry.
        """

    @buffers.setter
    def buffers(self, value: RxBufferConfig, /) -> None: ...

    @property
    def requests(self) -> RxBufferConfig:
        """Such buffers for matching by software."""

    @requests.setter
    def requests(self, value: RxBufferConfig, /) -> None: ...

    @property
    def match(self) -> RxModeConfig:
        """Where messages are matched."""

    @match.setter
    def match(self, value: RxModeConfig, /) -> None: ...

    @property
    def append_retry_ns(self) -> int:
        """
        What a receive waits for a list entry before it fails; 0: as the mode has it.
        """

    @append_retry_ns.setter
    def append_retry_ns(self, value: int, /) -> None: ...

    @property
    def credits(self) -> int:
        """
        Short messages that one sender may send without an answer; 0: every message is answered.
        """

    @credits.setter
    def credits(self, value: int, /) -> None: ...

    @property
    def unordered(self) -> bool:
        """
        Messages have no order, and one without a receive is sent again instead of kept (FI_PROTO_CXI_RNR).
        """

    @unordered.setter
    def unordered(self, value: bool, /) -> None: ...

    @property
    def retry_ns_max(self) -> int:
        """Such a message fails if it has found no receive for so long."""

    @retry_ns_max.setter
    def retry_ns_max(self, value: int, /) -> None: ...

    @property
    def stop_ns(self) -> int:
        """
        Refused messages are sent again after this time, if the receiver has not asked for them earlier.
        """

    @stop_ns.setter
    def stop_ns(self, value: int, /) -> None: ...

    @property
    def delivery_complete(self) -> bool:
        """
        DELIVERY_COMPLETE of a send waits until the message is in the receiver's buffer.
        """

    @delivery_complete.setter
    def delivery_complete(self, value: bool, /) -> None: ...

    @property
    def control_slots(self) -> int:
        """
        Slots of the queue in which control messages (a receiver takes messages again) wait for the application's progress; more are dropped, and the refused message is sent again after stop_ns. 0: no queue.
        """

    @control_slots.setter
    def control_slots(self, value: int, /) -> None: ...

    @property
    def reads_max(self) -> int:
        """
        The rest of a long message is read by operations that start at the application's progress, so many at a time; 0: the NIC fetches it at once.
        """

    @reads_max.setter
    def reads_max(self, value: int, /) -> None: ...

    @property
    def registers_buffers(self) -> bool:
        """
        The buffers for messages without a receive are registered with the runtimes of devices.
        """

    @registers_buffers.setter
    def registers_buffers(self, value: bool, /) -> None: ...

    @property
    def software_counts(self) -> bool:
        """
        Software counts receives, and the ends of pulled or match-complete sends: counters have them after the application's next progress.
        """

    @software_counts.setter
    def software_counts(self, value: bool, /) -> None: ...

    @property
    def tells_buffers(self) -> bool:
        """
        Completions of all receives have the address of the message, not only those of MULTI_RECV.
        """

    @tells_buffers.setter
    def tells_buffers(self, value: bool, /) -> None: ...

    def replace(self, **changes: Any) -> MessageConfig:
        """A copy with other values."""

    def to_record(self) -> bytes:
        """The settings as bytes, for another process (cpp/base/record.hpp)."""

    @staticmethod
    def from_record(record: bytes) -> MessageConfig:
        """
        The settings that to_record() wrote. Raises FabricError if the bytes are damaged, were made by a newer
        version of Weft, or are a record of another table.
        """

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    def set_entries(self, ledger: Ledger, slot: int, kind: int) -> None:
        """
        The list entries of a service: a kind of resource in the ledger, for the process with this slot. The slot
        must be open until the endpoint is closed; the ledger is kept until the process ends.
        """

class EndpointCore:
    """The NIC's side of an endpoint: its data path."""

    @overload
    def __init__(self, domain: DomainCore, config: EndpointConfig) -> None: ...

    @overload
    def __init__(self, original: EndpointCore) -> None:
        """
        An alias: the same endpoint of the NIC with flags and a lane of its own, at first the original's flags. No order ties its operations to others.
        """

    def read(self, buf: object, desc: object = None, src_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        Copies bytes of a peer's region into buf (fi_read).

        buf       writable C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region
                  is fastest. Held until completion; do not use its bytes before.
        desc      mr.desc of a region that covers buf (required under MR_LOCAL), or None.
        src_addr  the peer: what av.insert() returned.
        addr      byte offset from the region's start; its virtual address under MR_VIRT_ADDR.
        key       the region's remote key.
        context   any object; the completion returns it as op_context.
        len       number of bytes, if fewer than buf has.

        Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, AccessDenied (buf is
        read-only), InvalidArgument, BadState. A refusal by the peer (key, bounds, access) is a failed completion.
        Source: fi_rma(3) fi_read.
        """

    def readv(self, iov: Sequence[object], desc: object = None, src_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        As read, into a list of up to iov_limit buffers, in order (fi_readv).

        iov    writable C-contiguous buffers, filled one after the other.
        desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.
        count  number of buffers to use; None: all.

        Source: fi_rma(3) fi_readv.
        """

    def readmsg(self, msg: object, flags: int = 0) -> None:
        """
        A read with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_readmsg).

        flags  for this read alone, in place of the endpoint's: COMPLETION, MORE, FENCE, completion levels.

        Raises BadFlags, and as read. Source: fi_rma(3) fi_readmsg.
        """

    def write(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        Copies buf into a peer's region (fi_write).

        buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is
                   fastest. Held until completion; do not change its bytes before.
        dest_addr  the peer: what av.insert() returned.
        desc, addr, key, context, len   as for read.

        Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument,
        BadState. A refusal by the peer (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_write.
        """

    def writev(self, iov: Sequence[object], desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        As write, from a list of up to iov_limit buffers, in order (fi_writev).

        iov    C-contiguous buffers, written one after the other.
        desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or None.
        count  number of buffers to use; None: all.

        Source: fi_rma(3) fi_writev.
        """

    def writemsg(self, msg: object, flags: int = 0) -> None:
        """
        A write with all options: msg is an fi.MsgRma, with up to rma_iov_limit remote ranges (fi_writemsg).

        flags  for this write alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT, FENCE,
               INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE.

        If there are several remote ranges, all of them are checked before the first is written.
        Raises BadFlags, and as write. Source: fi_rma(3) fi_writemsg.
        """

    def inject_write(self, buf: object, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., *, len: int | None = None) -> None:
        """
        As write, of at most inject_size bytes (fi_inject_write). buf may be reused when the call returns.
        A success has no completion; a failure has one.

        Raises MessageTooLong, and as write. Source: fi_rma(3) fi_inject_write.
        """

    def writedata(self, buf: object, desc: object = None, data: int = ..., dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        As write, and delivers data (64 bits) to the peer's completion queue (fi_writedata).

        Raises as write. Source: fi_rma(3) fi_writedata.
        """

    def inject_writedata(self, buf: object, data: int, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., *, len: int | None = None) -> None:
        """
        As inject_write, and delivers data (64 bits) to the peer's completion queue (fi_inject_writedata).

        Raises as inject_write. Source: fi_rma(3) fi_inject_writedata.
        """

    def read_batch(self, local: object, descs: object, context: object = None, flags: int | None = None) -> None:
        """
        Many reads in one call, with one completion for all of them. Weft's own: libfabric has no such call.

        local  writable C-contiguous buffer; local_offset of a descriptor counts from its start.
        descs  writable C-contiguous array of dtype fi.RMA_DESC: local_offset, length, dest_addr, remote_addr,
               key. The NIC writes status: 0, or the error number of this transfer; valid at the completion.
        flags  in place of the endpoint's; None: the endpoint's.

        Both buffers are held until completion. The completion's len is the sum of the bytes moved; the completion
        is a failed one if any transfer failed. Raises as read.
        """

    def write_batch(self, local: object, descs: object, context: object = None, flags: int | None = None) -> None:
        """
        Many writes in one call, with one completion for all of them. Weft's own: libfabric has no such call.

        Arguments as read_batch; local may be read-only. Raises as write.
        """

    def atomic(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        Updates elements of a peer's region with those of buf, each atomically (fi_atomic).

        buf       C-contiguous buffer with the operands. The call copies them: buf may be reused when the
                  call returns.
        addr      as for write; a multiple of the datatype's alignment.
        datatype  fi.INT64, fi.DOUBLE ...   op  fi.SUM, fi.MIN ...; atomicvalid() returns which pairs exist.
        count     number of elements; None: all of buf.

        Raises NotSupported (no such pair), Again (a queue is full: read the completion queue, retry),
        MessageTooLong (more elements than atomicvalid() returns), InvalidArgument.
        Source: fi_atomic(3) fi_atomic.
        """

    def atomicv(self, iov: Sequence[object], desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """
        As atomic, from a list of up to iov_limit buffers (fi_atomicv). Source: fi_atomic(3) fi_atomicv.
        """

    def atomicmsg(self, msg: object, flags: int = 0) -> None:
        """
        An atomic with all options: msg is an fi.MsgAtomic; flags are for this call alone (fi_atomicmsg).

        Raises BadFlags, and as atomic. Source: fi_atomic(3) fi_atomicmsg.
        """

    def inject_atomic(self, buf: object, dest_addr: int, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., *, count: int | None = None) -> None:
        """
        As atomic, of at most inject_size bytes (fi_inject_atomic). A success has no completion; a failure
        has one.

        Raises as atomic. Source: fi_atomic(3) fi_inject_atomic.
        """

    def fetch_atomic(self, buf: object, desc: object = None, result: object = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        As atomic; result also receives the old values of the elements (fi_fetch_atomic).

        buf     operands; not used by ATOMIC_READ, which takes None.
        result  writable C-contiguous buffer of as many elements. Held until completion.

        Raises as atomic. Source: fi_atomic(3) fi_fetch_atomic.
        """

    def fetch_atomicv(self, iov: Sequence[object] | None, desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """
        As fetch_atomic, with lists of buffers (fi_fetch_atomicv). Source: fi_atomic(3) fi_fetch_atomicv.
        """

    def fetch_atomicmsg(self, msg: object, resultv: Sequence[object], result_desc: object = None, flags: int = 0) -> None:
        """
        A fetching atomic with all options (fi_fetch_atomicmsg). Source: fi_atomic(3) fi_fetch_atomicmsg.
        """

    def compare_atomic(self, buf: object, desc: object = None, compare: object = ..., compare_desc: object = None, result: object = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        Compares elements of a peer's region with compare and, where they satisfy op (CSWAP ... MSWAP), puts buf
        there, each atomically; result receives the old values of the elements (fi_compare_atomic).

        buf, compare  C-contiguous buffers of as many elements. The call copies them.
        result        writable C-contiguous buffer of as many elements. Held until completion.

        Raises as atomic. Source: fi_atomic(3) fi_compare_atomic.
        """

    def compare_atomicv(self, iov: Sequence[object], desc: object = None, comparev: Sequence[object] = ..., compare_desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """
        As compare_atomic, with lists of buffers (fi_compare_atomicv). Source: fi_atomic(3) fi_compare_atomicv.
        """

    def compare_atomicmsg(self, msg: object, comparev: Sequence[object], compare_desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, flags: int = 0) -> None:
        """
        A comparing atomic with all options (fi_compare_atomicmsg). Source: fi_atomic(3) fi_compare_atomicmsg.
        """

    def send(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, context: object = None, *, len: int | None = None) -> None:
        """
        Sends a message to a peer, which receives it with recv (fi_send).

        buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size, or None for a message of no bytes. Held
                   until completion; do not change its bytes before.
        desc       mr.desc of a region that covers buf (required under MR_LOCAL), or None.
        dest_addr  the peer: what av.insert() returned; a connected endpoint ignores it.
        context    any object; the completion returns it as op_context.
        len        number of bytes, if fewer than buf has.

        Raises Again (a queue is full, or the receiver has no room: read the completion queue, retry),
        MessageTooLong, InvalidArgument, BadState, NotSupported (no MSG or SEND). Source: fi_msg(3) fi_send.
        """

    def sendv(self, iov: Sequence[object] | None, desc: object = None, dest_addr: int = 0xffffffffffffffff, context: object = None, *, count: int | None = None) -> None:
        """
        As send, from a list of up to iov_limit buffers, in order (fi_sendv).

        iov    C-contiguous buffers.
        desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or
               None.
        count  number of buffers to use; None: all.

        Source: fi_msg(3) fi_sendv.
        """

    def sendmsg(self, msg: object, flags: int = 0) -> None:
        """
        A send with all options: msg is an fi.Msg (fi_sendmsg).

        flags  for this send alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT,
               FENCE, INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE.

        Raises BadFlags, and as send. Source: fi_msg(3) fi_sendmsg.
        """

    def inject(self, buf: object, dest_addr: int = 0xffffffffffffffff, *, len: int | None = None) -> None:
        """
        As send, of at most inject_size bytes (fi_inject). buf may be reused when the call returns. A success
        has no completion; a failure has one.

        Raises as send. Source: fi_msg(3) fi_inject.
        """

    def senddata(self, buf: object, desc: object = None, data: int = ..., dest_addr: int = 0xffffffffffffffff, context: object = None, *, len: int | None = None) -> None:
        """
        As send, and delivers data (64 bits) with the completion of the receive (fi_senddata).

        Raises as send. Source: fi_msg(3) fi_senddata.
        """

    def injectdata(self, buf: object, data: int, dest_addr: int = 0xffffffffffffffff, *, len: int | None = None) -> None:
        """
        As inject, and delivers data (64 bits) with the completion of the receive (fi_injectdata).

        Raises as send. Source: fi_msg(3) fi_injectdata.
        """

    def recv(self, buf: object, desc: object = None, src_addr: int = 0xffffffffffffffff, context: object = None, *, len: int | None = None) -> None:
        """
        Posts a buffer for one message of a peer (fi_recv).

        buf       writable C-contiguous buffer, or None for a message of no bytes. Held until completion. A message
                  that is longer is cut: the completion is a failed one (ETRUNC) with len and olen.
        desc      mr.desc of a region that covers buf (required under MR_LOCAL), or None.
        src_addr  with DIRECTED_RECV the sender: what av.insert() returned; ADDR_UNSPEC: any. Ignored without
                  DIRECTED_RECV, and by a connected endpoint.
        context   any object; the completion returns it as op_context, and cancel() finds the receive by it.
        len       number of bytes, if fewer than buf has.

        Messages of one sender match receives in the order in which they were sent.
        Raises Again (the receive queue is full), AccessDenied (buf is read-only), InvalidArgument, BadState,
        NotSupported (no MSG or RECV). Source: fi_msg(3) fi_recv.
        """

    def recvv(self, iov: Sequence[object] | None, desc: object = None, src_addr: int = 0xffffffffffffffff, context: object = None, *, count: int | None = None) -> None:
        """
        As recv, into a list of up to rx_attr.iov_limit buffers, filled in order (fi_recvv).

        iov    writable C-contiguous buffers.
        desc   a descriptor or None for each buffer, as a sequence; one region that covers all buffers; or
               None.
        count  number of buffers to use; None: all.

        Source: fi_msg(3) fi_recvv.
        """

    def recvmsg(self, msg: object, flags: int = 0) -> None:
        """
        A receive with all options: msg is an fi.Msg (fi_recvmsg).

        flags  for this receive alone, in place of the endpoint's: COMPLETION, MORE;
               MULTI_RECV: the one buffer takes messages until less than OPT_MIN_MULTI_RECV is left. The last
               completion of the buffer has MULTI_RECV; buf of each tells where the message lies.
               Where the provider allows them: PEEK, CLAIM, DISCARD, as for trecvmsg.

        Raises BadFlags, and as recv. Source: fi_msg(3) fi_recvmsg.
        """

    def tsend(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, tag: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        As send, with a tag that receives are matched by (fi_tsend).

        tag  a number with the bits of ep_attr.mem_tag_format.

        Raises as send. Source: fi_tagged(3) fi_tsend.
        """

    def tsendv(self, iov: Sequence[object] | None, desc: object = None, dest_addr: int = 0xffffffffffffffff, tag: int = ..., context: object = None, *, count: int | None = None) -> None:
        """As sendv, with a tag (fi_tsendv). Source: fi_tagged(3) fi_tsendv."""

    def tsendmsg(self, msg: object, flags: int = 0) -> None:
        """
        As sendmsg: msg is an fi.MsgTagged (fi_tsendmsg). Source: fi_tagged(3) fi_tsendmsg.
        """

    def tinject(self, buf: object, dest_addr: int = 0xffffffffffffffff, tag: int = ..., *, len: int | None = None) -> None:
        """As inject, with a tag (fi_tinject). Source: fi_tagged(3) fi_tinject."""

    def tsenddata(self, buf: object, desc: object = None, data: int = ..., dest_addr: int = 0xffffffffffffffff, tag: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        As senddata, with a tag (fi_tsenddata). Source: fi_tagged(3) fi_tsenddata.
        """

    def tinjectdata(self, buf: object, data: int, dest_addr: int = 0xffffffffffffffff, tag: int = ..., *, len: int | None = None) -> None:
        """
        As injectdata, with a tag (fi_tinjectdata). Source: fi_tagged(3) fi_tinjectdata.
        """

    def trecv(self, buf: object, desc: object = None, src_addr: int = 0xffffffffffffffff, tag: int = ..., ignore: int = 0, context: object = None, *, len: int | None = None) -> None:
        """
        As recv, of a message whose tag equals tag in the bits that ignore does not have (fi_trecv).

        Raises as recv. Source: fi_tagged(3) fi_trecv.
        """

    def trecvv(self, iov: Sequence[object] | None, desc: object = None, src_addr: int = 0xffffffffffffffff, tag: int = ..., ignore: int = 0, context: object = None, *, count: int | None = None) -> None:
        """
        As recvv, with tag and ignore (fi_trecvv). Source: fi_tagged(3) fi_trecvv.
        """

    def trecvmsg(self, msg: object, flags: int = 0) -> None:
        """
        A tagged receive with all options: msg is an fi.MsgTagged (fi_trecvmsg).

        flags  COMPLETION, MORE, MULTI_RECV as for recvmsg, and
               PEEK: looks for an unexpected message that matches, and takes nothing. The completion has its length,
               tag and data; without a message it is a failed one (ENOMSG). msg_iov is not used.
               PEEK | CLAIM: the message that is found is reserved for the context.
               CLAIM: receives the message that the same context object has claimed.
               PEEK | DISCARD, CLAIM | DISCARD: drops the message that is found, or claimed.

        Raises BadFlags, InvalidArgument (CLAIM with a context that has claimed nothing), and as recv.
        Source: fi_tagged(3) fi_trecvmsg.
        """

    def barrier(self, coll_addr: object = ..., context: object = None, *, flags: int = 0) -> None:
        """
        Completes when all members of a group have called it (fi_barrier).

        coll_addr  a group of this endpoint: its addr, or the group itself (join_collective).
        context    any object; the completion returns it as op_context.
        flags      COMPLETION, where the queue is bound with SELECTIVE_COMPLETION.

        All members make the same calls on a group in the same order. Completions come in that order, to the
        queue bound with TRANSMIT. Raises Again (8 calls of the group are under way, or the queue is full: read the
        queue, retry), BadState (the group is not joined yet, or closed), InvalidArgument (no group of this
        endpoint). A member that is lost is a failed completion. Source: fi_collective(3) fi_barrier.
        """

    def barrier2(self, coll_addr: object = ..., flags: int = 0, context: object = None) -> None:
        """
        As barrier, with flags in front of the context (fi_barrier2).

        Source: fi_collective(3) fi_barrier2.
        """

    def broadcast(self, buf: object, count: int | None = None, desc: object = None, coll_addr: object = ..., root_addr: int = ..., datatype: int | None = None, flags: int = 0, context: object = None) -> None:
        """
        Copies the root's buf into that of every other member (fi_broadcast).

        buf        C-contiguous buffer of up to 32 bytes, writable but for the root. Held until completion.
        count      number of elements; None: all of buf.
        desc       mr.desc of a region that covers buf (required under MR_LOCAL, MR_COLLECTIVE), or None.
        coll_addr  as for barrier.
        root_addr  the root's fi_addr.
        datatype   fi.INT64, fi.DOUBLE ...; None: that of the array buf.
        flags, context   as for barrier.

        Raises as barrier, and InvalidArgument (more than 32 bytes, no such member). Source: fi_collective(3)
        fi_broadcast.
        """

    def reduce(self, buf: object, count: int | None = None, desc: object = None, result: object = None, result_desc: object = None, coll_addr: object = ..., root_addr: int = ..., datatype: int | None = None, op: int = ..., flags: int = 0, context: object = None) -> None:
        """
        As allreduce, with the result at one member only, the root (fi_reduce).

        root_addr  the root's fi_addr; other members may leave result None.

        Source: fi_collective(3) fi_reduce.
        """

    def allreduce(self, buf: object, count: int | None = None, desc: object = None, result: object = None, result_desc: object = None, coll_addr: object = ..., datatype: int | None = None, op: int = ..., flags: int = 0, context: object = None) -> None:
        """
        Combines all members' elements by an operation; every member receives the result (fi_allreduce).

        buf        C-contiguous buffer of up to 32 bytes, copied by the call.
        count      number of elements; None: all of buf.
        desc, result_desc   mr.desc of regions that cover buf and result (required under MR_LOCAL,
                   MR_COLLECTIVE), or None.
        result     writable C-contiguous buffer of as many elements; may be buf. Held until completion.
        coll_addr  as for barrier.
        datatype   fi.INT64, fi.DOUBLE ...; None: that of the array buf.
        op         fi.SUM, fi.MIN ...; Domain.query_collective() knows which pairs exist.
        flags, context   as for barrier. Provider cxi: MORE folds buf into the accumulator result and returns at
                   once, without a group; with cxi.PRE_REDUCED buf is such an accumulator.

        Raises as barrier, and InvalidArgument (no such pair, more than 32 bytes). Overflow, members that disagree,
        and a lost member are failed completions. Source: fi_collective(3) fi_allreduce.
        """

    def set_min_multi_recv(self, bytes: int) -> None:
        """
        OPT_MIN_MULTI_RECV of receives that are posted later: bytes that a buffer for several messages must have
        left to take one more.
        """

    def set_match_mode(self, config: MessageConfig) -> None:
        """
        Where messages are matched, with the sizes of the mode and its request buffers, of an endpoint that is not
        enabled yet; other values of the MessageConfig do not matter. Raises BadState.
        """

    def set_retry_time(self, ns: int) -> None:
        """
        MessageConfig.retry_ns_max of messages that are refused for the first time later.
        """

    def bind_cq(self, cq: CompletionQueueCore, flags: int) -> None: ...

    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...

    def bind_av(self, av: AddressVectorCore) -> None: ...

    def enable_at(self, nic: int, pid: int | None, vnis: Sequence[int] = ()) -> int:
        """
        Claims the address and opens the endpoint. pid None: the NIC chooses a free one. Returns the pid.

        vnis  under FI_AV_AUTH_KEY all VNIs that the endpoint accepts.

        Raises AddressInUse, BadState, FabricError (ENOAV, ENOCQ: no address vector, no completion queue).
        """

    def try_at(self, nic: int, pid: int | None, vnis: Sequence[int] = ()) -> None:
        """
        Raises AddressInUse if enable_at() would find the address taken. Checks nothing else.
        """

    def bind_cm(self, queue: CmQueue, token: int, listens: bool) -> None:
        """
        Passes connection messages for the endpoint to the queue, with the token. listens: requests are accepted.
        """

    def send_cm(self, to: tuple[int, int, int], kind: int, connection: int, data: bytes) -> None:
        """
        Sends a connection message to the endpoint at an address (nic, pid, vni).
        """

    def cm_step(self, kind: int, to: tuple[int, int, int], connection: int, data: bytes) -> None:
        """
        Asks the endpoint at an address (nic, pid, vni) for a connection, accepts its request, or shuts down.
        """

    def cm_take(self, kind: int, what: int, source: tuple[int, int, int], connection: int) -> CmNews:
        """
        Changes the connection as a message of CmQueue.pop() says; what the application hears of the message.
        """

    def cm_look(self) -> tuple[CmState, tuple[int, int, int], int]:
        """
        The connection: its state, the address (nic, pid, vni) of the peer if there is one, and its number.
        """

    def cancel(self, context: object) -> None:
        """
        Cancels operations with this context that have not started (fi_cancel); each completes as canceled.

        Raises FabricError (ENOENT) if there is no such operation: it may have completed just before.
        Source: fi_endpoint(3) fi_cancel.
        """

    def atomic_limit(self, datatype: int, op: int, family: int) -> tuple[int, int]:
        """
        Returns the limit (elements of one call, bytes of one element); (0, size) if the operation does not exist.
        """

    @property
    def address(self) -> tuple[int, int, int]:
        """(nic, pid, vni) of the enabled endpoint."""

    def message_statistics(self) -> dict[str, Any]:
        """Counts of messages: see fi.MessageStatistics."""

    def unreceived(self, max: int) -> tuple[list[tuple[int, int, int, int, int]], int]:
        """
        The oldest messages that no receive has taken: (flags, length, data, tag, fi_addr of the sender) of each,
        untagged ones first; and the number of all.
        """

    def statistics(self) -> dict[str, int]:
        """
        tx_pending: number of operations under way; tx_size: the most at a time; batches: how often the endpoint has
        begun the operations that it held for MORE; fi.EndpointStatistics describes the others.
        """

    def close(self) -> None: ...

def calls() -> list[tuple[str, str, str, str, str]]:
    """
    The data-path calls of endpoints: (name, table, form, kind, params) each, as in cpp/bind/calls.inl.
    """

def select_part(key: object, shape: tuple[int, ...], strides: tuple[int, ...], /) -> tuple[int, tuple[int, ...], tuple[int, ...]] | int:
    """
    What a[key] selects of an array of this shape and these byte strides, as (byte offset, shape, byte strides); or
    the number of the item of the key that is no index. Raises IndexError.
    """

def pieces_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, /) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """
    A selection that has elements as equal pieces of memory: (bytes of a piece, shape, byte strides of their starts).
    """

class Adder:
    """
    add(index, value=1, op='sum'), add(block, op='sum')

    Add to elements, or combine them as `fetch_op` does, each atomically, and return nothing. Needs only "w" access,
    and moves half the bytes of a `fetch_add`.

    index   basic index of one element or several; `...` for all.
    value   a number, or an array that broadcasts to the selection.
    block   in place of index and value: an array of the shape of this array, added element by element:
            `t.add(gradients)`, `t.at[10:20].add(part)`.

    `t.add.at(indices, values)` adds to rows by index, as numpy.add.at. Raises as `fetch_add`.
    """

    def __call__(self, index: Any, value: Any = 1, op: str = "sum") -> None: ...

    def at(self, indices: Any, values: Any = 1, op: str = "sum") -> None:
        """
        Add to rows by index, each element atomically: numpy.add.at. An index that occurs several times counts each time.

        indices   array of integers, negative ones counted from the end; a mask; or a tuple of them, one a dimension.
        values    a number, or an array that broadcasts to the shape of `t[indices]`.
        op        as for `fetch_op`.

        Raises IndexError (out of bounds: nothing is updated), ValueError, TypeError, AccessDenied.
        """

class Elements:
    """
    Access to the elements of another process's array in one call. Subclasses have the methods of the same names with
    an underscore (_get_item, _set_item, _read ...), for what load and store cannot do.
    """

    def __getitem__(self, key: Any, /) -> Any:
        """
        Read a selection: a read-only copy as a NumPy array, or a scalar for one element.

        key   as in NumPy's basic indexing: integers, slices with any step, `...`, `numpy.newaxis`. A single array of
              integers or a mask selects rows, a mask of several dimensions elements, a list of names fields: then the
              copy can be changed. The name of a field: a RemoteArray of the field, as `field`.

        Raises IndexError, and the errors of the class.
        """

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Write a selection. `value` is converted and broadcast as NumPy does. Complete when the call returns."""

    @overload
    def read(self, out: None = None) -> np.ndarray[Any, Any]:
        """
        Read all elements, in one copy.

        out   the destination: a writable C-contiguous array of the same shape and dtype (NumPy, torch ...), or
              a writable buffer of as many bytes; None for a new NumPy array.

        Returns the new array, or `out`. Raises ValueError (shape), TypeError (dtype), AccessDenied (out is
        read-only).
        """
    @overload
    def read(self, out: _Out) -> _Out: ...

    def write(self, value: Any) -> None:
        """
        Write all elements, in one copy if `value` is a C-contiguous array of the same dtype.

        value   an array of the same shape (NumPy, torch, a list ...), of a dtype that NumPy converts safely.

        `t[...] = value` also broadcasts and converts. Raises ValueError (shape), TypeError (dtype).
        """

    def fill(self, value: Any) -> None:
        """
        Set every element to a value.

        value   one value, converted as NumPy's assignment does.

        Raises ValueError (an array), TypeError (dtype), and the errors of the class.
        """

    @overload
    def take(self, indices: Any, axis: int = 0, out: None = None) -> np.ndarray[Any, Any]:
        """
        Rows by index, in one vectored operation: `numpy.asarray(t).take(indices, axis)`.

        indices   array of integers of any shape, negative ones counted from the end; or a mask along the axis.
        axis      of the array; the first (NumPy's own default is the flattened array).
        out       the destination, as for `read`.

        Returns an array of shape `shape[:axis] + indices.shape + shape[axis+1:]`, or `out`.
        Raises IndexError (out of bounds: nothing is read), TypeError.
        """
    @overload
    def take(self, indices: Any, axis: int, out: _Out) -> _Out: ...
    @overload
    def take(self, indices: Any, axis: int = 0, *, out: _Out) -> _Out: ...

    def put(self, indices: Any, values: Any, axis: int = 0) -> None:
        """
        Write rows by index, in one vectored operation: `a[indices] = values` along an axis.

        indices, axis   as for `take`. A row with several values gets the last one.
        values          converted and broadcast to the shape that `take` returns.

        Raises IndexError (out of bounds: nothing is written), ValueError, TypeError.
        """

    def _lay(self, base: int, key: int | None, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], /) -> None:
        """
        The selection: address of the first element in the owner's region (bytes), the region's key (None: no region),
        dtype, shape, byte strides. Ends the effect of _link().
        """

    def _link(self, ep: EndpointCore, peer: int, /) -> None:
        """The way to the owner: an enabled endpoint, and the owner's fi_addr."""

    def _adopt(self, other: Elements, /) -> None:
        """
        The selection of another array, and the way to its owner, in place of this array's.
        """

    def _join(self, other: Elements, /) -> None:
        """The way to the owner as another selection has it."""

    def fetch_add(self, index: Any, value: Any = 1) -> Any:
        """
        Add to elements, each atomically, and return their previous values.

        index   basic index of one element or several; `...` for all.
        value   a number, or an array that broadcasts to the selection.

        Returns a scalar for one element, otherwise an array. Atomic with respect to all atomic calls, of any
        process. Raises TypeError (a dtype without atomics; a value of another kind), AccessDenied (not shared
        "rw").
        """

    def compare_swap(self, index: Any, expected: Any, value: Any) -> Any:
        """
        Set elements that equal `expected` to `value`, each atomically, and return the previous values of all.

        Elements whose returned value equals `expected` were set: `if t.compare_swap(3, 0, pid) == 0: ...mine...`.
        Arguments and errors as `fetch_add`.
        """

    def swap(self, index: Any, value: Any) -> Any:
        """
        Set elements, each atomically, and return their previous values. Arguments and errors as `fetch_add`.
        """

    def fetch_op(self, index: Any, op: str, value: Any) -> Any:
        """
        Combine elements with a value, each atomically, and return their previous values.

        op   "sum", "prod", "min", "max", "and", "or", "xor" (bits), "replace".

        Other arguments and errors as `fetch_add`; InvalidArgument for another op.
        """

    def _scatter(self, op: int, starts: Any, block: int, operand: Any, /) -> int:
        """
        Updates the pieces of `block` bytes at these addresses, each atomically, in order; returns how many are done.
        """

    @property
    def add(self) -> Adder:
        """
        add(index, value=1, op='sum'), add(block, op='sum')

        Add to elements, or combine them as `fetch_op` does, each atomically, and return nothing. Needs only "w" access,
        and moves half the bytes of a `fetch_add`.

        index   basic index of one element or several; `...` for all.
        value   a number, or an array that broadcasts to the selection.
        block   in place of index and value: an array of the shape of this array, added element by element:
                `t.add(gradients)`, `t.at[10:20].add(part)`.

        `t.add.at(indices, values)` adds to rows by index, as numpy.add.at. Raises as `fetch_add`.
        """

def set_copy_type(type: type) -> None:
    """
    The subclass of numpy.ndarray of what t[key] returns, where NumPy would return a view. Kept forever.
    """

class GroupCore:
    """The NIC's side of a collective group: one member."""

    def __init__(self, ep: EndpointCore, members: Sequence[tuple[int, int, int]], member: int, names: Sequence[int], name: int, key: int, join_radix: int, radix: int, block: int, asks: bool) -> None:
        """
        Begins to join a group of the endpoints at the addresses `members` (nic, pid, vni), in an order that all
        members use. The endpoint's event queue learns how it goes: CmKind.group_agreed, group_joined,
        group_failed, with `addr` as the connection.

        member       this one's place in members.
        names, name  how calls name the members, and this one (root_addr).
        key          the same for all members of this join, another for other sets.
        join_radix   children of a member in the tree of the join, the same for all members.
        radix, block the group's own tree, which member 0 decides: children of a member within a block of
                     `block` members that follow each other (0: all).
        asks         of member 0: the join waits for supply().

        Raises BadState (the endpoint is not enabled), InvalidArgument.
        """

    @property
    def addr(self) -> int:
        """The number that calls take."""

    def supply(self, multicast: int, root: int, error: int) -> None:
        """
        Member 0, after group_agreed: the multicast address and its root's member, or every member's error.
        """

    def look(self) -> dict[str, Any]:
        """The group as this member sees it."""

    def close(self) -> None:
        """
        Leaves the group: its other members' reductions fail from now on, and this one's are canceled.
        """

def probe_memcpy(dst: object, src: object, rounds: int, piece: int = 0, stride: int = 0) -> float:
    """
    Nanoseconds that memcpy takes between these buffers, on average.

    piece, stride  if given, one copy of `piece` bytes every `stride` bytes; the result is the time for all of them.
    """

def probe_fetch_add(word: object, rounds: int) -> float:
    """
    Nanoseconds that a bare atomic fetch-and-add of this word takes, on average.
    """

def memory_bytes() -> int:
    """The memory and the swap space of this machine, in bytes."""

def use_huge_pages(address: int, length: int) -> bool:
    """
    Puts huge pages behind the whole blocks of 2 MiB of shared memory. False: the kernel refuses.
    """

def probe_cma_write(pid: int, remote: int, src: object, rounds: int) -> float:
    """
    Nanoseconds that a bare process_vm_writev of src to an address of process pid takes; -1 when the kernel refuses.
    """

def probe_cma_read(pid: int, remote: int, dst: object, rounds: int) -> float:
    """
    Nanoseconds that a bare process_vm_readv into dst takes; -1 when the kernel refuses.
    """

def probe_pingpong(word: object, rounds: int, first: bool, timeout: float = 10.0) -> float:
    """
    Half a round trip, in nanoseconds, of bare stores to one shared word between two processes; -1 on timeout.
    Both sides call it, one with first=True, on the same word, which starts as 0. The first round is not counted.
    """

def probe_socket_pingpong(fd: int, rounds: int, size: int, first: bool, timeout: float = 10.0) -> float:
    """
    Nanoseconds of half a round trip of `size` bytes over a bare socket that both sides poll; -1 at the timeout.
    """

def probe_socket_stream(fd: int, buffer: object, rounds: int, send: bool, timeout: float = 10.0) -> float:
    """
    Nanoseconds to send (or receive) a buffer `rounds` times over a bare socket; -1 at the timeout.
    """

def poll_u64(obj: object, offset: int, value: int, timeout: float) -> bool:
    """
    True once the 8-byte word at offset has this value; False after timeout seconds. Spins, then yields.
    """

def numpy_memory_handler(nic: Nic) -> object:
    """
    A NumPy memory handler (NEP 49) that allocates in the NIC's segments. Each array keeps the handler that made it.
    """

def numpy_memory_live(handler: object) -> int:
    """
    The number of live arrays that a handler of numpy_memory_handler() has made.
    """

def set_numpy_memory_handler(handler: object | None) -> object:
    """
    Sets NumPy's memory handler in this context (None: NumPy's default). Returns the previous handler.
    """

class CacheRef:
    """
    The result of a look-up in the registration cache. The mapping is held until release().
    """

    def __init__(self, nic: Nic, address: int, length: int, iface: int = 0, device: int = 0, resolve: Callable[[int, int], dict[str, int]] | None = None) -> None:
        """
        Looks up the mapping that contains the range: in the cache, or resolved now.

        resolve  called as resolve(address, length) on a miss; returns the fields of the mapping. None: the NIC's own resolver.
        """

    @property
    def address(self) -> int:
        """The first address of the mapping."""

    @property
    def length(self) -> int:
        """Length of the mapping in bytes."""

    @property
    def iface(self) -> int: ...

    @property
    def device(self) -> int: ...

    @property
    def buffer_id(self) -> int:
        """
        Identity of the allocation or file behind the mapping; 0 if there is none.
        """

    @property
    def user(self) -> int:
        """For the resolver's own use; of a file the offset in the file."""

    @property
    def host_access(self) -> bool:
        """True if the processor can read the memory."""

    @property
    def persistent(self) -> bool:
        """True for a shared mapping of a file."""

    @property
    def cached(self) -> bool:
        """True if the mapping is in the cache."""

    @property
    def stale(self) -> bool:
        """
        True if the memory has changed since the look-up. Only meaningful if `cached`.
        """

    @property
    def released(self) -> bool: ...

    def release(self) -> None: ...

def cache_notify(nic: Nic, iface: int, address: int, length: int) -> int:
    """
    Reports that memory has changed. Returns the number of entries removed.
    """

def cache_flush(nic: Nic, lru_only: bool) -> int:
    """
    Removes entries: with lru_only those that nobody holds, otherwise all. Returns the number of entries removed.
    """

def cache_set_monitor(nic: Nic, iface: int, monitor: object | None, name: str) -> None:
    """
    Sets the application's monitor of an interface's memory; None: back to the NIC's own monitor, if there is one.
    """

def cache_state(nic: Nic) -> dict[str, Any]:
    """
    Returns counts, limits, and the state of the monitor of system memory: its name, whether it is watching,
    whether it works here, and if not, why.
    """

def probe_monitor(name: str) -> tuple[str, bool, str]:
    """
    Returns (name, whether it works here, why not) of a monitor. The empty name is this machine's default.
    """

def first_not_persistent(address: int, length: int) -> int | None:
    """
    Returns the first address of the range that is not in a shared mapping of a file; None if all of it is.
    """

def first_not_writable(address: int, length: int) -> int | None:
    """
    Returns the first address of the range that is not mapped for writing; None if all of it is.
    """

def set_ucs_error(f: Callable[[int | None, Any], BaseException]) -> None:
    """
    Registers the function (status, message) or (None, exception) -> exception that makes weft.ucp's errors.
    """

def set_ucp_region(region: type, params: type) -> None:
    """Registers the classes of memory handles and of mem_map's parameters."""

def region_exporters(region: MemoryRegionCore) -> list[Any]:
    """Returns the objects that keep a region's memory valid."""

def populate(address: int, length: int, writable: bool = True) -> bool:
    """
    Allocates the pages of memory before they are touched. False if the system cannot.
    """

class UcpContextCore(DomainCore):
    """The NIC's side of a context."""

    def __init__(self, nic: Nic, access: int) -> None: ...

    def mem_map(self, params: object = None, *, address: int | None = None, length: int | None = None, flags: int | None = None, prot: int | None = None, memory_type: int | None = None, exported_memh_buffer: object = None, allocate: bool = False, nonblock: bool = False, symmetric: bool = False) -> Any:
        """
        Map memory, or allocate and map it (ucp_mem_map).

            context.mem_map(array)
            context.mem_map(length=1 << 20, allocate=True)
            context.mem_map(ucp.MemMapParams(field_mask=..., address=..., length=...))

        params      a `MemMapParams`, as in C; or a buffer (array, bytearray ...), which is held until it is
                    unmapped; or None.
        address, length, flags, prot, memory_type, exported_memh_buffer   as the fields of params; an argument that
                    is given sets its bit of field_mask.
        allocate, nonblock, symmetric   MEM_MAP_ALLOCATE, NONBLOCK, SYMMETRIC_RKEY.

        The application may unmap memory that it gave by a bare address: an access is then an error. Memory that Weft
        allocates is whole pages and reads as zero, and peers access it by load and store. Without NONBLOCK its pages
        are allocated when the call returns. With FIXED the memory replaces what is mapped at the address, unless
        that holds data.

        Returns a `MemHandle`. Raises UcsError: INVALID_PARAM (a combination that the matrix excludes; memory past
        the end of the address space), NO_MEMORY, UNREACHABLE (an exported handle of another host, or of a process
        that is gone).
        Source: UCP, "ucp_mem_map", "Matrix of behavior".
        """

    def take_key(self) -> int:
        """Returns a key that no region of this context has ever had."""

def set_ucp_request(type: type, done: object) -> None:
    """
    Registers the class of requests, and the request that operations done in place return.
    """

def set_ucp_waker(f: Callable[[Any], None]) -> None:
    """
    Registers the function (future) -> None that ends the wait of a task whose request has ended.
    """

class UcpRequestCore:
    """The NIC's side of a request."""

    def __init__(self) -> None: ...

    def __bool__(self) -> bool: ...

    @property
    def status_code(self) -> int:
        """
        The ucs_status_t. Reading a failure here reports it: later flushes do not repeat it.
        """

    @property
    def ended(self) -> bool: ...

    @property
    def peeked(self) -> int:
        """As status_code, for texts: reading a failure here does not report it."""

    @property
    def text(self) -> str: ...

    @property
    def worker(self) -> Any: ...

    @property
    def ep(self) -> Any: ...

    @property
    def freed(self) -> bool: ...

    @freed.setter
    def freed(self, arg: bool, /) -> None: ...

    def add_waiter(self, future: Any) -> bool:
        """
        Makes the waker be called with the future when the request ends. False if the request has already ended.
        """

    def drop_waiter(self, future: Any) -> None: ...

class UcpWorkerCore:
    """The NIC's side of a worker."""

    def __init__(self, domain: DomainCore, cq: CompletionQueueCore, av: AddressVectorCore, ep: EndpointCore, features: int) -> None: ...

    def progress(self) -> int:
        """
        Advances operations and calls callbacks (ucp_worker_progress). Returns how much was done; 0: nothing.

        Raises the first exception of a callback, after all due callbacks were called.
        Source: UCP, ucp_worker_progress.
        """

    def flush_nbx(self, param: object = None, *, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, flags: int = 0) -> Any:
        """
        As Endpoint.flush_nbx, for all endpoints of the worker (ucp_worker_flush_nbx).

        Source: UCP, ucp_worker_flush_nbx.
        """

    def wait_core(self, timeout: float | None, request: Any = None, /) -> bool:
        """
        Waits until progress() has something to do, the request has ended, or signal() was called: True. False at the timeout.
        """

    def call_due(self) -> None:
        """
        Calls the callbacks that are due. Raises the first exception of a callback.
        """

    def fence(self) -> None: ...

    def arm_core(self) -> bool:
        """
        False if progress() has work that is not an entry of the queue, or if signal() was called.
        """

    def under_way(self) -> int:
        """The number of operations under way."""

    def cancel_flush(self, request: Any) -> bool: ...

    def begin_close(self) -> None:
        """
        From here on operations that end as canceled count as failures: the application did not cancel them.
        """

    def shut(self) -> None: ...

class UcpEndpointCore:
    """The NIC's side of a UCP endpoint: its data path."""

    def __init__(self, worker: UcpWorkerCore, dest: int, watched: bool) -> None: ...

    def put_nbx(self, buffer: object, remote_addr: int, rkey: UcpRkeyCore | None, param: object = None, *, count: int | None = None, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, memh: object = None, flags: int = 0, datatype: int | None = None) -> Any:
        """
        Copies a local buffer to a peer's memory (ucp_put_nbx).

        buffer       C-contiguous bytes of this process: any buffer, a slice of a memory handle (fastest), or
                     (address, length). Under DATATYPE_IOV a list of these. Do not change it until the request is
                     done.
        remote_addr  virtual address in the peer's process.
        rkey         what rkey_unpack() of this endpoint returned.
        param        a RequestParam; a field counts if its bit of op_attr_mask is set.
        count        number of elements of the datatype, of bytes without one; None: all of the buffer.
        cb, user_data, memh, flags, datatype   as param's fields, over which they have precedence; flags:
                                               OP_ATTR_FLAG_*.

        Returns a request, which is false as a truth value if the operation was done in place (C's NULL; cb is not
        called). When the request is done, the buffer may be used again; only a flush makes sure that the peer
        sees the bytes.

        Raises UcsError: INVALID_PARAM (closed or foreign key, no such feature, memh without the right),
        NO_RESOURCE (FORCE_IMM_CMPL). If the owner's memory table refuses the operation, the request ends with
        IO_ERROR. Waits while the transmit queue is full. Source: UCP, ucp_put_nbx.
        """

    def get_nbx(self, buffer: object, remote_addr: int, rkey: UcpRkeyCore | None, param: object = None, *, count: int | None = None, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, memh: object = None, flags: int = 0, datatype: int | None = None) -> Any:
        """
        Copies a peer's memory into a local, writable buffer (ucp_get_nbx). Arguments and errors as put_nbx.

        When the request is done, the buffer has the bytes. Source: UCP, ucp_get_nbx.
        """

    def atomic_op_nbx(self, opcode: int, buffer: object, remote_addr: int, rkey: UcpRkeyCore, param: object = None, *, count: int | None = None, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, memh: object = None, flags: int = 0, datatype: int | None = None, reply_buffer: object = None) -> Any:
        """
        Updates one element of a peer's memory atomically (ucp_atomic_op_nbx).

        opcode        ATOMIC_OP_ADD, SWAP, CSWAP, AND, OR or XOR.
        buffer        the operand: a buffer of 4 or 8 bytes, or an int. For CSWAP the expected value.
        remote_addr   a multiple of the element's size.
        datatype      dt_make_contig(4) or dt_make_contig(8); without it and param, the buffer's size.
        reply_buffer  receives the old value. Required by SWAP and CSWAP, which takes the new value from
                      it.
        count         1.   Others as put_nbx.

        Without a reply_buffer the request is done at once (NO_IMM_CMPL: when the peer has the operation),
        and the next flush reports a failure. Raises UcsError (INVALID_PARAM). Source: UCP,
        ucp_atomic_op_nbx.
        """

    def flush_nbx(self, param: object = None, *, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, flags: int = 0) -> Any:
        """
        Completes when every operation posted so far on this endpoint is done at both ends (ucp_ep_flush_nbx).

        Also reports a failure that no request has reported. Source: UCP, ucp_ep_flush_nbx.
        """

    @property
    def dest(self) -> int: ...

    @property
    def failed_status(self) -> int: ...

    @property
    def why(self) -> str: ...

    def under_way(self) -> int: ...

    def begin_close(self) -> None:
        """From here on the endpoint takes no operations."""

    def tell_failure(self) -> None:
        """Raises UcsError for the first unreported failure."""

    def shut(self) -> None: ...

class UcpRkeyCore:
    """The NIC's side of a remote key."""

    def __init__(self, ep: UcpEndpointCore, key: int, dest: int, address: int, length: int, bias: int, symmetric: bool) -> None: ...

    @property
    def key(self) -> int: ...

    @property
    def dest(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def bias(self) -> int: ...

    @property
    def symmetric(self) -> bool: ...

    @property
    def destroyed(self) -> bool: ...

    @property
    def in_flight(self) -> int: ...

    def forget(self) -> None: ...

class PeerMemory:
    """
    Memory of a peer's process, mapped in this process: a buffer. While this object exists,
    the memory stays mapped, and the peer does not reuse its place for another region.
    """

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def current(self) -> bool:
        """False once the peer has closed the region, or is gone."""

    @property
    def locked(self) -> bool:
        """
        True if the kernel keeps the peer from reusing the place for as long as any process maps this memory: also
        after a fork, and without the connection.
        """

def peer_memory(ep: EndpointCore, dest: int, key: int, addr: int, length: int, writable: bool, own: bool = False) -> PeerMemory | int | None:
    """
    Returns a peer's memory as this process has it mapped; None if loads and stores do not reach the memory; the
    number of a Status if the access is refused (16, again: the connection or the mapping is still being made).
    own   a mapping of its own, which ends with the object: read-only pages unless `writable`, and a lock of the
          kernel that keeps the place from being reused (mem/lease.hpp). length > 0; memory of segments only.
    """

class SyncCore:
    """An object of cpp/sync; see weft.share."""

    def __init__(self) -> None: ...

    def _ask(self, array: object, who: tuple[int, int, int], op: int, flags: int, a: int, b: int, data: bytes, room: int, timeout: float | None, patience: float | None, state: int, leaves: bool, also: Callable[[], bool] | None) -> tuple[int, int, int, int, int, Any]:
        """
        One call that the NIC of the array's owner does. who: (pid, start, token). Returns as _wait_for; the outcome 102
        means that no lane is idle, 103 that the lane has an error, 104 that no answer came; the lane is then the last.
        """

    def _wait_for(self, op: int, a: int = 0, b: int = 0, data: object = None, timeout: float | None = None) -> tuple[int, int, int, int, int, Any]:
        """
        One call on the mapped object: op is a number of sync::Op. Waits at most timeout seconds (None: no
        limit). Returns (outcome, value, value2, value3, state, bytes or None).
        """

class LockCore(SyncCore):
    """See weft.Lock."""

    def __init__(self) -> None: ...

    def acquire(self, timeout: float | None = None, *, block: bool | None = None, blocking: bool | None = None) -> bool:
        """
        Wait until this process has the lock.

        timeout   seconds; None: no limit.
        block, blocking   as multiprocessing's and threading's: True or False, which may also come first, then timeout.

        Returns True. Raises TimedOut, which names the holder, or with block or blocking returns False; OwnerDied
        (nothing is taken).
        """

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Returns whether it was. Raises OwnerDied."""

    def recover(self, timeout: float | None = None) -> bool:
        """
        Acquire the lock, also after the death of its holder.

        timeout   seconds; None: no limit.

        Returns True if the last holder died, and nobody has recovered the lock since: what it protects may be
        half-changed. False: as acquire(). Raises TimedOut.
        """

    def release(self) -> None:
        """
        Release the lock. Raises NotPermitted if another process holds it, or nobody does.
        """

    def __enter__(self) -> Any:
        """Acquires."""

    def __exit__(self, *error: object) -> None:
        """Releases."""

class SemaphoreCore(SyncCore):
    """See weft.Semaphore."""

    def __init__(self) -> None: ...

    def acquire(self, timeout: float | None = None, *, block: bool | None = None, blocking: bool | None = None) -> bool:
        """
        Wait for a permit, and take it.

        timeout   seconds; None: no limit.
        block, blocking   see Lock.acquire.

        Returns True. Raises TimedOut, or with block or blocking returns False; NoSpace
        (too many processes have permits).
        """

    def try_acquire(self) -> bool:
        """Take a permit if there is one. Returns whether it did."""

    def release(self, n: int = 1) -> None:
        """Give n permits back."""

    def __enter__(self) -> Any:
        """Acquires."""

    def __exit__(self, *error: object) -> None:
        """Releases."""

class EventCore(SyncCore):
    """See weft.Event."""

    def __init__(self) -> None: ...

    def is_set(self) -> bool:
        """Whether the event is set."""

    def set(self) -> None:
        """Set the event, and wake all who wait for it."""

    def clear(self) -> None:
        """Clear the event."""

    def wait(self, timeout: float | None = None) -> bool:
        """
        Wait until the event is set.

        timeout   seconds; None: no limit.

        Returns True. Raises TimedOut.
        """

class BarrierCore(SyncCore):
    """See weft.Barrier."""

    def __init__(self) -> None: ...

class QueueCore(SyncCore):
    """See weft.Queue."""

    def __init__(self) -> None: ...

    def _take_kept(self) -> tuple[int, bytes] | None:
        """The first item that was got and not delivered: (type, bytes), or None."""

    def _keep(self, type: int, bytes: bytes) -> None:
        """Keeps an item for the next get() of this handle."""

    def put(self, item: Any, timeout: float | None = None, *, block: bool | None = None) -> None:
        """
        Append an item; waits while the queue is full.

        timeout   seconds; None: no limit.
        block     as multiprocessing's: False is timeout=0. It may also come first, then timeout.

        Raises TimedOut (it is a queue.Full, too), MessageTooLong (more bytes than a slot has), TypeError and ValueError (not an item
        of the queue's dtype and shape).
        """

    def get(self, timeout: float | None = None, out: Any = None, *, block: bool | None = None) -> Any:
        """
        Take the first item; waits while the queue is empty.

        timeout   seconds; None: no limit.
        out       where to put an array: writable, C-contiguous, of the queue's dtype and shape.
        block     as in put.

        Raises TimedOut, which is a queue.Empty, too.
        """

    def put_nowait(self, item: Any) -> None:
        """put(item, timeout=0)."""

    def get_nowait(self) -> Any:
        """get(timeout=0)."""

def sync_bytes(kind: int, n: int, item: int, form_bytes: int = 0) -> int | None:
    """Bytes of an object; None for numbers that no object has."""

def sync_create(memory: object, kind: int, n: int, item: int, pid_namespace: int, form: bytes = ...) -> None:
    """
    Makes an object in zeroed memory, which is aligned to 64 bytes. form: of a queue, a text that says what its
    records are.
    """

def sync_close(memory: object) -> None:
    """
    Ends an object of this process: threads that wait for it, of any process, are woken.
    """

def post_call(ep: EndpointCore, dest: int, addr: int, key: int, request: object, answer: object, context: object | None) -> None:
    """
    Posts a call on an object in a peer's memory (wire/call.hpp), which the peer's NIC executes. Completes when the
    answer has come. Raises Again, MessageTooLong, BadState.
    """

class OfiInfo:
    """A struct fi_info of the library."""

    def fields(self) -> dict[str, Any]:
        """Its numbers, texts and addresses; those of its parts in dictionaries."""

def ofi_info(fields: dict[str, Any], base: OfiInfo | None = None) -> OfiInfo:
    """
    A copy of `base`, or an empty fi_info, with these fields, as OfiInfo.fields() has them.
    """

def ofi_getinfo(version: int, node: str | None, service: str | None, flags: int, hints: OfiInfo | None) -> list[OfiInfo]:
    """
    fi_getinfo of the library. Raises its error: NoData if nothing meets the hints.
    """

def ofi_load(path: str) -> str | None:
    """
    Opens a libfabric, unless one is open. Returns the reason if there is none.
    """

def ofi_library() -> tuple[str, int] | None:
    """(path, version) of the open libfabric, or None."""

def ofi_strerror(errno: int) -> str:
    """fi_strerror of the library."""

def ofi_quirks() -> list[str]:
    """
    The names of the quirks that the extension guards, in the order of bits.
    """

class OfiFabricCore:
    """A fabric of a real libfabric."""

    def __init__(self, info: OfiInfo) -> None: ...

    def close(self) -> None: ...

    @property
    def in_use(self) -> bool:
        """True while an object that uses this one exists."""

    def trywait(self, fids: Sequence[int]) -> bool:
        """
        fi_trywait: True if it is safe to sleep on the descriptors of these open objects, given by `fid`.
        """

class OfiDomainCore:
    """A domain of a real libfabric."""

    def __init__(self, fabric: OfiFabricCore, info: OfiInfo, quirks: int, group_bytes: int, group_setting: str) -> None:
        """
        quirks: bits in the order of ofi_quirks(). group_bytes: the most of a collective, and the provider's setting of that.
        """

    def close_core(self) -> None: ...

    @property
    def in_use(self) -> bool:
        """True while an object that uses this one exists."""

    def bind_eq(self, eq: OfiEventQueueCore, flags: int) -> None: ...

    def query_atomic_core(self, datatype: int, op: int, flags: int) -> tuple[int, int]:
        """(count, size) of fi_query_atomic."""

    def query_collective_core(self, coll: int, op: int, datatype: int, flags: int) -> tuple[int, int, int, int]:
        """(count, size, max_members, mode) of fi_query_collective."""

    def map_raw_core(self, base_addr: int, raw_key: bytes, flags: int) -> int: ...

    def unmap_key_core(self, key: int) -> None: ...

    @property
    def soft_groups(self) -> bool:
        """
        True if collectives are libfabric's own, made of messages; False if the provider has its own.
        """

    @property
    def thread_safe(self) -> bool: ...

class OfiAddressVectorCore:
    """An address vector of a real libfabric."""

    def __init__(self, domain: OfiDomainCore, type: int, rx_ctx_bits: int, count: int, ep_per_node: int, name: str | None, flags: int) -> None: ...

    def close_core(self) -> None: ...

    @property
    def in_use(self) -> bool:
        """True while an object that uses this one exists."""

    def insert_one(self, address: bytes, flags: int, given: int | None = None) -> int:
        """
        fi_av_insert of one address. given: fi_addr as an argument, under FI_AV_USER_ID and FI_AUTH_KEY.
        """

    def insert_event(self, addresses: Sequence[bytes], flags: int, number: int) -> tuple[int, list[int]]:
        """
        fi_av_insert of addresses of one size, which is reported to the event queue.
        """

    def bind_eq(self, eq: OfiEventQueueCore, flags: int) -> None: ...

    def insert_auth_key_core(self, key: bytes, flags: int) -> int: ...

    def lookup_auth_key_core(self, fi_addr: int) -> bytes: ...

    def insertsvc_core(self, node: str | None, service: str | None, flags: int) -> int: ...

    def insertsym_core(self, node: str, nodecnt: int, service: str, svccnt: int, flags: int) -> list[int]: ...

    def straddr_core(self, address: bytes) -> str: ...

    def set_user_id_core(self, fi_addr: int, user_id: int, flags: int) -> None: ...

class OfiEventQueueCore:
    """An event queue of a real libfabric."""

    def __init__(self, fabric: OfiFabricCore, size: int, flags: int, wait_obj: int) -> None: ...

    @property
    def fid(self) -> int: ...

    @property
    def fd(self) -> int:
        """A descriptor that is readable while events wait (wait_obj FD), or -1."""

    @property
    def in_use(self) -> bool:
        """True while an object of a real libfabric that uses this one exists."""

    def close_core(self) -> None: ...

    def read_core(self, flags: int, wait_ms: int) -> Any: ...

    def readerr_core(self, flags: int) -> Any: ...

    def write_core(self, event: int, number: int, flags: int) -> None: ...

    def strerror_core(self, prov_errno: int, err_data: bytes) -> str: ...

class OfiEndpointCore:
    """An endpoint of a real libfabric: its data path."""

    @overload
    def __init__(self, domain: OfiDomainCore, info: OfiInfo) -> None: ...

    @overload
    def __init__(self, original: OfiEndpointCore, flags: int) -> None: ...

    def read(self, buf: object, desc: object = None, src_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.read, through the library (fi_read)."""

    def readv(self, iov: Sequence[object], desc: object = None, src_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.readv, through the library (fi_readv)."""

    def readmsg(self, msg: object, flags: int = 0) -> None:
        """As fi.Endpoint.readmsg, through the library (fi_readmsg)."""

    def write(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.write, through the library (fi_write)."""

    def writev(self, iov: Sequence[object], desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.writev, through the library (fi_writev)."""

    def writemsg(self, msg: object, flags: int = 0) -> None:
        """As fi.Endpoint.writemsg, through the library (fi_writemsg)."""

    def inject_write(self, buf: object, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., *, len: int | None = None) -> None:
        """As fi.Endpoint.inject_write, through the library (fi_inject_write)."""

    def writedata(self, buf: object, desc: object = None, data: int = ..., dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.writedata, through the library (fi_writedata)."""

    def inject_writedata(self, buf: object, data: int, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., *, len: int | None = None) -> None:
        """
        As fi.Endpoint.inject_writedata, through the library (fi_inject_writedata).
        """

    def atomic(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.atomic, through the library (fi_atomic)."""

    def atomicv(self, iov: Sequence[object], desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """As fi.Endpoint.atomicv, through the library (fi_atomicv)."""

    def atomicmsg(self, msg: object, flags: int = 0) -> None:
        """As fi.Endpoint.atomicmsg, through the library (fi_atomicmsg)."""

    def inject_atomic(self, buf: object, dest_addr: int, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., *, count: int | None = None) -> None:
        """As fi.Endpoint.inject_atomic, through the library (fi_inject_atomic)."""

    def fetch_atomic(self, buf: object, desc: object = None, result: object = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.fetch_atomic, through the library (fi_fetch_atomic)."""

    def fetch_atomicv(self, iov: Sequence[object] | None, desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """As fi.Endpoint.fetch_atomicv, through the library (fi_fetch_atomicv)."""

    def fetch_atomicmsg(self, msg: object, resultv: Sequence[object], result_desc: object = None, flags: int = 0) -> None:
        """
        As fi.Endpoint.fetch_atomicmsg, through the library (fi_fetch_atomicmsg).
        """

    def compare_atomic(self, buf: object, desc: object = None, compare: object = ..., compare_desc: object = None, result: object = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        As fi.Endpoint.compare_atomic, through the library (fi_compare_atomic).
        """

    def compare_atomicv(self, iov: Sequence[object], desc: object = None, comparev: Sequence[object] = ..., compare_desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """
        As fi.Endpoint.compare_atomicv, through the library (fi_compare_atomicv).
        """

    def compare_atomicmsg(self, msg: object, comparev: Sequence[object], compare_desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, flags: int = 0) -> None:
        """
        As fi.Endpoint.compare_atomicmsg, through the library (fi_compare_atomicmsg).
        """

    def send(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.send, through the library (fi_send)."""

    def sendv(self, iov: Sequence[object] | None, desc: object = None, dest_addr: int = 0xffffffffffffffff, context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.sendv, through the library (fi_sendv)."""

    def sendmsg(self, msg: object, flags: int = 0) -> None:
        """As fi.Endpoint.sendmsg, through the library (fi_sendmsg)."""

    def inject(self, buf: object, dest_addr: int = 0xffffffffffffffff, *, len: int | None = None) -> None:
        """As fi.Endpoint.inject, through the library (fi_inject)."""

    def senddata(self, buf: object, desc: object = None, data: int = ..., dest_addr: int = 0xffffffffffffffff, context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.senddata, through the library (fi_senddata)."""

    def injectdata(self, buf: object, data: int, dest_addr: int = 0xffffffffffffffff, *, len: int | None = None) -> None:
        """As fi.Endpoint.injectdata, through the library (fi_injectdata)."""

    def recv(self, buf: object, desc: object = None, src_addr: int = 0xffffffffffffffff, context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.recv, through the library (fi_recv)."""

    def recvv(self, iov: Sequence[object] | None, desc: object = None, src_addr: int = 0xffffffffffffffff, context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.recvv, through the library (fi_recvv)."""

    def recvmsg(self, msg: object, flags: int = 0) -> None:
        """As fi.Endpoint.recvmsg, through the library (fi_recvmsg)."""

    def tsend(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, tag: int = ..., context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.tsend, through the library (fi_tsend)."""

    def tsendv(self, iov: Sequence[object] | None, desc: object = None, dest_addr: int = 0xffffffffffffffff, tag: int = ..., context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.tsendv, through the library (fi_tsendv)."""

    def tsendmsg(self, msg: object, flags: int = 0) -> None:
        """As fi.Endpoint.tsendmsg, through the library (fi_tsendmsg)."""

    def tinject(self, buf: object, dest_addr: int = 0xffffffffffffffff, tag: int = ..., *, len: int | None = None) -> None:
        """As fi.Endpoint.tinject, through the library (fi_tinject)."""

    def tsenddata(self, buf: object, desc: object = None, data: int = ..., dest_addr: int = 0xffffffffffffffff, tag: int = ..., context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.tsenddata, through the library (fi_tsenddata)."""

    def tinjectdata(self, buf: object, data: int, dest_addr: int = 0xffffffffffffffff, tag: int = ..., *, len: int | None = None) -> None:
        """As fi.Endpoint.tinjectdata, through the library (fi_tinjectdata)."""

    def trecv(self, buf: object, desc: object = None, src_addr: int = 0xffffffffffffffff, tag: int = ..., ignore: int = 0, context: object = None, *, len: int | None = None) -> None:
        """As fi.Endpoint.trecv, through the library (fi_trecv)."""

    def trecvv(self, iov: Sequence[object] | None, desc: object = None, src_addr: int = 0xffffffffffffffff, tag: int = ..., ignore: int = 0, context: object = None, *, count: int | None = None) -> None:
        """As fi.Endpoint.trecvv, through the library (fi_trecvv)."""

    def trecvmsg(self, msg: object, flags: int = 0) -> None:
        """As fi.Endpoint.trecvmsg, through the library (fi_trecvmsg)."""

    def barrier(self, coll_addr: object = ..., context: object = None, *, flags: int = 0) -> None:
        """As fi.Endpoint.barrier, through the library (fi_barrier)."""

    def barrier2(self, coll_addr: object = ..., flags: int = 0, context: object = None) -> None:
        """As fi.Endpoint.barrier2, through the library (fi_barrier2)."""

    def broadcast(self, buf: object, count: int | None = None, desc: object = None, coll_addr: object = ..., root_addr: int = ..., datatype: int | None = None, flags: int = 0, context: object = None) -> None:
        """
        As fi.Endpoint.broadcast, of more than 32 bytes too, through the library (fi_broadcast).
        """

    def reduce(self, buf: object, count: int | None = None, desc: object = None, result: object = None, result_desc: object = None, coll_addr: object = ..., root_addr: int = ..., datatype: int | None = None, op: int = ..., flags: int = 0, context: object = None) -> None:
        """
        As fi.Endpoint.reduce, of more than 32 bytes too, through the library (fi_reduce).
        """

    def allreduce(self, buf: object, count: int | None = None, desc: object = None, result: object = None, result_desc: object = None, coll_addr: object = ..., datatype: int | None = None, op: int = ..., flags: int = 0, context: object = None) -> None:
        """
        As fi.Endpoint.allreduce, of more than 32 bytes too, through the library (fi_allreduce).
        """

    def close_core(self) -> None: ...

    def getopsflag_core(self, side: int) -> int: ...

    def setopsflag_core(self, flags: int) -> None: ...

    @property
    def in_use(self) -> bool:
        """True while an object that uses this one exists."""

    @property
    def fid(self) -> int: ...

    def bind_cq(self, cq: CompletionQueueCore, flags: int) -> None: ...

    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...

    def bind_av(self, av: OfiAddressVectorCore, flags: int) -> None: ...

    def bind_eq(self, eq: OfiEventQueueCore, flags: int) -> None: ...

    def enable_core(self) -> None: ...

    def getname_core(self) -> bytes | str: ...

    def getpeer_core(self) -> bytes | str: ...

    def setname_core(self, address: bytes) -> None: ...

    def connect_core(self, address: bytes, param: bytes) -> None: ...

    def accept_core(self, param: bytes) -> None: ...

    def shutdown_core(self, flags: int) -> None: ...

    def getopt_core(self, level: int, optname: int) -> int: ...

    def setopt_core(self, level: int, optname: int, value: int, size: int) -> None: ...

    def cancel_core(self, context: object | None) -> None: ...

    def valid_core(self, datatype: int, op: int, family: int) -> int: ...

    def size_left(self, transmit: bool) -> int: ...

    def outstanding(self) -> int:
        """Operations that are under way."""

class OfiGroupCore:
    """An endpoint's membership of a collective group of a real libfabric."""

    def __init__(self, ep: OfiEndpointCore, av: OfiAddressVectorCore, members: Sequence[int], mine: int, comm_key: bytes | None, set_flags: int, flags: int, number: int) -> None: ...

    def close_core(self) -> None: ...

    def join_complete(self) -> None:
        """The event of the join was read."""

    @property
    def addr(self) -> int:
        """coll_addr of the group's calls."""

def ofi_av_set_valid(av: OfiAddressVectorCore, count: int, comm_key: bytes | None, flags: int) -> None:
    """Opens a set of the library and closes it (fi_av_set), for its refusal."""

class OfiWorkCore:
    """Deferred work of a real libfabric."""

    @overload
    def __init__(self, ep: OfiEndpointCore, kind: int, msg: object, flags: int, comparev: object, compare_desc: object, resultv: object, result_desc: object, threshold: int, trigger: CounterCore, completion: CounterCore | None) -> None: ...

    @overload
    def __init__(self, domain: OfiDomainCore, cntr: CounterCore, kind: int, value: int, threshold: int, trigger: CounterCore) -> None: ...

    def queue(self, context: object) -> None:
        """FI_QUEUE_WORK."""

    def cancel(self) -> None:
        """FI_CANCEL_WORK."""

    def flushed(self) -> None:
        """Gives the memory of work back that FI_FLUSH_WORK has dropped."""

def ofi_flush_work(domain: OfiDomainCore) -> None:
    """FI_FLUSH_WORK."""

class OfiMemoryRegionCore:
    """A memory region of a real libfabric."""

    def __init__(self, domain: OfiDomainCore, buffers: list[Any], access: int, offset: int, requested_key: int, flags: int, writable: bool, iface: int | None = None, device: int = 0, by_attr: bool = False, auth_key: bytes | None = None, dmabuf: tuple[int, int, int, int] | None = None, base_mr: OfiMemoryRegionCore | None = None) -> None: ...

    @property
    def in_use(self) -> bool:
        """True while an object that uses this one exists."""

    def close_core(self) -> None: ...

    def bind_ep(self, ep: OfiEndpointCore, flags: int) -> None: ...

    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...

    def enable_core(self) -> None: ...

    def raw_attr_core(self, flags: int) -> tuple[int, bytes]: ...

    def refresh_core(self, buffers: list[Any], flags: int) -> None: ...

    @property
    def key(self) -> int:
        """
        The remote key (fi_mr_key); fi.KEY_NOTAVAIL before enable() under MR_PROV_KEY and MR_ENDPOINT.
        """

class OfiPassiveEndpointCore:
    """A passive endpoint of a real libfabric."""

    def __init__(self, fabric: OfiFabricCore, info: OfiInfo) -> None: ...

    def close_core(self) -> None: ...

    @property
    def fid(self) -> int: ...

    def bind_eq(self, eq: OfiEventQueueCore) -> None: ...

    def listen_core(self) -> None: ...

    def reject_core(self, handle: int, param: bytes) -> None: ...

    def setname_core(self, address: bytes, text: bool) -> None: ...

    def getname_core(self, text: bool) -> bytes | str: ...

def hold_pages(domain: DomainCore, kept: bool) -> None:
    """
    From now on the NIC holds the pages of the domain's regions, like hardware that pins them: after a fork the
    NIC keeps using the same pages, although this process gets a new page when it writes. This covers regions
    that are whole pages of private memory.

    kept   the pages are kept from children (MADV_DONTFORK): a fork copies none.
    """

def queue_work(ep: EndpointCore, op_type: int, msg: object, flags: int, comparev: object, compare_desc: object, resultv: object, result_desc: object, threshold: int, trigger: CounterCore, counter: CounterCore | None, owner: object, may_wait: bool) -> str | None:
    """
    Queues an operation of an endpoint, to be started when `trigger` reaches `threshold`, by the domain's WorkRules.
    A receive with the threshold 0 is posted at once, and the result is None.

    counter   counts the operation instead of the endpoint's counters.
    owner     any object, which is kept until the work has ended: the name of the work for cancel_work().
    may_wait  the work waits if the service has no free entry.

    Returns "armed"; "waits" (for an entry), or "full": nothing was queued.
    """

def queue_counting(domain: DomainCore, target: CounterCore, op_type: int, value: int, threshold: int, trigger: CounterCore, owner: object, may_wait: bool) -> str:
    """As queue_work(), for work that sets a counter, or adds to it."""

def flush_work(domain: DomainCore) -> int:
    """Drops the deferred work that has not started. Returns its number."""

def cancel_work(domain: DomainCore, owner: object) -> bool:
    """
    Drops the deferred work with this owner; False: all of it has started, or there is none.
    """

def limit_work(domain: DomainCore, ledger: Ledger, slot: int, kind: int) -> None:
    """
    Deferred work takes entries of the ledger from now on. Call it before any is queued.
    """

def work_statistics(domain: DomainCore) -> dict[str, int]:
    """
    Deferred work: armed (waits for its counter), waiting (for an entry), ready (for room in the queues of its
    endpoint), and started so far.
    """
