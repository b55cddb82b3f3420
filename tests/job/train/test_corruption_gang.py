"""Silent corruption in a real gang: a bit that flips in what a rank computes, in its memory, and on the way from a checkpoint."""

from pathlib import Path
from typing import TypedDict

import pytest

from phalanx.core import wire
from phalanx.core.health import Corruption
from phalanx.job.data.prepare import prepare
from tests.job.train.test_train_gang import FAULTY, VOCAB, Attempt, attempt


class _Short(TypedDict):
    steps: int
    recompute_every: int


LOOKING = _Short(steps=9, recompute_every=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    out = tmp_path_factory.mktemp("data") / "tokens"
    prepare([Path(asyncio.__file__).parent], out, vocab_size=VOCAB, held_out=0.2)
    return out


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Attempt:
    return attempt(tmp_path_factory.mktemp("looked-at"), data, 1, **LOOKING)


def found(run: Attempt) -> list[Corruption]:
    """By whatever rank said it."""
    assert set(run.codes) == {0}, run.log()
    return [wire.build(Corruption, record) for rank in range(len(run.codes)) for record in run.of_kind("corruption", rank)]


def test_looking_changes_nothing_and_finds_nothing_in_a_healthy_gang(tmp_path: Path, data: Path, looked_at: Attempt) -> None:
    blind = attempt(tmp_path, data, 1, steps=9, recompute_every=0)
    assert found(looked_at) == [] == found(blind)
    assert looked_at.losses() == blind.losses()
    assert looked_at.of_kind("model")[0]["weights_digest"] == blind.of_kind("model")[0]["weights_digest"]


@pytest.mark.parametrize(("rank", "ranks"), [(1, 2), (0, 3)])
def test_a_rank_that_computes_wrongly_is_named(tmp_path: Path, data: Path, rank: int, ranks: int) -> None:
    """Of two the one that contradicts itself, of three the one that is alone; rank 0 no less than another."""
    wrong = attempt(tmp_path, data, 1, f"flip-gradient rank={rank} from=6", world_size=ranks, **LOOKING)
    (only,) = found(wrong)
    assert (only.step, only.place, only.ranks, only.certain) == (8, "gradients", (rank,), True)
    assert only.rank != rank and only.sentence() in wrong.log() and only.name


def test_t11_a_bit_that_flips_in_memory_names_its_rank_while_the_loss_looks_normal(
    tmp_path: Path, data: Path, looked_at: Attempt
) -> None:
    flipped = attempt(tmp_path, data, 1, "flip-bit rank=0 step=8", **LOOKING)
    (only,) = found(flipped)
    assert (only.step, only.place, only.ranks, only.certain, only.rank) == (8, "memory", (0,), True, 1)
    one, other = (float.fromhex(run.losses()[9]) for run in (flipped, looked_at))
    assert one == pytest.approx(other, rel=1e-6)
    assert flipped.of_kind("model")[0]["weights_digest"] != looked_at.of_kind("model")[0]["weights_digest"]


def test_replicas_that_differ_at_a_save_name_the_rank_that_is_alone(tmp_path: Path, data: Path) -> None:
    differs = attempt(tmp_path, data, 1, program=(*FAULTY, "another_replica"), world_size=3, **LOOKING)
    first, *_ = found(differs)
    assert (first.step, first.place, first.ranks, first.certain) == (4, "state", (2,), True)
    assert first.name.endswith(".step")


def test_t11_a_resume_that_changes_weights_silently_is_refused(tmp_path: Path, data: Path) -> None:
    assert attempt(tmp_path, data, 1, "sigkill rank=0 step=6", saved=4, **LOOKING).codes[0] == -9
    changed = attempt(tmp_path, data, 2, program=(*FAULTY, "changed_by_loading"), **LOOKING)
    assert changed.codes == [2, 2], changed.log()
    assert changed.log().count("loading has changed weights or moments") == 2 and "Traceback" not in changed.log()
    again = attempt(tmp_path, data, 3, **LOOKING)
    assert again.codes == [0, 0] and again.of_kind("resumed")[0]["step"] == 4, again.log()
