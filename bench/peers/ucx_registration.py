"""The cost of ucp_mem_map by ctypes, without the cost of ctypes: JSON {register_<bytes>: nanoseconds} on stdout.

    python bench/peers/ucx_registration.py 4096 1048576

Needs the wheel libucx-cu12 (or another libucx). Source: ucp.h of UCX: ucp_init_version, ucp_mem_map, ucp_mem_unmap.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

API = (1, 17)
FEATURE_RMA = 1 << 1
FIELD_FEATURES = 1
FIELD_ADDRESS, FIELD_LENGTH = 1, 2
COUNT, ROUNDS = 500, 20


class MapParams(ctypes.Structure):
    """ucp_mem_map_params_t."""

    _fields_ = [
        ("field_mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("prot", ctypes.c_uint),
        ("memory_type", ctypes.c_int),
        ("exported", ctypes.c_void_p),
    ]


def load() -> Any:
    if importlib.util.find_spec("libucx") is None:
        raise SystemExit("no libucx here")
    libucx: Any = importlib.import_module("libucx")
    libucx.load_library()
    folder = Path(libucx.__file__).parent / "lib"
    return ctypes.CDLL(str(next(iter(sorted(folder.glob("libucp.so*"))))))


def main() -> None:
    os.environ.setdefault("UCX_TLS", "self,sm")
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    ucp = load()
    config, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert ucp.ucp_config_read(None, None, ctypes.byref(config)) == 0
    params = (ctypes.c_uint64 * 32)(FIELD_FEATURES, FEATURE_RMA)
    assert ucp.ucp_init_version(*API, ctypes.byref(params), config, ctypes.byref(context)) == 0
    ucp.ucp_mem_unmap.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    nothing = ctypes.CDLL(None).memcmp  # also takes three pointers and returns an int, so ctypes costs the same
    found = {}
    for size in map(int, sys.argv[1:]):
        memory = ctypes.create_string_buffer(size)
        asked = MapParams(FIELD_ADDRESS | FIELD_LENGTH, ctypes.addressof(memory), size)
        handles = [ctypes.c_void_p() for _ in range(COUNT)]
        references = [ctypes.byref(handle) for handle in handles]
        what = ctypes.byref(asked)
        best = call = float("inf")
        for _ in range(ROUNDS):
            start = time.perf_counter_ns()
            for reference in references:
                ucp.ucp_mem_map(context, what, reference)
            best = min(best, (time.perf_counter_ns() - start) / COUNT)
            for handle in handles:
                assert handle.value is not None
                assert ucp.ucp_mem_unmap(context, handle) == 0
            start = time.perf_counter_ns()
            for reference in references:
                nothing(reference, reference, None)
            call = min(call, (time.perf_counter_ns() - start) / COUNT)
        found[f"register_{size}"] = best - call
    print(json.dumps(found))


if __name__ == "__main__":
    main()
