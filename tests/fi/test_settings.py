"""The environment: understood, or refused with the values that would be."""

from __future__ import annotations

import os

import pytest

from weft import fi, settings


def test_settings_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WEFT_", "FI_"))]:
        monkeypatch.delenv(name)
    found = settings.load()
    assert (found.engine, found.isolation, found.cma, found.shm) == ("thread", "shared", True, True)
    assert found.mr_mode == fi.MrMode.MR_UNSPEC
    assert (found.listen, str(found.secret), found.cuda_library, found.hmem_disable_p2p) == ("", "", "", False)


def test_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_ENGINE", "manual")
    monkeypatch.setenv("WEFT_ISOLATION", "strict")
    monkeypatch.setenv("WEFT_CMA", "0")
    monkeypatch.setenv("WEFT_CUDA_LIBRARY", "/opt/libcuda.so")
    monkeypatch.setenv("FI_HMEM_DISABLE_P2P", "1")
    monkeypatch.setenv("WEFT_MR_MODE", "prov_key | virt_addr, LOCAL")
    found = settings.load()
    assert (found.engine, found.isolation, found.cma) == ("manual", "strict", False)
    assert found.mr_mode == fi.MR_PROV_KEY | fi.MR_VIRT_ADDR | fi.MR_LOCAL
    assert (found.cuda_library, found.hmem_disable_p2p) == ("/opt/libcuda.so", True)


@pytest.mark.parametrize(
    ("name", "value", "values"),
    [
        ("WEFT_ENGINE", "fiber", "thread, manual"),
        ("WEFT_ISOLATION", "none", "shared, strict"),
        ("WEFT_CMA", "yes", "0, 1"),
        ("WEFT_MR_MODE", "prov_key|magic", "virt_addr"),
        ("FI_HMEM_DISABLE_P2P", "perhaps", "0, 1"),
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
