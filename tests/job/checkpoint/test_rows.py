"""Fused matrices whose rows lie in the order of ranks: parts are those of the checkpoint, and are found again there."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.checkpoint.load_plan import BoxPlanner, boxes_of
from phalanx.job.checkpoint.owners import held_parts, local_parts
from phalanx.job.checkpoint.rows import State, as_saved, fused, lay_anew, rows_in, set_rows
from phalanx.job.checkpoint.state import training_state
from phalanx.job.train.optimizer import make_adamw

HEIGHTS = st.lists(st.integers(1, 3), min_size=1, max_size=4)
RANKS = st.integers(1, 4)
MOMENTS = ("exp_avg", "exp_avg_sq")


@given(heights=HEIGHTS, ranks=RANKS)
def test_each_rank_has_its_part_of_every_matrix_and_nothing_is_lost(heights: list[int], ranks: int) -> None:
    tall = [height * ranks for height in heights]
    saved = torch.arange(sum(tall) * 2.0).view(-1, 2)
    rows = fused(tall, ranks)
    own = lay_anew(saved, rows)
    assert torch.equal(as_saved(own, rows), saved)
    for rank, part in enumerate(own.chunk(ranks)):
        wanted = [matrix.chunk(ranks)[rank] for matrix in torch.split(saved, tall)]
        assert torch.equal(part, torch.cat(wanted))


@given(heights=HEIGHTS, ranks=RANKS, most=st.integers(8, 64))
def test_parts_are_pieces_of_the_saved_order_and_views_of_the_run_s_memory(heights: list[int], ranks: int, most: int) -> None:
    saved = torch.arange(sum(heights) * ranks * 3.0).view(-1, 3)
    rows = fused([height * ranks for height in heights], ranks)
    state = State({"w": lay_anew(saved, rows), "plain": saved.clone()}, {"w": rows})
    for find in (local_parts, held_parts):
        for part, piece in find(state, part_bytes_max=most):
            box = saved[tuple(slice(at, at + size) for at, size in zip(part.start, part.size, strict=True))]
            assert torch.equal(piece, box) and part.shape == tuple(saved.shape)
    for part, piece in held_parts(state, part_bytes_max=most):
        piece.copy_(-saved[tuple(slice(at, at + size) for at, size in zip(part.start, part.size, strict=True))])
    assert torch.equal(as_saved(state["w"], rows), -saved) and torch.equal(state["plain"], -saved)


@given(heights=HEIGHTS, ranks=RANKS, cut=st.integers(1, 5))
def test_torch_s_load_planner_finds_every_row_in_what_was_saved_in_any_cut(heights: list[int], ranks: int, cut: int) -> None:
    saved = torch.arange(sum(heights) * ranks * 2.0).view(-1, 2)
    rows = fused([height * ranks for height in heights], ranks)
    state = State({"w": torch.zeros_like(saved)}, {"w": rows})
    chunks = [ChunkStorageMetadata(torch.Size([at, 0]), saved[at : at + cut].shape) for at in range(0, len(saved), cut)]
    stored = TensorStorageMetadata(TensorProperties(dtype=saved.dtype), saved.shape, chunks)
    planner = BoxPlanner(state, boxes_of(state), Metadata(state_dict_metadata={"w": stored}))
    for item in planner.finish_plan(planner.create_local_plan()).items:
        first = (item.storage_index.offset or (0,))[0] + item.storage_offsets[0]
        planner.resolve_tensor(item).copy_(saved[first : first + item.lengths[0]])
    assert torch.equal(as_saved(state["w"], rows), saved)


def test_moments_lie_as_their_weights_do() -> None:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 2, bias=False))
    rows = fused([2, 4], 2)
    set_rows(model, {"0.weight": rows})
    state = training_state(model, make_adamw(model, LlamaRecipe()))
    names = {"model.0.weight", "optimizer.state.0.weight.exp_avg", "optimizer.state.0.weight.exp_avg_sq"}
    assert rows_in(state) == dict.fromkeys(names, rows)
    assert "optimizer.state.0.weight.step" in state and "model.1.weight" in state


def test_a_frozen_weight_that_stays_out_of_checkpoints_is_not_looked_for_there() -> None:
    """As a fused matrix beside adapters, cut over tensor-parallel ranks."""
    model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[0].requires_grad_(False)
    model.frozen_stay_out = True  # type: ignore[assignment]  # as on a model
    rows = fused([2, 2], 2)
    set_rows(model, {"0.weight": rows, "1.weight": rows})
    state = training_state(model, make_adamw(model, LlamaRecipe()))
    assert "model.0.weight" not in state
    assert (
        set(rows_in(state)) == set(boxes_of(state)) == {"model.1.weight", *(f"optimizer.state.1.weight.{one}" for one in MOMENTS)}
    )
