"""The rule on spikes: the same decision for the same curve, within its budget, and none for a loss that stands still."""

import json
import math
from dataclasses import replace
from string import ascii_letters
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phalanx.core import wire
from phalanx.core.health import SpikeAction
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.recipe_checks import SPIKE_STEPS
from phalanx.core.spec_data import SOURCES_MAX, TEXT_BYTES_MAX
from phalanx.core.training_data import DataSource, MixtureSource
from phalanx.job.checkpoint.segment import NOTE_BYTES_MAX
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import PlainOrder
from phalanx.job.data.quarantine import ANY_SHARE, BLOCKS_MAX, Quarantined, SetAside
from phalanx.job.train.guard import NUMBER, Guard
from phalanx.job.train.loss import sample_losses, token_loss
from phalanx.job.train.resumed import CURSOR
from phalanx.job.train.spikes import RECENT, SHARE, WARM, Curve, Rule, dump, judge, limit_of, load, rolled_back

FINITE = st.floats(min_value=1e-6, max_value=1e6)
LOSSES = st.lists(FINITE | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=300)
RULES = st.builds(Rule, on_spike=st.sampled_from(get_args(SpikeAction)), budget=st.integers(0, 5))
SKIP = Rule(on_spike="skip", budget=3)


def decide(rule: Rule, losses: list[float], curve: Curve | None = None, first: int = 1) -> tuple[list[str], Curve]:
    """The actions on these losses, one a step; ends at a stop, as a run does."""
    actions: list[str] = []
    curve = curve or Curve()
    for step, loss in enumerate(losses, start=first):
        judged = judge(curve, rule, step, loss, 1.0)
        actions.append(judged.action)
        curve = judged.after
        if judged.action == "stop":
            break
    return actions, curve


def noisy(count: int, around: float = 4.0) -> list[float]:
    """Losses of a run without spikes: a spread of about 0.06, in no order."""
    return [around + 0.1 * math.sin(2.4 * step) for step in range(count)]


@given(LOSSES, RULES, st.integers(0, 300))
def test_a_run_that_was_resumed_anywhere_decides_as_the_undisturbed_one(losses: list[float], rule: Rule, cut: int) -> None:
    whole, after = decide(rule, losses)
    first, curve = decide(rule, losses[:cut])
    if "stop" not in first:
        second, curve = decide(rule, losses[cut:], load(dump(curve)), first=cut + 1)
        assert first + second == whole and curve == after


@given(LOSSES, RULES)
def test_it_steps_in_no_more_often_than_the_budget_allows(losses: list[float], rule: Rule) -> None:
    actions, curve = decide(rule, losses)
    assert sum(action in ("skip", "rollback") for action in actions) <= rule.budget
    assert len(curve.handled) <= rule.budget and len(curve.recent) <= RECENT
    assert all(math.isfinite(loss) for loss in curve.recent)


@given(FINITE, st.integers(1, 200), RULES)
def test_a_loss_that_stands_still_is_no_spike(loss: float, count: int, rule: Rule) -> None:
    assert set(decide(rule, [loss] * count)[0]) == {"train"}


@given(st.lists(FINITE, min_size=WARM + 1, max_size=200))
def test_a_loss_that_falls_is_no_spike(losses: list[float]) -> None:
    assert set(decide(SKIP, sorted(losses, reverse=True))[0]) == {"train"}


@given(st.floats(1.0, 6.0), st.sampled_from(get_args(SpikeAction)))
def test_a_jump_is_a_spike_and_the_losses_after_it_are_none(height: float, action: SpikeAction) -> None:
    rule = Rule(on_spike=action, budget=3)
    actions, _ = decide(rule, [*noisy(40), 4.0 + 1.0 + height, *noisy(40)])
    assert actions[:41] == ["train"] * 40 + [action]
    assert set(actions[41:]) <= {"train"}


def test_before_the_curve_is_warm_only_what_is_no_number_is_a_spike() -> None:
    assert decide(SKIP, [*noisy(WARM - 1), 100.0])[0][-1] == "train"
    assert decide(SKIP, [*noisy(WARM), 100.0])[0][-1] == "skip"
    assert decide(SKIP, [math.nan])[0] == ["skip"]
    assert limit_of(tuple(noisy(WARM - 1))) == (None, None)


def test_a_gradient_that_is_no_number_is_a_spike_whatever_the_loss() -> None:
    assert judge(Curve(), SKIP, 1, 4.0, math.nan).action == "skip"


def test_a_spike_is_not_among_the_losses_that_decide_later() -> None:
    _, curve = decide(SKIP, [*noisy(40), 9.0])
    assert max(curve.recent) < 5.0 and curve.handled == (41,)


def test_a_loss_has_to_rise_by_a_tenth_whatever_the_noise() -> None:
    usual, limit = limit_of((2.0,) * WARM)
    assert usual == 2.0 and limit == pytest.approx(2.0 + SHARE * 2.0)


def test_without_budget_a_number_is_trained_on_and_anything_else_stops() -> None:
    spent = [*noisy(40), 9.0, 9.0, 9.0]
    assert decide(SKIP, [*spent, 9.0])[0][-4:] == ["skip", "skip", "skip", "train"]
    assert decide(SKIP, [*spent, math.nan])[0][-1] == "stop"
    judged = judge(decide(SKIP, spent)[1], SKIP, 44, math.nan, 1.0)
    assert judged.spent and judged.action == "stop"


def test_the_budget_is_there_again_after_a_thousand_steps() -> None:
    _, curve = decide(SKIP, [math.nan] * 3)
    assert judge(curve, SKIP, SPIKE_STEPS, math.nan, 1.0).action == "stop"
    assert judge(curve, SKIP, SPIKE_STEPS + 1, math.nan, 1.0).action == "skip"


def test_with_a_budget_of_nothing_a_run_is_as_without_the_rule() -> None:
    nothing = Rule(on_spike="skip", budget=0)
    assert decide(nothing, [*noisy(40), 9.0])[0][-1] == "train"
    assert decide(nothing, [math.nan])[0] == ["stop"]


def test_after_a_rollback_the_older_losses_are_usual_and_the_budget_stays_spent() -> None:
    then, now = Curve(recent=(1.0,), handled=(3,)), Curve(recent=(1.0, 2.0), handled=(3, 9))
    assert rolled_back(now, then) == Curve(recent=(1.0,), handled=(3, 9))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"recent": [1.0], "handled": []}', '{"recent": ["x"], "handled": []}', "null"])
def test_what_is_no_curve_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load(text)


def test_a_guard_goes_on_where_a_checkpoint_left_it() -> None:
    recipe = LlamaRecipe(on_spike="rollback", spike_budget=1)
    guard, again = Guard(recipe), Guard(recipe)
    for step, loss in enumerate(noisy(40), start=1):
        assert guard.accepts(step, loss, 1.0)
    assert not guard.accepts(41, 9.0, 1.0)
    again.restore(guard.numbers())
    assert again.curve == guard.curve
    assert again.accepts(42, 9.0, 1.0)  # its one spike was spent before
    with pytest.raises(KeyError, match=NUMBER):
        again.restore({})


def test_looks_for_corruption_cannot_be_made_every_minus_one_steps() -> None:
    assert [name for name, _, _ in LlamaRecipe(recompute_every=-1).problems()] == ["recompute_every"]


def test_the_losses_of_samples_have_the_loss_of_their_batch_as_mean() -> None:
    model, samples = nn.Embedding(11, 11), torch.arange(21).view(3, 7) % 11
    alone = torch.stack([token_loss(model, samples[at : at + 1]) for at in range(3)])
    assert torch.allclose(sample_losses(model, samples), alone)
    assert torch.allclose(sample_losses(model, samples).mean(), token_loss(model, samples))


@pytest.mark.parametrize("budget", [-1, SPIKE_STEPS + 1])
def test_an_impossible_budget_is_refused(budget: int) -> None:
    assert [name for name, _, _ in LlamaRecipe(spike_budget=budget).problems()] == ["spike_budget"]


def test_what_a_run_remembers_fits_a_snapshot_s_note() -> None:
    """With the largest budget, as many sources as a job can name, and all the blocks that may be set aside."""
    most = Curve(recent=(-math.pi * 1e-300,) * RECENT, handled=tuple(range(10**9, 10**9 + SPIKE_STEPS)))
    hashes = dict.fromkeys(sources_max(), "a" * 64)
    plain = PlainOrder(num_samples=2**40, seed=1, global_batch=1, name="aaa")
    aside = [
        SetAside(source="aaa", shard="b" * 64, block=block, samples=((2**39, 2**39 + 2**20),), since=2**40)
        for block in range(BLOCKS_MAX)
    ]
    cursor = replace(Cursor.after(2**40, Quarantined(plain, aside, ANY_SHARE), hashes), data=hashes)
    note = json.dumps({NUMBER: dump(most), CURSOR: cursor.to_json(), "checkpoint": "a" * 64, "samples": 2**63})
    assert len(note) < NOTE_BYTES_MAX - 1000


def sources_max() -> list[str]:
    """Names of as many sources as the data of a job may have."""
    names = [f"{first}{second}{third}" for first in ascii_letters for second in ascii_letters for third in ascii_letters]
    least, most = 1, SOURCES_MAX
    while least < most:
        count = (least + most + 1) // 2
        size = len(wire.dumps(DataSource, DataSource(sources={name: MixtureSource(path="/") for name in names[:count]})))
        least, most = (count, most) if size <= TEXT_BYTES_MAX else (least, count - 1)
    return names[:least]
