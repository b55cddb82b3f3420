"""Traces of chosen steps of this rank, for Perfetto or Chrome, with a summary beside each: in the job's artifacts.

The profiler runs only around those steps. What it has recorded is written by a thread, and packed and summed up by another process
beside the next steps: reading a trace would hold this one's interpreter for seconds. Nothing that goes wrong in any of it is the
training's: it is said once, and there is no trace.
"""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from phalanx.core.errors import UserError
from phalanx.core.profile import FOLDER, SUMMARY, TRACED_STEPS_MAX, trace_name
from phalanx.job.train.traces import timeline
from phalanx.job.train.traces.timeline import STEP

_log: Final = logging.getLogger(__name__)
_END_S: Final = 10.0
"""For so long after its own limit the process that sums up is waited for; and after an error for what is being written."""
_SLICE_S: Final = 0.5
_abandoned: Final[list[profile]] = []
"""Those that an error on a GPU left recording: into memory, and in the way of all later ones. They are the process's and not one
generation's, so whichever `Profile` comes next stops them, once the device answers again."""


class Profile:
    """Of one rank. `at(step)` is called when a step begins. facts: what a trace cannot say, for its summary."""

    def __init__(self, artifacts: Path, rank: int, device: torch.device, facts: Mapping[str, Any] | None = None) -> None:
        self._folder, self._rank = artifacts.absolute() / FOLDER, rank
        self._on_gpu = device.type == "cuda"
        self._facts = dict(facts or {})
        self._mfu: dict[str, float] = {}
        self._first, self._last, self._step = 0, -1, 0
        self._waiting: list[tuple[int, int]] = []  # first and last of what is asked for beyond that, in order
        self._profiler: profile | None = None
        self._marks: list[record_function] = []  # the step's, and inside it the phase's
        self._is_recording = False
        self._given_up = ""  # why nothing is traced any more
        self._unwritten: dict[int, str] = {}  # first step -> why there is no whole trace
        self._writing: list[threading.Thread] = []

    def ask(self, first: int, count: int, next_step: int) -> None:
        """Steps first, first + 1, ... shall be traced. Raises UserError where they cannot be."""
        if first < next_step:
            raise UserError("first", first, f"step {next_step} comes next; name that one or a later one")
        if not 1 <= count <= TRACED_STEPS_MAX:
            raise UserError("count", count, f"trace 1 to {TRACED_STEPS_MAX} steps at a time")
        last = first + count - 1
        for known, known_last in [(self._first, self._last), *self._waiting]:
            if known <= last and first <= known_last:
                raise UserError("first", first, f"steps {known} to {known_last} are asked for already; wait until they are done")
        if self._given_up:
            self._unwritten[first] = self._given_up
            return
        self._waiting = sorted([*self._waiting, (first, last)])
        self._carefully(lambda: self._at(next_step))

    def at(self, step: int) -> None:
        self._carefully(lambda: self._at(step))

    def phase(self, name: str) -> None:
        """From here on the step does this; '' ends what it did."""
        if self._is_recording:
            self._carefully(lambda: self._begin_phase(name))

    def measured(self, step: int, mfu: float) -> None:
        """What else is known of a traced step once it is done."""
        if self._is_recording and mfu > 0:
            self._mfu[str(step)] = mfu

    def failure(self, first: int) -> str:
        """Why there is no whole trace of the steps from `first` on; '' as long as there may be one."""
        return self._unwritten.get(first, "")

    def has_summary(self, first: int, last: int) -> bool:
        """Of this rank, whichever process wrote it."""
        with suppress(OSError):
            return (self._folder / f"{trace_name(self._rank, first, last)}{SUMMARY}").exists()
        return False

    def drop(self, first: int) -> bool:
        """After an error: nothing is written of the steps from `first` on, traced or to be traced. Whether they still were."""
        others = [window for window in self._waiting if window[0] != first]
        is_waiting, is_open = len(others) < len(self._waiting), self._first == first
        self._waiting = others
        if is_open:
            self._carefully(self._abandon if self._on_gpu else self._drop)  # see `close`
        return is_waiting or is_open

    def end(self) -> None:
        """Of a trace that is not whole what there is, is kept. What is being written goes on; `close` waits for it."""
        self._carefully(self._end)

    def close(self, failed: bool = False, wait_s: float | None = None, waiting: Callable[[], None] = lambda: None) -> None:
        """`end`, and waits for what is being written. failed: after an error, when a GPU
        may never be done, and to end a trace is to wait for it: it is given up. wait_s: at most so long. waiting: called again and
        again meanwhile; what it raises ends the wait."""
        if failed and self._on_gpu and self._profiler is not None:
            self._abandon()
            _log.warning("the trace of steps %d to %d is given up", self._first, self._last)
        self.end()
        if wait_s is None and failed:
            wait_s = _END_S
        until_s = time.monotonic() + (wait_s if wait_s is not None else threading.TIMEOUT_MAX)
        for thread in self._writing:
            while thread.is_alive() and (left_s := until_s - time.monotonic()) > 0:
                waiting()
                thread.join(min(_SLICE_S, left_s))
            if thread.is_alive() and not failed:
                _log.warning("a trace is not summed up in time; it is waited for no longer")

    def _carefully(self, act: Callable[[], None]) -> None:
        """A profiler that fails is no reason for a training to do so too: after its first fault there is none any more."""
        if self._given_up:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the profiler's)
            _log.warning("tracing is given up, and training goes on: %s: %s", type(error).__name__, error)
            self._given_up = f"its profiler failed ({type(error).__name__}: {error})"
            for first, _ in [(self._first, self._last), *self._waiting]:
                self._unwritten.setdefault(first, self._given_up)
            self._waiting.clear()
            with suppress(Exception):  # else it would go on recording, into memory that somebody needs
                self._drop()

    def _at(self, step: int) -> None:
        _stop_abandoned()
        if step > self._last:
            self._end()
            self._first, self._last = self._next(step)
        if step > self._last:
            return
        if self._profiler is None and step >= self._first - 1:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
            self._profiler = profile(activities=activities, experimental_config=_all_threads())
            self._profiler.prepare_trace()  # a step early: what is loaded once is in no traced step
        if self._profiler is not None and step >= self._first:
            if not self._is_recording:
                self._profiler.start_trace()
                self._is_recording = True
            if not (self._marks and self._step == step):
                self._end_marks()
                self._begin(f"{STEP}{step}")
                self._step = step

    def _next(self, step: int) -> tuple[int, int]:
        """What is traced next, once it is time to get ready for it."""
        while self._waiting and self._waiting[0][0] - 1 <= step:
            first, last = self._waiting.pop(0)
            if last >= step:
                return first, last
            self._unwritten[first] = f"its script does not say each of its steps: none of {first} to {last} was"
        return 0, -1

    def _begin_phase(self, name: str) -> None:
        self._end_marks(1)
        if name and self._marks:
            self._begin(name)

    def _begin(self, name: str) -> None:
        self._marks.append(record_function(name))
        self._marks[-1].__enter__()  # type: ignore[no-untyped-call]

    def _end_marks(self, but: int = 0) -> None:
        while len(self._marks) > but:
            self._marks.pop().__exit__(None, None, None)

    def _end(self) -> None:
        if self._profiler is None:
            return
        if self._on_gpu and self._is_recording:
            torch.cuda.synchronize()  # the last step's kernels are in the trace too
        self._end_marks()
        ended, self._profiler = self._profiler, None
        if not self._is_recording:
            return  # it was only made ready
        self._is_recording = False
        ended.stop_trace()
        facts = json.dumps({**self._facts, "mfu": self._mfu})
        self._mfu = {}
        name = trace_name(self._rank, self._first, self._last)
        work = (ended, self._first, name, facts)
        thread = threading.Thread(target=self._write, args=work, name="profile", daemon=True)
        self._writing.append(thread)
        thread.start()

    def _abandon(self) -> None:
        if self._profiler is not None and self._is_recording:
            _abandoned.append(self._profiler)
        self._profiler, self._is_recording = None, False
        self._marks.clear()

    def _drop(self) -> None:
        ended, self._profiler = self._profiler, None
        was_recording, self._is_recording = self._is_recording, False
        self._first, self._last = 0, -1
        while self._marks:
            self._marks.pop().__exit__(None, None, None)
        if ended is not None and was_recording:
            ended.stop_trace()

    def _write(self, ended: profile, first: int, name: str, facts: str) -> None:
        """Training goes on whatever becomes of it. What is not whole yet lies beside the artifacts, which are sent as they are."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".trace-", dir=self._folder.parents[1], ignore_cleanup_errors=True) as beside:
                raw = Path(beside) / f"{name}.json"
                ended.export_chrome_trace(str(raw))
                self._unwritten |= {first: why} if (why := self._sum_up(raw, name, facts)) else {}
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the profiler's)
            self._unwritten[first] = f"it could not be written ({error})"
            _log.warning("the trace of steps %s could not be written: %s", name, error)

    def _sum_up(self, raw: Path, name: str, facts: str) -> str:
        """Why there is no summary; '' where there is one."""
        done = subprocess.run(
            [sys.executable, "-I", timeline.__file__, str(raw), str(self._rank), str(self._folder / name), facts],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeline.SECONDS_MAX + _END_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            _log.info("traced: %s\n%s", self._folder / f"{name}.trace.json.gz", done.stdout)
            return ""
        why = done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"
        _log.warning("the trace of steps %s could not be summed up: %s", name, why)
        return f"it could not be summed up ({why})"


def _stop_abandoned() -> None:
    while _abandoned:
        try:
            _abandoned.pop().stop_trace()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the profiler's; if it still runs the next one says so)
            _log.warning("the profiler from before the error could not be stopped: %s: %s", type(error).__name__, error)


def _all_threads() -> Any:
    """Checkpoints are copied by a thread of their own, which the profiler else passes over. None where torch cannot."""
    with suppress(AttributeError, TypeError):
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    return None
