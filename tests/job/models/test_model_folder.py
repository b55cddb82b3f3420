"""Folders of models that cannot be read are refused with what is wrong, before any weight is."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from phalanx.core.errors import CheckpointError, SpecError, UserError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.lora import Lora
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.models.given import foreseen_init
from phalanx.job.models.hf_config import config_of, shape_of
from phalanx.job.models.hf_export import write_hf
from phalanx.job.models.llama import Llama, initialise
from phalanx.job.models.lora import adapt
from phalanx.job.models.model_config import read_shape
from phalanx.job.models.model_folder import ModelFolder
from phalanx.job.models.moe.mixture import mixtures
from phalanx.job.models.tensor_files import INDEX, WEIGHTS

SHAPE = LlamaShape(vocab=31, dim=16, layers=2, heads=4, kv_heads=2, ffn_dim=24, rope_base=500_000.0)
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def model() -> Llama:
    made = Llama(SHAPE)
    for name, part in made.named_children():
        initialise(part, name, 0, 0.3)
    return made


def write(to: Path, model: Llama, file_bytes_max: int = 10**9) -> Path:
    write_hf(to, model, "float32", {}, 64, 0, file_bytes_max)
    return to


def read(folder: Path) -> dict[str, Tensor]:
    opened = ModelFolder(folder)
    model = Llama(opened.shape)
    for name, part in model.named_children():
        opened.fill(part, name)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def same(one: Mapping[str, Tensor], other: Llama) -> bool:
    return all(torch.equal(one[name], weight) for name, weight in other.named_parameters())


@pytest.mark.parametrize(("file_bytes_max", "files"), [(10**9, 1), (4000, 6)])
def test_what_is_written_is_read_again_from_one_file_or_several(
    model: Llama, tmp_path: Path, file_bytes_max: int, files: int
) -> None:
    folder = write(tmp_path / "out", model, file_bytes_max)
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(found) == files and (found == [WEIGHTS]) == (files == 1) == (not (folder / INDEX).exists())
    assert all(len(load_file(folder / name)) == 1 or (folder / name).stat().st_size < 4000 + 1500 for name in found) or files == 1
    assert read_shape(folder) == SHAPE and same(read(folder), model)
    assert list(tmp_path.iterdir()) == [folder]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_a_folder_of_our_own_is_read_by_its_own_names(model: Llama, tmp_path: Path) -> None:
    save_file({name: weight.detach() for name, weight in model.named_parameters()}, tmp_path / WEIGHTS)
    shape = {"vocab": 31, "dim": 16, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 24, "rope_base": 500_000.0}
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "recipe": "llama", "shape": shape}))
    assert same(read(tmp_path), model)
    shape["heads"] = 3
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "recipe": "llama", "shape": shape}))
    with pytest.raises(CheckpointError, match="no model can have"):
        ModelFolder(tmp_path)


def test_a_mixture_of_experts_of_our_own_comes_back_with_its_biases_and_places(tmp_path: Path) -> None:
    shape = LlamaShape(vocab=31, dim=16, layers=2, heads=4, ffn_dim=24, experts=4, expert_ffn_dim=8, dense_layers=1)
    model = Llama(shape)
    for name, part in model.named_children():
        initialise(part, name, 0, 0.3)
    (mixture,) = mixtures(model)
    mixture.router.bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    mixture.slots.copy_(torch.tensor([2, 0, 3, 1]))
    save_file(model.state_dict(), tmp_path / WEIGHTS)
    config = {"format": 1, "recipe": "llama", "shape": asdict(shape)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    opened, again = ModelFolder(tmp_path), Llama(shape)
    for name, part in again.named_children():
        opened.fill(part, name)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
    with pytest.raises(UserError, match="mixture of experts"):
        write(tmp_path / "out", model)
    (tmp_path / "config.json").write_text(json.dumps({**config, "shape": {**asdict(shape), "experts_per_token": 5}}))
    with pytest.raises(CheckpointError, match="no model can have"):
        ModelFolder(tmp_path)


@pytest.mark.parametrize(
    "slots",
    [torch.tensor([2, 0, 3, 3]), torch.tensor([2, 0, 4, 1]), torch.tensor([2, 0, -1, 1]), torch.tensor([2.0, 0, 3, 1]),
     torch.tensor([2, 0, 3, 1], dtype=torch.int32)],
    ids=["twice", "beyond", "negative", "float", "int32"],
)  # fmt: skip
def test_places_of_experts_that_are_none_are_refused_by_name(tmp_path: Path, slots: Tensor) -> None:
    shape = LlamaShape(vocab=31, dim=16, layers=2, heads=4, ffn_dim=24, experts=4, expert_ffn_dim=8, dense_layers=1)
    name = "blocks.1.feed.slots"
    save_file({**Llama(shape).state_dict(), name: slots}, tmp_path / WEIGHTS)
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "recipe": "llama", "shape": asdict(shape)}))
    with pytest.raises(CheckpointError, match=rf"{name} in .* each number from 0 to 3 once, as int64"):
        ModelFolder(tmp_path)


def test_bf16_weights_are_read_as_the_float32_that_they_are(model: Llama, tmp_path: Path) -> None:
    halves = Llama(SHAPE)
    halves.load_state_dict({name: weight.bfloat16().float() for name, weight in model.state_dict().items()})
    folder = write(tmp_path / "out", model)
    cut = {name: weight.bfloat16() for name, weight in load_file(folder / WEIGHTS).items()}
    save_file(cut, folder / WEIGHTS)
    assert same(read(folder), halves)


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS)

    return act


def config(**changed: Any) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        found = json.loads((folder / "config.json").read_text()) | changed
        (folder / "config.json").write_text(json.dumps({name: value for name, value in found.items() if value != "gone"}))

    return act


def index(weight_map: object) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "a.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    return act


def only_pickles(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def twice(folder: Path) -> None:
    save_file({Q_PROJ: torch.zeros(16, 16)}, folder / "b.safetensors")
    index({"x": "a.safetensors", Q_PROJ: "b.safetensors"})(folder)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (tensors(lambda found: found.pop(Q_PROJ)), f"lacks these .* {Q_PROJ}"),
        (tensors(lambda found: found.update({"model.layers.7.x": torch.zeros(1)})), "has these .* model.layers.7.x"),
        (tensors(lambda found: found.update({Q_PROJ: torch.zeros(8, 16)})), rf"shape of {Q_PROJ} .*\[8, 16\].*\[16, 16\]"),
        (tensors(lambda found: found.update({Q_PROJ: torch.zeros(16, 16).to(torch.int8)})), "'I8'.* one of F32, BF16, F16"),
        (config(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel.*known are LlamaForCausalLM, MistralForCausalLM, Qwen2"),
        (config(architectures="gone"), "architectures"),
        (config(architectures=[["LlamaForCausalLM"]]), "architectures .*is no architecture known here"),
        (config(num_hidden_layers=3), "lacks these tensors.* and 6 more"),
        (config(num_hidden_layers=10**9), "num_hidden_layers .*whole number from 1 to 10000"),
        (config(hidden_size="16"), "hidden_size .*whole number"),
        (config(num_key_value_heads=3), "write one of 1, 2, 4"),
        (config(rms_norm_eps="gone"), "rms_norm_eps .*is needed"),
        (config(hidden_act="gelu"), "hidden_act .*'gelu'.* only 'silu'"),
        (config(attention_bias=True), "attention_bias"),
        (config(quantization_config={"bits": 4}), "quantization_config"),
        (config(layer_types=["sliding_attention", "full_attention"]), "layer_types"),
        (config(architectures=["MistralForCausalLM"], sliding_window=4096), "sliding_window .*4096"),
        (config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope_type .*'yarn'.*known are default, llama3"),
        (config(head_dim="gone", hidden_size=18), "no multiple of num_attention_heads"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json.*is not JSON"),
        (lambda folder: (folder / "config.json").unlink(), "config.json cannot be read"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"PK" * 99), f"{WEIGHTS}.*cannot be read as safetensors"),
        (only_pickles, "only safetensors are read"),
        (index({"x": "../a.safetensors"}), "no safetensors file in the folder"),
        (index({"x": "a.bin"}), "no safetensors file in the folder"),
        (index({"x": "b.safetensors"}), "b.safetensors.*cannot be read"),
        (index([]), "has no weight_map"),
        (twice, f"has {Q_PROJ} twice"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(
    model: Llama, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    folder = write(tmp_path / "out", model)
    damage(folder)
    with pytest.raises(CheckpointError, match=f"(?s){said}"):
        ModelFolder(folder)


def test_buffers_that_older_files_hold_are_no_extra_weights(model: Llama, tmp_path: Path) -> None:
    folder = write(tmp_path / "out", model)
    tensors(lambda found: found.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}))(folder)
    assert same(read(folder), model)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {}),
        ({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                           "original_max_position_embeddings": 32}}, {"rope_factor": 8.0, "rope_trained": 32}),
        ({"rope_theta": None}, {"rope_base": 10_000.0}),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, {"rope_base": 7.0}),
        ({"num_key_value_heads": None}, {"kv_heads": 4}),
        ({"architectures": ["MistralForCausalLM"]}, {}),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9}, {"qkv_bias": True}),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": None}, {"qk_norm": True, "head_dim": 128}),
        ({"tie_word_embeddings": True}, {"tied": True}),
    ],
)  # fmt: skip
def test_configurations_of_old_and_new_libraries_are_read(changed: dict[str, Any], expected: dict[str, Any]) -> None:
    from dataclasses import replace

    assert shape_of(config_of(SHAPE, 64, "float32", None) | changed, "here") == replace(SHAPE, **expected)


def test_a_folder_is_looked_at_before_a_job_waits(model: Llama, tmp_path: Path) -> None:
    seen, warnings = foreseen_init(LlamaRecipe(init=str(write(tmp_path / "out", model))))
    assert isinstance(seen, LlamaRecipe) and seen.shape(1) == SHAPE and warnings == ()
    seen, warnings = foreseen_init(LlamaRecipe(init=str(tmp_path / "none")))
    assert seen is None and warnings == (
        f"init {tmp_path}/none is not there on this machine; if the machines of its ranks have it, all is well",
    )
    config(architectures=["GPT2LMHeadModel"])(tmp_path / "out")
    with pytest.raises(CheckpointError, match="known are LlamaForCausalLM"):
        foreseen_init(LlamaRecipe(init=str(tmp_path / "out")))


def test_a_model_of_other_layers_is_neither_written_nor_adapted(tmp_path: Path) -> None:
    other = Llama(SHAPE)
    other.blocks[1].set_submodule("feed.gate", torch.nn.Bilinear(2, 2, 2))
    with pytest.raises(UserError, match=r"blocks\.1\.feed\.gate\.bias"):
        write(tmp_path / "out", other)
    with pytest.raises(SpecError, match=r"lora_targets: 'gate_proj': blocks of this model have no plain feed\.gate"):
        adapt(other, Lora(rank=2, alpha=2, targets=("gate_proj",)))
    assert not (tmp_path / "out").exists()


def test_the_digest_is_of_the_weights(model: Llama, tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, model) for name in ("one", "two"))
    assert ModelFolder(one).digest() == ModelFolder(two).digest()
    tensors(lambda found: found[Q_PROJ].neg_())(two)
    assert ModelFolder(one).digest() != ModelFolder(two).digest()


def test_an_export_replaces_nothing_and_leaves_nothing_half(model: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "out", model)
    before = sorted(path.read_bytes() for path in folder.iterdir())
    with pytest.raises(UserError, match="is there already"):
        write(folder, model)
    assert sorted(path.read_bytes() for path in folder.iterdir()) == before
    with pytest.raises(TypeError):
        write_hf(tmp_path / "new", model, "float32", {"tokenizer.json": cast(bytes, None)}, 64, 0)
    assert list(tmp_path.iterdir()) == [folder]
