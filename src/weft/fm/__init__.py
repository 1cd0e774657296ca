"""The Fabric Manager: the service that gives multicast addresses to collective groups, and its client.

    from weft.fm import create_multicast, delete_multicast      what a join uses; needs only Python's own library
    from weft.fm.store import Store                             the groups in a file; the manager without its service
    from weft.fm.server import application                      the REST service (pip install 'weft-fabric[fm]')

Nothing of the service is imported before it is used.

Source: fi_cxi(7) "fi_join_collective()", FI_CXI_COLL_FABRIC_MGR_URL.
"""

from __future__ import annotations

from .client import ManagerError, Multicast, create_multicast, delete_multicast

__all__ = ["ManagerError", "Multicast", "create_multicast", "delete_multicast"]
