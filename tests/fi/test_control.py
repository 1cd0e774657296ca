"""fi_control, fi_open_ops, fi_get_val and fi_set_val, which every object has."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.support import KEY, RW, Node, opened

from weft import fi


def objects(node: Node) -> list[object]:
    memory = np.zeros(8, "u8")
    return [
        node.domain,
        node.ep,
        node.cq,
        node.av,
        node.reg(memory, requested_key=KEY),
        node.keep(node.domain.cntr_open()),
        node.keep(node.fabric.eq_open()),
    ]


def test_every_object_refuses_what_the_provider_does_not_have(node: Node) -> None:
    for fid in objects(node):
        for call in (
            lambda fid=fid: fid.control(fi.EXPORT_FID),
            lambda fid=fid: fid.open_ops("nothing"),
            lambda fid=fid: fid.get_val(77),
            lambda fid=fid: fid.set_val(77, 1),
            lambda fid=fid: fid.control(fi.SET_VAL, (77, 1)),
        ):
            with pytest.raises(fi.NoSys, match="no "):
                call()
        with pytest.raises(fi.BadFlags):
            fid.open_ops("nothing", 1)  # type: ignore[attr-defined]
        with pytest.raises(fi.InvalidArgument, match="pair"):
            fid.control(fi.GET_VAL, 77)  # type: ignore[attr-defined]
        with pytest.raises(fi.InvalidArgument, match="C int"):
            fid.control(1 << 32)  # type: ignore[attr-defined]


def test_getwait_gives_the_descriptor_of_a_queue(node: Node) -> None:
    for queue in (
        node.keep(node.domain.cq_open(wait_obj=fi.WAIT_FD)),
        node.keep(node.domain.cntr_open(wait_obj=fi.WAIT_FD)),
        node.keep(node.fabric.eq_open(wait_obj=fi.WAIT_FD)),
    ):
        assert queue.control(fi.GETWAIT) == queue.fd >= 0
        assert queue.control(fi.GETWAITOBJ) == fi.WAIT_FD
    with pytest.raises(fi.NoData, match="no descriptor"):
        node.cq.control(fi.GETWAIT)


def test_enable_is_a_command_of_endpoints_and_regions() -> None:
    with opened(mr_mode=int(fi.MR_ENDPOINT), enable=False) as node:
        node.ep.control(fi.ENABLE)
        assert node.ep.enabled
        memory = np.zeros(8, "u8")
        mr = node.reg(memory, RW, requested_key=KEY)
        mr.bind(node.ep)
        mr.control(fi.ENABLE)
        assert mr.state == "enabled"


def test_raw_keys_are_commands(node: Node) -> None:
    mr = node.reg(np.zeros(8, "u8"), requested_key=KEY)
    base, raw = mr.control(fi.GET_RAW_MR)
    key = node.domain.control(fi.MAP_RAW_MR, (base, raw))
    node.domain.control(fi.UNMAP_KEY, key)
    with pytest.raises(fi.InvalidArgument, match="base_addr, raw_key"):
        node.domain.control(fi.MAP_RAW_MR, raw)
