"""weft.testing as applications use it: pytest runs their tests with the plugin, in a separate process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests import patience

ROOT = Path(__file__).parents[2]

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def run(pytester: pytest.Pytester) -> object:
    """Run a test module of an application; returns its outcomes."""

    def of(program: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(program)
        return pytester.runpytest_subprocess("-p", "weft.testing", "-W", "error", "-p", "no:cacheprovider", *arguments)

    return of


def test_pytest_finds_the_plugin_of_an_installed_weft() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"weft.testing": "weft.testing"}
    assert any(need.startswith("pytest") for need in project["optional-dependencies"]["testing"])


def test_plugin_imports_nothing_of_weft_before_a_fixture_is_used() -> None:
    """pytest imports it in every run of every project: without the extension, NumPy, and the rooms of Weft."""
    program = "import sys, weft.testing; print(*(m for m in sys.modules if m.startswith(('weft', 'numpy'))))"
    found = patience.run([sys.executable, "-c", program], 100)
    assert found.stdout.split() == [
        *("weft._version", "weft", "weft.testing.mode_names", "weft.testing.plugin", "weft.testing")
    ], found.stderr


def test_plugin_is_loaded_by_pytest_plugins(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["weft.testing"]')
    pytester.makepyfile("def test_it(weft_domain): assert not weft_domain.closed")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


PAIR = """
    import pytest
    from weft import fi

    def test_put(weft_pair):
        data = bytearray(64)
        addr, key = weft_pair.remote(weft_pair.target.reg(data, fi.REMOTE_WRITE))
        weft_pair.initiator.ep.write(b"hello", None, weft_pair.peer, addr, key, "context")
        assert [entry.op_context for entry in weft_pair.initiator.wait()] == ["context"]
        assert data[:5] == b"hello"

    def test_refusal(weft_pair):
        addr, key = weft_pair.remote(weft_pair.target.reg(bytearray(64), fi.REMOTE_READ))
        weft_pair.initiator.ep.write(b"hello", None, weft_pair.peer, addr, key)
        with pytest.raises(fi.AccessDenied, match="does not grant"):
            weft_pair.initiator.wait()
        weft_pair.initiator.ep.write(b"hello", None, weft_pair.peer, addr, key)
        assert weft_pair.initiator.wait_error().err == fi.EACCES
        weft_pair.initiator.ep.read(bytearray(5), None, weft_pair.peer, addr, key)
        with pytest.raises(AssertionError, match="expected to fail"):
            weft_pair.initiator.wait_error()

    def test_nothing_comes(weft_pair):
        with pytest.raises(fi.Again):
            weft_pair.initiator.wait(timeout=0.01)

    def test_domain(weft_domain):
        weft_domain.mr_reg(bytearray(8), fi.REMOTE_READ, requested_key=3).close()
"""


def test_pair_moves_bytes_and_reports_refusals(run) -> None:
    run(PAIR).assert_outcomes(passed=4)


def test_pair_works_under_every_registration_mode(run) -> None:
    """The fixtures take the steps that a mode requires; the test passes only the local descriptor."""
    program = """
        from weft import fi
        from weft.testing import MR_MODES

        def test_put(mr_mode, weft_pair):
            assert weft_pair.target.info.domain_attr.mr_mode == mr_mode
            data, source = weft_pair.target.domain.alloc(64, "u1"), bytearray(b"hello")
            data[:] = 0
            addr, key = weft_pair.remote(weft_pair.target.reg(data, fi.REMOTE_WRITE))
            desc = weft_pair.initiator.reg(source, fi.WRITE).desc
            weft_pair.initiator.ep.write(source, desc, weft_pair.peer, addr, key)
            weft_pair.initiator.wait()
            assert data[:5].tobytes() == b"hello"

        def test_domain(weft_domain, mr_mode):
            assert weft_domain.info.domain_attr.mr_mode == mr_mode

        def test_modes():
            assert len(MR_MODES) == len(set(MR_MODES)) == 12
    """
    run(program).assert_outcomes(passed=25)


def test_hints_of_the_module_replace_ours(run) -> None:
    program = """
        import pytest
        from weft import fi

        @pytest.fixture
        def weft_hints():
            return fi.Info(caps=fi.RMA, fabric_attr=fi.FabricAttr(prov_name="weft"))

        def test_pair(weft_pair):
            with pytest.raises(fi.FabricError):
                weft_pair.initiator.ep.atomic((1).to_bytes(8, "little"), dest_addr=weft_pair.peer, addr=0, key=1,
                                              datatype=fi.UINT64, op=fi.SUM)
    """
    run(program).assert_outcomes(passed=1)


def test_test_that_fails_leaves_nothing_open(run) -> None:
    """A failing test closes its handles, too: with -W error a leaked handle is a second failure."""
    program = """
        def test_fails(weft_pair):
            weft_pair.target.reg(bytearray(8))
            assert False
    """
    run(program).assert_outcomes(failed=1)
