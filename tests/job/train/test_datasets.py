"""Prepared data under PyTorch's DataLoader: the run's order with any number of processes, and a state that can be resumed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from phalanx.core.errors import DataError
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import Indices, batch_indices
from phalanx.job.train.datasets import BatchDataset, SampleDataset, StepBatches
from tests.job.data.random_tokens import write_tokens

SEQUENCE = 100


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("datasets") / "data"
    write_tokens(folder, [9_000, 700])
    return open_data(folder)


@pytest.fixture
def order(data: TokenData) -> Callable[[int], Indices]:
    count = data.num_samples("train", SEQUENCE)
    return lambda step: batch_indices(1, step, 4, count)


def wanted(data: TokenData, order: Callable[[int], Indices], steps: range) -> list[list[list[int]]]:
    return [data.gather("train", order(step), SEQUENCE).tolist() for step in steps]


@pytest.mark.parametrize("processes", [0, 2])
def test_the_runs_order_under_a_plain_loader(data: TokenData, order: Callable[[int], Indices], processes: int) -> None:
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


def test_d01_a_resumed_loader_goes_on_with_the_next_batch(data: TokenData, order: Callable[[int], Indices]) -> None:
    """What was fetched ahead of the break does not count."""
    first = BatchDataset(data, "train", SEQUENCE, order, 12)
    batches = iter(DataLoader(first, batch_size=None))
    seen = [next(batches).tolist() for _ in range(5)]
    state = first.state_dict()
    assert state == {"step": 5, "manifest_hash": data.manifest_hash}
    second = BatchDataset(data, "train", SEQUENCE, order, 12)
    second.load_state_dict(state)
    seen += [batch.tolist() for batch in DataLoader(second, batch_size=None)]
    assert seen == wanted(data, order, range(12))
    assert second.state_dict()["step"] == 12


def test_a_batch_that_is_kept_stays_as_it_is(data: TokenData, order: Callable[[int], Indices]) -> None:
    batches = list(DataLoader(BatchDataset(data, "train", SEQUENCE, order, 20), batch_size=None))
    assert [batch.tolist() for batch in batches] == wanted(data, order, range(20))


def test_a_state_of_other_data_or_of_nothing_is_refused(data: TokenData, order: Callable[[int], Indices], tmp_path: Path) -> None:
    dataset = BatchDataset(data, "train", SEQUENCE, order, 12)
    with pytest.raises(DataError, match="give what state_dict returned"):
        dataset.load_state_dict({"step": 5})
    dataset.load_state_dict({"step": 5, "manifest_hash": "f" * 64})
    with pytest.raises(DataError, match="is of other data"):
        next(iter(dataset))


def test_loader_processes_that_would_miscount_are_refused(data: TokenData, order: Callable[[int], Indices]) -> None:
    loader = DataLoader(BatchDataset(data, "train", SEQUENCE, order, 12), batch_size=None, num_workers=1)
    with pytest.raises(Exception, match="write 0"):  # DataLoader makes it anew, of the class that it was
        next(iter(loader))
