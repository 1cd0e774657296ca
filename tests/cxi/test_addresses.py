"""CXI addresses: eight bytes with NIC and PID, how node and service name them, and who gets which PID."""

from __future__ import annotations

import copy
import ctypes
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests import patience

from weft import cxi, fi
from weft.providers.cxi import device, service
from weft.providers.cxi.address import CxiAddresses


def hints(**domain: Any) -> fi.Info:
    made = fi.Info(caps=fi.RMA | fi.ATOMIC, fabric_attr=fi.FabricAttr(prov_name="cxi"))
    made.domain_attr = fi.DomainAttr(**domain)
    return made


def found(node: str | None = None, service: str | None = None, flags: int = 0, **domain: Any) -> fi.Info:
    return fi.getinfo(node=node, service=service, flags=flags, hints=hints(**domain))[0]


class Opened:
    """A domain, and the objects on it; `close` closes all."""

    def __init__(self, info: fi.Info) -> None:
        self.info = info
        self.fabric = fi.Fabric(info.fabric_attr)
        self.domain = self.fabric.domain(info)
        self.cq, self.av = self.domain.cq_open(), self.domain.av_open()
        self.eps: list[fi.Endpoint] = []

    def endpoint(self, info: fi.Info | None = None) -> fi.Endpoint:
        ep = self.domain.endpoint(info or self.info)
        self.eps.append(ep)
        ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(self.av)
        return ep

    def enabled(self, info: fi.Info | None = None) -> fi.Endpoint:
        ep = self.endpoint(info)
        ep.enable()
        return ep

    def close(self) -> None:
        for each in (*self.eps, self.av, self.cq, self.domain, self.fabric):
            each.close()


@pytest.fixture
def opened() -> Iterator[Any]:
    made: list[Opened] = []

    def opening(info: fi.Info | None = None) -> Opened:
        made.append(Opened(info or found()))
        return made[-1]

    yield opening
    for one in made:
        one.close()


# ---- the eight bytes -------------------------------------------------------------------------------------------------


def test_address_has_the_bit_fields_of_the_c_struct() -> None:
    """{pid 9, nic 20, pad 3}, then u16 vni and padding, little-endian."""
    assert bytes(cxi.Address(nic=1, pid=2)) == (1 << 9 | 2).to_bytes(4, "little") + bytes(4)
    assert bytes(cxi.Address(nic=0xFFFFF, pid=511, vni=0x1234)) == bytes.fromhex("ffffff1f") + b"\x34\x12\0\0"


@pytest.mark.clause("cxi.addr.nic-field", "cxi.addr.pid-field")
@given(st.integers(0, (1 << 20) - 1), st.integers(0, 511), st.integers(0, 0xFFFF))
def test_address_tells_what_it_was_made_of(nic: int, pid: int, vni: int) -> None:
    address = cxi.Address(nic, pid, vni)
    assert (address.nic, address.pid, address.vni, len(address)) == (nic, pid, vni, 8)
    assert cxi.Address.from_bytes(bytes(address)) == address


@given(st.binary(min_size=8, max_size=8))
def test_any_eight_bytes_are_an_address(data: bytes) -> None:
    address = cxi.Address.from_bytes(data)
    assert cxi.Address(address.nic, address.pid, address.vni) == address
    nic, pid, vni = CxiAddresses().parse(data)
    assert (nic, 511 if pid is None else pid, vni) == (address.nic, address.pid, 0)


@pytest.mark.parametrize("numbers", [(1 << 20, 0), (-1, 0), (0, 512), (0, -1), (0, 0, 1 << 16), ("0", 0), (None, 0)])
def test_address_of_numbers_out_of_range_is_refused(numbers: Any) -> None:
    with pytest.raises(fi.InvalidArgument, match="is a number from 0 to"):
        cxi.Address(*numbers)


@pytest.mark.parametrize("given", [b"", b"1234567", b"123456789", "12345678", 7, None, object()])
def test_address_of_something_else_is_refused(given: Any) -> None:
    with pytest.raises(fi.InvalidArgument, match="8 bytes"):
        cxi.Address.from_bytes(given)


def test_address_is_copied_and_sent_to_other_processes_as_one() -> None:
    address = cxi.Address(0x840, 7, 9)
    for again in (pickle.loads(pickle.dumps(address)), copy.copy(address), copy.deepcopy(address)):
        assert type(again) is cxi.Address
        assert again == address


def test_address_prints_its_numbers() -> None:
    assert repr(cxi.Address(0x840, 7)) == "cxi.Address(nic=0x840, pid=7)"
    assert str(cxi.Address(0x840)) == "nic 0x840, pid any"


# ---- of endpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.addr.getname", "cxi.addr.pid-auto", "cxi.addr.nic-inherited", "cxi.addr.nic-shared")
def test_endpoints_of_a_domain_have_its_nic_and_pids_of_their_own(opened: Any) -> None:
    at = opened()
    first, second = at.enabled().getname(), at.enabled().getname()
    assert isinstance(first, bytes)
    assert len(first) == 8
    assert first.nic == second.nic == device.devices()[0].nic
    assert first.pid != second.pid
    assert {first.pid, second.pid} <= set(range(511))


def test_getname_before_enable_is_refused(opened: Any) -> None:
    with pytest.raises(fi.BadState) as caught:
        opened().endpoint().getname()
    assert caught.value.errno == fi.EOPBADSTATE


@pytest.mark.clause("cxi.addr.vni-not-in-address")
def test_getname_has_no_vni(opened: Any) -> None:
    assert bytes(opened().enabled().getname())[4:] == bytes(4)


def test_getname_has_the_vni_in_the_current_release(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    assert opened().enabled().getname().vni == 10


@pytest.mark.clause("cxi.addr.getname-to-av", "cxi.addr.av-to-rdma", "cxi.overview.connectionless", "cxi.xfer.rma")
@pytest.mark.parametrize(
    "form", [bytes, bytearray, memoryview, cxi.Address.from_bytes, lambda name: np.frombuffer(name, np.uint8)]
)
def test_write_goes_to_an_inserted_name(opened: Any, form: Any) -> None:
    at = opened()
    source, target = at.enabled(), at.enabled()
    memory = np.zeros(64, np.uint8)
    mr = at.domain.mr_reg(memory, fi.REMOTE_WRITE)
    mr.bind(target)
    mr.enable()
    peer = at.av.insert(form(target.getname()))
    data = np.arange(64, dtype=np.uint8)
    source.write(data, dest_addr=peer, addr=0, key=mr.key, context="written")
    assert at.cq.sread(timeout=10.0)[0].op_context == "written"
    assert (memory == data).all()
    mr.close()


def test_several_addresses_are_inserted_from_one_buffer(opened: Any) -> None:
    at = opened()
    names = [at.enabled().getname() for _ in range(3)]
    for form in (bytes, bytearray, lambda data: np.frombuffer(data, np.uint8)):
        inserted = at.av.insert(form(b"".join(names)))
        assert [at.av.lookup(each) for each in inserted] == names


def test_lookup_gives_back_what_was_inserted(opened: Any) -> None:
    at = opened()
    assert at.av.lookup(at.av.insert(cxi.Address(0x12345, 17))) == cxi.Address(0x12345, 17)


@pytest.mark.parametrize("name", [b"1234567", "weft://0/1/1", 5, cxi.Address(1)])
def test_insert_of_no_address_is_refused(opened: Any, name: Any) -> None:
    with pytest.raises(fi.InvalidArgument):
        opened().av.insert([name])


# ---- client-chosen PIDs ----------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.addr.getinfo-source", "cxi.addr.client-pid", "cxi.addr.node-name", "cxi.addr.service-9bit")
@pytest.mark.parametrize("pid", [0, 17, 510])
def test_endpoint_has_the_pid_of_its_info(opened: Any, pid: int) -> None:
    info = found("cxi0", str(pid), fi.SOURCE)
    assert info.src_addr == cxi.Address(device.devices()[0].nic, pid)
    assert opened(info).enabled().getname() == info.src_addr


@pytest.mark.clause("cxi.addr.pid-accepted")
def test_every_pid_from_0_to_510_is_accepted() -> None:
    assert [found("cxi0", str(pid), fi.SOURCE).src_addr.pid for pid in range(511)] == list(range(511))


@pytest.mark.clause("cxi.addr.pid-range")
@pytest.mark.parametrize("flags", [0, fi.SOURCE])
@pytest.mark.parametrize("pid", ["511", "512", "-1", "0x1ff", "0777", "nine", "", "4294967296"])
def test_pid_out_of_range_is_refused(pid: str, flags: int) -> None:
    with pytest.raises(fi.InvalidArgument) as caught:
        found("cxi0", pid, flags)
    assert caught.value.errno == fi.EINVAL
    assert "0 to 510" in str(caught.value)


@pytest.mark.clause("cxi.addr.conflict", "cxi.addr.unique")
def test_pid_in_use_is_refused_at_enable(opened: Any) -> None:
    at = opened(found("cxi0", "40", fi.SOURCE))
    at.enabled()
    second = at.endpoint()
    with pytest.raises(fi.FabricError) as caught:
        second.enable()
    assert caught.value.errno == fi.ENOSPC
    assert "pid 40 is taken" in str(caught.value)
    assert not second.enabled


HOLD = """
import sys
from weft import fi
hints = fi.Info(caps=fi.RMA, fabric_attr=fi.FabricAttr(prov_name="cxi"))
info = fi.getinfo(node="cxi0", service="40", flags=fi.SOURCE, hints=hints)[0]
domain = fi.Fabric(info.fabric_attr).domain(info)
ep, cq, av = domain.endpoint(info), domain.cq_open(), domain.av_open()
ep.bind(cq, fi.TRANSMIT | fi.RECV)
ep.bind(av)
ep.enable()
print(ep.getname().pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.procs
@pytest.mark.clause("cxi.addr.unique")
def test_pid_of_a_live_process_is_refused(opened: Any) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "40"
        ep = opened(found("cxi0", "40", fi.SOURCE)).endpoint()
        with pytest.raises(fi.FabricError) as caught:
            ep.enable()
        assert caught.value.errno == fi.ENOSPC
    finally:
        child.kill()
        patience.communicate(child, 100)
    ep.enable()
    assert ep.getname().pid == 40


@pytest.mark.clause("cxi.addr.vni-pid-space", "cxi.addr.vni-in-auth-key")
def test_pid_may_be_in_use_on_two_vnis(opened: Any) -> None:
    for vni in (100, 200):
        info = found("cxi0", "40", fi.SOURCE, auth_key=cxi.AuthKey(1, vni))
        assert opened(info).enabled().getname().pid == 40


def test_pids_run_out_at_511(opened: Any) -> None:
    at = opened()
    names = {at.enabled().getname().pid for _ in range(511)}
    assert names == set(range(511))
    with pytest.raises(fi.FabricError) as caught:
        at.endpoint().enable()
    assert caught.value.errno == fi.ENOSPC


@pytest.mark.clause("cxi.addr.nic-inherited")
def test_endpoint_on_another_nic_than_its_domain_is_refused(opened: Any) -> None:
    device.add("cxi1", nic=0x999)
    at = opened(found("cxi0", "1", fi.SOURCE))
    with pytest.raises(fi.InvalidArgument):
        at.domain.endpoint(found("cxi1", "1", fi.SOURCE))


# ---- node and service ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "nic"),
    [
        ("cxi0", 0x840),
        ("0x840", 0x840),
        ("2112", 0x840),
        ("04100", 0x840),
        (" 2112 and more", 0x840),
        ("02:00:00:00:08:40", 0x840),
        ("2:0:0:f1:23:45", 0x12345),
        ("0xfffff", 0xFFFFF),
        ("0", 0),
    ],
)
def test_node_names_a_nic_as_c_reads_it(node: str, nic: int) -> None:
    assert found(node, "7").dest_addr == cxi.Address(nic, 7)


def test_pid_of_a_node_alone_is_0() -> None:
    info = found("0x12")
    assert (info.dest_addr, info.dest_addrlen) == (cxi.Address(0x12, 0), 8)
    assert info.src_addr.pid == 511


def test_service_is_read_as_c_reads_it() -> None:
    assert [found("cxi0", text).dest_addr.pid for text in ("0x10", "010", "10", " 10 ")] == [16, 8, 10, 10]


@pytest.mark.clause("cxi.addr.node-name")
@pytest.mark.parametrize("flags", [0, fi.SOURCE])
@pytest.mark.parametrize("node", ["nobody", "cxi9", "", "x:y", "0x100000", "-1"])
def test_node_that_is_no_nic_is_refused(node: str, flags: int) -> None:
    with pytest.raises(fi.InvalidArgument, match="is no NIC"):
        found(node, flags=flags)


C = ctypes.CDLL(None)
NUMBERS = st.from_regex(r"[ \t]{0,2}[+-]?(0[xX])?[0-9a-fA-F]{0,6}[a-z]{0,2}", fullmatch=True)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NUMBERS)
@example("0x")
@example("-0")
@example("+")
def test_service_is_the_number_that_c_reads(text: str) -> None:
    """scanf(3) %i, as the C library of this machine does it."""
    value = ctypes.c_int(0)
    read = C.sscanf(text.encode(), b"%i", ctypes.byref(value))
    if read == 1 and 0 <= value.value < 511:
        assert found("cxi0", text).dest_addr.pid == value.value
    else:
        with pytest.raises(fi.InvalidArgument):
            found("cxi0", text)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=20), st.none() | st.text(max_size=8), st.sampled_from([0, fi.SOURCE]))
def test_any_node_and_service_name_something_or_are_refused(node: str, service: str | None, flags: int) -> None:
    try:
        info = found(node, service, flags)
    except (fi.InvalidArgument, fi.NoData):
        return
    named = info.src_addr if flags else info.dest_addr
    assert isinstance(named, cxi.Address)


@pytest.mark.parametrize("node", ["nobody", "cxi9"])
def test_node_that_is_no_nic_leaves_other_providers_alone(node: str) -> None:
    assert {i.fabric_attr.prov_name for i in fi.getinfo(node="weft0")} == {"weft"}
    with pytest.raises(fi.NoData):
        fi.getinfo(node=node)


def test_source_takes_the_infos_of_that_device() -> None:
    device.add("cxi1", nic=0x999)
    assert {i.domain_attr.name for i in fi.getinfo(node="cxi1", flags=fi.SOURCE)} == {"cxi1"}
    assert [i.domain_attr.name for i in fi.getinfo(node="0x999", flags=fi.SOURCE, hints=hints())] == ["cxi1"]


def test_source_of_a_nic_elsewhere_is_refused() -> None:
    with pytest.raises(fi.InvalidArgument, match="not on this host"):
        found("0x12345", flags=fi.SOURCE)


def test_source_with_a_service_alone_is_for_every_device() -> None:
    device.add("cxi1", nic=0x999)
    infos = fi.getinfo(service="9", flags=fi.SOURCE, hints=hints())
    assert [info.src_addr for info in infos] == [cxi.Address(0x840, 9), cxi.Address(0x999, 9)]


def test_source_without_node_and_service_is_refused() -> None:
    with pytest.raises(fi.InvalidArgument, match="neither was given"):
        found(flags=fi.SOURCE)


def test_addresses_of_the_hints_are_copied() -> None:
    asked = hints()
    asked.src_addr, asked.dest_addr = cxi.Address(0x840, 3), bytes(cxi.Address(5, 6))
    (info,) = fi.getinfo(hints=asked)
    assert (info.src_addr, info.dest_addr) == (cxi.Address(0x840, 3), cxi.Address(5, 6))
    (info,) = fi.getinfo(node="0x33", service="4", hints=asked)
    assert (info.src_addr, info.dest_addr) == (cxi.Address(0x840, 3), cxi.Address(0x33, 4))
    (info,) = fi.getinfo(node="cxi0", service="8", flags=fi.SOURCE, hints=asked)
    assert (info.src_addr, info.dest_addr) == (cxi.Address(0x840, 8), cxi.Address(5, 6))


@pytest.mark.clause("cxi.addr.domain-name")
def test_domains_are_named_cxi_and_a_digit() -> None:
    names = {device.add().name for _ in range(9)}
    assert names == {f"cxi{n}" for n in range(1, 10)}
    with pytest.raises(fi.NoSpace):
        device.add()
    infos = [info for info in fi.getinfo() if info.fabric_attr.prov_name == "cxi"]
    assert {info.domain_attr.name for info in infos} == {f"cxi{n}" for n in range(10)}


# ---- virtual networks ------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.addr.vni-isolation", "cxi.addr.vni-same")
def test_write_to_an_endpoint_of_another_vni_ends_in_error(opened: Any) -> None:
    here, there = (opened(found(auth_key=cxi.AuthKey(1, vni))) for vni in (100, 200))
    same = opened(found(auth_key=cxi.AuthKey(1, 200)))
    memory = np.zeros(8, np.uint8)
    target = there.enabled()
    mr = there.domain.mr_reg(memory, fi.REMOTE_WRITE)
    mr.bind(target)
    mr.enable()
    for at, arrives in ((here, False), (same, True)):
        source = at.enabled()
        source.write(np.ones(8, np.uint8), dest_addr=at.av.insert(target.getname()), addr=0, key=mr.key)
        if arrives:
            assert len(at.cq.sread(timeout=10.0)) == 1
        else:
            with pytest.raises(fi.FabricError):
                at.cq.sread(timeout=10.0)
            failed = at.cq.readerr()  # the NIC, which is the initiator's as well, knows the VNI
            assert (failed.err, failed.prov_errno) == (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)
        assert memory.any() == arrives
    mr.close()


def test_service_that_allows_no_such_vni_is_refused() -> None:
    made = service.create("cxi0", vnis=[range(20, 30)])
    assert found(auth_key=cxi.AuthKey(made.id, 29))
    with pytest.raises(fi.NoData, match="does not allow VNI 30"):
        found(auth_key=cxi.AuthKey(made.id, 30))
