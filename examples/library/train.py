"""Plain PyTorch, made resumable, measured and watched by a few lines: those with `run`. One file for all three:

python examples/library/train.py examples/tiny-lm/data
torchrun --nproc-per-node 2 examples/library/train.py examples/tiny-lm/data
phalanx submit examples/library/job.yaml --follow

Stop it at any step and start it again: it goes on from its last checkpoint, bit for bit.
"""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR

import phalanx

STEPS, SEQUENCE, BATCH = 200, 64, 8


def main(data: str | None) -> None:
    with phalanx.run(steps=STEPS, every=50, deterministic=True) as run:
        loader = run.loader(data, sequence=SEQUENCE, batch=BATCH)  # the job's `data` for None
        torch.manual_seed(run.rank)
        layers = nn.Sequential(nn.Embedding(loader.vocab_size, 32), nn.Dropout(0.1), nn.Linear(32, loader.vocab_size))
        model = DistributedDataParallel(layers.to(run.device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = CosineAnnealingLR(optimizer, STEPS)
        begin = run.restore(model, optimizer, schedule=schedule)
        if begin + 12 <= STEPS:
            run.profile(first=begin + 10, count=2)
        for step, batch in enumerate(loader, begin + 1):
            loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
            optimizer.step()
            schedule.step()
            run.maybe_save(step)
            run.log(step, loss=loss, lr=schedule.get_last_lr()[0], tokens=BATCH * SEQUENCE)
            if run.should_stop():  # the job shall leave: what was reached is saved
                break
            if step == STEPS and run.is_first:
                print(f"from {begin} to {STEPS}: loss {float(loss.item()).hex()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
