"""Views as one person may see them: without the names of other teams' jobs."""

from dataclasses import replace
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.ids import AttemptId
from phalanx.core.people import Person
from phalanx.core.spec import JobSpec
from phalanx.core.views import AttemptView, EventView, JobView, NodeView, PlanView, WhyView
from phalanx.operate.control.api.asker import Asker
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.others_names import ANOTHERS, OthersNames
from phalanx.operate.control.tail import Told
from phalanx.operate.control.world import World

_NAMING: Final = frozenset({"job_waits", "job_evicted"})
"""Kinds of events whose every word may name other jobs."""

_VEILED: Final = _NAMING | {"attempt_ended"}
"""Those of which `event` leaves something out."""


class Veil:
    """Over what one person is shown."""

    def __init__(self, world: World, person: Person) -> None:
        self._world = world
        self._sees = person.sees
        self._names = OthersNames(world, self._sees)
        self.is_open = person.everywhere is not None
        """Whether they may see everything."""

    def job(self, view: JobView, spec: JobSpec) -> JobView:
        """How its ranks ended is their own word."""
        if self.is_open:
            return view
        attempts = tuple(self.attempt(one, spec) for one in view.attempts)
        why, detail = self._names.out_of(view.why, spec), self._names.out_of_detail(view.detail, spec)
        return replace(view, why=why, detail=detail, attempts=attempts)

    def attempt(self, view: AttemptView, spec: JobSpec) -> AttemptView:
        """Of a job with that spec."""
        return view if self.is_open else replace(view, detail=self._names.out_of_detail(view.detail, spec))

    def why(self, view: WhyView, spec: JobSpec) -> WhyView:
        told: WhyView = view if self.is_open else self._through(view, spec, WhyView)
        return told

    def plan(self, view: PlanView, spec: JobSpec) -> PlanView:
        told: PlanView = view if self.is_open else self._through(view, spec, PlanView)
        return told

    def event(self, view: EventView) -> EventView:
        """Of a job that they may see."""
        record = self._world.jobs.get(view.job) if view.job else None
        if self.is_open or record is None:
            return view
        body = dict(view.body)
        if view.kind in _NAMING:
            body = self._names.out_of(body, record.spec)
        elif view.kind == "attempt_ended":
            body["detail"] = self._names.out_of_detail(str(body["detail"]), record.spec)
        return replace(view, body=body)

    def told(self, told: Told) -> str | None:
        """The data of an event of the log's end, of which None is to be seen where it is of another team's job or of none."""
        if self.is_open:
            return told.data
        job = self._world.jobs.get(told.job) if told.job is not None else None
        if job is None or not self._sees(job.spec.team):
            return None
        if told.kind not in _VEILED:
            return told.data
        return wire.dumps(EventView, self.event(wire.loads(EventView, told.data)))

    def nodes(self, views: tuple[NodeView, ...]) -> tuple[NodeView, ...]:
        if self.is_open:
            return views
        return tuple(self._node(view) for view in views)

    def _node(self, view: NodeView) -> NodeView:
        held = {index: self._holder(attempt) for index, attempt in view.held.items()}
        return replace(view, held=held, drained=self._names.out_of_reason(view.drained))

    def _holder(self, attempt: AttemptId) -> AttemptId:
        return AttemptId(ANOTHERS) if self._names.hides(attempt.rpartition(".")[0]) else attempt

    def _through(self, view: Any, spec: JobSpec, kind: Any) -> Any:
        return wire.build(kind, self._names.out_of(wire.plain(kind, view), spec))


def veil_of(services: Services, asker: Asker) -> Veil:
    """Over the newest world."""
    return Veil(services.control.world, asker.person)
