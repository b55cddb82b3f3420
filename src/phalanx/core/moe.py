"""Mixtures of experts, as a recipe and a model's shape say them: what they are made of, what cannot work, how many weights.
Pure."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from phalanx.core.recipe import LlamaRecipe

RouterScore = Literal["sigmoid", "softmax"]
_OF_EXPERTS: Final = (
    "experts_per_token", "expert_ffn_dim", "shared_experts", "dense_layers", "router", "router_normalise", "router_scale",
    "balance_rate", "balance_loss", "place_experts_every", "expert_replicas",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """The mixtures of a model.

    experts: of each layer. per_token: how many of them compute a token. ffn_dim: inner width of one. shared: experts that compute
    every token, as one feed-forward of that many times the width. dense_layers: the first blocks have a plain feed-forward.
    score: how a router's answers become scores. normalise: the weights of a token's experts add up to 1. scale: factor on them.
    """

    experts: int
    per_token: int
    ffn_dim: int
    shared: int = 0
    dense_layers: int = 0
    score: RouterScore = "sigmoid"
    normalise: bool = True
    scale: float = 1.0


class Feeds(Protocol):
    """What a recipe and a model's shape both say of feed-forwards, see `LlamaRecipe`."""

    @property
    def dim(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def ffn_dim(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def experts_per_token(self) -> int: ...
    @property
    def expert_ffn_dim(self) -> int: ...
    @property
    def shared_experts(self) -> int: ...
    @property
    def dense_layers(self) -> int: ...
    @property
    def router(self) -> RouterScore: ...
    @property
    def router_normalise(self) -> bool: ...
    @property
    def router_scale(self) -> float: ...


def moe_of(said: Feeds) -> MoeShape | None:
    """None of a dense model."""
    if not said.experts:
        return None
    return MoeShape(
        experts=said.experts, per_token=said.experts_per_token, ffn_dim=said.expert_ffn_dim or said.ffn_dim,
        shared=said.shared_experts, dense_layers=said.dense_layers, score=said.router, normalise=said.router_normalise,
        scale=said.router_scale,
    )  # fmt: skip


def feed_parameters(said: Feeds, active: bool = False) -> int:
    """Weights of all feed-forwards. active: of those that a token is computed with: its experts, the shared ones, and routers."""
    return sum(layer_feed_parameters(said, layer, active) for layer in range(said.layers))


def layer_feed_parameters(said: Feeds, layer: int, active: bool = False) -> int:
    """As `feed_parameters`, of one layer."""
    moe = moe_of(said)
    if moe is None or layer < moe.dense_layers:
        return 3 * said.dim * said.ffn_dim
    experts = (moe.per_token if active else moe.experts) + moe.shared
    return said.dim * moe.experts + experts * 3 * said.dim * moe.ffn_dim


def feed_problems(said: Feeds) -> list[tuple[str, object, str]]:
    """(field, value, what to change) for each value of a mixture that no model can have; empty when one can."""
    if not said.experts:
        return []
    if said.experts < 2:
        return [("experts", said.experts, "write 0 for a dense model, or 2 or more")]
    found: list[tuple[str, object, str]] = []
    if not 1 <= said.experts_per_token <= said.experts:
        found.append(("experts_per_token", said.experts_per_token, f"write a whole number from 1 to experts ({said.experts})"))
    if said.experts_per_token == 1 and said.router_normalise:
        fix = "write false with experts_per_token 1: the one weight would always be 1, and the router learn nothing"
        found.append(("router_normalise", said.router_normalise, fix))
    if not 0 <= said.dense_layers < max(said.layers, 1):
        fix = f"write a whole number from 0 to {said.layers - 1}, so that of {said.layers} layers one has experts"
        found.append(("dense_layers", said.dense_layers, fix))
    if not said.router_scale > 0:
        found.append(("router_scale", said.router_scale, "write a number above 0"))
    widths = ("expert_ffn_dim", "shared_experts")
    return found + [(name, getattr(said, name), "write 0 or more") for name in widths if getattr(said, name) < 0]


def expert_problems(recipe: "LlamaRecipe") -> list[tuple[str, object, str]]:
    """As `feed_problems`, of what a recipe alone says: how its experts are trained."""
    if not recipe.experts and not recipe.init:  # whose folder may say experts
        plain = {field.name: field.default for field in fields(recipe)}
        given = [name for name in _OF_EXPERTS if getattr(recipe, name) != plain[name]]
        fix = "write experts too, or leave it out: without experts it is of no use"
        return [(name, getattr(recipe, name), fix) for name in given]
    names = ("balance_rate", "balance_loss", "place_experts_every", "expert_replicas")
    found = [(name, getattr(recipe, name), "write a number, 0 or more") for name in names if not getattr(recipe, name) >= 0]
    if recipe.expert_replicas > 0 and not recipe.place_experts_every:
        fix = "write place_experts_every too: replicas are made by the loads of the steps that it names"
        found.append(("expert_replicas", recipe.expert_replicas, fix))
    return found
