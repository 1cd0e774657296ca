"""fi_rma(3): calls that are refused and transfers that fail."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.rma_support import KEY, Duo, pattern, region
from tests.fi.support import opened, pair

from weft import fi

# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("rma.ret.negative", "mr.reg.key-required", "mr.general.rma-target")
@pytest.mark.parametrize("operation", ["write", "read"])
def test_rma_unknown_key_is_an_error_at_the_initiator(duo: Duo, operation: str) -> None:
    """fi_mr(3): a remote access has to give the key of a registered region."""
    initiator, target, peer = duo
    memory = region(target)
    local = bytearray(b"data")
    getattr(initiator.ep, operation)(local, None, peer, 0, KEY + 1, "op")
    failed = initiator.wait_error()
    assert (failed.op_context, failed.err) == ("op", fi.EKEYREJECTED)
    assert isinstance(failed.exception(), fi.KeyRejected)
    assert failed.exception().completion is failed
    assert not memory.any()
    assert local == b"data"


def test_rma_error_completion_says_what_was_asked_and_found(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target, 100)
    initiator.ep.write(pattern(40), dest_addr=peer, addr=80, key=KEY)
    failed = initiator.wait_error()
    assert failed.err == fi.EACCES
    text = initiator.cq.strerror(failed.prov_errno, failed.err_data)
    assert text == failed.err_data.decode()
    for number in ("40 B", "0x50", "100 B"):  # asked for, at, found
        assert number in text
    assert initiator.cq.strerror(failed.prov_errno)  # the number alone has words too


@pytest.mark.parametrize(
    ("addr", "count"), [(0, 101), (100, 1), (99, 2), (1 << 40, 1), ((1 << 64) - 1, 1), ((1 << 64) - 1, 100), (50, 51)]
)
@pytest.mark.parametrize("operation", ["write", "read"])
def test_rma_outside_the_region_touches_nothing(duo: Duo, operation: str, addr: int, count: int) -> None:
    initiator, target, peer = duo
    memory = target.domain.alloc(300, np.uint8)
    memory.fill(7)
    target.reg(memory[100:200], requested_key=KEY)
    local = np.ones(count, np.uint8)
    getattr(initiator.ep, operation)(local, None, peer, addr, KEY, "out")
    failed = initiator.wait_error()
    assert (failed.err, failed.op_context) == (fi.EACCES, "out")
    assert (memory == 7).all()
    assert (local == 1).all()


@pytest.mark.clause("mr.access.remote-read", "mr.access.remote-write-rma", "mr.general.permissions")
def test_rma_needs_the_granted_access(duo: Duo) -> None:
    initiator, target, peer = duo
    readable, writable = region(target, key=1, access=fi.REMOTE_READ), region(target, key=2, access=fi.REMOTE_WRITE)
    readable.fill(3)
    back = bytearray(4)
    initiator.ep.read(back, src_addr=peer, addr=0, key=1)
    initiator.ep.write(b"\x05", dest_addr=peer, addr=0, key=2)
    initiator.wait(2)
    assert back == b"\x03" * 4
    assert writable[0] == 5
    initiator.ep.write(b"\x09", dest_addr=peer, addr=0, key=1)
    assert initiator.wait_error().err == fi.EACCES
    initiator.ep.read(back, src_addr=peer, addr=0, key=2)
    assert initiator.wait_error().err == fi.EACCES
    assert (readable == 3).all()
    assert back == b"\x03" * 4


@pytest.mark.general("addresses as strings")
def test_rma_to_an_address_without_endpoint_is_refused(duo: Duo) -> None:
    initiator, _, _ = duo
    nobody = initiator.av.insert("weft://0/1/4000000000")
    initiator.ep.write(b"x", dest_addr=nobody, addr=0, key=KEY, context="nobody")
    failed = initiator.wait_error()
    assert (failed.err, failed.op_context) == (fi.ECONNREFUSED, "nobody")


@pytest.mark.parametrize("peer", [17, fi.ADDR_UNSPEC])
def test_rma_to_a_fi_addr_not_in_the_vector_is_invalid(duo: Duo, peer: int) -> None:
    initiator, _, _ = duo
    with pytest.raises(fi.InvalidArgument):
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY)


def test_rma_before_enable_is_badstate() -> None:
    with opened(enable=False) as node, pytest.raises(fi.BadState):
        node.ep.write(b"x", dest_addr=0, addr=0, key=0)


def test_rma_after_close_is_badstate(duo: Duo) -> None:
    initiator, _, peer = duo
    initiator.ep.close()
    with pytest.raises(fi.BadState):
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY)


@pytest.mark.clause("rma.err.eagain")
def test_rma_full_completion_queue_is_eagain_until_read() -> None:
    """fi_domain(3) FI_RM_ENABLED: no room for the completion is EAGAIN; once read, the call can be retried."""
    with pair(size=8) as (initiator, target, peer):
        memory = region(target)
        posted = 0

        def post() -> None:
            nonlocal posted
            while posted < 100_000:
                initiator.ep.write(bytes([posted % 250 + 1]), dest_addr=peer, addr=posted % 200, key=KEY)
                posted += 1

        with pytest.raises(fi.Again) as caught:
            post()
        assert "read" in str(caught.value)
        assert posted >= 8
        initiator.wait(posted)
        initiator.ep.write(b"\xff", dest_addr=peer, addr=255, key=KEY)
        initiator.wait()
        assert memory[255] == 255


def test_rma_capability_that_was_not_opened_is_refused() -> None:
    """An endpoint opened with FI_WRITE alone cannot read; an endpoint without FI_REMOTE_WRITE cannot be written."""
    with pair(caps=fi.RMA | fi.WRITE | fi.REMOTE_WRITE) as (initiator, target, peer):
        region(target)
        with pytest.raises(fi.NotSupported):
            initiator.ep.read(bytearray(1), src_addr=peer, addr=0, key=KEY)
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY)
        initiator.wait()
    with opened(caps=fi.RMA | fi.READ | fi.REMOTE_READ) as target, opened() as initiator:
        memory = region(target)
        initiator.ep.write(b"x", dest_addr=initiator.av.insert(target.name), addr=0, key=KEY)
        assert initiator.wait_error().err == fi.EACCES
        assert not memory.any()


@pytest.mark.clause("rma.arg.dest-addr")
def test_rma_dest_addr_selects_the_peer() -> None:
    with opened() as one, opened() as two, opened() as initiator:
        memories = [region(one), region(two)]
        peers = initiator.av.insert([one.name, two.name])
        for value, peer in zip((b"\x01", b"\x02"), peers, strict=True):
            initiator.ep.write(value, dest_addr=peer, addr=0, key=KEY)
        initiator.wait(2)
        assert [m[0] for m in memories] == [1, 2]


@pytest.mark.clause("mr.local.unset-valid-desc", "mr.local.unset-null-desc", "mr.local.unset-no-register")
@pytest.mark.parametrize("desc", ["valid", "none"])
def test_rma_descriptor_is_optional(duo: Duo, desc: str) -> None:
    """fi_mr(3) FI_MR_LOCAL unset: local buffers need no registration; a valid desc or NULL works."""
    initiator, target, peer = duo
    memory = region(target)
    data = pattern(8)
    initiator.ep.write(data, initiator.reg(data, fi.WRITE).desc if desc == "valid" else None, peer, 0, KEY)
    initiator.wait()
    assert memory[:8].tolist() == data.tolist()


@pytest.mark.clause("mr.local.desc-valid-or-null")
def test_rma_object_that_is_no_descriptor_is_refused(duo: Duo) -> None:
    """fi_mr(3), since 1.22: desc is valid or NULL."""
    initiator, target, peer = duo
    memory = region(target)
    with pytest.raises((fi.InvalidArgument, TypeError)):
        initiator.ep.write(b"x", "no descriptor", peer, 0, KEY)
    assert not memory.any()


@pytest.mark.parametrize("operation", ["write", "read"])
def test_rma_without_a_buffer_moves_no_bytes_or_is_refused(duo: Duo, operation: str) -> None:
    """None is C's NULL: legal with a length of 0, which moves nothing."""
    initiator, target, peer = duo
    memory = region(target)
    call = getattr(initiator.ep, operation)
    for more in ({}, {"len": 8}):
        with pytest.raises(fi.InvalidArgument, match="None"):
            call(None, None, peer, 0, KEY, **more)
    call(None, None, peer, 0, KEY, "op", len=0)
    assert initiator.wait()[0].op_context == "op"
    assert not memory.any()
