"""The environment: understood, or refused with the list of valid values."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from weft import _sodium, fi, settings


def test_settings_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WEFT_", "FI_"))]:
        monkeypatch.delenv(name)
    found = settings.load()
    assert (found.WEFT_ENGINE, found.WEFT_ISOLATION, found.WEFT_CMA, found.WEFT_SHM) == ("thread", "shared", True, True)
    assert found.WEFT_MR_MODE == fi.MrMode.MR_UNSPEC
    assert (found.WEFT_LISTEN, str(found.WEFT_SECRET), found.WEFT_CUDA_LIBRARY, found.FI_HMEM_DISABLE_P2P) == (
        "",
        "",
        "",
        False,
    )


def test_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_ENGINE", "manual")
    monkeypatch.setenv("WEFT_ISOLATION", "strict")
    monkeypatch.setenv("WEFT_CMA", "0")
    monkeypatch.setenv("WEFT_CUDA_LIBRARY", "/opt/libcuda.so")
    monkeypatch.setenv("FI_HMEM_DISABLE_P2P", "1")
    monkeypatch.setenv("WEFT_MR_MODE", "prov_key | virt_addr, LOCAL")
    found = settings.load()
    assert (found.WEFT_ENGINE, found.WEFT_ISOLATION, found.WEFT_CMA) == ("manual", "strict", False)
    assert found.WEFT_MR_MODE == fi.MR_PROV_KEY | fi.MR_VIRT_ADDR | fi.MR_LOCAL
    assert (found.WEFT_CUDA_LIBRARY, found.FI_HMEM_DISABLE_P2P) == ("/opt/libcuda.so", True)


@pytest.mark.parametrize(
    ("name", "value", "values"),
    [
        ("WEFT_ENGINE", "fiber", "thread, manual"),
        ("WEFT_ISOLATION", "none", "shared, strict"),
        ("WEFT_CMA", "yes", "0, 1"),
        ("WEFT_MR_MODE", "prov_key|magic", "virt_addr"),
        ("FI_HMEM_DISABLE_P2P", "perhaps", "0, 1"),
        ("WEFT_SHM", "no", "0, 1"),
        ("WEFT_TCP_TIMEOUT", "0", "seconds"),
        ("WEFT_TCP_LOG", "stderr", "0, 1"),
        ("WEFT_TCP_ENCRYPTION", "never", "auto, on, off"),
        ("WEFT_TCP_TIMEOUT", "nan", "seconds"),
        ("WEFT_ENGINE", "", "thread, manual"),
    ],
)
def test_settings_bad_value_names_the_values(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, values: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(fi.InvalidArgument) as caught:
        settings.load()
    assert f"{name}={value!r}" in str(caught.value)
    assert values in str(caught.value)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("WEFT_TRACE_RECORDS", ["0", "67108864"], ["67108865", "-1", "\u0663", "1.5", ""]),
        ("WEFT_TCP_TIMEOUT", ["0.1", "3600"], ["0.0999", "3600.1", "nan", "inf", ""]),
        ("FI_MR_CACHE_MAX_SIZE", ["0", str(2**64 - 2)], [str(2**64 - 1)]),
        ("FI_MR_CACHE_MAX_COUNT", ["0", str(2**64 - 1)], [str(2**64)]),
        ("FI_MR_CACHE_MONITOR", ["", "memhooks"], [" ", "none"]),
        ("WEFT_CMA", ["0", "1"], ["2", "01", ""]),
    ],
)
def test_settings_limit_is_a_value_and_the_next_one_is_not(
    monkeypatch: pytest.MonkeyPatch, name: str, good: list[str], bad: list[str]
) -> None:
    for text in good:
        monkeypatch.setenv(name, text)
        assert name in settings.load().values | settings.load_cache().values
    for text in bad:
        monkeypatch.setenv(name, text)
        read = settings.load_cache if name.startswith("FI_MR_CACHE") else settings.load
        with pytest.raises(fi.InvalidArgument, match=name):
            read()


def test_secret_is_read_from_one_place_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WEFT_SECRET", "WEFT_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert settings.secret(settings.load()) is None
    text = "a long and secret text"
    monkeypatch.setenv("WEFT_SECRET", text)
    found = settings.load()
    assert settings.secret(found) == text.encode()
    assert text not in f"{found} {found!r} {found.WEFT_SECRET}"
    file = tmp_path / "secret"
    file.write_text(text + "\n")
    file.chmod(0o600)
    monkeypatch.setenv("WEFT_SECRET_FILE", str(file))
    with pytest.raises(fi.InvalidArgument, match="both set"):
        settings.secret(settings.load())
    monkeypatch.delenv("WEFT_SECRET")
    assert settings.secret(settings.load()) == text.encode()


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [(0o640, "a long and secret text", "chmod 600"), (0o600, "short", "16 are needed"), (0o600, "", "16 are needed")],
)
def test_secret_that_others_can_read_or_guess_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, text: str, said: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(mode)
    monkeypatch.delenv("WEFT_SECRET", raising=False)
    monkeypatch.setenv("WEFT_SECRET_FILE", str(file))
    with pytest.raises(fi.InvalidArgument, match=said):
        settings.secret(settings.load())
    monkeypatch.setenv("WEFT_SECRET_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(fi.InvalidArgument, match="No such file"):
        settings.secret(settings.load())


def test_settings_list_is_what_the_environment_gives() -> None:
    """Every variable of the list is read, once, and an attribute of the settings has its value."""
    known = settings.variables()
    assert len({v.name for v in known}) == len(known)
    values = settings.load().values | settings.load_cache().values
    assert list(values) == [v.name for v in known]
    assert settings.Settings.WEFT_ENGINE.name == "WEFT_ENGINE"
    assert values["WEFT_ENGINE"] == settings.load().WEFT_ENGINE


def test_settings_variable_says_what_it_is_for() -> None:
    for v in settings.variables():
        assert v.values, v.name
        assert v.meaning, v.name
        assert v.effect, v.name


def test_secret_without_pynacl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl.bindings", None)  # as where it is not installed
    with pytest.raises(fi.NoSys, match=r"PyNaCl 1.6 or newer(.|\n)*pip install 'pynacl>=1.6'"):
        _sodium.functions()


def test_secret_becomes_the_key_that_argon2id_makes_of_it() -> None:
    key = _sodium.key_of(b"correct horse battery staple")
    assert len(key) == 32
    assert key == _sodium.key_of(b"correct horse battery staple")
    assert key != _sodium.key_of(b"correct horse battery stapler")


@pytest.mark.parametrize("blank", [" " * 40, "\t" * 40, " \n" * 20])
def test_secret_of_blanks_is_refused(blank: str) -> None:
    """Long enough, and known to everybody."""
    with pytest.raises(fi.InvalidArgument, match="blanks only"):
        settings.check_secret(blank.encode(), "WEFT_SECRET")
