"""The environment of the CXI provider: every variable with its value, its origin, and its effect in Weft.

    e = env.load()
    e.FI_CXI_RDZV_THRESHOLD, e.FI_CXI_OPTIMIZED_MRS, ...
    e.all["FI_CXI_RDZV_THRESHOLD"].origin       # "environment" or "default"
    env.table()                                 # rows as `weft info -p cxi -e` prints them

Invalid values and values out of bounds are replaced as in the real provider, with a warning (logger "weft.cxi", once
for each text). Defaults are those of the releases that fi_cxi(7) describes; WEFT_CXI_RELEASE=current selects those of
later releases. Source: fi_cxi(7) "RUNTIME PARAMETERS".
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

from ...settings import Environment, Secret, Text, Variable, shown
from .kinds import Count, Flag, Names, Present, Words

_MIB = 1 << 20
_EQ_ALIGN = 4096
REQ_HEADER_BYTES = 63  # per message in a request buffer: 20 of the fabric and 43 of the message
RDZV_THRESHOLD_LEAST = 192
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1

# Why a value has no effect in software.
_PULLS = "none: a NIC in software pulls all messages in one way, without commands and Gets"
_CONTROL = "as documented: the event queue of control messages, which end flow control; 64 bytes for each process"
_TRUNCATED = "none: a truncated message is always an error"
_REQUESTS = "as documented; a buffer holds the longest eager message at least"
_COLLECTIVES = "none: the links between NICs in software lose nothing, so no reduction is tried again or told apart"
_PASSED_ON = "as documented, by the fabric manager; a reduction in software waits for its members without a limit"
_TRIGGERS = "none: deferred work in software passes no command queue"
_IDC = "none: there is no PCIe between the process and a NIC in software, so no commands with data in them"
_COMMANDS = "as far as counts go (ep.statistics()): transfers in software pass no command queue"
_TRANSLATION = "none: a NIC in software uses the process's own addresses: nothing is translated"
_NO_PEER_MEMORY = (
    "as far as DMA-bufs go, without which the CPU has no window into such memory; software has no peer-memory "
    "interface, and the device's library copies instead"
)
_LINK = "none: a software NIC has neither a link nor a retry handler to check"


def _int(default: int, least: int = 0, **more: Any) -> Count:
    return Count(least, _INT_MAX, **more)


class CxiEnvironment(Environment):
    """The variables in the order of the document, then those that the document omits."""

    forgives = True

    # ---- translation of addresses ----
    FI_CXI_ODP = Variable(Flag(), False, "on-demand paging: memory need not be there when it is registered")
    FI_CXI_FORCE_ODP = Variable(
        Flag(), False, "on-demand paging although the hints have MR_ALLOCATED; turns FI_CXI_ODP on"
    )
    FI_CXI_ATS = Variable(
        Flag(),
        False,
        "translation by PCIe ATS; otherwise by the NIC's own (NTA)",
        "as documented: with ATS no mapping is kept, so no key outlives its region; no host without iommu_v2 has it",
    )
    FI_CXI_ATS_MLOCK_MODE = Variable(
        Words("off", "all"), "all", "all: lock the whole process in memory where ATS is asked for; ignored without ODP"
    )
    # ---- rendezvous ----
    FI_CXI_RDZV_THRESHOLD = Variable(
        Count(RDZV_THRESHOLD_LEAST, below=RDZV_THRESHOLD_LEAST, unit="bytes"),
        2048,
        "a message's bytes that are sent eagerly",
        current=16384,
    )
    FI_CXI_RDZV_GET_MIN = Variable(Count(unit="bytes"), 2049, "the least payload that a rendezvous Get carries")
    FI_CXI_RDZV_EAGER_SIZE = Variable(
        Count(unit="bytes"), 2048, "eager bytes of a rendezvous; at most FI_CXI_RDZV_THRESHOLD"
    )
    FI_CXI_RDZV_PROTO = Variable(
        Words("default", "alt_read"),
        "default",
        "how the part that is not eager is moved; alt_read needs the driver's rdzv_get_en=0",
        "as documented: alt_read starts reads when the receiver's program makes progress; else the NIC pulls at once",
    )
    FI_CXI_DISABLE_NON_INJECT_MSG_IDC = Variable(
        Flag(),
        False,
        "small messages without INJECT are not sent by IDC",
        "as documented, for a message that the call cannot send at once: its bytes are taken from the buffer later",
    )
    FI_CXI_DISABLE_HOST_REGISTER = Variable(
        Flag(),
        False,
        "overflow and request buffers are not registered with the GPU",
        "as documented, for CUDA and endpoints with FI_HMEM",
    )
    # ---- buffers of unexpected messages ----
    FI_CXI_OFLOW_BUF_SIZE = Variable(Count(1, unit="bytes"), 2 * _MIB, "size of an overflow buffer", current=12 * _MIB)
    FI_CXI_OFLOW_BUF_MIN_POSTED = Variable(
        Count(1), 3, "the least number of overflow buffers that are posted", also="FI_CXI_OFLOW_BUF_COUNT"
    )
    FI_CXI_OFLOW_BUF_MAX_CACHED = Variable(
        Count(), 9, "the most overflow buffers that are kept; 0: all; default 3 times FI_CXI_OFLOW_BUF_MIN_POSTED"
    )
    FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD = Variable(
        Count(unit="bytes"), 4096, "the longest copy of device memory by the CPU's loads and stores"
    )
    # ---- memory regions ----
    FI_CXI_OPTIMIZED_MRS = Variable(Flag(), True, "regions of low keys are optimized; a domain can be told otherwise")
    FI_CXI_MR_MATCH_EVENTS = Variable(
        Flag(), False, "a closed region cannot be reached, even if it is still cached; a domain can be told otherwise"
    )
    FI_CXI_PROV_KEY_CACHE = Variable(Flag(), True, "provider keys of cached memory; a domain can be told otherwise")
    # ---- queues ----
    FI_CXI_LLRING_MODE = Variable(
        Words("idle", "always", "never"), "idle", "when the low-latency ring of a command queue is used", _COMMANDS
    )
    FI_CXI_CQ_POLICY = Variable(
        Words("always", "high_empty", "low_empty", "low"),
        "low_empty",
        "when the NIC writes back how far it has read a command queue",
        _COMMANDS,
    )
    FI_CXI_DEFAULT_VNI = Variable(Count(1, 65535), 10, "the VNI of a made key where the service leaves the VNI open")
    FI_CXI_RNR_MAX_TIMEOUT_US = Variable(
        _int(500_000, unit="us"),
        500_000,
        "PROTO_CXI_RNR: how long a message is retried; 0: the first refusal is an error",
    )
    FI_CXI_EQ_ACK_BATCH_SIZE = Variable(
        Count(1, below=1), 32, "events that are read before the NIC is told, and their slots are free again"
    )
    # ---- matching ----
    FI_CXI_RX_MATCH_MODE = Variable(
        Words("hardware", "software", "hybrid", loose=("hardware",)), "hardware", "who matches received messages"
    )
    FI_CXI_HYBRID_PREEMPTIVE = Variable(
        Flag(), False, "hybrid: to software before unexpected messages take the last entries"
    )
    FI_CXI_HYBRID_RECV_PREEMPTIVE = Variable(
        Flag(), False, "hybrid: to software before posted receives take the last entries"
    )
    FI_CXI_HYBRID_POSTED_RECV_PREEMPTIVE = Variable(
        Flag(), False, "hybrid: to software when more receives are posted than the rx size"
    )
    FI_CXI_HYBRID_UNEXPECTED_MSG_PREEMPTIVE = Variable(
        Flag(), False, "hybrid: to software when more messages are unexpected than the rx size"
    )
    FI_CXI_REQ_BUF_SIZE = Variable(
        Count(1, unit="bytes"),
        2 * _MIB,
        "size of a request buffer; at least a header, FI_CXI_RDZV_THRESHOLD and FI_CXI_RDZV_GET_MIN",
        _REQUESTS,
        current=12 * _MIB,
    )
    FI_CXI_REQ_BUF_MIN_POSTED = Variable(
        Count(2, below=2), 4, "the least number of request buffers that are posted", current=6
    )
    FI_CXI_REQ_BUF_MAX_CACHED = Variable(
        Count(), 0, "the most request buffers that are kept; 0: all", also="FI_CXI_REQ_BUF_MAX_COUNT"
    )
    FI_CXI_MSG_LOSSLESS = Variable(Flag(), False, "pause the traffic class where entries run out")
    FI_CXI_FC_RETRY_USEC_DELAY = Variable(
        _int(1000, below=0, unit="us"), 1000, "sleep before a dropped flow control message is sent again; 0: none"
    )
    FI_UNIVERSE_SIZE = Variable(
        Count(1),
        256,
        "processes of the whole application; the size of the control event queue follows from it",
        _CONTROL,
    )
    FI_CXI_CTRL_RX_EQ_MAX_SIZE = Variable(
        Count(1, unit="bytes"), 64 * _MIB, "the largest event queue of control messages, rounded up to 4 KiB", _CONTROL
    )
    FI_CXI_DEFAULT_CQ_SIZE = Variable(
        Count(1), 1024, "entries of a completion queue that is opened with size 0", current=131072
    )
    FI_CXI_DISABLE_EQ_HUGETLB = Variable(
        Flag(), False, "event queues in pages of the host's size, not in huge pages", also="FI_CXI_DISABLE_CQ_HUGETLB"
    )
    FI_CXI_DEFAULT_TX_SIZE = Variable(Count(16, 16384), 1024, "tx_attr.size where hints leave it open")
    FI_CXI_DEFAULT_RX_SIZE = Variable(Count(16, 15360), 1024, "rx_attr.size where hints leave it open")
    FI_CXI_SW_RX_TX_INIT_MAX = Variable(
        _int(1024, 64, below=64),
        1024,
        "operations under way that software matching has started",
        "as documented, for the reads of FI_CXI_RDZV_PROTO=alt_read; the NIC's own Gets have no limit",
    )
    FI_CXI_DEVICE_NAME = Variable(
        Names("names joined by ',', cxi0 to cxi99", "cxi[0-9]{1,2}"), (), "devices that are used"
    )
    FI_CXI_TELEMETRY = Variable(
        Names("names of counters joined by ','"),
        (),
        "counters whose growth between a domain's opening and closing is logged",
    )
    FI_CXI_TELEMETRY_RGID = Variable(
        Count(_INT_MIN, _INT_MAX), -1, "only for domains of this resource group (service); below 0: for all"
    )
    FI_CXI_CQ_FILL_PERCENT = Variable(
        Count(1, 100), 50, "how full an event queue is when its completion queue counts as saturated"
    )
    FI_CXI_COMPAT = Variable(
        Count(0, 2), 1, "old values of ADDR_CXI and PROTO_CXI: 1 also where hints name one, 0 not, 2 only", only="doc"
    )
    # ---- collectives ----
    FI_CXI_COLL_FABRIC_MGR_URL = Variable(
        Text("http:// or https:// address", str, r"https?://.*"), "", "the fabric manager, which makes multicast trees"
    )
    FI_CXI_COLL_TIMEOUT_USEC = Variable(
        Count(1, 20_000_000, below=1, above=20_000_000, unit="us"),
        32_000,
        "timeout of the reduction engine",
        _PASSED_ON,
        current=20_000_000,
    )
    FI_CXI_COLL_USE_DMA_PUT = Variable(Flag(), False, "reduction packets by DMA, not by IDC", _COLLECTIVES)
    # ---- device memory, deferred work ----
    FI_CXI_DISABLE_HMEM_DEV_REGISTER = Variable(
        Flag(), False, "device memory is not made reachable by loads and stores"
    )
    FI_CXI_FORCE_ZE_HMEM_SUPPORT = Variable(Flag(), False, "Level Zero memory whatever EnableImplicitScaling is")
    FI_CXI_ENABLE_TRIG_OP_LIMIT = Variable(Flag(), False, "refuse deferred work beyond the service's limit")
    # ---- read by the provider, not in the list of the document ----
    CXI_FORK_SAFE = Variable(Present(), False, "registered pages are kept from forked children")
    CXI_FORK_SAFE_HP = Variable(Present(), False, "with CXI_FORK_SAFE: in pages of the size that the memory has")
    WEFT_CXI_FORK_HAZARD = Variable(
        Words("warn", "show", "ignore"),
        "warn",
        "a fork with registered memory that nothing keeps safe; show: the NIC goes on with the pages of before",
    )
    WEFT_CXI_PIN = Variable(Flag(), False, "registered memory is locked in RAM (mlock), as a NIC that pins it does")
    WEFT_CXI_COUNTER_INTERVAL = Variable(
        Count(unit="ms"),
        0,
        "the NIC's counters are read anew at most once in this time, as on hardware that limits it; 0: at every call",
    )
    WEFT_CXI_ODP_REQUESTS = Variable(
        Count(0, (1 << 32) - 1),
        0,
        "on-demand paging: missing pages that one transfer gets in time; more are an ODP time-out; 0: any number",
    )
    FI_CXI_IOTLB = Variable(Flag(), True, "the NIC keeps translations", _TRANSLATION)
    FI_CXI_CNTR_SPIN_BEFORE_YIELD = Variable(
        _int(1000),
        1000,
        "polls of a counter before a wait yields the processor",
        "none: how long a wait spins follows from the number of processors",
    )
    FI_CXI_CNTR_TRIG_CMDQ = Variable(
        Flag(), False, "a command queue of its own for triggers", _TRIGGERS, only="current"
    )
    FI_CXI_RDZV_ALIGNED_SW_RGET = Variable(Flag(), True, "Gets of software rendezvous begin at cache lines", _PULLS)
    FI_CXI_DISABLE_ALT_READ_CMDQ = Variable(Flag(), False, "no command queue of its own for alt_read", _PULLS)
    FI_CXI_RGET_TC = Variable(
        Words("BEST_EFFORT", "LOW_LATENCY", "DEDICATED_ACCESS", "BULK_DATA"),
        "",
        "traffic class of rendezvous Gets",
        _PULLS,
    )
    FI_CXI_RNR_APPEND_RETRY_TIMEOUT_US = Variable(
        _int(2_000_000, unit="us"), 2_000_000, "PROTO_CXI_RNR: how long a receive is posted again", only="current"
    )
    FI_CXI_TRUNC_OK = Variable(Flag(), False, "a truncated message is no error", _TRUNCATED)
    FI_CXI_ENABLE_WRITEDATA = Variable(
        Flag(),
        False,
        "writes with remote data, of domains whose keys the provider makes; their regions are all standard ones",
        only="current",
    )
    FI_CXI_MR_TARGET_ORDERING = Variable(
        Words("default", "strict", "relaxed"),
        "default",
        "PCIe order of writes at the target",
        "as far as WEFT_CXI_REORDER goes: otherwise memory has the processor's order",
    )
    FI_CXI_MR_CACHE_EVENTS_DISABLE_POLL_NSECS = Variable(
        Count(unit="ns"),
        100_000,
        "how long closing a region with match events waits for operations",
        "none: closing a region waits until no operation uses it",
    )
    FI_CXI_MR_CACHE_EVENTS_DISABLE_LE_POLL_NSECS = Variable(
        Count(unit="ns"),
        1_000_000_000,
        "how long it then waits for the list entry",
        "none: closing a region waits until no operation uses it",
    )
    FI_CXI_DISABLE_NON_INJECT_RMA_IDC = Variable(Flag(), False, "small writes without INJECT are not sent by IDC", _IDC)
    FI_CXI_DISABLE_NON_INJECT_AMO_IDC = Variable(Flag(), False, "atomics without INJECT are not sent by IDC", _IDC)
    FI_CXI_FORCE_DEV_REG_COPY = Variable(Flag(), False, "copies of any length by the CPU's loads and stores")
    FI_CXI_DISABLE_CUDA_SYNC_MEMOPS = Variable(
        Flag(),
        False,
        "CUDA memory is not made synchronous",
        "none: each allocation is made synchronous when it is registered",
        only="current",
    )
    FI_CXI_ZBCOLL_RADIX = Variable(_int(2, 2, below=2), 2, "children of a process in a tree of zero-byte messages")
    FI_CXI_COLL_JOB_ID = Variable(Text("text", str), "", "the job, for the fabric manager")
    FI_CXI_COLL_JOB_STEP_ID = Variable(Text("text", str), "", "the job's step")
    FI_CXI_COLL_MCAST_TOKEN = Variable(Text("text", kind=Secret), "", "proof for the fabric manager")
    FI_CXI_COLL_FABRIC_MGR_CACERT = Variable(
        Text("no, yes, or a path", str), "no", "whether and by what the fabric manager's certificate is checked"
    )
    FI_CXI_COLL_RETRY_USEC = Variable(
        Count(1, 32_000, below=1, above=32_000, unit="us"),
        32_000,
        "when the root tries an incomplete reduction again",
        _COLLECTIVES,
    )
    FI_CXI_HWCOLL_ADDRS_PER_JOB = Variable(
        Count(), 0, "multicast addresses of a job", "as documented, for a process whose job has no fabric manager"
    )
    FI_CXI_HWCOLL_MIN_NODES = Variable(
        Count(), (1 << 64) - 1, "nodes from which collectives are accelerated", _COLLECTIVES
    )
    SLINGSHOT_VNIS = Variable(Names("VNIs joined by ','"), (), "VNIs of this job; the first is the made key's")
    SLINGSHOT_DEVICES = Variable(Names("names joined by ','"), (), "devices of this job")
    SLINGSHOT_SVC_IDS = Variable(Names("numbers joined by ','"), (), "services of this job, one for each device")
    SLINGSHOT_TCS = Variable(
        Text("a number, as the launcher has it", str),
        "",
        "traffic classes of this job",
        "none: for applications to read",
    )
    FI_MR_CACHE_MAX_COUNT = Variable(
        Count(),
        4096,
        "entries of the registration cache; 0: none",
        "as documented, for mappings of closed regions; weft's registration cache has 1024 entries where it is not set",
    )
    FI_MR_CACHE_MAX_SIZE = Variable(Count(unit="bytes"), (1 << 64) - 1, "bytes of the registration cache")
    FI_MR_CACHE_MONITOR = Variable(
        Words("userfaultfd", "uffd", "memhooks", "kdreg2", "disabled"),
        "",
        "what watches cached memory; the best that works where it is not set",
    )
    FI_HMEM_CUDA_USE_DMABUF = Variable(Flag(), True, "CUDA memory as dmabuf", _NO_PEER_MEMORY)
    FI_CXI_DISABLE_DMABUF_CUDA = Variable(
        Flag(), False, "CUDA memory by the nvidia peer-memory interface, not as DMA-buf", _NO_PEER_MEMORY
    )
    FI_CXI_DISABLE_DMABUF_ROCR = Variable(
        Flag(), False, "ROCm memory by the amdgpu peer-memory interface, not as DMA-buf", _NO_PEER_MEMORY
    )
    FI_HMEM_ROCR_USE_DMABUF = Variable(Flag(), True, "ROCm memory as dmabuf", _NO_PEER_MEMORY)
    EnableImplicitScaling = Variable(Text("text", str), "", "Level Zero: 0 is needed for its memory")
    NEOReadDebugKeys = Variable(Text("text", str), "", "Level Zero: 1 is needed for its memory")
    CXIP_SKIP_RH_CHECK = Variable(Present(), False, "use a NIC without its retry handler", _LINK)
    CXIP_SKIP_AMA_CHECK = Variable(Present(), False, "use a NIC without its fabric address", _LINK)

    def _depend(self) -> None:
        cls = type(self)
        if self.FI_CXI_FORCE_ODP and not self.FI_CXI_ODP:
            self.instead(cls.FI_CXI_ODP, True, "with FI_CXI_FORCE_ODP=1")
        oflow = self.FI_CXI_OFLOW_BUF_SIZE
        if oflow < self.FI_CXI_RDZV_THRESHOLD:
            default = min(cls.FI_CXI_RDZV_THRESHOLD.default_of(self.release), oflow)
            self.instead(cls.FI_CXI_RDZV_THRESHOLD, default, f"is more than FI_CXI_OFLOW_BUF_SIZE, {oflow}")
        if oflow - self.FI_CXI_RDZV_THRESHOLD < self.FI_CXI_RDZV_GET_MIN:
            self.instead(cls.FI_CXI_RDZV_GET_MIN, 0, "and FI_CXI_RDZV_THRESHOLD are more than FI_CXI_OFLOW_BUF_SIZE")
        if self.FI_CXI_RDZV_EAGER_SIZE > self.FI_CXI_RDZV_THRESHOLD or (
            self.release == "doc" and self.all["FI_CXI_RDZV_EAGER_SIZE"].origin == "default"
        ):
            self.instead(cls.FI_CXI_RDZV_EAGER_SIZE, self.FI_CXI_RDZV_THRESHOLD, "is not FI_CXI_RDZV_THRESHOLD or less")
        posted = self.FI_CXI_OFLOW_BUF_MIN_POSTED
        if self.all["FI_CXI_OFLOW_BUF_MAX_CACHED"].origin == "default":
            self.instead(cls.FI_CXI_OFLOW_BUF_MAX_CACHED, 3 * posted, "")
        elif 0 < self.FI_CXI_OFLOW_BUF_MAX_CACHED < posted:
            self.instead(cls.FI_CXI_OFLOW_BUF_MAX_CACHED, posted, f"is less than are posted, {posted}")
        if 0 < self.FI_CXI_REQ_BUF_MAX_CACHED < self.FI_CXI_REQ_BUF_MIN_POSTED:
            self.instead(cls.FI_CXI_REQ_BUF_MAX_CACHED, self.FI_CXI_REQ_BUF_MIN_POSTED, "is less than are posted")
        least = REQ_HEADER_BYTES + self.FI_CXI_RDZV_THRESHOLD + self.FI_CXI_RDZV_GET_MIN
        if least > self.FI_CXI_REQ_BUF_SIZE:
            self.instead(cls.FI_CXI_REQ_BUF_SIZE, least, "does not hold a header and an eager message")
        aligned = whole_pages(self.FI_CXI_CTRL_RX_EQ_MAX_SIZE)
        if aligned != self.FI_CXI_CTRL_RX_EQ_MAX_SIZE:
            self.instead(cls.FI_CXI_CTRL_RX_EQ_MAX_SIZE, aligned, "is no multiple of 4 KiB")


def whole_pages(bytes: int) -> int:
    """The bytes of an event queue, rounded up to 4 KiB."""
    return -(-bytes // _EQ_ALIGN) * _EQ_ALIGN


# ---- reading ---------------------------------------------------------------------------------------------------------

_said: set[str] = set()


def release() -> str:
    """The word of WEFT_CXI_RELEASE, by default "doc"; the profile checks it."""
    return "current" if os.environ.get("WEFT_CXI_RELEASE") == "current" else "doc"


def load() -> CxiEnvironment:
    """Read the environment. Warns once about each text whose value was replaced."""
    return _made(release(), tuple(os.environ.get(name) for name in _NAMES))


_NAMES = tuple(name for v in CxiEnvironment.variables() for name in (v.name, v.also) if name)


@functools.lru_cache(maxsize=64)  # every domain reads it: parse again only after a change
def _made(release: str, texts: tuple[str | None, ...]) -> CxiEnvironment:
    e = CxiEnvironment({name: text for name, text in zip(_NAMES, texts, strict=True) if text is not None}, release)
    for found in e.all.values():
        if found.note and found.note not in _said:
            _said.add(found.note)
            _warn(found.note)
    return e


def _warn(note: str) -> None:
    import logging  # imported here because it is slow to import and most environments need no warning

    logging.getLogger("weft.cxi").warning("environment: %s", note)


class Row(NamedTuple):
    """A variable for display.

    Attributes:
        value: The value in force.
        origin: "environment" or "default".
        values: The valid texts.
        meaning: The variable's purpose.
        effect: "as documented", or why it has none; and what was wrong with the text.
    """

    name: str
    value: str
    origin: str
    values: str
    meaning: str
    effect: str


def table() -> list[Row]:
    """Every variable of the release in force, as fi_info -e shows them."""
    e = load()
    rows = []
    for v in e.variables(e.release):
        found = e.all[v.name]
        effect = v.effect or "as documented"
        name = f"{v.name} ({v.also})" if v.also else v.name
        rows.append(
            Row(
                name,
                shown(found.value),
                found.origin,
                v.values,
                v.meaning,
                f"{effect}; {found.note}" if found.note else effect,
            )
        )
    return rows
