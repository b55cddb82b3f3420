"""What a survivor holds, and waits for, between a generation that is over and the next one."""

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.checkpoint.fence import Holder
from phalanx.job.checkpoint.keeper.place import Place as KeeperPlace
from phalanx.job.sdk.gang import Place
from phalanx.job.sdk.session import Session
from phalanx.job.train import recover, setup
from phalanx.job.train.device import Rank
from phalanx.job.train.recover import Recipe
from phalanx.job.train.setup import Start
from phalanx.job.train.snapshots import Snapshots

ALONE = Rank(rank=0, world_size=1, device=torch.device("cpu"), device_name="cpu")
SECOND = Place(generation=2, rank=0, world_size=1, prefix="2", slots=(0,), num_slots=1)


class Circle(nn.Module):
    """As a sharded model: freed only by a sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.me = [self]


def recipe_in(folder: Path) -> Recipe:
    gang: Any = SimpleNamespace(settled=lambda: None)
    data: Any = None
    recipe = Recipe(gang, LlamaRecipe(), data, Session)
    recipe._session = Session()
    recipe._watch.snapshots = Snapshots(KeeperPlace(folder=folder, slot=0, attempt="lm-1.1"))
    return recipe


def test_a_generation_that_is_over_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_in(tmp_path)
    snapshots = recipe._watch.snapshots
    assert snapshots is not None
    dead: list[weakref.ref[nn.Module]] = []

    def set_up(*_: object) -> tuple[object, Start, None]:
        model = Circle()
        dead.append(weakref.ref(model))
        training = SimpleNamespace(model=model, optimizer=torch.optim.SGD(model.parameters()))
        return training, Start(step=0, val_loss_first=None, checkpoint=""), None

    @contextmanager
    def saving(training: Any, snapshots: Snapshots) -> Iterator[None]:
        snapshots.live(training.model, training.optimizer)
        yield

    def run(*_: object) -> None:
        raise RuntimeError("a rank died")

    monkeypatch.setattr(recipe, "_set_up", set_up)
    monkeypatch.setattr(recover, "saving", saving)
    monkeypatch.setattr(recover, "run", run)
    with pytest.raises(RuntimeError) as raised:
        recipe._generation(ALONE, SECOND)
    del raised
    gc.collect()
    assert dead[0]() is None


def test_a_model_whose_state_could_not_be_had_is_gone_before_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path)
    dead: list[weakref.ref[nn.Module]] = []

    def from_memory(*_: object) -> None:
        dead.append(weakref.ref(Circle()))

    def set_up(*_: object) -> tuple[None, Start]:
        assert len(dead) == 2 and all(model() is None for model in dead)
        return None, Start(step=3, val_loss_first=None, checkpoint="")

    monkeypatch.setattr(recipe, "_fault", lambda *_: None)
    monkeypatch.setattr(recipe, "_from_memory", from_memory)
    states = [SimpleNamespace(at="newest", step=9), SimpleNamespace(at="older", step=8), None]
    asked: list[object] = []

    def newest_state(_: Snapshots, __: Rank, without: list[object]) -> Any:
        asked.append(list(without))
        return states[len(asked) - 1]

    monkeypatch.setattr(recover, "newest_state", newest_state)
    monkeypatch.setattr(recover, "set_up", set_up)
    gc.disable()
    try:
        _, start, state = recipe._set_up(Session(), ALONE, SECOND)
    finally:
        gc.enable()
    assert (start.step, state) == (3, None)
    assert asked == [[], ["newest"], ["newest", "older"]], "an older state in memory goes before a checkpoint"


def test_a_gang_that_goes_on_from_memory_does_not_wait_for_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_back, claimed = threading.Event(), threading.Event()
    holders: list[Holder] = []

    def check_fence(root: object, holder: Holder) -> None:
        assert is_back.wait(60)
        holders.append(holder)
        claimed.set()

    monkeypatch.setattr(setup, "check_fence", check_fence)
    session = Session(attempt="lm-1.1", job_dir=str(tmp_path))
    second = Rank(rank=1, world_size=2, device=ALONE.device, device_name="cpu", generation=2)
    first = Rank(rank=0, world_size=2, device=ALONE.device, device_name="cpu", generation=2)
    for rank in (second, first):
        setup.claim_beside(session, rank)
    assert holders == []
    is_back.set()
    assert claimed.wait(60)
    assert holders == [Holder(attempt="lm-1.1", generation=2)]


def test_a_gang_in_memory_takes_no_claim_in_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Rank] = []

    def stop(*_: object, **__: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(recover, "claim_beside", lambda session, rank: asked.append(rank))
    monkeypatch.setattr(recover, "batch_of_run", stop)
    state: Any = SimpleNamespace(step=9, note={"global_batch": 4})
    with pytest.raises(InterruptedError):
        recipe_in(tmp_path)._from_memory(Session(), ALONE, state)
    assert asked == [ALONE]
