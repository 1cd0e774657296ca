"""Apply the seeded faults one at a time in a copy, and demand that a test notices each: `make mutants`.

usage: run.py [FAULTS] [--room ROOM] [--file PATH]     FAULTS: a sample of so many, drawn with WEFT_SEED; 0: all

Ends with 1 if a fault without a reason survives, if named tests fail without a fault, or if the list is rotten. A run
of tests that passes its time limit counts as noticed: a fault may make a test wait for ever. A fault that the compiler
refuses, or that keeps the tests from being collected, is no fault.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.listed import ROOT, Fault, load

_SECONDS = 240  # of one run of tests of Python
_COMPILED_SECONDS = 90  # of tests of C++, each of which takes seconds
_BUILD_SECONDS = 1800
_BUILD = ROOT / "build" / "faults"
# The parts of the tree that tests of Python read; the extension is linked, not copied.
_LINKED = ("docs", "examples", "README.md", "CHANGELOG.md", "Makefile", "CMakeLists.txt", "cpp", "bench", "LICENSE")


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process ends within the time. Orphans that end meanwhile are collected, as init would."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            one = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if one is not None and one.si_pid != process.pid:
                os.waitpid(one.si_pid, 0)
                continue
        time.sleep(0.02)
    return process.poll() is not None


def _end_orphans() -> None:
    """End what tests began in sessions of their own: our children, once the parents of these programs have ended."""
    ours = str(os.getpid())
    while True:
        children = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # ended meanwhile
                if stat.read_text().rpartition(")")[2].split()[1] == ours:
                    children.append(int(stat.parent.name))
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _run(command: Sequence[str | Path], where: Path, env: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Exit status (None: past the time limit) and the end of the output; nothing of the command is left running."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, cwd=where, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            status = process.returncode if _ended(process, seconds) else None
        finally:
            for how in (signal.SIGTERM, signal.SIGKILL):  # ninja passes on the first: compilers have their own groups
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
                    _ended(process, 5)
            process.wait()
            _end_orphans()
        out.seek(max(out.tell() - 3000, 0))
        return status, out.read().decode(errors="replace")


_PROVIDERS = Path("src") / "weft" / "policyhost" / "libfabric"  # the files that C programs load


class _Python:
    """A copy of the sources and tests of Python, with the extension of the tree, and its providers for C programs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "src" / "weft", self.root / "src" / "weft", ignore=skip)
        for extension in (ROOT / "src" / "weft").glob("*.so"):
            (self.root / "src" / "weft" / extension.name).symlink_to(extension)
        self.provide(ROOT / _PROVIDERS)
        shutil.copytree(ROOT / "tests", self.root / "tests", ignore=skip)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        for name in _LINKED:
            if (ROOT / name).exists():
                (self.root / name).symlink_to(ROOT / name)
        self._env = dict(os.environ, PYTHONPATH=str(self.root / "src"), PYTHONDONTWRITEBYTECODE="1")

    def provide(self, libraries: Path) -> None:
        """C programs load the libraries of this folder."""
        (self.root / _PROVIDERS).mkdir(exist_ok=True)
        for library in libraries.glob("lib*.so"):
            link = self.root / _PROVIDERS / library.name
            link.unlink(missing_ok=True)
            link.symlink_to(library)

    def build(self, names: Sequence[str]) -> str:
        return ""

    def tests(self, names: Sequence[str]) -> tuple[int | None, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *names]
        return _run(command, self.root, self._env, _SECONDS)


class _Compiled:
    """A copy of the C++ with a build folder, both kept from run to run: a fault costs one unit, and a link.

    Nothing is optimised.
    """

    def __init__(self) -> None:
        self.root = _BUILD / "tree"
        self.folder = _BUILD / "cpp"
        # A cache would store a fault's object under the text that is there when the compiler ends.
        self._env = dict(os.environ, CCACHE_DISABLE="1")
        for name in ("cpp", "tests/cpp"):
            self._mirror(name)
        _copy(ROOT / "CMakeLists.txt", self.root / "CMakeLists.txt")
        tools = Path(sys.prefix) / "bin"
        self._ninja = [tools / "ninja", "--quiet", "-C", self.folder]
        self._ninja += ["-j", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")]
        boost = Path(sysconfig.get_path("purelib")) / "cmeel.prefix" / "include"
        command = [tools / "cmake", "-S", self.root, "-B", self.folder, "-G", "Ninja", "-DWEFT_PYTHON=OFF"]
        command += ["-DWEFT_UNITY_TESTS=OFF"]  # a program has only the test files that a fault names
        command += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", f"-DPython_EXECUTABLE={sys.executable}"]
        command += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DWEFT_BOOST_INCLUDE={boost}"]
        status, text = _run(command, ROOT, self._env, _BUILD_SECONDS)
        if status != 0:
            sys.exit(text)
        cache = (self.folder / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
        (self._compiler,) = (one.partition("=")[2] for one in cache if one.startswith("CMAKE_CXX_COMPILER:"))

    def _mirror(self, name: str) -> None:
        """Copy files that differ, so that equal files keep their times and are not compiled again."""
        here, there = (
            {path.relative_to(root / name) for path in (root / name).rglob("*") if path.is_file()}
            for root in (ROOT, self.root)
        )
        for path in there - here:
            (self.root / name / path).unlink()
        for path in here:
            _copy(ROOT / name / path, self.root / name / path)

    def compile(self, *targets: str) -> str:
        """The words of the compiler; "" if the targets were built."""
        status, text = _run([*self._ninja, *targets], ROOT, self._env, _BUILD_SECONDS)
        return "" if status == 0 else text or "the build passed its time limit"

    def build(self, names: Sequence[str]) -> str:
        """The words of the compiler; "" if all was built."""
        objects = [f"CMakeFiles/weft_cpp_tests.dir/{file}.o" for file in ("tests/cpp/main.cpp", *sorted(_files(names)))]
        status, text = _run(
            [*self._ninja, "weft_host", "weft_call", "weft_ucp", *objects], ROOT, self._env, _BUILD_SECONDS
        )
        if status == 0:
            link = [self._compiler, "-pthread", "-rdynamic", "-o", "tests", *objects, "-Wl,--start-group"]
            link += [*sorted(one.name for one in self.folder.glob("libweft_*.a")), "-Wl,--end-group", "-ldl"]
            status, text = _run(link, self.folder, self._env, _BUILD_SECONDS)
        return "" if status == 0 else text or "the build passed its time limit"

    def tests(self, names: Sequence[str]) -> tuple[int | None, str]:
        cases = [name.partition("::")[2] or "*" for name in names]
        command = [self.folder / "tests", "--run_test=" + ":".join(cases), "--report_level=short"]
        return _run(command, self.root, self._env, _COMPILED_SECONDS)


class _Library:
    """The library that C programs load, of the copy of the C++, under a copy of Python's tests."""

    def __init__(self, compiled: _Compiled, folder: Path) -> None:
        self.root = compiled.root
        self._compiled, self._python = compiled, _Python(folder)

    def build(self, names: Sequence[str]) -> str:
        """The words of the compiler; "" if all was built."""
        refused = self._compiled.compile("weft_provider")
        self._python.provide(self._compiled.folder)
        return refused

    def tests(self, names: Sequence[str]) -> tuple[int | None, str]:
        return self._python.tests(names)


def _files(names: Sequence[str]) -> set[str]:
    return {name.partition("::")[0] for name in names}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != source.read_bytes():
        target.write_bytes(source.read_bytes())


def _outcome(fault: Fault, place: _Python | _Compiled | _Library) -> str:
    file = place.root / fault.file
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text(fault.seeded(text), encoding="utf-8")
        refused = place.build(fault.tests)
        if refused:
            return f"is refused by the compiler\n{refused}"
        status, output = place.tests(fault.tests)
    finally:
        file.write_text(text, encoding="utf-8")
    if status == 0:
        return "survived"
    if not isinstance(place, _Compiled) and (status in (3, 4, 5) or "during collection" in output):
        return f"keeps the tests from running\n{output}"
    return "noticed"


def main() -> int:
    parser = argparse.ArgumentParser(description="Apply the seeded faults, and demand that a test notices each.")
    parser.add_argument("faults", nargs="?", type=int, default=0, help="a sample of so many; 0: all")
    parser.add_argument("--room", help="only the faults of a room: the name of a list")
    parser.add_argument("--file", help="only the faults whose source file has this in its path")
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, for _end_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the tests that run, and removes the copy
    every = load()
    rotten = [words for fault in every if (words := fault.trouble())]
    if rotten:
        print(*rotten, sep="\n")
        return 1
    faults = [one for one in every if asked.room in (None, one.room) and (asked.file or "") in one.file]
    if 0 < asked.faults < len(faults):
        seed = int(os.environ.get("WEFT_SEED") or random.SystemRandom().randrange(2**32))
        print(f"a sample of {asked.faults} of {len(faults)} faults; again: WEFT_SEED={seed}", flush=True)
        faults = random.Random(seed).sample(faults, asked.faults)
    faults.sort(key=lambda one: (one.compiled, one.file if one.compiled else "", one.tests))
    with tempfile.TemporaryDirectory(prefix="weft-faults-") as folder:
        os.chmod(folder, 0o755)  # tests of another user read it
        return _all(faults, Path(folder))


def _all(faults: list[Fault], folder: Path) -> int:
    python: _Python | None = None
    compiled: _Compiled | None = None
    library: _Library | None = None
    sound: dict[tuple[str, ...], bool] = {}
    count: Counter[tuple[str, str]] = Counter()
    bad: list[str] = []
    for number, fault in enumerate(faults, 1):
        begun = time.monotonic()
        place: _Python | _Compiled | _Library
        if fault.compiled:
            compiled = compiled or _Compiled()
            place = compiled
            if fault.of_c_programs:
                place = library = library or _Library(compiled, folder / "library")
        else:
            place = python = python or _Python(folder / "python")
        if fault.tests not in sound:
            refused = place.build(fault.tests)
            status, output = (None, refused) if refused else place.tests(fault.tests)
            if status == 0 and not isinstance(place, _Compiled) and " passed" not in output:
                status, output = None, f"every test is skipped here\n{output}"
            sound[fault.tests] = status == 0
            if status != 0:
                bad.append(f"without any fault {' '.join(fault.tests)} fails:\n{output}")
        outcome = _outcome(fault, place) if sound[fault.tests] else "not tried: its tests fail without the fault"
        if outcome == "survived" and fault.survives:
            outcome = "survived with a reason"
        elif outcome != "noticed":
            bad.append(f"{fault} {outcome}\n  tests: {' '.join(fault.tests)}")
        count[fault.room, outcome if outcome in ("noticed", "survived with a reason") else "survived"] += 1
        print(
            f"[{number}/{len(faults)}] {outcome.splitlines()[0]}, {time.monotonic() - begun:.0f} s: {fault}", flush=True
        )
    print(f"\n{'room':<22}{'faults':>8}{'noticed':>9}{'reason':>8}{'survived':>10}")
    for room in [*sorted({one.room for one in faults}), "all"]:
        row = [
            sum(n for (where, how), n in count.items() if room in (where, "all") and how == column)
            for column in ("noticed", "survived with a reason", "survived")
        ]
        print(f"{room:<22}{sum(row):>8}{row[0]:>9}{row[1]:>8}{row[2]:>10}")
    print(*bad, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
