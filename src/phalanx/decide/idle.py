"""Whether a job that people work in is idle: several signals, none of which is believed alone. Pure; time is an argument.

Case P12: a live user or a silent five-hour cell is never ended, a stalled loop is. So every signal has to be old, one that is not
known counts as work, and whoever is there is warned first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.activity import Signal
from phalanx.core.units import show_duration

WARNING_MS: Final = 5 * 60_000


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """timeout_ms: idle so long it is stopped; 0 never. Whoever is there is warned `warning_ms` before, at most half of it."""

    timeout_ms: int
    warning_ms: int = WARNING_MS

    @property
    def ahead_ms(self) -> int:
        return min(self.warning_ms, self.timeout_ms // 2)


@dataclass(frozen=True, slots=True)
class Sighted:
    """A signal as it was at `at_ms`, of the clock of `now_ms` below."""

    signal: Signal
    at_ms: int

    def age_ms(self, now_ms: int) -> int | None:
        """None is not known."""
        return None if self.signal.age_ms is None else max(0, now_ms - self.at_ms + self.signal.age_ms)


@dataclass(frozen=True, slots=True)
class Active:
    """Because of the youngest signal, or of one that is not known."""

    because: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Idle, and to be stopped in `left_ms` unless something happens. why: all signals and their ages."""

    left_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Idle for long enough, and warned."""

    why: str


Verdict = Active | Warned | Stop


def idle(now_ms: int, signals: Sequence[Sighted], policy: IdlePolicy, warned_ms: int | None = None) -> Verdict:
    """warned_ms: when whoever is there was first told of this idleness; None where they were not."""
    if not policy.timeout_ms:
        return Active("it has no idle_timeout")
    if not signals:
        return Active("nothing is known of it")
    unknown = next((one for one in signals if one.age_ms(now_ms) is None), None)
    if unknown is not None:
        return Active(_said(unknown, now_ms))
    youngest = min(signals, key=lambda one: one.age_ms(now_ms) or 0)
    idle_ms = youngest.age_ms(now_ms) or 0
    if idle_ms < policy.timeout_ms - policy.ahead_ms:
        return Active(_said(youngest, now_ms))
    why = "; ".join(_said(one, now_ms) for one in signals)
    told_ms = now_ms if warned_ms is None else warned_ms
    left_ms = max(policy.timeout_ms - idle_ms, told_ms + policy.ahead_ms - now_ms)
    return Stop(why) if left_ms <= 0 and warned_ms is not None else Warned(max(0, left_ms), why)


def _said(sighted: Sighted, now_ms: int) -> str:
    age_ms, signal = sighted.age_ms(now_ms), sighted.signal
    words = f" ({signal.said})" if signal.said else ""
    if age_ms is None:
        return f"{signal.name}: not known{words}"
    return f"{signal.name}: {'now' if age_ms == 0 else f'{show_duration(age_ms)} ago'}{words}"
