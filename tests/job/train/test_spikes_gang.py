"""T15: a real gang meets a poisoned batch; both ranks decide alike, the samples are named, and a resumed run does the same."""

import math
from pathlib import Path
from typing import TypedDict

import pytest

from phalanx.core import wire
from phalanx.core.health import LossSpike
from phalanx.job.data.prepare import prepare
from tests.job.train.faulty_trainer import POISONED_STEP
from tests.job.train.test_train_gang import EVERY, FAULTY, VOCAB, Attempt, attempt

LAST_SAVED = POISONED_STEP // EVERY * EVERY


class _Long(TypedDict):
    steps: int
    batch_per_rank: int
    lr: float


LONG = _Long(steps=60, batch_per_rank=8, lr=0.01)
POISONED_ROWS, UNREADABLE_ROWS = (*FAULTY, "poisoned_rows"), (*FAULTY, "unreadable_rows")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    out = tmp_path_factory.mktemp("data") / "tokens"
    prepare([Path(asyncio.__file__).parent], out, vocab_size=VOCAB, held_out=0.2)
    return out


@pytest.fixture(scope="module")
def skipped(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Attempt:
    return attempt(tmp_path_factory.mktemp("skipped"), data, 1, program=POISONED_ROWS, **LONG, on_spike="skip")


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Attempt:
    return attempt(tmp_path_factory.mktemp("rolled-back"), data, 1, program=POISONED_ROWS, **LONG, on_spike="rollback")


def spike_of(run: Attempt) -> LossSpike:
    (only,) = run.of_kind("spike")
    spike: LossSpike = wire.build(LossSpike, only)
    return spike


def check_named(run: Attempt, weights_of: int) -> None:
    """Whatever was done: the batch is named, and every step is recorded alike on both ranks."""
    assert run.codes == [0, 0], run.log()
    spike, size = spike_of(run), 16
    assert (spike.step, spike.rank, spike.weights_of) == (POISONED_STEP, 0, weights_of)
    assert spike.samples == ((POISONED_STEP - 1) * size, POISONED_STEP * size - 1)
    of_rank_1 = range(spike.samples[0] + 8, spike.samples[1] + 1)
    assert all(one.sample in of_rank_1 for one in spike.worst), "only rank 1 read poison"
    assert spike.sentence() in run.log() and not run.of_kind("spike", rank=1)
    assert list(run.losses()) == list(range(1, 61)) and run.losses() == run.losses(1)
    assert float.fromhex(run.losses()[POISONED_STEP]) == spike.measured


def test_t15_a_poisoned_batch_is_named_and_skipped(skipped: Attempt) -> None:
    check_named(skipped, POISONED_STEP - 1)
    assert spike_of(skipped).action == "skip"


def test_t15_or_the_weights_before_it_are_put_back(skipped: Attempt, rolled_back: Attempt) -> None:
    check_named(rolled_back, LAST_SAVED)
    assert spike_of(rolled_back).action == "rollback"
    one, other = skipped.losses(), rolled_back.losses()
    assert {step for step in one if one[step] != other[step]} == set(range(POISONED_STEP + 1, 61))


def test_killed_before_and_after_it_the_run_is_bitwise_the_same(tmp_path: Path, data: Path, rolled_back: Attempt) -> None:
    faults = (f"sigkill rank=0 step={POISONED_STEP - 1}", f"sigkill rank=1 step={POISONED_STEP + 3}", "")
    legs = [
        attempt(tmp_path, data, number, fault, program=POISONED_ROWS, **LONG, on_spike="rollback")
        for number, fault in enumerate(faults, start=1)
    ]
    assert (legs[0].codes[0], legs[1].codes[1], legs[2].codes) == (-9, -9, [0, 0]), legs[2].log()
    assert [leg.of_kind("resumed")[0]["step"] <= most for leg, most in zip(legs[1:], (LAST_SAVED, LAST_SAVED + EVERY), strict=True)]
    for leg in legs:
        assert leg.losses() == {step: rolled_back.losses()[step] for step in leg.losses()}
    assert spike_of(legs[1]).worst == spike_of(rolled_back).worst
    assert legs[2].of_kind("model")[0]["weights_digest"] == rolled_back.of_kind("model")[0]["weights_digest"]


def test_asked_to_stop_it_ends_with_one_sentence(tmp_path: Path, data: Path) -> None:
    stopped = attempt(tmp_path, data, 1, program=POISONED_ROWS, **LONG, on_spike="stop")
    assert stopped.codes == [2, 2], stopped.log()
    assert max(stopped.losses()) == POISONED_STEP and stopped.of_kind("spike")[0]["action"] == "stop"
    assert stopped.log().count(f"the loss jumped at step {POISONED_STEP}") == 2 and "Traceback" not in stopped.log()


def test_a_batch_whose_loss_is_no_number_is_skipped_and_no_checkpoint_is_made_of_its_step(tmp_path: Path, data: Path) -> None:
    done = attempt(tmp_path, data, 1, program=UNREADABLE_ROWS, **LONG)
    assert done.codes == [0, 0], done.log()
    losses = {step: float.fromhex(loss) for step, loss in done.losses().items()}
    assert [step for step, loss in losses.items() if not math.isfinite(loss)] == [POISONED_STEP]
    (spike,) = done.of_kind("spike")
    assert (spike["action"], spike["measured"]) == ("skip", None)
    assert [one["loss"] for one in spike["worst"]] == [None] * 4
    assert math.isfinite(done.of_kind("model")[0]["metrics"]["val_loss_final"])
