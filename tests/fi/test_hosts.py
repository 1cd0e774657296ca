"""Addresses of endpoints on other hosts: all forms give the same address, and invalid texts are refused."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from weft import fi

WHOLE = "weft://192.0.2.1:7000/0/1/7000"


@pytest.fixture
def av() -> Any:
    info = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="weft")))[0]
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain, domain.av_open() as made:
        yield made


def test_av_insert_every_form_of_an_address_is_the_same(av: Any) -> None:
    """fi_av(3) fi_av_insert, fi_av_insertsvc: an address as a string, as node and service, as a socket address."""
    sockaddr = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 7000, socket.inet_aton("192.0.2.1"))
    found = {
        av.insert(WHOLE),
        av.insert(WHOLE.encode()),
        av.insert("weft://192.0.2.1:7000"),
        av.insert(("192.0.2.1", 7000)),
        av.insert(sockaddr),
        av.insertsvc("192.0.2.1", "7000"),
        av.insertsvc("192.0.2.1:7000", "7000"),
        av.insertsvc(WHOLE),
        *av.insert([WHOLE, ("192.0.2.1", 7000)]),
    }
    assert len(found) == 1
    assert av.lookup(found.pop()) == WHOLE
    assert av.count() == 1


def test_av_insert_distinguishes_host_port_nic_and_endpoint(av: Any) -> None:
    names = [
        WHOLE,
        "weft://192.0.2.2:7000/0/1/7000",
        "weft://192.0.2.1:7001/0/1/7000",
        "weft://192.0.2.1:7000/1/1/7000",
        "weft://192.0.2.1:7000/0/2/7000",
        "weft://192.0.2.1:7000/0/1/7001",
        "weft://[2001:db8::1]:7000/0/1/7000",
        "weft://0/1/7000",
    ]
    found = av.insert(names)
    assert len(set(found)) == len(names)
    assert [av.lookup(one) for one in found] == names
    av.remove(found)
    assert av.count() == 0


@pytest.mark.parametrize(
    "address",
    [
        "weft://192.0.2.1:0/0/1/5",
        "weft://192.0.2.1:70000/0/1/5",
        "weft://192.0.2.1:7000/0/70000/5",
        "weft://192.0.2.1:7000/4000000000/1/5",
        "weft://192.0.2.1:7000/0/1/5/6",
        "weft://2147483648/1/5",
        "weft://192.0.2.1/0/1/5",
        ("192.0.2.1", 0),
        b"\2\0" + bytes(14),
    ],
)
def test_av_insert_of_an_invalid_address_is_refused(av: Any, address: Any) -> None:
    with pytest.raises(fi.InvalidArgument):
        av.insert(address)


@pytest.mark.parametrize("pid", [2**32, 2**40])
def test_av_insert_of_a_pid_beyond_32_bits_is_refused(av: Any, pid: int) -> None:
    av.insert(f"weft://0/1/{2**32 - 1}")
    for address in (f"weft://0/1/{pid}", f"weft://127.0.0.1:7000/0/1/{pid}"):
        with pytest.raises(fi.InvalidArgument, match="pid"):
            av.insert(address)


@pytest.mark.parametrize("vni", [2**16, 2**20])
def test_av_insert_of_a_vni_beyond_16_bits_is_refused(av: Any, vni: int) -> None:
    for start in ("weft://0", "weft://127.0.0.1:7000/0"):
        av.insert(f"{start}/{2**16 - 1}/5")
        with pytest.raises(fi.InvalidArgument):
            av.insert(f"{start}/{vni}/5")


def test_av_insert_of_an_ipv6_scope_names_another_host(av: Any) -> None:
    """struct sockaddr_in6: the scope says on which link a link-local address is."""

    def address(scope: int) -> bytes:
        ip = socket.inet_pton(socket.AF_INET6, "fe80::1")
        return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 7000, 0) + ip + struct.pack("=I", scope)

    plain, first = av.insert(address(0)), av.insert(address(1))
    assert plain != first
    assert first == av.insert(address(1))
    assert "%" in av.lookup(first)
    assert "%" not in av.lookup(plain)


def test_getinfo_takes_a_host_as_node_and_its_port_as_service() -> None:
    found = fi.getinfo(node="192.0.2.1", service="7000")[0]
    assert found.dest_addr == WHOLE
    hints = fi.Info(dest_addr=("192.0.2.1", 7000))
    assert fi.getinfo(hints=hints)[0].dest_addr == WHOLE


def test_getinfo_source_on_another_host_is_not_available() -> None:
    with pytest.raises(fi.NoData, match="no address of this process"):
        fi.getinfo(node="192.0.2.1", service="7000", flags=fi.SOURCE)
