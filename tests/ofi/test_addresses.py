"""Addresses over a real libfabric: names that are chosen, and vectors."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import weakref
from typing import Any

import pytest
from tests.ofi.support import Node, finish, offer, open_node, pair, post, run_program

from weft import fi


class Context:
    """A context that a weak reference can have."""


def free(provider: str) -> Any:
    """An address that no endpoint has."""
    if provider == "ofi:shm":
        return f"fi_shm://{os.getpid()}:chosen"
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return ("127.0.0.1", one.getsockname()[1])


def send(a: Node, b: Node, to: int, text: bytes) -> None:
    room = bytearray(len(text))
    b.ep.trecv(room, tag=1)
    post(lambda: a.ep.tsend(text, dest_addr=to, tag=1), a, b)
    finish(b, 1, a)
    finish(a, 1, b)
    assert room == text


def test_chosen_name_is_where_peers_reach_the_endpoint(provider: str) -> None:
    info, address = offer(provider), free(provider)
    a, b = open_node(info), open_node(info, before=lambda node: node.ep.setname(address))
    send(a, b, a.av.insert(address), b"to the chosen name")
    assert a.av.insert(b.ep.getname()) == a.av.insert(address)
    b.close()
    again = open_node(info, before=lambda node: node.ep.setname(address))  # free since close()
    again.close()
    a.close()


def test_name_is_fixed_when_the_endpoint_is_enabled(provider: str) -> None:
    with pair(provider) as (a, b):
        name = a.ep.getname()
        with pytest.raises(fi.BadState, match="setname"):
            a.ep.setname(free(provider))
        assert a.ep.getname() == name
        send(b, a, b.to(a), b"hello")


def test_name_of_another_endpoint_here_is_taken(provider: str) -> None:
    """shm of libfabric 2.5 would end the process."""
    with pair(provider) as (a, _), a.domain.endpoint(a.info) as ep:
        ep.bind(a.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(a.av)
        with pytest.raises(fi.AddressInUse):
            _claim(ep, a.ep.getname())
        assert not ep.enabled
        ep.setname(free(provider))
        ep.enable()


def _claim(ep: Any, name: Any) -> None:
    ep.setname(name)
    ep.enable()


def test_peer_that_was_removed_is_inserted_and_reached_again(provider: str) -> None:
    with pair(provider) as (a, b):
        to = a.to(b)
        send(a, b, to, b"before")
        a.av.remove(to)
        assert a.av.count() == 0
        with pytest.raises(fi.InvalidArgument):
            a.ep.tsend(b"x", dest_addr=to, tag=1)
        again = a.to(b)
        assert a.av.count() == 1
        send(a, b, again, b"after")


def test_vector_takes_the_next_endpoint_in_the_place_of_one_that_closed(provider: str) -> None:
    """A program replaces a peer: it removes the old address, and inserts the new one."""
    info = offer(provider)
    a, old = open_node(info), open_node(info)
    to = a.to(old)
    send(a, old, to, b"to the old one")
    a.av.remove(to)
    old.close()
    new = open_node(info)
    send(a, new, a.to(new), b"to the new one")
    assert a.av.count() == 1
    new.close()
    a.close()


def test_refused_insertion_leaves_the_vector_as_it_was(provider: str) -> None:
    with pair(provider) as (a, b):
        to = a.to(a)
        with pytest.raises(fi.InvalidArgument):
            a.av.insert([a.ep.getname(), b.ep.getname(), 7])
        assert a.av.count() == 1
        assert a.av.lookup(to)
        send(a, b, a.to(b), b"hello")


@pytest.mark.parametrize("bad", [b"", "", b"\0", "x" * 256, b"\0\1", b"\2\0" + bytes(13), bytes(17)])
def test_what_is_no_address_does_not_reach_the_library(provider: str, bad: object) -> None:
    """The library reads a socket address without looking at its length, and cuts a long name."""
    with pair(provider) as (a, _), a.domain.endpoint(a.info) as ep:
        for call in (a.av.insert, a.av.straddr, ep.setname):
            with pytest.raises(fi.InvalidArgument):
                call(bad)
        assert a.av.count() == 0


@pytest.mark.parametrize("reporting", ["ofi:tcp", "ofi:shm", "ofi:sockets"])
def test_insertions_are_events_where_the_library_reports_them(reporting: str) -> None:
    """fi_av(3) FI_EVENT, deprecated: shm and tcp of 2.5 ignore the flag."""
    try:
        node = open_node(offer(reporting))
    except fi.NoData:
        pytest.skip(f"this libfabric has no provider {reporting}")
    name, ignored = node.ep.getname(), False
    with node.fabric.eq_open() as eq, node.domain.av_open(flags=fi.EVENT) as av:
        try:
            av.insert(name)
            ignored = True
        except fi.NoEq:
            assert reporting != "ofi:shm"
        with contextlib.suppress(fi.NoSys):
            av.bind(eq)
            assert av.insert([name, name], context="two") in ([0, 0], [0, 1])
            with pytest.raises(fi.Busy):
                eq.close()
            for call in (
                lambda: av.insert([name], flags=fi.SYNC_ERR, context=[]),
                lambda: av.insertsvc("127.0.0.1", "77"),
                lambda: av.insertsym("127.0.0.1", 1, "77", 1),
            ):
                with pytest.raises(fi.InvalidArgument, match="events"):
                    call()
            if not ignored:
                event, entry = eq.read()
                assert (event, entry.fid, entry.context, entry.data) == (fi.AV_COMPLETE, av, "two", 2)
            assert eq.read() is None
            assert av.insert([name]) in ([0], [1], [2])  # nobody gets the event of this insertion, after close()
        av.close()
        assert eq.read() is None
        with pytest.raises(fi.InvalidArgument, match="event queue"):
            node.av.bind(node.cq)
    node.close()


def test_refused_insertion_with_an_event_leaves_its_context_to_the_caller() -> None:
    """No event comes of the insertion, so nobody would take the context back. (shm heeds no flags.)"""

    def refused(av: Any) -> weakref.ref[Any]:
        context = Context()
        with pytest.raises(fi.BadFlags):
            av.insert([node.ep.getname()], flags=fi.MULTI_RECV, context=context)
        return weakref.ref(context)

    node = open_node(offer("ofi:tcp"))
    with node.fabric.eq_open() as eq, node.domain.av_open(flags=fi.EVENT) as av:
        with contextlib.suppress(fi.NoSys):  # tcp of 2.5 has no events of a vector
            av.bind(eq)
        context = refused(av)
        gc.collect()
        assert context() is None
        assert eq.read() is None
    node.close()


def test_authorization_keys_of_vectors_are_the_providers_own(provider: str) -> None:
    """Neither provider has them: the library's refusal arrives, and nothing unknown reaches the library."""
    with pair(provider) as (a, b):
        with pytest.raises((fi.NotSupported, fi.NoSys), match="insert_auth_key"):
            a.av.insert_auth_key(b"1234")
        with pytest.raises(fi.InvalidArgument, match="auth_key_size"):
            a.av.insert_auth_key(b"1234", 5)
        with pytest.raises(fi.InvalidArgument, match="is no key"):
            a.av.lookup_auth_key(0)
        for more in ({"fi_addr": 5}, {"flags": fi.AUTH_KEY}, {"flags": fi.AV_USER_ID, "fi_addr": [1, 2]}):
            with pytest.raises(fi.InvalidArgument, match="fi_addr"):
                a.av.insert(b.ep.getname(), **more)
        assert a.av.count() == 0


@pytest.mark.parametrize(("node", "service"), [(None, None), ("127.0.0.1", None), (None, "77")])
def test_service_is_inserted_with_its_node(provider: str, node: str | None, service: str | None) -> None:
    """The library would end the process."""
    with pair(provider) as (a, _), pytest.raises(fi.InvalidArgument, match="node and a service"):
        a.av.insertsvc(node, service)


NUMBER_USED_AGAIN = """
import os, re, shutil, sys
from tests.ofi.support import offer, open_node

alive = sys.argv[1]  # the file of an endpoint that is open, under the name that one of this process gets
mine = re.sub(r"[0-9]+", str(os.getpid()), alive, count=1)
shutil.copy("/dev/shm/" + alive, "/dev/shm/" + mine)
try:
    node = open_node(offer("ofi:shm"))
    print(node.ep.getname() != "fi_shm://" + mine)
    node.close()
finally:
    os.remove("/dev/shm/" + mine)
"""


@pytest.mark.procs
def test_name_that_a_process_of_the_same_number_left_behind_is_not_taken() -> None:
    """shm names an endpoint by its process's number, and leaves a file where the process does not close."""
    with contextlib.closing(open_node(offer("ofi:shm"))) as node:
        name = node.ep.getname().removeprefix("fi_shm://")
        done = run_program(NUMBER_USED_AGAIN, name)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


NAME_OF_ANOTHER = """
import sys
from tests.ofi.support import offer, open_node
from weft import fi
from tests.ofi.test_addresses import chosen_in

try:
    chosen_in("ofi:shm", sys.argv[1])
except fi.Busy as reason:
    print(reason)
"""


def chosen_in(provider: str, name: str) -> None:
    """Open an endpoint for which the name is chosen."""
    info = offer(provider)
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain, contextlib.ExitStack() as undo:
        cq, av, ep = domain.cq_open(), domain.av_open(), domain.endpoint(info)
        for one in (av, cq, ep):
            undo.callback(one.close)
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.setname(name)
        ep.enable()


@pytest.mark.procs
def test_chosen_name_of_another_process_is_busy() -> None:
    """libfabric 2.5 would end the process."""
    with contextlib.closing(open_node(offer("ofi:shm"))) as node:
        name = node.ep.getname()
        done = run_program(NAME_OF_ANOTHER, name)
    assert done.returncode == 0, done.stderr
    assert f"has the address {name!r}" in done.stdout
    assert "try: another address" in done.stdout


def test_name_that_is_no_text_comes_back_as_it_was_inserted() -> None:
    """A name of shm is that of a file: any bytes but NUL."""
    with pair("ofi:shm") as (a, _):
        peer = a.av.insert(b"\xff\xfe-name")
        name = a.av.lookup(peer)
        assert name == "\udcff\udcfe-name"
        assert a.av.lookup(a.av.insert(name)) == name
        assert "-name" in a.av.straddr(name)
        with pytest.raises(fi.InvalidArgument, match="no address"):
            a.av.insert("\ud800")


@pytest.mark.parametrize("addr", [("127.0.0.1", 9), memoryview(b"a\0b"), "a\0b", b""])
def test_address_that_is_no_name_is_refused_by_a_provider_of_names(addr: object) -> None:
    with pair("ofi:shm") as (a, _), pytest.raises(fi.InvalidArgument, match="no address"):
        a.av.insert(addr)


def test_address_is_removed_once_by_many_threads(provider: str) -> None:
    """The library does not check: a second removal would end the process."""
    with pair(provider) as (a, b):
        for _ in range(50):
            peer, answers = a.to(b), []

            def remove(peer: int = peer, answers: list[bool] = answers) -> None:
                try:
                    a.av.remove(peer)
                    answers.append(True)
                except fi.InvalidArgument:
                    answers.append(False)

            threads = [threading.Thread(target=remove) for _ in range(3)]
            for one in threads:
                one.start()
            for one in threads:
                one.join(30)
            assert sorted(answers) == [False, False, True]
