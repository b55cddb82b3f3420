"""What may be collected: nothing that is in use is ever in a plan, and what nobody needs always is."""

import os.path
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.ids import JobId
from phalanx.operate.control.gc_plan import KINDS, YOUNG_MS, Facts, Found, JobFacts, Kind, ModelFacts, amounts, plan
from tests.drawn import examples

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
LIMIT_MS = 30 * DAY_MS
OLD, LATE = NOW_MS - 31 * DAY_MS, NOW_MS - 29 * DAY_MS
A, B = JobId("a-1"), JobId("b-2")


def facts(*found: Found, jobs: tuple[JobFacts, ...] = (), models: tuple[ModelFacts, ...] = ()) -> Facts:
    known = {job.id: job for job in jobs}
    return Facts(now_ms=NOW_MS, older_than_ms=LIMIT_MS, jobs=known, models=models, found=found)


def job(name: JobId = A, finished_ms: int | None = OLD, **rest: object) -> JobFacts:
    return replace(JobFacts(id=name, open=finished_ms is None, finished_ms=finished_ms), **rest)  # type: ignore[arg-type]


def blob(name: str, modified_ms: int = OLD) -> Found:
    return Found(kind="blobs", name=name, size_bytes=10, modified_ms=modified_ms)


def work(name: JobId = A, path: str = "work") -> Found:
    return Found(kind="work", name=f"/h/jobs/{name}/{path}", size_bytes=5, modified_ms=OLD, job=name)


def checkpoint(step: int, name: JobId = A) -> Found:
    return Found(kind="checkpoints", name=f"/h/jobs/{name}/checkpoints/step-{step}", size_bytes=7, modified_ms=OLD, job=name)


def kept(found: Facts) -> dict[str, str]:
    """Kind -> the one reason."""
    return dict(plan(found).kept.keys())


def test_what_an_old_job_left_goes_with_its_code() -> None:
    made = plan(facts(work(), checkpoint(1), blob("c"), jobs=(job(blobs=frozenset({"c"})),)))
    assert made.take == (work(), checkpoint(1), blob("c"))
    assert made.jobs == (A,)
    assert made.kept == {}
    assert amounts(made.take) == {"blobs": (1, 10), "work": (1, 5), "checkpoints": (1, 7)}


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (job(finished_ms=None), "its job is open"),
        (job(finished_ms=LATE), "its job finished less than 30d ago"),
        (job(pending=True), "the tracker has yet to take its job over"),
    ],
)
def test_what_a_job_may_need_stays(of: JobFacts, says: str) -> None:
    found = facts(work(), blob("c"), jobs=(replace(of, blobs=frozenset({"c"})),))
    assert plan(found).take == ()
    assert plan(found).jobs == ()
    assert kept(found) == {"work": says, "blobs": says if "finished" not in says else "its job finished lately"}


def test_files_of_a_job_that_the_database_does_not_know_stay() -> None:
    """As after a restore of an older database: they may be of a job that was real."""
    assert kept(facts(work(), Found(kind="logs", name="/h/journal/x/log-0", size_bytes=1, modified_ms=OLD))) == {
        "work": "of no job that this database knows",
        "logs": "of no job that this database knows",
    }


def test_what_a_model_version_descends_from_stays_and_the_rest_goes() -> None:
    model = ModelFacts(name="m:1", job=A, blobs=frozenset({"c"}), paths=frozenset({"/h/jobs/a-1/checkpoints/step-2"}))
    made = plan(facts(work(), checkpoint(1), checkpoint(2), blob("c"), jobs=(job(blobs=frozenset({"c"})),), models=(model,)))
    assert made.take == (work(), checkpoint(1))
    assert made.jobs == (A,)
    assert set(made.kept) == {("checkpoints", "named by model version m:1"), ("blobs", "named by model version m:1")}
    again = plan(facts(checkpoint(2), blob("c"), jobs=(job(collected=True, blobs=frozenset({"c"})),), models=(model,)))
    assert again.take == ()


def test_every_checkpoint_stays_where_nobody_knows_which_one_a_version_needs() -> None:
    model = ModelFacts(name="m:1", job=A, every_checkpoint=True)
    made = plan(facts(work(), checkpoint(1), checkpoint(2), checkpoint(1, B), jobs=(job(), job(B)), models=(model,)))
    assert made.take == (work(), checkpoint(1, B))


def test_a_model_saved_inside_the_work_folder_keeps_it_and_no_more() -> None:
    model = ModelFacts(name="m:1", job=A, paths=frozenset({"/h/jobs/a-1/work/out/model"}))
    made = plan(facts(work(), work(path="work-1"), work(path="workbench"), jobs=(job(),), models=(model,)))
    assert made.take == (work(path="work-1"), work(path="workbench"))


def test_what_another_jobs_spec_names_stays_until_that_one_is_old() -> None:
    reader = job(B, finished_ms=None, paths=frozenset({"/h/jobs/a-1"}))
    assert kept(facts(work(), checkpoint(1), jobs=(job(), reader))) == dict.fromkeys(("work", "checkpoints"), "named by job b-2")
    assert plan(facts(work(), jobs=(job(), replace(reader, open=False, finished_ms=OLD)))).take == (work(),)


def test_a_blob_that_two_jobs_name_stays_for_the_younger_and_both_are_marked_when_it_goes() -> None:
    shared = frozenset({"c"})
    young = plan(facts(blob("c"), jobs=(job(blobs=shared), job(B, finished_ms=LATE, blobs=shared))))
    assert (young.take, young.jobs) == ((), ())
    old = plan(facts(blob("c"), jobs=(job(blobs=shared), job(B, blobs=shared))))
    assert (old.take, old.jobs) == ((blob("c"),), (A, B))


def test_an_upload_whose_submit_has_not_come_yet_stays() -> None:
    assert kept(facts(blob("c", NOW_MS - YOUNG_MS + 1))) == {"blobs": "younger than 1h 00m"}
    assert plan(facts(blob("c", NOW_MS - YOUNG_MS))).take == (blob("c", NOW_MS - YOUNG_MS),)


def test_what_is_left_of_a_collected_job_goes_whatever_the_limit() -> None:
    """A crash between the mark and the removal, and a limit that was raised since."""
    found = facts(work(), blob("c"), jobs=(job(finished_ms=LATE, collected=True, blobs=frozenset({"c"})),))
    assert plan(found).take == (work(), blob("c"))
    assert plan(found).jobs == ()


@pytest.mark.parametrize("age_ms", [0, YOUNG_MS - 1, YOUNG_MS, LIMIT_MS - 1, LIMIT_MS])
def test_leftovers_and_environments_go_by_their_age(age_ms: int) -> None:
    leftover = Found(kind="leftovers", name="/h/.x.tmp", size_bytes=1, modified_ms=NOW_MS - age_ms)
    environment = Found(kind="environments", name="/h/node/environments/k", size_bytes=1, modified_ms=NOW_MS - age_ms)
    taken = {item.kind for item in plan(facts(leftover, environment)).take}
    assert ("leftovers" in taken) == (age_ms >= YOUNG_MS)
    assert ("environments" in taken) == (age_ms >= LIMIT_MS)
    used = replace(environment, in_use="an attempt uses it")
    assert plan(facts(used)).take == ()


# Properties, over homes of any shape

NAMES = [JobId(f"j-{number}") for number in range(4)]
BLOBS = [f"blob{number}" for number in range(5)]
FILES: tuple[tuple[Kind, str], ...] = (
    ("work", "work"),
    ("checkpoints", "checkpoints/step-1"),
    ("models", "model/x"),
    ("logs", "log-0"),
)
PATHS = [f"/h/jobs/{name}/{rest}" for name in NAMES for rest in ("work", "work/m", "checkpoints/step-1", "model/x", "")]


def times() -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, NOW_MS), st.sampled_from([NOW_MS, LATE, OLD, NOW_MS - YOUNG_MS, NOW_MS - LIMIT_MS]))


def some(values: list[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(values), max_size=3)


@st.composite
def homes(draw: st.DrawFn) -> Facts:
    jobs = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        is_open = draw(st.booleans())
        jobs[name] = JobFacts(
            id=name,
            open=is_open,
            finished_ms=None if is_open else draw(st.one_of(st.none(), times())),
            collected=not is_open and draw(st.booleans()),
            pending=draw(st.booleans()),
            blobs=draw(some(BLOBS)),
            paths=draw(some(PATHS)),
        )
    models = draw(
        st.lists(
            st.builds(
                ModelFacts,
                name=st.just("m:1"),
                job=st.sampled_from(NAMES),
                blobs=some(BLOBS),
                paths=some(PATHS),
                every_checkpoint=st.booleans(),
            ),
            max_size=3,
        )
    )
    found = [
        *(Found(kind="blobs", name=name, size_bytes=1, modified_ms=draw(times())) for name in BLOBS),
        *(
            Found(kind=kind, name=f"/h/jobs/{name}/{rest}", size_bytes=1, modified_ms=OLD, job=name)
            for name in NAMES
            for kind, rest in FILES
        ),
    ]
    limit_ms = draw(st.sampled_from([0, YOUNG_MS, LIMIT_MS, 10_000 * DAY_MS]))
    return Facts(now_ms=NOW_MS, older_than_ms=limit_ms, jobs=jobs, models=tuple(models), found=tuple(found))


def needs(of: JobFacts, home: Facts) -> bool:
    """Whether somebody may still want what the job names, said another way than the plan does."""
    too_young = of.finished_ms is None or of.finished_ms > home.now_ms - home.older_than_ms
    return not of.collected and (of.open or of.pending or too_young)


def overlap(one: str, other: str) -> bool:
    one, other = os.path.normpath(one), os.path.normpath(other)
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


@settings(max_examples=examples(60), deadline=None)
@given(homes())
def test_nothing_in_use_is_ever_in_a_plan(home: Facts) -> None:
    made = plan(home)
    needed = [of for of in home.jobs.values() if needs(of, home)]
    for item in made.take:
        if item.kind == "blobs":
            assert not any(item.name in of.blobs for of in needed)
            assert not any(item.name in model.blobs for model in home.models)
            assert item.modified_ms <= home.now_ms - YOUNG_MS
        else:
            assert item.job in home.jobs
            assert item.job not in [of.id for of in needed]
            assert not any(overlap(item.name, path) for of in needed for path in of.paths)
            assert not any(overlap(item.name, path) for model in home.models for path in model.paths)
            assert item.kind != "checkpoints" or not any(model.every_checkpoint and model.job == item.job for model in home.models)
    assert not set(made.jobs) & {of.id for of in needed}


@settings(max_examples=examples(60), deadline=None)
@given(homes())
def test_whoever_loses_something_is_marked_first(home: Facts) -> None:
    """Else somebody could open a job again whose files go."""
    made = plan(home)
    gone = {item.name for item in made.take if item.kind == "blobs"}
    for of in home.jobs.values():
        loses = bool(of.blobs & gone) or any(item.job == of.id for item in made.take)
        assert (of.id in made.jobs) == (loses and not of.collected)


@settings(max_examples=examples(60), deadline=None)
@given(homes())
def test_all_is_either_taken_or_kept_for_a_reason(home: Facts) -> None:
    made = plan(home)
    assert sum(count for count, _ in made.kept.values()) + len(made.take) == len(home.found)
    assert all(why for _, why in made.kept)
    assert set(amounts(made.take)) <= set(KINDS)


@settings(max_examples=examples(60), deadline=None)
@given(homes())
def test_without_jobs_and_models_every_old_blob_goes(home: Facts) -> None:
    bare = replace(home, jobs={}, models=())
    old = {item for item in bare.found if item.kind == "blobs" and item.modified_ms <= bare.now_ms - YOUNG_MS}
    assert set(plan(bare).take) == old


@settings(max_examples=examples(60), deadline=None)
@given(homes())
def test_a_plan_that_was_carried_out_leaves_nothing_to_plan(home: Facts) -> None:
    made = plan(home)
    after = {name: replace(of, collected=of.collected or name in made.jobs) for name, of in home.jobs.items()}
    left = tuple(item for item in home.found if item not in made.take)
    again = plan(replace(home, jobs=after, found=left))
    assert again.jobs == ()
    unnamed = [item for item in again.take if item.kind != "blobs"]
    assert unnamed == []
