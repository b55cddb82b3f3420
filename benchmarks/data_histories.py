"""Runs that are killed, resized and resumed at random, against the same runs left alone: is the data the same, batch by batch?

Usage: python benchmarks/data_histories.py [--only ID] [--quick] [--first SEED]. The last line is one JSON object; the exit code is
1 when a claim does not hold.

A history is drawn from its seed: one to four sources of documents, each packed (end to end, or best-fit) and shuffled in its own
way, a mixture whose weights change at a step, which is declared from the start or only at a resume before it; a global batch; and
legs, each a gang of 1 to 64 ranks with 0 to 8 loader processes a rank. A rank's loader processes make its batches in turn, as
torch's do, and run ahead in a random order. A leg ends in order, or by a kill, half of the time when some ranks have a step's batch
and others do not. The next resumes from the last cursor that was saved, as JSON, with all objects made anew; what was done after
that cursor is undone with it. A batch is every rank's rows, in the order of ranks: source, epoch, sample, and the documents, first
tokens and lengths that the sample is packed from. The undisturbed run is one rank without loader processes that asks for one step
after the other.

There is no peer. The control puts histories through a planted fault, cursors that count what loaders have fetched, and must see it.
`histories_equal` takes another class of gang, for other loaders and other faults.
"""

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from phalanx.core.errors import DataError
from phalanx.job.data.blocks import BlockShuffle, FullShuffle, InOrder, Shuffle
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import positions
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Change, Mixture, Source
from phalanx.job.data.order import Indices, rank_slice
from phalanx.job.data.packing import BestFit, Concatenate, Packing

HISTORIES, HISTORIES_QUICK = 1_000, 40
"""Issue 6, Figures: 1,000 of 1,000."""

CONTROL_PART: Final = 10
WORLD_MAX, PROCESSES_MAX = 64, 8

Row = tuple[int, ...]
"""Source, epoch, sample; then document, first token and length of each piece."""

Batch = list[Row]


@dataclass(frozen=True, slots=True)
class Corpus:
    """One source's documents, by their lengths, and how they become samples."""

    lengths: tuple[int, ...]
    sequence: int
    run_documents: int
    """0: end to end."""

    def packing(self) -> Packing:
        lengths = np.array(self.lengths, dtype=np.int32)
        return (
            BestFit(lengths, self.sequence + 1, self.run_documents) if self.run_documents else Concatenate(lengths, self.sequence)
        )


@dataclass(frozen=True, slots=True)
class Leg:
    """One gang's life. steps: that it does. parts: ranks that have the batch of the step in which it is killed; -1: it ends in
    order."""

    world_size: int
    processes: int
    steps: int
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run and what happens to it. declared_at: the leg from which on the change of weights is declared."""

    seed: int
    corpora: tuple[Corpus, ...]
    mixture: Mixture
    global_batch: int
    num_steps: int
    checkpoint_every: int
    legs: tuple[Leg, ...]
    declared_at: int

    @property
    def change_step(self) -> int:
        return self.mixture.changes[0].from_step


def history_of(seed: int) -> History:
    """The history with this seed."""
    draw = random.Random(seed)
    corpora = tuple(_corpus(draw) for _ in range(draw.randint(1, 4)))
    names = [f"source-{number}" for number in range(len(corpora))]
    num_steps = draw.randint(16, 32)
    sources = [
        Source(name, weight=weight, shuffle=_shuffle(draw)) for name, weight in zip(names, _weights(draw, names), strict=True)
    ]
    change = Change(from_step=draw.randint(1, num_steps - 1), weights=dict(zip(names, _weights(draw, names), strict=True)))
    return History(
        seed=seed, corpora=corpora, mixture=Mixture(sources, changes=[change]), global_batch=draw.randint(1, 80),
        num_steps=num_steps, checkpoint_every=draw.randint(1, 6), legs=tuple(_leg(draw) for _ in range(draw.randint(1, 6))),
        declared_at=draw.choice([0, 0, draw.randint(1, 4)]),
    )  # fmt: skip


def _corpus(draw: random.Random) -> Corpus:
    sequence = draw.randint(8, 40)
    lengths = tuple(draw.randint(1, draw.choice([12, 90])) for _ in range(draw.randint(20, 120)))
    return Corpus((sequence + 2, *lengths), sequence, draw.choice([0, 16, 50]))


def _shuffle(draw: random.Random) -> Shuffle:
    shuffles: list[Shuffle] = [InOrder(), FullShuffle(), BlockShuffle(draw.randint(1, 9), draw.randint(1, 5))]
    return draw.choice(shuffles)


def _weights(draw: random.Random, names: Sequence[str]) -> list[float]:
    weights = [draw.choice([0, 0.1, 0.25, 0.3, 1, 1.7]) for _ in names]
    return weights if any(weights) else [1.0] * len(names)


def _leg(draw: random.Random) -> Leg:
    world_size = min(WORLD_MAX, int(2 ** draw.uniform(0, 6.05)))
    parts = draw.choice([-1, 0, draw.randint(0, world_size)])
    return Leg(world_size, draw.randint(0, PROCESSES_MAX), draw.randint(0, 12), parts)


class Job:
    """What every process of a run makes for itself from the same configuration."""

    def __init__(self, history: History, declared: bool) -> None:
        mixture = history.mixture if declared else replace(history.mixture, changes=())
        self.packings = [corpus.packing() for corpus in history.corpora]
        sizes = {source.name: packing.num_samples for source, packing in zip(mixture.sources, self.packings, strict=True)}
        cuts = {source.name: packing.name for source, packing in zip(mixture.sources, self.packings, strict=True)}
        self.order = MixedOrder(mixture, sizes, seed=history.seed, global_batch=history.global_batch, cuts=cuts)
        self.manifests = {source.name: f"manifest of {source.name}" for source in mixture.sources}

    def rows(self, places: Indices) -> Batch:
        """The samples at these global places, with their pieces."""
        draws = self.order.draws(places)
        found: dict[int, Row] = {}
        for source in np.unique(draws.source).tolist():
            at = np.flatnonzero(draws.source == source)
            pieces = self.packings[source].pieces(draws.sample[at])
            columns = np.stack([pieces.document, pieces.start, pieces.length], axis=1)
            for row, epoch, sample, first, last in zip(
                at.tolist(), draws.epoch[at].tolist(), draws.sample[at].tolist(), pieces.first[:-1], pieces.first[1:], strict=True
            ):
                found[row] = (source, epoch, sample, *columns[first:last].ravel().tolist())
        return [found[row] for row in range(len(draws))]


class Loader:
    """One rank's batches, made ahead by its processes. fetched: the first step that no process has made yet."""

    def __init__(self, job: Job, leg: Leg, rank: int, first_step: int, draw: random.Random) -> None:
        self._job, self._leg, self._rank, self._draw = job, leg, rank, draw
        self._next = [first_step + process for process in range(leg.processes)]
        self._made: dict[int, Batch] = {}
        self.fetched = first_step

    def deliver(self, step: int) -> Batch:
        """This rank's part of a step."""
        while step not in self._made:
            self._make(step, self._draw.randint(1, 4))
        return self._made.pop(step)

    def _make(self, step: int, lead: int) -> None:
        """One process, the right one or another, makes its next batches in one go."""
        if not self._next:
            steps = [step]
        else:
            process = self._draw.randrange(len(self._next))
            if self._draw.random() < 0.5 or self._next[process] > step + 4 * len(self._next):
                process = min(range(len(self._next)), key=self._next.__getitem__)
            steps = [self._next[process] + turn * len(self._next) for turn in range(lead)]
            self._next[process] = steps[-1] + len(self._next)
        self._read(steps)
        self.fetched = max(self.fetched, steps[-1] + 1)

    def _read(self, steps: Sequence[int]) -> None:
        shares = [rank_slice(positions(self._job.order, step), self._rank, self._leg.world_size) for step in steps]
        rows, each = self._job.rows(np.concatenate(shares)), len(shares[0])
        for number, step in enumerate(steps):
            self._made[step] = rows[number * each : (number + 1) * each]


class Gang:
    """The ranks of one leg."""

    def __init__(self, history: History, leg: Leg, saved: str, declared: bool, draw: random.Random) -> None:
        self.job = Job(history, declared)
        self.first_step = Cursor.from_json(saved).next_step(self.job.order, self.job.manifests) if saved else 0
        self.loaders = self.loaded(leg, draw)
        self.done = self.first_step

    def loaded(self, leg: Leg, draw: random.Random) -> list[Loader]:
        """A loader for each rank."""
        return [Loader(self.job, leg, rank, self.first_step, draw) for rank in range(leg.world_size)]

    def step(self) -> Batch:
        """The next global batch, from every rank."""
        rows = [row for loader in self.loaders for row in loader.deliver(self.done)]
        self.done += 1
        return rows

    def cursor(self) -> str:
        """As a checkpoint holds it."""
        return Cursor.after(self.done, self.job.order, self.job.manifests).to_json()


class CountsFetched(Gang):
    """The planted fault (case D13): what was fetched counts as delivered."""

    def cursor(self) -> str:
        fetched = max(self.done, min(loader.fetched for loader in self.loaders))
        return Cursor.after(fetched, self.job.order, self.job.manifests).to_json()


def undisturbed(history: History) -> list[Batch]:
    """One rank, no processes, no kill."""
    job = Job(history, declared=True)
    return [job.rows(positions(job.order, step)) for step in range(history.num_steps)]


def disturbed(history: History, gang: type[Gang] = Gang) -> list[Batch]:
    """The history as it happened to those weights that came out of it."""
    draw, saved = random.Random(history.seed + 1), ""
    batches: dict[int, Batch] = {}
    for number, leg in enumerate([*history.legs, Leg(3, 2, history.num_steps, -1)]):
        last = number == len(history.legs)
        declared = last or number >= history.declared_at
        ranks = gang(history, leg, saved, declared, draw)
        batches = {step: batch for step, batch in batches.items() if step < ranks.first_step}
        # Nobody can change weights at a step that has been done, so until the change is declared the run stays before it.
        end = min(history.num_steps if declared else history.change_step, ranks.first_step + leg.steps)
        while ranks.done < end:
            step, batch = ranks.done, ranks.step()
            batches[step] = batch
            if ranks.done % history.checkpoint_every == 0:
                saved = ranks.cursor()
        if leg.parts < 0:
            saved = ranks.cursor()
        elif ranks.done < history.num_steps:
            for loader in ranks.loaders[: leg.parts]:
                loader.deliver(ranks.done)
    return [batches.get(step, []) for step in range(history.num_steps)]


def is_equal(seed: int, gang: type[Gang] = Gang) -> bool:
    """Whether the sequence of global batches of this history is that of the undisturbed run."""
    history = history_of(seed)
    try:
        return disturbed(history, gang) == undisturbed(history)
    except DataError:  # a run that refuses its own cursor does not end as the undisturbed one does
        return False


def histories_equal(seeds: Iterable[int], gang: type[Gang] = Gang, processes: int = 1) -> list[int]:
    """The seeds of histories that differ from the undisturbed run: none, if the order is what it claims to be."""
    chosen = list(seeds)
    if processes == 1:
        return [seed for seed in chosen if not is_equal(seed, gang)]
    with ProcessPoolExecutor(processes) as pool:
        equal = list(pool.map(partial(is_equal, gang=gang), chosen, chunksize=5))
    return [seed for seed, held in zip(chosen, equal, strict=True) if not held]


def claims_of(count: int, first: int, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Each claim that was asked for."""
    cores, claims = len(os.sched_getaffinity(0)), []
    if "histories_equal" in wanted:
        began_s = time.monotonic()
        unequal = histories_equal(range(first, first + count), processes=cores)
        print(f"{count - len(unequal)} of {count} histories equal, {time.monotonic() - began_s:.0f} s; unequal: {unequal[:10]}")
        claims.append(claim("histories_equal", count - len(unequal), f"of {count}", count))
    if "planted_fault_seen" in wanted:
        control = max(10, count // CONTROL_PART)
        unequal = histories_equal(range(first, first + control), CountsFetched, cores)
        print(f"with cursors that count what was fetched {len(unequal)} of {control} differ")
        claims.append(claim("planted_fault_seen", len(unequal), f"of {control}", 1))
    return claims


def claim(name: str, ours: int, unit: str, least: int) -> dict[str, Any]:
    return {
        "id": name, "ours": ours, "peer": None, "ratio": None, "unit": unit, "target": f"ours >= {least}", "holds": ours >= least,
    }  # fmt: skip


def conditions(first: int, count: int) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0],
        2), "versions": {"python": platform.python_version(), "numpy": np.__version__}, "seeds": [first, first + count - 1],
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    names = ["histories_equal", "planted_fault_seen"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=names, help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{HISTORIES_QUICK} histories instead of {HISTORIES}")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first history (default: 0)")
    options = parser.parse_args()
    count = HISTORIES_QUICK if options.quick else HISTORIES
    around = conditions(options.first, count)
    claims = claims_of(count, options.first, [options.only] if options.only else names)
    print(json.dumps({"benchmark": "data_histories", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
