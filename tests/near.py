"""Print the arguments of pytest for the tests near the files that differ from a commit (default: the last one).

    python tests/near.py [COMMIT]

A test file is near itself. src/weft/<area>/<object>.py is near tests/<area>/test_<object>*.py; a file without such
tests is near its whole area. C++ is near the tests that drive its room, beside the C++ tests, which run in any case.
A page is near the tests that run its blocks. The build, errors and flags are near the smoke tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# The areas whose tests drive a room of C++.
ROOMS = {
    "array": ("share",),
    "provider": ("provider",),
    "base": ("fi/test_rma.py",),
    "bind": ("fi/test_rma.py", "fi/test_msg.py", "fi/test_atomic.py", "fi/test_handle.py", "share/test_elements.py"),
    "call": ("fi/test_rma_refused.py", "fi/test_msg_refused.py", "fi/test_atomic.py"),
    "host": ("fi/test_fabric.py", "procs/test_close.py"),
    "link": ("procs/test_close.py", "procs/test_hosts.py", "fi/test_rma.py"),
    "mem": ("memory", "fi/test_mr.py", "fi/test_mr_cache.py"),
    "nic": ("fi/test_rma.py", "fi/test_msg.py", "fi/test_atomic.py", "fi/test_cq.py", "fi/test_collective_local.py"),
    "ofi": ("ofi",),
    "ring": ("procs/test_close.py", "fi/test_msg.py"),
    "sync": ("share/test_coordination.py", "procs/test_coordination.py"),
    "ucp": ("ucp",),
    "wire": ("fi/test_rma.py", "cxi/test_addresses.py"),
}
BIND = {"ofi": ("ofi",), "ucp": ("ucp",), "elements": ("share",), "sync": ROOMS["sync"]}
SMOKE = ("fi/test_rma.py", "share/test_remote.py", "meta/test_light_import.py", "meta/test_packaging.py")
ALWAYS = ("meta/test_imports.py", "meta/test_file_length.py")


def changed(since: str) -> list[str]:
    """Files that differ from a commit, and files that git does not know yet."""
    git = ["git", "-C", str(ROOT)]
    tracked = subprocess.run([*git, "diff", "--name-only", since, "--"], capture_output=True, text=True, check=True)
    new = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    return sorted({*tracked.stdout.split(), *new.stdout.split()})


def near(path: str, tests: Path = TESTS) -> set[str]:
    """Paths of tests, relative to `tests`, that are near a file."""
    parts = Path(path).parts
    name = Path(path).stem.lstrip("_")
    if parts[0] == "tests":
        return _near_test(parts, tests)
    if parts[0] == "cpp" and len(parts) > 2:
        if parts[1] == "bind":
            by_name = _of_object(name, tests)
            return by_name or set(BIND.get(name.split("_")[0], ROOMS["bind"]))
        return set(ROOMS.get(parts[1], SMOKE))
    if parts[:2] == ("src", "weft") and len(parts) > 3:
        area = parts[-2]
        if not (tests / area).is_dir():
            area = next((part for part in reversed(parts[2:-1]) if (tests / part).is_dir()), "")
        if not area:
            return set(SMOKE)
        return _of_object(name, tests / area, area) or {area}
    if path == "README.md":
        return {"meta/test_readme.py", "meta/test_packaging.py"}
    if parts[0] == "docs" or path.endswith(".md"):
        return {"meta/test_docs.py"}
    if parts[0] == "examples":
        return {"examples"}
    return set(SMOKE)


def _near_test(parts: tuple[str, ...], tests: Path) -> set[str]:
    inside = Path(*parts[1:])
    if inside.suffix == ".py" and inside.name.startswith("test_"):
        return {str(inside)} if (tests / inside).exists() else set()
    if len(parts) < 3 or parts[1] in ("cpp", "fuzz"):  # the C++ tests run in any case
        return set()
    return {parts[1]}  # a helper of an area


def _of_object(name: str, folder: Path, area: str = "") -> set[str]:
    """Test files named after an object: test_<name>.py and test_<name>_*.py."""
    where = folder if area else folder / "fi"
    found = [*where.glob(f"test_{name}.py"), *where.glob(f"test_{name}_*.py")] if where.is_dir() else []
    return {f"{area or 'fi'}/{file.name}" for file in found}


def main() -> int:
    files = changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD")
    if not files:
        return 0
    wanted = {one for file in files for one in near(file)} | set(ALWAYS)
    # A folder stands for its files.
    kept = sorted(one for one in wanted if not any(one.startswith(f"{other}/") for other in wanted))
    there = [f"tests/{one}" for one in kept if (TESTS / one).exists()]
    print(f"weft: {len(files)} changed, near: {' '.join(there)}", file=sys.stderr)
    print(" ".join(there))
    return 0


if __name__ == "__main__":
    sys.exit(main())
