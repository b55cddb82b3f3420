"""What a decision has started, promised and ended so far: when devices come free with that, and how much of a booking is had."""

from collections.abc import Sequence

import numpy as np

from phalanx.core.devices import Placement
from phalanx.decide.scheduler.quotas.holds import kind_of
from phalanx.decide.scheduler.room.bookings import Booked
from phalanx.decide.scheduler.room.ends import SOON_MS, Ends, all_end_ms
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import JobFacts, RunningJob
from phalanx.decide.scheduler.where.fleet import Fleet


class Promises:
    """Mutable within one decision."""

    def __init__(self, gangs: Gangs, fleet: Fleet, now_ms: int) -> None:
        self._gangs, self._fleet, self._now_ms = gangs, fleet, now_ms
        self._ends: Ends | None = None
        self._made: list[tuple[JobFacts, Placement, Sequence[RunningJob]]] = []
        self._ended: list[RunningJob] = []
        self._used: dict[tuple[str, int], int] = {}

    def made(self, job: JobFacts, placement: Placement, holders: Sequence[RunningJob]) -> None:
        """The job starts on it, as soon as gangs that hold some of it have let go."""
        self._used.clear()
        self._made.append((job, placement, holders))
        if self._ends is not None:
            self._ends.claimed(placement, holders)
            self._ends.starts(job, placement, SOON_MS if holders else 0)

    def gave_up(self, job: JobFacts) -> None:
        """What was promised to it is not any more."""
        self._used.clear()
        self._made = [one for one in self._made if one[0].job != job.job]
        self._ends = None

    def ended(self, gang: RunningJob) -> None:
        """The gang is asked to end."""
        self._used.clear()
        self._ended.append(gang)
        if self._ends is not None:
            self._ends.ends(gang)

    @property
    def ends(self) -> Ends:
        """When devices come free; built when it is first asked for."""
        if self._ends is None:
            self._ends = Ends(self._gangs, self._fleet, self._now_ms)
            for gang in self._gangs.ending:
                if gang.keeps is not None:
                    self._ends.claimed(gang.keeps, (gang,))
                    self._ends.starts(gang.facts, gang.keeps, SOON_MS)
            for gang in self._ended:
                self._ends.ends(gang)
            for job, placement, holders in self._made:
                self._ends.claimed(placement, holders)
                self._ends.starts(job, placement, SOON_MS if holders else 0)
        return self._ends

    def used(self, booked: Booked, at_ms: int = 0) -> int:
        """Devices of the booking's type that its queues' jobs hold and go on holding, or are promised; without those that limits
        let go of by `at_ms`."""
        key = (booked.name, at_ms)
        if key not in self._used:
            self._used[key] = self._found_used(booked, at_ms)
        return self._used[key]

    def _found_used(self, booked: Booked, at_ms: int) -> int:
        gangs, ground = self._gangs, self._fleet.ground
        of_queue = np.array([queue in booked.queues for queue in gangs.queues], np.bool_)
        stay = of_queue[gangs.queue] & (gangs.kind == ground.kind_number[booked.kind]) & ~gangs.stopping
        stay &= all_end_ms(gangs, self._now_ms) > at_ms
        ended = {gang.facts.job for gang in self._ended}  # what those keep is promised to them
        stay[[gangs.place[job] for job in ended]] = False
        keep = [(gang.facts, gang.keeps) for gang in gangs.ending if gang.keeps is not None and gang.facts.job not in ended]
        promised = [(job, placement) for job, placement, _ in self._made]
        return int(gangs.devices[stay].sum()) + sum(
            placement.world_size
            for job, placement in (*keep, *promised)
            if job.queue in booked.queues
            and kind_of(placement, ground) == booked.kind
            and (job.limit_ms is None or self._now_ms + job.limit_ms > at_ms)
        )
