"""FI_PEEK and FI_CLAIM of untagged receives over a real libfabric, whose tcp and shm ignore them."""

from __future__ import annotations

import pytest
from tests.ofi.support import PROVIDERS, finish, pair, post

from weft import fi


@pytest.mark.parametrize("flags", [fi.PEEK, fi.CLAIM, fi.PEEK | fi.CLAIM, fi.PEEK | fi.DISCARD])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_untagged_peek_is_refused_and_the_message_stays(provider: str, flags: int) -> None:
    with pair(provider) as (a, b):
        to = a.to(b)
        post(lambda: a.ep.send(b"whole", dest_addr=to), a, b)
        with pytest.raises(fi.NotSupported, match="PEEK and CLAIM are of tagged messages"):
            b.ep.recvmsg(fi.Msg([], None, fi.ADDR_UNSPEC, context="peek"), int(flags))
        room = bytearray(5)
        b.ep.recvmsg(fi.Msg([room], None, fi.ADDR_UNSPEC, context="taken"), 0)
        assert [one.op_context for one in finish(b, 1, a)] == ["taken"]
        assert bytes(room) == b"whole"
        finish(a, 1, b)
        assert b.ep.outstanding() == 0
