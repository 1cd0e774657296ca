"""Host lists are expanded as Slurm expands them; other text is refused with the part that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import errors
from weft.launch import expand_hosts
from weft.launch.hosts import expand_tasks, hosts_in_file


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("nid[001-004,010]", "nid001 nid002 nid003 nid004 nid010"),
        ("login", "login"),
        ("a,b.example.org,c-1", "a b.example.org c-1"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-101]-ib0", "n098-ib0 n099-ib0 n100-ib0 n101-ib0"),
        ("r[1-2]n[3-4],x", "r1n3 r1n4 r2n3 r2n4 x"),
        ("x[7]", "x7"),
        ("n2,n[1-2]", "n2 n1 n2"),
    ],
)
def test_hosts_of_a_list(text: str, hosts: str) -> None:
    assert expand_hosts(text) == tuple(hosts.split())


@pytest.mark.parametrize("text", ["n[1-65536]", "n[1-65535],m", "n[1-65535,1]", "n[0-255][0-255]", "m,n[1-65535]"])
def test_list_has_as_many_hosts_as_are_allowed_and_not_one_more(text: str) -> None:
    assert len(expand_hosts(text)) == 1 << 16
    more = [f"{text},x", f"x,{text}"]
    if text.count("]") == 1 and text.endswith("]"):
        more.append(f"{text[:-1]},7]")
    for one in more:
        with pytest.raises(errors.InvalidArgument, match="more than 65536 hosts"):
            expand_hosts(one)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a name is empty"),
        ("a,,b", "a name is empty"),
        ("nid[001-004", "is not closed"),
        ("nid001-004]", "too many"),
        ("nid[[1-2]]", "too many"),
        ("nid[4-1]", "runs backwards"),
        ("nid[1-]", "'1-' is neither a number nor a range"),
        ("nid[a-b]", "'a-b' is neither"),
        ("nid[]", "'' is neither"),
        ("a b", "is no part of a host's name"),
        ("$(reboot)", "is no part of a host's name"),
        ("n[1-65537]", "more than 65536 hosts"),
        ("n[1-99999999999999999999]", "more than 65536 hosts"),
        ("n[0-9][0-9][0-9][0-9][0-9]", "more than 65536 hosts"),
        ("n[" + "9" * 5000 + "]", "neither"),
    ],
)
def test_hosts_of_what_is_no_list_are_refused(text: str, why: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="is not a list of hosts") as caught:
        expand_hosts(text)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 500


def test_tasks_of_hosts() -> None:
    assert expand_tasks("2(x3),1") == (2, 2, 2, 1)
    assert expand_tasks("16") == (16,)
    assert expand_tasks("1(x65535),2") == (*[1] * 65535, 2)
    with pytest.raises(errors.InvalidArgument, match="processes of each host"):
        expand_tasks("1(x65535),2(x2)")
    for text in ("", "2(x0)", "2(x3", "x", "2(x99999999)"):
        with pytest.raises(errors.InvalidArgument, match="processes of each host"):
            expand_tasks(text)


def test_hosts_of_a_file_are_there_once(tmp_path: Path) -> None:
    """PBS writes a line for each process."""
    file = tmp_path / "nodes"
    file.write_text("x1\nx1\nx2\n")
    assert hosts_in_file(str(file)) == ("x1", "x2")
    with pytest.raises(errors.InvalidArgument, match="No such file"):
        hosts_in_file(str(tmp_path / "none"))
