"""Every layout against one process, for `test_parallel.py`: run by `python -m` on four ranks, answers as JSON from rank 0.

Samples are drawn, the same for every layout: what reads them from data is tested where that is (feed, batches).
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from phalanx.core.errors import SetupError
from phalanx.core.lora import Lora
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import LayoutSpec
from phalanx.fabric.layouts import laid_out
from phalanx.job.checkpoint.commit import Saved
from phalanx.job.checkpoint.digest import gathered, state_digest
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.restore import find, load
from phalanx.job.checkpoint.rows import as_saved, rows_in
from phalanx.job.checkpoint.save import Identity, SavePolicy, save
from phalanx.job.checkpoint.state import training_state
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.models.llama import Llama, LlamaShape, initialise
from phalanx.job.models.lora import adapt, initialise_adapters
from phalanx.job.train.clip import EPSILON
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.loss import of_whole_rows, sample_losses, token_loss
from phalanx.job.train.offload import OffloadPlace
from phalanx.job.train.optimizer import lr_at, make_adamw, set_lr
from phalanx.job.train.parallel import layout_of, let_go, make_mesh
from phalanx.job.train.parallel.mesh import stage_mesh
from phalanx.job.train.passes import losses_of, mean_scores
from phalanx.job.train.pipeline import whole
from phalanx.job.train.pipeline.build import laid_llama
from phalanx.job.train.pipeline.stage import RankPart
from phalanx.job.train.pipeline.whole import gathered_weights, tensors_of
from phalanx.job.train.precision import Dtype, policy
from phalanx.job.train.recompute import recomputed
from phalanx.job.train.step import train_step

SHAPE = LlamaShape(vocab=97, dim=32, layers=2, heads=4, ffn_dim=48)  # 97: no layout cuts it evenly
RECIPE = LlamaRecipe(
    dim=32, layers=2, heads=4, ffn_dim=48, sequence=16, batch_per_rank=1, accumulate=2, steps=5, warmup_steps=2, clip=0.5
)
DEEP = replace(SHAPE, layers=4)
OTHER_SHAPE = replace(SHAPE, kv_heads=2, head_dim=6, qk_norm=True, qkv_bias=True, tied=True)
DEEP_OTHER = replace(OTHER_SHAPE, layers=4)
GATHERS = ("all_gather_single", "all_gather_into_tensor")  # by which FSDP gathers from torch 2.13 on, and before
REDUCTIONS = ("reduce_scatter_single", "reduce_scatter_tensor")
SAMPLES = 8
LAYOUTS = {
    "ddp4": LayoutSpec(zero=0),
    "zero1": LayoutSpec(zero=1),
    "zero2": LayoutSpec(zero=2),
    "fsdp4": LayoutSpec(),
    "hsdp2x2": LayoutSpec(replicate=2),
    "zero2 replicate2": LayoutSpec(zero=2, replicate=2),
    "tp2 x dp2": LayoutSpec(tp=2),
    "tp2 x ddp2": LayoutSpec(tp=2, zero=0),
    "tp4": LayoutSpec(tp=4),
    "cp2 x dp2": LayoutSpec(cp=2),
    "cp2 x ddp2": LayoutSpec(cp=2, zero=0),
    "cp4 by heads": LayoutSpec(cp=4, context="ulysses"),
    "cp2 x tp2": LayoutSpec(cp=2, tp=2),
    "cp2 by heads x tp2": LayoutSpec(cp=2, tp=2, context="ulysses"),
}
PIPELINES = {
    "pp2 x dp2": LayoutSpec(pp=2),
    "pp2 x ddp2 all forward first": LayoutSpec(pp=2, zero=0, schedule="gpipe"),
    "pp2 interleaved x dp2": LayoutSpec(pp=2, schedule="interleaved"),
    "pp2 x tp2": LayoutSpec(pp=2, tp=2),
    "pp2 folded x tp2": LayoutSpec(pp=2, tp=2, schedule="zbv"),
    "pp2 x cp2": LayoutSpec(pp=2, cp=2),
    "pp2 folded x cp2 by heads": LayoutSpec(pp=2, cp=2, context="ulysses", schedule="zbv"),
}
"""Of a deeper model, since a stage has a layer at least."""
ALL = LAYOUTS | PIPELINES
CARRIED = (
    ("tp2 x dp2", "fsdp4"),
    ("hsdp2x2", "tp4"),
    ("cp2 x tp2", "cp2 x ddp2"),
    ("fsdp4", "pp2 x dp2"),
    ("tp4", "pp2 folded x tp2"),
    ("fsdp4", "pp2 x tp2"),
)
CARRIED_TIED = (("fsdp4", "pp2 x tp2"),)
TIED = {"pp2 x dp2": RECIPE, "pp2 folded x tp2": RECIPE, "pp2 x tp2": replace(RECIPE, fused_loss=True)}
"""Pipelines that train a model whose output is its embedding: on two ranks, on one, and on two of which each has a part of the
vocabulary, without all logits."""
UNHELD = ("fsdp4", "cp2 x dp2", "cp4 by heads", "tp2 x dp2", "cp2 x tp2")
OFFLOADED = ("ddp4", "zero1", "zero2", "fsdp4", "tp2 x dp2")
ADAPTED = replace(RECIPE, lora_rank=3, lora_alpha=30.0, lora_targets="q_proj,v_proj,o_proj,gate_proj,down_proj")
WIDE_SHAPE = replace(SHAPE, dim=64, ffn_dim=96)
KINDS_OF_8_BITS: tuple[Dtype, ...] = ("fp8", "fp8_rowwise")
ADAPTED_LAYOUTS = ("tp2 x dp2", "cp2 x dp2", "cp2 by heads x tp2")
ADAPTED_PIPELINES = ("pp2 x dp2", "pp2 folded x tp2")
Answer = dict[str, Any]


def ids(step: int) -> Tensor:
    """The samples of a step, (SAMPLES, s + 1)."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(SHAPE.vocab, (SAMPLES, RECIPE.sequence + 1), generator=generator)


def packed(samples: Tensor) -> Tensor:
    """Two documents a row, of which the last tokens are padding."""
    segments = torch.zeros_like(samples)
    segments[:, 7:] = 1
    segments[:, 15:] = -1
    return torch.stack((samples, segments), dim=1)


def fetch_of(rank: Rank, accumulate: int = RECIPE.accumulate) -> Callable[[int], Tensor]:
    def fetch(step: int) -> Tensor:
        mine = ids(step).chunk(rank.data_size)[rank.data_rank]
        return mine.view(accumulate, -1, RECIPE.sequence + 1)

    return fetch


class Run:
    """One model in one layout."""

    def __init__(
        self,
        rank: Rank,
        asked: LayoutSpec,
        dtype: Dtype = "fp32",
        fresh: bool = True,
        shape: LlamaShape = SHAPE,
        recipe: LlamaRecipe = RECIPE,
        place: OffloadPlace | None = None,
    ) -> None:
        self.rank = replace(rank, layout=laid_out(asked, rank.world_size)) if asked != LayoutSpec() else rank
        self.mesh, self.recipe = make_mesh(self.rank), recipe
        self.model = laid_llama(shape, recipe, self.rank, self.mesh, dtype, recipe.accumulate, fresh)
        if not fresh:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.mul_(0 if parameter.requires_grad else 1)  # who loads has frozen ones again
        self.optimizer = make_adamw(self.model, RECIPE, place)
        self.gradients: dict[str, Tensor] = {}

    def steps(self, first: int, last: int) -> list[tuple[float, float]]:
        """(loss, gradient norm) of each; the gradients of the first one are kept, clipped as its update has them."""

        def keep(*_: object) -> None:
            kept.remove()
            found = {name: one.grad for name, one in self.model.named_parameters() if one.grad is not None}
            self.gradients = self.whole(found, "model.")

        kept = self.optimizer.register_step_pre_hook(keep)
        facts = [
            train_step(self.model, self.optimizer, fetch_of(self.rank), RECIPE, step, lambda: 0.0)
            for step in range(first, last + 1)
        ]
        assert all(fact.updated for fact in facts)
        return [(fact.loss, fact.grad_norm) for fact in facts]

    def whole(self, tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
        """As in checkpoints, whatever the layout."""
        rows = rows_in(training_state(self.model, self.optimizer))
        full = {name: (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone() for name, one in tensors.items()}
        mine = {name: as_saved(one, rows[prefix + name]) if prefix + name in rows else one for name, one in full.items()}
        return _of_all_stages(mine) if isinstance(self.model, RankPart) else mine

    def state(self) -> dict[str, Tensor]:
        return self.whole(training_state(self.model, self.optimizer))

    def identity(self) -> Identity:
        origin = Origin(config="c", data="d", world_size=self.rank.world_size, layout=layout_of(self.rank))
        tensors = tensors_of(self.model, self.optimizer, self.recipe.lora)
        return Identity(origin=origin, dtype="fp32", device=self.rank.device, mesh=stage_mesh(self.mesh), tensors=tensors)

    def digest(self) -> str:
        state, identity = training_state(self.model, self.optimizer), self.identity()
        return state_digest(state, self.rank.device, identity.mesh, identity.tensors).text

    def save(self, root: Path, step: int) -> None:
        saved = save(SavePolicy(root=root, every=1), self.identity(), step, training_state(self.model, self.optimizer), {})
        assert isinstance(saved, Saved), saved

    def load(self, root: Path) -> None:
        found = find(root, self.identity().origin)
        assert found is not None and not found.skipped
        load(found, self.identity().origin, self.model, self.optimizer, self.rank.device, tensors=self.identity().tensors)


def _of_all_stages(mine: dict[str, Tensor]) -> dict[str, Tensor]:
    told: list[dict[str, Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(told, mine)
    return {name: one for of_rank in told for name, one in of_rank.items()}


class Plain:
    """The same without gang, mesh or sharding: one process, every sample of a step at once."""

    def __init__(self, shape: LlamaShape = SHAPE, lora: Lora | None = None, kept: int = 1) -> None:
        """kept: the step whose gradients are."""
        self.model = Llama(shape)
        if lora is not None:
            adapt(self.model, lora)
        for name, part in self.model.named_children():
            initialise(part, name, RECIPE.seed, RECIPE.init_std)
            initialise_adapters(part, name, RECIPE.seed)
        optimizer = make_adamw(self.model, RECIPE)
        self.numbers: list[tuple[float, float]] = []
        with torch.no_grad():
            self.packed = sample_losses(self.model, packed(ids(1))).tolist()
        for step in range(1, RECIPE.steps + 1):
            set_lr(optimizer, lr_at(step, RECIPE))
            loss = token_loss(self.model, ids(step))
            loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), RECIPE.clip)
            if step == kept:
                self.gradients = {name: one.grad.clone() for name, one in self.model.named_parameters() if one.grad is not None}
            optimizer.step()
            optimizer.zero_grad()
            self.numbers.append((float(loss.item()), float(norm.item())))
        self.weights = {name: one.detach().clone() for name, one in self.model.named_parameters()}


def error(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest difference of an element, by the largest element of its tensor."""
    assert found.keys() == wanted.keys()
    return max(float((found[name] - one).abs().max() / one.abs().max()) for name, one in wanted.items())


def piped(rank: Rank, asked: LayoutSpec, plain: Plain, recipe: LlamaRecipe = RECIPE) -> Answer:
    """As `laid`, of a pipeline."""
    run = Run(rank, asked, shape=plain.model.shape, recipe=recipe)
    mine = packed(ids(1)).chunk(run.rank.data_size)[run.rank.data_rank]
    losses, mean = losses_of(run.model, mine), mean_scores(run.model, mine)["loss"].to(torch.float64)
    dist.all_reduce(mean)
    everyone = [torch.empty_like(losses) for _ in range(rank.world_size)]
    dist.all_gather(everyone, losses)
    numbers, later = run.steps(1, RECIPE.steps), losses_of(run.model, mine)
    state = run.state()
    weights = {name.removeprefix("model."): one for name, one in state.items() if name.startswith("model.")}
    with torch.no_grad():
        late = sample_losses(plain.model, packed(ids(1))).chunk(run.rank.data_size)[run.rank.data_rank]
    with patch.object(whole, "_on_host", wraps=whole._on_host) as copying:
        saved = gathered_weights(run.model)
    copied: list[list[str]] = [[]] * rank.world_size
    dist.all_gather_object(copied, [call.args[1] for call in copying.call_args_list])
    return {
        "numbers": numbers,
        "gradients": error(run.gradients, plain.gradients),
        "packed": torch.cat([everyone[reader] for reader in run.rank.readers]).tolist(),
        "mean": float(mean) / rank.world_size,
        "later": [later.tolist(), late.tolist()],
        "digest": run.digest(),
        "digest_of_whole": state_digest(state, rank.device).text,
        "saved": _equal(saved, weights if rank.rank == 0 else {}) and sorted(chain(*copied)) == sorted(weights),
    }


def laid(rank: Rank, asked: LayoutSpec, plain: Plain) -> Answer:
    run = Run(rank, asked)
    mine = packed(ids(1)).chunk(run.rank.data_size)[run.rank.data_rank]
    with torch.no_grad():
        part = sample_losses(run.model, mine)
        losses = of_whole_rows(run.model, part)
    let_go(run.model)
    everyone = [torch.empty_like(losses) for _ in range(rank.world_size)]
    dist.all_gather(everyone, losses)
    numbers = run.steps(1, RECIPE.steps)
    state = run.state()
    weights = {name.removeprefix("model."): one for name, one in state.items() if name.startswith("model.")}
    return {
        "numbers": numbers,
        "gradients": error(run.gradients, plain.gradients),
        "weights": error(weights, plain.weights),
        "packed": torch.cat([everyone[reader] for reader in run.rank.readers]).tolist(),
        "whole_rows": torch.equal(part, losses),
        "held": sum(one.to_local().numel() for one in run.model.parameters() if isinstance(one, DTensor)),
        "odd": odd_after_recompute(run),
        "digest": run.digest(),
        "digest_of_whole": state_digest(state, rank.device).text,
    }


def without_logits(rank: Rank) -> Answer:
    """Losses that are computed without holding all logits, of whole rows and of shared ones, and of packed rows."""
    answer: Answer = {}
    for name in UNHELD:
        run = Run(rank, LAYOUTS[name], recipe=replace(RECIPE, fused_loss=True))
        mine = packed(ids(1)).chunk(run.rank.data_size)[run.rank.data_rank]
        whole = token_loss(run.model, mine)
        run.optimizer.zero_grad()
        total = whole.detach().clone()
        dist.all_reduce(total)
        answer[name] = {"packed": float(total) / rank.world_size, "numbers": run.steps(1, 2)}
        assert cast(Llama, run.model).head_plan.fused is True
    return answer


def other_shape(rank: Rank) -> Answer:
    """Heads that share keys, norms of heads, biases, a tied output."""
    plain, run = Plain(OTHER_SHAPE), Run(rank, LAYOUTS["tp2 x dp2"], shape=OTHER_SHAPE)
    numbers = run.steps(1, RECIPE.steps)
    unheld = Run(rank, LAYOUTS["tp2 x dp2"], shape=OTHER_SHAPE, recipe=replace(RECIPE, fused_loss=True))
    return {
        "numbers": numbers, "plain": plain.numbers, "gradients": error(run.gradients, plain.gradients),
        "unheld": unheld.steps(1, RECIPE.steps), "unheld_gradients": error(unheld.gradients, plain.gradients),
    }  # fmt: skip


def adapted(rank: Rank, folder: Path, shape: LlamaShape, names: Sequence[str], way: tuple[str, str]) -> Answer:
    """Adapters beside given weights: gradients of the last step, of which neither of an adapter's matrices is 0. Three steps in one
    layout, and on in another from its checkpoint, and what is saved as the model at the end."""
    lora = ADAPTED.lora
    assert lora is not None
    plain, last = Plain(shape, lora, kept=RECIPE.steps), RECIPE.steps
    answer: Answer = {"plain": plain.numbers}
    for name in names:
        run = Run(rank, ALL[name], shape=shape, recipe=ADAPTED)
        numbers = run.steps(1, last - 1) + run.steps(last, last)
        trained = [name for name, one in run.model.named_parameters() if one.requires_grad]
        assert trained == [name for name, _ in run.model.named_parameters() if name in plain.gradients]
        answer[name] = {"numbers": numbers, "gradients": error(run.gradients, plain.gradients)}
    here, there = way
    first = Run(rank, ALL[here], shape=shape, recipe=ADAPTED)
    numbers, root = first.steps(1, 3), folder / f"adapted {here}"
    first.save(root, 3)
    second = Run(rank, ALL[there], shape=shape, recipe=ADAPTED, fresh=False)
    second.load(root)
    equal = _equal(first.state(), second.state())
    numbers += second.steps(4, last)
    if isinstance(second.model, RankPart):
        weights = {name.removeprefix("model."): one for name, one in second.state().items() if name.startswith("model.")}
        equal = equal and _equal(gathered_weights(second.model), weights if rank.rank == 0 else {})
    return answer | {"carried": {"numbers": numbers, "equal": equal}}


def in_8_bits(rank: Rank) -> Answer:
    """Losses of two steps without tensor parallelism and with it, and how far their first gradients are off those of float32."""
    answer: Answer = {}
    exact = Run(rank, LAYOUTS["fsdp4"], shape=WIDE_SHAPE)
    exact.steps(1, 1)
    for dtype in KINDS_OF_8_BITS:
        runs = [Run(rank, LAYOUTS[name], dtype, shape=WIDE_SHAPE) for name in ("fsdp4", "tp2 x dp2")]
        losses = [[loss for loss, _ in run.steps(1, 2)] for run in runs]
        off = [max(float((run.gradients[name] - one).norm() / one.norm()) for name, one in exact.gradients.items()) for run in runs]
        answer[dtype] = {"losses": losses, "off": off}
    return answer


def odd_after_recompute(run: Run) -> int:
    """Ranks of the same part of the model that got other bits of the same samples; nothing is left of it."""
    table = gathered(recomputed(run.model, run.optimizer, ids(1)[:2])[1])
    assert all(one.grad is None for one in run.model.parameters())
    layout = run.rank.layout
    parts = [layout.model_rank(at) if layout is not None else 0 for at in range(run.rank.world_size)]
    first = {part: table[parts.index(part)] for part in parts}
    return sum(row != first[part] for row, part in zip(table, parts, strict=True))


def as_before(rank: Rank) -> list[tuple[float, float]]:
    """FSDP over all ranks, written out as it was before there were layouts: to the last bit what must come out."""
    mesh = init_device_mesh("cpu", (rank.world_size,), mesh_dim_names=("dp",))
    model = Llama(SHAPE)
    for name, part in model.named_children():
        initialise(part, name, RECIPE.seed, RECIPE.init_std)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy("fp32"))
    fully_shard(model, mesh=mesh, mp_policy=policy("fp32"))
    optimizer, numbers = make_adamw(model, RECIPE), []
    for step in range(1, RECIPE.steps + 1):
        set_lr(optimizer, lr_at(step, RECIPE))
        microbatches, total = fetch_of(rank)(step), torch.zeros((), dtype=torch.float64)
        for index, samples in enumerate(microbatches):
            cast(FSDPModule, model).set_requires_gradient_sync(index == len(microbatches) - 1)
            loss = token_loss(model, samples)
            (loss / len(microbatches)).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        dist.all_reduce(total)
        grads = [cast(DTensor, one.grad).to_local() for one in model.parameters()]
        squares = torch.stack(torch._foreach_norm(grads, 2, torch.float64)).square().sum()
        dist.all_reduce(squares)
        norm = squares.sqrt().to(torch.float32)
        torch._foreach_mul_(grads, torch.clamp(RECIPE.clip / (norm + EPSILON), max=1.0))
        optimizer.step()
        optimizer.zero_grad()
        numbers.append((float(total.item()) / (len(microbatches) * rank.world_size), float(norm.item())))
    return numbers


def shape_of(here: str, there: str) -> LlamaShape:
    """Of what is carried from one layout to another."""
    if (here, there) in CARRIED_TIED:
        return DEEP_OTHER
    return DEEP if {here, there} & PIPELINES.keys() else SHAPE


def carried(rank: Rank, folder: Path, ways: tuple[tuple[str, str], ...]) -> Answer:
    """Three steps in one layout, saved; the last two in another, saved; and back. Whether values are equal, and the numbers."""
    answer: Answer = {}
    for here, there in ways:
        root = folder / f"{here}-{there}"
        shape = shape_of(here, there)
        first = Run(rank, ALL[here], shape=shape)
        numbers = first.steps(1, 3)
        first.save(root, 3)
        second = Run(rank, ALL[there], fresh=False, shape=shape)
        second.load(root)
        equal = [_equal(first.state(), second.state())]
        numbers += second.steps(4, 5)
        second.save(root, 5)
        back = Run(rank, ALL[here], fresh=False, shape=shape)
        back.load(root)
        equal.append(_equal(second.state(), back.state()))
        answer[f"{here} to {there}"] = {"equal": equal, "numbers": numbers}
    return answer


def offloaded(rank: Rank, folder: Path) -> Answer:
    """Moments in a file, in some layouts: the numbers, and the digest of the state; and what each rank says where one has no place
    for its own."""
    place, answer = OffloadPlace(kind="nvme", folder=folder, node="n"), {}
    for name in OFFLOADED:
        run = Run(rank, LAYOUTS[name], place=place)
        numbers = run.steps(1, RECIPE.steps)
        answer[name] = {"numbers": numbers, "digest": state_digest(training_state(run.model, run.optimizer), rank.device).text}
    try:
        Run(rank, LAYOUTS["fsdp4"], place=replace(place, folder=folder / "missing") if rank.rank == 2 else place)
    except SetupError as error:
        return {**answer, "refused": told_by_all(error.sentence())}
    return {**answer, "refused": told_by_all("")}


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gathered_once(rank: Rank) -> Answer:
    """How often a rank gathers weights in a step of two microbatches, and how often gradients are reduced over shards."""
    answer: Answer = {}
    for name in ("zero1", "zero2", "fsdp4"):
        run = Run(rank, LAYOUTS[name])
        run.steps(1, 1)
        with counted(*GATHERS) as gathers, counted(*REDUCTIONS) as reductions:
            run.steps(2, 2)
        answer[name] = [len(gathers), len(reductions)]
    return answer


@contextmanager
def counted(*names: str) -> Iterator[list[str]]:
    """Collectives of these names that are begun inside."""
    begun: list[str] = []
    kept = {name: getattr(dist, name) for name in names if hasattr(dist, name)}

    def noted(name: str) -> Callable[..., Any]:
        def act(*args: Any, **more: Any) -> Any:
            begun.append(name)
            return kept[name](*args, **more)

        return act

    for name in kept:
        setattr(dist, name, noted(name))
    try:
        yield begun
    finally:
        for name, act in kept.items():
            setattr(dist, name, act)


def main(out: Path) -> None:
    with gang() as rank:
        plain, deep, tied = Plain(), Plain(DEEP), Plain(DEEP_OTHER)
        answer: Answer = {
            "plain": {"numbers": plain.numbers, "packed": plain.packed},
            "deep": {"numbers": deep.numbers, "packed": deep.packed},
            "deep_other": {"numbers": tied.numbers, "packed": tied.packed},
            "layouts": {name: laid(rank, asked, plain) for name, asked in LAYOUTS.items()},
            "pipelines": {name: piped(rank, asked, deep) for name, asked in PIPELINES.items()},
            "tied": {name: piped(rank, PIPELINES[name], tied, recipe) for name, recipe in TIED.items()},
            "other": other_shape(rank),
            "without_logits": without_logits(rank),
            "adapted": adapted(rank, out.parent, OTHER_SHAPE, ADAPTED_LAYOUTS, ("cp2 x tp2", "fsdp4")),
            "adapted_stages": adapted(rank, out.parent, DEEP_OTHER, ADAPTED_PIPELINES, ("fsdp4", "pp2 folded x tp2")),
            "before": as_before(rank),
            "carried": carried(rank, out.parent, CARRIED),
            "bf16": Run(rank, LAYOUTS["tp2 x dp2"], "bf16").steps(1, 2),
            "in_8_bits": in_8_bits(rank),
            "collectives": gathered_once(rank),
            "offloaded": offloaded(rank, out.parent),
        }
    if rank.rank == 0:
        out.write_text(json.dumps(answer))
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(Path(sys.argv[1]))
