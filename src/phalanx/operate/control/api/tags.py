"""Entity tags (RFC 9110): who read something before hears 304 in place of the same again, and who changes it may say what it was.

Where a route knows of what its answer is made (the committed world's number, the newest step), its tag is made of that, and an
answer that is known is not rendered at all. Of any other answer the bytes make the tag: that spares the way, and
the reader's parsing.
"""

import hashlib
from collections.abc import MutableMapping
from typing import Annotated, Any, Final

from fastapi import Header, Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phalanx.core.errors import Stale

VARY: Final = "Authorization"
"""What somebody may see is theirs: no store that several read from takes it for another's."""

_BYTES: Final = 12
_CHARS_MAX: Final = 2_000
IfMatch = Annotated[str, Header(alias="If-Match", max_length=_CHARS_MAX)]
IfNoneMatch = Annotated[str, Header(alias="If-None-Match", max_length=_CHARS_MAX)]
"""For a write: `*` is 'only if there is none yet'."""


def tag_of(*parts: object) -> str:
    """The tag of what is made of `parts`, which are told apart by their repr: plain facts alone."""
    return tag_of_bytes(repr(parts).encode(errors="backslashreplace"))


def tag_of_bytes(data: bytes) -> str:
    return f'"{hashlib.blake2b(data, digest_size=_BYTES).hexdigest()}"'


def names(header: str, tag: str) -> bool:
    """Whether a list of tags has this one, weak or strong, or is `*`."""
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in header.split(","))


def unless_known(request: Request, response: Response, tag: str) -> None:
    """The answer has this tag. Raises NotModified for a reader who has it: nothing is rendered then."""
    if names(request.headers.get("if-none-match", ""), tag):
        raise NotModified(tag)
    response.headers["ETag"] = tag


class NotModified(HTTPException):
    """304: ends a route early."""

    def __init__(self, tag: str) -> None:
        super().__init__(304, headers={"ETag": tag, "Vary": VARY})


def check_match(what: str, tag: str | None, if_match: str, if_none_match: str = "") -> None:
    """Raises Stale when what is there now, of which `tag` is None where nothing is, is not what the writer takes it for."""
    if if_match and (tag is None or not names(if_match, tag)):
        raise Stale(what, if_match[:80], "was changed by somebody else since it was read; read it again, and its ETag with it")
    if if_none_match and tag is not None and names(if_none_match, tag):
        raise Stale(what, if_none_match[:80], "is there already; leave If-None-Match out to put this in its place")


class Tags:
    """ASGI middleware: an answer in JSON to a GET has a tag, and is not sent again to who has it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            send = _Tagging(send, Headers(scope=scope).get("if-none-match", ""))
        await self._app(scope, receive, send)


class _Tagging:
    """Holds the head of an answer back until its body is there, if that comes in one piece."""

    def __init__(self, send: Send, known: str) -> None:
        self._send = send
        self._known = known
        self._head: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_tagged(message):
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            if not message.get("more_body", False):
                message = self._tagged(head, message)
            await self._send(head)
        await self._send(message)

    def _tagged(self, head: MutableMapping[str, Any], body: Message) -> Message:
        headers = MutableHeaders(scope=head)
        tag = headers.setdefault("ETag", tag_of_bytes(body.get("body", b"")))
        headers.add_vary_header(VARY)
        if not self._known or not names(self._known, tag):
            return body
        head["status"] = 304
        for name in ("content-length", "content-type"):
            del headers[name]
        return {**body, "body": b""}


def _is_tagged(head: Message) -> bool:
    kind = Headers(raw=head["headers"]).get("content-type", "")
    return head["status"] == 200 and kind.startswith("application/json")
