"""Event queues in huge pages. fi_cxi(7) "RUNTIME PARAMETERS"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cxi.support import opened

HUGE_KB = 2048


def free_huge_pages() -> int:
    found = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    return int(found.read_text()) if found.exists() else 0


def mapped_huge_pages() -> int:
    """Mappings of this process in pages of 2 MiB."""
    return len(re.findall(rf"^KernelPageSize: +{HUGE_KB} kB$", Path("/proc/self/smaps").read_text(), re.MULTILINE))


@pytest.mark.clause("cxi.env.hugetlb-default")
def test_event_queues_are_in_huge_pages_where_there_are_some() -> None:
    """Where the administrator has reserved none, the kernel was asked and refused."""
    before, free = mapped_huge_pages(), free_huge_pages()
    with opened() as node:
        got, refusal = node.cq.huge_pages
        if free:
            assert (got, refusal) == (True, 0)
            assert mapped_huge_pages() == before + 1
        else:
            assert not got
            assert refusal != 0


@pytest.mark.clause("cxi.env.disable-eq-hugetlb")
@pytest.mark.parametrize("name", ["FI_CXI_DISABLE_EQ_HUGETLB", "FI_CXI_DISABLE_CQ_HUGETLB"])
def test_event_queues_are_in_ordinary_pages_if_huge_ones_are_disabled(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = mapped_huge_pages()
    monkeypatch.setenv(name, "1")
    with opened() as node:
        assert node.cq.huge_pages == (False, 0), "the kernel was not asked"
        assert mapped_huge_pages() == before
