"""`weft doctor --for CLIENT`: the client is started, its choice seen; what is wrong is named, with the remedy."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.provider import clients, support, test_nixl

from weft.tools import _client_trial, _doctor_for

pytestmark = pytest.mark.procs

WEFT = [sys.executable, "-m", "weft.tools.cli"]
LIMIT_S = 200.0
MPI = {"mpich": clients.MPICH, "openmpi": clients.OPEN_MPI, "impi": clients.INTEL_MPI}


def environment(client: str, provider: str | None) -> dict[str, str]:
    """As a user has it who has installed the client; with a provider, under `weft run`."""
    mpi = MPI[client]
    mpi.need()
    support.provider_files()
    found = mpi.environment(provider) if provider else clients.own_environment() | mpi.more
    return found | {
        "PATH": f"{mpi.prefix / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(mpi.prefix / "lib"),
    }


def doctor(client: str, env: dict[str, str], verdict: str = "") -> tuple[int, dict[str, Any]]:
    """The exit status, and what the command says with --json; verdict: what it says at the end without."""
    if verdict:
        told = patience.run([*WEFT, "doctor", "--for", client], LIMIT_S, env=env)
        assert verdict in told.stdout + told.stderr
    done = patience.run([*WEFT, "doctor", "--for", client, "--json"], LIMIT_S, env=env)
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    said["checks"] = {one["name"]: one for one in said["checks"]}
    return done.returncode, said


@pytest.mark.parametrize("client", MPI)
def test_client_under_weft_run_chooses_the_provider(client: str, provider: str) -> None:
    code, said = doctor(client, environment(client, provider))
    assert (code, said["ok"], said["provider"]) == (0, True, provider), said
    checks = said["checks"]
    assert checks["as it is here"]["found"] == f"it has endpoints of {provider}"
    assert f"{provider} 9" in checks[f"provider {provider}"]["found"]
    assert "under weft run" not in checks
    assert {one["state"] for one in checks.values() if one["group"] == "environment"} == {"ok"}


@pytest.mark.parametrize("client", MPI)
def test_client_without_the_variables_is_told_which_and_the_remedy_is_tried(client: str) -> None:
    code, said = doctor(client, environment(client, None))
    assert (code, said["ok"]) == (1, False)
    checks = said["checks"]
    assert "FI_PROVIDER_PATH is not set" in checks["provider cxi"]["effect"]
    assert checks["provider cxi"]["todo"] == "weft run -p cxi -- PROGRAM"
    assert checks["as it is here"]["state"] == "bad"
    assert checks["under weft run"]["state"] == "ok"
    assert checks["its hints"]["state"] == "ok"


def test_variable_of_the_user_that_weft_run_leaves_is_named() -> None:
    env = environment("mpich", None) | {"MPIR_CVAR_CH4_NETMOD": "ucx"}
    _, said = doctor("mpich", env)
    checks = said["checks"]
    assert checks["under weft run"]["state"] == "bad"
    assert checks["under weft run"]["found"] == "it chose UCX"
    assert checks["MPIR_CVAR_CH4_NETMOD"]["todo"].startswith("unset MPIR_CVAR_CH4_NETMOD")


def test_mpich_under_debians_name_is_found(tmp_path: Path) -> None:
    env = environment("mpich", "weft")
    (tmp_path / "mpich").symlink_to(clients.MPICH.prefix / "lib" / "mpich")  # the library looks there for the others
    shutil.copy(clients.MPICH.prefix / "lib" / "libmpi.so.12", tmp_path / "libmpich.so.12")
    code, said = doctor("mpich", env | {"LD_LIBRARY_PATH": str(tmp_path)})
    assert said["checks"]["library"]["found"].endswith(str(tmp_path / "libmpich.so.12"))
    assert (code, said["checks"]["as it is here"]["found"]) == (0, "it has endpoints of weft")


def test_mpich_without_libfabric_in_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's and Ubuntu's takes UCX whatever MPIR_CVAR_CH4_NETMOD says; a user's own setting is another reason."""
    told = _client_trial.Trial(started=True, chosen="UCX")
    monkeypatch.delenv("MPIR_CVAR_CH4_NETMOD", raising=False)
    assert _doctor_for._remedy(told).startswith("pip install mpich")
    monkeypatch.setenv("MPIR_CVAR_CH4_NETMOD", "ucx")
    assert _doctor_for._remedy(told) == ""


def test_provider_that_fi_provider_leaves_out_is_found_to_be_left_out() -> None:
    env = environment("mpich", "cxi") | {"FI_PROVIDER": "tcp"}
    code, said = doctor("mpich", env)
    assert code == 1
    assert "FI_PROVIDER is tcp" in said["checks"]["provider cxi"]["effect"]
    assert said["checks"]["as it is here"]["state"] == "bad"


def test_policy_helper_without_an_interpreter_is_noticed(tmp_path: Path) -> None:
    """In a folder of its own, where no helper of another program runs."""
    env = environment("mpich", "cxi") | {"WEFT_PYTHON": "/nowhere/python", "XDG_RUNTIME_DIR": str(tmp_path)}
    code, said = doctor("mpich", env)
    assert code == 1
    assert "WEFT_PYTHON is /nowhere/python" in said["checks"]["provider cxi"]["effect"]


def test_nixl_under_weft_run_chooses_cxi(tmp_path: Path) -> None:
    code, said = doctor("nixl", test_nixl.environment(tmp_path, **test_nixl.WITH_DATA))
    assert (code, said["ok"]) == (0, True), said
    assert said["checks"]["writes with data"]["state"] == "ok"


def test_nixl_without_writes_with_data_is_told_before_its_first_write_fails(tmp_path: Path) -> None:
    code, said = doctor("nixl", test_nixl.environment(tmp_path), "NIXL chooses cxi here, and will fail")
    assert code == 1
    checks = said["checks"]
    assert checks["as it is here"]["state"] == "ok"
    assert checks["writes with data"]["state"] == "bad"
    assert checks["writes with data"]["todo"].startswith("WEFT_CXI_RELEASE=current FI_CXI_ENABLE_WRITEDATA=1 weft run")


def test_library_that_nixl_lacks_is_named(tmp_path: Path) -> None:
    env = test_nixl.environment(tmp_path, **test_nixl.WITH_DATA)
    (tmp_path / "stubs" / "libcudart.so.12").unlink()
    code, said = doctor("nixl", env)
    assert code == 1
    assert said["checks"]["under weft run"]["todo"].startswith("install libcudart.so.12 (without a GPU a stub")


def test_client_that_is_not_there_is_said_to_be_missing() -> None:
    support.provider_files()
    env = clients.own_environment()
    env.pop("PYTHONPATH", None)
    done = patience.run([*WEFT, "doctor", "--for", "nixl"], LIMIT_S, env=env | {"COLUMNS": "72"})
    assert done.returncode == 1
    assert "try: pip install nixl-cu12" in done.stdout
    assert "weft doctor: NIXL does not choose cxi here" in done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 72


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--for", "charm"], "known: mpich, openmpi, nixl, impi"),
        (["--for", "mpich", "--cxi"], "--for goes with --json alone"),
        (["--for", "mpich", "--watch"], "--for goes with --json alone"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], text: str) -> None:
    done = patience.run([*WEFT, "doctor", *arguments], LIMIT_S)
    assert done.returncode == 2
    assert text in done.stderr
