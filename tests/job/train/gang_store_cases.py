"""What one process of two does with a GangStore, started by test_gang_store: `ADDRESS TOKEN RANK`."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import fully_shard

from phalanx.job.sdk.gang_link import StoreLink
from phalanx.job.train.gang_store import GangStore


def generation(number: int, address: str, token: str, rank: int) -> None:
    store = GangStore(StoreLink(address, token, rank), timedelta(seconds=60))
    dist.init_process_group("gloo", store=PrefixStore(f"generation-{number}", store), rank=rank, world_size=2)
    total = torch.ones(3) * (rank + number)
    dist.all_reduce(total)
    assert total.tolist() == [2.0 * number + 1] * 3, total
    pair = dist.new_group([0, 1])
    told: list[object] = [None, None]
    dist.all_gather_object(told, ("rank", rank), group=pair)
    assert told == [("rank", 0), ("rank", 1)], told
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=mesh)
    model(torch.ones(1, 4)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()
    store.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number in (1, 2, 3):
        generation(number, sys.argv[1], sys.argv[2], int(sys.argv[3]))
