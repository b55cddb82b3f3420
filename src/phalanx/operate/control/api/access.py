"""What a route asks of whoever calls it, and whether the things its path names exist for them: before anything touches a file.

Each route declares one `Authority`; one that declares none is not served. What another team has is answered in the very words of
what does not exist.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Path, Query
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute

from phalanx.core.errors import Bug, Forbidden, NotFound, SpecError
from phalanx.core.ids import AttemptId, JobId, NodeId, attempt_id, split_attempt
from phalanx.core.people import PLATFORM, Person, Role
from phalanx.core.units import utc_day
from phalanx.operate.control.api.asker import Asker, AskerHere, asker
from phalanx.operate.control.api.services import Services, services_of
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.world import JobRecord

T = TypeVar("T")
ServicesHere = Annotated[Services, Depends(services_of)]
RankQuery = Annotated[int, Query(ge=0, le=1_000_000)]

_JOBS: Final = "list them with `phalanx ls`"


class Authority:
    """What a route wants, in one word; itself the dependency that checks it."""

    def __init__(self, name: str, check: Callable[[Asker], None]) -> None:
        self.name = name
        self._check = check

    async def __call__(self, asker: AskerHere) -> None:
        """Raises Unauthorized, Forbidden, RateLimited."""
        self._check(asker)


class Apart:
    """The authority of a route that checks it in its own way, named so that nobody takes it for a route without one."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self) -> None:
        """Nothing here."""


def _somebody(asker: Asker) -> None:
    _ = asker.person


def _at_least(role: Role) -> Callable[[Asker], None]:
    def check(asker: Asker) -> None:
        person = asker.person
        if person.best is None:
            fix = "is in no team yet, so there is nothing to see; have an admin add you: `phalanx team add TEAM USER`"
            raise Forbidden("user", person.user, fix)
        if not any(person.has(role, team) for team in (*person.roles, PLATFORM)):
            raise Forbidden("role", person.best, f"takes a {role}, by role and by the token's scope ({person.scope})")

    return check


def _ruler(asker: Asker) -> None:
    if not asker.person.rules:
        raise Forbidden("user", asker.person.user, "takes an admin of the whole platform, with a token of scope admin")


def _node(asker: Asker) -> None:
    if asker.caller.role != "node":
        raise Forbidden("Authorization", f"(the token of {asker.name})", "is for agents; use a node's credential")


def _reader_or_node(asker: Asker) -> None:
    if asker.caller.role != "node":
        _at_least("viewer")(asker)


SOMEBODY: Final = Depends(Authority("somebody", _somebody))
"""Whoever has a token of a person, in a team or not."""

READS: Final = Depends(Authority("reads", _at_least("viewer")))
"""Who has a role in some team; what they see of it is for the route to say."""

SUBMITS: Final = Depends(Authority("submits", _at_least("member")))
"""Members; whether in the team that it is about is for the route to say."""

LEADS: Final = Depends(Authority("leads", _at_least("admin")))
"""Admins of a team, likewise."""

RULES: Final = Depends(Authority("rules", _ruler))
"""Admins of the platform."""

NODES: Final = Depends(Authority("nodes", _node))
READS_OR_NODES: Final = Depends(Authority("reads or nodes", _reader_or_node))
JOINING: Final = Depends(Apart("a join token"))
SOCKET: Final = Depends(Apart("a node, by the socket's own check"))
INTO_A_JOB: Final = Depends(Apart("who may change the job, by the socket's own check"))
ANYBODY: Final = Depends(Apart("anybody, without a token"))


def authorities(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[BaseRoute, str, str]]:
    """(route, its path, what it wants) of all routes, those of included routers too. Raises Bug for one that declares none."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:  # FastAPI from 0.130 on keeps an included router whole
            context: Any = getattr(route, "include_context", None)
            yield from authorities(inner.routes, prefix + getattr(context, "prefix", ""))
            continue
        path = prefix + str(getattr(route, "path", route))
        wanted = [one.call.name for one in _declared(route)]
        if len(wanted) != 1:
            raise Bug(f"{path} declares {len(wanted)} authorities; name the one that it wants in its dependencies")
        yield route, path, wanted[0]


def _declared(route: BaseRoute) -> list[Any]:
    dependant: Any = getattr(route, "dependant", None)
    return [one for one in getattr(dependant, "dependencies", ()) if isinstance(one.call, Authority | Apart)]


async def found_node(connection: HTTPConnection) -> Asker:
    """For a socket, whose refusal is no answer of HTTP's. Raises Unauthorized, Forbidden."""
    found = await asker(connection)
    _node(found)
    return found


async def named_node(connection: HTTPConnection, asker: AskerHere, node: Annotated[str, Query(max_length=255)]) -> NodeId:
    """The node that the query names. Raises Unauthorized unless the agent of that very node asks."""
    services: Services = connection.app.state.services
    _node(asker)
    services.tokens.check_name(asker.caller, NodeId(node))
    return NodeId(node)


NamedNode = Annotated[NodeId, Depends(named_node)]


def sees(asker: Asker, job: JobRecord) -> bool:
    """Whether they may read the job."""
    return asker.known is not None and asker.known.sees(job.spec.team)


async def known_job(services: ServicesHere, asker: AskerHere, job: Annotated[str, Path(max_length=100)]) -> JobRecord:
    """The job that the path names, for who may see it. Raises NotFound; an unknown name never becomes part of a path."""
    return job_for(services, asker, job)


def job_for(services: Services, asker: Asker, job: str) -> JobRecord:
    """Raises NotFound also for another team's."""
    record = services.control.world.jobs.get(JobId(job))
    if record is None or not sees(asker, record):
        raise NotFound("job", job, f"there is no such job; {_JOBS}")
    return record


JobHere = Annotated[JobRecord, Depends(known_job)]


async def own_job(asker: AskerHere, job: JobHere) -> JobRecord:
    """The job that the path names, for who may change it. Raises NotFound, Forbidden."""
    return to_change(asker, job)


def to_change(asker: Asker, job: JobRecord) -> JobRecord:
    """The job that they see, for who may change it. Raises Forbidden."""
    if not asker.person.may_change(job.spec.team, job.by):
        whose = f"an admin of team {job.spec.team}" if job.spec.team else "an admin of the platform"
        raise Forbidden("job", job.id, f"is {job.by}'s; only they and {whose} may change it, with a token of scope submit or more")
    return job


JobToChange = Annotated[JobRecord, Depends(own_job)]


def team_for(services: Services, person: Person, named: str, role: Role) -> str:
    """The team for which they ask, in which they have `role`: the one named, else the platform's own for its admins, else their
    only one. Raises SpecError, Forbidden."""
    if named:
        directory = services.accounts.directory()
        if named not in directory.teams or person.role(named) is None:
            raise SpecError("team", named, f"is none of your teams; {_yours(person)}")
        if not person.has(role, named):
            raise Forbidden("team", named, f"takes a {role} of it, by role and by the token's scope ({person.scope})")
        return named
    if person.everywhere is not None:
        if not person.has(role, PLATFORM):
            raise Forbidden("scope", person.scope, f"takes a {role}; use a token of a higher scope")
        return PLATFORM
    found = person.teams_as(role)
    if not found:
        raise Forbidden("role", person.best, f"takes a {role}; ask an admin of your team, or use a token of a higher scope")
    if len(found) > 1:
        raise SpecError("team", "", f"name one of yours: {', '.join(found)}")
    return found[0]


def _yours(person: Person) -> str:
    return f"name one of {', '.join(sorted(person.roles))}" if person.roles else "`phalanx team ls` shows them"


async def change(services: Services, asker: Asker, what: str, on: str, act: Callable[[Controller], T], detail: str = "") -> T:
    """What `act` returns or raises on the control thread. What it changes is committed with its row of the audit log."""
    note = asker.note(what, on, services.clock.now_ms(), detail)
    return await services.control.change(lambda controller: controller.noted(note, act))


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
