"""`submit --follow` and `follow`: a live bar on a terminal, a plain line now and then elsewhere. Ctrl-C detaches, never cancels."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from phalanx.core.errors import Exit, WorldError
from phalanx.core.records import ranks_text
from phalanx.core.units import show_duration
from phalanx.core.views import AttemptView, JobView, Progress
from phalanx.show.cli.attempts_page import exits_text
from phalanx.show.cli.job_page import outcome_exit, outcome_text
from phalanx.show.cli.options import Output
from phalanx.show.cli.patience import patiently
from phalanx.show.cli.ranklog import GrowingLog, last_words
from phalanx.show.cli.text import clean, note

if TYPE_CHECKING:
    from phalanx.client import Client

POLL_S: Final = 0.5
PLAIN_EVERY_S: Final = 5.0
_COUNTDOWN: Final = re.compile(r"^restarts in [^:]*:")
"""Of `why` while a job waits for its next try: it says another time at each look."""


class Screen(Protocol):
    """Where a follower shows what it sees."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def show(self, view: JobView, now_s: float) -> None:
        """The state at this moment."""


def follow_job(client: "Client", job: JobView, output: Output, phalanx: str = "phalanx") -> tuple[Exit, JobView]:
    """Watch until the job has finished or is paused, or the user looks away. The exit code, and the last view.

    Beside JSON or YAML on standard output, progress goes to standard error. phalanx: how people write a command for the platform.
    """
    import sys
    import time

    last = job
    try:
        with screen_on(sys.stdout if output is Output.TABLE else sys.stderr, lambda: time.time_ns() // 1_000_000) as screen:
            log = GrowingLog(client, job)
            for last in views(client, job, screen, log):
                screen.show(last, client.now_s())
            for text in patiently(client, screen.say, partial(last_words, client, last, log)):
                screen.say(text)
            then = f"; then `{phalanx} follow {last.id}`" if last.state == "paused" else ""
            screen.say(f"{outcome_text(last)}{then}")
    except KeyboardInterrupt:
        note(detached_text(last, phalanx))
        return Exit.DETACHED, last
    except WorldError as error:
        note(f"Stopped looking: {error}")
        note(detached_text(last, phalanx))
        return error.exit_code, last
    return outcome_exit(last), last


def views(client: "Client", job: JobView, screen: Screen, log: GrowingLog) -> Iterator[JobView]:
    """The job again and again until it has finished or is paused; what happened in between is said."""
    before: JobView | None = None
    view = job

    while True:
        for text in notices(before, view, partial(log.fresh, view, patiently=partial(patiently, client, screen.say))):
            screen.say(text)
        yield view
        if view.state in ("finished", "paused"):  # nobody knows when a paused job goes on
            return
        client.rest(POLL_S)
        before, view = view, patiently(client, screen.say, partial(client.job, view.id))


def notices(before: JobView | None, after: JobView, log: Callable[[AttemptView], Iterable[str]] = lambda _: ()) -> Iterator[str]:
    """What changed from one look to the next, in the words of a log: attempts that started, resumed and ended. `log` gives what
    an attempt wrote meanwhile, which stands before its end."""
    known = {one.attempt: one for one in before.attempts} if before else {}
    for attempt in after.attempts:
        yield from _start_notices(known.get(attempt.attempt), attempt)
        yield from log(attempt)
        yield from _end_notices(known.get(attempt.attempt), attempt)
    if after.state in ("pending", "stopping") and after.why and _reason(after) != (before and _reason(before)):
        yield f"{after.id} {after.why}"


def _reason(view: JobView) -> str:
    return _COUNTDOWN.sub("", view.why or "")


def progress_text(view: JobView) -> str:
    """One line: state, step, loss, tokens/s, ETA, restarts."""
    parts = [str(view.id), view.state]
    if view.progress:
        parts += [f"step {view.progress.step}/{view.progress.total_steps}", *progress_numbers(view)]
    parts.append(f"restarts {view.restarts}")
    return "  ".join(parts)


def progress_numbers(view: JobView) -> list[str]:
    """Loss, speed and the time left of the newest step."""
    seen = view.progress
    if seen is None:
        return []
    mfu = [f"MFU {seen.mfu:.1%}"] if seen.mfu > 0 else []
    return [f"loss {seen.loss:.4f}", speed_text(seen), *mfu, *eta_text(view)]


def speed_text(seen: Progress) -> str:
    """In images where a recipe reads these."""
    return f"{seen.images_per_s:,.0f} images/s" if seen.images_per_s > 0 else f"{seen.tokens_per_s:,.0f} tokens/s"


def eta_text(view: JobView) -> list[str]:
    """The time left; of a finished job nothing."""
    if view.progress is None or view.state == "finished":
        return []
    return ["ETA ?" if view.progress.eta_ms is None else f"ETA {show_duration(view.progress.eta_ms)}"]


def detached_text(view: JobView, phalanx: str = "phalanx") -> str:
    """What a person who looked away needs to know."""
    return (
        f"Detached; {view.id} goes on. Come back with `{phalanx} follow {view.id}`, look with `{phalanx} describe {view.id}` or "
        f"`{phalanx} logs -f {view.id}`; stop it with `{phalanx} cancel {view.id}`."
    )


class PlainScreen:
    """Lines for a file or a pipe: at once when state, attempt or restarts changed, else every few seconds if the step moved."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: tuple[object, ...] = ()
        self._text = ""
        self._at_s = 0.0

    def say(self, text: str) -> None:
        self._stream.write(clean(text) + "\n")
        self._stream.flush()

    def show(self, view: JobView, now_s: float) -> None:
        key = (view.state, view.restarts, len(view.attempts))
        text = progress_text(view)
        if key == self._shown and (text == self._text or now_s - self._at_s < PLAIN_EVERY_S):
            return
        self._shown, self._text, self._at_s = key, text, now_s
        self.say(text)


@contextmanager
def screen_on(stream: TextIO, now_ms: Callable[[], int]) -> Iterator[Screen]:
    """A live bar when `stream` is a terminal, else plain lines. `now_ms`: Unix time."""
    if not stream.isatty():
        yield PlainScreen(stream)
        return
    from phalanx.show.cli.live import live_screen

    with live_screen(stream, now_ms) as screen:
        yield screen


def _start_notices(before: AttemptView | None, after: AttemptView) -> Iterator[str]:
    if before is None:
        yield f"{after.attempt} was placed on {_where(after)}" if after.ranks else f"{after.attempt} was placed"
    if after.running_ms is not None and (before is None or before.running_ms is None):
        yield f"{after.attempt} is running"
    if after.resumed_step is not None and (before is None or before.resumed_step is None):
        yield f"{after.attempt} resumed after step {after.resumed_step}"
    known = {one.generation for one in before.recoveries} if before else set()
    for one in after.recoveries:
        if one.generation not in known:
            how, without = "grew" if one.planned else "recovered", f" without {ranks_text(one.absent)}" if one.absent else ""
            took = f"{one.recovery_ms / 1000:.1f} s"
            yield f"{after.attempt} {how} in {took} and goes on after step {one.step}{without}: {one.why}"


def _end_notices(before: AttemptView | None, after: AttemptView) -> Iterator[str]:
    if after.ended_ms is not None and (before is None or before.ended_ms is None):
        yield f"{after.attempt} ended: {after.detail or exits_text(after.exits)}"


def _where(attempt: AttemptView) -> str:
    nodes = sorted({str(one.node) for one in attempt.ranks})
    return f"{len(attempt.ranks)} device{'s' if len(attempt.ranks) != 1 else ''} of {', '.join(nodes)}"
