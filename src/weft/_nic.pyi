"""
The software NIC of Weft. Used through weft.fi and weft.ucp; nothing here is meant to be called directly.
"""

from collections.abc import Sequence
import enum


from collections.abc import Callable, Iterable, Sequence
from typing import Any

def set_error_factory(f: Callable[[int, str], BaseException]) -> None:
    """
    Registers the function (FI_ code, message) -> exception that makes every error raised here.
    """

def set_buffer_hook(f: Callable[[object, bool], tuple[int, int, bool, int, object]]) -> None:
    """
    Registers the function (obj, writable) -> (address, nbytes, readonly, device, keepalive) for objects that only Python understands.
    """

def describe_buffer(obj: object, writable: bool = False) -> tuple[int, int, bool, int, object]:
    """
    (address, nbytes, readonly, device, keepalive) of anything that the data-path calls accept as a buffer.
    """

class Status(enum.IntEnum):
    """How an operation ended, whatever the provider calls it."""

    ok = 0

    no_key = 1

    stale_key = 2

    access = 3

    bounds = 4

    not_enabled = 5

    wrong_endpoint = 6

    no_endpoint = 7

    peer_gone = 8

    refused = 9

    misaligned = 10

    canceled = 11

    fault = 12

    timeout = 13

    unsupported = 14

    invalid = 15

    again = 16

    protocol = 17

    no_memory = 18

    device = 19

    unauthorized = 20

    unreachable = 21

    endpoint_access = 22

    closed = 23

    secret = 24

    version = 25

    corrupted = 26

    backlog = 27

def status_errno(status: Status) -> int:
    """The FI_ code that the man pages have for a status."""

class Limits:
    """What a NIC has room for, unless it was made with other numbers."""

    @property
    def endpoint_count(self) -> int:
        """Endpoints of a NIC that are open at a time."""

    @property
    def domain_count(self) -> int:
        """Domains of a NIC that are open at a time."""

    @property
    def region_count(self) -> int:
        """Regions of a NIC at a time."""

    @property
    def region_vni_count(self) -> int:
        """VNIs that a region may admit."""

    @property
    def iov_count(self) -> int:
        """Buffers, and remote ranges, of an operation."""

    @property
    def inject_bytes(self) -> int:
        """Bytes that an endpoint injects unless told otherwise."""

    @property
    def message_bytes(self) -> int:
        """Bytes of an operation."""

    @property
    def atomic_bytes(self) -> int:
        """Bytes of an atomic operation."""

    @property
    def cm_bytes(self) -> int:
        """Private data of a connection request or an answer."""

def limits() -> Limits:
    """The limits of a NIC that is made with the defaults."""

class Allocation:
    """
    Memory in a segment that peers map: they reach it by load and store. A writable buffer of bytes; freed with its last reference.
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

    def __init__(self, *, engine: str = 'thread', isolation: str = 'shared', cma: bool = True, shm: bool = True, tcp_log: bool = False, mr_count_max: int = 2097152, cache_monitor: str = '', cache_count_max: int = 1024, cache_bytes_max: int = 18446744073709551615, cache_off: Sequence[int] = []) -> None:
        """
        engine        thread: an engine thread serves peers; manual: only calls into the NIC do.
        isolation     shared: peers map our segments; strict: nothing is shared, our engine does every access.
        cma           whether process_vm_readv/writev may be tried.
        shm           whether processes of this host are reached by shared memory; otherwise by tcp, as others are.
        tcp_log       write to stderr why callers were turned away and connections were lost.
        mr_count_max  regions at a time, a power of two.
        cache_*       the registration cache: monitor of system memory ("": this machine's default), limits, and the
                      interfaces whose memory is not kept.
        """

    @property
    def engine(self) -> str: ...

    @property
    def isolation(self) -> str: ...

    def progress(self) -> int:
        """
        Does what waits to be done: frames, connections, operations. Returns how much it was.
        """

    def statistics(self) -> dict[str, int]:
        """
        Counts since the NIC was made: operations by path (direct, cma, framed), failures, bytes, frames served for
        peers, engine wakes; and how many peers, regions and allocated bytes there are now.
        """

    def missing_page(self, address: int, length: int) -> int | None:
        """
        The first page of [address, address + length) that the kernel does not read for another process, or None.
        """

    def peers(self) -> list[dict[str, object]]:
        """
        The processes that this NIC is connected to: pid, path (direct+cma, direct, frames or tcp), dead, and why cma is off.
        """

    def alloc(self, nbytes: int, *, address: int = 0, fixed: bool = False, fresh: bool = False) -> Allocation:
        """
        Memory that peers reach by load and store. Raises FabricError (ENOMEM).

        address  a page where it should lie, if nothing is mapped there; with `fixed` it lies there, and what was
                 mapped is gone.
        fresh    it reads as zero, and no page of it is there yet.
        """

    def region_in(self, address: int, nbytes: int) -> tuple[int, int] | None:
        """
        (address, length) of an open region's buffer that lies in these addresses, or None.
        """

    def close(self) -> None:
        """
        Stops the engine. Objects made on the NIC keep their memory until they are closed.
        """

    def hmem_load(self, iface: int, library: str) -> str | None:
        """
        Loads the runtime of a device interface (1 CUDA, 2 ROCR, 3 ZE); returns None, or why it cannot be used.
        """

    def hmem_devices(self, iface: int) -> int | None:
        """
        How many devices of a loaded interface there are; None where it is not loaded.
        """

    def hmem_find(self, address: int) -> tuple[int, str, int, int, int] | None:
        """
        (iface, kind, device, base, length) of the allocation at an address, as the loaded runtimes know it.
        """

    def hmem_copy(self, to: int, from_: int, length: int) -> None:
        """Copies bytes, either side of which may be a device's."""

    def hmem_window(self, base: int, length: int, at: int) -> None:
        """
        Device memory is mapped at `at` as well: short copies are loads and stores there (see hmem_near).
        """

    def hmem_no_window(self, base: int, at: int) -> bool:
        """Ends a window; the mapping may go afterwards."""

    def hmem_near(self, most: int | None = None) -> int:
        """
        The longest copy through a window, from now on; returns how many copies there were.
        """

    def hmem_p2p(self, on: bool) -> None:
        """
        Whether peers open each other's device memory, or its owner copies (FI_HMEM_DISABLE_P2P).
        """

    def hmem_alloc(self, iface: int, nbytes: int, managed: bool = False) -> int:
        """
        Memory of the first device; hmem_free gives it back. Raises FabricError (ENOMEM, ENOSYS).
        """

    def hmem_free(self, iface: int, address: int) -> None: ...

    def hmem_dmabuf(self, iface: int, address: int, length: int) -> int:
        """A DMA-buf descriptor of device memory, the caller's to close."""

    def telemetry(self, nic: int) -> dict[str, int]:
        """
        What was counted for a NIC, by this process, and by all that attached the same page.
        """

    def attach_telemetry(self, nic: int, fd: int) -> None:
        """
        From now on the counts of a NIC are in the first 4 KiB of this file, which may be closed then: a line of 8
        words for initiators and one for targets, in the order of telemetry(). Raises Busy where the NIC was counted
        for without a file before.
        """

    def tcp_secret(self, key: bytes, sodium: dict[str, int]) -> None:
        """
        The key that both sides of a tcp connection must have, 32 bytes. Set once.

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
        How long a dead host may go unnoticed. Before the link is used; Busy afterwards.
        """

    def tcp_encryption(self, when: str) -> None:
        """
        Whether packets are encrypted: "auto" (but between loopback addresses), "on", "off"; one side's "on" is
        enough. They are authenticated in any case. Before the link is used; Busy afterwards.
        """

    def tcp_listen(self, ip: str, port: int = 0, known_as: str | None = None) -> tuple[str, int]:
        """
        Accepts other hosts' connections. Returns the address that they are to be given.

        Raises FabricError: AccessDenied (no secret), AddressInUse, Busy (it listens elsewhere), InvalidArgument.
        """

    def tcp_listening(self) -> tuple[str, int] | None:
        """The address that other hosts call; None where nobody can."""

    def tcp_log(self) -> list[str]:
        """
        Callers that were turned away and connections that were lost, with the reasons: the last 64.
        """

    def tcp_statistics(self) -> dict[str, int]:
        """
        Connections so far: accepted, called, greetings that came to nothing (refused), lost.
        """

class TrafficRules:
    """
    How operations of an endpoint travel, for the NICs' telemetry alone. Made, it is on; an endpoint without it counts nothing.
    """

    def __init__(self) -> None: ...

    @property
    def optimized_below(self) -> int:
        """Client keys below it are of optimized regions."""

    @optimized_below.setter
    def optimized_below(self, arg: int, /) -> None: ...

    @property
    def provider_bit(self) -> int:
        """The bit of keys that the provider made."""

    @provider_bit.setter
    def provider_bit(self, arg: int, /) -> None: ...

    @property
    def optimized_bit(self) -> int:
        """Of those, the bit of optimized regions."""

    @optimized_bit.setter
    def optimized_bit(self, arg: int, /) -> None: ...

    @property
    def cached_bit(self) -> int:
        """Of those, the bit of cached keys, which want no events."""

    @cached_bit.setter
    def cached_bit(self, arg: int, /) -> None: ...

    @property
    def events_bit(self) -> int:
        """Of the others, the bit of regions that want events."""

    @events_bit.setter
    def events_bit(self, arg: int, /) -> None: ...

    @property
    def client_events(self) -> bool:
        """Regions of client keys are taken to want events."""

    @client_events.setter
    def client_events(self, arg: bool, /) -> None: ...

    @property
    def flush_flags(self) -> int:
        """Flags with which a write or an atomic flushes."""

    @flush_flags.setter
    def flush_flags(self, arg: int, /) -> None: ...

    @property
    def unreliable_flag(self) -> int: ...

    @unreliable_flag.setter
    def unreliable_flag(self, arg: int, /) -> None: ...

    @property
    def hrp_flag(self) -> int:
        """High Rate Put."""

    @hrp_flag.setter
    def hrp_flag(self, arg: int, /) -> None: ...

    @property
    def pcie_flag(self) -> int:
        """Atomics over PCIe."""

    @pcie_flag.setter
    def pcie_flag(self, arg: int, /) -> None: ...

    @property
    def hrp_without_uint32(self) -> bool:
        """Atomics of UINT32 are no High Rate Puts."""

    @hrp_without_uint32.setter
    def hrp_without_uint32(self, arg: bool, /) -> None: ...

def route_number(ip: str, port: int, nic: int = 0) -> int:
    """
    The NIC number that stands, in this process, for a NIC of another host. Raises InvalidArgument.
    """

def route_of(number: int) -> tuple[str, int, int] | None:
    """
    (ip, port, nic) of a number from route_number(); None for a NIC of this host.
    """

def has_vni(nic: int, vni: int) -> bool:
    """
    Whether an endpoint of this user, in any process of this host, has that NIC and VNI.
    """

def probe_socket_pingpong(fd: int, rounds: int, size: int, first: bool, timeout: float = 10.0) -> float:
    """
    Nanoseconds of half a round trip of `size` bytes over a bare socket that both sides poll; -1: it took too long.
    """

def probe_socket_stream(fd: int, buffer: object, rounds: int, send: bool, timeout: float = 10.0) -> float:
    """
    Nanoseconds to send (or receive) a buffer `rounds` times over a bare socket; -1: it took too long.
    """

class Numbers:
    """
    The numbers from 0 to count - 1, the lowest free one first. With the GIL.
    """

    def __init__(self, count: int) -> None: ...

    def take(self) -> int | None:
        """The lowest free number; None where all are taken."""

    def give(self, number: int) -> bool:
        """The number is free; False where it was."""

    def __len__(self) -> int: ...

class Stock:
    """
    How many there are of each of some kinds; each call is one step for other threads.
    """

    def __init__(self, kinds: Sequence[str]) -> None: ...

    def __getitem__(self, kind: str) -> int: ...

    def take(self, kind: str, count: int) -> bool:
        """Whether there were as many; then they are taken."""

    def add(self, kind: str, count: int) -> None: ...

    def clear(self, kind: str) -> int:
        """Takes all that there are: how many."""

    def set_ceiling(self, kind: str, count: int) -> None:
        """Above it, RegionTakes reports that too many are free."""

class RegionTakes:
    """
    What regions take of their provider (`DomainPolicy.region_takes`).

    numbers      of which each takes one when it is registered.
    free, taken  what there is, and what these regions have of it.
    below        a region whose key is below it takes `low` when it is enabled, others `high`:
                 (kind, count).
    more         called with (kind, count) where fewer are free: gets more, or raises the refusal.
    over         called with (kind) where more than the ceiling of `free` are.

    The two must not refer to the domain: they live as long as it.
    """

    def __init__(self, numbers: Numbers, free: Stock, taken: Stock, *, below: int, low: tuple[str, int], high: tuple[str, int], more: Callable[[str, int], object], over: Callable[[str], object]) -> None: ...

def set_region_type(type: type) -> None:
    """
    Registers the class of regions that DomainCore.mr_reg makes: a subclass of MemoryRegionCore.
    """

class DomainCore:
    """The NIC's side of a domain."""

    def __init__(self, nic: Nic, *, nic_index: int = 0, prov_key: bool = False, virt_addr: bool = False, mr_local: bool = False, rm_enabled: bool = True, hmem: bool = False, mr_hmem: bool = False, mr_allocated: bool = False, desc_ignored: bool = False, raw_keys: bool = False, empty_region_errno: int = 22, statuses: Sequence[tuple[int, int]] = [], address_text: str = '', address_nic_mask: int = 4294967295) -> None:
        """
        address_text        how texts name endpoints: {nic}, {nic:x}, {pid} and {vni} stand for the numbers; empty: as the
                            links write it. Of {nic} the bits of address_nic_mask are shown.
        empty_region_errno  what a region of 0 bytes is refused with; 0: such regions are made.
        statuses            by Status, (err, prov_errno) of operations that end so; empty: the man pages' codes and
                            the statuses themselves.
        """

    def mr_reg(self, buf: object, access: int, offset: int = 0, requested_key: int = 0, flags: int = 0, context: object = None, *, len: int | None = None) -> Any:
        """
        Register memory (fi_mr_reg).

        buf             a buffer of at least 1 byte, or (address, length). Held until the region is closed. Memory that
                        Weft allocated (`Domain.alloc`, `weft.empty`) is the quickest for peers.
        access          what may be done with it: `fi.READ`, `fi.WRITE` (as local buffer of transfers),
                        `fi.REMOTE_READ`, `fi.REMOTE_WRITE` (by peers) ...
        offset          reserved, 0.
        requested_key   the key that peers will use, below 2**64 - 1; ignored under `fi.MR_PROV_KEY`.
        flags           `fi.RMA_EVENT`: a counter will be bound.
        context         for the event of an asynchronous registration.
        len             bytes from the start; all where None.

        Raises NoKey (the key is in use), KeyRejected (out of range), AccessDenied (read-only memory and an access that
        writes), InvalidArgument (no bytes, unknown access, offset), BadFlags.
        Thread safety: any thread. Source: fi_mr(3) fi_mr_reg.
        """

    def map_key(self, key: int) -> int:
        """
        A handle by which transfers of a domain with raw keys name a peer's key.
        """

    def unmap_handle(self, handle: int) -> bool:
        """Gives a handle back; False for one that is none."""

    def set_mr_rules(self, quick: bool, *, access: int, disabled: bool = False, key_ignored: bool = False, key_later: bool = False, key_end: int = ..., key_meanings: int = 0, local_free: bool = False, needs_bind: bool = True, ep_busy: bool = False, decided: bool = False, takes: RegionTakes | None = None) -> None:
        """
        What mr_reg, bind and enable may do without Python, by the rules of the domain's policy.

        quick        mr_reg of one buffer without flags.
        access       the bits that exist; others are left to _mr_reg, as everything that would be refused.
        disabled     regions are made disabled (FI_MR_ENDPOINT).
        key_ignored, key_later, key_end, key_meanings, local_free, needs_bind   as KeyRules and RegionRules.
        ep_busy      an endpoint cannot be closed while regions are bound to it; otherwise the region cannot.
        decided      enable() asks the policy, unless all that it takes is in `takes`, and the key is known.
        takes        what a region takes of the provider.
        """

    def set_mr_quick(self, quick: bool) -> None:
        """False: every mr_reg from here on is left to _mr_reg."""

    def staged_with(self, ep: object) -> list[Any]:
        """The open regions that were bound to an endpoint without Python."""

    def regions(self) -> list[Any]:
        """The open regions."""

    def close(self) -> None: ...

class CmKind(enum.IntEnum):
    """What a message between endpoints says."""

    request = 1

    accept = 2

    reject = 3

    shutdown = 4

    delivered = 16
    """The peer's NIC has one's own message."""

    failed = 17
    """One's own message could not be delivered."""

    lost = 18
    """The peer's process or host is gone."""

class CmQueue:
    """Where endpoints find what others tell them to connect."""

    def __init__(self, nic: Nic, fd: int) -> None:
        """fd  an eventfd that is written to when something came."""

    def pop(self) -> tuple[int, int, int, tuple[int, int, int], int, Status, bytes] | None:
        """
        (token, kind, what, source, connection, status, data), oldest first; None when there is nothing.
        """

    def unread(self) -> int: ...

    def close(self) -> None:
        """Rings no more: the descriptor may be closed."""

class AddressVectorCore:
    """The NIC's side of an address vector."""

    def __init__(self, domain: DomainCore) -> None: ...

    def insert_address(self, nic: int, pid: int, vni: int) -> int:
        """Enters an address; returns its fi_addr, the same if it is there."""

    def remove_address(self, fi_addr: int) -> None: ...

    def lookup_address(self, fi_addr: int) -> tuple[int, int, int]: ...

    def count(self) -> int: ...

    def close(self) -> None: ...

def set_entry_types(context: type, msg: type, data: type, tagged: type, error: type) -> None:
    """Registers the NamedTuple classes of completion entries, one a format."""

class CompletionQueueCore:
    """The NIC's side of a completion queue."""

    def __init__(self, domain: DomainCore, *, size: int, format: int, wait_obj: int, huge: bool = False) -> None: ...

    def read(self, count: int = 64) -> list[Any]:
        """
        Takes completions without waiting (fi_cq_read).

        count  at most so many.

        Returns a list of entries of the queue's format, oldest first, empty when there is none. An entry's op_context is the
        object given to the operation.
        Raises Available when the entry at the head is a failed operation: readerr() takes it.
        Polling drives the NIC's progress. Source: fi_cq(3) fi_cq_read.
        """

    def readfrom(self, count: int = 64) -> list[tuple[Any, int]]:
        """
        As read, with the initiator of each: a list of (entry, fi_addr) (fi_cq_readfrom).

        fi_addr is ADDR_NOTAVAIL for operations of this side, and for peers that are not in the address vector.
        Source: fi_cq(3) fi_cq_readfrom.
        """

    def sread(self, count: int = 64, cond: int | None = None, timeout: float | None = None) -> list[Any]:
        """
        Waits until there is a completion, then takes up to count of them (fi_cq_sread).

        cond     with CQ_COND_THRESHOLD the number of entries to wait for.
        timeout  seconds; None or negative: forever.

        Spins briefly, yields, then sleeps; other Python threads run meanwhile and Ctrl-C ends it.
        Raises Again (timeout), Available (a failed operation is at the head), Canceled (signal()).
        Source: fi_cq(3) fi_cq_sread.
        """

    def sreadfrom(self, count: int = 64, cond: int | None = None, timeout: float | None = None) -> list[tuple[Any, int]]:
        """
        As sread, with the initiator of each: a list of (entry, fi_addr) (fi_cq_sreadfrom).

        Source: fi_cq(3) fi_cq_sreadfrom.
        """

    @property
    def huge_pages(self) -> tuple[bool, int]:
        """
        Whether its entries lie in huge pages; the kernel's error number where it was asked for them in vain, or 0.
        """

    @property
    def fd(self) -> int:
        """
        A descriptor that is readable while entries may be unread (wait_obj FD), or -1.
        """

    @property
    def capacity(self) -> int:
        """Entries that it holds."""

    def pending(self) -> int:
        """Entries that nobody has read yet."""

    def readerr_core(self, flags: int = 0, decide: Callable[[Status, int, tuple[int, int, int] | None, tuple[int, int, int]], tuple[int, int]] | None = None) -> Any:
        """
        Takes the failed operation at the head (fi_cq_readerr): a CqErrEntry whose err_data says in words what was asked
        and what was found. Raises Again when there is none.

        decide  called as decide(status, key, peer, own) for (err, prov_errno) in place of the domain's map; addresses as
                (nic, pid, vni), peer None where the operation had none.
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
    64 to the failures; 0 stored at 128 resets the value, at 192 the failures. It stays mapped as long as it is held; after
    the counter is closed, stores have no effect.
    """

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def store(self, offset: int, value: int) -> None:
        """
        What a plain store does, at once; none that is made by this call is lost.
        """

class CounterCore:
    """The NIC's side of a counter."""

    def __init__(self, domain: DomainCore, *, events: int = 0, wait_obj: int = 1, value_max: int = 18446744073709551615, errors_max: int = 18446744073709551615, refusals: Sequence[int] = [22, 22, 22], client_memory: bool = False, cached: bool = False) -> None:
        """
        refusals: the error numbers of values, error values and thresholds above their limits. client_memory: with
        set_wb_buffer and get_mmio. cached: reads tell what was written back last, and ask for the next.
        """

    def read(self) -> int:
        """
        The number of successful events so far (fi_cntr_read). Drives the NIC's progress.

        Source: fi_cntr(3) fi_cntr_read.
        """

    def wait(self, threshold: int, timeout: float | None = None) -> None:
        """
        Waits until the value reaches threshold (fi_cntr_wait).

        timeout  seconds; None or negative: forever.
        Raises TimedOut; Available when the error value changed meanwhile. Source: fi_cntr(3) fi_cntr_wait.
        """

    @property
    def fd(self) -> int:
        """
        A descriptor that becomes readable when the counter changes (wait_obj FD), or -1.
        """

    def readerr(self) -> int:
        """The number of failed events so far (fi_cntr_readerr)."""

    def add(self, value: int) -> None:
        """Adds to the value (fi_cntr_add)."""

    def set(self, value: int) -> None:
        """Sets the value (fi_cntr_set)."""

    def adderr(self, value: int) -> None:
        """Adds to the error value (fi_cntr_adderr)."""

    def seterr(self, value: int) -> None:
        """Sets the error value (fi_cntr_seterr)."""

    def set_wb_buffer(self, buffer: object) -> None:
        """
        Writes the counter back to the first 8 bytes of a writable buffer, at once and from now on (host memory, a
        device's, or (address, length)); the buffer before is left alone. The counter keeps a reference.
        """

    def get_mmio(self) -> CounterPage:
        """The counter's page for plain stores; the same one every time."""

    def write_back_at(self, value: int) -> None:
        """
        Writes the counter back when its value reaches this, at once if it has.
        """

    @property
    def cached(self) -> bool:
        """Whether reads tell what was written back last."""

    @cached.setter
    def cached(self, arg: bool, /) -> None: ...

    def close(self) -> None: ...

class MrSlice:
    """
    Bytes of a registered region: the local buffer that is quickest to use.
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
        owned     somebody else keeps the memory of (address, length) pairs where it is.
        unowned   pages of the memory may go missing, whoever keeps it.
        by_owner  the kernel reads it for no other process: this process's engine copies.
        base      address of the first byte under virtual addressing, where it is not the buffer's own.
        vnis, source  whom the region admits: initiators of these VNIs, only this endpoint (nic, pid, vni).
        key_later  the key is made when the region is enabled: by the NIC, or as the argument of enable_core().
        """

    def __getitem__(self, index: slice, /) -> MrSlice: ...

    def bind(self, fid: Any, flags: int = 0) -> None:
        """
        Associate the region with a counter or an endpoint (fi_mr_bind).

        fid     a Counter, which then counts the accesses that flags select; or an Endpoint: under `fi.MR_ENDPOINT` one
                through which peers may reach the region, otherwise an association without effect, so that a program
                written for `fi.MR_ENDPOINT` runs unchanged.
        flags   for a counter `fi.REMOTE_WRITE`: each RMA write and each atomic that may modify the region, made through
                an endpoint opened with `fi.RMA_EVENT`. All atomics count but ATOMIC_READ, also a comparison that failed
                and so changed nothing. For an endpoint 0.

        A region may be bound to several objects: each of its counters counts every access, each of its endpoints
        serves it. Binding the same object again changes nothing. A binding ends with its endpoint; endpoints that
        are opened later do not serve the region.

        Raises BadFlags; BadState (the region was enabled with `enable()` already; a counter under `fi.MR_RMA_EVENT`
        on a region registered without `fi.RMA_EVENT`); WrongDomain; InvalidArgument (some other object).
        Source: fi_mr(3) fi_mr_bind.
        """

    def enable(self) -> None:
        """
        Make a region that was created disabled usable (fi_mr_enable). No bindings after it.

        Regions are created disabled under `fi.MR_ENDPOINT`, and under `fi.MR_RMA_EVENT` with the flag `fi.RMA_EVENT`.
        Enabling an enabled region changes nothing.

        Raises BadState under `fi.MR_ENDPOINT` before the region is bound to an endpoint.
        Source: fi_mr(3) fi_mr_enable.
        """

    def close(self) -> None:
        """
        Close the region (fi_close): its key is invalid from here on, and a peer that uses it gets an error.

        Waits, for a bounded time, for peers that are copying. Operations of this process that have the region as their
        buffer go on, and hold its memory until they are over. Closing again does nothing.

        Raises Busy, naming them: sub-MRs; endpoints and counters that are bound to it and still open (close those
        first); peers that did not finish in time.
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
        """Bytes."""

    @property
    def address(self) -> int:
        """Virtual address of the first byte."""

    @property
    def base(self) -> int:
        """What remote accesses call the first byte: 0, or a virtual address."""

    @property
    def access(self) -> int:
        """Access bits."""

    @property
    def iface(self) -> int:
        """Whose memory it is (enum fi_hmem_iface): 0 for the host's."""

    @property
    def device(self) -> int:
        """Number of the device; 0 for the host's memory."""

    @property
    def state(self) -> str:
        """disabled, enabled, used up (MR_SINGLE_USE) or closed."""

    @property
    def readonly(self) -> bool:
        """True where its buffer may not be written to."""

    @property
    def direct(self) -> bool:
        """
        True when peers reach it by load and store: its memory was allocated by Weft.
        """

    def bind_ep(self, ep: EndpointCore) -> None: ...

    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...

    def enable_core(self, key: int | None = None) -> None:
        """
        Lets peers reach it. key: of a region with key_later whose keys the NIC does not make. Raises NoKey (taken), NoSpace.
        """

    def enable_mapped(self, mapping: Mapping) -> None:
        """
        In place of enable_core(), with key_later: peers reach the memory by the mapping, whose key is the region's.
        """

    def disable_core(self) -> None:
        """Takes access away until enable(); returns when no access is under way."""

    def missing_page(self, address: int, length: int) -> int | None:
        """The first page of [address, address + length) that is not there."""

    def unstage(self) -> None:
        """Python goes on with it: what mr_reg took of RegionTakes is given back."""

    def close_core(self) -> None: ...

class Mapping:
    """
    Memory that peers reach through an endpoint, whatever becomes of the regions it was made for: whole pages, whose offset 0 is `address`.

    It ends with close(), with the last reference to it, when the endpoint is closed, and when memory that Weft allocated is freed. It keeps no other memory alive: where pages are gone, accesses fail.
    """

    def __init__(self, domain: DomainCore, ep: EndpointCore, *, address: int, length: int, access: int, key: int) -> None:
        """
        access: REMOTE_READ, REMOTE_WRITE or both. Raises NoKey (the key is taken), NoSpace.
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
        Bytes from there on that were asked for; the pages around them count too.
        """

    @property
    def direct(self) -> bool:
        """
        True for memory that Weft allocated: it ends the mapping when it is freed.
        """

    @property
    def closed(self) -> bool: ...

    def close(self) -> None:
        """Revokes the key; returns when no access is under way."""

def atomic_valid(datatype: int, op: int, family: int) -> tuple[int, int]:
    """
    (elements that one call may hold, bytes of an element) by default; (0, size) where the pair does not exist. An endpoint's own rules: EndpointCore.atomic_limit.
    """

class Refusal(enum.Enum):
    """Why a call is refused at once."""

    cq_full = 1

    tx_full = 2

    not_enabled = 3

    closed = 4

    no_cq = 5

    bad_address = 6

    not_connected = 7

    length_mismatch = 8

    too_long = 9

    too_many_pieces = 10

    no_capability = 11

    forked = 12

    not_now = 13

    bad_flags = 14

    too_many_buffers = 15

    bad_range_count = 16

    inject_too_long = 17

    bad_key = 24

    key_offset = 25

    no_fence = 26

    flags_clash = 27

    unknown_atomic = 18

    too_many_elements = 19

    no_atomic = 20

    part_element = 21

    no_element = 22

    short_buffer = 23

    no_desc = 28

    no_device_desc = 29

    desc_closed = 30

    desc_foreign = 31

    desc_elsewhere = 32

    desc_no_right = 33

    no_hmem = 34

    no_device_runtime = 35

    unknown_device_memory = 36

    past_allocation = 37

    no_page = 38

class OpRules:
    """
    What calls may ask of an endpoint. A new one admits what the NIC can do, and refuses with the man pages' codes.
    """

    def __init__(self) -> None: ...

    @property
    def iov_max(self) -> int:
        """Local buffers of one call."""

    @iov_max.setter
    def iov_max(self, arg: int, /) -> None: ...

    @property
    def rma_iov_max(self) -> int:
        """Remote ranges of one call."""

    @rma_iov_max.setter
    def rma_iov_max(self, arg: int, /) -> None: ...

    @property
    def atomic_bytes_max(self) -> int:
        """Bytes of one atomic; the NIC has a limit of its own."""

    @atomic_bytes_max.setter
    def atomic_bytes_max(self, arg: int, /) -> None: ...

    @property
    def atomic_count_max(self) -> int:
        """Elements of one atomic."""

    @atomic_count_max.setter
    def atomic_count_max(self, arg: int, /) -> None: ...

    @property
    def fence_needs_cap(self) -> bool:
        """FENCE is refused without the capability FENCE."""

    @fence_needs_cap.setter
    def fence_needs_cap(self, arg: bool, /) -> None: ...

    @property
    def fence_also(self) -> int:
        """
        Flags that fence as FENCE does, with or without the capability; set_flags admits them.
        """

    @fence_also.setter
    def fence_also(self, arg: int, /) -> None: ...

    @property
    def data_key_mask(self) -> int:
        """
        Writes with data go only to keys with key & data_key_mask == data_key_value; 0: to all.
        """

    @data_key_mask.setter
    def data_key_mask(self, arg: int, /) -> None: ...

    @property
    def data_key_value(self) -> int: ...

    @data_key_value.setter
    def data_key_value(self, arg: int, /) -> None: ...

    @property
    def pcie_flag(self) -> int:
        """
        The flag of atomics over PCIe: there is a fetching sum, and nothing else.
        """

    @pcie_flag.setter
    def pcie_flag(self, arg: int, /) -> None: ...

    @property
    def pcie_datatypes(self) -> int:
        """Its datatypes, bit = number of the datatype."""

    @pcie_datatypes.setter
    def pcie_datatypes(self, arg: int, /) -> None: ...

    @property
    def local_lengths(self) -> bool:
        """
        A call's length is that of its local buffers, whatever its one remote range says.
        """

    @local_lengths.setter
    def local_lengths(self, arg: bool, /) -> None: ...

    def add_key_form(self, mask: int, value: int, *, offset_mask: int = 0, offset_shift: int = 0, sum_max: int = 18446744073709551615) -> None:
        """
        A form that keys of peers may have: key & mask == value. Once there is a form, a key of none is refused at the
        call (bad_key). Keys of a form with an offset are refused (key_offset) where
        (key >> offset_shift & offset_mask) + address + length is more than sum_max. At most four forms.
        """

    def flags(self, call: str) -> int:
        """
        The flags that a call takes: write, read, batch, atomic, fetch or compare.
        """

    def set_flags(self, call: str, flags: int) -> None: ...

    def atomics(self, family: int, op: int) -> int:
        """Datatypes of an operation, bit = number of the datatype."""

    def set_atomics(self, family: int, op: int, datatypes: int) -> None: ...

    def errno_of(self, refusal: Refusal) -> int:
        """The FI_ code of a refusal."""

    def set_errno(self, refusal: Refusal, code: int) -> None: ...

class EndpointCore:
    """The NIC's side of an endpoint: its data path."""

    def __init__(self, domain: DomainCore, *, caps: int, tx_size: int, inject_size: int, max_msg_size: int, msg_order: int, tx_op_flags: int, iov_limit: int, rma_iov_limit: int, vni: int, foreign_key: bool = False, connected: bool = False, pids: tuple[int, int] = (1073741824, 2147483647), fence_covers_all: bool = False, rules: OpRules | None = None, holds_more: bool = False, traffic: TrafficRules | None = None, tclass: int = 0, desc_ignored: bool | None = None, reorder: tuple[int, int, int, int] | None = None, tells_lengths: bool = True) -> None:
        """
        fence_covers_all          FI_FENCE waits for operations to every peer, not only to its own.
        iov_limit, rma_iov_limit  at most so many, and no more than the rules'; 0: as the rules say.
        rules                     what calls may ask for; None: what the NIC can do.
        holds_more                operations with MORE begin with the next one without it, or when no more fit.
        traffic                   what the NICs' telemetry counts them as; None: not counted.
        tclass                    0 to 4: the number of its traffic class in telemetry.
        desc_ignored              local descriptors are not looked at; None: as the domain says.
        reorder                   (seed, raw, war, waw): operations overtake each other wherever nothing orders them;
                                  bytes up to which the order of a read after a write, and so on, holds.
        tells_lengths             completions of its operations have the length; otherwise 0.
        """

    def read(self, buf: object, desc: object = None, src_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        Copies bytes of a peer's region into buf (fi_read).

        buf       writable C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is
                  quickest. Held until completion; leave it alone until then.
        desc      mr.desc of a region that covers buf, or None.
        src_addr  the peer: what av.insert() returned.
        addr      byte offset from the region's start; its virtual address under MR_VIRT_ADDR.
        key       the region's remote key.
        context   any object; comes back as op_context of the completion.
        len       bytes, if fewer than buf has.

        Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument, BadState.
        What the peer refuses (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_read.
        """

    def readv(self, iov: Sequence[object], desc: object = None, src_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        As read, into a list of up to iov_limit buffers, in order (fi_readv).

        count  how many of them are used. Source: fi_rma(3) fi_readv.
        """

    def readmsg(self, msg: object, flags: int = 0) -> None:
        """
        A read in full: msg is an fi.MsgRma, with up to rma_iov_limit remote pieces (fi_readmsg).

        flags  for this read alone, in place of the endpoint's: COMPLETION, MORE, FENCE, completion levels.
        Raises BadFlags, and as read. Source: fi_rma(3) fi_readmsg.
        """

    def write(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        Copies buf into a peer's region (fi_write).

        buf        C-contiguous buffer of n bytes, 0 <= n <= max_msg_size; a slice of a registered region is quickest.
                   Held until completion.
        dest_addr  the peer: what av.insert() returned.
        desc, addr, key, context, len   as for read.

        Raises Again (a queue is full: read the completion queue, retry), MessageTooLong, InvalidArgument, BadState.
        What the peer refuses (key, bounds, access) is a failed completion. Source: fi_rma(3) fi_write.
        """

    def writev(self, iov: Sequence[object], desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        As write, from a list of up to iov_limit buffers, in order (fi_writev).

        count  how many of them are used. Source: fi_rma(3) fi_writev.
        """

    def writemsg(self, msg: object, flags: int = 0) -> None:
        """
        A write in full: msg is an fi.MsgRma, with up to rma_iov_limit remote pieces (fi_writemsg).

        flags  for this write alone, in place of the endpoint's: REMOTE_CQ_DATA, COMPLETION, MORE, INJECT, FENCE,
               INJECT_COMPLETE, TRANSMIT_COMPLETE, DELIVERY_COMPLETE.
        Several remote pieces are checked before the first is written. Source: fi_rma(3) fi_writemsg.
        """

    def inject_write(self, buf: object, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., *, len: int | None = None) -> None:
        """
        As write, of at most inject_size bytes; buf may be reused at once, and success is not reported
        (fi_inject_write). A failure is. Source: fi_rma(3) fi_inject_write.
        """

    def writedata(self, buf: object, desc: object = None, data: int = ..., dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., context: object = None, *, len: int | None = None) -> None:
        """
        As write, and delivers data (64 bits) to the peer's completion queue (fi_writedata).

        Source: fi_rma(3) fi_writedata.
        """

    def inject_writedata(self, buf: object, data: int = ..., dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., *, len: int | None = None) -> None:
        """
        As inject_write, and delivers data (64 bits) to the peer's completion queue (fi_inject_writedata).

        Source: fi_rma(3) fi_inject_writedata.
        """

    def read_batch(self, local: object, descs: object, context: object = None, flags: int | None = None) -> None:
        """
        Many reads in one call, with one completion for all of them.

        local  writable buffer that every descriptor's local_offset counts in.
        descs  C-contiguous array of dtype fi.RMA_DESC: local_offset, length, dest_addr, remote_addr, key. status is
               written: 0, or why this one failed; valid at the completion. Both are held until then.
        The completion's len is the sum of what was moved; it is a failed one if any descriptor failed.
        """

    def write_batch(self, local: object, descs: object, context: object = None, flags: int | None = None) -> None:
        """
        Many writes in one call, with one completion for all of them. Arguments as read_batch.
        """

    def atomic(self, buf: object, desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        Updates elements of a peer's region with those of buf, each atomically (fi_atomic).

        buf       C-contiguous operands; count of them, or all.
        addr      as for write; a multiple of the datatype's alignment.
        datatype  fi.INT64, fi.DOUBLE ...   op  fi.SUM, fi.MIN ...; atomicvalid() tells which pairs exist.

        Raises NotSupported, Again, MessageTooLong (more elements than atomicvalid() tells). Source: fi_atomic(3).
        """

    def atomicv(self, iov: Sequence[object], desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """As atomic, from a list of buffers (fi_atomicv). Source: fi_atomic(3)."""

    def atomicmsg(self, msg: object, flags: int = 0) -> None:
        """
        An atomic in full: msg is an fi.MsgAtomic; flags for this call alone (fi_atomicmsg). Source: fi_atomic(3).
        """

    def inject_atomic(self, buf: object, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., *, count: int | None = None) -> None:
        """
        As atomic, of at most inject_size bytes; buf may be reused at once, success is not reported
        (fi_inject_atomic). Source: fi_atomic(3).
        """

    def fetch_atomic(self, buf: object, desc: object = None, result: object = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        As atomic, and result receives the elements as they were before (fi_fetch_atomic).

        buf     operands; not used by ATOMIC_READ, which takes None.
        result  writable, as long as buf. Held until completion. Source: fi_atomic(3).
        """

    def fetch_atomicv(self, iov: Sequence[object] | None, desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """
        As fetch_atomic, with lists of buffers (fi_fetch_atomicv). Source: fi_atomic(3).
        """

    def fetch_atomicmsg(self, msg: object, resultv: Sequence[object], result_desc: object = None, flags: int = 0) -> None:
        """A fetching atomic in full (fi_fetch_atomicmsg). Source: fi_atomic(3)."""

    def compare_atomic(self, buf: object, desc: object = None, compare: object = ..., compare_desc: object = None, result: object = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None, *, count: int | None = None) -> None:
        """
        Compares elements of a peer's region with compare and, where they satisfy op (CSWAP ... MSWAP), puts buf
        there, each atomically; result receives the elements as they were before (fi_compare_atomic).

        Source: fi_atomic(3).
        """

    def compare_atomicv(self, iov: Sequence[object], desc: object = None, comparev: Sequence[object] = ..., compare_desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, dest_addr: int = 0xffffffffffffffff, addr: int = ..., key: int = ..., datatype: int = ..., op: int = ..., context: object = None) -> None:
        """
        As compare_atomic, with lists of buffers (fi_compare_atomicv). Source: fi_atomic(3).
        """

    def compare_atomicmsg(self, msg: object, comparev: Sequence[object], compare_desc: object = None, resultv: Sequence[object] = ..., result_desc: object = None, flags: int = 0) -> None:
        """
        A comparing atomic in full (fi_compare_atomicmsg). Source: fi_atomic(3).
        """

    def bind_cq(self, cq: CompletionQueueCore, flags: int) -> None: ...

    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...

    def bind_av(self, av: AddressVectorCore) -> None: ...

    def enable_at(self, nic: int, pid: int | None, vnis: Sequence[int] = ()) -> int:
        """
        Claims the address and opens the endpoint; without a pid a free one is chosen. Returns the pid.

        vnis  under FI_AV_AUTH_KEY: all that the endpoint answers to.
        """

    def try_at(self, nic: int, pid: int | None, vnis: Sequence[int] = ()) -> None:
        """
        Raises AddressInUse where enable_at would find the address taken; whatever else the endpoint lacks.
        """

    def bind_cm(self, queue: CmQueue, token: int, listens: bool) -> None:
        """What arrives for the endpoint goes to the queue, with the token."""

    def send_cm(self, to: tuple[int, int, int], kind: int, connection: int, data: bytes) -> None:
        """Sends a message of connecting to the endpoint at an address."""

    def connect_to(self, peer: tuple[int, int, int] | None) -> None:
        """
        From here on the endpoint transfers to this peer, and it alone reaches it.
        """

    def cancel(self, context: object) -> None:
        """
        Cancels operations with this context that have not started (fi_cancel); each completes as canceled.
        Raises FabricError (ENOENT) when there is none: it may just have completed. Source: fi_endpoint(3) fi_cancel.
        """

    def atomic_limit(self, datatype: int, op: int, family: int) -> tuple[int, int]:
        """
        (elements that one call may hold, bytes of an element); (0, size) where the operation does not exist.
        """

    @property
    def address(self) -> tuple[int, int, int]:
        """(nic, pid, vni), once it is enabled."""

    def statistics(self) -> dict[str, int]:
        """
        tx_pending: operations under way; tx_size: how many there may be; batches: how often operations that MORE held were begun, all together.
        """

    def close(self) -> None: ...

def probe_memcpy(dst: object, src: object, rounds: int, piece: int = 0, stride: int = 0) -> float:
    """
    Nanoseconds that memcpy takes between these buffers, on average.

    piece, stride  where given, one copy of `piece` bytes every `stride` bytes, and the time for all of them.
    """

def probe_fetch_add(word: object, rounds: int) -> float:
    """
    Nanoseconds that a bare atomic fetch-and-add of this word takes, on average.
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
    How many arrays that a handler of numpy_memory_handler() made are alive.
    """

def set_numpy_memory_handler(handler: object | None) -> object:
    """
    Sets NumPy's memory handler of this context, None: NumPy's own; returns the one before.
    """

class CacheRef:
    """What a look-up in the registration cache found, held until release()."""

    @property
    def address(self) -> int:
        """Where the mapping begins."""

    @property
    def length(self) -> int:
        """Its bytes."""

    @property
    def iface(self) -> int: ...

    @property
    def device(self) -> int: ...

    @property
    def buffer_id(self) -> int:
        """Identity of the allocation or file behind it; 0 for none."""

    @property
    def user(self) -> int:
        """The resolver's own; of a file the offset in it."""

    @property
    def host_access(self) -> bool:
        """The processor can read it."""

    @property
    def persistent(self) -> bool:
        """A shared mapping of a file."""

    @property
    def cached(self) -> bool:
        """Whether the cache kept it."""

    @property
    def stale(self) -> bool:
        """The memory changed since; cached ones only."""

    @property
    def released(self) -> bool: ...

    def release(self) -> None: ...

def cache_search(nic: Nic, address: int, length: int, iface: int = 0, device: int = 0, resolve: Callable[[int, int], dict[str, int]] | None = None) -> CacheRef:
    """The mapping that contains the range: from the cache, or resolved now."""

def cache_notify(nic: Nic, iface: int, address: int, length: int) -> int:
    """The memory changed: how many entries went."""

def cache_flush(nic: Nic, lru_only: bool) -> int:
    """Forgets entries: those that nobody holds, or all. How many they were."""

def cache_set_monitor(nic: Nic, iface: int, monitor: object | None, name: str) -> None:
    """
    Who watches memory of an interface; None: whoever it was before, or nobody.
    """

def cache_state(nic: Nic) -> dict[str, Any]:
    """
    Counts, limits, and the monitor of system memory: its name, whether it watches now, whether it can, why not.
    """

def probe_monitor(name: str) -> tuple[str, bool, str]:
    """
    (name, whether it works here, why not) of a monitor; the empty name is this machine's default.
    """

def first_not_persistent(address: int, length: int) -> int | None:
    """The first address of the range that is no shared mapping of a file."""

def set_ucs_error(f: Callable[[int | None, Any], BaseException]) -> None:
    """
    Registers the function (status, message) or (None, exception) -> exception that makes weft.ucp's errors.
    """

def set_ucp_region(region: type, params: type) -> None:
    """Registers the classes of memory handles and of mem_map's parameters."""

def region_exporters(region: MemoryRegionCore) -> list[Any]:
    """What keeps a region's memory where it is."""

def populate(address: int, length: int, writable: bool = True) -> bool:
    """
    Has the pages of memory there before they are touched; False where that cannot be.
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

        params      a `MemMapParams`, as C has it; or a buffer (array, bytearray ...), which is held until it is
                    unmapped; or nothing.
        address, length, flags, prot, memory_type, exported_memh_buffer   as its fields, given by being there.
        allocate, nonblock, symmetric   MEM_MAP_ALLOCATE, NONBLOCK, SYMMETRIC_RKEY.

        Memory at a bare address may go away while it is mapped: an access is then an error. Memory that Weft allocated
        is whole pages, reads as zero, and is what peers reach by load and store. Without NONBLOCK its pages are there
        when the call returns. With FIXED it takes the place of what is at the address, unless that holds data.

        Returns a `MemHandle`. Raises UcsError: INVALID_PARAM (the matrix of the page; memory that ends past the address
        space), NO_MEMORY, UNREACHABLE (an exported handle of another host, or of a process that is gone).
        Source: UCP, "ucp_mem_map", "Matrix of behavior".
        """

    def take_key(self) -> int:
        """A key that no region of this context ever had."""

def set_ucp_request(type: type, done: object) -> None:
    """
    Registers the class of requests, and the one of what was done in place.
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
        ucs_status_t. Who reads a failure here was told of it: a flush does not repeat it.
        """

    @property
    def ended(self) -> bool: ...

    @property
    def peeked(self) -> int:
        """As status_code, for messages: nobody was told."""

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
        Has the waker called with the future when the request ends; False where it has ended.
        """

    def drop_waiter(self, future: Any) -> None: ...

class UcpWorkerCore:
    """The NIC's side of a worker."""

    def __init__(self, domain: DomainCore, cq: CompletionQueueCore, av: AddressVectorCore, ep: EndpointCore, features: int) -> None: ...

    def progress(self) -> int:
        """
        Moves operations on and calls callbacks (ucp_worker_progress). Returns how much was done; 0: nothing.

        An exception that a callback raises comes out of here, after the others were called.
        Source: UCP, ucp_worker_progress.
        """

    def flush_nbx(self, param: object = None, *, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, flags: int = 0) -> Any:
        """
        As Endpoint.flush_nbx, for all endpoints of the worker (ucp_worker_flush_nbx).

        Source: UCP, ucp_worker_flush_nbx.
        """

    def wait_core(self, timeout: float | None, request: Any = None, /) -> bool:
        """
        True once progress() has something to do, the request has ended, or signal() was called.
        """

    def call_due(self) -> None:
        """Calls the callbacks that are due; raises the first one's exception."""

    def fence(self) -> None: ...

    def arm_core(self) -> bool:
        """
        False where there is something to progress that no entry of the queue tells of, or signal() was called.
        """

    def under_way(self) -> int:
        """Operations that are not done yet."""

    def cancel_flush(self, request: Any) -> bool: ...

    def begin_close(self) -> None:
        """
        From here on operations that end as canceled were canceled by nobody but the worker.
        """

    def shut(self) -> None: ...

class UcpEndpointCore:
    """The NIC's side of a UCP endpoint: its data path."""

    def __init__(self, worker: UcpWorkerCore, dest: int, watched: bool) -> None: ...

    def put_nbx(self, buffer: object, remote_addr: int, rkey: UcpRkeyCore | None, param: object = None, *, count: int | None = None, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, memh: object = None, flags: int = 0, datatype: int | None = None) -> Any:
        """
        Copies a local buffer to a peer's memory (ucp_put_nbx).

        buffer       C-contiguous bytes of this process: any buffer, a slice of a memory handle (quickest), or
                     (address, length). Under DATATYPE_IOV a list of them. Leave it alone until the request is done.
        remote_addr  virtual address in the peer's process.
        rkey         what rkey_unpack() of this endpoint returned.
        param        a RequestParam; its fields count where their bit of op_attr_mask is set.
        count        elements of the datatype, bytes without one; all of the buffer where None.
        cb, user_data, memh, flags, datatype   as param's fields, which they come before; flags: OP_ATTR_FLAG_*.

        Returns a request: false as a truth value where the operation was done in place (C's NULL; cb is not called).
        Done means that the buffer may be used again; the peer sees the bytes for certain after a flush.

        Raises UcsError: INVALID_PARAM (closed or foreign key, no such feature, memh without the right),
        NO_RESOURCE (FORCE_IMM_CMPL). What the owner's memory table refuses ends the request with IO_ERROR.
        Waits while the transmit queue is full. Source: UCP, ucp_put_nbx.
        """

    def get_nbx(self, buffer: object, remote_addr: int, rkey: UcpRkeyCore | None, param: object = None, *, count: int | None = None, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, memh: object = None, flags: int = 0, datatype: int | None = None) -> Any:
        """
        Copies a peer's memory into a local, writable buffer (ucp_get_nbx). Arguments as put_nbx.

        Done means that the data is there. Source: UCP, ucp_get_nbx.
        """

    def atomic_op_nbx(self, opcode: int, buffer: object, remote_addr: int, rkey: UcpRkeyCore, param: object = None, *, count: int | None = None, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, memh: object = None, flags: int = 0, datatype: int | None = None, reply_buffer: object = None) -> Any:
        """
        Updates one element of a peer's memory atomically (ucp_atomic_op_nbx).

        opcode        ATOMIC_OP_ADD, SWAP, CSWAP, AND, OR or XOR.
        buffer        the operand: a buffer of 4 or 8 bytes, or an int. For CSWAP the value that is expected.
        remote_addr   a multiple of the element's size.
        datatype      dt_make_contig(4) or dt_make_contig(8); the buffer's size where neither it nor param is given.
        reply_buffer  receives the old value. Required by SWAP and CSWAP, which takes the new value from it.
        count         1.   Others as put_nbx.

        Without a reply_buffer the request is done at once (NO_IMM_CMPL: when the peer has it), and a failure is
        told by the next flush. Raises UcsError (INVALID_PARAM). Source: UCP, ucp_atomic_op_nbx.
        """

    def flush_nbx(self, param: object = None, *, cb: Callable[[Any, int, Any], object] | None = None, user_data: object = None, flags: int = 0) -> Any:
        """
        Completes when every operation posted so far on this endpoint is done at both ends (ucp_ep_flush_nbx).

        A failure that no request has told of is told here. Source: UCP, ucp_ep_flush_nbx.
        """

    @property
    def dest(self) -> int: ...

    @property
    def failed_status(self) -> int: ...

    @property
    def why(self) -> str: ...

    def under_way(self) -> int: ...

    def begin_close(self) -> None:
        """From here on it takes no operations."""

    def tell_failure(self) -> None:
        """Raises UcsError for the first failure that nobody has been told of."""

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
    Bytes of a peer's process, mapped here: a buffer. While it lives they stay mapped, and the
    peer hands their place to no other region.
    """

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def current(self) -> bool:
        """False once the peer has closed the region, or is gone."""

def peer_memory(ep: EndpointCore, dest: int, key: int, addr: int, length: int, writable: bool) -> PeerMemory | int | None:
    """
    A peer's bytes as this process has them mapped; None where loads and stores do not get there; a number of the
    NIC's statuses where it is refused (16: not yet, try again).
    """

def hold_pages(domain: DomainCore, kept: bool) -> None:
    """
    From now on the NIC holds the pages of the domain's regions, as one that pins them: after a fork it goes on with
    them, although this process gets a new page where it writes. Regions that are whole pages of private memory.

    kept   the pages are kept from children (MADV_DONTFORK): a fork copies none.
    """
