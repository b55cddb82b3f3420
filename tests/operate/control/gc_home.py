"""A home with something of everything in it, made by the real controller, and a collector to let loose on it.

As a program (`python -m tests.operate.control.gc_home HOME POINT`) it collects the home and kills itself at the given point.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.records import CheckpointCommitted, ModelSaved, StepRecord
from phalanx.core.views import GcView
from phalanx.operate.control import gc_run
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.gc_run import Collector
from phalanx.operate.control.store import Store
from phalanx.record.telemetry.journal import Journal
from phalanx.record.telemetry.series import SeriesStore
from phalanx.storage.blobs import BlobStore
from phalanx.storage.objects import open_store
from tests.operate.control.control_bench import Bench, ManualClock, a_spec, new_bench, no_outbox, plain_lineage

DAY_MS = 86_400_000
START_MS = ManualClock().unix_ms
NOW_MS = START_MS + 100 * DAY_MS
LIMIT_MS = 30 * DAY_MS
MODEL, FAILED, LATE, OPEN = JobId("model-1"), JobId("failed-2"), JobId("late-3"), JobId("open-4")


class At:
    """A clock that stands at one time."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.unix_ms = now_ms

    def now_ms(self) -> int:
        return self.unix_ms

    def monotonic_ms(self) -> int:
        return 0


@dataclass(frozen=True)
class Blobs:
    """SHA-256 of what was stored, by what it is for."""

    model: str
    failed: str
    shared: str
    late: str
    orphan: str
    young: str


def make_home(home: Path) -> Blobs:
    """model-1 succeeded long ago and registered a version from its second checkpoint; failed-2 failed long ago; late-3 finished
    lately, with the code that failed-2 had; open-4 runs."""
    bench = new_bench(home)
    agent = bench.add("a", 8)
    store = BlobStore(open_store(home / "blobs"))
    names = ("model", "failed", "shared", "late", "orphan", "young")
    blobs = Blobs(**{name: store.put(name.encode()) for name in names})
    for job, code, exit_code in (
        (MODEL, blobs.model, 0),
        (FAILED, blobs.failed, 1),
        (LATE, blobs.shared, 0),
        (OPEN, blobs.late, 0),
    ):
        if job is LATE:
            bench.clock.sleep(99 * DAY_MS)
            agent.renew()
        submitted = bench.control.submit(a_spec(job.rpartition("-")[0], max_restarts=0), code, "", "ada")
        assert submitted == job
        bench.tick()
        attempt = bench.attempt(job).id
        agent.run(attempt)
        bench.tick()
        _leave_files(home, job, attempt)
        if job is MODEL:
            _register(bench, home, attempt)
        if job is not OPEN:
            agent.end(attempt, exit_code)
            bench.tick(2)
    _leave_leftovers(home)
    for path in (home / "blobs").rglob("?" * 64):
        old = not path.name.startswith(blobs.young)
        os.utime(path, ns=((START_MS if old else NOW_MS) * 1_000_000,) * 2)
    bench.check()
    bench.store.close()
    return blobs


def _leave_files(home: Path, job: JobId, attempt: AttemptId) -> None:
    folder = home / "jobs" / job
    for name in ("work/out/file", "checkpoints/step-1/shard", "checkpoints/step-2/shard", f"model/{attempt}/weights", "notes"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * 100)
    (folder / "work" / "link").symlink_to(home)
    journal, series = Journal(home / "journal"), SeriesStore(home / "series")
    journal.write("log", attempt, 0, 0, b"said\n")
    journal.write("records", attempt, 0, 0, b"{}\n")
    series.append(attempt, [a_step(1), a_step(2)])
    if job is not OPEN:
        series.seal(attempt)
    series.close()


def a_step(step: int) -> StepRecord:
    return StepRecord(
        rank=0, step=step, total_steps=2, loss=1.0, loss_hex=(1.0).hex(), grad_norm=1.0, lr=0.1, tokens=1, tokens_per_s=1.0,
        mfu=0.0, started_ms=START_MS + step, ended_ms=START_MS + step + 1,
    )  # fmt: skip


def _register(bench: Bench, home: Path, attempt: AttemptId) -> None:
    folder = home / "jobs" / MODEL
    saved = [
        CheckpointCommitted(rank=0, step=n, path=f"{folder}/checkpoints/step-{n}", digest=f"d{n}", size_bytes=1, at_ms=1)
        for n in (1, 2)
    ]
    model = ModelSaved(
        rank=0, step=2, path=f"{folder}/model/{attempt}", weights_digest="w", metrics={}, lineage={"checkpoint": "d2"}, at_ms=1
    )
    bench.control.facts(NodeId("a"), attempt, 0, 10, [*saved, model])


def _leave_leftovers(home: Path) -> None:
    for name in ("run/.server.json.abc.tmp", "series/.boot.x1.tmp", "node/attempts/.gone-1.1.forgotten/rank-0.log"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(b"half")
        os.utime(home / name, ns=(START_MS * 1_000_000,) * 2)
    os.utime(home / "node/attempts/.gone-1.1.forgotten", ns=(START_MS * 1_000_000,) * 2)
    (home / "run/.young.x.tmp").write_bytes(b"half")
    os.utime(home / "run/.young.x.tmp", ns=(NOW_MS * 1_000_000,) * 2)
    environments = home / "node" / "environments"
    for key, used_ms in (("a" * 64, START_MS), ("b" * 64, NOW_MS), ("c" * 64, START_MS)):
        (environments / key / "venv").mkdir(parents=True)
        (environments / key / "ready.json").write_text("{}")
        os.utime(environments / key / "ready.json", ns=(used_ms * 1_000_000,) * 2)
    note = home / "node" / "attempts" / "open-4.1" / "environment.json"
    note.parent.mkdir(parents=True)
    note.write_text(f'{{"key": "{"c" * 64}", "lock": "uv.lock"}}')


@dataclass
class Collecting:
    """A server's parts as far as a collection needs them."""

    store: Store
    control: ControlThread
    blobs: BlobStore
    series: SeriesStore
    collector: Collector

    async def collect(self, older_than_ms: int = LIMIT_MS, dry_run: bool = False) -> GcView:
        """One whole collection."""
        self.collector.start(older_than_ms, dry_run, "ada")
        while (view := self.collector.view) is None or view.state == "running":
            await asyncio.sleep(0.001)
        return view


@contextmanager
def collecting(home: Path, clock: At | None = None) -> Iterator[Collecting]:
    """As after a start of the server, within an event loop."""
    store, clock = Store(home / "phalanx.db"), clock or At()
    settings = Settings(home=home, lineage=plain_lineage, outbox_for=no_outbox)
    control = ControlThread(Controller(store, clock, {}, settings), lambda error: None)
    series, blobs = SeriesStore(home / "series"), BlobStore(open_store(home / "blobs"))
    try:
        yield Collecting(store, control, blobs, series, Collector(home, control, store, series, blobs, clock))
    finally:
        control.close()
        series.close()
        store.close()


def collect(home: Path, older_than_ms: int = LIMIT_MS, dry_run: bool = False) -> GcView:
    """One collection by a server that has just started."""

    async def whole() -> GcView:
        with collecting(home) as parts:
            return await parts.collect(older_than_ms, dry_run)

    return asyncio.run(whole())


def amounts(view: GcView) -> dict[str, int]:
    return {one.kind: one.count for one in view.taken}


def tree(home: Path) -> set[str]:
    """Every file, without the database's own and what a start makes."""
    files = (path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_symlink() or not path.is_dir())
    return {name for name in files if not name.startswith(("phalanx.db", "blobs/lock", "node/environments/", "series/boot"))} | {
        path.relative_to(home).as_posix() for path in (home / "node/environments").iterdir() if path.is_dir()
    }


def _die_at(point: int) -> None:
    """SIGKILL of this process right before its `point`-th durable step, or right after it when that is odd."""
    steps = iter(range(1_000))

    def deadly(act: Callable[..., Any]) -> Callable[..., Any]:
        def doing(*arguments: Any, **named: Any) -> Any:
            if 2 * (number := next(steps)) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            result = act(*arguments, **named)
            if 2 * number + 1 == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return doing

    for owner, name in (
        (Controller, "collect"),
        (BlobStore, "remove"),
        (SeriesStore, "forget"),
        (gc_run, "clear_any"),
        (gc_run, "_remove_environment"),
    ):
        setattr(owner, name, deadly(getattr(owner, name)))


if __name__ == "__main__":
    _die_at(int(sys.argv[2]))
    sys.stdout.write(replace(collect(Path(sys.argv[1])), kept=()).state)
