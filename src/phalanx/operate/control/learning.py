"""What this control plane learns of how long jobs run and wait, from what it commits. In memory: after a restart runs are learnt
again from what the world still knows, waits from new ones."""

from collections.abc import Callable, Iterable
from typing import Final

from phalanx.core.events import AttemptEnded, AttemptPlaced, Event, JobSubmitted, StopRequested
from phalanx.core.states import Finished
from phalanx.decide.scheduler.line.attained import ServiceHistory
from phalanx.decide.scheduler.plan import Plan
from phalanx.decide.scheduler.snapshot import JobFacts, Snapshot
from phalanx.decide.scheduler.why.history import History
from phalanx.decide.scheduler.why.lessons import Lessons
from phalanx.operate.control.world import AttemptRecord, JobRecord, World

RUNS_MAX: Final = 2_000
"""Of the newest that ended well, and of the newest jobs, learnt again at a start."""

FactsOf = Callable[[JobRecord], JobFacts]


class Learning:
    """history, service: what goes into the next snapshot; replaced, never changed."""

    def __init__(self, world: World, facts_of: FactsOf) -> None:
        self._lessons = Lessons()
        self._facts_of = facts_of
        for job in sorted(world.jobs.values(), key=lambda one: one.sequence)[-RUNS_MAX:]:
            self._lessons.submitted(facts_of(job))
        well = [attempt for attempt in world.attempts.values() if attempt.ok and attempt.ended_ms is not None]
        for attempt in sorted(well, key=lambda one: (one.ended_ms, one.id))[-RUNS_MAX:]:
            self._ran(world.jobs[attempt.job], attempt)
            self._finished(world.jobs[attempt.job])

    @property
    def history(self) -> History:
        return self._lessons.history

    @property
    def service(self) -> ServiceHistory:
        return self._lessons.service

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """What the plan lets wait is forecast once, and compared with what comes of it."""
        self._lessons.decided(snapshot, plan)

    def committed(self, events: Iterable[Event], world: World) -> None:
        """`world` has them all in it."""
        for event in events:
            match event.body:
                case JobSubmitted(job=job):
                    self._lessons.submitted(self._facts_of(world.jobs[job]))
                case AttemptPlaced(job=job):
                    self._lessons.started(job, event.at_ms)
                case StopRequested(job=job):
                    self._lessons.forget(job)
                case AttemptEnded(job=job, attempt=attempt, interrupted=False) if world.jobs[job].stop != "cancel":
                    self._ran(world.jobs[job], world.attempts[attempt])
                    self._finished(world.jobs[job])

    def _finished(self, job: JobRecord) -> None:
        """Of itself; one that starts again, or was cancelled, has not told how long it is."""
        if isinstance(job.state, Finished) and job.state.outcome == "succeeded":
            self._lessons.finished(self._facts_of(job), job.served_ms)

    def _ran(self, job: JobRecord, attempt: AttemptRecord) -> None:
        """To its end, its own or its limit's."""
        ran_ms = (attempt.ended_ms or attempt.placed_ms) - attempt.placed_ms
        self._lessons.ended(self._facts_of(job), max(0, ran_ms))
