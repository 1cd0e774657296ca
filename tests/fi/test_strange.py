"""The strange provider (strange.py) decides otherwise than the general provider, and every call asks it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.fi import strange
from tests.fi.support import RW, WATCHDOG_S
from tests.fi.support import opened as general

from weft import _keys, fi

pytestmark = pytest.mark.general("it opens the strange provider itself")
KEY = 5


@pytest.fixture
def provider() -> Iterator[strange.Strange]:
    found = strange.register()
    strange.LOG.clear()
    yield found
    strange.unregister(found)


class Opened:
    """A domain of the strange provider, and an endpoint that can reach itself."""

    def __init__(self, mr_mode: int = 0, **domain: Any) -> None:
        self.stack = contextlib.ExitStack()
        self.info = found(mr_mode, **domain)[0]
        self.info.domain_attr.mr_mode |= mr_mode
        self.fabric = self.stack.enter_context(fi.Fabric(self.info.fabric_attr))
        self.domain = self.stack.enter_context(self.fabric.domain(self.info))
        self.cq = self.stack.enter_context(self.domain.cq_open())
        self.av = self.stack.enter_context(self.domain.av_open())
        self.ep = self.stack.enter_context(self.domain.endpoint(self.info))
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)

    def enabled(self) -> Opened:
        self.ep.enable()
        self.me = self.av.insert(self.ep.getname())
        return self

    def reg(self, buf: Any, key: int = KEY) -> fi.MemoryRegion:
        mr = self.stack.enter_context(self.domain.mr_reg(buf, RW, requested_key=key))
        mr.bind(self.ep)
        mr.enable()
        return mr


def found(mr_mode: int = 0, **domain: Any) -> list[fi.Info]:
    asked = fi.Info(
        caps=fi.RMA | fi.ATOMIC,
        domain_attr=fi.DomainAttr(mr_mode=int(fi.MR_ENDPOINT) | mr_mode, **domain),
        fabric_attr=fi.FabricAttr(prov_name=strange.NAME),
    )
    return fi.getinfo(hints=asked)


@pytest.fixture
def opened(provider: strange.Strange) -> Iterator[Opened]:
    one = Opened().enabled()
    with one.stack:
        yield one


# ---- getinfo ---------------------------------------------------------------------------------------------------------


def test_getinfo_returns_what_the_provider_selects(provider: strange.Strange) -> None:
    assert [info.domain_attr.name for info in found()] == ["strange0"]
    assert [info.domain_attr.name for info in found(name="strange1")] == ["strange1"]


def test_getinfo_resolves_an_address_for_the_offer_that_has_it(provider: strange.Strange) -> None:
    asked = fi.Info(domain_attr=fi.DomainAttr(mr_mode=fi.MR_ENDPOINT), fabric_attr=fi.FabricAttr(prov_name="strange"))
    asked.domain_attr.name = "strange1"
    (info,) = fi.getinfo(None, "strange1", "17", fi.SOURCE, asked)
    assert (info.domain_attr.name, info.src_addr) == (
        "strange1",
        provider.addresses.emit((strange.NIC, 17, strange.VNI)),
    )
    with pytest.raises(fi.NoData, match="no such address"):
        fi.getinfo(None, "strange7", "17", fi.SOURCE, asked)


def test_getinfo_requires_mr_endpoint_of_the_hints(provider: strange.Strange) -> None:
    asked = fi.Info(fabric_attr=fi.FabricAttr(prov_name=strange.NAME), domain_attr=fi.DomainAttr(mr_mode=0))
    with pytest.raises(fi.NoData, match="the provider needs MR_ENDPOINT"):
        fi.getinfo(hints=asked)


@pytest.mark.parametrize(("mr_mode", "size"), [(0, 4), (fi.MR_PROV_KEY, 8), (fi.MR_RAW, 16)])
def test_key_size_follows_from_who_makes_keys(provider: strange.Strange, mr_mode: int, size: int) -> None:
    one = Opened(int(mr_mode))
    with one.stack:
        assert one.domain.attr.mr_key_size == size


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_address_is_binary_and_several_fit_in_one_buffer(opened: Opened) -> None:
    name = opened.ep.getname()
    assert isinstance(name, bytes)
    assert len(name) == 12
    assert opened.info.addr_format == strange.FORMAT
    assert opened.info.src_addrlen == 12
    other = opened.domain.provider.addresses.emit((strange.NIC, 77, strange.VNI))
    first, second = opened.av.insert(name + other)  # as fi_av_insert takes them in C
    assert opened.av.lookup(first) == name
    assert opened.av.lookup(second) == other
    assert opened.av.straddr(other) == "strange nic 4000, endpoint 77, vni 9"
    assert "endpoint 77" in repr(opened.av.straddr(other))


def test_address_by_service_is_inserted(opened: Opened) -> None:
    index = opened.av.insertsvc("strange0", "88")
    assert opened.domain.provider.addresses.parse(opened.av.lookup(index)) == (strange.NIC, 88, strange.VNI)


def test_endpoint_number_is_of_the_providers_range(opened: Opened) -> None:
    _, pid, _ = opened.domain.provider.addresses.parse(opened.ep.getname())
    assert 7 <= pid < 4000


def test_taken_address_has_the_providers_error(opened: Opened) -> None:
    info = fi.dupinfo(opened.info)
    info.src_addr = opened.ep.getname()
    with opened.domain.endpoint(info) as ep:
        ep.bind(opened.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(opened.av)
        with pytest.raises(fi.NoSpace):
            ep.enable()


def test_full_range_of_endpoint_numbers_is_an_error(provider: strange.Strange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strange.StrangeEndpoint, "pids", range(900, 903))
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(one.stack) and one for one in (Opened() for _ in range(4))]
        numbers = {provider.addresses.parse(one.enabled().ep.getname())[1] for one in many[:3]}
        assert numbers == {900, 901, 902}
        with pytest.raises(fi.NoSpace):
            many[3].ep.enable()


def test_unknown_peer_may_be_removed(opened: Opened) -> None:
    opened.av.remove(123)
    opened.av.remove(opened.me)
    assert opened.av.count() == 0


# ---- regions and keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "why"), [(1 << 32, "out of range: a key has 4 bytes"), (1 << 31, "use of its own")])
def test_key_beyond_the_providers_bits_is_rejected(opened: Opened, key: int, why: str) -> None:
    with pytest.raises(fi.KeyRejected, match=why):
        opened.domain.mr_reg(bytearray(8), RW, requested_key=key)


def test_raw_key_of_a_client_key_has_four_bytes(opened: Opened) -> None:
    assert opened.reg(bytearray(8)).raw_attr() == (0, b"\5\0\0\0")


def test_key_of_the_provider_is_known_once_the_region_is_enabled(provider: strange.Strange) -> None:
    one = Opened(int(fi.MR_PROV_KEY)).enabled()
    with one.stack:
        memory = bytearray(8)
        with one.domain.mr_reg(memory, RW) as mr:
            assert mr.key == fi.KEY_NOTAVAIL
            with pytest.raises(fi.BadState, match="no key yet"):
                mr.raw_attr()
            mr.bind(one.ep)
            mr.enable()
            assert mr.key != fi.KEY_NOTAVAIL
            one.ep.write(b"12345678", dest_addr=one.me, addr=0, key=mr.key)
            one.cq.sread(timeout=WATCHDOG_S)
            assert memory == b"12345678"


def test_region_of_no_bytes_is_made_and_reached_with_none(opened: Opened) -> None:
    opened.reg(bytearray(0))
    opened.ep.write(b"", dest_addr=opened.me, addr=0, key=KEY)
    assert opened.cq.sread(timeout=WATCHDOG_S)
    opened.ep.write(b"x", dest_addr=opened.me, addr=0, key=KEY)
    with pytest.raises(fi.Available):
        opened.cq.sread(timeout=WATCHDOG_S)
    assert opened.cq.readerr().status is fi.Status.bounds
    with opened.domain.mr_reg(bytearray(4), RW, requested_key=6, len=0) as mr:
        assert mr.length == 0


def test_endpoint_is_busy_while_a_region_is_bound(opened: Opened) -> None:
    mr = opened.reg(bytearray(8))
    with pytest.raises(fi.Busy, match="MemoryRegion 0x5"):
        opened.ep.close()
    mr.close()
    opened.ep.close()


def test_one_buffer_a_call_and_a_region(opened: Opened) -> None:
    opened.reg(np.zeros(8, np.uint8))
    with pytest.raises(fi.InvalidArgument, match="more than iov_limit, 1"):
        opened.ep.writev([b"a", b"b"], dest_addr=opened.me, addr=0, key=KEY)
    with pytest.raises(fi.NoSys, match="mr_iov_limit, 1"):
        opened.domain.mr_regv([bytearray(1), bytearray(1)], RW)


def test_endpoint_that_names_no_iov_limit_has_the_one_offered(opened: Opened) -> None:
    info = fi.dupinfo(opened.info)
    info.tx_attr.iov_limit = info.tx_attr.rma_iov_limit = 0
    with opened.domain.endpoint(info) as ep:
        ep.bind(opened.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(opened.av)
        ep.enable()
        with pytest.raises(fi.InvalidArgument, match="more than iov_limit, 1"):
            ep.writev([b"a", b"b"], dest_addr=opened.me, addr=0, key=KEY)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_refusals_have_the_providers_errors(opened: Opened) -> None:
    mr = opened.reg(bytearray(8))
    for call, errno in (
        (lambda: mr.bind(opened.ep), fi.EINVAL),  # FI_EOPBADSTATE: enabled
        (lambda: opened.domain.mr_reg(bytearray(8), RW, requested_key=KEY), fi.EADDRINUSE),  # FI_ENOKEY
        (lambda: opened.domain.av_open(flags=1 << 40), fi.EINVAL),  # FI_EBADFLAGS
        (lambda: opened.ep.getopt(fi.OPT_ENDPOINT, 0x99), fi.EINVAL),  # FI_ENOPROTOOPT
    ):
        with pytest.raises(fi.FabricError) as caught:
            call()
        assert caught.value.errno == errno
    with (
        opened.domain.mr_reg(bytearray(8), RW, requested_key=6) as unbound,
        pytest.raises(fi.InvalidArgument, match="bound to no endpoint"),
    ):
        unbound.enable()  # FI_EOPBADSTATE


def test_failed_operation_has_the_providers_numbers(opened: Opened) -> None:
    opened.ep.write(b"12345678", dest_addr=opened.me, addr=0, key=KEY)
    with pytest.raises(fi.Available):
        opened.cq.sread(timeout=WATCHDOG_S)
    failed = opened.cq.readerr()
    assert (failed.err, failed.prov_errno, failed.status) == (fi.EIO, 1001, fi.Status.no_key)
    descs = np.zeros(1, fi.RMA_DESC)
    descs["length"], descs["dest_addr"], descs["key"] = 4, opened.me, KEY
    opened.ep.write_batch(np.zeros(4, np.uint8), descs)
    with pytest.raises(fi.Available):
        opened.cq.sread(timeout=WATCHDOG_S)
    opened.cq.readerr()
    assert descs["status"].tolist() == [fi.EIO]


def failure(one: Opened) -> fi.CqErrEntry:
    with pytest.raises(fi.Available):
        one.cq.sread(timeout=WATCHDOG_S)
    found = one.cq.readerr()
    assert isinstance(found, fi.CqErrEntry)
    return found


def test_provider_decides_on_a_failure_by_key_and_addresses(opened: Opened) -> None:
    """`DomainPolicy.outcome` knows more than the status."""
    opened.ep.write(b"12345678", dest_addr=opened.me, addr=0, key=0x277)
    failed = failure(opened)
    assert (failed.err, failed.prov_errno) == (fi.EIO, 2001 + 2 * strange.VNI)
    assert failed.status is fi.Status.no_key


def test_text_of_a_failure_names_the_peer_as_the_provider_does(opened: Opened) -> None:
    opened.ep.write(b"12345678", dest_addr=opened.me, addr=0, key=KEY)
    text = failure(opened).err_data.decode()
    _, pid, _ = opened.domain.provider.addresses.parse(opened.ep.getname())
    assert f"on strange nic 4000, endpoint {pid}, vni 9 (0xfa0): no region there has this key" in text
    assert "weft://" not in text


# ---- rules of calls --------------------------------------------------------------------------------------------------


def test_key_that_no_client_key_can_be_is_rejected_at_the_call(opened: Opened) -> None:
    for call in (
        lambda: opened.ep.write(b"1", dest_addr=opened.me, addr=0, key=1 << 32),
        lambda: opened.ep.inject_write(b"1", opened.me, 0, 1 << 63),
        lambda: opened.ep.writemsg(
            fi.MsgRma(msg_iov=[bytearray(1)], addr=opened.me, rma_iov=[fi.RmaIov(0, 1, 1 << 40)])
        ),
        lambda: opened.ep.atomic(np.ones(1, "i8"), None, opened.me, 0, 1 << 32, fi.INT64, fi.SUM),
    ):
        with pytest.raises(fi.KeyRejected, match="has none of the forms of this provider's keys"):
            call()
    assert opened.cq.read() == []


def test_key_of_any_form_is_taken_where_the_provider_makes_keys(provider: strange.Strange) -> None:
    one = Opened(int(fi.MR_PROV_KEY)).enabled()
    with one.stack:
        one.ep.write(b"1", dest_addr=one.me, addr=0, key=1 << 63)
        assert failure(one).status is fi.Status.no_key


def test_length_of_a_call_is_that_of_its_buffers(opened: Opened) -> None:
    memory = bytearray(16)
    opened.reg(memory)
    opened.ep.writemsg(fi.MsgRma(msg_iov=[b"four"], addr=opened.me, rma_iov=[fi.RmaIov(4, 9999, KEY)]))
    opened.cq.sread(timeout=WATCHDOG_S)
    assert memory == b"\0\0\0\0four" + bytes(8)


def test_refused_calls_have_the_errors_of_the_providers_rules(opened: Opened) -> None:
    memory = np.zeros(128, np.int64)
    opened.reg(memory)
    wide, result = np.zeros(65, np.int64), np.zeros(65, np.int64)
    for errno, why, call in (
        (fi.E2BIG, "65 elements are more than one call may carry, 64",
         lambda: opened.ep.fetch_atomic(wide, None, result, None, opened.me, 0, KEY, fi.INT64, fi.SUM)),
        (fi.E2BIG, "65 bytes are more than inject_size, 64",
         lambda: opened.ep.inject_write(bytes(65), opened.me, 0, KEY)),
        (fi.EBADFLAGS, "not for this call",
         lambda: opened.ep.writemsg(message(opened, memory), fi.COMMIT_COMPLETE)),
    ):  # fmt: skip
        with pytest.raises(fi.FabricError, match=why) as caught:
            call()
        assert caught.value.errno == errno
    assert opened.ep.atomicvalid(fi.INT64, fi.SUM) == 64


def test_atomic_that_the_provider_lacks_is_refused(opened: Opened) -> None:
    two = np.zeros(2, np.int64)
    for datatype in (fi.INT128, fi.UINT128):
        with pytest.raises(fi.NotSupported):
            opened.ep.compare_atomicvalid(datatype, fi.CSWAP)
        with pytest.raises(fi.NotSupported, match="does not exist as a"):
            opened.ep.compare_atomic(two, None, two, None, two.copy(), None, opened.me, 0, KEY, datatype, fi.CSWAP)
    assert opened.ep.compare_atomicvalid(fi.INT64, fi.CSWAP) == 64


def message(one: Opened, memory: Any) -> fi.MsgRma:
    return fi.MsgRma(msg_iov=[b"12345678"], addr=one.me, rma_iov=[fi.RmaIov(0, 8, KEY)])


def test_fence_needs_its_capability(opened: Opened) -> None:
    opened.reg(bytearray(8))
    info = fi.dupinfo(opened.info)
    assert info.caps & fi.FENCE
    info.caps &= ~int(fi.FENCE)
    with opened.domain.endpoint(info) as ep:
        ep.bind(opened.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(opened.av)
        ep.enable()
        ep.writemsg(message(opened, None), strange.PATIENT)
        opened.cq.sread(timeout=WATCHDOG_S)
        with pytest.raises(fi.InvalidArgument, match="FENCE on an endpoint that was opened without it"):
            ep.writemsg(message(opened, None), fi.FENCE)
    opened.ep.writemsg(message(opened, None), fi.FENCE)
    opened.cq.sread(timeout=WATCHDOG_S)


def test_write_on_a_disabled_endpoint_is_refused_as_not_enabled(provider: strange.Strange) -> None:
    one = Opened()
    with one.stack, pytest.raises(fi.BadState, match="not enabled"):
        one.ep.write(b"1", dest_addr=0, addr=0, key=1 << 63)


def order_of_a_fenced_write(me: Any, slow: Any, fast: Any, flag: int) -> list[str]:
    """What completes, in order: a write that the slow peer's full queue holds back, and a fenced one to another peer.

    The slow peer reads its queue once the fenced write had its chance.
    """
    for one in (slow, fast):
        one.reg(bytearray(8))
    to_slow, to_fast = me.av.insert(slow.ep.getname()), me.av.insert(fast.ep.getname())

    def read(patience: int = 200) -> list[Any]:
        return [entry.op_context for _ in range(patience) for entry in me.cq.read()]

    for _ in range(64):
        me.ep.writedata(b"1", data=1, dest_addr=to_slow, addr=0, key=KEY, context="held back")
        if not read():
            break
    else:
        raise AssertionError("a full queue held nothing back")
    fenced = fi.MsgRma(msg_iov=[b"2"], addr=to_fast, rma_iov=[fi.RmaIov(0, 1, KEY)], context="fenced")
    me.ep.writemsg(fenced, flag)
    order = read()
    while len(order) < 2:
        slow.cq.read()
        order += read(1)
    return order


def test_fence_of_the_strange_provider_covers_every_peer(provider: strange.Strange) -> None:
    """`EndpointPolicy.nic_config`: fence_covers_all."""
    with contextlib.ExitStack() as stack:
        slow, fast, me = [stack.enter_context(one.stack) and one for one in (Opened(), Opened(), Opened())]
        for one in (slow, fast, me):
            one.enabled()
        assert order_of_a_fenced_write(me, slow, fast, strange.PATIENT) == ["held back", "fenced"]


def test_fence_of_the_general_provider_covers_one_peer(provider: strange.Strange) -> None:
    """fi_rma(3) FI_FENCE: earlier operations that target the same endpoint."""
    with general(size=4) as slow, general(size=4) as fast, general(size=4) as me:
        slow.reg, fast.reg = partial(slow.reg, requested_key=KEY), partial(fast.reg, requested_key=KEY)
        assert order_of_a_fenced_write(me, slow, fast, int(fi.FENCE)) == ["fenced", "held back"]


@pytest.mark.parametrize(("access", "fetch", "outcome"), [
    (fi.REMOTE_WRITE, False, fi.Status.ok), (fi.REMOTE_WRITE, True, fi.Status.access),
    (fi.REMOTE_READ, False, fi.Status.access), (fi.REMOTE_READ, True, fi.Status.access),
    (RW, False, fi.Status.ok), (RW, True, fi.Status.ok),
])  # fmt: skip
def test_fetching_atomic_needs_both_rights(opened: Opened, access: int, fetch: bool, outcome: fi.Status) -> None:
    memory, one, result = np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int64)
    mr = opened.stack.enter_context(opened.domain.mr_reg(memory, int(access), requested_key=KEY))
    mr.bind(opened.ep)
    mr.enable()
    if fetch:
        opened.ep.fetch_atomic(one, None, result, None, opened.me, 0, KEY, fi.INT64, fi.SUM)
    else:
        opened.ep.atomic(one, None, opened.me, 0, KEY, fi.INT64, fi.SUM)
    if outcome is fi.Status.ok:
        opened.cq.sread(timeout=WATCHDOG_S)
    else:
        assert failure(opened).status is outcome
    assert memory[0] == (outcome is fi.Status.ok)


# ---- queues, keys, options, calls of its own -------------------------------------------------------------------------


def test_queue_of_size_0_has_the_providers_size_and_format(opened: Opened) -> None:
    assert (opened.cq.capacity, opened.cq.format) == (3, fi.CQ_FORMAT_CONTEXT)
    with pytest.raises(fi.InvalidArgument, match="no AV_MAP here; there are AV_TABLE"):
        opened.domain.av_open(fi.AV_MAP)


def test_auth_key_has_a_service_and_its_origin(provider: strange.Strange) -> None:
    one = Opened(auth_key=b"\x0b\0\7\0", auth_key_size=4).enabled()
    with one.stack:
        used = one.domain.policy.credential
        assert (used.vni, used.service, used.raw, used.found) == (11, 7, b"\x0b\0\7\0", ("domain_attr.auth_key",))
        assert one.domain.provider.addresses.parse(one.ep.getname())[2] == 11
    with pytest.raises(fi.NoData, match="4 bytes"):
        found(auth_key=b"\x0b\0", auth_key_size=2)


def test_option_of_the_provider_is_set_and_read(opened: Opened) -> None:
    opened.ep.setopt(fi.OPT_ENDPOINT, 0x77, 12)
    assert opened.ep.getopt(fi.OPT_ENDPOINT, 0x77) == 12
    with pytest.raises(fi.NoProtocolOption, match="patience is a number"):
        opened.ep.setopt(fi.OPT_ENDPOINT, 0x77, "long")
    with pytest.raises(fi.InvalidArgument, match="unknown option"):
        opened.ep.getopt(fi.OPT_ENDPOINT, 0x78)  # an option that can only be set
    with pytest.raises(fi.NoProtocolOption, match="cannot be set"):
        opened.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_TX_SIZE, 1)


def test_providers_own_calls_reach_the_provider(opened: Opened) -> None:
    assert opened.domain.control(42, "me") == ("heard", "me")
    assert opened.domain.open_ops("counting")["twice"](21) == 42
    opened.domain.set_val(1, "told")
    assert opened.domain.get_val(1) == 1
    for call in (
        lambda: opened.domain.control(43),
        lambda: opened.domain.open_ops("other"),
        lambda: opened.domain.get_val(2),
        lambda: opened.ep.control(1),
    ):
        with pytest.raises(fi.NoSys):
            call()


def test_domain_returns_its_resources(provider: strange.Strange) -> None:
    with Opened().stack:
        assert strange.LOG == []
    assert strange.LOG == ["closed"]


def test_domain_is_on_the_nic_of_its_provider(opened: Opened, provider: strange.Strange) -> None:
    assert opened.domain.policy.nic is provider.nic()
    assert provider.nic().engine == "manual"
    assert opened.domain.policy.progress == fi.PROGRESS_MANUAL
    with fi.Fabric(fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))[0].fabric_attr) as general:
        info = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))[0]
        with general.domain(info) as other:
            assert other.policy.nic is not opened.domain.policy.nic
    array = opened.domain.alloc(8, np.uint8)
    assert provider.nic().statistics()["allocated_bytes"] >= array.nbytes


def test_registration_cache_is_that_of_the_domains_nic(opened: Opened) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    with fi.open("mr_cache", opened.domain) as own, fi.open("mr_cache") as general_one:
        before, others = own.statistics(), general_one.statistics()
        with own.search(memory) as entry:
            assert entry.length >= memory.nbytes
        after = own.statistics()
        assert after.hits + after.misses == before.hits + before.misses + 1
        assert general_one.statistics() == others
        watching = fi.MemMonitor()
        own.import_fid(watching)
        general_one.import_fid(fi.MemMonitor())
        with pytest.raises(fi.Busy):
            own.import_fid(fi.MemMonitor())
    with pytest.raises(fi.InvalidArgument, match="Domain or None"):
        fi.open("mr_cache", opened.fabric)


def test_packed_addresses_and_keys_name_the_nic_of_the_domain(opened: Opened) -> None:
    mr = opened.reg(bytearray(8))
    with general() as other:
        here, there = _keys.of_endpoint(opened.ep), _keys.of_endpoint(other.ep)
        assert here.process != there.process
        assert _keys.of_region(mr, opened.ep).process == here.process
        assert here.place.nic == strange.NIC


@pytest.mark.parametrize("timeout", ["x", b"1", [1]])
def test_wait_for_no_number_of_seconds_names_the_argument(opened: Opened, timeout: Any) -> None:
    with pytest.raises(TypeError, match=r"cq\.sread: timeout must be a number of seconds, or None for no limit"):
        opened.cq.sread(1, timeout=timeout)
    with opened.domain.cntr_open() as cntr, pytest.raises(TypeError, match=r"cntr\.wait: timeout must be a number"):
        cntr.wait(1, timeout=timeout)


# ---- fabrics ---------------------------------------------------------------------------------------------------------


def test_fabric_is_of_the_providers_class(provider: strange.Strange, monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnFabric(fi.Fabric):
        pass

    monkeypatch.setattr(strange.Strange, "fabric_class", OwnFabric)
    with fi.Fabric(found()[0].fabric_attr) as fabric:
        assert type(fabric) is OwnFabric
