"""The environment: all variables that Weft reads, in one list for each part.

The classes `Settings` and `CacheSettings` are the lists: each attribute is a `Variable` of that name, with its values,
its default, its meaning and when it takes effect. The reader, `weft info --env` and the page of the documentation are
made from these. The variables of the CXI provider are a third list (providers/cxi/env.py), which is read otherwise: an
invalid text is no error there, and the releases of the provider differ.

    s = settings.load()
    s.WEFT_ENGINE, s.WEFT_ISOLATION, ...
    settings.variables()
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast, overload

from . import errors
from ._files import open_regular
from .flags import MR_BASIC_MAP, MrMode

SECRET_BYTES_MIN = 16

# Values of WEFT_MR_MODE.
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
    "collective": MrMode.MR_COLLECTIVE,
    "basic": MR_BASIC_MAP,
    "scalable": MrMode.MR_UNSPEC,
}

MR_MODES_ON_REQUEST = tuple(mode for name, mode in _MR_MODES.items() if name not in ("basic", "scalable"))
"""Single mr_mode bits that the general provider can be told to require."""


class Secret(str):
    """A text that is not printed by accident: str() only says whether it is set, and `reveal()` returns it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "set, not shown" if self.reveal() else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def reveal(self) -> str:
        """The text."""
        return str.__add__(self, "")


# ---- values ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Instead(ValueError):
    """Raised for an invalid text that has a value all the same: `value` is used, and `str(error)` says why."""

    def __init__(self, value: Any, why: str) -> None:
        super().__init__(why)
        self.value = value


class Parser(Protocol[T_co]):
    """Makes a value of a text. `values` describes the valid texts; all others raise ValueError, with the reason."""

    @property
    def values(self) -> str: ...

    def __call__(self, text: str) -> T_co: ...


class Words:
    """One word of a list."""

    def __init__(self, *words: str, empty: bool = False) -> None:
        self.words = words
        self.values = ", ".join(words)
        self._empty = empty  # an empty text means that the variable is not set

    def __call__(self, text: str) -> str:
        if text not in self.words and not (self._empty and not text):
            raise ValueError(text)
        return text


class Switch:
    """0 or 1."""

    values = "0, 1"

    def __call__(self, text: str) -> bool:
        if text not in ("0", "1"):
            raise ValueError(text)
        return text == "1"


@dataclass(frozen=True)
class Text(Generic[T]):
    """Any text, or one that matches `pattern`, as a `kind`."""

    values: str
    kind: Callable[[str], T]
    pattern: str = r"(?s:.*)"

    def __call__(self, text: str) -> T:
        if not re.fullmatch(self.pattern, text):
            raise ValueError("does not match")
        return self.kind(text)


@dataclass(frozen=True)
class Whole:
    """A whole number from 0 to `most`."""

    values: str
    most: int

    def __call__(self, text: str) -> int:
        if not re.fullmatch("[0-9]+", text, re.ASCII) or int(text) > self.most:
            raise ValueError(text)
        return int(text)


@dataclass(frozen=True)
class Seconds:
    """Seconds from `least` to `most`, with a fraction or without."""

    values: str
    least: float
    most: float

    def __call__(self, text: str) -> float:
        seconds = float(text)
        if not self.least <= seconds <= self.most:  # also false for nan
            raise ValueError(text)
        return seconds


class MrModes:
    """Names of mr_mode bits, joined by "|" or ","."""

    values = ", ".join(_MR_MODES) + '; several joined by "|" or ","'

    def __call__(self, text: str) -> MrMode:
        mode = MrMode.MR_UNSPEC
        for word in text.lower().replace(",", "|").split("|"):
            if word.strip():
                if word.strip() not in _MR_MODES:
                    raise ValueError(word)
                mode |= _MR_MODES[word.strip()]
        return mode


# ---- variables -------------------------------------------------------------------------------------------------------

AT_NIC = "when the process first uses its NIC"
AT_HMEM = "when the first domain with HMEM is opened"


class Found(NamedTuple):
    """What was found of a variable: its value, "environment" or "default", and what was wrong with the text, or ""."""

    value: Any
    origin: str
    note: str = ""


@dataclass(frozen=True)
class Variable(Generic[T]):
    """A variable of the environment, and an attribute of the settings that has its value and the variable's name.

    Attributes:
        parse: Function that makes the value of the text; `parse.values` describes the valid texts.
        default: The value if the variable is not set.
        current: The default of later releases, if different.
        meaning: Purpose of the variable.
        effect: When a value takes effect, or what a value does in Weft if that is not its meaning. "": as documented.
        also: An older name, used if `name` is not set.
        only: The only release that knows the variable; "": all know it.
        name: Name in the environment: the attribute's.
    """

    parse: Parser[T]
    default: T
    meaning: str
    effect: str = ""
    current: T | None = None
    also: str = ""
    only: str = ""
    name: str = ""

    def __set_name__(self, owner: type[Environment], name: str) -> None:
        object.__setattr__(self, "name", name)

    @property
    def values(self) -> str:
        """A description of the valid texts."""
        return self.parse.values

    def default_of(self, release: str) -> T:
        """The default in a release."""
        return self.current if release == "current" and self.current is not None else self.default

    def read(self, environ: Mapping[str, str]) -> T:
        """The value. Raises InvalidArgument for an invalid text; the message lists the valid texts."""
        text = environ.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise errors.InvalidArgument(
                f"{self.name}={text!r} in the environment is not understood\n"
                f"  values: {self.values}\n"
                f"  try: unset {self.name}, or set it to one of these"
            ) from None

    def find(self, environ: Mapping[str, str], release: str) -> Found:
        """The value in a release. An invalid text is replaced, and the note says by what and why."""
        default = self.default_of(release)
        name = next((name for name in (self.name, self.also) if name and name in environ), None)
        if name is None or (self.only and self.only != release):
            return Found(default, "default")
        text = environ[name]
        try:
            return Found(self.parse(text), "environment")
        except Instead as why:
            return Found(why.value, "environment", f"{name}={text!r} {why}: {shown(why.value)} is used")
        except ValueError as why:
            return Found(default, "default", f"{name}={text!r} {why}: {shown(default)} is used")

    @overload
    def __get__(self, settings: None, owner: type[Environment]) -> Variable[T]: ...
    @overload
    def __get__(self, settings: Environment, owner: type[Environment]) -> T: ...
    def __get__(self, settings: Environment | None, owner: type[Environment]) -> Variable[T] | T:
        return self if settings is None else cast(T, settings.all[self.name].value)


class Environment:
    """Values of the variables that a subclass lists, read when it is made. `all`: name of a variable -> Found.

    Args:
        environ: The variables to read; None: the process's.
        release: Release whose defaults apply.
    """

    forgives: ClassVar[bool] = False
    """Invalid texts are replaced; otherwise they raise InvalidArgument."""

    def __init__(self, environ: Mapping[str, str] | None = None, release: str = "") -> None:
        environ = os.environ if environ is None else environ
        self.release = release
        self.all: dict[str, Found] = {
            v.name: v.find(environ, release)
            if self.forgives
            else Found(v.read(environ), "environment" if v.name in environ else "default")
            for v in self.variables(release)
        }
        self._depend()

    def _depend(self) -> None:
        """Apply rules between variables; for subclasses."""

    @property
    def values(self) -> dict[str, Any]:
        """The value of each variable, by its name."""
        return {name: found.value for name, found in self.all.items()}

    def instead(self, variable: Variable[T], value: T, why: str) -> None:
        """Replace a value and set the reason; if the default had replaced an invalid text, keep that reason."""
        was = self.all[variable.name]
        if was.origin == "environment":
            note = f"{variable.name}: {shown(was.value)} {why}: {shown(value)} is used"
        else:
            note = was.note.replace(f": {shown(was.value)} is used", f": {shown(value)} is used")
        self.all[variable.name] = Found(value, was.origin, note)

    @classmethod
    def variables(cls, release: str = "") -> list[Variable[Any]]:
        """The variables that a release knows; all of them for "". In the order of the list."""
        every = (v for v in vars(cls).values() if isinstance(v, Variable))
        return [v for v in every if not release or not v.only or v.only == release]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={f.value!r}' for name, f in self.all.items())})"


def shown(value: Any) -> str:
    """The text of a value for people."""
    if value is None or value == () or value == "":
        return "nothing"
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(value) if isinstance(value, tuple) else str(value)


class Settings(Environment):
    """The software NIC, the general provider and device memory."""

    WEFT_ENGINE = Variable(
        Words("thread", "manual"), "thread", "an engine thread, or progress only inside calls", AT_NIC
    )
    WEFT_ISOLATION = Variable(
        Words("shared", "strict"), "shared", "strict: no memory is shared, the owner serves every access", AT_NIC
    )
    WEFT_HUGE_PAGES = Variable(
        Switch(),
        True,
        "0: arrays have the pages that the kernel gives, also where it gives huge pages only to those who ask for each",
        AT_NIC,
    )
    WEFT_CMA = Variable(Switch(), True, "reach memory that Weft did not allocate by process_vm_readv", AT_NIC)
    WEFT_SHM = Variable(Switch(), True, "0: processes of this host reach each other by tcp, too", AT_NIC)
    WEFT_LISTEN = Variable(
        Text("tcp://host:port; port 0 selects a free port", str),
        "",
        "the address at which this process listens for other hosts",
        AT_NIC,
    )
    WEFT_ADVERTISE = Variable(
        Text("name, address; of this host", str),
        "",
        "the address for other hosts, if WEFT_LISTEN is a wildcard",
        AT_NIC,
    )
    WEFT_SECRET = Variable(
        Text(f"text; {SECRET_BYTES_MIN} bytes or more", Secret),
        Secret(),
        "the secret that hosts prove to each other; without a secret there is no tcp",
        AT_NIC,
    )
    WEFT_SECRET_FILE = Variable(
        Text("path; of a file with the secret, mode 0600", str),
        "",
        "a file with the secret, which only its owner may read",
        AT_NIC,
    )
    WEFT_TCP_TIMEOUT = Variable(
        Seconds("seconds; from 0.1 to 3600", 0.1, 3600.0), 5.0, "the time after which a dead host is noticed", AT_NIC
    )
    WEFT_TCP_ENCRYPTION = Variable(
        Words("auto", "on", "off"),
        "auto",
        "encryption of tcp; auto: except between loopback addresses. tcp is always authenticated",
        AT_NIC,
    )
    WEFT_TCP_LOG = Variable(
        Switch(), False, "report on stderr peers that the tcp link refused or lost, and why", AT_NIC
    )
    WEFT_TRACE = Variable(
        Text("path; of a folder", str),
        "",
        "the folder in which the NIC records what it does, in a file for each process; `weft trace` sets this variable",
        AT_NIC,
    )
    WEFT_TRACE_RECORDS = Variable(
        Whole("a whole number, at most 67108864", 1 << 26),
        1 << 18,
        "records of a trace, of 64 bytes each, rounded up to a power of two; then the newest replace the oldest",
        AT_NIC,
    )
    WEFT_TOP = Variable(Switch(), True, "0: `weft top` does not see this process", AT_NIC)
    WEFT_MR_MODE = Variable(
        MrModes(), MrMode.MR_UNSPEC, "mr_mode bits that the general provider requires", "at each getinfo"
    )
    WEFT_CXI_HOSTS = Variable(
        Text("nic=host:port, joined by commas", str),
        "",
        "the process (host and port) of each NIC address of a CXI fabric",
        "when a domain of the provider cxi is opened",
    )
    WEFT_CXI_REORDER: Variable[int | None] = Variable(
        Text("a whole number, the seed; unset: in the order posted", lambda text: int(text, 0) if text else None),
        None,
        "CXI endpoints execute operations that no rule orders in a random order, which the seed determines",
        "when an endpoint of the provider cxi is opened",
    )
    WEFT_LIBFABRIC = Variable(
        Text("path or name; of a libfabric 1.14 or later; off: none is used", str),
        "",
        "the real libfabric behind the providers ofi:...; unset: libfabric.so.1, or one of an MPI or NIXL wheel",
        "when a provider ofi:... is first asked for",
    )
    WEFT_CUDA_LIBRARY = Variable(
        Text("path; of libcuda.so.1", str), "", "CUDA's driver, if the loader does not find it by name", AT_HMEM
    )
    WEFT_ROCR_LIBRARY = Variable(
        Text("path; of libhsa-runtime64.so.1", str),
        "",
        "the HSA runtime of ROCm, if the loader does not find it by name",
        AT_HMEM,
    )
    WEFT_ZE_LIBRARY = Variable(
        Text("path; of libze_loader.so.1", str), "", "the loader of Level Zero, where it is not found by name", AT_HMEM
    )
    FI_HMEM_DISABLE_P2P = Variable(
        Switch(), False, "1: no process opens another's device memory; the owner copies", AT_HMEM
    )


class CacheSettings(Environment):
    """The registration cache. Source: fi_mr(3) "Memory registration cache"."""

    FI_MR_CACHE_MAX_SIZE: Variable[int | None] = Variable(
        Whole("bytes, a whole number", 2**64 - 2), None, "maximum bytes of all entries; unlimited if not set", AT_NIC
    )
    FI_MR_CACHE_MAX_COUNT = Variable(
        Whole("a whole number", 2**64 - 1),
        1024,  # libfabric's default
        "maximum number of entries; 0 turns caching off",
        AT_NIC,
    )
    FI_MR_CACHE_MONITOR = Variable(
        Words("userfaultfd", "uffd", "memhooks", "kdreg2", "disabled", empty=True),
        "",
        "the monitor of system memory; if not set, the best that works on this system",
        AT_NIC,
    )
    FI_MR_CUDA_CACHE_MONITOR_ENABLED = Variable(Switch(), True, "0: memory of CUDA devices is not cached", AT_NIC)
    FI_MR_ROCR_CACHE_MONITOR_ENABLED = Variable(Switch(), True, "0: memory of ROCm devices is not cached", AT_NIC)
    FI_MR_ZE_CACHE_MONITOR_ENABLED = Variable(Switch(), True, "0: memory of Level Zero devices is not cached", AT_NIC)


def variables() -> list[Variable[Any]]:
    """All variables that Weft reads."""
    return Settings.variables() + CacheSettings.variables()


def load() -> Settings:
    """Read the environment. Raises InvalidArgument for an invalid value; the message lists the valid values."""
    return Settings()


def load_cache() -> CacheSettings:
    """Read the registration cache's part of the environment. Raises as `load`."""
    return CacheSettings()


def secret(s: Settings) -> bytes | None:
    """The secret of WEFT_SECRET or WEFT_SECRET_FILE; None if neither is set.

    Raises InvalidArgument if both are set, if the secret is too short, or if the file cannot be read or other users can
    read it.
    """
    if s.WEFT_SECRET and s.WEFT_SECRET_FILE:
        raise errors.InvalidArgument("WEFT_SECRET and WEFT_SECRET_FILE are both set\n  try: unset one of them")
    if not s.WEFT_SECRET_FILE:
        found, where = s.WEFT_SECRET.reveal().encode(), "WEFT_SECRET"
    else:
        where = f"WEFT_SECRET_FILE={s.WEFT_SECRET_FILE}"
        try:
            with open(open_regular(s.WEFT_SECRET_FILE), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
                    raise errors.InvalidArgument(
                        f"{where}: mode {status.st_mode & 0o777:04o}, owner {status.st_uid}: other users have access\n"
                        f"  try: chmod 600 {s.WEFT_SECRET_FILE}"
                    )
                found = file.read(65536).rstrip(b"\r\n")
        except OSError as reason:
            if isinstance(reason, errors.FabricError):
                raise
            raise errors.InvalidArgument(f"{where}: {reason.strerror}") from None
    if not found and not s.WEFT_SECRET_FILE:
        return None
    check_secret(found, where)
    return found


def check_secret(secret: bytes, where: str) -> None:
    """Raises InvalidArgument for a secret that is too short, or of blanks."""
    if secret and not secret.strip(b" \t\r\n\v\f\0"):
        raise errors.InvalidArgument(
            f"{where}: the secret is blanks only, which anybody guesses\n"
            "  try: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    if len(secret) < SECRET_BYTES_MIN:
        raise errors.InvalidArgument(
            f"{where}: the secret has {len(secret)} bytes, {SECRET_BYTES_MIN} are needed at least\n"
            "  try: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
