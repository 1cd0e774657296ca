"""Texts of refusals over the CXI provider: each names the request, the finding, the rule and the remedy."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from tests.cxi.support import opened, register
from tests.fi.support import Node

from weft import cxi, fi

KEY = 777
WORD = np.zeros(1, "u8")


def failed(node: Node) -> str:
    """The text of the one error completion."""
    with pytest.raises(fi.Available):
        node.wait()
    error = node.cq.readerr()
    return str(node.cq.strerror(error.prov_errno, error.err_data))


@pytest.mark.parametrize("prov_key", [False, True], ids=["client key", "cached key"])
def test_virtual_address_is_named_with_the_offset_to_give(prov_key: bool) -> None:
    """A key of cached memory reaches whole pages, whose base is before the region: no number of the text wraps."""
    with opened(prov_key=prov_key) as node:
        data = np.frombuffer(mmap.mmap(-1, 3 * mmap.PAGESIZE), "u1")[64:][: mmap.PAGESIZE]
        mr = register(node, data, KEY)
        node.ep.write(b"x", dest_addr=node.me, addr=data.ctypes.data + 24, key=mr.key)
        text = failed(node)
    assert "it is a virtual address of the region, whose domain was opened without MR_VIRT_ADDR" in text
    assert text.endswith("give the offset 0x18")
    assert "0xffff" not in text
    if prov_key:
        assert "the memory of this key, whose region is a part of it, has" in text


@pytest.mark.parametrize("prov_key", [False, True])
def test_key_notavail_is_said_to_be_no_key(prov_key: bool) -> None:
    with opened(prov_key=prov_key) as node:
        for call in (
            lambda: node.ep.write(b"x", dest_addr=node.me, addr=0, key=fi.KEY_NOTAVAIL),
            lambda: node.ep.read(bytearray(8), src_addr=node.me, addr=0, key=fi.KEY_NOTAVAIL),
            lambda: node.ep.atomic(WORD, None, node.me, 0, fi.KEY_NOTAVAIL, fi.UINT64, fi.SUM),
        ):
            with pytest.raises(fi.InvalidArgument, match="KEY_NOTAVAIL is not a key\n  rule: fi_mr_key") as caught:
                call()
            assert "try: enable the region there" in str(caught.value)


def test_unsupported_atomic_is_named_with_those_that_exist(node: Node) -> None:
    with pytest.raises(fi.NotSupported) as caught:
        node.ep.atomic(np.zeros(1, "f4"), None, node.me, 0, KEY, fi.FLOAT, fi.BAND)
    assert "atomic: BAND on FLOAT does not exist as an atomic" in str(caught.value)
    assert "these exist: MIN MAX SUM ATOMIC_WRITE\n" in str(caught.value)
    msg = fi.MsgAtomic([np.zeros(1, "f8")], [fi.RmaIoc(0, 1, KEY)], node.me, fi.DOUBLE, fi.SUM)
    with pytest.raises(fi.NotSupported, match="SUM on DOUBLE does not exist as a fetch atomic with these flags"):
        node.ep.fetch_atomicmsg(msg, [np.zeros(1, "f8")], None, int(cxi.PCIE_AMO))


def test_peer_that_no_completion_named_is_explained() -> None:
    """Without FI_SOURCE a queue answers ADDR_NOTAVAIL, which is no peer to answer."""
    with opened(fi.MSG | fi.SEND | fi.RECV) as node, pytest.raises(fi.InvalidArgument) as caught:
        node.ep.send(b"answer", dest_addr=fi.ADDR_NOTAVAIL)
    assert "no peer was given (ADDR_NOTAVAIL)" in str(caught.value)
    assert "ask for fi.SOURCE in the capabilities of the hints" in str(caught.value)
    with opened(fi.MSG | fi.SEND | fi.RECV | fi.SOURCE) as node, pytest.raises(fi.InvalidArgument) as caught:
        node.ep.send(b"answer", dest_addr=fi.ADDR_NOTAVAIL)
    assert "fi.SOURCE" not in str(caught.value)


def test_wrong_authorization_key_shows_the_named_provider_once() -> None:
    hints = fi.Info(caps=fi.RMA, fabric_attr=fi.FabricAttr(prov_name="cxi"))
    hints.domain_attr.mr_mode = fi.MR_ENDPOINT | fi.MR_ALLOCATED | fi.MR_PROV_KEY
    hints.domain_attr.auth_key = cxi.AuthKey(svc_id=7, vni=999)
    with pytest.raises(fi.NoData) as caught:
        fi.getinfo(hints=hints)
    text = str(caught.value)
    assert text.count("domain_attr.auth_key: asked") == 1
    assert "cxi: cxi0, EP_RDM: rejected (4 equal offers)" in text
    assert "weft0" not in text
    assert len(caught.value.explanation.candidates) > 4  # the object has all
