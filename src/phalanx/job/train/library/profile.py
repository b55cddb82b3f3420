"""Traces of chosen steps of this rank, for Perfetto or Chrome, with a summary beside each: in the job's artifacts.

The profiler runs only around those steps. What it has recorded is written and summed up by a thread beside the next steps.
"""

import gzip
import json
import logging
import threading
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from phalanx.core.errors import UserError
from phalanx.job.train.library.reading import DATA_WAIT
from phalanx.job.train.library.timeline import STEP, summarised

_log: Final = logging.getLogger(__name__)
FOLDER: Final = "profile"
STEPS_MAX: Final = 100
"""A trace of more is of no use: some hundred megabytes, which no page opens."""


class Profile:
    """Of one rank. `at(step)` is called when a step begins."""

    def __init__(self, artifacts: Path, rank: int, device: torch.device) -> None:
        self._folder, self._rank = artifacts / FOLDER, rank
        self._on_gpu = device.type == "cuda"
        self._first, self._last = 0, -1
        self._profiler: profile | None = None
        self._mark: record_function | None = None
        self._is_recording = False
        self._writing: list[threading.Thread] = []

    def ask(self, first: int, count: int, next_step: int) -> None:
        """Steps first, first + 1, ... shall be traced. Raises UserError where they cannot be."""
        if first < next_step:
            raise UserError("first", first, f"step {next_step} comes next; name that one or a later one")
        if not 1 <= count <= STEPS_MAX:
            raise UserError("count", count, f"trace 1 to {STEPS_MAX} steps at a time")
        if self._profiler is not None or self._last >= next_step:
            raise UserError("first", first, f"steps {self._first} to {self._last} are asked for already; wait until they are done")
        self._first, self._last = first, first + count - 1
        self.at(next_step)

    def at(self, step: int) -> None:
        if step > self._last:
            self._end()
            return
        if self._profiler is None and step >= self._first - 1:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
            self._profiler = profile(activities=activities)
            self._profiler.prepare_trace()  # a step early: what is loaded once is in no traced step
        if self._profiler is not None and step >= self._first:
            if not self._is_recording:
                self._profiler.start_trace()
                self._is_recording = True
            self._begin_mark(step)

    def close(self) -> None:
        """Of a trace that is not whole what there is, is kept; waits for what is being written."""
        self._end()
        for thread in self._writing:
            thread.join()

    def _begin_mark(self, step: int) -> None:
        self._end_mark()
        self._mark = record_function(f"{STEP}{step}")
        self._mark.__enter__()  # type: ignore[no-untyped-call]

    def _end_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def _end(self) -> None:
        if self._profiler is None:
            return
        if self._on_gpu and self._is_recording:
            torch.cuda.synchronize()  # the last step's kernels are in the trace too
        self._end_mark()
        ended, self._profiler = self._profiler, None
        if not self._is_recording:
            return  # it was only made ready
        self._is_recording = False
        ended.stop_trace()
        name = f"rank-{self._rank}-steps-{self._first}-{self._last}"
        thread = threading.Thread(target=self._write, args=(ended, name), name="profile", daemon=True)
        self._writing.append(thread)
        thread.start()

    def _write(self, ended: profile, name: str) -> None:
        """Training goes on whatever becomes of it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            beside = self._folder / f".{name}.json.gz"
            ended.export_chrome_trace(str(beside))
            with gzip.open(beside) as file:
                events: list[dict[str, Any]] = json.load(file)["traceEvents"]
            summary = summarised(events, self._rank, DATA_WAIT)
            (self._folder / f"{name}.summary.json").write_text(json.dumps(summary.plain(), indent=1))
            (self._folder / f"{name}.summary.txt").write_text(summary.text())
            beside.rename(self._folder / f"{name}.trace.json.gz")
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            _log.warning("the trace of steps %s could not be written: %s", name, error)
        else:
            _log.info("traced: %s\n%s", self._folder / f"{name}.trace.json.gz", summary.text())
