"""What a rank that fell said last, as one line that is kept with its exit: the error, not the middle of a traceback.

An agent says that an attempt has ended once all of its logs are here, so they are read then. What an agent itself says of words is
not believed: the values of the job's secrets are struck out here, as they are out of every log that is shown.
"""

import re
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.core.ids import AttemptId
from phalanx.core.messages import AttemptReport, RankExit
from phalanx.core.spec import JobSpec
from phalanx.operate.control import masking
from phalanx.operate.control.world import World
from phalanx.record.telemetry.journal import Journal

SAID_CHARS_MAX: Final = 400
REASON_CHARS_MAX: Final = 4_000
"""Of an agent's own words, which are kept with the job and shown with it: an honest one's are a sentence, or an error's end."""

TAIL_BYTES: Final = 16 * 1024
_RANKS_MAX: Final = 4
_LINES: Final = 40
"""From its end, in which an error stands for the end. What libraries say when they are torn down comes after it."""

_MUTE: Final = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Whoever was ended by these could say nothing of it."""

_NOISE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|^\[rank\d+\]: ?|^\s*\| ")
"""Colours, and what torch, and Python of a group of errors, write before the lines of a traceback."""

_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):")
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?")
_ERROR: Final = re.compile(r"(?:fatal |fatal python )?error: |fatal: |terminate called |panic: ", re.IGNORECASE)
_HEAD: Final = re.compile(r"^(?:error: |phalanx: |[|+\s-]+)", re.IGNORECASE)
"""Says nothing that is not said by its place."""

_CUT: Final = "phalanx: this log is cut here"
_log = structlog.get_logger(__name__)


class LastWords:
    """secrets: the values of those that a job names and that are stored."""

    def __init__(self, world: Callable[[], World], journal: Journal, secrets: Callable[[JobSpec], Collection[str]]) -> None:
        self._world = world
        self._journal = journal
        self._secrets = secrets

    def told(self, report: AttemptReport) -> AttemptReport:
        """With the last words of the ranks that fell first, once it has ended. Reads files; never raises for what is not there."""
        fallen = [one for one in report.exits if one.first and one.code] if report.phase == "ended" else []
        first = sorted(fallen, key=lambda one: (one.at_ms, one.rank))[:_RANKS_MAX]
        said = {one.rank: self._said(report.attempt, one) for one in first}
        exits = tuple(replace(one, said=said.get(one.rank, "") if one.first else "") for one in report.exits)
        return replace(report, exits=exits, lost=report.lost[:REASON_CHARS_MAX], refused=report.refused[:REASON_CHARS_MAX])

    def _said(self, attempt: AttemptId, fallen: RankExit) -> str:
        try:
            return error_line(self._tail(attempt, fallen.rank), fallen.code)
        except (StoreUnavailable, SetupError, OSError) as error:  # without a secret's value nothing can be struck out
            _log.warning("last_words_not_read", attempt=attempt, rank=fallen.rank, error=str(error))
            return ""

    def _tail(self, attempt: AttemptId, rank: int) -> str:
        """From a line's beginning on. '' of an attempt that nobody knows, or that is over for good."""
        world = self._world()
        known = world.attempts.get(attempt)
        if known is None or known.ended_ms is not None or rank not in range(known.placement.world_size):
            return ""
        spec = world.jobs[known.job].spec
        values = [value.encode() for value in self._secrets(spec)] if spec.all_secrets else []
        start = max(0, self._journal.size("log", attempt, rank) - TAIL_BYTES)
        page = masking.page(partial(self._journal.read, "log", attempt, rank), start, TAIL_BYTES, values, over=True)
        text = page.shown.decode(errors="replace")
        return text.partition("\n")[2] if start and "\n" in text else text


def error_line(log: str, code: int) -> str:
    """Of the end of a log: what an exception, or a line that says so, gives as the error; else, of a program that ended by itself,
    its last line. '' where there is none. Pure."""
    if code in _MUTE:
        return ""
    lines = [line for raw in log.splitlines() if re.search(r"\w", line := _NOISE.sub("", raw)) and not line.startswith(_CUT)]
    recent = range(len(lines) - 1, max(-1, len(lines) - 1 - _LINES), -1)
    told = next((lines[number] for number in recent if _tells_an_error(lines, number)), "")
    found = told or (lines[-1] if lines and code > 0 else "")
    found = _HEAD.sub("", " ".join(found.split()))
    return found if len(found) <= SAID_CHARS_MAX else f"{found[: SAID_CHARS_MAX - 3]}..."


def _tells_an_error(lines: Sequence[str], number: int) -> bool:
    line = lines[number].rstrip()
    return _ERROR.match(line) is not None or (_RAISED.fullmatch(line) is not None and _ends_a_traceback(lines[:number]))


def _ends_a_traceback(before: Sequence[str]) -> bool:
    """Whether only its frames, which are indented, stand between a traceback's head and what follows."""
    for line in reversed(before):
        if _TRACEBACK.fullmatch(line.rstrip()):
            return True
        if not line.startswith(" "):
            return False
    return False
