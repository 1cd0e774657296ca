"""Calls that end the process with some version of a provider: Weft's answers instead (providers/ofi/quirks.py)."""

from __future__ import annotations

import pytest
from tests.ofi.support import run_program

from weft import _nic
from weft.providers.ofi import library, quirks
from weft.providers.ofi.quirks import Quirk

OPENED = """
from weft import fi
from tests.ofi.support import hints
info = fi.getinfo(hints=hints({provider!r}, fi.MSG | fi.TAGGED | fi.RMA{more}))
info = ([one for one in info if one.domain_attr.name == "lo"] or info)[0]
fabric = fi.Fabric(info.fabric_attr)
domain = fabric.domain(info)
av, cq, ep = domain.av_open(), domain.cq_open(format=fi.CQ_FORMAT_TAGGED), domain.endpoint(info)
ep.bind(cq, fi.TRANSMIT | fi.RECV)
ep.bind(av)
"""


def says(program: str) -> str:
    """The output of a program, in a process of its own. Its end by a signal is a failure."""
    ended = run_program(program)
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-2000:])
    return ended.stdout


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_sread_after_the_endpoint_closed_finds_nothing(provider: str) -> None:
    said = says(
        OPENED.format(provider=provider, more="")
        + """
ep.enable()
me = av.insert(ep.getname())
ep.trecv(bytearray(64), tag=1)
ep.close()
for _ in range(5):
    try:
        cq.sread(timeout=0.05)
    except fi.Again:
        pass
    except fi.FabricError:
        cq.readerr()
cq.close(), av.close(), domain.close()
print("fine")
"""
    )
    assert said.splitlines()[-1] == "fine"


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_thread_in_sread_survives_the_close_of_the_endpoint(provider: str) -> None:
    said = says(
        OPENED.format(provider=provider, more="")
        + """
import threading
ep.enable()
begun = threading.Event()
found = []
def wait():
    begun.set()
    try:
        cq.sread(timeout=1.0)
    except fi.FabricError as e:
        found.append(type(e).__name__)
thread = threading.Thread(target=wait)
thread.start()
begun.wait()
ep.close()
thread.join()
print(found)
"""
    )
    assert said.splitlines()[-1] == "['Again']"


def test_option_that_is_set_before_enable_holds_after_it() -> None:
    said = says(
        OPENED.format(provider="ofi:shm", more=" | fi.MULTI_RECV")
        + """
ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, 16)
ep.enable()
print(ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV))
"""
    )
    assert said.splitlines()[-1] == "16"


def test_option_is_known_before_enable_once_it_was_set() -> None:
    said = says(
        OPENED.format(provider="ofi:shm", more=" | fi.MULTI_RECV")
        + """
try:
    ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV)
except fi.BadState as e:
    assert "after ep.enable()" in str(e)
try:
    ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, 16)
    print(ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV))
except fi.BadState:
    print(16)
"""
    )
    assert said.splitlines()[-1] == "16"


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_strerror_of_a_queue_without_an_endpoint_is_a_text(provider: str) -> None:
    said = says(
        OPENED.format(provider=provider, more="")
        + """
alone = domain.cq_open()
print([type(alone.strerror(number)).__name__ for number in (0, 11, -1, 2**31 - 1)])
"""
    )
    assert said.splitlines()[-1] == str(["str"] * 4)


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_error_entry_after_the_endpoint_closed_is_read_or_not_there(provider: str) -> None:
    said = says(
        OPENED.format(provider=provider, more="")
        + """
ep.enable()
ep.trecv(bytearray(8), tag=1, context="receive")
ep.cancel("receive")
ep.close()
try:
    print(cq.readerr().err == fi.ECANCELED)
except fi.Again:
    print(True)
"""
    )
    assert said.splitlines()[-1] == "True"


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_error_entries_are_read_after_enable_alone(provider: str) -> None:
    """The read lets the library work for the endpoints that are bound to the queue."""
    said = says(
        OPENED.format(provider=provider, more="")
        + """
for _ in range(2):
    try:
        cq.readerr()
    except fi.FabricError as e:
        print(type(e).__name__)
    ep.enable()
"""
    )
    assert said.splitlines()[-2:] == ["BadState", "Again"]


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_endpoint_closes_while_its_event_queue_has_an_event_of_any_number(provider: str) -> None:
    said = says(
        OPENED.format(provider=provider, more="")
        + """
eq = fabric.eq_open(flags=fi.WRITE)
ep.bind(eq)
ep.enable()
written = [fi.NOTIFY, fi.CONNREQ, fi.CONNECTED, fi.SHUTDOWN, fi.MR_COMPLETE, fi.AV_COMPLETE, 77]
for event in written:
    eq.write(event, "mine")
ep.close()
print([eq.read() for _ in written] == [(event, "mine") for event in written])
"""
    )
    assert said.splitlines()[-1] == "True"


def test_address_before_enable_is_refused() -> None:
    said = says(
        OPENED.format(provider="ofi:shm", more="")
        + """
try:
    av.insert("fi_shm://1:0:0")
except fi.BadState as e:
    print("ep.enable() first" in str(e))
ep.enable()
print(type(av.insert("fi_shm://1:0:0")).__name__)
"""
    )
    assert said.splitlines()[-2:] == ["True", "int"]


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_discard_without_peek_or_claim_is_refused(provider: str) -> None:
    said = says(
        OPENED.format(provider=provider, more="")
        + """
ep.enable()
for flags in (fi.DISCARD, fi.DISCARD | fi.PEEK | fi.CLAIM):
    try:
        ep.trecvmsg(fi.MsgTagged([bytearray(8)], tag=1, context="c"), int(flags))
    except fi.InvalidArgument as e:
        print("DISCARD" in str(e))
"""
    )
    assert said.splitlines()[-2:] == ["True", "True"]


def test_cancel_of_a_directed_receive_is_done_or_refused() -> None:
    said = says(
        OPENED.format(provider="ofi:tcp", more=" | fi.DIRECTED_RECV")
        + """
ep.enable()
me = av.insert(ep.getname())
ep.recv(bytearray(64), src_addr=me, context="receive")
try:
    ep.cancel("receive")
except fi.NotSupported as e:
    assert "FI_DIRECTED_RECV" in str(e)
print("fine")
"""
    )
    assert said.splitlines()[-1] == "fine"


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:shm"])
def test_endpoint_closes_while_another_connects_to_it(provider: str) -> None:
    said = says(
        OPENED.format(provider=provider, more="")
        + """
ep.enable()
other = domain.endpoint(info)
other.bind(cq, fi.TRANSMIT | fi.RECV)
other.bind(av)
other.enable()
to = av.insert(other.getname())
try:
    ep.send(b"x", dest_addr=to)
except fi.Again:
    pass
other.close()
for _ in range(5):
    try:
        cq.read()
    except fi.Available:
        cq.readerr()
ep.close(), cq.close(), av.close(), domain.close(), fabric.close()
print("fine")
"""
    )
    assert said.splitlines()[-1] == "fine"


@pytest.mark.parametrize("provider", ["ofi:tcp", "ofi:sockets"])
def test_info_of_a_passive_endpoint_stays_as_long_as_the_endpoint(provider: str) -> None:
    """A peer asks for a connection when the info that the endpoint was opened with is gone."""
    said = says(
        f"""
import gc, time
from weft import fi
from tests.ofi.support import hints
try:
    info = fi.getinfo(hints=hints({provider!r}, fi.MSG, fi.EP_MSG))
except fi.NoData:
    print("not here")
    raise SystemExit
info = ([one for one in info if one.domain_attr.name == "lo"] or info)[0]
fabric = fi.Fabric(info.fabric_attr)
eq, domain = fabric.eq_open(), fabric.domain(info)
listener = fabric.passive_ep(fi.dupinfo(info))
listener.bind(eq)
listener.listen()
gc.collect()
blocks = [bytes(100 + n) for n in range(10_000)]  # what was freed is written over
cq, ep = domain.cq_open(), domain.endpoint(info)
ep.bind(cq, fi.TRANSMIT | fi.RECV)
ep.bind(eq)
ep.connect(listener.getname())
print(eq.sread(timeout=30)[0] == fi.CONNREQ)
"""
    )
    assert said.splitlines()[-1] in ("True", "not here")


def test_private_numbers_of_a_vector_are_not_in_its_interface() -> None:
    said = says(
        OPENED.format(provider="ofi:tcp", more="")
        + """
print([name for name in dir(av) if name in ("lookup_core", "remove_one")])
"""
    )
    assert said.splitlines()[-1] == "[]"


@pytest.mark.no_library
def test_quirk_holds_for_its_providers_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[int] = [1 << 16 | 17]
    monkeypatch.setattr(library, "known", lambda: ("", at[0]))
    assert quirks.has("ofi:tcp;ofi_rxm", Quirk.SREAD_AFTER_CLOSE_CRASHES)
    assert not quirks.has("ofi:shm", Quirk.SREAD_AFTER_CLOSE_CRASHES)
    assert not quirks.has("ofi:tcp", Quirk.CANCEL_OF_DIRECTED_CRASHES)
    assert quirks.has("ofi:tcp;ofi_rxm", Quirk.STRERROR_ASKS_ENDPOINT)
    assert not quirks.has("ofi:tcp", Quirk.STRERROR_ASKS_ENDPOINT)
    at[0] = 2 << 16
    assert not quirks.has("ofi:tcp", Quirk.SREAD_AFTER_CLOSE_CRASHES)
    assert quirks.has("ofi:tcp", Quirk.CANCEL_OF_DIRECTED_CRASHES)
    assert not quirks.has("ofi:verbs", Quirk.DMABUFS_ARE_NOT_KNOWN)
    at[0] = 1 << 16 | 19
    assert quirks.has("ofi:verbs", Quirk.DMABUFS_ARE_NOT_KNOWN)
    at[0] = 2 << 16 | 5
    assert not quirks.has("ofi:tcp", Quirk.SREAD_AFTER_CLOSE_CRASHES)
    assert quirks.has("ofi:tcp", Quirk.CANCEL_OF_DIRECTED_CRASHES)


@pytest.mark.no_library
def test_extension_is_told_the_quirks_that_it_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "known", lambda: ("", 2 << 16 | 5))
    guarded = _nic.ofi_quirks()
    assert set(guarded) <= set(Quirk.__members__)
    for provider in ("ofi:tcp", "ofi:shm", "ofi:tcp;ofi_rxm", "ofi:cxi"):
        told = {name for place, name in enumerate(guarded) if quirks.bits(provider) >> place & 1}
        assert told == {name for name in guarded if quirks.has(provider, Quirk[name])}
        assert quirks.bits(provider) >> len(guarded) == 0


@pytest.mark.no_library
@pytest.mark.parametrize(
    ("setting", "most"), [(None, 16384), ("0x100", 256), ("many", 16384), ("-5", 16384), (str(1 << 70), 16384)]
)
def test_longest_collective_is_the_providers_setting(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, most: int
) -> None:
    if setting is None:
        monkeypatch.delenv("FI_OFI_RXM_BUFFER_SIZE", raising=False)
    else:
        monkeypatch.setenv("FI_OFI_RXM_BUFFER_SIZE", setting)
    assert quirks.longest_collective("ofi:tcp;ofi_rxm") == (most, "FI_OFI_RXM_BUFFER_SIZE")
    assert quirks.longest_collective("ofi:cxi") == ((1 << 64) - 1, "")
