"""Looks at a home for the garbage collection: what takes up space, and what names it. Removes nothing, follows no link."""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.checkpoints import FENCE
from phalanx.core.ids import AttemptId, JobId, split_attempt
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished
from phalanx.operate.agent.environments import NOTE, READY
from phalanx.operate.control.gc_plan import Found, JobFacts, Kind, ModelFacts
from phalanx.operate.control.world import JobRecord, ModelRecord, World
from phalanx.storage.blobs import BlobStore

_SERIES: Final = re.compile(r"(.+?)(?:\.part[0-9]+)?\.(?:parquet|head)")
_LEFTOVER: Final = re.compile(r"\..+\.tmp|\.seal-.+|\.unpack-.+|\.probe")
_HALF_BLOB: Final = re.compile(r"[0-9a-f]{64}#[0-9]+")
_KINDS: Final[Mapping[str, Kind]] = {"checkpoints": "checkpoints", "model": "models"}


def job_facts(
    world: World, home: Path, artifacts: Mapping[JobId, frozenset[str]], pending: Collection[JobId]
) -> dict[JobId, JobFacts]:
    """Every job with what it names. A path in a spec counts wherever it stands, since only the job knows what it is for."""
    return {job.id: _job(job, home, artifacts.get(job.id, frozenset()), job.id in pending) for job in world.jobs.values()}


def _job(job: JobRecord, home: Path, artifacts: frozenset[str], pending: bool) -> JobFacts:
    return JobFacts(
        id=job.id,
        open=not isinstance(job.state, Finished),
        finished_ms=job.finished_ms,
        collected=job.collected_ms is not None,
        pending=pending,
        blobs=artifacts | ({job.code} if job.code else frozenset()),
        paths=frozenset() if job.collected_ms is not None else _paths_in(wire.plain(JobSpec, job.spec), home / "jobs"),
    )


def named_blobs(world: World, artifacts: Mapping[JobId, frozenset[str]]) -> set[str]:
    """Of all jobs that are not collected, and of all model versions."""
    jobs = (job for job in world.jobs.values() if job.collected_ms is None)
    named = {name for job in jobs for name in (job.code, *artifacts.get(job.id, ()))}
    return named | {_code(world, model) for versions in world.models.values() for model in versions}


def _code(world: World, model: ModelRecord) -> str:
    return model.lineage.get("code") or world.jobs[model.job].code


def _paths_in(value: Any, folder: Path) -> frozenset[str]:
    """The folder of every job that a text of `value` names a file of, by whatever way it leads there: '~', a link, a variable."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            found.update(str(folder / job) for job in re.findall(r"\bjobs/+([a-z0-9-]+)", one))
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return frozenset(found)


def model_facts(world: World, home: Path) -> tuple[ModelFacts, ...]:
    """Every version with what it descends from. A rank said the paths: only those of jobs' files count, since one that said `/`
    would keep everything for ever."""
    return tuple(_model(world, model, home / "jobs") for versions in world.models.values() for model in versions)


def _model(world: World, model: ModelRecord, jobs: Path) -> ModelFacts:
    path, _, digest = model.lineage.get("checkpoint", "").rpartition("@")
    job = world.jobs[model.job]
    saved = [saved for attempt in job.attempts for saved in world.attempts[attempt].checkpoints]
    checkpoints = {one.path for one in saved if one.digest == digest}
    said = {one for one in (model.saved.path, path, *checkpoints) if one and "\0" not in one}
    named = {one for text in said for one in (os.path.normpath(text), os.path.realpath(text)) if jobs in Path(one).parents}
    return ModelFacts(
        name=f"{model.name}:{model.version}",
        job=model.job,
        blobs=frozenset({_code(world, model)} - {""}),
        paths=frozenset(named),
        every_checkpoint=bool(digest) and not checkpoints,
    )


def pending_jobs(entries: Iterable[Mapping[str, Any]], jobs: Collection[JobId]) -> set[JobId]:
    """Jobs that entries of the outbox name, by their id or an attempt's."""
    texts = {text for entry in entries for value in entry.values() for text in _texts(value)}
    named = texts | {job for text in texts if (job := _job_of(text)) is not None}
    return {job for job in jobs if job in named}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        yield from (one for one in value if isinstance(one, str))


def _job_of(attempt: str) -> JobId | None:
    try:
        return split_attempt(AttemptId(attempt))[0]
    except ValueError:
        return None


# What takes up space


def found_blobs(blobs: BlobStore) -> list[Found]:
    """Raises StoreUnavailable."""
    return [
        Found(kind="blobs", name=blob.sha256, size_bytes=blob.size_bytes, modified_ms=blob.modified_ms) for blob in blobs.list()
    ]


def found_files(home: Path, blobs: Path | None = None) -> list[Found]:
    """Everything on this machine but blobs, whose folder, if any, is `blobs`. What vanishes while it is looked at is not there."""
    return [
        *_of_jobs(home / "jobs"),
        *_journal(home / "journal"),
        *_series(home / "series"),
        *_leftovers(home, blobs or home / "blobs"),
        *found_environments(home / "node"),
    ]


def _of_jobs(jobs: Path) -> Iterator[Found]:
    for folder in _folders(jobs):
        job = JobId(folder.name)
        for entry in _entries(folder):
            kind = _KINDS.get(entry.name)
            if kind is None or not entry.is_dir(follow_symlinks=False):
                yield _found("work", entry.path, job)
            else:
                yield from (_found(kind, inner.path, job) for inner in _inner(Path(entry.path)))


def _inner(folder: Path) -> list["os.DirEntry[str]"]:
    """Checkpoints, or models. The note of who may commit is none of them: it goes last, while any is there somebody may write."""
    entries = _entries(folder)
    return [entry for entry in entries if entry.name != FENCE] or entries


def _journal(journal: Path) -> Iterator[Found]:
    for folder in _folders(journal):
        for entry in _entries(folder):
            yield _found("records" if entry.name.startswith("records-") else "logs", entry.path, _job_of(folder.name))


def _series(series: Path) -> Iterator[Found]:
    for entry in _entries(series):
        if attempt := attempt_of_series(entry.name):
            yield _found("series", entry.path, _job_of(attempt))


def attempt_of_series(name: str) -> str:
    """The attempt that a file of the series is of, '' for another file."""
    matched = _SERIES.fullmatch(name)
    return matched[1] if matched else ""


def _leftovers(home: Path, blobs: Path) -> Iterator[Found]:
    attempts = home / "node" / "attempts"
    folders = [home, home / "run", home / "node", home / "series", *_folders(attempts)]
    for folder in folders:
        yield from (_found("leftovers", entry.path, None) for entry in _entries(folder) if _LEFTOVER.fullmatch(entry.name))
    for folder in _folders(blobs):  # people choose it, and may have files of their own there
        yield from (_found("leftovers", entry.path, None) for entry in _entries(folder) if _HALF_BLOB.fullmatch(entry.name))
    for entry in _entries(attempts):
        if entry.name.startswith(".") and entry.name.endswith(".forgotten"):
            yield _found("leftovers", entry.path, None)


def found_environments(node: Path) -> Iterator[Found]:
    """All that the node has built."""
    used = used_environments(node)
    return (found_environment(folder, used) for folder in _folders(node / "environments"))


def used_environments(node: Path) -> frozenset[str]:
    """Names of those that an attempt on the node uses."""
    return frozenset(_noted(folder / NOTE) for folder in _folders(node / "attempts"))


def found_environment(folder: Path, used: Collection[str]) -> Found:
    """The time of its `ready.json` is when it was last given to an attempt; one without is half a build."""
    ready = folder / READY
    found = _found("environments", str(ready if ready.exists() else folder), None)
    return replace(
        found,
        name=str(folder),
        size_bytes=_size(str(folder)),
        in_use="an attempt on this node uses it" if folder.name in used else "",
    )


def _noted(path: Path) -> str:
    try:
        found = re.search(rb'"key": ?"([0-9a-f]{64})"', path.read_bytes())
    except OSError:
        return ""
    return found[1].decode() if found else ""


def _found(kind: Kind, path: str, job: JobId | None) -> Found:
    try:
        modified_ms = os.lstat(path).st_mtime_ns // 1_000_000
    except OSError:
        modified_ms = 0
    return Found(kind=kind, name=path, size_bytes=_size(path), modified_ms=modified_ms, job=job)


def _size(path: str) -> int:
    """Bytes of a file, or of everything in a folder."""
    total, waiting = 0, [path]
    while waiting:
        one = waiting.pop()
        try:
            status = os.lstat(one)
            total += status.st_size
            if stat.S_ISDIR(status.st_mode):
                waiting += [entry.path for entry in os.scandir(one)]
        except OSError:
            continue
    return total


def _folders(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _entries(folder) if entry.is_dir(follow_symlinks=False)]


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    """Sorted; none of a folder that is not there, or is a link."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
