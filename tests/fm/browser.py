"""A real browser (Chromium), driven through its own protocol over a pipe: no package and no driver is needed.

WEFT_BROWSER names the program; otherwise chromium, chromium-browser, google-chrome or chrome on PATH.
Source: Chrome DevTools Protocol, --remote-debugging-pipe: JSON with a NUL after each message, fd 3 in and fd 4 out.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.patience import Patience

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def program() -> str | None:
    """The browser of this machine."""
    return os.environ.get("WEFT_BROWSER") or next((found for name in NAMES if (found := shutil.which(name))), None)


# The pipe's ends become descriptors 3 and 4, whatever these were.
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for at, end in enumerate(ends, 3):
    os.dup2(end, at)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A browser without a window, with a profile of its own in `folder`."""

    def __init__(self, command: str, folder: Path) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), command, *options],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._data = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """A command of the protocol; its result. Events that come before it are kept in `events`."""
        self._last += 1
        wanted = {"id": self._last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(wanted).encode() + b"\0")
        patience = Patience(60)
        while True:
            message = self._message(patience)
            if message.get("id") == self._last:
                assert "error" not in message, message
                found: dict[str, Any] = message["result"]
                return found
            if "method" in message:
                self.events.append(message)

    def _message(self, patience: Patience) -> dict[str, Any]:
        while b"\0" not in self._data:
            assert not patience.over, "the browser does not answer"
            if select.select([self._in], [], [], 1.0)[0]:
                more = os.read(self._in, 1 << 16)
                assert more, f"the browser has ended: {self._process.wait(10)}"
                self._data += more
        text, _, self._data = self._data.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        """End the browser and its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)


class Page:
    """A page of a browser. `faults`: its scripts' exceptions and its console's lines; `requests`: its requests."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value, once it is true. While a page loads, an expression may fail: that counts as not yet."""
        patience = Patience(60)
        safe = f"(() => {{ try {{ return {expression}; }} catch (reason) {{ return false; }} }})()"
        while not (found := self.value(safe)):
            assert not patience.over, f"never true: {expression}\n{self.value('document.body.innerText')}"
            time.sleep(0.02)
        return found

    def text(self, selector: str) -> str:
        """The text of the first element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def reload(self) -> None:
        self.call("Page.reload")

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    @property
    def faults(self) -> list[str]:
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(one["params"]) for one in self._events() if one["method"] in kinds]

    @property
    def requests(self) -> list[str]:
        return [
            str(e["params"]["request"]["url"]) for e in self._events() if e["method"] == "Network.requestWillBeSent"
        ]

    def _events(self) -> list[dict[str, Any]]:
        self.value("0")  # earlier events have come
        return [one for one in self._browser.events if one.get("sessionId") == self._session]
