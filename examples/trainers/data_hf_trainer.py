"""Prepared data under Hugging Face's Trainer: broken off in the middle of an epoch, resumed with another number of loader
processes, and every batch and weight is as if nothing had happened. `phalanx.run()` and its callback tell each step.

    phalanx data prepare stdlib: --out data
    python examples/trainers/data_hf_trainer.py data
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

import phalanx
from phalanx.job.data.draws import DataOrder, PlainOrder
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.train.datasets import StepLoader
from phalanx.job.train.library import Run
from phalanx.job.train.library.under_transformers import RunCallback

SEQUENCE: Final = 32
STEPS: Final = 24
EPOCH_STEPS: Final = 8
"""Optimiser steps of what the Trainer takes for an epoch; the order goes through the data by itself."""

ACCUMULATE: Final = 2
BATCH: Final = 4
SAVE_EVERY: Final = 4


class Interrupted(Exception):
    """In place of a kill."""


class DataCursor(TrainerCallback, ExportableState):
    """Puts the loader's state into each checkpoint's trainer_state.json, beside the step, and the loader where that says."""

    def __init__(self, loader: StepLoader) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": self.loader.state_dict()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step:
            self.loader.load_state_dict(state.stateful_callbacks["DataCursor"]["attributes"])


class OrderedTrainer(Trainer):
    """Trains by the loader itself: the Trainer would wrap one of its own, which looks a batch ahead and divides batches by rank."""

    def __init__(self, *args: Any, loader: StepLoader, run: Run, fails_at: int | None, **options: Any) -> None:
        tokens = BATCH * SEQUENCE * ACCUMULATE
        super().__init__(*args, callbacks=[DataCursor(loader), RunCallback(run, tokens)], **options)
        self.loader, self.fails_at = loader, fails_at
        self.seen: list[Tensor] = []

    def get_train_dataloader(self) -> StepLoader:
        return self.loader

    def training_step(self, model: Any, inputs: dict[str, Tensor], *others: Any) -> Tensor:
        if self.state.global_step == self.fails_at:
            raise Interrupted
        self.seen.append(inputs["input_ids"].cpu())
        loss: Tensor = super().training_step(model, inputs, *others)
        return loss

    def log(self, logs: dict[str, float], *others: Any) -> None:
        super().log({**logs, "tokens": float(self.seen[-1].numel())}, *others)


def collate(rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Whole rows twice: the model shifts the labels itself."""
    batch = torch.stack(list(rows))
    return {"input_ids": batch, "labels": batch}


def tiny_model(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.1,
    )
    return LlamaForCausalLM(config)


def train(data: TokenData, order: DataOrder, folder: Path, processes: int, fails_at: int | None = None) -> OrderedTrainer:
    """Goes on from the newest checkpoint in the folder."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        gradient_accumulation_steps=ACCUMULATE,
        save_steps=SAVE_EVERY,
        ignore_data_skip=True,  # the loader knows where it stands
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    loader = StepLoader(
        data, "train", SEQUENCE, order, STEPS * ACCUMULATE, epoch_steps=EPOCH_STEPS * ACCUMULATE, rank=arguments.process_index,
        world_size=arguments.world_size, num_workers=processes, collate_fn=collate,
    )  # fmt: skip
    with phalanx.run(steps=STEPS, folder=folder / "run") as run:
        trainer = OrderedTrainer(tiny_model(data.vocab_size), arguments, loader=loader, run=run, fails_at=fails_at)
        try:
            trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
        except Interrupted:
            print(f"  interrupted after {trainer.state.global_step} steps")
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder made by `phalanx data prepare`")
    parser.add_argument("--fails-at", type=int, default=13, help="step at which the run is interrupted")
    given = parser.parse_args()
    data = open_data(given.data)
    order = PlainOrder(num_samples=data.num_samples("train", SEQUENCE), seed=0, global_batch=BATCH)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        undisturbed = train(data, order, Path(one), processes=0)
        broken = train(data, order, Path(other), processes=2, fails_at=given.fails_at)
        resumed = train(data, order, Path(other), processes=1)
    first = STEPS - len(resumed.seen) // ACCUMULATE
    assert given.fails_at - SAVE_EVERY <= first <= given.fails_at
    seen = broken.seen[: first * ACCUMULATE] + resumed.seen
    assert len(seen) == len(undisturbed.seen) == STEPS * ACCUMULATE
    assert all(map(torch.equal, seen, undisturbed.seen))
    assert all(map(torch.equal, resumed.model.parameters(), undisturbed.model.parameters()))
    print(
        f"Interrupted at step {given.fails_at}, gone on after {first}: all {len(seen)} batches and the weights are as undisturbed."
    )


if __name__ == "__main__":
    main()
