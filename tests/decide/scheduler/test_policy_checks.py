"""What a policy promises, the fleet must have."""

from typing import Any

import pytest

from phalanx.core.policy_parse import parse_policy
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler.quotas.policy_checks import doubts, problems

FLEET = {"H100": 64, "T4": 8}
HOSTS = {"H100": 8, "T4": 1}
CELLS = {("H100", "node"): (8, 8), ("H100", "rack"): (2, 32), ("H100", "block"): (0, 0)}
BOOKED = {"queue": "a", "start": "2026-12-01T09:00Z", "end": "2026-12-01T12:00Z"}
LATER = {"queue": "a", "start": "2026-12-01T12:00Z", "end": "2026-12-02T09:00Z"}


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ({}, None),
        ({"queues": {"a": {"quota": {"H100": 64, "T4": 8}}}}, None),
        ({"queues": {"a": {"quota": {"*": 72}}}}, None),
        (
            {"queues": {"a": {"quota": {"H100": 40}}, "b": {"quota": {"H100": 30}}}},
            ("queues.a.quota.H100", 40, "70 H100 are guaranteed in all, and the fleet has 64; guarantee 6 fewer"),
        ),
        (
            {"queues": {"o": {}, "a": {"parent": "o", "quota": {"H100": 40}}, "b": {"parent": "o", "quota": {"H100": 41}}}},
            ("queues.b.quota.H100", 41, "81 H100 are guaranteed in all, and the fleet has 64; guarantee 17 fewer"),
        ),
        ({"queues": {"o": {"quota": {"H100": 64}}, "a": {"parent": "o", "quota": {"H100": 64}}}}, None),
        (
            {"queues": {"a": {"quota": {"*": 40}}, "b": {"quota": {"H100": 40}}}},
            ("queues.a.quota.*", 40, "80 devices are guaranteed in all, and the fleet has 72; guarantee 8 fewer"),
        ),
        ({"queues": {"a": {"quota": {"B200": 1}}}}, ("queues.a.quota.B200", 1, "the fleet has none; it has H100, T4")),
        ({"queues": {"a": {"quota": {"B200": 0}, "limit": {"B200": 8}}}}, None),
        ({"queues": {"a": {"cells": {"type": "H100", "count": 8}}}}, None),
        (
            {"queues": {"a": {"cells": {"type": "H100", "count": 5}}, "b": {"cells": {"type": "H100", "count": 4}}}},
            ("queues.b.cells.count", 4, "9 nodes of H100 are guaranteed by now, and the fleet has 8; lower the count"),
        ),
        (
            {"queues": {"a": {"cells": {"type": "H100", "count": 3, "tier": "rack"}}}},
            ("queues.a.cells.count", 3, "3 racks of H100 are asked for, and the fleet has 2; lower the count"),
        ),
        ({"queues": {"a": {"cells": {"type": "H100", "count": 5}}, "b": {"quota": {"H100": 24}}}}, None),
        (
            {"queues": {"a": {"cells": {"type": "H100", "count": 5}}, "b": {"quota": {"H100": 25}}}},
            ("queues.b.quota.H100", 25, "65 H100 are guaranteed in all, and the fleet has 64; guarantee 1 fewer"),
        ),
        (
            {"queues": {"a": {"cells": {"type": "H100", "count": 5}}, "b": {"quota": {"*": 33}}}},
            ("queues.b.quota.*", 33, "73 devices are guaranteed in all, and the fleet has 72; guarantee 1 fewer"),
        ),
        (
            {
                "queues": {
                    "a": {"cells": {"type": "H100", "count": 5}},
                    "o": {},
                    "b": {"parent": "o", "cells": {"type": "H100", "count": 1, "tier": "rack"}},
                }
            },
            ("queues.a.cells.count", 5, "72 H100 are guaranteed in all, and the fleet has 64; guarantee 8 fewer"),
        ),
        (
            {"queues": {"a": {"cells": {"type": "H100", "count": 1, "tier": "block"}}}},
            ("queues.a.cells.tier", "block", "no node has a block label; set nodes.labels"),
        ),
        ({"bookings": {"x": {**BOOKED, "devices": "H100:64"}}}, None),
        (
            {"bookings": {"x": {**BOOKED, "devices": "H100:65"}}},
            ("bookings.x.devices", "H100:65", "the fleet has 64 H100 devices; book fewer"),
        ),
        (
            {"bookings": {"x": {**BOOKED, "devices": "H100:40"}, "y": {**BOOKED, "devices": "H100:40"}}},
            ("bookings.y.devices", "H100:40", "the fleet has 64 H100 devices, and 40 are booked at the same time; book fewer"),
        ),
        (
            {"bookings": {"x": {**BOOKED, "devices": "H100:40"}, "y": {**LATER, "devices": "H100:40"}}},
            None,
        ),
        (  # it overlaps with two that never hold anything at the same time
            {
                "bookings": {
                    "x": {**BOOKED, "devices": "H100:32"},
                    "y": {**LATER, "devices": "H100:32"},
                    "z": {**BOOKED, "end": LATER["end"], "devices": "H100:32"},
                }
            },
            None,
        ),
        ({"spares": {"H100": 7}}, None),
        ({"spares": {"H100": 8}}, ("spares.H100", 8, "the fleet has 8 nodes of H100, and jobs need one at least; keep fewer free")),
        ({"spares": {"B200": 1}}, ("spares.B200", 1, "the fleet has none; it has H100, T4")),
    ],
)  # fmt: skip
def test_promises_that_the_fleet_cannot_keep(policy: dict[str, Any], found: tuple[str, object, str] | None) -> None:
    said = list(problems(parse_policy(policy), FLEET, CELLS, HOSTS))
    assert said == ([] if found is None else [found])


def test_an_empty_fleet_refuses_nothing() -> None:
    policy = parse_policy({"queues": {"a": {"quota": {"H100": 64}, "parent": ""}, "b": {"cells": {"type": "H100", "count": 5}}}})
    assert list(problems(policy, {}, {}, {})) == []


def test_what_may_be_a_mistake() -> None:
    queues = {"a": {"limit": {"B200": 8, "*": 4, "T4": 1}}}
    policy = parse_policy({"queues": queues, "bookings": {"x": {**BOOKED, "devices": "T4:1"}}})
    limit = ("queues.a.limit.B200", 8, "the fleet has none; it has H100, T4")
    assert list(doubts(policy, FLEET, utc_ms("2026-12-01T11:59Z"))) == [limit]
    past = ("bookings.x.end", BOOKED["end"], "is past, so it keeps nothing; leave the booking out")
    assert list(doubts(policy, FLEET, utc_ms("2026-12-01T12:00Z"))) == [past, limit]
    assert list(doubts(policy, {}, 0)) == [], "of an empty fleet nothing is known"
