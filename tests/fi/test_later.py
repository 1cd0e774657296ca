"""Calls that this version does not have raise NoSys."""

from __future__ import annotations

import pytest
from tests.fi.support import Node

from weft import fi


@pytest.mark.parametrize("call", ["tx_context", "rx_context"])
def test_call_of_an_endpoint_that_comes_later_is_refused(node: Node, call: str) -> None:
    with pytest.raises(fi.NoSys, match=rf"ep\.{call}: .*(later version|not supported)"):
        getattr(node.ep, call)(b"1", dest_addr=0)


@pytest.mark.parametrize("call", ["scalable_ep", "stx_context", "srx_context"])
def test_call_of_a_domain_that_comes_later_is_refused(node: Node, call: str) -> None:
    with pytest.raises(fi.NoSys, match=rf"domain\.{call}: "):
        getattr(node.domain, call)()


def test_trywait_takes_as_many_as_count_says(node: Node) -> None:
    with node.domain.cq_open(wait_obj=fi.WAIT_NONE) as polled:
        fi.trywait(node.fabric, [node.cq, polled], count=1)
        with pytest.raises(fi.InvalidArgument, match="no wait object"):
            fi.trywait(node.fabric, [node.cq, polled])
