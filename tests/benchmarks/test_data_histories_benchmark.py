"""Histories of kills, resizes and resumes equal the undisturbed run, and planted faults are seen by the same comparison. Case ids:
shared/CASES.md."""

import importlib.util
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from phalanx.core.errors import DataError
from phalanx.job.data.draws import positions

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "data_histories.py"


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("data_histories_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ours = benchmark()


class CutsByAnotherWorld(ours.Gang):  # type: ignore[misc, name-defined]
    """Ranks divide batches by a world size that is not theirs: samples of the last rank are lost (case T01)."""

    def loaded(self, leg: Any, draw: random.Random) -> Any:
        other = replace(leg, world_size=leg.world_size + 1)
        return [ours.Loader(self.job, other, rank, self.first_step, draw) for rank in range(leg.world_size)]


class OrdersByWorld(ours.Gang):  # type: ignore[misc, name-defined]
    """The order depends on the number of ranks, as where each rank shuffles its own part."""

    def loaded(self, leg: Any, draw: random.Random) -> Any:
        self.job.order._seeds = [seed + leg.world_size for seed in self.job.order._seeds]
        return super().loaded(leg, draw)


def test_t01_t08_d02_histories_equal_the_undisturbed_run() -> None:
    assert ours.histories_equal(range(5_000, 5_005)) == []


@pytest.mark.parametrize("fault", [ours.CountsFetched, CutsByAnotherWorld, OrdersByWorld], ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_seen(fault: type) -> None:
    assert len(ours.histories_equal(range(5_000, 5_004), fault)) >= 2


def test_d13_the_comparison_sees_a_fault_that_nothing_refuses() -> None:
    """The cursors of this history are accepted each time, so that only the batches tell."""
    history = next(history for history in map(ours.history_of, range(5_000, 5_400)) if _goes_on_unrefused(history))
    assert ours.disturbed(history) == ours.undisturbed(history)
    assert ours.disturbed(history, ours.CountsFetched) != ours.undisturbed(history)


def _goes_on_unrefused(history: Any) -> bool:
    killed = [leg for leg in history.legs if leg.processes and leg.parts >= 0 and leg.steps >= history.checkpoint_every]
    if not killed or len(history.legs) > 2:
        return False
    try:
        return bool(ours.disturbed(history, ours.CountsFetched) != ours.undisturbed(history))
    except DataError:
        return False


def test_histories_are_of_every_kind_that_is_asked_for() -> None:
    histories = [ours.history_of(seed) for seed in range(600)]
    legs = [leg for history in histories for leg in history.legs]
    assert {leg.world_size for leg in legs} >= {1, 2, 3, 7, 33, 64}
    assert max(leg.world_size for leg in legs) == 64
    assert {leg.processes for leg in legs} == set(range(9))
    assert sum(0 < leg.parts < leg.world_size for leg in legs) > 100, "killed where some ranks have the batch and others do not"
    assert sum(leg.parts < 0 for leg in legs) > 100
    assert {len(history.corpora) for history in histories} == {1, 2, 3, 4}
    assert {bool(corpus.run_documents) for history in histories for corpus in history.corpora} == {True, False}
    assert sum(history.declared_at > 0 for history in histories) > 50


def test_d11_d12_undisturbed_runs_read_whole_epochs() -> None:
    """What histories are compared with is itself right: in each epoch of a source each sample once, in whatever order."""
    for seed in range(4):
        history = ours.history_of(seed)
        job = ours.Job(history, declared=True)
        draws = job.order.draws(positions(job.order, 0, 40 * history.num_steps))
        for source, size in enumerate(job.order.sizes.tolist()):
            mine = np.flatnonzero(draws.source == source)
            for epoch in range(int(draws.epoch[mine].max(initial=0))):
                assert sorted(draws.sample[mine[draws.epoch[mine] == epoch]].tolist()) == list(range(size))


def test_the_claims_are_one_json_line() -> None:
    command = [sys.executable, str(BENCHMARK), "--quick", "--only", "planted_fault_seen"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["benchmark"], [one["id"] for one in last["claims"]]) == ("data_histories", ["planted_fault_seen"])
    assert last["claims"][0]["holds"]
