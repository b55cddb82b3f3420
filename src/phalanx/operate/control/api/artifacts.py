"""Files that ranks gave: lists of them. Their bytes are blobs."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import HTTPConnection

from phalanx.core.errors import Forbidden, NotFound, Unauthorized
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.views import ArtifactView
from phalanx.operate.control import artifacts
from phalanx.operate.control.api.access import READS, JobHere, ServicesHere, attempt_of, refuse_collected
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.pages import LIMIT_MAX, LINK, Page, Pages
from phalanx.operate.control.api.services import Services

router = APIRouter(tags=["artifacts"])
Text = Annotated[str, Query(max_length=600)]


@router.get("/jobs/{job}/artifacts", dependencies=[READS], responses=LINK)
async def list_artifacts(
    services: ServicesHere,
    job: JobHere,
    page: Annotated[Page, Depends(Pages("artifacts", str, str))],
    attempt: Annotated[str, Query(max_length=100)] = "",
    after_attempt: Annotated[str, Query(max_length=100)] = "",
    after_name: Text = "",
) -> tuple[ArtifactView, ...]:
    """Newest version of each file, of all attempts or of one, by attempt and name. `after_attempt` and `after_name`, those of the
    last one, lead on as a cursor does."""
    only = attempt_of(job, attempt) if attempt else None
    wanted = (only,) if only is not None else job.attempts
    after = (str(page.after[0]), str(page.after[1])) if page.after else (after_attempt, after_name)
    limit = (page.limit or LIMIT_MAX) + 1
    found = await asyncio.to_thread(artifacts.of_attempts, services.store, wanted, after, limit)
    return page.cut(found, lambda one: (one.attempt, one.name))


@router.get("/jobs/{job}/artifact", dependencies=[READS])
async def artifact(
    services: ServicesHere, job: JobHere, name: Text, attempt: Annotated[str, Query(max_length=100)] = ""
) -> ArtifactView:
    """The file of that name: of the attempt, or of the newest one that has it. `GET /blobs/{sha256}` gives its bytes."""
    refuse_collected(job, "artifacts")
    only = attempt_of(job, attempt) if attempt else None
    wanted = (only,) if only is not None else job.attempts
    found = await asyncio.to_thread(artifacts.named, services.store, wanted, name)
    newest = next((found[one] for one in reversed(wanted) if one in found), None)
    if newest is None:
        raise NotFound("name", name, f"no such artifact; list them with `phalanx artifacts ls {job.id}`")
    return newest


def may_store(
    connection: HTTPConnection,
    asker: AskerHere,
    node: Annotated[str, Query(max_length=255)] = "",
    attempt: Annotated[str, Query(max_length=100)] = "",
) -> None:
    """Members may store any blob, a node those of an attempt that holds devices there. Raises Unauthorized, NotFound."""
    if asker.known is not None:
        if asker.known.best in (None, "viewer"):
            raise Forbidden("role", asker.known.best, f"takes a member, by role and by the token's scope ({asker.known.scope})")
        return
    if not node or not attempt:
        raise Unauthorized("node", node, "a node stores blobs of its attempts: name both in the query")
    services: Services = connection.app.state.services
    services.tokens.check_name(asker.caller, NodeId(node))
    if services.control.world.current(AttemptId(attempt), NodeId(node)) is None:
        raise NotFound("attempt", attempt, f"holds no devices of {node}")
