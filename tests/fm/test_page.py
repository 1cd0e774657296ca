"""The page: over HTTP, and in a real browser where there is one (tests/fm/browser.py)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fi.group_support import join_all, members
from tests.fm.browser import Browser, Page, program
from tests.fm.conftest import TOKEN, Manager, Start

import weft.testing
from weft import errors
from weft.fm import server
from weft.fm.store import Store
from weft.tools import _fm_host

NAUGHTY = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = program()
    if found is None:
        pytest.skip("no browser: install chromium, or name one in WEFT_BROWSER")
    made = Browser(found, tmp_path_factory.mktemp("profile"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[[str], Page]]:
    pages: list[Page] = []

    def one(url: str) -> Page:
        pages.append(Page(browser, url))
        return pages[-1]

    yield one
    for each in pages:
        each.close()
    browser.events.clear()


def address(manager: Manager) -> str:
    return manager.url.removesuffix(server.MULTICAST)


class Host:
    """A host whose counters a test moves."""

    def __init__(self) -> None:
        self.sent = 0
        self.at_ns = 10**18
        self.fails = False

    def __call__(self) -> dict[str, Any]:
        if self.fails:
            raise errors.AccessDenied("the registry is not yours")
        self.at_ns += 10**9
        self.sent += 1500
        device = {"name": "cxi0", "up": True, "mac": "02:00:00:00:08:40", "group": 1, "switch": 1, "port": 0}
        service = {"device": "cxi0", "id": 7, "enabled": False, "members": ["uid:5"], "vnis": ["100-200"]}
        service |= {"limits": {"les": [40, 0]}, "in_use": {"les": 12}, "users": [NAUGHTY]}
        return {
            "devices": [{**device, "users": ["python (41)"]}, {**device, "name": "cxi1", "up": False, "users": []}],
            "services": [service],
            "counters": {
                "cxi0": {"HNI_PKTS_SENT_BY_TC_0": [self.sent, self.at_ns], "LPE_SUCCESS_CNTR": [0, self.at_ns]}
            },
            "stuck": [],
        }


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def test_page_loads_nothing_from_elsewhere(manager: Manager) -> None:
    answer = manager.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").decode()
    head, _, page = answer.partition("\r\n\r\n")
    assert "content-type: text/html" in head
    assert re.findall(r"https?://[^\"'` ]+", page) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    assert "src=" not in page
    assert "innerHTML" not in page
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in head
    assert "default-src 'none'" in head


def test_live_has_what_the_page_shows(start: Start) -> None:
    host = Host()
    manager = start(live=host)
    manager.create("0:08:40", "0:08:41")
    status, found = manager.ask("GET", "/live")
    assert status == 200
    assert found["groups"][0] | {"created": 0} == {
        "mcastID": 0, "hwRoot": "02:00:00:00:08:40", "vni": 1, "timeout": 32000, "jobID": "j", "jobStepID": "0",
        "created": 0, "members": 2,
    }  # fmt: skip
    assert found["host"]["devices"][0]["users"] == ["python (41)"]
    assert found["jobs"][0]["jobSteps"] == {"0": [0]}
    assert "sessionToken" not in json.dumps(found)
    assert found["topology"]["switches"] == {"1/1": ["02:00:00:00:08:40", "02:00:00:00:08:41"]}


def test_host_that_cannot_be_read_is_told_and_the_rest_is_shown(start: Start) -> None:
    host = Host()
    host.fails = True
    found = start(live=host).ask("GET", "/live")[1]
    assert "not yours" in found["host"]["error"]
    assert found["status"]["groups"] == 0


def test_many_lookers_ask_the_host_seldom(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LIVE_S", 3600.0)
    host = Host()
    manager = start(live=host)
    looks = [threading.Thread(target=manager.ask, args=("GET", "/live")) for _ in range(8)]
    for one in looks:
        one.start()
    for one in looks:
        one.join()
    assert host.sent == 1500


def test_groups_too_large_to_draw_have_no_tree(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TREES_MAX", 2)
    manager = start()
    for macs in (["0:00:01"], ["0:00:02", "0:00:03", "0:00:04"], ["0:00:05", "0:00:06"], ["0:00:07"]):
        manager.create(*macs)
    found = manager.ask("GET", "/live")[1]
    assert set(found["topology"]["trees"]) == {"0", "2"}
    assert [one["members"] for one in found["groups"]] == [1, 3, 2, 1]


# ---- in a browser ----------------------------------------------------------------------------------------------------


def test_page_shows_devices_services_groups_and_traffic(start: Start, look: Callable[[str], Page]) -> None:
    manager = start(live=Host())
    manager.create("0:08:40", "0:08:41", "1:08:40", job=NAUGHTY)
    page = look(f"{address(manager)}/#{TOKEN}")
    page.until("document.querySelector('#state').textContent === 'live'")
    page.until("document.querySelectorAll('#devices tr')[1].innerText.includes('1.5 k/s')")
    rows = page.value("[...document.querySelectorAll('#devices tr')].map((one) => one.innerText)")
    assert len(rows) == 3
    assert {"cxi0", "up", "02:00:00:00:08:40", "1/1", "python (41)"} <= {one.strip() for one in rows[1].split("\t")}
    assert "down" in rows[2]
    assert "12 of 40 les" in page.text("#services")
    assert "disabled" in page.text("#services")
    assert NAUGHTY in page.text("#groups")
    page.value("document.querySelector('#groups details').open = true")
    assert "02:00:00:00:08:40 → 1/1" in page.until("document.querySelector('#groups details div').innerText")
    assert "33/1" in page.text("#switches")
    assert NAUGHTY in page.text("#jobs")
    assert page.until("document.querySelector('#devices polyline').points.length > 1")
    assert page.value("document.title") == "Weft Fabric Manager"
    assert page.value("location.href") == f"{address(manager)}/"  # the token has left the address
    assert page.value("document.querySelectorAll('img').length") == 0
    assert all(one.startswith(address(manager)) for one in page.requests)
    assert page.faults == []


def test_page_is_live(start: Start, look: Callable[[str], Page]) -> None:
    """Later changes appear on the open page; an opened tree stays open."""
    manager = start(live=Host())
    page = look(f"{address(manager)}/#{TOKEN}")
    page.until("document.querySelector('#groups').innerText.includes('no group')")
    manager.create("0:08:40", job="first")
    page.until("document.querySelector('#groups').innerText.includes('first')")
    page.value("document.querySelector('#groups details').open = true")
    manager.create("0:08:41", job="second")
    page.until("document.querySelector('#groups').innerText.includes('second')")
    assert page.value("[...document.querySelectorAll('#groups details')].map((one) => one.open)") == [True, False]
    assert page.text("[data-name=groups] b") == "2"
    manager.ask("DELETE", f"{server.MULTICAST}/0")
    page.until("!document.querySelector('#groups').innerText.includes('first')")
    assert page.faults == []


def test_page_asks_for_a_token(manager: Manager, look: Callable[[str], Page]) -> None:
    page = look(f"{address(manager)}/")
    page.until("!document.querySelector('#ask').hidden")
    assert page.value("document.querySelector('#all').hidden")
    for token in ("guess", TOKEN):
        page.value(f"document.querySelector('#token').value = {json.dumps(token)}")
        page.value("document.querySelector('#ask button').click()")
        if token == "guess":
            page.until("document.querySelector('#wrong').textContent.includes('refused')")
    page.until("document.querySelector('#state').textContent === 'live'")
    page.reload()
    page.until("document.readyState === 'complete' && document.querySelector('#state').textContent === 'live'")


def test_page_says_that_the_manager_is_gone_and_goes_on_when_it_is_back(
    tmp_path: Path, look: Callable[[str], Page]
) -> None:
    with Store(tmp_path / "fabric.db") as store:
        listener = server.listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        with server.running(server.application(store, [TOKEN]), listener) as url:
            page = look(f"{url.removesuffix(server.MULTICAST)}/#{TOKEN}")
            page.until("document.querySelector('#state').textContent === 'live'")
        page.until("document.querySelector('#state').textContent.startsWith('no answer')")
        assert page.value("document.querySelector('#all').hidden") is False  # known facts stay, marked as old
        with server.running(server.application(store, [TOKEN]), server.listen("127.0.0.1", port)):
            page.until("document.querySelector('#state').textContent === 'live'")


def test_groups_without_a_manager_are_shown(start: Start, look: Callable[[str], Page]) -> None:
    """On one host a join needs no server; the page of one shows its groups all the same."""
    with weft.testing.cxi() as host, host.active(), members(3, "cxi") as found:
        page = look(f"{address(start(live=_fm_host.live))}/#{TOKEN}")
        page.until("document.querySelector('#state').textContent === 'live'")
        assert page.value("document.querySelector('#own').hidden")
        (group, *_) = join_all(found)
        page.until("document.querySelectorAll('#owned td').length === 6")
        row = page.text("#owned tr:nth-child(2)").split()
        assert row[0] == str(group.statistics().multicast)
        assert row[2] == "3"
        assert str(os.getpid()) in row
        for one in found:
            one.groups.pop().close()
        page.until("document.querySelector('#own').hidden")
        assert page.faults == []


def test_button_releases_a_job(manager: Manager, look: Callable[[str], Page]) -> None:
    manager.create("0:08:40", job="a/b c")
    manager.create("0:08:41", job="kept")
    page = look(f"{address(manager)}/#{TOKEN}")
    page.until("document.querySelectorAll('#jobs button').length === 2")
    page.value("window.confirm = (text) => { window.asked = text; return true; }")
    page.value("document.querySelector('#jobs button').click()")
    page.until("document.querySelectorAll('#jobs button').length === 1")
    assert "a/b c" in page.value("window.asked")
    assert [one.job_id for one in manager.store.groups()] == ["kept"]


def test_traffic_of_this_host_reaches_the_page(start: Start, look: Callable[[str], Page]) -> None:
    """Writes between two endpoints of a CXI device, through its counters, to a number on the screen."""
    with weft.testing.cxi() as host, host.active(), host.pair() as pair:
        manager = start(live=_fm_host.live)
        page = look(f"{address(manager)}/#{TOKEN}")
        page.until("document.querySelectorAll('#devices tr').length >= 2")
        assert str(os.getpid()) in page.text("#devices")  # in use by this process
        assert "ptes" in page.text("#services")
        memory = np.zeros(64, np.uint8)
        remote = pair.remote(pair.target.reg(memory))
        end = threading.Event()

        def write() -> None:
            while not end.is_set():
                pair.initiator.ep.write(b"12345678", dest_addr=pair.peer, addr=remote.addr, key=remote.key)
                pair.initiator.wait()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            page.until("!document.querySelectorAll('#devices td.number')[0].innerText.startsWith('0 ')")
        finally:
            end.set()
            thread.join()
        page.until("document.querySelectorAll('#devices td.number')[0].innerText.startsWith('0 ')")
        assert page.faults == []
