"""The CXI provider between hosts: two network namespaces, each with a registry of its own, and a list of NICs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.procs.hosts import PATIENT, Wire

from weft import cxi, errors
from weft.providers.cxi import fabrics, hosts

SECRET = "of the tests, for two hosts"
NIC = {"a": 0x840, "b": 0x880}
PORT = 7411

OWNER = """
import sys
from weft import cxi, fi
from weft.providers.cxi import device
device.set_values("cxi0", nic=int(sys.argv[1]))
info = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi"), caps=fi.RMA | fi.ATOMIC,
                  domain_attr=fi.DomainAttr(mr_mode=fi.MR_ENDPOINT | fi.MR_ALLOCATED)))[0]
info.src_addr = None
domain = fi.Fabric(info.fabric_attr).domain(info)
cq, av = domain.cq_open(), domain.av_open()
ep = domain.endpoint(info)
ep.bind(cq, fi.TRANSMIT | fi.RECV)
ep.bind(av)
ep.enable()
"""

TARGET = (
    OWNER
    + """
memory = bytearray(64)
mr = domain.mr_reg(memory, fi.REMOTE_READ | fi.REMOTE_WRITE, requested_key=200)
mr.bind(ep)
mr.enable()
print(ep.getname().hex(), flush=True)
sys.stdin.readline()
print(bytes(memory[:5]).decode(), flush=True)
"""
)

INITIATOR = (
    OWNER
    + """
there = cxi.Address.from_bytes(bytes.fromhex(sys.argv[2]))
peer = av.insert(there)
for data, pid in ((b"hello", peer), (b"later", av.insert(cxi.Address(there.nic, (there.pid + 1) % 511)))):
    ep.write(data, dest_addr=pid, addr=0, key=200)
    try:
        cq.sread(1, timeout=10)
        print("done", flush=True)
    except fi.FabricError:
        print("failed", cq.readerr().err, flush=True)
print(av.lookup(peer).hex(), flush=True)
"""
)


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def settings(wire: Wire, host: str, folder: Path) -> dict[str, str]:
    return {
        "WEFT_LISTEN": f"tcp://{wire.ip[host]}:{PORT}",
        "WEFT_SECRET": SECRET,
        **PATIENT,
        "WEFT_CXI_HOSTS": ",".join(f"{NIC[h]:#x}={wire.ip[h]}:{PORT}" for h in "ab"),
        "WEFT_CXI_REGISTRY": str(folder / host),
        "PYTHONPATH": ":".join(sys.path),
    }


def spoken(process: Any, what: str = "") -> list[str]:
    out, _ = patience.communicate(process, 60, what)
    assert process.returncode == 0, out
    return out.split()  # type: ignore[no-any-return]


@pytest.mark.procs
def test_nic_of_another_host_is_reached_by_its_address(wire: Wire, tmp_path: Path) -> None:
    target = wire.run("b", TARGET, str(NIC["b"]), **settings(wire, "b", tmp_path))
    try:
        name = target.stdout.readline().strip()  # type: ignore[union-attr]
        assert cxi.Address.from_bytes(bytes.fromhex(name)).nic == NIC["b"]
        initiator = wire.run("a", INITIATOR, str(NIC["a"]), name, **settings(wire, "a", tmp_path))
        said = spoken(initiator)
        assert said[:2] == ["done", "failed"]  # no endpoint has the other PID
        assert said[-1] == name
        assert spoken(target, "\n") == ["hello"]
    finally:
        target.kill()
        target.communicate()


@pytest.mark.parametrize(
    "text", ["0x840", "0x840=host", "x=10.0.0.1:7", "0x100000=10.0.0.1:7", "1=10.0.0.1:0", "1=a:7,1=b:7"]
)
def test_list_of_hosts_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_HOSTS", text)
    with pytest.raises(errors.InvalidArgument, match="WEFT_CXI_HOSTS"):
        hosts.engine_nic(fabrics.NETWORK, 1)


def test_nic_address_of_a_route_is_that_of_the_nic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_HOSTS", "0xabcd=127.0.0.9:7")
    engine = hosts.engine_nic(fabrics.in_force(3), 0xABCD)
    assert engine >= hosts.REMOTE_NIC
    assert hosts.nic_address(engine) == 0xABCD


def test_without_a_list_of_hosts_each_registry_is_a_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_CXI_HOSTS", raising=False)
    assert fabrics.in_force(3) == 3
    assert hosts.engine_nic(3, 0xABCD) == 3 << 20 | 0xABCD
