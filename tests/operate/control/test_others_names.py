"""What is told of one job names no other team's, keeps its owner's own words, and does not tell whether there is such a job."""

from dataclasses import replace
from typing import Any

from phalanx.core import wire
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.people import Person
from phalanx.core.views import EventView, NodeView, WhyView
from phalanx.operate.control.api.veil import Veil
from phalanx.operate.control.others_names import for_team
from phalanx.operate.control.tail import Told
from tests.operate.control.control_bench import Bench, a_spec
from tests.recorded import job_view, killed_attempt, node_view

BLUE = Person(user="bea", token="t", roles={"blue": "viewer"})


def two_jobs(bench: Bench) -> tuple[str, str]:
    """One of each team."""
    bench.add("a")
    return tuple(bench.control.submit(replace(a_spec(), name=f"{team}-job", team=team), "", "", team) for team in ("red", "blue"))  # type: ignore[return-value]


def test_a_name_is_taken_out_wherever_it_stands(bench: Bench) -> None:
    red, blue = two_jobs(bench)
    spec, names = bench.job(JobId(blue)).spec, for_team(bench.world, "blue")
    told = names.out_of({"sentence": f"behind {red}, {red}.2 and {blue}", "jobs": [red, "none-9"], "n": 3}, spec)
    assert told["sentence"] == f"behind another team's job, another team's job and {blue}"
    assert (told["jobs"], told["n"]) == (["another team's job", "none-9"], 3)
    assert names.out_of(f"x{red} {red}x {red}-1", spec) == f"x{red} {red}x {red}-1", "other words than a job's id"
    assert for_team(bench.world, "").out_of(f"behind {red}", spec) == f"behind {red}"


def test_a_guess_in_the_own_spec_tells_nothing(bench: Bench) -> None:
    red, blue = two_jobs(bench)
    names = for_team(bench.world, "blue")
    for guess in (red, "red-job-99"):
        spec = replace(bench.job(JobId(blue)).spec, queue=guess)
        assert names.out_of(f"position 1 in queue {guess}", spec) == f"position 1 in queue {guess}"


def test_what_ranks_said_at_their_end_is_theirs(bench: Bench) -> None:
    red, blue = two_jobs(bench)
    spec, names = bench.job(JobId(blue)).spec, for_team(bench.world, "blue")
    assert names.out_of_detail(f"made room for {red}", spec) == "made room for another team's job"
    assert names.out_of_detail(f"rank 0 exited with 1: {red} and red-job-99", spec) == f"rank 0 exited with 1: {red} and red-job-99"


def test_views_are_veiled_for_who_may_not_see_everything(bench: Bench) -> None:
    red, blue = two_jobs(bench)
    spec = bench.job(JobId(blue)).spec
    ended = replace(killed_attempt(), detail=f"made room for {red}")
    job = job_view(id=blue, why=f"makes room for {red}", detail=f"made room for {red}", attempts=(ended,))
    why = WhyView(job=JobId(blue), state="pending", sentence=f"behind {red}", reason={"head": red}, position=1, late="")
    evicted = EventView(seq=1, at_ms=1, kind="job_evicted", job=JobId(blue), body={"claimant": red, "lost_ms": 3})
    over = EventView(seq=2, at_ms=1, kind="attempt_ended", job=JobId(blue), body={"detail": f"made room for {red}"})
    node: NodeView = node_view(held={0: AttemptId(f"{red}.1"), 1: AttemptId(f"{blue}.1")})
    veil = Veil(bench.world, BLUE)
    shown: tuple[Any, ...] = (veil.job(job, spec), veil.why(why, spec), veil.event(evicted), veil.event(over), *veil.nodes((node,)))
    assert all(red not in wire.dumps(type(one), one) for one in shown)
    assert shown[1].job == blue and shown[4].held[1] == f"{blue}.1"
    open_ = Veil(bench.world, replace(BLUE, everywhere="viewer"))
    assert (open_.job(job, spec), open_.why(why, spec), open_.event(evicted), open_.nodes((node,))) == (job, why, evicted, (node,))


def test_the_log_as_it_grows_is_veiled_too(bench: Bench) -> None:
    red, blue = two_jobs(bench)

    def told(kind: str, job: str | None, **body: Any) -> Told:
        view = EventView(seq=1, at_ms=1, kind=kind, job=None if job is None else JobId(job), body=body)
        return Told(1, kind, view.job, wire.dumps(EventView, view))

    waits, evicted = told("job_waits", blue, reason={"head": red}), told("job_evicted", blue, claimant=red)
    over, begun = told("attempt_ended", blue, detail=f"made room for {red}"), told("job_submitted", blue, by="bea")
    hidden = (told("job_submitted", red, by="rob"), told("node_seen", None, node="a"), told("job_submitted", "none-9", by="x"))
    veil = Veil(bench.world, BLUE)
    for one in (waits, evicted, over):
        data = veil.told(one)
        assert data is not None and red not in data and "another team's job" in data
        assert wire.loads(EventView, data).job == blue
    assert veil.told(begun) == begun.data
    assert [veil.told(one) for one in hidden] == [None] * 3
    open_ = Veil(bench.world, replace(BLUE, everywhere="viewer"))
    assert [open_.told(one) for one in (waits, *hidden)] == [one.data for one in (waits, *hidden)]


def test_why_a_node_is_drained_says_nothing_of_anothers_job(bench: Bench) -> None:
    red, blue = two_jobs(bench)
    found = f"quarantine: {red}.1: rank 3 has a checksum of its own at step 7"
    own, written = f"quarantine: {blue}.1: rank 0 is slow", f"fan of {red}.1 is loud"
    nodes = tuple(node_view(drained=reason) for reason in (found, own, written, ""))
    shown = [one.drained for one in Veil(bench.world, BLUE).nodes(nodes)]
    assert shown == ["quarantine: another team's job", own, "fan of another team's job is loud", ""]
    assert Veil(bench.world, replace(BLUE, everywhere="viewer")).nodes(nodes) == nodes
