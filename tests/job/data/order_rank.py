"""A rank with loader processes of its own, for the test that kills it: order_rank.py BENCHMARKS CURSOR SEED RANK WORLD PROCESSES.

It resumes from the cursor's file, if there is one, then answers each line with its rows of the next step as JSON.
"""

import json
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import positions
from phalanx.job.data.order import rank_slice


@cache
def job(seed: int) -> Any:
    """Made once in each process; the folder of benchmarks is on the path by then."""
    benchmark = import_module("data_histories")
    return benchmark.Job(benchmark.history_of(seed), declared=True)


def part(seed: int, rank: int, world_size: int, step: int) -> Any:
    """This rank's rows of a step."""
    return job(seed).rows(rank_slice(positions(job(seed).order, step), rank, world_size))


def answer(step: int, rows: Any) -> None:
    sys.stdout.write(json.dumps([step, rows]) + "\n")
    sys.stdout.flush()


def main(folder: str, cursor: Path, seed: int, rank: int, world_size: int, processes: int) -> None:
    """Serve steps until the input ends, or for as long as nobody kills this process."""
    sys.path.insert(0, folder)
    mine = job(seed)
    first = Cursor.from_json(cursor.read_text()).next_step(mine.order, mine.manifests) if cursor.exists() else 0
    make = partial(part, seed, rank, world_size)
    if not processes:
        for step, _ in enumerate(sys.stdin, first):
            answer(step, make(step))
        return
    with ProcessPoolExecutor(processes) as pool:
        ahead: list[Future[Any]] = [pool.submit(make, first + lead) for lead in range(3 * processes)]
        for step, _ in enumerate(sys.stdin, first):
            ahead.append(pool.submit(make, step + len(ahead)))
            answer(step, ahead.pop(0).result())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:7]))
