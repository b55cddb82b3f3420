"""Folders of vision transformers: what is read, which head is kept, and what is refused before any weight is read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from phalanx.core import wire
from phalanx.core.errors import CheckpointError, SpecError
from phalanx.core.vit_recipe import VitRecipe
from phalanx.core.vit_shape import VitShape
from phalanx.job.models.given import foreseen_init, with_given
from phalanx.job.models.model_config import read_shape
from phalanx.job.models.tensor_files import INDEX, WEIGHTS
from phalanx.job.models.vit import Vit
from phalanx.job.models.vit_config import PREPROCESSOR, read_vit, why_new_head
from phalanx.job.models.vit_export import write_vit
from phalanx.job.models.vit_folder import VitFolder

SHAPE = VitShape(image=8, patch=4, dim=16, layers=2, heads=2, ffn_dim=24, classes=3, norm_epsilon=1e-12)
NAMES = ("cat", "dog", "eel")
QUERY = "vit.encoder.layer.1.attention.attention.query.weight"
HEAD = "classifier.weight"


@pytest.fixture(scope="module")
def model() -> Vit:
    made, generator = Vit(SHAPE), torch.Generator().manual_seed(0)
    for weight in made.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    return made


def write(to: Path, model: Vit, file_bytes_max: int = 10**9) -> Path:
    write_vit(to, model, "float32", NAMES, "half", file_bytes_max)
    return to


def own(to: Path, model: Vit, **changed: object) -> Path:
    """As a run saves it."""
    to.mkdir()
    save_file({name: weight.detach() for name, weight in model.named_parameters()}, to / WEIGHTS)
    shape = wire.plain(VitShape, model.shape)
    config = {"format": 1, "recipe": "vit", "shape": shape, "config": {"normalise": "imagenet"}, "classes": list(NAMES)}
    (to / "config.json").write_text(json.dumps({**config, **changed}))
    return to


def read(folder: Path) -> dict[str, Tensor]:
    opened = VitFolder(folder)
    model = Vit(opened.given.shape)
    for name, part in model.named_children():
        opened.fill(part, name)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def same(one: dict[str, Tensor], other: Vit) -> bool:
    return all(torch.equal(one[name], weight) for name, weight in other.named_parameters())


@pytest.mark.parametrize("file_bytes_max", [10**9, 4000])
def test_what_is_written_is_read_again_from_one_file_or_several(model: Vit, tmp_path: Path, file_bytes_max: int) -> None:
    folder = write(tmp_path / "out", model, file_bytes_max)
    assert (folder / INDEX).exists() == (len(list(folder.glob("*.safetensors"))) > 1) == (file_bytes_max == 4000)
    given = read_vit(folder)
    assert (given.shape, given.names, given.normalise, given.own) == (SHAPE, NAMES, "half", False)
    assert same(read(folder), model) and list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_our_own_is_read_by_its_own_names(model: Vit, tmp_path: Path) -> None:
    folder = own(tmp_path / "own", model)
    given = read_vit(folder)
    assert (given.shape, given.names, given.normalise, given.own) == (SHAPE, NAMES, "imagenet", True)
    assert same(read(folder), model)
    with pytest.raises(CheckpointError, match="is a model of images"):
        read_shape(folder)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"recipe": "llama"}, "is a model of language, and here a model of images is needed"),
        ({"shape": {**wire.plain(VitShape, SHAPE), "heads": 3}}, "no model can have"),
        ({"shape": {**wire.plain(VitShape, SHAPE), "layers": 10**9}}, "no model can have"),
        ({"shape": {**wire.plain(VitShape, SHAPE), "classes": 0}}, "no model can have"),
        ({"shape": {**wire.plain(VitShape, SHAPE), "classes": 4}}, r"shape of head.weight .*\[3, 16\].*\[4, 16\]"),
        ({"shape": 3}, "is not one of a saved model"),
        ({"config": {}}, "is not one of a saved model"),
    ],
)
def test_a_folder_of_our_own_that_is_damaged_is_refused(model: Vit, tmp_path: Path, changed: dict[str, object], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        VitFolder(own(tmp_path / "own", model, **changed))


def test_bf16_weights_are_read_as_the_float32_that_they_are(model: Vit, tmp_path: Path) -> None:
    write_vit(tmp_path / "out", model, "bfloat16", NAMES, "half")
    assert load_file(tmp_path / "out" / WEIGHTS)[QUERY].dtype == torch.bfloat16
    halves = {name: weight.detach().bfloat16().float() for name, weight in model.named_parameters()}
    assert all(torch.equal(weight, halves[name]) for name, weight in read(tmp_path / "out").items())


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS)

    return act


def config(file: str = "config.json", **changed: Any) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        found = json.loads((folder / file).read_text()) | changed
        (folder / file).write_text(json.dumps({name: value for name, value in found.items() if value != "gone"}))

    return act


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (tensors(lambda found: found.pop(QUERY)), f"lacks these .* {QUERY}"),
        (tensors(lambda found: found.pop(HEAD)), f"lacks these .* {HEAD}"),
        (tensors(lambda found: found.update({"vit.pooler.dense.bias": torch.zeros(1)})), "has these .* vit.pooler.dense.bias"),
        (tensors(lambda found: found.update({QUERY: torch.zeros(8, 16)})), rf"shape of {QUERY} .*\[8, 16\].*\[16, 16\]"),
        (tensors(lambda found: found.update({"vit.embeddings.cls_token": torch.zeros(16)})), r"cls_token .*\[16\].*\[1, 1, 16\]"),
        (tensors(lambda found: found.update({QUERY: torch.zeros(16, 16, dtype=torch.int8)})), "'I8'.* one of F32, BF16, F16"),
        (config(architectures=["DeiTForImageClassification"]), "architectures .*known are ViTForImageClassification, ViTModel"),
        (config(hidden_act="gelu_new"), "hidden_act .*'gelu_new'.* only 'gelu'"),
        (config(qkv_bias=False), "qkv_bias .*False.* only True"),
        (config(num_channels=1), "num_channels .*1.* only 3"),
        (config(quantization_config={"bits": 4}), "quantization_config"),
        (config(image_size=[8, 16]), r"image_size .*\[8, 16\].*whole number"),
        (config(image_size=[8, 8, 8]), r"image_size .*\[8, 8, 8\].*whole number"),
        (config(image_size=10), "image_size .*10.*multiple of patch"),
        (config(image_size=8192), "image_size .*whole number from 1 to 4096"),
        (config(image_size=16), r"position_embeddings .*\[1, 5, 16\].*\[1, 17, 16\]"),
        (config(patch_size=2), "different models"),
        (config(num_attention_heads=3), "hidden_size .*multiple of heads"),
        (config(num_hidden_layers=10**9), "num_hidden_layers .*whole number from 1 to 10000"),
        (config(layer_norm_eps="gone"), "layer_norm_eps .*is needed"),
        (config(layer_norm_eps=0), "layer_norm_eps .*above 0"),
        (config(layer_norm_eps=10**400), "layer_norm_eps .*above 0"),
        (config(id2label={"0": "cat"}), rf"shape of {HEAD} .*\[3, 16\].*\[1, 16\]"),
        (config(id2label="gone"), rf"shape of {HEAD} .*\[3, 16\].*\[2, 16\]"),  # transformers' own number
        (config(id2label=3), "id2label .*no mapping"),
        (config(PREPROCESSOR, image_mean=[0.48, 0.46, 0.41]), "image_mean and image_std of .* only .*half.*imagenet"),
        (config(PREPROCESSOR, image_std=0.5), "image_mean and image_std of .*not computed here"),
        (config(PREPROCESSOR, do_normalize=False), "do_normalize .*False"),
        (config(PREPROCESSOR, rescale_factor=1 / 127.5), "rescale_factor of .*not computed here"),
        (config(PREPROCESSOR, rescale_factor="much"), "rescale_factor of .*not computed here"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"), "only safetensors are read"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(model: Vit, tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    folder = write(tmp_path / "out", model)
    damage(folder)
    with pytest.raises(CheckpointError, match=f"(?s){said}"):
        VitFolder(folder)


def test_configurations_of_old_and_new_libraries_are_read(model: Vit, tmp_path: Path) -> None:
    folder = write(tmp_path / "out", model)
    config(qkv_bias="gone", num_channels="gone", image_size=[8, 8], patch_size=[4, 4], layer_norm_eps=1)(folder)
    config(PREPROCESSOR, do_rescale="gone", image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])(folder)
    given = read_vit(folder)
    assert given.shape == replace(SHAPE, norm_epsilon=1.0) and given.normalise == "imagenet"
    (folder / PREPROCESSOR).unlink()
    config(id2label={str(number): f"LABEL_{number}" for number in range(3)})(folder)
    assert (read_vit(folder).names, read_vit(folder).normalise) == ((), None)
    config(id2label="gone", num_labels=3)(folder)
    assert read_vit(folder).shape.classes == 3


def test_a_head_is_kept_for_as_many_classes_unless_they_are_the_same_in_another_order(model: Vit, tmp_path: Path) -> None:
    given = read_vit(write(tmp_path / "out", model))
    for names in (NAMES, (), ("n01", "n02", "n03")):
        assert why_new_head(given, 3, names) == ""
    assert why_new_head(given, 3, ("dog", "cat", "eel")) == "the folder's is for the same in another order"
    assert why_new_head(given, 4, NAMES) == "the folder's is for 3"
    assert why_new_head(replace(given, shape=replace(SHAPE, classes=0)), 3, NAMES) == "the folder has none"


def test_the_recipe_has_the_shape_of_the_folder_but_for_its_classes(model: Vit, tmp_path: Path) -> None:
    recipe = VitRecipe(init=str(write(tmp_path / "out", model)), eval_batches=0)
    known = with_given(recipe)
    assert isinstance(known, VitRecipe) and known.shape(classes=7) == replace(SHAPE, classes=7) and known.sequence == 5
    assert foreseen_init(recipe) == (known, ())
    assert foreseen_init(replace(recipe, init=str(tmp_path / "none")))[1][0].endswith(
        "if the machines of its ranks have it, all is well"
    )
    with pytest.raises(SpecError, match=r"hyperparameters\.prefetch_blocks: 3: write .* number of layers \(2\)"):
        with_given(replace(recipe, prefetch_blocks=3))
    with pytest.raises(SpecError, match=r"hyperparameters\.normalise: 'imagenet': write half: the model in .*out was trained on"):
        with_given(replace(recipe, normalise="imagenet"))
    (tmp_path / "out" / PREPROCESSOR).unlink()
    assert with_given(replace(recipe, normalise="imagenet")).init == recipe.init
