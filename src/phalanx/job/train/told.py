"""What has become of a run's saves, for who reads its log and as events of its job: of a recipe and of a script alike."""

import logging
import math
from collections.abc import Callable
from typing import Final

from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.pipeline import Delayed, Outcome
from phalanx.job.sdk.session import Session
from phalanx.job.train.often import Rhythm

_log: Final = logging.getLogger(__name__)
TROUBLE_EVERY_S: Final = 600.0


class SavesTold:
    """Of one rank. rhythm: learns when saves are durable."""

    def __init__(self, session: Session, rank: int, clock_s: Callable[[], float], rhythm: Rhythm | None) -> None:
        self._session, self._rank, self._clock_s, self._rhythm = session, rank, clock_s, rhythm
        self._told_s: dict[bool, float] = {}

    def tell(self, outcome: Outcome) -> None:
        """Waits for nothing."""
        match outcome:
            case Saved():
                self._tell_saved(outcome)
            case Delayed(step=step, reason=reason):
                _log.warning("checkpoint of step %d not saved yet: %s; it is tried again, and training goes on", step, reason)
                self._tell_trouble(step, reason, lost=False)
            case SaveFailed(step=step, reason=reason):
                _log.warning("checkpoint of step %d not saved: %s; going on from the one before", step, reason)
                self._tell_trouble(step, reason, lost=True)

    def _tell_saved(self, saved: Saved) -> None:
        self._told_s.clear()  # the next trouble is news again
        self._session.checkpoint(step=saved.step, path=saved.path, digest=saved.digest, size_bytes=saved.size_bytes)
        if self._rhythm is not None:
            self._rhythm.durable(saved.step)
        _log.info("checkpoint of step %d saved", saved.step)

    def _tell_trouble(self, step: int, reason: str, lost: bool) -> None:
        """As an event of the job: of each kind one in a while, by one rank of each node, and of what is lost for all by the first
        rank that lives."""
        now_s = self._clock_s()
        speaks = self._rank == 0 if lost else self._session.local_rank == 0
        if speaks and now_s >= self._told_s.get(lost, -math.inf) + TROUBLE_EVERY_S:
            self._told_s[lost] = now_s
            self._session.trouble(step=step, reason=reason, lost=lost)
