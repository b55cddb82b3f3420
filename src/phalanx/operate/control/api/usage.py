"""Who was given how much of the fleet, and how much of that was spent in steps."""

import asyncio
import csv
import io
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.events import PartReleased
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.use_views import UsageView
from phalanx.operate.control.api.access import READS, ServicesHere, sees
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.usage_views import By, Shown, Window, touched, usage_views
from phalanx.operate.control.world import World

USUAL_MS: Final = 30 * 86_400_000
ATTEMPTS_MAX: Final = 5_000
"""In one window: the measurements of each are read, though once alone of what is over."""

TABLE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {
            "application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/UsageView"}}},
            "text/csv": {"schema": {"type": "string"}},
        }
    }
}
Time = Annotated[int | None, Query(ge=0, le=2**53)]
router = APIRouter(tags=["usage"])


@router.get("/usage", dependencies=[READS], response_model=tuple[UsageView, ...], responses=TABLE)
async def usage(
    services: ServicesHere,
    asker: AskerHere,
    by: Annotated[By, Query()] = "queue",
    since_ms: Time = None,
    until_ms: Time = None,
    format: Annotated[Literal["json", "csv"], Query()] = "json",  # noqa: A002 (what everybody calls it in an address)
) -> Any:
    """Device time of a window, of each queue or job: what of it was allocated, and what of that ranks spent in steps. Of an attempt
    that began before the window, or lasts beyond it, what lies in it. Without bounds the last 30 days. Of people of a team: what
    its jobs were given."""
    until = min(until_ms, services.clock.now_ms()) if until_ms is not None else services.clock.now_ms()
    window = Window(max(0, until - USUAL_MS) if since_ms is None else since_ms, until)
    if window.since_ms > until:
        raise SpecError("since_ms", since_ms, f"write a time before the end of the window, {until}")
    rows = await asyncio.to_thread(_rows, services, services.control.world, partial(sees, asker), window, by)
    return Response(_csv(rows), media_type="text/csv") if format == "csv" else rows


def _rows(services: Services, world: World, shown: Shown, window: Window, by: By) -> tuple[UsageView, ...]:
    attempts = touched(world, window, shown)
    if len(attempts) > ATTEMPTS_MAX:
        raise SpecError(
            "since_ms", window.since_ms, f"{len(attempts)} attempts ran since; ask for windows of at most {ATTEMPTS_MAX}"
        )
    released: dict[tuple[AttemptId, NodeId], int] = {}
    for job in {one.job for one in attempts if one.released}:
        for event in services.store.events(0, job, 100_000, "part_released"):
            if isinstance(event.body, PartReleased):
                released[event.body.attempt, event.body.node] = event.at_ms

    def in_steps(attempt: AttemptId, since_ms: int, until_ms: int) -> int:
        return services.step_times.of(services.series, world.attempts[attempt], Window(since_ms, until_ms))

    return usage_views(world, window, by, released, in_steps, shown)


def _csv(rows: tuple[UsageView, ...]) -> str:
    text = io.StringIO()
    names = [one.name for one in fields(UsageView)]
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(wire.plain(UsageView, row) for row in rows)
    return text.getvalue()
