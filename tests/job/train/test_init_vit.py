"""What a run of images that begins with given weights takes of them, what it draws itself, and what its log says."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from phalanx.core.errors import CheckpointError, SpecError
from phalanx.core.training_data import DataSource
from phalanx.core.vit_recipe import VitRecipe
from phalanx.job.data.tars.pack import pack
from phalanx.job.models.tensor_files import WEIGHTS
from phalanx.job.models.vit import Vit, VitShape
from phalanx.job.models.vit_export import write_vit
from phalanx.job.train.initial_vit import first_vit_weights
from phalanx.job.train.opened import opened_images
from phalanx.job.train.recipe import recipe_of
from tests.job.data.image_folders import CLASSES, write_images

SHAPE = VitShape(image=8, patch=4, dim=16, layers=2, heads=2, classes=3)


@pytest.fixture(scope="module")
def given() -> Vit:
    made, generator = Vit(SHAPE), torch.Generator().manual_seed(0)
    for weight in made.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    return made


@pytest.fixture
def folder(given: Vit, tmp_path: Path) -> Path:
    write_vit(tmp_path / "given", given, "float32", CLASSES, "half")
    return tmp_path / "given"


def begun(folder: Path, **more: int | str) -> VitRecipe:
    recipe = recipe_of("vit", {"init": str(folder), "eval_batches": 0, **more})
    assert isinstance(recipe, VitRecipe)
    return recipe


@pytest.mark.parametrize(
    ("classes", "names", "why"),
    [
        (3, CLASSES, ""),
        (3, ("n1", "n2", "n3"), "; what is called 'cat' there is 'n1' in the data"),
        (3, ("dog", "cat", "eel"), "is new for 3 classes: the folder's is for the same in another order"),
        (5, (*CLASSES, "fox", "gnu"), "is new for 5 classes: the folder's is for 3"),
    ],
)
def test_all_but_a_head_of_other_classes_is_the_folder_s(
    given: Vit, folder: Path, caplog: pytest.LogCaptureFixture, classes: int, names: tuple[str, ...], why: str
) -> None:
    recipe = begun(folder)
    caplog.set_level(logging.INFO)
    first, model = first_vit_weights(recipe, classes, names, fresh=True), Vit(recipe.shape(classes))
    for name, part in model.named_children():
        first(part, name)
    assert all(torch.equal(weight, given.get_parameter(name)) for name, weight in model.named_parameters() if "head" not in name)
    is_new = why.startswith("is new")
    assert torch.equal(model.head.weight, torch.zeros(classes, 16) if is_new else given.head.weight)
    assert torch.equal(model.head.bias, torch.zeros(classes) if is_new else given.head.bias)
    (line,) = caplog.messages
    assert line.startswith(f"weights are those of {folder}") and line.endswith(why or "with its head for 3 classes")


def test_who_loads_a_checkpoint_reads_no_weights(folder: Path) -> None:
    recipe = begun(folder)
    (folder / WEIGHTS).unlink()
    part = torch.nn.Linear(2, 2)
    before = part.weight.clone()
    first_vit_weights(recipe, 3, CLASSES, fresh=False)(part, "head")
    assert torch.equal(part.weight, before)


def test_weights_that_do_not_fit_are_refused_before_anything_is_built(folder: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "images", each=3)
    data = DataSource(path=str(pack(tmp_path / "images", tmp_path / "data")))
    recipe = begun(folder)
    assert opened_images(data, recipe, threads=1).look.side == 8
    assert opened_images(data, replace(recipe, classes=4), threads=1).classes == 4
    with pytest.raises(SpecError, match=r"hyperparameters\.classes: 2: the data has 3"):
        opened_images(data, begun(folder, classes=2), threads=1)
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="only safetensors are read"):
        opened_images(data, recipe, threads=1)


def test_a_folder_that_is_no_model_of_images_is_refused_with_its_path(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}.*config.json cannot be read"):
        begun(tmp_path)
    with pytest.raises(SpecError, match="leave it out"):
        begun(folder, layers=3)
    with pytest.raises(SpecError, match="normalise: 'imagenet': write half"):
        begun(folder, normalise="imagenet")
