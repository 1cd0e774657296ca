"""fi_av(3): address vectors."""

from __future__ import annotations

import pytest
from tests.fi.support import PROVIDER, Node, peers

from weft import fi


@pytest.mark.general("addresses as strings")
@pytest.mark.parametrize("kind", [fi.AV_TABLE, fi.AV_MAP, fi.AV_UNSPEC])
def test_av_insert_gives_sequential_indices(node: Node, kind: int) -> None:
    """fi_av(3) FI_AV_TABLE: indices from 0 in insertion order, across calls."""
    names = peers(8)
    with node.domain.av_open(kind) as av:
        assert av.insert(names[0]) == 0
        assert av.insert(names[1:4]) == [1, 2, 3]
        assert av.insert(names[4:], count=2) == [4, 5]
        assert av.count() == 6
        assert av.lookup(2) == names[2]


@pytest.mark.general("addresses as strings")
def test_av_removed_index_is_used_again(node: Node) -> None:
    names = peers(10)
    with node.domain.av_open() as av:
        av.insert(names[:4])
        av.remove(1)
        with pytest.raises(fi.InvalidArgument):
            av.lookup(1)
        assert av.insert(names[1]) == 1  # removal, then insertion of the same address
        av.remove([0, 1])
        assert av.count() == 2
        with pytest.raises(fi.InvalidArgument):
            av.remove(0)
        assert av.insert(names[7]) == 0


def test_av_removed_address_cannot_be_used(node: Node) -> None:
    me = node.me
    node.av.remove(me)
    with pytest.raises(fi.InvalidArgument):
        node.ep.write(b"x", dest_addr=me, addr=0, key=1)


@pytest.mark.general("addresses as strings")
@pytest.mark.parametrize("bad", [7, None, b"", b"\0\1"])
def test_av_insert_of_what_is_no_address_inserts_nothing(node: Node, bad: object) -> None:
    names = peers(1)
    with node.domain.av_open() as av:
        with pytest.raises(fi.InvalidArgument):
            av.insert([names[0], bad])
        assert av.count() == 0
        assert av.insert(names[0]) == 0


@pytest.mark.parametrize(
    "bad", ["", "weft://", "weft://0", "weft://0/1", "weft://a/b/c", "http://0/1/2", "weft://0/70000/1", b"\0\1", 7]
)
def test_av_insert_of_no_address_is_invalid_and_inserts_nothing(node: Node, bad: object) -> None:
    names = peers(1)
    with node.domain.av_open() as av:
        with pytest.raises(fi.InvalidArgument, match=PROVIDER.words("weft://|pid|bits")):
            av.insert([names[0], bad])  # type: ignore[list-item]
        assert av.count() == 0


@pytest.mark.general("addresses as strings")
def test_av_insert_sync_err_reports_each_address(node: Node) -> None:
    """fi_av(3) FI_SYNC_ERR: context receives 0 or an error number for each address."""
    names, bad = peers(2), "nonsense" if PROVIDER.weft else 7  # some providers take any name
    with node.domain.av_open() as av:
        status: list[int] = []
        found = av.insert([names[0], bad, names[1]], flags=fi.SYNC_ERR | fi.MORE, context=status)
        assert found == [0, fi.ADDR_NOTAVAIL, 1]
        assert status == [0, fi.EINVAL, 0]
        with pytest.raises(fi.InvalidArgument):
            av.insert(names, flags=fi.SYNC_ERR)


@pytest.mark.general("addresses as strings")
def test_av_takes_bytes_as_c_strings(node: Node) -> None:
    if node.info.addr_format != fi.ADDR_STR:
        pytest.skip("the provider's addresses are no strings")
    names = peers(1)
    with node.domain.av_open() as av:
        assert av.lookup(av.insert(names[0].encode() + b"\0")) == names[0]


@pytest.mark.general("addresses as strings")
def test_av_insertsvc_resolves_node_and_service(node: Node) -> None:
    if PROVIDER.service is None:
        pytest.skip("the provider's addresses have no nodes and services")
    host, service, address = PROVIDER.service
    with node.domain.av_open() as av:
        assert av.lookup(av.insertsvc(host, service)) == address
        assert av.count() == 1
        with pytest.raises(fi.InvalidArgument):
            av.insertsvc(None, None)


@pytest.mark.general("addresses as strings")
def test_av_insertsvc_takes_an_address_of_weft(node: Node) -> None:
    with node.domain.av_open() as av:
        assert av.lookup(av.insertsvc("weft://0/9/8")) == "weft://0/9/8"
        with pytest.raises(fi.NotAvailable):
            av.insertsvc("mars", "1")


@pytest.mark.general("addresses as strings")
def test_av_straddr_prints_any_address(node: Node) -> None:
    """fi_av(3) fi_av_straddr: a printable form, which differs for each address."""
    found = [node.av.straddr(name) for name in peers(3)]
    assert len(set(found)) == 3
    assert all(isinstance(one, str) and one.isprintable() for one in found)


@pytest.mark.general("addresses as strings")
def test_av_straddr_of_a_string_is_the_string(node: Node) -> None:
    assert node.av.straddr("weft://0/1/5") == "weft://0/1/5"
    with pytest.raises(fi.InvalidArgument):
        node.av.straddr("nonsense")


@pytest.mark.general("addresses as strings")
def test_av_event_mode_reports_to_an_event_queue(node: Node) -> None:
    """fi_av(3) FI_EVENT: an error for each failed address, then one event with the number of those inserted."""
    names = peers(3)
    with node.fabric.eq_open() as eq, node.domain.av_open(flags=fi.EVENT) as av:
        with pytest.raises(fi.NoEq) as caught:
            av.insert(names[0])
        assert caught.value.errno == fi.ENOEQ
        av.bind(eq)
        av.insert([names[0], "nonsense", names[1]], context="three")
        with pytest.raises(fi.Available):
            eq.read()
        error = eq.readerr()
        assert (error.fid, error.context, error.data, error.err) == (av, "three", 1, fi.EINVAL)
        event, entry = eq.sread(timeout=30)
        assert (event, entry.fid, entry.context, entry.data) == (fi.AV_COMPLETE, av, "three", 2)
        with pytest.raises(fi.Busy):
            eq.close()


@pytest.mark.general("the man page's error number")
def test_av_unsupported_is_refused(node: Node) -> None:
    for call in (
        lambda: node.domain.av_open(flags=fi.SYMMETRIC),
        lambda: node.av.insert(peers(1)[0], flags=fi.AV_USER_ID),
        lambda: node.av.remove(0, flags=fi.SYNC_ERR),
        lambda: node.av.bind(node.keep(node.fabric.eq_open()), 1),
    ):
        with pytest.raises(fi.BadFlags):
            call()
    with pytest.raises(fi.NoSys):
        node.domain.av_open(name="shared")
    with pytest.raises(fi.InvalidArgument):
        node.domain.av_open(9)


def test_av_close_with_bound_endpoint_is_busy(node: Node) -> None:
    with pytest.raises(fi.Busy, match="Endpoint"):
        node.av.close()


def test_av_use_after_close_is_badstate(node: Node) -> None:
    names = peers(1)
    av = node.domain.av_open()
    av.close()
    for call in (lambda: av.insert(names[0]), lambda: av.lookup(0), lambda: av.remove(0)):
        with pytest.raises(fi.BadState, match="closed"):
            call()
    if PROVIDER.weft:
        assert repr(av) == "<AddressVector TABLE closed>"
