from collections.abc import Callable, Iterable, Sequence
from typing import Any

def set_error_factory(f: Callable[[int, str], BaseException]) -> None: ...
def set_entry_types(context: type, msg: type, data: type, tagged: type, error: type) -> None: ...
def set_buffer_hook(f: Callable[[object, bool], tuple[int, int, bool, int, object]]) -> None: ...
def describe_buffer(obj: object, writable: bool = False) -> tuple[int, int, bool, int, object]: ...

class Allocation:
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Nic:
    def __init__(
        self, *, engine: str = "thread", isolation: str = "shared", cma: bool = True, mr_count_max: int = 2097152
    ) -> None: ...
    @property
    def engine(self) -> str: ...
    @property
    def isolation(self) -> str: ...
    def progress(self) -> int: ...
    def statistics(self) -> dict[str, int]: ...
    def peers(self) -> list[dict[str, Any]]: ...
    def alloc(self, nbytes: int) -> Allocation: ...
    def close(self) -> None: ...

class DomainCore:
    def __init__(
        self,
        nic: Nic,
        *,
        nic_index: int = 0,
        prov_key: bool = False,
        virt_addr: bool = False,
        mr_local: bool = False,
        rm_enabled: bool = True,
    ) -> None: ...
    def close(self) -> None: ...

class AddressVectorCore:
    def __init__(self, domain: DomainCore) -> None: ...
    def insert_address(self, nic: int, pid: int, vni: int) -> int: ...
    def remove_address(self, fi_addr: int) -> None: ...
    def lookup_address(self, fi_addr: int) -> tuple[int, int, int]: ...
    def count(self) -> int: ...
    def close(self) -> None: ...

class CompletionQueueCore:
    def __init__(self, domain: DomainCore, *, size: int, format: int, wait_obj: int) -> None: ...
    @property
    def fd(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def read(self, count: int = 64) -> list[Any]: ...
    def readfrom(self, count: int = 64) -> list[tuple[Any, int]]: ...
    def readerr(self, flags: int = 0) -> Any: ...
    def sread(self, count: int = 64, cond: object = None, timeout: float | None = None) -> list[Any]: ...
    def sreadfrom(
        self, count: int = 64, cond: object = None, timeout: float | None = None
    ) -> list[tuple[Any, int]]: ...
    def signal(self) -> None: ...
    def pending(self) -> int: ...
    def trywait(self) -> bool: ...
    def close(self) -> None: ...

class CounterCore:
    def __init__(self, domain: DomainCore, *, events: int = 0, wait_obj: int = 1) -> None: ...
    @property
    def fd(self) -> int: ...
    def read(self) -> int: ...
    def readerr(self) -> int: ...
    def add(self, n: int) -> None: ...
    def set(self, n: int) -> None: ...
    def adderr(self, n: int) -> None: ...
    def seterr(self, n: int) -> None: ...
    def wait(self, threshold: int, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...

class EndpointCore:
    def __init__(
        self,
        domain: DomainCore,
        *,
        caps: int,
        tx_size: int,
        inject_size: int,
        max_msg_size: int,
        msg_order: int,
        tx_op_flags: int,
        iov_limit: int,
        rma_iov_limit: int,
        vni: int,
    ) -> None: ...
    def bind_cq(self, cq: CompletionQueueCore, flags: int) -> None: ...
    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...
    def bind_av(self, av: AddressVectorCore) -> None: ...
    def enable_at(self, nic: int, pid: int | None) -> int: ...
    def cancel(self, context: object) -> None: ...
    def close(self) -> None: ...
    def read(
        self,
        buf: object,
        desc: object = None,
        src_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        context: object = None,
        *,
        len: int | None = None,
    ) -> None: ...
    def readv(
        self,
        iov: Sequence[object],
        desc: object = None,
        src_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        context: object = None,
        *,
        count: int | None = None,
    ) -> None: ...
    def readmsg(self, msg: object, flags: int = 0) -> None: ...
    def write(
        self,
        buf: object,
        desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        context: object = None,
        *,
        len: int | None = None,
    ) -> None: ...
    def writev(
        self,
        iov: Sequence[object],
        desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        context: object = None,
        *,
        count: int | None = None,
    ) -> None: ...
    def writemsg(self, msg: object, flags: int = 0) -> None: ...
    def inject_write(
        self, buf: object, dest_addr: int = ..., addr: int = 0, key: int = 0, *, len: int | None = None
    ) -> None: ...
    def writedata(
        self,
        buf: object,
        desc: object = None,
        data: int = 0,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        context: object = None,
        *,
        len: int | None = None,
    ) -> None: ...
    def inject_writedata(
        self,
        buf: object,
        data: int = 0,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        *,
        len: int | None = None,
    ) -> None: ...
    def read_batch(self, local: object, descs: object, context: object = None, flags: int = 0) -> None: ...
    def write_batch(self, local: object, descs: object, context: object = None, flags: int = 0) -> None: ...
    def atomic(
        self,
        buf: object,
        desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        datatype: int = ...,
        op: int = ...,
        context: object = None,
        *,
        count: int | None = None,
    ) -> None: ...
    def atomicv(
        self,
        iov: Sequence[object],
        desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        datatype: int = ...,
        op: int = ...,
        context: object = None,
    ) -> None: ...
    def atomicmsg(self, msg: object, flags: int = 0) -> None: ...
    def inject_atomic(
        self,
        buf: object,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        datatype: int = ...,
        op: int = ...,
        *,
        count: int | None = None,
    ) -> None: ...
    def fetch_atomic(
        self,
        buf: object,
        desc: object = None,
        result: object = None,
        result_desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        datatype: int = ...,
        op: int = ...,
        context: object = None,
        *,
        count: int | None = None,
    ) -> None: ...
    def fetch_atomicv(
        self,
        iov: Sequence[object],
        desc: object = None,
        resultv: Sequence[object] = ...,
        result_desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        datatype: int = ...,
        op: int = ...,
        context: object = None,
    ) -> None: ...
    def fetch_atomicmsg(
        self, msg: object, resultv: Sequence[object], result_desc: object = None, flags: int = 0
    ) -> None: ...
    def compare_atomic(
        self,
        buf: object,
        desc: object = None,
        compare: object = None,
        compare_desc: object = None,
        result: object = None,
        result_desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        datatype: int = ...,
        op: int = ...,
        context: object = None,
        *,
        count: int | None = None,
    ) -> None: ...
    def compare_atomicv(
        self,
        iov: Sequence[object],
        desc: object = None,
        comparev: Sequence[object] = ...,
        compare_desc: object = None,
        resultv: Sequence[object] = ...,
        result_desc: object = None,
        dest_addr: int = ...,
        addr: int = 0,
        key: int = 0,
        datatype: int = ...,
        op: int = ...,
        context: object = None,
    ) -> None: ...
    def compare_atomicmsg(
        self,
        msg: object,
        comparev: Sequence[object],
        compare_desc: object = None,
        resultv: Sequence[object] = ...,
        result_desc: object = None,
        flags: int = 0,
    ) -> None: ...
    def statistics(self) -> dict[str, int]: ...

class MrSlice:
    def __len__(self) -> int: ...
    def __getitem__(self, index: slice) -> MrSlice: ...

class MemoryRegionCore:
    def __init__(
        self,
        domain: DomainCore,
        buffers: Iterable[object],
        *,
        access: int,
        requested_key: int,
        flags: int,
        context: object = None,
        enabled: bool = True,
    ) -> None: ...
    @property
    def key(self) -> int: ...
    @property
    def desc(self) -> object: ...
    @property
    def length(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def access(self) -> int: ...
    @property
    def state(self) -> str: ...
    def bind_ep(self, ep: EndpointCore) -> None: ...
    def bind_cntr(self, cntr: CounterCore, flags: int) -> None: ...
    def enable(self) -> None: ...
    def __getitem__(self, index: slice) -> MrSlice: ...
    def close(self) -> None: ...

def atomic_valid(datatype: int, op: int, family: int) -> tuple[int, int]: ...
