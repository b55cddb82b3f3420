"""One rank of the peer's side: torchtitan's own trainer, loss, optimiser and options, on the same text and model.

Its configuration is filled by hand and its tokens come from memory, so that neither Hugging Face `datasets` nor TensorBoard is
needed, which it imports and which have no part in a step.
"""

import dataclasses
import json
import os
import sys
import time
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from parts.train_case import SAID, Case, Text, cases_in  # type: ignore[import-not-found]  # beside this folder

NEVER = 10**9


def rank_main(folder: Path) -> None:
    (case,) = cases_in(folder)
    _without_what_no_step_needs()
    from torchtitan.tools.logging import init_logger

    init_logger()
    trainer = _trainer(case, folder)
    trainer.train()
    if int(os.environ["RANK"]) == 0:
        (folder / SAID).write_text(json.dumps([trainer.answer()]))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)


def _without_what_no_step_needs() -> None:
    for name, parts in {
        "datasets": ("Dataset", "load_dataset"),
        "datasets.distributed": ("split_dataset_by_node",),
        "torch.utils.tensorboard": ("SummaryWriter",),
    }.items():
        module = types.ModuleType(name)
        for part in parts:
            setattr(module, part, None)
        sys.modules.setdefault(name, module)


def _register(case: Case, folder: Path) -> None:
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.models import llama3
    from torchtitan.protocols.train_spec import register_train_spec

    size = case.size
    flavor = llama3.TransformerModelArgs(
        dim=size.dim, n_layers=size.layers, n_heads=size.heads, n_kv_heads=size.kv_heads, vocab_size=size.vocab,
        ffn_dim_multiplier=size.ffn_times, multiple_of=size.ffn_round,
    )  # fmt: skip

    class Tokens(BaseDataLoader):  # type: ignore[misc]
        """From memory, as ours."""

        def __init__(self, rank: int, ranks: int) -> None:
            self._text = Text(folder, size.sequence, rank, ranks)

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            for step in range(1, NEVER):
                rows = torch.from_numpy(self._text.batch(step, case.batch))
                yield {"input": _pinned(rows[:, :-1])}, _pinned(rows[:, 1:])

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    def tokens(dp_world_size: int, dp_rank: int, **_: Any) -> Tokens:
        return Tokens(dp_rank, dp_world_size)

    spec = dataclasses.replace(
        llama3.get_train_spec(), model_args={"bench": flavor}, build_dataloader_fn=tokens, build_tokenizer_fn=None,
        build_validator_fn=None,
    )  # fmt: skip
    register_train_spec("bench", spec)


def _pinned(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.contiguous()
    return rows.pin_memory() if torch.cuda.is_available() else rows


def _trainer(case: Case, folder: Path) -> Any:
    from torchtitan.config import JobConfig
    from torchtitan.train import Trainer

    class Timed(Trainer):  # type: ignore[misc]
        """Looks at the clock between groups of steps."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.marks: list[float] = []

        def train_step(self, data_iterator: Any) -> None:
            super().train_step(data_iterator)
            if self.step >= case.warm and (self.step - case.warm) % case.steps == 0:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.marks.append(time.perf_counter())

        def answer(self) -> dict[str, Any]:
            return {
                "repeats_s": [(later - sooner) / case.steps for sooner, later in pairwise(self.marks)][: case.repeats],
                "parameters": sum(one.numel() for part in self.model_parts for one in part.parameters()),
                "gib": torch.cuda.max_memory_allocated() / 2**30,
            }

    _register(case, folder)
    return Timed(_config(JobConfig(), case, folder))


def _config(config: Any, case: Case, folder: Path) -> Any:
    """Its defaults, compiled, and what the case says by dotted names."""
    plain = {
        "job.dump_folder": str(folder / "titan"), "model.name": "bench", "model.flavor": "bench", "metrics.log_freq": NEVER,
        "training.local_batch_size": case.batch, "training.seq_len": case.size.sequence, "training.steps": case.total,
        "lr_scheduler.warmup_steps": 20, "optimizer.lr": 3e-4, "compile.enable": True, "activation_checkpoint.mode": "none",
    }  # fmt: skip
    for name, value in {**plain, **case.options}.items():
        *path, last = name.split(".")
        part = config
        for step in path:
            part = getattr(part, step)
        if not hasattr(part, last):
            raise SystemExit(f"torchtitan has no option {name}")
        setattr(part, last, value)
    return config
