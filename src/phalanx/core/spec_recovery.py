"""What is wrong with how a job recovers inside its gang. Part of `spec_parse`: (field, value, good, what to change)."""

from collections.abc import Iterable
from typing import Final

from phalanx.core.spec import JobSpec, Recovery
from phalanx.core.spec_sharing import Check, parsed
from phalanx.core.timeouts import timeouts

SPARES_MAX: Final = 8


def recovery_checks(spec: JobSpec) -> Iterable[Check]:
    recovery, plain = spec.recovery, Recovery()
    if not recovery.in_gang:
        for name in ("spares", "hang_timeout"):
            value = getattr(recovery, name)
            yield f"recovery.{name}", value, value == getattr(plain, name), "write recovery.in_gang: true with it, or leave it out"
        return
    yield "recovery.spares", recovery.spares, 0 <= recovery.spares <= SPARES_MAX, f"write 0 to {SPARES_MAX}"
    yield parsed("recovery.hang_timeout", recovery.hang_timeout, lambda: timeouts(recovery.hang_ms))
    longest = spec.max_duration_ms
    within = longest is None or recovery.hang_ms < longest
    yield "recovery.hang_timeout", recovery.hang_timeout or "10m", within, f"write less than max_duration ({spec.max_duration})"
    yield from _where_it_works(spec)


def _where_it_works(spec: JobSpec) -> Iterable[Check]:
    leave_out = "leave recovery.in_gang out"
    yield "recovery.in_gang", True, spec.kind == "train", f"write kind: train, whose steps tell when a rank hangs, or {leave_out}"
    yield (
        "recovery.in_gang",
        True,
        spec.num_nodes == 1,
        f"gangs of several nodes restart whole for now: write num_nodes: 1, or {leave_out}",
    )
    yield "recovery.in_gang", True, not spec.environment.image, f"ranks in a container restart whole for now: {leave_out}"
