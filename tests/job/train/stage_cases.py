"""Pipelines over four ranks, 2 x 2 with data parallelism, for `test_pipeline_gang.py`: run by `python -m`, answers as JSON.

Each schedule trains for five steps and is compared, step by step, with one process without a pipeline; then it is run with passes
of a known duration, by which its measured bubble can be told beside the formula.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import ScheduleName
from phalanx.fabric.pipeline.actions import Action, Kind, flat, orders
from phalanx.fabric.pipeline.balance import LayerCosts
from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.fabric.pipeline.measured import bubbles
from phalanx.fabric.pipeline.timeline import PassCost, needs, result_of
from phalanx.job.checkpoint.commit import Saved
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.restore import find, load
from phalanx.job.checkpoint.save import Identity, SavePolicy, save
from phalanx.job.checkpoint.state import training_state
from phalanx.job.models.llama import Llama, LlamaShape, initialise
from phalanx.job.train.clip import clip, global_norm
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.loss import sample_losses, sum_over_ranks, token_loss
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.pipeline.pipeline import Pipeline, pipeline_parallel
from phalanx.job.train.pipeline.prepare import sharded_stage
from phalanx.job.train.pipeline.timed import Recorder
from phalanx.job.train.pipeline.whole import whole_tensors
from phalanx.job.train.traces.timeline import OF_PIPELINE

RECIPE = LlamaRecipe(dim=16, layers=5, heads=2, ffn_dim=22, lr=1e-2)
SPARING = replace(RECIPE, fused_loss=True, activation_checkpointing="full", prefetch_blocks=1)
"""Computes blocks again in the backward pass, and the loss without all logits; asks for weights ahead."""
SHAPE = LlamaShape(vocab=61, dim=16, layers=5, heads=2, ffn_dim=22)
STEPS, ROWS, SEQUENCE = 5, 2, 12
DP = 2
CASES: dict[str, tuple[ScheduleName, int, int]] = {
    "gpipe": ("gpipe", 1, 3),
    "1f1b": ("1f1b", 1, 3),
    "bfs": ("bfs", 2, 3),
    "interleaved": ("interleaved", 2, 4),
    "zb1p": ("zb1p", 1, 3),
    "zb1p of two": ("zb1p", 2, 4),
    "zbv": ("zbv", 2, 5),
    "dualpipev": ("dualpipev", 2, 5),
}
"""Schedule, stages a rank, microbatches. Five layers make uneven stages of all."""
COSTS = LayerCosts((1.0,) * SHAPE.layers, output=0.5)
COST = PassCost(1.0, 1.0, 1.0)


def samples(step: int, microbatches: int, packed: bool) -> Tensor:
    """(dp, microbatches, rows, *row), the same on all ranks. Packed rows have padding and documents of different lengths."""
    drawn = torch.Generator().manual_seed(step)
    ids = torch.randint(SHAPE.vocab, (DP, microbatches, ROWS, SEQUENCE + 1), generator=drawn)
    if not packed:
        return ids
    begins = torch.rand(ids.shape, generator=drawn) < 0.3
    segments = begins.cumsum(-1)
    return torch.stack([ids, segments.masked_fill(segments == segments.amax(-1, keepdim=True), -1)], dim=-2)


class Plain:
    """One process and no pipeline: all microbatches of all data-parallel ranks, one after another."""

    def __init__(self) -> None:
        self.model = Llama(SHAPE)
        for name, part in self.model.named_children():
            initialise(part, name, RECIPE.seed, RECIPE.init_std)
        self._optimizer = make_adamw(self.model, RECIPE)

    def step(self, microbatches: Tensor) -> tuple[float, float, dict[str, Tensor]]:
        """Loss, gradient norm, and the gradients before clipping."""
        every = microbatches.flatten(0, 1)
        losses = []
        for one in every:
            loss = token_loss(self.model, one)
            (loss / len(every)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
        grads = {name: one.grad.clone() for name, one in self.model.named_parameters() if one.grad is not None}
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), RECIPE.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return sum(losses) / len(losses), float(norm), grads


class Reckoned(Recorder):
    """A clock on which every pass takes what it is told to: a pass begins when its rank has ended the one before, and the results
    that it really was given were there. So what is measured is the schedule as it ran, and not what else the machine did."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup, store: Any, num_stages: int) -> None:
        super().__init__(device, group, lambda: 0.0)
        self._store, self._num_stages, self._now = store, num_stages, 0.0

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        arrivals = [float(self._store.get(str(result))) for result in needs(action, self._num_stages)]
        begun = max([self._now, *arrivals])
        yield
        self._now = begun + COST.of(action.kind)
        self._marks.append((action, begun, self._now))
        if action.kind is not Kind.WEIGHT:
            self._store.set(str(result_of(action)), str(self._now))


def built(layout: PipelineLayout, mesh: DeviceMesh, rank: Rank, recipe: LlamaRecipe = RECIPE) -> Pipeline:
    prepare = sharded_stage(recipe, layout, mesh["dp_shard"], rank.device, "fp32")
    return pipeline_parallel(SHAPE, layout, mesh["pp"], rank.device, "fp32", prepare, COSTS)


PlainRun = tuple[list[tuple[float, float, dict[str, Tensor]]], Tensor]
"""Of each step, and the losses of held-out samples after the last one."""


def plain_run(microbatches: int, packed: bool) -> PlainRun:
    plain = Plain()
    steps = [plain.step(samples(step, microbatches, packed)) for step in range(STEPS)]
    with torch.no_grad():
        return steps, sample_losses(plain.model, samples(99, 1, packed)[0, 0])


def plain_runs() -> dict[tuple[int, bool], PlainRun]:
    """By microbatches and whether rows are packed; each made by one rank."""
    wanted = [(number, False) for number in sorted({number for _, _, number in CASES.values()})] + [(4, True)]
    assert len(wanted) == dist.get_world_size()
    told: list[PlainRun | None] = [None] * len(wanted)
    dist.all_gather_object(told, plain_run(*wanted[dist.get_rank()]))
    return {which: run for which, run in zip(wanted, told, strict=True) if run is not None}


def trained(pipeline: Pipeline, mesh: DeviceMesh, packed: bool, plain: PlainRun) -> dict[str, Any]:
    """The largest differences from one process in each step."""
    optimizer = make_adamw(pipeline.part, RECIPE)
    steps = []
    for step, (plain_loss, plain_norm, wanted) in enumerate(plain[0]):
        every = samples(step, pipeline.layout.num_microbatches, packed)
        total = pipeline.gradients(every[mesh["dp_shard"].get_local_rank()])
        loss = float(sum_over_ranks(total)) / (every.shape[1] * dist.get_world_size())
        grads = {name: whole(one.grad) for name, one in pipeline.part.named_parameters() if one.grad is not None}
        norm = float(global_norm(pipeline.part))
        clip(pipeline.part, norm, RECIPE.clip)
        optimizer.step()
        optimizer.zero_grad()
        apart = max(float((grads[name] - wanted[name]).abs().max()) for name in grads)
        steps.append({"loss": [loss, plain_loss], "norm": [norm, plain_norm], "apart": apart, "largest": largest(wanted)})
    apart = float((pipeline.sample_losses(samples(99, 1, packed)[0, 0]) - plain[1]).abs().max())
    return {"steps": steps, "held_out_apart": apart, "names": sorted(name for name, _ in pipeline.part.named_parameters())}


def largest(grads: dict[str, Tensor]) -> float:
    return max(float(one.abs().max()) for one in grads.values())


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def reckoned(name: str, pipeline: Pipeline, mesh: DeviceMesh, rank: Rank) -> dict[str, Any]:
    """A step by that clock."""
    own = f"{name} {mesh['dp_shard'].get_local_rank()}"
    store = dist.PrefixStore(own, dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]  # as HashStore
    recorder = Reckoned(rank.device, mesh["pp"].get_group(), store, pipeline.layout.num_stages)
    pipeline.gradients(samples(0, pipeline.layout.num_microbatches, False)[0], recorder)
    return asdict(bubbles(pipeline.layout, recorder.timeline()))


def timed(pipeline: Pipeline, mesh: DeviceMesh, rank: Rank) -> dict[str, Any]:
    """A step by the machine's clock."""
    recorder = Recorder(rank.device, mesh["pp"].get_group(), time.monotonic)
    began = time.monotonic()
    pipeline.gradients(samples(0, pipeline.layout.num_microbatches, False)[0], recorder)
    took_s, timeline = time.monotonic() - began, recorder.timeline()
    return {**asdict(bubbles(pipeline.layout, timeline)), "makespan": timeline.makespan, "took_s": took_s}


def marked(pipeline: Pipeline, mesh: DeviceMesh) -> dict[str, list[str]]:
    """Passes of a step as a trace has them, and as the schedule does."""
    with profile(activities=[ProfilerActivity.CPU]) as tracing:
        pipeline.gradients(samples(0, pipeline.layout.num_microbatches, False)[0])
    seen = sorted((event.time_range.start, event.name) for event in tracing.events() if event.name.startswith(OF_PIPELINE))
    wanted = [f"{OF_PIPELINE}{action}" for action in flat(orders(pipeline.layout)[mesh["pp"].get_local_rank()])]
    return {"seen": [name for _, name in seen], "wanted": wanted}


def in_bf16(mesh: DeviceMesh, rank: Rank) -> list[list[float]]:
    """Losses and gradient norms of a pipeline, and of the same data-parallel ranks without one; both compute in bf16."""
    layout = layout_of("interleaved")
    prepare = sharded_stage(RECIPE, layout, mesh["dp_shard"], rank.device, "bf16")
    pipeline = pipeline_parallel(SHAPE, layout, mesh["pp"], rank.device, "bf16", prepare, COSTS)
    alone = sharded_llama(SHAPE, RECIPE, rank, mesh["dp_shard"], "bf16")
    microbatches = samples(0, layout.num_microbatches, False)[mesh["dp_shard"].get_local_rank()]
    total = sum(_backward(alone, one, layout.num_microbatches) for one in microbatches)
    found = [float(pipeline.gradients(microbatches)), norm_of(pipeline.part)]
    return [found, [total, norm_of(alone)]]


def _backward(model: nn.Module, samples: Tensor, count: int) -> float:
    loss = token_loss(model, samples)
    (loss / count).backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def norm_of(model: nn.Module) -> float:
    """Of this rank's own stages, or of all of the model; over all data-parallel ranks."""
    norms = {name: float(whole(one.grad).norm()) for name, one in model.named_parameters() if one.grad is not None}
    told: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(told, norms)
    every = {name: norm for of_rank in told for name, norm in of_rank.items()}
    return float(sum(norm**2 for norm in every.values()) ** 0.5)


def kept(folder: Path, mesh: DeviceMesh, rank: Rank) -> list[str]:
    """A checkpoint of one cut, loaded by another one and without a pipeline; the names of what differs."""
    origin = Origin(config="c", data="d", world_size=rank.world_size, layout={"pp": 2, "dp": DP})
    saved = built(layout_of("zbv"), mesh, rank)
    optimizer = make_adamw(saved.part, RECIPE)
    saved.gradients(samples(0, 5, False)[mesh["dp_shard"].get_local_rank()])
    optimizer.step()
    state = training_state(saved.part, optimizer)
    tensors = whole_tensors(SHAPE, state)
    identity = Identity(origin=origin, dtype="fp32", device=rank.device, mesh=mesh["dp_shard"], tensors=tensors)
    done = save(SavePolicy(root=folder / "kept", every=1), identity, 1, state, {})
    assert isinstance(done, Saved), done
    wanted = whole_state(state)
    found = find(folder / "kept", origin)
    assert found is not None

    differ = []
    for name in ("1f1b", "interleaved"):
        other = built(layout_of(name), mesh, rank)
        its_optimizer = make_adamw(other.part, RECIPE)
        load(found, origin, other.part, its_optimizer, rank.device, tensors=tensors)
        differ += differences(name, wanted, training_state(other.part, its_optimizer))
    alone = sharded_llama(SHAPE, RECIPE, rank, make_mesh(rank), "fp32")
    its_optimizer = make_adamw(alone, RECIPE)
    load(found, origin, alone, its_optimizer, rank.device)
    return differ + differences("alone", wanted, training_state(alone, its_optimizer))


def differences(name: str, wanted: dict[str, Tensor], state: dict[str, Tensor]) -> list[str]:
    got = whole_state(state)
    assert len(got) == len(wanted), name
    return [f"{name}: {key}" for key, one in wanted.items() if not torch.equal(one, got[key])]


def whole_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of all stages, on every rank."""
    told: list[dict[str, Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(told, {name: whole(one) for name, one in state.items()})
    return {name: one for of_rank in told for name, one in of_rank.items()}


def layout_of(name: str) -> PipelineLayout:
    schedule, stages, microbatches = CASES[name]
    return PipelineLayout(schedule=schedule, num_ranks=2, num_microbatches=microbatches, stages_per_rank=stages)


def case(name: str, mesh: DeviceMesh, rank: Rank, packed: bool, plain: dict[tuple[int, bool], PlainRun]) -> dict[str, Any]:
    pipeline = built(layout_of(name), mesh, rank, SPARING if packed else RECIPE)
    answer = {"layers": [len(one) for one in pipeline.layers], **trained(pipeline, mesh, packed, plain[CASES[name][2], packed])}
    if not packed:
        answer["bubbles"] = reckoned(name, pipeline, mesh, rank)
        answer["timed"] = timed(pipeline, mesh, rank)
    if name == "zb1p":
        answer["marked"] = marked(pipeline, mesh)
    return answer


def main(folder: Path) -> None:
    with gang() as rank:
        mesh = init_device_mesh("cpu", (2, DP), mesh_dim_names=("pp", "dp_shard"))
        answers: dict[str, Any] = {"differ": kept(folder, mesh, rank)}
        plain = plain_runs()
        for name in CASES:
            began = time.process_time()
            answers[name] = case(name, mesh, rank, packed=False, plain=plain)
            answers[name]["cpu_s"] = time.process_time() - began
        answers["packed"] = case("interleaved", mesh, rank, packed=True, plain=plain)
        answers["bf16"] = in_bf16(mesh, rank)
        (folder / f"answers-{rank.rank}.json").write_text(json.dumps(answers))
        dist.barrier()
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(Path(sys.argv[1]))
