"""Writes with remote data, which FI_CXI_ENABLE_WRITEDATA of later releases brings: the real provider's behaviour."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cxi.support import CAPS, RW, opened

from weft import cxi, fi


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    monkeypatch.setenv("FI_CXI_ENABLE_WRITEDATA", "1")


def region(node: Any, buf: Any, flags: int = 0) -> Any:
    mr = node.domain.mr_reg(buf, RW, flags=flags)
    node.keep(mr)
    mr.bind(node.ep)
    mr.enable()
    return mr


@pytest.mark.clause("cxi.extra.remote-cq-data")
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("flags", [0, int(fi.RMA_EVENT)])
def test_data_arrives_with_the_write(flags: int) -> None:
    """Also at a region without RMA_EVENT: under writes with data each region has an entry for them."""
    with opened(CAPS | fi.RMA_EVENT, prov_key=True) as node:
        assert not node.domain.control(cxi.OPT_CXI_GET_OPTIMIZED_MRS)
        assert not node.domain.control(cxi.OPT_CXI_GET_PROV_KEY_CACHE)
        memory = np.zeros(1, "u8")
        key = region(node, memory, flags).key
        node.ep.writedata(np.full(1, 5, "u8"), None, 77, node.me, 0, key, "mine")
        node.ep.inject_writedata(np.full(1, 6, "u8"), 78, node.me, 0, key)
        entries = node.wait(3)
        arrived = [entry for entry in entries if entry.flags & fi.REMOTE_WRITE]
        assert [(entry.flags, entry.len, entry.data) for entry in arrived] == [
            (int(fi.RMA | fi.REMOTE_WRITE | fi.REMOTE_CQ_DATA), 8, data) for data in (77, 78)
        ]
        assert [entry.op_context for entry in entries if entry not in arrived] == ["mine"]
        assert memory[0] == 6


@pytest.mark.usefixtures("enabled")
def test_data_arrives_with_the_write_of_an_alias() -> None:
    """And of an endpoint whose flags were set; and with writemsg, which takes the flag."""
    with opened(CAPS | fi.RMA_EVENT, prov_key=True) as node:
        memory = np.zeros(1, "u8")
        key = region(node, memory, int(fi.RMA_EVENT)).key
        with node.ep.alias(fi.TRANSMIT | fi.DELIVERY_COMPLETE) as alias:
            alias.writedata(np.full(1, 5, "u8"), None, 77, node.me, 0, key, "alias")
            alias.inject_writedata(np.full(1, 6, "u8"), 78, node.me, 0, key)
            arrived = [entry.data for entry in node.wait(3) if entry.flags & fi.REMOTE_WRITE]
            assert arrived == [77, 78]
            msg = fi.MsgRma([np.ones(1, "u8")], [fi.RmaIov(0, 8, key)], node.me, data=79)
            alias.writemsg(msg, fi.REMOTE_CQ_DATA)
            assert [entry.data for entry in node.wait(2) if entry.flags & fi.REMOTE_WRITE] == [79]
        node.ep.control(fi.SETOPSFLAG, fi.TRANSMIT | fi.DELIVERY_COMPLETE | fi.COMPLETION)
        node.ep.writedata(np.full(1, 7, "u8"), None, 80, node.me, 0, key, "again")
        assert [entry.data for entry in node.wait(2) if entry.flags & fi.REMOTE_WRITE] == [80]
        assert memory[0] == 7


@pytest.mark.parametrize("pinned", ["0", "1"])
@pytest.mark.parametrize("match_events", ["0", "1"])
@pytest.mark.usefixtures("enabled")
def test_keys_that_take_no_data_are_refused(monkeypatch: pytest.MonkeyPatch, match_events: str, pinned: str) -> None:
    """The NIC makes keys; of pinned memory the provider."""
    monkeypatch.setenv("FI_CXI_MR_MATCH_EVENTS", match_events)
    monkeypatch.setenv("WEFT_CXI_PIN", pinned)
    with opened(CAPS | fi.RMA_EVENT, prov_key=True) as node:
        plain = region(node, np.zeros(1, "u8")).key
        node.ep.writedata(bytes(8), None, 1, node.me, 0, plain)
        node.wait(2)
        for key in (plain & ~(1 << 59), 7, 200, (1 << 63) | (1 << 61) | (1 << 59)):
            with pytest.raises(fi.InvalidArgument, match="takes data"):
                node.ep.writedata(bytes(8), None, 1, node.me, 0, key)
            with pytest.raises(fi.InvalidArgument, match="takes data"):
                node.ep.inject_writedata(bytes(8), 1, node.me, 0, key)


@pytest.mark.parametrize(
    ("prov_key", "release", "value", "size"),
    [(False, "current", "1", 8), (True, "doc", "1", 8), (True, "current", "0", 8), (True, "current", "1", 0)],
)
def test_elsewhere_there_are_no_writes_with_data(
    monkeypatch: pytest.MonkeyPatch, prov_key: bool, release: str, value: str, size: int
) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", release)
    monkeypatch.setenv("FI_CXI_ENABLE_WRITEDATA", value)

    def sized(info: fi.Info) -> None:
        info.domain_attr.cq_data_size = size

    with opened(CAPS | fi.RMA_EVENT, prov_key=prov_key, edit=sized) as node:
        with pytest.raises(fi.NoSys):
            node.ep.writedata(bytes(8), None, 1, node.me, 0, 1)
        with pytest.raises(fi.NoSys):
            node.ep.inject_writedata(bytes(8), 1, node.me, 0, 1)
