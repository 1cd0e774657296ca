"""Flags: capabilities, operation, bind, access and completion flags, modes and orders."""

from __future__ import annotations

from ._base import Flags, space, spaces


class Flag(Flags):
    """Capabilities, operation, access and completion flags: the common 64-bit space."""

    MSG = 1 << 1
    RMA = 1 << 2
    TAGGED = 1 << 3
    ATOMIC = 1 << 4
    ATOMICS = 1 << 4
    MULTICAST = 1 << 5
    COLLECTIVE = 1 << 6
    READ = 1 << 8
    WRITE = 1 << 9
    RECV = 1 << 10
    TRANSMIT = 1 << 11
    SEND = 1 << 11
    REMOTE_READ = 1 << 12
    REMOTE_WRITE = 1 << 13
    MULTI_RECV = 1 << 16
    REMOTE_CQ_DATA = 1 << 17
    MORE = 1 << 18
    PEEK = 1 << 19
    TRIGGER = 1 << 20
    FENCE = 1 << 21
    COMPLETION = 1 << 24
    EVENT = 1 << 24
    INJECT = 1 << 25
    INJECT_COMPLETE = 1 << 26
    TRANSMIT_COMPLETE = 1 << 27
    DELIVERY_COMPLETE = 1 << 28
    AFFINITY = 1 << 29
    COMMIT_COMPLETE = 1 << 30
    MATCH_COMPLETE = 1 << 31
    RESCAN = 1 << 35
    PEER_TRANSFER = 1 << 36
    AV_USER_ID = 1 << 41
    FIREWALL_ADDR = 1 << 42
    PEER = 1 << 43
    XPU = 1 << 44
    TAGGED_DIRECTED_RECV = 1 << 45
    TAGGED_MULTI_RECV = 1 << 46
    HMEM = 1 << 47
    EXACT_DIRECTED_RECV = 1 << 48
    RMA_PMEM = 1 << 49
    SOURCE_ERR = 1 << 50
    LOCAL_COMM = 1 << 51
    REMOTE_COMM = 1 << 52
    SHARED_AV = 1 << 53
    RMA_EVENT = 1 << 56
    SOURCE = 1 << 57
    NAMED_RX_CTX = 1 << 58
    DIRECTED_RECV = 1 << 59


class GetinfoFlag(Flags):
    """Flags of fi_getinfo alone (FI_SOURCE and FI_RESCAN are in `Flag`)."""

    PROV_ATTR_ONLY = 1 << 54
    NUMERICHOST = 1 << 55


class BindFlag(Flags):
    """Flags of fi_ep_bind with a completion queue."""

    SELECTIVE_COMPLETION = 1 << 59


class RecvFlag(Flags):
    """Flags of fi_recvmsg and fi_trecvmsg."""

    DISCARD = 1 << 58
    CLAIM = 1 << 59


class AvFlag(Flags):
    """Flags of fi_av_open, fi_av_insert and fi_av_remove (FI_AUTH_KEY also of fi_mr_regattr)."""

    AUTH_KEY = 1 << 57
    SYNC_ERR = 1 << 58
    SYMMETRIC = 1 << 59


class AvSetFlag(Flags):
    """Flags of fi_av_set: the collectives that a set will be used for."""

    BARRIER_SET = 1 << 40
    BROADCAST_SET = 1 << 41
    ALLTOALL_SET = 1 << 42
    ALLREDUCE_SET = 1 << 43
    ALLGATHER_SET = 1 << 44
    REDUCE_SCATTER_SET = 1 << 45
    REDUCE_SET = 1 << 46
    SCATTER_SET = 1 << 47
    GATHER_SET = 1 << 48
    UNIVERSE = 1 << 57


class MrFlag(Flags):
    """Flags of memory registration (FI_RMA_EVENT and FI_RMA_PMEM are in `Flag`)."""

    MR_DMABUF = 1 << 40
    MR_SINGLE_USE = 1 << 41
    HMEM_HOST_ALLOC = 1 << 45
    HMEM_DEVICE_ONLY = 1 << 46


class AtomicFlag(Flags):
    """Flags of fi_query_atomic."""

    FETCH_ATOMIC = 1 << 58
    COMPARE_ATOMIC = 1 << 59


class Mode(Flags):
    """Operational modes (fi_info.mode): what the application must do."""

    CONTEXT2 = 1 << 52
    LOCAL_MR = 1 << 55
    RX_CQ_DATA = 1 << 56
    ASYNC_IOV = 1 << 57
    MSG_PREFIX = 1 << 58
    CONTEXT = 1 << 59


class RegisterMode(Flags):
    """fi_domain_bind: registrations complete asynchronously (deprecated)."""

    REG_MR = 1 << 59


class MrMode(Flags):
    """Memory registration modes (fi_domain_attr.mr_mode)."""

    MR_UNSPEC = 0x0
    MR_BASIC = 0x1
    MR_SCALABLE = 0x2
    MR_LOCAL = 0x4
    MR_RAW = 0x8
    MR_VIRT_ADDR = 0x10
    MR_ALLOCATED = 0x20
    MR_PROV_KEY = 0x40
    MR_MMU_NOTIFY = 0x80
    MR_RMA_EVENT = 0x100
    MR_ENDPOINT = 0x200
    MR_HMEM = 0x400
    MR_COLLECTIVE = 0x800
    MR_XPU_DESC = 0x1000


class Order(Flags):
    """Message ordering (fi_tx_attr.msg_order, fi_rx_attr.msg_order)."""

    ORDER_NONE = 0x0
    ORDER_RAR = 0x1
    ORDER_RAW = 0x2
    ORDER_RAS = 0x4
    ORDER_WAR = 0x8
    ORDER_WAW = 0x10
    ORDER_WAS = 0x20
    ORDER_SAR = 0x40
    ORDER_SAW = 0x80
    ORDER_SAS = 0x100
    ORDER_RMA_RAR = 1 << 32
    ORDER_RMA_RAW = 1 << 33
    ORDER_RMA_WAR = 1 << 34
    ORDER_RMA_WAW = 1 << 35
    ORDER_ATOMIC_RAR = 1 << 36
    ORDER_ATOMIC_RAW = 1 << 37
    ORDER_ATOMIC_WAR = 1 << 38
    ORDER_ATOMIC_WAW = 1 << 39


class CompOrder(Flags):
    """Completion ordering; deprecated, and refused in hints by API 2.x."""

    ORDER_STRICT = 0x1FF
    ORDER_DATA = 0x10000


spaces(Flag, (GetinfoFlag, BindFlag, RecvFlag, AvFlag, AvSetFlag, MrFlag, AtomicFlag))
for _cls in (Mode, RegisterMode, MrMode, Order, CompOrder):
    space(_cls)
