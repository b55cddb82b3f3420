"""Carries out a garbage collection while jobs run. Two phases: what goes is committed, or doomed, and only then removed.

A job's files go after `JobCollected` is committed, from which moment nobody can open the job again; a blob goes after it was doomed
on the control thread, from which moment no job that names it gets in without sending it again. So the process may end anywhere:
what is marked and still there goes the next time, what is not marked is whole.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from phalanx.core.errors import Conflict, PhalanxError
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.views import GcAmount, GcView
from phalanx.operate.agent import environments
from phalanx.operate.agent.attempts import clear
from phalanx.operate.control import gc_facts
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.gc_plan import Facts, Found, Plan, amounts, plan
from phalanx.operate.control.ports import Clock
from phalanx.operate.control.store import Store
from phalanx.record.telemetry.series import SeriesStore
from phalanx.storage.blobs import BlobStore

MARKED_AT_ONCE: Final = 100
"""Jobs in one transaction: ticks go on in between."""

REMOVED_AT_ONCE: Final = 200
PROBLEMS_MAX: Final = 20
OUTBOX_ROWS: Final = 100_000
log = structlog.get_logger(__name__)


class Collector:
    """At most one collection at a time. Lives on the event loop; looks and removes in threads."""

    def __init__(
        self, home: Path, control: ControlThread, store: Store, series: SeriesStore, blobs: BlobStore, clock: Clock
    ) -> None:
        self._home = home
        self._control = control
        self._store = store
        self._series = series
        self._blobs = blobs
        self._clock = clock
        self._view: GcView | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def view(self) -> GcView | None:
        """The collection that runs, or the last one of this server."""
        return self._view

    def refuse_second(self) -> None:
        """Raises Conflict while one runs."""
        if self._view is not None and self._view.state == "running":
            raise Conflict("gc", "running", "another collection runs; wait for its end, GET /api/v1/gc shows it")

    def start(self, older_than_ms: int, dry_run: bool, by: str) -> GcView:
        """Begins one. Raises Conflict while another runs."""
        self.refuse_second()
        view = GcView(
            state="running",
            dry_run=dry_run,
            older_than_ms=older_than_ms,
            started_ms=self._clock.now_ms(),
            finished_ms=None,
            taken=(),
            kept=(),
            jobs=(),
            problems=(),
        )
        self._view = view
        self._work = asyncio.create_task(self._run(view, by))
        return view

    async def close(self) -> None:
        """Stops where it is."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _run(self, view: GcView, by: str) -> None:
        try:
            done = await self._collect(view, by)
        except PhalanxError as error:
            log.warning("gc_failed", error=str(error))
            done = replace(view, state="failed", error=str(error))
        except Exception as error:  # whoever waits for it must see an end; what is not marked is whole
            log.error("gc_failed", exc_info=error)
            done = replace(view, state="failed", error="a bug in Phalanx; the server's log has the details")
        self._view = replace(done, finished_ms=self._clock.now_ms())
        log.info("gc_ended", state=done.state, dry_run=view.dry_run, jobs=len(done.jobs), problems=len(done.problems))

    async def _collect(self, view: GcView, by: str) -> GcView:
        facts = await asyncio.to_thread(self._facts, view)
        planned = await asyncio.to_thread(plan, facts)
        seen = replace(view, kept=_kept(planned), jobs=planned.jobs)
        if view.dry_run:
            return replace(seen, state="done", taken=_amounts(planned.take))
        marked = await self._mark(planned.jobs, facts.before_ms, by)
        take = await asyncio.to_thread(self._still_garbage, facts)
        removed, problems = await self._remove(take, facts.before_ms)
        return replace(
            seen, state="done", taken=_amounts(removed), jobs=tuple(sorted(marked)), problems=tuple(problems[:PROBLEMS_MAX])
        )

    def _facts(self, view: GcView) -> Facts:
        """Blobs and files are looked at before the world: whatever a job names that the world does not know yet is younger than
        they are. The time is taken first of all: what ends while we look has not ended yet. Raises StoreUnavailable."""
        now_ms = self._clock.now_ms()
        found = (*gc_facts.found_files(self._home, self._blobs.folder), *gc_facts.found_blobs(self._blobs))
        return self._named(Facts(now_ms=now_ms, older_than_ms=view.older_than_ms, found=found))

    def _named(self, facts: Facts) -> Facts:
        """What names things now. Raises StoreUnavailable."""
        artifacts = self._store.artifact_blobs()
        outbox = [row.entry for row in self._store.pending_outbox(OUTBOX_ROWS)]
        world = self._control.world
        pending = gc_facts.pending_jobs(outbox, world.jobs.keys()) if len(outbox) < OUTBOX_ROWS else world.jobs.keys()
        jobs = gc_facts.job_facts(world, self._home, artifacts, pending)
        return replace(facts, jobs=jobs, models=gc_facts.model_facts(world, self._home))

    def _still_garbage(self, facts: Facts) -> list[Found]:
        """Once the mark is committed: without what a job that was submitted, or opened again, since the first look names."""
        now = self._named(facts)
        return [item for item in plan(now).take if item.job is None or now.jobs[item.job].collected]

    async def _mark(self, jobs: Sequence[JobId], before_ms: int, by: str) -> set[JobId]:
        """Which of them are collected now. One that was opened again meanwhile is not."""
        marked: set[JobId] = set()
        for start in range(0, len(jobs), MARKED_AT_ONCE):
            some = jobs[start : start + MARKED_AT_ONCE]
            world = await self._control.call(partial(Controller.collect, jobs=some, before_ms=before_ms, by=by))
            marked |= {job for job in some if world.jobs[job].collected_ms is not None}
        return marked

    async def _remove(self, take: Sequence[Found], before_ms: int) -> tuple[list[Found], list[str]]:
        names = [item.name for item in take if item.kind == "blobs"]
        doomed = await self._control.call(lambda controller: self._doom(controller, names)) if names else set()
        take = [item for item in take if item.kind != "blobs" or item.name in doomed]
        removed: list[Found] = []
        problems: list[str] = []
        for start in range(0, len(take), REMOVED_AT_ONCE):
            some = take[start : start + REMOVED_AT_ONCE]
            gone, refused = await asyncio.to_thread(self._remove_some, some, before_ms)
            removed += gone
            problems += refused
        await asyncio.to_thread(_drop_empty_folders, self._home, removed)
        return removed, problems

    def _doom(self, controller: Controller, names: Sequence[str]) -> set[str]:
        """On the control thread, where every submit passes too: what no job that is not collected names now, none can name from
        now on."""
        world = controller.collect((), 0, "")
        named = gc_facts.named_blobs(world, self._store.artifact_blobs())
        return self._blobs.doom([name for name in names if name not in named])

    def _remove_some(self, take: Iterable[Found], before_ms: int) -> tuple[list[Found], list[str]]:
        gone: list[Found] = []
        problems: list[str] = []
        for item in take:
            try:
                if self._remove_one(item, before_ms):
                    gone.append(item)
                else:
                    problems.append(f"{item.name}: could not be removed, or is in use now")
            except (PhalanxError, OSError) as error:
                problems.append(f"{item.name}: {error}")
        return gone, problems

    def _remove_one(self, item: Found, before_ms: int) -> bool:
        match item.kind:
            case "blobs":
                return self._blobs.remove(item.name)
            case "series":
                self._series.forget(AttemptId(_attempt_of(item.name)))
                return True
            case "environments":
                return _remove_environment(Path(item.name), before_ms)
            case _:
                return clear_any(Path(item.name))


def clear_any(path: Path) -> bool:
    """Removes a file, a link or a tree, without following anything. True when nothing is left."""
    if path.is_dir() and not path.is_symlink():
        return clear(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return True


def _remove_environment(path: Path, before_ms: int) -> bool:
    """Under its lock, which an agent holds from the look at an environment to its use."""
    with _locked(path.with_name(f"{path.name}.lock")) as taken:
        if not taken:
            return False
        item = gc_facts.found_environment(path, gc_facts.used_environments(path.parent.parent))
        if item.in_use or item.modified_ms > before_ms:
            return False
        return environments.remove(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _attempt_of(path: str) -> str:
    return gc_facts.attempt_of_series(Path(path).name)


def _drop_empty_folders(home: Path, removed: Iterable[Found]) -> None:
    """Those of collected jobs that held what is gone. One with something in it stays."""
    rooms = {home, home / "jobs", home / "journal", home / "series"}
    folders = {parent for item in removed if item.job for parent in Path(item.name).parents if home in parent.parents}
    for folder in sorted(folders - rooms, reverse=True):  # what lies deeper first
        with contextlib.suppress(OSError):
            folder.rmdir()


def _amounts(items: Iterable[Found]) -> tuple[GcAmount, ...]:
    return tuple(GcAmount(kind=kind, count=count, size_bytes=size) for kind, (count, size) in amounts(items).items())


def _kept(planned: Plan) -> tuple[GcAmount, ...]:
    rows = sorted(planned.kept.items())
    return tuple(GcAmount(kind=kind, count=count, size_bytes=size, why=why) for (kind, why), (count, size) in rows)
