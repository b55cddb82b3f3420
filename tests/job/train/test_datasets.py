"""Prepared data under PyTorch's DataLoader: the run's order with any number of processes, and a state that can be resumed."""

import dataclasses
import json
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from phalanx.core.errors import DataError
from phalanx.core.training_data import DataSource, MixtureSource, Packing, WeightChange
from phalanx.job.data.draws import PlainOrder, batch
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Mixture, Source
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import batch_indices
from phalanx.job.data.sources import open_sources
from phalanx.job.train.datasets import BatchDataset, SampleDataset, StepBatches, StepLoader
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


def some(loader: StepLoader | BatchDataset, count: int) -> list[list[list[int]]]:
    """So many of the next batches, and then the iteration is broken off, with others fetched ahead."""
    return [batch.tolist() for _, batch in zip(range(count), loader, strict=False)]  # in this order, else one more is taken


def resumed(loader: StepLoader | BatchDataset, state: dict[str, Any]) -> StepLoader | BatchDataset:
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


@pytest.mark.parametrize("kind", [StepLoader, BatchDataset])
def test_t08_three_legs_are_one_run(data: TokenData, order: PlainOrder, kind: type[StepLoader] | type[BatchDataset]) -> None:
    """D13: an adaptor's own state, asked for in the middle, counts what was delivered. Each leg has other processes or threads."""
    legs: list[dict[str, Any]] = (
        [{"num_workers": 2, "prefetch_factor": 4}, {}, {"num_workers": 1}]
        if kind is StepLoader
        else [{"depth": 8}, {}, {"threads": 1}]
    )
    seen, state = [], kind(data, "train", SEQUENCE, order, 12).state_dict()
    for options, count in zip(legs, (5, 4, 9), strict=True):
        loader = resumed(kind(data, "train", SEQUENCE, order, 12, **options), state)
        seen += some(loader, count)
        state = loader.state_dict()
    assert seen == wanted(data, order, range(12))
    assert some(resumed(kind(data, "train", SEQUENCE, order, 8), state), 3) == [], "a run that is over has no batches"


@pytest.mark.parametrize("kind", [StepLoader, BatchDataset])
def test_t09_d11_after_a_resume_in_an_epoch_the_next_ones_are_whole(
    data: TokenData, order: PlainOrder, kind: type[StepLoader] | type[BatchDataset]
) -> None:
    """What a trainer takes for an epoch; its length stays that of a whole one, since trainers count on from where they were."""
    first = kind(data, "train", SEQUENCE, order, 18, epoch_steps=5)
    seen = [some(first, 9), some(first, 2)]
    assert [len(epoch) for epoch in seen] == [5, 2]
    second = resumed(kind(data, "train", SEQUENCE, order, 18, epoch_steps=5), first.state_dict())
    iter(second)  # trainers make iterators that they do not use
    seen += [some(second, 9) for _ in range(4)]
    assert [len(epoch) for epoch in seen[2:]] == [3, 5, 3, 0]
    assert [batch for epoch in seen for batch in epoch] == wanted(data, order, range(18))
    assert len(second) == 5
    assert (len(kind(data, "train", SEQUENCE, order, 18)), second.state_dict()["delivered"]) == (18, 72)


def test_t01_a_loader_of_another_gang_goes_on_with_the_same_samples(data: TokenData, order: PlainOrder) -> None:
    alone = StepLoader(data, "train", SEQUENCE, order, 6)
    first = some(alone, 4)
    ranks = [StepLoader(data, "train", SEQUENCE, order, 6, rank=rank, world_size=3) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(alone.state_dict())
    then = [torch.cat(parts).tolist() for parts in zip(*ranks, strict=True)]
    assert first + then == wanted(data, order, range(6))


def test_a_loader_takes_the_options_of_a_plain_one_and_leaves_the_global_generator_alone(
    data: TokenData, order: PlainOrder
) -> None:
    """A draw from it at each resume would change what dropout does after it."""
    before = torch.get_rng_state()
    loader = StepLoader(data, "train", SEQUENCE, order, 6, collate_fn=lambda rows: {"input_ids": torch.stack(rows)})
    assert [batch["input_ids"].tolist() for batch in loader] == wanted(data, order, range(6))
    assert torch.equal(torch.get_rng_state(), before)


class Legs(NamedTuple):
    """What a run has read, and what it saved: the loader's state, and how many batches it says to have done."""

    batches: list[list[list[int]]]
    saved: tuple[dict[str, Any], int]


def as_lightning(loader: StepLoader | BatchDataset, epochs: int, saved: tuple[dict[str, Any], int] | None, most: int) -> Legs:
    """The calls of Lightning 2.6: the state before the first iterator; of an epoch never more batches than its length says, those
    before a resume counted among them. examples/trainers shows the real one."""
    state, done = saved or (loader.state_dict(), 0)
    loader.load_state_dict(state)
    batches, seen = iter(loader), Legs([], (state, 0))
    for epoch in range(done // len(loader), epochs):
        if epoch > done // len(loader):
            batches = iter(loader)
        for at in range(max(done, epoch * len(loader)), (epoch + 1) * len(loader)):
            seen.batches.append(next(batches).tolist())
            if len(seen.batches) == most:
                return seen._replace(saved=(loader.state_dict(), at + 1))
    return seen


def as_hugging_face(loader: StepLoader | BatchDataset, epochs: int, saved: tuple[dict[str, Any], int] | None, most: int) -> Legs:
    """The calls of Hugging Face's Trainer 5.24: a new iterator for each epoch, also for the rest of one, asked for two batches at a
    time for as many times as a whole epoch has, and then left alone."""
    state, done = saved or (loader.state_dict(), 0)
    loader.load_state_dict(state)
    seen = Legs([], (state, 0))
    for _ in range(done // len(loader), epochs):
        batches = iter(loader)
        for _ in range(len(loader) // 2):
            seen.batches.extend(batch.tolist() for batch in islice(batches, 2))
            if len(seen.batches) == most:
                return seen._replace(saved=(loader.state_dict(), done + most))
    return seen


@pytest.mark.parametrize("kind", [StepLoader, BatchDataset])
@pytest.mark.parametrize("trained", [as_lightning, as_hugging_face])
@pytest.mark.parametrize("broken_off", [2, 6, 8, 16])
def test_trainers_resume_in_an_epoch_and_at_its_end(
    data: TokenData,
    order: PlainOrder,
    kind: type[StepLoader] | type[BatchDataset],
    trained: Callable[..., Legs],
    broken_off: int,
) -> None:
    first = trained(kind(data, "train", SEQUENCE, order, 24, epoch_steps=8), 3, None, broken_off)
    then = trained(kind(data, "train", SEQUENCE, order, 24, epoch_steps=8), 3, first.saved, 24)
    assert first.batches + then.batches == wanted(data, order, range(24))


@pytest.mark.parametrize("kind", [StepLoader, BatchDataset])
@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_a_mixture_is_read_as_its_order_says(tmp_path: Path, kind: type[StepLoader] | type[BatchDataset], packing: Packing) -> None:
    """Broken off and resumed; packed rows come with the numbers of their documents."""
    for name, sizes in (("web", [900, 420]), ("code", [300, 90, 77])):
        write_tokens(tmp_path / name, sizes, seed=sizes[0])
    sources = {name: MixtureSource(path=str(tmp_path / name), weight=1) for name in ("web", "code")}
    changes = (WeightChange(from_step=4, weights={"web": 1}),)
    mixed = open_sources(DataSource(sources=sources, changes=changes, packing=packing))
    order = mixed.order(50, seed=3, global_batch=4)
    whole = [mixed.gather("train", mixed.numbers(batch(order, step), "train", 50), 50).tolist() for step in range(8)]
    first = kind(mixed, "train", 50, order, 8)
    seen = some(first, 5)
    assert set(first.state_dict()["data"]) == {"web", "code"}
    again = pickle.loads(pickle.dumps(mixed))  # as a loader's process gets it where processes are not forked
    seen += some(resumed(kind(again, "train", 50, order, 8), first.state_dict()), 9)
    assert seen == whole
    assert np.shape(seen[0]) == ((4, 51) if packing == "concatenate" else (4, 2, 51))


@pytest.mark.parametrize("kind", [StepLoader, BatchDataset])
def test_batches_without_an_end_have_no_length(
    data: TokenData, order: PlainOrder, kind: type[StepLoader] | type[BatchDataset]
) -> None:
    endless = kind(data, "train", SEQUENCE, order)
    with pytest.raises(TypeError, match="epoch_steps"):
        len(endless)
    assert some(endless, 3) == wanted(data, order, range(3))
    with pytest.raises(DataError, match="epoch_steps"):
        kind(data, "train", SEQUENCE, order, epoch_steps=0)


@pytest.mark.parametrize("kind", [StepLoader, BatchDataset])
def test_a_second_pass_that_would_be_empty_is_refused_and_a_run_that_is_over_is_not(
    data: TokenData, order: PlainOrder, kind: type[StepLoader] | type[BatchDataset], caplog: pytest.LogCaptureFixture
) -> None:
    loader = kind(data, "train", SEQUENCE, order, 4)
    assert len(some(loader, 9)) == 4
    for _ in range(2):
        with pytest.raises(DataError, match=r"stop: 4: all batches .* were delivered.*`epoch_steps`.*load a state"):
            next(iter(loader))
    again = resumed(kind(data, "train", SEQUENCE, order, 4), loader.state_dict())
    assert some(again, 9) == some(again, 9) == some(resumed(loader, loader.state_dict()), 9) == []
    assert some(kind(data, "train", SEQUENCE, order, 0), 9) == [] and not caplog.records
    by_epochs = kind(data, "train", SEQUENCE, order, 4, epoch_steps=2)
    assert [len(some(by_epochs, 9)) for _ in range(3)] == [2, 2, 0]
    assert "all before `stop`, 4, were delivered" in caplog.text


def test_a_batch_that_is_kept_stays_as_it_is(data: TokenData, order: PlainOrder) -> None:
    batches = list(DataLoader(BatchDataset(data, "train", SEQUENCE, order, 20), batch_size=None))
    assert [batch.tolist() for batch in batches] == wanted(data, order, range(20))


def test_a_state_of_other_data_of_another_order_or_of_nothing_is_refused(data: TokenData, order: PlainOrder) -> None:
    dataset = BatchDataset(data, "train", SEQUENCE, order, 12)
    assert len(list(dataset)) == 12
    state = dataset.state_dict()
    with pytest.raises(DataError, match="resume from another checkpoint"):
        dataset.load_state_dict({"step": 5})
    with pytest.raises(DataError, match=f"{data.folder} is not the data that this run has read"):
        dataset.load_state_dict(state | {"data": {"data": "f" * 64}})
    other = BatchDataset(data, "train", SEQUENCE, dataclasses.replace(order, seed=2), 12)
    with pytest.raises(DataError, match="is not the order in which this run has read"):
        other.load_state_dict(state)
    several = open_sources(DataSource(path=str(data.folder)))
    loader = StepLoader(several, "train", SEQUENCE, several.order(SEQUENCE, seed=1, global_batch=4))
    with pytest.raises(DataError, match=f"{data.folder} is not the data that this run has read"):
        loader.load_state_dict(state | {"data": dict.fromkeys(several.names, "f" * 64)})


def test_an_order_over_several_data_sets_is_refused_by_a_reader_of_one(data: TokenData) -> None:
    mixed = MixedOrder(Mixture([Source("a"), Source("b")]), {"a": 5, "b": 5}, seed=1, global_batch=4)
    with pytest.raises(DataError, match="several sources"):
        StepBatches(mixed, 0, 3)


def test_loader_processes_that_would_miscount_are_refused(data: TokenData, order: PlainOrder) -> None:
    loader = DataLoader(BatchDataset(data, "train", SEQUENCE, order, 12), batch_size=None, num_workers=1)
    with pytest.raises(Exception, match="write 0"):  # DataLoader makes it anew, of the class that it was
        next(iter(loader))


def odd(value: object) -> Any:
    """What the types of a call would not let pass."""
    return value


MANY = PlainOrder(num_samples=10**6, seed=1, global_batch=4)
OTHERS = MixedOrder(Mixture([Source("a"), Source("b")]), {"a": 5, "b": 5}, seed=1, global_batch=2)
TOO_MANY = "samples of data in the order"
WRONG: dict[str, tuple[Callable[[Any, Any], object], str, str]] = {
    "a path": (lambda data, order: StepLoader(odd(str(data.folder)), "train", SEQUENCE, order), "data", "open_data"),
    "a split": (lambda data, order: BatchDataset(data, odd("trian"), SEQUENCE, order), "split", "did you mean 'train'"),
    "a length": (lambda data, order: SampleDataset(data, "train", odd("100")), "sequence", "whole number above 0"),
    "no order": (lambda data, order: StepLoader(data, "train", SEQUENCE, odd(7)), "order", "PlainOrder"),
    "a longer order": (lambda data, order: StepLoader(data, "train", SEQUENCE, MANY), TOO_MANY, "num_samples"),
    "another length": (lambda data, order: BatchDataset(data, "train", 2 * SEQUENCE, order), TOO_MANY, "has 48"),
    "a rank": (lambda data, order: StepLoader(data, "train", SEQUENCE, order, rank=2, world_size=2), "rank", "0 to 1"),
    "many ranks": (lambda data, order: StepLoader(data, "train", SEQUENCE, order, world_size=5), "global_batch", " 5 ranks; .* 5"),
    "more ranks": (lambda data, order: BatchDataset(data, "train", SEQUENCE, order, world_size=9), "global_batch", "4 ranks"),
    "ranks of steps": (lambda data, order: StepBatches(order, 0, 3, world_size=5), "global_batch", "fewer rows"),
    "a stop": (lambda data, order: BatchDataset(data, "train", SEQUENCE, order, -1), "stop", "0 or more"),
    "steps": (lambda data, order: StepBatches(order, 9, 3), "stop", "before the first step, 9"),
    "no end": (lambda data, order: StepBatches(order, 9, odd(None)), "stop", "0 or more"),
    "an epoch": (lambda data, order: StepLoader(data, "train", SEQUENCE, order, epoch_steps=odd(2.5)), "epoch_steps", "above 0"),
    "threads": (lambda data, order: BatchDataset(data, "train", SEQUENCE, order, threads=0), "threads", "above 0"),
    "processes": (lambda data, order: StepLoader(data, "train", SEQUENCE, order, num_workers=-1), "num_workers", "0 or more"),
    "bad data by its word": (
        lambda data, order: BatchDataset(data, "train", SEQUENCE, order, bad_data=odd("quarantine")), "bad_data", "BadData.policy",
    ),
    "a text for a sample": (lambda data, order: SampleDataset(data, "train", SEQUENCE)[odd("a")], "index", "whole numbers"),
    "half a sample": (lambda data, order: SampleDataset(data, "train", SEQUENCE)[odd(1.5)], "index", "whole numbers"),
    "an option": (
        lambda data, order: StepLoader(data, "train", SEQUENCE, order, wrld=3), "option", "'wrld': did you mean 'world_size'",
    ),
    "another option": (
        lambda data, order: StepLoader(data, "train", SEQUENCE, order, pinmemory=True), "option", "did you mean 'pin_memory'",
    ),
    "a sampler": (lambda data, order: StepLoader(data, "train", SEQUENCE, order, shuffle=True), "option", "the order says"),
    "a state": (lambda data, order: StepLoader(data, "train", SEQUENCE, order).load_state_dict(odd(None)), "state", "state_dict"),
    "another's state": (
        lambda data, order: BatchDataset(data, "train", SEQUENCE, order).load_state_dict({"step": torch.zeros(1)}),
        "state", "its own",
    ),
    "sources": (
        lambda data, order: BatchDataset(open_sources(DataSource(path=str(data.folder))), "train", SEQUENCE, OTHERS),
        "order", "other sources",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "field", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_named_before_the_first_batch(
    data: TokenData, order: PlainOrder, call: Callable[[Any, Any], object], field: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        call(data, order)
    assert caught.value.field == field
