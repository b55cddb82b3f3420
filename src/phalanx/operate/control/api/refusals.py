"""What becomes of a request that may not: 401 or 403, 429 where there are too many, and a row of the audit log for some of them."""

import structlog
from fastapi import FastAPI
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from phalanx.core.errors import RateLimited, Unauthorized
from phalanx.operate.control.api.asker import UNKNOWN, address_of, asked_by, spawn
from phalanx.operate.control.api.errors import problem
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.people import audit
from phalanx.operate.control.people.notes import Note

log = structlog.get_logger(__name__)


def install(app: FastAPI) -> None:
    """After `errors.install`: these two kinds are answered here."""
    app.add_exception_handler(Unauthorized, _refused)
    app.add_exception_handler(RateLimited, _put_off)


def noted(connection: HTTPConnection, error: Unauthorized) -> RateLimited | None:
    """Writes the refusal down, unless there were too many; what to answer instead, when too many came from that address."""
    services: Services = connection.app.state.services
    now_s = services.clock.monotonic_ms() / 1000
    note = services.doors.refusals.kept(_note(connection, error, services.clock.now_ms()), now_s)
    if note is not None:
        spawn(_written(services, note))
    return services.doors.failure(address_of(connection), now_s)


async def _written(services: Services, note: Note) -> None:
    await services.control.call(lambda controller: audit.append(services.store, controller.epoch, note))


def _note(connection: HTTPConnection, error: Unauthorized, at_ms: int) -> Note:
    """Of the error its field and fix; its value may be what somebody took for a name and was a token."""
    known = asked_by(connection)
    method = str(connection.scope.get("method") or "WS")
    detail = f"{error.field}: {error.fix}"
    if known is not None:
        return known.note(f"refused.{method.lower()}", connection.url.path, at_ms, detail)
    address = address_of(connection)
    return Note(
        at_ms=at_ms,
        who=UNKNOWN,
        token="",
        what=f"refused.{method.lower()}",
        target=connection.url.path,
        address=address,
        detail=detail,
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unauthorized)
    instead = noted(request, error)
    return problem(error) if instead is None else await _put_off(request, instead)


async def _put_off(_: Request, error: Exception) -> Response:
    assert isinstance(error, RateLimited)
    answer = problem(error)
    answer.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return answer
