"""The summary of a trace, over events made up for it: pure."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.profile import RankTrace
from phalanx.fabric.pipeline.actions import Action, Kind
from phalanx.job.checkpoint import beside
from phalanx.job.train.traces.timeline import COPY, OF_PIPELINE, Span, overlap, summarised, union, without, write


def event(name: str, cat: str, begin_ms: float, end_ms: float, tid: int = 1) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": begin_ms * 1e3, "dur": (end_ms - begin_ms) * 1e3, "pid": 1, "tid": tid}


def test_spans() -> None:
    assert union([(5, 6), (0, 2), (1, 3)]) == [(0, 3), (5, 6)]
    assert overlap([(0, 4), (6, 9)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (6, 7)]
    assert without([(0, 10)], [(2, 3), (5, 7)]) == [(0, 2), (3, 5), (7, 10)]
    assert without([(2, 3)], [(0, 9)]) == []


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=20)


@given(SPANS, SPANS)
def test_what_is_left_of_spans_is_every_instant_of_one_that_is_not_in_the_other(one: list[Span], two: list[Span]) -> None:
    some, others = (union((begin, begin + long) for begin, long in spans if long) for spans in (one, two))

    def instants(spans: Sequence[Span]) -> set[int]:
        return {instant for begin, end in spans for instant in range(int(begin), int(end))}

    left = without(some, others)
    assert instants(left) == instants(some) - instants(others) and all(begin < end for begin, end in left)


class Counted(list[Span]):
    looked = 0

    def __getitem__(self, at: Any) -> Any:
        self.looked += 1
        return super().__getitem__(at)


def test_many_spans_are_swept_once() -> None:
    some, others = ([(4 * number + begin, 4 * number + begin + 1) for number in range(300)] for begin in (0, 2))
    swept = Counted(others)
    assert without(some, swept) == some and swept.looked < 20 * len(some)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_communication_is_exposed_where_nothing_is_computed_beside_it(on_gpu: bool) -> None:
    compute, reduce = ("kernel", "ncclDevKernel_AllReduce") if on_gpu else ("cpu_op", "gloo:all_reduce")
    events: list[Mapping[str, object]] = [
        event("step 7", "user_annotation", 0, 100),
        event("step 8", "user_annotation", 100, 150),
        event("data wait", "user_annotation", 0, 10),
        event("gemm", compute, 10, 50),
        event(reduce, "kernel" if on_gpu else "cpu_op", 40, 70, tid=2),
        event("gemm", compute, 60, 65),
        event("c10d::allreduce_", "cpu_op", 40, 70),
        {"ph": "M", "name": "process_name"},
    ]
    summary = summarised(events, 3)
    first, second = summary.steps
    assert (first.step, first.wall_ms, first.data_wait_ms) == (7, 100, 10)
    assert (first.communication_ms, first.exposed_communication_ms) == (30, 15)  # 50-60 and 65-70
    assert (second.step, second.wall_ms, second.communication_ms) == (8, 50, 0)
    assert summary.on_gpu == on_gpu and "gemm" in summary.text()


def test_an_operator_counts_without_those_that_it_calls() -> None:
    events = [event("outer", "cpu_op", 0, 10), event("inner", "cpu_op", 2, 8), event("inner", "cpu_op", 20, 21)]
    busiest = {one.name: (one.calls, one.total_ms) for one in summarised(events, 0).busiest}
    assert busiest == {"outer": (1, 4.0), "inner": (2, 7.0)}


def test_one_that_begins_before_another_ends_takes_only_what_both_have() -> None:
    events = [event("early", "kernel", 0, 2), event("late", "kernel", 1, 10)]
    assert {one.name: one.total_ms for one in summarised(events, 0).busiest} == {"early": 1.0, "late": 9.0}


def test_a_trace_is_there_also_where_it_cannot_be_summed_up(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    raw.write_text('{"traceEvents": [')
    with pytest.raises(json.JSONDecodeError):
        write(raw, 0, str(tmp_path / "t"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["t.trace.json.gz"]
    assert gzip.decompress((tmp_path / "t.trace.json.gz").read_bytes()) == b'{"traceEvents": ['


def test_what_other_threads_do_hides_no_communication() -> None:
    events = [
        event("step 1", "user_annotation", 0, 10),
        event("gloo:all_reduce", "cpu_op", 2, 8, tid=2),
        event("aten::copy_", "cpu_op", 0, 10, tid=3),
        event("aten::mm", "cpu_op", 7, 9),
    ]
    (step,) = summarised(events, 0).steps
    assert (step.communication_ms, step.exposed_communication_ms) == (6, 5)


def test_copies_to_the_host_hide_no_communication_on_a_gpu() -> None:
    events = [
        event("step 1", "user_annotation", 0, 10),
        event("ncclDevKernel_AllGather", "kernel", 2, 8, tid=2),
        event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 0, 10, tid=3),
        event("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 7, 9, tid=1),
    ]
    (step,) = summarised(events, 0).steps
    assert (step.communication_ms, step.exposed_communication_ms) == (6, 5)


def test_optimizer_checkpoint_and_copies_are_told_apart() -> None:
    events = [
        event("step 1", "user_annotation", 0, 10),
        event("optimizer", "user_annotation", 4, 7),
        event("Optimizer.step#AdamW.step", "user_annotation", 5, 8),
        event("checkpoint", "user_annotation", 8, 9),
        event(COPY, "user_annotation", 9, 15, tid=2),
        event("step 2", "user_annotation", 10, 20),
    ]
    first, second = summarised(events, 0, {"mfu": {"2": 0.5}}).steps
    assert (first.optimizer_ms, first.checkpoint_ms, first.copy_ms, first.mfu) == (4, 1, 1, 0)
    assert (second.optimizer_ms, second.copy_ms, second.mfu) == (0, 5, 0.5)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_bubble_is_what_lies_between_passes(on_gpu: bool) -> None:
    cat = "gpu_user_annotation" if on_gpu else "user_annotation"
    names = [f"{OF_PIPELINE}{Action(kind, 0, number)}" for kind in (Kind.FORWARD, Kind.BACKWARD) for number in (0, 1)]
    spans = [(1, 2), (2, 4), (7, 9), (10, 12)]
    events = [event("step 1", "user_annotation", 0, 13)]
    events += [event(name, cat, *span) for name, span in zip(names, spans, strict=True)]
    if on_gpu:
        events += [event("gemm", "kernel", 1, 2), event(names[0], cat, 1, 9, tid=7), event(names[0], "user_annotation", 0, 1)]
    pipeline = {"schedule": "gpipe", "num_ranks": 2, "num_microbatches": 2, "stages_per_rank": 1}
    found = summarised(events, 0, {"pipeline": pipeline})
    assert found.steps[0].bubble_ms == 4
    assert found.passes == {"B": 2, "F": 1.5}
    read: RankTrace = wire.loads(RankTrace, json.dumps(found.plain()))
    assert read.steps[0].bubble_ms == 4 and read.pipeline is not None and read.pipeline.schedule == "gpipe"


def test_the_mark_of_a_copy_is_the_one_that_is_looked_for() -> None:
    assert beside.MARK == COPY
