"""Authorization keys of the CXI provider: eight bytes, how a key is found where none is given, and valid keys."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import cxi, fi
from weft.providers.cxi import device, service

UID, GID = os.getuid(), os.getgid()
NETNS = Path("/proc/self/ns/net").stat().st_ino


def hints(**domain: Any) -> fi.Info:
    made = fi.Info(caps=fi.RMA | fi.ATOMIC, fabric_attr=fi.FabricAttr(prov_name="cxi"))
    made.domain_attr = fi.DomainAttr(**domain)
    return made


def found(**domain: Any) -> fi.Info:
    return fi.getinfo(hints=hints(**domain))[0]


def opened(info: fi.Info | None = None) -> fi.policy.Credential:  # type: ignore[name-defined]
    """The credential of a domain that is opened and closed again."""
    info = info or found()
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        return domain.policy.credential


def default() -> tuple[int, int]:
    """Service and VNI of a domain that is opened without a key."""
    credential = opened()
    assert cxi.AuthKey.from_bytes(credential.raw) == cxi.AuthKey(credential.service, credential.vni)
    return credential.service, credential.vni


# ---- the eight bytes -------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.key-svc-id", "cxi.auth.key-vni", "cxi.auth.key-header")
@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 16) - 1))
def test_key_is_the_c_struct_of_eight_bytes(svc_id: int, vni: int) -> None:
    key = cxi.AuthKey(svc_id=svc_id, vni=vni)
    assert bytes(key) == svc_id.to_bytes(4, "little") + vni.to_bytes(2, "little") + bytes(2)
    again = cxi.AuthKey.from_bytes(bytes(key))
    assert (again, again.svc_id, again.vni) == (key, svc_id, vni)


def test_key_is_copied_and_sent_to_other_processes_as_one() -> None:
    key = cxi.AuthKey(7, 9)
    for again in (pickle.loads(pickle.dumps(key)), copy.deepcopy(key)):
        assert type(again) is cxi.AuthKey
        assert (again.svc_id, again.vni) == (7, 9)


@given(st.binary(min_size=8, max_size=8))
def test_any_eight_bytes_are_a_key(data: bytes) -> None:
    assert bytes(cxi.AuthKey.from_bytes(data))[:6] == data[:6]


@pytest.mark.parametrize("numbers", [(1 << 32, 1), (-1, 1), (1, 1 << 16), (1, -1), ("1", 1), (1, None)])
def test_key_of_numbers_out_of_range_is_refused(numbers: Any) -> None:
    with pytest.raises(fi.InvalidArgument, match="is a number from 0 to"):
        cxi.AuthKey(*numbers)


@pytest.mark.parametrize("given", [b"", b"1234567", b"123456789", "12345678", 7, None])
def test_key_of_something_else_is_refused(given: Any) -> None:
    with pytest.raises(fi.InvalidArgument, match="8 bytes"):
        cxi.AuthKey.from_bytes(given)


# ---- no key: the environment -----------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.env-key", "cxi.auth.env-vnis", "cxi.auth.env-vnis-first", "cxi.auth.launch-choose")
def test_environment_gives_service_and_first_vni(monkeypatch: pytest.MonkeyPatch) -> None:
    made = service.create("cxi0", vnis=[234, 235])
    monkeypatch.setenv("SLINGSHOT_VNIS", "234,235")
    monkeypatch.setenv("SLINGSHOT_DEVICES", "cxi0")
    monkeypatch.setenv("SLINGSHOT_SVC_IDS", str(made.id))
    assert default() == (made.id, 234)


@pytest.mark.clause("cxi.auth.env-devices", "cxi.auth.env-svc-ids", "cxi.auth.env-index")
def test_environment_gives_each_device_the_service_at_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    device.add("cxi1")
    ids = [service.create(name).id for name in ("cxi0", "cxi1", "cxi1")]
    assert ids == [2, 2, 3]
    monkeypatch.setenv("SLINGSHOT_VNIS", "7")
    monkeypatch.setenv("SLINGSHOT_DEVICES", "cxi1,cxi0")
    monkeypatch.setenv("SLINGSHOT_SVC_IDS", "3,2")
    keys = {info.domain_attr.name: info.nic.prov_attr.default_rgroup_id for info in fi.getinfo(hints=hints())}
    assert keys == {"cxi0": 2, "cxi1": 3}


@pytest.mark.parametrize(
    ("vnis", "devices", "services"),
    [("7", "cxi1", "5"), ("7", "cxi1,cxi0", "5"), ("", "cxi0", "5"), ("x", "cxi0", "5"), ("7", "cxi0", "five")],
)
def test_environment_without_the_device_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch, vnis: str, devices: str, services: str
) -> None:
    monkeypatch.setenv("SLINGSHOT_VNIS", vnis)
    monkeypatch.setenv("SLINGSHOT_DEVICES", devices)
    monkeypatch.setenv("SLINGSHOT_SVC_IDS", services)
    assert default() == (1, 10)


def test_environment_that_names_no_service_fails_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLINGSHOT_VNIS", "7")
    monkeypatch.setenv("SLINGSHOT_DEVICES", "cxi0")
    monkeypatch.setenv("SLINGSHOT_SVC_IDS", "99")
    with pytest.raises(fi.FabricError) as caught:
        opened()
    assert caught.value.errno == fi.EINVAL
    for part in ("no service 99", "services: 1", "SLINGSHOT_*: service 99"):
        assert part in str(caught.value)


# ---- no key: the services --------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.optional", "cxi.auth.generate", "cxi.auth.domain-null", "cxi.auth.default-service")
def test_default_service_serves_everybody() -> None:
    assert default() == (1, 10)


@pytest.mark.clause("cxi.auth.generate-order")
def test_service_search_is_user_then_group_then_unrestricted(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = service.create("cxi0", vnis=[30])
    assert default() == (1, 10)
    group = service.create("cxi0", members=[("gid", GID)], vnis=[40])
    assert default() == (group.id, 40)
    user = service.create("cxi0", members=[("uid", UID)], vnis=[50])
    assert default() == (user.id, 50)
    monkeypatch.setenv("SLINGSHOT_VNIS", "30")
    monkeypatch.setenv("SLINGSHOT_DEVICES", "cxi0")
    monkeypatch.setenv("SLINGSHOT_SVC_IDS", str(everybody.id))
    assert default() == (everybody.id, 30)


@pytest.mark.clause("cxi.auth.uid-service", "cxi.auth.gid-service")
@pytest.mark.parametrize("member", [("uid", UID), ("gid", GID)])
def test_first_service_of_the_user_or_group_is_taken(member: tuple[str, int]) -> None:
    service.create("cxi0", members=[(member[0], member[1] + 1)])
    first = service.create("cxi0", members=[("uid", UID + 1), member], vnis=[20])
    service.create("cxi0", members=[member], vnis=[21])
    assert default() == (first.id, 20)


@pytest.mark.clause("cxi.auth.open-service")
def test_first_service_without_restricted_members_is_taken() -> None:
    first = service.create("cxi0", vnis=[20])
    service.create("cxi0", vnis=[21])
    service.enable("cxi0", 1, False)
    assert default() == (first.id, 20)


def test_newest_service_is_taken_in_the_current_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    service.create("cxi0", members=[("uid", UID)], vnis=[20])
    newest = service.create("cxi0", members=[("uid", UID)], vnis=[21])
    assert default() == (newest.id, 21)


def test_network_namespace_comes_first_in_the_current_release(monkeypatch: pytest.MonkeyPatch) -> None:
    of_user = service.create("cxi0", members=[("uid", UID)], vnis=[20])
    of_namespace = service.create("cxi0", members=[("netns", NETNS)], vnis=[21])
    assert default() == (of_user.id, 20)
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    assert default() == (of_namespace.id, 21)


def test_system_services_and_disabled_ones_are_not_taken() -> None:
    service.create("cxi0", members=[("uid", UID)], system=True)
    service.create("cxi0", members=[("uid", UID)], enabled=False)
    assert default() == (1, 10)


@pytest.mark.clause("cxi.auth.default-vni", "cxi.env.default-vni")
@pytest.mark.parametrize("members", [(), [("uid", UID)], [("gid", GID)]])
def test_service_of_all_vnis_gets_the_default_one(monkeypatch: pytest.MonkeyPatch, members: Any) -> None:
    service.enable("cxi0", 1, False)
    made = service.create("cxi0", members=members)
    assert default() == (made.id, 10)
    monkeypatch.setenv("FI_CXI_DEFAULT_VNI", "77")
    assert default() == (made.id, 77)


@pytest.mark.clause("cxi.env.default-vni-scope")
@pytest.mark.parametrize("vni", [None, "77", "305"])
def test_service_of_some_vnis_gets_the_first(monkeypatch: pytest.MonkeyPatch, vni: str | None) -> None:
    if vni is not None:
        monkeypatch.setenv("FI_CXI_DEFAULT_VNI", vni)
    made = service.create("cxi0", members=[("uid", UID)], vnis=[range(300, 310)])
    assert default() == (made.id, 300)


@pytest.mark.clause("cxi.auth.domain-fail")
def test_domain_without_a_service_is_refused_with_the_search() -> None:
    info = found()
    service.create("cxi0", members=[("uid", UID + 1)])
    service.enable("cxi0", 1, False)
    with pytest.raises(fi.NoSys) as caught:
        opened(info)
    assert caught.value.errno == fi.ENOSYS
    text = str(caught.value)
    for part in ("SLINGSHOT_VNIS", f"uid {UID}: no service", f"gid {GID}: no service", "service 1 is disabled"):
        assert part in text
    assert "weft service enable 1" in text
    assert found().nic.prov_attr.default_rgroup_id == 0  # type: ignore[union-attr]


def test_credential_tells_how_it_was_found() -> None:
    steps = opened().found
    assert steps[0] == "SLINGSHOT_VNIS, SLINGSHOT_DEVICES, SLINGSHOT_SVC_IDS: not set"
    assert steps[-1] == "unrestricted: service 1 of cxi0, VNI 10"
    assert opened(found(auth_key=cxi.AuthKey(1, 9))).found == ("domain_attr.auth_key",)


# ---- keys of applications --------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.hints-domain", "cxi.auth.domain-used")
@pytest.mark.parametrize("form", [bytes, bytearray, cxi.AuthKey.from_bytes])
def test_key_of_the_hints_is_the_domains(form: Any) -> None:
    made = service.create("cxi0", vnis=[60, 61])
    info = found(auth_key=form(cxi.AuthKey(made.id, 61)), auth_key_size=8)
    assert (info.domain_attr.auth_key, info.domain_attr.auth_key_size) == (cxi.AuthKey(made.id, 61), 8)
    credential = opened(info)
    assert (credential.service, credential.vni) == (made.id, 61)


def test_key_of_an_endpoint_is_its_domains_as_well() -> None:
    asked = hints()
    asked.ep_attr.auth_key = cxi.AuthKey(1, 61)
    (info,) = fi.getinfo(hints=asked)
    assert info.domain_attr.auth_key == info.ep_attr.auth_key == cxi.AuthKey(1, 61)
    assert opened(info).vni == 61


@pytest.mark.parametrize("size", [1, 7, 9, 12345])
def test_key_size_other_than_eight_is_refused(size: int) -> None:
    for key in (None, cxi.AuthKey(1, 61)):
        with pytest.raises(fi.NoData, match="auth_key"):
            found(auth_key=key, auth_key_size=size)
    info = found(auth_key=cxi.AuthKey(1, 61))
    info.domain_attr.auth_key_size = size
    with pytest.raises(fi.FabricError) as caught:
        opened(info)
    assert caught.value.errno == fi.EINVAL


@pytest.mark.parametrize("part", ["domain_attr", "ep_attr"])
def test_key_size_without_a_key_is_refused(part: str) -> None:
    asked = hints()
    getattr(asked, part).auth_key_size = 8
    with pytest.raises(fi.NoData, match="8 without a key"):
        fi.getinfo(hints=asked)


@pytest.mark.parametrize("size", [1, 8, 12345])
def test_domain_and_endpoint_refuse_a_key_size_without_a_key(size: int) -> None:
    info = found()
    assert info.domain_attr.auth_key is info.ep_attr.auth_key is None
    info.domain_attr.auth_key_size = size
    with fi.Fabric(info.fabric_attr) as fabric:
        with pytest.raises(fi.InvalidArgument, match=f"domain: auth_key_size {size}, but auth_key is None"):
            fabric.domain(info)
        info.domain_attr.auth_key_size = 0
        with fabric.domain(info) as domain:
            info.ep_attr.auth_key_size = size
            with pytest.raises(fi.InvalidArgument, match=f"endpoint: auth_key_size {size}, but auth_key is None"):
                domain.endpoint(info)


@pytest.mark.clause("cxi.auth.domain-verified", "cxi.auth.service-vnis")
@pytest.mark.parametrize("case", ["unknown", "disabled", "vni", "zero"])
def test_key_that_is_not_valid_is_refused(case: str) -> None:
    """Infos whose key is not valid are dropped; a domain with such a key is refused with FI_EINVAL."""
    made = service.create("cxi0", vnis=[60])
    info = found(auth_key=cxi.AuthKey(made.id, 60))
    service.enable("cxi0", made.id, case != "disabled")
    bad = {
        "unknown": cxi.AuthKey(77, 60),
        "disabled": cxi.AuthKey(made.id, 60),
        "vni": cxi.AuthKey(made.id, 61),
        "zero": cxi.AuthKey(1, 0),
    }[case]
    info.domain_attr.auth_key = bad
    with pytest.raises(fi.NoData, match=r"domain_attr\.auth_key"):
        found(auth_key=bad)
    with pytest.raises(fi.FabricError) as caught:
        opened(info)
    assert caught.value.errno == fi.EINVAL


def test_key_of_a_service_for_others_is_refused() -> None:
    made = service.create("cxi0", members=[("uid", UID + 1)])
    with pytest.raises(fi.FabricError, match=f"is for others: uid {UID + 1}") as caught:
        opened(found(auth_key=cxi.AuthKey(made.id, 9)))
    assert caught.value.errno == fi.EINVAL


# ---- keys of endpoints -----------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.ep-inherit", "cxi.auth.ep-match")
@pytest.mark.parametrize("key", [None, cxi.AuthKey(1, 61)])
def test_endpoint_has_its_domains_service_and_vni(key: cxi.AuthKey | None) -> None:
    info = found(auth_key=cxi.AuthKey(1, 61))
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        info.ep_attr.auth_key = key
        with domain.endpoint(info) as ep:
            assert (ep.policy.credential.service, ep.policy.credential.vni) == (1, 61)


@pytest.mark.clause("cxi.auth.ep-vni-mismatch", "cxi.auth.ep-svc-mismatch")
@pytest.mark.parametrize("what", ["VNI", "service"])
def test_endpoint_with_another_key_than_its_domain_is_refused(what: str) -> None:
    made = service.create("cxi0")
    info = found(auth_key=cxi.AuthKey(1, 61))
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        info.ep_attr.auth_key = cxi.AuthKey(1, 62) if what == "VNI" else cxi.AuthKey(made.id, 61)
        with pytest.raises(fi.FabricError, match=what) as caught:
            domain.endpoint(info)
        assert caught.value.errno == fi.EINVAL


@pytest.mark.parametrize("key", [b"1234567", b"123456789"])
def test_endpoint_key_of_another_size_is_refused(key: bytes) -> None:
    info = found()
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        info.ep_attr.auth_key = key
        with pytest.raises(fi.FabricError) as caught:
            domain.endpoint(info)
        assert caught.value.errno == fi.EINVAL


# ---- several keys: FI_AV_AUTH_KEY ------------------------------------------------------------------------------------


def test_several_keys_get_an_info_of_four() -> None:
    info = found(auth_key_size=fi.AV_AUTH_KEY, max_ep_auth_key=4)
    assert (info.domain_attr.auth_key_size, info.domain_attr.max_ep_auth_key) == (fi.AV_AUTH_KEY, 4)
    assert not info.caps & fi.DIRECTED_RECV


@pytest.mark.parametrize("most", [5, 65536])
def test_more_keys_than_there_can_be_are_refused(most: int) -> None:
    with pytest.raises(fi.NoData, match="max_ep_auth_key"):
        found(auth_key_size=fi.AV_AUTH_KEY, max_ep_auth_key=most)


def test_several_keys_beside_others_are_refused() -> None:
    for part in ("domain_attr", "ep_attr"):
        asked = hints(auth_key_size=fi.AV_AUTH_KEY)
        getattr(asked, part).auth_key = cxi.AuthKey(1, 61)
        with pytest.raises(fi.NoData, match="AV_AUTH_KEY"):
            fi.getinfo(hints=asked)
    asked = hints(auth_key_size=fi.AV_AUTH_KEY)
    asked.ep_attr.auth_key_size = 8
    with pytest.raises(fi.NoData, match="AV_AUTH_KEY"):
        fi.getinfo(hints=asked)


def test_getinfo_several_keys_with_directed_recv_need_proto_rnr() -> None:
    asked = hints(auth_key_size=fi.AV_AUTH_KEY, max_ep_auth_key=2)
    asked.caps |= fi.TAGGED | fi.DIRECTED_RECV
    with pytest.raises(fi.NoData):
        fi.getinfo(hints=asked)
    asked.ep_attr.protocol = fi.PROTO_CXI_RNR
    assert fi.getinfo(hints=asked)


def test_domain_of_several_keys_needs_no_service_of_its_own() -> None:
    service.enable("cxi0", 1, False)
    info = found(auth_key_size=fi.AV_AUTH_KEY, max_ep_auth_key=2)
    assert opened(info).service == 0
