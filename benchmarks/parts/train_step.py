"""One step of ours in a layout: the trainer's own without a pipeline, and the same around the pipeline's passes with one."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from parts.train_case import STAGES, Case  # type: ignore[import-not-found]  # beside this folder

from phalanx.core.recipe import LlamaRecipe
from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.job.checkpoint.local import local_of
from phalanx.job.train.clip import clip
from phalanx.job.train.device import Rank, synchronise
from phalanx.job.train.local_time import local_timer
from phalanx.job.train.loss import mean_over_ranks
from phalanx.job.train.optimizer import lr_at, make_adamw, set_lr
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.parallel.mesh import data_mesh
from phalanx.job.train.pipeline.pipeline import pipeline_parallel
from phalanx.job.train.pipeline.prepare import sharded_stage
from phalanx.job.train.pipeline.stage import llama_costs
from phalanx.job.train.precision import Dtype, choose_dtype
from phalanx.job.train.step import StepFacts, train_step

Fetch = Callable[[int], torch.Tensor]
OneStep = Callable[[int], StepFacts]


def stepper(case: Case, recipe: LlamaRecipe, rank: Rank, fetch: Fetch) -> OneStep:
    """With a new model and its optimiser. A collective of all ranks."""
    dtype = choose_dtype(recipe.dtype, rank.device, time.perf_counter)
    made: OneStep = (_piped if case.schedule else _plain)(case, recipe, rank, fetch, dtype)
    return made


def _plain(case: Case, recipe: LlamaRecipe, rank: Rank, fetch: Fetch, dtype: Dtype) -> OneStep:
    model = sharded_llama(recipe.shape(case.size.vocab), recipe, rank, make_mesh(rank), dtype, fresh=False)
    draw(model, recipe, rank)
    optimizer, timer = make_adamw(model, recipe), local_timer(model.blocks, rank)

    def one_step(step: int) -> StepFacts:
        timer.start()
        facts = train_step(model, optimizer, fetch, recipe, step, time.perf_counter)
        timer.stop()
        return facts

    return one_step


def _piped(case: Case, recipe: LlamaRecipe, rank: Rank, fetch: Fetch, dtype: Dtype) -> OneStep:
    mesh, shape, device = make_mesh(rank), recipe.shape(case.size.vocab), rank.device
    layout = PipelineLayout(
        schedule=case.schedule, num_ranks=mesh["pp"].size(), num_microbatches=case.microbatches,
        stages_per_rank=STAGES[case.schedule],
    )  # fmt: skip
    prepare = sharded_stage(recipe, layout, data_mesh(mesh), device, dtype, fresh=False)
    pipeline = pipeline_parallel(shape, layout, mesh["pp"], device, dtype, prepare, llama_costs(shape, recipe.sequence))
    draw(pipeline.part, recipe, rank)
    optimizer = make_adamw(pipeline.part, recipe)

    def one_step(step: int) -> StepFacts:
        marks = [time.perf_counter()]
        mark = partial(_mark, marks, device)
        lr = lr_at(step, recipe)
        set_lr(optimizer, lr)
        microbatches = fetch(step)
        mark()
        mine = pipeline.gradients(microbatches)
        mark()
        loss = mean_over_ranks(mine, case.microbatches)
        grad_norm = clip(pipeline.part, recipe.clip)
        mark()
        optimizer.step()
        optimizer.zero_grad()
        mark()
        data_wait_s, compute_s, comm_s, optimizer_s = (later - sooner for sooner, later in pairwise(marks))
        return StepFacts(
            loss=loss, grad_norm=grad_norm, lr=lr, data_wait_s=data_wait_s, compute_s=compute_s, comm_s=comm_s,
            optimizer_s=optimizer_s, updated=True,
        )  # fmt: skip

    return one_step


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


def _mark(marks: list[float], device: torch.device) -> None:
    synchronise(device)
    marks.append(time.perf_counter())
