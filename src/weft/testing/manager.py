"""A Fabric Manager for one test, in this process; needs the extra [fm].

    with weft.testing.fabric_manager(addresses_per_job=1) as manager:
        ...                                 # joins find it: FI_CXI_COLL_FABRIC_MGR_URL and the others are set
        assert len(manager.store.groups()) == 1

Source: fi_cxi(7) FI_CXI_COLL_FABRIC_MGR_URL, FI_CXI_COLL_MCAST_TOKEN, FI_CXI_COLL_JOB_ID.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..fm.store import Store

_TOKEN = "of-this-test"


@dataclass(frozen=True)
class FabricManager:
    """A running manager.

    Attributes:
        url: Value of FI_CXI_COLL_FABRIC_MGR_URL.
        token: Value of FI_CXI_COLL_MCAST_TOKEN, an administrator's.
        job_id: Value of FI_CXI_COLL_JOB_ID.
        store: The manager's groups, jobs and NICs: `weft.fm.store.Store`.
    """

    url: str
    token: str
    job_id: str
    store: Store

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a join."""
        return {
            "FI_CXI_COLL_FABRIC_MGR_URL": self.url,
            "FI_CXI_COLL_MCAST_TOKEN": self.token,
            "FI_CXI_COLL_JOB_ID": self.job_id,
            "FI_CXI_COLL_JOB_STEP_ID": "0",
        }


@contextlib.contextmanager
def fabric_manager(
    *,
    addresses: int = 8192,
    addresses_per_job: int = 0,
    groups_per_root: int = 1,
    known_nics: bool = False,
    folder: str | os.PathLike[str] | None = None,
) -> Iterator[FabricManager]:
    """Run a manager on this host's loopback during the block, and set the variables of a join in this process.

    The limits are those of `weft.fm.store.Limits`.

    Args:
        folder: Folder of the database; with the same folder the next manager goes on where this one was. None: a
            temporary folder.

    Raises:
        ImportError: The extra [fm] is not installed.
    """
    from ..fm import server
    from ..fm.store import Limits, Store

    limits = Limits(addresses, addresses_per_job, groups_per_root, known_nics)
    with contextlib.ExitStack() as stack:
        where = Path(folder) if folder is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(Store(where / "fm.db", limits))
        app = server.application(store, [_TOKEN])
        url = stack.enter_context(server.running(app, server.listen("127.0.0.1", 0)))
        found = FabricManager(url, _TOKEN, "job", store)
        before = {name: os.environ.get(name) for name in found.environment}
        os.environ.update(found.environment)
        try:
            yield found
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
