"""Traces of chosen steps of this rank, for Perfetto or Chrome, with a summary beside each: in the job's artifacts.

The profiler runs only around those steps. What it has recorded is written by a thread, and packed and summed up by another process
beside the next steps: reading a trace would hold this one's interpreter for seconds.
"""

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from phalanx.core.errors import UserError
from phalanx.job.train.library import timeline
from phalanx.job.train.library.reading import DATA_WAIT
from phalanx.job.train.library.timeline import STEP

_log: Final = logging.getLogger(__name__)
FOLDER: Final = "profile"
STEPS_MAX: Final = 100
"""A trace of more is of no use: some hundred megabytes, which no page opens."""
_END_S: Final = 10.0
"""For so long after its own limit the process that sums up is waited for; and after an error for what is being written."""


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

    def close(self, failed: bool = False) -> None:
        """Of a trace that is not whole what there is, is kept; waits for what is being written. failed: after an error, when a GPU
        may never be done, and to end a trace is to wait for it: it is given up."""
        if failed and self._on_gpu and self._profiler is not None:
            self._profiler = self._mark = None
            _log.warning("the trace of steps %d to %d is given up", self._first, self._last)
        self._end()
        until_s = time.monotonic() + _END_S
        for thread in self._writing:
            thread.join(max(0.0, until_s - time.monotonic()) if failed else None)

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
        raw = self._folder / f".{name}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            ended.export_chrome_trace(str(raw))
            self._sum_up(raw, name)
        except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
            _log.warning("the trace of steps %s could not be written: %s", name, error)
        finally:
            raw.unlink(missing_ok=True)

    def _sum_up(self, raw: Path, name: str) -> None:
        done = subprocess.run(
            [sys.executable, "-I", timeline.__file__, str(raw), str(self._rank), DATA_WAIT, str(self._folder / name)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeline.SECONDS_MAX + _END_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            _log.info("traced: %s\n%s", self._folder / f"{name}.trace.json.gz", done.stdout)
        else:
            why = done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"
            _log.warning("the trace of steps %s could not be summed up: %s", name, why)
