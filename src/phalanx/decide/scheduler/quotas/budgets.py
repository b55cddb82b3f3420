"""What a line may spend in a period, and when that is used up."""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from phalanx.core.policy import Budget
from phalanx.core.reasons import OverBudget
from phalanx.decide.scheduler.quotas.lines import Line

HOUR_MS: Final = 3_600_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def over(line: Line, now_ms: int) -> OverBudget | None:
    """Whether its budget is used up, stopping or not: gangs that run are paid for by what they have used so far."""
    budget = line.budget
    if budget is None:
        return None
    hours = line.spent_ms / HOUR_MS
    if budget.gpu_hours is not None and hours >= budget.gpu_hours:
        return OverBudget(line.name, "GPU-hours", budget.gpu_hours, hours, resets_ms(budget, now_ms))
    if budget.money is not None and line.money >= budget.money:
        return OverBudget(line.name, "USD", budget.money, line.money, resets_ms(budget, now_ms))
    return None


def stops(path: tuple[Line, ...], now_ms: int) -> OverBudget | None:
    """Why nothing more is started in the first line of `path`; the nearest budget is told."""
    for line in path:
        if line.budget is not None and line.budget.at == "stop" and (found := over(line, now_ms)) is not None:
            return found
    return None


def resets_ms(budget: Budget, now_ms: int) -> int | None:
    """Unix time at which a new period begins; None for a budget that is for all time."""
    return None if budget.period == "total" else _next(budget.period, now_ms)


def _next(period: Literal["day", "week", "month"], now_ms: int) -> int:
    now = _EPOCH + timedelta(milliseconds=now_ms)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case "day":
            begins = today + timedelta(days=1)
        case "week":
            begins = today + timedelta(days=7 - today.weekday())
        case "month":
            begins = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return (begins - _EPOCH) // timedelta(milliseconds=1)
