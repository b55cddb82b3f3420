"""Who may use a route, and whether the things its path names exist: checked before anything touches a file."""

from typing import Annotated, Final

from fastapi import Depends, Path, Query
from starlette.requests import HTTPConnection

from phalanx.core.errors import NotFound, Unauthorized
from phalanx.core.ids import AttemptId, JobId, NodeId, attempt_id, split_attempt
from phalanx.core.units import utc_day
from phalanx.operate.control.api.services import Services, services_of
from phalanx.operate.control.auth import Caller, Role
from phalanx.operate.control.world import JobRecord

ServicesHere = Annotated[Services, Depends(services_of)]
RankQuery = Annotated[int, Query(ge=0, le=1_000_000)]
BY: Final = "admin"
"""The only user there is until there are accounts."""

_JOBS: Final = "list them with `phalanx ls`"


def admin(connection: HTTPConnection) -> Caller:
    """Raises Unauthorized unless the admin asks."""
    return _one_of(connection, ("admin",))


def admin_or_node(connection: HTTPConnection) -> Caller:
    """Raises Unauthorized unless the admin or a node's agent asks."""
    return _one_of(connection, ("admin", "node"))


def node(connection: HTTPConnection) -> Caller:
    """Raises Unauthorized unless a node's agent asks."""
    return _one_of(connection, ("node",))


def named_node(connection: HTTPConnection, node: Annotated[str, Query(max_length=255)]) -> NodeId:
    """The node that the query names. Raises Unauthorized unless the agent of that very node asks."""
    services: Services = connection.app.state.services
    services.tokens.check_name(_one_of(connection, ("node",)), NodeId(node))
    return NodeId(node)


NamedNode = Annotated[NodeId, Depends(named_node)]


def _one_of(connection: HTTPConnection, roles: tuple[Role, ...]) -> Caller:
    services: Services = connection.app.state.services
    caller = services.tokens.caller(connection.headers.get("authorization"))
    if caller.role not in roles:
        raise Unauthorized("Authorization", f"(the token of a {caller.role})", "use the token in $PHALANX_HOME/token")
    return caller


def known_job(services: ServicesHere, job: Annotated[str, Path(max_length=100)]) -> JobRecord:
    """The job that the path names. Raises NotFound; an unknown name never becomes part of a path."""
    record = services.control.world.jobs.get(JobId(job))
    if record is None:
        raise NotFound("job", job, f"there is no such job; {_JOBS}")
    return record


JobHere = Annotated[JobRecord, Depends(known_job)]


def attempt_of(job: JobRecord, text: str) -> AttemptId | None:
    """The attempt that a query names by number or id, else the newest; None when there is none yet. Raises NotFound."""
    if not text:
        return job.attempt
    wanted = attempt_id(job.id, int(text)) if text.isascii() and text.isdecimal() and len(text) < 10 else AttemptId(text)
    if wanted not in job.attempts:
        known = f"it has {split_attempt(job.attempts[-1])[1]}" if job.attempts else "it has none yet"
        raise NotFound("attempt", text, f"{job.id} has no such attempt; {known}")
    return wanted


def refuse_collected(job: JobRecord, what: str) -> None:
    """Raises NotFound for `what` of a job of which only rows and events are left."""
    if job.collected_ms is not None:
        fix = f"its {what} were collected on {utc_day(job.collected_ms)}; `phalanx describe {job.id}` shows what is left"
        raise NotFound("job", job.id, fix)
