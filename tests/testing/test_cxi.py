"""weft.testing.cxi: a host with CXI devices for one test, and its fixtures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests import patience

from weft import cxi, fi
from weft.providers.cxi import device, registry, service
from weft.testing import CxiHost
from weft.testing import cxi as cxi_of


@pytest.fixture
def host() -> Iterator[CxiHost]:
    with cxi_of() as found:
        yield found


def test_cxi_pair_moves_bytes(host: CxiHost) -> None:
    with host.pair() as pair:
        assert pair.target.info.fabric_attr.prov_name == "cxi"
        data = bytearray(64)
        addr, key = pair.remote(pair.target.reg(data))
        pair.initiator.ep.write(b"hello", None, pair.peer, addr, key, "context")
        assert [entry.op_context for entry in pair.initiator.wait()] == ["context"]
        assert data[:5] == b"hello"


def test_cxi_client_keys_are_the_applications(host: CxiHost) -> None:
    with host.pair(host.hints(client_keys=True)) as pair:
        mr = pair.target.reg(bytearray(8), requested_key=77)
        assert pair.remote(mr) == (0, 77)
        assert [pair.target.reg(bytearray(8)).key for _ in range(3)] == [2, 3, 4]


def test_cxi_registry_is_the_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", "/nowhere")
    monkeypatch.setenv("SLINGSHOT_VNIS", "7")
    with cxi_of() as host:
        assert registry.folder() == host.folder
        assert "SLINGSHOT_VNIS" not in os.environ
        program = "from weft.providers.cxi import registry; print(registry.folder())"
        said = patience.run([sys.executable, "-c", program], check=True, timeout=100)
        assert said.stdout.strip() == str(host.folder)
    assert os.environ["WEFT_CXI_REGISTRY"] == "/nowhere"
    assert os.environ["SLINGSHOT_VNIS"] == "7"
    assert not host.folder.exists()


def test_cxi_limits_are_those_of_the_default_services() -> None:
    with cxi_of(limits={"les": 2, "ptes": (6, 5)}, devices=2) as host:
        assert [one.name for one in device.devices()] == ["cxi0", "cxi1"]
        for name in ("cxi0", "cxi1"):
            limits = service.service(name, 1).limits  # type: ignore[union-attr]
            assert (limits["les"], limits["ptes"]) == ((2, 0), (6, 5))
            assert limits["eqs"] == (2047, 0)
        assert len(host.getinfo()) >= 2


@pytest.mark.parametrize("limits", [{"les": -1}, {"les": 1 << 40}, {"lots": 1}, {"les": (1, 2)}, {"les": "few"}])
def test_cxi_limits_that_no_device_has_are_refused(limits: Any) -> None:
    with pytest.raises(fi.InvalidArgument, match="service:"), cxi_of(limits=limits):
        pass


def test_cxi_release_chooses_the_numbers() -> None:
    found = []
    for release in ("doc", "current"):
        with cxi_of(release=release) as host:
            found.append(host.getinfo()[0])
    assert found[0] != found[1]


def test_two_cxi_hosts_of_one_test_do_not_see_each_other() -> None:
    """The same NIC address on both hosts: an endpoint can be reached only on its own host."""
    with cxi_of() as one, cxi_of() as other:
        assert registry.folder() == other.folder
        with one.active():
            assert registry.folder() == one.folder
        with one.opened() as here, one.opened() as near, other.opened() as far:
            reached = []
            for target in (near, far):
                mr = target.reg(bytearray(8))
                peer = here.av.insert(target.ep.getname())
                here.ep.write(b"x", None, peer, 0, mr.key)
                try:
                    here.wait()
                    reached.append(True)
                except fi.FabricError:
                    reached.append(False)
            assert cxi.Address.from_bytes(near.ep.getname()).nic == cxi.Address.from_bytes(far.ep.getname()).nic
            assert reached == [True, False]


def test_cxi_queue_beyond_the_limit_is_refused() -> None:
    """fi_cxi(7), Authorization Keys: a service limits resources. The message names the limit and the holder."""
    full = pytest.raises(fi.NoSpace, match=r"1 eqs of cxi0, service 1: the service's limit is 1, 1 are in use")
    with cxi_of(limits={"eqs": 1}) as host, host.opened() as stack, full:
        stack.domain.cq_open()


def test_cxi_region_beyond_the_limit_is_refused() -> None:
    """A region with a standard key of the application's takes a list entry when it is enabled."""
    with cxi_of(limits={"les": 2}) as host, host.pair(host.hints(client_keys=True)) as pair:
        for key in (100, 101):
            pair.target.reg(bytearray(8), requested_key=key)
        with pytest.raises(fi.NoSpace, match="1 les of cxi0, service 1: the service's limit is 2, 2 are in use"):
            pair.target.reg(bytearray(8), requested_key=102)


def test_cxi_endpoint_beyond_the_limit_is_refused() -> None:
    """An endpoint takes four portal entries when it is enabled."""
    full = pytest.raises(fi.NoSpace, match="4 ptes of cxi0")
    with cxi_of(limits={"ptes": 4}) as host, host.opened(), full, host.opened():
        pass


def test_cxi_limits_of_two_hosts_do_not_add_up() -> None:
    with cxi_of(limits={"eqs": 1}) as one, cxi_of(limits={"eqs": 1}) as other, one.opened(), other.opened():
        pass


def test_cxi_service_of_the_test_is_used_by_its_key(host: CxiHost) -> None:
    made = host.service(vnis=[7], limits={"les": 5})
    assert made.limits["les"] == (5, 0)
    with host.pair(host.hints(auth_key=cxi.AuthKey(made.id, 7))) as pair:
        credential = pair.target.domain.policy.credential
        assert (credential.service, credential.vni) == (made.id, 7)


def test_cxi_device_that_goes_down_is_not_offered(host: CxiHost) -> None:
    assert host.getinfo()
    assert not host.set_device(up=False).up
    with pytest.raises(fi.NoData):
        host.getinfo()


def test_cxi_fixtures_work_in_an_application(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from weft import cxi, fi

        def test_put(cxi_pair):
            data = bytearray(64)
            addr, key = cxi_pair.remote(cxi_pair.target.reg(data))
            cxi_pair.initiator.ep.write(b"hello", None, cxi_pair.peer, addr, key)
            cxi_pair.initiator.wait()
            assert data[:5] == b"hello"

        def test_domain(cxi_domain, cxi_host):
            assert cxi_domain.info.domain_attr.name == "cxi0"

        def test_service(cxi_host, cxi_service):
            made = cxi_service(vnis=[9])
            with cxi_host.opened(cxi_host.hints(auth_key=cxi.AuthKey(made.id, 9))) as stack:
                assert stack.domain.policy.credential.service == made.id
    """)
    found = pytester.runpytest_subprocess("-p", "weft.testing", "-W", "error", "-p", "no:cacheprovider")
    found.assert_outcomes(passed=3)
