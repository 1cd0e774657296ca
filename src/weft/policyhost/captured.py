"""What C programs ask of getinfo, captured from the running programs (hints/*.txt), by client.

A file has the calls of one program, each with the provider that libfabric called. "-> answered" follows the calls of
the program itself; libfabric's own utility providers, which ask as well, are not answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..fi.attrs import Info
from ..flags import VERSION

FOLDER = Path(__file__).with_name("hints")


class Client(NamedTuple):
    """A client whose calls were captured.

    Attributes:
        name: The program and its version.
        files: File in hints -> what the client uses its calls for.
        taken_over: Hints that the client copies from the offer of an earlier call of its own, without hints.
    """

    name: str
    files: dict[str, str]
    taken_over: tuple[str, ...] = ()


CLIENTS = {
    "mpich": Client(
        "MPICH 5.0.2",
        {"mpich-cxi": "all communication, over cxi", "mpich-weft": "all communication, over weft"},
        ("caps",),
    ),
    "openmpi": Client("Open MPI 5.0.11", {"ompi-mtl": "messages (mtl ofi)", "ompi-btl": "windows (btl ofi, osc rdma)"}),
    "nixl": Client("NIXL 1.4.1", {"nixl-1.4.1": "the backend LIBFABRIC"}),
    "impi": Client(
        "Intel MPI 2021.19",
        {"impi-cxi": "all communication, over cxi", "impi-weft": "all communication, over weft"},
        ("caps", "addr_format"),
    ),
    "pingpong": Client("fi_pingpong 1.17", {"fi_pingpong": "messages, over cxi"}),
}

# Word of a file -> field of the struct of its line; the line of the Info itself has no word.
_COMMON = {"caps": "caps", "mode": "mode"}
_SIDE = {**_COMMON, "op_flags": "op_flags", "msg_order": "msg_order", "comp_order": "comp_order", "size": "size"}
_WORDS: dict[str, dict[str, str]] = {
    "info": {**_COMMON, "addr_format": "addr_format"},
    "ep": {
        "type": "type", "proto": "protocol", "ver": "protocol_version", "max_msg": "max_msg_size",
        "prefix": "msg_prefix_size", "order_raw": "max_order_raw_size", "war": "max_order_war_size",
        "waw": "max_order_waw_size", "tag_fmt": "mem_tag_format", "txctx": "tx_ctx_cnt", "rxctx": "rx_ctx_cnt",
        "auth": "auth_key_size",
    },
    "tx": {**_SIDE, "inject": "inject_size", "iov": "iov_limit", "rma_iov": "rma_iov_limit", "tclass": "tclass"},
    "rx": {**_SIDE, "total": "total_buffered_recv", "iov": "iov_limit"},
    "dom": {
        **_COMMON, "name": "name", "threading": "threading", "control": "control_progress", "data": "data_progress",
        "rm": "resource_mgmt", "av": "av_type", "mr_mode": "mr_mode", "keysz": "mr_key_size", "cqdata": "cq_data_size",
        "eps": "ep_cnt", "cq": "cq_cnt", "tx": "tx_ctx_cnt", "rx": "rx_ctx_cnt", "maxtx": "max_ep_tx_ctx",
        "maxrx": "max_ep_rx_ctx", "err_data": "max_err_data", "mr_cnt": "mr_cnt", "tclass": "tclass",
        "auth": "auth_key_size",
    },
    "fabric": {"name": "name", "prov": "prov_name"},
}  # fmt: skip
_PARTS = {"ep": "ep_attr", "tx": "tx_attr", "rx": "rx_attr", "dom": "domain_attr", "fabric": "fabric_attr"}


class Call(NamedTuple):
    """One call of getinfo: the provider that libfabric called, and the program's arguments."""

    provider: str
    version: int
    hints: Info | None


def calls(file: str) -> Iterator[Call]:
    """The calls of a file that are to be answered."""
    call: Call | None = None
    for line in (FOLDER / f"{file}.txt").read_text(encoding="ascii").splitlines():
        words = line.split()
        if "getinfo" in words:
            at = words.index("getinfo")
            major, minor = words[at + 1].removeprefix("v").split(".")
            call = Call(words[at - 1], VERSION(int(major), int(minor)), Info() if words[-1] == "hints=yes" else None)
        elif line.endswith("-> answered") and call is not None:
            yield call
        elif call is not None and call.hints is not None and "=" in line and "nic" not in words:
            _take(call.hints, [one for one in words if one.endswith(":") or "=" in one])


def _take(hints: Info, words: list[str]) -> None:
    part = words.pop(0).rstrip(":") if words[0].endswith(":") else "info"
    target: Any = getattr(hints, _PARTS[part]) if part in _PARTS else hints
    for name, _, text in (one.partition("=") for one in words):
        field = _WORDS[part].get(name)
        if field is None:
            if text not in ("0", "0.0"):
                raise ValueError(f"{name}={text} has no field")
        elif field in ("name", "prov_name"):
            setattr(target, field, None if text == "-" else text)
        else:
            setattr(target, field, int(text, 0))
