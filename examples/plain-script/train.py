"""A torchrun-style script that knows nothing of Phalanx: plain PyTorch DDP, its own checkpoint, its own prints.

torchrun --nproc-per-node 2 examples/plain-script/train.py       # as you know it
phalanx submit examples/plain-script/job.yaml --follow           # the same file, unchanged
"""

import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path("checkpoint.pt")


def resume(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step that an earlier start of this script had come to."""
    found = [
        torch.load(CHECKPOINT, weights_only=True, map_location="cpu") if dist.get_rank() == 0 and CHECKPOINT.exists() else None
    ]
    dist.broadcast_object_list(found)  # the file lies where rank 0 ran
    saved = found[0]
    if saved is None:
        return 0
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    print(f"resumed after step {saved['step']}", flush=True)
    return int(saved["step"])


def save(net: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    beside = CHECKPOINT.with_suffix(".new")
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
    beside.replace(CHECKPOINT)


def main() -> None:
    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    torch.manual_seed(rank)
    net = DistributedDataParallel(nn.Linear(16, 1).to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    start = resume(net, optimizer)
    truth = torch.arange(16, dtype=torch.float32, device=device) / 16
    for step in range(start + 1, 201):
        x_BD = torch.randn(32, 16, device=device)
        loss = nn.functional.mse_loss(net(x_BD).squeeze(-1), x_BD @ truth)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        optimizer.step()
        if step % 50 == 0:
            print(f"rank {rank} of {world_size}: step {step}, loss {loss.item():.6f}", flush=True)
            if rank == 0:
                save(net, optimizer, step)
    del net
    gc.collect()  # DDP lies in a reference cycle: left to Python's last moment, gloo's threads now and then abort a finished rank
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
