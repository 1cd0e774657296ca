"""Types of weft.launch and weft.interop as a user's checker sees them. Read by mypy and pyright, never run."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import assert_type

import weft
from weft.interop import mpi, store
from weft.interop.peers import PeerArrays

comm: Any = None  # of mpi4py
here = weft.launch.environment()
assert_type(here, weft.launch.Launch)
assert_type(here.rank, int | None)
assert_type(here.hosts, tuple[str, ...])
assert_type(here.launchers[0].address, str)
if here.slingshot is not None:
    assert_type(here.slingshot.vnis, tuple[int, ...])
assert_type(weft.launch.expand_hosts("nid[1-2]"), tuple[str, ...])

with mpi.attach_all(comm, np.zeros(3)) as peers:
    assert_type(peers, PeerArrays)
    assert_type(peers[0], weft.RemoteArray)
    assert_type(peers[0, "bias"], weft.RemoteArray)
    assert_type(peers.mapped, tuple[bool, ...])
    assert_type(list(peers), list[weft.RemoteArray])

folder = store.FileStore("meeting")
assert_type(store.attach_all(folder, {"a": np.zeros(1)}, rank=0, size=1), PeerArrays)
assert_type(folder.get("key"), bytes)
