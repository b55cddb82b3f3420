"""Prepared data under Lightning's Trainer: broken off in the middle of an epoch, resumed with another number of loader processes,
and every batch and weight is as if nothing had happened. `phalanx.run()` and its callback tell each step.

    phalanx data prepare stdlib: --out data
    python examples/trainers/data_lightning.py data
"""

import argparse
import tempfile
from pathlib import Path
from typing import Final

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional

import phalanx
from phalanx.job.data.draws import DataOrder, PlainOrder
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.train.datasets import StepLoader
from phalanx.job.train.library.under_lightning import RunCallback

SEQUENCE: Final = 32
STEPS: Final = 24
EPOCH_STEPS: Final = 8
"""Of what Lightning takes for an epoch; the order goes through the data by itself."""

SAVE_EVERY: Final = 4


class Interrupted(Exception):
    """In place of a kill."""


class TinyModel(LightningModule):
    """Remembers the batches that it was trained on. fails_at: the step, counted from 0, at which it is interrupted."""

    def __init__(self, vocab_size: int, fails_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(vocab_size, 16), nn.Linear(16, vocab_size))
        self.fails_at = fails_at
        self.seen: dict[int, Tensor] = {}

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if self.global_step == self.fails_at:
            raise Interrupted
        self.seen[self.global_step] = batch
        self.log("tokens", float(batch.numel()))
        logits: Tensor = self.layers(batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(data: TokenData, order: DataOrder, folder: Path, processes: int, fails_at: int | None = None) -> TinyModel:
    """Goes on from the newest checkpoint in the folder, which holds the loader's state beside the weights."""
    model = TinyModel(data.vocab_size, fails_at)
    loader = StepLoader(data, "train", SEQUENCE, order, STEPS, epoch_steps=EPOCH_STEPS, num_workers=processes)
    saved = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    with phalanx.run(steps=STEPS, folder=folder / "run") as run:
        trainer = Trainer(
            max_steps=STEPS,
            callbacks=[
                ModelCheckpoint(folder, every_n_train_steps=SAVE_EVERY, save_top_k=-1),
                RunCallback(run, save_at_stop=folder / "left.ckpt", tokens=order.global_batch * SEQUENCE),
            ],
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        try:
            trainer.fit(model, loader, ckpt_path=saved[-1] if saved else None)
        except Interrupted:
            print(f"  interrupted after {max(model.seen) + 1} steps")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder made by `phalanx data prepare`")
    parser.add_argument("--fails-at", type=int, default=13, help="step at which the run is interrupted")
    given = parser.parse_args()
    data = open_data(given.data)
    order = PlainOrder(num_samples=data.num_samples("train", SEQUENCE), seed=0, global_batch=4)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        undisturbed = train(data, order, Path(one), processes=0)
        broken = train(data, order, Path(other), processes=2, fails_at=given.fails_at)
        resumed = train(data, order, Path(other), processes=1)
    assert list(undisturbed.seen) == list(range(STEPS))
    first = min(resumed.seen)
    assert given.fails_at - SAVE_EVERY <= first <= given.fails_at
    seen = {**{step: batch for step, batch in broken.seen.items() if step < first}, **resumed.seen}
    assert list(seen) == list(range(STEPS))
    assert all(torch.equal(seen[step], batch) for step, batch in undisturbed.seen.items())
    assert all(map(torch.equal, resumed.parameters(), undisturbed.parameters()))
    print(f"Interrupted at step {given.fails_at}, gone on after {first}: all {STEPS} batches and the weights are as undisturbed.")


if __name__ == "__main__":
    main()
