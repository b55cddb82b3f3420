"""Keeps a `History` up to date from what is decided and what comes of it. For whoever drives the scheduler: the control plane and
the simulator. Mutable, of bounded size, without a clock.

A prediction is judged by the first interval that was shown for a job, at the first decision that let it wait. A job that starts at
its first decision was never predicted.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.line import attained
from phalanx.decide.scheduler.line.attained import ServiceHistory
from phalanx.decide.scheduler.plan import Plan, Wait
from phalanx.decide.scheduler.snapshot import JobFacts, Snapshot
from phalanx.decide.scheduler.where.mix import Seen
from phalanx.decide.scheduler.why import history as learnt
from phalanx.decide.scheduler.why.eta import Forecast, forecasts, is_vague
from phalanx.decide.scheduler.why.history import History

DUE_MAX: Final = 1_000
"""Ends of intervals that are kept for nothing, besides as many as are kept for something."""

SHOWN_MAX: Final = 20_000
"""Waiting jobs that are watched at once; of more nothing is learnt."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The first forecast for a job, and when it was made. Times are Unix milliseconds."""

    facts: JobFacts
    forecast: Forecast
    at_ms: int

    @property
    def is_vague(self) -> bool:
        """Whether nobody is shown its interval. It is not judged: nearly every start is inside, and intervals that are shown would
        become too narrow for that."""
        return is_vague(self.forecast.eta, self.at_ms)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A forecast and what came of it."""

    shown: Shown
    started_ms: int

    @property
    def is_inside(self) -> bool:
        """Whether the job started within its interval."""
        eta = self.shown.forecast.eta
        return eta.low_ms <= self.started_ms <= eta.high_ms

    @property
    def width_ms(self) -> int:
        eta = self.shown.forecast.eta
        return eta.high_ms - eta.low_ms


class Lessons:
    """history, service: what is known so far; it goes into the next snapshot."""

    def __init__(self, history: History | None = None) -> None:
        self.history = history or History()
        self.service = ServiceHistory()
        self._shown: dict[JobId, Shown] = {}
        self._due: list[tuple[int, JobId]] = []
        self._late: set[JobId] = set()
        self._seen = Seen()

    def submitted(self, facts: JobFacts) -> None:
        """Once for each job."""
        mix = self._seen.submitted(facts.shape)
        if mix is not None:
            self.history = replace(self.history, mix=mix)

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """Forecasts the starts of jobs that wait for the first time. Costs next to nothing when there are none."""
        self._look(snapshot.now_ms)
        if len(self._due) > 2 * len(self._shown) + DUE_MAX:
            self._tidy({job.facts.job for job in snapshot.pending})
        new = {one.job for one in plan.decisions if isinstance(one, Wait) and one.job not in self._shown}
        if not new or len(self._shown) >= SHOWN_MAX:
            return
        facts = {job.facts.job: job.facts for job in snapshot.pending if job.facts.job in new}
        for job, forecast in forecasts(snapshot, plan, new).items():
            self._shown[job] = Shown(facts[job], forecast, snapshot.now_ms)
            heapq.heappush(self._due, (forecast.eta.high_ms, job))

    def _tidy(self, waiting: Collection[JobId]) -> None:
        """Drops what was to be looked at of jobs that wait no more, which may be due only in months."""
        self._shown = {job: shown for job, shown in self._shown.items() if job in waiting}
        self._late.intersection_update(self._shown)
        self._due = [(shown.forecast.eta.high_ms, job) for job, shown in self._shown.items() if job not in self._late]
        heapq.heapify(self._due)

    def started(self, job: JobId, now_ms: int) -> Outcome | None:
        """The job has been placed. None when its start was not forecast."""
        shown = self._shown.pop(job, None)
        if shown is None:
            return None
        outcome = Outcome(shown, now_ms)
        self.history = learnt.started(self.history, shown.forecast.told, max(0, now_ms - shown.at_ms))
        if job not in self._late and not shown.is_vague:
            self.history = learnt.scored(self.history, outcome.is_inside)
        self._late.discard(job)
        return outcome

    def ended(self, facts: JobFacts, ran_ms: int) -> None:
        """An attempt of it ended by itself or at its limit; not one that was evicted, paused or lost."""
        self.history = learnt.ran(self.history, facts.queue, facts.shape.num_devices, ran_ms, facts.limit_ms)

    def finished(self, facts: JobFacts, served_ms: int) -> None:
        """The job ended of itself after so many device-milliseconds, over all its attempts."""
        self.service = attained.learned(self.service, max(1, facts.shape.num_devices), facts.sequence, served_ms)

    def forget(self, job: JobId) -> None:
        """It will not start: it was cancelled or paused while it waited."""
        self._shown.pop(job, None)
        self._late.discard(job)

    def _look(self, now_ms: int) -> None:
        """Those that have not started by the end of their interval are missed already: without it, a fleet that fills up would
        show narrow intervals until its queue is over."""
        while self._due and self._due[0][0] < now_ms:
            high_ms, job = heapq.heappop(self._due)
            shown = self._shown.get(job)
            if shown is not None and shown.forecast.eta.high_ms == high_ms and job not in self._late:
                self._late.add(job)
                if not shown.is_vague:
                    self.history = learnt.scored(self.history, False)
