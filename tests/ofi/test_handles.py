"""Objects of a real libfabric: their public names beside Weft's, closing, wrong types, the library's refusals."""

from __future__ import annotations

import gc
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import library_version, offer, open_node, pair

from weft import fi
from weft.providers.ofi.av import RealAddressVector
from weft.providers.ofi.av_set import RealAvSet
from weft.providers.ofi.domain import RealDomain
from weft.providers.ofi.endpoint import RealEndpoint
from weft.providers.ofi.eq import RealEventQueue
from weft.providers.ofi.fabric import RealFabric
from weft.providers.ofi.group import RealCollectiveGroup
from weft.providers.ofi.mr import RealMemoryRegion
from weft.providers.ofi.pep import RealPassiveEndpoint

# Public names of Weft's classes that have no meaning beside the software NIC: the seam between weft.fi and it.
SEAM: dict[type, set[str]] = {
    fi.Fabric: set(),
    fi.Domain: {"map_key", "unmap_handle", "set_mr_quick", "set_news", "staged_with"},
    fi.Endpoint: {
        "address",
        "atomic_limit",
        "bind_cm",
        "cm_look",
        "cm_step",
        "cm_take",
        "enable_at",
        "send_cm",
        "set_match_mode",
        "set_min_multi_recv",
        "set_retry_time",
        "try_at",
    },
    fi.AddressVector: {
        "insert_address",
        "lookup_address",
        "remove_address",
        "reverse_lookups",
        "set_user_id_of",
        "user_id",
        "user_id_of",
        "vnis",
    },
    fi.EventQueue: set(),
    fi.MemoryRegion: {
        "base",
        "direct",
        "disable_core",
        "enable_mapped",
        "hmem_data",
        "missing_page",
        "unstage",
    },
    fi.PassiveEndpoint: set(),
    fi.CollectiveGroup: set(),
    fi.AvSet: set(),
}
PAIRS: list[tuple[type, type]] = [
    (fi.Fabric, RealFabric),
    (fi.Domain, RealDomain),
    (fi.Endpoint, RealEndpoint),
    (fi.AddressVector, RealAddressVector),
    (fi.EventQueue, RealEventQueue),
    (fi.MemoryRegion, RealMemoryRegion),
    (fi.PassiveEndpoint, RealPassiveEndpoint),
    (fi.CollectiveGroup, RealCollectiveGroup),
    (fi.AvSet, RealAvSet),
]


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.no_library
@pytest.mark.parametrize(("weft", "real"), PAIRS, ids=[weft.__name__ for weft, _ in PAIRS])
def test_public_names_are_wefts(weft: type, real: type) -> None:
    missing = public(weft) - public(real) - {"domain"}
    assert missing == SEAM[weft]


@pytest.mark.no_library
@pytest.mark.parametrize("real", [real for _, real in PAIRS], ids=lambda real: real.__name__)
def test_every_public_name_has_a_doc_string(real: type) -> None:
    core = {name for base in real.__mro__ if base.__module__ == "weft._nic" for name in vars(base)}
    assert [name for name in public(real) - core if not getattr(real, name).__doc__] == []


def test_objects_are_instances_of_wefts_classes(provider: str) -> None:
    node = open_node(offer(provider))
    mr, eq = node.register(bytearray(8)), node.fabric.eq_open()
    for one, cls in (
        (node.fabric, fi.Fabric),
        (node.domain, fi.Domain),
        (node.ep, fi.Endpoint),
        (node.av, fi.AddressVector),
        (node.cq, fi.CompletionQueue),
        (mr, fi.MemoryRegion),
        (eq, fi.EventQueue),
    ):
        assert isinstance(one, cls)
    assert type(node.ep) is RealEndpoint
    eq.close()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(node.ep)
    node.close()


@pytest.mark.parametrize("call", ["read_batch", "statistics", "open_ops", "tx_context"])
def test_calls_that_are_not_passed_through_say_so(call: str) -> None:
    node = open_node(offer("ofi:shm"))
    names = ["calls"] if call == "open_ops" else []
    with pytest.raises(fi.NotSupported, match=f"ep.{call}"):
        getattr(node.ep, call)(*names)
    node.close()
    with pytest.raises(fi.BadState, match="closed"):
        getattr(node.ep, call)(*names)


def test_parents_close_after_their_children(provider: str) -> None:
    node = open_node(offer(provider))
    mr = node.register(bytearray(8))
    for parent, users in (
        (node.fabric, "Domain"),
        (node.domain, "Endpoint"),
        (node.cq, "Endpoint"),
        (node.av, "Endpoint"),
    ):
        with pytest.raises(fi.Busy, match=users):
            parent.close()
        assert not parent.closed
    node.close()
    assert mr.closed
    assert node.fabric.closed
    node.ep.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda n: n.ep.send(b"x"),
        lambda n: n.ep.recv(bytearray(1)),
        lambda n: n.ep.write(b"x", addr=0, key=0),
        lambda n: n.ep.atomic(b"12345678", None, 0, 0, 0, fi.UINT64, fi.SUM),
        lambda n: n.ep.getname(),
        lambda n: n.ep.bind(n.cq, fi.TRANSMIT),
        lambda n: n.ep.cancel(None),
        lambda n: n.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV),
        lambda n: n.cq.read(),
        lambda n: n.cq.sread(timeout=0),
        lambda n: n.cq.readerr(),
        lambda n: n.cq.trywait(),
        lambda n: n.av.insert(b"x"),
        lambda n: n.av.lookup(0),
        lambda n: n.domain.mr_reg(bytearray(1), 0),
        lambda n: n.domain.cq_open(),
        lambda n: n.fabric.eq_open(),
        lambda n: n.fabric.domain(n.info),
    ],
)
def test_use_after_close_is_refused(call: Any) -> None:
    node = open_node(offer("ofi:shm"))
    node.close()
    with pytest.raises(fi.BadState, match="closed"):
        call(node)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda n: n.ep.send(3), (TypeError, fi.FabricError)),
        (lambda n: n.ep.send("text"), (TypeError, fi.FabricError)),
        (lambda n: n.ep.recv(b"read-only"), (TypeError, BufferError, fi.FabricError)),
        (lambda n: n.ep.send(b"x", dest_addr="peer"), TypeError),
        (lambda n: n.ep.send(b"x", dest_addr=-1), fi.InvalidArgument),
        (lambda n: n.ep.send(b"x", desc=object()), fi.InvalidArgument),
        (lambda n: n.ep.send(b"x", len=2), (fi.FabricError, ValueError)),
        (lambda n: n.ep.send(None, len=2), fi.InvalidArgument),
        (lambda n: n.ep.send(), TypeError),
        (lambda n: n.ep.tsend(b"x"), TypeError),
        (lambda n: n.ep.tsend(b"x", tag="t"), TypeError),
        (lambda n: n.ep.write(b"x", dest_addr=0), TypeError),
        (lambda n: n.ep.sendv(b"x"), (TypeError, fi.FabricError)),
        (lambda n: n.ep.sendv([b"x"] * 99), fi.InvalidArgument),
        (lambda n: n.ep.sendmsg(b"x"), TypeError),
        (lambda n: n.ep.writemsg(fi.MsgRma([b"x"], 3)), TypeError),
        (lambda n: n.ep.inject(bytes(1 << 20), n.to(n)), fi.MessageTooLong),
        (lambda n: n.ep.send(b"x"), fi.InvalidArgument),
        (lambda n: n.ep.send(b"x", dest_addr=12345), fi.InvalidArgument),
        (lambda n: n.ep.write(b"x", None, 1 << 40, 0, 0), fi.InvalidArgument),
        (lambda n: n.ep.atomic(b"1", None, 0, 0, 0, fi.UINT64, fi.SUM), fi.InvalidArgument),
        (lambda n: n.ep.atomic(b"1", None, 0, 0, 0, 999, fi.SUM), fi.NotSupported),
        (lambda n: n.ep.bind(n.fabric), fi.InvalidArgument),
        (lambda n: n.ep.bind(n.cq, 0), fi.BadFlags),
        (lambda n: n.ep.connect("x"), fi.NotSupported),
        (lambda n: n.ep.getopt(fi.OPT_ENDPOINT, 9999), fi.FabricError),
        (lambda n: n.cq.read("x"), TypeError),
        (lambda n: n.cq.sread(timeout="x"), TypeError),
        (lambda n: n.cq.readerr(), fi.Again),
        (lambda n: n.av.insert(3), TypeError),
        (lambda n: n.av.lookup(77), fi.InvalidArgument),
        (lambda n: n.av.remove(77), fi.InvalidArgument),
        (lambda n: n.domain.mr_reg(3, fi.SEND), (TypeError, fi.FabricError)),
        (lambda n: n.domain.mr_reg(b"read-only", fi.REMOTE_WRITE), (TypeError, BufferError, fi.FabricError)),
        (lambda n: n.domain.mr_reg(bytearray(4), "w"), TypeError),
        (lambda n: n.domain.mr_reg(bytearray(4), fi.SEND, len=5), fi.InvalidArgument),
        (lambda n: n.domain.mr_regattr(3), TypeError),
        (lambda n: n.domain.endpoint(3), TypeError),
        (lambda n: n.domain.cq_open(format=77), fi.InvalidArgument),
        (lambda n: n.domain.cq_open(size=-1), fi.InvalidArgument),
        (lambda n: n.domain.cntr_open(events=77), fi.InvalidArgument),
        (lambda n: n.domain.bind(3), fi.InvalidArgument),
        (lambda n: n.fabric.domain(3), TypeError),
        (lambda n: n.fabric.trywait([3]), TypeError),
        (lambda n: n.fabric.passive_ep(3), TypeError),
        (lambda n: fi.Fabric(fi.FabricAttr(prov_name="ofi:nonesuch")), fi.FabricError),
        (lambda n: fi.Fabric(3), TypeError),
    ],
)
@pytest.mark.parametrize("name", ["ofi:tcp", "ofi:shm"])
def test_useless_arguments_are_refused(name: str, call: Any, expected: Any) -> None:
    node = open_node(offer(name))
    with pytest.raises(expected):
        call(node)
    assert node.ep.outstanding() == 0
    node.close()


def test_refusals_have_the_librarys_words(provider: str) -> None:
    info = offer(provider)
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open() as cq,
        domain.endpoint(info) as ep,
    ):
        ep.bind(cq, fi.RECV)
        with pytest.raises(fi.FabricError, match="libfabric: ") as refused:
            ep.enable()
        assert refused.value.errno in (fi.ENOCQ, fi.ENOAV, fi.EOPBADSTATE)
        mr = domain.mr_reg(bytearray(8), fi.REMOTE_READ, requested_key=1)
        with pytest.raises(fi.NoKey, match="try: a requested_key"):
            domain.mr_reg(bytearray(8), fi.REMOTE_READ, requested_key=1)
        mr.close()


def test_objects_of_other_domains_are_refused(provider: str) -> None:
    with pair(provider) as (a, b):
        with a.domain.endpoint(a.info) as ep:
            with pytest.raises(fi.WrongDomain):
                ep.bind(b.cq, fi.TRANSMIT)
            with pytest.raises(fi.WrongDomain):
                ep.bind(b.av)
        general = fi.getinfo(hints=fi.Info(caps=fi.RMA))[0]
        with fi.Fabric(general.fabric_attr) as fabric, fabric.domain(general) as domain, domain.cq_open() as cq:
            with pytest.raises(fi.InvalidArgument, match="of its domain"):
                a.ep.bind(cq, fi.TRANSMIT)
            with domain.endpoint(general) as ours, pytest.raises(fi.WrongDomain):
                ours.bind(a.cq, fi.TRANSMIT)
        with pytest.raises(fi.InvalidArgument, match="provider"):
            a.fabric.domain(general)


def test_forgotten_objects_warn_and_are_closed(provider: str) -> None:
    node = open_node(offer(provider))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node.domain.cq_open()
        gc.collect()
    assert any("never closed" in str(one.message) and __file__ in str(one.message) for one in caught)
    node.close()


def test_queue_closes_with_operations_unread(provider: str) -> None:
    for _ in range(5):
        node = open_node(offer(provider))
        for _ in range(10):
            node.ep.trecv(np.zeros(8, np.uint8), tag=1, context=object())
        node.close()


def test_addresses(provider: str) -> None:
    with pair(provider) as (a, b):
        name = b.ep.getname()
        to = a.av.insert(name)
        found = a.av.lookup(to)  # shm of 2.x leaves out the name's prefix and suffix
        assert found[:8] == name[:8] or (provider == "ofi:shm" and found.strip(":0") in name)
        assert a.av.count() == 1
        assert a.av.straddr(name)
        a.av.remove(to)
        with pytest.raises(fi.InvalidArgument):
            a.av.lookup(to)
    if provider == "ofi:tcp":
        with pair(provider) as (a, _):
            assert "127.0.0.1:4242" in a.av.straddr(a.av.lookup(a.av.insert(("127.0.0.1", 4242))))
            assert a.av.insert("127.0.0.1:4243") != a.av.insert(("127.0.0.1", 4244))


def test_options(provider: str) -> None:
    node = open_node(offer(provider))
    try:
        node.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, 512)
        found = node.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV)
        assert found == 512 or (provider == "ofi:shm" and library_version() >= (2, 0))  # which forgets the number
    except fi.NoProtocolOption:
        pass  # of a provider without it, which says so
    node.close()
