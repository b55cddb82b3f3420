"""The first 200 seeds; `make soak` runs 50,000."""

import os
from collections import Counter
from dataclasses import fields
from typing import get_args

import pytest

from phalanx.core.events import (
    EventBody,
    FaultPlanned,
    IdleOver,
    IdleWarned,
    JobCollected,
    PartReleased,
    StragglerFound,
    TracesRequested,
)
from phalanx.operate.sim.faults import Swarm
from tests.simulation.history import Outcome
from tests.simulation.many import run_many
from tests.simulation.safety import STOPPED_IN_TIME, SUPERSEDED, ZOMBIE

pytestmark = pytest.mark.timeout(1_200)
"""All seeds are run in the fixture of the first test, on however many cores are free."""

SEEDS = range(200)
SEEDS_MIN = 10
"""In so many of them at least each thing must happen: what never does was never safe, only absent."""

FAULTS = [kind.name for kind in fields(Swarm)]
ELSEWHERE = (FaultPlanned, IdleOver, IdleWarned, JobCollected, PartReleased, StragglerFound, TracesRequested)
"""Nobody works in a simulated job. Garbage is collected by hand, of what is long over; faults are planned by hand too, and
simulated ranks take no steps that could be slow or traced: see the tests in e2e. A gang goes on without a node in one of a
hundred seeds: see `test_recovering`."""

EVENTS = [kind.__name__ for kind in get_args(get_args(EventBody)[0]) if kind not in ELSEWHERE]

RARE = [
    ZOMBIE,
    STOPPED_IN_TIME,
    SUPERSEDED,
    "Crash",
    "StoreUnavailable",
    "shim: the lease is over",
    "cannot carry it out",
    "refuses to forget what has not ended",
    "is refused",
    "reboots",
    "is installed anew",
]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return run_many(SEEDS, mutant="", jobs=os.cpu_count() or 1)


def test_no_seed_violates_anything_and_every_one_converges(outcomes: list[Outcome]) -> None:
    assert [one.seed for one in outcomes] == list(SEEDS)
    assert [f"seed {one.seed}: {one.what}" for one in outcomes if one.property_name] == []


def test_everything_that_can_happen_does(outcomes: list[Outcome]) -> None:
    seeds = Counter(what for one in outcomes for what, times in one.seen.items() if times)
    assert {what: seeds[what] for what in (*FAULTS, *EVENTS, *RARE) if seeds[what] < SEEDS_MIN} == {}
