"""fi_fabric(3), fi_domain(3)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.support import PROVIDER, Node, opened

from weft import fi


def test_fabric_of_an_unknown_provider_is_enodev() -> None:
    with pytest.raises(fi.NoDevice, match=r"'verbs'.*weft"):
        fi.Fabric(fi.FabricAttr(prov_name="verbs"))
    with pytest.raises(fi.NoDevice):
        fi.Fabric(fi.FabricAttr())


@pytest.mark.general("its names")
def test_fabric_and_domain_have_names(node: Node) -> None:
    assert (node.fabric.name, node.domain.name) == ("weft", "weft0")
    assert repr(node.fabric) == "<Fabric weft open>"
    assert repr(node.domain) == "<Domain weft0 1 AddressVector, 1 CompletionQueue, 1 Endpoint>"


@pytest.mark.general("its names")
def test_fabric_close_with_open_domain_is_busy(node: Node) -> None:
    with pytest.raises(fi.Busy, match=PROVIDER.words("Domain weft0")):
        node.fabric.close()


@pytest.mark.general("its names")
def test_fabric_is_found_by_an_opened_object(node: Node) -> None:
    hints = fi.Info(
        fabric_attr=fi.FabricAttr(fabric=node.fabric), domain_attr=fi.DomainAttr(domain=node.domain), caps=fi.RMA
    )
    assert {info.domain_attr.name for info in fi.getinfo(hints=hints)} == {node.domain.name}


def test_domain_of_another_name_is_enodev(node: Node) -> None:
    info = fi.dupinfo(node.info)
    info.domain_attr.name = "mlx5_0"
    with pytest.raises(fi.NoDevice, match="mlx5_0"):
        node.fabric.domain(info)
    with pytest.raises(fi.BadFlags):
        node.fabric.domain(node.info, flags=fi.PEER)


def test_domain_close_with_children_is_busy_naming_them(node: Node) -> None:
    """fi_domain(3) fi_close: all objects of the domain have to be closed first."""
    with pytest.raises(fi.Busy) as caught:
        node.domain.close()
    for obj in (node.ep, node.cq, node.av):
        assert repr(obj) in str(caught.value)
    assert "support.py" in str(caught.value)  # where they were made
    assert not node.domain.closed


@pytest.mark.general("its names")
def test_domain_info_is_a_copy(node: Node) -> None:
    info = fi.dupinfo(node.info)
    with node.fabric.domain(info) as domain:
        info.domain_attr.name = "changed"
        assert domain.name == node.domain.name


def test_domain_bind_takes_one_event_queue(node: Node) -> None:
    with node.fabric.eq_open() as eq, node.fabric.domain(node.info) as domain:
        domain.bind(eq)
        with pytest.raises(fi.InvalidArgument, match="already"):
            domain.bind(eq)
        with pytest.raises(fi.Busy):
            eq.close()
        with pytest.raises(fi.BadFlags):
            node.domain.bind(eq, fi.FENCE)
        with pytest.raises(fi.InvalidArgument):
            node.domain.bind(node.cq)  # type: ignore[arg-type]


def test_domain_alloc_is_an_array_of_the_nic_s_memory(node: Node) -> None:
    a = node.domain.alloc((3, 4), "f4")
    assert (a.shape, a.dtype, a.flags.c_contiguous, a.flags.writeable) == ((3, 4), np.dtype("f4"), True, True)
    assert node.reg(a, requested_key=1).direct
    assert not node.reg(np.zeros(4), requested_key=2).direct
    assert node.domain.alloc(0).shape == (0,)
    assert node.domain.alloc(5).dtype == np.float64
    with pytest.raises(TypeError, match="Python objects"):
        node.domain.alloc(3, object)


def test_weft_empty_and_zeros() -> None:
    import weft

    z = weft.zeros((2, 3), "i8")
    assert z.tolist() == [[0, 0, 0], [0, 0, 0]]
    e = weft.empty(7, np.uint16)
    e[:] = 5
    view = e[2:4]
    del e
    assert view.tolist() == [5, 5]  # a view keeps the memory


def test_trywait_with_unread_entries_is_again() -> None:
    with opened(wait_obj=fi.WAIT_FD) as node:
        trywait_with_an_unread_entry(node)


def trywait_with_an_unread_entry(node: Node) -> None:
    node.fabric.trywait([node.cq])
    node.reg(bytearray(8), requested_key=1)
    node.ep.write(b"x", dest_addr=node.me, addr=0, key=1)
    while not node.cq.pending():
        pass
    with pytest.raises(fi.Again, match="CompletionQueue"):
        node.fabric.trywait([node.cq])
    node.wait()
    node.fabric.trywait([node.cq])
