"""getinfo over a real libfabric: names, order, hints, and when the library is loaded."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.ofi.support import hints, offer, open_node

from weft import fi


def run(code: str, **env: str) -> str:
    """Standard output of a fresh interpreter."""
    done = patience.run([sys.executable, "-c", code], env={**os.environ, **env}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_library_comes_after_wefts_providers() -> None:
    names = [info.fabric_attr.prov_name for info in fi.getinfo()]
    first = next(i for i, name in enumerate(names) if name.startswith("ofi:"))
    assert names[0] == "weft"
    assert first > 0
    assert all(name.startswith("ofi:") for name in names[first:])


def test_name_selects_one_provider(provider: str) -> None:
    assert {info.fabric_attr.prov_name.partition(";")[0] for info in fi.getinfo(hints=hints(provider))} == {provider}


def test_ofi_selects_all_of_the_library() -> None:
    found = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="ofi")))
    assert len({info.fabric_attr.prov_name for info in found}) > 1
    assert all(info.fabric_attr.prov_name.startswith("ofi:") for info in found)


def test_hints_reach_the_library(provider: str) -> None:
    with pytest.raises(fi.NoData, match="offers nothing"):
        fi.getinfo(hints=fi.Info(caps=fi.MULTICAST | fi.XPU, fabric_attr=fi.FabricAttr(prov_name=provider)))


def test_wefts_best_offer_stays() -> None:
    assert fi.getinfo(hints=fi.Info(caps=fi.RMA | fi.ATOMIC))[0].fabric_attr.prov_name == "weft"


def test_requests_that_weft_meets_do_not_load_the_library() -> None:
    code = "from weft import fi, _nic; fi.getinfo(hints=fi.Info(caps=fi.RMA)); fi.getinfo(node='weft0'); "
    assert run(code + "print(_nic.ofi_library())").strip() == "None"


def test_info_is_an_info(provider: str) -> None:
    info = offer(provider)
    assert isinstance(info, fi.Info)
    assert isinstance(fi.dupinfo(info), fi.Info)
    assert info.ep_attr.type == fi.EP_RDM
    assert repr(info).startswith("Info\n")
    assert "native" not in repr(info)


def test_unknown_provider_of_the_library() -> None:
    with pytest.raises(fi.NoData, match="ofi:nonesuch"):
        fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="ofi:nonesuch")))


@pytest.mark.no_library
def test_missing_library_is_named() -> None:
    code = """
from weft import fi
try:
    fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="ofi:tcp")))
except fi.NoDevice as e:
    print(e)
names = {i.fabric_attr.prov_name for i in fi.getinfo()}
print(sorted(names))
"""
    out = run(code, WEFT_LIBFABRIC="/nonexistent/libfabric.so.1")
    assert "no libfabric can be used here" in out
    assert "/nonexistent/libfabric.so.1" in out
    assert "apt install" in out
    assert "'weft'" in out
    assert "ofi:" not in out.splitlines()[-1]


@pytest.mark.no_library
def test_library_of_an_installed_wheel_is_found_where_the_loader_has_none(tmp_path: Path) -> None:
    if not any(file.name == "libfabric.so.1" for file in files_of("mpich")):
        pytest.skip("the wheel of MPICH is not installed, or carries no libfabric here")
    (tmp_path / "libfabric.so.1").write_bytes(b"no library")
    code = """
from weft import fi
print(fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="ofi:tcp")))[0].fabric_attr.prov_name)
from weft.providers.ofi import library
print(library.version_text())
"""
    env = {"LD_LIBRARY_PATH": str(tmp_path), "WEFT_LIBFABRIC": ""}
    first, second = run(code, **env).splitlines()
    assert first.startswith("ofi:tcp")
    assert "mpich" in second


def files_of(distribution: str) -> list[importlib.metadata.PackagePath]:
    try:
        return importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []


@pytest.mark.no_library
def test_off_means_off() -> None:
    code = """
from weft import fi, _nic
print(any(i.fabric_attr.prov_name.startswith("ofi") for i in fi.getinfo()), _nic.ofi_library())
try:
    fi.Fabric(fi.FabricAttr(prov_name="ofi:tcp"))
except fi.NoDevice as e:
    print("WEFT_LIBFABRIC=off" in str(e))
"""
    assert run(code, WEFT_LIBFABRIC="off").split() == ["False", "None", "True"]


@pytest.mark.no_library
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("unsigned fi_version(void) { return 1 << 16 | 9; }", "libfabric 1.9, older than 1.14"),
        ("unsigned fi_version(void) { return 1 << 16 | 17; }", "it has no fi_getinfo"),
        ("int other(void) { return 0; }", "it has no fi_version"),
        (
            """#include <stddef.h>
            unsigned fi_version(void) { return 1 << 16 | 17; }
            int fi_getinfo(unsigned v, const char *n, const char *s, unsigned long f, void *h, void **i) { return -5; }
            void fi_freeinfo(void *i) { }
            void *fi_dupinfo(void *i) { static char room[4096]; return room; }
            int fi_fabric(void *a, void **f, void *c) { return -38; }
            const char *fi_strerror(int e) { return "the device is on fire"; }""",
            "the device is on fire",
        ),
    ],
    ids=["old", "half", "other", "failing"],
)
def test_useless_library_is_refused(tmp_path: object, source: str, expected: str) -> None:
    made = f"{tmp_path}/libfake.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", made], input=source, text=True, check=True)
    code = """
from weft import fi
try:
    fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="ofi:tcp")))
except fi.FabricError as e:
    print(type(e).__name__, e)
print(fi.getinfo()[0].fabric_attr.prov_name)
"""
    out = run(
        code.replace("import os; os._exit(0)", "import sys; sys.stdout.flush()\nimport os; os._exit(0)"),
        WEFT_LIBFABRIC=made,
    )
    assert expected in out
    assert out.splitlines()[-1] == "weft"


def test_opened_domain_in_the_hints_limits_the_results(provider: str) -> None:
    """fi_getinfo(3) domain_attr.domain, fabric_attr.fabric."""
    node = open_node(offer(provider))
    for asked in (
        fi.Info(domain_attr=fi.DomainAttr(domain=node.domain)),
        fi.Info(domain_attr=fi.DomainAttr(domain=node.domain), fabric_attr=fi.FabricAttr(fabric=node.fabric)),
    ):
        found = fi.getinfo(hints=asked)
        assert {info.domain_attr.name for info in found} == {node.domain.name}
    node.close()
    wrong: Any = 7
    for asked in (
        fi.Info(domain_attr=fi.DomainAttr(domain=wrong), fabric_attr=fi.FabricAttr(prov_name=provider)),
        fi.Info(fabric_attr=fi.FabricAttr(prov_name=provider, fabric=wrong)),
    ):
        with pytest.raises(fi.InvalidArgument, match="opened fabric or domain"):
            fi.getinfo(hints=asked)
