"""What C programs ask of getinfo, captured from the running programs (hints/*.txt): each set of hints gets an offer.

A file has the calls of one program, each with the provider that libfabric called. "-> answered" follows the calls of
the program itself; libfabric's own utility providers, which ask as well, are not answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from weft import fi

HINTS = Path(__file__).with_name("hints")

# Word of a file -> field of the struct of its line; the line of the Info itself has no word.
_COMMON = {"caps": "caps", "mode": "mode"}
_SIDE = {**_COMMON, "op_flags": "op_flags", "msg_order": "msg_order", "comp_order": "comp_order", "size": "size"}
_WORDS: dict[str, dict[str, str]] = {
    "info": {**_COMMON, "addr_format": "addr_format"},
    "ep": {
        "type": "type",
        "proto": "protocol",
        "ver": "protocol_version",
        "max_msg": "max_msg_size",
        "prefix": "msg_prefix_size",
        "order_raw": "max_order_raw_size",
        "war": "max_order_war_size",
        "waw": "max_order_waw_size",
        "tag_fmt": "mem_tag_format",
        "txctx": "tx_ctx_cnt",
        "rxctx": "rx_ctx_cnt",
        "auth": "auth_key_size",
    },
    "tx": {**_SIDE, "inject": "inject_size", "iov": "iov_limit", "rma_iov": "rma_iov_limit", "tclass": "tclass"},
    "rx": {**_SIDE, "total": "total_buffered_recv", "iov": "iov_limit"},
    "dom": {
        **_COMMON,
        "name": "name",
        "threading": "threading",
        "control": "control_progress",
        "data": "data_progress",
        "rm": "resource_mgmt",
        "av": "av_type",
        "mr_mode": "mr_mode",
        "keysz": "mr_key_size",
        "cqdata": "cq_data_size",
        "eps": "ep_cnt",
        "cq": "cq_cnt",
        "tx": "tx_ctx_cnt",
        "rx": "rx_ctx_cnt",
        "maxtx": "max_ep_tx_ctx",
        "maxrx": "max_ep_rx_ctx",
        "err_data": "max_err_data",
        "mr_cnt": "mr_cnt",
        "tclass": "tclass",
        "auth": "auth_key_size",
    },
    "fabric": {"name": "name", "prov": "prov_name"},
}
_PARTS = {"ep": "ep_attr", "tx": "tx_attr", "rx": "rx_attr", "dom": "domain_attr", "fabric": "fabric_attr"}


class Call(NamedTuple):
    """One call of getinfo: the provider that libfabric called, and the program's arguments."""

    provider: str
    version: int
    hints: fi.Info | None


def calls(path: Path) -> Iterator[Call]:
    """The calls of a file that are to be answered."""
    call: Call | None = None
    for line in path.read_text().splitlines():
        words = line.split()
        if "getinfo" in words:
            at = words.index("getinfo")
            major, minor = words[at + 1].removeprefix("v").split(".")
            hints = fi.Info() if words[-1] == "hints=yes" else None
            call = Call(words[at - 1], fi.VERSION(int(major), int(minor)), hints)
        elif line.endswith("-> answered") and call is not None:
            yield call
        elif call is not None and call.hints is not None and "=" in line and "nic" not in words:
            take(call.hints, [one for one in words if one.endswith(":") or "=" in one])


def take(hints: fi.Info, words: list[str]) -> None:
    part = words.pop(0).rstrip(":") if words[0].endswith(":") else "info"
    target: Any = getattr(hints, _PARTS[part]) if part in _PARTS else hints
    for name, _, text in (one.partition("=") for one in words):
        field = _WORDS[part].get(name)
        if field is None:
            assert text in ("0", "0.0"), f"{name}={text} has no field"
        elif field in ("name", "prov_name"):
            setattr(target, field, None if text == "-" else text)
        else:
            setattr(target, field, int(text, 0))


@pytest.mark.parametrize("program", sorted(path.stem for path in HINTS.glob("*.txt")))
def test_hints_of_a_c_program_get_an_offer(program: str) -> None:
    asked = list(calls(HINTS / f"{program}.txt"))
    assert asked
    format_of_cxi = next(one.addr_format for one in fi.getinfo() if one.fabric_attr.prov_name == "cxi")
    for provider, version, hints in asked:
        if hints is None:
            assert provider in {one.fabric_attr.prov_name for one in fi.getinfo(version)}
            continue
        if hints.addr_format:  # the format that the previous call returned
            hints.addr_format = format_of_cxi if provider == "cxi" else fi.ADDR_STR
        found = fi.getinfo(version, hints=hints)
        # libfabric asks every provider, not only the provider whose domain the hints name.
        of_provider = "cxi" if hints.domain_attr.name == "cxi0" else provider
        mine = [one for one in found if one.fabric_attr.prov_name == of_provider]
        assert mine, f"{program}: {provider} {hints}"
        for one in mine:
            assert one.caps & hints.caps == hints.caps
            # MPICH ends where one of these differs from its hints.
            for field in ("threading", "control_progress", "data_progress"):
                wish = getattr(hints.domain_attr, field)
                assert getattr(one.domain_attr, field) == wish or not wish


def test_hints_of_every_program_are_read() -> None:
    """A reader that finds nothing would show nothing."""
    count = {path.stem: len(list(calls(path))) for path in HINTS.glob("*.txt")}
    assert count == {
        "fi_pingpong": 1,
        "impi-cxi": 3,
        "impi-weft": 3,
        "mpich-cxi": 2,
        "mpich-weft": 2,
        "nixl-1.4.1": 5,
        "ompi-btl": 4,
        "ompi-mtl": 2,
    }
    (_, mpich) = calls(HINTS / "mpich-weft.txt")
    assert mpich.hints is not None
    assert mpich.version == fi.VERSION(2, 5)
    assert mpich.hints.ep_attr.mem_tag_format == 0xC000007FFFFFFF
    assert mpich.hints.domain_attr.threading == fi.THREAD_DOMAIN
