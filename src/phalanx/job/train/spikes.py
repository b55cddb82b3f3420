"""Whether a step's loss is a spike, and what to do about it. Pure: every rank has the same global loss, so all decide alike.

The limit is robust: the median of the last RECENT losses that were trained on, and a distance of SPREADS times their noise, so
that spikes among them hardly move it. The noise is the median absolute difference of neighbours, scaled to a standard deviation
(von Neumann's successive differences, Ann. Math. Stat. 12(4), 1941, with a median for the mean): the fall of the loss does not
count as noise. While it falls the median lies above the newest losses, so that less is called a spike.
"""

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final, Literal

from phalanx.core.health import SpikeAction
from phalanx.core.recipe_checks import SPIKE_STEPS

RECENT: Final = 64
WARM: Final = 32
"""With fewer losses than this nothing finite is a spike: a median of a handful of falling losses says little."""
SPREADS: Final = 10.0
"""Chance alone goes that far once in 10^23 steps of a normal and once in 60,000 of a double exponential distribution."""
SHARE: Final = 0.1
"""A spike is at least so much above the median, whatever the spread: else a loss that stands still would make one of nothing."""
_NORMAL: Final = 1.4826 / math.sqrt(2)
"""Standard deviation of a normal distribution over the median absolute difference of two of its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What the rule remembers. recent: losses trained on, the newest last. handled: steps, of the last SPIKE_STEPS, that were not
    trained on."""

    recent: tuple[float, ...] = ()
    handled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """As the recipe has it."""

    on_spike: SpikeAction
    budget: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Of one step. usual, limit: None while there are too few losses. spent: it is a spike and the budget does not allow for it.
    after: what is remembered from now on."""

    action: Literal["train"] | SpikeAction
    usual: float | None
    limit: float | None
    spent: bool
    after: Curve


def judge(curve: Curve, rule: Rule, step: int, loss: float, grad_norm: float) -> Judged:
    """What to do with update `step`, of this mean loss over the global batch and this gradient norm before clipping."""
    usual, limit = limit_of(curve.recent)
    finite = math.isfinite(loss) and math.isfinite(grad_norm)
    spike = not finite or (limit is not None and loss > limit)
    handled = tuple(one for one in curve.handled if one > step - SPIKE_STEPS)
    spent = spike and rule.on_spike != "stop" and len(handled) >= rule.budget
    if not spike or (spent and finite):
        action: Literal["train"] | SpikeAction = "train"
        after = Curve(recent=(*curve.recent, loss)[-RECENT:], handled=handled)
    else:
        action = "stop" if spent else rule.on_spike
        after = Curve(recent=curve.recent, handled=(*handled, step) if action != "stop" else handled)
    return Judged(action=action, usual=usual, limit=limit, spent=spent, after=after)


def limit_of(recent: tuple[float, ...]) -> tuple[float | None, float | None]:
    """(median, what a loss has to stay below); None for both of fewer than WARM losses."""
    if len(recent) < WARM:
        return None, None
    usual = median(recent)
    spread = _NORMAL * median(abs(later - sooner) for sooner, later in pairwise(recent))
    return usual, usual + max(SPREADS * spread, SHARE * abs(usual))


def rolled_back(now: Curve, then: Curve) -> Curve:
    """With the weights of an earlier step its losses are the usual ones again; what was spent since stays spent."""
    return replace(now, recent=then.recent)


def dump(curve: Curve) -> str:
    """As text without loss: a resumed run decides as the undisturbed one."""
    return json.dumps({"recent": [loss.hex() for loss in curve.recent], "handled": list(curve.handled)}, separators=(",", ":"))


def load(text: str) -> Curve:
    """The reverse of `dump`. Raises ValueError for anything else."""
    try:
        data = json.loads(text)
        recent = tuple(float.fromhex(loss) for loss in data["recent"])
        handled = tuple(int(step) for step in data["handled"])
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not what a run remembers of its losses: {error!r}") from error
    return Curve(recent=recent, handled=handled)
