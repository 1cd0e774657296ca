"""The network of C programs on one host: the secret, the listener, and libsodium without Python."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support
from tests.provider.far import Far, name_of

pytest.importorskip("nacl")

from weft import _sodium
from weft.policyhost import network

SECRET = "one secret of this host, long enough"
TALKED = "200 messages each way\nthe peer ended with 0\nclosed\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A program of the general provider that listens, with a policy helper of its own."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    more = {"WEFT_SECRET": SECRET, "WEFT_LISTEN": "tcp://127.0.0.1:0", "FI_LOG_LEVEL": "warn"}
    return support.environment("weft", XDG_RUNTIME_DIR=str(run)) | more


@pytest.fixture
def waiting(programs: Path, tmp_path: Path) -> Iterator[object]:
    """Starts programs that say their address and wait for a peer's."""
    made: list[Far] = []

    def start(env: dict[str, str]) -> Far:
        log = tmp_path / f"stderr {len(made)}"
        made.append(Far([str(support.compiled("far", programs)), "weft", "1", "ends"], env, log))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_program_that_listens_reaches_its_own_endpoints(programs: Path, env: dict[str, str]) -> None:
    """Their addresses have a host, which is this process itself."""
    program = support.compiled("msg", programs)
    alone = support.run(program, "weft", env={name: value for name, value in env.items() if "WEFT_L" not in name})
    assert support.run(program, "weft", env=env).stdout == alone.stdout
    assert alone.stdout.endswith("closed\n")
    addresses = support.run(support.compiled("addresses", programs), "weft", env=env).stdout
    assert "an endpoint of this process: here\n" in addresses


def test_processes_without_shared_memory_talk_over_tcp(programs: Path, env: dict[str, str]) -> None:
    done = support.run(support.compiled("peer", programs), "weft", "ends", env=env | {"WEFT_SHM": "0"})
    assert done.stdout == TALKED, done.stderr


def test_file_of_the_secret_is_the_programs_own(programs: Path, env: dict[str, str], tmp_path: Path) -> None:
    """The helper has another working directory."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    env = {**env, "WEFT_SECRET_FILE": "secret", "WEFT_SHM": "0"}
    del env["WEFT_SECRET"]
    program = support.compiled("peer", programs)
    done = patience.run([program, "weft", "ends"], support.PROGRAM_S, env=env, cwd=tmp_path)
    assert done.stdout == TALKED, done.stderr


def test_address_that_is_advertised_is_the_one_that_peers_get(env: dict[str, str], waiting) -> None:  # type: ignore[no-untyped-def]
    one = waiting(env | {"WEFT_LISTEN": "tcp://0.0.0.0:0", "WEFT_ADVERTISE": "10.1.2.3"})
    line = one.line()
    assert line.startswith("me "), one.said()
    assert name_of(line).startswith("weft://10.1.2.3:")


def test_secrets_stay_out_of_the_helper_that_programs_share(env: dict[str, str], waiting) -> None:  # type: ignore[no-untyped-def]
    for secret in (SECRET, SECRET + " and another"):
        one = waiting(env | {"WEFT_SECRET": secret})
        assert one.line().startswith("me "), one.said()
    (helper,) = support.helpers(Path(env["XDG_RUNTIME_DIR"]))
    environ = Path(f"/proc/{helper}/environ").read_bytes()
    assert b"WEFT_PYTHON=" in environ
    for text in (SECRET, "WEFT_SECRET", "WEFT_LISTEN"):
        assert text.encode() not in environ


# ---- libsodium -------------------------------------------------------------------------------------------------------


def test_copy_of_libsodium_is_made_by_many_at_once(tmp_path: Path) -> None:
    library = _sodium.library()
    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(lambda _: network._copy(library, tmp_path), range(32)))
    assert list(tmp_path.iterdir()) == list(made)
    (copy,) = made
    assert copy.read_bytes() == network.without_python(library.read_bytes())


def test_copy_follows_a_new_version_of_the_library(tmp_path: Path) -> None:
    library, folder = tmp_path / "library.so", tmp_path / "run"
    folder.mkdir()
    image = _sodium.library().read_bytes()
    library.write_bytes(image)
    first = network._copy(library, folder)
    library.write_bytes(image + b"\0")
    second = network._copy(library, folder)
    assert first != second
    assert second.read_bytes().endswith(b"\0")
    second.unlink()
    assert network._copy(library, folder) == second
    assert second.exists()


def test_copy_is_made_once(tmp_path: Path) -> None:
    """Programs have it loaded."""
    first = network._copy(_sodium.library(), tmp_path).stat()
    assert network._copy(_sodium.library(), tmp_path).stat().st_ino == first.st_ino


def test_copy_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    library, folder = tmp_path / "library.so", tmp_path / "run"
    folder.mkdir()
    library.write_bytes(b"no library")
    with pytest.raises(OSError, match="it is no ELF file"):
        network._copy(library, folder)
    assert not list(folder.iterdir())


@pytest.fixture
def noexec(env: dict[str, str]) -> list[str]:
    """A command that runs a program where the helper's folder holds no libraries that can be loaded."""
    mount = f'mount -t tmpfs -o noexec,mode=0700 none "{env["XDG_RUNTIME_DIR"]}" && exec "$@"'
    found = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or patience.run([*found, "true"], support.PROGRAM_S).returncode:
        pytest.skip("nothing can be mounted here")
    return found


def systems(folder: Path, image: bytes) -> dict[str, str]:
    """The loader finds this file as the system's libsodium."""
    folder.mkdir()
    for name in network._SYSTEMS:
        (folder / name).write_bytes(image)
    return {"LD_LIBRARY_PATH": f"{support.need_library(support.SYSTEM).parent}:{folder}"}


def test_systems_libsodium_serves_where_the_copy_cannot_be_loaded(
    programs: Path, env: dict[str, str], tmp_path: Path, noexec: list[str]
) -> None:
    env |= systems(tmp_path / "lib", network.without_python(_sodium.library().read_bytes())) | {"WEFT_SHM": "0"}
    program = str(support.compiled("peer", programs))
    done = support.run(noexec[0], *noexec[1:], program, "weft", "ends", env=env)
    assert done.stdout == TALKED, done.stderr


def test_program_without_any_libsodium_hears_what_to_do(
    programs: Path, env: dict[str, str], tmp_path: Path, noexec: list[str]
) -> None:
    env |= systems(tmp_path / "lib", b"no library")
    program = str(support.compiled("peer", programs))
    done = support.run(noexec[0], *noexec[1:], program, "weft", "ends", env=env, status=None)
    assert "fi_domain(fabric, info, &domain, NULL): -38" in done.stdout
    assert "no library here has its functions" in done.stderr
    assert "try: an XDG_RUNTIME_DIR from which libraries can be loaded (not noexec)" in done.stderr
