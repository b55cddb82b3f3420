"""The save after a run's last step, in a gang that loses a rank meanwhile."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from phalanx.job.train import loop
from phalanx.job.train.recover import GangWatch
from phalanx.job.train.reform import Over
from phalanx.job.train.setup import Start
from phalanx.job.train.spikes import Curve


class Heard:
    """What the loop asks for, in order."""

    newest, failed = "d9", 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def after(self, step: int, loss: float, val_loss_first: float) -> None:
        self.calls.append(("save", step, loss, val_loss_first))

    def completed(self, training: object, step: int, val_loss_first: float, checkpoint: str) -> None:
        self.calls.append(("snapshot", step))

    def finish(self) -> None:
        self.calls.append(("finish",))


def after_the_last_step(from_memory: bool) -> list[tuple[Any, ...]]:
    heard = Heard()
    guard = SimpleNamespace(curve=Curve(recent=(3.0, 2.0)))
    training: Any = SimpleNamespace(
        recipe=SimpleNamespace(steps=9), guard=guard, watch=heard, held_out=SimpleNamespace(num_batches=1)
    )
    saves: Any = heard
    with patch.object(loop, "measure_all", lambda *_: {"val_loss_final": 1.0}):
        loop.run(training, Start(step=9, val_loss_first=5.0, checkpoint="d6", from_memory=from_memory), saves)
    return heard.calls


def test_a_generation_that_has_no_step_left_saves_the_last_one_again() -> None:
    assert after_the_last_step(from_memory=True) == [("save", 9, 2.0, 5.0), ("snapshot", 9), ("finish",)]
    assert after_the_last_step(from_memory=False) == [("finish",)]


def test_who_waits_for_a_store_moves_on_until_its_generation_is_over() -> None:
    places: list[tuple[int, int]] = []
    over: list[bool] = []
    gang: Any = SimpleNamespace(moved=lambda *place: places.append(place), is_over=lambda patience_s: bool(over))
    watch = GangWatch(gang, lambda: 0)
    watch.moved(9, 4)
    watch.waiting()
    watch.waiting()
    assert places == [(9, 4), (9, 5), (9, 6)]
    over.append(True)
    with pytest.raises(Over):
        watch.waiting()
