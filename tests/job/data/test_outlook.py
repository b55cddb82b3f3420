"""`phalanx data mix`: what is told is what the order draws."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.data_asked import MixAsked
from phalanx.core.data_views import MixView
from phalanx.core.errors import DataError
from phalanx.core.training_data import DataSource, MixtureSource, WeightChange
from phalanx.job.data.asked import order_of
from phalanx.job.data.draws import positions
from phalanx.job.data.outlook import EPOCHS_TOLD, Held, outlook, outlook_of
from phalanx.job.data.shares import Shares
from tests.drawn import examples
from tests.job.data.random_tokens import write_tokens


def told(data: DataSource, sizes: dict[str, int], steps: int, batch: int = 7, first: int = 3) -> MixView:
    order = order_of(data, sizes, dict.fromkeys(sizes, ""), seed=1, global_batch=batch)
    asked = MixAsked(data=data, sequence=10, seed=1, batch=batch, steps=steps, first=first)
    return outlook_of(asked, order, {name: Held(path=name, tokens=10 * size, samples=size) for name, size in sizes.items()})


def mixture(weights: dict[str, float], *changes: WeightChange) -> DataSource:
    return DataSource(sources={name: MixtureSource(path=name, weight=weight) for name, weight in weights.items()}, changes=changes)


@settings(max_examples=examples(30), deadline=None)
@given(
    weights=st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any),
    after=st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(lambda row: any(row[:2])),
    sizes=st.lists(st.integers(1, 40), min_size=5, max_size=5),
    steps=st.integers(1, 30),
    change=st.integers(1, 40),
)
def test_everything_told_is_counted_over_what_is_drawn(
    weights: list[int], after: list[int], sizes: list[int], steps: int, change: int
) -> None:
    names = [f"s{number}" for number in range(len(weights))]
    data = mixture(
        dict(zip(names, weights, strict=True)), WeightChange(from_step=change, weights=dict(zip(names, after, strict=False)))
    )
    held = dict(zip(names, sizes, strict=False))
    view = told(data, held, steps)
    order = order_of(data, held, dict.fromkeys(held, ""), seed=1, global_batch=7)
    drawn = order.draws(positions(order, 0, steps))
    for number, source in enumerate(view.sources):
        mine = drawn.source == number
        assert source.read == mine.sum()
        assert source.whole == source.read / (7 * steps) and source.epochs == source.read / source.samples
        assert source.first == mine[: 7 * view.first].sum() / (7 * view.first)
        begins = [
            int(np.flatnonzero(mine & (drawn.epoch == epoch))[0]) // 7
            for epoch in range(1, int(drawn.epoch[mine].max(initial=0)) + 1)
        ]
        assert list(source.next_epochs) == begins[:EPOCHS_TOLD]
        assert sum(one.read[source.name] for one in view.weights) == source.read
        assert view.parts[source.name] == tuple(mine.reshape(steps, 7).mean(axis=1)), "a part a step, where there are so few"
    assert [one.after_step for one in view.weights] == [0, change][: 1 + (change < steps)]


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=9), turns=st.integers(0, 10**15))
def test_the_turns_of_one_are_those_it_has_among_all(weights: list[int], turns: int) -> None:
    shares = Shares(weights)
    assert [shares.taken(number, turns) for number in range(len(weights))] == shares.counts(turns)


def test_a_mixture_of_many_sources_and_steps_is_told_at_once() -> None:
    """Epochs are found without walking through the run."""
    names = {f"s{number}": float(1 + number % 7) for number in range(40)}
    view = told(mixture(names), dict.fromkeys(names, 1_000_000), steps=10**6, batch=512)
    assert max(len(source.next_epochs) for source in view.sources) > 10
    assert len(view.parts["s0"]) == 60


def test_what_looks_like_a_mistake_is_said() -> None:
    change = WeightChange(from_step=90, weights={"web": 1})
    view = told(
        mixture({"web": 1, "code": 1, "none": 0, "tiny": 1e-6}, change), {"web": 900, "code": 20, "none": 9, "tiny": 9}, steps=50
    )
    assert view.warnings == (
        "code is read 8.8 times: beyond 4 epochs text that is read again teaches little; give it a smaller share, or more text",
        "none is never read: it has no weight at any step",
        "tiny is never read: its share of 5e-07 is less than one sample of this run",
        "the weights from step 90 on never come into force: the run ends after 50 steps",
    )
    far = told(mixture({"web": 1, "far": 1e-12}), {"web": 900, "far": 5}, steps=50)
    assert [warning for warning in far.warnings if "far asks for a share of 1e-12 and gets 9.31e-10" in warning]
    assert told(mixture({"web": 3, "code": 1}), {"web": 900, "code": 200}, steps=50).warnings == ()


def test_prepared_folders_are_counted(tmp_path: Path) -> None:
    write_tokens(tmp_path / "web", [900, 300])
    write_tokens(tmp_path / "code", [400])
    asked = MixAsked(data=DataSource(path=str(tmp_path / "web")), sequence=50, seed=0, batch=4, steps=20)
    (one,) = outlook(asked).sources
    assert (one.name, one.tokens, one.samples, one.asked, one.whole, one.read, one.first) == ("data", 1200, 23, 1.0, 1.0, 80, 1.0)
    assert one.next_epochs == (5, 11, 17)
    by_size = DataSource(sources={name: MixtureSource(path=str(tmp_path / name)) for name in ("web", "code")}, packing="best_fit")
    view = outlook(dataclasses.replace(asked, data=by_size))
    assert [(source.name, source.samples) for source in view.sources] == [("web", 24), ("code", 8)]
    assert [source.asked for source in view.sources] == [0.75, 0.25]


@pytest.mark.parametrize("given", [{"steps": 0}, {"batch": 0}, {"sequence": 0}, {"first": 0}])
def test_what_no_run_has_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    write_tokens(tmp_path / "web", [900])
    asked = MixAsked(data=DataSource(path=str(tmp_path / "web")), sequence=50, seed=0, batch=4, steps=20)
    with pytest.raises(DataError, match=f"--{next(iter(given))}"):
        outlook(dataclasses.replace(asked, **given))
    with pytest.raises(DataError, match="not one row"):
        outlook(dataclasses.replace(asked, sequence=5_000))
