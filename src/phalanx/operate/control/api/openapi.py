"""The OpenAPI document: what FastAPI tells of the routes, and beside it what every route may answer when it refuses.

Which refusals a route has follows from what it takes: a path that names something may be of nothing, a body may be too large. What
follows from nothing but the route itself (409, 412) it says with `refusals`.
"""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from phalanx.operate.control.api.access import authorities
from phalanx.operate.control.api.openapi_kinds import complete

PROBLEM: Final = "application/problem+json"
_PROBLEM_SCHEMA: Final[Mapping[str, Any]] = {
    "title": "Problem",
    "type": "object",
    "description": "RFC 9457. `title` as in docs/errors.md; what a caller can mend has `field`, `value` and `fix`.",
    "required": ["title", "status", "detail"],
    "properties": {
        "title": {"type": "string", "examples": ["NotFound"]},
        "status": {"type": "integer", "minimum": 400, "maximum": 599, "examples": [404]},
        "detail": {"type": "string", "examples": ["job: 'tiny-9': there is no such job; list them with `phalanx ls`"]},
        "field": {"type": "string", "examples": ["job"]},
        "value": {"type": "string", "examples": ["tiny-9"]},
        "fix": {"type": "string", "examples": ["there is no such job; list them with `phalanx ls`"]},
    },
}
_SAID: Final[Mapping[int, str]] = {
    400: "The request cannot be read, or names a host by which the API may not be reached",
    401: "No token, or one that nobody knows, that is over or was revoked",
    403: "The token's owner may not do this, or not by this token; or a page of another site wants to write",
    404: "Nothing has that name",
    409: "The request does not fit the present state; `fix` says what would",
    412: "What If-Match names is not what is there now; read it again",
    413: "The body is too large",
    422: "`field` has a `value` that cannot be; `fix` says what to write",
    429: "Too many requests; Retry-After says when the next one is taken",
    503: "The database or another part is away for the moment; the same request may be made again",
}
RAW_BODY: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
"""For `openapi_extra=` of a route that takes bytes."""
BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The bytes", "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
"""For `responses=` of a route that answers with bytes."""
_TOKENS: Final = (
    "A token of this platform: see docs/api.md. What a route wants of it is the scope `read`, `submit` or `admin`, with a role of "
    "its owner that is as much; or that it is a node's (`node`), or one to join with (`join`)"
)
_ROLES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "somebody": ((),),
    "reads": (("read",),),
    "submits": (("submit",),),
    "leads": (("admin",),),
    "rules": (("admin",),),
    "nodes": (("node",),),
    "reads or nodes": (("read",), ("node",)),
    "a join token": (("join",),),
    "anybody, without a token": (),
}
"""By authority, any of these sets of roles, as OpenAPI 3.1 has them for a scheme that is no OAuth."""

_HEADERS: Final[Mapping[int, Mapping[str, Any]]] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}, "description": "Bearer"}},
    429: {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds"}},
    503: {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds"}},
}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route: refusals that do not follow from what it takes."""
    return {code: _refusal(code) for code in codes}


def operation_id(route: APIRoute) -> str:
    """The name of the function: unique, and what a generated client calls its method."""
    return route.name


def install(app: FastAPI) -> None:
    """`app.openapi` answers with the whole document, made once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = completed(made, _wanted(app))
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign] # FastAPI's documented way to extend it


def completed(document: dict[str, Any], wanted: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """`document` with its refusals, and of each route the token that it wants. wanted: authorities by path and method."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = dict(_PROBLEM_SCHEMA)
    complete(schemas)
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "description": _TOKENS}}
    document["security"] = [{"bearer": []}]
    for name, path in document["paths"].items():
        for method, operation in path.items():
            operation["security"] = [{"bearer": list(roles)} for roles in _ROLES[wanted[name, method]]]
            for code in _follows(operation):
                operation["responses"].setdefault(str(code), _refusal(code))
            operation["responses"]["422"] = _refusal(422)
            if method == "get":
                _tell_tag(operation["responses"])
    return document


def _tell_tag(responses: dict[str, Any]) -> None:
    """Every reading that answers at once has a tag."""
    tag = {"ETag": {"schema": {"type": "string"}, "description": "Send it back as If-None-Match: 304 where nothing changed"}}
    if responses["200"].get("content", {}).keys() & {"application/json", "application/octet-stream"}:
        responses["200"]["headers"] = responses["200"].get("headers", {}) | tag
        responses["304"] = {"description": "Nothing changed since the answer with the tag in If-None-Match", "headers": tag}


def _wanted(app: FastAPI) -> dict[tuple[str, str], str]:
    """Of each path and method."""
    return {
        (path, method.lower()): authority
        for route, path, authority in authorities(app.routes)
        for method in getattr(route, "methods", None) or ()
    }


def _follows(operation: Mapping[str, Any]) -> list[int]:
    """The refusals that what it takes lets it have."""
    named = any(one["in"] == "path" for one in operation.get("parameters", ()))
    has_body = "requestBody" in operation
    return [400, 401, 403, 429, 503, *([404] if named else []), *([413] if has_body else [])]


def _refusal(code: int) -> dict[str, Any]:
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answer: dict[str, Any] = {"description": _SAID[code], "content": content}
    return answer | ({"headers": dict(_HEADERS[code])} if code in _HEADERS else {})
