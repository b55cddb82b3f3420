"""What every connection passes before any route: the Host it names, where its page came from, and how much it may send.

The API listens on loopback, and a browser on the same machine is the way in for strangers: DNS rebinding makes a foreign page's
name resolve to 127.0.0.1 (the Host header betrays it), and a foreign page may send a write without reading the answer (the
Origin header betrays it). Answers say that they are what their type says, and nothing that a page may show or frame.
"""

import re
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from phalanx.core.errors import SpecError, Unauthorized, UserError
from phalanx.operate.control.api.errors import problem
from phalanx.storage.blobs import BLOB_BYTES_MAX

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
BODY_BYTES_MAX: Final = 1024 * 1024
BLOBS: Final = "/api/v1/blobs/"
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
"""As RFC 9110 has it, without the user, path and query that whoever reads it as a URL would find."""

_ANSWERED: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
"""A name, a log line or an artifact is data of somebody's: no browser makes a page of it, whatever is in it."""


class Guards:
    """ASGI middleware: refuses, or passes on with a counted body."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] = LOOPBACK) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope, Headers(scope=scope))
        if refused is None:
            await self._app(scope, _counted(receive, _limit(scope)), _marked(send))
        elif scope["type"] == "websocket":
            await WebSocketClose(1008, str(refused[1]))(scope, receive, send)
        else:
            await problem(refused[1], refused[0])(scope, receive, _marked(send))

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, UserError] | None:
        host = headers.get("host", "")
        if _name(host) not in self._hosts:
            return 400, SpecError("Host", host, "reach the API by 127.0.0.1 or localhost")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host and scope.get("method") not in _READS:
            return 403, Unauthorized("Origin", origin, "a page of another site may not write here")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _limit(scope):
            return 413, SpecError("body", f"{length} bytes", f"send at most {_limit(scope)} bytes")
        return None


def _name(host: str) -> str:
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def _marked(send: Send) -> Send:
    async def marking(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = MutableHeaders(scope=message)
            for name, value in _ANSWERED.items():
                headers.setdefault(name, value)
        await send(message)

    return marking


def _limit(scope: Scope) -> int:
    return BLOB_BYTES_MAX if scope["path"].startswith(BLOBS) else BODY_BYTES_MAX


def _counted(receive: Receive, limit: int) -> Receive:
    """`receive`, raising once a body without an honest Content-Length grows over `limit`."""
    total = 0

    async def counting() -> Message:
        nonlocal total
        message = await receive()
        if message["type"] == "http.request":
            total += len(message.get("body", b""))
            if total > limit:
                raise HTTPException(413, f"send at most {limit} bytes")
        return message

    return counting
