"""`weft://` communication for Dask's `distributed`, found by the entry point `distributed.comm.backends`.

    cluster = LocalCluster(protocol="weft://")
    client = Client("weft://scheduler-host:8786")

Large frames (NumPy arrays and the like) stay where they are until the receiver reads them, one-sidedly, into their
final buffers: on one host at memcpy speed, between hosts by Weft's tcp link. Small frames, and the descriptors of the
large ones, go by an ordinary socket. README.md of this folder has the reasons.
"""

from __future__ import annotations

from ..._extras import needed

with needed("weft.interop.dask"):
    from .comm import WeftBackend, WeftComm, WeftConnector, WeftListener

__all__ = ["WeftBackend", "WeftComm", "WeftConnector", "WeftListener"]
