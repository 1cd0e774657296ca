"""What the environment says about the software NIC and the general provider.

| variable         | values                          | meaning                                                        |
|------------------|---------------------------------|----------------------------------------------------------------|
| `WEFT_ENGINE`    | `thread` (default), `manual`    | engine thread, or progress only inside calls                   |
| `WEFT_ISOLATION` | `shared` (default), `strict`    | `strict`: no memory is shared, the owner serves every access   |
| `WEFT_CMA`       | `1` (default), `0`              | reach memory that Weft did not allocate by process_vm_readv    |
| `WEFT_MR_MODE`   | names joined by `|` or `,`      | mr_mode bits that the general provider requires; default: none |

`WEFT_MR_MODE` is read at each getinfo, the others when the process first uses its NIC. libfabric's variables for the
registration cache (`FI_MR_CACHE_MAX_COUNT` ...) are read then, too: `load_cache`, fi_mr(3) "Memory registration cache".

pydantic is imported then, and not before.
"""

# No `from __future__ import annotations`: pydantic has to see the annotations of a class made inside a function.
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from . import errors
from .flags import MR_BASIC_MAP, MrMode

__all__ = ["CACHE_VARIABLES", "MR_MODES_ON_REQUEST", "CacheSettings", "Settings", "load", "load_cache"]

# Values of WEFT_MR_MODE. The modes that need device memory, collectives or refresh are not offered yet.
_MR_MODES: dict[str, MrMode] = {
    "local": MrMode.MR_LOCAL,
    "raw": MrMode.MR_RAW,
    "virt_addr": MrMode.MR_VIRT_ADDR,
    "allocated": MrMode.MR_ALLOCATED,
    "prov_key": MrMode.MR_PROV_KEY,
    "mmu_notify": MrMode.MR_MMU_NOTIFY,
    "rma_event": MrMode.MR_RMA_EVENT,
    "endpoint": MrMode.MR_ENDPOINT,
    "basic": MR_BASIC_MAP,
    "scalable": MrMode.MR_UNSPEC,
}

MR_MODES_ON_REQUEST = tuple(mode for name, mode in _MR_MODES.items() if name not in ("basic", "scalable"))
"""Single mr_mode bits that the general provider can be told to require."""

_VALUES = {
    "WEFT_ENGINE": "thread, manual",
    "WEFT_ISOLATION": "shared, strict",
    "WEFT_CMA": "0, 1",
    "WEFT_MR_MODE": ", ".join(_MR_MODES) + '; several joined by "|" or ","',
}


@dataclass(frozen=True)
class Settings:
    """The variables of the table above, without their prefix."""

    engine: Literal["thread", "manual"]
    isolation: Literal["shared", "strict"]
    cma: bool
    mr_mode: MrMode


def load() -> Settings:
    """Read the environment.

    Raises InvalidArgument for a value that is not among those of the table, naming them.
    """
    from pydantic import ValidationError

    try:
        found = _reader()()
    except ValidationError as e:
        first = e.errors()[0]
        name = "WEFT_" + str(first["loc"][0]).upper()
        raise errors.InvalidArgument(
            f"{name}={first['input']!r} in the environment is not understood\n"
            f"  values: {_VALUES.get(name, '')}\n"
            f"  try: unset {name}, or set it to one of these"
        ) from None
    return Settings(found.engine, found.isolation, found.cma, found.mr_mode)


CACHE_MONITORS = ("userfaultfd", "uffd", "memhooks", "kdreg2", "disabled")

CACHE_VARIABLES = {
    "FI_MR_CACHE_MAX_SIZE": "bytes, a whole number; unset: unlimited",
    "FI_MR_CACHE_MAX_COUNT": "a whole number; 0 turns caching off",
    "FI_MR_CACHE_MONITOR": ", ".join(CACHE_MONITORS),
    "FI_MR_CUDA_CACHE_MONITOR_ENABLED": "0, 1",
    "FI_MR_ROCR_CACHE_MONITOR_ENABLED": "0, 1",
    "FI_MR_ZE_CACHE_MONITOR_ENABLED": "0, 1",
}
"""Variables of the registration cache and the values they take."""


@dataclass(frozen=True)
class CacheSettings:
    """The registration cache's variables of fi_mr(3), without `FI_MR_`.

    cache_max_size    bytes of all entries; None: unlimited.
    cache_max_count   entries; 0: nothing is cached.
    cache_monitor     who watches system memory; "" for this machine's default.
    cuda_cache_monitor_enabled, rocr_..., ze_...   whether device memory of that kind is cached at all.
    """

    cache_max_size: int | None
    cache_max_count: int
    cache_monitor: str
    cuda_cache_monitor_enabled: bool
    rocr_cache_monitor_enabled: bool
    ze_cache_monitor_enabled: bool


def load_cache() -> CacheSettings:
    """Read the registration cache's part of the environment.

    Raises InvalidArgument for a value that is not among those of `CACHE_VARIABLES`, naming them.
    """
    from pydantic import ValidationError

    try:
        found = _cache_reader()()
    except ValidationError as e:
        first = e.errors()[0]
        name = "FI_MR_" + str(first["loc"][0]).upper()
        raise errors.InvalidArgument(
            f"{name}={first['input']!r} in the environment is not understood\n"
            f"  values: {CACHE_VARIABLES.get(name, '')}, fi_mr(3) Memory registration cache\n"
            f"  try: unset {name}, or set it to one of these"
        ) from None
    return CacheSettings(**{name: getattr(found, name) for name in CacheSettings.__dataclass_fields__})


@lru_cache(maxsize=1)
def _cache_reader() -> Any:
    from pydantic import BeforeValidator, Field
    from pydantic_settings import BaseSettings, SettingsConfigDict

    switch = Annotated[bool, BeforeValidator(_switch)]

    class Environment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="FI_MR_", extra="ignore")

        cache_max_size: Annotated[int | None, Field(ge=0, lt=2**64 - 1)] = None
        cache_max_count: Annotated[int, Field(ge=0, lt=2**64)] = 1024  # what libfabric chooses
        cache_monitor: Literal["", "userfaultfd", "uffd", "memhooks", "kdreg2", "disabled"] = ""
        cuda_cache_monitor_enabled: switch = True
        rocr_cache_monitor_enabled: switch = True
        ze_cache_monitor_enabled: switch = True

    return Environment


@lru_cache(maxsize=1)
def _reader() -> Any:
    from pydantic import BeforeValidator
    from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

    class Environment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="WEFT_", extra="ignore")

        engine: Literal["thread", "manual"] = "thread"
        isolation: Literal["shared", "strict"] = "shared"
        cma: Annotated[bool, BeforeValidator(_switch)] = True
        mr_mode: Annotated[MrMode, NoDecode, BeforeValidator(_mr_mode)] = MrMode.MR_UNSPEC

    return Environment


def _switch(value: object) -> bool:
    if isinstance(value, bool):  # pydantic-settings validates the default as well
        return value
    if value not in ("0", "1"):
        raise ValueError("0 or 1")
    return value == "1"


def _mr_mode(value: object) -> MrMode:
    if isinstance(value, MrMode):
        return value
    mode = MrMode.MR_UNSPEC
    for word in str(value).replace(",", "|").split("|"):
        word = word.strip().lower()
        if word:
            if word not in _MR_MODES:
                raise ValueError(f"unknown mode {word}")
            mode |= _MR_MODES[word]
    return mode
