"""Places that a job's spec names: none may lie in the home or in a place where another team's job saves.

It is what can be told at submit, of recipes' own fields. What a script opens by itself only the node can keep from it.
"""

import contextlib
import os
from collections.abc import Iterator

from phalanx.core.checkpoints import JOBS_FOLDER
from phalanx.core.errors import SpecError
from phalanx.core.ids import JobId
from phalanx.core.people import Person
from phalanx.core.spec import JobSpec
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.saving_places import as_kept, checkpoints_at


def refuse(services: Services, person: Person, spec: JobSpec) -> None:
    """Raises SpecError for the first place that they may not read, in the same words whether there is anything or not."""
    named = list(_named(spec))
    if person.everywhere is not None or not named:
        return
    home, stores = os.path.realpath(services.home), _stores(services)
    for field, value in named:
        if ".." in value.replace("\\", "/").split("/"):
            raise SpecError(field, value, "write the place without '..'")
        place = _followed(field, value)
        root = next((one for one in (home, *stores) if _within(place, one)), None)
        may_save = field == "checkpoint.store" and place in stores
        if root is not None and not may_save and not _is_own(services, person, place, root):
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


def _stores(services: Services) -> list[str]:
    """Places below which jobs save, each in a folder of its own."""
    world = services.control.world
    named = {world.policy.checkpoint_store, *(job.spec.checkpoint.store for job in world.jobs.values())} - {"", JOBS_FOLDER}
    return sorted(_placed(store) for store in named)


def _is_own(services: Services, person: Person, place: str, root: str) -> bool:
    """Whether it lies in what a job of theirs has below `root`: found by the folder's name, which is the job's."""
    parts = place[len(root) + 1 :].split("/")
    jobs_folder = services.home / "jobs"
    name = parts[1] if parts[0] == "jobs" and len(parts) > 1 else parts[0].rpartition("-")[0]
    job = services.control.world.jobs.get(JobId(name))
    if job is None or not person.sees(job.spec.team):
        return False
    return any(_within(place, own) for own in (os.path.realpath(jobs_folder / job.id), _placed(checkpoints_at(job, jobs_folder))))


def _followed(field: str, value: str) -> str:
    """Raises SpecError where a link on the way says to nobody where it leads, as those of the kernel below /proc."""
    try:
        return _placed(value)
    except OSError as error:
        raise SpecError(field, value, f"cannot be followed ({error.strerror}); name the place that it leads to") from error


def _placed(value: str) -> str:
    """One spelling of each place; a folder without links. Raises OSError."""
    with contextlib.suppress(SpecError):  # said elsewhere, where it is used as one
        value = as_kept(value, "place")
    return value.rstrip("/") if "://" in value else os.path.realpath(value)


def _within(place: str, root: str) -> bool:
    return place == root or place.startswith(f"{root}/")
