"""A recipe's traces at the end of its run."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.job.train.traces.profile import Profile
from phalanx.job.train.traces.traced import finish_traces, traced
from phalanx.job.train.watch import Watch

WAIT_S = 60


def test_a_trace_that_is_being_summed_up_holds_up_no_collective(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def slow(self: Profile, raw: Path, name: str, facts: str) -> str:
        go_on.wait(WAIT_S)
        raw.rename(self._folder / name)
        return ""

    monkeypatch.setattr(Profile, "_sum_up", slow)
    training: Any = SimpleNamespace(
        session=SimpleNamespace(
            artifacts_dir=str(tmp_path / "artifacts"), profile=SimpleNamespace(first=1, count=1), requests=None
        ),
        rank=SimpleNamespace(slot=3, device=torch.device("cpu")), model=torch.nn.Identity(), watch=Watch(), traces=[],
    )  # fmt: skip
    written = tmp_path / "artifacts" / "profile" / "rank-3-steps-1-1"
    with traced(training, 0) as trace:
        trace.at(1)
    assert trace._profiler is None and not written.exists(), "the run goes on to its last collectives"
    finish_traces(training, 0.0)
    assert "is not summed up in time" in caplog.text and not written.exists()
    go_on.set()
    finish_traces(training, WAIT_S)
    assert written.exists()
