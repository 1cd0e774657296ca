"""The rules of a CXI endpoint's calls: flags, counts, and the atomic operations.

Source: fi_cxi(7) "Operation flags", "OPTIMIZATION"; the real provider's tables.
"""

from __future__ import annotations

from ... import _nic
from ...flags import Datatype, Errno, Flag, Op, RecvFlag
from .mr import CACHED, CONTEXT_BITS, OFFSET_BITS, OPTIMIZED, PROVIDER, SOLICITED
from .names import OpFlag

U64_MAX = (1 << 64) - 1

_LEVELS = Flag.INJECT_COMPLETE | Flag.TRANSMIT_COMPLETE | Flag.DELIVERY_COMPLETE | Flag.MATCH_COMPLETE
_READ = int(Flag.COMPLETION | Flag.MORE | Flag.FENCE | _LEVELS)
_WRITE = _READ | int(Flag.INJECT) | int(OpFlag.HRP | OpFlag.WEAK_FENCE)
# The real provider's op_flags of sends; receives take two flags of sends too, without effect.
_SEND = _READ | int(Flag.INJECT | Flag.REMOTE_CQ_DATA)
_RECV = int(Flag.COMPLETION | Flag.MULTI_RECV | Flag.MORE | Flag.REMOTE_CQ_DATA | Flag.INJECT)
_TRECV = _RECV | int(Flag.PEEK) | int(RecvFlag.CLAIM)
_ATOMIC = _WRITE | int(OpFlag.UNRELIABLE)
_COMPARING = _ATOMIC & ~int(OpFlag.HRP)
_FETCH = _COMPARING | int(OpFlag.PCIE_AMO)

_INTEGERS = (
    Datatype.INT8,
    Datatype.UINT8,
    Datatype.INT16,
    Datatype.UINT16,
    Datatype.INT32,
    Datatype.UINT32,
    Datatype.INT64,
    Datatype.UINT64,
)
_REALS = (Datatype.FLOAT, Datatype.DOUBLE)
_COMPLEX = (Datatype.FLOAT_COMPLEX, Datatype.DOUBLE_COMPLEX)


def _bits(*kinds: Datatype) -> int:
    return sum(1 << int(kind) for kind in kinds)


_ORDERED = _bits(*_INTEGERS, *_REALS)
_ALL = _ORDERED | _bits(*_COMPLEX)
_INTEGER_BITS = _bits(*_INTEGERS)
_BASE = {
    Op.MIN: _ORDERED,
    Op.MAX: _ORDERED,
    Op.SUM: _ALL,
    **dict.fromkeys((Op.LOR, Op.LAND, Op.LXOR, Op.BOR, Op.BAND, Op.BXOR), _INTEGER_BITS),
    Op.ATOMIC_WRITE: _ALL,
}
_COMPARE = {
    Op.CSWAP: _ALL | _bits(Datatype.INT128, Datatype.UINT128),
    Op.CSWAP_NE: _ALL,
    **dict.fromkeys((Op.CSWAP_LE, Op.CSWAP_LT, Op.CSWAP_GE, Op.CSWAP_GT), _ORDERED),
    Op.MSWAP: _INTEGER_BITS,
}
_TABLE: tuple[dict[Op, int], ...] = (_BASE, {**_BASE, Op.ATOMIC_READ: _ALL}, _COMPARE)

# Remap value of the driver -> the operation that PCIe fetch-add replaces.
_REMAPPED = {0: Op.MIN, 1: Op.MAX, 2: Op.SUM, 4: Op.LOR, 5: Op.LAND, 6: Op.BOR, 7: Op.BAND, 8: Op.LXOR, 9: Op.BXOR}
_PCIE = _bits(Datatype.INT32, Datatype.UINT32, Datatype.INT64, Datatype.UINT64)


def _datatypes(family: int, op: int, remap: int) -> int:
    """The datatypes of an operation of the NIC, bit = number of the datatype."""
    if _REMAPPED.get(remap) == op:
        return 0
    return _TABLE[family].get(Op(op), 0)


def atomic_limit(datatype: int, op: int, family: int, flags: int, remap: int) -> tuple[int, int]:
    """(1, bytes of an element), or (0, bytes) if the operation does not exist.

    Args:
        remap: The driver's amo_remap_to_pcie_fadd.
    """
    _, size = _nic.atomic_valid(datatype, op, family)
    if flags & OpFlag.PCIE_AMO:
        found = family == 1 and op == Op.SUM and remap >= 0 and _PCIE >> datatype & 1
    else:
        found = bool(_datatypes(family, op, remap) >> datatype & 1)
    return (1 if found else 0), size


def make(remap: int, *, unreliable_fetches: bool = False, data_writes: bool = False) -> _nic.OpRules:
    """The rules of an endpoint on a device with this remap value.

    Args:
        unreliable_fetches: Fetching and comparing atomics take FI_CXI_UNRELIABLE, as in later releases.
        data_writes: There are writes with remote data, also by writemsg.
    """
    without = 0 if unreliable_fetches else int(OpFlag.UNRELIABLE)
    rules = _nic.OpRules()
    rules.iov_max = rules.rma_iov_max = 1
    rules.atomic_count_max = 1
    rules.fence_needs_cap = True
    rules.only_receives_cancel = True
    rules.fence_also = int(OpFlag.WEAK_FENCE)
    rules.local_lengths = True
    rules.data_key_mask = PROVIDER | CACHED | OPTIMIZED | SOLICITED
    rules.data_key_value = PROVIDER | SOLICITED
    rules.name_flags([(int(flag), f"cxi.{flag.name}") for flag in OpFlag])
    rules.add_key_form(~0xFFFFFFFF & U64_MAX, 0)  # the application's: 32 bits
    rules.add_key_form(PROVIDER | CACHED, PROVIDER)
    rules.add_key_form(
        PROVIDER | CACHED,
        PROVIDER | CACHED,
        offset_mask=(1 << OFFSET_BITS) - 1,
        offset_shift=CONTEXT_BITS,
        sum_max=1 << 56,
    )
    write = _WRITE | (int(Flag.REMOTE_CQ_DATA) if data_writes else 0)
    calls = {"read": _READ, "write": write, "atomic": _ATOMIC, "fetch": _FETCH & ~without}
    calls["compare"] = _COMPARING & ~without
    calls |= {"send": _SEND, "tsend": _SEND, "recv": _RECV, "trecv": _TRECV}
    for call, flags in calls.items():
        rules.set_flags(call, flags)
    rules.set_flags("batch", int(Flag.COMPLETION | Flag.MORE | _LEVELS))
    for family in range(3):
        for op in Op:
            if op < Op.NOOP:
                rules.set_atomics(family, int(op), _datatypes(family, int(op), remap))
    rules.pcie_flag, rules.pcie_datatypes = int(OpFlag.PCIE_AMO), _PCIE if remap >= 0 else 0
    for refusal in (_nic.Refusal.not_enabled, _nic.Refusal.no_capability, _nic.Refusal.no_message_data):
        rules.set_errno(refusal, int(Errno.ENOSYS))
    for refusal in (_nic.Refusal.unknown_atomic, _nic.Refusal.too_many_elements):
        rules.set_errno(refusal, int(Errno.EINVAL))
    return rules
