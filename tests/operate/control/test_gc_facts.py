"""What names what, as far as the records tell: hostile words of ranks keep no more than they may, unknown ones no less."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.checkpoints import FENCE
from phalanx.core.ids import AttemptId, JobId
from phalanx.operate.control.gc_facts import found_files, job_facts, model_facts, pending_jobs
from phalanx.operate.control.gc_plan import ModelFacts
from phalanx.operate.control.store import Store
from phalanx.operate.control.world import ModelRecord, World
from tests.operate.control.gc_home import FAILED, MODEL, OPEN, make_home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("facts") / "home"
    make_home(home)
    return home


@pytest.fixture(scope="module")
def world(home: Path) -> World:
    store = Store(home / "phalanx.db")
    world = store.load()
    store.close()
    return world


def facts_of(world: World, home: Path, path: str = "", **lineage: str) -> ModelFacts:
    """Of the one version, had its rank said this."""
    (record,) = world.models["model"]
    said = replace(record.saved, path=path or record.saved.path)
    changed: ModelRecord = replace(record, saved=said, lineage={**record.lineage, **lineage})
    (found,) = model_facts(replace(world, models={"model": (changed,)}), home)
    return found


def test_a_version_names_its_folder_its_checkpoint_and_its_code(world: World, home: Path) -> None:
    facts = facts_of(world, home)
    folder = home / "jobs" / MODEL
    assert facts.paths == {f"{folder}/model/model-1.1", f"{folder}/checkpoints/step-2"}
    assert facts.blobs == {world.jobs[MODEL].code}
    assert (facts.name, facts.job, facts.every_checkpoint) == ("model:1", MODEL, False)


@pytest.mark.parametrize(
    "path", ["/", "//", "/etc", "..", "", "a\0b", "{home}", "{home}/jobs", "{home}/jobs/../..", "{home}/blobs/x"]
)
def test_a_path_that_a_rank_made_up_keeps_nothing_of_others(world: World, home: Path, path: str) -> None:
    named = facts_of(world, home, path=path.format(home=home) or "/x").paths
    assert named == {f"{home}/jobs/{MODEL}/checkpoints/step-2"}


def test_a_link_that_a_rank_named_keeps_what_it_leads_to(world: World, home: Path) -> None:
    link = home / "jobs" / MODEL / "newest"
    link.symlink_to(home / "jobs" / MODEL / "work" / "out")
    try:
        named = facts_of(world, home, path=str(link)).paths
    finally:
        link.unlink()
    assert {f"{link}", f"{home}/jobs/{MODEL}/work/out"} <= named


@pytest.mark.parametrize(
    ("checkpoint", "every"),
    [
        ("d2", False),
        ("d1", False),
        ("unknown", True),
        ("{home}/jobs/model-1/checkpoints/step-1@d1", False),
        ("/x@unknown", True),
        ("", False),
    ],
)
def test_a_checkpoint_is_found_by_its_digest_and_all_are_kept_when_it_is_not(
    world: World, home: Path, checkpoint: str, every: bool
) -> None:
    assert facts_of(world, home, checkpoint=checkpoint.format(home=home)).every_checkpoint == every


def test_a_spec_that_names_a_file_of_another_job_names_that_job_wherever_it_stands(world: World, home: Path) -> None:
    job = world.jobs[OPEN]
    text = f"--init={home}/jobs/model-1/work/my file:{home}/jobs/failed-2/x"
    for spec in (replace(job.spec, env={"INIT": text}), replace(job.spec, entrypoint=("python", text))):
        facts = job_facts(replace(world, jobs={OPEN: replace(job, spec=spec)}), home, {}, ())
        assert facts[OPEN].paths == {f"{home}/jobs/model-1", f"{home}/jobs/failed-2"}


@pytest.mark.parametrize("text", ["~/.phalanx/jobs/model-1/x", "$HOME/p/jobs//model-1", "jobs/model-1", "a:/link/jobs/model-1,b"])
def test_a_spec_names_a_job_by_whatever_way_its_path_leads_there(world: World, home: Path, text: str) -> None:
    spec = replace(world.jobs[OPEN].spec, entrypoint=("sh", "-c", text))
    facts = job_facts(replace(world, jobs={OPEN: replace(world.jobs[OPEN], spec=spec)}), home, {}, ())
    assert facts[OPEN].paths == {f"{home}/jobs/model-1"}


def test_outbox_entries_name_jobs_by_id_and_by_attempt() -> None:
    jobs = [JobId("a-1"), JobId("b-2"), JobId("c-3")]
    entries: list[dict[str, Any]] = [
        {"kind": "x", "job": "a-1"},
        {"attempts": ["b-2.4", "nonsense", 7]},
        {"attempt": AttemptId("zz-9.1"), "at_ms": 3},
    ]
    assert pending_jobs(entries, jobs) == {"a-1", "b-2"}


def test_every_file_of_the_home_is_found_once_with_its_kind_and_job(home: Path) -> None:
    found = found_files(home)
    assert len({item.name for item in found}) == len(found)
    of_failed = {(item.kind, Path(item.name).name) for item in found if item.job == FAILED}
    assert of_failed == {
        ("work", "work"), ("work", "notes"), ("checkpoints", "step-1"), ("checkpoints", "step-2"), ("models", "failed-2.1"),
        ("logs", "log-0"), ("records", "records-0"), ("series", "failed-2.1.parquet"),
    }  # fmt: skip
    assert {item.job for item in found if item.kind in ("leftovers", "environments")} == {None}
    assert all(item.size_bytes > 0 for item in found)


def test_the_note_of_who_may_commit_stays_while_any_checkpoint_does(home: Path) -> None:
    folder = home / "jobs" / FAILED / "checkpoints"
    (folder / FENCE).write_text('{"attempt": "failed-2.1"}')

    def checkpoints() -> set[str]:
        return {Path(item.name).name for item in found_files(home) if item.job == FAILED and item.kind == "checkpoints"}

    assert checkpoints() == {"step-1", "step-2"}
    for step in folder.glob("step-*"):
        shutil.rmtree(step)
    assert checkpoints() == {FENCE}


def test_a_home_that_is_empty_or_not_there_has_nothing(tmp_path: Path) -> None:
    assert found_files(tmp_path) == []
    assert found_files(tmp_path / "none") == []
