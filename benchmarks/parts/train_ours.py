"""One rank of our side: the trainer's own model, optimiser and step, on the same text as the peer's."""

import gc
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parts.train_case import Answer, Case, recipe_of  # type: ignore[import-not-found]  # beside this folder
from parts.train_figures import graph_of  # type: ignore[import-not-found]
from parts.train_gang import in_turn, words_of  # type: ignore[import-not-found]
from parts.train_text import Text  # type: ignore[import-not-found]

from phalanx.core.llama_shape import num_parameters
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import LayoutSpec
from phalanx.fabric.layouts import RankFacts, facts_of, problems, recipe_problems
from phalanx.job.checkpoint.local import local_of
from phalanx.job.models.moe.router import Router
from phalanx.job.train.arithmetic import settle_arithmetic
from phalanx.job.train.balance import routers
from phalanx.job.train.collector import collected_at_steps
from phalanx.job.train.device import Rank, synchronise
from phalanx.job.train.device import gang as joined
from phalanx.job.train.local_time import local_timer
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh
from phalanx.job.train.pipeline.build import laid_llama
from phalanx.job.train.precision import choose_dtype
from phalanx.job.train.step import StepFacts, train_step

PRODUCT_SIZE = 8192
PRODUCT_SIZE_TINY = 256
PRODUCTS = 30
PROFILED = 30
"""Kernels that a profile tells."""


def rank_main(folder: Path) -> None:
    with joined() as rank:
        wall = product_flops(rank.device)
        kept: list[object] = []

        def agreed(number: int) -> int:
            told = torch.tensor([number])
            dist.broadcast(told, 0)
            return int(told)

        def measured_alone(case: Case) -> Answer:
            forget(case, kept, rank.device)
            return {"product_flops": wall, "card": rank.device_name, **answer(case, rank, folder)}

        in_turn(folder, agreed, measured_alone)
        dist.barrier()
    os._exit(0)  # as the trainer does


def answer(case: Case, rank: Rank, folder: Path) -> Answer:
    """A case that does not fit, or does not compile, is an answer too; all ranks do the same, so all come here."""
    try:
        found = measured(case, rank, folder)
    except Exception as error:  # noqa: BLE001 (whatever it is, the cases after it are measured)
        found = {"failed": words_of(error, torch.OutOfMemoryError)}
    gc.collect()
    if rank.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


def forget(case: Case, kept: list[object], device: torch.device) -> None:
    """What was compiled for other shapes: else a second batch size would get code for any, which is slower. Where only FSDP does
    something else, what was compiled is found again."""
    graph = graph_of(case)
    if device.type == "cuda" and kept and kept[-1] != graph:
        torch._dynamo.reset()
    kept.append(graph)


def checked(case: Case, rank: Rank) -> LlamaRecipe:
    """As a job is checked. Raises ValueError for what the trainer would refuse."""
    recipe: LlamaRecipe = recipe_of(case)
    asked = LayoutSpec(**case.layout)
    ranks = RankFacts(world_size=rank.world_size, per_domain=rank.world_size)
    found = [*recipe.problems(), *recipe_problems(asked, recipe), *problems(asked, facts_of(recipe), ranks)]
    if found:
        raise ValueError(f"{found}")
    return recipe


def measured(case: Case, rank: Rank, folder: Path) -> Answer:
    recipe, size, device = checked(case, rank), case.size, rank.device
    rank = replace(rank, layout=case.laid_out(rank.world_size)) if case.layout else rank
    settle_arithmetic(recipe.deterministic, device)
    text = Text(folder, size.sequence, rank.data_rank, rank.data_size)

    def fetch(step: int) -> torch.Tensor:
        """(microbatches, b, s + 1)"""
        drawn = torch.from_numpy(text.batch(step, case.batch))
        rows = drawn.view(case.microbatches, -1, drawn.shape[1])
        return rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows

    one_step = stepper(case, recipe, rank, fetch)
    losses: list[float] = []
    marks: list[float] = []
    with collected_at_steps() as collect:
        for step in range(1, case.total + 1):
            facts = one_step(step)
            collect(step)
            losses.append(facts.loss)
            if step >= case.warm and (step - case.warm) % case.steps == 0:
                synchronise(device)
                marks.append(time.perf_counter())
            if not math.isfinite(facts.loss):
                raise ArithmeticError(f"the loss of step {step} is {facts.loss}")
        told = profile(one_step, case.total) if case.profiled else []
    return {
        "repeats_s": [(later - sooner) / case.steps for sooner, later in pairwise(marks)][: case.repeats],
        "phases_s": [round(one, 4) for one in (facts.data_wait_s, facts.compute_s, facts.comm_s, facts.optimizer_s)],
        "parameters": num_parameters(size.shape),
        "losses": losses, "attention": attention(recipe, device), "profile": told, **memory(device),
    }  # fmt: skip


def stepper(case: Case, recipe: LlamaRecipe, rank: Rank, fetch: Callable[[int], torch.Tensor]) -> Callable[[int], StepFacts]:
    """With a new model and its optimiser. A collective of all ranks."""
    dtype = choose_dtype(recipe.dtype, rank.device)
    model = laid_llama(recipe.shape(case.size.vocab), recipe, rank, make_mesh(rank), dtype, case.microbatches, fresh=False)
    draw(model, recipe, rank)
    for router in routers(model) if case.even else ():
        setattr(router, "forward", partial(in_turn_over_experts, router))  # noqa: B010 (a method, to mypy)
    optimizer, timer = make_adamw(model, recipe), local_timer(model.blocks, rank)

    def one_step(step: int) -> StepFacts:
        timer.start()
        facts = train_step(model, optimizer, fetch, recipe, step, time.perf_counter)
        timer.stop()
        return facts

    return one_step


def in_turn_over_experts(router: Router, x_bsd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As the router's own forward pass, but for the choice, which is torchtitan's where it is told to make loads even."""
    scores_te = router.scores(x_bsd).flatten(0, 1)
    tokens, per_token = len(scores_te), router.shape.per_token
    index_tk = (torch.arange(tokens * per_token, device=x_bsd.device) % router.shape.experts).view(tokens, per_token)
    weight_tk = scores_te.gather(-1, index_tk)
    return index_tk, weight_tk / weight_tk.sum(dim=-1, keepdim=True)


@torch.no_grad()
def draw(model: torch.nn.Module, recipe: LlamaRecipe, rank: Rank) -> None:
    """First weights, on the device and of each rank's part alone: the trainer's own draw, which is the same however a model is cut,
    takes a processor 12 s of a 7B model, and 30 of one with experts."""
    generator = torch.Generator(rank.device).manual_seed(recipe.seed + rank.rank)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)  # norms, the same on every rank
        else:
            local_of(parameter).normal_(0.0, recipe.init_std, generator=generator)


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
