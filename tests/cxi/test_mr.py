"""Regions of the CXI provider: keys, binding, enabling, closing.

fi_cxi(7) "Memory registration modes", "Optimized MRs".
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import BOTH, CAPS, RW, opened, register
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import service

PROVIDER, CACHED, OPTIMIZED, EVENTS = (1 << bit for bit in (63, 62, 61, 60))


def outcome(node: Node, key: int, *, read: bool = False, addr: int = 0, nbytes: int = 8) -> int:
    """How a transfer of 8 bytes ends: 0 or an error number."""
    if read:
        node.ep.read(bytearray(nbytes), None, node.me, addr, key)
    else:
        node.ep.write(bytes(nbytes), None, node.me, addr, key)
    try:
        node.wait()
    except fi.Available:
        return int(node.cq.readerr().err)
    return 0


def word() -> Any:
    return np.zeros(1, "u8")


# ---- registration ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.mr.client-key-default", "cxi.mr.client-key-32bit")
def test_client_key_is_the_one_that_was_asked_for(node: Node) -> None:
    assert node.domain.attr.mr_key_size == 4
    mr = node.reg(word(), requested_key=0xFFFFFFFF)
    assert mr.key == 0xFFFFFFFF
    with pytest.raises(fi.KeyRejected):
        node.domain.mr_reg(word(), RW, requested_key=1 << 32)
    with pytest.raises(fi.NoKey):
        node.domain.mr_reg(word(), RW, requested_key=0xFFFFFFFF)


@pytest.mark.clause("cxi.mr.prov-key", "cxi.mr.prov-key-64bit")
def test_provider_key_is_known_when_the_region_is_enabled(maker: Node) -> None:
    assert maker.domain.attr.mr_key_size == 8
    mr = maker.reg(word(), requested_key=1 << 40)  # not looked at
    assert mr.key == fi.KEY_NOTAVAIL
    mr.bind(maker.ep)
    assert mr.key == fi.KEY_NOTAVAIL
    mr.enable()
    assert mr.key >> 63 == 1
    assert outcome(maker, mr.key) == 0


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (fi.NoSys, lambda d: d.mr_regv([word(), word()], RW)),
        (fi.InvalidArgument, lambda d: d.mr_regv([], RW)),
        (fi.InvalidArgument, lambda d: d.mr_reg(word(), RW, flags=int(fi.DIRECTED_RECV))),
        (fi.InvalidArgument, lambda d: d.map_raw(0, b"12345678")),
        (fi.InvalidArgument, lambda d: d.unmap_key(1)),
    ],
    ids=["two buffers", "none", "DIRECTED_RECV", "map_raw", "unmap_key"],
)
def test_registration_is_refused(node: Node, error: type[Exception], call: Callable[[fi.Domain], object]) -> None:
    with pytest.raises(error):
        call(node.domain)


def test_offset_is_not_looked_at_and_a_region_of_nothing_is_made(node: Node) -> None:
    node.domain.mr_reg(word(), RW, 77, requested_key=300).close()
    empty = register(node, b"", 301, int(fi.REMOTE_READ))
    node.ep.read(bytearray(0), None, node.me, 0, empty.key)
    node.wait()


def test_region_for_local_use_takes_no_key(node: Node) -> None:
    first = node.reg(word(), int(fi.READ | fi.WRITE), requested_key=5)
    second = node.reg(word(), int(fi.SEND), requested_key=5)
    third = register(node, word(), 5)
    assert first.key == second.key == fi.KEY_NOTAVAIL
    assert third.key == 5
    with pytest.raises(fi.InvalidArgument):
        first.enable()
    first.bind(node.ep)
    first.enable()
    assert first.key == fi.KEY_NOTAVAIL


def test_read_only_memory_is_not_registered_for_writes(node: Node) -> None:
    with pytest.raises(fi.FabricError):
        node.domain.mr_reg(bytes(8), fi.REMOTE_WRITE, requested_key=7)
    register(node, bytes(8), 7, int(fi.REMOTE_READ))


# ---- binding, enabling, closing --------------------------------------------------------------------------------------


def test_mr_bind_takes_one_enabled_endpoint_of_the_domain(node: Node) -> None:
    mr = node.reg(word(), requested_key=7)
    with opened() as other, node.domain.endpoint(node.info) as disabled:
        for fid in (disabled, other.ep, node.cq, None):
            with pytest.raises(fi.InvalidArgument):
                mr.bind(fid)  # type: ignore[arg-type]
    with pytest.raises(fi.InvalidArgument):
        mr.enable()
    mr.bind(node.ep, 12345)  # flags are not looked at
    with pytest.raises(fi.InvalidArgument):
        mr.bind(node.ep)
    mr.enable()
    mr.enable()
    with pytest.raises(fi.InvalidArgument):
        mr.bind(node.ep)


def test_region_with_events_needs_an_endpoint_with_them(node: Node) -> None:
    mr = node.reg(word(), requested_key=7, flags=int(fi.RMA_EVENT))
    with pytest.raises(fi.InvalidArgument, match="RMA_EVENT"):
        mr.bind(node.ep)


@pytest.mark.clause("cxi.extra.rma-event")
def test_counter_of_a_region_is_one_and_counts_writes() -> None:
    with opened(CAPS | fi.RMA_EVENT) as node:
        cntr = node.keep(node.domain.cntr_open())
        mr = node.reg(word(), requested_key=7)
        with pytest.raises(fi.InvalidArgument):
            mr.bind(cntr, fi.REMOTE_READ)
        mr.bind(cntr, fi.REMOTE_WRITE | fi.REMOTE_READ)
        with pytest.raises(fi.InvalidArgument):
            mr.bind(node.keep(node.domain.cntr_open()), fi.REMOTE_WRITE)
        mr.bind(node.ep)
        mr.enable()
        assert outcome(node, 7) == 0
        assert outcome(node, 7, read=True) == 0
        cntr.wait(1, timeout=30)
        assert cntr.read() == 1
        with pytest.raises(fi.Busy):
            cntr.close()


@pytest.mark.parametrize("command", [fi.GET_RAW_MR, fi.REFRESH, fi.GETWAIT, 4711])
def test_commands_of_a_region_are_refused(node: Node, command: int) -> None:
    mr = register(node, word(), 7)
    with pytest.raises(fi.InvalidArgument):
        mr.control(command)
    for call in (mr.raw_attr, mr.refresh):
        with pytest.raises(fi.InvalidArgument):
            call()
    mr.control(fi.ENABLE)


def test_region_closes_at_any_time_its_endpoint_does_not(node: Node) -> None:
    mr = register(node, word(), 7)
    with pytest.raises(fi.Busy):
        node.ep.close()
    mr.close()
    assert outcome(node, 7) == fi.EIO
    node.ep.close()


# ---- access ----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.opt.same-call", "cxi.opt.two-kinds", "cxi.opt.mix", "cxi.mr.endpoint-required")
@pytest.mark.parametrize("key", [7, 300], ids=["optimized", "standard"])
def test_access_that_is_not_granted_is_an_io_error(node: Node, key: int) -> None:
    register(node, np.zeros(2, "u8"), key, int(fi.REMOTE_READ))
    register(node, np.zeros(2, "u8"), key + 1, int(fi.REMOTE_WRITE))
    assert outcome(node, key, read=True) == 0
    assert outcome(node, key + 1) == 0
    assert outcome(node, key) == fi.EIO
    assert outcome(node, key + 1, read=True) == fi.EIO
    assert outcome(node, key, read=True, addr=9) == fi.EIO
    assert outcome(node, key + 1, addr=8, nbytes=16) == fi.EIO
    assert outcome(node, key + 2) == fi.EIO


def test_error_entry_of_a_transfer_has_its_context_and_no_length(node: Node) -> None:
    node.ep.write(bytes(8), None, node.me, 0, 7, "mine")
    with pytest.raises(fi.Available):
        node.wait()
    entry = node.cq.readerr()
    assert (entry.op_context, entry.err, entry.len) == ("mine", fi.EIO, 0)
    assert entry.flags == fi.RMA | fi.WRITE


@pytest.mark.parametrize(
    ("key", "code"), [(7, cxi.C_RC_PTLTE_NOT_FOUND), (300, cxi.C_RC_ENTRY_NOT_FOUND)], ids=["optimized", "standard"]
)
def test_error_entry_says_what_was_not_found(node: Node, key: int, code: int) -> None:
    mr = register(node, word(), key)
    mr.close()
    for _ in range(2):
        node.ep.write(bytes(8), None, node.me, 0, key)
        with pytest.raises(fi.Available):
            node.wait()
        entry = node.cq.readerr()
        assert (entry.err, entry.prov_errno) == (fi.EIO, code)
        assert b"pid" in entry.err_data
        assert b"weft://" not in entry.err_data


@pytest.mark.clause("cxi.mr.mixed-keys")
def test_initiator_uses_client_and_provider_keys_at_a_time() -> None:
    with opened() as client, opened(prov_key=True) as provider, opened() as initiator:
        for node, key in ((client, 300), (provider, 0)):
            memory = word()
            mr = register(node, memory, key)
            peer = initiator.av.insert(node.name)
            initiator.ep.write(np.full(1, 7, "u8"), None, peer, 0, mr.key)
            initiator.wait()
            assert memory[0] == 7


@pytest.mark.parametrize("key", [1 << 32, 1 << 62, 0x7FFFFFFFFFFFFFFF])
def test_key_of_no_form_is_rejected_at_the_call(node: Node, key: int) -> None:
    for call in (
        lambda: node.ep.write(bytes(8), None, node.me, 0, key),
        lambda: node.ep.read(bytearray(8), None, node.me, 0, key),
        lambda: node.ep.inject_write(bytes(8), node.me, 0, key),
        lambda: node.ep.atomic(word(), None, node.me, 0, key, fi.UINT64, fi.SUM),
    ):
        with pytest.raises(fi.KeyRejected):
            call()


def test_offset_beyond_an_address_context_is_refused_at_the_call(maker: Node) -> None:
    key = register(maker, word()).key
    assert key & CACHED
    with pytest.raises(fi.InvalidArgument):
        maker.ep.write(bytes(8), None, maker.me, 1 << 56, key)


# ---- kinds of keys ---------------------------------------------------------------------------------------------------


def kind(key: int) -> tuple[bool, bool, bool, bool]:
    """(provider, cached, optimized, events)."""
    cached = bool(key & CACHED)
    return bool(key & PROVIDER), cached, bool(key & OPTIMIZED), bool(key & EVENTS) and not cached


@pytest.mark.clause("cxi.opt.prov-key-cache")
def test_provider_key_is_cached_unless_events_are_wanted() -> None:
    with opened(CAPS | fi.RMA_EVENT, prov_key=True) as node:
        assert kind(register(node, word()).key) == (True, True, True, False)
        assert kind(register(node, word(), flags=int(fi.RMA_EVENT)).key) == (True, False, True, True)
        counted = node.reg(word())
        counted.bind(node.ep)
        counted.bind(node.keep(node.domain.cntr_open()), fi.REMOTE_WRITE)
        counted.enable()
        assert kind(counted.key) == (True, False, True, True)


@pytest.mark.clause(
    "cxi.mr.match-events-noncached-key",
    "cxi.mr.optimized-off",
    "cxi.opt.disable",
    "cxi.env.optimized-mrs",
    "cxi.env.prov-key-cache",
)
def test_environment_decides_the_kind_of_provider_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, expected in (
        ("FI_CXI_PROV_KEY_CACHE", "0", (True, False, True, False)),
        ("FI_CXI_MR_MATCH_EVENTS", "1", (True, False, True, True)),
        ("FI_CXI_OPTIMIZED_MRS", "0", (True, True, False, False)),
    ):
        with monkeypatch.context() as here:
            here.setenv(name, value)
            with opened(prov_key=True) as node, opened(prov_key=True) as other:
                assert kind(register(node, word()).key) == expected
                assert kind(register(other, word()).key) == expected, "of the whole process"


def test_domain_settings_apply_to_regions_enabled_later(maker: Node) -> None:
    before = maker.reg(word())
    before.bind(maker.ep)
    maker.domain.control(cxi.OPT_CXI_SET_PROV_KEY_CACHE, False)
    maker.domain.control(cxi.OPT_CXI_SET_OPTIMIZED_MRS, False)
    before.enable()
    assert kind(before.key) == (True, False, False, False)


@pytest.mark.clause(
    "cxi.ext.ctl.set-optimized-order", "cxi.ext.ctl.set-key-cache-order", "cxi.ext.ctl.set-match-events-order"
)
@pytest.mark.parametrize(
    ("command", "value", "after"),
    [
        (cxi.OPT_CXI_SET_OPTIMIZED_MRS, False, (True, True, False, False)),
        (cxi.OPT_CXI_SET_PROV_KEY_CACHE, False, (True, False, True, False)),
        (cxi.OPT_CXI_SET_MR_MATCH_EVENTS, True, (True, False, True, True)),
    ],
)
def test_setting_comes_too_late_for_regions_that_there_are(
    maker: Node, command: int, value: bool, after: tuple[bool, ...]
) -> None:
    old = register(maker, first := word())
    before = kind(old.key)
    maker.domain.control(command, value)
    new = register(maker, word())
    assert (before, kind(old.key), kind(new.key)) == ((True, True, True, False), before, after)
    stale = old.key
    old.close()
    maker.ep.write(np.full(1, 3, "u8"), None, maker.me, 0, stale)
    maker.wait()
    assert first[0] == 3, "still that of its memory, which it was before"


@pytest.mark.clause("cxi.ext.ctl.get-key-cache-valid")
def test_cache_of_provider_keys_says_nothing_about_client_keys(node: Node) -> None:
    assert node.domain.control(cxi.OPT_CXI_GET_PROV_KEY_CACHE) is True
    mr = register(node, word(), 7)
    assert outcome(node, 7) == 0
    mr.close()
    assert outcome(node, 7) == fi.EIO


@pytest.mark.clause("cxi.mr.match-events-protect", "cxi.ext.ctl.set-match-events-closed", "cxi.mr.standard-stale-key")
@pytest.mark.parametrize("optimized", [False, True])
def test_closed_region_is_not_reached_with_match_events(maker: Node, optimized: bool) -> None:
    maker.domain.control(cxi.OPT_CXI_SET_MR_MATCH_EVENTS, True)
    maker.domain.control(cxi.OPT_CXI_SET_OPTIMIZED_MRS, optimized)
    memory = word()
    mr = register(maker, memory)
    stale = mr.key
    assert outcome(maker, stale) == 0
    mr.close()
    assert outcome(maker, stale) == fi.EIO
    again = register(maker, memory)
    assert again.key != stale
    assert outcome(maker, stale) == fi.EIO


def test_closed_region_of_cached_memory_is_still_reached(maker: Node) -> None:
    """As with the real provider: such a key names memory, and ends with the endpoint or the memory."""
    memory = word()
    mr = register(maker, memory)
    key = mr.key
    mr.close()
    maker.ep.write(np.full(1, 9, "u8"), None, maker.me, 0, key)
    maker.wait()
    assert memory[0] == 9
    assert register(maker, memory).key == key, "the memory is still mapped"


@pytest.mark.clause("cxi.opt.prov-key-cache-benefit")
def test_regions_of_the_same_memory_have_one_key_and_end_by_themselves(maker: Node) -> None:
    memory, other = maker.domain.alloc(1, "u8"), maker.domain.alloc(1, "u8")
    regions = [register(maker, memory) for _ in range(3)]
    assert len({mr.key for mr in regions}) == 1
    assert register(maker, other).key != regions[0].key
    for mr in regions:
        key = mr.key
        mr.close()
        assert mr.key == key
        assert outcome(maker, key) == 0, "the memory is still mapped"
    again = register(maker, memory)
    assert again.key == regions[0].key


def test_regions_of_freed_memory_and_of_another_endpoint_have_keys_of_their_own(maker: Node) -> None:
    memory = maker.domain.alloc(1, "u8")
    first = register(maker, memory)
    other = maker.domain.endpoint(maker.info)
    other.bind(maker.cq, BOTH)
    other.bind(maker.av)
    other.enable()
    second = maker.domain.mr_reg(memory, RW)
    second.bind(other)
    second.enable()
    assert second.key != first.key
    second.close()
    other.close()
    address = memory.ctypes.data
    first.close()
    del memory
    gc.collect()
    fresh = maker.domain.alloc(1, "u8")
    assert fresh.ctypes.data == address, "the same place"
    assert register(maker, fresh).key != first.key
    assert outcome(maker, first.key) != 0


def test_region_that_is_collected_gives_its_mapping_and_its_id_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_MR_CACHE_MAX_COUNT", "1")
    with opened(prov_key=True) as node:
        keys = set()
        for _ in range(5):
            memory = node.domain.alloc(1, "u8")
            mr = node.domain.mr_reg(memory, RW)
            mr.bind(node.ep)
            mr.enable()
            keys.add(mr.key)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                del mr
                gc.collect()
            del memory
        assert len(keys) == 5
        assert len(node.domain.policy.region_keys.mappings) <= 1
        assert len(node.domain.policy.region_keys.numbers) == 0


# ---- resources -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def limited(prov_key: bool, **limits: int) -> Any:
    one = service.create("cxi0", vnis=[range(70, 71)], limits={kind: (most, 0) for kind, most in limits.items()})
    with opened(prov_key=prov_key, auth_key=cxi.AuthKey(one.id, 70)) as node:
        yield node


@pytest.mark.clause("cxi.opt.key-0-to-99", "cxi.opt.key-100-up", "cxi.opt.mix")
def test_client_key_decides_which_resources_a_region_takes() -> None:
    """Keys below 100 take portal entries and are refused without them; others take list entries."""
    with limited(False, ptes=4 + 2 * 1, les=1) as node:
        first = register(node, word(), 99)
        with pytest.raises(fi.NoSpace, match="ptes"):
            register(node, word(), 0)
        register(node, word(), 100)
        with pytest.raises(fi.NoSpace, match="les"):
            register(node, word(), 101)
        first.close()
        register(node, word(), 1)


@pytest.mark.parametrize("fork_safe", ["0", "1"])
@pytest.mark.parametrize("prov_key", [False, True])
def test_closed_regions_give_back_what_they_took(
    monkeypatch: pytest.MonkeyPatch, prov_key: bool, fork_safe: str
) -> None:
    """Ordinary regions do so in the NIC, regions under CXI_FORK_SAFE in the provider."""
    monkeypatch.setenv("CXI_FORK_SAFE", fork_safe)
    monkeypatch.setenv("FI_CXI_PROV_KEY_CACHE", "0")
    with limited(prov_key, ptes=4 + 2 * 1, les=1) as node:
        for n in range(20):
            first, second = (register(node, word(), key) for key in ((0, 0) if prov_key else (n, 100 + n)))
            assert prov_key is False or (bool(first.key & OPTIMIZED), bool(second.key & OPTIMIZED)) == (True, False)
            first.close()
            second.close()
        assert len(node.domain.policy.region_keys.numbers) == 0


@pytest.mark.clause("cxi.opt.disabled-keys", "cxi.opt.disabled-standard")
def test_low_client_key_is_standard_if_optimized_mrs_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_OPTIMIZED_MRS", "0")
    with limited(False, ptes=4, les=2) as node:
        for key in (0, 99):
            register(node, word(), key)
            assert outcome(node, key) == 0


@pytest.mark.clause("cxi.opt.prov-key-prefer", "cxi.opt.prov-key-fallback")
def test_provider_key_falls_back_to_a_standard_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_PROV_KEY_CACHE", "0")
    with limited(True, ptes=4 + 2 * 2, les=2) as node:
        regions = [register(node, word()) for _ in range(4)]
        assert [bool(mr.key & OPTIMIZED) for mr in regions] == [True, True, False, False]
        with pytest.raises(fi.NoSpace):
            register(node, word())
        regions[0].close()
        assert register(node, word()).key & OPTIMIZED


def test_ids_of_optimized_provider_keys_are_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_PROV_KEY_CACHE", "0")
    with opened(prov_key=True) as node:
        memory = np.zeros(100, "u8")
        keys = [register(node, memory[n : n + 1]).key for n in range(100)]
        assert [bool(key & OPTIMIZED) for key in keys] == [True] * 92 + [False] * 8
        assert [key & 0xFFFF for key in keys] == list(range(100))


def test_refusal_of_flags_names_those_few_that_are_missing(node: Node) -> None:
    with pytest.raises(
        fi.InvalidArgument, match=r"DIRECTED_RECV are not supported; known: all others but DIRECTED_RECV$"
    ):
        node.domain.mr_reg(bytearray(8), fi.REMOTE_READ, flags=int(fi.DIRECTED_RECV))
