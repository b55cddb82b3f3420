"""The model and its numbers against plain references; no gang."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.checkpoint.manifest import Manifest, Origin
from phalanx.job.checkpoint.restore import Found
from phalanx.job.checkpoint.shard_file import SaveKey
from phalanx.job.models.llama import Attention, Llama, LlamaShape, initialise, rope_tables, rotate
from phalanx.job.train.device import Rank
from phalanx.job.train.mfu import mfu, peak_flops
from phalanx.job.train.optimizer import lr_at, make_adamw
from phalanx.job.train.precision import choose_dtype
from phalanx.job.train.recipe import llama_recipe
from phalanx.job.train.setup import dtype_of_run
from phalanx.job.train.sizes import flops_per_token, num_parameters

CPU = torch.device("cpu")
SHAPE = LlamaShape(vocab=31, dim=16, layers=2, heads=2, ffn_dim=24)


def filled(shape: LlamaShape = SHAPE, seed: int = 0, std: float = 0.2) -> Llama:
    model = Llama(shape)
    for name, part in model.named_children():
        initialise(part, name, seed, std)
    return model


def test_rotation_is_multiplication_by_a_unit_complex_number() -> None:
    x_bhsk = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x_bhsk, *rope_tables(5, 8, CPU))
    pairs = torch.complex(x_bhsk[..., :4], x_bhsk[..., 4:])
    angle = torch.arange(5.0)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2.0) / 8)
    expected = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), dim=-1))


def test_scores_depend_on_distance_alone() -> None:
    cos_sk, sin_sk = rope_tables(12, 8, CPU)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(1))
    scores = [
        float((rotate(q, cos_sk[a : a + 1], sin_sk[a : a + 1]) * rotate(k, cos_sk[b : b + 1], sin_sk[b : b + 1])).sum())
        for a, b in ((3, 1), (9, 7))
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_attention_and_its_gradient_match_a_plain_softmax() -> None:
    attention = Attention(SHAPE)
    initialise(attention, "attention", 0, 0.3)
    x_bsd = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    tables = rope_tables(6, 8, CPU)
    ours = attention(x_bsd, *tables)
    (ours_grad,) = torch.autograd.grad(ours.square().sum(), x_bsd)

    q, k, v = (part.view(2, 6, 2, 8).transpose(1, 2) for part in attention.qkv(x_bsd).split(16, dim=-1))
    scores = rotate(q, *tables) @ rotate(k, *tables).transpose(-1, -2) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    plain = attention.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 16))
    (plain_grad,) = torch.autograd.grad(plain.square().sum(), x_bsd)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours_grad, plain_grad, rtol=1e-4, atol=1e-4)


def test_the_default_shape_computes_bit_for_bit_what_it_did() -> None:
    """q, k and v as views of one [b, s, 3, h, k], as in the first version: losses of older runs stay the same."""

    class First(Attention):
        def forward(self, x_bsd: torch.Tensor, cos_sk: torch.Tensor, sin_sk: torch.Tensor, mask: object = None) -> torch.Tensor:
            batch, sequence, _ = x_bsd.shape
            q, k, v = self.qkv(x_bsd).view(batch, sequence, 3, 2, -1).permute(2, 0, 3, 1, 4)
            q, k = rotate(q, cos_sk, sin_sk), rotate(k, cos_sk, sin_sk)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            attended: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, sequence, -1))
            return attended

    x_bsd = torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(3))
    answers = []
    for kind in (First, Attention):
        attention = kind(SHAPE)
        initialise(attention, "attention", 0, 0.3)
        y = attention(x_bsd, *rope_tables(24, 8, CPU))
        y.square().sum().backward()
        answers.append((y, attention.qkv.weight.grad, attention.out.weight.grad))
    assert all(torch.equal(first, now) for first, now in zip(*answers, strict=True))


def test_grouped_queries_are_those_of_keys_and_values_that_stand_repeated() -> None:
    shape = LlamaShape(vocab=31, dim=16, layers=1, heads=4, kv_heads=2, ffn_dim=24, qkv_bias=True)
    grouped, plain = Attention(shape), Attention(replace(shape, kv_heads=4))
    initialise(grouped, "attention", 0, 0.3)
    with torch.no_grad():
        grouped.qkv.bias.normal_(0, 0.3, generator=torch.Generator().manual_seed(4))
        for ours, theirs in ((plain.qkv.weight, grouped.qkv.weight), (plain.qkv.bias, grouped.qkv.bias)):
            q, k, v = torch.split(theirs, [16, 8, 8])
            ours.copy_(torch.cat([q, *(part.view(2, 4, *part.shape[1:]).repeat_interleave(2, 0).flatten(0, 1) for part in (k, v))]))
        plain.out.weight.copy_(grouped.out.weight)
    x_bsd = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    for more in ((), (mask,)):
        tables = rope_tables(6, 4, CPU)
        torch.testing.assert_close(grouped(x_bsd, *tables, *more), plain(x_bsd, *tables, *more))


def test_biases_begin_as_zeros_and_norms_of_heads_as_ones() -> None:
    weights = dict(filled(replace(SHAPE, qkv_bias=True)).named_parameters())
    assert not weights["blocks.1.attention.qkv.bias"].any()
    weights = dict(filled(replace(SHAPE, qk_norm=True, tied=True)).named_parameters())
    assert torch.equal(weights["blocks.1.attention.k_norm.weight"], torch.ones(8)) and "output.weight" not in weights


@pytest.mark.parametrize("changed", [{"kv_heads": 1}, {"qkv_bias": True}, {"qk_norm": True, "head_dim": 6}, {"tied": True}])
def test_every_shape_is_counted(changed: dict[str, Any]) -> None:
    shape = replace(SHAPE, **{"head_dim": 0, "kv_heads": 0, **changed})
    assert num_parameters(shape) == sum(parameter.numel() for parameter in Llama(shape).parameters())


def test_no_position_sees_a_later_token() -> None:
    model = filled()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    changed = torch.tensor([[1, 2, 3, 9, 9]])
    torch.testing.assert_close(model(ids)[:, :3], model(changed)[:, :3])


def test_first_weights_depend_on_the_seed_and_their_name_alone() -> None:
    one, two, other = (dict(filled(seed=seed).named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["output.weight"], other["output.weight"])
    assert not torch.equal(one["blocks.0.attention.qkv.weight"], one["blocks.1.attention.qkv.weight"])
    assert torch.equal(one["norm.weight"], torch.ones(16))


def test_counts() -> None:
    demo = LlamaRecipe()
    shape = LlamaShape(vocab=4096, dim=demo.dim, layers=demo.layers, heads=demo.heads, ffn_dim=demo.ffn_dim)
    assert num_parameters(shape) == sum(parameter.numel() for parameter in Llama(shape).parameters()) == 1_852_544
    assert flops_per_token(shape, 64) == 6 * (1_852_544 - 4096 * 128) + 12 * 4 * 128 * 64


def test_mfu_is_zero_where_no_peak_is_known() -> None:
    assert mfu(1000.0, 10**6, peak_flops("cpu")) == 0.0
    assert peak_flops("a card that nobody sells") == 0.0
    assert mfu(50_000.0, 10**9, peak_flops("NVIDIA H100 80GB HBM3")) == pytest.approx(50_000e9 / 989.4e12)


def test_schedule_warms_up_then_falls_along_a_cosine() -> None:
    recipe = LlamaRecipe(lr=1.0, warmup_steps=10, steps=110, min_lr_ratio=0.1)
    assert [lr_at(step, recipe) for step in (1, 5, 10)] == [0.1, 0.5, 1.0]
    assert lr_at(60, recipe) == pytest.approx(0.55)
    assert lr_at(110, recipe) == pytest.approx(0.1)
    assert lr_at(1, LlamaRecipe(lr=1.0, warmup_steps=0, steps=1, min_lr_ratio=0.5)) == pytest.approx(0.5)
    assert lr_at(7, LlamaRecipe(lr=1.0, warmup_steps=7, steps=7)) == 1.0


def test_only_matrices_decay() -> None:
    optimizer = make_adamw(filled(), LlamaRecipe(weight_decay=0.3))
    decays = {parameter.dim(): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert decays == {2: 0.3, 1: 0.0}


@pytest.mark.parametrize(("has_units", "chosen"), [(False, "fp32"), (True, "bf16")])
def test_the_arithmetic_is_read_off_the_processor(monkeypatch: pytest.MonkeyPatch, has_units: bool, chosen: str) -> None:
    """It was measured: beside other work two runs of one job on one machine came to different answers, and to different losses."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_units)
    assert choose_dtype("auto", CPU) == chosen
    assert choose_dtype("auto", torch.device("cuda", 0)) == "bf16"
    assert choose_dtype("fp32", torch.device("cuda", 0)) == "fp32" and choose_dtype("bf16", CPU) == "bf16"


@pytest.mark.parametrize("has_units", [False, True])
def test_a_resume_computes_as_its_checkpoint_did_on_any_machine(monkeypatch: pytest.MonkeyPatch, has_units: bool) -> None:
    origin = Origin(config="c", data="d", world_size=1, layout={"dp": 1})
    manifest = Manifest(key=SaveKey(step=1, save="a"), origin=origin, dtype="bf16", extra={}, indexes=())
    rank = Rank(rank=0, world_size=1, device=CPU, device_name="cpu")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_units)
    for written in ("bf16", "fp32"):
        found = Found(path="x", digest="", manifest=replace(manifest, dtype=written), skipped=())
        assert dtype_of_run(found, LlamaRecipe(dtype="auto"), rank) == written


def test_hyperparameters_are_checked() -> None:
    assert llama_recipe({"lr": 1, "steps": 3, "warmup_steps": 1}).lr == 1.0
    with pytest.raises(SpecError, match="heads"):
        llama_recipe({"dim": 30})
    with pytest.raises(SpecError, match="learning_rate"):
        llama_recipe({"learning_rate": 1})
