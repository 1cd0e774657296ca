"""What the environment says about the software NIC and the general provider.

| variable         | values                          | meaning                                                        |
|------------------|---------------------------------|----------------------------------------------------------------|
| `WEFT_ENGINE`    | `thread` (default), `manual`    | engine thread, or progress only inside calls                   |
| `WEFT_ISOLATION` | `shared` (default), `strict`    | `strict`: no memory is shared, the owner serves every access   |
| `WEFT_CMA`       | `1` (default), `0`              | reach memory that Weft did not allocate by process_vm_readv    |
| `WEFT_SHM`       | `1` (default), `0`              | `0`: processes of this host reach each other by tcp, too       |
| `WEFT_LISTEN`    | `tcp://host:port`               | let other hosts call this process; port 0: a free one          |
| `WEFT_ADVERTISE` | a name or an IP address         | what other hosts call, where `WEFT_LISTEN` is a wildcard       |
| `WEFT_SECRET`    | 16 bytes or more                | what hosts prove to each other; without it there is no tcp     |
| `WEFT_SECRET_FILE` | a path                        | where the secret is; nobody else may read it (mode 0600)       |
| `WEFT_TCP_TIMEOUT` | seconds, 5 unless set         | how long a dead host may go unnoticed                          |
| `WEFT_TCP_LOG`   | `0` (default), `1`              | say on stderr whom the tcp link turned away or lost, and why   |
| `WEFT_MR_MODE`   | names joined by `|` or `,`      | mr_mode bits that the general provider requires; default: none |
| `WEFT_CUDA_LIBRARY` | a path                       | CUDA's driver, where the loader does not find it by name       |
| `WEFT_ROCR_LIBRARY` | a path                       | the HSA runtime of ROCm, where the loader does not find it     |
| `FI_HMEM_DISABLE_P2P` | `0` (default), `1`        | `1`: nobody opens another's device memory; its owner copies    |

`WEFT_MR_MODE` is read at each getinfo, `FI_HMEM_*` and the libraries when the first domain is opened with `fi.HMEM`,
the others when the process first uses its NIC. libfabric's variables for the registration cache
(`FI_MR_CACHE_MAX_COUNT` ...) are read then, too: `load_cache`, fi_mr(3) "Memory registration cache".

pydantic is imported then, and not before.
"""

# No `from __future__ import annotations`: pydantic has to see the annotations of a class made inside a function.
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from . import errors
from .flags import MR_BASIC_MAP, MrMode

__all__ = [
    "CACHE_VARIABLES",
    "MR_MODES_ON_REQUEST",
    "SECRET_BYTES_MIN",
    "CacheSettings",
    "Secret",
    "Settings",
    "load",
    "load_cache",
    "secret",
    "variable",
]

SECRET_BYTES_MIN = 16

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

MR_MODES_ON_REQUEST = tuple(mode for name, mode in _MR_MODES.items() if name not in ("basic", "scalable"))
"""Single mr_mode bits that the general provider can be told to require."""

_VALUES = {
    "WEFT_ENGINE": "thread, manual",
    "WEFT_ISOLATION": "shared, strict",
    "WEFT_CMA": "0, 1",
    "WEFT_SHM": "0, 1",
    "WEFT_LISTEN": "tcp://host:port; port 0 takes one that is free",
    "WEFT_ADVERTISE": "name, address; of this host",
    "WEFT_SECRET": "text; 16 bytes or more",
    "WEFT_SECRET_FILE": "path; of a file with the secret, mode 0600",
    "WEFT_TCP_TIMEOUT": "seconds; from 0.1 to 3600, 5 unless set",
    "WEFT_TCP_LOG": "0, 1",
    "WEFT_MR_MODE": ", ".join(_MR_MODES) + '; several joined by "|" or ","',
    "WEFT_CUDA_LIBRARY": "path; of libcuda.so.1",
    "WEFT_ROCR_LIBRARY": "path; of libhsa-runtime64.so.1",
    "FI_HMEM_DISABLE_P2P": "0, 1",
}


class Secret(str):
    """A text that nobody prints by accident: it says only whether there is one. `reveal()` has it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "set, not shown" if self.reveal() else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def reveal(self) -> str:
        """The text."""
        return str.__add__(self, "")


@dataclass(frozen=True)
class Settings:
    """The variables of the table above; those of WEFT_ without it."""

    engine: Literal["thread", "manual"]
    isolation: Literal["shared", "strict"]
    cma: bool
    mr_mode: MrMode
    shm: bool = True
    listen: str = ""
    advertise: str = ""
    secret: Secret = Secret()  # noqa: RUF009  it never changes
    secret_file: str = ""
    tcp_timeout: float = 5.0
    tcp_log: bool = False
    cuda_library: str = ""
    rocr_library: str = ""
    fi_hmem_disable_p2p: bool = False


def variable(field: str) -> str:
    """The name in the environment of a field of Settings."""
    return field.upper() if field.startswith("fi_") else "WEFT_" + field.upper()


def load() -> Settings:
    """Read the environment.

    Raises InvalidArgument for a value that is not among those of the table, naming them.
    """
    from pydantic import ValidationError

    try:
        found = _reader()()
    except ValidationError as e:
        first = e.errors()[0]
        name = variable(str(first["loc"][0]).lower())
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
        found.shm,
        found.listen,
        found.advertise,
        Secret(found.secret.get_secret_value()),
        found.secret_file,
        found.tcp_timeout,
        found.tcp_log,
        found.cuda_library,
        found.rocr_library,
        found.fi_hmem_disable_p2p,
    )


def secret(s: Settings) -> bytes | None:
    """The secret of WEFT_SECRET or WEFT_SECRET_FILE; None where neither is set.

    Raises InvalidArgument where both are, where it is too short, and where the file cannot be read or others can.
    """
    if s.secret and s.secret_file:
        raise errors.InvalidArgument("WEFT_SECRET and WEFT_SECRET_FILE are both set\n  try: unset one of them")
    if not s.secret_file:
        found, where = s.secret.reveal().encode(), "WEFT_SECRET"
    else:
        where = f"WEFT_SECRET_FILE={s.secret_file}"
        try:
            with open(s.secret_file, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
                    raise errors.InvalidArgument(
                        f"{where}: mode {status.st_mode & 0o777:04o}, owner {status.st_uid}: others can get at it\n"
                        f"  try: chmod 600 {s.secret_file}"
                    )
                found = file.read(65536).rstrip(b"\r\n")
        except OSError as reason:
            if isinstance(reason, errors.FabricError):
                raise
            raise errors.InvalidArgument(f"{where}: {reason.strerror}") from None
    if not found and not s.secret_file:
        return None
    if len(found) < SECRET_BYTES_MIN:
        raise errors.InvalidArgument(
            f"{where}: the secret has {len(found)} bytes, {SECRET_BYTES_MIN} are needed at least\n"
            "  try: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return found


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
    from pydantic import BeforeValidator, Field, SecretStr
    from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

    class Environment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix="WEFT_", extra="ignore")

        engine: Literal["thread", "manual"] = "thread"
        isolation: Literal["shared", "strict"] = "shared"
        cma: Annotated[bool, BeforeValidator(_switch)] = True
        shm: Annotated[bool, BeforeValidator(_switch)] = True
        listen: str = ""
        advertise: str = ""
        secret: SecretStr = SecretStr("")
        secret_file: str = ""
        tcp_timeout: Annotated[float, Field(ge=0.1, le=3600.0)] = 5.0
        tcp_log: Annotated[bool, BeforeValidator(_switch)] = False
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
