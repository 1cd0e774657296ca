"""The public surface: small on purpose, and seen by type checkers."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import fi

ROOT = Path(__file__).parents[2]


def test_exports_all_names_exist_once() -> None:
    assert len(set(fi.__all__)) == len(fi.__all__)
    for name in fi.__all__:
        getattr(fi, name)


@pytest.mark.slow
def test_exports_type_checker_sees_every_public_name(tmp_path: Path) -> None:
    """Each name of fi.__all__ resolves for mypy: nothing public is made at run time only."""
    mypy = pytest.importorskip("mypy.api", reason="mypy is a development requirement")
    program = tmp_path / "uses.py"
    program.write_text("from weft import fi\n" + "".join(f"fi.{name}\n" for name in sorted(fi.__all__)))
    result, messages, status = mypy.run(
        ["--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--follow-imports=silent", str(program)]
    )
    assert status == 0, result + messages


def test_exports_public_names_are_listed() -> None:
    """What does not begin with an underscore and is no module is in __all__."""
    import types

    for name, value in vars(fi).items():
        if not name.startswith("_") and not isinstance(value, types.ModuleType):
            assert name in fi.__all__ or name in ("annotations", "TYPE_CHECKING", "Any"), name


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
    """No Python frame of ours on the way: the methods are inherited, not wrapped."""
    for cls, names in (
        (fi.Endpoint, ("read", "readv", "readmsg", "write", "writev", "writemsg", "inject_write", "writedata")),
        (fi.Endpoint, ("inject_writedata", "read_batch", "write_batch", "atomic", "fetch_atomic", "compare_atomic")),
        (fi.CompletionQueue, ("read", "readfrom", "readerr", "sread", "sreadfrom", "signal")),
        (fi.Counter, ("read", "readerr", "add", "set", "adderr", "seterr", "wait")),
    ):
        for name in names:
            assert name not in vars(cls)
