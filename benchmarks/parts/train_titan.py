"""One rank of the peer's side: torchtitan's own trainer, loss, optimiser and options, on the same text and model.

Its configuration is filled by hand and its tokens come from memory, so that neither Hugging Face `datasets` nor TensorBoard is
needed, which it imports and which have no part in a step. Two things are helped along: how context parallelism passes keys on, for
which only its validator asks, and bf16 where there is no FSDP: there it has that only with weights and optimiser in bf16 too
(`training.dtype`), and would compute in float32 otherwise.
"""

import dataclasses
import gc
import os
import sys
import time
import types
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parts.train_case import Answer, Case  # type: ignore[import-not-found]  # beside this folder
from parts.train_gang import in_turn, words_of  # type: ignore[import-not-found]
from parts.train_text import Text  # type: ignore[import-not-found]

NEVER = 10**9
_NUMBERS = count()
"""torchtitan knows a kind of model by its name, and none may be told twice."""
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zbv": "ZBVZeroBubble"}


def rank_main(folder: Path) -> None:
    _without_what_no_step_needs()
    from torchtitan.tools.logging import init_logger

    init_logger()

    def agreed(number: int) -> int:
        """Before its first trainer there is no process group, and nothing to see differently."""
        if not dist.is_initialized():
            return number
        told = torch.tensor([number], device="cuda" if torch.cuda.is_available() else "cpu")
        dist.broadcast(told, 0)
        return int(told)

    in_turn(folder, agreed, lambda case: answer(case, folder))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def answer(case: Case, folder: Path) -> Answer:
    """As of ours. What a case switched on for the process is switched off before the next one."""
    try:
        found = _measured(case, folder)
    except Exception as error:  # noqa: BLE001 (whatever it is, the cases after it are measured)
        found = {"failed": words_of(error, torch.OutOfMemoryError)}
    torch._dynamo.reset()
    torch._inductor.config._micro_pipeline_tp = False
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


def _measured(case: Case, folder: Path) -> Answer:
    trainer = _trainer(case, folder)
    try:
        trainer.train()
        found: Answer = trainer.answer()
    finally:
        trainer.close()
    return found


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


def _register(case: Case, folder: Path) -> str:
    """The name of its model."""
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.protocols.train_spec import register_train_spec

    size = case.size
    spec, flavor = _experts(case) if size.experts else _dense(case)

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

    parts: dict[str, Any] = {"build_dataloader_fn": tokens, "build_tokenizer_fn": None, "build_validator_fn": None}
    name = f"bench{next(_NUMBERS)}"
    register_train_spec(name, dataclasses.replace(spec, model_args={"bench": flavor}, state_dict_adapter=None, **parts))
    return name


def _dense(case: Case) -> tuple[Any, Any]:
    from torchtitan.models import llama3

    size = case.size
    flavor = llama3.TransformerModelArgs(
        dim=size.dim, n_layers=size.layers, n_heads=size.heads, n_kv_heads=size.kv_heads, vocab_size=size.vocab,
        ffn_dim_multiplier=size.ffn_times, multiple_of=size.ffn_round,
    )  # fmt: skip
    return llama3.get_train_spec(), flavor


def _experts(case: Case) -> tuple[Any, Any]:
    """Its Qwen3 with mixtures is our model, once it has no norms of queries and keys. Its optimiser is the one that moves the
    biases of routers, as ours does."""
    from torchtitan.components.optimizer import build_optimizers_with_moe_load_balancing
    from torchtitan.models import qwen3
    from torchtitan.models.moe import MoEArgs

    size = case.size
    mixture = MoEArgs(
        num_experts=size.experts, num_shared_experts=0, top_k=size.per_token, score_func="softmax", route_norm=True,
        score_before_experts=False,
    )  # fmt: skip
    flavor = qwen3.Qwen3ModelArgs(
        dim=size.dim, n_layers=size.layers, n_heads=size.heads, n_kv_heads=size.kv_heads, vocab_size=size.vocab,
        head_dim=size.dim // size.heads, hidden_dim=size.ffn_dim, qk_norm=False, moe_enabled=True, moe_inter_dim=size.ffn_dim,
        moe_args=mixture,
    )  # fmt: skip
    spec = dataclasses.replace(qwen3.get_train_spec(), build_optimizers_fn=build_optimizers_with_moe_load_balancing)
    return spec, flavor


def _pinned(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.contiguous()
    return rows.pin_memory() if torch.cuda.is_available() else rows


def _trainer(case: Case, folder: Path) -> Any:
    from torch.distributed.tensor.experimental._attention import set_rotate_method
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
                "gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None,
            }

    config = _config(JobConfig(), case, folder, _register(case, folder))
    set_rotate_method(config.parallelism.context_parallel_rotate_method)
    return Timed(config)


def _config(config: Any, case: Case, folder: Path, name: str) -> Any:
    """Its defaults, compiled, and what the case says by dotted names."""
    plain = {
        "job.dump_folder": str(folder / "titan"), "model.name": name, "model.flavor": "bench", "metrics.log_freq": NEVER,
        "training.local_batch_size": case.batch, "training.seq_len": case.size.sequence, "training.steps": case.total,
        "lr_scheduler.warmup_steps": 20, "optimizer.lr": 3e-4, "compile.enable": True, "activation_checkpoint.mode": "none",
        "debug.moe_force_load_balance": case.even, **_layout(case),
    }  # fmt: skip
    for option, value in {**plain, **case.options}.items():
        *path, last = option.split(".")
        part = config
        for step in path:
            part = getattr(part, step)
        if not hasattr(part, last):
            raise ValueError(f"torchtitan has no option {option}")
        setattr(part, last, value)
    return config


def _layout(case: Case) -> dict[str, Any]:
    names = {"pp": "pipeline", "cp": "context", "tp": "tensor", "ep": "expert"}
    found: dict[str, Any] = {
        f"parallelism.{name}_parallel_degree": case.layout[axis] for axis, name in names.items() if axis in case.layout
    }
    if "pp" in case.layout:
        found["parallelism.pipeline_parallel_schedule"] = SCHEDULES[case.layout["schedule"]]
        found["parallelism.pipeline_parallel_microbatch_size"] = case.batch // case.microbatches
    sharing = case.laid_out(int(os.environ["WORLD_SIZE"]))
    if sharing.dp_shard * sharing.cp == 1 and (sharing.tp > 1 or sharing.pp > 1):
        found["training.dtype"] = "bfloat16"
    return found
