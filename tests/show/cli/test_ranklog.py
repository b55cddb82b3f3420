"""A rank's log beside a followed job: what a line shows, and that no line, however long, is kept whole."""

import io
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phalanx.core.errors import SpecError
from phalanx.core.views import JobView, LogPage
from phalanx.show.cli import logs
from phalanx.show.cli.options import Output
from phalanx.show.cli.ranklog import INDENT, LINE_CHARS_MAX, GrowingLog
from tests.recorded import JOB, attempt_view, job_view, log_page

PIECE = "x" * 65_536
PIECES = 400
PEAK_BYTES_MAX = 4 * 2**20
"""A few pages; the whole line is 25 MiB here, and 400 times its pages where each is joined to those before it."""


@contextmanager
def peak_bytes() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growing(texts: Iterator[str]) -> tuple[GrowingLog, JobView]:
    """A log that grows by one text a page; the attempt goes on when they are over."""
    job = job_view(progress=None, attempts=(attempt_view(2),), spec={"entrypoint": "true"})

    def page(_job: str, _rank: int, _attempt: str, offset: int) -> LogPage:
        return log_page(next(texts, ""), offset)

    return GrowingLog(cast(Any, SimpleNamespace(logs=page)), job_view(attempts=(), spec={"entrypoint": "true"})), job


def lines_of(texts: list[str]) -> list[str]:
    log, job = growing(iter(texts))
    return list(log.fresh(job, job.attempts[-1], lambda ask: ask()))


def test_a_line_without_end_costs_a_followed_job_a_few_pages() -> None:
    log, job = growing(PIECE for _ in range(PIECES))
    with peak_bytes() as peak:
        assert list(log.fresh(job, job.attempts[-1], lambda ask: ask())) == []
        assert peak() < PEAK_BYTES_MAX


def test_of_a_line_that_was_too_long_to_keep_its_beginning_is_shown() -> None:
    [shown] = lines_of(["first ", *[PIECE] * 3, "last\n"])
    assert shown == f"{INDENT}first {'x' * (LINE_CHARS_MAX - 7)}…"
    assert lines_of([*[PIECE] * 3, "\r", "done\n"]) == [f"{INDENT}done"]
    assert lines_of([*[PIECE] * 3, "\rnow ", *[PIECE] * 3, "\r\n"]) == [f"{INDENT}now {'x' * (LINE_CHARS_MAX - 5)}…"]
    assert lines_of(["a", "b", "\nc\n"]) == [f"{INDENT}ab", f"{INDENT}c"]


def test_a_log_without_newlines_is_written_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(io.StringIO):
        chars = 0

        def write(self, text: str) -> int:
            self.chars += len(text)
            return len(text)

    out = Counted()
    with peak_bytes() as peak, redirect_stdout(out):
        logs._write((log_page(PIECE, at * len(PIECE)) for at in range(PIECES)), Output.TABLE, follow=False)
        assert peak() < PEAK_BYTES_MAX
    assert out.chars == PIECES * len(PIECE)
    monkeypatch.setattr(logs, "JOINED_CHARS_MAX", 10 * len(PIECE))
    with pytest.raises(SpecError, match="too long for one document") as refused:
        logs._write((log_page(PIECE, at * len(PIECE)) for at in range(PIECES)), Output.JSON, follow=False)
    assert refused.value.value == f"{JOB}.2"
    with redirect_stdout(io.StringIO()) as written:
        logs._write((log_page("ab", at * 2) for at in range(3)), Output.JSON, follow=False)
    assert '"text": "ababab"' in written.getvalue() and sys.stdout is not written
