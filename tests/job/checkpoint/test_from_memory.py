"""A gang's state made of the places of another gang. In one process."""

import functools
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from phalanx.core.errors import CheckpointError, NotFound
from phalanx.job.checkpoint.from_memory import load
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.owners import host_bytes
from phalanx.job.checkpoint.rng import rng_parts
from phalanx.job.checkpoint.sealed import Sealed
from phalanx.job.checkpoint.shard_file import Part
from tests.job.checkpoint.keeper_places import end_keepers, place_at

CPU = torch.device("cpu")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    yield [place_at(tmp_path / "keepers", slot) for slot in range(3)]
    end_keepers(tmp_path / "keepers")


def keep(place: Place, rank: int, rows: tuple[int, int], value: torch.Tensor) -> Memory:
    """Its rows of a tensor, a replicated one, and its generators, after step 7."""
    first, last = rows
    shared = Part(name="model.shared", dtype="F32", shape=(), start=(), size=())
    mine = Part(name="model.rows", dtype="F32", shape=tuple(value.shape), start=(first, 0), size=(last - first, value.shape[1]))
    held = [(mine, value[first:last]), (shared, torch.tensor(5.0)), *rng_parts(rank, CPU)]
    memory = Memory.attach(place, [part for part, _ in held])
    draft = memory.begin(7, 1)
    assert draft is not None
    for part, tensor in held:
        draft.put(part, host_bytes(tensor))
    draft.seal("{}")
    return memory


def of(places: list[Place]) -> list[Callable[[], Sealed]]:
    return [functools.partial(Sealed.at, place) for place in places]


def test_a_state_is_made_of_the_places_of_three(places: list[Place]) -> None:
    value = torch.arange(28, dtype=torch.float32).reshape(7, 4)
    cuts = list(pairwise((0, 3, 5, 7)))
    memories = [keep(place, rank, cuts[rank], value) for rank, place in enumerate(places)]
    before = torch.get_rng_state()
    torch.manual_seed(99)
    state = {"model.rows": torch.zeros(7, 4), "model.shared": torch.zeros(())}
    generators = load(of(places), 7, 1, state, rank=2)
    assert torch.equal(state["model.rows"], value)
    assert state["model.shared"].item() == 5.0
    assert torch.equal(generators["cpu"], before)
    assert load(of(places), 7, 1, state, rank=3) == {}, "no rank of that gang"
    with pytest.raises(NotFound):
        load(of(places), 7, 2, state, rank=0)
    for memory in memories:
        memory.close()


def test_what_is_of_another_model_or_has_a_hole_is_told_by_name(places: list[Place]) -> None:
    value = torch.ones(7, 4)
    memories = [keep(places[0], 0, (0, 3), value), keep(places[1], 1, (4, 7), value)]
    state = {"model.rows": torch.zeros(7, 4), "model.shared": torch.zeros(())}
    for wrong, words in (
        (state, "model.rows.*hole"),
        (state | {"model.other": torch.zeros(1)}, "hole"),
        ({"model.rows": state["model.rows"]}, "model.shared.*not part of this run"),
        ({**state, "model.rows": torch.zeros(8, 4)}, r"this run has F32 \(8, 4\)"),
        ({**state, "model.rows": torch.zeros(7, 4, dtype=torch.float64)}, "kept as F32"),
    ):
        with pytest.raises(CheckpointError, match=words):
            load(of(places[:2]), 7, 1, wrong, rank=0)
    with pytest.raises(NotFound):
        load(of(places), 7, 1, state, rank=0)
    memories[1].forget_after(6)
    with pytest.raises(NotFound):
        load(of(places[:2]), 7, 1, state, rank=0)
    for memory in memories:
        memory.close()
