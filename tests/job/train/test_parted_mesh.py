"""An axis of a mesh becomes several with every torch that we support."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from phalanx.job.train.device import alone
from phalanx.job.train.parallel.experts import expert_mesh
from phalanx.job.train.parallel.mesh import parted


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    alone(torch.device("cpu"))
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp_shard", "tp"))
    dist.destroy_process_group()


def test_an_axis_is_named_to_torch_by_its_number(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 refuses each name that a mesh has (`DeviceMesh._unflatten`), and takes numbers as others do."""
    real = DeviceMesh._unflatten

    def of_2_11(self: DeviceMesh, dim: int | str, *rest: Any) -> DeviceMesh:
        if isinstance(dim, str) and dim in (self.mesh_dim_names or ()):
            raise ValueError(f"dim {dim} specified in `_unflatten` is not in {self.mesh_dim_names}")
        return real(self, dim, *rest)

    monkeypatch.setattr(DeviceMesh, "_unflatten", of_2_11)
    assert parted(mesh, "tp", (1, 1), ("rows", "cp")).mesh_dim_names == ("dp_shard", "rows", "cp")
    assert expert_mesh(mesh, 1).mesh_dim_names == ("dp_rest", "ep", "tp")
