"""None is no memory: where the library would read or write it, the call is refused before it is made."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ofi.support import CAPS, PROVIDERS, pair

from weft import fi


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("operation", [fi.SUM, fi.ATOMIC_WRITE, fi.BXOR])
def test_atomic_without_an_operand_is_refused_and_names_atomic_read(provider: str, operation: int) -> None:
    """fi_atomic(3): ATOMIC_READ alone has no operand; libfabric reads NULL for all others."""
    with pair(provider, CAPS | fi.ATOMIC) as (a, b):
        where = {"dest_addr": a.to(b), "addr": 0, "key": 1, "datatype": fi.UINT64, "op": operation}
        result = np.zeros(1, np.uint64)
        for call in (
            lambda: a.ep.atomic(None, **where),
            lambda: a.ep.inject_atomic(None, **where),
            lambda: a.ep.fetch_atomic(None, result=result, **where),
            lambda: a.ep.fetch_atomicv(None, None, [result], None, **where),
        ):
            with pytest.raises(fi.InvalidArgument, match="ATOMIC_READ alone"):
                call()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_write_and_read_without_memory_need_a_length_of_0(provider: str) -> None:
    with pair(provider) as (a, b):
        peer = a.to(b)
        for call in (a.ep.write, a.ep.read):
            with pytest.raises(fi.InvalidArgument, match="None with len=0"):
                call(None, None, peer, 0, 1)
        with pytest.raises(fi.InvalidArgument, match="buffer 1 is None"):
            a.ep.sendv([b"x", None], None, peer)
