"""core.errors as application/problem+json (RFC 9457): one clear error, with the field, its value and what to change."""

from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from phalanx.core.errors import (
    Conflict,
    Forbidden,
    NotFound,
    PhalanxError,
    RateLimited,
    SpecError,
    Stale,
    Unauthorized,
    UserError,
    WorldError,
    shown,
)
from phalanx.core.validation import value_of, what_to_write

VALUE_CHARS_MAX: Final = 200
"""A value is quoted so that people recognise it, not to send it back whole."""

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
log = structlog.get_logger(__name__)


_STATUS: Final[tuple[tuple[type[PhalanxError], int], ...]] = (
    (Forbidden, 403),
    (Unauthorized, 401),
    (NotFound, 404),
    (Stale, 412),
    (Conflict, 409),
    (UserError, 422),
    (RateLimited, 429),
    (WorldError, 503),
)


def problem(error: BaseException, status: int | None = None) -> JSONResponse:
    """The answer to `error`. What is not in the tree is a bug: its words stay in the log."""
    status = status or next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    body: dict[str, Any] = {"title": type(error).__name__ if status != 500 else "Bug", "status": status}
    if isinstance(error, UserError):
        value = error.value if isinstance(error.value, str) else shown(error.value)
        words = {
            "detail": str(error)[: 4 * VALUE_CHARS_MAX],
            "field": error.field,
            "value": value[:VALUE_CHARS_MAX],
            "fix": error.fix,
        }
        body |= {name: text.encode(errors="backslashreplace").decode() for name, text in words.items()}
    else:
        body["detail"] = str(error) if status in (429, 503) else "a bug in Phalanx; the server's log has the details"
    return JSONResponse(body, status, headers=_headers(status), media_type="application/problem+json")


def _headers(status: int) -> dict[str, str]:
    return {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status, {})


def install(app: FastAPI) -> None:
    """Every way out of `app` that is an error goes through `problem`."""
    app.add_exception_handler(PhalanxError, lambda _, error: _said(error))
    app.add_exception_handler(RequestValidationError, lambda _, error: problem(_from_validation(error)))
    app.add_exception_handler(HTTPException, _from_http)
    app.add_exception_handler(ClientDisconnect, lambda *_: Response(status_code=400))  # nobody hears it, and it is no bug
    app.add_exception_handler(Exception, lambda _, error: _said(error))


def _said(error: Exception) -> JSONResponse:
    answer = problem(error)
    if answer.status_code == 503:
        log.warning("request_put_off", error=str(error))
    elif answer.status_code >= 500:
        log.error("request_failed", exc_info=error)
    return answer


def _from_validation(error: Exception) -> UserError:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    if first["type"] == "json_invalid":
        where = []  # else the place of the character
    return SpecError(".".join(where) or "body", value_of(first), what_to_write(first))


def _from_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 304:
        return Response(status_code=304, headers=error.headers)
    if error.status_code == 404:
        return problem(NotFound("path", request.url.path, "see /openapi.json for the routes there are"))
    if error.status_code == 413:
        return problem(SpecError("body", "too large", str(error.detail)), 413)
    if error.status_code == 405:
        return problem_405(request)
    body = {"title": "UserError", "status": error.status_code, "detail": str(error.detail)}
    return JSONResponse(body, error.status_code, headers=error.headers, media_type="application/problem+json")


def problem_405(request: Request) -> JSONResponse:
    """With every method that the path has: each is a route of its own, and Starlette names those of the first alone."""
    routes = request.app.router.routes
    scope = {name: value for name, value in request.scope.items() if name in ("type", "path", "root_path", "headers", "app")}
    known = [method for method in _METHODS if any(one.matches({**scope, "method": method})[0] is Match.FULL for one in routes)]
    allowed = ", ".join(known)
    answer = problem(SpecError("method", request.method, f"this path has {allowed}"), 405)
    answer.headers["Allow"] = allowed
    return answer
