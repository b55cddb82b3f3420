"""Where a job saves its checkpoints: by its file, else by the policy, else in its folder. Pure."""

from dataclasses import replace
from pathlib import Path

from phalanx.core.checkpoints import CHECKPOINTS, JOBS_FOLDER
from phalanx.core.errors import SetupError, SpecError
from phalanx.core.policy import Policy
from phalanx.core.spec import JobSpec
from phalanx.operate.control.world import JobRecord
from phalanx.storage.places import parse_place


def with_store(policy: Policy, spec: JobSpec) -> JobSpec:
    """With the policy's place in a spec that names none: a policy that changes later moves no job away from what it saved.

    Raises SpecError for a place that is none.
    """
    store = as_kept(spec.checkpoint.store or policy.checkpoint_store, "checkpoint.store")
    return replace(spec, checkpoint=replace(spec.checkpoint, store=store))


def with_store_of(job: JobRecord, spec: JobSpec) -> JobSpec:
    """The same with the place of a job that may be the one that `spec` asks for: the policy may be another one since.

    Raises SpecError for a place that is none.
    """
    return with_store(Policy(checkpoint_store=job.spec.checkpoint.store), spec)


def as_kept(store: str, field: str) -> str:
    """The place as jobs keep it. Raises SpecError naming `field` for one that is none."""
    if store in ("", JOBS_FOLDER):
        return store
    try:
        place = parse_place(store, field)
    except SetupError as error:
        raise SpecError(error.field, error.value, error.fix) from error
    return str(place.path) if place.scheme == "file" else place.url


def checkpoints_at(job: JobRecord, jobs_folder: Path) -> str:
    """A folder or a URL. In a store several homes may have a job of one name: there the time of its submission tells them apart."""
    store = job.spec.checkpoint.store
    if store in ("", JOBS_FOLDER):
        return str(jobs_folder / job.id / CHECKPOINTS)
    return f"{store.rstrip('/')}/{job.id}-{job.submitted_ms}"
