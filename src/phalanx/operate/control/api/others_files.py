"""Places that a job's spec names: none may lie in the home or in a place where another team's job saves.

It is what can be told at submit, of recipes' own fields. What a script opens by itself only the node can keep from it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from phalanx.core.checkpoints import JOBS_FOLDER
from phalanx.core.errors import SpecError
from phalanx.core.people import Person
from phalanx.core.spec import JobSpec
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.saving_places import as_kept, checkpoints_at
from phalanx.operate.control.world import JobRecord


def refuse(services: Services, person: Person, spec: JobSpec) -> None:
    """Raises SpecError for the first place that they may not read, in the same words whether there is anything or not."""
    named = list(_named(spec))
    if person.everywhere is not None or not named:
        return
    jobs_folder = services.home / "jobs"
    jobs = list(services.control.world.jobs.values())
    shared = _shared(services, jobs)
    for field, value in named:
        if ".." in value.replace("\\", "/").split("/"):
            raise SpecError(field, value, "write the place without '..'")
        place = _placed(value)
        kept = any(_within(place, root) for root in shared) and not (field == "checkpoint.store" and place in shared[1:])
        if kept and not any(_within(place, own) for job in jobs for own in _own(person, job, jobs_folder)):
            raise SpecError(field, value, "lies where the platform keeps jobs' files, and in those of none of your team's jobs")


def _named(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for name, value in spec.hyperparameters.items():
        if isinstance(value, str) and ("/" in value or "\\" in value):
            yield f"hyperparameters.{name}", value
    if spec.data is not None:
        for name, path in spec.data.paths.items():
            yield spec.data.field_of(name), path
    if spec.checkpoint.store not in ("", JOBS_FOLDER):
        yield "checkpoint.store", spec.checkpoint.store


def _shared(services: Services, jobs: list[JobRecord]) -> list[str]:
    """The home, and places below which jobs save."""
    stores = {services.control.world.policy.checkpoint_store, *(job.spec.checkpoint.store for job in jobs)} - {"", JOBS_FOLDER}
    return [os.path.realpath(services.home), *sorted(_placed(store) for store in stores)]


def _own(person: Person, job: JobRecord, jobs_folder: Path) -> Iterator[str]:
    """Where a job of theirs has its files."""
    if person.has("viewer", job.spec.team):
        yield os.path.realpath(jobs_folder / job.id)
        yield _placed(checkpoints_at(job, jobs_folder))


def _placed(value: str) -> str:
    """One spelling of each place; a folder without links."""
    with contextlib.suppress(SpecError):  # said elsewhere, where it is used as one
        value = as_kept(value, "place")
    return value.rstrip("/") if "://" in value else os.path.realpath(value)


def _within(place: str, root: str) -> bool:
    return place == root or place.startswith(f"{root}/")
