"""Of a block that is cut over ranks nothing may be left that is not: what each computes of it would be theirs alone."""

from collections.abc import Iterator
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from phalanx.core.errors import SpecError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.lora import Lora
from phalanx.job.models.llama import Block, Llama
from phalanx.job.models.lora import adapt
from phalanx.job.train.parallel.tensors import TensorParallel

SHAPE = LlamaShape(vocab=32, dim=16, layers=1, heads=4, kv_heads=2, ffn_dim=24, qkv_bias=True, qk_norm=True)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of two ranks, of which only this one is a process: to cut asks nobody."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp_shard", "tp"))
    dist.destroy_process_group()


def block() -> Block:
    return cast(Block, Llama(SHAPE).blocks[0])


def test_every_parameter_of_a_block_is_cut(mesh: DeviceMesh) -> None:
    cut = block()
    TensorParallel(mesh).block(cut, "blocks.0")
    assert all(isinstance(parameter, DTensor) for parameter in cut.parameters())


def test_frozen_weights_stay_frozen_and_adapters_are_cut_along_with_their_matrices(mesh: DeviceMesh) -> None:
    model = Llama(SHAPE)
    adapt(model, Lora(rank=2, alpha=4.0, targets=("q_proj", "k_proj", "v_proj", "o_proj")))
    trained = [name for name, one in model.named_parameters() if one.requires_grad]
    cut = TensorParallel(mesh)
    cut.block(cast(Block, model.blocks[0]), "blocks.0")
    cut.whole(model)
    assert [name for name, one in model.named_parameters() if one.requires_grad] == trained
    sides = {name: cast(DTensor, model.get_parameter(name)).to_local().shape for name in trained}
    assert sides["blocks.0.attention.qkv.adapters.k_proj.down.weight"] == (2, 16)
    assert sides["blocks.0.attention.qkv.adapters.k_proj.up.weight"] == (4, 2)  # a half of two heads of 4
    assert sides["blocks.0.attention.out.adapters.o_proj.down.weight"] == (2, 8)
    assert sides["blocks.0.attention.out.adapters.o_proj.up.weight"] == (16, 2)


def test_what_a_compiled_block_is_given_has_arrived(mesh: DeviceMesh) -> None:
    """Else it is of a kind of its own, and the block hands no gradient back to the embedding."""
    model, cut = Llama(SHAPE), TensorParallel(mesh)
    cut.block(cast(Block, model.blocks[0]), "blocks.0")
    cut.whole(model)
    x_bsd = model.embedding(torch.zeros(1, 4, dtype=torch.int64))
    assert type(x_bsd) is torch.Tensor and x_bsd.shape == (1, 2, 16) and x_bsd.requires_grad


class Scaled(nn.Linear):
    """A layer that does more than its weight says."""


def test_a_matrix_of_another_kind_is_refused_before_it_is_cut(mesh: DeviceMesh) -> None:
    other = block()
    other.attention.qkv = Scaled(16, 32, bias=True)
    with pytest.raises(SpecError, match=r"layout.tp: 2: write 1: nobody can cut blocks.0.attention.qkv of this model yet"):
        TensorParallel(mesh).block(other, "blocks.0")
    assert not any(isinstance(parameter, DTensor) for parameter in other.parameters())


def test_a_parameter_of_a_block_that_the_plan_does_not_know_is_refused_by_name(mesh: DeviceMesh) -> None:
    other = block()
    other.attention.register_parameter("gate", nn.Parameter(torch.zeros(4)))
    with pytest.raises(SpecError, match=r"layout.tp: 2: write 1: nobody can cut blocks.0.attention.gate of this model yet"):
        TensorParallel(mesh).block(other, "blocks.0")
