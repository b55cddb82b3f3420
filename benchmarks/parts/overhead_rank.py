"""One rank of overhead.py: the recipe's own loop, with the end of each step written down, and no save. `overhead_rank.py FILE`: of
that name and its rank. Under Phalanx it has a session, and a coordinator where its job says so; by itself it has neither."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from phalanx.core.training_data import DataSource
from phalanx.job.data.sources import open_sources
from phalanx.job.sdk import attach
from phalanx.job.sdk.gang import Gang
from phalanx.job.sdk.gang import attach as attach_gang
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.loop import run
from phalanx.job.train.recipe import llama_recipe
from phalanx.job.train.reform import in_generations
from phalanx.job.train.saves import saving
from phalanx.job.train.setup import Training, set_up
from phalanx.job.train.watch import Watch


class Written(Watch):
    """Of the steps' ends on CLOCK_MONOTONIC, by step; 0 of one that is not over. coordinator: hears of each mark of a step."""

    def __init__(self, path: Path, steps: int, coordinator: Gang | None) -> None:
        self._ends_s = np.memmap(path, np.float64, "w+", shape=(steps + 1,))
        self._coordinator = coordinator

    def moved(self, step: int, mark: int) -> None:
        if self._coordinator is not None:
            self._coordinator.moved(step, mark)

    def recorded(self, training: Training, step: int) -> None:
        self._ends_s[step] = time.monotonic()


def main(path: Path) -> None:
    coordinator = attach_gang()
    if coordinator is None:
        with gang() as rank:
            train(path, rank, None)
    else:
        in_generations(coordinator, lambda rank, place: train(path, rank, coordinator))


def train(path: Path, rank: Rank, coordinator: Gang | None) -> None:
    session = attach()
    recipe = llama_recipe(session.hyperparameters)
    data = open_sources(DataSource(path=session.data))
    watch = Written(path.with_suffix(f".{rank.rank}"), recipe.steps, coordinator)
    training, start = set_up(session, recipe, data, rank, time.monotonic, lambda: time.time_ns() // 10**6, watch)
    if coordinator is not None:
        coordinator.settled()
    with saving(training) as saves:
        run(training, start, saves)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
