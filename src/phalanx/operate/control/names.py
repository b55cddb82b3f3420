"""Names of what is new: jobs and attempts. Pure.

A database that was restored from an older copy has forgotten jobs and attempts that nodes still hold. One name must never mean
two of them: a node would take the new attempt for the one it has, and the fences of checkpoints go by the number.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from phalanx.core.ids import AttemptId, JobId, attempt_id, job_id, split_attempt
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.world import JobRecord, World

NUMBER_LEAP: Final = 1_000_000
"""How far ahead of the log a node may honestly be. What is further is a lie, and no name of ours for long."""


def next_job(world: World, seen: Sightings, name: str) -> JobId:
    """The name of a new job: its number is above that of any that the log or a node knows."""
    return next_jobs(world, seen, name, 1)[0]


def next_jobs(world: World, seen: Sightings, name: str, count: int) -> list[JobId]:
    """Names of so many, one after the other."""
    numbers = (int(job.rpartition("-")[2]) for job in forgotten(world, seen) if job not in world.jobs)
    first = _above(world.sequence, numbers)
    return [job_id(name, number) for number in range(first, first + count)]


def next_attempt(forgotten: Mapping[JobId, Collection[int]], job: JobRecord) -> AttemptId:
    """The name of the job's next attempt, likewise."""
    return attempt_id(job.id, _above(job.state.attempt, forgotten.get(job.id, ())))


def forgotten(world: World, seen: Sightings) -> dict[JobId, list[int]]:
    """Numbers of attempts that nodes report and the log does not know, by their job."""
    found: dict[JobId, list[int]] = {}
    for _, attempt in seen.reports:
        if attempt not in world.attempts:
            with suppress(ValueError):
                job, number = split_attempt(attempt)
                found.setdefault(job, []).append(number)
    return found


def _above(last: int, numbers: Iterable[int]) -> int:
    return max([last, *(number for number in numbers if number <= last + NUMBER_LEAP)]) + 1
