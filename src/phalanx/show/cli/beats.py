"""Off a terminal, a line on standard error now and then while something long goes on, so that nobody takes it for dead."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from phalanx.core.units import show_duration
from phalanx.show.cli.text import note

BEAT_S: Final = 10.0


@contextmanager
def beats(said: Callable[[], str], over: Event | None = None) -> Iterator[None]:
    """Every ten seconds what `said` says then, and how long it has taken, even when nothing has changed: until the end of the
    block, or until `over` is set."""
    over, began_s = over or Event(), time.monotonic()

    def run() -> None:
        while not over.wait(BEAT_S):
            note(f"{said()}, after {show_duration(round(time.monotonic() - began_s) * 1000)}")

    thread = Thread(target=run, name="beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
