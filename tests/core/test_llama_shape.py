"""Shapes of Llama-like models: their counts, what no model can have, and that a recipe of before means what it meant."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.llama_shape import LlamaShape, flops_per_token, num_parameters
from phalanx.core.llama_sizes import SIZES
from phalanx.core.lora import TARGETS, Lora, num_lora_parameters
from phalanx.core.recipe import LlamaRecipe, config_text, written_out
from phalanx.core.spec_parse import anchored, parse_spec, recipe_config

TINY = LlamaShape(vocab=31, dim=16, layers=2, heads=4, ffn_dim=24)
JOB = {"name": "lm", "kind": "train", "recipe": "llama", "data": {"path": "/data"}}


@pytest.mark.parametrize(
    ("size", "count"),
    [  # as their makers give them
        ("llama-1b", 1_104_218_112), ("llama-7b", 7_241_732_096), ("llama-3-8b", 8_030_261_248), ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496), ("llama-3.2-1b", 1_235_814_400), ("llama-3.2-3b", 3_212_749_824),
        ("qwen2.5-0.5b", 494_032_768), ("qwen2.5-1.5b", 1_543_714_304), ("qwen2.5-7b", 7_615_616_512), ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976), ("qwen3-4b", 4_022_468_096), ("qwen3-8b", 8_190_735_360),
    ],
)  # fmt: skip
def test_known_sizes_have_the_parameters_that_their_makers_count(size: str, count: int) -> None:
    assert num_parameters(SIZES[size]()) == count
    assert not list(SIZES[size]().problems())


def test_every_size_is_tested() -> None:
    (mark,) = test_known_sizes_have_the_parameters_that_their_makers_count.pytestmark  # type: ignore[attr-defined]
    assert [size for size, _ in mark.args[1]] == list(SIZES)


def test_a_size_is_what_a_job_starts_from_and_its_own_fields_go_over_it() -> None:
    spec = parse_spec({**JOB, "hyperparameters": {"size": "qwen3-0.6b", "layers": 2, "lr": 0.001}})
    recipe = recipe_config(spec)
    assert recipe.shape(500) == replace(SIZES["qwen3-0.6b"](500), layers=2)
    assert (recipe.lr, recipe.init_std) == (0.001, 0.02)
    assert recipe_config(parse_spec({**JOB, "hyperparameters": {"vocab": 512}})).shape(500).vocab == 512


@pytest.mark.parametrize(
    ("given", "field", "fix"),
    [
        ({"size": "llama-9b"}, "size", "write one of llama-1b, llama-7b"),
        ({"heads": 6, "dim": 96, "kv_heads": 4}, "kv_heads", "write one of 1, 2, 3, 6"),
        ({"kv_heads": -1}, "kv_heads", "write 0 or more"),
        ({"head_dim": 15}, "head_dim", "even"),
        ({"dim": 130}, "dim", "as head_dim"),
        ({"rope_base": 0}, "rope_base", "above 0"),
        ({"rope_factor": 0.5}, "rope_factor", "above 1"),
        ({"rope_factor": 8, "rope_low": 4}, "rope_high", "above rope_low"),
        ({"rope_trained": 0}, "rope_trained", "above 0"),
        ({"norm_epsilon": 0}, "norm_epsilon", "above 0"),
        ({"qk_norm": True, "qkv_bias": True}, "qk_norm", "set one of them to false"),
        ({"lora_rank": 4}, "lora_rank", "name their folder as init"),
        ({"init": "/model", "lora_rank": -1}, "lora_rank", "write 0 for no adapters"),
        ({"init": "/model", "lora_rank": 4, "lora_alpha": -1}, "lora_alpha", "above 0"),
        ({"init": "/model", "lora_alpha": 8}, "lora_alpha", "write lora_rank too"),
        ({"init": "/model", "lora_targets": "q_proj"}, "lora_targets", "write lora_rank too"),
        ({"init": "/model", "lora_targets": "q_proj,qkv"}, "lora_targets", "write some of q_proj, k_proj.*, or all-linear"),
        ({"init": "/model", "lora_rank": 4, "dtype": "fp8"}, "dtype", "write bf16"),
        ({"init": "/model", "layers": 2}, "layers", "leave it out"),
        ({"init": "/model", "size": "llama-1b"}, "size", "leave it out"),
    ],
)
def test_an_impossible_shape_is_refused_at_submit(given: dict[str, object], field: str, fix: str) -> None:
    with pytest.raises(SpecError, match=fix) as refused:
        parse_spec({**JOB, "hyperparameters": given})
    assert refused.value.field == f"hyperparameters.{field}"


def test_the_folder_of_init_is_taken_from_where_the_job_file_lies(tmp_path: Path) -> None:
    spec = parse_spec({**JOB, "hyperparameters": {"init": "models/qwen"}})
    assert anchored(spec, tmp_path).hyperparameters["init"] == str(tmp_path.resolve() / "models/qwen")
    assert "init" not in anchored(parse_spec(JOB), tmp_path).hyperparameters


def test_what_adapters_are_asked_for() -> None:
    given = {"init": "/model", "lora_rank": 4, "lora_targets": "up_proj, q_proj"}
    lora = recipe_config(parse_spec({**JOB, "hyperparameters": given})).lora
    assert lora == Lora(rank=4, alpha=8, targets=("q_proj", "up_proj")) and lora.scale == 2
    assert num_lora_parameters(TINY, lora) == 2 * 4 * ((16 + 16) + (16 + 24))
    assert LlamaRecipe(init="/model").lora is None
    assert recipe_config(parse_spec({**JOB, "hyperparameters": {**given, "lora_targets": "all-linear"}})).lora.targets == TARGETS


def test_frozen_weights_have_no_gradients_to_compute() -> None:
    weights, attention = num_parameters(TINY) - 31 * 16, 12 * 2 * 16 * 8
    assert flops_per_token(TINY, 8) == 6 * weights + attention and flops_per_token(TINY, 8, frozen=True) == 4 * weights + attention


def test_a_recipe_has_each_field_of_the_shape_with_its_default() -> None:
    usual = {one.name: one.default for one in fields(LlamaRecipe)}
    own = {one.name: one.default for one in fields(LlamaShape) if one.name not in ("vocab", "dim", "layers", "heads", "ffn_dim")}
    assert {name: usual[name] for name in own} == own


def test_zeros_become_what_they_stand_for() -> None:
    assert (TINY.kv_heads, TINY.head_dim, TINY.q_dim, TINY.kv_dim) == (4, 4, 16, 16)
    assert wire.build(LlamaShape, {"vocab": 31, "dim": 16, "layers": 2, "heads": 4, "ffn_dim": 24}) == TINY  # as first saved
    assert wire.build(LlamaShape, wire.plain(LlamaShape, TINY)) == TINY


def test_a_tied_output_counts_once_and_works_as_often() -> None:
    tied = replace(TINY, tied=True)
    assert num_parameters(TINY) - num_parameters(tied) == 31 * 16
    assert flops_per_token(tied, 8) == flops_per_token(TINY, 8)


def test_attention_costs_by_the_width_of_all_heads() -> None:
    wide = replace(TINY, head_dim=8)
    assert (
        flops_per_token(wide, 8) - flops_per_token(TINY, 8) == 6 * (num_parameters(wide) - num_parameters(TINY)) + 12 * 2 * 16 * 8
    )


@pytest.mark.parametrize(
    ("recipe", "digest"),
    [
        (LlamaRecipe(), "00237f0325d88db6aa516e5ce6935af13aaf3e88cbeddf3faea35cd9744c7ac2"),
        (LlamaRecipe(dim=16, heads=2, lr=1e-5), "981d4693b67769da10f80534eef9fc1a5dfea0bb93b71793acbb59f92115b832"),
    ],
)
def test_checkpoints_of_before_are_of_the_same_configuration(recipe: LlamaRecipe, digest: str) -> None:
    """Digests of the first version, in which every field was written out."""
    assert hashlib.sha256(config_text(recipe).encode()).hexdigest() == digest


def test_another_shape_is_another_configuration() -> None:
    assert config_text(LlamaRecipe(kv_heads=2)) != config_text(LlamaRecipe()) == config_text(LlamaRecipe(**written_out({})))
