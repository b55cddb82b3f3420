"""Attempts of a job: each launch, with its ranks, exits and recoveries."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from phalanx.core.errors import NotFound
from phalanx.core.ids import split_attempt
from phalanx.core.views import AttemptView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import JobHere, ServicesHere, attempt_of
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.tags import tag_of, unless_known

router = APIRouter(tags=["attempts"])


@router.get("/jobs/{job}/attempts", responses=LINK)
async def list_attempts(
    services: ServicesHere, job: JobHere, page: Annotated[Page, Depends(Pages("attempts", int))]
) -> tuple[AttemptView, ...]:
    """Every attempt that is kept, the newest hundred, oldest first."""
    wanted = page.of(job.attempts, lambda one: (split_attempt(one)[1],))
    return tuple(views.attempt_view(services.control.world.attempts[one]) for one in wanted)


@router.get("/jobs/{job}/attempts/{attempt}")
async def get_attempt(
    services: ServicesHere, request: Request, response: Response, job: JobHere, attempt: Annotated[str, Path(max_length=100)]
) -> AttemptView:
    """One attempt, by its number or its id."""
    found = attempt_of(job, attempt)
    if found is None:
        raise NotFound("attempt", attempt, f"{job.id} has none yet")
    world = services.control.world
    unless_known(request, response, tag_of(services.control.epoch, world.seq, found))
    return views.attempt_view(world.attempts[found])
