"""Garbage collection of a real home: what goes, what stays, who asks at the same time, and a death anywhere."""

import asyncio
import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.errors import Conflict, IllegalTransition, NotFound, SpecError
from phalanx.core.events import Event, JobCollected
from phalanx.core.ids import AttemptId
from phalanx.core.views import GcView
from phalanx.operate.control import gc_run
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.fold import fold
from phalanx.operate.control.gc_plan import YOUNG_MS
from phalanx.operate.control.store import Store
from phalanx.storage.blobs import BlobStore
from phalanx.storage.objects import open_store
from tests.operate.control.control_bench import a_spec
from tests.operate.control.gc_home import (
    FAILED,
    LATE,
    LIMIT_MS,
    MODEL,
    NOW_MS,
    OPEN,
    START_MS,
    At,
    Blobs,
    Collecting,
    amounts,
    collect,
    collecting,
    make_home,
    tree,
)

GOES = {
    "blobs": 2, "work": 4, "checkpoints": 3, "models": 1, "logs": 2, "records": 2, "series": 2, "leftovers": 3, "environments": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Blobs]:
    home = tmp_path_factory.mktemp("gc") / "home"
    return home, make_home(home)


@pytest.fixture
def home(template: tuple[Path, Blobs], tmp_path: Path) -> Path:
    """Under the template's own path, which records and paths name: a copy of it put aside, and back at the end."""
    return fresh(template[0], tmp_path)


@pytest.fixture
def blobs(template: tuple[Path, Blobs]) -> Blobs:
    return template[1]


def fresh(home: Path, aside: Path) -> Path:
    """The home as it was made: records hold absolute paths, so it is always at the same place."""
    kept = home.parent / "kept"
    if not kept.exists():
        shutil.copytree(home, kept, symlinks=True)
    shutil.rmtree(home)
    shutil.copytree(kept, home, symlinks=True)
    return home


def left(home: Path) -> set[str]:
    return tree(home)


def expected(home: Path, blobs: Blobs) -> set[str]:
    """What stays of the home, by what its jobs are."""
    gone_jobs = ("jobs/failed-2/", "journal/failed-2.1/", "journal/model-1.1/", "series/failed-2.1.", "series/model-1.1.")
    gone = {
        "jobs/model-1/work/out/file", "jobs/model-1/work/link", "jobs/model-1/notes", "jobs/model-1/checkpoints/step-1/shard",
        "run/.server.json.abc.tmp", "series/.boot.x1.tmp", "node/attempts/.gone-1.1.forgotten/rank-0.log",
        f"node/environments/{'a' * 64}", *(f"blobs/{name[:2]}/{name}" for name in (blobs.failed, blobs.orphan)),
    }  # fmt: skip
    return {name for name in tree(home) if name not in gone and not name.startswith(gone_jobs)}


def test_a_dry_run_says_what_would_go_and_touches_nothing(home: Path, blobs: Blobs) -> None:
    before = left(home)
    view = collect(home, dry_run=True)
    assert left(home) == before
    assert (view.state, view.dry_run, view.jobs, view.problems) == ("done", True, (MODEL, FAILED), ())
    assert amounts(view) == GOES
    real = collect(home)
    assert (real.taken, real.kept, real.jobs) == (view.taken, view.kept, tuple(sorted(view.jobs)))


def test_what_nobody_needs_goes_and_what_somebody_needs_stays(home: Path, blobs: Blobs) -> None:
    stays = expected(home, blobs)
    view = collect(home)
    assert (view.state, view.problems, view.error) == ("done", (), "")
    assert amounts(view) == GOES
    assert left(home) == stays
    assert not (home / "jobs" / FAILED).exists()
    assert not (home / "journal" / "failed-2.1").exists()
    assert (home / "jobs" / MODEL / "checkpoints" / "step-2" / "shard").exists()
    store = BlobStore(open_store(home / "blobs"))
    assert [store.has(name) for name in (blobs.model, blobs.shared, blobs.late, blobs.young)] == [True] * 4
    why = {(one.kind, one.why) for one in view.kept}
    assert ("checkpoints", "named by model version model:1") in why
    assert ("blobs", "younger than 1h 00m") in why
    assert ("environments", "an attempt on this node uses it") in why
    assert ("work", "its job is open") in why
    again = collect(home)
    assert (again.taken, again.jobs) == ((), ())


def test_sizes_are_what_the_files_had(home: Path, blobs: Blobs) -> None:
    sizes = {one.kind: one.size_bytes for one in collect(home, dry_run=True).taken}
    assert sizes["blobs"] == len(b"failed") + len(b"orphan")
    assert sizes["logs"] == 2 * len(b"said\n")
    assert sizes["models"] >= 100


def test_links_are_removed_and_never_followed(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "file").write_text("mine")
    shutil.rmtree(home / "jobs" / FAILED / "work")
    (home / "jobs" / FAILED / "work").symlink_to(outside)
    (home / "jobs" / FAILED / "checkpoints" / "step-9").symlink_to(outside)
    shutil.rmtree(home / "jobs" / LATE)
    (home / "jobs" / LATE).symlink_to(outside)
    assert collect(home, older_than_ms=0).state == "done"
    assert (outside / "file").read_text() == "mine"
    assert not os.path.lexists(home / "jobs" / FAILED / "work")


def test_a_collected_job_cannot_be_opened_again_and_the_log_says_so(home: Path) -> None:
    async def scene() -> None:
        with collecting(home) as parts:
            await parts.collect()
            with pytest.raises(Conflict, match="its files were collected on 2024"):
                await parts.control.call(lambda controller: controller.retry(FAILED, "ada"))
            assert [event.body.job for event in parts.store.events() if isinstance(event.body, JobCollected)] == [MODEL, FAILED]

    asyncio.run(scene())


def test_a_job_opened_again_between_plan_and_mark_keeps_everything(home: Path, blobs: Blobs) -> None:
    async def scene() -> GcView:
        with collecting(home) as parts:
            mark = parts.collector._mark

            async def retried_first(*arguments: object) -> object:
                await parts.control.call(lambda controller: controller.retry(FAILED, "ada"))
                return await mark(*arguments)  # type: ignore[arg-type] # passed on as they came

            parts.collector._mark = retried_first  # type: ignore[assignment,method-assign] # the moment that matters
            return await parts.collect()

    before = {name for name in left(home) if "failed-2" in name}
    view = asyncio.run(scene())
    assert view.jobs == (MODEL,)
    assert {name for name in left(home) if "failed-2" in name} == before
    assert BlobStore(open_store(home / "blobs")).has(blobs.failed)


def test_files_that_a_job_names_since_the_plan_stay(home: Path) -> None:
    """A job that is submitted, or opened again, while a collection marks: what its spec names goes no more."""

    async def scene() -> GcView:
        with collecting(home) as parts:
            mark = parts.collector._mark

            async def submitted_first(*arguments: object) -> object:
                spec = replace(a_spec("heir"), env={"INIT": f"{home}/jobs/failed-2/checkpoints/step-2"})
                await parts.control.call(lambda controller: controller.submit(spec, "", "", "ada"))
                return await mark(*arguments)  # type: ignore[arg-type] # passed on as they came

            parts.collector._mark = submitted_first  # type: ignore[assignment,method-assign] # the moment that matters
            return await parts.collect()

    before = {name for name in left(home) if name.startswith("jobs/failed-2")}
    view = asyncio.run(scene())
    assert (view.state, view.jobs) == ("done", (FAILED, MODEL))
    assert {name for name in left(home) if name.startswith("jobs/failed-2")} == before


def test_a_submit_that_names_a_doomed_blob_must_send_it_again(home: Path, blobs: Blobs) -> None:
    """Between the doom and the removal, and after it, the blob counts as absent; sent again it stays."""

    async def scene() -> None:
        with collecting(home) as parts:
            doomed = await parts.control.call(lambda controller: parts.collector._doom(controller, [blobs.orphan]))
            assert doomed == {blobs.orphan}
            assert not parts.blobs.has(blobs.orphan)
            parts.blobs.put(b"orphan")
            assert not parts.blobs.remove(blobs.orphan)
            assert parts.blobs.get(blobs.orphan) == b"orphan"

    asyncio.run(scene())


def test_what_a_job_names_since_the_plan_is_not_doomed(home: Path, blobs: Blobs) -> None:
    async def scene() -> None:
        with collecting(home) as parts:
            await parts.control.call(lambda controller: controller.submit(a_spec("new"), blobs.orphan, "", "ada"))
            names = [blobs.orphan, blobs.failed]  # failed-2 is old, and not collected yet
            assert await parts.control.call(lambda controller: parts.collector._doom(controller, names)) == set()

    asyncio.run(scene())


def test_submits_race_a_collection_and_no_accepted_job_loses_its_code(home: Path, blobs: Blobs) -> None:
    """As the API does it: has, then the check and the commit on the control thread. Many at once, while blobs go."""

    async def submit(parts: Collecting, number: int) -> str:
        if not await asyncio.to_thread(parts.blobs.has, blobs.orphan):
            await asyncio.to_thread(parts.blobs.put, b"orphan")

        def act(controller: Controller) -> str:
            if parts.blobs.is_doomed(blobs.orphan):
                raise SpecError("code", blobs.orphan, "send it again")
            return controller.submit(a_spec(f"race-{number}"), blobs.orphan, "", "ada")

        return await parts.control.call(act)

    async def scene() -> list[object]:
        with collecting(home) as parts:
            collection = asyncio.create_task(parts.collect())
            outcomes = await asyncio.gather(*(submit(parts, number) for number in range(20)), return_exceptions=True)
            await collection
            return list(outcomes)

    outcomes = asyncio.run(scene())
    assert all(isinstance(one, str | SpecError) for one in outcomes), outcomes
    if any(isinstance(one, str) for one in outcomes):
        assert BlobStore(open_store(home / "blobs")).get(blobs.orphan) == b"orphan"


def test_two_collections_at_once_are_a_conflict(home: Path) -> None:
    async def scene() -> None:
        with collecting(home) as parts:
            parts.collector.start(LIMIT_MS, True, "ada")
            with pytest.raises(Conflict, match="another collection runs"):
                parts.collector.start(LIMIT_MS, True, "ada")
            await parts.collector.close()

    asyncio.run(scene())


def test_a_locked_environment_is_in_use_by_somebody(home: Path) -> None:
    lock = home / "node/environments" / f"{'a' * 64}.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        view = collect(home)
    assert [problem for problem in view.problems if "in use now" in problem] == list(view.problems)
    assert len(view.problems) == 1
    assert (home / "node/environments" / ("a" * 64)).exists()
    assert amounts(collect(home)) == {"environments": 1}


def test_a_store_that_is_away_fails_the_collection_and_nothing_is_marked(home: Path) -> None:
    before = {name for name in left(home) if not name.startswith("blobs/")}
    (home / "blobs").rename(home / "away")

    async def scene() -> GcView:
        with collecting(home) as parts:
            (home / "blobs").rmdir()
            return await parts.collect()

    view = asyncio.run(scene())
    assert view.state == "failed"
    assert "the folder is gone" in view.error
    (home / "away").rename(home / "blobs")
    assert {name for name in left(home) if not name.startswith("blobs/")} == before
    assert amounts(collect(home)) == GOES


def test_age_counts_from_the_end_of_the_job(home: Path) -> None:
    async def at(now_ms: int) -> GcView:
        with collecting(home, At(now_ms)) as parts:
            return await parts.collect(dry_run=True)

    assert asyncio.run(at(START_MS + LIMIT_MS - YOUNG_MS)).jobs == ()
    assert asyncio.run(at(NOW_MS + LIMIT_MS)).jobs == (MODEL, FAILED, LATE)
    assert OPEN not in asyncio.run(at(NOW_MS + 1000 * LIMIT_MS)).jobs


POINTS = (0, 1, 5, 12, 30, 39)
"""Of about 21 durable steps, before (even) and after (odd): the mark, the doom, blobs, files, series, environments."""


def test_a_death_anywhere_loses_nothing_that_is_needed_and_the_next_run_ends_the_work(
    home: Path, blobs: Blobs, tmp_path: Path
) -> None:
    stays = expected(home, blobs)
    collect(home)
    whole = left(home)
    assert whole == stays
    for point in POINTS:
        fresh(home, tmp_path)
        before = left(home)
        died = subprocess.run(
            [sys.executable, "-m", "tests.operate.control.gc_home", str(home), str(point)], timeout=60, check=False
        )
        assert died.returncode == -signal.SIGKILL, f"point {point} was never reached"
        between = left(home)
        assert stays <= between <= before, f"point {point}"
        view = collect(home)
        assert (view.state, view.problems) == ("done", ()), f"point {point}"
        assert left(home) == whole, f"point {point}"


def test_jobs_of_the_artifacts_table_keep_their_blobs(home: Path, blobs: Blobs) -> None:
    """An artifact of a kept job is kept; one of a collected job goes with it."""
    with sqlite3.connect(home / "phalanx.db") as database:
        for attempt, sha256 in (("open-4.1", blobs.orphan), ("failed-2.1", blobs.failed)):
            database.execute("INSERT INTO artifacts VALUES (?, 'a', ?, 1, 1)", (attempt, sha256))
    collect(home)
    store = BlobStore(open_store(home / "blobs"))
    assert store.has(blobs.orphan)
    with pytest.raises(NotFound):
        store.get(blobs.failed)


def test_a_job_that_the_tracker_has_not_taken_over_stays(home: Path) -> None:
    with sqlite3.connect(home / "phalanx.db") as database:
        database.execute(
            """INSERT INTO outbox (entry) VALUES ('{"kind": "run_finished", "job": "failed-2", "attempts": ["failed-2.1"]}')"""
        )
    view = collect(home)
    assert view.jobs == (MODEL,)
    assert ("logs", "the tracker has yet to take its job over") in {(one.kind, one.why) for one in view.kept}


def test_a_tracker_that_is_too_far_behind_to_be_read_whole_keeps_everything(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(home / "phalanx.db") as database:
        database.executemany("INSERT INTO outbox (entry) VALUES (?)", [('{"kind": "x", "job": "late-3"}',)] * 2)
    monkeypatch.setattr(gc_run, "OUTBOX_ROWS", 2)
    assert collect(home).jobs == ()


def test_half_blobs_go_and_files_of_people_in_the_chosen_folder_stay(home: Path, tmp_path: Path) -> None:
    store = BlobStore(open_store(tmp_path / "chosen"))
    half = tmp_path / "chosen" / "ab" / f"{'ab' * 32}#123"
    mine = [tmp_path / "chosen" / name for name in ("notes#1", "x/notes#1", ".mine.tmp", "x/.mine.tmp")]
    for path in (half, *mine):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        os.utime(path, ns=(START_MS * 1_000_000,) * 2)

    async def scene() -> None:
        with collecting(home) as parts:
            parts.collector._blobs = store
            await parts.collect()

    asyncio.run(scene())
    assert not half.exists()
    assert all(path.exists() for path in mine)


def test_collections_and_readers_share_the_series(home: Path) -> None:
    async def scene() -> None:
        with collecting(home) as parts, ThreadPoolExecutor(4) as pool:
            attempts = [AttemptId(name) for name in ("failed-2.1", "late-3.1", "open-4.1") for _ in range(20)]
            reads = [pool.submit(parts.series.steps, attempt) for attempt in attempts]
            view = await parts.collect()
            assert all(len(read.result()) in (0, 2) for read in reads)
            assert replace(view, kept=()).state == "done"
            assert len(parts.series.steps(AttemptId("open-4.1"))) == 2

    asyncio.run(scene())


def test_only_what_is_over_and_not_collected_yet_can_be_collected(home: Path) -> None:
    collect(home)
    store = Store(home / "phalanx.db")
    world = store.load()
    store.close()
    for job in (OPEN, MODEL):
        with pytest.raises(IllegalTransition, match="cannot be collected"):
            fold(world, Event(world.seq + 1, NOW_MS, JobCollected(job, "ada")))
    assert fold(world, Event(world.seq + 1, NOW_MS, JobCollected(LATE, "ada"))).jobs[LATE].collected_ms == NOW_MS
