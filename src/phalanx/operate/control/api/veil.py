"""What the platform says of one job may name others. Of another team's only that it is one is told."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.ids import NAME, AttemptId, JobId
from phalanx.core.people import Person
from phalanx.core.spec import JobSpec
from phalanx.core.views import EventView, JobView, NodeView, PlanView, WhyView
from phalanx.operate.control.api.asker import Asker
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.world import World

ANOTHERS: Final = "another team's job"
_JOB: Final = re.compile(rf"(?<![a-z0-9-])({NAME.pattern}-[0-9]{{1,12}})(\.[0-9]{{1,9}})?(?![a-z0-9-])")
_NAMING: Final = frozenset({"job_waits", "job_evicted"})
"""Kinds of events that may name other jobs than their own."""


class Veil:
    """Over what one person is shown. A name that stands in the job's own spec is its owner's word and stays: else whoever wrote
    it there could see by its absence that there is such a job."""

    def __init__(self, world: World, person: Person) -> None:
        self._world = world
        self._person = person

    @property
    def is_open(self) -> bool:
        """Whether they may see everything."""
        return self._person.everywhere is not None

    def hides(self, job: str) -> bool:
        """Whether there is such a job, and they may not know."""
        record = self._world.jobs.get(JobId(job))
        return record is not None and not self._person.has("viewer", record.spec.team)

    def plain(self, value: Any, spec: JobSpec) -> Any:
        """Texts, mappings and lists, without names of jobs that they may not know."""
        if self.is_open:
            return value
        match value:
            case str():
                return _JOB.sub(self._replaced(spec), value)
            case dict():
                return {key: self.plain(part, spec) for key, part in value.items()}
            case list() | tuple():
                return type(value)(self.plain(part, spec) for part in value)
            case _:
                return value

    def job(self, view: JobView, spec: JobSpec) -> JobView:
        """How one ended is told by its own ranks and is not touched."""
        return view if self.is_open or not view.why else replace(view, why=self.plain(view.why, spec))

    def why(self, view: WhyView, spec: JobSpec) -> WhyView:
        if self.is_open:
            return view
        changed: WhyView = self._through(view, spec, WhyView)
        return replace(changed, job=view.job)

    def plan(self, view: PlanView, spec: JobSpec) -> PlanView:
        changed: PlanView = view if self.is_open else self._through(view, spec, PlanView)
        return changed

    def event(self, view: EventView) -> EventView:
        """Of a job that they may see."""
        record = self._world.jobs.get(view.job) if view.job else None
        if self.is_open or record is None or view.kind not in _NAMING:
            return view
        return replace(view, body=self.plain(dict(view.body), record.spec))

    def nodes(self, views: tuple[NodeView, ...]) -> tuple[NodeView, ...]:
        if self.is_open:
            return views
        return tuple(replace(view, held={index: self._holder(held) for index, held in view.held.items()}) for view in views)

    def _holder(self, attempt: AttemptId) -> AttemptId:
        return AttemptId(ANOTHERS) if self.hides(attempt.rpartition(".")[0]) else attempt

    def _through(self, view: Any, spec: JobSpec, kind: Any) -> Any:
        return wire.build(kind, self.plain(wire.plain(kind, view), spec))

    def _replaced(self, spec: JobSpec) -> Callable[["re.Match[str]"], str]:
        def one(found: "re.Match[str]") -> str:
            if not self.hides(found[1]) or found[1] in wire.dumps(JobSpec, spec):
                return found[0]
            return ANOTHERS

        return one


def veil_of(services: Services, asker: Asker) -> Veil:
    """Over the newest world."""
    return Veil(services.control.world, asker.person)
