"""The first 500 seeds; `make soak` runs 50,000."""

import os

from tests.simulation.many import run_many

SEEDS = range(500)


def test_no_seed_violates_anything_and_every_one_converges() -> None:
    outcomes = run_many(SEEDS, mutant="", jobs=os.cpu_count() or 1)
    assert [one.seed for one in outcomes] == list(SEEDS)
    assert [f"seed {one.seed}: {one.what}" for one in outcomes if one.property_name] == []


def test_these_histories_are_full_of_events() -> None:
    """A cluster in which nothing happens would be safe as well."""
    outcomes = run_many(range(20), mutant="", jobs=1)
    assert sum(one.events for one in outcomes) > 20 * 20
