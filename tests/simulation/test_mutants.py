"""Each planted fault turns the simulation red, by the property that it breaks: a simulation that cannot fail proves nothing."""

import inspect
import re
from pathlib import Path

import pytest

from tests.simulation import history, safety
from tests.simulation.history import run
from tests.simulation.mutants import MUTANTS, planted

SEEDS_MAX = 500
DOCS = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
ASKED_FOR = {"forget_lost", "partial_gang", "zombie_gpu", "double_apply", "epoch_reuse", "ledger_leak"}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_turns_it_red(name: str) -> None:
    mutant, seen = MUTANTS[name], set[str]()
    with planted(name):
        for seed in (mutant.seed, *range(SEEDS_MAX)):
            seen.add(run(seed).property_name)
            if mutant.violates in seen:
                return
    pytest.fail(f"{name} ({mutant.what}) did not violate {mutant.violates} in {SEEDS_MAX} seeds, only {seen}")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_takes_what_the_right_code_takes(name: str) -> None:
    """One that cannot even be called is red for that, and shows nothing of its property."""
    mutant = MUTANTS[name]
    for owner, attribute, made in [(mutant.owner, mutant.name, mutant.made), *([mutant.also] if mutant.also else [])]:
        right = getattr(owner, attribute)
        given = [object()] * len(inspect.signature(right).parameters)
        inspect.signature(made(right)).bind(*given)


def test_every_property_has_a_mutant_and_a_line_in_the_docs() -> None:
    """One that nothing violates may be one that never looks."""
    source = "".join(inspect.getsource(module) for module in (history, safety))
    properties = set(re.findall(r'(?:_hold|Violated)\(\s*"(\w+)"', source))
    assert {mutant.violates for mutant in MUTANTS.values()} == properties
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", DOCS.read_text(), re.MULTILINE))))
    assert told >= properties


def test_every_mutant_that_was_asked_for_is_there_and_leaves_nothing_behind() -> None:
    assert set(MUTANTS) >= ASKED_FOR
    before = [getattr(mutant.owner, mutant.name) for mutant in MUTANTS.values()]
    for name in MUTANTS:
        with planted(name):
            assert getattr(MUTANTS[name].owner, MUTANTS[name].name) not in before
    assert [getattr(mutant.owner, mutant.name) for mutant in MUTANTS.values()] == before
