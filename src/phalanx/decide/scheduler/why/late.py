"""Whether a job keeps its deadline, in words. Nothing is decided by it: who goes first is a matter of the line."""

from phalanx.core.units import show_duration, write_duration
from phalanx.decide.scheduler.plan import Eta


def late_text(
    deadline_ms: int | None, limit_ms: int | None, now_ms: int, begins_ms: int | None = None, eta: Eta | None = None
) -> str:
    """One clause; '' of a job without a deadline, and of one that nothing says to be late.

    begins_ms: when it began, or would; None of one that waits: by the middle of `eta`, where there is one, else now at the
    soonest. limit_ms: its `max_duration`; it may be done before. Times are Unix milliseconds.
    """
    if deadline_ms is None:
        return ""
    if deadline_ms <= now_ms:
        return f"its deadline passed {show_duration(now_ms - deadline_ms)} ago"
    about = "about " if eta is not None else "at least "
    if begins_ms is not None:
        start_ms, about = begins_ms, ""
    else:
        start_ms = now_ms if eta is None else max(now_ms, (eta.low_ms + eta.high_ms) // 2)
    over_ms = start_ms + (limit_ms or 0) - deadline_ms
    if over_ms <= 0:
        return ""
    after = f"{about}{show_duration(over_ms)} after its deadline"
    if limit_ms is None:
        return f"it would start {after}"
    return f"run for max_duration ({write_duration(limit_ms)}), it would be done {after}"
