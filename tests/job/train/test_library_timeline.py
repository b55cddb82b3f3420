"""The summary of a trace, over events made up for it: pure."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from phalanx.job.train.library.timeline import overlap, summarised, union, without, write


def event(name: str, cat: str, begin_ms: float, end_ms: float, tid: int = 1) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": begin_ms * 1e3, "dur": (end_ms - begin_ms) * 1e3, "pid": 1, "tid": tid}


def test_spans() -> None:
    assert union([(5, 6), (0, 2), (1, 3)]) == [(0, 3), (5, 6)]
    assert overlap([(0, 4), (6, 9)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (6, 7)]
    assert without([(0, 10)], [(2, 3), (5, 7)]) == [(0, 2), (3, 5), (7, 10)]
    assert without([(2, 3)], [(0, 9)]) == []


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
    summary = summarised(events, 3, "data wait")
    first, second = summary.steps
    assert (first.step, first.wall_ms, first.data_wait_ms) == (7, 100, 10)
    assert (first.communication_ms, first.exposed_communication_ms) == (30, 15)  # 50-60 and 65-70
    assert (second.step, second.wall_ms, second.communication_ms) == (8, 50, 0)
    assert summary.on_gpu == on_gpu and "gemm" in summary.text()


def test_an_operator_counts_without_those_that_it_calls() -> None:
    events = [event("outer", "cpu_op", 0, 10), event("inner", "cpu_op", 2, 8), event("inner", "cpu_op", 20, 21)]
    busiest = {one.name: (one.calls, one.total_ms) for one in summarised(events, 0, "w").busiest}
    assert busiest == {"outer": (1, 4.0), "inner": (2, 7.0)}


def test_a_trace_is_there_also_where_it_cannot_be_summed_up(tmp_path: Path) -> None:
    raw = tmp_path / ".t.json"
    raw.write_text('{"traceEvents": [')
    with pytest.raises(json.JSONDecodeError):
        write(raw, 0, "data wait", str(tmp_path / "t"))
    assert [path.name for path in tmp_path.iterdir()] == ["t.trace.json.gz"]
    assert gzip.decompress((tmp_path / "t.trace.json.gz").read_bytes()) == b'{"traceEvents": ['
