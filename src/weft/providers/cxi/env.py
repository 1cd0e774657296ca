"""The environment of the CXI provider: every variable with its value, its origin, and its effect in Weft.

    e = env.load()
    e.rdzv_threshold, e.optimized_mrs, ...      # names without FI_CXI_, in lower case
    e.found("rdzv_threshold").origin            # "environment" or "default"
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
    odp = Variable("FI_CXI_ODP", Flag(), False, "on-demand paging: memory need not be there when it is registered")
    force_odp = Variable(
        "FI_CXI_FORCE_ODP", Flag(), False, "on-demand paging although the hints have MR_ALLOCATED; turns FI_CXI_ODP on"
    )
    ats = Variable(
        "FI_CXI_ATS",
        Flag(),
        False,
        "translation by PCIe ATS; otherwise by the NIC's own (NTA)",
        "as documented: with ATS no mapping is kept, so no key outlives its region; no host without iommu_v2 has it",
    )
    ats_mlock_mode = Variable(
        "FI_CXI_ATS_MLOCK_MODE",
        Words("off", "all"),
        "all",
        "all: lock the whole process in memory where ATS is asked for; ignored without ODP",
    )
    # ---- rendezvous ----
    rdzv_threshold = Variable(
        "FI_CXI_RDZV_THRESHOLD",
        Count(RDZV_THRESHOLD_LEAST, below=RDZV_THRESHOLD_LEAST, unit="bytes"),
        2048,
        "a message's bytes that are sent eagerly",
        current=16384,
    )
    rdzv_get_min = Variable(
        "FI_CXI_RDZV_GET_MIN", Count(unit="bytes"), 2049, "the least payload that a rendezvous Get carries"
    )
    rdzv_eager_size = Variable(
        "FI_CXI_RDZV_EAGER_SIZE",
        Count(unit="bytes"),
        2048,
        "eager bytes of a rendezvous; at most FI_CXI_RDZV_THRESHOLD",
    )
    rdzv_proto = Variable(
        "FI_CXI_RDZV_PROTO",
        Words("default", "alt_read"),
        "default",
        "how the part that is not eager is moved; alt_read needs the driver's rdzv_get_en=0",
        "as documented: alt_read starts reads when the receiver's program makes progress; else the NIC pulls at once",
    )
    disable_non_inject_msg_idc = Variable(
        "FI_CXI_DISABLE_NON_INJECT_MSG_IDC",
        Flag(),
        False,
        "small messages without INJECT are not sent by IDC",
        "as documented, for a message that the call cannot send at once: its bytes are taken from the buffer later",
    )
    disable_host_register = Variable(
        "FI_CXI_DISABLE_HOST_REGISTER",
        Flag(),
        False,
        "overflow and request buffers are not registered with the GPU",
        "as documented, for CUDA and endpoints with FI_HMEM",
    )
    # ---- buffers of unexpected messages ----
    oflow_buf_size = Variable(
        "FI_CXI_OFLOW_BUF_SIZE",
        Count(1, unit="bytes"),
        2 * _MIB,
        "size of an overflow buffer",
        current=12 * _MIB,
    )
    oflow_buf_min_posted = Variable(
        "FI_CXI_OFLOW_BUF_MIN_POSTED",
        Count(1),
        3,
        "the least number of overflow buffers that are posted",
        also="FI_CXI_OFLOW_BUF_COUNT",
    )
    oflow_buf_max_cached = Variable(
        "FI_CXI_OFLOW_BUF_MAX_CACHED",
        Count(),
        9,
        "the most overflow buffers that are kept; 0: all; default 3 times FI_CXI_OFLOW_BUF_MIN_POSTED",
    )
    safe_devmem_copy_threshold = Variable(
        "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD",
        Count(unit="bytes"),
        4096,
        "the longest copy of device memory by the CPU's loads and stores",
    )
    # ---- memory regions ----
    optimized_mrs = Variable(
        "FI_CXI_OPTIMIZED_MRS", Flag(), True, "regions of low keys are optimized; a domain can be told otherwise"
    )
    mr_match_events = Variable(
        "FI_CXI_MR_MATCH_EVENTS",
        Flag(),
        False,
        "a closed region cannot be reached, even if it is still cached; a domain can be told otherwise",
    )
    prov_key_cache = Variable(
        "FI_CXI_PROV_KEY_CACHE", Flag(), True, "provider keys of cached memory; a domain can be told otherwise"
    )
    # ---- queues ----
    llring_mode = Variable(
        "FI_CXI_LLRING_MODE",
        Words("idle", "always", "never"),
        "idle",
        "when the low-latency ring of a command queue is used",
        _COMMANDS,
    )
    cq_policy = Variable(
        "FI_CXI_CQ_POLICY",
        Words("always", "high_empty", "low_empty", "low"),
        "low_empty",
        "when the NIC writes back how far it has read a command queue",
        _COMMANDS,
    )
    default_vni = Variable(
        "FI_CXI_DEFAULT_VNI", Count(1, 65535), 10, "the VNI of a made key where the service leaves the VNI open"
    )
    rnr_max_timeout_us = Variable(
        "FI_CXI_RNR_MAX_TIMEOUT_US",
        _int(500_000, unit="us"),
        500_000,
        "PROTO_CXI_RNR: how long a message is retried; 0: the first refusal is an error",
    )
    eq_ack_batch_size = Variable(
        "FI_CXI_EQ_ACK_BATCH_SIZE",
        Count(1, below=1),
        32,
        "events that are read before the NIC is told, and their slots are free again",
    )
    # ---- matching ----
    rx_match_mode = Variable(
        "FI_CXI_RX_MATCH_MODE",
        Words("hardware", "software", "hybrid", loose=("hardware",)),
        "hardware",
        "who matches received messages",
    )
    hybrid_preemptive = Variable(
        "FI_CXI_HYBRID_PREEMPTIVE",
        Flag(),
        False,
        "hybrid: to software before unexpected messages take the last entries",
    )
    hybrid_recv_preemptive = Variable(
        "FI_CXI_HYBRID_RECV_PREEMPTIVE",
        Flag(),
        False,
        "hybrid: to software before posted receives take the last entries",
    )
    hybrid_posted_recv_preemptive = Variable(
        "FI_CXI_HYBRID_POSTED_RECV_PREEMPTIVE",
        Flag(),
        False,
        "hybrid: to software when more receives are posted than the rx size",
    )
    hybrid_unexpected_msg_preemptive = Variable(
        "FI_CXI_HYBRID_UNEXPECTED_MSG_PREEMPTIVE",
        Flag(),
        False,
        "hybrid: to software when more messages are unexpected than the rx size",
    )
    req_buf_size = Variable(
        "FI_CXI_REQ_BUF_SIZE",
        Count(1, unit="bytes"),
        2 * _MIB,
        "size of a request buffer; at least a header, FI_CXI_RDZV_THRESHOLD and FI_CXI_RDZV_GET_MIN",
        _REQUESTS,
        current=12 * _MIB,
    )
    req_buf_min_posted = Variable(
        "FI_CXI_REQ_BUF_MIN_POSTED",
        Count(2, below=2),
        4,
        "the least number of request buffers that are posted",
        current=6,
    )
    req_buf_max_cached = Variable(
        "FI_CXI_REQ_BUF_MAX_CACHED",
        Count(),
        0,
        "the most request buffers that are kept; 0: all",
        also="FI_CXI_REQ_BUF_MAX_COUNT",
    )
    msg_lossless = Variable("FI_CXI_MSG_LOSSLESS", Flag(), False, "pause the traffic class where entries run out")
    fc_retry_usec_delay = Variable(
        "FI_CXI_FC_RETRY_USEC_DELAY",
        _int(1000, below=0, unit="us"),
        1000,
        "sleep before a dropped flow control message is sent again; 0: none",
    )
    universe_size = Variable(
        "FI_UNIVERSE_SIZE",
        Count(1),
        256,
        "processes of the whole application; the size of the control event queue follows from it",
        _CONTROL,
    )
    ctrl_rx_eq_max_size = Variable(
        "FI_CXI_CTRL_RX_EQ_MAX_SIZE",
        Count(1, unit="bytes"),
        64 * _MIB,
        "the largest event queue of control messages, rounded up to 4 KiB",
        _CONTROL,
    )
    default_cq_size = Variable(
        "FI_CXI_DEFAULT_CQ_SIZE",
        Count(1),
        1024,
        "entries of a completion queue that is opened with size 0",
        current=131072,
    )
    disable_eq_hugetlb = Variable(
        "FI_CXI_DISABLE_EQ_HUGETLB",
        Flag(),
        False,
        "event queues in pages of the host's size, not in huge pages",
        also="FI_CXI_DISABLE_CQ_HUGETLB",
    )
    default_tx_size = Variable(
        "FI_CXI_DEFAULT_TX_SIZE", Count(16, 16384), 1024, "tx_attr.size where hints leave it open"
    )
    default_rx_size = Variable(
        "FI_CXI_DEFAULT_RX_SIZE", Count(16, 15360), 1024, "rx_attr.size where hints leave it open"
    )
    sw_rx_tx_init_max = Variable(
        "FI_CXI_SW_RX_TX_INIT_MAX",
        _int(1024, 64, below=64),
        1024,
        "operations under way that software matching has started",
        "as documented, for the reads of FI_CXI_RDZV_PROTO=alt_read; the NIC's own Gets have no limit",
    )
    device_name = Variable(
        "FI_CXI_DEVICE_NAME", Names("names joined by ',', cxi0 to cxi99", "cxi[0-9]{1,2}"), (), "devices that are used"
    )
    telemetry = Variable(
        "FI_CXI_TELEMETRY",
        Names("names of counters joined by ','"),
        (),
        "counters whose growth between a domain's opening and closing is logged",
    )
    telemetry_rgid = Variable(
        "FI_CXI_TELEMETRY_RGID",
        Count(_INT_MIN, _INT_MAX),
        -1,
        "only for domains of this resource group (service); below 0: for all",
    )
    cq_fill_percent = Variable(
        "FI_CXI_CQ_FILL_PERCENT",
        Count(1, 100),
        50,
        "how full an event queue is when its completion queue counts as saturated",
    )
    compat = Variable(
        "FI_CXI_COMPAT",
        Count(0, 2),
        1,
        "old values of ADDR_CXI and PROTO_CXI: 1 also where hints name one, 0 not, 2 only",
        only="doc",
    )
    # ---- collectives ----
    coll_fabric_mgr_url = Variable(
        "FI_CXI_COLL_FABRIC_MGR_URL",
        Text("http:// or https:// address", str, r"https?://.*"),
        "",
        "the fabric manager, which makes multicast trees",
    )
    coll_timeout_usec = Variable(
        "FI_CXI_COLL_TIMEOUT_USEC",
        Count(1, 20_000_000, below=1, above=20_000_000, unit="us"),
        32_000,
        "timeout of the reduction engine",
        _PASSED_ON,
        current=20_000_000,
    )
    coll_use_dma_put = Variable(
        "FI_CXI_COLL_USE_DMA_PUT", Flag(), False, "reduction packets by DMA, not by IDC", _COLLECTIVES
    )
    # ---- device memory, deferred work ----
    disable_hmem_dev_register = Variable(
        "FI_CXI_DISABLE_HMEM_DEV_REGISTER",
        Flag(),
        False,
        "device memory is not made reachable by loads and stores",
    )
    force_ze_hmem_support = Variable(
        "FI_CXI_FORCE_ZE_HMEM_SUPPORT",
        Flag(),
        False,
        "Level Zero memory whatever EnableImplicitScaling is",
    )
    enable_trig_op_limit = Variable(
        "FI_CXI_ENABLE_TRIG_OP_LIMIT", Flag(), False, "refuse deferred work beyond the service's limit"
    )
    # ---- read by the provider, not in the list of the document ----
    fork_safe = Variable("CXI_FORK_SAFE", Present(), False, "registered pages are kept from forked children")
    fork_safe_hp = Variable(
        "CXI_FORK_SAFE_HP", Present(), False, "with CXI_FORK_SAFE: in pages of the size that the memory has"
    )
    weft_fork_hazard = Variable(
        "WEFT_CXI_FORK_HAZARD",
        Words("warn", "show", "ignore"),
        "warn",
        "a fork with registered memory that nothing keeps safe; show: the NIC goes on with the pages of before",
    )
    weft_pin = Variable(
        "WEFT_CXI_PIN", Flag(), False, "registered memory is locked in RAM (mlock), as a NIC that pins it does"
    )
    weft_counter_interval = Variable(
        "WEFT_CXI_COUNTER_INTERVAL",
        Count(unit="ms"),
        0,
        "the NIC's counters are read anew at most once in this time, as on hardware that limits it; 0: at every call",
    )
    weft_odp_requests = Variable(
        "WEFT_CXI_ODP_REQUESTS",
        Count(0, (1 << 32) - 1),
        0,
        "on-demand paging: missing pages that one transfer gets in time; more are an ODP time-out; 0: any number",
    )
    iotlb = Variable("FI_CXI_IOTLB", Flag(), True, "the NIC keeps translations", _TRANSLATION)
    cntr_spin_before_yield = Variable(
        "FI_CXI_CNTR_SPIN_BEFORE_YIELD",
        _int(1000),
        1000,
        "polls of a counter before a wait yields the processor",
        "none: how long a wait spins follows from the number of processors",
    )
    cntr_trig_cmdq = Variable(
        "FI_CXI_CNTR_TRIG_CMDQ", Flag(), False, "a command queue of its own for triggers", _TRIGGERS, only="current"
    )
    rdzv_aligned_sw_rget = Variable(
        "FI_CXI_RDZV_ALIGNED_SW_RGET", Flag(), True, "Gets of software rendezvous begin at cache lines", _PULLS
    )
    disable_alt_read_cmdq = Variable(
        "FI_CXI_DISABLE_ALT_READ_CMDQ", Flag(), False, "no command queue of its own for alt_read", _PULLS
    )
    rget_tc = Variable(
        "FI_CXI_RGET_TC",
        Words("BEST_EFFORT", "LOW_LATENCY", "DEDICATED_ACCESS", "BULK_DATA"),
        "",
        "traffic class of rendezvous Gets",
        _PULLS,
    )
    rnr_append_retry_timeout_us = Variable(
        "FI_CXI_RNR_APPEND_RETRY_TIMEOUT_US",
        _int(2_000_000, unit="us"),
        2_000_000,
        "PROTO_CXI_RNR: how long a receive is posted again",
        only="current",
    )
    trunc_ok = Variable("FI_CXI_TRUNC_OK", Flag(), False, "a truncated message is no error", _TRUNCATED)
    enable_writedata = Variable(
        "FI_CXI_ENABLE_WRITEDATA",
        Flag(),
        False,
        "writes with remote data, of domains whose keys the provider makes; their regions are all standard ones",
        only="current",
    )
    mr_target_ordering = Variable(
        "FI_CXI_MR_TARGET_ORDERING",
        Words("default", "strict", "relaxed"),
        "default",
        "PCIe order of writes at the target",
        "as far as WEFT_CXI_REORDER goes: otherwise memory has the processor's order",
    )
    mr_cache_events_disable_poll_nsecs = Variable(
        "FI_CXI_MR_CACHE_EVENTS_DISABLE_POLL_NSECS",
        Count(unit="ns"),
        100_000,
        "how long closing a region with match events waits for operations",
        "none: closing a region waits until no operation uses it",
    )
    mr_cache_events_disable_le_poll_nsecs = Variable(
        "FI_CXI_MR_CACHE_EVENTS_DISABLE_LE_POLL_NSECS",
        Count(unit="ns"),
        1_000_000_000,
        "how long it then waits for the list entry",
        "none: closing a region waits until no operation uses it",
    )
    disable_non_inject_rma_idc = Variable(
        "FI_CXI_DISABLE_NON_INJECT_RMA_IDC", Flag(), False, "small writes without INJECT are not sent by IDC", _IDC
    )
    disable_non_inject_amo_idc = Variable(
        "FI_CXI_DISABLE_NON_INJECT_AMO_IDC", Flag(), False, "atomics without INJECT are not sent by IDC", _IDC
    )
    force_dev_reg_copy = Variable(
        "FI_CXI_FORCE_DEV_REG_COPY", Flag(), False, "copies of any length by the CPU's loads and stores"
    )
    disable_cuda_sync_memops = Variable(
        "FI_CXI_DISABLE_CUDA_SYNC_MEMOPS",
        Flag(),
        False,
        "CUDA memory is not made synchronous",
        "none: each allocation is made synchronous when it is registered",
        only="current",
    )
    zbcoll_radix = Variable(
        "FI_CXI_ZBCOLL_RADIX",
        _int(2, 2, below=2),
        2,
        "children of a process in a tree of zero-byte messages",
    )
    coll_job_id = Variable("FI_CXI_COLL_JOB_ID", Text("text", str), "", "the job, for the fabric manager")
    coll_job_step_id = Variable("FI_CXI_COLL_JOB_STEP_ID", Text("text", str), "", "the job's step")
    coll_mcast_token = Variable(
        "FI_CXI_COLL_MCAST_TOKEN", Text("text", kind=Secret), "", "proof for the fabric manager"
    )
    coll_fabric_mgr_cacert = Variable(
        "FI_CXI_COLL_FABRIC_MGR_CACERT",
        Text("no, yes, or a path", str),
        "no",
        "whether and by what the fabric manager's certificate is checked",
    )
    coll_retry_usec = Variable(
        "FI_CXI_COLL_RETRY_USEC",
        Count(1, 32_000, below=1, above=32_000, unit="us"),
        32_000,
        "when the root tries an incomplete reduction again",
        _COLLECTIVES,
    )
    hwcoll_addrs_per_job = Variable(
        "FI_CXI_HWCOLL_ADDRS_PER_JOB",
        Count(),
        0,
        "multicast addresses of a job",
        "as documented, for a process whose job has no fabric manager",
    )
    hwcoll_min_nodes = Variable(
        "FI_CXI_HWCOLL_MIN_NODES", Count(), (1 << 64) - 1, "nodes from which collectives are accelerated", _COLLECTIVES
    )
    slingshot_vnis = Variable(
        "SLINGSHOT_VNIS", Names("VNIs joined by ','"), (), "VNIs of this job; the first is the made key's"
    )
    slingshot_devices = Variable("SLINGSHOT_DEVICES", Names("names joined by ','"), (), "devices of this job")
    slingshot_svc_ids = Variable(
        "SLINGSHOT_SVC_IDS", Names("numbers joined by ','"), (), "services of this job, one for each device"
    )
    slingshot_tcs = Variable(
        "SLINGSHOT_TCS",
        Text("a number, as the launcher has it", str),
        "",
        "traffic classes of this job",
        "none: for applications to read",
    )
    mr_cache_max_count = Variable(
        "FI_MR_CACHE_MAX_COUNT",
        Count(),
        4096,
        "entries of the registration cache; 0: none",
        "as documented, for mappings of closed regions; weft's registration cache has 1024 entries where it is not set",
    )
    mr_cache_max_size = Variable(
        "FI_MR_CACHE_MAX_SIZE", Count(unit="bytes"), (1 << 64) - 1, "bytes of the registration cache"
    )
    mr_cache_monitor = Variable(
        "FI_MR_CACHE_MONITOR",
        Words("userfaultfd", "uffd", "memhooks", "kdreg2", "disabled"),
        "",
        "what watches cached memory; the best that works where it is not set",
    )
    cuda_use_dmabuf = Variable("FI_HMEM_CUDA_USE_DMABUF", Flag(), True, "CUDA memory as dmabuf", _NO_PEER_MEMORY)
    disable_dmabuf_cuda = Variable(
        "FI_CXI_DISABLE_DMABUF_CUDA",
        Flag(),
        False,
        "CUDA memory by the nvidia peer-memory interface, not as DMA-buf",
        _NO_PEER_MEMORY,
    )
    disable_dmabuf_rocr = Variable(
        "FI_CXI_DISABLE_DMABUF_ROCR",
        Flag(),
        False,
        "ROCm memory by the amdgpu peer-memory interface, not as DMA-buf",
        _NO_PEER_MEMORY,
    )
    rocr_use_dmabuf = Variable("FI_HMEM_ROCR_USE_DMABUF", Flag(), True, "ROCm memory as dmabuf", _NO_PEER_MEMORY)
    implicit_scaling = Variable(
        "EnableImplicitScaling", Text("text", str), "", "Level Zero: 0 is needed for its memory"
    )
    neo_read_debug_keys = Variable("NEOReadDebugKeys", Text("text", str), "", "Level Zero: 1 is needed for its memory")
    skip_rh_check = Variable("CXIP_SKIP_RH_CHECK", Present(), False, "use a NIC without its retry handler", _LINK)
    skip_ama_check = Variable("CXIP_SKIP_AMA_CHECK", Present(), False, "use a NIC without its fabric address", _LINK)

    def _depend(self) -> None:
        cls = type(self)
        if self.force_odp and not self.odp:
            self.instead(cls.odp, True, "with FI_CXI_FORCE_ODP=1")
        oflow = self.oflow_buf_size
        if self.rdzv_threshold > oflow:
            default = min(cls.rdzv_threshold.default_of(self.release), oflow)
            self.instead(cls.rdzv_threshold, default, f"is more than FI_CXI_OFLOW_BUF_SIZE, {oflow}")
        if self.rdzv_get_min > oflow - self.rdzv_threshold:
            self.instead(cls.rdzv_get_min, 0, "and FI_CXI_RDZV_THRESHOLD are more than FI_CXI_OFLOW_BUF_SIZE")
        if self.rdzv_eager_size > self.rdzv_threshold or (
            self.release == "doc" and self.found("rdzv_eager_size").origin == "default"
        ):
            self.instead(cls.rdzv_eager_size, self.rdzv_threshold, "is not FI_CXI_RDZV_THRESHOLD or less")
        posted = self.oflow_buf_min_posted
        if self.found("oflow_buf_max_cached").origin == "default":
            self.instead(cls.oflow_buf_max_cached, 3 * posted, "")
        elif 0 < self.oflow_buf_max_cached < posted:
            self.instead(cls.oflow_buf_max_cached, posted, f"is less than are posted, {posted}")
        if 0 < self.req_buf_max_cached < self.req_buf_min_posted:
            self.instead(cls.req_buf_max_cached, self.req_buf_min_posted, "is less than are posted")
        least = REQ_HEADER_BYTES + self.rdzv_threshold + self.rdzv_get_min
        if self.req_buf_size < least:
            self.instead(cls.req_buf_size, least, "does not hold a header and an eager message")
        aligned = whole_pages(self.ctrl_rx_eq_max_size)
        if aligned != self.ctrl_rx_eq_max_size:
            self.instead(cls.ctrl_rx_eq_max_size, aligned, "is no multiple of 4 KiB")


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
