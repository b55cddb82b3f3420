"""Attempts of a job: each launch, with its ranks, exits and recoveries."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from phalanx.core.errors import NotFound
from phalanx.core.ids import split_attempt
from phalanx.core.views import AttemptView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, JobHere, ServicesHere, attempt_of
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.tags import tag_of, unless_known
from phalanx.operate.control.api.veil import veil_of

router = APIRouter(tags=["attempts"])


@router.get("/jobs/{job}/attempts", dependencies=[READS], responses=LINK)
async def list_attempts(
    services: ServicesHere, asker: AskerHere, job: JobHere, page: Annotated[Page, Depends(Pages("attempts", int))]
) -> tuple[AttemptView, ...]:
    """Every attempt that is kept, the newest hundred, oldest first."""
    wanted = page.of(job.attempts, lambda one: (split_attempt(one)[1],))
    veil = veil_of(services, asker)
    return tuple(veil.attempt(views.attempt_view(services.control.world.attempts[one]), job.spec) for one in wanted)


@router.get("/jobs/{job}/attempts/{attempt}", dependencies=[READS])
async def get_attempt(
    services: ServicesHere,
    asker: AskerHere,
    request: Request,
    response: Response,
    job: JobHere,
    attempt: Annotated[str, Path(max_length=100)],
) -> AttemptView:
    """One attempt, by its number or its id."""
    found = attempt_of(job, attempt)
    if found is None:
        raise NotFound("attempt", attempt, f"{job.id} has none yet")
    world = services.control.world
    unless_known(request, response, tag_of(asker.sight, services.control.epoch, world.seq, found))
    return veil_of(services, asker).attempt(views.attempt_view(world.attempts[found]), job.spec)
