"""Predicted starts in a replay, and what came of them: `Lessons`, as the control plane keeps them."""

from phalanx.core.ids import JobId
from phalanx.decide.scheduler import Plan, Snapshot
from phalanx.decide.scheduler.line.attained import ServiceHistory
from phalanx.decide.scheduler.snapshot import JobFacts
from phalanx.decide.scheduler.why.history import History
from phalanx.decide.scheduler.why.lessons import Lessons
from phalanx.operate.sim.replay.outcome import Told


class Forecasts:
    """history, service: what goes into the next snapshot. Nothing is predicted unless `active`."""

    def __init__(self, active: bool) -> None:
        self._active = active
        self._lessons = Lessons()
        self._due_ms = 0

    @property
    def history(self) -> History:
        return self._lessons.history

    @property
    def service(self) -> ServiceHistory:
        return self._lessons.service

    def decided(self, snapshot: Snapshot, plan: Plan, every_ms: int) -> None:
        """Predicts the starts of those that wait for the first time, together and not more often than `every_ms`: who starts before
        needs no prediction."""
        if self._active and snapshot.now_ms >= self._due_ms:
            self._due_ms = snapshot.now_ms + every_ms
            self._lessons.decided(snapshot, plan)

    def started(self, job: JobId, now_ms: int, from_ms: int) -> Told | None:
        """What was predicted of it first, in milliseconds since `from_ms`."""
        told = self._lessons.started(job, now_ms) if self._active else None
        if told is None:
            return None
        eta = told.shown.forecast.eta
        return Told(eta.low_ms - from_ms, eta.high_ms - from_ms, told.shown.is_vague)

    def submitted(self, facts: JobFacts) -> None:
        """Whether or not anything is predicted: the packer goes by it."""
        self._lessons.submitted(facts)

    def ended(self, facts: JobFacts, ran_ms: int) -> None:
        """An attempt ended by itself."""
        if self._active:
            self._lessons.ended(facts, ran_ms)

    def finished(self, facts: JobFacts, served_ms: int) -> None:
        """Whether or not anything is predicted: the order `blind` goes by it."""
        self._lessons.finished(facts, served_ms)

    def forget(self, job: JobId) -> None:
        """It will not start."""
        self._lessons.forget(job)
