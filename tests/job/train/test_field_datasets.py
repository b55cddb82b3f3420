"""Images under PyTorch's DataLoader: the run's order and augmentation with any number of processes, and a state to resume."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from phalanx.core.errors import DataError
from phalanx.job.data.draws import PlainOrder
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Mixture, Source
from phalanx.job.data.tars.open import Sample, SampleData, open_samples
from phalanx.job.data.tars.pack import pack
from phalanx.job.data.tars.stream import Making, sample_stream
from phalanx.job.train.field_datasets import FieldBatches, FieldDataset, FieldLoader, StepDraws
from tests.job.data.image_folders import class_of, pixels_of, write_images


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    folder: Path = tmp_path_factory.mktemp("fields")
    write_images(folder / "images", each=10)
    pack(folder / "images", folder / "data")
    return open_samples(folder / "data")


@pytest.fixture
def order(data: SampleData) -> PlainOrder:
    return PlainOrder(num_samples=len(data), seed=5, global_batch=6)


def decode(sample: Sample) -> tuple[Tensor, int]:
    return torch.from_numpy(pixels_of(sample)).float() / 255, class_of(sample)


def flipped(item: tuple[Tensor, int], random: np.random.Generator) -> tuple[Tensor, int]:
    image, label = item
    return (image.flip(1) if random.random() < 0.5 else image), label


def plain(batches: Any) -> list[Any]:
    return [(images.tolist(), labels.tolist()) for images, labels in batches]


def test_the_runs_order_and_augmentation_with_and_without_loader_processes(data: SampleData, order: PlainOrder) -> None:
    dataset = FieldDataset(data, decode, flipped, seed=1)
    batches = plain(DataLoader(dataset, batch_sampler=StepDraws(order, 2, 12)))
    assert len(batches) == 10 and np.shape(batches[0][0]) == (6, 6, 6)
    assert plain(DataLoader(dataset, batch_sampler=StepDraws(order, 2, 12), num_workers=2)) == batches
    ahead = FieldBatches(data, order, decode, flipped, 12, seed=1)
    assert plain(DataLoader(ahead, batch_size=None))[2:] == batches
    assert plain(DataLoader(FieldDataset(data, decode), batch_sampler=StepDraws(order, 2, 12))) != batches
    assert torch.equal(FieldDataset(data, decode)[4][0], decode(data.read(4))[0]) and len(dataset) == 30


def test_d01_a_resumed_loader_goes_on_with_the_next_batch_on_other_ranks(data: SampleData, order: PlainOrder) -> None:
    whole = plain(DataLoader(FieldBatches(data, order, decode, flipped, 9), batch_size=None))
    first = FieldBatches(data, order, decode, flipped, 9)
    batches = iter(DataLoader(first, batch_size=None))
    seen = plain(next(batches) for _ in range(4))
    state = json.loads(json.dumps(first.state_dict()))
    assert state["delivered"] == 24 and state["data"] == {"data": data.manifest_hash}
    ranks = [FieldBatches(data, order, decode, flipped, 9, rank=rank, world_size=4) for rank in range(4)]
    for rank in ranks:
        rank.load_state_dict(state)
    for parts in zip(*(DataLoader(rank, batch_size=None) for rank in ranks), strict=True):
        seen += plain([tuple(torch.cat(column) for column in zip(*parts, strict=True))])
    assert seen == whole
    assert ranks[0].state_dict()["delivered"] == 54 and "transform" in ranks[0].waited_s


def test_a_loader_by_processes_counts_what_it_delivered_too(data: SampleData, order: PlainOrder) -> None:
    """And goes on as, and where, one by threads does: with another number of processes, over a mixture, epoch by epoch."""
    names = {"a": data, "b": data}
    mixed = MixedOrder(Mixture([Source("a"), Source("b")]), {"a": 30, "b": 30}, seed=1, global_batch=6)
    whole = plain(FieldBatches(names, mixed, decode, flipped, 9, seed=2))
    assert plain(FieldLoader(names, mixed, decode, flipped, 9, seed=2)) == whole
    first = FieldLoader(data, order, decode, flipped, 9, seed=2, epoch_steps=4, num_workers=1)
    assert len(first) == 4
    seen = plain(first)
    state = json.loads(json.dumps(first.state_dict()))
    assert state["delivered"] == 4 * 6 and state["data"] == {"data": data.manifest_hash}
    then = [FieldLoader(data, order, decode, flipped, 9, seed=2, rank=rank, world_size=2) for rank in range(2)]
    for rank in then:
        rank.load_state_dict(state)
    seen += plain([tuple(torch.cat(column) for column in zip(*parts, strict=True)) for parts in zip(*then, strict=True)])
    assert seen == plain(FieldBatches(data, order, decode, flipped, 9, seed=2))


def test_what_would_miscount_or_belongs_to_others_is_refused(data: SampleData, order: PlainOrder) -> None:
    dataset = FieldBatches(data, order, decode, stop=5)
    with pytest.raises(Exception, match="write 0"):  # DataLoader makes it anew, of the class that it was
        next(iter(DataLoader(dataset, batch_size=None, num_workers=1)))
    state = FieldBatches(data, order, decode).state_dict() | {"delivered": 6, "data": {"data": "f" * 64}}
    with pytest.raises(DataError, match=f"{data.place} is not the data that this run has read"):
        dataset.load_state_dict(state)
    mixed = MixedOrder(Mixture([Source("a"), Source("b")]), {"a": 5, "b": 5}, seed=1, global_batch=4)
    with pytest.raises(DataError, match="several sources"):
        StepDraws(mixed, 0, 3)


def odd(value: object) -> Any:
    """What the types of a call would not let pass."""
    return value


longer = PlainOrder(num_samples=31, seed=5, global_batch=6)
TOO_LONG = ("samples of data in the order", r"order: 31: the data has 30; make the order by len\(data\)")
WRONG: dict[str, tuple[Callable[[Any, Any], object], str, str]] = {
    "a path": (lambda data, order: FieldDataset(odd(str(data.place)), decode), "data", "open_samples"),
    "no data": (lambda data, order: FieldBatches(odd(str(data.place)), order, decode), "data", "open_samples"),
    "no order": (lambda data, order: FieldBatches(data, odd(5), decode), "order", "PlainOrder"),
    "no function": (lambda data, order: FieldDataset(data, odd("jpg")), "decode", "give a function"),
    "no transform": (lambda data, order: FieldBatches(data, order, decode, odd(0.5)), "transform", "give a function"),
    "a field": (lambda data, order: FieldDataset(data, decode, fields=["pgn"]), "fields", "did you mean 'png'"),
    "one field": (lambda data, order: FieldBatches(data, order, decode, fields="png"), "fields", "give a list"),
    "a rank": (lambda data, order: FieldBatches(data, order, decode, rank=1), "rank", "0 to 0"),
    "a loader's rank": (lambda data, order: FieldLoader(data, order, decode, rank=2, world_size=2), "rank", "0 to 1"),
    "many ranks": (lambda data, order: FieldBatches(data, order, decode, world_size=7), "global_batch", "its 7 ranks; .* 7 or"),
    "a loader's ranks": (lambda data, order: FieldLoader(data, order, decode, world_size=7), "global_batch", "6 ranks at most"),
    "ranks of steps": (lambda data, order: StepDraws(order, 0, 3, world_size=7), "global_batch", "fewer rows"),
    "ranks of a stream": (
        lambda data, order: sample_stream(data, order, Making(decode=decode), list, world_size=7), "global_batch", "fewer rows",
    ),
    "a loader's field": (lambda data, order: FieldLoader(data, order, decode, fields=["pgn"]), "fields", "did you mean 'png'"),
    "a loader's stop": (lambda data, order: FieldLoader(data, order, decode, stop=-1), "stop", "0 or more"),
    "a loader's processes": (lambda data, order: FieldLoader(data, order, decode, num_workers=1.5), "num_workers", "0 or more"),
    "too long an order": (lambda data, order: FieldBatches(data, longer, decode), *TOO_LONG),
    "too long for a loader": (lambda data, order: FieldLoader(data, longer, decode), *TOO_LONG),
    "steps": (lambda data, order: StepDraws(order, 4, 2), "stop", "before the first step, 4"),
    "bad data by its word": (
        lambda data, order: FieldBatches(data, order, decode, bad_data=odd("quarantine")), "bad_data", "BadData.policy",
    ),
    "an option": (lambda data, order: FieldLoader(data, order, decode, filds=["png"]), "option", "did you mean 'fields'"),
    "a text for a sample": (lambda data, order: data.read(odd("7")), "sample", "'7': write a whole number, 0 or more"),
    "half a sample": (lambda data, order: FieldDataset(data, decode)[odd(7.0)], "sample", "7.0: write a whole number"),
    "a field by its letters": (lambda data, order: data.read(7, "png"), "fields", "'png': give a list of names"),
    "a state": (lambda data, order: FieldBatches(data, order, decode).load_state_dict(odd([1])), "state", "state_dict"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "field", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_named_before_the_first_batch(
    data: SampleData, order: PlainOrder, call: Callable[[Any, Any], object], field: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        call(data, order)
    assert caught.value.field == field
