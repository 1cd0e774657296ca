"""`weft.names()`: every named array of this user, told by its owner."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import numpy as np
import pytest
from tests.share import keepers
from tests.share.owner import Owner

import weft
from weft import errors
from weft.share import NameInfo
from weft.share.names.server import NameServer


def named(wanted: str) -> NameInfo:
    (one,) = [one for one in weft.names(wait=10) if one.name == wanted]
    return one


def test_names_describe_the_array(node: weft.Node, name: Any) -> None:
    n = name("table")
    node.share(weft.zeros((3, 4), "f4"), n, access="r")
    one = named(n)
    assert (one.name, one.pid, one.shape, one.dtype, one.nbytes, one.access) == (
        n,
        os.getpid(),
        (3, 4),
        "float32",
        48,
        "r",
    )
    assert os.path.basename(sys.executable)[:6] in one.command
    assert one.age_s is not None
    assert 0 <= one.age_s < 100
    assert (one.kept, one.keeper, one.answers) == (False, None, True)


def test_names_follow_replace_and_resize(node: weft.Node, name: Any) -> None:
    shared = node.share(weft.zeros(3, reserve=9), name("table"))
    shared.resize(7)
    assert named(shared.name).shape == (7,)
    shared.replace(np.zeros((2, 2), "u1"))
    assert (named(shared.name).shape, named(shared.name).nbytes) == ((2, 2), 4)


def test_names_are_sorted_and_gone_with_the_share(node: weft.Node, name: Any) -> None:
    mine = [name(f"{i:03}") for i in range(150)]  # more than are asked at a time
    shares = [node.share(weft.zeros(1), n) for n in reversed(mine)]
    assert [one.name for one in weft.names(wait=30) if one.name in mine] == mine
    for share in shares[10:]:
        share.close()
    assert [one.name for one in weft.names(wait=30) if one.name in mine] == mine[-10:]


@pytest.mark.procs
def test_names_of_a_stopped_process_say_so(node: weft.Node, own_owner: Owner, name: Any) -> None:
    n, mine = name("stopped"), name("mine")
    node.share(weft.zeros(1), mine)
    own_owner.tell(f"shared = node.share(np.zeros(3), {n!r})")
    own_owner.stop()
    try:
        found = {one.name: one for one in weft.names(wait=0.5)}
        assert found[n] == NameInfo(n, own_owner.pid, found[n].command, answers=False)
        assert "owner.py" in found[n].command
        assert found[mine].answers
    finally:
        own_owner.go_on()
    assert named(n).shape == (3,)


@pytest.mark.procs
def test_names_of_dead_processes_are_not_listed(own_owner: Owner, name: Any) -> None:
    n = name("dead")
    own_owner.tell(f"shared = node.share(np.zeros(3), {n!r})")
    assert named(n).pid == own_owner.pid
    own_owner.kill()
    assert n not in [one.name for one in weft.names()]
    assert n not in weft.Node.names()


@pytest.mark.procs
def test_names_of_kept_arrays_name_maker_and_keeper(own_owner: Owner, keeping: None, name: Any) -> None:
    n = name("kept")
    own_owner.tell(f"shared = node.share(np.zeros((2, 3)), {n!r}, keep=True)")
    own_owner.kill()
    one = named(n)
    assert (one.pid, one.kept, one.keeper, one.shape) == (own_owner.pid, True, keepers.keeper_pid(), (2, 3))
    assert "owner.py" in one.command


def test_names_survive_strange_answers(name: Any) -> None:
    """Processes of the same user: one answers nonsense, another hangs up."""
    server = NameServer()
    server.publish(name("no-ticket"), "nonsense", "nonsense")
    server.publish(name("no-info"), "weft-ticket:AAAA", '["since"]')
    start = f"\0weft-name-{os.geteuid()}-"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(start + name("silent"))
        silent.listen()
        found = {one.name: one for one in weft.names(wait=0.3)}
        for which in ("no-ticket", "no-info", "silent"):
            assert found[name(which)].answers is False, which
    server.close()


def test_information_of_another_kind_is_left_out(node: weft.Node, name: Any) -> None:
    n = name("odd")
    shared = node.share(np.zeros(3))
    server = NameServer()
    server.publish(n, str(shared.ticket), '{"since": "yesterday", "maker": 7}')
    one = named(n)
    assert (one.shape, one.age_s, one.pid) == ((3,), None, os.getpid())
    server.close()


def test_bad_wait_is_refused() -> None:
    with pytest.raises(TypeError, match="names: wait is a number of seconds"):
        weft.names("soon")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument):
        weft.names(float("nan"))


def test_answers_to_older_readers_begin_with_the_ticket(node: weft.Node, name: Any) -> None:
    """The first packet is the ticket alone, as in the first version of the protocol."""
    n = name("old")
    shared = node.share(np.zeros(3), n)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.settimeout(60)
        caller.connect(f"\0weft-name-{os.geteuid()}-{n}")
        assert caller.recv(1 << 16) == b"T" + str(shared.ticket).encode()
