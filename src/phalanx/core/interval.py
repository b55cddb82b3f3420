"""How often to save: the interval that loses the least time to saving and to work done again after failures. Pure."""

import math
from typing import Final

PRIOR_NODE_HOURS: Final = 6_300.0
"""Node-hours per failure where a fleet has seen none: 419 unexpected interruptions in 54 days on 16,384 GPUs, which are 2,048 nodes
(Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.4)."""

_HOUR_S: Final = 3600.0


def failures_per_node_hour(failures: int, node_hours: float) -> float:
    """Of a fleet that saw so many failures in so many hours of held nodes. Without any: one in PRIOR_NODE_HOURS, or in what was
    survived where that is more."""
    if failures <= 0 or node_hours <= 0.0:
        return 1.0 / max(PRIOR_NODE_HOURS, node_hours)
    return failures / node_hours


def mtbf_s(rate_per_node_hour: float, nodes: int) -> float:
    """Mean seconds between failures of a gang, which any of its nodes ends."""
    return _HOUR_S / (rate_per_node_hour * nodes)


def young_s(cost_s: float, mtbf: float) -> float:
    """sqrt(2 C M): seconds of work between saves of `cost_s` (J. W. Young, "A first order approximation to the optimum checkpoint
    interval", Communications of the ACM 17(9), 1974)."""
    return math.sqrt(2.0 * cost_s * mtbf)


def daly_s(cost_s: float, mtbf: float) -> float:
    """The same to a higher order: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2M, else M (J. T. Daly, "A higher
    order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006, eq. 37).

    cost_s: seconds that a save holds training up. mtbf: mean seconds between failures.
    """
    if cost_s >= 2.0 * mtbf:
        return mtbf
    share = cost_s / (2.0 * mtbf)
    return young_s(cost_s, mtbf) * (1.0 + math.sqrt(share) / 3.0 + share / 9.0) - cost_s


def steps_between(cost_s: float, write_s: float, step_s: float, mtbf: float) -> int:
    """Steps of `step_s` between saves, at least 1: Daly's interval, but no less than the `write_s` that a save takes to become
    durable, since saves closer together would only wait for each other."""
    interval_s = max(daly_s(cost_s, mtbf), write_s)
    return max(1, math.ceil(interval_s / step_s)) if step_s > 0.0 else 1
