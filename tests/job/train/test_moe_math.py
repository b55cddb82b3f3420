"""The mixture of experts against plain references; no gang."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from phalanx.core.errors import SpecError
from phalanx.core.lora import Lora
from phalanx.core.moe import MoeShape, moe_of
from phalanx.core.recipe import LlamaRecipe
from phalanx.fabric.layouts import Layout
from phalanx.job.models.llama import FeedForward, Llama, LlamaShape, initialise
from phalanx.job.models.lora import adapt
from phalanx.job.models.moe.grouped import grouped, has_kernel, one_by_one
from phalanx.job.models.moe.mixture import Mixture, mixtures, reset_buffers
from phalanx.job.models.moe.parted import grouped_in_parts
from phalanx.job.models.moe.router import Router, sequence_loss
from phalanx.job.train.balance import bias_change
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel.mesh import compiles_parts, uncompiled
from phalanx.job.train.place_experts import parts
from phalanx.job.train.sizes import active_parameters, causal_flops_per_token, flops_per_token, num_parameters

DIM = 16
MOE = MoeShape(experts=6, per_token=2, ffn_dim=12)
SHAPE = LlamaShape(
    vocab=31, dim=DIM, layers=3, heads=2, ffn_dim=24, experts=6, expert_ffn_dim=12, shared_experts=1, dense_layers=1
)  # fmt: skip


def seeded(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def a_mixture(shape: MoeShape = MOE, std: float = 0.4) -> Mixture:
    plain = LlamaShape(vocab=1, dim=DIM, layers=1, heads=1, ffn_dim=1)
    mixture = Mixture(DIM, shape, lambda width: FeedForward(replace(plain, ffn_dim=width)))
    initialise(mixture, "mixture", 0, std)
    return mixture


def plainly(mixture: Mixture, x_bsd: Tensor) -> Tensor:
    """Token by token, expert by expert."""
    shape, rows = mixture.shape, []
    for x in x_bsd.flatten(0, 1):
        answers = mixture.router.weight @ x
        scores = answers.softmax(0) if shape.score == "softmax" else 1 / (1 + torch.exp(-answers))
        chosen = sorted(range(shape.experts), key=lambda e: float((scores[e] + mixture.router.bias[e]).detach()), reverse=True)
        chosen = chosen[: shape.per_token]
        total = sum(scores[e] for e in chosen) if shape.normalise else 1.0
        row = torch.zeros_like(x)
        for e in chosen:
            gate, up = (x @ mixture.experts.gate_up[e]).chunk(2)
            row = row + shape.scale * scores[e] / total * ((F.silu(gate) * up) @ mixture.experts.down[e])
        rows.append(row if mixture.shared is None else row + mixture.shared(x))
    return torch.stack(rows).view_as(x_bsd)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("normalise", "scale", "shared"), [(True, 1.0, 0), (False, 2.5, 2)])
def test_a_mixture_and_its_gradients_are_those_of_each_token_alone(score: str, normalise: bool, scale: float, shared: int) -> None:
    shape = MoeShape(experts=6, per_token=2, ffn_dim=12, score=score, normalise=normalise, scale=scale, shared=shared)  # type: ignore[arg-type]
    mixture = a_mixture(shape).double()
    mixture.router.bias += seeded(6, seed=9).double() / 10
    x_bsd = seeded(3, 5, DIM).double().requires_grad_()
    ours, plain = mixture(x_bsd), plainly(mixture, x_bsd)
    torch.testing.assert_close(ours, plain)
    wanted = (x_bsd, *mixture.parameters())
    for one, other in zip(gradients(ours, wanted), gradients(plain, wanted), strict=True):
        torch.testing.assert_close(one, other)


def gradients(y: Tensor, wanted: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weight = seeded(*y.shape, seed=1).to(y.dtype)
    return torch.autograd.grad((y * weight).sum(), wanted)


def test_float32_is_near_float64() -> None:
    mixture, x_bsd = a_mixture(), seeded(4, 8, DIM)
    near = mixture(x_bsd)
    torch.testing.assert_close(near, plainly(mixture.double(), x_bsd.double()).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("counts", [[3, 0, 5, 1], [0, 0, 9, 0], [9, 0, 0, 0], [3, 1, 4, 1]])
@pytest.mark.parametrize(("dim", "width"), [(16, 24), (5, 3)])
def test_the_kernel_gives_what_a_product_for_each_expert_does(dtype: torch.dtype, counts: list[int], dim: int, width: int) -> None:
    """Sizes that are no multiple of what the kernel's strides have to be, and experts without a row, too."""
    x, weight, count = seeded(9, dim).to(dtype), seeded(4, dim, width, seed=1).to(dtype), torch.tensor(counts)
    assert has_kernel(x)
    wanted = (x.requires_grad_(), weight.requires_grad_())
    ours, plain = grouped(x, weight, count, all_used=0 not in counts), one_by_one(x, weight, count)
    near = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours, plain, rtol=near, atol=near)
    of_x, of_weight = gradients(ours, wanted)
    for one, other in zip((of_x, of_weight), gradients(plain, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=near, atol=near)
    assert not of_weight[count == 0].any()


@pytest.mark.parametrize("mean_over", [1, 3])
def test_a_product_casts_weights_for_itself_and_gives_their_gradient_in_their_dtype(mean_over: int) -> None:
    """As if it were cast, computed and divided step by step."""
    x, weight, count = seeded(9, 16).bfloat16(), seeded(4, 16, 24, seed=1), torch.tensor([3, 0, 5, 1])
    cast = weight.bfloat16().requires_grad_()
    weight.requires_grad_()
    plain = grouped(x, cast, count)
    (of_cast,) = gradients(plain, (cast,))
    ours = grouped(x, weight, count, mean_over=mean_over)
    assert ours.dtype == torch.bfloat16 and ours.equal(plain)
    (of_weight,) = gradients(ours, (weight,))
    assert of_weight.dtype == torch.float32
    torch.testing.assert_close(of_weight, of_cast.float() / mean_over, rtol=1e-6, atol=0)


def test_gradients_of_experts_are_made_once_each_in_the_pass_that_wants_them() -> None:
    """A backward pass in two, as torch's pipelines part it: at no function of ours, which torch 2.11 cannot begin at."""
    mixture, x_bsd = a_mixture(MoeShape(experts=6, per_token=2, ffn_dim=12, shared=1)), seeded(3, 5, DIM).requires_grad_()
    mixture.router.loss_weight, weights = 0.1, dict(mixture.named_parameters())
    plain, above = mixture(x_bsd), seeded(3, 5, DIM, seed=1)
    of_x, *of_weights = torch.autograd.grad(plain, (x_bsd, *weights.values()), above)
    mixture.experts.parted = True
    ours = mixture(x_bsd)
    assert ours.equal(plain)
    with Products() as first:
        (its_x,), groups = stage_backward_input([ours], [above], [x_bsd], iter(weights.values()))
    assert not any(isinstance(node, BackwardCFunction) for group in groups for node in group["intermediates"])
    assert its_x is not None and its_x.equal(of_x) and all(weight.grad is None for weight in weights.values())
    with Products() as second:
        stage_backward_weight(iter(weights.values()), groups)
    assert (first.made, second.made) == (["grouped_product"] * 2, ["grouped_product_of_weight"] * 2)
    for weight, wanted in zip(weights.values(), of_weights, strict=True):
        assert weight.grad is not None and weight.grad.equal(wanted)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own base
    """Notes which of our products are made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "phalanx":
            self.made.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_in_parts_is_the_product_bit_by_bit(dtype: torch.dtype) -> None:
    x, count = seeded(9, 16).to(dtype).requires_grad_(), torch.tensor([3, 0, 5, 1])
    weight = seeded(4, 16, 24, seed=1).requires_grad_()
    plain, ours = grouped(x, weight, count, mean_over=3), grouped_in_parts(x, weight, count, mean_over=3)
    assert ours.equal(plain)
    for one, other in zip(gradients(ours, (x, weight)), gradients(plain, (x, weight)), strict=True):
        assert one.dtype == other.dtype and one.equal(other)
    with torch.no_grad():
        assert grouped_in_parts(x, weight, count).equal(plain)


def test_no_rows_at_all_give_gradients_of_zero() -> None:
    weight = seeded(4, 8, 12).requires_grad_()
    grouped(seeded(0, 8), weight, torch.zeros(4, dtype=torch.int64)).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None and not weight.grad.any()


def test_no_token_is_dropped_when_all_go_to_the_same_experts() -> None:
    mixture = a_mixture()
    mixture.router.bias[[1, 4]] += 100
    x_bsd = seeded(2, 8, DIM)
    y_bsd = mixture(x_bsd)
    assert mixture.router.load.tolist() == [0, 16, 0, 0, 16, 0]
    torch.testing.assert_close(y_bsd, plainly(mixture, x_bsd), rtol=1e-4, atol=1e-5)
    gradient = torch.autograd.grad(y_bsd.sum(), mixture.experts.down)[0]
    assert gradient[[0, 2, 3, 5]].eq(0).all() and gradient[[1, 4]].ne(0).any()


def test_loads_are_of_passes_that_train_and_count_once() -> None:
    mixture, x_bsd = a_mixture(), seeded(3, 4, DIM).requires_grad_()
    index_tk, _ = mixture.router(x_bsd)
    once = torch.bincount(index_tk.flatten(), minlength=6)
    assert not mixture.router.load.any(), "the choice alone is no work"
    mixture.eval()(x_bsd)
    assert not mixture.router.load.any()
    mixture.train()
    checkpoint(mixture, x_bsd, use_reentrant=False).sum().backward()  # computes it again
    assert mixture.router.load.equal(once)
    mixture(x_bsd)
    assert mixture.router.load.equal(2 * once)


def test_the_bias_falls_where_load_is_above_its_part_and_rises_below() -> None:
    assert bias_change(torch.tensor([4, 0, 2, 2]), 0.5).tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert bias_change(torch.tensor([10, 10, 11]), 0.5).tolist() == [0.5, 0.5, -0.5]
    big = 2**52  # of which a float64 has every unit, and a float32 none
    assert bias_change(torch.tensor([big, big + 1]), 1.0).tolist() == [1.0, -1.0]


def test_the_bias_makes_a_skewed_router_even_and_leaves_weights_alone() -> None:
    router, x_bsd = Router(DIM, MOE), seeded(8, 64, DIM)
    initialise(router, "router", 0, 0.2)
    x_bsd += 2.0 * router.weight[0].detach()
    loads = []
    for _ in range(300):
        router.load.zero_()
        index_tk, weight_tk = router(x_bsd)
        router.count(torch.bincount(index_tk.flatten(), minlength=6))
        router.bias += bias_change(router.load, 0.002)
        loads.append(float(router.load.max() / router.load.double().mean()))
    assert loads[0] > 1.8 and loads[-1] < 1.05
    scores_te = router.scores(x_bsd).flatten(0, 1).gather(1, index_tk)
    torch.testing.assert_close(weight_tk, scores_te / scores_te.sum(1, keepdim=True))


def test_the_loss_over_a_sequence_is_what_its_formula_says() -> None:
    scores_bse = seeded(2, 10, 6).sigmoid().double()
    index_bsk = scores_bse.topk(2, dim=-1).indices
    total = 0.0
    for scores_se, index_sk in zip(scores_bse, index_bsk, strict=True):
        for e in range(6):
            f = sum(e in row for row in index_sk.tolist()) * 6 / (2 * 10)
            p = float((scores_se[:, e] / scores_se.sum(1)).mean())
            total += f * p / 2
    assert float(sequence_loss(scores_bse, index_bsk)) == pytest.approx(total, rel=1e-12)
    even = torch.full((1, 6, 6), 0.5)
    assert float(sequence_loss(even, torch.arange(12).view(1, 6, 2) % 6)) == pytest.approx(1.0)


def test_the_loss_over_sequences_is_in_the_gradients_and_not_in_the_answers() -> None:
    router, x_bsd = Router(DIM, MOE), seeded(2, 7, DIM)
    initialise(router, "router", 0, 0.4)
    weight = seeded(14, 2, seed=3)
    _, plain_tk = router(x_bsd)
    scores_bse = router.scores(x_bsd)
    loss = sequence_loss(scores_bse, scores_bse.topk(2, dim=-1).indices)
    expected = torch.autograd.grad((plain_tk * weight).sum() + 0.25 * loss, router.weight)[0]
    router.loss_weight = 0.25
    _, ours_tk = router(x_bsd)
    assert ours_tk.equal(plain_tk)
    torch.testing.assert_close(torch.autograd.grad((ours_tk * weight).sum(), router.weight)[0], expected)


def test_experts_in_other_places_give_the_same_bits() -> None:
    one, other = a_mixture(), a_mixture()
    expert_s = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        for weight in other.experts.parameters():
            weight.copy_(weight[expert_s])
        other.slots[expert_s] = torch.arange(6)
    x_bsd = seeded(4, 9, DIM)
    assert one(x_bsd).equal(other(x_bsd))
    assert one.router.load.equal(other.router.load)


def test_a_model_of_mixtures_has_the_parameters_that_are_counted() -> None:
    model = Llama(SHAPE)
    assert len(list(mixtures(model))) == 2 and isinstance(model.blocks[0].feed, FeedForward)
    assert num_parameters(SHAPE) == sum(parameter.numel() for parameter in model.parameters())
    unused = 2 * (6 - 2) * 3 * DIM * 12
    assert active_parameters(SHAPE) == num_parameters(SHAPE) - unused
    dense = replace(SHAPE, experts=0)
    assert active_parameters(dense) == num_parameters(dense)
    assert (
        flops_per_token(SHAPE, 8) == 6 * (active_parameters(SHAPE) - 31 * DIM) + 6 * 3 * DIM * 8 == causal_flops_per_token(SHAPE, 8)
    )
    assert flops_per_token(dense, 8) - causal_flops_per_token(dense, 8) == 6 * 3 * DIM * 8


def test_a_model_without_memory_gets_the_same_first_weights_and_buffers() -> None:
    with torch.device("meta"):
        model = Llama(SHAPE)
    model.to_empty(device="cpu")
    for mixture in mixtures(model):  # whatever was in that memory
        mixture.router.bias.fill_(9.0)
        mixture.slots.fill_(9)
    reset_buffers(model)
    for name, part in model.named_children():
        initialise(part, name, 0, 0.2)
    plain = Llama(SHAPE)
    for name, part in plain.named_children():
        initialise(part, name, 0, 0.2)
    one, two = model.state_dict(), plain.state_dict()
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    assert [name.rpartition(".")[2] for name in one if "blocks.1" in name and name.endswith(("bias", "slots"))] == ["slots", "bias"]


def test_all_weights_of_mixtures_decay_and_train() -> None:
    model = Llama(SHAPE)
    for name, part in model.named_children():
        initialise(part, name, 0, 0.2)
    optimizer = make_adamw(model, LlamaRecipe(weight_decay=0.3))
    assert {parameter.dim(): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]} == {
        2: 0.3, 1: 0.0, 3: 0.3,
    }  # fmt: skip
    optimizer = make_adamw(model, LlamaRecipe(weight_decay=0.0))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    loss = nn.functional.cross_entropy(model(torch.arange(24).view(2, 12)).flatten(0, 1), torch.arange(24))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert [name for name, parameter in model.named_parameters() if parameter.equal(before[name])] == []


def test_a_recipe_s_mixture_and_its_model_s_are_one() -> None:
    assert moe_of(LlamaRecipe()) is None
    recipe = LlamaRecipe(experts=8, experts_per_token=3, shared_experts=1, router="softmax", router_scale=2.5)
    found = MoeShape(experts=8, per_token=3, ffn_dim=352, shared=1, score="softmax", scale=2.5)
    assert moe_of(recipe) == recipe.shape(31).moe == found


def test_adapters_are_refused_for_experts_and_compiling_where_tokens_travel() -> None:
    with pytest.raises(SpecError, match="experts have no adapters yet"):
        adapt(Llama(SHAPE), Lora(rank=2, alpha=4, targets=("q_proj",)))
    assert uncompiled(LlamaRecipe(experts=4), Layout(dp_shard=2, ep=2)).compile is False
    assert uncompiled(LlamaRecipe(activation_checkpointing="full"), Layout(cp=2)).compile is False
    assert uncompiled(LlamaRecipe(), Layout(cp=2)).compile == uncompiled(LlamaRecipe(experts=4), Layout()).compile == "auto"
    assert (
        uncompiled(LlamaRecipe(experts=4), Layout(tp=2)).compile is False
        and uncompiled(LlamaRecipe(), Layout(tp=2)).compile == "auto"
    )
    assert uncompiled(LlamaRecipe(), Layout(pp=2, schedule="zbv")).compile is False
    assert uncompiled(LlamaRecipe(), Layout(pp=2)).compile == "auto"
    layouts = Layout(dp_shard=2, ep=2), Layout(cp=2, ep=2), Layout(tp=2, ep=2), Layout(dp_shard=2)
    assert [compiles_parts(one) for one in layouts] == [True, False, False, False]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracer
def test_a_compiler_sees_one_graph() -> None:
    mixture, x_bsd = a_mixture(MoeShape(experts=6, per_token=2, ffn_dim=12, shared=1)), seeded(2, 8, DIM)
    mixture.router.loss_weight = 0.1
    plain = mixture(x_bsd)
    load = mixture.router.load.clone()
    compiled = torch.compile(mixture, fullgraph=True, backend="eager")
    ours = compiled(x_bsd)
    torch.testing.assert_close(ours, plain)
    assert mixture.router.load.equal(2 * load)
    wanted = tuple(mixture.parameters())
    for one, other in zip(gradients(ours, wanted), gradients(plain, wanted), strict=True):
        torch.testing.assert_close(one, other)


def test_moments_that_lie_elsewhere_are_carried_a_few_columns_at_a_time() -> None:
    moments = torch.zeros(4, 6, 5)
    found = parts(moments, torch.device("meta"), most=32)
    for part in found:
        assert part.numel() <= 32 and len(part) == 4
        part.add_(1)
    assert moments.eq(1).all() and len(found) == 4, "each element once, in place"
    assert parts(moments, moments.device, most=32)[0] is moments, "nothing is carried"
    assert len(parts(moments, torch.device("meta"), most=1)) == 30
