"""A job under random faults: asks for them, waits until each was met and the run goes on, and counts."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from live_platform import Platform

from phalanx.core.chaos import Asked
from phalanx.core.errors import Conflict, SpecError, WorldError
from phalanx.core.views import FaultView, JobView

GOES_ON_S_MAX: Final = 240.0
"""For a fault to be met, and for the run to go on after it: a whole restart on a busy machine, and a hang before."""
POLL_S: Final = 0.05


class StandsStill(AssertionError):
    """The run does not go on."""


@dataclass
class Disturbed:
    """One job of a platform. met: by kind; late: of which the rank heard too late; dropped: whose attempt ended before."""

    platform: Platform
    job: str
    met: Counter[str] = field(default_factory=Counter)
    late: int = 0
    dropped: int = 0
    told: list[str] = field(default_factory=list)

    def view(self) -> JobView:
        with self.platform.client() as client:
            return client.patient(lambda: client.job(self.job), 60.0)

    def step(self) -> int:
        """Of the newest attempt; 0 before its first. Raises StandsStill once the job is over and has not succeeded."""
        view = self.view()
        if view.state == "finished" and view.outcome != "succeeded":
            raise StandsStill(f"{view.outcome}: {view.detail}\n{self.story()}")
        return view.progress.step if view.progress else 0

    def strike(self, faults: tuple[tuple[Asked, int], ...], every: int = 1) -> None:
        """Asks for all of them, waits until each is met or cannot be any more, and until the run is beyond where it was. every: at
        steps that are a multiple of it."""
        attempt, numbers = "", []
        for fault, ahead in faults:
            asked = self._ask(fault, ahead, every)
            if asked is None:
                return  # it is done
            attempt, number = asked
            numbers.append((attempt, number))
        for attempt, number in numbers:
            self._await(attempt, number)
        self._await_progress()

    def story(self) -> str:
        """What happened last, for whoever has to find out why."""
        return "\n".join([*self.told[-30:], self.platform.run("events", self.job, check=False).stdout[-6_000:]])

    def _ask(self, fault: Asked, ahead: int, every: int) -> tuple[str, int] | None:
        """The fault's attempt and number; None when the job has ended. A step may pass, or the gang end, in the same moment."""
        for _ in self._patiently("no fault could be asked for"):
            try:
                at = self.step()
                step = -(-(at + ahead) // every) * every
                with self.platform.client() as client:
                    view = client.chaos(
                        self.job, fault.fault, rank=fault.rank, step=step if ahead else None, for_ms=fault.for_ms,
                        slow_ms=fault.slow_ms, flip=fault.flip,
                    )  # fmt: skip
            except (Conflict, WorldError):
                if self.view().state == "finished":
                    return None
                continue
            except SpecError:  # a step beyond the last one
                return None
            newest = view.attempts[-1].faults[-1]
            self.told.append(f"asked at step {at}: {newest.sentence}")
            return view.attempts[-1].attempt, newest.number
        return None

    def _await(self, attempt: str, number: int) -> None:
        for _ in self._patiently(f"fault {number} of {attempt} was neither met nor missed"):
            found = next(one for one in self.view().attempts if one.attempt == attempt)
            fault = next(one for one in found.faults if one.number == number)
            if fault.met or found.ended_ms is not None:
                self._count(fault)
                return

    def _count(self, fault: FaultView) -> None:
        self.told.append(f"{fault.sentence}: {fault.met or 'its attempt ended before'}")
        if not fault.met:
            self.dropped += 1
        elif fault.met.startswith("not met"):
            self.late += 1
        else:
            self.met[fault.fault] += 1

    def _await_progress(self) -> None:
        """Two steps more, whichever attempt makes them; the end will do."""
        first: tuple[str, int] | None = None
        for _ in self._patiently("no step was made any more"):
            view = self.view()
            if view.state == "finished":
                self.step()
                return
            if view.progress is None or not view.attempts:
                continue
            now = (view.attempts[-1].attempt, view.progress.step)
            if first is not None and now[0] == first[0] and now[1] >= first[1] + 2:
                return
            if first is None or now[0] != first[0]:
                first = now

    def _patiently(self, otherwise: str) -> Iterator[None]:
        end = time.monotonic() + GOES_ON_S_MAX
        while time.monotonic() < end:
            yield
            time.sleep(POLL_S)
        raise StandsStill(f"{otherwise} within {GOES_ON_S_MAX:g} s\n{self.story()}")
