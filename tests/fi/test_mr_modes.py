"""fi_mr(3): provider keys, virtual addresses, MR_LOCAL, MR_RAW."""

from __future__ import annotations

import pytest
from tests.fi.mr_support import Duo, memory, put, refused
from tests.fi.support import ALL_CAPS, RW, opened, pair

from weft import fi

# ---- provider keys, virtual addresses, basic -------------------------------------------------------------------------


@pytest.mark.clause(
    "mr.prov-key.no-app-keys",
    "mr.prov-key.via-mr-key",
    "mr.arg.requested-key-ignored",
    "mr.key.usable-at-peer",
)
def test_mr_prov_key_is_the_provider_s_choice() -> None:
    """fi_mr(3) FI_MR_PROV_KEY: requested_key is ignored, even if it would be refused; fi_mr_key has the real key."""
    with pair(mr_mode=fi.MR_PROV_KEY) as (initiator, target, peer):
        parts = [memory(target) for _ in range(3)]
        regions = [target.reg(p, requested_key=k) for p, k in zip(parts, (5, 5, 1 << 70), strict=True)]
        keys = [mr.key for mr in regions]
        assert len(set(keys)) == 3
        assert fi.KEY_NOTAVAIL not in keys
        for i, key in enumerate(keys):
            put(initiator, peer, bytes([i + 1]), 0, key)
        assert [p[0] for p in parts] == [1, 2, 3]


def test_mr_prov_key_stale_key_reaches_nothing() -> None:
    """A provider key names one registration: after close it never reaches a newer region in its place."""
    with pair(mr_mode=fi.MR_PROV_KEY) as (initiator, target, peer):
        data = memory(target)
        old = target.domain.mr_reg(data, RW)
        stale = old.key
        old.close()
        for _ in range(50):
            with target.domain.mr_reg(data, RW) as newer:
                assert newer.key != stale
                assert refused(initiator, peer, 0, stale) == fi.EKEYREJECTED
        assert not data.any()


@pytest.mark.clause("mr.virt-addr.base", "mr.virt-addr.offset")
def test_mr_virt_addr_peers_use_the_target_s_addresses() -> None:
    """fi_mr(3) FI_MR_VIRT_ADDR: byte N of a region is at its virtual address plus N."""
    with pair(mr_mode=fi.MR_VIRT_ADDR) as (initiator, target, peer):
        data = memory(target)
        mr = target.reg(data, requested_key=1)
        assert mr.address == data.ctypes.data
        put(initiator, peer, b"base", mr.address, 1)
        put(initiator, peer, b"N", mr.address + 63, 1)
        assert bytes(data[:4]) == b"base"
        assert data[63] == ord("N")
        for outside in (0, mr.address - 1, mr.address + 64):
            assert refused(initiator, peer, outside, 1) == fi.EACCES


@pytest.mark.general("MR_BASIC, which has no MR_ENDPOINT")
@pytest.mark.clause("mr.basic.virt-addr", "mr.basic.prov-key", "rma.addr.basic")
def test_mr_basic_is_virtual_addresses_and_provider_keys() -> None:
    with pair(mr_mode=fi.MR_BASIC) as (initiator, target, peer):
        assert initiator.domain.mr_mode == fi.MR_BASIC
        data = memory(target)
        mr = target.reg(data, requested_key=5)
        second = target.reg(memory(target), requested_key=5)
        assert mr.key != second.key
        put(initiator, peer, b"basic", mr.address + 10, mr.key)
        assert bytes(data[10:15]) == b"basic"
        assert refused(initiator, peer, 10, mr.key) == fi.EACCES


@pytest.mark.parametrize("mode", ["prov_key", "virt_addr", "prov_key|virt_addr|allocated", "local", "endpoint", "raw"])
def test_mr_mode_of_the_environment_is_in_force(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """WEFT_MR_MODE makes the provider require a mode; an application that offers it gets it."""
    monkeypatch.setenv("WEFT_MR_MODE", mode)
    offered = fi.MR_BASIC_MAP | fi.MR_LOCAL | fi.MR_ENDPOINT | fi.MR_RAW
    info = fi.getinfo(hints=fi.Info(caps=ALL_CAPS, domain_attr=fi.DomainAttr(mr_mode=offered)))[0]
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        assert domain.mr_mode == info.domain_attr.mr_mode != 0


# ---- MR_LOCAL --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.local.set-desc", "mr.general.local-may-be-required")
def test_mr_local_demands_a_descriptor() -> None:
    """fi_mr(3) FI_MR_LOCAL: local buffers are registered, and their desc is given."""
    with pair(mr_mode=fi.MR_LOCAL) as (initiator, target, peer):
        data = memory(target)
        target.reg(data, requested_key=1)
        local = bytearray(b"local")
        with pytest.raises(fi.InvalidArgument, match="MR_LOCAL"):
            initiator.ep.write(local, None, peer, 0, 1)
        assert not data.any()
        mr = initiator.reg(local, fi.WRITE)
        initiator.ep.write(local, mr.desc, peer, 0, 1)
        initiator.ep.write(mr[0:2], None, peer, 10, 1)  # a registered slice is its own descriptor
        initiator.wait(2)
        assert bytes(data[:5]) == b"local"
        assert bytes(data[10:12]) == b"lo"


# ---- MR_RAW ----------------------------------------------------------------------------------------------------------


@pytest.mark.general("keys of eight bytes")
@pytest.mark.clause(
    "mr.key.notavail-raw",
    "mr.raw.need-raw-attr",
    "mr.raw.need-map-raw",
    "mr.raw-attr.raw-key",
    "mr.map-raw.maps",
    "mr.map-raw.by-initiator",
    "mr.raw-attr.map-first",
    "mr.notes.map-small-raw",
)
def test_mr_raw_key_goes_through_raw_attr_and_map_raw() -> None:
    """fi_mr(3) FI_MR_RAW: fi_mr_key is FI_KEY_NOTAVAIL; the raw key, mapped by the initiator, works."""
    with pair(mr_mode=fi.MR_RAW) as (initiator, target, peer):
        data = memory(target)
        mr = target.reg(data, requested_key=0x1122334455667788)
        assert mr.key == fi.KEY_NOTAVAIL
        base, raw = mr.raw_attr()
        key = initiator.domain.map_raw(base, raw)
        assert key != fi.KEY_NOTAVAIL
        put(initiator, peer, b"raw", base, key)
        assert bytes(data[:3]) == b"raw"
        initiator.domain.unmap_key(key)


@pytest.mark.clause(
    "mr.raw-attr.signature",
    "mr.raw-attr.base-addr",
    "mr.raw-attr.any-region",
    "mr.raw-attr.size-in",
    "mr.raw-attr.size-out",
    "mr.raw-attr.too-small",
    "mr.raw-attr.domain-size",
)
@pytest.mark.parametrize("mr_mode", [0, fi.MR_VIRT_ADDR], ids=["offset", "virt_addr"])
def test_mr_raw_attr_works_on_any_region(mr_mode: int) -> None:
    """fi_mr(3) fi_mr_raw_attr: key and base address; -FI_ETOOSMALL says how much room it takes."""
    with opened(mr_mode=mr_mode) as node:
        mr = node.reg(memory(node), requested_key=1)
        size = node.info.domain_attr.mr_key_size
        base, raw = mr.raw_attr(size, 0)
        assert len(raw) == size
        assert base == (mr.address if mr_mode else 0)
        with pytest.raises(fi.TooSmall) as caught:
            mr.raw_attr(size - 1)
        assert caught.value.errno == fi.ETOOSMALL
        assert getattr(caught.value, "needed") == size  # noqa: B009
        with pytest.raises(fi.BadFlags):
            mr.raw_attr(flags=1)


@pytest.mark.clause(
    "mr.map-raw.signature",
    "mr.map-raw.any-key",
    "mr.map-raw.must-unmap",
    "mr.unmap-key.signature",
    "mr.unmap-key.releases",
    "mr.unmap-key.before-domain",
)
def test_mr_mapped_keys_are_unmapped_before_the_domain_closes(duo: Duo) -> None:
    """fi_mr(3) fi_mr_unmap_key: all mapped keys have to be freed before the domain is closed."""
    initiator, target, peer = duo
    data = memory(target)
    base, raw = target.reg(data, requested_key=7).raw_attr()
    with fi.Fabric(initiator.info.fabric_attr) as fabric:
        domain = fabric.domain(initiator.info)
        key = domain.map_raw(base, raw, len(raw), 0)
        put(initiator, peer, b"m", base, key)
        with pytest.raises(fi.Busy, match="mapped"):
            domain.close()
        domain.unmap_key(key)
        with pytest.raises(fi.InvalidArgument):
            domain.unmap_key(key)
        domain.close()
    with pytest.raises(fi.InvalidArgument):
        initiator.domain.map_raw(0, b"short")
