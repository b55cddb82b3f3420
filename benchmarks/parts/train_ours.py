"""One rank of our side: the trainer's own model, optimiser and step, on the same text as the peer's."""

import gc
import json
import math
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parts.train_case import SAID, Answer, Case, Text, cases_in  # type: ignore[import-not-found]  # beside this folder

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.train.arithmetic import settle_arithmetic
from phalanx.job.train.collector import collected_at_steps
from phalanx.job.train.device import Rank, synchronise
from phalanx.job.train.device import gang as joined
from phalanx.job.train.local_time import LocalTimer
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.precision import choose_dtype
from phalanx.job.train.step import StepFacts, train_step

PRODUCT_SIZE = 8192
PRODUCT_SIZE_TINY = 256
PRODUCTS = 30
PROFILED = 30
"""Kernels that a profile tells."""


def rank_main(folder: Path) -> None:
    said: list[Answer] = []
    with joined() as rank:
        wall = product_flops(rank.device)
        for case in cases_in(folder):
            said.append({"product_flops": wall, "card": rank.device_name, **answer(case, rank, folder)})
            if rank.rank == 0:
                (folder / SAID).write_text(json.dumps(said))
        dist.barrier()
    os._exit(0)  # as the trainer does


def answer(case: Case, rank: Rank, folder: Path) -> Answer:
    """A case that does not fit, or does not compile, is an answer too; both ranks do the same, so both come here."""
    try:
        found = measured(case, rank, folder)
    except RuntimeError as error:
        found = {"failed": "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error).partition("\n")[0][:300]}
    gc.collect()
    if rank.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


def recipe_of(case: Case) -> LlamaRecipe:
    size = case.size
    own = {
        "dim": size.dim, "layers": size.layers, "heads": size.heads, "kv_heads": size.kv_heads, "ffn_dim": size.ffn_dim,
        "sequence": size.sequence, "batch_per_rank": case.batch, "steps": 10_000, "lr": 3e-4, "warmup_steps": 20, "init_std": 0.02,
        "dtype": "bf16",
    }  # fmt: skip
    return LlamaRecipe(**{**own, **case.options})


def measured(case: Case, rank: Rank, folder: Path) -> Answer:
    recipe, size, device = recipe_of(case), case.size, rank.device
    if found := recipe.problems():
        raise SystemExit(f"{found}")
    settle_arithmetic(recipe.deterministic, device)
    dtype = choose_dtype(recipe.dtype, device, time.perf_counter)
    model = sharded_llama(recipe.shape(size.vocab), recipe, rank, make_mesh(rank), dtype)
    optimizer, timer = make_adamw(model, recipe), LocalTimer(model.blocks, device)
    text = Text(folder, size.sequence, rank.rank, rank.world_size)

    def fetch(step: int) -> torch.Tensor:
        rows = torch.from_numpy(text.batch(step, case.batch)).unsqueeze(0)
        return rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows

    def one_step(step: int) -> StepFacts:
        timer.start()
        facts = train_step(model, optimizer, fetch, recipe, step, time.perf_counter)
        timer.stop()
        collect(step)
        return facts

    losses: list[float] = []
    marks: list[float] = []
    with collected_at_steps() as collect:
        for step in range(1, case.total + 1):
            facts = one_step(step)
            losses.append(facts.loss)
            if step >= case.warm and (step - case.warm) % case.steps == 0:
                synchronise(device)
                marks.append(time.perf_counter())
            if not math.isfinite(facts.loss):
                raise SystemExit(f"the loss of step {step} is {facts.loss}")
        told = profile(one_step, case.total) if case.profiled else []
    return {
        "repeats_s": [(later - sooner) / case.steps for sooner, later in pairwise(marks)][: case.repeats],
        "phases_s": [round(one, 4) for one in (facts.data_wait_s, facts.compute_s, facts.comm_s, facts.optimizer_s)],
        "parameters": sum(one.numel() for one in model.parameters()),
        "losses": losses, "attention": attention(recipe, device), "profile": told, **memory(device),
    }  # fmt: skip


def memory(device: torch.device) -> dict[str, Any]:
    return {"gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None}


def profile(one_step: Callable[[int], object], done: int) -> list[str]:
    """The kernels that took the device longest, each with milliseconds a step and how often it ran in one."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watching

    steps = 2
    activities = [ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU]
    with watching(activities=activities) as watched:
        for step in range(done + 1, done + 1 + steps):
            one_step(step)
    on_gpu = torch.cuda.is_available()
    found = [(one.self_device_time_total if on_gpu else one.self_cpu_time_total, one) for one in watched.key_averages()]
    longest = sorted(found, key=lambda one: -one[0])[:PROFILED]
    return [f"{1e-3 * took / steps:9.2f} ms  {one.count / steps:6.0f} x  {one.key[:100]}" for took, one in longest]


def attention(recipe: LlamaRecipe, device: torch.device) -> str:
    """Whose attention torch takes for this model."""
    from torch.nn.attention import SDPBackend

    heads = recipe.shape(1)
    given: dict[str, Any] = {"device": device, "dtype": torch.bfloat16, "requires_grad": True}
    query = torch.empty(1, heads.heads, recipe.sequence, heads.head_dim, **given)
    key, value = (torch.empty(1, heads.kv_heads, recipe.sequence, heads.head_dim, **given) for _ in range(2))
    chosen = torch._fused_sdp_choice(query, key, value, is_causal=True, enable_gqa=heads.kv_heads != heads.heads)
    numbers = {int(one): name for name, one in SDPBackend.__members__.items()}  # type: ignore[call-overload]  # an enum of C++
    return numbers.get(chosen, str(chosen))


def product_flops(device: torch.device) -> float:
    """Of one card: a bf16 matrix product of random numbers, the median of some."""
    size = PRODUCT_SIZE if device.type == "cuda" else PRODUCT_SIZE_TINY
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(PRODUCTS):
        synchronise(device)
        started_s = time.perf_counter()
        for _ in range(4):
            left @ right
        synchronise(device)
        times.append((time.perf_counter() - started_s) / 4)
    return 2 * size**3 / sorted(times[3:])[len(times[3:]) // 2]
