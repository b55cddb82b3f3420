"""A saved model as a folder that Hugging Face's libraries read, by the command that the platform runs."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from phalanx import app
from phalanx.core import wire
from phalanx.core.lora import Lora
from phalanx.core.vit_recipe import VitRecipe
from phalanx.core.vit_shape import VitShape
from phalanx.job.checkpoint.digest import weights_digest
from phalanx.job.models.llama import Llama, LlamaShape, initialise
from phalanx.job.models.lora import adapter_shapes
from phalanx.job.models.model_config import ADAPTER
from phalanx.job.models.model_folder import ModelFolder
from phalanx.job.models.vit import Vit
from phalanx.job.models.vit_folder import VitFolder
from phalanx.job.serve.export import main
from phalanx.storage.hashes import sha256_file
from tests.job.serve.conftest import SHAPE


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that `app` would start, without the seconds that torch's import takes."""

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        at = argv.index("phalanx.job.serve.export")
        return subprocess.CompletedProcess(argv, main(argv[at + 1 :]))

    monkeypatch.setattr(subprocess, "run", run)


def test_a_saved_model_is_exported_with_its_tokenizer(folder: Path, tmp_path: Path) -> None:
    to = tmp_path / "new" / "out"
    assert app.export_model(folder, "", to, "hf", "float32") == 0
    opened = ModelFolder(to)
    model = Llama(opened.shape)
    for name, part in model.named_children():
        opened.fill(part, name)
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(weight, saved[name]) for name, weight in model.named_parameters())
    assert (to / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    said, generation, config = (
        json.loads((to / f"{name}.json").read_text()) for name in ("tokenizer_config", "generation_config", "config")
    )
    assert (said["eos_token"], said["model_max_length"], generation["eos_token_id"]) == ("<|endoftext|>", 8, 0)
    assert (config["architectures"], config["max_position_embeddings"]) == (["LlamaForCausalLM"], 8)


def test_half_of_it_in_bfloat16(folder: Path, tmp_path: Path) -> None:
    assert app.export_model(folder, "", tmp_path / "out", "hf", "bfloat16") == 0
    saved, cut = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert torch.equal(cut["lm_head.weight"], saved["output.weight"].bfloat16())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_weights_of_another_model_are_not_exported(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.export_model(folder, "0" * 64, tmp_path / "out", "hf", "float32") == 2
    assert capsys.readouterr().err.startswith("Error: weights is")
    assert app.export_model(folder, "", folder, "hf", "float32") == 2
    assert capsys.readouterr().err == f"Error: --to is '{folder}': is there already; name a folder that is not, or an empty one\n"
    assert not (tmp_path / "out").exists()


DOWN = "blocks.0.attention.out.adapters.o_proj.down.weight"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda tensors: tensors.update({DOWN: torch.zeros(3, 16)}), f"of {DOWN} it asks for [2, 16] and there is [3, 16]"),
        (lambda tensors: tensors.pop(DOWN), f"of {DOWN} it asks for [2, 16] and there is none"),
        (lambda tensors: tensors.update({"more": torch.zeros(1)}), "of more it asks for none and there is [1]"),
        (lambda tensors: None, ""),
    ],
)
def test_adapters_are_written_for_peft_only_where_they_fit_their_config(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    lora = Lora(rank=2, alpha=4.0, targets=("o_proj",))
    tensors = {name: torch.zeros(shape) for name, shape in adapter_shapes(LlamaShape(**SHAPE), lora).items()}
    damage(tensors)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    adapter = {"rank": 2, "alpha": 4.0, "targets": ["o_proj"], "base": "base", "base_digest": ""}
    (folder / "config.json").write_text(json.dumps({**config, ADAPTER: adapter, "weights_digest": weights_digest(tensors)}))
    assert app.export_model(folder, "", tmp_path / "out", "peft", "float32") == (2 if said else 0)
    assert said in capsys.readouterr().err and (tmp_path / "out").exists() == (not said)


def test_a_tied_model_of_grouped_queries_comes_out_as_qwen(folder: Path, tmp_path: Path) -> None:
    shape: dict[str, Any] = {
        "vocab": 300,
        "dim": 16,
        "layers": 1,
        "heads": 2,
        "kv_heads": 1,
        "ffn_dim": 24,
        "qk_norm": True,
        "tied": True,
    }
    model = Llama(LlamaShape(**shape))
    for name, part in model.named_children():
        initialise(part, name, 0, 0.5)
    tensors = {name: weight.detach() for name, weight in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    config = {
        "format": 1, "shape": shape, "config": {"sequence": 8}, "weights_digest": weights_digest(tensors),
        "tokenizer_sha256": sha256_file(folder / "tokenizer.json"), "end_of_document": 7,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert app.export_model(folder, weights_digest(tensors), tmp_path / "out", "hf", "float32") == 0
    assert ModelFolder(tmp_path / "out").shape == model.shape
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (said["architectures"], said["eos_token_id"]) == (["Qwen3ForCausalLM"], 7)


@pytest.fixture
def of_images(tmp_path: Path) -> Path:
    """A folder as the trainer writes it of a model of images, untrained."""
    folder, model = tmp_path / "vit", Vit(VitShape(image=8, patch=4, dim=16, layers=1, heads=2, classes=3))
    for weight in model.parameters():
        weight.data.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(weight.numel()))
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {
        "format": 1, "recipe": "vit", "shape": wire.plain(VitShape, model.shape), "classes": ["cat", "dog"],
        "config": wire.plain(VitRecipe, VitRecipe(normalise="imagenet")), "weights_digest": weights_digest(model.state_dict()),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_model_of_images_is_exported_with_what_is_made_of_an_image(of_images: Path, tmp_path: Path, dtype: str) -> None:
    digest = json.loads((of_images / "config.json").read_text())["weights_digest"]
    assert app.export_model(of_images, digest, tmp_path / "out", "hf", dtype) == 0
    opened, saved = VitFolder(tmp_path / "out"), load_file(of_images / "model.safetensors")
    model = Vit(opened.given.shape)
    for name, part in model.named_children():
        opened.fill(part, name)
    assert all(torch.equal(weight, saved[name].to(getattr(torch, dtype)).float()) for name, weight in model.named_parameters())
    assert opened.given.normalise == "imagenet"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["architectures"], config["torch_dtype"]) == (["ViTForImageClassification"], dtype)
    assert config["id2label"] == {"0": "cat", "1": "dog", "2": "LABEL_2"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "model.safetensors", "preprocessor_config.json",
    ]  # fmt: skip


def test_a_model_of_images_that_is_damaged_or_has_no_adapters_is_not_exported(
    of_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.export_model(of_images, "", tmp_path / "out", "peft", "float32") == 2
    assert "--format is 'peft'" in (said := capsys.readouterr().err) and "is of images, which has no adapters; write hf" in said
    assert app.export_model(of_images, "0" * 64, tmp_path / "out", "hf", "float32") == 2
    assert "its digest is" in capsys.readouterr().err
    tensors = load_file(of_images / "model.safetensors")
    save_file({**tensors, "head.bias": tensors["head.bias"] + 1}, of_images / "model.safetensors")
    assert app.export_model(of_images, "", tmp_path / "out", "hf", "float32") == 2
    assert "the file is damaged, or another model's" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
