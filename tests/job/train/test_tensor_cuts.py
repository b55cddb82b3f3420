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
from phalanx.job.models.llama import Block, Llama
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


def test_a_parameter_of_a_block_that_the_plan_does_not_know_is_refused_by_name(mesh: DeviceMesh) -> None:
    other = block()
    other.attention.register_parameter("gate", nn.Parameter(torch.zeros(4)))
    with pytest.raises(SpecError, match=r"layout.tp: 2: write 1: nobody can cut blocks.0.attention.gate of this model yet"):
        TensorParallel(mesh).block(other, "blocks.0")
