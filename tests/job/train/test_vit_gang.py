"""Two ranks train a vision transformer on packed images: every kind of data parallelism against one process, and a run that went on
from a checkpoint against one that nothing disturbed, bit by bit."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shapes
import torch
from safetensors.torch import load_file

from phalanx.core import wire
from phalanx.core.errors import CheckpointError
from phalanx.core.vit_recipe import VitRecipe
from phalanx.core.vit_shape import VitShape
from phalanx.job.checkpoint import manifest
from phalanx.job.data.audit_folder import audit_folder
from phalanx.job.data.tars.pack import pack
from phalanx.job.models.model_config import read_shape
from phalanx.job.models.tensor_files import TensorFiles
from phalanx.job.models.vit import Vit
from phalanx.job.models.vit_export import write_vit
from phalanx.job.models.vit_folder import VitFolder
from phalanx.job.serve.export import main as export
from phalanx.job.serve.sample import load_model
from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang
from tests.job.data.image_folders import CLASSES, write_images
from tests.job.train.vit_cases import EXAMPLE, HELD_OUT, LAYOUTS, RECIPE, STEPS, STOP

BATCH = 2 * RECIPE.batch_per_rank
GIVEN = VitShape(image=8, patch=2, dim=24, layers=1, heads=3, classes=5, norm_epsilon=1e-12)
"""Of the model that a run begins with."""


def write_given(to: Path, shape: VitShape) -> None:
    """Random weights in Hugging Face's form, in several files."""
    given, generator = Vit(shape), torch.Generator().manual_seed(0)
    for weight in given.parameters():
        weight.data.normal_(0.0, 0.1, generator=generator)
    write_vit(to, given, "float32", (), "half", file_bytes_max=9_000)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vit")
    write_images(out / "images", each=24, side=12)
    pack(out / "images", out / "data")
    write_given(out / "given", GIVEN)
    assert isinstance(EXAMPLE, VitRecipe)
    write_given(out / "example-model", EXAMPLE.shape(classes=3))
    shapes.make(out / "few", each=40, shapes=("bar", "ring"))
    shapes.make(out / "shapes", each=40).rename(out / "example-data")
    codes = end_gang(start_gang(("-m", "tests.job.train.vit_cases", str(out)), out / "logs", 2, {}), limit_s=600)
    assert codes == [0, 0], logs(out / "logs")
    return out


@pytest.fixture(scope="module")
def answer(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "answer.json").read_text())
    return found


def numbers(losses: list[str]) -> list[float]:
    return [float.fromhex(loss) for loss in losses]


@pytest.mark.parametrize("name", [*LAYOUTS, "halves"])
def test_every_kind_of_data_parallelism_trains_as_one_process(answer: dict[str, Any], name: str) -> None:
    assert numbers(answer[name]) == pytest.approx(answer["plain"], rel=1e-5)
    assert len(answer["plain"]) == STEPS and answer["plain"][-1] < answer["plain"][0]


def test_what_is_computed_again_changes_no_bit_and_bf16_little(answer: dict[str, Any]) -> None:
    assert answer["again"] == answer["zero3"] == list(answer["whole"]["losses"].values())
    assert numbers(answer["bf16"]) == pytest.approx(answer["plain"], rel=0.05) and answer["bf16"] != answer["zero3"]


def test_a_run_that_went_on_is_the_run_that_nothing_disturbed(answer: dict[str, Any]) -> None:
    whole, (first, second) = answer["whole"], answer["legs"]
    assert [list(leg["losses"]) for leg in (first, second)] == [
        [str(step) for step in range(1, STOP)], [str(step) for step in range(4, STEPS + 1)],
    ]  # fmt: skip
    assert {**first["losses"], **second["losses"]} == whole["losses"]
    assert whole["model"]["weights_digest"] == second["model"]["weights_digest"]
    assert whole["model"]["metrics"] == second["model"]["metrics"]
    assert whole["corruption"] == second["corruption"] == []


def test_the_model_says_what_it_is_and_how_well_it_does(
    out: Path, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said = answer["whole"]["model"]
    assert said["lineage"]["recipe"] == "vit" and said["metrics"]["val_loss_final"] < said["metrics"]["val_loss_first"]
    assert 0 <= said["metrics"]["val_accuracy_final"] <= 1 and said["metrics"]["val_accuracy_final"] * HELD_OUT % 1 == 0
    assert answer["whole"]["images"] == [BATCH]
    assert answer["whole"]["tokens"] == [BATCH * 5], "four patches and the class's token of each image"
    folder = Path(said["path"])
    config = json.loads((folder / "config.json").read_text())
    assert config["recipe"] == "vit" and config["classes"] == list(CLASSES)
    model = Vit(wire.build(VitShape, config["shape"]))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, len(CLASSES))
    for read in (load_model, read_shape):
        with pytest.raises(CheckpointError, match="is a model of images"):
            read(folder)
    assert not list(folder.glob("tokenizer*"))


def test_a_checkpoint_knows_how_accurate_it_is(out: Path) -> None:
    metrics = manifest.read(out / "whole/checkpoints" / manifest.folder_name(STEPS))[0].metrics
    assert metrics["val_accuracy"] * HELD_OUT % 1 == 0 and metrics["val_loss"] > 0, metrics


@pytest.mark.parametrize("name", ["whole", "legs"])
def test_each_image_was_read_exactly_once_an_epoch_and_held_out_ones_never(out: Path, name: str) -> None:
    found = audit_folder(out / name)
    trained = 3 * 24 - HELD_OUT
    assert found.complete and found.contents == "compared" and found.samples == STEPS * BATCH, found.says
    assert (found.sources[0].epochs, found.sources[0].rest) == divmod(STEPS * BATCH, trained)


def test_the_examples_are_such_jobs(answer: dict[str, Any]) -> None:
    losses = numbers(answer["example"])
    assert len(losses) == 12 and losses[-1] < losses[0], losses
    losses = numbers(answer["fine_tuned"])
    assert len(losses) == 12 and losses[0] == pytest.approx(math.log(2)) and losses[-1] < losses[0], "a new head knows nothing"


def test_what_cuts_a_model_is_refused(answer: dict[str, Any]) -> None:
    for axis in ("tp", "cp", "ep"):
        assert answer["refused"][axis].startswith(f"layout.{axis} is 2: write 1: a vision transformer is not cut")


def test_a_run_begins_with_a_folder_s_weights_and_a_head_for_its_own_classes(
    out: Path, answer: dict[str, Any], tmp_path: Path
) -> None:
    first, second = answer["begun"]["legs"]
    found = {**first["losses"], **second["losses"]}
    assert numbers(list(found.values())) == pytest.approx(answer["begun"]["plain"], rel=1e-5) and len(found) == STEPS
    assert list(second["losses"]) == [str(step) for step in range(4, STEPS + 1)]
    lineage, folder = second["model"]["lineage"], Path(second["model"]["path"])
    assert lineage["init"] == str(out / "given") and lineage["init_weights"] == TensorFiles(out / "given").digest()
    assert export([str(folder), "--to", str(tmp_path / "hf")]) == 0
    for one in (folder, tmp_path / "hf"):  # either may begin another run
        given = VitFolder(one).given
        assert given.shape == replace(GIVEN, classes=len(CLASSES)) and given.names == CLASSES
