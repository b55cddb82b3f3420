"""Mixtures of experts over a gang of four: run by `python -m` on four ranks; `test_expert_gang.py` reads how each case ended.

Everything is held against one process that has the whole batch, over 5 steps of two microbatches. Tolerances: losses 1e-6 and
gradients 1e-5 of the largest of each tensor, since sums of float32 are added up in other orders.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from phalanx.core.errors import DataError, SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import Zero
from phalanx.fabric.layouts import Layout
from phalanx.fabric.pipeline.actions import Kind
from phalanx.job.checkpoint.commit import Saved
from phalanx.job.checkpoint.digest import gathered, state_digest
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.restore import Found, find, load
from phalanx.job.checkpoint.rows import as_saved, rows_of
from phalanx.job.checkpoint.save import Identity, SavePolicy, save
from phalanx.job.checkpoint.state import training_state
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.models.llama import Llama, initialise
from phalanx.job.models.moe.mixture import gated, mixtures
from phalanx.job.models.parts import part_of, wide_part_of
from phalanx.job.sdk.journal import Bell, Journal
from phalanx.job.sdk.session import Session
from phalanx.job.train.balance import balance, begin_step, loads_of, loads_of_all, routers
from phalanx.job.train.device import Rank, gang, this_rank
from phalanx.job.train.expert_loads import ExpertLoads
from phalanx.job.train.expert_places import ExpertPlaces
from phalanx.job.train.loss import token_loss
from phalanx.job.train.offload import OffloadPlace
from phalanx.job.train.optimizer import lr_at, make_adamw, set_lr
from phalanx.job.train.parallel import make_mesh
from phalanx.job.train.parallel.experts import cut_experts, expert_mesh
from phalanx.job.train.parallel.mesh import stage_mesh
from phalanx.job.train.pipeline.build import laid_llama
from phalanx.job.train.pipeline.pipeline import Pipeline
from phalanx.job.train.pipeline.stage import RankPart
from phalanx.job.train.pipeline.whole import gathered_weights, tensors_of
from phalanx.job.train.place_experts import place_experts
from phalanx.job.train.precision import Dtype
from phalanx.job.train.recompute import recomputed
from phalanx.job.train.replicate_experts import replicate_experts, uneven_ranks
from phalanx.job.train.step import train_step
from tests.job.train.gang_cases import play
from tests.job.train.sends_noted import sends_of

RECIPE: Final = LlamaRecipe(
    dim=16, layers=2, heads=2, ffn_dim=24, sequence=12, batch_per_rank=2, accumulate=2, steps=5, warmup_steps=2, clip=1e9, lr=1e-2,
    init_std=0.2, experts=8, experts_per_token=2, shared_experts=1, expert_ffn_dim=8, dense_layers=0, balance_rate=0.01,
    balance_loss=0.01,
)  # fmt: skip
VOCAB: Final = 61
RANKS: Final = 4
PLAIN: Final = Layout(dp_shard=4)
EP2: Final = replace(PLAIN, ep=2)
EP4: Final = replace(PLAIN, ep=4)
CP2: Final = Layout(dp_shard=2, cp=2)
CP2_BY_HEADS: Final = replace(CP2, context="ulysses")
TP2: Final = Layout(dp_shard=2, tp=2)
CP2_TP2: Final = Layout(dp_shard=1, cp=2, tp=2)
PP2: Final = Layout(pp=2, dp_shard=2)
PARTED: Final = (
    Layout(pp=2, dp_shard=2, ep=2, schedule="zb1p"), Layout(pp=2, dp_replicate=2, zero=0, schedule="zbv"),
    Layout(pp=2, tp=2, ep=2, schedule="dualpipev"), Layout(pp=2, cp=2, ep=2, schedule="zb1p", stages_per_rank=2),
)  # fmt: skip
"""Whose schedules part the backward pass."""
PIPED: Final = (PP2, replace(PP2, ep=2), Layout(pp=2, cp=2, ep=2), Layout(pp=2, tp=2, ep=2), Layout(pp=2, dp_replicate=2, zero=0))
DEEP: Final = replace(RECIPE, layers=5, dense_layers=1)
"""Of which one rank's last stage, and the other's both, have mixtures."""
FINER: Final = replace(DEEP, accumulate=4, batch_per_rank=1)
"""The same samples in more microbatches, as many as any schedule asks for."""
ZEROS: Final[tuple[Zero, ...]] = (1, 2)
Setting = Callable[[nn.Module], None]
Made = tuple[Llama | RankPart, torch.optim.Optimizer, ExpertPlaces]


@dataclass
class Ran:
    """losses: of each step. gradients: whole ones of the last step. biases: after the last, (layers, experts). own: of a
    pipeline's rank, by the numbers of its mixtures."""

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    biases: Tensor = field(default_factory=lambda: torch.empty(0))
    loads: list[Tensor] = field(default_factory=list)
    own: dict[int, Tensor] | None = None


def samples_of(step: int) -> Tensor:
    """(accumulate, ranks x b, s + 1), skewed: some tokens are far more usual than others."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.rand(RECIPE.accumulate, RANKS * RECIPE.batch_per_rank, RECIPE.sequence + 1, generator=generator)
    return (drawn**3 * VOCAB).long()


def mine_of(step: int, rank: Rank, recipe: LlamaRecipe = RECIPE) -> Tensor:
    mine = samples_of(step).chunk(rank.data_size, dim=1)[rank.data_rank]
    return mine.reshape(recipe.accumulate, -1, recipe.sequence + 1)


def new_model(setting: Setting, recipe: LlamaRecipe) -> Llama:
    model = Llama(recipe.shape(VOCAB))
    for name, part in model.named_children():
        initialise(part, name, RECIPE.seed, RECIPE.init_std)
    setting(model)
    return model


def as_drawn(model: nn.Module) -> None:
    """Nothing set."""


def all_to_two(model: nn.Module) -> None:
    """Two experts of one rank get every token; six get none, and whole ranks no row."""
    for router in routers(model):
        router.bias[[0, 1]] += 100


@cache
def alone(setting: Setting, recipe: LlamaRecipe = RECIPE) -> Ran:
    """One process, the whole batch."""
    model, ran = new_model(setting, recipe), Ran()
    optimizer = make_adamw(model, RECIPE)
    for step in range(1, RECIPE.steps + 1):
        set_lr(optimizer, lr_at(step, RECIPE))
        begin_step(model, RECIPE.balance_loss / RECIPE.accumulate)
        total = 0.0
        for samples in samples_of(step):
            loss = token_loss(model, samples)
            (loss / RECIPE.accumulate).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach()) / RECIPE.accumulate
        ran.losses.append(total)
        ran.gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        optimizer.step()
        loads = [router.load.clone() for router in routers(model)]
        balance(model, RECIPE.balance_rate)  # all four have the same loads here
        ran.loads.append(torch.stack(loads))
        optimizer.zero_grad()
    ran.biases = torch.stack([router.bias for router in routers(model)])
    return ran


def sharded(
    layout: Layout,
    setting: Setting = as_drawn,
    recipe: LlamaRecipe = RECIPE,
    place: OffloadPlace | None = None,
    dtype: Dtype = "fp32",
) -> tuple[Llama | RankPart, torch.optim.Optimizer]:
    """As the trainer lays it out."""
    model = laid_llama(recipe.shape(VOCAB), recipe, rank_of(layout), mesh_of(layout), dtype, recipe.accumulate)
    setting(model)
    return model, make_adamw(model, RECIPE, place)


def rank_of(layout: Layout) -> Rank:
    return replace(this_rank(torch.device("cpu")), layout=layout)


def mesh_of(layout: Layout) -> DeviceMesh:
    return _mesh_of(replace(layout, ep=1, context="ring", schedule="1f1b", stages_per_rank=0))


@cache
def _mesh_of(layout: Layout) -> DeviceMesh:
    return make_mesh(rank_of(layout))


def whole_gradients(model: Llama | RankPart) -> dict[str, Tensor]:
    """As in checkpoints, of all stages."""
    rows, found = rows_of(model), {}
    for name, one in model.named_parameters():
        if one.grad is not None:
            gradient = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad.clone()
            found[name] = as_saved(gradient, rows[name]) if name in rows else gradient
    return {name: one for of_rank in told_by_all(found) for name, one in of_rank.items()} if isinstance(model, RankPart) else found


def train(
    model: Llama | RankPart,
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    steps: Sequence[int],
    ran: Ran,
    recipe: LlamaRecipe = RECIPE,
) -> None:
    rank = rank_of(layout)

    def accepts(step: int, loss: float, norm: float) -> bool:
        ran.losses.append(loss)
        if step in (1, RECIPE.steps):
            ran.gradients = whole_gradients(model)
            assert abs(norm - global_norm(ran.gradients)) <= 1e-5 * norm
        return True

    for step in steps:
        train_step(model, optimizer, lambda step: mine_of(step, rank, recipe), RECIPE, step, lambda: 0.0, accepts=accepts)
        loads = loads_of_all(model)
        assert loads is not None
        ran.loads.append(loads)
    ran.biases = torch.stack([router.bias for router in routers(model)])
    if isinstance(model, RankPart) and model.mixtures is not None:
        ran.own = dict(zip(model.mixtures.own, ran.biases, strict=True))


def global_norm(gradients: Mapping[str, Tensor]) -> float:
    return float(torch.stack([one.double().square().sum() for one in gradients.values()]).sum().sqrt())


@cache
def once(layout: Layout, setting: Setting = as_drawn) -> Ran:
    return trained(layout, setting)


def trained(layout: Layout, setting: Setting = as_drawn, recipe: LlamaRecipe = RECIPE) -> Ran:
    (model, optimizer), ran = sharded(layout, setting, recipe), Ran()
    train(model, optimizer, layout, range(1, RECIPE.steps + 1), ran, recipe)
    return ran


def check_same(ran: Ran, plain: Ran) -> None:
    torch.testing.assert_close(torch.tensor(ran.losses), torch.tensor(plain.losses), rtol=1e-6, atol=1e-6)
    assert ran.gradients.keys() == plain.gradients.keys()
    for name, one in ran.gradients.items():
        other = plain.gradients[name]
        off = float((one - other).abs().max() / other.abs().max().clamp(min=1e-9))
        assert off <= 1e-5, f"{name} is off by {off:.1e} of its largest"
    for one, other in zip(ran.loads, plain.loads, strict=True):
        assert one.equal(other), "loads are whole numbers"
    if ran.own is None:
        assert ran.biases.equal(plain.biases)
    else:
        found = {number: bias for of_rank in told_by_all(dict(ran.own)) for number, bias in of_rank.items()}
        assert torch.stack([found[number] for number in sorted(found)]).equal(plain.biases)


def case_data_parallel_equals_one_process(root: Path, rank: Rank) -> None:
    check_same(once(PLAIN), alone(as_drawn))


def case_T13_expert_parallel_2_x_2_equals_one_process(root: Path, rank: Rank) -> None:
    check_same(once(EP2), alone(as_drawn))


def case_T13_expert_parallel_4_equals_one_process(root: Path, rank: Rank) -> None:
    check_same(once(EP4), alone(as_drawn))


def case_T13_expert_parallel_2_in_each_of_2_groups_equals_one_process(root: Path, rank: Rank) -> None:
    check_same(trained(Layout(dp_replicate=2, dp_shard=2, ep=2)), alone(as_drawn))


def case_T13_expert_parallel_with_less_that_is_shared_equals_one_process(root: Path, rank: Rank) -> None:
    for zero in ZEROS:
        check_same(trained(replace(EP2, zero=zero)), alone(as_drawn))


def case_T13_experts_where_ranks_share_rows_equal_one_process(root: Path, rank: Rank) -> None:
    """Each expert's tokens are counted once, and the loss over sequences is that of whole ones."""
    for layout in (CP2, replace(CP2, ep=4), replace(CP2_BY_HEADS, ep=2), Layout(dp_replicate=2, cp=2, zero=0)):
        check_same(once(layout), alone(as_drawn))


def case_T13_experts_where_ranks_share_matrices_equal_one_process(root: Path, rank: Rank) -> None:
    """Gradients of routers and experts are added up once."""
    for layout in (TP2, replace(TP2, ep=2, zero=2), replace(TP2, ep=4), Layout(dp_replicate=2, tp=2, ep=2, zero=0)):
        check_same(once(layout), alone(as_drawn))


def case_T13_experts_where_ranks_share_rows_and_matrices_equal_one_process(root: Path, rank: Rank) -> None:
    for layout in (replace(CP2_TP2, ep=2), replace(CP2_TP2, ep=4)):
        check_same(once(layout), alone(as_drawn))
    again = trained(replace(CP2_TP2, ep=4), recipe=replace(RECIPE, activation_checkpointing="full"))
    check_same(again, alone(as_drawn))


def case_T13_experts_of_stages_equal_one_process(root: Path, rank: Rank) -> None:
    """A rank has mixtures of some layers, and hears of the loads of all."""
    for layout in PIPED:
        check_same(once(layout), alone(as_drawn))


def case_T13_mixtures_on_some_stages_alone_equal_one_process(root: Path, rank: Rank) -> None:
    again = replace(DEEP, activation_checkpointing="full")
    check_same(trained(replace(PP2, ep=2, schedule="interleaved"), recipe=again), alone(as_drawn, DEEP))


def case_T13_experts_whose_weights_have_a_pass_of_their_own_equal_one_process(root: Path, rank: Rank) -> None:
    """With every schedule that parts the backward pass; where blocks are computed again too."""
    for layout in PARTED:
        recipe = replace(FINER, activation_checkpointing="full" if layout.cp > 1 else "none")
        check_same(trained(layout, recipe=recipe), alone(as_drawn, DEEP))


def case_no_token_travels_in_a_pass_of_weights_that_is_put_off(root: Path, rank: Rank) -> None:
    """And the ranks of a stage send theirs in one order. The first stage has its whole backward pass there: it hands nothing on."""
    layout = replace(PP2, ep=2, schedule="zbv")
    model, _ = sharded(layout, recipe=FINER)
    assert isinstance(model, RankPart) and isinstance(model.passes, Pipeline)
    assert all(mixture.experts.parted for mixture in mixtures(model))
    sent = told_by_all(sends_of(model.passes, mine_of(1, rank_of(layout), FINER), mesh_of(layout)["pp"].get_group()))
    assert sent[0] == sent[1] and sent[2] == sent[3], "of the ranks of one stage"
    kinds = {(stage, kind) for kind, stage, _ in (*sent[0], *sent[2])}
    forward, late = {(stage, Kind.FORWARD) for stage in range(4)}, {(stage, Kind.INPUT) for stage in (1, 2, 3)}
    assert kinds == forward | late | {(0, Kind.WEIGHT)}


def case_a_rank_of_a_pipeline_tells_the_loads_of_all_layers_and_how_uneven_ranks_are_in_its_own(root: Path, rank: Rank) -> None:
    own, layout = root / str(rank.rank), replace(PP2, ep=2)
    own.mkdir(parents=True, exist_ok=True)
    model, optimizer = sharded(layout)
    train(model, optimizer, layout, (1,), Ran())
    session = Session(artifacts_dir=str(own), journal=Journal(own / "records", Bell("", 0, lambda: 0.0)))
    ExpertLoads(model, session, speaks=True, total_steps=1).stepped(1)
    told, stage = (own / "records").read_text(), layout.coordinates(rank.rank)["pp"]
    assert '"expert_imbalance.0"' in told and '"expert_imbalance.1"' in told
    assert f'"rank_imbalance.{stage}"' in told and f'"rank_imbalance.{1 - stage}"' not in told


def case_one_layout_gives_the_same_bits_again(root: Path, rank: Rank) -> None:
    for layout in (EP2, replace(CP2_TP2, ep=2)):
        one, two = once(layout), trained(layout)
        assert one.losses == two.losses and one.biases.equal(two.biases)
        assert all(one.gradients[name].equal(two.gradients[name]) for name in one.gradients)


def case_ranks_of_the_same_part_compute_the_same_bits(root: Path, rank: Rank) -> None:
    """So that silent corruption is looked for where each rank has all experts."""
    for layout in (CP2, TP2):
        model, optimizer = sharded(layout)
        begin_step(model, RECIPE.balance_loss)
        table = gathered(recomputed(model, optimizer, samples_of(1)[0][:2])[1])
        parts = [table[other] for other in range(RANKS) if layout.model_rank(other) == layout.model_rank(rank.rank)]
        assert len(parts) == 2 and parts[0] == parts[1]


def case_gradients_of_what_tensor_parallel_ranks_have_whole_are_added_up_in_float32(root: Path, rank: Rank) -> None:
    """And rounded once: of routers, whose scores are float32, and of adapters. So they are those of one process with all tokens."""
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    given = torch.randn(RANKS, 64, 16, generator=torch.Generator().manual_seed(0))
    for part, dtype in ((wide_part_of, torch.float32), (part_of, torch.bfloat16)):
        weight = nn.Parameter(distribute_tensor(torch.ones(64, 16, dtype=torch.bfloat16), mesh, [Replicate()]))
        used = part(weight)
        assert used.dtype == dtype
        (used * given[rank.rank].to(dtype)).sum().backward()  # type: ignore[no-untyped-call]
        exact = given.to(dtype).double().sum(dim=0).to(torch.bfloat16)
        assert isinstance(weight.grad, DTensor) and weight.grad.full_tensor().equal(exact)


def case_experts_that_nobody_chose_and_ranks_without_a_row(root: Path, rank: Rank) -> None:
    plain = alone(all_to_two)
    assert all(loads[:, 2:].sum() == 0 for loads in plain.loads), "and all tokens go to two"
    for layout in (EP2, EP4, replace(CP2_TP2, ep=4)):
        check_same(trained(layout, all_to_two), plain)


def case_experts_that_are_not_as_many_for_each_rank_are_refused(root: Path, rank: Rank) -> None:
    model = Llama(replace(RECIPE, experts=6).shape(VOCAB))
    try:
        cut_experts(model, expert_mesh(mesh_of(PLAIN), 4))
    except SpecError as error:
        assert "ep" in error.sentence() and "[1, 2, 3, 6]" in error.sentence(), error.sentence()
    else:
        raise AssertionError("6 experts over 4 ranks")


def case_a_checkpoint_goes_on_bit_by_bit_with_its_biases_and_in_other_layouts(root: Path, rank: Rank) -> None:
    both, piped = replace(CP2_TP2, ep=2), replace(PP2, ep=2)
    check_goes_on(root / "ep", EP2, rank, (EP2, EP4, replace(TP2, ep=4), piped))
    check_goes_on(root / "pp ep", piped, rank, (piped, EP2))
    check_goes_on(root / "cp tp ep", both, rank, (both, replace(CP2, ep=4), PLAIN))


def check_goes_on(root: Path, first: Layout, rank: Rank, others: Sequence[Layout]) -> None:
    undisturbed = once(first)
    (model, optimizer), ran = sharded(first), Ran()
    train(model, optimizer, first, (1, 2, 3), ran)
    place_experts(model, optimizer, [[5, 0, 2, 7, 1, 6, 4, 3]] * len(list(mixtures(model))))  # a part of the state too
    state, tensors = training_state(model, optimizer), tensors_of(model, optimizer, None)
    origin = Origin(config="c", data="d", world_size=RANKS, layout={"dp": RANKS})
    mesh = stage_mesh(mesh_of(first))
    identity = Identity(origin=origin, dtype="fp32", device=rank.device, mesh=mesh, tensors=tensors)
    done = save(SavePolicy(root=root / "saved", every=1), identity, 3, state, {})
    assert isinstance(done, Saved), done
    digest = state_digest(state, rank.device, mesh if tensors else None, tensors)
    assert not digest.odd
    saved = gathered_weights(model) if isinstance(model, RankPart) else {}
    for layout in others:
        (model, optimizer), again = sharded(layout, all_to_two), Ran()
        found = find(root / "saved", origin)
        assert found is not None
        tensors = tensors_of(model, optimizer, None)
        load(found, origin, model, optimizer, rank.device, tensors=tensors)
        alike = stage_mesh(mesh_of(layout)) if tensors else None
        assert state_digest(training_state(model, optimizer), rank.device, alike, tensors).text == digest.text
        if first.pp > 1 == layout.pp:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            whole = cast(dict[str, Tensor], get_model_state_dict(model, options=options))
            assert rank.rank or whole.keys() == saved.keys()
            assert all(one.equal(whole[name]) for name, one in saved.items()), "what a pipeline saves as the model"
        train(model, optimizer, layout, (4, 5), again)
        if layout == first:
            assert again.losses == undisturbed.losses[3:] and again.biases.equal(undisturbed.biases)
        else:
            torch.testing.assert_close(torch.tensor(again.losses), torch.tensor(undisturbed.losses[3:]), rtol=1e-6, atol=1e-6)


def case_experts_that_move_between_steps_change_no_bit_of_a_loss(root: Path, rank: Rank) -> None:
    for layout in (EP2, EP4, replace(CP2_TP2, ep=4), replace(PP2, ep=2)):
        undisturbed = once(layout)
        (model, optimizer), ran = sharded(layout), Ran()
        places, moved = ExpertPlaces(model, optimizer, every=2), []
        for step in range(1, RECIPE.steps + 1):
            train(model, optimizer, layout, (step,), ran)
            fullest = most_of_a_rank(model)
            moved.append(places.stepped(step))
            assert not moved[-1] or most_of_a_rank(model) < fullest
        assert moved[0] == moved[2] == moved[4] == 0 and max(told_by_all(moved[1])) > 0, moved
        assert [loss.hex() for loss in ran.losses] == [loss.hex() for loss in undisturbed.losses]
        assert ran.biases.equal(undisturbed.biases)
        for mixture in mixtures(model):
            assert mixture.slots.sort().values.equal(torch.arange(RECIPE.experts))


def case_moments_in_a_file_go_with_experts_that_move_and_change_no_bit_of_a_loss(root: Path, rank: Rank) -> None:
    (model, optimizer), ran = sharded(EP2, place=OffloadPlace(kind="nvme", folder=root.parent, node="n")), Ran()
    train(model, optimizer, EP2, (1, 2, 3), ran)
    assert place_experts(model, optimizer, [[5, 0, 2, 7, 1, 6, 4, 3]] * RECIPE.layers)
    train(model, optimizer, EP2, (4, 5), ran)
    assert ran.losses == once(EP2).losses and ran.biases.equal(once(EP2).biases)


def case_replicas_of_hot_experts_equal_one_process_and_level_what_ranks_compute(root: Path, rank: Rank) -> None:
    """Two experts of one rank get every token; other ranks compute a part of them, and some have no replica."""
    plain, again = alone(all_to_two), replace(RECIPE, activation_checkpointing="full")
    hot, few = [[1, 1, *[0] * 6]] * RECIPE.layers, [[3, 3, 2, 2, 2, 2, 1, 1]] * RECIPE.layers
    first = [[2, 1, *[0] * 6]] * RECIPE.layers  # of two ranks the other takes three quarters of its tokens
    for layout, recipe, loads, most in (
        (EP4, RECIPE, hot, 1.05), (EP2, RECIPE, first, 1.26), (replace(CP2_TP2, ep=4), again, hot, 1.05),
        (replace(EP4, zero=1), RECIPE, few, 2.7),  # the last rank alone helps the first
    ):  # fmt: skip
        (model, optimizer), ran = sharded(layout, all_to_two, recipe), Ran()
        assert replicate_experts(model, loads, spare=1) >= RECIPE.layers
        divided = {mixture.experts.mean_over for mixture in mixtures(model)}
        assert divided == {RANKS // layout.tp if layout.ep == RANKS else 1}, "gradients of copies too, where owners divide theirs"
        rows = counted_rows(model)
        train(model, optimizer, layout, range(1, RECIPE.steps + 1), ran)
        check_same(ran, plain)
        assert fullest_rank(rows) <= most, fullest_rank(rows)
        assert most_of_a_rank(model) == int(ran.loads[-1].sum()), "without them one rank would have all"


def case_experts_of_one_rank_alone_compute_in_bf16_as_those_that_are_cut_further(root: Path, rank: Rank) -> None:
    """Nobody gathers them: they are cast where they are used, or before copies are sent. Those that FSDP cuts are the reference."""
    found: list[Ran] = []
    for layout, spare in ((EP2, 0), (EP4, 0), (EP4, 1)):
        (model, optimizer), ran = sharded(layout, all_to_two, dtype="bf16"), Ran()
        if spare:
            assert replicate_experts(model, [[1, 1, *[0] * 6]] * RECIPE.layers, spare) >= RECIPE.layers
        wrapped = {isinstance(mixture.experts, FSDPModule) for mixture in mixtures(model)}
        assert wrapped == {layout == EP2}, "where each rank has its experts whole nobody shares them"
        train(model, optimizer, layout, (1,), ran)
        found.append(ran)
    for ran in found[1:]:
        torch.testing.assert_close(torch.tensor(ran.losses), torch.tensor(found[0].losses), rtol=2e-3, atol=0)
        for name, one in ran.gradients.items():
            other = found[0].gradients[name]
            assert one.dtype == torch.float32 and one.abs().max() > 0
            off = float((one - other).norm() / other.norm())
            assert off <= 2e-2, f"{name} is off by {off:.1e}"


def counted_rows(model: nn.Module) -> list[int]:
    """How many rows this rank's experts compute from here on, those that others lend it too."""
    rows = [0]

    def noted(gate_up_nf: Tensor) -> Tensor:
        rows[0] += len(gate_up_nf)
        return gated(gate_up_nf)

    for mixture in mixtures(model):
        mixture.experts.gated = noted
    return rows


def fullest_rank(rows: Sequence[int]) -> float:
    """Its rows over the mean."""
    each = [row[0] for row in gathered(torch.tensor(rows))]
    return max(each) * len(each) / sum(each)


def case_a_run_with_replicas_goes_on_bit_by_bit_and_in_other_layouts(root: Path, rank: Rank) -> None:
    root.mkdir(exist_ok=True)

    def part_of_a_run(layout: Layout, steps: Sequence[int], ran: Ran, at: Found | None = None) -> Made:
        model, optimizer = sharded(layout)
        places = ExpertPlaces(model, optimizer, every=2, spare=1)
        if at is not None:
            load(at, origin, model, optimizer, rank.device)
            places.restore(at.manifest.extra)
        for step in steps:
            train(model, optimizer, layout, (step,), ran)
            places.stepped(step)
        return model, optimizer, places

    origin = Origin(config="c", data="d", world_size=RANKS, layout={"dp": RANKS})
    undisturbed, first, again = Ran(), Ran(), Ran()
    whole, _, _ = part_of_a_run(EP4, (1, 2, 3, 4, 5), undisturbed)
    assert max(uneven_ranks(whole, undisturbed.loads[3].tolist())) < 1.1, "of the last look"
    session = Session(artifacts_dir=str(root), journal=Journal(root / "records", Bell("", 0, lambda: 0.0)))
    if rank.rank == 0:
        ExpertLoads(whole, session, speaks=True, total_steps=5).stepped(5)
        assert b'"rank_imbalance"' in (root / "records").read_bytes()
    check_same(undisturbed, alone(as_drawn))
    model, optimizer, places = part_of_a_run(EP4, (1, 2, 3), first)
    assert all(mixture.experts.exchange and mixture.experts.exchange.replicas for mixture in mixtures(model))
    identity = Identity(origin=origin, dtype="fp32", device=rank.device, mesh=mesh_of(PLAIN))
    done = save(SavePolicy(root=root / "saved", every=1), identity, 3, training_state(model, optimizer), places.numbers())
    assert isinstance(done, Saved), done
    found = find(root / "saved", origin)
    assert found is not None
    assert not any("replica" in name for name in training_state(model, optimizer)), "each expert is saved once"
    part_of_a_run(EP4, (4, 5), again, found)
    assert again.losses == undisturbed.losses[3:] and again.biases.equal(undisturbed.biases)
    assert all(again.gradients[name].equal(one) for name, one in undisturbed.gradients.items())
    for layout in (EP2, PLAIN):
        other = Ran()
        part_of_a_run(layout, (4, 5), other, found)
        torch.testing.assert_close(torch.tensor(other.losses), torch.tensor(undisturbed.losses[3:]), rtol=1e-6, atol=1e-6)


def most_of_a_rank(model: nn.Module) -> int:
    """Tokens of the fullest rank in the last step, over all layers, or those of this rank's stages."""
    loads_le, found = loads_of(model), 0
    assert loads_le is not None
    for mixture, load_e in zip(mixtures(model), loads_le, strict=True):
        assert mixture.experts.exchange is not None
        found += int(load_e[mixture.slots.argsort()].view(mixture.experts.exchange.group.size(), -1).sum(1).max())
    return found


def case_placements_that_cannot_be_are_refused_before_anything_moves(root: Path, rank: Rank) -> None:
    model, optimizer = sharded(EP2)
    plain, plain_optimizer = sharded(PLAIN)
    row = list(range(RECIPE.experts))
    for rows, named in (([row], "2 mixtures"), ([row, [0, *row[:-1]]], "layer 1"), ([[1, 0, *row[2:]], row[:-1]], "layer 1")):
        check_refused(lambda rows=rows: place_experts(model, optimizer, rows), named)  # type: ignore[misc]
    check_refused(lambda: place_experts(plain, plain_optimizer, [row, row]), "ep")
    assert all(mixture.slots.tolist() == row for mixture in mixtures(model))


def check_refused(act: Callable[[], object], named: str) -> None:
    try:
        act()
    except DataError as error:
        assert named in error.sentence(), error.sentence()
    else:
        raise AssertionError(f"not refused: {named}")


def main(folder: Path, chosen: Sequence[str]) -> None:
    with gang() as rank:
        play(globals(), folder, lambda case, own: case(own, rank), chosen)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
