"""What a message costs: alpha + n * beta, a latency and seconds a byte (Hockney, "The communication challenge for MPP", 1994)."""

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.fabric_test import CostView, PointView


@dataclass(frozen=True, slots=True)
class Cost:
    """error: the largest relative one of what it was fitted to."""

    alpha_s: float
    beta_s: float
    error: float = 0.0

    def seconds(self, size_bytes: float) -> float:
        return self.alpha_s + size_bytes * self.beta_s


def fitted(points: Sequence[tuple[int, float]]) -> Cost | None:
    """The least sum of squared relative errors, with neither part below 0, over (bytes, seconds); None for fewer than two sizes.

    Relative, since a message of 512 MiB takes ten thousand times as long as one of 8 KiB, and both count.
    """
    if len({size for size, _ in points}) < 2 or any(seconds <= 0 for _, seconds in points):
        return None
    one = [1 / seconds for _, seconds in points]
    per = [size / seconds for size, seconds in points]
    oo, op, pp = _dot(one, one), _dot(one, per), _dot(per, per)
    o, p = sum(one), sum(per)
    determinant = oo * pp - op * op
    alpha_s, beta_s = (o * pp - p * op) / determinant, (p * oo - o * op) / determinant
    if alpha_s < 0:
        alpha_s, beta_s = 0.0, p / pp
    elif beta_s < 0:
        alpha_s, beta_s = o / oo, 0.0
    error = max(abs(alpha_s + size * beta_s - seconds) / seconds for size, seconds in points)
    return Cost(alpha_s, beta_s, error)


def costs(points: Sequence[PointView]) -> tuple[CostView, ...]:
    """One for each tier and collective that was measured with two sizes or more."""
    by_kind = dict[tuple[str, str, int], list[tuple[int, float]]]()
    for point in points:
        by_kind.setdefault((point.tier, point.collective, point.num_ranks), []).append((point.size_bytes, point.seconds))
    found = []
    for (tier, collective, num_ranks), measured in by_kind.items():
        if (cost := fitted(measured)) is not None:
            found.append(CostView(
                tier=tier, collective=collective, num_ranks=num_ranks,
                alpha_s=cost.alpha_s, beta_s=cost.beta_s, error=cost.error,
            ))  # fmt: skip
    return tuple(found)


def cost_of(measured: Sequence[CostView], tier: str, collective: str) -> Cost | None:
    """For whoever plans: what a report says of that collective on that tier."""
    for one in measured:
        if (one.tier, one.collective) == (tier, collective):
            return Cost(one.alpha_s, one.beta_s, one.error)
    return None


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
