"""A script with the library, run by `python -m` on two ranks: `test_library_gang.py` has it undisturbed, killed, told to leave.

Its model is made of a part under DDP and one under FSDP2, each with an optimizer of its own, and draws from all three generators.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel

import phalanx
from phalanx.job.checkpoint.digest import state_digest
from phalanx.job.train.library import Run

STEPS = 12
SEQUENCE = 8


def parts(run: Run, vocab_size: int) -> nn.ModuleDict:
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Embedding(vocab_size, 8), nn.Dropout(0.1))
    outer = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, vocab_size), nn.Softplus())
    fully_shard(outer, mesh=run.mesh)
    return nn.ModuleDict({"inner": DistributedDataParallel(inner), "outer": outer})


def train(data: str, folder: Path) -> None:
    leave_at = int(os.environ.get("LEAVE_AT", "0"))
    with phalanx.run(steps=STEPS, mesh={"dp": -1}, deterministic=True) as run:
        loader = run.loader(data, sequence=SEQUENCE, batch=4)
        model = parts(run, loader.vocab_size)
        optimizers = [
            torch.optim.SGD(model["inner"].parameters(), lr=0.1, momentum=0.9),
            torch.optim.AdamW(model["outer"].parameters(), lr=0.01),
        ]
        schedule = CosineAnnealingLR(optimizers[1], STEPS)
        average = AveragedModel(nn.Linear(2, 2))
        random.seed(run.rank)
        np.random.seed(run.rank)
        begin = run.restore(model, optimizers, schedule=schedule, average=average)
        run.profile(first=max(begin + 2, 5), count=2)
        with (folder / f"rank-{run.rank}.losses").open("a") as losses:
            for step, batch in enumerate(run.batches(loader), begin + 1):
                noise = random.random() + np.random.rand() + torch.rand(()).item()
                logits = model["outer"](model["inner"](batch[:, :-1]))
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) * (1 + 0.01 * noise)
                loss.backward()  # type: ignore[no-untyped-call]
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                schedule.step()
                average.update_parameters(nn.Linear(2, 2))
                losses.write(f"{step} {float(loss.item()).hex()}\n")
                losses.flush()
                run.maybe_save(step, loss=loss.item())
                run.log(step, loss=loss, lr=schedule.get_last_lr()[0], tokens=4 * SEQUENCE, noise=noise)
                if step == leave_at and run.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                if run.should_stop():
                    break
            else:
                state = {**model.state_dict(), **average.state_dict()}
                ended = {"begin": begin, "weights": state_digest(state, run.device).text}
                (folder / f"rank-{run.rank}.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]))
