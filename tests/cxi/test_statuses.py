"""Error entries of the CXI provider: err, and prov_errno as the hardware's return codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.cxi.support import opened
from tests.fi.support import Node
from tests.procs import cxi_side
from tests.procs.children import Child

from weft import cxi, fi
from weft._nic import Status
from weft.providers.cxi import device, statuses


@pytest.fixture
def target() -> Iterator[tuple[Node, np.ndarray, fi.MemoryRegion]]:
    """An endpoint, 64 bytes of memory, and their region for peers' writes alone, enabled."""
    with opened() as at:
        memory = np.zeros(64, np.uint8)
        mr = at.domain.mr_reg(memory, fi.REMOTE_WRITE, requested_key=200)
        mr.bind(at.ep)
        mr.enable()
        yield at, memory, mr
        mr.close()


def error(at: Node) -> fi.CqErrEntry:
    """The error entry that the next completion is."""
    with pytest.raises(fi.FabricError):
        at.cq.sread(timeout=10.0)
    return at.cq.readerr()


_OF_MESSAGES = fi.ETRUNC, fi.ENOMSG, fi.EADDRNOTAVAIL
_ERRNOS = (0, fi.EIO, fi.EAGAIN, fi.ECANCELED, fi.ENOTCONN, fi.EHOSTUNREACH, *_OF_MESSAGES)


@pytest.mark.parametrize("statuses", [statuses.STATUSES])
def test_every_status_has_a_return_code_that_has_a_name(statuses: dict[Status, tuple[int, int]]) -> None:
    assert set(statuses) == set(Status)
    for err, code in statuses.values():
        assert fi.Errno(err) in _ERRNOS
        assert cxi.ReturnCode(code).name.startswith("C_RC_")


@pytest.mark.clause("cxi.guide.err-eio")
@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("read", cxi.C_RC_OP_VIOLATION),
        ("bounds", cxi.C_RC_PERM_VIOLATION),
        ("unknown", cxi.C_RC_ENTRY_NOT_FOUND),
        ("closed", cxi.C_RC_ENTRY_NOT_FOUND),
    ],
)
def test_access_that_the_target_refuses_is_an_io_error(
    target: tuple[Node, np.ndarray, fi.MemoryRegion], what: str, code: int
) -> None:
    at, memory, mr = target
    peer = at.av.insert(at.ep.getname())
    buf = np.ones(16, np.uint8)
    if what == "closed":
        mr.close()
    if what == "read":
        at.ep.read(buf, src_addr=peer, addr=0, key=200)
    else:
        at.ep.write(buf, dest_addr=peer, addr=49 if what == "bounds" else 0, key=201 if what == "unknown" else 200)
    entry = error(at)
    assert (entry.err, entry.prov_errno) == (fi.EIO, code)
    assert not memory.any()


def write_to(at: Node, nic: int, pid: int) -> fi.CqErrEntry:
    """How a write to an address fails."""
    peer = at.av.insert(cxi.Address(nic, pid))
    at.ep.write(np.ones(8, np.uint8), dest_addr=peer, addr=0, key=200, context="nobody")
    entry = error(at)
    assert entry.op_context == "nobody"
    assert at.cq.read() == []
    return entry


@pytest.mark.parametrize("release", ["doc", "current"])
def test_write_to_a_pid_that_nobody_has_finds_no_portal_entry(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The NIC knows the VNI: the initiator's own endpoint has it."""
    monkeypatch.setenv("WEFT_CXI_RELEASE", release)
    with opened() as at:
        name = at.ep.getname()
        entry = write_to(at, name.nic, (name.pid + 1) % 511)
        assert (entry.err, entry.prov_errno) == (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)


@pytest.mark.clause("cxi.guide.err-enotconn")
@pytest.mark.parametrize("release", ["doc", "current"])
def test_write_to_a_nic_without_the_vni_is_not_connected(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", release)
    nic = device.add("cxi1").nic
    with opened() as at:
        entry = write_to(at, nic, 5)
        assert (entry.err, entry.prov_errno) == (fi.ENOTCONN, cxi.C_RC_VNI_NOT_FOUND)
        with opened(name="cxi1", auth_key=cxi.AuthKey(1, 99)):  # an endpoint of another VNI changes nothing
            assert write_to(at, nic, 5).prov_errno == cxi.C_RC_VNI_NOT_FOUND
        with opened(name="cxi1") as other:
            entry = write_to(at, nic, (other.ep.getname().pid + 1) % 511)
            assert (entry.err, entry.prov_errno) == (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)


@pytest.mark.procs
def test_vni_is_unknown_after_its_last_endpoint_closes() -> None:
    nic = device.add("cxi1").nic
    with opened() as at, Child() as child:
        there = child.call(cxi_side.open_cxi, "cxi1", 17, None, 7)
        peer = at.av.insert(there)
        at.ep.write(bytes(8), dest_addr=peer, addr=0, key=7)
        at.wait()
        child.call(cxi_side.close_cxi)
        assert write_to(at, nic, 17).prov_errno == cxi.C_RC_VNI_NOT_FOUND


def test_peer_on_another_vni_of_the_same_nic_is_not_found() -> None:
    key = cxi.AuthKey(1, 99)
    with opened() as at, opened(auth_key=key) as one, opened(auth_key=key) as two:
        # One of the two has a PID that the initiator does not have itself on its own VNI.
        other = next(node.ep.getname() for node in (one, two) if node.ep.getname().pid != at.ep.getname().pid)
        entry = write_to(at, other.nic, other.pid)
        assert (entry.err, entry.prov_errno) == (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)


def test_strerror_gives_the_text_or_the_name_of_the_code() -> None:
    with opened() as at:
        assert at.cq.strerror(26) == "PTLTE_NOT_FOUND"
        assert at.cq.strerror(26, b"said by the NIC") == "said by the NIC"
        assert "unknown" in at.cq.strerror(7777)


def test_key_of_an_optimized_region_finds_no_portal_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimized regions have portal entries of their own, standard regions entries of one list."""
    with opened() as at:
        at.ep.write(bytes(8), dest_addr=at.me, addr=0, key=99)
        failed = error(at)
        assert (failed.err, failed.prov_errno) == (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)
        at.ep.write(bytes(8), dest_addr=at.me, addr=0, key=100)
        assert error(at).prov_errno == cxi.C_RC_ENTRY_NOT_FOUND
        for bit, code in ((0, cxi.C_RC_ENTRY_NOT_FOUND), (1 << 61, cxi.C_RC_PTLTE_NOT_FOUND)):
            at.ep.write(bytes(8), dest_addr=at.me, addr=0, key=1 << 63 | bit)
            assert error(at).prov_errno == code
    monkeypatch.setenv("FI_CXI_OPTIMIZED_MRS", "0")
    with opened() as at:
        at.ep.write(bytes(8), dest_addr=at.me, addr=0, key=99)
        assert error(at).prov_errno == cxi.C_RC_ENTRY_NOT_FOUND


@pytest.mark.clause("cxi.guide.err-ehostunreach")
def test_write_to_a_nic_that_the_fabric_has_not_is_unreachable() -> None:
    with opened() as at:
        peer = at.av.insert(cxi.Address(0xFFFFF, 5))
        at.ep.write(bytes(8), dest_addr=peer, addr=0, key=200)
        failed = error(at)
        assert (failed.err, failed.prov_errno) == (fi.EHOSTUNREACH, cxi.C_RC_UNDELIVERABLE)


def test_text_of_a_failure_names_the_peer_by_nic_and_pid() -> None:
    with opened() as at:
        name = at.ep.getname()
        at.ep.write(bytes(8), dest_addr=at.me, addr=0, key=200)
        text = error(at).err_data.decode()
        assert f"on nic {name.nic:#x}, pid {name.pid}, vni {at.domain.policy.credential.vni}: " in text
        assert "weft://" not in text
