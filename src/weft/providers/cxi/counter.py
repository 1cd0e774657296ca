"""Counters of the CXI provider: their limits, the write-back buffer and the page for plain stores.

A counter of the NIC holds 48 bits of success and 7 of failure, and saturates. Source: fi_cxi(7) "CXI Counter
Extensions", "CXI Counter Writeback Flag"; <rdma/fi_cxi_ext.h>.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ... import _nic, errors
from ...fi.policy_rules import CounterRules
from ...fi.rules import Rule
from ...flags import CntrEvents, Control, Errno, WaitObj
from ..base import BaseCounter, BaseDomain
from .names import CNTR_FAILURE_MAX, CNTR_SUCCESS_MAX, COUNTER_OPS, CntrFlag
from .number import number
from .resources import Exhausted, Pool

CACHED = int(CntrFlag.CNTR_CACHED)
_WRITTEN = 1 << 63  # bit of the write-back word
_ADD, _ADDERR, _SET, _SETERR = 0, 64, 128, 192  # offsets of the page's words

RULES = CounterRules(
    events=frozenset(CntrEvents),
    wait_objs=frozenset({WaitObj.WAIT_NONE, WaitObj.WAIT_UNSPEC, WaitObj.WAIT_YIELD}),
    flags=CACHED,
    cached=CACHED,
    value_max=CNTR_SUCCESS_MAX,
    errors_max=CNTR_FAILURE_MAX,
    client_memory=True,
)
"""The rules of `cntr_open`."""

REFUSALS: Mapping[Rule, Errno] = {
    Rule.CNTR_EVENTS: Errno.ENOSYS,
    Rule.WAIT_OBJ: Errno.ENOSYS,
    Rule.CNTR_OPEN_FLAGS: Errno.ENOSYS,
    Rule.CNTR_RESOURCES: Errno.EDOMAIN,
    Rule.CNTR_CONTROL: Errno.EINVAL,
    Rule.CNTR_OPS: Errno.EINVAL,
}
"""Error numbers of counters' refusals that differ from the man page."""


class CxiCounter(BaseCounter):
    """One counter: a hardware counter ("cts") of the domain's service."""

    def __init__(self, domain: BaseDomain, pool: Pool) -> None:
        """pool: the domain's part of the service's resources."""
        super().__init__(domain)
        self._pool: Pool | None = None
        try:
            pool.take("cts")
        except Exhausted as reason:
            raise self.refusals.refuse(
                Rule.CNTR_RESOURCES, f"cntr_open: no hardware counter is left: {reason}"
            ) from None
        self._pool = pool

    def control(self, fid: Any, command: int, arg: Any) -> Any:
        """FI_GETOPSFLAG returns the flags, FI_SETOPSFLAG sets them: FI_CXI_CNTR_CACHED or 0."""
        if command == Control.GETOPSFLAG:
            return CACHED if fid.cached else 0
        if command == Control.SETOPSFLAG:
            flags = number(arg)
            if flags is None or flags & ~CACHED:
                raise self.refusals.refuse(
                    Rule.CNTR_CONTROL,
                    f"cntr.control(SETOPSFLAG): flags {arg!r}\n  rule: cxi.CNTR_CACHED or 0",
                )
            fid.cached = bool(flags)
            return None
        return super().control(fid, command, arg)

    def open_ops(self, fid: Any, name: str, flags: int) -> Any:
        """`CntrOps` for "cxi_counter_ops"; the flags are ignored."""
        return CntrOps(fid) if name == COUNTER_OPS else super().open_ops(fid, name, 0)

    def close(self) -> None:
        """Give the hardware counter back."""
        if self._pool is not None:
            self._pool.give("cts")
            self._pool = None


class CntrOps:
    """Calls of a counter beyond the interface (struct fi_cxi_cntr_ops). Source: fi_cxi(7) "CXI Counter Extensions"."""

    def __init__(self, core: _nic.CounterCore) -> None:
        self._core = core

    def set_wb_buffer(self, buf: Any, len: int | None = None) -> None:
        """Set the write-back buffer: the first 8 bytes of `buf`. The NIC writes it at once, and later as below.

        Args:
            buf: A writable buffer, device memory, or (address, length). The counter keeps a reference until it is
                closed or gets another buffer; the caller keeps the memory of a bare address mapped.
            len: Bytes of the buffer; None: all.

        The NIC writes the buffer when the counter is read or set to 0, when its failures leave 0, when a `wait` reaches
        its threshold, and at deferred work with FI_CXI_CNTR_WB; not at other changes.

        Raises:
            InvalidArgument: `buf` is None, or has fewer than 8 bytes.
            AccessDenied: `buf` is read-only.
            Fault: No memory is mapped there.
        """
        if buf is None:
            raise errors.InvalidArgument("set_wb_buffer: no buffer\n  try: bytearray(8)")
        if len is not None and (number(len) or 0) < 8:
            raise errors.InvalidArgument(f"set_wb_buffer: len {len!r}\n  rule: the counter writes 8 bytes")
        self._core.set_wb_buffer(buf)

    def get_mmio_addr(self) -> memoryview:
        """The counter's page, as words of 8 bytes; a store to a word changes the counter.

        `mmio[0] = n` adds n to the value, `mmio[8] = n` to the failures; `mmio[16] = 0` resets the value and
        `mmio[24] = 0` the failures. For code outside Python the page's address is `mmio.obj.address`, its length
        `mmio.nbytes`.

        The page is memory, not a device: the NIC reads it in calls on the counter, whenever it makes progress, and once
        a millisecond if it has an engine. If one word is stored twice between two reads, the first store is lost; the
        functions `cntr_add`, `cntr_adderr`, `cntr_set` and `cntr_seterr` act at once and lose nothing. The page stays
        mapped while the memoryview exists; stores after the counter is closed have no effect.
        """
        page: Any = self._core.get_mmio()  # a buffer; the stub has no type for it
        return memoryview(page).cast("Q")


# ---- the inline functions of the header ------------------------------------------------------------------------------


def _word(buf: Any) -> int:
    return int.from_bytes(memoryview(buf).cast("B")[:8], "little")


def cntr_wb_read(wb_buf: Any) -> int:
    """The success value in a write-back buffer (fi_cxi_cntr_wb_read)."""
    return _word(wb_buf) & CNTR_SUCCESS_MAX


def cntr_wb_readerr(wb_buf: Any) -> int:
    """The failure value in a write-back buffer (fi_cxi_cntr_wb_readerr)."""
    return _word(wb_buf) >> 48 & CNTR_FAILURE_MAX


def gen_cntr_success(value: int) -> int:
    """The word of a write-back buffer with this success value and no failures (fi_cxi_gen_cntr_success).

    Raises InvalidArgument above 2**48 - 1.
    """
    return _WRITTEN | _most("gen_cntr_success", value, CNTR_SUCCESS_MAX)


def cntr_add(cntr_mmio: memoryview, value: int) -> None:
    """Add to the success value by the counter's page (fi_cxi_cntr_add). Raises InvalidArgument above 2**48 - 1."""
    _store("cntr_add", cntr_mmio, _ADD, _most("cntr_add", value, CNTR_SUCCESS_MAX))


def cntr_adderr(cntr_mmio: memoryview, value: int) -> None:
    """Add to the failure value by the counter's page (fi_cxi_cntr_adderr). Raises InvalidArgument above 127."""
    _store("cntr_adderr", cntr_mmio, _ADDERR, _most("cntr_adderr", value, CNTR_FAILURE_MAX))


def cntr_set(cntr_mmio: memoryview, value: int) -> None:
    """Set the success value to 0 by the counter's page (fi_cxi_cntr_set). Raises InvalidArgument for another value."""
    _store("cntr_set", cntr_mmio, _SET, _most("cntr_set", value, 0))


def cntr_seterr(cntr_mmio: memoryview, value: int) -> None:
    """Set the failure value to 0 by the counter's page (fi_cxi_cntr_seterr). Raises InvalidArgument for another."""
    _store("cntr_seterr", cntr_mmio, _SETERR, _most("cntr_seterr", value, 0))


def _most(call: str, value: int, most: int) -> int:
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{call}: value must be an int, not {value!r}") from None
    if not 0 <= value <= most:
        raise errors.InvalidArgument(f"{call}: value {value}\n  rule: {f'at most {most}' if most else 'only 0'}")
    return value


def _store(call: str, mmio: Any, offset: int, value: int) -> None:
    page = mmio.obj if isinstance(mmio, memoryview) else mmio
    if not isinstance(page, _nic.CounterPage):
        raise TypeError(f"{call}: {mmio!r} is no page of a counter\n  try: what get_mmio_addr() returned")
    page.store(offset, value)
