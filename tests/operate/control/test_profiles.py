"""What ranks' traces say together: pure, of summaries made up for it."""

import math
import threading
from dataclasses import replace

import pytest

from phalanx.core.ids import AttemptId, JobId
from phalanx.core.profile import BusyOperator, ProfileView, RankTrace, StepTrace, TracedPipeline
from phalanx.operate.control.blob_threads import NUM_OF_ONE, for_each_blob
from phalanx.operate.control.profiles import BUSIEST, NAME_CHARS_MAX, means_of, profile_of, windows_of


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
    read = {one.rank: means for one in traces if (means := means_of(one)) is not None}
    return profile_of(JobId("lm-1"), AttemptId("lm-1.1"), (7, 8), read, [(3, 4)], unread)


def test_traces_are_found_by_their_names_and_nothing_else_is_one() -> None:
    good = [
        "profile/rank-0-steps-7-8.summary.json",
        "profile/rank-11-steps-7-8.summary.json",
        "profile/rank-0-steps-3-4.summary.json",
    ]
    bad = ["profile/rank-0-steps-7-8.trace.json.gz", "rank-0-steps-7-8.summary.json", "profile/rank-x-steps-7-8.summary.json"]
    bad.append("profile/rank-12-steps-7-8.summary.json")  # the gang has twelve
    assert windows_of([*good, *bad], 12) == {(7, 8): {0: good[0], 11: good[1]}, (3, 4): {0: good[2]}}


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


@pytest.mark.parametrize("number", [1e308, math.inf, math.nan, -1.0])
def test_numbers_that_cannot_be_are_of_no_trace(number: float) -> None:
    good = trace(0, 1, TracedPipeline(schedule="1f1b", num_ranks=2, num_microbatches=4, stages_per_rank=1))
    (first, *rest), (gemm, *others) = good.steps, good.busiest
    steps = (replace(first, wall_ms=number), replace(first, bubble_ms=number), replace(first, mfu=number))
    operators = (replace(gemm, total_ms=number), replace(gemm, share=number))
    bad = [replace(good, passes={"F": number}), *(replace(good, steps=(one, *rest)) for one in steps)]
    bad += [replace(good, busiest=(one, *others)) for one in operators]
    assert means_of(good) is not None and [means_of(one) for one in bad] == [None] * len(bad)


def test_of_a_summary_only_so_much_is_kept() -> None:
    good = trace(0, 1, bubbles=(0,) * 100)
    long = BusyOperator(name="x" * 5_000, calls=1, total_ms=1, share=0.1)
    means = means_of(replace(good, busiest=(long,)))
    assert means is not None and len(means.busiest[0].name) == NAME_CHARS_MAX and means.bubbles == {}
    more = [trace(0, 1, bubbles=(0,) * 101), trace(0, 1, bubbles=()), replace(good, busiest=(long,) * (BUSIEST + 1))]
    assert [means_of(one) for one in more] == [None, None, None]


def test_many_blobs_are_waited_for_at_once() -> None:
    together = threading.Barrier(NUM_OF_ONE)

    def read(number: int) -> int:
        together.wait(timeout=60)
        return 2 * number

    assert for_each_blob(read, range(2 * NUM_OF_ONE)) == [2 * number for number in range(2 * NUM_OF_ONE)]


@pytest.mark.parametrize("changed", [{"schedule": "1f2b"}, {"num_ranks": 0}, {"num_microbatches": 10**12}, {"stages_per_rank": -1}])
def test_a_pipeline_that_cannot_be_has_no_bubble(changed: dict[str, object]) -> None:
    said: dict[str, object] = {"schedule": "1f1b", "num_ranks": 2, "num_microbatches": 4, "stages_per_rank": 1, **changed}
    assert seen(trace(0, 0, TracedPipeline(**said))).bubble is None  # type: ignore[arg-type]
