"""An opened stack of the CXI provider."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.fi.support import Node

from weft import fi

RW = fi.REMOTE_READ | fi.REMOTE_WRITE
CAPS = fi.RMA | fi.ATOMIC
MODE = fi.MR_ENDPOINT | fi.MR_ALLOCATED
BOTH = fi.TRANSMIT | fi.RECV


def hints(
    caps: int = CAPS, *, prov_key: bool = False, caps_of_domain: int = 0, protocol: int = 0, **domain: Any
) -> fi.Info:
    mode = MODE | (fi.MR_PROV_KEY if prov_key else fi.MrMode(0))
    return fi.Info(
        caps=caps,
        ep_attr=fi.EpAttr(protocol=protocol),
        domain_attr=fi.DomainAttr(mr_mode=mode, caps=caps_of_domain, **domain),
        fabric_attr=fi.FabricAttr(prov_name="cxi"),
    )


def found(caps: int = CAPS, **more: Any) -> fi.Info:
    """The Info that getinfo returns first."""
    return fi.getinfo(hints=hints(caps, **more))[0]


@contextlib.contextmanager
def opened(
    caps: int = CAPS,
    *,
    prov_key: bool = False,
    format: int = fi.CQ_FORMAT_TAGGED,
    wait_obj: int = fi.WAIT_UNSPEC,
    cq_flags: int = int(BOTH),
    enable: bool = True,
    edit: Any = None,
    domain_caps: int = 0,
    av_flags: int = 0,
    av_type: int = fi.AV_UNSPEC,
    **domain: Any,
) -> Iterator[Node]:
    """A Node of the CXI provider.

    edit   called with the Info before anything is opened.
    """
    info = found(caps, prov_key=prov_key, caps_of_domain=domain_caps, **domain)
    if edit is not None:
        edit(info)
    fabric = fi.Fabric(info.fabric_attr)
    with contextlib.ExitStack() as undo:
        undo.callback(fabric.close)
        opened_domain = fabric.domain(info)
        undo.callback(opened_domain.close)
        cq = opened_domain.cq_open(format=format, wait_obj=wait_obj)
        undo.callback(cq.close)
        av = opened_domain.av_open(type=av_type, flags=av_flags)
        undo.callback(av.close)
        ep = opened_domain.endpoint(info)
        undo.callback(ep.close)
        ep.bind(cq, cq_flags)
        ep.bind(av)
        if enable:
            ep.enable()
        undo.pop_all()
    node = Node(info, fabric, opened_domain, cq, av, ep)
    try:
        yield node
    finally:
        node.close()


def register(node: Node, buf: Any, key: int = 0, access: int = RW, **more: Any) -> fi.MemoryRegion:
    """A region that peers reach: registered, bound, enabled."""
    mr = node.domain.mr_reg(buf, access, requested_key=key, **more)
    node.keep(mr)
    mr.bind(node.ep)
    mr.enable()
    return mr
