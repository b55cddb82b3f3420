"""One HTTP exchange with the control plane: retries of what may be repeated, and problem+json to core.errors."""

import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import httpx

from phalanx.client.steps import Answer, Ask, Params
from phalanx.core import errors
from phalanx.core.errors import (
    Bug,
    Conflict,
    Forbidden,
    NotFound,
    PhalanxError,
    RateLimited,
    ServerUnreachable,
    SpecError,
    Stale,
    StoreUnavailable,
    Unauthorized,
    UserError,
)

T = TypeVar("T")
RETRY_DELAYS_S: Final = (0.1, 0.2, 0.4, 0.8)
"""Waits between tries of a call that may be repeated: long enough for a server that is being started again."""

TIMEOUT_S: Final = 30.0
EVENT_STREAM: Final = "text/event-stream"
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_START: Final = "start the platform with `phalanx up`, or check PHALANX_URL"
_BY_STATUS: Final[Mapping[int, type[UserError]]] = {
    400: SpecError, 401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict, 412: Stale, 413: SpecError, 422: SpecError,
}  # fmt: skip


@dataclass(slots=True)
class Line:
    """The connection to one control plane. `relocate` gives (url, token) anew: a restarted server may have another port.

    delays_s: waits between tries of what may be repeated; empty tries once. Thread-safe as far as httpx.Client is; `sleep` is
    injected for tests.
    """

    url: str
    http: httpx.Client
    relocate: Callable[[], tuple[str, str]] | None
    sleep: Callable[[float], None]
    delays_s: Sequence[float] = RETRY_DELAYS_S

    def repeat(self, call: Callable[[], T]) -> T:
        """The answer of `call`, which must be safe to repeat; raises the last ServerUnreachable, `lost` when any of them was."""
        lost = False
        for delay_s in self.delays_s:
            try:
                return call()
            except ServerUnreachable as error:
                lost |= error.lost
                self.sleep(delay_s)
                self._look_again()
        try:
            return call()
        except ServerUnreachable as error:
            error.lost |= lost
            raise

    def exchange(self, method: str, path: str, missing_ok: bool = False, **kwargs: Any) -> httpx.Response:
        """One request. Raises the error that the answer stands for; with `missing_ok` a 404 is an answer."""
        try:
            response = self.http.request(method, f"/api/v1{path}", **kwargs)
        except httpx.TransportError as error:
            raise unanswered(error, self.url, self.http.timeout.read) from error
        if response.is_success or (missing_ok and response.status_code == 404):
            return response
        raise problem(response, self.url)

    def _look_again(self) -> None:
        """Follow a server that came back elsewhere. A home that is being written at this moment changes nothing."""
        if self.relocate is None:
            return
        try:
            url, token = self.relocate()
        except PhalanxError:
            return
        self.url = url
        self.http.base_url = httpx.URL(url)
        self.http.headers["Authorization"] = f"Bearer {token}"


def open_line(
    url: str,
    token: str,
    transport: httpx.BaseTransport | None = None,
    relocate: Callable[[], tuple[str, str]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Line:
    """A line that has not been used yet. Redirects are not followed: they would carry the token elsewhere."""
    return Line(url, httpx.Client(transport=transport, **for_line(url, token)), relocate, sleep)


def for_line(url: str, token: str) -> dict[str, Any]:
    """How either of httpx's clients is made for a server."""
    plain = urlsplit(url).scheme == "http"
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {token}", "Accept": "application/json"},
        "timeout": TIMEOUT_S,
        "trust_env": not plain,  # plain HTTP is loopback, where a proxy from the environment has no business
        # Reading the CA bundle costs 20 ms, for nothing on plain HTTP; this context trusts nobody, so it fails closed.
        "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
    }


def unanswered(error: httpx.TransportError, url: str, limit_s: float | None) -> ServerUnreachable:
    """What it is that no answer came."""
    if isinstance(error, httpx.TimeoutException):
        sentence = f"{url} did not answer in {limit_s or TIMEOUT_S:g} s; try again, and look at run/server.log"
    else:
        sentence = f"{url} does not answer ({error}); {_START}"
    return ServerUnreachable(sentence, lost=not isinstance(error, _NOT_SENT))


def request_of(ask: Ask) -> dict[str, Any]:
    """As httpx takes it; what is not set is not sent."""
    asked: dict[str, Any] = {}
    if ask.params is not None:
        asked["params"] = _said(ask.params)
    if ask.content is not None:
        asked["content"] = ask.content
    if ask.headers is not None:
        asked["headers"] = dict(ask.headers)
    return asked


def listening(params: Params | None, last: str) -> dict[str, Any]:
    """How a stream is asked for, as httpx takes it."""
    headers = {"Accept": EVENT_STREAM, **({"Last-Event-ID": last} if last else {})}
    return {"params": _said(params), "headers": headers}


def check_stream(response: httpx.Response, url: str) -> None:
    """Raises the error that an answer stands for which is no stream; its body must have been read where it is none."""
    if not response.is_success:
        raise problem(response, url)
    if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
        raise NotFound("path", str(response.url.path), "answers no stream of events; it is of another version")


def is_stream(response: httpx.Response) -> bool:
    """Whether its body is one, and goes on."""
    return response.is_success and response.headers.get("content-type", "").startswith(EVENT_STREAM)


def answer_of(response: httpx.Response, url: str) -> Answer:
    return Answer(response.is_success, response.content, url, next_cursor(response))


def unreadable(url: str, error: ValueError) -> ServerUnreachable:
    return ServerUnreachable(f"{url} answered something this client cannot read ({error}); are both the same Phalanx?", lost=True)


def _said(params: Params | None) -> dict[str, str | int]:
    """Those that say something."""
    return {name: value for name, value in (params or {}).items() if value is not None and value != ""}


def next_cursor(response: httpx.Response) -> str:
    """Of the page that follows this one; '' where none does."""
    url = response.links.get("next", {}).get("url", "")
    return dict(parse_qsl(urlsplit(url).query)).get("cursor", "")


def problem(response: httpx.Response, url: str) -> PhalanxError:
    """The error that a refused request stands for: the class its title names, else the one of its status."""
    status = response.status_code
    body = _body(response)
    detail = str(body.get("detail") or response.reason_phrase or "no reason given")
    if "application/problem+json" not in response.headers.get("content-type", "") and status not in (401, 422, 429, 500):
        return ServerUnreachable(f"{url} answers {status}, but not as Phalanx does; {_START}")
    if status in _BY_STATUS:
        kind = _named(str(body.get("title", ""))) or _BY_STATUS[status]
        return kind(str(body.get("field") or "request"), body.get("value"), str(body.get("fix") or detail))
    if status == 429:
        return RateLimited(detail, _seconds(response.headers.get("retry-after", "")))
    if status == 503:
        return StoreUnavailable(detail)
    if status in (502, 504):
        return ServerUnreachable(f"{url}: {detail}", lost=True)
    return Bug(f"the server failed ({status}: {detail}); its run/server.log says more")


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 6 else 1.0


def _named(title: str) -> type[UserError] | None:
    kind = getattr(errors, title, None) if title.isidentifier() else None
    return kind if isinstance(kind, type) and issubclass(kind, UserError) and kind is not UserError else None


def _body(response: httpx.Response) -> Mapping[str, Any]:
    try:
        body = json.loads(response.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
