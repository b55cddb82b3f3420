"""What ranks' traces say together: pure, of summaries made up for it."""

import pytest

from phalanx.core.ids import AttemptId, JobId
from phalanx.core.profile import BusyOperator, ProfileView, RankTrace, StepTrace, TracedPipeline
from phalanx.operate.control.profiles import profile_of, windows_of


def trace(rank: int, exposed_ms: float, pipeline: TracedPipeline | None = None, bubbles: tuple[float, ...] = (0, 0)) -> RankTrace:
    steps = tuple(
        StepTrace(step=step, wall_ms=100, communication_ms=30, exposed_communication_ms=exposed_ms, bubble_ms=bubble, mfu=0.5)
        for step, bubble in enumerate(bubbles, 7)
    )
    busiest = (
        BusyOperator(name="gemm", calls=2, total_ms=10, share=0.5),
        BusyOperator(name=f"k{rank}", calls=1, total_ms=1, share=0.1),
    )
    passes = {"F": 1.0, "B": 2.0 + rank} if pipeline else {}
    return RankTrace(rank=rank, on_gpu=True, steps=steps, busiest=busiest, passes=passes, pipeline=pipeline)


def seen(*traces: RankTrace, unread: tuple[int, ...] = ()) -> ProfileView:
    return profile_of(JobId("lm-1"), AttemptId("lm-1.1"), (7, 8), {one.rank: one for one in traces}, [(3, 4)], unread)


def test_traces_are_found_by_their_names_and_nothing_else_is_one() -> None:
    good = [
        "profile/rank-0-steps-7-8.summary.json",
        "profile/rank-11-steps-7-8.summary.json",
        "profile/rank-0-steps-3-4.summary.json",
    ]
    bad = ["profile/rank-0-steps-7-8.trace.json.gz", "rank-0-steps-7-8.summary.json", "profile/rank-x-steps-7-8.summary.json"]
    assert windows_of([*good, *bad]) == {(7, 8): {0: good[0], 11: good[1]}, (3, 4): {0: good[2]}}


def test_a_job_is_the_mean_of_its_ranks() -> None:
    view = seen(trace(0, 10), trace(1, 20), unread=(5,))
    assert [one.exposed_communication_ms for one in (*view.ranks, view.whole)] == [10, 20, 15]
    assert view.whole.mfu == 0.5 and view.bubble is None
    assert [(one.name, one.calls, one.total_ms, one.share) for one in view.busiest[:2]] == [
        ("gemm", 4, 20, 0.5),
        ("k0", 1, 1, 0.05),
    ]
    assert view.ranks[1].trace == "profile/rank-1-steps-7-8.trace.json.gz"


def test_a_bubble_stands_beside_what_the_formula_says_of_passes_that_long() -> None:
    asked = TracedPipeline(schedule="1f1b", num_ranks=2, num_microbatches=4, stages_per_rank=1)
    view = seen(trace(0, 0, asked, (4, 6)), trace(1, 0, asked, (5, 2)))
    assert view.bubble is not None
    assert view.bubble.measured_ms == 5.5, "of each step the worst rank's"
    assert view.bubble.formula_ms == pytest.approx((2 - 1) * (1.0 + 2.5))


@pytest.mark.parametrize("changed", [{"schedule": "1f2b"}, {"num_ranks": 0}, {"num_microbatches": 10**12}, {"stages_per_rank": -1}])
def test_a_pipeline_that_cannot_be_has_no_bubble(changed: dict[str, object]) -> None:
    said: dict[str, object] = {"schedule": "1f1b", "num_ranks": 2, "num_microbatches": 4, "stages_per_rank": 1, **changed}
    assert seen(trace(0, 0, TracedPipeline(**said))).bubble is None  # type: ignore[arg-type]
