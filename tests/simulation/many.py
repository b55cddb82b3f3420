"""Many seeds, in as many processes as asked."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Final

from tests.simulation.history import Outcome, run
from tests.simulation.mutants import planted

SEEDS_A_TURN: Final = 10
"""What a process runs before it answers: enough for the asking to cost nothing, few enough for a bar to move."""


def run_many(
    seeds: range, mutant: str, jobs: int, stop_at_first: bool = False, on_progress: Callable[[int], object] = lambda _: None
) -> list[Outcome]:
    """The outcomes, without those of seeds that were not begun when it was stopped."""
    turns = [seeds[at : at + SEEDS_A_TURN] for at in range(0, len(seeds), SEEDS_A_TURN)]
    outcomes: list[Outcome] = []
    for found in _turns(turns, mutant, jobs):
        outcomes += found
        on_progress(len(found))
        if stop_at_first and any(one.property_name for one in found):
            break
    return sorted(outcomes, key=lambda one: one.seed)


def run_turn(seeds: range, mutant: str) -> list[Outcome]:
    """In this process, one after the other."""
    with planted(mutant):
        return [run(seed) for seed in seeds]


def _turns(turns: Sequence[range], mutant: str, jobs: int) -> Iterator[list[Outcome]]:
    if jobs <= 1 or len(turns) == 1:
        for turn in turns:
            yield run_turn(turn, mutant)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            for done in as_completed([pool.submit(run_turn, turn, mutant) for turn in turns]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)
