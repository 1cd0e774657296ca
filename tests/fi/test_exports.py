"""The public surface: small on purpose, and seen by type checkers."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tests import patience

import weft
from weft import cxi, fi, ucp

MODULES: dict[str, types.ModuleType] = {"fi": fi, "ucp": ucp, "cxi": cxi}


def test_exports_all_names_exist_once() -> None:
    assert len(set(fi.__all__)) == len(fi.__all__)
    for name in fi.__all__:
        getattr(fi, name)


def test_exports_type_checker_sees_the_public_names_and_no_others(tmp_path: Path) -> None:
    """Each name of fi's, ucp's and cxi's __all__ resolves for mypy: nothing public is made at run time only. A misspelt
    name does not."""
    pytest.importorskip("mypy", reason="mypy is a development requirement")
    names = [f"{short}.{name}" for short, module in MODULES.items() for name in sorted(module.__all__)]
    names += [f"weft.{name}" for name in dir(weft) if name[0] != "_"]
    wrong = ["fi.Domian", "ucp.Contxt", "cxi.AuthKye", "weft.opne"]
    program = tmp_path / "uses.py"
    program.write_text("\n".join(["import weft", "from weft import cxi, fi, ucp", *names, *wrong, ""]))
    # A process of its own: mypy leaves 800,000 objects behind and undoes gc.freeze(), so that from then on each
    # gc.collect() of a test would take a second.
    found = patience.run(
        [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--follow-imports=silent"]
        + [str(program)],
        100,
        env=os.environ | {"MYPYPATH": str(Path(fi.__file__).parents[2])},
    )
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert [int(error.split(":")[1]) for error in errors] == [len(names) + 3 + i for i in range(len(wrong))], (
        found.stdout
    )
    assert all("Module has no attribute" in error for error in errors)


@pytest.mark.parametrize("short", MODULES)
def test_exports_public_names_are_listed_and_weft_s_own(short: str) -> None:
    """Every name without an underscore, except modules, is in __all__; and none is of another package."""
    module = MODULES[short]
    for name, value in vars(module).items():
        if not name.startswith("_") and not isinstance(value, types.ModuleType):
            assert name in module.__all__ or name in ("annotations", "TYPE_CHECKING", "Any"), name
    for name in module.__all__:
        assert getattr(getattr(module, name), "__module__", "weft").partition(".")[0] in ("weft", "numpy"), name
        assert not isinstance(getattr(module, name), types.ModuleType), name


def test_rma_desc_is_48_bytes() -> None:
    dtype = fi.RMA_DESC
    assert dtype.itemsize == 48
    offsets = {name: (field[0].str, field[1]) for name, field in (dtype.fields or {}).items()}
    assert offsets == {
        "local_offset": ("<u8", 0),
        "length": ("<u8", 8),
        "dest_addr": ("<u8", 16),
        "remote_addr": ("<u8", 24),
        "key": ("<u8", 32),
        "status": ("<i4", 40),
        "pad": ("<u4", 44),
    }


@pytest.mark.clause("mr.api.header", "rma.api.header")
def test_exports_all_calls_are_reached_from_one_import() -> None:
    """fi_mr(3), fi_rma(3) Synopsis: one header (here: one import) names all the calls."""
    for name in ("mr_reg", "mr_regv", "mr_regattr", "map_raw", "unmap_key"):
        assert callable(getattr(fi.Domain, name))
    for name in ("bind", "enable", "close", "raw_attr", "refresh"):
        assert callable(getattr(fi.MemoryRegion, name))
    assert hasattr(fi.MemoryRegion, "key")
    assert hasattr(fi.MemoryRegion, "desc")
    assert callable(fi.hmem_ze_device)
    for name in (
        *("read", "readv", "readmsg", "write", "writev", "writemsg", "inject_write", "writedata", "inject_writedata"),
        *("read_batch", "write_batch"),
    ):
        assert callable(getattr(fi.Endpoint, name))


def test_exports_data_path_is_the_extension_s_own() -> None:
    """Calls run no Python code of Weft: the methods are inherited, not wrapped."""
    for cls, names in (
        (fi.Endpoint, ("read", "readv", "readmsg", "write", "writev", "writemsg", "inject_write", "writedata")),
        (fi.Endpoint, ("inject_writedata", "read_batch", "write_batch", "atomic", "fetch_atomic", "compare_atomic")),
        (fi.CompletionQueue, ("read", "readfrom", "sread", "sreadfrom", "signal")),
        (fi.Counter, ("read", "readerr", "add", "set", "adderr", "seterr", "wait")),
    ):
        for name in names:
            assert name not in vars(cls)


@pytest.mark.parametrize(
    ("module", "name", "says"),
    [
        (fi, "FI_RMA", "names here are those of C without FI_\n  try: fi.RMA"),
        (fi, "fi_getinfo", "names here are those of C without fi_\n  try: fi.getinfo"),
        (fi, "fi_mr_reg", "try: fi.Domain.mr_reg"),
        (fi, "mr_reg", "try: fi.Domain.mr_reg"),
        (fi, "fi_info", "try: fi.Info"),
        (fi, "fi_close", "try: the method close() of the object"),
        (fi, "fi_cntr_add", "try: fi.Counter.add"),
        (fi, "fi_mr_key", "fi.MemoryRegion"),
        (fi, "getInfo", "try: fi.getinfo"),
        (fi, "Domian", "did you mean fi.Domain?"),
        (fi, "FI_REMOTE_RAED", "did you mean fi.REMOTE_READ?"),
        (ucp, "ucp_put_nbx", "names here are those of C without ucp_\n  try: ucp.Endpoint.put_nbx"),
        (ucp, "UCP_FEATURE_RMA", "try: ucp.FEATURE_RMA"),
        (ucp, "UCS_MEMORY_TYPE_CUDA", "without UCS_\n  try: ucp.MEMORY_TYPE_CUDA"),
        (ucp, "ucp_init", "try: ucp.Context"),
        (ucp, "ucp_worker_h", "try: ucp.Worker"),
        (ucp, "Contxt", "did you mean ucp.Context?"),
    ],
    ids=str,
)
def test_name_that_is_c_s_or_misspelt_says_what_to_write(module: Any, name: str, says: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value).startswith(f"module '{module.__name__}' has no attribute '{name}'; ".removesuffix("; "))
    assert says in str(caught.value)
    assert caught.value.obj is None  # else Python appends a second suggestion
    assert not hasattr(module, name)


@pytest.mark.parametrize("module", [fi, ucp], ids=str)
def test_name_of_nothing_and_names_that_tools_ask_for_have_no_advice(module: Any) -> None:
    for name in ("_repr_html_", "__wrapped__", "zzzzzz", "fi_zzzzzz", "a.b", ""):
        with pytest.raises(AttributeError) as caught:
            getattr(module, name)
        assert str(caught.value) == f"module '{module.__name__}' has no attribute '{name}'"
