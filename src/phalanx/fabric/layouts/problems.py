"""What is wrong with a layout, before anything is launched: each with the values that would do while the other axes stay."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.fp8 import NEED, Width, fits_fp8, fp8_widths, is_fp8
from phalanx.core.recipe import AnyRecipe, LlamaRecipe
from phalanx.core.spec import LayoutSpec
from phalanx.core.vit_recipe import VitRecipe
from phalanx.fabric.context import ContextCut, head_problems
from phalanx.fabric.layouts.experts import experts_can_be_cut
from phalanx.fabric.layouts.stages import stage_problems, stages_per_rank

Problem = tuple[str, object, str]
"""(field, value, what to change)."""
NAMED_MAX: Final = 12
"""Of the values that would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Of a model, what a layout has to divide. kv_heads: heads of keys and values, `heads` where each head has its own. ffn_dim:
    inner width of the feed-forward; 0 where each layer has experts instead. sequence: tokens of a sample that are computed.
    experts: of a layer; 0 in a dense model, as are the rest. shared_dim: inner width of those that compute every token, as one
    feed-forward. dim, expert_ffn_dim: of what an expert is given, and its inner one. fp8: widths that tensor-parallel ranks share
    of matrices whose products are of 8-bit floats; none with other arithmetic."""

    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    sequence: int
    experts: int = 0
    shared_dim: int = 0
    dim: int = 0
    expert_ffn_dim: int = 0
    fp8: tuple[Width, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """world_size: ranks of the gang. per_domain: ranks in one NVLink domain, which is a node where nothing else is known."""

    world_size: int
    per_domain: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """holds: whether a value of the axis would do. why: the end of 'write one of 1, 2: ...'."""

    holds: Callable[[int], bool]
    why: str


def facts_of(recipe: AnyRecipe) -> ModelFacts:
    """Of the model that a recipe trains, whose shape has to be known: with `init` the folder says it."""
    if isinstance(recipe, VitRecipe):
        seen = recipe.shape(classes=1)
        return ModelFacts(layers=seen.layers, heads=seen.heads, kv_heads=seen.heads, ffn_dim=seen.ffn_dim, sequence=seen.tokens)
    shape = recipe.shape(vocab=1)
    moe = shape.moe
    return ModelFacts(
        layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, sequence=recipe.sequence, experts=shape.experts,
        ffn_dim=shape.ffn_dim if moe is None or moe.dense_layers else 0,
        shared_dim=moe.shared * moe.ffn_dim if moe is not None else 0,
        dim=shape.dim if moe is not None else 0, expert_ffn_dim=moe.ffn_dim if moe is not None else 0,
        fp8=tuple(width for width in fp8_widths(shape) if width.is_cut) if is_fp8(recipe.dtype) else (),
    )  # fmt: skip


def recipe_problems(asked: LayoutSpec, recipe: AnyRecipe) -> list[Problem]:
    """What else a recipe asks for that a layout cannot have, whatever the model."""
    if isinstance(recipe, VitRecipe):
        fix = "write 1: a vision transformer is not cut over ranks; zero and replicate share it out among them"
        return [(axis, getattr(asked, axis), fix) for axis in ("pp", "cp", "tp", "ep") if getattr(asked, axis) > 1]
    found: list[Problem] = []
    if asked.cp > 1 and recipe.activation_checkpointing == "selective" and asked.context == "ring":
        fix = "write 1, or activation_checkpointing: full: what goes round would be kept, far above activation_budget"
        found.append(("cp", asked.cp, fix))
    if asked.cp > 1 and recipe.activation_checkpointing != "none" and recipe.compile is True:
        fix = "write 1: blocks that are computed again with other ranks are no one graph; write compile: auto"
        found.append(("cp", asked.cp, fix))
    if asked.ep > 1 and recipe.compile is True:
        found.append(("ep", asked.ep, "write 1: blocks that send tokens to other ranks are no one graph; write compile: auto"))
    return [*found, *_of_replicated(asked, recipe), *stage_problems(asked, recipe)]


def _of_replicated(asked: LayoutSpec, recipe: LlamaRecipe) -> Iterator[Problem]:
    """Of experts that other ranks compute too."""
    field, spare = "hyperparameters.expert_replicas", recipe.expert_replicas
    if spare and asked.ep == 1:
        yield field, spare, "write 0, or a layout.ep above 1: a rank that has all experts has no use for replicas"
    if spare and asked.pp > 1:
        yield field, spare, "write 0, or layout.pp: 1: replicas of experts are not computed over a pipeline yet"
    own = recipe.experts // max(asked.ep, 1)
    if asked.ep > 1 and recipe.experts and spare > recipe.experts - own:  # 0 where only a folder says how many there are
        fix = f"write {recipe.experts - own} or less: a rank has {own} of the {recipe.experts} experts, and no use for more"
        yield field, spare, fix


def named(field: str) -> str:
    """A problem's field as in a job file: of the layout where it does not say of what else."""
    return field if "." in field else f"layout.{field}"


def problems(asked: LayoutSpec, model: ModelFacts | None, ranks: RankFacts) -> list[Problem]:
    """Fields as in a job's `layout`; empty when it can work. model: None where nobody knows it, as of a script."""
    axes = ("pp", "cp", "tp", "ep", "replicate")
    below = [(axis, getattr(asked, axis), "write a whole number above 0") for axis in axes if getattr(asked, axis) < 1]
    if below:
        return below
    found = [one for axis in axes for one in _of_axis(asked, model, ranks, axis)]
    return found or list(_product(asked, ranks))


def _of_axis(asked: LayoutSpec, model: ModelFacts | None, ranks: RankFacts, axis: str) -> Iterator[Problem]:
    """The first rule that the value breaks. Nothing where no value would do: then another axis is wrong, or all together are."""
    value, rules = getattr(asked, axis), list(_rules(asked, model, ranks, axis))
    broken = next((rule for rule in rules if not rule.holds(value)), None)
    allowed = [one for one in _divisors(ranks.world_size) if all(rule.holds(one) for rule in rules)]
    if broken is not None and allowed:
        yield axis, value, f"{_one_of(allowed)}: {broken.why}"


def _rules(asked: LayoutSpec, model: ModelFacts | None, ranks: RankFacts, axis: str) -> Iterator[_Rule]:
    match axis:
        case "tp":
            yield from _of_tensors(asked, model, ranks)
        case "cp":
            yield from _of_context(asked, model)
        case "pp" if model is not None:
            yield from _of_stages(asked, model)
        case "ep":
            yield from _of_experts(asked, model, ranks)
        case "replicate":
            yield from _of_replicas(asked, ranks)
    if axis in ("pp", "cp", "tp"):
        others = math.prod(getattr(asked, one) for one in ("pp", "cp", "tp") if one != axis)
        beside = f" together with the other axes ({others})" if others > 1 else ""
        yield _Rule(lambda size: ranks.world_size % (size * others) == 0, f"it divides the job's {ranks.world_size} ranks{beside}")


def _of_tensors(asked: LayoutSpec, model: ModelFacts | None, ranks: RankFacts) -> Iterator[_Rule]:
    domain = f"its ranks lie in one NVLink domain, or node, of {ranks.per_domain}"
    yield _Rule(lambda tp: ranks.per_domain % tp == 0, domain)
    if model is None:
        return
    yield _divides(model.heads, "its ranks share the model's {} heads evenly")
    yield _divides(model.kv_heads, "its ranks share the model's {} heads of keys and values evenly")
    yield _divides(model.ffn_dim, "its ranks share the feed-forward's width of {} evenly")
    yield _divides(model.shared_dim, "its ranks share the width of {} of the shared experts evenly")
    if model.sequence % asked.cp == 0:
        yield _divides(model.sequence // asked.cp, "between matrices its ranks share a sequence of {} tokens evenly")
    yield _of_fp8(asked.tp, model.fp8)


def _of_fp8(asked_tp: int, widths: Sequence[Width]) -> _Rule:
    bad = [width for width in widths if not fits_fp8(width.number, asked_tp)]
    parts = ", ".join(f"{width.number // asked_tp} of the {width.name} ({width.made_of}: {width.number})" for width in bad)
    why = f"{NEED}, and a rank would have {parts}; or change {'that' if len(bad) == 1 else 'all of these'}, or write dtype: bf16"
    return _Rule(lambda tp: tp == 1 or all(fits_fp8(width.number, tp) for width in widths), why)


def _of_stages(asked: LayoutSpec, model: ModelFacts) -> Iterator[_Rule]:
    layers, stages = model.layers, stages_per_rank(asked)
    each = "each stage" if stages == 1 else f"each of the {stages} stages of a rank"
    yield _Rule(lambda pp: pp == 1 or pp * stages <= layers, f"{each} has one of the model's {layers} layers at least")


def _of_context(asked: LayoutSpec, model: ModelFacts | None) -> Iterator[_Rule]:
    if model is None:
        return
    sequence = model.sequence
    if asked.context == "ring":
        halves = f"each rank has two parts of the sequence of {sequence}, one from its head and one from its tail"
        yield _Rule(lambda cp: not ContextCut("ring", sequence, cp).problems(), halves)
        return
    heads, kv_heads = model.heads // asked.tp, model.kv_heads // asked.tp
    each = "of each tensor-parallel rank " if asked.tp > 1 else ""
    yield _Rule(lambda cp: not ContextCut("ulysses", sequence, cp).problems(), f"its ranks share the sequence of {sequence} evenly")
    shared = f"with context: ulysses its ranks share {heads} heads and {kv_heads} of keys and values {each}evenly"
    yield _Rule(lambda cp: not head_problems("ulysses", heads, kv_heads, cp), shared)


def _of_experts(asked: LayoutSpec, model: ModelFacts | None, ranks: RankFacts) -> Iterator[_Rule]:
    if model is not None and not model.experts:
        yield _Rule(lambda ep: ep == 1, "the model has no experts")
    elif model is not None:
        yield _divides(model.experts, "its ranks share the {} experts of a layer evenly")
    data_size, rest = divmod(ranks.world_size, asked.pp * asked.cp * asked.tp)
    if not rest and data_size and data_size % asked.replicate == 0:
        there = asked.tp * (1 if asked.zero == 0 else data_size // asked.replicate * asked.cp)
        yield _divides(there, "it is made of the {} ranks that share the state")
        if model is not None and model.experts:
            yield _of_cut_experts(asked.ep, model, there)


def _of_cut_experts(asked_ep: int, model: ModelFacts, there: int) -> _Rule:
    """there: ranks that share the state. Those that `ep` leaves cut each expert."""
    dim, inner = model.dim, model.expert_ffn_dim
    why = (
        f"with {asked_ep} each expert is cut over {there // asked_ep} ranks, of which neither dim ({dim}) nor the inner width of "
        f"an expert ({inner}) is a multiple; or change expert_ffn_dim"
    )
    return _Rule(lambda ep: ep == 1 or there % ep > 0 or experts_can_be_cut(dim, inner, there // ep), why)


def _of_replicas(asked: LayoutSpec, ranks: RankFacts) -> Iterator[_Rule]:
    if asked.zero == 0:
        yield _Rule(lambda replicate: replicate == 1, "with zero: 0 every data-parallel rank holds all; leave it out")
        return
    data_size, rest = divmod(ranks.world_size, asked.pp * asked.cp * asked.tp)
    if not rest and data_size:
        yield _divides(data_size, "it divides the {} data-parallel ranks")


def _divides(number: int, why: str) -> _Rule:
    return _Rule(lambda size: number % size == 0, why.format(number))


def _product(asked: LayoutSpec, ranks: RankFacts) -> Iterator[Problem]:
    """Where every axis alone could be right, and no one value of one would mend it."""
    product = asked.pp * asked.cp * asked.tp
    if ranks.world_size % product:
        sizes = {axis: getattr(asked, axis) for axis in ("pp", "cp", "tp") if getattr(asked, axis) > 1}
        names = " x ".join(sizes)
        fix = f"write sizes whose product divides the job's {ranks.world_size} ranks: {_one_of(_divisors(ranks.world_size), '')}"
        yield names, " x ".join(str(size) for size in sizes.values()), fix


def _divisors(number: int) -> list[int]:
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*low, *(number // one for one in low)})


def _one_of(values: Sequence[int], verb: str = "write ") -> str:
    named = ", ".join(str(value) for value in values[:NAMED_MAX])
    if len(values) > NAMED_MAX:
        named = f"{named} ... up to {values[-1]}"
    return f"{verb}{named}" if len(values) == 1 else f"{verb}one of {named}"
