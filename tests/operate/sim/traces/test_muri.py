"""Muri's traces: rows as they are, the same jobs as any other trace, and every malformed row by its line."""

from pathlib import Path

import pytest

from phalanx.core.errors import NotFound, UserError
from phalanx.operate.sim.traces import muri
from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.muri import MuriJob
from phalanx.operate.sim.traces.named import read_trace

HEAD = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\n"
)
ROWS = "0,1,5000,5853661,dqn,128,2868294000,46122000,490,446,8,0,1\n1,8,1000,8787693,dqn,128,4472936000,201694000,509,435,8,0.5,0\n"
"""Of muri/trace1 (Rivendile/Muri, Apache-2.0), with other times of submission."""


def written(folder: Path, text: str) -> Path:
    file = folder / "muri" / "trace1.csv"
    file.parent.mkdir()
    file.write_text(text)
    return file


def test_rows_stay_as_they_are(tmp_path: Path) -> None:
    first, second = muri.read_jobs(written(tmp_path, HEAD + ROWS))
    assert first == MuriJob("0", 1, 5_000, 5_853_661, "dqn", 2_868_294_000, 490)
    assert (second.devices, second.submit_ms, second.duration_ms) == (8, 1_000, 4_472_936_000)


def test_by_name_it_is_a_trace_like_any_other_sorted_and_from_zero(tmp_path: Path) -> None:
    written(tmp_path, HEAD + ROWS)
    trace = read_trace("muri/trace1", tmp_path)
    assert (trace.name, trace.source) == ("muri/trace1", muri.SOURCE)
    assert [(job.name, job.submit_ms, job.duration_ms, job.devices) for job in trace.jobs] == [
        ("1", 0, 4_472_936_000, 8),
        ("0", 4_000, 2_868_294_000, 1),
    ]


@pytest.mark.parametrize(
    ("text", "field", "fix"),
    [
        (HEAD, "trace1.csv", "has no job that ran; name a trace with at least one"),
        (HEAD + ROWS + "2,8,0\n", "trace1.csv:4", "has 3 columns; the head has 13"),
        (HEAD + ROWS.replace("0,1,5000", "0,0,5000"), "trace1.csv:2", "num_gpu: write 1 or more"),
        (
            HEAD + ROWS.replace("1,8,1000", "1,12,1000"),
            "trace1.csv:3",
            "num_gpu: write up to 8, or a multiple of it: a larger gang",
        ),
        (HEAD + ROWS.replace("1,8,1000", "1,eight,1000"), "trace1.csv:3", "num_gpu: write a number"),
        (HEAD + ROWS.replace("1,8,1000", "1,8,-1"), "trace1.csv:3", "submit_time: write 0 or more"),
        (HEAD + ROWS.replace("4472936000", "0"), "trace1.csv:3", "duration: write 1 or more"),
        (HEAD + ROWS.replace("4472936000", "nan"), "trace1.csv:3", "duration: write a number"),
        (HEAD + ROWS.replace("4472936000", "1e30"), "trace1.csv:3", "duration: is absurdly large"),
        (HEAD + ROWS.replace("5853661", "0"), "trace1.csv:2", "iterations: write 1 or more"),
        (HEAD + ROWS.replace(",509,", ",0,"), "trace1.csv:3", "iteration_time: write 1 or more"),
        (HEAD.replace("num_gpu", "gpus") + ROWS, "trace1.csv:1", "the head lacks num_gpu"),
        ("", "trace1.csv:1", "the head lacks job_id"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(tmp_path: Path, text: str, field: str, fix: str) -> None:
    with pytest.raises(TraceError) as found:
        muri.read_jobs(written(tmp_path, text))
    assert isinstance(found.value, UserError)
    assert found.value.field == field
    assert found.value.fix.startswith(fix)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        muri.read_jobs(tmp_path / "trace9.csv.gz")
