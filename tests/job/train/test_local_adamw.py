"""Updates on what a rank has of its weights are torch's own, to the last bit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from phalanx.job.checkpoint.local import local_of
from phalanx.job.train.device import alone
from phalanx.job.train.local_adamw import MOMENTS, LocalAdamW

OPTIONS: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.9), "fused": True}


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    alone(torch.device("cpu"))
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp_shard", "tp"))
    dist.destroy_process_group()


def trained(kind: type[torch.optim.AdamW], mesh: DeviceMesh) -> tuple[list[nn.Parameter], torch.optim.AdamW]:
    """Three steps of two groups, the second without decay and with a weight that has no gradient."""
    draw = torch.Generator().manual_seed(0)

    def cut() -> Tensor:
        return distribute_tensor(torch.randn(6, 4, generator=draw), mesh, [Shard(0), Shard(0)])

    weights = [nn.Parameter(cut()) for _ in range(3)]
    optimizer = kind([{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:], "weight_decay": 0.0}], **OPTIONS)
    for weight in weights:
        optimizer.state[weight] = {"step": torch.zeros(()), **{moment: torch.zeros_like(weight) for moment in MOMENTS}}
    for _ in range(3):
        for weight in weights[:2]:
            weight.grad = cut()
        optimizer.step()
    return weights, optimizer


def test_weights_moments_and_counts_are_those_of_torch(mesh: DeviceMesh) -> None:
    (ours, own), (theirs, plain) = trained(LocalAdamW, mesh), trained(torch.optim.AdamW, mesh)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(local_of(one.detach()), local_of(other.detach()))
        for name in ("step", *MOMENTS):
            assert torch.equal(local_of(own.state[one][name]), local_of(plain.state[other][name])), name
    assert isinstance(own.state[ours[0]]["exp_avg"], DTensor), "a checkpoint sees how it is cut"
    assert [float(own.state[weight]["step"]) for weight in ours] == [3.0, 3.0, 0.0]


def test_hooks_around_a_step_are_called(mesh: DeviceMesh) -> None:
    """Saves wait there for what still copies the weights."""
    _, optimizer = trained(LocalAdamW, mesh)
    called = list[str]()
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.step()
    assert called == ["before", "after"]
