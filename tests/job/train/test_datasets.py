"""Prepared data under PyTorch's DataLoader: the run's order with any number of processes, and a state that can be resumed."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from phalanx.core.errors import DataError
from phalanx.job.data.draws import PlainOrder
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Mixture, Source
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import batch_indices
from phalanx.job.train.datasets import BatchDataset, SampleDataset, StepBatches
from tests.job.data.random_tokens import write_tokens

SEQUENCE = 100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("datasets") / "data"
    write_tokens(folder, [9_000, 700])
    return open_data(folder)


@pytest.fixture
def order(data: TokenData) -> PlainOrder:
    return PlainOrder(num_samples=data.num_samples("train", SEQUENCE), seed=1, global_batch=4)


def wanted(data: TokenData, order: PlainOrder, steps: range) -> list[list[list[int]]]:
    rows = [batch_indices(order.seed, step, order.global_batch, order.num_samples) for step in steps]
    return [data.gather("train", row, SEQUENCE).tolist() for row in rows]


@pytest.mark.parametrize("processes", [0, 2])
def test_the_runs_order_under_a_plain_loader(data: TokenData, order: PlainOrder, processes: int) -> None:
    dataset = SampleDataset(data, "train", SEQUENCE)
    loader = DataLoader(dataset, batch_sampler=StepBatches(order, 30, 40), num_workers=processes)
    batches = list(loader)
    assert batches[0].dtype == torch.int64
    assert [batch.tolist() for batch in batches] == wanted(data, order, range(30, 40))
    assert len(loader) == 10


def test_each_sample_once_under_the_loaders_own_shuffling(data: TokenData) -> None:
    dataset = SampleDataset(data, "train", SEQUENCE)
    rows = torch.cat(list(DataLoader(dataset, batch_size=7, shuffle=True)))
    every = data.gather("train", np.arange(len(dataset)), SEQUENCE)
    assert sorted(rows.tolist()) == sorted(every.tolist())
    assert dataset[5].tolist() == every[5].tolist()
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_d01_a_resumed_loader_goes_on_with_the_next_batch(data: TokenData, order: PlainOrder) -> None:
    """What was fetched ahead of the break does not count."""
    first = BatchDataset(data, "train", SEQUENCE, order, 12)
    batches = iter(DataLoader(first, batch_size=None))
    seen = [next(batches).tolist() for _ in range(5)]
    state = json.loads(json.dumps(first.state_dict()))
    assert state["delivered"] == 20 and state["data"] == {"data": data.manifest_hash}
    second = BatchDataset(data, "train", SEQUENCE, order, 12)
    second.load_state_dict(state)
    seen += [batch.tolist() for batch in DataLoader(second, batch_size=None)]
    assert seen == wanted(data, order, range(12))
    assert second.state_dict()["delivered"] == 48


def test_t01_a_gang_of_another_size_goes_on_with_the_same_samples(data: TokenData, order: PlainOrder) -> None:
    def gang(size: int, state: dict[str, Any] | None, stop: int) -> tuple[list[list[list[int]]], dict[str, Any]]:
        ranks = [BatchDataset(data, "train", SEQUENCE, order, stop, rank=rank, world_size=size) for rank in range(size)]
        for rank in ranks:
            rank.load_state_dict(state or rank.state_dict())
        steps = zip(*(DataLoader(rank, batch_size=None) for rank in ranks), strict=True)
        batches = [torch.cat(parts).tolist() for parts in steps]
        states = [rank.state_dict() for rank in ranks]
        assert all(one == states[0] for one in states)
        return batches, states[0]

    first, state = gang(3, None, 5)
    then, _ = gang(2, state, 9)
    assert first + then == wanted(data, order, range(9))


def test_a_batch_that_is_kept_stays_as_it_is(data: TokenData, order: PlainOrder) -> None:
    batches = list(DataLoader(BatchDataset(data, "train", SEQUENCE, order, 20), batch_size=None))
    assert [batch.tolist() for batch in batches] == wanted(data, order, range(20))


def test_a_state_of_other_data_of_another_order_or_of_nothing_is_refused(data: TokenData, order: PlainOrder) -> None:
    dataset = BatchDataset(data, "train", SEQUENCE, order, 12)
    assert len(list(dataset)) == 12
    state = dataset.state_dict()
    with pytest.raises(DataError, match="resume from another checkpoint"):
        dataset.load_state_dict({"step": 5})
    with pytest.raises(DataError, match="is not the data that this run has read"):
        dataset.load_state_dict(state | {"data": {"data": "f" * 64}})
    other = BatchDataset(data, "train", SEQUENCE, dataclasses.replace(order, seed=2), 12)
    with pytest.raises(DataError, match="is not the order in which this run has read"):
        other.load_state_dict(state)


def test_an_order_over_several_data_sets_is_refused_by_a_reader_of_one(data: TokenData) -> None:
    mixed = MixedOrder(Mixture([Source("a"), Source("b")]), {"a": 5, "b": 5}, seed=1, global_batch=4)
    with pytest.raises(DataError, match="several sources"):
        StepBatches(mixed, 0, 3)


def test_loader_processes_that_would_miscount_are_refused(data: TokenData, order: PlainOrder) -> None:
    loader = DataLoader(BatchDataset(data, "train", SEQUENCE, order, 12), batch_size=None, num_workers=1)
    with pytest.raises(Exception, match="write 0"):  # DataLoader makes it anew, of the class that it was
        next(iter(loader))
