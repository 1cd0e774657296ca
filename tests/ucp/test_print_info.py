"""ucp_mem_print_info."""

from __future__ import annotations

import io
import re

import pytest
from tests.fakes import gpu as fake
from tests.ucp.support import PAGE, Rig


def printed(rig: Rig, spec: str) -> list[str]:
    stream = io.StringIO()
    rig.context.mem_print_info(spec, stream)
    return stream.getvalue().splitlines()


def line_of(lines: list[str], pattern: str) -> re.Match[str]:
    """The one line that the pattern matches as a whole."""
    found = [match for line in lines if (match := re.fullmatch(pattern, line))]
    assert len(found) == 1, lines
    return found[0]


ALLOCATED = r"#  allocated (\S+) at address 0x([0-9a-f]+) with (\w+), pagesize: (\S+)"


@pytest.mark.clause("ucp.print.function", "ucp.print.length", "ucp.print.method", "ucp.print.spec-32768")
def test_size_alone_is_host_memory(rig: Rig) -> None:
    lines = printed(rig, "32768")
    assert lines[:3] == ["#", "# UCP memory allocation", "#"]
    assert all(line.startswith("#") for line in lines)
    size, address, method, page = line_of(lines, ALLOCATED).groups()
    assert size == "32K"
    assert int(address, 16) % PAGE == 0
    assert method == "memfd"
    assert page == f"{PAGE >> 10}K"
    assert line_of(lines, "#  memory type: (.*)")[1] == "host"


@pytest.mark.clause("ucp.print.other")
def test_key_size_memory_type_and_links_are_printed(rig: Rig) -> None:
    lines = printed(rig, "4k")
    with rig.alloc() as memh:
        assert line_of(lines, r"#  rkey size: (\d+)")[1] == str(len(memh.pack()))
    assert set(line_of(lines, "#  registered on: (.*) ")[1].split()) == {"self", "shm", "tcp"}
    assert line_of(lines, "#  memory type: (.*)")[1] == "host"


@pytest.mark.clause("ucp.print.spec", "ucp.print.length")
@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("1", "4K"),
        ("1k", "4K"),
        ("5000", "8K"),
        ("32768", "32K"),
        ("36K", "36K"),
        ("1m", "1M"),
        ("1M,host", "1M"),
        ("1MB", "1M"),
        ("2mb,HOST", "2M"),
        ("1540k, host", "1540K"),
    ],
)
def test_spec_is_a_size_and_an_optional_type(rig: Rig, spec: str, size: str) -> None:
    """The printed size is the size of the whole pages."""
    assert line_of(printed(rig, spec), ALLOCATED)[1] == size


@pytest.mark.clause("ucp.print.spec-1m-cuda", "ucp.print.spec", "ucp.print.method")
def test_type_names_the_memory(rig: Rig) -> None:
    fake.start()
    for spec, kind in (("1m,cuda", "cuda"), ("64k,cuda-managed", "cuda-managed")):
        lines = printed(rig, spec)
        size, _, method, _ = line_of(lines, ALLOCATED).groups()
        assert size == spec.partition(",")[0].upper()
        assert method == "cuda"
        assert line_of(lines, "#  memory type: (.*)")[1] == kind


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("", "Failed to convert a memory size"),
        ("abc", "Failed to convert a memory size"),
        ("12x", "Failed to convert a memory size"),
        ("-1", "Failed to convert a memory size"),
        (",host", "Failed to convert a memory size"),
        ("1.5k", "Failed to convert a memory size"),
        ("0", "Memory size must be greater than 0"),
        ("0k,host", "Memory size must be greater than 0"),
        ("1k,", "Invalid memory type"),
        ("1k,tape", "Invalid memory type"),
        ("1k,host,host", "Invalid memory type"),
        ("1k,unknown", "Invalid memory type"),
        ("1k,gaudi", "Unsupported memory type"),
        ("1000000t", "Failed to allocate"),
    ],
)
def test_print_info_complaint_goes_to_stdout_not_the_stream(
    rig: Rig, capsys: pytest.CaptureFixture[str], spec: str, complaint: str
) -> None:
    assert printed(rig, spec) == []
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"<{complaint}")
    assert out.endswith(">\n")
    assert out.count("\n") == 1


@pytest.mark.parametrize("kind", ["tape", "gaudi", "rocm", "unknown"])
def test_type_that_is_not_there_is_answered_with_those_that_are(
    rig: Rig, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    fake.start()  # a CUDA device, and no other
    printed(rig, f"1k,{kind}")
    assert capsys.readouterr().out.endswith("supported here: host cuda cuda-managed>\n")


def test_standard_output_is_the_stream_where_none_is_given(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.context.mem_print_info("4k")
    assert "# UCP memory allocation" in capsys.readouterr().out


def test_memory_is_unmapped_again(rig: Rig) -> None:
    for _ in range(3):
        printed(rig, "1m")
    assert "0 mapped" in repr(rig.context)
