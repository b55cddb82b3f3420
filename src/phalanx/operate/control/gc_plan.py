"""What of a home is garbage, and why the rest is not. Pure: facts in, a plan out; no clock, no disk.

Nothing that is in use is ever in a plan: what an open job may need, what a job that finished lately may need (it can be retried),
what a model version descends from, what is so young that whoever names it may still be on the way.
"""

import os.path
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Literal

from phalanx.core.ids import JobId
from phalanx.core.units import show_duration, write_duration

Kind = Literal["blobs", "work", "checkpoints", "models", "logs", "records", "series", "leftovers", "environments"]
KINDS: Final[tuple[Kind, ...]] = (
    "blobs", "work", "checkpoints", "models", "logs", "records", "series", "leftovers", "environments",
)  # fmt: skip
YOUNG_MS: Final = 3_600_000
"""A blob, or a temporary file, may be half of something that is still going on; for an hour it is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job, and what it names. `collected`: what it left is garbage already. `pending`: the tracker has yet to take over something
    of it. blobs: packed workdir and artifacts. paths: absolute ones, anywhere in its spec."""

    id: JobId
    open: bool
    finished_ms: int | None = None
    collected: bool = False
    pending: bool = False
    blobs: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model version. paths: its files and the checkpoint that they came from; `every_checkpoint` of its job where that one is not
    known by its path any more."""

    name: str
    job: JobId
    blobs: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    every_checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that takes up space. `name`: a path, or a blob's SHA-256. `job`: whose it is; None where no name says so, or for
    blobs, leftovers and environments. `in_use`: why somebody uses it now, if somebody does."""

    kind: Kind
    name: str
    size_bytes: int
    modified_ms: int
    job: JobId | None = None
    in_use: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A home at one moment. `older_than_ms`: how long ago a job must have finished."""

    now_ms: int
    older_than_ms: int
    jobs: Mapping[JobId, JobFacts] = field(default_factory=dict)
    models: tuple[ModelFacts, ...] = ()
    found: tuple[Found, ...] = ()

    @property
    def before_ms(self) -> int:
        """Jobs that finished by then are old enough."""
        return self.now_ms - self.older_than_ms


@dataclass(frozen=True, slots=True)
class Plan:
    """jobs: those to mark as collected before anything is removed. take: what goes. kept: (kind, why) -> number and bytes."""

    jobs: tuple[JobId, ...]
    take: tuple[Found, ...]
    kept: Mapping[tuple[Kind, str], tuple[int, int]]


def plan(facts: Facts) -> Plan:
    """Everything that may go now."""
    why = _Reasons(facts)
    take: list[Found] = []
    kept: dict[tuple[Kind, str], tuple[int, int]] = {}
    for item in facts.found:
        if reason := why.kept(item):
            count, size = kept.get((item.kind, reason), (0, 0))
            kept[item.kind, reason] = count + 1, size + item.size_bytes
        else:
            take.append(item)
    return Plan(tuple(_to_mark(facts, take)), tuple(take), kept)


def _to_mark(facts: Facts, take: Iterable[Found]) -> Iterable[JobId]:
    """Jobs of which something goes, and which nobody may open again from then on."""
    owners = {item.job for item in take}
    blobs = {item.name for item in take if item.kind == "blobs"}
    return (job.id for job in facts.jobs.values() if not job.collected and (job.id in owners or job.blobs & blobs))


def _named_blobs(jobs: Iterable[JobFacts], models: Iterable[ModelFacts], before_ms: int) -> dict[str, str]:
    """Blobs that must stay, and why: of jobs that are open or finished after `before_ms`, and of model versions."""
    named: dict[str, str] = {}
    for model in models:
        named |= dict.fromkeys(model.blobs, _of_model(model))
    for job in jobs:
        if (reason := _job_reason(job, before_ms, "")) and job.blobs:
            named |= dict.fromkeys(job.blobs, reason)
    return named


def _of_model(model: ModelFacts) -> str:
    return f"named by model version {model.name}"


def _job_reason(job: JobFacts, before_ms: int, limit: str) -> str:
    """Why what the job names stays; '' when nothing keeps it."""
    if job.collected:
        return ""
    if job.open:
        return "its job is open"
    if job.pending:
        return "the tracker has yet to take its job over"
    if job.finished_ms is None or job.finished_ms > before_ms:
        return f"its job finished less than {limit} ago" if limit else "its job finished lately"
    return ""


class _Reasons:
    """Why each thing stays, with everything looked up once."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._limit = write_duration(facts.older_than_ms)
        self._of_job = {job.id: _job_reason(job, facts.before_ms, self._limit) for job in facts.jobs.values()}
        self._blobs = _named_blobs(facts.jobs.values(), facts.models, facts.before_ms)
        self._whole = {model.job: _of_model(model) for model in facts.models if model.every_checkpoint}
        self._paths: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        for paths, reason in self._naming():
            for path in paths:
                self._name(os.path.normpath(path), reason)
        self._by_kind: Mapping[Kind, Callable[[Found], str]] = {
            "blobs": self._blob, "leftovers": self._leftover, "environments": self._environment,
        }  # fmt: skip

    def kept(self, item: Found) -> str:
        """Why it stays; '' when it may go."""
        return item.in_use or self._by_kind.get(item.kind, self._of_a_job)(item)

    def _naming(self) -> Iterable[tuple[Iterable[str], str]]:
        for model in self._facts.models:
            yield model.paths, _of_model(model)
        for job in self._facts.jobs.values():
            if self._of_job[job.id]:
                yield job.paths, f"named by job {job.id}"

    def _name(self, path: str, reason: str) -> None:
        self._paths[path] = reason
        for parent in PurePosixPath(path).parents:
            self._parents.setdefault(str(parent), reason)

    def _blob(self, item: Found) -> str:
        return self._blobs.get(item.name) or self._young(item)

    def _leftover(self, item: Found) -> str:
        return self._young(item)

    def _environment(self, item: Found) -> str:
        return f"used less than {self._limit} ago" if item.modified_ms > self._facts.before_ms else self._young(item)

    def _of_a_job(self, item: Found) -> str:
        if item.job is None or item.job not in self._facts.jobs:
            return "of no job that this database knows"
        whole = self._whole.get(item.job, "") if item.kind == "checkpoints" else ""
        return self._of_job[item.job] or whole or self._touched(os.path.normpath(item.name))

    def _touched(self, path: str) -> str:
        """Why a path stays that is named, holds something named, or lies in it."""
        outwards = (path, *(str(parent) for parent in PurePosixPath(path).parents))
        return self._parents.get(path) or next((self._paths[one] for one in outwards if one in self._paths), "")

    def _young(self, item: Found) -> str:
        return f"younger than {show_duration(YOUNG_MS)}" if item.modified_ms > self._facts.now_ms - YOUNG_MS else ""


def amounts(items: Iterable[Found]) -> dict[Kind, tuple[int, int]]:
    """Kind -> number and bytes, kinds in their order."""
    counts: Counter[Kind] = Counter()
    sizes: Counter[Kind] = Counter()
    for item in items:
        counts[item.kind] += 1
        sizes[item.kind] += item.size_bytes
    return {kind: (counts[kind], sizes[kind]) for kind in KINDS if counts[kind]}
