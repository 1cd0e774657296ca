"""What the environment says about the software NIC and the general provider.

| variable         | values                          | meaning                                                        |
|------------------|---------------------------------|----------------------------------------------------------------|
| `WEFT_ENGINE`    | `thread` (default), `manual`    | engine thread, or progress only inside calls                   |
| `WEFT_ISOLATION` | `shared` (default), `strict`    | `strict`: no memory is shared, the owner serves every access   |
| `WEFT_CMA`       | `1` (default), `0`              | reach memory that Weft did not allocate by process_vm_readv    |
| `WEFT_MR_MODE`   | names joined by `|` or `,`      | mr_mode bits that the general provider requires; default: none |
| `WEFT_CUDA_LIBRARY`, `WEFT_ROCR_LIBRARY` | a path  | the device's driver, where the loader does not find it by name |
| `FI_HMEM_DISABLE_P2P` | `0` (default), `1`         | `1`: no process opens another's device memory; its owner copies |

`WEFT_MR_MODE` is read at each getinfo, `FI_HMEM_*` and the libraries when the first domain is opened with `fi.HMEM`, the
others when the process first uses its NIC.

pydantic is imported then, and not before.
"""

# No `from __future__ import annotations`: pydantic has to see the annotations of a class made inside a function.
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from . import errors
from .flags import MR_BASIC_MAP, MrMode

__all__ = ["Settings", "load"]

# Values of WEFT_MR_MODE. MR_COLLECTIVE goes with collectives, which are not offered yet.
_MR_MODES: dict[str, MrMode] = {
    "local": MrMode.MR_LOCAL,
    "raw": MrMode.MR_RAW,
    "virt_addr": MrMode.MR_VIRT_ADDR,
    "allocated": MrMode.MR_ALLOCATED,
    "prov_key": MrMode.MR_PROV_KEY,
    "mmu_notify": MrMode.MR_MMU_NOTIFY,
    "rma_event": MrMode.MR_RMA_EVENT,
    "endpoint": MrMode.MR_ENDPOINT,
    "hmem": MrMode.MR_HMEM,
    "basic": MR_BASIC_MAP,
    "scalable": MrMode.MR_UNSPEC,
}

_VALUES = {
    "WEFT_ENGINE": "thread, manual",
    "WEFT_ISOLATION": "shared, strict",
    "WEFT_CMA": "0, 1",
    "WEFT_MR_MODE": ", ".join(_MR_MODES) + '; several joined by "|" or ","',
    "FI_HMEM_DISABLE_P2P": "0, 1",
}


@dataclass(frozen=True)
class Settings:
    """The variables of the table above, without WEFT_ or FI_."""

    engine: Literal["thread", "manual"]
    isolation: Literal["shared", "strict"]
    cma: bool
    mr_mode: MrMode
    cuda_library: str = ""
    rocr_library: str = ""
    hmem_disable_p2p: bool = False


def load() -> Settings:
    """Read the environment.

    Raises InvalidArgument for a value that is not among those of the table, naming them.
    """
    from pydantic import ValidationError

    try:
        found = _reader()()
    except ValidationError as e:
        first = e.errors()[0]
        field = str(first["loc"][0]).upper()
        name = field if field.startswith("FI_") else "WEFT_" + field
        raise errors.InvalidArgument(
            f"{name}={first['input']!r} in the environment is not understood\n"
            f"  values: {_VALUES.get(name, '')}\n"
            f"  try: unset {name}, or set it to one of these"
        ) from None
    return Settings(
        found.engine,
        found.isolation,
        found.cma,
        found.mr_mode,
        found.cuda_library,
        found.rocr_library,
        found.fi_hmem_disable_p2p,
    )


@lru_cache(maxsize=1)
def _reader() -> Any:
    from pydantic import BeforeValidator, Field
    from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

    class Environment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="WEFT_", extra="ignore")

        engine: Literal["thread", "manual"] = "thread"
        isolation: Literal["shared", "strict"] = "shared"
        cma: Annotated[bool, BeforeValidator(_switch)] = True
        mr_mode: Annotated[MrMode, NoDecode, BeforeValidator(_mr_mode)] = MrMode.MR_UNSPEC
        cuda_library: str = ""
        rocr_library: str = ""
        fi_hmem_disable_p2p: Annotated[bool, BeforeValidator(_switch)] = Field(
            default=False, validation_alias="FI_HMEM_DISABLE_P2P"
        )

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
