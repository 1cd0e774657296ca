"""What every request passes before its body is read: the bearer's token, a limit on the body, a limit in time.

An ASGI application around another. In an admitted request, `scope["state"]["who"]` is the job whose token the bearer
has, or None for an administrator.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from .store import Refused

BODY_MAX = 16 << 20  # bytes: 2^20 members have 13 bytes each
PUBLIC_MAX = 64 << 10  # of a request without a token
BODY_S = 10.0
"""Limit for a request's body, once its headers are there."""

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]


class _TooMuch(Exception):
    """The body passes a limit. The application may turn this into an answer of its own, which is then replaced."""


class Gate:
    """The gate in front of an application.

    Args:
        tokens: Tokens of administrators.
        job_of_token: The job whose members have a token; blocks, so it runs in a thread. May raise Refused.
        public: Paths that need no token.
    """

    def __init__(
        self, app: _App, tokens: Sequence[str], job_of_token: Callable[[str], str | None], public: frozenset[str]
    ) -> None:
        self._app = app
        self._tokens = [one.encode() for one in tokens]
        self._job_of_token = job_of_token
        self._public = public

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        public = scope["path"] in self._public
        headers = _headers(scope["headers"])
        if not public:
            try:
                admitted, who = await self._bearer(headers.get(b"authorization", b""))
            except Refused as reason:
                await _answer(send, reason.status, reason.message)
                return
            if not admitted:
                await _answer(send, 401, "the token is missing, or unknown", ((b"www-authenticate", b"Bearer"),))
                return
            scope.setdefault("state", {})["who"] = who
        limit = PUBLIC_MAX if public else BODY_MAX
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > limit:
            await _answer(send, 413, f"the body is longer than {limit} bytes")
            return
        body = _Body(receive, limit)
        begun = False

        async def watched(message: _Message) -> None:
            nonlocal begun
            if body.fault is None or begun:
                begun = True
                await send(message)

        try:
            await self._app(scope, body, watched)
        except _TooMuch:
            pass
        if body.fault is not None and not begun:
            await _answer(send, *body.fault)

    async def _bearer(self, header: bytes) -> tuple[bool, str | None]:
        scheme, _, token = header.partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not token:
            return False, None
        # Every token is compared, in constant time, so that an answer's time tells nothing.
        if sum([hmac.compare_digest(token, one) for one in self._tokens]):
            return True, None
        try:
            text = token.decode("ascii")
        except UnicodeDecodeError:
            return False, None
        job = await asyncio.to_thread(self._job_of_token, text)
        return job is not None, job


def _headers(pairs: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    return {name.lower(): value for name, value in pairs}


class _Body:
    """`receive`, which ends with _TooMuch after `limit` bytes, or after BODY_S seconds of a body that does not come.

    Attributes:
        fault: Status and message of the answer, once that has happened.
    """

    def __init__(self, receive: _Receive, limit: int) -> None:
        self.fault: tuple[int, str] | None = None
        self._receive = receive
        self._limit = limit
        self._got = 0
        self._more = True
        self._end = time.monotonic() + BODY_S

    async def __call__(self) -> _Message:
        if not self._more:
            return await self._receive()
        coming = asyncio.ensure_future(self._receive())
        try:  # What has come counts, however late this process looks.
            await asyncio.wait([coming], timeout=max(self._end - time.monotonic(), 0))
        finally:
            coming.cancel()
        if not coming.done():
            self.fault = (408, f"the body did not come within {BODY_S:g} s")
            raise _TooMuch
        message = coming.result()
        self._got += len(message.get("body", b""))
        if self._got > self._limit:
            self.fault = (413, f"the body is longer than {self._limit} bytes")
            raise _TooMuch
        self._more = message.get("more_body", False)
        return message


async def _answer(send: _Send, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    body = json.dumps({"message": message}).encode()
    start = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    if status in (408, 413):
        start.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
