"""Settings of `weft://`, from Dask's configuration (YAML, DASK_DISTRIBUTED__COMM__WEFT__..., dask.config.set)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_bytes

PREFIX = "distributed.comm.weft"
OFF = "off"
DEFAULTS: dict[str, Any] = {
    "fabric": None,
    "offer-size": "64KiB",
    "unacknowledged": "1GiB",
    "pool": "256MiB",
    "read-threads": 4,
}


@dataclass(frozen=True)
class Settings:
    """Settings of large frames.

    Attributes:
        fabric: None: Weft's links; "ofi:tcp" ...: a provider of `fi.getinfo`; "off": large frames go by the connection.
        offer_size: Frames of so many bytes and more are read from the sender's memory.
        unacknowledged: Limit of the bytes of offered frames of one comm that the receiver has not read; at the limit
            `write` waits.
        pool: Bytes of free receive buffers that the process keeps.
        read_threads: Threads that read frames.
    """

    fabric: str | None
    offer_size: int
    unacknowledged: int
    pool: int
    read_threads: int


def load() -> Settings:
    """Raises ValueError, which names the setting."""

    def value(name: str) -> Any:
        found = dask.config.get(f"{PREFIX}.{name}", DEFAULTS[name])
        return DEFAULTS[name] if found is None else found

    def number(name: str, least: int) -> int:
        raw = value(name)
        try:
            found = parse_bytes(raw) if isinstance(raw, str) else int(raw)
        except (ValueError, TypeError):
            raise ValueError(f"{PREFIX}.{name} is {raw!r}: a number, or text such as '64KiB', is needed") from None
        if found < least:
            raise ValueError(f"{PREFIX}.{name} is {raw!r}: at least {least} is needed")
        return int(found)

    fabric = value("fabric")
    if fabric is False:  # YAML's word `off`
        fabric = OFF
    if fabric is not None and not isinstance(fabric, str):
        raise ValueError(f"{PREFIX}.fabric is {fabric!r}: the name of a provider, 'off' or null is needed")
    return Settings(
        fabric or None,
        number("offer-size", 1),
        number("unacknowledged", 1),
        number("pool", 0),
        number("read-threads", 1),
    )
