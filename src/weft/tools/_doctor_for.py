"""`weft doctor --for CLIENT`: whether a client of libfabric chooses Weft's provider in this environment, and why not.

Each answer comes from a test: the client's library is loaded, its libfabric is asked for Weft's providers, the policy
for offers to the client's hints, and the client is started, in this environment and, if it takes no provider of Weft
there, in the one that `weft run` makes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ..policyhost import captured
from . import _client_trial as trial
from ._info_for import sets
from ._machine import Check, checks
from ._text import UsageError, console, plain_table
from .doctor import MARKS
from .run import environment, folder, providers, variables

_NOW = "as it is here"
_OURS = 9000  # major version of Weft's providers: a real provider of the name has a smaller one
_MACHINE = ("memfd", "process_vm_readv (CMA)", "ptrace scope", "descriptors", "memlock")


def doctor_for(name: str, as_json: bool) -> int:
    """The command; its exit status: 0 if the client chooses Weft's provider, and nothing is bad. Raises UsageError."""
    if name not in trial.KINDS:
        raise UsageError(f"--for: {name!r} is unknown\n  known: {', '.join(trial.KINDS)}")
    doctor = _Doctor(name)
    found = list(doctor.checks())
    ok = all(one.state != "bad" for one in found)
    if as_json:
        said = {"client": name, "provider": doctor.provider, "ok": ok, "checks": [asdict(one) for one in found]}
        print(json.dumps(said, indent=1))
        return 0 if ok else 1
    _print(found, doctor.title)
    if ok:
        print(f"{doctor.title} chooses {doctor.provider} here.")
        return 0
    chosen = any(one.name == _NOW and one.state == "ok" for one in found)
    text = f"chooses {doctor.provider} here, and will fail" if chosen else f"does not choose {doctor.provider} here"
    print(f"weft doctor: {doctor.title} {text}", file=sys.stderr)
    return 1


class _Doctor:
    def __init__(self, name: str) -> None:
        self.name, self.kind, self.client = name, trial.KINDS[name], captured.CLIENTS[name]
        try:
            slingshot, *others = providers()
        except UsageError:  # the first check says so
            slingshot, others = "Weft's provider", []
        asked = os.environ.get("FI_PROVIDER", "")
        # NIXL looks for the Slingshot alone, and writes with remote data.
        self.provider = asked if asked in others and name != "nixl" else slingshot
        self.more = {"WEFT_CXI_RELEASE": "current", "FI_CXI_ENABLE_WRITEDATA": "1"} if name == "nixl" else {}
        self.title = self.kind.label
        self.command = " ".join([*(f"{word}={value}" for word, value in self.more.items()), "weft run"])
        self.remedy = f"{self.command} -p {self.provider} -- PROGRAM"

    def checks(self) -> Iterator[Check]:
        """All checks; the later ones are left out where an earlier one is bad for them."""
        try:
            files = folder()
        except UsageError as none:
            found, _, todo = str(none).removeprefix("run: ").partition("\n  try: ")
            yield Check("Weft", "provider files", "bad", found, "libfabric has nothing to load", todo)
            return
        yield Check("Weft", "provider files", "ok", str(files))
        library, version, looked = trial.find(self.kind)
        if not library:
            found = f"no {self.kind.library} of {self.title}; looked at {', '.join(looked) or 'no file'}"
            todo = f"pip install {self.kind.wheels[0]}, into the environment of weft"
            if self.name != "nixl":
                todo += ", or its folder in LD_LIBRARY_PATH"
            yield Check("client", "library", "bad", found, "nothing can be started", todo)
            return
        yield Check("client", "library", "ok", f"{version}: {library}")
        now = run = trial.start(self.kind, library, os.environ)
        if now.provider != self.provider:
            run = trial.start(self.kind, library, {**os.environ, **environment(self.provider), **self.more})
        yield from self._libfabric(now.libfabric or run.libfabric or _beside(library), files)
        yield from self._hints()
        yield from self._variables()
        if self.name == "nixl":
            yield self._with_data()
        yield from _machine()
        yield from self._started(now, run)

    # ---- libfabric ---------------------------------------------------------------------------------------------------

    def _libfabric(self, path: str, files: Path) -> Iterator[Check]:
        version = trial.libfabric_version(path)
        if version is None:
            yield Check("client", "libfabric", "bad", f"{path} cannot be loaded", "no program of libfabric can start",
                        "apt install libfabric1, or I_MPI_OFI_LIBRARY or LD_LIBRARY_PATH with its place")  # fmt: skip
            return
        found = f"{version[0]}.{version[1]}: {path}"
        if version < self.kind.oldest:
            need = ".".join(map(str, self.kind.oldest))
            yield Check("client", "libfabric", "bad", found, f"{self.title} needs {need} or later",
                        f"put a folder with a libfabric.so.1 of {need} or later first in LD_LIBRARY_PATH")  # fmt: skip
            return
        yield Check("client", "libfabric", "ok", found)
        yield self._loaded(path, files)

    def _loaded(self, libfabric: str, files: Path) -> Check:
        """Whether this libfabric has Weft's provider; where it has not, which variable keeps it from that."""
        name = f"provider {self.provider}"
        has = trial.offered(libfabric, os.environ)
        if has.get(self.provider, (0, 0))[0] >= _OURS:
            said = ", ".join(f"{one} {major}.{minor}" for one, (major, minor) in has.items())
            return Check("libfabric", name, "ok", f"this libfabric has {said}")
        found = f"this libfabric has no {self.provider}"
        if self.provider in has:
            found = (
                f"this libfabric has another {self.provider}, version {has[self.provider][0]}.{has[self.provider][1]}"
            )
        env, changed = dict(os.environ), []
        path = env.get("FI_PROVIDER_PATH", "")
        for variable, value, wrong in (
            ("FI_PROVIDER_PATH", ":".join(filter(None, (str(files), path))), str(files) not in path.split(":")),
            ("FI_PROVIDER", self.provider, env.get("FI_PROVIDER", self.provider) != self.provider),
            ("WEFT_PYTHON", sys.executable, env.get("WEFT_PYTHON") != sys.executable),  # of the policy helper
        ):
            if wrong:
                changed.append(f"{variable} is {env.get(variable) or 'not set'}")
                env[variable] = value
                if trial.offered(libfabric, env).get(self.provider, (0, 0))[0] >= _OURS:
                    effect = (
                        f"{'; '.join(changed)}; set as weft run sets {'them' if changed[1:] else 'it'}, it is there"
                    )
                    return Check("libfabric", name, "bad", found, effect, self.remedy)
        todo = f"FI_LOG_LEVEL=warn {self.command} -p {self.provider} -- fi_info -p {self.provider}"
        return Check("libfabric", name, "bad", found, "nor with the variables that weft run sets", todo)

    def _variables(self) -> Iterator[Check]:
        """The client's own variables, each beside the value that `weft run` gives it."""
        for one in variables(self.provider):
            if not one.effect.startswith(f"{self.kind.label}:"):
                continue
            value = os.environ.get(one.name)
            effect = one.effect.partition(": ")[2]
            if value == one.value:
                yield Check("environment", one.name, "ok", value, effect)
            elif not value:
                yield Check("environment", one.name, "note", f"not set; weft run sets {one.value}", effect)
            else:
                todo = f"unset {one.name}: weft run leaves your value" if one.kept else ""
                yield Check("environment", one.name, "note", f"{value}; weft run sets {one.value}", effect, todo)

    # ---- policy ------------------------------------------------------------------------------------------------------

    def _hints(self) -> Iterator[Check]:
        """Whether the hints that the client is known to ask with get an offer of the provider."""
        mine = [one for one in sets(self.client) if any(each.provider == self.provider for each in one.answers)]
        for one in mine:
            answer = next(each for each in one.answers if each.provider == self.provider)
            if not answer.offers:
                why = "; ".join(str(each) for each in answer.rejections) or " ".join(answer.why.split())
                yield Check(
                    "libfabric", "its hints", "bad", f"{one.use}: no offer", why, f"weft info --for {self.name}"
                )
                return
        yield Check("libfabric", "its hints", "ok", f"{len(mine)} sets, as {self.client.name} asks, get offers")

    def _with_data(self) -> Check:
        if trial.with_data(self.provider, os.environ):
            return Check("environment", "writes with data", "ok", f"endpoints of {self.provider} take them")
        return Check(
            "environment", "writes with data", "bad", f"endpoints of {self.provider} refuse them with EBADFLAGS",
            "NIXL's first write fails, as on hardware without the option", self.remedy,
        )  # fmt: skip

    # ---- the client --------------------------------------------------------------------------------------------------

    def _started(self, now: trial.Trial, run: trial.Trial) -> Iterator[Check]:
        works = f"it has endpoints of {self.provider}"
        if now.provider == self.provider:
            yield Check("started", _NOW, "ok", works)
            return
        better = run.provider == self.provider
        yield Check("started", _NOW, "bad", _told(now), now.refused, self.remedy if better else "")
        if better:
            yield Check("started", "under weft run", "ok", works)
        else:
            todo = _remedy(run) or f"{self.command} --explain -p {self.provider} -- PROGRAM"
            yield Check("started", "under weft run", "bad", _told(run), run.refused, todo)


def _beside(library: str) -> str:
    """The libfabric in the folder of a client's library, or below; else the one that the loader finds."""
    place = Path(library).parent
    return str(next((one for one in sorted(place.glob("*/libfabric.so.1"))), "libfabric.so.1"))


def _told(one: trial.Trial) -> str:
    if one.provider:
        return f"it has endpoints of {one.provider}"
    if not one.started:
        return f"it did not start: {one.output[-1] if one.output else 'it said nothing'}"
    return f"it chose {one.chosen}" if one.chosen else "it has no endpoint of Weft"


def _remedy(one: trial.Trial) -> str:
    """The remedy for a library that the loader did not find, or that has no libfabric in it; "" for others."""
    if one.chosen == "UCX" and os.environ.get("MPIR_CVAR_CH4_NETMOD", "ofi") == "ofi":
        return "pip install mpich: this library is built for UCX alone, as Debian's and Ubuntu's are"
    found = re.search(r"(lib\S+\.so[.\d]*): cannot open shared object file", one.output[-1] if one.output else "")
    if found is None:
        return ""
    stub = " (without a GPU a stub of it will do)" if found[1].startswith("libcuda") else ""
    return f"install {found[1]}{stub}, or name its folder in LD_LIBRARY_PATH"


def _machine() -> Iterator[Check]:
    for one in checks(("sharing memory", "reaching other memory", "limits")):
        if one.name in _MACHINE and (one.state != "ok" or one.name == _MACHINE[1]):
            yield Check("machine", one.name, one.state, one.found, one.effect, one.todo)
    if not os.path.exists("/proc/self/stat"):
        yield Check(
            "machine", "/proc", "note", "not mounted",
            "weft top and weft doctor see no processes; refusals give pids without names", "mount it in the container",
        )  # fmt: skip


def _print(found: list[Check], title: str) -> None:
    from rich.text import Text

    table = plain_table(f"{title} on Weft's NIC", "", "", "", "found", "which means")
    last = ""
    for one in found:
        if last and one.group != last:
            table.add_section()
        table.add_row("" if one.group == last else one.group, one.name, Text(*MARKS[one.state]), one.found, one.effect)
        last = one.group
    out = console()
    out.print(table)
    for todo in dict.fromkeys(one.todo for one in found if one.todo):
        why = "\n".join(f"{one.name}: {one.found}" for one in found if one.todo == todo)
        out.print(Text(f"{why}\n  try: {todo}", style="yellow"))
