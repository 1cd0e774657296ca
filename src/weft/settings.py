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

`WEFT_MR_MODE` is read at each getinfo, the others when the process first uses its NIC.

pydantic is imported then, and not before.
"""

# No `from __future__ import annotations`: pydantic has to see the annotations of a class made inside a function.
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from . import errors
from .flags import MR_BASIC_MAP, MrMode

__all__ = ["SECRET_BYTES_MIN", "Secret", "Settings", "load", "secret"]

SECRET_BYTES_MIN = 16

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
    """The variables of the table above, without their prefix."""

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
